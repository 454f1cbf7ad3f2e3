#include "coordinator/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "coordinator/pipeline_impl.h"

#define LOG_MODULE "pipeline"
#include "common/base/log.h"

#define STEP_NS (5 * NS_PER_S)      /* HELLO, ACK, READY */
#define LOAD_NS (600 * NS_PER_S)    /* LOADED, while heartbeats live */
#define JUMP_NS NS_PER_S            /* a longer silence of the engine is a stop of this process */
#define LOOK_NS (250 * NS_PER_MS)   /* pipeline_time is called at least so often */
#define BACKOFF_NS (50 * NS_PER_MS) /* after the second failed attempt, doubling */
enum { MAX_BACKOFF_SHIFT = 6, MAX_MISSED_STEPS = 3, HEARTBEATS_MISSED = 4 };

/* --- sending ------------------------------------------------------------------------------------------------------------------ */

void pipeline__send_exit(const struct stage_port *port, const struct error *why)
{
    struct to_stage m = {.kind = TO_STAGE_EXIT, .exit = {.status = why->status}};
    snprintf(m.exit.message, sizeof m.exit.message, "%.199s", why->message);
    port->send(port->ctx, &m); /* it goes either way: by EXIT or by the end of its stream */
    port->close(port->ctx, why);
}

/* The epoch ends here. Called for every reason; moves to WAITING, from where pipeline__advance goes on. */
static void fall(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    LOG_WARN("epoch %llu %s: stage %d: %s", (unsigned long long)p->epoch, pipeline_state_name(p->state), stage, why->message);
    if (p->state == PIPELINE_WAITING)
        return;
    trace_event("pipeline falls", p->state, stage, why->status, (int64_t)p->epoch);
    p->cause = (struct pipeline_cause){stage, *why, p->cause.since_ns ? p->cause.since_ns : now_ns};
    if (p->state == PIPELINE_RUNNING) {
        p->stats.losses++;
        if (!p->ready_pending) { /* else nobody has heard that it was ready */
            p->lost_pending = 1;
            p->lost = (struct pipeline_event){.kind = PIPELINE_EVENT_LOST, .stage = stage, .why = *why};
        }
        p->ready_pending = 0;
    }
    int shift = p->n_failed < MAX_BACKOFF_SHIFT ? (int)p->n_failed : MAX_BACKOFF_SHIFT;
    p->not_before_ns = p->n_failed == 0 ? now_ns : now_ns + (BACKOFF_NS << (shift - 1));
    p->n_failed++;
    p->sent_tick = p->retired_tick = 0;
    p->state = PIPELINE_WAITING;
    stage_table_unlink(p->stages, now_ns);
}

/* The stage's stream is given up. tell: it may still listen, so it is told to end. */
static void lose(struct pipeline *p, uint32_t stage, const struct error *why, int tell, int64_t now_ns)
{
    uint64_t id = stage_table_at(p->stages, stage)->attachment;
    const struct stage_attachment *a = stage_table_attachment(p->stages, id);
    if (!a)
        return;
    struct stage_port port = a->port;
    stage_table_detach(p->stages, id);
    if (tell)
        pipeline__send_exit(&port, why);
    else
        port.close(port.ctx, why);
    fall(p, (int)stage, why, now_ns);
}

static enum status send_to(struct pipeline *p, uint32_t stage, const struct to_stage *m, int64_t now_ns)
{
    const struct stage_attachment *a = stage_table_attachment(p->stages, stage_table_at(p->stages, stage)->attachment);
    enum status s = a ? a->port.send(a->port.ctx, m) : STATUS_CLOSED;
    if (s == STATUS_OK)
        return STATUS_OK;
    struct error why;
    error_set(&why, STATUS_CLOSED, "stage %u takes no messages: %s", stage, status_text(s));
    lose(p, stage, &why, 0, now_ns);
    return s;
}

/* --- what is done on entering a state ------------------------------------------------------------------------------------------- */

