#include "stage/calibrate.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rand.h"

enum {
    REPEATS = 2,               /* the least counts: other processes only ever add time */
    DECODE_ROWS_MAX = 64,      /* larger decode ticks are computed from prompt ticks and the head's share */
    ATTENTION_ROWS_MAX = 64,
    ATTENTION_POSITIONS = 512,
    POOL_BYTES_MAX = 64 << 20, /* a model with more KV reads the same blocks again */
};
static const int64_t BUDGET_NS = 1100 * NS_PER_MS;

struct bench {
    const struct calibrate_options *o;
    atomic_uint_fast64_t *progress;
    struct kv_pool pool;
    uint32_t *blocks;            /* a table that covers every position used */
    struct tick_row *rows;       /* [max_rows] */
    struct tick_sample *samples; /* [max_rows] */
    float *in, *out;             /* [max_rows][n_embd] */
    int64_t end_ns;
};

/* Sampling with every rule on: a greedy tick is a little cheaper. */
static const struct sampler_params sampler = {.temperature = 1, .top_p = 0.95f, .min_p = 0.02f, .top_k = 100, .seed = 1};

static void bench_close(struct bench *b)
{
    kv_pool_close(&b->pool);
    free(b->blocks);
    free(b->rows);
    free(b->samples);
    free(b->in);
    free(b->out);
}

static enum status bench_open(const struct calibrate_options *o, struct bench *b, struct error *err)
{
    uint32_t n_embd = o->weights->model->hp.n_embd, block = o->kv.block_positions;
    uint32_t n_positions = o->max_rows + ATTENTION_POSITIONS, n_table = (n_positions + block - 1) / block;
    uint64_t fit = POOL_BYTES_MAX / kv_block_bytes(&o->kv);
    uint32_t n_blocks = fit < 1 ? 1 : fit < n_table ? (uint32_t)fit : n_table;
    b->blocks = calloc(n_table, sizeof *b->blocks);
    b->rows = calloc(o->max_rows, sizeof *b->rows);
    b->samples = calloc(o->max_rows, sizeof *b->samples);
    b->in = calloc((size_t)o->max_rows * n_embd, sizeof *b->in);
    b->out = calloc((size_t)o->max_rows * n_embd, sizeof *b->out);
    if (!b->blocks || !b->rows || !b->samples || !b->in || !b->out)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for warm ticks of %u rows", o->max_rows);
    for (uint32_t i = 0; i < n_table; i++)
        b->blocks[i] = i % n_blocks;
    for (size_t i = 0; i < (size_t)o->max_rows * n_embd; i++)
        b->in[i] = rand_unit(1, i) - 0.5f;
    return kv_pool_open(&(struct kv_options){.meaning.shape = o->kv, .n_blocks = n_blocks, .fd = -1}, &b->pool, err);
}

enum tick_kind { TICK_PROMPT, TICK_DECODE };

/* One sequence's next n rows from `position`, or one row of each of n sequences, each sampled. */
static int64_t run_once(struct bench *b, enum tick_kind kind, uint32_t n, uint32_t position)
{
    const struct weights *w = b->o->weights;
    struct tick t = {.n_rows = n, .rows = b->rows, .samples = b->samples, .in = w->has_embedding ? NULL : b->in,
                     .out = w->has_head ? NULL : b->out};
    for (uint32_t r = 0; r < n; r++) {
        int decode = kind == TICK_DECODE;
        b->rows[r] = (struct tick_row){
            .blocks = decode ? &b->blocks[r % b->pool.n_blocks] : b->blocks, /* position 0 reads the first entry only */
            .position = decode ? 0 : position + r,
            .id = (uint32_t)(rand_at(2, r) % w->model->hp.n_vocab),
            .seq = decode ? r + 1 : 1,
        };
        b->samples[r] = (struct tick_sample){.row = r, .sampler = &sampler};
    }
    t.n_samples = kind == TICK_DECODE && w->has_head ? n : 0;
    int64_t start = clock_now_ns();
    forward_run(b->o->forward, &t, b->progress);
    return clock_now_ns() - start;
}

static int64_t run_least(struct bench *b, enum tick_kind kind, uint32_t n, uint32_t position)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < REPEATS; i++) {
        int64_t ns = run_once(b, kind, n, position);
        least = ns < least ? ns : least;
    }
    return least;
}

static uint32_t fill_sizes(uint32_t max_rows, uint32_t sizes[N_COST_POINTS])
{
    uint32_t n = 0;
    for (uint32_t rows = 1; n < N_COST_POINTS - 1 && rows < max_rows; rows *= 2)
        sizes[n++] = rows;
    sizes[n++] = max_rows;
    return n;
}

