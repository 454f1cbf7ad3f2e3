#include "coordinator/engine_impl.h"

#include <string.h>

#include "common/base/check.h"
#include "common/base/trace.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

static struct flight *flight_of(struct engine *e, uint64_t tick)
{
    return &e->flights[tick % e->window];
}

/* --- plans -------------------------------------------------------------------------------------------------------------------- */

void engine__opened(struct engine *e, struct request *r)
{
    e->open_words -= r->open_words;
    r->open_words = 0;
}

/* The last n_new blocks of its table; behind them, where the model has such a group, the WINDOW blocks at these places. */
static const uint32_t *new_blocks(struct engine *e, const struct request *r, uint32_t n_new, struct plan_op *op)
{
    uint32_t n, first;
    const uint32_t *table = blocks_table(e->blocks, r->ref, &n), *window = blocks_window_table(e->blocks, r->ref, &first);
    op->n_blocks = n_new;
    if (!window)
        return table + n - n_new;
    first = first > n - n_new ? first : n - n_new;
    op->n_window = n - first;
    memcpy(e->new_blocks, table + n - n_new, n_new * sizeof *table);
    memcpy(e->new_blocks + n_new, window + first, op->n_window * sizeof *window);
    return e->new_blocks;
}

/* The sampler's biases, and the ids before its start that its penalties look at: nobody else tells the last stage. */
static enum status add_open(struct engine *e, struct request *r, struct plan_op *op, const uint32_t *blocks)
{
    op->kind = OP_OPEN;
    op->slot = r->ref.slot;
    op->sampler = r->sampler;
    op->n_ids = sampler_history(&r->sampler, op->length);
    for (uint32_t i = 0; i < op->n_ids; i++)
        e->scratch[i] = engine__id_at(r, op->length - op->n_ids + i);
    return plan_add_open(e->plan, op, blocks, e->scratch, r->bias_ids, r->bias_bits);
}

/* Blocks for the run, and OPEN or APPEND in front of it. */
static void add_ops(struct engine *e, struct request *r, const struct sched_run *run)
{
    struct plan_op op = {.kind = OP_APPEND, .seq = r->ref.seq};
    uint32_t n_new;
    CHECK(blocks_grow(e->blocks, r->ref, run->kv_index + run->n, &n_new) == STATUS_OK);
    if (!r->opened) { /* with all that the cache gave */
        blocks_table(e->blocks, r->ref, &n_new);
        op.length = run->kv_index;
        r->table_digest = PLAN_DIGEST_START;
    } else if (!n_new) {
        return;
    }
    const uint32_t *blocks = new_blocks(e, r, n_new, &op);
    CHECK((r->opened ? plan_add_op(e->plan, &op, blocks) : add_open(e, r, &op, blocks)) == STATUS_OK);
    r->table_digest = plan_digest_add(r->table_digest, blocks, op.n_blocks + op.n_window);
    if (!r->opened)
        engine__opened(e, r);
    r->opened = 1;
}

/* What the upper stages still hold, only the lower ones compute again. A piece that goes on beyond it is computed by all: the
 * others write what is there already. */
static uint32_t last_stage(struct engine *e, const struct request *r, const struct sched_run *run)
{
    int again = run->source == SOURCE_IDS && run->sample == SAMPLE_NONE && run->kv_index + run->n <= r->hollow_end;
    if (!again)
        return e->n_stages - 1;
    e->bounded_tick = e->plan->tick;
    return (uint32_t)e->lost_stage;
}

static void add_run(struct engine *e, struct request *r, const struct sched_run *run)
{
    struct plan_run out = {
        .seq = r->ref.seq,
        .n = run->n,
        .kv_index = run->kv_index,
        .source = run->source,
        .sample = run->sample,
        .from_tick = run->from_tick,
        .last_stage = last_stage(e, r, run),
        .table_check = r->table_digest,
    };
    for (uint32_t i = 0; run->source == SOURCE_IDS && i < run->n; i++)
        e->scratch[i] = engine__id_at(r, run->kv_index + i);
    CHECK(plan_add_run(e->plan, &out, e->scratch) == STATUS_OK);
}