static void enter_raising(struct pipeline *p, int64_t now_ns)
{
    uint64_t reported = stage_table_highest_epoch(p->stages);
    p->epoch = (reported > p->epoch ? reported : p->epoch) + 1;
    p->stats.epochs++;
    p->deadline_ns = now_ns + STEP_NS;
    struct to_stage m = {.kind = TO_STAGE_EPOCH, .epoch = {.session = p->session, .epoch = p->epoch}};
    for (uint32_t i = 0; i < p->n_stages && p->state == PIPELINE_RAISING; i++)
        send_to(p, i, &m, now_ns);
}

static void enter_linking(struct pipeline *p, int64_t now_ns)
{
    struct to_stage m = {.kind = TO_STAGE_LINKS, .links = {.session = p->session, .epoch = p->epoch}};
    p->random(p->random_ctx, m.links.key, sizeof m.links.key);
    p->deadline_ns = now_ns + STEP_NS;
    for (uint32_t i = 0; i < p->n_stages && p->state == PIPELINE_LINKING; i++) {
        if (p->n_stages > 1)
            m.links.next = stage_table_at(p->stages, (i + 1) % p->n_stages)->hello.addresses;
        send_to(p, i, &m, now_ns);
    }
}

static void enter_running(struct pipeline *p, int64_t now_ns)
{
    p->n_failed = 0;
    p->sent_tick = p->retired_tick = 0;
    p->progress_ns = now_ns;
    p->ready_pending = 1;
}

/* --- the moves forward ------------------------------------------------------------------------------------------------------------ */

static int all_loaded(const struct pipeline *p, int64_t now_ns)
{
    return stage_table_count(p->stages, STAGE_LINKING) == p->n_stages && now_ns >= p->not_before_ns;
}

static int all_acked(const struct pipeline *p, int64_t now_ns)
{
    (void)now_ns;
    for (uint32_t i = 0; i < p->n_stages; i++)
        if (stage_table_at(p->stages, i)->acked != p->epoch)
            return 0;
    return 1;
}

static int all_ready(const struct pipeline *p, int64_t now_ns)
{
    (void)now_ns;
    return stage_table_count(p->stages, STAGE_READY) == p->n_stages;
}

static const struct {
    enum pipeline_state from, to;
    int (*when)(const struct pipeline *p, int64_t now_ns);
    void (*enter)(struct pipeline *p, int64_t now_ns);
} moves[] = {
    {PIPELINE_WAITING, PIPELINE_RAISING, all_loaded, enter_raising},
    {PIPELINE_RAISING, PIPELINE_LINKING, all_acked, enter_linking},
    {PIPELINE_LINKING, PIPELINE_RUNNING, all_ready, enter_running},
};

/* The one function that moves the machine forward: as far as what is known allows. */
void pipeline__advance(struct pipeline *p, int64_t now_ns)
{
    for (size_t i = 0; i < ARRAY_LEN(moves) && !p->stopped; i++) {
        if (moves[i].from != p->state || !moves[i].when(p, now_ns))
            continue;
        trace_event("pipeline move", p->state, moves[i].to, (int64_t)p->epoch, 0);
        p->state = moves[i].to;
        moves[i].enter(p, now_ns);
        LOG_INFO("epoch %llu %s", (unsigned long long)p->epoch, pipeline_state_name(p->state));
    }
    ASSERT(pipeline__check(p, &(const char *){0}));
}

/* --- time --------------------------------------------------------------------------------------------------------------------------- */

/* Every input comes through here first. A gap means that this process stood still, not the stages. */
void pipeline__enter(struct pipeline *p, int64_t now_ns)
{
    int64_t gap = now_ns - p->last_ns;
    if (p->last_ns != 0 && gap > JUMP_NS) {
        p->stats.clock_jumps++;
        p->deadline_ns += gap;
        p->not_before_ns += gap;
        p->progress_ns += gap;
        stage_table_skip(p->stages, gap);
        trace_event("clock jump", gap, 0, 0, 0);
    }
    if (now_ns > p->last_ns)
        p->last_ns = now_ns;
}

