#include "common/wire/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"

/* --- samplers ----------------------------------------------------------------------------------------------------------- */

static const float MAX_BIAS = 100;

enum param {
    TEMPERATURE,
    TOP_P,
    MIN_P,
    TYPICAL_P,
    REPEAT_PENALTY,
    PRESENCE_PENALTY,
    FREQUENCY_PENALTY,
    TOP_LOGPROBS,
    LOGIT_BIAS, /* their number */
    N_PARAMS,
};

static const struct sampler_range ranges[N_PARAMS] = {
    [TEMPERATURE] = {"temperature", 0, 100},
    [TOP_P] = {"top_p", 0, 1},
    [MIN_P] = {"min_p", 0, 1},
    [TYPICAL_P] = {"typical_p", 0, 1},
    [REPEAT_PENALTY] = {"repeat_penalty", 0.01, 100},
    [PRESENCE_PENALTY] = {"presence_penalty", -2, 2},
    [FREQUENCY_PENALTY] = {"frequency_penalty", -2, 2},
    [TOP_LOGPROBS] = {"top_logprobs", 0, MAX_TOP_LOGPROBS},
    [LOGIT_BIAS] = {"logit_bias", 0, MAX_BIASES},
};

const struct sampler_range *sampler_range(const char *name)
{
    for (int i = 0; i < N_PARAMS; i++)
        if (strcmp(ranges[i].name, name) == 0)
            return &ranges[i];
    return NULL;
}

int sampler_has_fault(const struct sampler_params *s, struct sampler_fault *out)
{
    const double values[N_PARAMS] = {
        [TEMPERATURE] = (double)s->temperature,
        [TOP_P] = (double)s->top_p,
        [MIN_P] = (double)s->min_p,
        [TYPICAL_P] = (double)s->typical_p,
        [REPEAT_PENALTY] = s->repeat_penalty == 0 ? 1 : (double)s->repeat_penalty,
        [PRESENCE_PENALTY] = (double)s->presence_penalty,
        [FREQUENCY_PENALTY] = (double)s->frequency_penalty,
        [TOP_LOGPROBS] = s->n_top ? s->n_top - 1 : 0,
        [LOGIT_BIAS] = s->n_bias,
    };
    for (int i = 0; i < N_PARAMS; i++) {
        const struct sampler_range *r = &ranges[i];
        if (values[i] >= (double)(float)r->min && values[i] <= r->max) /* the nearest float may lie below the least */
            continue;
        *out = (struct sampler_fault){r->name, values[i], r->min, r->max};
        return 1;
    }
    return 0;
}

int sampler_bias_is_allowed(float bias)
{
    return bias >= -MAX_BIAS && bias <= MAX_BIAS;
}

int sampler_repeats(const struct sampler_params *s)
{
    return s->repeat_penalty != 0 && s->repeat_penalty != 1;
}

int sampler_counts_answer(const struct sampler_params *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0;
}

uint32_t sampler_history(const struct sampler_params *s, uint32_t length)
{
    uint32_t repeat = 0, answer = 0;
    if (sampler_repeats(s))
        repeat = s->repeat_last_n && s->repeat_last_n < length ? s->repeat_last_n : length;
    if (sampler_counts_answer(s) && length > s->n_prompt)
        answer = length - s->n_prompt;
    return repeat > answer ? repeat : answer;
}

/* --- plans -------------------------------------------------------------------------------------------------------------- */

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

enum status plan_add_open(struct plan *p, const struct plan_op *op, const uint32_t *blocks, const uint32_t *ids,
                          const uint32_t *bias_ids, const uint32_t *bias_bits)
{
    const uint64_t n_words = (uint64_t)op->n_blocks + op->n_window + op->n_ids + 2ull * op->sampler.n_bias;
    if (p->n_ops == p->max_ops || n_words > p->max_words - p->n_words)
        return STATUS_FULL;
    struct plan_op *to = &p->ops[p->n_ops++];
    *to = *op;
    to->first_block = add_words(p, blocks, op->n_blocks + op->n_window);
    to->first_id = add_words(p, ids, op->n_ids);
    to->first_bias = add_words(p, bias_ids, op->sampler.n_bias);
    add_words(p, bias_bits, op->sampler.n_bias);
    return STATUS_OK;
}

