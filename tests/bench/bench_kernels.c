/* Speed of the kernels, by the op table of tests/kernels, and of a whole model's products.
 *
 *   bench_kernels ops [isa] [threads]      each operation on shapes of SmolLM2-135M
 *   bench_kernels matrices [isa] [threads] the matrices and attention shapes of Qwen2.5-0.5B and Gemma 3 270M
 *   bench_kernels model [isa] [threads]    tokens a second of SmolLM2-135M's layers and head, attention at 128 positions
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/model/hparams.h"
#include "tests/kernels/op_table.h"

enum { N_EMBD = 576, N_KV = 192, N_FF = 1536, N_LAYERS = 30, N_VOCAB = 49152, MAX_ROWS = 512, N_HEADS = 9, N_KV_HEADS = 3 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* --- single operations ----------------------------------------------------------------------------------------------- */

static void run_thread(void *arg, int thread, int n_threads)
{
    struct op *op = arg;
    op->entry->run(op, thread, n_threads);
}

/* Seconds of one run, the best of many short samples (other processes only ever slow one down); copies of the inputs are
 * taken in turn so that weights come from memory. */
static double time_op(const char *name, const struct ops *ops, const struct op_shape *s, struct team *team, size_t *bytes)
{
    enum { SAMPLES = 41, MAX_COPIES = 64 };
    struct op *copies[MAX_COPIES];
    size_t one = s->n && s->k ? ops->weight_bytes(s->type, s->n, s->k) : 0, n_copies = one ? (64u << 20) / one + 1 : 1;
    n_copies = n_copies > MAX_COPIES ? MAX_COPIES : n_copies;
    for (size_t i = 0; i < n_copies; i++)
        copies[i] = op_create(op_find(name), ops, s, i, team_size(team));
    op_run(copies[0], team);
    double sample[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        int64_t begin = clock_now_ns(), now;
        size_t n = 0;
        do {
            team_run(team, run_thread, copies[n++ % n_copies]);
            now = clock_now_ns();
        } while (now - begin < 3 * NS_PER_MS || n < n_copies);
        sample[i] = (double)(now - begin) * 1e-9 / (double)n;
    }
    qsort(sample, SAMPLES, sizeof *sample, by_value);
    *bytes = op_weight_bytes(copies[0]);
    for (size_t i = 0; i < n_copies; i++)
        op_destroy(copies[i]);
    return sample[0];
}

static void print_op(const char *name, const struct ops *ops, const struct op_shape *s, struct team *team)
{
    size_t bytes;
    double t = time_op(name, ops, s, team, &bytes);
    const struct op_entry *e = op_find(name);
    printf("%-10s type %2d rows %3u n %5u k %4u heads %2u x %3u pos %4u: %9.2f us", name, (int)s->type, s->rows, s->n, s->k,
           s->n_heads, s->head_dim, s->position, t * 1e6);
    if (bytes)
        printf("  %6.1f GB/s", (double)bytes / t * 1e-9);
    if (e->flops)
        printf("  %7.1f GMAC/s", e->flops(s) / 2 / t * 1e-9);
    puts("");
    fflush(stdout);
}

static void bench_ops(const struct ops *ops, struct team *team)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 512};
    static const enum tensor_type types[] = {TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_F16};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t r = 0; r < ARRAY_LEN(rows); r++)
            print_op("matmul", ops, &(struct op_shape){.type = types[t], .rows = rows[r], .n = N_FF, .k = types[t] < TENSOR_Q4_K ? N_EMBD : 768}, team);
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        print_op("matmul", ops, &(struct op_shape){.type = TENSOR_Q4_1, .rows = rows[r], .n = N_EMBD, .k = N_FF}, team);
        print_op("acts_norm", ops, &(struct op_shape){.type = TENSOR_Q4_1, .rows = rows[r], .n = 16, .k = N_EMBD, .kind = 1}, team);
        print_op("acts_gate", ops, &(struct op_shape){.type = TENSOR_Q4_1, .rows = rows[r], .n = 16, .k = N_FF}, team);
        print_op("rope", ops, &(struct op_shape){.rows = rows[r], .n = 64, .n_heads = 9, .head_dim = 64, .kind = ROPE_ADJACENT}, team);
        struct op_shape a = {.rows = rows[r], .n_heads = N_HEADS, .n_kv_heads = N_KV_HEADS, .head_dim = 64, .block_positions = 32};
        for (a.position = 0; a.position <= 1024; a.position += 512)
            print_op("attention", ops, &a, team);
    }
}

