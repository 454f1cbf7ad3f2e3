#include "tests/bench/stage_limit.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/rand.h"
#include "stage/model_compute.h"

enum { KV_BLOCK = 64 };

/* A stage: its compute is created, loaded, run and destroyed on its own thread, which is thread 0 of its team. */
struct half {
    struct stage_limit *limit;
    pthread_t thread;
    uint32_t stage;
    struct compute *compute;
    uint32_t *tables;            /* [n_seqs][blocks_per_seq] */
    struct tick_row *rows;       /* [max_rows] */
    struct tick_sample *samples; /* [max_rows] */
    float *in, *out;             /* [max_rows][width] */
    double tick_us;
    enum status status;
    struct error err;
};

struct stage_limit {
    struct stage_limit_options o;
    struct split split;
    uint32_t blocks_per_seq;
    uint32_t n_rows, prompt, n_ticks; /* of this run */
    uint32_t n_tokens;                /* of this run's one prompt; 0: decode */
    int cores[MAX_STAGES];       /* one for each stage, or none at all: then nothing is pinned */
    int n_cores, ending;
    pthread_barrier_t turn;      /* caller and stages: a run begins, a run has ended */
    atomic_uint n_busy;          /* stages that have not yet done their ticks of this run */
    struct half halves[MAX_STAGES];
};

static const struct sampler_params greedy = {.top_p = 1};

/* --- one stage -------------------------------------------------------------------------------------------------------------- */

static enum status half_load(struct half *h)
{
    struct stage_limit *l = h->limit;
    const uint32_t stage = h->stage;
    const struct model_compute_options mo = {
        .model_path = l->o.model_path, .backend = l->o.backend, .isa = l->o.isa, .n_threads = l->o.n_threads, .kv_fd = -1,
        .cores = l->n_cores && l->o.n_threads == 1 ? &l->cores[stage] : NULL, .host_stages = l->o.n_stages,
        .skip_calibration = 1};
    const struct msg_assign a = {
        .stage = stage, .n_stages = l->o.n_stages, .first_layer = l->split.first_layer[stage],
        .end_layer = l->split.first_layer[stage + 1], .slots = l->o.n_seqs, .context = l->o.context, .kv_block = KV_BLOCK,
        .n_blocks = l->o.n_seqs * l->blocks_per_seq, .max_rows = l->o.max_rows, .kv_type = "f16",
        .window = l->o.context /* as many ticks: one table serves all layers */};
    struct msg_loaded loaded;
    TRY(model_compute_create(&mo, &h->compute, &h->err));
    return h->compute->table->load(h->compute, &a, &loaded, &h->err);
}

/* Numbers as a residual has them; the next stage's time does not depend on which. */
static void make_up(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = (float)((double)(rand_at(1, i) >> 40) / (1 << 23) - 1);
}

static enum status half_allocate(struct half *h)
{
    const struct stage_limit *l = h->limit;
    const size_t n = l->o.max_rows, width = h->compute->table->width(h->compute);
    const size_t bytes = (n * width * sizeof(float) + 63) / 64 * 64;
    h->tables = calloc((size_t)l->o.n_seqs * l->blocks_per_seq, sizeof *h->tables);
    h->rows = calloc(n, sizeof *h->rows);
    h->samples = calloc(n, sizeof *h->samples);
    h->in = aligned_alloc(64, bytes);
    h->out = aligned_alloc(64, bytes);
    if (!h->tables || !h->rows || !h->samples || !h->in || !h->out)
        return error_set(&h->err, STATUS_OUT_OF_MEMORY, "stage %u", h->stage);
    for (uint32_t i = 0; i < l->o.n_seqs * l->blocks_per_seq; i++)
        h->tables[i] = i;
    make_up(h->in, n * width);
    return STATUS_OK;
}