static void look_at_strangers(struct pipeline *p, int64_t now_ns)
{
    const struct stage_attachment *a;
    for (uint64_t id = 0; (a = stage_table_next(p->stages, id)) != NULL;) {
        id = a->id;
        if (a->stage != STAGE_NONE || now_ns - a->attached_ns < STEP_NS)
            continue;
        struct stage_port port = a->port;
        struct error why;
        error_set(&why, STATUS_TIMEOUT, "no HELLO in %lld ms", (long long)(STEP_NS / NS_PER_MS));
        stage_table_detach(p->stages, id);
        p->stats.refused++;
        port.close(port.ctx, &why);
    }
}

/* Why this stage has to go now; STATUS_OK: it has not. */
static enum status judge(const struct pipeline *p, const struct stage_entry *e, int64_t now_ns, struct error *why)
{
    int64_t silent_ms = (now_ns - e->heard_ns) / NS_PER_MS;
    unsigned stage = e->hello.stage;
    if (silent_ms > (int64_t)HEARTBEATS_MISSED * p->heartbeat_ms)
        return error_set(why, STATUS_TIMEOUT, "stage %u: not heard for %lld ms", stage, (long long)silent_ms);
    if (e->state == STAGE_LOADING)
        return now_ns - e->assigned_ns <= LOAD_NS
                   ? STATUS_OK
                   : error_set(why, STATUS_TIMEOUT, "stage %u: not loaded in %lld s", stage, (long long)(LOAD_NS / NS_PER_S));
    if (e->missed_steps >= MAX_MISSED_STEPS)
        return error_set(why, STATUS_TIMEOUT, "stage %u: missed the deadline of %u epoch steps", stage, e->missed_steps);
    return STATUS_OK;
}

static void look_at_stages(struct pipeline *p, int64_t now_ns)
{
    struct error why;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (e->attachment != 0 && judge(p, e, now_ns, &why) != STATUS_OK)
            lose(p, i, &why, 1, now_ns);
    }
}

/* A stuck stage makes others wait: those behind it for its frame of the same tick, stage 0 for the ids of a tick that it has
 * itself done. So of all that stand still within a tick, the one at the oldest tick, and of these the first, is to blame. */
static int stuck_stage(const struct pipeline *p, int64_t now_ns)
{
    int stuck = STAGE_NONE;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if ((e->state != STAGE_LINKING && e->state != STAGE_READY) || !e->busy ||
            now_ns - e->progress_ns <= p->stuck_ms * NS_PER_MS)
            continue;
        if (stuck == STAGE_NONE || e->tick < stage_table_at(p->stages, (uint32_t)stuck)->tick)
            stuck = (int)i;
    }
    return stuck;
}

static void look_for_stuck(struct pipeline *p, int64_t now_ns)
{
    int stuck = stuck_stage(p, now_ns);
    if (stuck == STAGE_NONE)
        return;
    struct error why;
    const struct stage_entry *e = stage_table_at(p->stages, (uint32_t)stuck);
    error_set(&why, STATUS_TIMEOUT, "stage %d: stuck at tick %llu, no layer done for %lld ms", stuck,
              (unsigned long long)e->tick, (long long)((now_ns - e->progress_ns) / NS_PER_MS));
    lose(p, (uint32_t)stuck, &why, 1, now_ns);
}

static void look_at_step(struct pipeline *p, int64_t now_ns)
{
    if ((p->state != PIPELINE_RAISING && p->state != PIPELINE_LINKING) || now_ns < p->deadline_ns)
        return;
    struct error why;
    int first = STAGE_NONE;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (p->state == PIPELINE_RAISING ? e->acked == p->epoch : e->state == STAGE_READY)
            continue;
        stage_table_missed(p->stages, i);
        first = first == STAGE_NONE ? (int)i : first;
    }
    error_set(&why, STATUS_TIMEOUT, "stage %d: no %s for epoch %llu in %lld ms", first,
              p->state == PIPELINE_RAISING ? "ACK" : "READY", (unsigned long long)p->epoch, (long long)(STEP_NS / NS_PER_MS));
    fall(p, first, &why, now_ns);
}

