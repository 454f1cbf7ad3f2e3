/* The machine: what each state waits for and how long, how an epoch ends, who is to blame. */
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "coordinator/pipeline_impl.h"

#define LOG_MODULE "pipeline"
#include "common/base/log.h"

#define STEP_NS (5 * NS_PER_S)      /* ACK, READY, the first tick */
#define LOAD_NS (3600 * NS_PER_S)   /* LOADED, while heartbeats live: hundreds of GiB from a slow disk */
#define BACKOFF_NS (50 * NS_PER_MS) /* after the second failed attempt, doubling */
#define SOUND_NS (5 * NS_PER_S)     /* an epoch that lived so long did well, as did one that retired a tick */
enum { MAX_BACKOFF_SHIFT = 6, MAX_MISSED = 12 /* by weight */, MAX_WRONG = 4 };

/* --- sending ------------------------------------------------------------------------------------------------------------------ */

void pipeline__send_exit(const struct stage_port *port, const struct error *why)
{
    struct to_stage m = {.kind = TO_STAGE_EXIT, .exit = {.status = why->status}};
    snprintf(m.exit.message, sizeof m.exit.message, "%.199s", why->message);
    port->send(port->ctx, &m); /* it goes either way: by EXIT or by the end of its stream */
    port->close(port->ctx, why);
}

enum status pipeline__send(struct pipeline *p, uint32_t stage, const struct to_stage *m, int64_t now_ns)
{
    const struct stage_attachment *a = stage_table_attachment(p->stages, stage_table_at(p->stages, stage)->attachment);
    enum status s = a ? a->port.send(a->port.ctx, m) : STATUS_CLOSED;
    if (s == STATUS_OK)
        return STATUS_OK;
    struct error why;
    error_set(&why, STATUS_CLOSED, "stage %u takes no messages: %s", stage, status_text(s));
    pipeline__lose(p, stage, &why, 0, now_ns);
    return s;
}

/* --- what is done on entering a state ------------------------------------------------------------------------------------------- */

static void enter_raising(struct pipeline *p, int64_t now_ns)
{
    uint64_t reported = stage_table_highest_epoch(p->stages);
    p->epoch = (reported > p->epoch ? reported : p->epoch) + 1;
    p->stats.epochs++;
    struct to_stage m = {.kind = TO_STAGE_EPOCH, .epoch = {.session = p->session, .epoch = p->epoch}};
    for (uint32_t i = 0; i < p->n_stages && p->state == PIPELINE_RAISING; i++)
        pipeline__send(p, i, &m, now_ns);
}

static void enter_linking(struct pipeline *p, int64_t now_ns)
{
    struct to_stage m = {.kind = TO_STAGE_LINKS, .links = {.session = p->session, .epoch = p->epoch}};
    p->random(p->random_ctx, m.links.key, sizeof m.links.key);
    for (uint32_t i = 0; i < p->n_stages && p->state == PIPELINE_LINKING; i++) {
        if (p->n_stages > 1)
            m.links.next = stage_table_at(p->stages, (i + 1) % p->n_stages)->hello.addresses;
        pipeline__send(p, i, &m, now_ns);
    }
}

/* An empty tick through every stage and link: what cannot even do that is not called ready. */
static void enter_warming(struct pipeline *p, int64_t now_ns)
{
    plan_reset(p->first_plan);
    p->first_plan->session = p->session;
    p->first_plan->epoch = p->epoch;
    p->first_plan->tick = PIPELINE_FIRST_TICK;
    p->warmed = 0;
    struct to_stage m = {.kind = TO_STAGE_PLAN, .plan = p->first_plan};
    for (uint32_t i = 0; i < p->n_stages && p->state == PIPELINE_WARMING; i++)
        pipeline__send(p, i, &m, now_ns);
}

static void enter_running(struct pipeline *p, int64_t now_ns)
{
    p->sent_tick = p->retired_tick = 0;
    p->progress_ns = p->running_ns = now_ns;
    p->ready_pending = 1;
    stage_table_forgive(p->stages, now_ns);
}

/* --- the states -------------------------------------------------------------------------------------------------------------------- */

static int is_loaded(const struct pipeline *p, uint32_t stage)
{
    return stage_table_at(p->stages, stage)->state == STAGE_LINKING;
}

static int has_acked(const struct pipeline *p, uint32_t stage)
{
    return stage_table_at(p->stages, stage)->acked == p->epoch;
}

static int is_ready(const struct pipeline *p, uint32_t stage)
{
    return stage_table_at(p->stages, stage)->state == STAGE_READY;
}

