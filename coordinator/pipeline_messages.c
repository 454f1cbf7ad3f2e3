/* What attached stages say: the answers of the epoch steps, results, heartbeats, failures. */
#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/pipeline_impl.h"

#define LOG_MODULE "pipeline"
#include "common/base/log.h"

/* --- epoch steps ---------------------------------------------------------------------------------------------------------------- */

/* Of the present epoch, while there is one? Else it is counted and dropped. */
static int is_current(struct pipeline *p, uint64_t session, uint64_t epoch)
{
    if (p->state != PIPELINE_WAITING && session == p->session && epoch == p->epoch)
        return 1;
    p->stats.stale++;
    return 0;
}

/* A message that this state cannot have: it changes nothing. */
static void out_of_turn(struct pipeline *p, uint32_t stage, const char *what)
{
    p->stats.protocol_errors++;
    LOG_WARN("stage %u: %s while %s", stage, what, pipeline_state_name(p->state));
}

/* One that took up what it was not given is wrong whenever it says so: an ASSIGN was changed on its way, or came once more. */
static void on_loaded(struct pipeline *p, uint32_t stage, const struct msg_loaded *l, const struct msg_assign *assigned, int64_t now_ns)
{
    struct error why;
    const struct msg_assign given = pipeline__assignment(p, stage);
    const char *wrong = assign_difference(assigned, &given);
    if (wrong) {
        error_set(&why, STATUS_PROTOCOL, "stage %u: its %s is not what it was assigned", stage, wrong);
        pipeline__lose(p, stage, &why, 1, now_ns);
    } else if (stage_table_at(p->stages, stage)->state != STAGE_LOADING) {
        out_of_turn(p, stage, "LOADED");
    } else if (l->n_blocks == 0) {
        error_set(&why, STATUS_OUT_OF_MEMORY, "stage %u: no room for a single KV block", stage);
        pipeline__lose(p, stage, &why, 1, now_ns);
    } else {
        stage_table_loaded(p->stages, stage, l);
    }
}

/* All ticks up to the last one that the engine saw retired are in the pool. */
static int reaches_used_tick(const struct pipeline *p, const struct msg_ack *m)
{
    return p->used_tick == 0 || (m->kv_session == p->session && m->kv_epoch == p->used_epoch && m->kv_tick >= p->used_tick);
}

static void on_ack(struct pipeline *p, uint32_t stage, const struct msg_ack *m)
{
    struct pipeline_pool *pool = &p->pool[stage];
    if (!is_current(p, m->session, m->epoch))
        return;
    if (p->state != PIPELINE_RAISING || stage_table_at(p->stages, stage)->acked == m->epoch) {
        out_of_turn(p, stage, "ACK");
        return;
    }
    pool->id = m->kv_id;
    /* Once it was seen to be whole, its watermark may be of the first tick of an epoch that came to nothing. */
    pool->whole = pool->used_id != 0 && pool->id == pool->used_id && (pool->whole || reaches_used_tick(p, m));
    stage_table_acked(p->stages, stage, m->epoch);
}

static void on_ready(struct pipeline *p, uint32_t stage, const struct msg_epoch *m)
{
    if (!is_current(p, m->session, m->epoch))
        return;
    if (p->state != PIPELINE_LINKING || stage_table_at(p->stages, stage)->state != STAGE_LINKING)
        out_of_turn(p, stage, "READY");
    else
        stage_table_ready(p->stages, stage, m->epoch);
}

/* --- ticks ----------------------------------------------------------------------------------------------------------------------- */

static enum pipeline_take on_result(struct pipeline *p, uint32_t stage, const struct result *r, int64_t now_ns)
{
    struct error why;
    if (!is_current(p, r->session, r->epoch))
        return PIPELINE_TAKEN;
    stage_table_progress(p->stages, stage, r->layer_counter, now_ns);
    if (r->status != STATUS_OK) {
        error_set(&why, r->status, "stage %u: tick %llu: %.159s", stage, (unsigned long long)r->tick,
                  pipeline_without_name((int)stage, r->message));
    } else if (p->state == PIPELINE_WARMING && stage == p->n_stages - 1 && r->tick == PIPELINE_FIRST_TICK && !p->warmed) {
        p->warmed = 1;
        return PIPELINE_TAKEN;
    } else if (p->state != PIPELINE_RUNNING || stage != p->n_stages - 1 || p->retired_tick == p->sent_tick ||
               r->tick != p->retired_tick + 1) {
        error_set(&why, STATUS_PROTOCOL, "stage %u: a result of tick %llu, the oldest in flight is %llu of %u", stage,
                  (unsigned long long)r->tick, (unsigned long long)p->retired_tick + 1, pipeline_in_flight(p));
    } else {
        struct stage_timing timing = r->timing;
        timing.stage = stage;
        stage_table_timing(p->stages, &timing, now_ns);
        p->retired_tick++;
        p->cause.since_ns = 0;
        p->progress_ns = now_ns;
        return PIPELINE_RESULT;
    }
    pipeline__fall(p, (int)stage, &why, now_ns);
    return PIPELINE_TAKEN;
}

