/* Quantized products with AVX-512 VNNI: 1 to 8 rows against strips of 16 outputs. */
#include "kernels/cpu/strip_512.h"

#include "kernels/block.h"
#include "kernels/cpu/mul.h"

enum {
    AHEAD = 2048,          /* bytes to fetch before they are needed (measured: prototype's README, lesson 1) */
    GROUP_ROWS = 8,        /* rows in registers */
    STRIPS_BYTES = 24 << 10, /* packed bytes of the strips that all rows pass while they stay in the first-level cache */
};

/* The broadcast as a memory operand: gcc 12 emits a separate vpbroadcastd. */
INLINE __m512i dp(__m512i acc, __m512i w, const uint8_t *x)
{
#if EMULATED_AVX512 /* tests/kernels/emulation */
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(*(const int32_t *)(const void *)x));
#else
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(const void *)x));
    return acc;
#endif
}

INLINE __m512 bcast_f32(const uint8_t *p)
{
    return _mm512_set1_ps(*(const float *)(const void *)p);
}

INLINE __m512i bcast_i32(const uint8_t *p)
{
    return _mm512_set1_epi32(*(const int32_t *)(const void *)p);
}

INLINE __m512i start(int offset, const uint8_t *block, uint32_t R, uint32_t r)
{
    if (offset == 0)
        return _mm512_setzero_si512();
    return bcast_i32(ACT_FIELD(block, R, offset == 8 ? ACT_N8 : offset == 16 ? ACT_N16 : ACT_N128) + 4 * r);
}

/* One block for one row: the f32 step of the definition. */
INLINE __m512 step(enum tensor_type type, const __m512i w[8], __m512 s, __m512 t, const uint8_t *block, uint32_t R, uint32_t r,
                   __m512 y)
{
    const uint8_t *x = block + 32 * r;
    __m512 d = bcast_f32(ACT_FIELD(block, R, ACT_D) + 4 * r);
    if (type == TENSOR_Q6_K) {
        __m512i lo = bcast_i32(ACT_FIELD(block, R, ACT_N32_LO) + 4 * r), hi = bcast_i32(ACT_FIELD(block, R, ACT_N32_HI) + 4 * r);
        UNROLL
        for (int j = 0; j < 4; j++) {
            lo = dp(lo, w[j], x + 4 * j);
            hi = dp(hi, w[4 + j], x + 16 + 4 * j);
        }
        y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(lo), _mm512_mul_ps(s, d), y);
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi), _mm512_mul_ps(t, d), y);
    }
    __m512i sum = start(strip_layout(type).offset, block, R, r);
    UNROLL
    for (int j = 0; j < 8; j++)
        sum = dp(sum, w[j], x + 4 * j);
    y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s, d), y);
    if (strip_layout(type).has_min)
        y = _mm512_fmadd_ps(t, bcast_f32(ACT_FIELD(block, R, ACT_XS) + 4 * r), y);
    return y;
}

INLINE void strips_rows(enum tensor_type type, int n_rows, const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row)
{
    const struct strip_layout l = strip_layout(type);
    const size_t bytes = strip_bytes(type, m->k);
    const uint32_t tile = row / SHARE_TILE, R = act_tile_rows(m->n_rows, tile), r = row % SHARE_TILE, n_blocks = m->k / 32;
    for (uint32_t strip = strip0; strip < strip1; strip++) {
        const uint8_t *cell = m->packed + strip * bytes, *header = cell, *block = m->acts + act_tile_offset(m->k, tile);
        __m512 y[GROUP_ROWS];
        UNROLL
        for (int i = 0; i < n_rows; i++)
            y[i] = _mm512_setzero_ps();
        for (uint32_t b = 0; b < n_blocks; b += 2, cell += l.cell) {
            if (l.header && b % 8 == 0) {
                header = cell;
                cell += l.header;
            }
            for (uint32_t i = 0; i < l.cell; i += 64)
                _mm_prefetch((const char *)cell + AHEAD + i, _MM_HINT_T0);
            UNROLL
            for (int h = 0; h < 2; h++) {
                if (b + (uint32_t)h >= n_blocks) /* an odd number of blocks */
                    break;
                __m512i w[8];
                __m512 s, t;
                strip_unpack(type, cell, h, w);
                strip_scales(type, header, cell, h, &s, &t);
                UNROLL
                for (int i = 0; i < n_rows; i++)
                    y[i] = step(type, w, s, t, block, R, r + (uint32_t)i, y[i]);
                block += (size_t)R * ACT_BLOCK_BYTES;
            }
        }
        UNROLL
        for (int i = 0; i < n_rows; i++)
            strip_store(m->y + (row + (uint32_t)i) * m->y_stride + (size_t)strip * STRIP, y[i], strip_columns(m, strip));
    }
}

#define CASE(type, rows)                                                                                               \
    case rows:                                                                                                         \
        strips_rows(type, rows, m, strip0, strip1, row);                                                               \
        break;
#define X(name, offset, min, scales)                                                                                   \
    static void rows_##name(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row, uint32_t n_rows)      \
    {                                                                                                                  \
        switch (n_rows) {                                                                                              \
            CASE(TENSOR_##name, 1)                                                                                     \
            CASE(TENSOR_##name, 2)                                                                                     \
            CASE(TENSOR_##name, 3)                                                                                     \
            CASE(TENSOR_##name, 4)                                                                                     \
            CASE(TENSOR_##name, 5)                                                                                     \
            CASE(TENSOR_##name, 6)                                                                                     \
            CASE(TENSOR_##name, 7)                                                                                     \
            CASE(TENSOR_##name, 8)                                                                                     \
        default:                                                                                                       \
            break;                                                                                                     \
        }                                                                                                              \
    }
BLOCK_QUANT_MAP(X)
#undef X

static void rows_of_type(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row, uint32_t n_rows)
{
    switch ((int)m->type) {
#define X(name, offset, min, scales)                                                                                   \
    case TENSOR_##name:                                                                                                \
        rows_##name(m, strip0, strip1, row, n_rows);                                                                   \
        break;
        BLOCK_QUANT_MAP(X)
#undef X
    default:
        break;
    }
}

/* Strips in groups that fit the first-level cache, all rows on a group (lesson 5). */
void mul_avx512(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    uint32_t step = row1 - row0 <= GROUP_ROWS ? strip1 - strip0 : (uint32_t)(STRIPS_BYTES / strip_bytes(m->type, m->k)) + 1;
    for (uint32_t s = strip0; s < strip1; s += step) {
        uint32_t e = strip1 - s < step ? strip1 : s + step;
        for (uint32_t row = row0; row < row1;) {
            uint32_t left = row1 - row, in_tile = SHARE_TILE - row % SHARE_TILE, n = left < in_tile ? left : in_tile;
            n = n < GROUP_ROWS ? n : GROUP_ROWS;
            rows_of_type(m, s, e, row, n);
            row += n;
        }
    }
}
