#include "coordinator/cost_model.h"

#include <math.h>
#include <string.h>

#include "common/base/check.h"

enum { FEW_RATIOS = 8 }; /* fewer say nothing: the factor stays what it was */

static double sane_us(double us, double least)
{
    return isfinite(us) && us > least ? us : least;
}

void cost_model_init(struct cost_model *m, uint32_t n_stages)
{
    CHECK(n_stages >= 1 && n_stages <= MAX_STAGES);
    memset(m, 0, sizeof *m);
    m->n_stages = n_stages;
    for (uint32_t i = 0; i < n_stages; i++)
        cost_model_set_stage(m, i, &(struct msg_loaded){0});
}

void cost_model_set_stage(struct cost_model *m, uint32_t stage, const struct msg_loaded *l)
{
    CHECK(stage < m->n_stages);
    struct cost_stage *c = &m->stage[stage];
    memset(c, 0, sizeof *c);
    for (int k = 0; k < COST_N_KINDS; k++)
        c->factor[k] = 1;
    double rows = 0, us = 1;
    for (int i = 0; i < N_COST_POINTS && l->cost_rows[i] > rows; i++) {
        double decode = l->decode_us[i];
        rows = l->cost_rows[i];
        us = sane_us(l->prompt_us[i], us); /* does not fall */
        c->rows[c->n_points] = rows;
        c->prompt_us[c->n_points] = us;
        c->sample_us[c->n_points] = decode > us ? decode - us : 0;
        if (i > 0 && c->sample_us[c->n_points] < c->sample_us[c->n_points - 1])
            c->sample_us[c->n_points] = c->sample_us[c->n_points - 1];
        c->n_points++;
    }
    if (c->n_points == 0) { /* nothing measured: 1 ms a tick and 0.1 ms a row until timings say more */
        c->rows[0] = 1, c->prompt_us[0] = 1100;
        c->rows[1] = 512, c->prompt_us[1] = 52200;
        c->n_points = 2;
    }
    if (isfinite(l->attention_ns) && l->attention_ns > 0)
        c->attention_us = l->attention_ns / 1000;
}

/* Linear between points, flat below the first, and on by the last slope. */
static double interpolate(const struct cost_stage *c, const double *table, double rows)
{
    if (rows <= c->rows[0] || c->n_points == 1)
        return rows <= c->rows[0] ? table[0] : table[0] * rows / c->rows[0];
    uint32_t i = 1;
    while (i + 1 < c->n_points && c->rows[i] < rows)
        i++;
    double slope = (table[i] - table[i - 1]) / (c->rows[i] - c->rows[i - 1]);
    return table[i - 1] + slope * (rows - c->rows[i - 1]);
}

enum cost_kind cost_kind_of(const struct cost_shape *s)
{
    return s->n_prompt ? COST_MIXED : COST_DECODE;
}

double cost_base_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s)
{
    const struct cost_stage *c = &m->stage[stage];
    double us = s->rows ? interpolate(c, c->prompt_us, s->rows) : 0;
    if (s->sampled)
        us += interpolate(c, c->sample_us, s->sampled);
    return us + c->attention_us * (double)s->reads;
}

double cost_predict_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s)
{
    return cost_base_us(m, stage, s) * m->stage[stage].factor[cost_kind_of(s)];
}

double cost_slowest_us(const struct cost_model *m, const struct cost_shape *s)
{
    double most = 0;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        double us = cost_predict_us(m, i, s);
        if (us > most)
            most = us;
    }
    return most;
}

/* The value that at most 5 % of n, and always one, are above: a single outlier never counts. Insertion sort: n is small
 * and this is outside plan(). */
static double percentile95(const float *ratio, uint32_t n)
{
    float sorted[COST_RATIOS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j > 0 && sorted[j - 1] > ratio[i]; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = ratio[i];
    }
    uint32_t above = n < 40 ? 1 : n / 20;
    return sorted[n - 1 - above];
}

void cost_model_learn(struct cost_model *m, uint32_t stage, enum cost_kind kind, double base_us, double actual_us)
{
    if (stage >= m->n_stages || !(base_us > 0) || !(actual_us >= 0) || !isfinite(actual_us / base_us))
        return;
    struct cost_stage *c = &m->stage[stage];
    double ratio = fmin(fmax(actual_us / base_us, COST_FACTOR_MIN), COST_FACTOR_MAX);
    c->ratio[kind][c->next_ratio[kind]] = (float)ratio;
    c->next_ratio[kind] = (c->next_ratio[kind] + 1) % COST_RATIOS;
    if (c->n_ratios[kind] < COST_RATIOS)
        c->n_ratios[kind]++;
    if (c->n_ratios[kind] >= FEW_RATIOS)
        c->factor[kind] = percentile95(c->ratio[kind], c->n_ratios[kind]);
}
