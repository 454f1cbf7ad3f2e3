#include "tests/kernels/op_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "common/model/hparams.h"
#include "kernels/block.h"
#include "kernels/math.h"
#include "kernels/quant.h"

static void *room(size_t bytes)
{
    size_t size = (bytes + 4096 + 63) / 64 * 64; /* kernels fetch ahead; nothing there is read */
    void *p = aligned_alloc(64, size);
    CHECK(p);
    memset(p, 0, size);
    return p;
}

static float *floats(size_t n)
{
    return room(n * sizeof(float));
}

/* In [-2, 2), some far larger; special: blocks of zeros, of tiny numbers and of equal ones, a NaN and an infinity in two rows. */
static void fill(float *x, uint32_t rows, uint32_t k, uint64_t seed, int special)
{
    for (size_t i = 0; i < (size_t)rows * k; i++) {
        float v = 4 * rand_unit(seed, i) - 2;
        uint64_t block = i / 32;
        if (rand_at(seed + 1, i) % 50 == 0)
            v *= 40;
        if (special && block % 11 == 3)
            v = 0;
        if (special && block % 13 == 5)
            v = v < 0 ? -1 : 1;
        if (special && block % 17 == 6)
            v *= 1e-35f;
        x[i] = v;
    }
    if (special && rows > 3) {
        x[2 * (size_t)k + k / 3] = NAN;
        x[3 * (size_t)k + k / 2] = INFINITY;
    }
}

static uint16_t random_half(uint64_t seed, uint64_t at) /* 2^-9..2^-1, any sign */
{
    uint64_t r = rand_at(seed, at);
    return (uint16_t)((r & 0x83ff) | (6 + (r >> 32) % 8) << 10);
}

/* Scales of a plain type's block of random bytes, made ordinary. */
static void tame_plain(enum tensor_type type, uint8_t *block, uint16_t d, uint16_t m)
{
    static const struct {
        enum tensor_type type;
        uint8_t at;
    } places[] = {{TENSOR_Q2_K, 80}, {TENSOR_Q3_K, 108}, {TENSOR_TQ1_0, 52}, {TENSOR_TQ2_0, 64}};
    size_t at = 0;
    if (type == TENSOR_MXFP4) {
        block[0] = (uint8_t)(120 + d % 16);
    } else if (type == TENSOR_IQ1_M) {
        for (int w = 0; w < 4; w++)
            block[48 + 2 * w + 1] = (uint8_t)((block[48 + 2 * w + 1] & 15) | (d >> (4 * w) & 15) << 4);
    } else if (type != TENSOR_NVFP4) {
        for (size_t i = 0; i < ARRAY_LEN(places); i++)
            at = places[i].type == type ? places[i].at : at;
        memcpy(block + at, &d, 2);
        if (type == TENSOR_Q2_K)
            memcpy(block + 82, &m, 2);
    }
}

static void fill_floats(enum tensor_type type, uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        float v = 2 * rand_unit(seed, i) - 1;
        uint16_t h = type == TENSOR_F16 ? math_to_f16(v) : (uint16_t)(math_bits(v) >> 16);
        if (type == TENSOR_F32)
            memcpy(p + 4 * i, &v, 4);
        else
            memcpy(p + 2 * i, &h, 2);
    }
}

uint8_t *op_random_rows(enum tensor_type type, uint32_t n, uint32_t k, uint64_t seed)
{
    size_t bytes = n * block_row_bytes(type, k);
    uint8_t *p = room(bytes);
    const struct block_traits *t = block_traits(type);
    uint32_t elements, size;
    block_size(type, &elements, &size);
    if (elements == 1) {
        fill_floats(type, p, (size_t)n * k, seed);
        return p;
    }
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rand_at(seed, i);
    for (size_t b = 0; b < bytes / size; b++) {
        uint8_t *block = p + b * size;
        uint16_t d = random_half(seed + 1, b), m = random_half(seed + 2, b);
        if (!t) {
            tame_plain(type, block, d, m);
            continue;
        }
        memcpy(block + (type == TENSOR_Q6_K ? 208 : 0), &d, 2);
        if (t->has_min)
            memcpy(block + 2, &m, 2);
        if (type == TENSOR_Q8_0 && b % 7 == 0)
            memset(block + 2, 0x80, 32);
    }
    return p;
}