static int is_warm(const struct pipeline *p, uint32_t stage)
{
    return p->warmed || stage + 1 != p->n_stages; /* the last one says it for all */
}

/* What each state waits for, from every stage, and where it goes when all have answered. */
static const struct step {
    const char *name;
    const char *owed;      /* by a stage that has not answered */
    int64_t deadline_ns;   /* since the state was entered; 0: none, or one for each stage (judge) */
    uint32_t weight;       /* of a missed deadline: a link may be cut for long without its ends being to blame */
    int (*answered)(const struct pipeline *p, uint32_t stage);
    enum pipeline_state next;
    void (*enter)(struct pipeline *p, int64_t now_ns);
} steps[PIPELINE_N_STATES] = {
    [PIPELINE_WAITING] = {"waiting", "LOADED", 0, 0, is_loaded, PIPELINE_RAISING, NULL},
    [PIPELINE_RAISING] = {"raising", "ACK", STEP_NS, 4, has_acked, PIPELINE_LINKING, enter_raising},
    [PIPELINE_LINKING] = {"linking", "READY", STEP_NS, 1, is_ready, PIPELINE_WARMING, enter_linking},
    [PIPELINE_WARMING] = {"warming", "result of the first tick", STEP_NS, 4, is_warm, PIPELINE_RUNNING, enter_warming},
    [PIPELINE_RUNNING] = {"running", NULL, 0, 0, NULL, PIPELINE_RUNNING, enter_running},
};

const char *pipeline_state_name(enum pipeline_state s)
{
    return s >= 0 && s < PIPELINE_N_STATES ? steps[s].name : "?";
}

int pipeline__all_ready(const struct pipeline *p)
{
    return stage_table_count(p->stages, STAGE_READY) == p->n_stages;
}

static int may_leave(const struct pipeline *p, int64_t now_ns)
{
    const struct step *s = &steps[p->state];
    if (!s->answered || p->stopped || (p->state == PIPELINE_WAITING && now_ns < p->not_before_ns))
        return 0;
    for (uint32_t i = 0; i < p->n_stages; i++)
        if (!s->answered(p, i))
            return 0;
    return 1;
}

/* The one function that moves the machine forward: as far as what is known allows. A port that fails while a state is entered
 * lets it fall to WAITING, which is left again only after that stage is back. */
void pipeline__advance(struct pipeline *p, int64_t now_ns)
{
    pipeline__seat(p, now_ns);
    while (may_leave(p, now_ns)) {
        enum pipeline_state to = steps[p->state].next;
        trace_event("pipeline move", p->state, to, (int64_t)p->epoch, 0);
        p->state = to;
        p->deadline_ns = now_ns + steps[to].deadline_ns;
        steps[to].enter(p, now_ns);
        LOG_INFO("epoch %llu %s", (unsigned long long)p->epoch, pipeline_state_name(p->state));
    }
    ASSERT(pipeline__check(p, &(const char *){0}));
}

/* --- the end of an epoch -------------------------------------------------------------------------------------------------------- */

/* How much a reason says: a stage whose neighbour died may be the first to tell. */
static int weight_of(int stage, enum status why)
{
    if (stage == STAGE_NONE)
        return 0;
    return why == STATUS_LINK ? 1 : why == STATUS_CLOSED || why == STATUS_TIMEOUT ? 3 : 2;
}

static void note_cause(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    struct pipeline_cause *c = &p->cause;
    if (p->state == PIPELINE_WAITING && c->since_ns && weight_of(stage, why->status) < weight_of(c->stage, c->why.status))
        return;
    *c = (struct pipeline_cause){stage, *why, c->since_ns ? c->since_ns : now_ns};
}

static void end_running(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    p->stats.losses++;
    if (p->retired_tick > 0 || now_ns - p->running_ns >= SOUND_NS)
        p->n_failed = 0;
    if (p->retired_tick > 0)
        stage_table_sound(p->stages);
    if (!p->ready_pending) { /* else nobody has heard that it was ready */
        p->lost_pending = 1;
        p->lost = (struct pipeline_event){.kind = PIPELINE_EVENT_LOST, .stage = stage, .why = *why, .crash_stage = STAGE_NONE};
        p->used_epoch = p->epoch;
        p->used_tick = p->retired_tick;
        p->crash_signal = 0;
        for (uint32_t i = 0; i < p->n_stages; i++)
            p->pool[i].whole = 0;
    }
    p->ready_pending = 0;
    stage_table_forgive(p->stages, now_ns); /* they have waited for each other; the next epoch tells who stands */
}

