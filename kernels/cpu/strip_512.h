/* kernels/cpu/strip_512.h - one block of 32 k x 16 lanes as 8 vectors of unsigned bytes, and its scales (AVX-512).
 *
 * Purpose    Shared by the VNNI and the AMX products.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_CPU_STRIP_512_H
#define SLUICE_KERNELS_CPU_STRIP_512_H

#include <immintrin.h>

#include "kernels/cpu/layout.h"

#define INLINE static inline __attribute__((always_inline))
#ifndef UNROLL /* emulation (tests/kernels) keeps the loops */
#define UNROLL _Pragma("GCC unroll 16") /* arrays of vectors are registers only where every index is a constant */
#endif

INLINE __m512i or_masked(__m512i w, __m512i s, __m512i mask) /* w | (s & mask) */
{
    return _mm512_ternarylogic_epi32(w, s, mask, 0xf8);
}

INLINE void strip_unpack(enum tensor_type type, const uint8_t *cell, int h, __m512i w[8])
{
    const struct strip_layout l = strip_layout(type);
    const uint8_t *payload = cell + l.payload + (uint32_t)h * l.half;
    const __m512i low = _mm512_set1_epi8(15);
    if (type == TENSOR_Q8_0) {
        UNROLL
        for (int i = 0; i < 8; i++)
            w[i] = _mm512_load_si512(payload + 64 * i);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_load_si512(payload + 64 * i);
        w[i] = _mm512_and_si512(v, low);
        w[4 + i] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (type == TENSOR_Q5_0 || type == TENSOR_Q5_1 || type == TENSOR_Q5_K) {
        const __m512i high = _mm512_load_si512(cell + l.high + 64 * h), mask = _mm512_set1_epi8(16);
        UNROLL
        for (unsigned i = 0; i < 8; i++)
            w[i] = or_masked(w[i], i < 4 ? _mm512_slli_epi16(high, 4 - i) : _mm512_srli_epi16(high, i - 4), mask);
    } else if (type == TENSOR_Q6_K) {
        const __m512i mask = _mm512_set1_epi8(48);
        UNROLL
        for (unsigned i = 0; i < 8; i++) {
            __m512i high = _mm512_load_si512(cell + l.high + 128 * h + 64 * (i / 4));
            unsigned j = i % 4;
            w[i] = or_masked(w[i], j < 2 ? _mm512_slli_epi16(high, 4 - 2 * j) : _mm512_srli_epi16(high, 2 * j - 4), mask);
        }
    }
}

INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const void *)p));
}

INLINE __m512 load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const void *)p)));
}

INLINE __m512 load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const void *)p)));
}

/* s: the scale; t: the second scale, or the minimum. */
INLINE void strip_scales(enum tensor_type type, const uint8_t *header, const uint8_t *cell, int h, __m512 *s, __m512 *t)
{
    const struct strip_layout l = strip_layout(type);
    *t = _mm512_setzero_ps();
    if (type == TENSOR_Q6_K) {
        __m512 d = load_f16(header);
        *s = _mm512_mul_ps(d, load_i8(cell + 32 * h));
        *t = _mm512_mul_ps(d, load_i8(cell + 32 * h + 16));
    } else if (l.header) {
        *s = _mm512_mul_ps(load_f16(header), load_u8(cell + 32 * h));
        *t = _mm512_xor_ps(_mm512_set1_ps(-0.f), _mm512_mul_ps(load_f16(header + 32), load_u8(cell + 32 * h + 16)));
    } else {
        *s = load_f16(cell + 32 * h);
        if (l.has_min)
            *t = load_f16(cell + l.mins + 32 * h);
    }
}

INLINE void strip_store(float *out, __m512 y, uint32_t columns)
{
    _mm512_mask_storeu_ps(out, (__mmask16)((1u << columns) - 1), y);
}

#endif