enum status plan_add_op(struct plan *p, const struct plan_op *op, const uint32_t *blocks)
{
    ASSERT(op->n_ids == 0 && op->sampler.n_bias == 0);
    return plan_add_open(p, op, blocks, NULL, NULL, NULL);
}

struct logit_bias plan_bias(const struct plan *p, const struct plan_op *op, uint32_t i)
{
    struct logit_bias b = {.id = p->words[op->first_bias + i]};
    memcpy(&b.bias, &p->words[op->first_bias + op->sampler.n_bias + i], sizeof b.bias);
    return b;
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

uint32_t plan_digest_add(uint32_t digest, const uint32_t *blocks, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < n_blocks; i++)
        for (int shift = 0; shift < 32; shift += 8)
            digest = (digest ^ (blocks[i] >> shift & 255)) * 16777619u;
    return digest;
}

uint32_t plan_table_digest(const uint32_t *blocks, uint32_t n_blocks)
{
    return plan_digest_add(PLAN_DIGEST_START, blocks, n_blocks);
}

static int inside(uint32_t first, uint32_t n, uint32_t total)
{
    return first <= total && n <= total - first;
}

static enum status check_sampler(const struct plan *p, uint32_t i, struct error *err)
{
    const struct plan_op *op = &p->ops[i];
    const struct sampler_params *s = &op->sampler;
    struct sampler_fault f;
    if (sampler_has_fault(s, &f))
        return error_set(err, STATUS_PROTOCOL, "op %u: %s %g", i, f.name, f.value);
    if (!inside(op->first_id, op->n_ids, p->n_words) || !inside(op->first_bias, 2 * s->n_bias, p->n_words))
        return error_set(err, STATUS_PROTOCOL, "op %u: ids [%u, +%u) and biases [%u, +%u) of %u words", i, op->first_id,
                         op->n_ids, op->first_bias, 2 * s->n_bias, p->n_words);
    if (op->n_ids != sampler_history(s, op->length))
        return error_set(err, STATUS_PROTOCOL, "op %u: %u ids before position %u, its sampler needs %u", i, op->n_ids,
                         op->length, sampler_history(s, op->length));
    for (uint32_t k = 0; k < s->n_bias; k++)
        if (!sampler_bias_is_allowed(plan_bias(p, op, k).bias))
            return error_set(err, STATUS_PROTOCOL, "op %u: a bias of %g", i, (double)plan_bias(p, op, k).bias);
    return STATUS_OK;
}

static enum status check_op(const struct plan *p, uint32_t i, struct error *err)
{
    const struct plan_op *op = &p->ops[i];
    if (op->kind < OP_OPEN || op->kind > OP_CLOSE)
        return error_set(err, STATUS_PROTOCOL, "op %u: kind %d is unknown", i, (int)op->kind);
    if (op->seq == 0)
        return error_set(err, STATUS_PROTOCOL, "op %u: sequence 0", i);
    if (!inside(op->first_block, op->n_blocks, p->n_words) || !inside(op->first_block + op->n_blocks, op->n_window, p->n_words))
        return error_set(err, STATUS_PROTOCOL, "op %u: blocks [%u, +%u +%u) of %u words", i, op->first_block, op->n_blocks,
                         op->n_window, p->n_words);
    return op->kind == OP_OPEN ? check_sampler(p, i, err) : STATUS_OK;
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
    r->tops = calloc((size_t)max_runs * MAX_TOP_LOGPROBS + 1, sizeof *r->tops);
    if (!r->runs || !r->tops) {
        result_destroy(r);
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
    free(r->tops);
    free(r);
}

enum status result_copy(struct result *to, const struct result *from)
{
    const struct result room = *to;
    if (from->n_runs > room.max_runs)
        return STATUS_FULL;
    *to = *from;
    to->runs = room.runs;
    to->tops = room.tops;
    to->max_runs = room.max_runs;
    memcpy(to->runs, from->runs, from->n_runs * sizeof *to->runs);
    for (uint32_t i = 0; i < from->n_runs; i++)
        memcpy(result_tops(to, i), result_tops(from, i), from->runs[i].n_top * sizeof *to->tops);
    return STATUS_OK;
}