/* Is there time to measure something that takes about ns? */
static int affords(const struct bench *b, int64_t ns)
{
    return clock_now_ns() + REPEATS * ns <= b->end_ns;
}

/* Along the slope of the last two points. Of one point alone: a further row costs a quarter of it (one row waits for weights
 * from memory; measured on every kernel set a further one costs less than that). */
static double extend(const uint32_t *rows, const int64_t *ns, uint32_t n, uint32_t to)
{
    double last = (double)ns[n - 1], per_row = last / rows[n - 1] / 4;
    if (n > 1) {
        double slope = (last - (double)ns[n - 2]) / (rows[n - 1] - rows[n - 2]);
        per_row = slope > 0 ? slope : 0;
    }
    return last + per_row * (to - rows[n - 1]);
}

/* Fills ns[] for all sizes; returns how many were measured. A size is measured if extending says that there is time. */
static uint32_t measure(struct bench *b, enum tick_kind kind, const uint32_t *rows, uint32_t n, uint32_t rows_max,
                        int64_t share_ns, int64_t *ns)
{
    uint32_t done = 0;
    int64_t stop = clock_now_ns() + share_ns;
    while (done < n && rows[done] <= rows_max) {
        int64_t expected = done ? (int64_t)extend(rows, ns, done, rows[done]) : 0;
        if (done && (!affords(b, expected) || clock_now_ns() + REPEATS * expected > stop))
            break;
        ns[done] = run_least(b, kind, rows[done], 0);
        done++;
    }
    for (uint32_t i = done; i < n; i++)
        ns[i] = (int64_t)extend(rows, ns, done, rows[i]);
    return done;
}

/* Time by which reading so many positions makes a row slower, by the largest tick that was measured (small ones share the
 * heads out unevenly). near: times at position 0. */
static double measure_attention(struct bench *b, const uint32_t *rows, const int64_t *near, uint32_t n_measured)
{
    uint32_t i = n_measured - 1, positions = ATTENTION_POSITIONS;
    while (i > 0 && rows[i] > ATTENTION_ROWS_MAX)
        i--;
    if (positions + rows[i] > b->o->context)
        positions = b->o->context / 2;
    int64_t far = run_least(b, TICK_PROMPT, rows[i], positions);
    return far > near[i] && positions ? (double)(far - near[i]) / ((double)rows[i] * positions) : 0;
}

static void fill_costs(struct bench *b, struct msg_loaded *out)
{
    uint32_t sizes[N_COST_POINTS] = {0}, n = fill_sizes(b->o->max_rows, sizes);
    int64_t prompt[N_COST_POINTS], decode[N_COST_POINTS];
    run_once(b, TICK_DECODE, 1, 0); /* page faults, cold caches, sleeping threads */
    uint32_t decode_max = b->o->slots < DECODE_ROWS_MAX ? b->o->slots : DECODE_ROWS_MAX;
    uint32_t n_decode = measure(b, TICK_DECODE, sizes, n, decode_max ? decode_max : 1, BUDGET_NS / 4, decode);
    uint32_t n_prompt = measure(b, TICK_PROMPT, sizes, n, UINT32_MAX, BUDGET_NS / 2, prompt);
    out->attention_ns = measure_attention(b, sizes, prompt, n_prompt);
    for (uint32_t i = n_decode; i < n; i++) { /* a decode tick is a prompt tick and one head row for each of its rows */
        double head = (double)(decode[n_decode - 1] - prompt[n_decode - 1]) / sizes[n_decode - 1];
        decode[i] = prompt[i] + (int64_t)((head > 0 ? head : 0) * sizes[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        out->cost_rows[i] = sizes[i];
        out->prompt_us[i] = (uint32_t)(prompt[i] / NS_PER_US) + 1;
        out->decode_us[i] = (uint32_t)(decode[i] / NS_PER_US) + 1;
    }
}

enum status calibrate_run(const struct calibrate_options *o, atomic_uint_fast64_t *progress, struct msg_loaded *out,
                          struct error *err)
{
    struct bench b = {.o = o, .progress = progress, .end_ns = clock_now_ns() + BUDGET_NS};
    enum status s = bench_open(o, &b, err);
    if (s == STATUS_OK) {
        forward_set_pool(o->forward, &b.pool);
        fill_costs(&b, out);
        forward_set_pool(o->forward, NULL);
    }
    bench_close(&b);
    return s;
}
