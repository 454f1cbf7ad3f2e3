/* What is there to do, and what a tick may cost: the two inequalities of scheduling.md. Pure. */
#include <math.h>

#include "coordinator/sched_impl.h"

enum {
    ENDING_RUNS = 4, /* so near its end a stream of runs may have to wait for what counts of those in flight */
    CALM_GROUPS = 8, /* group counts above are tried in steps of a half: the best is not among many groups of few */
    RATE_ROWS = 256, /* the cost of a prompt row is taken from a piece of so many */
    COLD_ROWS = 64,  /* a tick without streams may always cost what so many rows cost */
};

/* Part of what the promise leaves that streams are given on top: P0 is known to a few percent. */
#define SHARE_MARGIN 0.03
/* Of --max-stall-ms, for the stages; the rest is for what comes after them: text, gateway, network. */
#define STALL_PART 0.95

/* Tests build the planner without a rule to see its promise break. */
#ifdef SCHED_MUTANT_NO_STALL
enum { STALL_RULE = 0 };
#else
enum { STALL_RULE = 1 };
#endif

/* --- survey ---------------------------------------------------------------------------------------------------------------- */

/* With runs of several rows a run in flight may yet give rows back. */
int sched__is_stream(const struct sched_entry *e)
{
    return e->seq != 0 && !e->paused && e->position >= e->n_prompt &&
           (e->position < sched__min(e->end, e->limit) || (e->run_rows > 1 && e->in_flight > 0));
}

/* The row that gives the first id waits for the host where one is needed. */
uint32_t sched__readable(const struct sched_entry *e)
{
    uint32_t end = e->n_prompt - (e->needs_host && !e->host_ready);
    end = sched__min(end, e->limit);
    return e->position < end ? end - e->position : 0;
}

int sched__is_reader(const struct sched_entry *e)
{
    return e->seq != 0 && !e->paused && e->position < e->n_prompt && sched__readable(e) > 0;
}

double sched__remaining_us(const struct sched_survey *v, const struct sched_entry *e)
{
    double rows = e->n_prompt - e->position;
    return rows * v->row_us + v->reads_us * rows * (e->position + rows / 2);
}

static void survey_rate(const struct sched *s, struct sched_survey *v)
{
    struct cost_shape shape = {.rows = RATE_ROWS, .n_prompt = RATE_ROWS};
    double us[MAX_STAGES], most = cost_predict_all_us(&s->cost, &shape, us);
    while (us[v->slowest] < most)
        v->slowest++;
    v->row_us = most / RATE_ROWS;
    v->reads_us = cost_reads_us(&s->cost, v->slowest);
    v->spans_us = cost_spans_us(&s->cost, v->slowest);
}

static void survey_stream(const struct sched *s, const struct sched_entry *e, struct sched_survey *v)
{
    uint32_t rows = sched__min(e->run_rows, e->end - e->position);
    v->n_streams++;
    v->n_rows += rows ? rows : 1;
    v->reads += (uint64_t)(rows ? rows : 1) * e->position;
    v->n_host += e->needs_host;
    v->n_ending += e->run_rows > 1 && e->end - e->position < ENDING_RUNS * e->run_rows;
    v->n_blocked += e->needs_host && !e->host_ready && e->last_tick <= sched__retired_tick(s);
}

struct sched_survey sched__survey(const struct sched *s)
{
    struct sched_survey v = {.oldest = -1};
    const struct sched_entry *all = sched__entries(s);
    survey_rate(s, &v);
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        const struct sched_entry *e = &all[i];
        if (sched__is_stream(e)) {
            survey_stream(s, e, &v);
        } else if (sched__is_reader(e)) {
            v.n_readers++;
            v.remains_us += sched__remaining_us(&v, e);
            v.deepest = e->position > v.deepest ? e->position : v.deepest;
            if (v.oldest < 0 || e->order < all[v.oldest].order)
                v.oldest = (int)i;
        }
    }
    return v;
}

/* --- budgets --------------------------------------------------------------------------------------------------------------- */

/* Time of one revolution in g groups, decode alone. *decode_us: of one of its ticks at the slowest stage. */
static double round_us(const struct sched *s, const struct sched_crowd *c, uint32_t g, double *decode_us)
{
    uint32_t rows = (c->n_rows + g - 1) / g;
    struct cost_shape shape = {.rows = rows, .sampled = rows, .reads = c->reads * rows / c->n_rows};
    double sum = cost_sum_us(&s->cost, &shape, decode_us);
    return fmax(sum + s->opt.delta_us, g * *decode_us);
}

