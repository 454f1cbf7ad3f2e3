#include "coordinator/cost_model.h"

#include <math.h>
#include <string.h>

#include "common/base/check.h"

enum { RATIO_STEP = 8 }; /* the factor is taken anew after so many ratios: fewer say little */

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

/* Points as reported, made to rise. */
static void take_points(struct cost_stage *c, const struct msg_loaded *l)
{
    struct cost_point before = {.prompt_us = 1};
    for (int i = 0; i < N_COST_POINTS && l->cost_rows[i] > before.rows; i++) {
        struct cost_point *p = &c->point[c->n_points++];
        p->rows = l->cost_rows[i];
        p->prompt_us = sane_us(l->prompt_us[i], before.prompt_us);
        p->sample_us = sane_us(l->decode_us[i] - p->prompt_us, before.sample_us);
        before = *p;
    }
    if (c->n_points == 0) { /* nothing measured: 1 ms a tick and 0.1 ms a row until timings say more */
        c->point[0] = (struct cost_point){.rows = 1, .prompt_us = 1100};
        c->point[1] = (struct cost_point){.rows = 512, .prompt_us = 52200};
        c->n_points = 2;
    }
}

/* Beyond the last point it goes on by the last slope; a single point is taken as proportional. */
static void connect_points(struct cost_stage *c)
{
    struct cost_point *p = c->point;
    uint32_t last = c->n_points - 1;
    for (uint32_t i = 0; i < last; i++) {
        p[i].prompt_slope = (p[i + 1].prompt_us - p[i].prompt_us) / (p[i + 1].rows - p[i].rows);
        p[i].sample_slope = (p[i + 1].sample_us - p[i].sample_us) / (p[i + 1].rows - p[i].rows);
    }
    p[last].prompt_slope = last ? p[last - 1].prompt_slope : p[0].prompt_us / p[0].rows;
    p[last].sample_slope = last ? p[last - 1].sample_slope : p[0].sample_us / p[0].rows;
    for (uint32_t k = 0; k < 32; k++) {
        uint32_t i = 0;
        while (i < last && p[i + 1].rows <= (double)(1u << k))
            i++;
        c->start[k] = (uint8_t)i;
    }
}

void cost_model_set_stage(struct cost_model *m, uint32_t stage, const struct msg_loaded *l)
{
    CHECK(stage < m->n_stages);
    struct cost_stage *c = &m->stage[stage];
    memset(c, 0, sizeof *c);
    for (int k = 0; k < COST_N_KINDS; k++)
        c->factor[k] = 1;
    take_points(c, l);
    connect_points(c);
    if (isfinite(l->attention_ns) && l->attention_ns > 0)
        c->attention_us = l->attention_ns / 1000;
}

/* The last point at or below rows, or the first one. */
static const struct cost_point *point_of(const struct cost_stage *c, uint32_t rows)
{
    uint32_t i = c->start[31 - __builtin_clz(rows | 1)];
    while (i + 1 < c->n_points && c->point[i + 1].rows <= rows)
        i++;
    return &c->point[i];
}

static double prompt_us(const struct cost_stage *c, uint32_t rows)
{
    const struct cost_point *p = point_of(c, rows);
    return rows > p->rows ? p->prompt_us + (rows - p->rows) * p->prompt_slope : p->prompt_us;
}

static double sample_us(const struct cost_stage *c, uint32_t rows)
{
    const struct cost_point *p = point_of(c, rows);
    return rows > p->rows ? p->sample_us + (rows - p->rows) * p->sample_slope : p->sample_us;
}

enum cost_kind cost_kind_of(const struct cost_shape *s)
{
    return s->n_prompt ? COST_MIXED : COST_DECODE;
}

double cost_base_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s)
{
    const struct cost_stage *c = &m->stage[stage];
    double us = s->rows ? prompt_us(c, s->rows) : 0;
    if (s->sampled)
        us += sample_us(c, s->sampled);
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
    if (c->next_ratio[kind] % RATIO_STEP == 0)
        c->factor[kind] = percentile95(c->ratio[kind], c->n_ratios[kind]);
}
