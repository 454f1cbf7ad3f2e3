/* The rows of prompts: whose, and how many at once. Pure. */
#include <math.h>
#include <string.h>

#include "coordinator/sched_impl.h"

enum {
    MAX_PIECES = 8, /* of one tick */
    MIN_PIECE = 8,  /* rows, where that fills a tile; else a whole tile more */
};

/* Of the prompt time, to the oldest reader. None: a test builds the planner so to see it starve. */
#ifdef SCHED_MUTANT_NO_QUARTER
#define OLDEST_PART 0.0
#else
#define OLDEST_PART 0.25
#endif

/* --- one piece ------------------------------------------------------------------------------------------------------------- */

static struct cost_shape with_piece(const struct cost_shape *shape, const struct sched_entry *e, uint32_t x)
{
    struct cost_shape c = *shape;
    c.rows += x;
    c.n_prompt += x;
    c.reads += (uint64_t)x * e->position;
    c.spans += e->position;
    c.sampled += e->position + x == e->n_prompt;
    return c;
}

/* What a tick may cost at every stage. */
struct bounds {
    double tau_us, hard_us;
};

static int fits_stage(const struct sched *s, uint32_t stage, const struct cost_shape *c, const struct bounds *b)
{
    double us = cost_predict_us(&s->cost, stage, c);
    return us <= b->tau_us && us * cost_guard(&s->cost, stage, cost_kind_of(c)) <= b->hard_us;
}

/* A reader, and the tick that its piece is to join. */
struct fitting {
    const struct sched *s;
    const struct cost_shape *shape;
    const struct sched_entry *e;
    struct bounds bounds;
    uint32_t stage; /* that bounded it last: looked at first */
};

static int fits_there(const struct fitting *f, uint32_t x)
{
    struct cost_shape c = with_piece(f->shape, f->e, x);
    return fits_stage(f->s, f->stage, &c, &f->bounds);
}

static int fits(struct fitting *f, uint32_t x)
{
    struct cost_shape c = with_piece(f->shape, f->e, x);
    if (!fits_stage(f->s, f->stage, &c, &f->bounds))
        return 0;
    uint32_t tight = cost_exceeds(&f->s->cost, &c, f->bounds.tau_us, f->bounds.hard_us);
    if (tight == f->s->opt.n_stages)
        return 1;
    f->stage = tight;
    return 0;
}

/* The smallest piece whose reading of the prefix once more is at most a quarter of it; less where --piece-max or the rows that
 * are left of the tick allow none so large: else nothing would ever be read. */
static uint32_t least_rows(const struct sched *s, const struct sched_survey *v, const struct cost_shape *shape,
                           const struct sched_entry *e)
{
    double again_us = v->spans_us * e->position, row_us = v->row_us + v->reads_us * e->position;
    double x = ceil(3 * again_us / row_us);
    uint32_t fewest = x < MIN_PIECE ? MIN_PIECE : x > 4096 ? 4096 : (uint32_t)x;
    return sched__min(fewest, sched__min(s->opt.piece_max, s->opt.max_rows - shape->rows));
}

/* The rows of e's pieces: first, first + step, ... A tick's rows fill whole tiles, as the kernels do; where a row's attention
 * costs more than the row itself, a tile saves nothing. */
struct steps {
    uint32_t first, step;
};

static struct steps steps_of(const struct sched *s, const struct sched_survey *v, const struct cost_shape *shape,
                             const struct sched_entry *e)
{
    uint32_t fewest = least_rows(s, v, shape, e), first = SCHED_TILE_ROWS - shape->rows % SCHED_TILE_ROWS; /* 1..16 */
    if (v->reads_us * e->position > v->row_us)
        return (struct steps){.first = fewest, .step = 1};
    if (first < fewest)
        first += (fewest - first + SCHED_TILE_ROWS - 1) / SCHED_TILE_ROWS * SCHED_TILE_ROWS;
    return (struct steps){.first = first, .step = SCHED_TILE_ROWS};
}

/* The largest piece of at most x_max rows that fits; 0: none. The search looks at one stage; where its answer does not fit
 * another one, that is searched. */
static uint32_t largest_piece(struct fitting *f, struct steps st, uint32_t x_max)
{
    if (st.first > x_max || !fits(f, st.first))
        return 0;
    uint32_t bad = (x_max - st.first) / st.step + 1; /* steps after the first */
    for (;;) {
        uint32_t good = 0;
        while (bad - good > 1) {
            uint32_t mid = good + (bad - good) / 2;
            if (fits_there(f, st.first + mid * st.step))
                good = mid;
            else
                bad = mid;
        }
        if (good == 0 || fits(f, st.first + good * st.step))
            return st.first + good * st.step;
        bad = good;
    }
}