static enum status half_run(struct half *h, uint32_t n_rows, uint32_t n_samples)
{
    const int last = h->stage + 1 == h->limit->o.n_stages;
    struct tick t = {.n_rows = n_rows, .rows = h->rows, .n_samples = last ? n_samples : 0, .samples = h->samples,
                     .in = h->stage ? h->in : NULL, .out = last ? NULL : h->out};
    return h->compute->table->run(h->compute, &t, &h->err);
}

static void set_row(struct half *h, uint32_t i, uint32_t seq, uint32_t position)
{
    const uint32_t n_vocab = (uint32_t)model_compute_model(h->compute)->hp.n_vocab;
    const uint32_t *table = h->tables + (size_t)seq * h->limit->blocks_per_seq;
    h->rows[i] = (struct tick_row){.blocks = table, .window_blocks = table, .position = position,
                                   .id = (uint32_t)(rand_at(seq + 1, position) % n_vocab), .seq = seq};
}

/* A row of every sequence. */
static enum status decode_tick(struct half *h, uint32_t position)
{
    const uint32_t n = h->limit->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        set_row(h, i, i, position);
        h->samples[i] = (struct tick_sample){.row = i, .sampler = &greedy};
    }
    return half_run(h, n, n);
}

/* Piece t of the prompt. */
static enum status prefill_tick(struct half *h, uint32_t t)
{
    const struct stage_limit *l = h->limit;
    const uint32_t from = t * l->n_rows, left = l->n_tokens - from, n = left < l->n_rows ? left : l->n_rows;
    for (uint32_t i = 0; i < n; i++)
        set_row(h, i, 0, from + i);
    h->samples[0] = (struct tick_sample){.row = n - 1, .sampler = &greedy};
    return half_run(h, n, left == n);
}

static enum status half_tick(struct half *h, uint32_t t)
{
    const struct stage_limit *l = h->limit;
    return l->n_tokens ? prefill_tick(h, t) : decode_tick(h, l->prompt + t);
}

/* Its ticks are timed; then it goes on until the slowest is done, so that all of that one's are beside full load. */
static enum status half_measure(struct half *h)
{
    struct stage_limit *l = h->limit;
    enum status s = STATUS_OK;
    for (uint32_t i = 0; !l->n_tokens && i < l->prompt && s == STATUS_OK; i++)
        s = decode_tick(h, i);
    const int64_t start_ns = clock_now_ns();
    for (uint32_t t = 0; t < l->n_ticks && s == STATUS_OK; t++)
        s = half_tick(h, t);
    h->tick_us = (double)(clock_now_ns() - start_ns) / 1e3 / l->n_ticks;
    atomic_fetch_sub(&l->n_busy, 1);
    for (uint32_t t = 0; atomic_load(&l->n_busy) && s == STATUS_OK; t++)
        s = half_tick(h, t % l->n_ticks);
    return s;
}

static void *half_main(void *arg)
{
    struct half *h = arg;
    struct stage_limit *l = h->limit;
    h->status = half_load(h);
    if (h->status == STATUS_OK)
        h->status = half_allocate(h);
    pthread_barrier_wait(&l->turn); /* loaded */
    for (;;) {
        pthread_barrier_wait(&l->turn);
        if (l->ending)
            break;
        h->status = half_measure(h);
        pthread_barrier_wait(&l->turn);
    }
    if (h->compute)
        h->compute->table->destroy(h->compute);
    free(h->tables);
    free(h->rows);
    free(h->samples);
    free(h->in);
    free(h->out);
    return NULL;
}

/* --- all of them ------------------------------------------------------------------------------------------------------------ */

static enum status plan_split(struct stage_limit *l, struct error *err)
{
    const struct model_compute_options mo = {.model_path = l->o.model_path, .backend = l->o.backend, .isa = l->o.isa,
                                             .kv_fd = -1, .skip_calibration = 1};
    struct compute *whole;
    TRY(model_compute_create(&mo, &whole, err));
    enum status s = split_plan(model_compute_model(whole), l->o.n_stages, l->o.split, &l->split, err);
    whole->table->destroy(whole);
    return s;
}

