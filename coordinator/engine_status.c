#include "coordinator/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

/* There may be thousands of slots, every 10 ms: no formatting. *out is zero. */
static void put(char *out, size_t size, const char *text)
{
    memcpy(out, text, strnlen(text, size - 1));
}

static void fill_slots(const struct engine *e, struct service_status *s, int64_t now)
{
    s->n_slots = e->n_slots;
    for (uint32_t i = 0; i < e->n_slots; i++) {
        struct slot_status *out = &s->slots[i];
        const struct request *r = e->by_slot[i];
        uint64_t seq;
        *out = (struct slot_status){.slot = i};
        put(out->state, sizeof out->state, slot_state_name(slots_at(e->slots, i, &seq)));
        if (!r)
            continue;
        put(out->request, sizeof out->request, r->id);
        out->prompt_tokens = r->n_prompt;
        out->cached_tokens = r->n_cached;
        out->read_tokens = r->n_read < r->n_prompt ? r->n_read : r->n_prompt;
        out->generated_tokens = r->n_answer;
        if (now > r->arrived_ns) /* else it came during the turn whose time this is */
            out->age_ms = (uint64_t)((now - r->arrived_ns) / NS_PER_MS);
    }
}

static void fill_stages(const struct engine *e, struct service_status *s, int64_t now)
{
    const struct stage_table *t = pipeline_stages(e->pipeline);
    s->n_stages = e->n_stages;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct stage_entry *g = stage_table_at(t, i);
        const struct stage_load load = stage_table_load(t, i, now);
        struct stage_status *out = &s->stages[i];
        *out = (struct stage_status){
            .stage = i,
            .pid = g->hello.pid,
            .first_layer = e->o.split->first_layer[i],
            .end_layer = e->o.split->first_layer[i + 1],
            .restarts = g->restarts,
            .weight_bytes = g->loaded.weight_bytes,
            .kv_bytes = g->loaded.kv_bytes,
            .tick_age_ms = stage_table_tick_age_ms(t, i, now),
            .busy_ratio = load.busy_ratio,
            .bubble_ratio = load.bubble_ratio,
            .hop_us = load.hop_us,
        };
        snprintf(out->host, sizeof out->host, "%s", g->hello.host);
        snprintf(out->backend, sizeof out->backend, "%s", g->hello.backend);
        snprintf(out->state, sizeof out->state, "%s", stage_state_name(g->state));
    }
}

static void fill_queue(const struct engine *e, struct service_status *s, int64_t now)
{
    struct admission_stats a = admission_stats(e->admission);
    s->queued = e->n_queued;
    s->reading = e->n_reading;
    s->decoding = e->n_decoding;
    s->parked = e->n_parked;
    s->accepted = e->metrics.accepted;
    s->done = e->metrics.done;
    s->failed = e->metrics.failed + e->metrics.expired;
    s->cancelled = e->metrics.cancelled;
    s->queue_requests = a.n_waiting;
    s->queue_tokens = a.n_tokens;
    s->queue_oldest_ms = a.oldest_ns ? (uint64_t)((now - a.oldest_ns) / NS_PER_MS) : 0;
    s->queue_limit_requests = (uint64_t)e->o.config->queue_requests;
    s->queue_limit_tokens = (uint64_t)e->o.config->queue_tokens;
}

