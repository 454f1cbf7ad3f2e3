/* tests/kernels/emulation/immintrin.h - AVX-512, AVX-VNNI and AMX in plain C, for hosts that lack them.
 *
 * Purpose    Stands before the compiler's header when the 512-bit and AMX kernels are built for test_ops_emulated: the same
 *            sources run on a CPU with AVX2 alone. Only what the kernels use; semantics after Intel's intrinsics guide.
 * Threading  Tiles are per thread, as in the CPU.
 */
#pragma GCC system_header
#include_next <immintrin.h>

#ifndef SLUICE_TESTS_EMULATED_IMMINTRIN
#define SLUICE_TESTS_EMULATED_IMMINTRIN

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMULATED_AVX512 1

typedef struct {
    float f[16];
} emu512;
typedef struct {
    int32_t i[16];
} emu512i;
typedef uint16_t emu_mask;

#define __m512 emu512
#define __m512i emu512i
#define __mmask16 emu_mask

#define EMU static __attribute__((noinline, unused)) /* calls: a third of the time to compile */
#define EMU_F2(name, expr)                                                                                             \
    EMU emu512 emu_##name(emu512 a, emu512 b)                                                                          \
    {                                                                                                                  \
        emu512 r;                                                                                                      \
        for (int k = 0; k < 16; k++)                                                                                   \
            r.f[k] = (expr);                                                                                           \
        return r;                                                                                                      \
    }
#define EMU_I2(name, expr)                                                                                             \
    EMU emu512i emu_##name(emu512i a, emu512i b)                                                                       \
    {                                                                                                                  \
        emu512i r;                                                                                                     \
        for (int k = 0; k < 16; k++)                                                                                   \
            r.i[k] = (expr);                                                                                           \
        return r;                                                                                                      \
    }

EMU_F2(add_ps, a.f[k] + b.f[k])
EMU_F2(sub_ps, a.f[k] - b.f[k])
EMU_F2(mul_ps, a.f[k] * b.f[k])
EMU_F2(div_ps, a.f[k] / b.f[k])
EMU_F2(max_ps, a.f[k] > b.f[k] ? a.f[k] : b.f[k])
EMU_I2(add_epi32, (int32_t)((uint32_t)a.i[k] + (uint32_t)b.i[k]))
EMU_I2(and_si512, a.i[k] & b.i[k])
EMU_I2(xor_si512, a.i[k] ^ b.i[k])
EMU_I2(max_epi32, a.i[k] > b.i[k] ? a.i[k] : b.i[k])