static void choose_cores(struct stage_limit *l)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && l->n_cores < (int)l->o.n_stages; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed))
            l->cores[l->n_cores++] = cpu;
    if (l->n_cores < (int)l->o.n_stages)
        l->n_cores = 0;
}

static enum status first_failure(const struct stage_limit *l, struct error *err)
{
    for (uint32_t i = 0; i < l->o.n_stages; i++)
        if (l->halves[i].status != STATUS_OK) {
            *err = l->halves[i].err;
            return l->halves[i].status;
        }
    return STATUS_OK;
}

enum status stage_limit_open(const struct stage_limit_options *o, struct stage_limit **out, struct error *err)
{
    struct stage_limit *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(err, STATUS_OUT_OF_MEMORY, "stages");
    l->o = *o;
    l->blocks_per_seq = (o->context + KV_BLOCK - 1) / KV_BLOCK;
    enum status s = plan_split(l, err);
    if (s != STATUS_OK) {
        free(l);
        return s;
    }
    choose_cores(l);
    pthread_barrier_init(&l->turn, NULL, o->n_stages + 1);
    for (uint32_t i = 0; i < o->n_stages; i++) {
        l->halves[i] = (struct half){.limit = l, .stage = i};
        if (pthread_create(&l->halves[i].thread, NULL, half_main, &l->halves[i]) != 0)
            abort(); /* no thread, nothing to measure; those that run wait for it */
    }
    pthread_barrier_wait(&l->turn);
    s = first_failure(l, err);
    if (s != STATUS_OK) {
        stage_limit_close(l);
        return s;
    }
    *out = l;
    return STATUS_OK;
}

void stage_limit_close(struct stage_limit *l)
{
    if (!l)
        return;
    l->ending = 1;
    pthread_barrier_wait(&l->turn);
    for (uint32_t i = 0; i < l->o.n_stages; i++)
        pthread_join(l->halves[i].thread, NULL);
    pthread_barrier_destroy(&l->turn);
    free(l);
}

static enum status measure(struct stage_limit *l, double tick_us[MAX_STAGES], struct error *err)
{
    atomic_store(&l->n_busy, l->o.n_stages);
    pthread_barrier_wait(&l->turn);
    pthread_barrier_wait(&l->turn);
    for (uint32_t i = 0; i < l->o.n_stages; i++)
        tick_us[i] = l->halves[i].tick_us;
    return first_failure(l, err);
}

static enum status check_size(const struct stage_limit *l, uint32_t n_rows, uint32_t n_positions, struct error *err)
{
    if (n_rows >= 1 && n_rows <= l->o.max_rows && n_positions >= 1 && n_positions <= l->o.context)
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG, "%u rows, %u positions: from 1 to %u rows and %u positions", n_rows, n_positions,
                     l->o.max_rows, l->o.context);
}

enum status stage_limit_decode(struct stage_limit *l, uint32_t n_rows, uint32_t prompt, uint32_t n_ticks,
                               double tick_us[MAX_STAGES], struct error *err)
{
    TRY(check_size(l, n_rows <= l->o.n_seqs ? n_rows : UINT32_MAX, prompt + n_ticks, err));
    l->n_rows = n_rows;
    l->prompt = prompt;
    l->n_ticks = n_ticks;
    l->n_tokens = 0;
    return measure(l, tick_us, err);
}

enum status stage_limit_prefill(struct stage_limit *l, uint32_t n_rows, uint32_t n_tokens, double tick_us[MAX_STAGES], struct error *err)
{
    TRY(check_size(l, n_rows, n_tokens, err));
    l->n_rows = n_rows;
    l->n_ticks = (n_tokens + n_rows - 1) / n_rows;
    l->n_tokens = n_tokens;
    return measure(l, tick_us, err);
}

const char *stage_limit_backend(const struct stage_limit *l)
{
    return l->halves[0].compute->table->backend;
}

const struct split *stage_limit_split(const struct stage_limit *l)
{
    return &l->split;
}
