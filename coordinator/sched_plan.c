/* plan(): reads the scheduler's state and chooses the next tick. Pure: nothing here writes anything but *out. */
#include <math.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/sched_impl.h"

enum {
    MAX_PIECES = 4,  /* of one tick */
    MIN_PIECE = 8,   /* rows; a smaller piece reads its prefix again for too little */
    COLD_ROWS = 64,  /* a tick without streams may always cost what so many rows cost */
    CALM_GROUPS = 8, /* group counts above are tried by doubling: the best is not among many groups of few */
    RATE_ROWS = 256, /* the cost of a prompt row is taken from a piece of so many */
};

/* Part of its excess that a wide tick costs the bank. All of it: a test builds the planner with 0 to see the share fail. */
#ifndef SCHED_WIDE_PRICE
#define SCHED_WIDE_PRICE 1.0
#endif

/* What is there to do. */
struct survey {
    uint32_t n_streams, n_readers;
    uint64_t reads;        /* cached positions that one row of every stream reads */
    uint32_t slowest;      /* stage, for prompt rows */
    double row_us;         /* a prompt row there, without attention */
    double attention_us;   /* a row and position there */
    double remains_us;     /* all that readers still need there */
    uint32_t deepest;      /* position of the reader that has read most */
};

/* The two bounds of scheduling.md for n streams. */
struct budget {
    uint32_t groups, per_tick, revolution;
    double decode_us;      /* decode-only tick at the slowest stage */
    double period_us, share_us, stall_us, tau_us;
    uint32_t stall_unmet;
};

/* --- survey ---------------------------------------------------------------------------------------------------------------- */

static int is_reader(const struct sched_entry *e)
{
    return e->seq != 0 && !e->paused && e->position < e->n_prompt;
}

static int is_stream(const struct sched_entry *e)
{
    return e->seq != 0 && !e->paused && e->position >= e->n_prompt && e->position < e->end;
}

static double remaining_us(const struct survey *v, const struct sched_entry *e)
{
    double rows = e->n_prompt - e->position;
    return rows * v->row_us + v->attention_us * rows * (e->position + rows / 2);
}

static void survey_rate(const struct sched *s, struct survey *v)
{
    struct cost_shape shape = {.rows = RATE_ROWS, .n_prompt = RATE_ROWS};
    double most = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++) {
        double us = cost_predict_us(&s->cost, i, &shape);
        if (us > most)
            most = us, v->slowest = i;
    }
    v->row_us = most / RATE_ROWS;
    v->attention_us = s->cost.stage[v->slowest].attention_us * s->cost.stage[v->slowest].factor[COST_MIXED];
}

static struct survey survey_of(const struct sched *s)
{
    struct survey v = {0};
    survey_rate(s, &v);
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        const struct sched_entry *e = &sched__entries(s)[i];
        if (is_stream(e)) {
            v.n_streams++;
            v.reads += e->position;
        } else if (is_reader(e)) {
            v.n_readers++;
            v.remains_us += remaining_us(&v, e);
            v.deepest = e->position > v.deepest ? e->position : v.deepest;
        }
    }
    return v;
}

/* --- budgets --------------------------------------------------------------------------------------------------------------- */

/* Time of one revolution of n streams in g groups, decode alone. *decode_us: of one of its ticks at the slowest stage. */
static double round_us(const struct sched *s, uint32_t n, uint64_t reads, uint32_t g, double *decode_us)
{
    uint32_t q = (n + g - 1) / g;
    struct cost_shape shape = {.rows = q, .sampled = q, .reads = reads * q / n};
    double sum = 0, most = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++) {
        double us = cost_predict_us(&s->cost, i, &shape);
        sum += us;
        most = us > most ? us : most;
    }
    *decode_us = most;
    return fmax(sum + s->opt.delta_us, g * most);
}

