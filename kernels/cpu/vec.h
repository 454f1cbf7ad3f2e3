/* kernels/cpu/vec.h - f32 vectors of VEC lanes (16: AVX-512, 8: AVX2) under common names.
 *
 * Purpose    rows.c, attention.c and mul_float.c are written once and built for both widths; what they compute has a fixed
 *            virtual width of 16 lanes, so the width never shows. The chains are those of kernels/math.h.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_CPU_VEC_H
#define SLUICE_KERNELS_CPU_VEC_H

#include <immintrin.h>

#include "kernels/math.h"

#define INLINE static inline __attribute__((always_inline))
#ifndef UNROLL /* emulation (tests/kernels) keeps the loops */
#define UNROLL _Pragma("GCC unroll 16") /* arrays of vectors are registers only where every index is a constant */
#endif

#if VEC == 16
#define ISA_NAME(name) name##_avx512
typedef __m512 vec;
typedef __m512i ivec;
#define VEC_PS(op) _mm512_##op##_ps

INLINE vec vec_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
INLINE void vec_store_f16(uint16_t *p, vec v) { _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v, 0)); }
INLINE vec vec_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
INLINE vec vec_round(vec x) { return _mm512_roundscale_ps(x, 8); }
INLINE vec vec_abs(vec x) { return _mm512_abs_ps(x); }
INLINE vec vec_neg(vec x)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000)));
}
/* p * 2^n for p near 1 and whole n; 0 where x < low (a NaN x passes). */
INLINE vec vec_scale2(vec p, vec n, vec x, float low)
{
    ivec e = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_NLT_UQ), _mm512_castsi512_ps(e));
}
INLINE vec vec_select_negative(vec x, vec yes, vec no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), yes);
}
/* Lanes first..15 of a vector that holds the positions at..at+15: those in [lo, hi) of v, else of other. */
INLINE vec vec_keep(vec v, vec other, int at, int lo, int hi)
{
    ivec i = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(at));
    __mmask16 in = _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(hi)) & _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo));
    return _mm512_mask_mov_ps(other, in, v);
}
INLINE float vec_max_lane(vec v) { return _mm512_reduce_max_ps(v); }
#else
#define ISA_NAME(name) name##_avx2
typedef __m256 vec;
typedef __m256i ivec;
#define VEC_PS(op) _mm256_##op##_ps

INLINE vec vec_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
INLINE void vec_store_f16(uint16_t *p, vec v) { _mm_storeu_si128((void *)p, _mm256_cvtps_ph(v, 0)); }
INLINE vec vec_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE vec vec_round(vec x) { return _mm256_round_ps(x, 8); }
INLINE vec vec_abs(vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), x); }
INLINE vec vec_neg(vec x) { return _mm256_xor_ps(_mm256_set1_ps(-0.f), x); }
INLINE vec vec_scale2(vec p, vec n, vec x, float low)
{
    ivec e = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(e), _mm256_cmp_ps(x, _mm256_set1_ps(low), _CMP_NLT_UQ));
}
INLINE vec vec_select_negative(vec x, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
INLINE vec vec_keep(vec v, vec other, int at, int lo, int hi)
{
    ivec i = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(at));
    ivec in = _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i), _mm256_cmpgt_epi32(i, _mm256_set1_epi32(lo - 1)));
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(in));
}
INLINE float vec_max_lane(vec v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
#endif

#define vec_load VEC_PS(loadu)
#define vec_store VEC_PS(storeu)
#define vec_set1 VEC_PS(set1)
#define vec_zero VEC_PS(setzero)
#define vec_add VEC_PS(add)
#define vec_sub VEC_PS(sub)
#define vec_mul VEC_PS(mul)
#define vec_div VEC_PS(div)
#define vec_max VEC_PS(max)
#define vec_fma VEC_PS(fmadd)   /* a*b + c */

INLINE vec vec_exp2_neg(vec x)
{
    vec n = vec_round(x), r = vec_sub(x, n);
    vec p = vec_fma(vec_set1(EXP2_C5), r, vec_set1(EXP2_C4));
    p = vec_fma(p, r, vec_set1(EXP2_C3));
    p = vec_fma(p, r, vec_set1(EXP2_C2));
    p = vec_fma(p, r, vec_set1(EXP2_C1));
    p = vec_fma(p, r, vec_set1(EXP2_C0));
    return vec_scale2(p, n, x, -125.f);
}

INLINE vec vec_exp_neg(vec x)
{
    vec n = vec_round(vec_mul(x, vec_set1(LOG2E_F)));
    vec r = vec_fma(n, vec_set1(-EXP_LN2_LO), vec_fma(n, vec_set1(-EXP_LN2_HI), x));
    vec p = vec_fma(vec_set1(EXP_P0), r, vec_set1(EXP_P1));
    p = vec_fma(p, r, vec_set1(EXP_P2));
    p = vec_fma(p, r, vec_set1(EXP_P3));
    p = vec_fma(p, r, vec_set1(EXP_P4));
    p = vec_fma(p, r, vec_set1(EXP_P5));
    p = vec_add(vec_fma(p, vec_mul(r, r), r), vec_set1(1.f));
    return vec_scale2(p, n, x, -87.f);
}

INLINE vec vec_sigmoid(vec x)
{
    vec one = vec_set1(1.f), e = vec_exp_neg(vec_neg(vec_abs(x)));
    return vec_div(vec_select_negative(x, e, one), vec_add(one, e));
}

INLINE vec vec_tanh(vec x)
{
    vec a = vec_abs(x), z = vec_mul(x, x), one = vec_set1(1.f), t = vec_exp_neg(vec_mul(vec_set1(-2.f), a));
    vec p = vec_fma(vec_set1(TANH_P0), z, vec_set1(TANH_P1));
    p = vec_fma(p, z, vec_set1(TANH_P2));
    p = vec_fma(p, z, vec_set1(TANH_P3));
    p = vec_fma(p, z, vec_set1(TANH_P4));
    vec large = vec_div(vec_sub(one, t), vec_add(one, t));
    return vec_select_negative(vec_sub(a, vec_set1(TANH_SMALL)), vec_fma(vec_mul(p, z), x, x),
                               vec_select_negative(x, vec_neg(large), large));
}

INLINE vec vec_silu(vec x)
{
    return vec_mul(x, vec_sigmoid(x));
}

INLINE vec vec_gelu_tanh(vec x)
{
    vec t = vec_fma(vec_set1(GELU_C3), vec_mul(x, x), vec_set1(GELU_C1));
    return vec_mul(x, vec_sigmoid(vec_mul(t, x)));
}

#endif
