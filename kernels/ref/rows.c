/* Norms, gates, additions, rope, embedding: one row at a time, one element at a time. */
#include <string.h>

#include "common/model/hparams.h"
#include "kernels/block.h"
#include "kernels/kv.h"
#include "kernels/math.h"
#include "kernels/quant.h"
#include "kernels/ref/ref.h"
#include "kernels/share.h"

/* A matrix row in the file; type and shape were checked by weight_prepare. */
static const uint8_t *file_row(const struct weight *w, uint32_t row)
{
    return w->file_rows + (size_t)row * block_row_bytes(w->type, w->k);
}

float ref_rms_scale(const float *x, uint32_t k, float eps)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < k; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    return 1.f / sqrtf(lane[0] / (float)k + eps);
}

static void rms_norm(const float *x, const float *w, float eps, uint32_t k, float *y)
{
    float scale = ref_rms_scale(x, k, eps);
    for (uint32_t i = 0; i < k; i++)
        y[i] = x[i] * scale * w[i];
}

float ref_gate(int kind, float x)
{
    return kind == GATE_SILU ? math_silu(x) : math_gelu_tanh(x);
}

void ref_quantize_block(const float x[32], struct ref_block *out)
{
    uint32_t max = 0; /* of the bits: a NaN is larger than every number */
    for (int i = 0; i < 32; i++) {
        uint32_t u = math_bits(x[i]) & 0x7fffffff;
        max = u > max ? u : max;
    }
    float amax = math_from_bits(max), inverse = 0;
    out->d = 0;
    if (max >= 0x7f800000) {
        out->d = NAN;
    } else if (amax >= 0x1p-100f) {
        out->d = amax / 127.f;
        inverse = 127.f / amax;
    }
    out->sum[0] = out->sum[1] = 0;
    for (int i = 0; i < 32; i++) {
        out->q[i] = inverse == 0 ? 0 : (int8_t)lrintf(x[i] * inverse);
        out->sum[i / 16] += out->q[i];
    }
}

void ref_embed(const struct weight *w, const uint32_t *ids, uint32_t n_rows, float scale, float *y, int thread,
               int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        float *row = y + (size_t)r * w->k;
        quant_decode_row(w->type, file_row(w, ids[r]), w->k, row);
        for (uint32_t i = 0; i < w->k; i++)
            row[i] *= scale;
    }
}

void ref_add(float *x, const float *add, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (size_t i = (size_t)s.begin * k; i < (size_t)s.end * k; i++)
        x[i] += add[i];
}

void ref_add_bias(float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t i = 0; i < k; i++)
            x[(size_t)r * k + i] += bias[i];
}

void ref_head_norm(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, int thread,
                   int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (size_t h = (size_t)s.begin * n_heads; h < (size_t)s.end * n_heads; h++)
        rms_norm(x + h * head_dim, w, eps, head_dim, x + h * head_dim);
}

void ref_norm(float *x, const float *w, float eps, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    ref_head_norm(x, w, eps, n_rows, 1, k, thread, n_threads);
}

void ref_softcap(float *x, uint32_t n_rows, uint32_t k, float cap, int thread, int n_threads)
{
    struct share s = share_of((k + STRIP - 1) / STRIP, thread, n_threads);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = s.begin * STRIP; i < s.end * STRIP && i < k; i++)
            x[(size_t)r * k + i] = cap * math_tanh(x[(size_t)r * k + i] / cap);
}

void ref_rope_angles(const uint32_t *positions, uint32_t n_rows, const float *freq, uint32_t n_rot, float *cs, int thread,
                     int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            float *out = cs + (size_t)r * n_rot + 2 * i;
            math_sincos((float)positions[r] * freq[i], &out[1], &out[0]);
        }
}

void ref_rope(float *x, const float *cs, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, int pairing,
              int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t i = 0; i < n_rot / 2; i++) {
                float *head = x + ((size_t)r * n_heads + h) * head_dim;
                float *a = head + (pairing == ROPE_ADJACENT ? 2 * i : i), *b = a + (pairing == ROPE_ADJACENT ? 1 : n_rot / 2);
                float c = cs[(size_t)r * n_rot + 2 * i], sn = cs[(size_t)r * n_rot + 2 * i + 1], a0 = *a, b0 = *b;
                *a = fmaf(a0, c, -(b0 * sn));
                *b = fmaf(b0, c, a0 * sn);
            }
}

void ref_kv_store(const struct kv_view *kv, const struct kv_row *rows, const float *k, const float *v, uint32_t n_rows,
                  int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    uint32_t hd = kv->head_dim;
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            uint32_t p = rows[r].position;
            uint16_t *kg = kv_k_group(kv, rows[r].blocks, h, p), *vr = kv_v_row(kv, rows[r].blocks, h, p);
            size_t at = ((size_t)r * kv->n_kv_heads + h) * hd;
            for (uint32_t d = 0; d < hd; d++) {
                kg[d * KV_GROUP + p % KV_GROUP] = math_to_f16(k[at + d]);
                vr[d] = math_to_f16(v[at + d]);
            }
        }
}