/* Returns how many of the run's rows are not the first reading of prompt tokens: the request has lost what it had read of them, or
 * they are of its answer. (The newest id of one that is parked may never have been planned: it is read with the rest.) */
static uint32_t note_planned(struct request *r, const struct sched_run *run)
{
    uint32_t end = run->kv_index + run->n, first = r->n_planned > run->kv_index ? r->n_planned : run->kv_index;
    uint32_t prompt_end = end < r->n_prompt ? end : r->n_prompt;
    if (end > r->n_planned)
        r->n_planned = end;
    return run->n - (prompt_end > first ? prompt_end - first : 0);
}

static void fill_plan(struct engine *e, const struct sched_plan *sp)
{
    struct flight *f = flight_of(e, sp->tick);
    uint32_t n_prompt = 0;
    plan_reset(e->plan);
    e->plan->tick = sp->tick;
    e->plan->budget_us = sp->budget_us;
    for (uint32_t i = 0; i < e->n_closes; i++)
        CHECK(plan_add_op(e->plan, &(struct plan_op){.kind = OP_CLOSE, .seq = e->closes[i]}, NULL) == STATUS_OK);
    e->n_closes = 0;
    for (uint32_t i = 0; i < sp->n_runs; i++) {
        struct request *r = e->by_slot[sp->runs[i].ref.slot];
        ASSERT(r && r->ref.seq == sp->runs[i].ref.seq);
        add_ops(e, r, &sp->runs[i]);
        add_run(e, r, &sp->runs[i]);
        n_prompt += sp->runs[i].is_piece ? sp->runs[i].n : 0;
        f->again[i] = note_planned(r, &sp->runs[i]);
    }
    metrics_count_tick(&e->metrics, sp->n_rows - n_prompt, n_prompt);
    f->tick = sp->tick;
    f->n_runs = sp->n_runs;
    memcpy(f->runs, sp->runs, sp->n_runs * sizeof *f->runs);
}

/* The next row of each stream of this tick needs a block before the next plan. */
static void reserve_ahead(struct engine *e, const struct sched_plan *sp)
{
    for (uint32_t i = 0; i < sp->n_runs; i++)
        if (sp->runs[i].sample == SAMPLE_LAST)
            engine__need_room(e, e->by_slot[sp->runs[i].ref.slot], sp->runs[i].kv_index + sp->runs[i].n);
}

void engine__send_ticks(struct engine *e, int64_t now)
{
    sched_clock(e->sched, (double)now / 1000);
    while (pipeline_running(e->pipeline) && sched_plan(e->sched, e->sched_plan)) {
        fill_plan(e, e->sched_plan);
        sched_commit(e->sched, e->sched_plan);
        e->dirty = 1;
        reserve_ahead(e, e->sched_plan);
        if (pipeline_send(e->pipeline, e->plan, now) != STATUS_OK)
            return;
    }
}

/* --- results ------------------------------------------------------------------------------------------------------------------- */

