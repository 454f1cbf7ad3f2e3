#include "coordinator/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/pipeline_impl.h"

#define MAX_LOOK_NS (250 * NS_PER_MS) /* pipeline_time is called at least so often, ... */
#define MIN_LOOK_NS (50 * NS_PER_MS)  /* ... or as often as heartbeats come, down to this */

/* --- inputs -------------------------------------------------------------------------------------------------------------------- */

uint64_t pipeline_attached(struct pipeline *p, const struct stage_port *port, int64_t now_ns)
{
    uint64_t id;
    struct error why;
    pipeline__enter(p, now_ns);
    if (p->stopped)
        error_set(&why, STATUS_DRAINING, "the coordinator is ending");
    else if (stage_table_attach(p->stages, port, now_ns, &id) != STATUS_OK)
        error_set(&why, STATUS_FULL, "too many streams are attached for %u stages", p->n_stages);
    else
        return id;
    p->stats.refused++;
    port->close(port->ctx, &why);
    return 0;
}

/* One that has not got a stage: HELLO, then nothing but heartbeats. */
static void from_stranger(struct pipeline *p, const struct stage_attachment *a, const struct from_stage *m, int64_t now_ns)
{
    struct error why;
    if (m->kind == FROM_STAGE_HELLO && !a->waits) {
        pipeline__hello(p, a->id, &m->hello, now_ns);
    } else if (m->kind != FROM_STAGE_HEARTBEAT || !a->waits) {
        p->stats.protocol_errors++;
        error_set(&why, STATUS_PROTOCOL, "message %d before %s", m->kind, a->waits ? "ASSIGN" : "HELLO");
        pipeline__refuse(p, a->id, &why, now_ns);
    }
}

enum pipeline_take pipeline_message(struct pipeline *p, uint64_t attachment, const struct from_stage *m, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    enum pipeline_take take = PIPELINE_TAKEN;
    const struct stage_attachment *a = stage_table_attachment(p->stages, attachment);
    if (!a) { /* it was given up; its stream is ending */
        p->stats.stale++;
        return PIPELINE_TAKEN;
    }
    if (a->stage == STAGE_NONE) {
        from_stranger(p, a, m, now_ns);
    } else {
        stage_table_heard(p->stages, (uint32_t)a->stage, now_ns);
        take = pipeline__take(p, (uint32_t)a->stage, m, now_ns);
    }
    pipeline__advance(p, now_ns);
    return take;
}

void pipeline_closed(struct pipeline *p, uint64_t attachment, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    int stage = stage_table_detach(p->stages, attachment, now_ns); /* one that was given up before is not known any more */
    if (stage != STAGE_NONE) {
        struct error why;
        error_set(&why, STATUS_CLOSED, "stage %d: its stream ended", stage);
        pipeline__fall(p, stage, &why, now_ns);
    }
    pipeline__advance(p, now_ns);
}

int64_t pipeline_time(struct pipeline *p, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    pipeline__look(p, now_ns);
    pipeline__advance(p, now_ns);
    return pipeline__wake_at(p, now_ns);
}

void pipeline_fail(struct pipeline *p, int stage, const struct error *why, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    if (why->status == STATUS_PROTOCOL && p->state == PIPELINE_RUNNING && p->retired_tick > 0)
        p->retired_tick--; /* else each epoch would pass for one that did well, and its stage for a sound one */
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
    p->sent_tick = p->retired_tick = 0;
    stage_table_unlink(p->stages);
    while ((a = stage_table_next(p->stages, 0)) != NULL) {
        struct stage_port port = a->port;
        stage_table_detach(p->stages, a->id, p->last_ns);
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
        if (pipeline__send(p, i, &m, now_ns) != STATUS_OK)
            return STATUS_PIPELINE;
    return STATUS_OK;
}

/* What the engine may count on in this epoch, and what later ones are held against. */
static struct pipeline_event ready_event(struct pipeline *p)
{
    struct pipeline_event ev = {.kind = PIPELINE_EVENT_READY, .stage = STAGE_NONE, .kv_lost = STAGE_NONE,
                                .n_blocks = stage_table_smallest_pool(p->stages), .crash_stage = STAGE_NONE};
    for (uint32_t i = 0; i < p->n_stages; i++) {
        if (!p->pool[i].whole)
            ev.kv_lost = (int)i;
        p->pool[i].used_id = p->pool[i].id;
    }
    if (p->crash_signal) {
        ev.crash_signal = p->crash_signal;
        ev.crash_stage = p->crash_stage;
    }
    p->crash_signal = 0;
    return ev;
}

int pipeline_poll(struct pipeline *p, struct pipeline_event *ev)
{
    if (p->lost_pending) {
        *ev = p->lost;
        p->lost_pending = 0;
        return 1;
    }
    if (p->ready_pending) {
        *ev = ready_event(p);
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
    p->look_ns = p->heartbeat_ms * NS_PER_MS;
    p->look_ns = p->look_ns < MIN_LOOK_NS ? MIN_LOOK_NS : p->look_ns > MAX_LOOK_NS ? MAX_LOOK_NS : p->look_ns;
    p->random = o->random ? o->random : random_os;
    p->random_ctx = o->random_ctx;
    p->random(p->random_ctx, &p->session, sizeof p->session);
    p->session += p->session == 0;
    if (stage_table_create(p->n_stages, &p->stages) != STATUS_OK || plan_create(1, 1, 1, &p->first_plan) != STATUS_OK) {
        pipeline_destroy(p);
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
    plan_destroy(p->first_plan);
    free(p);
}

const struct pipeline_cause *pipeline_why(const struct pipeline *p)
{
    return p->cause.since_ns ? &p->cause : NULL;
}

const char *pipeline_without_name(int stage, const char *message)
{
    char name[24];
    size_t n = (size_t)snprintf(name, sizeof name, "stage %d: ", stage);
    return strncmp(message, name, n) == 0 ? message + n : message;
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

int pipeline__check(const struct pipeline *p, const char **why)
{
    if (!stage_table__check(p->stages, why))
        return 0;
    if ((p->state == PIPELINE_RUNNING || p->state == PIPELINE_WARMING) && !pipeline__all_ready(p))
        *why = "WARMING and RUNNING mean that every stage is READY";
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
