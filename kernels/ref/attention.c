/* Attention as docs/numerics.md states it: for each row and head, tiles of 64 absolute positions in order. */
#include "kernels/kv.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"
#include "kernels/share.h"

struct state {
    float m, l[16];
    float *o; /* [head_dim] */
};

/* One tile: the positions [p0, p1) of the 64 from `base`; slot j of the tile is position base + j. cap: 0, or what bounds the
 * scores. */
static void tile(const struct kv_view *kv, const uint32_t *blocks, uint32_t head, const float *q, float cap,
                 struct state *st, uint32_t base, uint32_t p0, uint32_t p1)
{
    float s[KV_TILE], p[KV_TILE], max = st->m;
    for (uint32_t pos = p0; pos < p1; pos++) {
        const uint16_t *k = kv_k_group(kv, blocks, head, pos);
        float sum = 0;
        for (uint32_t d = 0; d < kv->head_dim; d++)
            sum = fmaf(q[d], math_from_f16(k[d * KV_GROUP + pos % KV_GROUP]), sum);
        if (cap != 0.f)
            sum = cap * math_tanh(sum);
        s[pos - base] = sum;
        max = sum > max ? sum : max;
    }
    float a = math_exp2_neg(st->m - max);
    for (int i = 0; i < 16; i++)
        st->l[i] *= a;
    for (uint32_t j = p0 - base; j < p1 - base; j++) {
        p[j] = math_exp2_neg(s[j] - max);
        st->l[j % 16] += p[j];
    }
    st->m = max;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        float o = st->o[d] * a;
        for (uint32_t pos = p0; pos < p1; pos++)
            o = fmaf(p[pos - base], math_from_f16(kv_v_row(kv, blocks, head, pos)[d]), o);
        st->o[d] = o;
    }
}

static void row_head(const struct kv_view *kv, const struct kv_row *row, uint32_t head, const float *q, float scale,
                     uint32_t window, float softcap, float *scaled_q, float *out)
{
    uint32_t first = kv_first(row->position, window), end = row->position + 1;
    struct state st = {.m = -INFINITY, .o = out};
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        scaled_q[d] = q[d] * (softcap != 0.f ? scale / softcap : scale * LOG2E_F);
        out[d] = 0;
    }
    for (uint32_t base = first / KV_TILE * KV_TILE; base < end; base += KV_TILE)
        tile(kv, row->blocks, head, scaled_q, softcap * LOG2E_F, &st, base, base > first ? base : first,
             base + KV_TILE < end ? base + KV_TILE : end);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            st.l[i] += st.l[i + half];
    for (uint32_t d = 0; d < kv->head_dim; d++)
        out[d] /= st.l[0];
}

void ref_attention(const struct kv_view *kv, const struct kv_row *rows, const float *q, float *out, uint32_t n_rows,
                   uint32_t n_heads, float scale, uint32_t window, float softcap, uint8_t *scratch, int thread,
                   int n_threads)
{
    struct share s = share_of(n_rows * n_heads, thread, n_threads);
    float *scaled_q = (float *)(void *)scratch + (size_t)thread * kv->head_dim;
    for (uint32_t i = s.begin; i < s.end; i++) {
        uint32_t head = i % n_heads / (n_heads / kv->n_kv_heads);
        row_head(kv, &rows[i / n_heads], head, q + (size_t)i * kv->head_dim, scale, window, softcap, scaled_q,
                 out + (size_t)i * kv->head_dim);
    }
}

size_t ref_attention_bytes(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim, int n_threads)
{
    (void)max_rows, (void)n_heads;
    return 4 * (size_t)head_dim * (size_t)n_threads;
}
