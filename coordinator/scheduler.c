/* Moves the scheduler's state; sched_plan.c reads it. */
#include "coordinator/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/trace.h"
#include "coordinator/sched_impl.h"

/* --- the state's memory -------------------------------------------------------------------------------------------------- */

struct sched_entry *sched__entries(const struct sched *s)
{
    return (struct sched_entry *)((char *)(uintptr_t)s + s->entries_at);
}

static struct sched_flight *flight_of(const struct sched *s, uint64_t tick)
{
    struct sched_flight *f = (struct sched_flight *)((char *)(uintptr_t)s + s->flights_at);
    return f + tick % s->window;
}

static struct sched_flight_run *flight_runs(const struct sched *s, uint64_t tick)
{
    struct sched_flight_run *r = (struct sched_flight_run *)((char *)(uintptr_t)s + s->runs_at);
    return r + tick % s->window * s->opt.n_slots;
}

static struct sched_past *past_of(const struct sched *s, uint64_t tick)
{
    struct sched_past *p = (struct sched_past *)((char *)(uintptr_t)s + s->past_at);
    return p + tick % SCHED_PAST;
}

uint64_t sched__retired_tick(const struct sched *s)
{
    return s->next_tick - 1 - s->in_flight;
}

uint64_t sched__before_tick(const struct sched *s, uint64_t tick)
{
    return flight_of(s, tick)->before_tick;
}

enum status sched_create(const struct sched_options *o, struct sched **out)
{
    CHECK(o->n_stages >= 1 && o->n_stages <= MAX_STAGES && o->n_slots >= 1 && o->n_slots <= SLOTS_MAX);
    CHECK(o->decode_share >= 0 && o->decode_share < 1 && o->max_stall_us > 0 && o->max_tick_us > 0);
    uint32_t window = o->n_stages + 1;
    size_t entries_at = sizeof(struct sched);
    size_t flights_at = entries_at + o->n_slots * sizeof(struct sched_entry);
    size_t runs_at = flights_at + window * sizeof(struct sched_flight);
    size_t past_at = runs_at + (size_t)window * o->n_slots * sizeof(struct sched_flight_run);
    size_t bytes = past_at + SCHED_PAST * sizeof(struct sched_past);
    struct sched *s = calloc(1, bytes);
    if (!s)
        return STATUS_OUT_OF_MEMORY;
    s->bytes = bytes;
    s->entries_at = entries_at;
    s->flights_at = flights_at;
    s->runs_at = runs_at;
    s->past_at = past_at;
    s->window = window;
    s->opt = *o;
    if (s->opt.max_rows == 0)
        s->opt.max_rows = SCHED_MAX_ROWS_AUTO;
    if (s->opt.piece_max == 0 || s->opt.piece_max > s->opt.max_rows)
        s->opt.piece_max = s->opt.max_rows;
    cost_model_init(&s->cost, o->n_stages);
    s->next_tick = 1;
    s->pace = 1;
    *out = s;
    return STATUS_OK;
}

void sched_destroy(struct sched *s)
{
    free(s);
}

size_t sched_bytes(const struct sched *s)
{
    return s->bytes;
}

enum status sched_plan_create(const struct sched *s, struct sched_plan **out)
{
    struct sched_plan *p = calloc(1, sizeof *p);
    if (!p)
        return STATUS_OUT_OF_MEMORY;
    p->max_runs = s->opt.n_slots;
    p->runs = calloc(s->opt.n_slots, sizeof *p->runs);
    p->scratch = calloc(2ull * s->opt.n_slots, sizeof *p->scratch);
    if (!p->runs || !p->scratch) {
        sched_plan_destroy(p);
        return STATUS_OUT_OF_MEMORY;
    }
    *out = p;
    return STATUS_OK;
}

void sched_plan_destroy(struct sched_plan *p)
{
    if (!p)
        return;
    free(p->runs);
    free(p->scratch);
    free(p);
}

void sched_reset(struct sched *s)
{
    memset((char *)s + s->entries_at, 0, s->bytes - s->entries_at);
    s->next_tick = 1;
    s->in_flight = 0;
    s->bank_us = s->credit_us = s->waited_us = 0;
    s->burst = s->calm = 0;
    s->narrow_tick = 0;
    s->pace = 1;
    s->oldest_order = 0;
    s->stall_unmet = 0;
}