static enum status check_result(const struct engine *e, const struct flight *f, const struct result *r, struct error *err)
{
    uint32_t n_vocab = tokenizer_n_vocab(e->o.tokenizer);
    if (f->tick != r->tick || f->n_runs != r->n_runs)
        return error_set(err, STATUS_PROTOCOL, "result of tick %llu with %u runs, expected tick %llu with %u",
                         (unsigned long long)r->tick, r->n_runs, (unsigned long long)f->tick, f->n_runs);
    for (uint32_t i = 0; i < r->n_runs; i++) {
        const struct result_run *got = &r->runs[i];
        const struct sched_run *want = &f->runs[i];
        if (got->seq != want->ref.seq || got->n_accepted > want->n)
            return error_set(err, STATUS_PROTOCOL, "run %u of tick %llu: sequence %llu with %u rows, planned %llu with %u", i,
                             (unsigned long long)r->tick, (unsigned long long)got->seq, got->n_accepted,
                             (unsigned long long)want->ref.seq, want->n);
        if (want->sample == SAMPLE_LAST && !got->bad_logits && (got->id < 0 || (uint32_t)got->id >= n_vocab))
            return error_set(err, STATUS_PROTOCOL, "run %u of tick %llu: id %d, the vocabulary has %u", i,
                             (unsigned long long)r->tick, got->id, n_vocab);
        for (uint32_t k = 0; k < got->n_top; k++)
            if (result_tops(r, i)[k].id >= n_vocab)
                return error_set(err, STATUS_PROTOCOL, "run %u of tick %llu: an alternative %u, the vocabulary has %u", i,
                                 (unsigned long long)r->tick, result_tops(r, i)[k].id, n_vocab);
    }
    return STATUS_OK;
}

static void bad_logits(struct engine *e, struct request *r, uint32_t position)
{
    struct error err;
    error_set(&err, STATUS_BAD_LOGITS, "the model gave no finite logits at position %u", position);
    engine__end(e, r, REQUEST_FAILED, &err);
}

static void take_run(struct engine *e, const struct sched_run *run, uint32_t again, const struct result_run *got,
                     const struct top_logprob *tops, int64_t now)
{
    if (run->is_piece) {
        e->metrics.prompt_tokens += run->n - again;
        e->metrics.replayed_tokens += again;
    }
    struct request *r = e->by_slot[run->ref.slot];
    if (!r || r->ref.seq != run->ref.seq)
        return; /* it has ended: a surplus row */
    if (run->is_piece)
        r->n_read = run->kv_index + run->n;
    if (e->n_quarantined)
        engine__got_past(e, r, run->kv_index + run->n);
    if (run->sample == SAMPLE_LAST && got->bad_logits) { /* what is in its blocks may be as bad: nobody is to find it */
        if (!r->ending) /* else the row is a surplus one, and the answer whole */
            bad_logits(e, r, run->kv_index + run->n - 1);
        return;
    }
    engine__committed(e, r, run->kv_index + run->n);
    if (run->sample == SAMPLE_LAST)
        engine__token(e, r, got, tops, now);
}

void engine__result(struct engine *e, const struct result *r, int64_t now)
{
    struct flight *f = flight_of(e, r->tick);
    struct error err;
    if (check_result(e, f, r, &err) != STATUS_OK) {
        pipeline_fail(e->pipeline, (int)e->n_stages - 1, &err, now);
        return;
    }
    e->lost_ns = 0; /* ticks pass all stages again */
    e->epoch_retired = 1;
    engine__timing(e, &r->timing);
    sched_clock(e->sched, (double)now / 1000);
    sched_retire(e->sched, r->tick, NULL);
    blocks_retire(e->blocks, r->tick);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        rows += f->runs[i].n;
        take_run(e, &f->runs[i], f->again[i], &r->runs[i], result_tops(r, i), now);
    }
    f->tick = 0; /* no longer in flight */
    admission_served(e->admission, rows, now);
    trace_event("result", (int64_t)r->tick, r->n_runs, rows, r->timing.compute_us);
}

void engine__timing(struct engine *e, const struct stage_timing *t)
{
    if (t->stage >= e->n_stages)
        return;
    struct stage_metrics *m = &e->metrics.stage[t->stage];
    m->ticks++;
    m->busy_s += t->compute_us / 1e6;
    m->bubble_s += t->wait_data_us / 1e6;
    m->hop_bytes += t->sent_bytes;
    histogram_add(&m->tick_seconds, t->compute_us / 1e6, 1);
    histogram_add(&m->hop_seconds, t->send_us / 1e6, 1);
    if (t->tick > e->bounded_tick || (int)t->stage <= e->lost_stage) /* else it had fewer rows than were planned */
        sched_timing(e->sched, t->stage, t->tick, (double)t->compute_us + t->send_us);
}
