#define LOG_MODULE "rpc"
#include "rpc/grpc/loop.h"

#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"

struct rpc_loop {
    grpc_completion_queue *cq;
    pthread_t thread;
    /* An empty batch on this call puts its tag into the queue at once: the only way to wake cq_next from outside. */
    grpc_channel *wake_channel;
    grpc_call *wake_call;
    struct rpc_tag wake;
    struct arena scratch;
    pthread_mutex_t lock; /* guards what follows */
    struct list timers;
    int woken, ending;
};

grpc_completion_queue *rpc_loop__cq(struct rpc_loop *l)
{
    return l->cq;
}

struct arena *rpc_loop__scratch(struct rpc_loop *l)
{
    return &l->scratch;
}

int rpc_loop__is_here(const struct rpc_loop *l)
{
    return pthread_equal(pthread_self(), l->thread);
}

gpr_timespec rpc__deadline(int timeout_ms)
{
    if (timeout_ms <= 0)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
}

static void on_wake(struct rpc_tag *t, int ok)
{
    struct rpc_loop *l = LIST_ENTRY(t, struct rpc_loop, wake);
    (void)ok;
    pthread_mutex_lock(&l->lock);
    l->woken = 0;
    pthread_mutex_unlock(&l->lock);
}

/* Lock held. */
static void wake(struct rpc_loop *l)
{
    if (l->woken || rpc_loop__is_here(l))
        return;
    l->woken = 1;
    RPC_TAG_STARTS(&l->wake);
    CHECK(grpc_call_start_batch(l->wake_call, NULL, 0, &l->wake, NULL) == GRPC_CALL_OK);
}

void rpc_timer_start(struct rpc_loop *l, struct rpc_timer *t, int64_t time_ns)
{
    t->time_ns = time_ns;
    t->cancelled = 0;
    pthread_mutex_lock(&l->lock);
    struct list *before = l->timers.prev;
    while (before != &l->timers && LIST_ENTRY(before, struct rpc_timer, in_loop)->time_ns > time_ns)
        before = before->prev;
    list_push_front(before, &t->in_loop);
    if (l->timers.next == &t->in_loop)
        wake(l);
    pthread_mutex_unlock(&l->lock);
}

void rpc_timer_cancel(struct rpc_loop *l, struct rpc_timer *t)
{
    pthread_mutex_lock(&l->lock);
    if (list_linked(&t->in_loop)) {
        t->cancelled = 1;
        list_remove(&t->in_loop);
        list_push_front(&l->timers, &t->in_loop);
        t->time_ns = INT64_MIN;
        wake(l);
    }
    pthread_mutex_unlock(&l->lock);
}

/* Runs what is due; returns when the next one is (INT64_MAX: none). */
static int64_t run_timers(struct rpc_loop *l)
{
    int64_t next = INT64_MAX;
    pthread_mutex_lock(&l->lock);
    while (!list_empty(&l->timers)) {
        struct rpc_timer *t = LIST_ENTRY(l->timers.next, struct rpc_timer, in_loop);
        if (t->time_ns > clock_now_ns() && !l->ending) {
            next = t->time_ns;
            break;
        }
        list_remove(&t->in_loop);
        int fired = !t->cancelled && !l->ending;
        pthread_mutex_unlock(&l->lock);
        t->fn(t, fired);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return next;
}

static gpr_timespec wait_until(int64_t next)
{
    if (next == INT64_MAX)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    int64_t wait_ns = next - clock_now_ns();
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(wait_ns > 0 ? wait_ns : 0, GPR_TIMESPAN));
}

static void *loop_main(void *arg)
{
    struct rpc_loop *l = arg;
    for (;;) {
        grpc_event e = grpc_completion_queue_next(l->cq, wait_until(run_timers(l)), NULL);
        if (e.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (e.type == GRPC_OP_COMPLETE) {
            struct rpc_tag *t = e.tag;
            RPC_TAG_COMES(t);
            t->fn(t, e.success);
        }
    }
    run_timers(l);
    return NULL;
}

/* What matters comes back as a status, and is told once by who owns the call or the address. */
static void core_log(gpr_log_func_args *a)
{
    LOG_DEBUG("core: %s", a->message);
}

/* Signals are the program's main thread's: neither this thread nor the core's own, made by grpc_init, take any. */
static int start_threads(struct rpc_loop *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    gpr_set_log_function(core_log);
    grpc_init();
    l->cq = grpc_completion_queue_create_for_next(NULL);
    l->wake_channel = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "wake");
    l->wake_call = grpc_channel_create_call(l->wake_channel, NULL, GRPC_PROPAGATE_DEFAULTS, l->cq,
                                            grpc_slice_from_static_string("/wake"), NULL,
                                            gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    /* Held so that the thread sees its own id. */
    pthread_mutex_lock(&l->lock);
    int rc = pthread_create(&l->thread, NULL, loop_main, l);
    pthread_mutex_unlock(&l->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void end_core(struct rpc_loop *l)
{
    grpc_completion_queue_destroy(l->cq);
    grpc_shutdown();
    pthread_mutex_destroy(&l->lock);
    arena_fini(&l->scratch);
    free(l);
}

static void end_wake(struct rpc_loop *l)
{
    grpc_call_unref(l->wake_call);
    grpc_channel_destroy(l->wake_channel);
}

enum status rpc_loop_create(struct rpc_loop **out, struct error *err)
{
    struct rpc_loop *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the RPC loop");
    pthread_mutex_init(&l->lock, NULL);
    list_init(&l->timers);
    arena_init(&l->scratch, (size_t)1 << 16);
    l->wake.fn = on_wake;
    int rc = start_threads(l);
    if (rc) {
        end_wake(l);
        grpc_completion_queue_shutdown(l->cq);
        end_core(l);
        return error_set(err, STATUS_OUT_OF_MEMORY, "RPC thread: %s", strerror(rc));
    }
    *out = l;
    return STATUS_OK;
}

void rpc_loop_destroy(struct rpc_loop *l)
{
    if (!l)
        return;
    CHECK(!rpc_loop__is_here(l));
    pthread_mutex_lock(&l->lock);
    l->ending = 1;
    wake(l);
    pthread_mutex_unlock(&l->lock);
    end_wake(l);
    grpc_completion_queue_shutdown(l->cq);
    pthread_join(l->thread, NULL);
    end_core(l);
}

/* --- rpc_loop_at ------------------------------------------------------------------------------------------------------- */

struct at {
    struct rpc_timer timer;
    void (*fn)(void *arg);
    void *arg;
};

static void on_at(struct rpc_timer *t, int fired)
{
    struct at *at = LIST_ENTRY(t, struct at, timer);
    if (fired)
        at->fn(at->arg);
    free(at);
}

enum status rpc_loop_at(struct rpc_loop *l, int64_t time_ns, void (*fn)(void *arg), void *arg)
{
    struct at *at = calloc(1, sizeof *at);
    if (!at)
        return STATUS_OUT_OF_MEMORY;
    at->timer.fn = on_at;
    at->fn = fn;
    at->arg = arg;
    rpc_timer_start(l, &at->timer, time_ns);
    return STATUS_OK;
}
