#define LOG_MODULE "worker"
#include "stage/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "stage/kv.h"
#include "stage/worker_impl.h"

static const char *const state_names[WORKER_N_STATES] = {"empty", "loaded", "joined", "ready"};

static const unsigned char may_move[WORKER_N_STATES][WORKER_N_STATES] = {
    [WORKER_EMPTY] = {[WORKER_EMPTY] = 1, [WORKER_LOADED] = 1},
    [WORKER_LOADED] = {[WORKER_EMPTY] = 1, [WORKER_LOADED] = 1, [WORKER_JOINED] = 1},
    [WORKER_JOINED] = {[WORKER_LOADED] = 1, [WORKER_JOINED] = 1, [WORKER_READY] = 1},
    [WORKER_READY] = {[WORKER_LOADED] = 1, [WORKER_JOINED] = 1},
};

void worker__move(struct worker *w, enum worker_state to)
{
    CHECK(may_move[w->state][to]);
    trace_event("worker", w->state, to, (int64_t)w->epoch.epoch, (int64_t)w->last_tick);
    LOG_DEBUG("epoch %llu: %s -> %s", (unsigned long long)w->epoch.epoch, state_names[w->state], state_names[to]);
    w->state = to;
}

int worker__superseded(const struct worker *w)
{
    return atomic_load(&w->generation) != w->epoch_generation;
}

int worker__is_last(const struct worker *w)
{
    return w->assign.stage + 1 == w->assign.n_stages;
}

void worker__send(struct worker *w, const struct from_stage *m)
{
    w->options.send(w->options.send_ctx, m);
}

void worker__flush_timings(struct worker *w)
{
    if (w->timings.timings.n && w->state == WORKER_READY && !worker__superseded(w))
        worker__send(w, &w->timings);
    w->timings.timings.n = 0;
}

/* Gives the links back; the lock makes sure that nobody aborts what is being destroyed. */
static void drop_links(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct link_pair links = w->links;
    w->links = (struct link_pair){0};
    pthread_mutex_unlock(&w->lock);
    link_destroy(links.in);
    link_destroy(links.out);
}

void worker__leave(struct worker *w)
{
    drop_links(w);
    w->timings.timings.n = 0;
    if (w->seqs)
        sequences_clear(w->seqs);
    if (w->state > WORKER_LOADED)
        worker__move(w, WORKER_LOADED);
}

void worker__fail(struct worker *w, uint64_t tick, const struct error *err, int fatal)
{
    struct from_stage m = {.kind = FROM_STAGE_FAILED,
                           .failed = {.session = w->epoch.session,
                                      .epoch = w->epoch.epoch,
                                      .tick = tick,
                                      .status = err->status,
                                      .fatal = (uint32_t)fatal}};
    snprintf(m.failed.message, sizeof m.failed.message, "stage %u: %.180s", w->assign.stage, err->message);
    int report = fatal || !worker__superseded(w);
    worker__leave(w);
    if (!report)
        return;
    LOG_WARN("epoch %llu tick %llu: %s", (unsigned long long)w->epoch.epoch, (unsigned long long)tick, m.failed.message);
    pthread_mutex_lock(&w->lock);
    w->count.failures++;
    pthread_mutex_unlock(&w->lock);
    worker__send(w, &m);
}

/* --- epochs ------------------------------------------------------------------------------------------------------------------------ */

static void take_epoch(struct worker *w, const struct msg_epoch *e)
{
    worker__leave(w);
    w->epoch = *e;
    w->has_tick = 0;
    w->last_tick = 0;
    if (w->state == WORKER_EMPTY) {
        struct error err;
        error_set(&err, STATUS_PROTOCOL, "epoch %llu before an assignment", (unsigned long long)e->epoch);
        worker__fail(w, 0, &err, 0);
        return;
    }
    worker__move(w, WORKER_JOINED);
    pthread_mutex_lock(&w->lock);
    w->joined = *e;
    w->tick = 0;
    w->facts.highest_epoch = e->epoch;
    pthread_mutex_unlock(&w->lock);
    const struct kv_mark mark = kv_pool_watermark(w->compute->pool);
    const struct from_stage m = {.kind = FROM_STAGE_ACK,
                                 .ack = {.session = e->session,
                                         .epoch = e->epoch,
                                         .kv_id = kv_pool_id(w->compute->pool),
                                         .kv_session = mark.session,
                                         .kv_epoch = mark.epoch,
                                         .kv_tick = mark.tick}};
    if (!worker__superseded(w))
        worker__send(w, &m);
}

