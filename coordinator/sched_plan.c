/* plan(): reads the scheduler's state and chooses the next tick. Pure: nothing here writes anything but *out. */
#include <math.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/sched_impl.h"

static void start_plan(const struct sched *s, struct sched_plan *out)
{
    struct sched_run *runs = out->runs;
    uint32_t *scratch = out->scratch, max_runs = out->max_runs;
    memset(out, 0, sizeof *out);
    out->runs = runs;
    out->scratch = scratch;
    out->max_runs = max_runs;
    out->tick = s->next_tick;
    out->credit_us = s->credit_us;
    out->oldest_order = s->oldest_order;
    out->bank_bound_us = s->bank_bound_us;
}

static void finish_plan(const struct sched *s, const struct sched_budget *b, struct sched_plan *out)
{
    double most = cost_predict_all_us(&s->cost, &out->shape, out->cost_us);
    out->n_rows = out->shape.rows;
    out->budget_us = (uint32_t)fmin(most, UINT32_MAX);
    out->period_us = b->period_us;
    out->groups = b->groups;
    out->revolution = b->revolution;
}

/* Nothing decodes. */
static void plan_cold(const struct sched *s, const struct sched_survey *v, struct sched_budget *b, struct sched_plan *out)
{
    out->tau_us = sched__cold_tau_us(s, v);
    out->hard_us = s->opt.max_tick_us;
    sched__add_pieces(s, v, b, out);
    if (out->n_runs > 0)
        return;
    out->tau_us = out->hard_us = sched__least_us(s, v, out, NULL); /* --max-tick-ms is less than the smallest piece takes */
    sched__add_pieces(s, v, b, out);
}

/* What sched__add_pieces changes. */
struct before {
    struct cost_shape shape;
    uint32_t n_runs;
    double credit_us;
    uint64_t oldest_order;
};

static void take_back(struct sched_plan *out, const struct before *b)
{
    out->shape = b->shape;
    out->n_runs = b->n_runs;
    out->credit_us = b->credit_us;
    out->oldest_order = b->oldest_order;
}

static void read_beside(const struct sched *s, const struct sched_survey *v, struct sched_budget *b, struct sched_plan *out)
{
    const struct before before = {.shape = out->shape, .n_runs = out->n_runs, .credit_us = out->credit_us,
                                  .oldest_order = out->oldest_order};
    if (sched__open_burst(s, v, b, out)) {
        sched__add_pieces(s, v, b, out);
        out->wide = out->n_runs > before.n_runs;
        return;
    }
    out->tau_us = sched__narrow_tau_us(s, b);
    sched__add_pieces(s, v, b, out);
    if (out->n_runs > before.n_runs && !sched__worth_it(s, v, b, out))
        take_back(out, &before);
    if (out->n_runs == 0)
        sched__add_rows(s, b, 1, out); /* the tick would be empty: rows need not wait for their revolution */
    if (out->n_runs > 0 || s->in_flight > 0)
        return;
    out->tau_us = INFINITY; /* every stream waits for the host, and nothing is on its way */
    out->hard_us = fmax(b->stall_us, sched__least_us(s, v, out, NULL));
    sched__add_pieces(s, v, b, out);
}

static void plan_hot(const struct sched *s, const struct sched_survey *v, struct sched_budget *b, struct sched_plan *out)
{
    const struct sched_crowd c = {.n_streams = v->n_streams, .n_rows = v->n_rows, .reads = v->reads, 
                                  .waits = v->n_host + v->n_ending > 0};
    *b = sched__budget(s, &c);
    if (v->n_host > 0) /* their rows come when they come: the others' round is shorter */
        b->round_ticks = (v->n_streams - v->n_host + b->per_tick - 1) / b->per_tick;
    if (b->round_ticks == 0)
        b->round_ticks = 1;
    out->hot = 1;
    out->stall_unmet = b->stall_unmet;
    out->hard_us = b->stall_us;
    sched__add_rows(s, b, v->n_readers == 0, out);
    if (v->n_readers > 0 && out->shape.rows < s->opt.max_rows)
        read_beside(s, v, b, out);
    if (out->shape.n_prompt == 0)
        out->tau_us = fmin(b->share_us, b->stall_us);
}

int sched_plan(const struct sched *s, struct sched_plan *out)
{
    if (s->in_flight == s->window)
        return 0;
    struct sched_survey v = sched__survey(s);
    if (v.n_streams == 0 && v.n_readers == 0)
        return 0;
    struct sched_budget b = {.groups = 1, .revolution = s->opt.n_stages};
    start_plan(s, out);
    out->n_streams = v.n_streams;
    if (v.n_streams > 0)
        plan_hot(s, &v, &b, out);
    else
        plan_cold(s, &v, &b, out);
    if (out->n_runs == 0)
        return 0;
    finish_plan(s, &b, out);
    sched__account(s, &v, &b, out);
    return 1;
}