EMU emu512 emu_fmadd_ps(emu512 a, emu512 b, emu512 c)
{
    for (int k = 0; k < 16; k++)
        c.f[k] = fmaf(a.f[k], b.f[k], c.f[k]);
    return c;
}
EMU emu512 emu_castsi512_ps(emu512i a) { emu512 r; memcpy(&r, &a, 64); return r; }
EMU emu512i emu_castps_si512(emu512 a) { emu512i r; memcpy(&r, &a, 64); return r; }
EMU emu512 emu_xor_ps(emu512 a, emu512 b) { return emu_castsi512_ps(emu_xor_si512(emu_castps_si512(a), emu_castps_si512(b))); }
EMU emu512 emu_set1_ps(float x) { emu512 r; for (int k = 0; k < 16; k++) r.f[k] = x; return r; }
EMU emu512i emu_set1_epi32(int32_t x) { emu512i r; for (int k = 0; k < 16; k++) r.i[k] = x; return r; }
EMU emu512i emu_set1_epi8(char x) { emu512i r; memset(&r, x, 64); return r; }
EMU emu512 emu_setzero_ps(void) { return emu_set1_ps(0); }
EMU emu512i emu_setzero_si512(void) { return emu_set1_epi32(0); }
EMU emu512 emu_loadu_ps(const void *p) { emu512 r; memcpy(&r, p, 64); return r; }
EMU emu512i emu_loadu_si512(const void *p) { emu512i r; memcpy(&r, p, 64); return r; }
EMU void emu_storeu_ps(void *p, emu512 a) { memcpy(p, &a, 64); }
EMU void emu_storeu_si512(void *p, emu512i a) { memcpy(p, &a, 64); }
/* Aligned forms trap like the CPU. */
EMU const void *emu_aligned(const void *p) { if ((uintptr_t)p % 64) __builtin_trap(); return p; }
EMU emu512 emu_load_ps(const void *p) { return emu_loadu_ps(emu_aligned(p)); }
EMU emu512i emu_load_si512(const void *p) { return emu_loadu_si512(emu_aligned(p)); }
EMU void emu_store_ps(void *p, emu512 a) { emu_aligned(p); emu_storeu_ps(p, a); }
EMU void emu_store_si512(void *p, emu512i a) { emu_aligned(p); emu_storeu_si512(p, a); }
EMU emu512 emu_mask_mov_ps(emu512 src, emu_mask m, emu512 a)
{
    for (int k = 0; k < 16; k++)
        src.f[k] = m >> k & 1 ? a.f[k] : src.f[k];
    return src;
}
EMU emu512 emu_maskz_mov_ps(emu_mask m, emu512 a) { return emu_mask_mov_ps(emu_setzero_ps(), m, a); }
EMU void emu_mask_storeu_ps(float *p, emu_mask m, emu512 a)
{
    for (int k = 0; k < 16; k++)
        if (m >> k & 1)
            p[k] = a.f[k];
}
EMU emu512 emu_maskz_loadu_ps(emu_mask m, const float *p)
{
    emu512 r = emu_setzero_ps();
    for (int k = 0; k < 16; k++)
        if (m >> k & 1)
            r.f[k] = p[k];
    return r;
}
EMU emu_mask emu_cmp_ps_mask(emu512 a, emu512 b, int op)
{
    emu_mask m = 0;
    for (int k = 0; k < 16; k++)
        m = (emu_mask)(m | (op == _CMP_NLT_UQ ? !(a.f[k] < b.f[k]) : a.f[k] < b.f[k]) << k);
    return m;
}
EMU emu_mask emu_cmplt_epi32_mask(emu512i a, emu512i b)
{
    emu_mask m = 0;
    for (int k = 0; k < 16; k++)
        m = (emu_mask)(m | (a.i[k] < b.i[k]) << k);
    return m;
}
EMU emu_mask emu_cmpge_epi32_mask(emu512i a, emu512i b) { return (emu_mask)~emu_cmplt_epi32_mask(a, b); }
EMU emu512 emu_abs_ps(emu512 a) { for (int k = 0; k < 16; k++) a.f[k] = fabsf(a.f[k]); return a; }
EMU emu512 emu_roundscale_ps(emu512 a, int imm) { (void)imm; for (int k = 0; k < 16; k++) a.f[k] = rintf(a.f[k]); return a; }
EMU emu512 emu_cvtepi32_ps(emu512i a) { emu512 r; for (int k = 0; k < 16; k++) r.f[k] = (float)a.i[k]; return r; }
EMU emu512i emu_cvtps_epi32(emu512 a)
{
    emu512i r;
    for (int k = 0; k < 16; k++)
        r.i[k] = _mm_cvtss_si32(_mm_set_ss(a.f[k]));
    return r;
}
EMU emu512 emu_cvtph_ps(__m256i h)
{
    emu512 r;
    _mm256_storeu_ps(r.f, _mm256_cvtph_ps(_mm256_castsi256_si128(h)));
    _mm256_storeu_ps(r.f + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
    return r;
}
EMU __m256i emu_cvtps_ph(emu512 a, int imm)
{
    (void)imm;
    return _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps(a.f + 8), 0), _mm256_cvtps_ph(_mm256_loadu_ps(a.f), 0));
}
EMU __m128i emu_cvtepi32_epi8(emu512i a)
{
    int8_t r[16];
    for (int k = 0; k < 16; k++)
        r[k] = (int8_t)a.i[k];
    return _mm_loadu_si128((const void *)r);
}
EMU emu512i emu_widen_8(__m128i a, int is_signed)
{
    emu512i r;
    uint8_t b[16];
    memcpy(b, &a, 16);
    for (int k = 0; k < 16; k++)
        r.i[k] = is_signed ? (int8_t)b[k] : b[k];
    return r;
}
EMU emu512i emu_cvtepi8_epi32(__m128i a) { return emu_widen_8(a, 1); }
EMU emu512i emu_cvtepu8_epi32(__m128i a) { return emu_widen_8(a, 0); }
EMU emu512i emu_cvtepu16_epi32(__m256i a)
{
    emu512i r;
    uint16_t h[16];
    memcpy(h, &a, 32);
    for (int k = 0; k < 16; k++)
        r.i[k] = h[k];
    return r;
}
EMU emu512i emu_slli_epi32(emu512i a, unsigned n) { for (int k = 0; k < 16; k++) a.i[k] = (int32_t)((uint32_t)a.i[k] << n); return a; }
EMU emu512i emu_shift_16(emu512i a, unsigned n, int left)
{
    uint16_t h[32];
    memcpy(h, &a, 64);
    for (int k = 0; k < 32; k++)
        h[k] = (uint16_t)(left ? h[k] << n : h[k] >> n);
    memcpy(&a, h, 64);
    return a;
}
EMU emu512i emu_slli_epi16(emu512i a, unsigned n) { return emu_shift_16(a, n, 1); }
EMU emu512i emu_srli_epi16(emu512i a, unsigned n) { return emu_shift_16(a, n, 0); }
EMU emu512i emu_sub_epi8(emu512i a, emu512i b)
{
    uint8_t x[64], y[64];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    for (int k = 0; k < 64; k++)
        x[k] = (uint8_t)(x[k] - y[k]);
    memcpy(&a, x, 64);
    return a;
}
EMU emu512i emu_ternarylogic_epi32(emu512i a, emu512i b, emu512i c, int imm)
{
    if (imm != 0xf8) /* a | (b & c) is all that is used */
        __builtin_trap();
    for (int k = 0; k < 16; k++)
        a.i[k] |= b.i[k] & c.i[k];
    return a;
}
EMU int emu_reduce_add_epi32(emu512i a) { int s = 0; for (int k = 0; k < 16; k++) s += a.i[k]; return s; }
EMU int emu_reduce_max_epi32(emu512i a) { int s = a.i[0]; for (int k = 1; k < 16; k++) s = a.i[k] > s ? a.i[k] : s; return s; }
EMU float emu_reduce_max_ps(emu512 a) { float s = a.f[0]; for (int k = 1; k < 16; k++) s = a.f[k] > s ? a.f[k] : s; return s; }
EMU emu512i emu_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m, int n, int o,
                           int p)
{
    return (emu512i){{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}};
}
EMU int32_t emu_dp_lane(int32_t acc, const uint8_t *w, const int8_t *x)
{
    for (int k = 0; k < 4; k++)
        acc += w[k] * x[k];
    return acc;
}
EMU emu512i emu_dpbusd_epi32(emu512i acc, emu512i w, emu512i x)
{
    for (int k = 0; k < 16; k++)
        acc.i[k] = emu_dp_lane(acc.i[k], (const uint8_t *)&w.i[k], (const int8_t *)&x.i[k]);
    return acc;
}
EMU __m256i emu_dpbusd_avx_epi32(__m256i acc, __m256i w, __m256i x)
{
    int32_t a[8];
    uint8_t u[32];
    int8_t s[32];
    memcpy(a, &acc, 32);
    memcpy(u, &w, 32);
    memcpy(s, &x, 32);
    for (int k = 0; k < 8; k++)
        a[k] = emu_dp_lane(a[k], u + 4 * k, s + 4 * k);
    return _mm256_loadu_si256((const void *)a);
}

