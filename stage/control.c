#define LOG_MODULE "control"
#include "stage/control.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/beat.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "rpc/grpc/stage_api.h"
#include "rpc/grpc/tls.h"

/* A coordinator that reads nothing fills the stream's 64 messages; the compute thread waits so long before one is lost. */
enum { FULL_PAUSE_US = 1000, FULL_LIMIT_MS = 10000, FATAL_FLUSH_MS = 200, LOOK_MS = 100, MISSED_BEATS = 4, SAY_FIRST_S = 2, SAY_AGAIN_S = 30 };

struct control {
    struct control_options o;
    struct rpc_loop *loop;
    struct rpc_channel *channel;
    struct stage_client *client;
    struct worker *worker;

    /* the loop's thread */
    int open, heartbeat_ms;
    int64_t beat_ns;      /* when the next one is due */
    int64_t say_ns;       /* when to say that no coordinator is found */

    pthread_mutex_t lock; /* guards what follows, and client while it is made */
    pthread_cond_t timed_out;
    int timing, closing;  /* a timer is set; control_destroy waits for it */
    int64_t fatal_ns;     /* 0: nothing fatal happened */
    int told;
    struct msg_failed fatal;
};

/* --- to the coordinator ---------------------------------------------------------------------------------------------------------- */

/* Also without a stream the process ends: no coordinator can use it. The message gets time to leave first; a coordinator that has the
 * stage again within that time, and the same answer, gives it no more. */
static void remember_fatal(struct control *c, const struct msg_failed *why)
{
    pthread_mutex_lock(&c->lock);
    if (!c->fatal_ns) {
        c->fatal = *why;
        c->fatal_ns = clock_now_ns() + FATAL_FLUSH_MS * NS_PER_MS;
    }
    pthread_mutex_unlock(&c->lock);
}

static int is_closing(struct control *c)
{
    pthread_mutex_lock(&c->lock);
    int closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    return closing;
}

static void send_from_worker(void *ctx, const struct from_stage *m)
{
    struct control *c = ctx;
    const int64_t limit_ns = clock_now_ns() + FULL_LIMIT_MS * NS_PER_MS;
    enum status s;
    while ((s = stage_client_send(c->client, m)) == STATUS_FULL && clock_now_ns() < limit_ns && !is_closing(c))
        usleep(FULL_PAUSE_US);
    if (s == STATUS_FULL)
        LOG_ERROR("the coordinator has read nothing for %d ms; message %d is lost", FULL_LIMIT_MS, (int)m->kind);
    if (m->kind == FROM_STAGE_FAILED && m->failed.fatal)
        remember_fatal(c, &m->failed);
}

static void send_hello(struct control *c)
{
    struct from_stage m = {.kind = FROM_STAGE_HELLO};
    worker_describe(c->worker, &m.hello);
    m.hello.wire_version = WIRE_VERSION;
    m.hello.stage = c->o.stage;
    m.hello.pid = (uint32_t)getpid();
    m.hello.incarnation = c->o.incarnation;
    m.hello.last_signal = c->o.last_signal;
    snprintf(m.hello.build, sizeof m.hello.build, "%s", config_version());
    if (gethostname(m.hello.host, sizeof m.hello.host - 1) != 0)
        snprintf(m.hello.host, sizeof m.hello.host, "unknown");
    if (stage_client_send(c->client, &m) != STATUS_OK)
        LOG_WARN("the stream ended before HELLO");
}

static void set_timer(struct control *c);

/* True when the control line is being destroyed: the timer was the last that held it. */
static int closed(struct control *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->closing) {
        c->timing = 0;
        pthread_cond_signal(&c->timed_out);
    }
    int closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    return closing;
}

