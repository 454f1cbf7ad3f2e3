/* Activations and products of the scalar backend, straight from the file's rows. */
#include <string.h>

#include "kernels/block.h"
#include "kernels/math.h"
#include "kernels/quant.h"
#include "kernels/ref/ref.h"
#include "kernels/share.h"

static size_t weight_bytes(enum tensor_type type, uint32_t n, uint32_t k)
{
    (void)n, (void)k;
    return quant_supported(type) ? 0 : SIZE_MAX;
}

static void weight_pack(struct weight *w, uint32_t row0, uint32_t row1)
{
    (void)w, (void)row0, (void)row1;
}

/* int8 form: [row][block] of struct ref_block. */
static size_t acts_bytes(uint32_t max_rows, uint32_t max_k)
{
    return (size_t)max_rows * ((max_k + 31) / 32) * sizeof(struct ref_block) + 64;
}

static struct ref_block *row_blocks(const struct acts *a, uint32_t row)
{
    return (struct ref_block *)(void *)a->int8 + (size_t)row * (a->k / 32);
}

static void begin(struct acts *a, uint32_t n_rows, uint32_t k, int thread)
{
    if (thread == 0) {
        a->n_rows = n_rows;
        a->k = k;
    }
}

static void quantize_row(struct acts *a, uint32_t row, uint32_t k, int int8)
{
    struct ref_block *out = (struct ref_block *)(void *)a->int8 + (size_t)row * (k / 32);
    for (uint32_t b = 0; int8 && b < k / 32; b++)
        ref_quantize_block(a->x + (size_t)row * k + 32 * b, &out[b]);
}

static void acts_rows(struct acts *a, const float *x, uint32_t n_rows, uint32_t k, int int8, int thread, int n_threads)
{
    begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        memmove(a->x + (size_t)r * k, x + (size_t)r * k, 4 * (size_t)k);
        quantize_row(a, r, k, int8);
    }
}

static void acts_norm(struct acts *a, float *x, const float *add, const float *w, float eps, uint32_t n_rows, uint32_t k,
                      int int8, int thread, int n_threads)
{
    begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        float *row = x + (size_t)r * k;
        for (uint32_t i = 0; add && i < k; i++)
            row[i] += add[(size_t)r * k + i];
        float scale = ref_rms_scale(row, k, eps);
        for (uint32_t i = 0; i < k; i++)
            a->x[(size_t)r * k + i] = row[i] * scale * w[i];
        quantize_row(a, r, k, int8);
    }
}

static void acts_gate(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k, int int8,
                      int thread, int n_threads)
{
    begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        for (size_t i = (size_t)r * k; i < (size_t)(r + 1) * k; i++)
            a->x[i] = ref_gate(kind, gate[i]) * up[i];
        quantize_row(a, r, k, int8);
    }
}

/* One output of a float type or a plain one: one fma chain over k. */
static float dot_float(const struct weight *w, uint32_t n, const float *x)
{
    const uint8_t *row = w->file_rows + (size_t)n * block_row_bytes(w->type, w->k);
    uint32_t elements, bytes;
    float y = 0, v[BLOCK_ELEMENTS_MAX];
    block_size(w->type, &elements, &bytes);
    for (uint32_t k = 0; k < w->k; k += elements, row += bytes) {
        quant_decode_row(w->type, row, elements, v);
        for (uint32_t i = 0; i < elements; i++)
            y = fmaf(x[k + i], v[i], y);
    }
    return y;
}

/* One block's part of one output: exact integer sums, then one rounding for each fma (docs/numerics.md, Products). */
static float add_block(const struct block_traits *t, const uint8_t q[32], const float s[2], float mn,
                       const struct ref_block *x, float y)
{
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < 32; i++)
        sum[i / 16] += (q[i] - t->offset) * x->q[i];
    if (t->n_scales == 2) {
        y = fmaf((float)sum[0], s[0] * x->d, y);
        y = fmaf((float)sum[1], s[1] * x->d, y);
    } else {
        y = fmaf((float)(sum[0] + sum[1]), s[0] * x->d, y);
    }
    return t->has_min ? fmaf(mn, x->d * (float)(x->sum[0] + x->sum[1]), y) : y;
}

static void outputs_quantized(const struct matmul_job *job, const struct acts *a, uint32_t n0, uint32_t n1)
{
    const struct weight *w = job->w;
    const struct block_traits *t = block_traits(w->type);
    uint32_t per = t->elements / 32;
    for (uint32_t n = n0; n < n1; n++) {
        const uint8_t *row = w->file_rows + (size_t)n * block_row_bytes(w->type, w->k);
        for (uint32_t r = 0; r < a->n_rows; r++)
            job->y[r * job->y_stride + n] = 0;
        for (uint32_t b = 0; b < w->k / 32; b++) {
            uint8_t q[32];
            float s[2], mn;
            block_decode(w->type, row + (size_t)(b / per) * t->bytes, b % per, q, s, &mn);
            for (uint32_t r = 0; r < a->n_rows; r++) {
                float *y = &job->y[r * job->y_stride + n];
                *y = add_block(t, q, s, mn, &row_blocks(a, r)[b], *y);
            }
        }
    }
}

static void matmul(const struct matmul_job *jobs, int n_jobs, const struct acts *a, int thread, int n_threads)
{
    for (int j = 0; j < n_jobs; j++) {
        const struct weight *w = jobs[j].w;
        struct share s = share_of((w->n + STRIP - 1) / STRIP, thread, n_threads);
        uint32_t n0 = s.begin * STRIP, n1 = s.end * STRIP < w->n ? s.end * STRIP : w->n;
        if (weight_is_quantized(w)) {
            outputs_quantized(&jobs[j], a, n0, n1);
            continue;
        }
        for (uint32_t n = n0; n < n1; n++)
            for (uint32_t r = 0; r < a->n_rows; r++)
                jobs[j].y[r * jobs[j].y_stride + n] = dot_float(w, n, a->x + (size_t)r * w->k);
    }
}

const struct ops ops_ref = {
    .name = "ref",
    .weight_bytes = weight_bytes,
    .weight_pack = weight_pack,
    .acts_bytes = acts_bytes,
    .acts_rows = acts_rows,
    .acts_norm = acts_norm,
    .acts_gate = acts_gate,
    .matmul = matmul,
    .embed = ref_embed,
    .add = ref_add,
    .add_bias = ref_add_bias,
    .head_norm = ref_head_norm,
    .norm = ref_norm,
    .softcap = ref_softcap,
    .rope_angles = ref_rope_angles,
    .rope = ref_rope,
    .kv_store = ref_kv_store,
    .attention = ref_attention,
    .attention_bytes = ref_attention_bytes,
};