/* Ticks are in flight, neither a result came nor a layer was done anywhere, and no stage was found to be stuck in the time
 * that heartbeats take to say so: a message was lost. */
static void look_at_ticks(struct pipeline *p, int64_t now_ns)
{
    int64_t longest_ms = p->stuck_ms + HEARTBEATS_MISSED * p->heartbeat_ms;
    if (p->state != PIPELINE_RUNNING || p->sent_tick == p->retired_tick || now_ns - p->progress_ns <= longest_ms * NS_PER_MS)
        return;
    struct error why;
    error_set(&why, STATUS_TIMEOUT, "tick %llu: no progress at any stage for %lld ms", (unsigned long long)p->retired_tick + 1,
              (long long)((now_ns - p->progress_ns) / NS_PER_MS));
    fall(p, STAGE_NONE, &why, now_ns);
}

int64_t pipeline_time(struct pipeline *p, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    look_at_strangers(p, now_ns);
    look_at_stages(p, now_ns);
    look_for_stuck(p, now_ns);
    look_at_step(p, now_ns);
    look_at_ticks(p, now_ns);
    pipeline__advance(p, now_ns);
    int64_t next_ns = now_ns + LOOK_NS, wake_ns = next_ns;
    if (p->state == PIPELINE_RAISING || p->state == PIPELINE_LINKING)
        wake_ns = p->deadline_ns;
    else if (p->state == PIPELINE_WAITING && p->not_before_ns > now_ns)
        wake_ns = p->not_before_ns;
    return wake_ns < next_ns ? wake_ns : next_ns;
}

/* --- ends ---------------------------------------------------------------------------------------------------------------------------- */

void pipeline_closed(struct pipeline *p, uint64_t attachment, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    int stage = stage_table_detach(p->stages, attachment); /* one that was given up before is not known any more */
    if (stage != STAGE_NONE) {
        struct error why;
        error_set(&why, STATUS_CLOSED, "stage %d: its stream ended", stage);
        fall(p, stage, &why, now_ns);
    }
    pipeline__advance(p, now_ns);
}

void pipeline__fall(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    if (why->status == STATUS_PROTOCOL)
        p->stats.protocol_errors++;
    fall(p, stage, why, now_ns);
}

void pipeline__lose(struct pipeline *p, uint32_t stage, const struct error *why, int tell, int64_t now_ns)
{
    lose(p, stage, why, tell, now_ns);
}

enum status pipeline__send(struct pipeline *p, uint32_t stage, const struct to_stage *m, int64_t now_ns)
{
    return send_to(p, stage, m, now_ns);
}

void pipeline_fail(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    pipeline__fall(p, stage, why, now_ns);
    pipeline__advance(p, now_ns);
}

void pipeline_stop(struct pipeline *p)
{
    struct error why;
    const struct stage_attachment *a;
    error_clear(&why);
    p->stopped = 1;
    p->state = PIPELINE_WAITING;
    stage_table_unlink(p->stages, p->last_ns);
    while ((a = stage_table_next(p->stages, 0)) != NULL) {
        struct stage_port port = a->port;
        stage_table_detach(p->stages, a->id);
        pipeline__send_exit(&port, &why);
    }
}

/* --- plans and events ------------------------------------------------------------------------------------------------------------------ */

enum status pipeline_send(struct pipeline *p, struct plan *plan, int64_t now_ns)
{
    if (p->state != PIPELINE_RUNNING)
        return STATUS_PIPELINE;
    if (pipeline_in_flight(p) == p->window)
        return STATUS_FULL;
    CHECK(plan->tick == p->sent_tick + 1);
    plan->session = p->session;
    plan->epoch = p->epoch;
    if (p->sent_tick == p->retired_tick)
        p->progress_ns = now_ns;
    p->sent_tick++;
    struct to_stage m = {.kind = TO_STAGE_PLAN, .plan = plan};
    for (uint32_t i = 0; i < p->n_stages; i++)
        if (send_to(p, i, &m, now_ns) != STATUS_OK)
            return STATUS_PIPELINE;
    return STATUS_OK;
}