static uint32_t whole_us(double us)
{
    return us <= 0 ? 0 : us >= UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static void fill_ticks(const struct engine *e, struct service_status *s)
{
    struct sched_stats t = sched_stats(e->sched);
    s->ticks_sent = e->metrics.ticks;
    s->ticks_in_flight = pipeline_in_flight(e->pipeline);
    s->tick_window = e->window;
    s->tick_streams = t.n_streams;
    s->tick_readers = t.n_readers;
    s->tick_starved = t.n_starved;
    s->tick_period_us = whole_us(t.period_us);
    s->tick_budget_us = whole_us(t.tau_us);
    s->bank_us = (int32_t)(t.bank_us < -2e9 ? -2e9 : t.bank_us > 2e9 ? 2e9 : t.bank_us);
    s->bank_bound_us = whole_us(t.bank_bound_us);
    s->stall_unmet = t.stall_unmet != 0;
}

/* For whoever is called at 3 a.m. */
static void say_why_not_ready(const struct engine *e, struct service_status *s, int64_t now)
{
    const struct stage_table *stages = pipeline_stages(e->pipeline);
    size_t n = 0;
    s->lost_ms = e->lost_ns ? (uint64_t)((now - e->lost_ns) / NS_PER_MS) : 0; /* *s has what was said before */
    s->not_ready[0] = 0;
    if (s->ready)
        return;
    if (e->draining) {
        snprintf(s->not_ready, sizeof s->not_ready, "draining: no new requests");
        return;
    }
    if (e->lost_ns)
        n = (size_t)snprintf(s->not_ready, sizeof s->not_ready, "%.160s; ", engine__why_lost(e, (char[LOST_TEXT]){0}));
    n += (size_t)snprintf(s->not_ready + n, sizeof s->not_ready - n, "the pipeline is %s",
                          pipeline_state_name(pipeline_state(e->pipeline)));
    for (uint32_t i = 0; i < e->n_stages && n < sizeof s->not_ready; i++) {
        enum stage_state state = stage_table_at(stages, i)->state;
        if (state != STAGE_READY && state != STAGE_LINKING)
            n += (size_t)snprintf(s->not_ready + n, sizeof s->not_ready - n, ", stage %u %s", i, stage_state_name(state));
    }
}

static void fill(struct engine *e, struct service_status *s, int64_t now)
{
    struct blocks_count b = blocks_counts(e->blocks);
    const struct hparams *hp = &e->o.model->hp;
    s->ready = pipeline_running(e->pipeline) && !e->lost_ns && !e->draining;
    say_why_not_ready(e, s, now);
    s->epoch = pipeline_epoch(e->pipeline);
    snprintf(s->architecture, sizeof s->architecture, "%s", hp->arch->name);
    s->model_layers = hp->n_layers;
    s->model_context = e->context;
    s->model_vocabulary = hp->n_vocab;
    s->concurrency_requested = s->concurrency_serving = e->n_slots;
    fill_queue(e, s, now);
    s->block_size = (uint32_t)e->o.config->kv_block;
    s->blocks_total = b.total;
    s->blocks_free = b.free;
    s->blocks_cached = b.cached;
    s->blocks_live = b.live;
    s->blocks_draining = b.draining;
    s->blocks_promised = b.promised;
    s->blocks_evicted = b.evicted;
    fill_slots(e, s, now);
    fill_stages(e, s, now);
    fill_ticks(e, s);
}

static void fill_metrics(const struct engine *e, struct metrics *m, const struct service_status *s)
{
    struct pipeline_stats ps = pipeline_stats(e->pipeline);
    *m = e->metrics;
    m->window_blocks = blocks_window_counts(e->blocks);
    m->stale[STALE_STAGE_MESSAGE] = ps.stale;
    m->protocol_errors += ps.protocol_errors;
    for (int i = 0; i < REJECT_N; i++)
        m->rejected[i] += atomic_load_explicit(&e->refused[i], memory_order_relaxed);
    for (uint32_t i = 0; i < e->n_stages; i++) {
        struct stale_counts stale = stage_table_stale(pipeline_stages(e->pipeline), i);
        m->stale[STALE_PLAN] += stale.plans;
        m->stale[STALE_EPOCH] += stale.epochs;
        m->stale[STALE_LINK] += stale.links;
        m->stale[STALE_FRAME] += stale.frames;
        m->stale[STALE_FEEDBACK] += stale.feedback;
        m->stage[i].restarts = s->stages[i].restarts;
    }
}

void engine__publish(struct engine *e, int64_t now)
{
    struct engine_snapshot *next = e->spare;
    fill(e, &next->status, now);
    fill_metrics(e, &next->metrics, &next->status);
    pthread_mutex_lock(&e->snapshot_lock);
    e->spare = e->snapshot;
    e->snapshot = next;
    pthread_mutex_unlock(&e->snapshot_lock);
    atomic_store(&e->ready, next->status.ready);
    atomic_store(&e->alive_ns, now);
    e->published_ns = now;
    e->dirty = 0;
}

/* It publishes at least every 50 ms. One that has not for so long decides nothing any more, whatever it last said. */
static int alive(const struct engine *e)
{
    return e->o.manual || clock_now_ns() - (int64_t)atomic_load(&e->alive_ns) < 2 * NS_PER_S;
}

void engine_status(struct engine *e, struct service_status *out)
{
    pthread_mutex_lock(&e->snapshot_lock);
    service_status_copy(out, &e->snapshot->status);
    pthread_mutex_unlock(&e->snapshot_lock);
    out->ready = out->ready && alive(e);
}

/* Written from a copy: the engine must not wait for a page to be formatted. */
void engine_metrics(struct engine *e, enum metric_aliases aliases, struct buf *out)
{
    struct engine_snapshot *s = malloc(sizeof *s);
    if (!s) {
        out->failed = 1;
        return;
    }
    pthread_mutex_lock(&e->snapshot_lock);
    s->metrics = e->snapshot->metrics;
    service_status_copy(&s->status, &e->snapshot->status);
    pthread_mutex_unlock(&e->snapshot_lock);
    s->status.ready = s->status.ready && alive(e);
    metrics_write(&s->metrics, &s->status, out);
    if (aliases == METRIC_ALIASES_VLLM)
        metrics_write_vllm(&s->metrics, &s->status, e->o.model_name, out);
    free(s);
}

int engine_ready(struct engine *e)
{
    return atomic_load(&e->ready) && alive(e);
}

uint64_t engine_turns(const struct engine *e)
{
    return atomic_load_explicit(&e->n_turns, memory_order_relaxed);
}

int engine_idle(struct engine *e)
{
    return atomic_load(&e->submitting) == 0 && atomic_load(&e->idle); /* in this order: submitted, counted, not submitting */
}

void engine__check(const struct engine *e)
{
    const char *why = NULL;
    CHECK(slots__check(e->slots, &why));
    CHECK(blocks__check(e->blocks, &why));
    CHECK(admission__check(e->admission, &why));
    CHECK(slots_count(e->slots, SLOT_READING) == e->n_reading);
    CHECK(slots_count(e->slots, SLOT_DECODING) == e->n_decoding);
    CHECK(e->n_preempted <= e->n_parked);
    uint32_t n_throttled = 0;
    LIST_EACH(it, &e->parked)
        n_throttled += LIST_ENTRY(it, struct request, link)->throttled != 0;
    CHECK(admission_stats(e->admission).n_waiting + n_throttled == e->n_queued + e->n_parked);
    CHECK(e->metrics.accepted == e->metrics.done + e->metrics.failed + e->metrics.expired + e->metrics.cancelled +
                                     e->n_queued + e->n_reading + e->n_decoding + e->n_parked);
}