static void make_weight(struct op *op, uint32_t n, uint32_t k)
{
    op->file = op_random_rows(op->s.type, n, k, op->seed + 10);
    CHECK(weight_prepare(op->ops, op->s.type, n, k, op->file, &op->w, NULL) == STATUS_OK);
    size_t bytes = op->ops->weight_bytes(op->s.type, n, k);
    CHECK(bytes % 64 == 0);
    if (bytes) {
        op->w.packed = room(bytes);
        uint32_t cut = n / 2 / 16 * 16;
        op->ops->weight_pack(&op->w, 0, cut);
        op->ops->weight_pack(&op->w, cut, n);
    }
}

static void make_acts(struct op *op, uint32_t rows, uint32_t k)
{
    op->acts = (struct acts){.max_rows = rows, .max_k = k, .x = floats((size_t)rows * k), .int8 = room(op->ops->acts_bytes(rows, k))};
}

/* --- products ------------------------------------------------------------------------------------------------------------ */

static void matmul_create(struct op *op)
{
    const struct op_shape *s = &op->s;
    make_weight(op, s->n, s->k);
    make_acts(op, s->rows, s->k);
    op->x = floats((size_t)s->rows * s->k);
    fill(op->x, s->rows, s->k, op->seed, s->special);
    op->n_out = (size_t)s->rows * (s->n + 3); /* a stride that is not n */
    op->y = floats(op->n_out);
    op->ops->acts_rows(&op->acts, op->x, s->rows, s->k, weight_is_quantized(&op->w), 0, 1);
}

static void matmul_run(struct op *op, int thread, int n_threads)
{
    struct matmul_job job = {.w = &op->w, .y = op->y, .y_stride = op->s.n + 3};
    op->ops->matmul(&job, 1, &op->acts, thread, n_threads);
}

static double matmul_flops(const struct op_shape *s)
{
    return 2.0 * s->rows * s->n * s->k;
}

/* Three products of one call, as q, k, v: the same weight thrice, into one wide output. */
static void matmul3_create(struct op *op)
{
    matmul_create(op);
    free(op->y);
    op->n_out = 3 * (size_t)op->s.rows * op->s.n;
    op->y = floats(op->n_out);
}

static void matmul3_run(struct op *op, int thread, int n_threads)
{
    struct matmul_job jobs[3];
    for (int i = 0; i < 3; i++)
        jobs[i] = (struct matmul_job){.w = &op->w, .y = op->y + (size_t)i * op->s.n, .y_stride = 3 * (size_t)op->s.n};
    op->ops->matmul(jobs, 3, &op->acts, thread, n_threads);
}

static double matmul3_flops(const struct op_shape *s)
{
    return 3 * matmul_flops(s);
}

/* --- activations: x, and the int8 form seen through a product (acts_output) ------------------------------- */

static void acts_create(struct op *op)
{
    const struct op_shape *s = &op->s;
    size_t n = (size_t)s->rows * s->k;
    if (s->n)
        make_weight(op, s->n, s->k);
    make_acts(op, s->rows, s->k);
    op->x = floats(n);
    op->x2 = floats(n);
    op->x3 = floats(s->k);
    fill(op->x2, s->rows, s->k, op->seed + 1, 0);
    fill(op->x3, 1, s->k, op->seed + 2, 0);
    op->n_out = 2 * n + (size_t)s->rows * s->n;
    op->y = floats(op->n_out);
}

static void acts_rows_run(struct op *op, int thread, int n_threads)
{
    op->ops->acts_rows(&op->acts, op->x, op->s.rows, op->s.k, op->s.n != 0, thread, n_threads);
}

static void acts_norm_run(struct op *op, int thread, int n_threads)
{
    op->ops->acts_norm(&op->acts, op->x, op->s.kind ? op->x2 : NULL, op->x3, 1e-5f, op->s.rows, op->s.k, op->s.n != 0, thread,
                       n_threads);
}

static void acts_gate_run(struct op *op, int thread, int n_threads)
{
    op->ops->acts_gate(&op->acts, op->x, op->x2, op->s.kind, op->s.rows, op->s.k, op->s.n != 0, thread, n_threads);
}

/* After the run: y = { a->x, x (acts_norm adds to it), product }. */
static void acts_output(struct op *op)
{
    size_t n = (size_t)op->s.rows * op->s.k;
    memcpy(op->y, op->acts.x, n * sizeof(float));
    memcpy(op->y + n, op->x, n * sizeof(float));
    if (op->s.n)
        op->ops->matmul(&(struct matmul_job){.w = &op->w, .y = op->y + 2 * n, .y_stride = op->s.n}, 1, &op->acts, 0, 1);
}

