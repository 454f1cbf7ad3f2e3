#include "coordinator/cost_model.h"

#include <math.h>
#include <string.h>

#include "common/base/check.h"

enum {
    RATIO_STEP = 8,  /* a guard is taken anew after so many ratios: fewer say little */
    STRANGE_MOST = 8, /* so many timings far off in a row are no outliers */
    MEMORY = 16,     /* a factor forgets over so many timings */
};
#define STRANGE 3.0          /* times the prediction, or a third of it */
#define ATTENTION_STEP 0.05
#define ATTENTION_MOST_US 1000.0 /* per row and position; tens of nanoseconds are usual. Times all positions of a tick it stays finite */

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

/* Points as reported, both columns made to rise. A decode row may cost more than a prompt row (the head) or less. */
static void take_points(struct cost_stage *c, const struct msg_loaded *l)
{
    double rows = 0, prompt_us = 1, decode_us = 1;
    for (int i = 0; i < N_COST_POINTS && l->cost_rows[i] > rows; i++) {
        struct cost_point *p = &c->point[c->n_points++];
        p->rows = rows = l->cost_rows[i];
        p->prompt_us = prompt_us = sane_us(l->prompt_us[i], prompt_us);
        decode_us = sane_us(l->decode_us[i] ? l->decode_us[i] : prompt_us, decode_us);
        p->sample_us = decode_us - prompt_us;
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
        c->guard[k] = 1;
    for (int k = 0; k < 2; k++) {
        c->fit[k].mean = c->fit[k].reads_factor = c->fit[k].spans_factor = 1;
        for (int b = 0; b < COST_BUCKETS; b++)
            c->fit[k].factor[b] = 1;
    }
    take_points(c, l);
    connect_points(c);
    if (isfinite(l->attention_ns) && l->attention_ns > 0)
        c->attention_us = fmin(l->attention_ns / 1000, ATTENTION_MOST_US);
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
    return !s->n_prompt ? COST_DECODE : s->rows < COST_WIDE_ROWS ? COST_NARROW : COST_WIDE;
}

static double rows_us(const struct cost_stage *c, const struct cost_shape *s)
{
    double us = s->rows ? prompt_us(c, s->rows) : 0;
    if (s->sampled)
        us += sample_us(c, s->sampled);
    return us;
}

/* Where rows lie between two buckets: the lower one, and how far above it in 0..1. */
static uint32_t bucket_of(uint32_t rows, double *above)
{
    uint32_t b = 31 - (uint32_t)__builtin_clz(rows | 1);
    if (b >= COST_BUCKETS - 1) {
        *above = 1;
        return COST_BUCKETS - 2;
    }
    *above = (double)rows / (double)(1u << b) - 1;
    return b;
}

static double factor_of(const struct cost_fit *f, uint32_t rows)
{
    double above;
    uint32_t b = bucket_of(rows, &above);
    return f->factor[b] + above * (f->factor[b + 1] - f->factor[b]);
}

double cost_base_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s)
{
    return rows_us(&m->stage[stage], s) + m->stage[stage].attention_us * (double)(s->reads + s->spans);
}

/* What is the same for all stages of a shape. */
struct look {
    const struct cost_shape *s;
    uint32_t bucket, kind;
    double above;
};

static struct look look_of(const struct cost_shape *s)
{
    struct look l = {.s = s, .kind = s->n_prompt != 0};
    l.bucket = bucket_of(s->rows, &l.above);
    return l;
}

static inline double look_up(const struct look *l, const struct cost_stage *c)
{
    const struct cost_fit *f = &c->fit[l->kind];
    return rows_us(c, l->s) * (f->factor[l->bucket] + l->above * (f->factor[l->bucket + 1] - f->factor[l->bucket])) +
           c->attention_us * ((double)l->s->reads * f->reads_factor + (double)l->s->spans * f->spans_factor);
}

double cost_predict_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s)
{
    struct look l = look_of(s);
    return look_up(&l, &m->stage[stage]);
}

double cost_predict_all_us(const struct cost_model *m, const struct cost_shape *s, double *us)
{
    struct look l = look_of(s);
    double most = 0;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        us[i] = look_up(&l, &m->stage[i]);
        most = us[i] > most ? us[i] : most;
    }
    return most;
}

double cost_sum_us(const struct cost_model *m, const struct cost_shape *s, double *slowest_us)
{
    struct look l = look_of(s);
    double sum = 0, most = 0;
    for (uint32_t i = 0; i < m->n_stages; i++) {
        double us = look_up(&l, &m->stage[i]);
        sum += us;
        most = us > most ? us : most;
    }
    *slowest_us = most;
    return sum;
}

