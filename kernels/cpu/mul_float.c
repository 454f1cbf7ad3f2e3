/* Products with F32, F16 and BF16 weights: one fma chain over k for each output, built for 8 and 16 lanes.
 *
 * A chain waits for itself, so several run side by side: 4 rows on one strip, or 4 strips for one row. */
#include "kernels/cpu/vec.h"

#include "kernels/cpu/mul.h"

enum { PER_STRIP = STRIP / VEC, SIDE = 4 };

INLINE vec load_weight(enum tensor_type type, const uint8_t *p)
{
    if (type == TENSOR_F32)
        return vec_load((const float *)(const void *)p);
    return type == TENSOR_F16 ? vec_load_f16((const void *)p) : vec_load_bf16((const void *)p);
}

static void store_strip(float *out, const vec y[PER_STRIP], uint32_t columns)
{
    float lane[STRIP];
    UNROLL
    for (int i = 0; i < PER_STRIP; i++)
        vec_store(lane + VEC * i, y[i]);
    memcpy(out, lane, columns * sizeof(float));
}

INLINE void block(enum tensor_type type, int n_rows, int n_strips, const struct mul *m, uint32_t strip, uint32_t row)
{
    const size_t bytes = strip_bytes(type, m->k), size = float_bytes(type);
    const uint8_t *w = m->packed + strip * bytes;
    const float *x = m->x + (size_t)row * m->k;
    vec y[SIDE][PER_STRIP]; /* [row or strip] */
    UNROLL
    for (int i = 0; i < n_rows * n_strips; i++)
        UNROLL
        for (int v = 0; v < PER_STRIP; v++)
            y[i][v] = vec_zero();
    for (uint32_t k = 0; k < m->k; k++) {
        UNROLL
        for (int s = 0; s < n_strips; s++)
            _mm_prefetch((const char *)w + s * bytes + k * STRIP * size + 2048, _MM_HINT_T0);
        UNROLL
        for (int i = 0; i < n_rows * n_strips; i++) {
            int s = n_strips > 1 ? i : 0, r = n_strips > 1 ? 0 : i;
            vec b = vec_set1(x[(size_t)r * m->k + k]);
            UNROLL
            for (int v = 0; v < PER_STRIP; v++)
                y[i][v] = vec_fma(b, load_weight(type, w + s * bytes + (k * STRIP + (size_t)v * VEC) * size), y[i][v]);
        }
    }
    UNROLL
    for (int i = 0; i < n_rows * n_strips; i++) {
        uint32_t s = strip + (n_strips > 1 ? (uint32_t)i : 0), r = row + (n_strips > 1 ? 0 : (uint32_t)i);
        store_strip(m->y + r * m->y_stride + (size_t)s * STRIP, y[i], strip_columns(m, s));
    }
}

INLINE void mul_type(enum tensor_type type, const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    for (uint32_t s = strip0; s < strip1;) {
        uint32_t n = row1 - row0 == 1 && strip1 - s >= SIDE ? SIDE : 1, row = row0;
        for (; n == 1 && row + SIDE <= row1; row += SIDE)
            block(type, SIDE, 1, m, s, row);
        for (; row < row1; row++) {
            if (n == SIDE)
                block(type, 1, SIDE, m, s, row);
            else
                block(type, 1, 1, m, s, row);
        }
        s += n;
    }
}

void ISA_NAME(mul_float)(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    if (m->type == TENSOR_F32)
        mul_type(TENSOR_F32, m, strip0, strip1, row0, row1);
    else if (m->type == TENSOR_F16)
        mul_type(TENSOR_F16, m, strip0, strip1, row0, row1);
    else
        mul_type(TENSOR_BF16, m, strip0, strip1, row0, row1);
}