int pipeline_poll(struct pipeline *p, struct pipeline_event *ev)
{
    if (p->lost_pending) {
        *ev = p->lost;
        p->lost_pending = 0;
        return 1;
    }
    if (p->ready_pending) {
        *ev = (struct pipeline_event){.kind = PIPELINE_EVENT_READY, .stage = STAGE_NONE,
                                      .n_blocks = stage_table_smallest_pool(p->stages),
                                      .kv_lost = (int)p->n_stages - 1, .crash_stage = STAGE_NONE};
        p->ready_pending = 0;
        return 1;
    }
    return 0;
}

/* --- create, questions ------------------------------------------------------------------------------------------------------------------ */

static void random_os(void *ctx, void *bytes, size_t n)
{
    (void)ctx;
    CHECK(getrandom(bytes, n, 0) == (ssize_t)n); /* never short up to 256 bytes */
}

enum status pipeline_create(const struct pipeline_options *o, struct pipeline **out)
{
    struct pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return STATUS_OUT_OF_MEMORY;
    p->n_stages = o->split->n_stages;
    p->window = p->n_stages + 1;
    p->opt = *o;
    p->heartbeat_ms = o->config->heartbeat_ms;
    p->stuck_ms = o->config->stuck_ms;
    p->random = o->random ? o->random : random_os;
    p->random_ctx = o->random_ctx;
    p->random(p->random_ctx, &p->session, sizeof p->session);
    p->session += p->session == 0;
    if (stage_table_create(p->n_stages, &p->stages) != STATUS_OK) {
        free(p);
        return STATUS_OUT_OF_MEMORY;
    }
    *out = p;
    return STATUS_OK;
}

void pipeline_destroy(struct pipeline *p)
{
    if (!p)
        return;
    stage_table_destroy(p->stages);
    free(p);
}

const struct pipeline_cause *pipeline_why(const struct pipeline *p)
{
    return p->cause.since_ns ? &p->cause : NULL;
}

enum pipeline_state pipeline_state(const struct pipeline *p)
{
    return p->state;
}

int pipeline_running(const struct pipeline *p)
{
    return p->state == PIPELINE_RUNNING;
}

uint64_t pipeline_session(const struct pipeline *p)
{
    return p->session;
}

uint64_t pipeline_epoch(const struct pipeline *p)
{
    return p->epoch;
}

uint32_t pipeline_in_flight(const struct pipeline *p)
{
    return (uint32_t)(p->sent_tick - p->retired_tick);
}

const struct stage_table *pipeline_stages(const struct pipeline *p)
{
    return p->stages;
}

struct pipeline_stats pipeline_stats(const struct pipeline *p)
{
    return p->stats;
}

const char *pipeline_profile(const struct pipeline *p)
{
    for (uint32_t i = 0; i < p->n_stages; i++)
        if (stage_table_at(p->stages, i)->state != STAGE_ATTACHING)
            return stage_table_at(p->stages, i)->hello.profile;
    return "";
}

const char *pipeline_state_name(enum pipeline_state s)
{
    static const char *const names[PIPELINE_N_STATES] = {"waiting", "raising", "linking", "running"};
    return s >= 0 && s < PIPELINE_N_STATES ? names[s] : "?";
}

int pipeline__check(const struct pipeline *p, const char **why)
{
    if (!stage_table__check(p->stages, why))
        return 0;
    if (p->state == PIPELINE_RUNNING && !all_ready(p, 0))
        *why = "RUNNING means that every stage is READY";
    else if (p->state == PIPELINE_WAITING && stage_table_count(p->stages, STAGE_READY) != 0)
        *why = "no stage is READY before LINKING";
    else if (p->state != PIPELINE_RUNNING && p->sent_tick != 0)
        *why = "ticks are in flight in RUNNING only";
    else if (p->sent_tick < p->retired_tick || p->sent_tick - p->retired_tick > p->window)
        *why = "at most window ticks are in flight";
    else if (p->state != PIPELINE_WAITING && p->epoch <= stage_table_highest_epoch(p->stages))
        *why = "the epoch is above every one that was reported";
    return !*why;
}