static uint32_t next_groups(uint32_t g, uint32_t most)
{
    uint32_t next = g < CALM_GROUPS ? g + 1 : g + g / 2;
    return g < most && next > most ? most : next;
}

static void choose_groups(const struct sched *s, const struct sched_crowd *c, struct sched_budget *b)
{
    uint32_t cap = s->opt.max_rows - s->opt.max_rows / 4; /* streams leave room for pieces in every tick */
    uint32_t fewest = (c->n_rows + cap - 1) / cap, most = s->opt.n_stages;
    if (most > c->n_streams)
        most = c->n_streams;
    if (most < fewest)
        most = fewest;
    b->groups = fewest;
    b->round_us = round_us(s, c, fewest, &b->decode_us);
    for (uint32_t g = next_groups(fewest, most); g <= most; g = next_groups(g, most)) {
        double decode_us, us = round_us(s, c, g, &decode_us);
        if (us < b->round_us)
            b->round_us = us, b->groups = g, b->decode_us = decode_us;
    }
    b->per_tick = (c->n_streams + b->groups - 1) / b->groups;
    b->round_ticks = (c->n_streams + b->per_tick - 1) / b->per_tick;
    b->revolution = b->groups > s->opt.n_stages ? b->groups : s->opt.n_stages;
}

/* Ticks that a gap may span: by the lemma; or, where the coordinator waits for a result before it plans the next row, one until
 * the window has room, S in flight before it, and its own way through S stages. */
static uint32_t gap_ticks(const struct sched *s, const struct sched_crowd *c, const struct sched_budget *b)
{
    uint32_t n = b->revolution + s->opt.n_stages - 1, waits = 2 * s->opt.n_stages + 1;
    return c->waits && n < waits ? waits : n;
}

int sched__keeps_share(const struct sched *s)
{
#ifdef SCHED_MUTANT_NO_SHARE
    (void)s;
    return 0;
#else
    return s->opt.decode_share > 0;
#endif
}

struct sched_budget sched__budget(const struct sched *s, const struct sched_crowd *c)
{
    struct sched_budget b = {.share_us = INFINITY, .stall_us = INFINITY};
    choose_groups(s, c, &b);
    b.period_us = b.round_us * s->pace;
    b.share = s->opt.decode_share + SHARE_MARGIN * (1 - s->opt.decode_share);
    if (sched__keeps_share(s))
        b.share_us = (b.period_us / b.share - s->opt.delta_us) / b.revolution;
    double stall_us = STALL_PART * s->opt.max_stall_us - 2 * s->opt.delta_us - 2 * s->opt.lambda_us;
    b.stall_us = (STALL_RULE ? stall_us : INFINITY) / gap_ticks(s, c, &b);
    b.stall_unmet = b.stall_us < b.decode_us;
    if (b.stall_unmet) /* the share still holds; without one, ticks are bounded as if nothing decoded */
        b.stall_us = isinf(b.share_us) ? fmax(s->opt.max_tick_us, b.decode_us) : fmax(b.share_us, b.decode_us);
    return b;
}

/* Nothing decodes. W of work at the slowest stage cut into k pieces, each with an overhead o, takes about
 * (W/k + o)(k + S - 1) over S stages: least for pieces of sqrt(W*o/(S-1)). (remains/(2S) of scheduling.md is near that for
 * one prompt of middling length; for long ones a newcomer would wait for more than the overhead is worth.) */
double sched__cold_tau_us(const struct sched *s, const struct sched_survey *v)
{
    if (s->opt.n_stages == 1)
        return s->opt.max_tick_us;
    uint32_t rows = sched__min(COLD_ROWS, s->opt.max_rows);
    struct cost_shape one = {.rows = rows, .n_prompt = rows}, two = {.rows = 2 * rows, .n_prompt = 2 * rows};
    double one_us = cost_slowest_us(&s->cost, &one);
    double overhead_us = fmax(2 * one_us - cost_slowest_us(&s->cost, &two), 0) + v->spans_us * v->deepest;
    one.sampled = 1;
    one.reads = (uint64_t)rows * v->deepest;
    one.spans = v->deepest;
    double least_us = cost_slowest_us(&s->cost, &one);
    double best_us = overhead_us + sqrt(v->remains_us * overhead_us / (s->opt.n_stages - 1));
    return fmin(s->opt.max_tick_us, fmax(least_us, best_us));
}