/* A form's links become the worker's, unless the epoch ended meanwhile. */
static int adopt_links(struct worker *w, const struct link_pair *pair)
{
    pthread_mutex_lock(&w->lock);
    int ok = !worker__superseded(w);
    if (ok)
        w->links = *pair;
    pthread_mutex_unlock(&w->lock);
    if (!ok) {
        link_destroy(pair->in);
        link_destroy(pair->out);
    }
    return ok;
}

static enum status form_links(struct worker *w, const struct msg_links *l, struct error *err)
{
    const struct msg_assign *a = &w->assign;
    const size_t feedback = (a->window + 2) * (FRAME_HEADER_BYTES + (size_t)a->slots * FEEDBACK_RECORD_BYTES);
    struct link_form f = {
        .generation = w->epoch_generation,
        .session = l->session,
        .epoch = l->epoch,
        .stage = a->stage,
        .n_stages = a->n_stages,
        .next = l->next,
        .timeout_ms = a->stuck_ms < 1000 ? 1000 : a->stuck_ms,
        .out_bytes = worker__is_last(w) ? feedback
                                        : FRAME_HEADER_BYTES + (size_t)a->max_rows * (w->width + 1) * sizeof(float),
    };
    memcpy(f.key, l->key, sizeof f.key);
    struct link_pair pair;
    TRY(link_port_form(w->options.port, &f, &pair, err));
    return adopt_links(w, &pair) ? STATUS_OK : STATUS_CLOSED;
}

static void take_links(struct worker *w, const struct msg_links *l)
{
    struct error err = {0};
    if (w->state != WORKER_JOINED) {
        /* After a failure of our own the links of that epoch are of no use any more. */
        if (w->state == WORKER_READY) {
            error_set(&err, STATUS_PROTOCOL, "links twice in epoch %llu", (unsigned long long)l->epoch);
            worker__fail(w, 0, &err, 0);
            return;
        }
        pthread_mutex_lock(&w->lock);
        w->count.stale.links++;
        pthread_mutex_unlock(&w->lock);
        return;
    }
    if (w->assign.n_stages > 1) {
        enum status s = form_links(w, l, &err);
        if (s != STATUS_OK) {
            struct error told;
            error_set(&told, s, "links: %.250s", err.message);
            worker__fail(w, 0, &told, 0);
            return;
        }
        if (w->feedback)
            feedback_start(w->feedback, w->epoch.session, w->epoch.epoch, (uint16_t)(w->assign.n_stages - 1), w->links.in,
                           w->seqs);
    }
    worker__move(w, WORKER_READY);
    w->idle_since_ns = clock_now_ns();
    const struct from_stage m = {.kind = FROM_STAGE_READY, .ready = w->epoch};
    if (!worker__superseded(w))
        worker__send(w, &m);
}

static void take_plan(struct worker *w, struct plan *p)
{
    if (w->state == WORKER_READY) {
        atomic_store(&w->busy, WORKER_COMPUTES);
        worker__run_plan(w, p, clock_now_ns());
        atomic_store(&w->busy, WORKER_IDLE);
        w->idle_since_ns = clock_now_ns();
    } else if (w->state == WORKER_JOINED) {
        struct error err;
        error_set(&err, STATUS_PROTOCOL, "plan of tick %llu before the links of epoch %llu", (unsigned long long)p->tick,
                  (unsigned long long)p->epoch);
        worker__fail(w, p->tick, &err, 0);
    } else {
        pthread_mutex_lock(&w->lock);
        w->count.stale.plans++; /* sent before our failure was known */
        pthread_mutex_unlock(&w->lock);
    }
    worker_plan_release(w, p);
}

/* --- the inbox ---------------------------------------------------------------------------------------------------------------------- */

enum work { WORK_NONE, WORK_STOP, WORK_DETACH, WORK_ASSIGN, WORK_EPOCH, WORK_LINKS, WORK_PLAN };

union work_item {
    struct msg_assign assign;
    struct msg_epoch epoch;
    struct msg_links links;
    struct plan *plan;
};