#define _mm512_add_ps emu_add_ps
#define _mm512_sub_ps emu_sub_ps
#define _mm512_mul_ps emu_mul_ps
#define _mm512_div_ps emu_div_ps
#define _mm512_max_ps emu_max_ps
#define _mm512_add_epi32 emu_add_epi32
#define _mm512_and_si512 emu_and_si512
#define _mm512_xor_si512 emu_xor_si512
#define _mm512_max_epi32 emu_max_epi32
#define _mm512_fmadd_ps emu_fmadd_ps
#define _mm512_castsi512_ps emu_castsi512_ps
#define _mm512_castps_si512 emu_castps_si512
#define _mm512_xor_ps emu_xor_ps
#define _mm512_set1_ps emu_set1_ps
#define _mm512_set1_epi32 emu_set1_epi32
#define _mm512_set1_epi8 emu_set1_epi8
#define _mm512_setzero_ps emu_setzero_ps
#define _mm512_setzero_si512 emu_setzero_si512
#define _mm512_loadu_ps emu_loadu_ps
#define _mm512_loadu_si512 emu_loadu_si512
#define _mm512_storeu_ps emu_storeu_ps
#define _mm512_storeu_si512 emu_storeu_si512
#define _mm512_load_ps emu_load_ps
#define _mm512_load_si512 emu_load_si512
#define _mm512_store_ps emu_store_ps
#define _mm512_store_si512 emu_store_si512
#define _mm512_mask_mov_ps emu_mask_mov_ps
#define _mm512_maskz_mov_ps emu_maskz_mov_ps
#define _mm512_mask_storeu_ps emu_mask_storeu_ps
#define _mm512_maskz_loadu_ps emu_maskz_loadu_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_cmp_ps_mask
#define _mm512_cmplt_epi32_mask emu_cmplt_epi32_mask
#define _mm512_cmpge_epi32_mask emu_cmpge_epi32_mask
#define _mm512_abs_ps emu_abs_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps emu_roundscale_ps
#define _mm512_cvtepi32_ps emu_cvtepi32_ps
#define _mm512_cvtps_epi32 emu_cvtps_epi32
#define _mm512_cvtph_ps emu_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emu_cvtps_ph
#define _mm512_cvtepi32_epi8 emu_cvtepi32_epi8
#define _mm512_cvtepi8_epi32 emu_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emu_slli_epi32
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emu_slli_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 emu_srli_epi16
#define _mm512_sub_epi8 emu_sub_epi8
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32 emu_ternarylogic_epi32
#define _mm512_reduce_add_epi32 emu_reduce_add_epi32
#define _mm512_reduce_max_epi32 emu_reduce_max_epi32
#define _mm512_reduce_max_ps emu_reduce_max_ps
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 emu_setr_epi32
#define _mm512_dpbusd_epi32 emu_dpbusd_epi32
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 emu_dpbusd_avx_epi32