static enum pipeline_take on_timings(struct pipeline *p, uint32_t stage, const struct from_stage *m, int64_t now_ns)
{
    if (!is_current(p, m->timings.session, m->timings.epoch))
        return PIPELINE_TAKEN;
    if (m->timings.n > MAX_TIMINGS) {
        out_of_turn(p, stage, "too many timings");
        return PIPELINE_TAKEN;
    }
    for (uint32_t i = 0; i < m->timings.n; i++) {
        if (m->timings.timing[i].stage != stage) {
            out_of_turn(p, stage, "the timing of another stage");
            return PIPELINE_TAKEN;
        }
    }
    for (uint32_t i = 0; i < m->timings.n; i++)
        stage_table_timing(p->stages, &m->timings.timing[i], now_ns);
    return PIPELINE_TIMINGS;
}

static void on_heartbeat(struct pipeline *p, uint32_t stage, const struct msg_heartbeat *h, int64_t now_ns)
{
    uint64_t before = stage_table_at(p->stages, stage)->layer_counter;
    stage_table_heartbeat(p->stages, stage, h, now_ns);
    if (h->layer_counter != before)
        p->progress_ns = now_ns;
}

/* A stage that waited for another in vain tells it first: the other one is to blame, and is told to end. */
static int blame_stuck(struct pipeline *p, uint32_t stage, enum status why, int64_t now_ns)
{
    struct error told;
    int stuck = why == STATUS_TIMEOUT || why == STATUS_LINK
                    ? pipeline__stuck_stage(p, p->stuck_ms - 2 * p->heartbeat_ms, now_ns)
                    : STAGE_NONE;
    if (stuck == STAGE_NONE || stuck == (int)stage)
        return 0;
    const struct stage_entry *e = stage_table_at(p->stages, (uint32_t)stuck);
    error_set(&told, STATUS_TIMEOUT, "stage %d: stuck after tick %llu, stage %u has waited for it in vain", stuck,
              (unsigned long long)e->tick, stage);
    pipeline__lose(p, (uint32_t)stuck, &told, 1, now_ns);
    return 1;
}

static void on_failed(struct pipeline *p, uint32_t stage, const struct msg_failed *f, int64_t now_ns)
{
    struct error why;
    enum status s = f->status == STATUS_OK ? STATUS_STAGE : f->status;
    int loading = stage_table_at(p->stages, stage)->state == STAGE_LOADING;
    error_set(&why, s, "stage %u: %.199s", stage, pipeline_without_name((int)stage, f->message));
    if (f->fatal || loading) /* what could not load once will not serve */
        pipeline__lose(p, stage, &why, !f->fatal, now_ns);
    else if (is_current(p, f->session, f->epoch) && !blame_stuck(p, stage, s, now_ns))
        pipeline__fall(p, (int)stage, &why, now_ns);
}

/* --- all of them ------------------------------------------------------------------------------------------------------------------ */

enum pipeline_take pipeline__take(struct pipeline *p, uint32_t stage, const struct from_stage *m, int64_t now_ns)
{
    switch (m->kind) {
    case FROM_STAGE_HELLO:
        out_of_turn(p, stage, "a second HELLO");
        break;
    case FROM_STAGE_LOADED:
        on_loaded(p, stage, &m->loaded, &m->assigned, now_ns);
        break;
    case FROM_STAGE_ACK:
        on_ack(p, stage, &m->ack);
        break;
    case FROM_STAGE_READY:
        on_ready(p, stage, &m->ready);
        break;
    case FROM_STAGE_RESULT:
        return on_result(p, stage, m->result, now_ns);
    case FROM_STAGE_TIMINGS:
        return on_timings(p, stage, m, now_ns);
    case FROM_STAGE_HEARTBEAT:
        on_heartbeat(p, stage, &m->heartbeat, now_ns);
        break;
    case FROM_STAGE_FAILED:
        on_failed(p, stage, &m->failed, now_ns);
        break;
    default:
        out_of_turn(p, stage, "a message of no known kind");
    }
    return PIPELINE_TAKEN;
}
