#include "common/wire/plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"

enum status plan_create(uint32_t max_ops, uint32_t max_runs, uint32_t max_words, struct plan **out)
{
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return STATUS_OUT_OF_MEMORY;
    p->ops = calloc(max_ops ? max_ops : 1, sizeof *p->ops);
    p->runs = calloc(max_runs ? max_runs : 1, sizeof *p->runs);
    p->words = calloc(max_words ? max_words : 1, sizeof *p->words);
    if (!p->ops || !p->runs || !p->words) {
        plan_destroy(p);
        return STATUS_OUT_OF_MEMORY;
    }
    p->max_ops = max_ops;
    p->max_runs = max_runs;
    p->max_words = max_words;
    *out = p;
    return STATUS_OK;
}

void plan_destroy(struct plan *p)
{
    if (!p)
        return;
    free(p->ops);
    free(p->runs);
    free(p->words);
    free(p);
}

void plan_reset(struct plan *p)
{
    p->session = p->epoch = p->tick = 0;
    p->n_rows = p->budget_us = 0;
    p->n_ops = p->n_runs = p->n_words = 0;
}

enum status plan_copy(struct plan *to, const struct plan *from)
{
    if (from->n_ops > to->max_ops || from->n_runs > to->max_runs || from->n_words > to->max_words)
        return STATUS_FULL;
    to->session = from->session;
    to->epoch = from->epoch;
    to->tick = from->tick;
    to->n_rows = from->n_rows;
    to->budget_us = from->budget_us;
    to->n_ops = from->n_ops;
    to->n_runs = from->n_runs;
    to->n_words = from->n_words;
    memcpy(to->ops, from->ops, from->n_ops * sizeof *to->ops);
    memcpy(to->runs, from->runs, from->n_runs * sizeof *to->runs);
    memcpy(to->words, from->words, from->n_words * sizeof *to->words);
    return STATUS_OK;
}

static int words_fit(const struct plan *p, uint32_t n)
{
    return n <= p->max_words - p->n_words;
}

static uint32_t add_words(struct plan *p, const uint32_t *words, uint32_t n)
{
    uint32_t at = p->n_words;
    if (n)
        memcpy(p->words + at, words, n * sizeof *words);
    p->n_words += n;
    return at;
}

enum status plan_add_op(struct plan *p, const struct plan_op *op, const uint32_t *blocks)
{
    if (p->n_ops == p->max_ops || !words_fit(p, op->n_blocks))
        return STATUS_FULL;
    p->ops[p->n_ops] = *op;
    p->ops[p->n_ops++].first_block = add_words(p, blocks, op->n_blocks);
    return STATUS_OK;
}

enum status plan_add_run(struct plan *p, const struct plan_run *run, const uint32_t *ids)
{
    uint32_t n_ids = run->source == SOURCE_IDS ? run->n : 0;
    if (p->n_runs == p->max_runs || !words_fit(p, n_ids))
        return STATUS_FULL;
    p->runs[p->n_runs] = *run;
    p->runs[p->n_runs++].first_id = add_words(p, ids, n_ids);
    p->n_rows += run->n;
    return STATUS_OK;
}

uint32_t plan_table_digest(const uint32_t *blocks, uint32_t n_blocks)
{
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < n_blocks; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ (blocks[i] >> shift & 255)) * 16777619u;
    return h;
}

static int inside(uint32_t first, uint32_t n, uint32_t total)
{
    return first <= total && n <= total - first;
}

static enum status check_op(const struct plan *p, uint32_t i, struct error *err)
{
    const struct plan_op *op = &p->ops[i];
    const struct sampler_params *s = &op->sampler;
    if (op->kind < OP_OPEN || op->kind > OP_CLOSE)
        return error_set(err, STATUS_PROTOCOL, "op %u: kind %d is unknown", i, (int)op->kind);
    if (op->seq == 0)
        return error_set(err, STATUS_PROTOCOL, "op %u: sequence 0", i);
    if (!inside(op->first_block, op->n_blocks, p->n_words))
        return error_set(err, STATUS_PROTOCOL, "op %u: blocks [%u, +%u) of %u words", i, op->first_block, op->n_blocks,
                         p->n_words);
    if (op->kind == OP_OPEN && (!(s->temperature >= 0) || !(s->top_p >= 0 && s->top_p <= 1) ||
                                !(s->min_p >= 0 && s->min_p <= 1) || s->temperature > 1e6f))
        return error_set(err, STATUS_PROTOCOL, "op %u: sampler out of range", i);
    return STATUS_OK;
}

static enum status check_run(const struct plan *p, uint32_t i, uint64_t *n_rows, struct error *err)
{
    const struct plan_run *r = &p->runs[i];
    if (r->seq == 0 || r->n == 0)
        return error_set(err, STATUS_PROTOCOL, "run %u: sequence %llu, %u rows", i, (unsigned long long)r->seq, r->n);
    if (r->source != SOURCE_IDS && r->source != SOURCE_FROM_TICK)
        return error_set(err, STATUS_PROTOCOL, "run %u: source %d is unknown", i, (int)r->source);
    if (r->sample != SAMPLE_NONE && r->sample != SAMPLE_LAST)
        return error_set(err, STATUS_PROTOCOL, "run %u: sample %d is unknown", i, (int)r->sample);
    if (r->source == SOURCE_IDS && !inside(r->first_id, r->n, p->n_words))
        return error_set(err, STATUS_PROTOCOL, "run %u: ids [%u, +%u) of %u words", i, r->first_id, r->n, p->n_words);
    if (r->source == SOURCE_FROM_TICK && (r->n != 1 || r->from_tick >= p->tick))
        return error_set(err, STATUS_PROTOCOL, "run %u: %u rows from tick %llu in tick %llu", i, r->n,
                         (unsigned long long)r->from_tick, (unsigned long long)p->tick);
    if ((uint64_t)r->kv_index + r->n > UINT32_MAX)
        return error_set(err, STATUS_PROTOCOL, "run %u: position %u + %u rows", i, r->kv_index, r->n);
    *n_rows += r->n;
    return STATUS_OK;
}

enum status plan_check(const struct plan *p, struct error *err)
{
    uint64_t n_rows = 0;
    if (p->n_ops > p->max_ops || p->n_runs > p->max_runs || p->n_words > p->max_words)
        return error_set(err, STATUS_PROTOCOL, "a plan with %u ops, %u runs, %u words", p->n_ops, p->n_runs, p->n_words);
    for (uint32_t i = 0; i < p->n_ops; i++)
        TRY(check_op(p, i, err));
    for (uint32_t i = 0; i < p->n_runs; i++)
        TRY(check_run(p, i, &n_rows, err));
    if (n_rows != p->n_rows)
        return error_set(err, STATUS_PROTOCOL, "n_rows %u, the runs have %llu", p->n_rows, (unsigned long long)n_rows);
    return STATUS_OK;
}

enum status result_create(uint32_t max_runs, struct result **out)
{
    struct result *r = calloc(1, sizeof *r);
    if (!r)
        return STATUS_OUT_OF_MEMORY;
    r->runs = calloc(max_runs ? max_runs : 1, sizeof *r->runs);
    if (!r->runs) {
        free(r);
        return STATUS_OUT_OF_MEMORY;
    }
    r->max_runs = max_runs;
    *out = r;
    return STATUS_OK;
}

void result_destroy(struct result *r)
{
    if (!r)
        return;
    free(r->runs);
    free(r);
}