void sched_set_stage(struct sched *s, uint32_t stage, const struct msg_loaded *l)
{
    cost_model_set_stage(&s->cost, stage, l);
}

/* --- sequences ------------------------------------------------------------------------------------------------------------- */

static struct sched_entry *find(const struct sched *s, struct slot_ref ref)
{
    if (ref.slot >= s->opt.n_slots || ref.seq == 0 || sched__entries(s)[ref.slot].seq != ref.seq)
        return NULL;
    return &sched__entries(s)[ref.slot];
}

enum status sched_add(struct sched *s, struct slot_ref ref, const struct sched_sequence *q)
{
    CHECK(ref.slot < s->opt.n_slots && ref.seq != 0 && q->n_prompt >= 1 && q->position < q->n_prompt);
    CHECK(q->n_answer >= 1 && q->n_answer <= UINT32_MAX - q->n_prompt);
    struct sched_entry *e = &sched__entries(s)[ref.slot];
    if (e->seq != 0)
        return STATUS_SLOTS_BUSY;
    *e = (struct sched_entry){.seq = ref.seq,
                              .order = q->order,
                              .position = q->position,
                              .n_prompt = q->n_prompt,
                              .end = q->n_prompt + q->n_answer - 1,
                              .limit = q->limit,
                              .run_rows = q->run_rows > 1 ? q->run_rows : 1,
                              .needs_host = q->needs_host != 0};
    trace_event("sched add", ref.slot, (int64_t)ref.seq, q->n_prompt, q->n_answer);
    return STATUS_OK;
}

enum status sched_set_limit(struct sched *s, struct slot_ref ref, uint32_t n_positions)
{
    struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    e->limit = n_positions;
    return STATUS_OK;
}

enum status sched_set_cut(struct sched *s, struct slot_ref ref, uint32_t position)
{
    struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    e->cut = position;
    return STATUS_OK;
}

enum status sched_host_ready(struct sched *s, struct slot_ref ref)
{
    struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    e->host_ready = 1;
    return STATUS_OK;
}

enum status sched_remove(struct sched *s, struct slot_ref ref)
{
    struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    memset(e, 0, sizeof *e);
    trace_event("sched remove", ref.slot, (int64_t)ref.seq, 0, 0);
    return STATUS_OK;
}

enum status sched_pause(struct sched *s, struct slot_ref ref, int on)
{
    struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    e->paused = on != 0;
    return STATUS_OK;
}

enum status sched_progress(const struct sched *s, struct slot_ref ref, uint32_t *position, uint32_t *in_flight)
{
    const struct sched_entry *e = find(s, ref);
    if (!e)
        return STATUS_SLOT_STALE;
    *position = e->position;
    *in_flight = e->in_flight;
    return STATUS_OK;
}

/* --- ticks ----------------------------------------------------------------------------------------------------------------- */

static void commit_run(struct sched *s, const struct sched_run *run, uint64_t tick)
{
    struct sched_entry *e = find(s, run->ref);
    CHECK(e && e->position == run->kv_index);
    e->position += run->n;
    if (run->sample == SAMPLE_LAST && e->last_tick > flight_of(s, tick)->before_tick)
        flight_of(s, tick)->before_tick = e->last_tick;
    e->last_tick = tick;
    e->in_flight++;
    if (run->sample == SAMPLE_LAST)
        e->host_ready = 0;
}