static struct budget budget_of(const struct sched *s, uint32_t n, uint64_t reads)
{
    uint32_t stages = s->opt.n_stages;
    uint32_t least = (n + s->opt.max_rows - 1) / s->opt.max_rows;
    uint32_t most = least > stages ? least : stages;
    struct budget b = {.groups = least};
    b.period_us = round_us(s, n, reads, least, &b.decode_us);
    for (uint32_t g = least + 1; g <= most; g = g < CALM_GROUPS ? g + 1 : g * 2) {
        double decode_us, us = round_us(s, n, reads, g, &decode_us);
        if (us < b.period_us)
            b.period_us = us, b.groups = g, b.decode_us = decode_us;
    }
    b.per_tick = (n + b.groups - 1) / b.groups;
    b.revolution = b.groups > stages ? b.groups : stages;
    b.share_us = INFINITY;
    if (s->opt.decode_share > 0)
        b.share_us = (b.period_us / s->opt.decode_share - s->opt.delta_us) / b.revolution;
    b.stall_us = (s->opt.max_stall_us - 2 * s->opt.delta_us - 2 * s->opt.lambda_us) / (b.revolution + stages - 1);
    b.stall_unmet = b.stall_us < b.decode_us;
    b.tau_us = b.stall_unmet ? b.share_us : fmin(b.share_us, b.stall_us);
    if (isinf(b.tau_us)) /* no share to keep and a stall that cannot be: ticks are bounded as if nothing decoded */
        b.tau_us = fmax(s->opt.max_tick_us, b.decode_us);
    return b;
}

/* Nothing decodes. W of work at the slowest stage cut into k pieces, each with an overhead o, takes about
 * (W/k + o)(k + S - 1) over S stages: least for pieces of sqrt(W*o/(S-1)). (remains/(2S) of scheduling.md is near that for
 * one prompt of middling length; for long ones a newcomer would wait for more than the overhead is worth.) */
static double cold_tau_us(const struct sched *s, const struct survey *v)
{
    if (s->opt.n_stages == 1)
        return s->opt.max_tick_us;
    uint32_t rows = COLD_ROWS < s->opt.max_rows ? COLD_ROWS : s->opt.max_rows;
    struct cost_shape one = {.rows = rows, .n_prompt = rows}, two = {.rows = 2 * rows, .n_prompt = 2 * rows};
    double one_us = cost_slowest_us(&s->cost, &one);
    double overhead_us = fmax(2 * one_us - cost_slowest_us(&s->cost, &two), 0);
    one.sampled = 1;
    one.reads = (uint64_t)rows * v->deepest;
    double least_us = cost_slowest_us(&s->cost, &one);
    double best_us = overhead_us + sqrt(v->remains_us * overhead_us / (s->opt.n_stages - 1));
    return fmin(s->opt.max_tick_us, fmax(least_us, best_us));
}

/* --- decode rows ------------------------------------------------------------------------------------------------------------ */

static uint64_t retired_tick(const struct sched *s)
{
    return s->next_tick - 1 - s->in_flight;
}

/* early: the row need not wait for its revolution, as nothing else would fill the tick. */
static int is_ready(const struct sched *s, const struct sched_entry *e, uint32_t revolution, int early)
{
    return s->next_tick - e->last_tick >= revolution || e->last_tick <= retired_tick(s) ||
           (early && e->before_tick <= retired_tick(s));
}

static int goes_before(const struct sched_entry *e, uint32_t a, uint32_t b)
{
    return e[a].last_tick != e[b].last_tick ? e[a].last_tick < e[b].last_tick : a < b;
}

/* The heap's root is the slot that goes first. */
static void sift_down(const struct sched_entry *e, uint32_t *heap, uint32_t n, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && goes_before(e, heap[child + 1], heap[child]))
            child++;
        if (goes_before(e, heap[i], heap[child]))
            return;
        uint32_t slot = heap[i];
        heap[i] = heap[child];
        heap[child] = slot;
    }
}

/* Puts the first `want` of n slots, in their order, behind the n (slots has room for twice as many): n + want log n. */
static uint32_t *choose_slots(const struct sched_entry *e, uint32_t *slots, uint32_t n, uint32_t want)
{
    uint32_t *chosen = slots + n;
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(e, slots, n, i);
    for (uint32_t i = 0; i < want; i++) {
        chosen[i] = slots[0];
        slots[0] = slots[--n];
        sift_down(e, slots, n, 0);
    }
    return chosen;
}

static void add_run(struct sched_plan *out, const struct sched_run *run, uint64_t reads)
{
    out->runs[out->n_runs++] = *run;
    out->shape.rows += run->n;
    out->shape.reads += reads;
    if (run->is_piece)
        out->shape.n_prompt += run->n;
    if (run->sample == SAMPLE_LAST)
        out->shape.sampled++;
}