/* Attempts with the same stages are spaced out. One that ends because a process is gone says nothing of the next one, which
 * has another, and waits for it anyway. */
static void back_off(struct pipeline *p, int stage, int64_t now_ns)
{
    p->not_before_ns = now_ns;
    if (stage != STAGE_NONE && stage_table_at(p->stages, (uint32_t)stage)->attachment == 0)
        return;
    int shift = p->n_failed < MAX_BACKOFF_SHIFT ? (int)p->n_failed : MAX_BACKOFF_SHIFT;
    if (p->n_failed > 0)
        p->not_before_ns += BACKOFF_NS << (shift - 1);
    p->n_failed++;
}

/* The epoch ends here. Called for every reason; moves to WAITING, from where pipeline__advance goes on. */
void pipeline__fall(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    LOG_WARN("epoch %llu %s: stage %d: %s", (unsigned long long)p->epoch, pipeline_state_name(p->state), stage, why->message);
    if (why->status == STATUS_PROTOCOL)
        p->stats.protocol_errors++;
    note_cause(p, stage, why, now_ns);
    if (p->state == PIPELINE_WAITING)
        return;
    trace_event("pipeline falls", p->state, stage, why->status, (int64_t)p->epoch);
    if (p->state == PIPELINE_RUNNING)
        end_running(p, stage, why, now_ns);
    if (why->status == STATUS_PROTOCOL && stage != STAGE_NONE)
        stage_table_wrong(p->stages, (uint32_t)stage);
    back_off(p, stage, now_ns);
    p->sent_tick = p->retired_tick = 0;
    p->state = PIPELINE_WAITING;
    stage_table_unlink(p->stages);
}

void pipeline__lose(struct pipeline *p, uint32_t stage, const struct error *why, int tell, int64_t now_ns)
{
    uint64_t id = stage_table_at(p->stages, stage)->attachment;
    const struct stage_attachment *a = stage_table_attachment(p->stages, id);
    if (!a)
        return;
    struct stage_port port = a->port;
    stage_table_detach(p->stages, id, now_ns);
    if (tell)
        pipeline__send_exit(&port, why);
    else
        port.close(port.ctx, why);
    pipeline__fall(p, (int)stage, why, now_ns);
}

/* --- time --------------------------------------------------------------------------------------------------------------------------- */

/* Every input comes through here first. A gap means that this process stood still, not the stages. */
void pipeline__enter(struct pipeline *p, int64_t now_ns)
{
    int64_t gap = now_ns - p->last_ns;
    if (p->last_ns == 0) {
        stage_table_begin(p->stages, now_ns);
    } else if (gap > 2 * p->look_ns) {
        p->stats.clock_jumps++;
        p->deadline_ns += gap;
        p->not_before_ns += gap;
        p->progress_ns += gap;
        p->running_ns += gap;
        stage_table_skip(p->stages, gap);
        trace_event("clock jump", gap, 0, 0, 0);
    }
    if (now_ns > p->last_ns)
        p->last_ns = now_ns;
}

static int is_silent(const struct pipeline *p, const struct stage_entry *e, int64_t now_ns)
{
    return now_ns - e->heard_ns > (int64_t)HEARTBEATS_MISSED * p->heartbeat_ms * NS_PER_MS;
}

/* Its stream stands, so it may only be stopped: it is not told to end, and is used again when it wakes. */
static void fall_silent(struct pipeline *p, uint32_t stage, int64_t now_ns)
{
    struct error why;
    error_set(&why, STATUS_TIMEOUT, "stage %u: not heard for %lld ms", stage,
              (long long)((now_ns - stage_table_at(p->stages, stage)->heard_ns) / NS_PER_MS));
    pipeline__fall(p, (int)stage, &why, now_ns);
    stage_table_silent(p->stages, stage, now_ns);
}

/* Why this stage has to go now; STATUS_OK: it has not. */
static enum status judge(const struct stage_entry *e, uint32_t stage, int64_t now_ns, struct error *why)
{
    if (e->state == STAGE_LOADING && now_ns - e->assigned_ns > LOAD_NS)
        return error_set(why, STATUS_TIMEOUT, "stage %u: not loaded in %lld s", stage, (long long)(LOAD_NS / NS_PER_S));
    if (e->missed >= MAX_MISSED)
        return error_set(why, STATUS_TIMEOUT, "stage %u: missed the deadline of one epoch step after the other", stage);
    if (e->wrong >= MAX_WRONG)
        return error_set(why, STATUS_PROTOCOL, "stage %u: protocol errors of its have ended %u epochs in a row", stage, e->wrong);
    return STATUS_OK;
}