void sched_commit(struct sched *s, const struct sched_plan *p)
{
    CHECK(p->tick == s->next_tick && s->in_flight < s->window && p->n_runs <= s->opt.n_slots);
    struct sched_flight *f = flight_of(s, p->tick);
    struct sched_flight_run *runs = flight_runs(s, p->tick);
    f->before_tick = 0;
    for (uint32_t i = 0; i < p->n_runs; i++) {
        const struct sched_run *r = &p->runs[i];
        commit_run(s, r, p->tick);
        runs[i] = (struct sched_flight_run){.ref = r->ref, .n = r->n, .is_piece = r->is_piece};
    }
    f->n_runs = p->n_runs;
    *past_of(s, p->tick) = (struct sched_past){.tick = p->tick, .shape = p->shape};
    sched__bank_commit(s, p, f);
    s->credit_us = p->credit_us;
    s->oldest_order = p->oldest_order;
    s->stall_unmet = p->stall_unmet;
    s->period_us = p->period_us;
    s->tau_us = p->tau_us;
    s->next_tick++;
    s->in_flight++;
    s->ticks_sent++;
    trace_event("tick", (int64_t)p->tick, p->n_rows, p->n_runs, p->budget_us);
    ASSERT(sched__check(s, &(const char *){0}));
}

void sched_clock(struct sched *s, double now_us)
{
    s->now_us = now_us > s->now_us ? now_us : s->now_us;
}

/* Rows that do not count are planned again. What a sequence has in flight behind them moves down as well. */
static void retire_run(struct sched *s, const struct sched_flight_run *r, uint32_t accepted)
{
    struct sched_entry *e = find(s, r->ref);
    if (!e)
        return;
    e->in_flight--;
    if (!r->is_piece && accepted < r->n)
        e->position -= r->n - accepted;
}

enum status sched_retire(struct sched *s, uint64_t tick, const uint32_t *accepted)
{
    if (s->in_flight == 0 || tick != s->next_tick - s->in_flight)
        return STATUS_STALE;
    const struct sched_flight_run *runs = flight_runs(s, tick);
    for (uint32_t i = 0; i < flight_of(s, tick)->n_runs; i++)
        retire_run(s, &runs[i], accepted ? accepted[i] : runs[i].n);
    s->in_flight--;
    sched__bank_retire(s, flight_of(s, tick));
    ASSERT(sched__check(s, &(const char *){0}));
    return STATUS_OK;
}

void sched_timing(struct sched *s, uint32_t stage, uint64_t tick, double actual_us)
{
    const struct sched_past *p = past_of(s, tick);
    if (tick != 0 && p->tick == tick && stage < s->opt.n_stages)
        cost_model_learn(&s->cost, stage, &p->shape, actual_us);
}

uint64_t sched_last_tick(const struct sched *s)
{
    return s->next_tick - 1;
}

struct sched_stats sched_stats(const struct sched *s)
{
    struct sched_stats st = {.ticks_sent = s->ticks_sent, .in_flight = s->in_flight, .stall_unmet = s->stall_unmet,
                             .period_us = s->period_us, .tau_us = s->tau_us, .bank_us = s->bank_us,
                             .bank_bound_us = s->bank_bound_us};
    st.oldest_tick = s->in_flight ? s->next_tick - s->in_flight : 0;
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        const struct sched_entry *e = &sched__entries(s)[i];
        st.n_readers += e->seq != 0 && e->position < e->n_prompt;
        st.n_streams += e->seq != 0 && e->position >= e->n_prompt;
        st.n_starved += e->seq != 0 && e->position >= e->limit && e->position < e->end;
    }
    return st;
}

int sched__check(const struct sched *s, const char **why)
{
    *why = NULL;
    if (s->in_flight > s->window || s->in_flight >= s->next_tick)
        *why = "at most window ticks are in flight, all of them committed";
    uint64_t in_ticks = 0, in_entries = 0;
    for (uint64_t t = s->next_tick - s->in_flight; !*why && t < s->next_tick; t++)
        for (uint32_t i = 0; i < flight_of(s, t)->n_runs; i++)
            in_ticks += find(s, flight_runs(s, t)[i].ref) != NULL;
    for (uint32_t i = 0; !*why && i < s->opt.n_slots; i++) {
        const struct sched_entry *e = &sched__entries(s)[i];
        in_entries += e->in_flight;
        if (e->seq == 0 && (e->in_flight || e->position))
            *why = "an empty entry holds nothing";
        else if (e->position > e->end)
            *why = "no row is planned beyond the end";
        else if (e->last_tick >= s->next_tick)
            *why = "a last tick was committed";
    }
    if (!*why && in_ticks != in_entries)
        *why = "rows in flight add up over ticks and entries";
    return !*why;
}
