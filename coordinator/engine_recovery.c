/* What becomes of requests when an epoch ends: they are parked and come back through the ordinary path, with prompt and answer
 * so far as what is to be read. Draws depend on (seed, position) alone, so the ids that were in flight are drawn again alike.
 *
 * What stages still hold of the KV pool is found in the prefix map. Where the lower ones lost it, the map's blocks are hollow:
 * the positions are read again, but only up to the highest stage that lost them (plan_run.last_stage).
 *
 * A request that makes stages die would take everybody along again and again. Who was in flight at two deaths by a signal of
 * the process's own making (not SIGKILL: that is somebody else's doing) is read again alone; if a stage dies then too, it was
 * this one, and it fails. One that gets past the place is innocent; but not for ever: what kills now and then, at another place
 * each time, fails at the eighth death. The others go on. */
#include "coordinator/engine_impl.h"

#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "common/base/trace.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

enum { CRASHES_ALONE = 2, CRASHES_GUILTY = 3, DEATHS_MOST = 8 };

static struct request *of_link(struct list *it)
{
    return LIST_ENTRY(it, struct request, link);
}

/* --- suspects ----------------------------------------------------------------------------------------------------------------- */

/* Whose rows were in ticks that have not retired. */
static void note_in_flight(struct engine *e)
{
    for (uint32_t i = 0; i < e->window; i++) {
        struct flight *f = &e->flights[i];
        for (uint32_t k = 0; f->tick && k < f->n_runs; k++) {
            struct request *r = e->by_slot[f->runs[k].ref.slot];
            if (r && r->ref.seq == f->runs[k].ref.seq)
                r->in_flight_lost = 1;
        }
        f->tick = 0;
    }
}

void engine__leave_quarantine(struct engine *e, struct request *r)
{
    e->n_quarantined -= r->n_crashes >= CRASHES_ALONE;
    r->n_crashes = 0;
}

void engine__got_past(struct engine *e, struct request *r, uint32_t end)
{
    if (r->n_crashes < CRASHES_ALONE || end <= r->crash_end)
        return;
    LOG_INFO("req %s: got past the place where a stage died: it was not the cause", r->id);
    engine__leave_quarantine(e, r);
}

static void suspect(struct engine *e, struct request *r, const struct pipeline_event *ev)
{
    struct error err;
    r->n_crashes++;
    r->n_deaths++;
    r->crash_end = r->n_planned;
    e->n_quarantined += r->n_crashes == CRASHES_ALONE;
    if (r->n_crashes == CRASHES_ALONE)
        LOG_WARN("req %s: in flight at %u deaths of a stage: it goes on alone", r->id, r->n_crashes);
    if (r->n_crashes < CRASHES_GUILTY && r->n_deaths < DEATHS_MOST)
        return;
    error_set(&err, STATUS_POISON, "stage %d died of signal %d, the %u. time that a stage died at this request", ev->crash_stage,
              ev->crash_signal, r->n_deaths);
    engine__end(e, r, REQUEST_FAILED, &err);
}

/* The stages are back, and one of them said how it died. */
static void judge_in_flight(struct engine *e, const struct pipeline_event *ev)
{
    LIST_EACH(it, &e->parked) {
        struct request *r = of_link(it);
        int was = r->in_flight_lost;
        r->in_flight_lost = 0;
        if (was && ev->crash_signal)
            suspect(e, r, ev);
    }
}

struct request *engine__alone(const struct engine *e)
{
    struct request *best = NULL;
    struct list *const lists[] = {(struct list *)&e->running, (struct list *)&e->parked};
    for (size_t i = 0; i < ARRAY_LEN(lists) && e->n_quarantined > 0 && !best; i++)
        LIST_EACH(it, lists[i]) {
            struct request *r = of_link(it);
            if (r->n_crashes >= CRASHES_ALONE && !r->throttled && (!best || r->order < best->order))
                best = r;
        }
    return best;
}

void engine__park_running(struct engine *e, int64_t now)
{
    LIST_EACH(it, &e->running)
        engine__park(e, of_link(it), now);
}

/* --- epochs ------------------------------------------------------------------------------------------------------------------- */

/* Who only says that a link to its neighbour broke is not the one that was lost. */
static const char *say_lost(int stage, const struct error *why, char text[LOST_TEXT])
{
    char who[24] = "the pipeline";
    if (stage != STAGE_NONE)
        snprintf(who, sizeof who, "stage %d", stage);
    snprintf(text, LOST_TEXT, "%s %s: %.200s", who, why->status == STATUS_LINK ? "lost its neighbour" : "was lost",
             pipeline_without_name(stage, why->message));
    return text;
}

const char *engine__why_lost(const struct engine *e, char text[LOST_TEXT])
{
    const struct pipeline_cause *c = pipeline_why(e->pipeline);
    return c ? say_lost(c->stage, &c->why, text) : "the stages have not come since this coordinator started";
}