static void add_row(const struct sched *s, struct sched_plan *out, uint32_t slot)
{
    const struct sched_entry *e = &sched__entries(s)[slot];
    struct sched_run run = {.ref = {.slot = slot, .seq = e->seq}, .n = 1, .kv_index = e->position, .sample = SAMPLE_LAST};
    run.source = e->last_tick <= retired_tick(s) ? SOURCE_IDS : SOURCE_FROM_TICK;
    if (run.source == SOURCE_FROM_TICK)
        run.from_tick = e->last_tick;
    add_run(out, &run, e->position);
}

/* Up to per_tick ready streams, those that waited longest first. */
static void add_rows(const struct sched *s, const struct budget *b, int early, struct sched_plan *out)
{
    const struct sched_entry *e = sched__entries(s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->opt.n_slots; i++)
        if (is_stream(&e[i]) && is_ready(s, &e[i], b->revolution, early))
            out->scratch[n++] = i;
    const uint32_t *rows = out->scratch;
    if (n > b->per_tick) {
        rows = choose_slots(e, out->scratch, n, b->per_tick);
        n = b->per_tick;
    }
    for (uint32_t i = 0; i < n; i++)
        add_row(s, out, rows[i]);
}

/* --- prompt pieces ---------------------------------------------------------------------------------------------------------- */

static struct cost_shape with_piece(const struct cost_shape *shape, const struct sched_entry *e, uint32_t x)
{
    struct cost_shape c = *shape;
    c.rows += x;
    c.n_prompt += x;
    c.reads += (uint64_t)x * e->position;
    c.sampled += e->position + x == e->n_prompt;
    return c;
}

static int fits(const struct sched *s, const struct sched_plan *out, const struct sched_entry *e, uint32_t x, double tau_us)
{
    struct cost_shape c = with_piece(&out->shape, e, x);
    for (uint32_t i = 0; i < s->opt.n_stages; i++)
        if (cost_predict_us(&s->cost, i, &c) > tau_us)
            return 0;
    return 1;
}

/* The largest piece of at most x_max rows within tau that fills the tick's last tile; 0: none of MIN_PIECE or more. */
static uint32_t tiled_piece(const struct sched *s, const struct sched_plan *out, const struct sched_entry *e, uint32_t x_max,
                            double tau_us)
{
    uint32_t first = SCHED_TILE_ROWS - out->shape.rows % SCHED_TILE_ROWS; /* 1..16 */
    if (first < MIN_PIECE)
        first += SCHED_TILE_ROWS;
    if (first > x_max || !fits(s, out, e, first, tau_us))
        return 0;
    uint32_t good = 0, bad = (x_max - first) / SCHED_TILE_ROWS + 1; /* tiles after the first */
    while (bad - good > 1) {
        uint32_t mid = good + (bad - good) / 2;
        if (fits(s, out, e, first + mid * SCHED_TILE_ROWS, tau_us))
            good = mid;
        else
            bad = mid;
    }
    return first + good * SCHED_TILE_ROWS;
}

static uint32_t most_rows(const struct sched *s, const struct sched_plan *out, const struct sched_entry *e)
{
    uint32_t x = e->n_prompt - e->position, room = s->opt.max_rows - out->shape.rows;
    if (x > s->opt.piece_max)
        x = s->opt.piece_max;
    return x < room ? x : room;
}

/* Rows of the next piece of e within the tick, 0: none. A last piece makes a stream of the reader, so where nothing decoded
 * before, the bounds of one stream hold for it: *b becomes those. */
static uint32_t piece_of(const struct sched *s, struct sched_plan *out, const struct sched_entry *e, struct budget *b)
{
    uint32_t rest = e->n_prompt - e->position, x_max = most_rows(s, out, e);
    double tau_us = out->tau_us;
    if (x_max == rest && fits(s, out, e, rest, tau_us)) {
        if (out->hot || e->end == e->n_prompt)
            return rest;
        struct budget hot = budget_of(s, 1, e->n_prompt);
        if (rest <= SCHED_TILE_ROWS || fits(s, out, e, rest, hot.tau_us)) {
            *b = hot;
            out->hot = 1;
            out->tau_us = fmin(tau_us, hot.tau_us);
            return rest;
        }
    }
    if (x_max == rest)
        x_max--;
    return tiled_piece(s, out, e, x_max, tau_us);
}

static void add_piece(const struct sched *s, struct sched_plan *out, uint32_t slot, uint32_t x)
{
    const struct sched_entry *e = &sched__entries(s)[slot];
    struct sched_run run = {.ref = {.slot = slot, .seq = e->seq}, .n = x, .kv_index = e->position, .source = SOURCE_IDS,
                            .is_piece = 1};
    run.sample = e->position + x == e->n_prompt ? SAMPLE_LAST : SAMPLE_NONE;
    add_run(out, &run, (uint64_t)x * e->position);
}