/* In the order in which a coordinator sends them. */
static enum work pick(struct worker *w, union work_item *item)
{
    struct worker_inbox *in = &w->inbox;
    if (in->stop)
        return WORK_STOP;
    if (in->detach) {
        in->detach = 0;
        w->epoch_generation = atomic_load(&w->generation);
        return WORK_DETACH;
    }
    if (in->has_assign) {
        in->has_assign = 0;
        item->assign = in->assign;
        w->assign_detached = w->n_detached;
        return WORK_ASSIGN;
    }
    if (in->has_epoch) {
        in->has_epoch = 0;
        item->epoch = in->epoch;
        w->epoch_generation = atomic_load(&w->generation);
        return WORK_EPOCH;
    }
    if (in->has_links) {
        in->has_links = 0;
        item->links = in->links;
        return WORK_LINKS;
    }
    if (in->n_plans) {
        item->plan = in->plans[in->head];
        in->head = (in->head + 1) % WORKER_MAX_PLANS;
        in->n_plans--;
        return WORK_PLAN;
    }
    return WORK_NONE;
}

static enum work take(struct worker *w, union work_item *item)
{
    enum work kind;
    int64_t deadline_ns = w->timings.timings.n ? w->timings_since_ns + TIMINGS_AGE_MS * NS_PER_MS : 0;
    const struct timespec t = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    pthread_mutex_lock(&w->lock);
    while ((kind = pick(w, item)) == WORK_NONE) {
        if (!deadline_ns)
            pthread_cond_wait(&w->filled, &w->lock);
        else if (pthread_cond_timedwait(&w->filled, &w->lock, &t) != 0)
            break;
    }
    pthread_mutex_unlock(&w->lock);
    return kind;
}

static void *worker_run(void *arg)
{
    struct worker *w = arg;
    union work_item item;
    for (;;) {
        enum work kind = take(w, &item);
        switch (kind) {
        case WORK_STOP:
            worker__leave(w);
            worker__unload(w); /* on the thread that loaded */
            return NULL;
        case WORK_DETACH:
            worker__leave(w);
            break;
        case WORK_ASSIGN:
            worker__take_assignment(w, &item.assign);
            break;
        case WORK_EPOCH:
            take_epoch(w, &item.epoch);
            break;
        case WORK_LINKS:
            take_links(w, &item.links);
            break;
        case WORK_PLAN:
            take_plan(w, item.plan);
            break;
        case WORK_NONE:
            worker__flush_timings(w);
            break;
        }
    }
}

/* --- other threads ------------------------------------------------------------------------------------------------------------------- */

static void release_locked(struct worker *w, struct plan *p)
{
    for (uint32_t i = 0; i < w->n_pool; i++)
        if (w->pool[i] == p) {
            w->free_plans[w->n_free++] = p;
            return;
        }
    plan_destroy(p); /* of an assignment that was replaced */
}

/* Ends whatever goes on: called with the lock held. */
static void interrupt(struct worker *w)
{
    struct worker_inbox *in = &w->inbox;
    uint64_t g = atomic_fetch_add(&w->generation, 1) + 1;
    in->has_links = 0;
    for (; in->n_plans; in->n_plans--) {
        release_locked(w, in->plans[in->head]);
        in->head = (in->head + 1) % WORKER_MAX_PLANS;
    }
    if (w->links.in)
        link_abort(w->links.in);
    if (w->links.out)
        link_abort(w->links.out);
    link_port_abort(w->options.port, g);
}

struct plan *worker_plan_acquire(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    struct plan *p = w->n_free ? w->free_plans[--w->n_free] : NULL;
    pthread_mutex_unlock(&w->lock);
    if (p)
        plan_reset(p);
    return p;
}

void worker_plan_release(struct worker *w, struct plan *p)
{
    pthread_mutex_lock(&w->lock);
    release_locked(w, p);
    pthread_mutex_unlock(&w->lock);
}

static void post_epoch(struct worker *w, const struct msg_epoch *e)
{
    struct worker_inbox *in = &w->inbox;
    if (e->epoch <= in->current.epoch) {
        w->count.stale.epochs++;
        return;
    }
    interrupt(w);
    in->current = *e;
    in->epoch = *e;
    in->has_epoch = 1;
}

static void post_plan(struct worker *w, struct plan *p)
{
    struct worker_inbox *in = &w->inbox;
    if (p->session != in->current.session || p->epoch != in->current.epoch || in->n_plans == WORKER_MAX_PLANS) {
        w->count.stale.plans++;
        release_locked(w, p);
        return;
    }
    in->plans[(in->head + in->n_plans++) % WORKER_MAX_PLANS] = p;
}