/* One that comes up later than its stages is the usual way; one that is not found for long, or that refuses our certificate, is not. */
static void look_for_coordinator(struct control *c, int64_t now_ns)
{
    if (c->open || !c->say_ns) {
        c->say_ns = now_ns + SAY_FIRST_S * NS_PER_S;
    } else if (now_ns >= c->say_ns) {
        LOG_WARN("no connection to a coordinator at %s yet%s", c->o.coordinator,
                 rpc_tls_is_mutual(c->o.tls) ? "; one whose certificate, or ours, is not accepted looks like that too" : "");
        c->say_ns = now_ns + SAY_AGAIN_S * NS_PER_S;
    }
}

static void on_timer(void *arg)
{
    struct control *c = arg;
    if (closed(c))
        return;
    const int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&c->lock);
    const int is_over = c->fatal_ns && now_ns >= c->fatal_ns && !c->told;
    const struct msg_failed why = c->fatal;
    c->told |= is_over;
    pthread_mutex_unlock(&c->lock);
    if (is_over)
        c->o.over(c->o.over_ctx, why.status, why.message);
    look_for_coordinator(c, now_ns);
    if (now_ns >= c->beat_ns) {
        c->beat_ns = now_ns + c->heartbeat_ms * NS_PER_MS;
        struct from_stage m = {.kind = FROM_STAGE_HEARTBEAT};
        worker_heartbeat(c->worker, &m.heartbeat);
        if (c->open)
            stage_client_send(c->client, &m); /* one that finds no room says nothing that the next will not */
        struct from_stage lost = {.kind = FROM_STAGE_FAILED};
        if (worker_link_is_silent(c->worker, (uint32_t)(MISSED_BEATS * c->heartbeat_ms), &lost.failed)) {
            LOG_WARN("%s", lost.failed.message);
            if (c->open)
                stage_client_send(c->client, &lost);
        }
    }
    set_timer(c);
}

/* Looks up at least every 100 ms, so that control_destroy does not wait for a long heartbeat. */
static void set_timer(struct control *c)
{
    const int64_t look_ns = clock_now_ns() + LOOK_MS * NS_PER_MS;
    if (rpc_loop_at(c->loop, c->beat_ns < look_ns ? c->beat_ns : look_ns, on_timer, c) != STATUS_OK) {
        pthread_mutex_lock(&c->lock);
        c->timing = 0;
        pthread_mutex_unlock(&c->lock);
        c->o.over(c->o.over_ctx, STATUS_OUT_OF_MEMORY, "no memory for a heartbeat");
    }
}

/* --- from the coordinator ----------------------------------------------------------------------------------------------------------- */

static void on_open(void *ctx)
{
    struct control *c = ctx;
    LOG_INFO("attached to the coordinator at %s", c->o.coordinator);
    pthread_mutex_lock(&c->lock); /* the client's pointer may only just have been made */
    pthread_mutex_unlock(&c->lock);
    c->open = 1;
    send_hello(c);
}

static void on_message(void *ctx, const struct to_stage *m)
{
    struct control *c = ctx;
    trace_event("from coordinator", m->kind, m->kind == TO_STAGE_PLAN ? (int64_t)m->plan->tick : 0, 0, 0);
    if (m->kind == TO_STAGE_EXIT) {
        c->o.over(c->o.over_ctx, m->exit.status, m->exit.message);
        return;
    }
    if (m->kind == TO_STAGE_ASSIGN)
        beat_serves(m->assign.stage);
    if (m->kind == TO_STAGE_ASSIGN && m->assign.heartbeat_ms && m->assign.heartbeat_ms <= WORKER_MAX_HEARTBEAT_MS)
        c->heartbeat_ms = (int)m->assign.heartbeat_ms;
    worker_post(c->worker, m);
}