static int in_plan(const struct sched_plan *out, uint32_t slot)
{
    for (uint32_t i = out->n_runs; i-- > 0 && out->runs[i].is_piece;)
        if (out->runs[i].ref.slot == slot)
            return 1;
    return 0;
}

static int oldest_reader(const struct sched *s)
{
    int oldest = -1;
    const struct sched_entry *e = sched__entries(s);
    for (uint32_t i = 0; i < s->opt.n_slots; i++)
        if (is_reader(&e[i]) && (oldest < 0 || e[i].order < e[oldest].order))
            oldest = (int)i;
    return oldest;
}

/* The reader with the least left to read that has no piece in this tick; -1: none. */
static int shortest_reader(const struct sched *s, const struct survey *v, const struct sched_plan *out)
{
    int best = -1;
    double best_us = 0;
    const struct sched_entry *e = sched__entries(s);
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        if (!is_reader(&e[i]) || in_plan(out, i))
            continue;
        double us = remaining_us(v, &e[i]);
        if (best < 0 || us < best_us || (us == best_us && e[i].order < e[best].order))
            best = (int)i, best_us = us;
    }
    return best;
}

/* The oldest reader is owed a quarter of the prompt time, so that short ones cannot keep it waiting for ever. */
static int oldest_is_due(const struct sched *s, const struct sched_plan *out, int oldest)
{
    if (oldest < 0 || sched__entries(s)[oldest].order != s->oldest_order)
        return 0;
    const struct sched_entry *e = &sched__entries(s)[oldest];
    uint32_t x = most_rows(s, out, e) < SCHED_TILE_ROWS ? most_rows(s, out, e) : SCHED_TILE_ROWS;
    struct cost_shape c = with_piece(&out->shape, e, x);
    return s->credit_us >= cost_slowest_us(&s->cost, &c) - cost_slowest_us(&s->cost, &out->shape);
}

static void add_pieces(const struct sched *s, const struct survey *v, struct budget *b, struct sched_plan *out)
{
    int oldest = oldest_reader(s), due = oldest_is_due(s, out, oldest);
    double before_us = cost_slowest_us(&s->cost, &out->shape), oldest_us = 0, start_us = before_us;
    for (int i = 0; i < MAX_PIECES && out->shape.rows < s->opt.max_rows; i++) {
        int slot = due && i == 0 ? oldest : shortest_reader(s, v, out);
        if (slot < 0)
            break;
        uint32_t x = piece_of(s, out, &sched__entries(s)[slot], b);
        if (x == 0)
            break; /* the tick is full */
        add_piece(s, out, (uint32_t)slot, x);
        double now_us = cost_slowest_us(&s->cost, &out->shape);
        if (slot == oldest)
            oldest_us = now_us - before_us;
        before_us = now_us;
    }
    if (oldest < 0 || out->shape.n_prompt == 0)
        return;
    uint64_t order = sched__entries(s)[oldest].order;
    double credit = order == s->oldest_order ? s->credit_us : 0;
    out->oldest_order = order;
    out->credit_us = fmin(fmax(credit + (before_us - start_us) / 4 - oldest_us, 0), s->opt.max_tick_us);
}

/* --- the bank: one wide tick for what the streams have saved ----------------------------------------------------------------- */

/* What a tick with the smallest piece of the shortest reader costs at the slowest stage. */
static double least_us(const struct sched *s, const struct survey *v, const struct sched_plan *out)
{
    const struct sched_entry *e = &sched__entries(s)[shortest_reader(s, v, out)];
    uint32_t x = most_rows(s, out, e) < 2 * SCHED_TILE_ROWS ? most_rows(s, out, e) : 2 * SCHED_TILE_ROWS;
    struct cost_shape least = with_piece(&out->shape, e, x);
    return cost_slowest_us(&s->cost, &least);
}

/* What a wide tick may cost at each stage. Where not even the smallest piece fits, the stall gives way: the reader waits no
 * longer than saving takes, and status says so. */
static double wide_tau_us(const struct sched *s, const struct survey *v, const struct budget *b, struct sched_plan *out)
{
    double need_us = least_us(s, v, out), tau_us = b->stall_unmet ? b->tau_us : b->stall_us;
    if (need_us <= tau_us)
        return tau_us;
    out->stall_unmet = 1;
    return need_us;
}