static void epoch_lost(struct engine *e, const struct pipeline_event *ev, int64_t now)
{
    LOG_WARN("%s; %u running requests pause, %u wait", say_lost(ev->stage, &ev->why, (char[LOST_TEXT]){0}),
             e->n_reading + e->n_decoding, e->n_queued + e->n_parked);
    note_in_flight(e);
    engine__park_running(e, now);
    sched_reset(e->sched);
    e->n_closes = 0;
    blocks_new_epoch(e->blocks);
    if (!e->lost_ns)
        e->lost_ns = now;
}

/* What the pools of this epoch's stages still hold. */
static enum status take_over_blocks(struct engine *e, const struct pipeline_event *ev)
{
    int last = (int)e->n_stages - 1, lost = ev->kv_lost;
    if (lost != STAGE_NONE && blocks_counts(e->blocks).hollow > 0 && e->lost_stage > lost)
        lost = e->lost_stage;
    if (lost == last || ev->n_blocks != blocks_counts(e->blocks).total)
        return blocks_reset(e->blocks, ev->n_blocks);
    if (lost != STAGE_NONE) {
        e->lost_stage = lost;
        blocks_lose(e->blocks);
    }
    return STATUS_OK;
}

static void epoch_ready(struct engine *e, const struct pipeline_event *ev, int64_t now)
{
    const struct stage_table *stages = pipeline_stages(e->pipeline);
    if (take_over_blocks(e, ev) != STATUS_OK) {
        struct error why;
        error_set(&why, STATUS_OUT_OF_MEMORY, "no memory for a map of %u blocks", ev->n_blocks);
        pipeline_fail(e->pipeline, STAGE_NONE, &why, now);
        return;
    }
    sched_reset(e->sched);
    e->n_closes = 0;
    e->profile_salt = rand_mix(engine__hash_text(e, pipeline_profile(e->pipeline)));
    for (uint32_t i = 0; i < e->n_stages; i++)
        sched_set_stage(e->sched, i, &stage_table_at(stages, i)->loaded);
    judge_in_flight(e, ev);
    if (e->epoch_retired || e->n_queued + e->n_parked == 0)
        e->lost_ns = 0;
    e->epoch_retired = 0;
    e->bounded_tick = 0;
    const struct blocks_count n = blocks_counts(e->blocks);
    char hollow[64] = "";
    if (n.hollow)
        snprintf(hollow, sizeof hollow, " (%u to be read again up to stage %d)", n.hollow, e->lost_stage);
    LOG_INFO("epoch %llu: ready, %u stages, %u KV blocks of %lld positions, %u of them cached%s; %u requests go on, %u wait",
             (unsigned long long)pipeline_epoch(e->pipeline), e->n_stages, ev->n_blocks, (long long)e->o.config->kv_block, n.cached,
             hollow, e->n_parked, e->n_queued);
}

void engine__pipeline_events(struct engine *e, int64_t now)
{
    struct pipeline_event ev;
    while (pipeline_poll(e->pipeline, &ev)) {
        e->dirty = 1;
        if (ev.kind == PIPELINE_EVENT_LOST)
            epoch_lost(e, &ev, now);
        else
            epoch_ready(e, &ev, now);
    }
}

/* Of those that have begun; end: with this, where not NULL. Whose answer is whole waits for his client, not for stages. */
static uint32_t begun(struct engine *e, const struct error *end)
{
    struct list *const lists[] = {&e->running, &e->parked};
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        LIST_EACH(it, lists[i]) {
            struct request *r = of_link(it);
            if (r->ending)
                continue;
            n++;
            if (end)
                engine__end(e, r, REQUEST_FAILED, end);
        }
    return n;
}

/* Also while the pipeline comes back again and again and dies of the first tick each time. */
void engine__expire_lost(struct engine *e, int64_t now)
{
    struct error err;
    if (!e->lost_ns)
        return;
    uint32_t n_begun = begun(e, NULL);
    if (e->n_queued + n_begun > 0) {
        if (now - e->lost_ns <= e->o.config->recovery_timeout_ms * NS_PER_MS)
            return;
        double s = engine__seconds(e->lost_ns, now);
        char text[LOST_TEXT];
        const char *why = engine__why_lost(e, text);
        LOG_ERROR("no recovery in %.1f s: %u running and %u waiting requests end: %s", s, n_begun, e->n_queued, why);
        error_set(&err, STATUS_PIPELINE_LOST, "no recovery in %.0f s: %.200s", s, why);
        begun(e, &err);
        err.status = STATUS_PIPELINE;
        err.retry_after_s = 10;
        engine__fail_all(e, &e->queued, &err);
    }
    if (pipeline_running(e->pipeline)) /* whether it works is seen with the next request */
        e->lost_ns = 0;
}