static void on_closed(void *ctx, const struct error *why)
{
    struct control *c = ctx;
    int was_open = c->open;
    c->open = 0;
    if (why->status == STATUS_UNAUTHENTICATED || why->status == STATUS_FORBIDDEN) {
        c->o.over(c->o.over_ctx, STATUS_CONFIG, "the coordinator refuses this stage's token");
        return;
    }
    if (was_open) {
        LOG_WARN("the coordinator's stream ended: %s; the weights stay", why->message);
        worker_detach(c->worker);
    } else {
        LOG_DEBUG("coordinator at %s: %s", c->o.coordinator, why->message);
    }
}

static struct plan *plan_acquire(void *ctx)
{
    return worker_plan_acquire(((struct control *)ctx)->worker);
}

static void plan_release(void *ctx, struct plan *p)
{
    worker_plan_release(((struct control *)ctx)->worker, p);
}

/* --- life ------------------------------------------------------------------------------------------------------------------------------ */

static enum status start(struct control *c, struct error *err)
{
    const struct rpc_options rpc = {.secret = c->o.secret,
                                    .max_message_bytes = c->o.max_message_bytes,
                                    .heartbeat_ms = c->o.heartbeat_ms,
                                    .tls = c->o.tls};
    const struct stage_client_events events = {
        .ctx = c, .on_open = on_open, .on_message = on_message, .on_closed = on_closed, .plan_acquire = plan_acquire,
        .plan_release = plan_release};
    TRY(worker_create(&c->o.worker, &c->worker, err));
    TRY(rpc_channel_create(c->loop, c->o.coordinator, &rpc, &c->channel, err));
    /* The worker says nothing before its first assignment, and that comes through the client; HELLO comes from a callback
     * that may run before stage_client_create returns, so the pointer is published under the lock. */
    pthread_mutex_lock(&c->lock);
    enum status s = stage_client_create(c->channel, &events, &c->client, err);
    c->timing = s == STATUS_OK;
    pthread_mutex_unlock(&c->lock);
    if (s == STATUS_OK)
        set_timer(c);
    return s;
}

enum status control_create(const struct control_options *o, struct rpc_loop *loop, struct control **out, struct error *err)
{
    struct control *c = calloc(1, sizeof *c);
    if (!c) {
        link_port_destroy(o->worker.port);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the control line");
    }
    c->o = *o;
    c->o.worker.send = send_from_worker;
    c->o.worker.send_ctx = c;
    c->loop = loop;
    c->heartbeat_ms = o->heartbeat_ms;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->timed_out, NULL);
    enum status s = start(c, err);
    if (s == STATUS_OK)
        *out = c;
    else
        control_destroy(c);
    return s;
}

void control_destroy(struct control *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = 1;
    while (c->timing)
        pthread_cond_wait(&c->timed_out, &c->lock);
    pthread_mutex_unlock(&c->lock);
    /* The worker speaks through the client and the client to the worker: first the worker falls silent. */
    if (c->worker)
        worker_stop(c->worker);
    if (c->client)
        stage_client_destroy(c->client);
    if (c->channel)
        rpc_channel_destroy(c->channel);
    worker_destroy(c->worker);
    pthread_cond_destroy(&c->timed_out);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void control_reload(struct control *c)
{
    rpc_tls_reload_logged(c->o.tls);
    stage_client_renew(c->client);
}

void control_dump(struct control *c)
{
    struct worker_counters n;
    struct msg_heartbeat h;
    worker_counters(c->worker, &n);
    worker_heartbeat(c->worker, &h);
    LOG_INFO("epoch %llu tick %llu layers %llu busy %u: %llu ticks, %llu failures; stale: %llu plans, %llu epochs, %llu links, "
             "%llu frames, %llu feedback",
             (unsigned long long)h.epoch, (unsigned long long)h.tick, (unsigned long long)h.layer_counter, h.busy,
             (unsigned long long)n.ticks, (unsigned long long)n.failures, (unsigned long long)n.stale.plans,
             (unsigned long long)n.stale.epochs, (unsigned long long)n.stale.links, (unsigned long long)n.stale.frames,
             (unsigned long long)n.stale.feedback);
}