/* --- rows ------------------------------------------------------------------------------------------------------------------ */

static void rows_create(struct op *op)
{
    const struct op_shape *s = &op->s;
    op->n_out = (size_t)s->rows * s->k;
    op->x = floats(op->n_out);
    op->x2 = floats(op->n_out);
    op->y = floats(op->n_out);
    fill(op->x2, s->rows, s->k, op->seed + 1, 0);
}

static void add_run(struct op *op, int thread, int n_threads)
{
    op->ops->add(op->y, op->x2, op->s.rows, op->s.k, thread, n_threads);
}

static void add_bias_run(struct op *op, int thread, int n_threads)
{
    op->ops->add_bias(op->y, op->x2, op->s.rows, op->s.k, thread, n_threads);
}

static void norm_run(struct op *op, int thread, int n_threads)
{
    op->ops->norm(op->y, op->x2, 1e-6f, op->s.rows, op->s.k, thread, n_threads);
}

static void head_norm_run(struct op *op, int thread, int n_threads)
{
    op->ops->head_norm(op->y, op->x2, 1e-6f, op->s.rows, op->s.n_heads, op->s.head_dim, thread, n_threads);
}

static void softcap_run(struct op *op, int thread, int n_threads)
{
    op->ops->softcap(op->y, op->s.rows, op->s.k, op->s.softcap, thread, n_threads);
}

static void embed_create(struct op *op)
{
    make_weight(op, op->s.n, op->s.k);
    op->n_out = (size_t)op->s.rows * op->s.k;
    op->y = floats(op->n_out);
    op->blocks = room(op->s.rows * sizeof(uint32_t));
    for (uint32_t r = 0; r < op->s.rows; r++)
        op->blocks[r] = (uint32_t)(rand_at(op->seed, r) % op->s.n);
}

static void embed_run(struct op *op, int thread, int n_threads)
{
    op->ops->embed(&op->w, op->blocks, op->s.rows, 1.5f, op->y, thread, n_threads);
}

/* --- rope ------------------------------------------------------------------------------------------------------------------ */

static void rope_create(struct op *op)
{
    struct op_shape *s = &op->s;
    uint32_t n_rot = s->n;
    s->k = s->n_heads * s->head_dim;
    rows_create(op);
    op->x3 = floats((size_t)s->rows * n_rot + n_rot);
    op->blocks = room(s->rows * sizeof(uint32_t));
    for (uint32_t r = 0; r < s->rows; r++)
        op->blocks[r] = s->position + r;
    for (uint32_t i = 0; i < n_rot / 2; i++)
        op->x3[i] = (float)pow(10000., -2. * i / n_rot);
}

static void rope_run(struct op *op, int thread, int n_threads)
{
    const struct op_shape *s = &op->s;
    op->ops->rope_angles(op->blocks, s->rows, op->x3, s->n, op->x3 + s->n, thread, n_threads);
    op->ops->rope(op->y, op->x3 + s->n, s->rows, s->n_heads, s->head_dim, s->n, s->kind, thread, n_threads);
}

/* --- attention --------------------------------------------------------------------------------------------------------------- */

/* The pool is stale NaNs but for the positions that exist; each sequence has its own blocks, in no order. */
static void attention_create(struct op *op)
{
    const struct op_shape *s = &op->s;
    uint32_t n_seq = s->n_sequences ? s->n_sequences : 1, end = s->position + s->rows;
    uint32_t per_seq = (end + s->block_positions - 1) / s->block_positions, n_blocks = n_seq * per_seq;
    size_t head_bytes = 4 * (size_t)s->head_dim * s->block_positions, kv_row = (size_t)s->n_kv_heads * s->head_dim;
    op->kv = (struct kv_view){.block_stride = head_bytes * s->n_kv_heads + 128, .layer_offset = 64,
                              .block_positions = s->block_positions, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim};
    op->pool = room(n_blocks * op->kv.block_stride);
    memset(op->pool, 0xff, n_blocks * op->kv.block_stride);
    op->kv.pool = op->pool;
    op->blocks = room(n_blocks * sizeof(uint32_t));
    for (uint32_t i = 0; i < n_blocks; i++)
        op->blocks[i] = n_blocks - 1 - i;
    op->kv_rows = room(s->rows * sizeof *op->kv_rows);
    op->x = floats((size_t)s->rows * s->n_heads * s->head_dim);
    fill(op->x, s->rows, s->n_heads * s->head_dim, op->seed, 0);
    float *k = floats(kv_row * 2);
    for (uint32_t q = 0; q < n_seq; q++)
        for (uint32_t p = 0; p < end; p++) {
            struct kv_row row = {op->blocks + q * per_seq, p};
            fill(k, 2, (uint32_t)kv_row, op->seed + 100 + q * 100000ull + p, 0);
            op->ops->kv_store(&op->kv, &row, k, k + kv_row, 1, 0, 1);
        }
    free(k);
    for (uint32_t r = 0; r < s->rows; r++) {
        uint32_t q = (uint32_t)((uint64_t)r * n_seq / s->rows);
        op->kv_rows[r] = (struct kv_row){op->blocks + q * per_seq, s->position + r};
    }
    op->n_out = (size_t)s->rows * s->n_heads * s->head_dim;
    op->y = floats(op->n_out);
}