void worker_post(struct worker *w, const struct to_stage *m)
{
    struct worker_inbox *in = &w->inbox;
    pthread_mutex_lock(&w->lock);
    switch (m->kind) {
    case TO_STAGE_ASSIGN:
        in->assign = m->assign;
        in->has_assign = 1;
        break;
    case TO_STAGE_EPOCH:
        post_epoch(w, &m->epoch);
        break;
    case TO_STAGE_LINKS:
        if (m->links.session != in->current.session || m->links.epoch != in->current.epoch) {
            w->count.stale.links++;
        } else {
            in->links = m->links;
            in->has_links = 1;
        }
        break;
    case TO_STAGE_PLAN:
        post_plan(w, m->plan);
        break;
    case TO_STAGE_EXIT:
        break;
    }
    pthread_cond_signal(&w->filled);
    pthread_mutex_unlock(&w->lock);
}

void worker_detach(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    interrupt(w);
    w->inbox.has_assign = w->inbox.has_epoch = 0;
    w->inbox.detach = 1;
    w->n_detached++;
    w->inbox.current.session = 0; /* what still comes from the old one is stale; the number stays */
    pthread_cond_signal(&w->filled);
    pthread_mutex_unlock(&w->lock);
}

void worker_describe(struct worker *w, struct msg_hello *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->facts;
    out->highest_epoch = w->inbox.current.epoch;
    pthread_mutex_unlock(&w->lock);
}

void worker_heartbeat(struct worker *w, struct msg_heartbeat *out)
{
    const int busy = atomic_load(&w->busy);
    pthread_mutex_lock(&w->lock);
    *out = (struct msg_heartbeat){.session = w->joined.session,
                                  .epoch = w->joined.epoch,
                                  .tick = w->tick,
                                  .layer_counter = w->compute ? atomic_load(&w->compute->progress) : 0,
                                  .busy = busy != WORKER_IDLE,
                                  .waits = busy == WORKER_WAITS,
                                  .stale = w->count.stale};
    pthread_mutex_unlock(&w->lock);
}

int worker_link_is_silent(struct worker *w, uint32_t limit_ms, struct msg_failed *out)
{
    pthread_mutex_lock(&w->lock);
    uint32_t ms = w->links.out ? link_unheard_ms(w->links.out) : 0;
    int is_silent = ms >= limit_ms && (w->silent.session != w->joined.session || w->silent.epoch != w->joined.epoch);
    if (is_silent) {
        w->silent = w->joined;
        *out = (struct msg_failed){
            .session = w->joined.session, .epoch = w->joined.epoch, .tick = w->tick, .status = STATUS_LINK};
        snprintf(out->message, sizeof out->message, "link to stage %u: its host has said nothing for %u ms",
                 (w->assign.stage + 1) % w->assign.n_stages, ms); /* it stays as it is while there are links */
    }
    pthread_mutex_unlock(&w->lock);
    return is_silent;
}

void worker_counters(struct worker *w, struct worker_counters *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->count;
    pthread_mutex_unlock(&w->lock);
}

enum status worker_create(const struct worker_options *o, struct worker **out, struct error *err)
{
    struct worker *w = calloc(1, sizeof *w);
    if (!w) {
        link_port_destroy(o->port);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a worker");
    }
    w->options = *o;
    w->timings.kind = FROM_STAGE_TIMINGS;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->filled, &attr);
    pthread_condattr_destroy(&attr);
    enum status s = o->create_compute(o->compute_ctx, &w->compute, err);
    if (s == STATUS_OK) {
        w->compute->table->describe(w->compute, &w->facts);
        snprintf(w->facts.backend, sizeof w->facts.backend, "%s", w->compute->table->backend);
        link_port_addresses(o->port, &w->facts.addresses);
        if (pthread_create(&w->thread, NULL, worker_run, w) != 0)
            s = error_set(err, STATUS_OUT_OF_MEMORY, "the compute thread cannot be started");
    }
    if (s == STATUS_OK) {
        *out = w;
        return STATUS_OK;
    }
    worker__unload(w);
    link_port_destroy(o->port);
    pthread_cond_destroy(&w->filled);
    pthread_mutex_destroy(&w->lock);
    free(w);
    return s;
}

void worker_stop(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    int was_stopped = w->inbox.stop;
    interrupt(w);
    w->inbox.stop = 1;
    pthread_cond_signal(&w->filled);
    pthread_mutex_unlock(&w->lock);
    if (!was_stopped)
        pthread_join(w->thread, NULL);
}

void worker_destroy(struct worker *w)
{
    if (!w)
        return;
    worker_stop(w);
    link_port_destroy(w->options.port);
    pthread_cond_destroy(&w->filled);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