/* Rows that a piece of e can have; *whole: so many end its prompt, or what can be read of it now. */
static uint32_t most_rows(const struct sched *s, const struct sched_plan *out, const struct sched_entry *e, int *whole)
{
    uint32_t x = sched__readable(e), room = s->opt.max_rows - out->shape.rows;
    if (e->cut > e->position && x > e->cut - e->position)
        x = e->cut - e->position;
    uint32_t end = x;
    if (x > s->opt.piece_max)
        x = s->opt.piece_max;
    if (x > room)
        x = room;
    *whole = x == end;
    return x;
}

/* What is no more than the smallest piece is not cut for it. */
static int fits_as_stream(struct fitting *f, const struct sched_survey *v, uint32_t rest, const struct sched_budget *hot)
{
    struct bounds cold = f->bounds;
    f->bounds = (struct bounds){.tau_us = fmin(cold.tau_us, hot->share_us), .hard_us = fmin(cold.hard_us, hot->stall_us)};
    int fit = fits(f, rest);
    f->bounds = cold;
    return fit || rest <= SCHED_TILE_ROWS || rest <= steps_of(f->s, v, f->shape, f->e).first;
}

/* A last piece makes a stream of the reader, so where nothing decoded before, the bounds of one stream hold from this tick
 * on: *b becomes those. */
static int fits_last(struct fitting *f, const struct sched_survey *v, struct sched_plan *out, uint32_t rest, struct sched_budget *b)
{
    if (!fits(f, rest))
        return 0;
    if (out->hot || f->e->end == f->e->n_prompt)
        return 1;
    const struct sched_crowd one = {.n_streams = 1, .n_rows = 1, .reads = f->e->n_prompt, .waits = f->e->needs_host};
    struct sched_budget hot = sched__budget(f->s, &one);
    if (!fits_as_stream(f, v, rest, &hot))
        return 0;
    *b = hot;
    out->hot = 1;
    out->tau_us = fmin(out->tau_us, hot.share_us);
    out->hard_us = fmin(out->hard_us, hot.stall_us);
    return 1;
}

/* Rows of the next piece of e within the tick, 0: none. */
static uint32_t piece_of(const struct sched *s, const struct sched_survey *v, struct sched_plan *out,
                         const struct sched_entry *e, struct sched_budget *b)
{
    int whole;
    uint32_t x_max = most_rows(s, out, e, &whole);
    struct fitting f = {.s = s, .shape = &out->shape, .e = e, .stage = v->slowest,
                        .bounds = {.tau_us = out->tau_us, .hard_us = out->hard_us}};
    if (x_max == 0)
        return 0;
    int last = e->position + x_max == e->n_prompt;
    if (whole && (last ? fits_last(&f, v, out, x_max, b) : fits(&f, x_max)))
        return x_max;
    struct steps st = steps_of(s, v, &out->shape, e);
    uint32_t x = largest_piece(&f, st, last ? x_max - 1 : x_max);
    if (x > 0 || st.step == 1)
        return x;
    st = (struct steps){.first = least_rows(s, v, &out->shape, e), .step = 1}; /* less than a tile fits */
    return largest_piece(&f, st, sched__min(st.first + SCHED_TILE_ROWS, last ? x_max - 1 : x_max));
}

static void add_piece(const struct sched *s, struct sched_plan *out, uint32_t slot, uint32_t x)
{
    const struct sched_entry *e = &sched__entries(s)[slot];
    struct sched_run run = {.ref = {.slot = slot, .seq = e->seq}, .n = x, .kv_index = e->position, .source = SOURCE_IDS,
                            .is_piece = 1};
    run.sample = e->position + x == e->n_prompt ? SAMPLE_LAST : SAMPLE_NONE;
    sched__add_run(out, &run, (uint64_t)x * e->position);
}

/* --- whose --------------------------------------------------------------------------------------------------------------- */

/* Readers by what is left of them, in a heap: slots in scratch, their keys behind, by slot. A time is positive, so its bits
 * as a float are in order. */
struct queue {
    const struct sched_entry *e;
    uint32_t *slot, *key, n;
};

static int comes_before(const struct queue *q, uint32_t a, uint32_t b)
{
    return q->key[a] != q->key[b] ? q->key[a] < q->key[b] : q->e[a].order < q->e[b].order;
}

static void sink(const struct queue *q, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < q->n; i = child) {
        if (child + 1 < q->n && comes_before(q, q->slot[child + 1], q->slot[child]))
            child++;
        if (comes_before(q, q->slot[i], q->slot[child]))
            return;
        uint32_t slot = q->slot[i];
        q->slot[i] = q->slot[child];
        q->slot[child] = slot;
    }
}