static void look_at_stages(struct pipeline *p, int64_t now_ns)
{
    struct error why;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (e->attachment == 0 || e->state == STAGE_SILENT)
            continue;
        if (is_silent(p, e, now_ns))
            fall_silent(p, i, now_ns);
        else if (judge(e, i, now_ns, &why) != STATUS_OK)
            pipeline__lose(p, i, &why, 1, now_ns);
    }
}

/* One that waits for another makes progress by that: stage_table_heartbeat. */
static int stands_still(const struct stage_entry *e, int64_t patience_ms, int64_t now_ns)
{
    return (e->state == STAGE_LINKING || e->state == STAGE_READY) && e->busy && now_ns - e->progress_ns > patience_ms * NS_PER_MS;
}

/* Of several that compute, the one at the oldest tick, and of these the first. */
int pipeline__stuck_stage(const struct pipeline *p, int64_t patience_ms, int64_t now_ns)
{
    int stuck = STAGE_NONE;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (!stands_still(e, patience_ms, now_ns))
            continue;
        if (stuck == STAGE_NONE || e->tick < stage_table_at(p->stages, (uint32_t)stuck)->tick)
            stuck = (int)i;
    }
    return stuck;
}

static void look_for_stuck(struct pipeline *p, int64_t now_ns)
{
    int stuck = pipeline__stuck_stage(p, p->stuck_ms, now_ns);
    if (stuck == STAGE_NONE)
        return;
    struct error why;
    const struct stage_entry *e = stage_table_at(p->stages, (uint32_t)stuck);
    error_set(&why, STATUS_TIMEOUT, "stage %d: stuck after tick %llu, no layer done for %lld ms", stuck,
              (unsigned long long)e->tick, (long long)((now_ns - e->progress_ns) / NS_PER_MS));
    pipeline__lose(p, (uint32_t)stuck, &why, 1, now_ns);
}

/* Within a tick of an epoch before: it answers EPOCH after that. How long it may take is look_for_stuck's affair. */
static int is_finishing(const struct pipeline *p, uint32_t stage)
{
    return p->state == PIPELINE_RAISING && stage_table_at(p->stages, stage)->busy;
}

static int is_late(const struct pipeline *p, uint32_t stage, int64_t now_ns)
{
    const struct step *s = &steps[p->state];
    if (p->state == PIPELINE_WARMING) { /* the last one answers for all: does somebody keep it waiting? */
        int stuck = pipeline__stuck_stage(p, s->deadline_ns / NS_PER_MS / 2, now_ns);
        return stuck == STAGE_NONE ? stage == p->n_stages - 1 && !stage_table_at(p->stages, stage)->waits : (int)stage == stuck;
    }
    return !s->answered(p, stage) && !is_finishing(p, stage);
}

static void look_at_step(struct pipeline *p, int64_t now_ns)
{
    const struct step *s = &steps[p->state];
    if (s->deadline_ns == 0 || now_ns < p->deadline_ns)
        return;
    struct error why;
    int first = STAGE_NONE;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        if (!is_late(p, i, now_ns))
            continue;
        stage_table_missed(p->stages, i, s->weight);
        first = first == STAGE_NONE ? (int)i : first;
    }
    if (first == STAGE_NONE && p->state == PIPELINE_RAISING)
        return;
    error_set(&why, STATUS_TIMEOUT, "stage %d: no %s for epoch %llu in %lld ms", first, s->owed, (unsigned long long)p->epoch,
              (long long)(s->deadline_ns / NS_PER_MS));
    pipeline__fall(p, first, &why, now_ns);
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
    pipeline__fall(p, STAGE_NONE, &why, now_ns);
}

void pipeline__look(struct pipeline *p, int64_t now_ns)
{
    pipeline__look_at_strangers(p, now_ns);
    look_at_stages(p, now_ns);
    look_for_stuck(p, now_ns);
    look_at_step(p, now_ns);
    look_at_ticks(p, now_ns);
}

int64_t pipeline__wake_at(const struct pipeline *p, int64_t now_ns)
{
    int64_t next_ns = now_ns + p->look_ns, wake_ns = next_ns;
    if (steps[p->state].deadline_ns != 0 && p->deadline_ns > now_ns)
        wake_ns = p->deadline_ns;
    else if (p->state == PIPELINE_WAITING && p->not_before_ns > now_ns)
        wake_ns = p->not_before_ns;
    return wake_ns < next_ns ? wake_ns : next_ns;
}