static double excess_us(const struct sched *s, const struct cost_shape *narrow, const struct cost_shape *wide)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++)
        sum += fmax(cost_predict_us(&s->cost, i, wide) - cost_predict_us(&s->cost, i, narrow), 0);
    return sum;
}

/* A path of waiting passes each stage of a tick once, so a wide tick delays a stream by at most the sum of its excess over
 * the stages. It is paid from what the share left of the revolutions before; the bank holds at most the price of one. */
static void add_wide(const struct sched *s, const struct survey *v, struct budget *b, struct sched_plan *out)
{
    struct cost_shape narrow = out->shape;
    uint32_t n_runs = out->n_runs;
    double tau_us = out->tau_us;
    out->tau_us = wide_tau_us(s, v, b, out);
    add_pieces(s, v, b, out);
    double price_us = SCHED_WIDE_PRICE * excess_us(s, &narrow, &out->shape);
    if (s->opt.decode_share <= 0 || s->bank_us >= price_us) {
        out->wide = out->n_runs > n_runs;
        out->bank_us = s->opt.decode_share > 0 ? s->bank_us - price_us : 0;
        return;
    }
    out->shape = narrow; /* too dear yet */
    out->n_runs = n_runs;
    out->tau_us = tau_us;
    out->credit_us = s->credit_us;
    out->oldest_order = s->oldest_order;
    if (n_runs > 0)
        out->bank_us = fmin(s->bank_us + b->period_us * (1 / s->opt.decode_share - 1) / b->groups, price_us);
}

/* --- the plan --------------------------------------------------------------------------------------------------------------- */

static void start_plan(const struct sched *s, struct sched_plan *out)
{
    struct sched_run *runs = out->runs;
    uint32_t *scratch = out->scratch, max_runs = out->max_runs;
    memset(out, 0, sizeof *out);
    out->runs = runs;
    out->scratch = scratch;
    out->max_runs = max_runs;
    out->tick = s->next_tick;
    out->bank_us = s->bank_us;
    out->credit_us = s->credit_us;
    out->oldest_order = s->oldest_order;
}

static void finish_plan(const struct sched *s, const struct budget *b, struct sched_plan *out)
{
    double most = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++) {
        out->cost_us[i] = cost_predict_us(&s->cost, i, &out->shape);
        most = out->cost_us[i] > most ? out->cost_us[i] : most;
    }
    out->n_rows = out->shape.rows;
    out->budget_us = (uint32_t)fmin(most, UINT32_MAX);
    out->tau_share_us = b->share_us;
    out->tau_stall_us = b->stall_us;
    out->period_us = b->period_us;
    out->groups = b->groups;
    out->revolution = b->revolution;
}

static void read_prompts(const struct sched *s, const struct survey *v, struct budget *b, struct sched_plan *out)
{
    if (out->shape.rows == s->opt.max_rows)
        return;
    add_pieces(s, v, b, out);
    if (out->shape.n_prompt > 0)
        return;
    if (v->n_streams > 0) {
        if (out->n_runs == 0)
            add_rows(s, b, 1, out); /* the tick would be empty: rows need not wait for their revolution */
        if (out->shape.rows < s->opt.max_rows)
            add_wide(s, v, b, out);
    } else { /* --max-tick-ms is less than the smallest piece takes */
        out->tau_us = least_us(s, v, out);
        add_pieces(s, v, b, out);
    }
}

int sched_plan(const struct sched *s, struct sched_plan *out)
{
    if (s->in_flight == s->window)
        return 0;
    struct survey v = survey_of(s);
    if (v.n_streams == 0 && v.n_readers == 0)
        return 0;
    struct budget b = {.groups = 1, .revolution = s->opt.n_stages};
    start_plan(s, out);
    out->n_streams = v.n_streams;
    out->hot = v.n_streams > 0;
    if (out->hot) {
        b = budget_of(s, v.n_streams, v.reads);
        out->tau_us = b.tau_us;
        out->stall_unmet = b.stall_unmet;
        add_rows(s, &b, v.n_readers == 0, out);
    } else {
        out->tau_us = cold_tau_us(s, &v);
    }
    if (v.n_readers > 0)
        read_prompts(s, &v, &b, out);
    if (out->n_runs == 0)
        return 0;
    finish_plan(s, &b, out);
    return 1;
}