/* --- AMX: palette 1, 8 tiles of at most 16 rows of 64 bytes -------------------------------------------------------------- */

struct emu_tiles {
    int rows[8], bytes[8];
    uint8_t data[8][16][64];
};
static __thread struct emu_tiles emu_tiles __attribute__((unused));

EMU void emu_tile_loadconfig(const void *p)
{
    const uint8_t *c = p;
    memset(&emu_tiles, 0, sizeof emu_tiles);
    if (c[0] != 1)
        __builtin_trap();
    for (int t = 0; t < 8; t++) {
        emu_tiles.rows[t] = c[48 + t];
        emu_tiles.bytes[t] = c[16 + 2 * t] | c[17 + 2 * t] << 8;
        if (emu_tiles.rows[t] > 16 || emu_tiles.bytes[t] > 64)
            __builtin_trap();
    }
}
EMU void emu_tile_release(void) { memset(&emu_tiles, 0, sizeof emu_tiles); }
EMU void emu_tile_zero(int t) { memset(emu_tiles.data[t], 0, sizeof emu_tiles.data[t]); }
EMU void emu_tile_loadd(int t, const void *p, long stride)
{
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy(emu_tiles.data[t][r], (const uint8_t *)p + r * stride, (size_t)emu_tiles.bytes[t]);
}
EMU void emu_tile_stored(int t, void *p, long stride)
{
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy((uint8_t *)p + r * stride, emu_tiles.data[t][r], (size_t)emu_tiles.bytes[t]);
}
EMU void emu_tile_dpbssd(int c, int a, int b)
{
    if (emu_tiles.rows[c] == 0 || emu_tiles.bytes[a] / 4 != emu_tiles.rows[b] || emu_tiles.rows[a] != emu_tiles.rows[c])
        __builtin_trap();
    for (int m = 0; m < emu_tiles.rows[c]; m++)
        for (int k = 0; k < emu_tiles.bytes[a] / 4; k++)
            for (int n = 0; n < emu_tiles.bytes[c] / 4; n++)
                for (int i = 0; i < 4; i++)
                    ((int32_t *)(void *)emu_tiles.data[c][m])[n] +=
                        (int8_t)emu_tiles.data[a][m][4 * k + i] * (int8_t)emu_tiles.data[b][k][4 * n + i];
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig emu_tile_loadconfig
#define _tile_release emu_tile_release
#define _tile_zero emu_tile_zero
#define _tile_loadd emu_tile_loadd
#define _tile_stored emu_tile_stored
#define _tile_dpbssd emu_tile_dpbssd

#endif