static struct queue queue_readers(const struct sched *s, const struct sched_survey *v, struct sched_plan *out)
{
    struct queue q = {.e = sched__entries(s), .slot = out->scratch, .key = out->scratch + s->opt.n_slots};
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        if (!sched__is_reader(&q.e[i]))
            continue;
        float us = (float)sched__remaining_us(v, &q.e[i]);
        memcpy(&q.key[i], &us, sizeof us);
        q.slot[q.n++] = i;
    }
    for (uint32_t i = q.n / 2; i-- > 0;)
        sink(&q, i);
    return q;
}

static uint32_t take_first(struct queue *q)
{
    uint32_t first = q->slot[0];
    q->slot[0] = q->slot[--q->n];
    sink(q, 0);
    return first;
}

/* Of the smallest piece of e that piece_of looks at: where a tick may cost what that costs, there is one. */
static uint32_t small_rows(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out,
                           const struct sched_entry *e)
{
    int whole;
    uint32_t x = most_rows(s, out, e, &whole), first = steps_of(s, v, &out->shape, e).first;
    if (x >= first)
        return first;
    return whole ? x : least_rows(s, v, &out->shape, e);
}

/* The oldest reader is owed a quarter of the prompt time, so that short ones cannot keep it waiting for ever. */
static int oldest_is_due(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out)
{
    if (v->oldest < 0 || v->n_readers < 2 || sched__entries(s)[v->oldest].order != s->oldest_order)
        return 0;
    const struct sched_entry *e = &sched__entries(s)[v->oldest];
    struct cost_shape c = with_piece(&out->shape, e, small_rows(s, v, out, e));
    return s->credit_us >= cost_predict_us(&s->cost, v->slowest, &c) - cost_predict_us(&s->cost, v->slowest, &out->shape);
}

/* The reader whose piece comes first; with the queue's own keys, so that it is the queue's first. */
static const struct sched_entry *first_reader(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out)
{
    const struct sched_entry *e = sched__entries(s);
    if (v->n_readers == 1 || oldest_is_due(s, v, out))
        return &e[v->oldest];
    const struct sched_entry *best = NULL;
    float best_us = 0;
    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        if (!sched__is_reader(&e[i]))
            continue;
        float us = (float)sched__remaining_us(v, &e[i]);
        if (!best || us < best_us || (us == best_us && e[i].order < best->order))
            best = &e[i], best_us = us;
    }
    return best;
}

double sched__least_us(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out, double *typical_us)
{
    const struct sched_entry *e = first_reader(s, v, out);
    struct cost_shape c = with_piece(&out->shape, e, small_rows(s, v, out, e));
    double most = 0, typical = 0;
    for (uint32_t i = 0; i < s->opt.n_stages; i++) {
        double us = cost_predict_us(&s->cost, i, &c), guarded_us = us * cost_guard(&s->cost, i, cost_kind_of(&c));
        typical = us > typical ? us : typical;
        most = guarded_us > most ? guarded_us : most;
    }
    if (typical_us)
        *typical_us = typical;
    return most;
}

double sched__first_us(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out)
{
    return sched__remaining_us(v, first_reader(s, v, out));
}

static void give_credit(const struct sched *s, const struct sched_survey *v, double prompt_us, double oldest_us,
                        struct sched_plan *out)
{
    uint64_t order = sched__entries(s)[v->oldest].order;
    double credit = order == s->oldest_order ? s->credit_us : 0;
    out->oldest_order = order;
    out->credit_us = fmin(fmax(credit + OLDEST_PART * prompt_us - oldest_us, -s->opt.max_tick_us), s->opt.max_tick_us);
}

void sched__add_pieces(const struct sched *s, const struct sched_survey *v, struct sched_budget *b, struct sched_plan *out)
{
    int due = oldest_is_due(s, v, out);
    struct queue q = queue_readers(s, v, out);
    double start_us = cost_predict_us(&s->cost, v->slowest, &out->shape), before_us = start_us, oldest_us = 0;
    for (int i = 0; i < MAX_PIECES && out->shape.rows < s->opt.max_rows && (q.n > 0 || due); i++) {
        int slot = due ? v->oldest : (int)take_first(&q), was_due = due;
        due = 0;
        if (!was_due && out->n_runs > 0 && out->runs[out->n_runs - 1].is_piece && oldest_us > 0 && slot == v->oldest)
            continue; /* it has its piece */
        uint32_t x = piece_of(s, v, out, &sched__entries(s)[slot], b);
        if (x == 0 && was_due)
            continue;
        if (x == 0)
            break; /* the tick is full */
        add_piece(s, out, (uint32_t)slot, x);
        double now_us = cost_predict_us(&s->cost, v->slowest, &out->shape);
        if (slot == v->oldest)
            oldest_us = fmax(now_us - before_us, 1);
        before_us = now_us;
    }
    if (v->oldest >= 0 && out->shape.n_prompt > 0)
        give_credit(s, v, before_us - start_us, oldest_us, out);
}