static void attention_run(struct op *op, int thread, int n_threads)
{
    op->ops->attention(&op->kv, op->kv_rows, op->x, op->y, op->s.rows, op->s.n_heads, 1.f / sqrtf((float)op->s.head_dim),
                       op->s.window, op->s.softcap, op->scratch, thread, n_threads);
}

static double attention_flops(const struct op_shape *s)
{
    return 4.0 * s->rows * s->n_heads * s->head_dim * (s->position + 0.5 * (s->rows + 1));
}

const struct op_entry op_entries[] = {
    {"matmul", 0, matmul_create, matmul_run, matmul_flops},
    {"matmul3", 0, matmul3_create, matmul3_run, matmul3_flops},
    {"acts_rows", 0, acts_create, acts_rows_run, NULL},
    {"acts_norm", 0, acts_create, acts_norm_run, NULL},
    {"acts_gate", 0, acts_create, acts_gate_run, NULL},
    {"add", 0, rows_create, add_run, NULL},
    {"add_bias", 0, rows_create, add_bias_run, NULL},
    {"norm", 0, rows_create, norm_run, NULL},
    {"head_norm", 0, rows_create, head_norm_run, NULL},
    {"softcap", 0, rows_create, softcap_run, NULL},
    {"embed", 0, embed_create, embed_run, NULL},
    {"rope", 0, rope_create, rope_run, NULL},
    {"attention", 0, attention_create, attention_run, attention_flops},
};
const int op_n_entries = ARRAY_LEN(op_entries);

const struct op_entry *op_find(const char *name)
{
    for (int i = 0; i < op_n_entries; i++)
        if (strcmp(op_entries[i].name, name) == 0)
            return &op_entries[i];
    return NULL;
}

struct op *op_create(const struct op_entry *e, const struct ops *ops, const struct op_shape *s, uint64_t seed, int n_threads)
{
    struct op *op = calloc(1, sizeof *op);
    CHECK(op);
    op->entry = e;
    op->ops = ops;
    op->s = *s;
    op->seed = seed;
    e->create(op);
    if (s->block_positions)
        op->scratch = room(ops->attention_bytes(s->rows, s->n_heads, s->head_dim, n_threads));
    return op;
}

void op_destroy(struct op *op)
{
    void *all[] = {op->w.packed, op->acts.x, op->acts.int8, op->x, op->x2, op->x3, op->y, op->file,
                   op->pool,     op->scratch, op->blocks,   op->kv_rows, op};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
}

static void run_on_thread(void *arg, int thread, int n_threads)
{
    struct op *op = arg;
    op->entry->run(op, thread, n_threads);
}

void op_run(struct op *op, struct team *team)
{
    int acts = op->entry->create == acts_create, rows = op->entry->create == rows_create || op->entry->create == rope_create;
    if (acts)
        fill(op->x, op->s.rows, op->s.k, op->seed, op->s.special);
    if (rows)
        fill(op->y, op->s.rows, op->s.k, op->seed, op->s.special);
    if (!acts && !rows)
        memset(op->y, 0xff, op->n_out * sizeof(float)); /* what is not written shows as NaN */
    team_run(team, run_on_thread, op);
    if (acts)
        acts_output(op);
}

size_t op_weight_bytes(const struct op *op)
{
    return op->w.packed ? op->ops->weight_bytes(op->w.type, op->w.n, op->w.k) : 0;
}
