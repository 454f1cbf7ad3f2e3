/* The time that streams have saved, and its spending in bursts.
 *
 * The account follows the promise: a stream whose row comes back has earned P0/s of time, and time that passes is spent. A
 * plan does both by prediction; the result of a tick puts the time in that really passed, so mispredictions, waiting between
 * stages and the coordinator's own time are all charged as they come. bank >= 0 then means that the share holds, and as it is
 * at most W, the share holds in every window but for W.
 *
 * One wide tick after light ones delays streams at every stage, a second one behind it at one stage more: a burst of k ticks
 * with excess e costs (k + S - 1)*e. So the bank waits until it can pay for many at once. */
#include <math.h>

#include "coordinator/sched_impl.h"

enum {
    BURST_PASSES = 6, /* a burst fills the pipeline so many times: six sevenths of what it costs carry prompts */
    PAY_BACK_ROUNDS = 2, /* a debt is paid back over so many revolutions of narrow ticks */
    WIDEN_PART = 4,   /* a narrow tick may exceed its share by what costs a quarter of the bank, were it alone */
    STARVED = 4,      /* times what saving should take: then a burst starts whatever the account says */
};
#define WORTH 0.9           /* of what a burst reads in the same time */
#define NEARLY 0.95          /* of W is enough: it moves with what the next tick holds */
#define PACE_MEMORY 32.0
#define PACE_MIN 0.5
#define PACE_MAX 16.0

/* Part of what a burst's ticks cost the bank. All of it: a test builds the planner with 0 to see the share fail. */
#ifndef SCHED_WIDE_PRICE
#define SCHED_WIDE_PRICE 1.0
#endif

/* --- what may be planned ------------------------------------------------------------------------------------------------------ */

/* Time that streams may lose in one tick of a full pipeline, and what it takes of them beside nothing. */
static double earned_us(const struct sched_budget *b)
{
    return b->period_us / b->share / b->revolution;
}

static double base_us(const struct sched_budget *b)
{
    return b->period_us / b->revolution;
}

double sched__narrow_tau_us(const struct sched *s, const struct sched_budget *b)
{
    if (!sched__keeps_share(s))
        return b->share_us;
    /* Rows come in some ticks of a revolution and not in others: what that moves the bank by is no debt and no saving. */
    double calm_us = b->period_us / b->share / 2;
    double debt_us = fmin(s->bank_us + calm_us, 0), saved_us = fmax(s->bank_us - calm_us, 0);
    if (s->next_tick - s->narrow_tick > b->revolution)
        saved_us = 0; /* for a burst */
    return b->share_us + debt_us / (PAY_BACK_ROUNDS * b->revolution) +
           fmin(saved_us / (WIDEN_PART * s->opt.n_stages), b->share_us - base_us(b));
}

/* Of a burst of k ticks that cost tau_us each. */
static double price_us(const struct sched *s, const struct sched_budget *b, double tau_us, double k)
{
    double fill_us = (s->opt.n_stages - 1) * fmax(tau_us - base_us(b), 0);
    return SCHED_WIDE_PRICE * (k * fmax(tau_us - earned_us(b), 0) + fill_us);
}

static double most_ticks(const struct sched *s)
{
    return s->opt.n_stages > 1 ? BURST_PASSES * (s->opt.n_stages - 1) : 1;
}

/* What a wide tick may cost, guarded. Where not even the smallest piece fits, the stall gives way: the reader waits no longer
 * than saving takes, and status says so. Returns the typical cost: never below the smallest piece's, whose guard is not that of
 * wide ticks. */
static double set_wide_bounds(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b,
                              struct sched_plan *out)
{
    double typical_us, need_us = sched__least_us(s, v, out, &typical_us);
    out->hard_us = b->stall_us;
    if (need_us > out->hard_us) {
        out->stall_unmet = 1;
        out->hard_us = need_us;
    }
    return fmax(out->hard_us / cost_guard(&s->cost, v->slowest, COST_WIDE), typical_us);
}

/* It goes on while the bank covers a tick of half the width. */
static int goes_on(const struct sched *s, const struct sched_budget *b, double tau_us, struct sched_plan *out)
{
    double covered_us = SCHED_WIDE_PRICE > 0 ? (s->bank_us + earned_us(b)) / SCHED_WIDE_PRICE : INFINITY;
    if (covered_us < tau_us / 2 || covered_us <= b->share_us)
        return 0;
    out->tau_us = fmin(tau_us, covered_us);
    return 1;
}

/* It starts when the bank covers what the first reader needs, or as many ticks as a burst may have; and anyway, when that has
 * taken far longer than it should. */
static int starts(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b, double tau_us,
                  struct sched_plan *out)
{
    double k = ceil(sched__first_us(s, v, out) / fmax(tau_us - base_us(b), 1));
    double need_us = fmin(price_us(s, b, tau_us, fmin(k, most_ticks(s))), NEARLY * out->bank_bound_us);
    double save_us = out->bank_bound_us / (1 / b->share - 1);
    if (s->bank_us < need_us && s->waited_us <= STARVED * (save_us + b->period_us))
        return 0;
    out->tau_us = tau_us;
    out->starts = 1;
    return 1;
}