/* Heads are cut to a size that fits many times into memory; what counts is that they come from there. */
static void bench_matrices(const struct ops *ops, struct team *team)
{
    static const uint32_t rows[] = {1, 8, 256};
    static const struct op_shape shapes[] = {
        {.type = TENSOR_Q5_0, .n = 4864, .k = 896},  {.type = TENSOR_Q4_K, .n = 896, .k = 4864},
        {.type = TENSOR_Q6_K, .n = 896, .k = 4864},  {.type = TENSOR_Q8_0, .n = 30400, .k = 896},
        {.type = TENSOR_Q5_0, .n = 2048, .k = 640},  {.type = TENSOR_Q4_K, .n = 640, .k = 1024},
        {.type = TENSOR_Q6_K, .n = 640, .k = 2048},  {.type = TENSOR_Q8_0, .n = 32768, .k = 640},
    };
    static const struct op_shape attentions[] = {
        {.n_heads = 14, .n_kv_heads = 2, .head_dim = 64, .block_positions = 32},
        {.n_heads = 4, .n_kv_heads = 1, .head_dim = 256, .block_positions = 32, .window = 512},
    };
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            struct op_shape s = shapes[i];
            s.rows = rows[r];
            print_op("matmul", ops, &s, team);
        }
        for (size_t i = 0; i < ARRAY_LEN(attentions); i++) {
            struct op_shape s = attentions[i];
            s.rows = rows[r];
            s.position = 256;
            print_op("attention", ops, &s, team);
        }
    }
}

/* --- a model's layers ---------------------------------------------------------------------------------------------------- */

struct model_run {
    const struct ops *ops;
    struct team *team;
    struct weight q[N_LAYERS], k[N_LAYERS], v[N_LAYERS], o[N_LAYERS], gate[N_LAYERS], up[N_LAYERS], down[N_LAYERS], head;
    struct acts acts;
    float *x, *add, *qy, *ky, *vy, *ay, *gy, *uy, *logits, *norm, *cs, *freq;
    uint32_t *positions, *blocks;
    uint8_t *pool, *scratch;
    struct kv_row *kv_rows;
    uint32_t rows, head_rows;
};

static void *room(size_t bytes)
{
    void *p = aligned_alloc(2 << 20, (bytes + (4 << 20)) / (2 << 20) * (2 << 20));
    CHECK(p);
    memset(p, 0, bytes);
    return p;
}

static void make_weight(struct model_run *m, struct weight *w, enum tensor_type type, uint32_t n, uint32_t k)
{
    uint8_t *file = op_random_rows(type, n, k, n + k);
    CHECK(weight_prepare(m->ops, type, n, k, file, w, NULL) == STATUS_OK);
    w->packed = room(m->ops->weight_bytes(type, n, k) + 4096);
    m->ops->weight_pack(w, 0, n);
    free(file);
    w->file_rows = NULL;
}

/* Decode: every row is a sequence of 128 positions; prefill: one sequence. */
static void make_rows(struct model_run *m, uint32_t rows, int decode)
{
    enum { BLOCKS = 16 };
    m->rows = rows;
    m->head_rows = decode ? rows : 1;
    for (uint32_t r = 0; r < rows; r++) {
        m->positions[r] = decode ? 128 : r;
        m->kv_rows[r] = (struct kv_row){m->blocks + (decode ? r * BLOCKS : 0), m->positions[r]};
        for (uint32_t b = 0; decode && b < BLOCKS; b++)
            m->blocks[r * BLOCKS + b] = r * BLOCKS + b;
    }
    for (uint32_t b = 0; !decode && b < MAX_ROWS; b++)
        m->blocks[b] = b;
}

static void layer(struct model_run *m, uint32_t l, int thread, int n_threads)
{
    const struct ops *o = m->ops;
    struct kv_view kv = {m->pool, (size_t)N_LAYERS * N_KV_HEADS * 4 * 64 * 32, (size_t)l * N_KV_HEADS * 4 * 64 * 32, 32, N_KV_HEADS, 64};
    uint32_t rows = m->rows;
    o->acts_norm(&m->acts, m->x, l ? m->add : NULL, m->norm, 1e-5f, rows, N_EMBD, 1, thread, n_threads);
    team_barrier(m->team, thread);
    o->matmul((struct matmul_job[]){{&m->q[l], m->qy, N_EMBD}, {&m->k[l], m->ky, N_KV}, {&m->v[l], m->vy, N_KV}}, 3, &m->acts,
              thread, n_threads);
    team_barrier(m->team, thread);
    o->rope(m->qy, m->cs, rows, N_HEADS, 64, 64, ROPE_ADJACENT, thread, n_threads);
    o->rope(m->ky, m->cs, rows, N_KV_HEADS, 64, 64, ROPE_ADJACENT, thread, n_threads);
    o->kv_store(&kv, m->kv_rows, m->ky, m->vy, rows, thread, n_threads);
    team_barrier(m->team, thread);
    o->attention(&kv, m->kv_rows, m->qy, m->ay, rows, N_HEADS, 0.125f, 0, 0, m->scratch, thread, n_threads);
    team_barrier(m->team, thread);
    o->acts_rows(&m->acts, m->ay, rows, N_EMBD, 1, thread, n_threads);
    team_barrier(m->team, thread);
    o->matmul(&(struct matmul_job){&m->o[l], m->add, N_EMBD}, 1, &m->acts, thread, n_threads);
    team_barrier(m->team, thread);
    o->acts_norm(&m->acts, m->x, m->add, m->norm, 1e-5f, rows, N_EMBD, 1, thread, n_threads);
    team_barrier(m->team, thread);
    o->matmul((struct matmul_job[]){{&m->gate[l], m->gy, N_FF}, {&m->up[l], m->uy, N_FF}}, 2, &m->acts, thread, n_threads);
    team_barrier(m->team, thread);
    o->acts_gate(&m->acts, m->gy, m->uy, GATE_SILU, rows, N_FF, 1, thread, n_threads);
    team_barrier(m->team, thread);
    o->matmul(&(struct matmul_job){&m->down[l], m->add, N_EMBD}, 1, &m->acts, thread, n_threads);
    team_barrier(m->team, thread);
}