uint32_t cost_exceeds(const struct cost_model *m, const struct cost_shape *s, double tau_us, double guarded_us)
{
    struct look l = look_of(s);
    enum cost_kind kind = cost_kind_of(s);
    for (uint32_t i = 0; i < m->n_stages; i++) {
        double us = look_up(&l, &m->stage[i]);
        if (us > tau_us || us * m->stage[i].guard[kind] > guarded_us)
            return i;
    }
    return m->n_stages;
}

double cost_slowest_us(const struct cost_model *m, const struct cost_shape *s)
{
    double slowest_us;
    cost_sum_us(m, s, &slowest_us);
    return slowest_us;
}

double cost_guard(const struct cost_model *m, uint32_t stage, enum cost_kind kind)
{
    return m->stage[stage].guard[kind];
}

double cost_reads_us(const struct cost_model *m, uint32_t stage)
{
    return m->stage[stage].attention_us * m->stage[stage].fit[1].reads_factor;
}

double cost_spans_us(const struct cost_model *m, uint32_t stage)
{
    return m->stage[stage].attention_us * m->stage[stage].fit[1].spans_factor;
}

int cost_settled(const struct cost_model *m)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        if (m->stage[i].fit[0].n_learned > 0 && m->stage[i].fit[0].n_learned < COST_SETTLED)
            return 0;
    return 1;
}

/* --- learning -------------------------------------------------------------------------------------------------------------- */

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

static void keep_ratio(struct cost_stage *c, enum cost_kind kind, double ratio)
{
    c->ratio[kind][c->next_ratio[kind]] = (float)fmin(ratio, COST_GUARD_MAX);
    c->next_ratio[kind] = (c->next_ratio[kind] + 1) % COST_RATIOS;
    if (c->n_ratios[kind] < COST_RATIOS)
        c->n_ratios[kind]++;
    if (c->next_ratio[kind] % RATIO_STEP == 0)
        c->guard[kind] = fmax(percentile95(c->ratio[kind], c->n_ratios[kind]), 1);
    for (int k = 0; k < COST_N_KINDS; k++)
        if (c->n_ratios[k] < RATIO_STEP) /* unknown yet: it scatters like the others */
            c->guard[k] = c->guard[kind];
}

static double clamp_factor(double f)
{
    return fmin(fmax(f, COST_FACTOR_MIN), COST_FACTOR_MAX);
}

static double step_of(uint32_t n)
{
    return n < MEMORY ? 1.0 / (n + 1) : 1.0 / MEMORY;
}

static void adapt_bucket(struct cost_fit *f, uint32_t b, double weight, double error)
{
    if (weight <= 0)
        return;
    f->factor[b] = clamp_factor(f->factor[b] * (1 + step_of(f->n_seen[b]) * weight * error));
    if (weight >= 0.5 || f->n_seen[b] > 0)
        f->n_seen[b]++;
}

/* What of a tick's typical cost goes with what, and how far it was off; relative to the whole. */
struct lesson {
    double reads, spans, error;
};

/* Each part takes as much of the error as it is of the cost. */
static void adapt(struct cost_fit *f, uint32_t rows, const struct lesson *l)
{
    double above, rows_error = l->error * (1 - l->reads - l->spans);
    uint32_t b = bucket_of(rows, &above);
    f->mean = clamp_factor(f->mean + step_of(f->n_learned) * (factor_of(f, rows) * (1 + rows_error) - f->mean));
    adapt_bucket(f, b, 1 - above, rows_error);
    adapt_bucket(f, b + 1, above, rows_error);
    f->reads_factor = clamp_factor(f->reads_factor * (1 + ATTENTION_STEP * l->error * l->reads));
    f->spans_factor = clamp_factor(f->spans_factor * (1 + ATTENTION_STEP * l->error * l->spans));
    f->n_learned++;
    for (uint32_t i = 0; i < COST_BUCKETS; i++)
        if (f->n_seen[i] == 0)
            f->factor[i] = f->mean;
}

void cost_model_learn(struct cost_model *m, uint32_t stage, const struct cost_shape *s, double actual_us)
{
    if (stage >= m->n_stages || s->rows == 0)
        return;
    struct cost_stage *c = &m->stage[stage];
    struct cost_fit *f = &c->fit[s->n_prompt != 0];
    double typical = cost_predict_us(m, stage, s), ratio = actual_us / typical;
    if (!(actual_us >= 0) || !isfinite(ratio))
        return;
    keep_ratio(c, cost_kind_of(s), ratio);
    if ((ratio > STRANGE || ratio < 1 / STRANGE) && f->n_strange++ < STRANGE_MOST)
        return;
    if (ratio <= STRANGE && ratio >= 1 / STRANGE)
        f->n_strange = 0;
    const struct lesson l = {.reads = c->attention_us * (double)s->reads * f->reads_factor / typical,
                             .spans = c->attention_us * (double)s->spans * f->spans_factor / typical,
                             .error = fmin(fmax(ratio, 1 / STRANGE), STRANGE) - 1};
    adapt(f, s->rows, &l);
}