int sched__open_burst(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b,
                      struct sched_plan *out)
{
    double narrow_hard_us = out->hard_us;
    uint32_t narrow_unmet = out->stall_unmet;
    double tau_us = set_wide_bounds(s, v, b, out);
    if (!sched__keeps_share(s)) {
        out->tau_us = INFINITY;
        return 1;
    }
    out->bank_bound_us = price_us(s, b, tau_us, most_ticks(s));
    if (s->burst ? goes_on(s, b, tau_us, out) : starts(s, v, b, tau_us, out))
        return 1;
    out->hard_us = narrow_hard_us;
    out->stall_unmet = narrow_unmet;
    return 0;
}

/* A piece beside streams is worth the delay that it causes; a burst's rows cost the streams so much each, and the rows of a
 * narrow tick should not cost them more. (They do where stages are uneven: every tick lasts as long as the slowest stage
 * takes, but a revolution of decode rows alone less than R such ticks.) */
int sched__worth_it(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b,
                    const struct sched_plan *out)
{
    double cost_us = cost_slowest_us(&s->cost, &out->shape), delay_us = cost_us - base_us(b);
    const struct sched_run *piece = &out->runs[out->n_runs - 1];
    if (!sched__keeps_share(s) || delay_us <= 0 || piece->sample == SAMPLE_LAST)
        return 1;
    double row_us = v->row_us + v->reads_us * piece->kv_index, k = most_ticks(s);
    double tau_us = b->stall_us / cost_guard(&s->cost, v->slowest, COST_WIDE);
    double burst_rows = out->shape.n_prompt + fmax(tau_us - cost_us, 0) / row_us;
    double burst_us = fmax(tau_us - base_us(b), 1) * (k + s->opt.n_stages - 1) / k;
    return out->shape.n_prompt / delay_us >= WORTH * burst_rows / burst_us;
}

/* --- accounts ------------------------------------------------------------------------------------------------------------------ */

/* Time that the tick is expected to take from the streams. Where prompts fill the pipeline a revolution is R ticks; decode
 * rows alone need no filled pipeline. */
static double tick_us(const struct sched *s, const struct sched_budget *b, const struct sched_plan *out, double part)
{
    if (out->shape.n_prompt == 0)
        return part * b->period_us;
    double most = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++)
        most = fmax(most, out->cost_us[i]);
    double us = fmax(most, base_us(b));
    if (out->starts)
        us += (s->opt.n_stages - 1) * (us - base_us(b));
    return out->wide ? base_us(b) + SCHED_WIDE_PRICE * (us - base_us(b)) : us;
}

static uint32_t n_rows_of_streams(const struct sched_plan *out)
{
    uint32_t n = 0;
    while (n < out->n_runs && !out->runs[n].is_piece)
        n++;
    return n;
}

void sched__account(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b, struct sched_plan *out)
{
    out->waited_us = 0;
    out->bank_us = s->bank_us;
    if (v->n_streams == 0)
        return;
    uint32_t n_able = v->n_streams - v->n_blocked, n = n_rows_of_streams(out);
    double part = n_able ? fmin((double)n / n_able, 1) : 0;
    out->alone_us = v->n_host == 0 ? part * b->round_us : 0;
    if (!sched__keeps_share(s))
        return;
    out->expected_us = tick_us(s, b, out, part);
    double earned = n_able ? part * b->period_us / b->share : out->expected_us;
    out->bank_us += earned - out->expected_us;
    if (v->n_readers == 0) {
        out->ledger = LEDGER_CALM;
        out->bank_us = fmin(fmax(s->bank_us, out->bank_us), 0);
        return;
    }
    out->ledger = LEDGER_ON;
    out->bank_us = fmax(fmin(out->bank_us, out->bank_bound_us), -out->bank_bound_us);
    if (out->shape.n_prompt == 0)
        out->waited_us = s->waited_us + out->expected_us;
}

void sched__bank_commit(struct sched *s, const struct sched_plan *p, struct sched_flight *f)
{
    s->calm = p->shape.n_prompt ? 0 : s->calm + 1;
    f->ledger = p->ledger;
    f->follows = s->in_flight > 0;
    f->calm = s->calm > 2 * s->window && p->alone_us > 0;
    f->expected_us = p->expected_us;
    f->alone_us = p->alone_us;
    s->bank_us = p->bank_us;
    if (p->ledger == LEDGER_ON)
        s->bank_bound_us = p->bank_bound_us;
    s->waited_us = p->waited_us;
    s->burst = p->wide;
    if (p->shape.n_prompt > 0 && !p->wide)
        s->narrow_tick = p->tick;
}

static void learn_pace(struct sched *s, double ratio)
{
    ratio = fmin(fmax(ratio, s->pace / 3), s->pace * 3);
    s->pace = fmin(fmax(s->pace + (ratio - s->pace) / PACE_MEMORY, PACE_MIN), PACE_MAX);
}

void sched__bank_retire(struct sched *s, const struct sched_flight *f)
{
    double us = s->now_us - s->retired_us;
    s->retired_us = s->now_us;
    if (s->now_us == 0 || !f->follows)
        return;
    if (f->calm && cost_settled(&s->cost)) /* else the pace would take for its own what the costs will learn */
        learn_pace(s, us / f->alone_us);
    if (f->ledger == LEDGER_ON)
        s->bank_us = fmax(fmin(s->bank_us + f->expected_us - us, s->bank_bound_us), -s->bank_bound_us);
}