static void tick(void *arg, int thread, int n_threads)
{
    struct model_run *m = arg;
    m->ops->rope_angles(m->positions, m->rows, m->freq, 64, m->cs, thread, n_threads);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        layer(m, l, thread, n_threads);
    m->ops->acts_norm(&m->acts, m->x, m->add, m->norm, 1e-5f, m->head_rows, N_EMBD, 1, thread, n_threads);
    team_barrier(m->team, thread);
    m->ops->matmul(&(struct matmul_job){&m->head, m->logits, N_VOCAB}, 1, &m->acts, thread, n_threads);
}

static void make_model(struct model_run *m)
{
    for (int l = 0; l < N_LAYERS; l++) {
        make_weight(m, &m->q[l], TENSOR_Q4_1, N_EMBD, N_EMBD);
        make_weight(m, &m->k[l], TENSOR_Q4_1, N_KV, N_EMBD);
        make_weight(m, &m->v[l], TENSOR_Q4_1, N_KV, N_EMBD);
        make_weight(m, &m->o[l], TENSOR_Q4_1, N_EMBD, N_EMBD);
        make_weight(m, &m->gate[l], TENSOR_Q4_1, N_FF, N_EMBD);
        make_weight(m, &m->up[l], TENSOR_Q4_1, N_FF, N_EMBD);
        make_weight(m, &m->down[l], TENSOR_Q4_1, N_EMBD, N_FF);
    }
    make_weight(m, &m->head, TENSOR_Q8_0, N_VOCAB, N_EMBD);
    m->acts = (struct acts){.max_rows = MAX_ROWS, .max_k = N_FF, .x = room(4 * MAX_ROWS * N_FF),
                            .int8 = room(m->ops->acts_bytes(MAX_ROWS, N_FF))};
    float **buffers[] = {&m->x, &m->add, &m->qy, &m->ky, &m->vy, &m->ay, &m->gy, &m->uy, &m->norm, &m->cs, &m->freq};
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++)
        *buffers[i] = room(4 * MAX_ROWS * N_FF);
    m->logits = room(4ull * 16 * N_VOCAB);
    m->positions = room(4 * MAX_ROWS);
    m->blocks = room(4 * MAX_ROWS * 16);
    m->kv_rows = room(MAX_ROWS * sizeof *m->kv_rows);
    m->pool = room(512ull * N_LAYERS * N_KV_HEADS * 4 * 64 * 32);
    m->scratch = room(m->ops->attention_bytes(MAX_ROWS, N_HEADS, 64, team_size(m->team)));
    for (int i = 0; i < N_FF; i++)
        m->norm[i] = 1;
}

static void bench_model(const struct ops *ops, struct team *team)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 128, 512};
    enum { SAMPLES = 15 };
    struct model_run *m = room(sizeof *m);
    m->ops = ops;
    m->team = team;
    make_model(m);
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        double sample[SAMPLES];
        make_rows(m, rows[r], rows[r] <= 16);
        for (uint32_t i = 0; i < rows[r] * N_EMBD; i++)
            m->x[i] = (float)(i % 17) - 8;
        team_run(team, tick, m);
        for (int i = 0; i < SAMPLES; i++) {
            int64_t begin = clock_now_ns(), now;
            int n = 0;
            do {
                team_run(team, tick, m);
                n++;
                now = clock_now_ns();
            } while (now - begin < 40 * NS_PER_MS);
            sample[i] = (double)(now - begin) * 1e-9 / n;
        }
        qsort(sample, SAMPLES, sizeof *sample, by_value);
        printf("%3u rows (%s): %8.2f ms, %7.1f tok/s (best %.1f)\n", rows[r], rows[r] <= 16 ? "decode at 128" : "prefill",
               sample[SAMPLES / 2] * 1e3, rows[r] / sample[SAMPLES / 2], rows[r] / sample[0]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const struct ops *ops;
    struct team *team;
    struct error err;
    if (argc < 2 || ops_open("cpu", argc > 2 ? argv[2] : "auto", &ops, &err) != STATUS_OK ||
        team_create(argc > 3 ? atoi(argv[3]) : 2, NULL, &team, &err) != STATUS_OK) {
        fprintf(stderr, "usage: bench_kernels ops|matrices|model [isa] [threads]\n");
        return 2;
    }
    printf("%s, %d threads\n", ops->name, team_size(team));
    if (strcmp(argv[1], "ops") == 0)
        bench_ops(ops, team);
    else if (strcmp(argv[1], "matrices") == 0)
        bench_matrices(ops, team);
    else
        bench_model(ops, team);
    team_destroy(team);
    return 0;
}
