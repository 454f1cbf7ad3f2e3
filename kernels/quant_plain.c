/* Blocks of the types that have no strips: they are computed with as F32, so all that is known of them is their values. Layouts
 * after ggml's block structs (ggml-common.h); every product in gguf-py's order, for the values are compared to the bit. */
#include <string.h>

#include "kernels/block.h"
#include "kernels/math.h"
#include "kernels/quant_grids.h"

enum { SUPER = 256 }; /* elements of a block of the larger types */

static uint32_t load_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t load_u32(const uint8_t *p)
{
    return load_u16(p) | load_u16(p + 2) << 16;
}

static float load_f16(const uint8_t *p)
{
    return math_from_f16((uint16_t)load_u16(p));
}

/* --- 2 and 3 bits by groups of 16 ------------------------------------------------------------------------------------- */

/* Bytes of element i of a block whose 2-bit fields lie in planes: 32 bytes hold 128 elements, 32 to a plane. */
static uint32_t plane_bits(const uint8_t *p, uint32_t i)
{
    return p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3u;
}

static void decode_q2_k(const uint8_t *p, float *y)
{
    const uint8_t *scales = p, *q = p + 16;
    float d = load_f16(p + 80), min = load_f16(p + 82);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint8_t sc = scales[i / 16];
        y[i] = d * (float)(sc & 15) * (float)plane_bits(q, i) - min * (float)(sc >> 4);
    }
}

/* Six bits: the low four of scale j in nibbles of the first 8 bytes, the high two in the last 4. */
static int q3_k_scale(const uint8_t *s, uint32_t j)
{
    uint32_t low = s[j % 8] >> (j < 8 ? 0 : 4) & 15u, high = s[8 + j % 4] >> (j / 4 * 2) & 3u;
    return (int)(low | high << 4) - 32;
}

static void decode_q3_k(const uint8_t *p, float *y)
{
    const uint8_t *high = p, *q = p + 32, *scales = p + 96;
    float d = load_f16(p + 108);
    for (uint32_t i = 0; i < SUPER; i++) {
        int v = (int)plane_bits(q, i) - (high[i % 32] >> (i / 32) & 1 ? 0 : 4);
        y[i] = d * (float)q3_k_scale(scales, i / 16) * (float)v;
    }
}

/* --- ternary ------------------------------------------------------------------------------------------------------------ */

/* Digit n of a byte that holds five base-3 digits as a fraction of 256. */
static float ternary(uint8_t q, uint32_t n)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    return (float)((int)((uint8_t)(q * power[n]) * 3u >> 8) - 1);
}

static void decode_tq1_0(const uint8_t *p, float *y)
{
    /* bytes, their number, digits of each: runs of all first digits, all second digits, ... */
    static const struct {
        uint8_t at, n, digits;
    } runs[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    float d = load_f16(p + 52);
    for (uint32_t r = 0; r < sizeof runs / sizeof *runs; r++)
        for (uint32_t digit = 0; digit < runs[r].digits; digit++)
            for (uint32_t i = 0; i < runs[r].n; i++)
                *y++ = d * ternary(p[runs[r].at + i], digit);
}

static void decode_tq2_0(const uint8_t *p, float *y)
{
    float d = load_f16(p + 64);
    for (uint32_t i = 0; i < SUPER; i++)
        y[i] = d * (float)((int)plane_bits(p, i) - 1);
}

/* --- 4 bits that number a table's values ------------------------------------------------------------------------------- */

static const int8_t values_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* E2M1, doubled */
static const int8_t values_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* n bytes: elements i (low nibble) and n + i. */
static void decode_nibbles(const uint8_t *q, uint32_t n, const int8_t values[16], float d, float *y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = d * (float)values[q[i] & 15];
        y[n + i] = d * (float)values[q[i] >> 4];
    }
}

static void decode_mxfp4(const uint8_t *p, float *y)
{
    /* E8M0, halved: 2^(e - 128). */
    float d = math_from_bits(p[0] < 2 ? 0x00200000u << p[0] : (uint32_t)(p[0] - 1) << 23);
    decode_nibbles(p + 1, 16, values_fp4, d, y);
}

/* Unsigned E4M3, halved; the pattern of its NaN is a zero. */
static float ue4m3(uint8_t x)
{
    uint32_t e = x >> 3 & 15, m = x & 7;
    if (x == 0x7f)
        return 0;
    if (e == 0)
        return (float)m * 0x1p-10f;
    return math_scale2(1.f + (float)m / 8.f, (int)e - 8);
}

static void decode_nvfp4(const uint8_t *p, float *y)
{
    for (uint32_t s = 0; s < 4; s++)
        decode_nibbles(p + 4 + 8 * s, 8, values_fp4, ue4m3(p[s]), y + 16 * s);
}

static void decode_iq4_nl(const uint8_t *p, float *y)
{
    decode_nibbles(p + 2, 16, values_nl, load_f16(p), y);
}

static void decode_iq4_xs(const uint8_t *p, float *y)
{
    float d = load_f16(p);
    uint32_t high = load_u16(p + 2);
    for (uint32_t b = 0; b < 8; b++) {
        uint32_t scale = (p[4 + b / 2] >> (4 * (b % 2)) & 15u) | (high >> (2 * b) & 3u) << 4;
        decode_nibbles(p + 8 + 16 * b, 16, values_nl, d * (float)((int)scale - 32), y + 32 * b);
    }
}

/* --- grids ---------------------------------------------------------------------------------------------------------------- */

/* Seven sign bits stand for eight: their number is even. */
static uint32_t even_signs(uint32_t seven)
{
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1u) << 7;
}

static float with_sign(float x, uint32_t signs, uint32_t i)
{
    return signs >> i & 1u ? -x : x;
}

static void point_iq2(uint16_t point, uint32_t signs, float d, float y[8])
{
    static const float values[4] = {8, 25, 43};
    for (uint32_t i = 0; i < 8; i++)
        y[i] = with_sign(d * values[point >> (2 * i) & 3], signs, i);
}

static float iq2_scale(float d, uint32_t four_bits)
{
    return d * (0.5f + (float)four_bits) * 0.25f;
}

static void decode_iq2_xxs(const uint8_t *p, float *y)
{
    float d = load_f16(p);
    for (uint32_t g = 0; g < 32; g++) {
        const uint8_t *q = p + 2 + 8 * (g / 4);
        uint32_t rest = load_u32(q + 4);
        point_iq2(grid_iq2_xxs[q[g % 4]], even_signs(rest >> (7 * (g % 4)) & 127), iq2_scale(d, rest >> 28), y + 8 * g);
    }
}

static void decode_iq2_xs(const uint8_t *p, float *y)
{
    float d = load_f16(p);
    const uint8_t *scales = p + 66;
    for (uint32_t g = 0; g < 32; g++) {
        uint32_t q = load_u16(p + 2 + 2 * g);
        float dl = iq2_scale(d, scales[g / 4] >> (g / 2 % 2 * 4) & 15u);
        point_iq2(grid_iq2_xs[q & 511], even_signs(q >> 9), dl, y + 8 * g);
    }
}

static void decode_iq2_s(const uint8_t *p, float *y)
{
    float d = load_f16(p);
    const uint8_t *low = p + 2, *signs = p + 34, *high = p + 66, *scales = p + 74;
    for (uint32_t g = 0; g < 32; g++) {
        uint32_t at = low[g] | (high[g / 4] >> (2 * (g % 4)) & 3u) << 8;
        float dl = iq2_scale(d, scales[g / 4] >> (g / 2 % 2 * 4) & 15u);
        point_iq2(grid_iq2_s[at], signs[g], dl, y + 8 * g);
    }
}

static void decode_iq3_xxs(const uint8_t *p, float *y)
{
    static const float values[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    float d = load_f16(p);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t rest = load_u32(p + 66 + 4 * (i / 32)), signs = even_signs(rest >> (7 * (i / 8 % 4)) & 127);
        float dl = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        y[i] = with_sign(dl * values[grid_iq3_xxs[p[2 + i / 4]] >> (4 * (i % 4)) & 7], signs, i % 8);
    }
}

static void decode_iq3_s(const uint8_t *p, float *y)
{
    const uint8_t *low = p + 2, *high = p + 66, *signs = p + 74, *scales = p + 106;
    float d = load_f16(p);
    for (uint32_t i = 0; i < SUPER; i++) {
        uint32_t at = low[i / 4] | (high[i / 32] >> (i / 4 % 8) & 1u) << 8;
        float dl = d * (float)(1 + 2 * (scales[i / 64] >> (i / 32 % 2 * 4) & 15));
        float value = (float)(2 * (grid_iq3_s[at] >> (4 * (i % 4)) & 7) + 1);
        y[i] = with_sign(dl * value, signs[i / 8], i % 8);
    }
}

static void point_iq1(uint16_t point, float shift, float d, float y[8])
{
    for (uint32_t i = 0; i < 8; i++)
        y[i] = d * ((float)((int)(point >> (2 * i) & 3) - 1) + shift);
}

static void decode_iq1_s(const uint8_t *p, float *y)
{
    float d = load_f16(p);
    for (uint32_t g = 0; g < 32; g++) {
        uint32_t high = load_u16(p + 34 + 2 * (g / 4)), at = p[2 + g] | (high >> (3 * (g % 4)) & 7u) << 8;
        point_iq1(grid_iq1[at], high & 0x8000 ? -0.125f : 0.125f, d * (float)(2 * (high >> 12 & 7) + 1), y + 8 * g);
    }
}

static void decode_iq1_m(const uint8_t *p, float *y)
{
    const uint8_t *scales = p + 48;
    uint32_t half = 0; /* the scale, four bits of it on top of each word of scales */
    for (uint32_t w = 0; w < 4; w++)
        half |= (load_u16(scales + 2 * w) >> 12) << (4 * w);
    float d = math_from_f16((uint16_t)half);
    for (uint32_t g = 0; g < 32; g++) {
        uint32_t high = p[32 + g / 2] >> (4 * (g % 2)) & 15u, at = p[g] | (high & 7) << 8;
        uint32_t scale = load_u16(scales + g / 8 * 2) >> (3 * (g / 2 % 4)) & 7u;
        point_iq1(grid_iq1[at], high & 8 ? -0.125f : 0.125f, d * (float)(2 * scale + 1), y + 8 * g);
    }
}

block_decode_fn *block_plain(enum tensor_type type)
{
    switch ((int)type) {
    case TENSOR_Q2_K:
        return decode_q2_k;
    case TENSOR_Q3_K:
        return decode_q3_k;
    case TENSOR_TQ1_0:
        return decode_tq1_0;
    case TENSOR_TQ2_0:
        return decode_tq2_0;
    case TENSOR_MXFP4:
        return decode_mxfp4;
    case TENSOR_NVFP4:
        return decode_nvfp4;
    case TENSOR_IQ1_S:
        return decode_iq1_s;
    case TENSOR_IQ1_M:
        return decode_iq1_m;
    case TENSOR_IQ2_XXS:
        return decode_iq2_xxs;
    case TENSOR_IQ2_XS:
        return decode_iq2_xs;
    case TENSOR_IQ2_S:
        return decode_iq2_s;
    case TENSOR_IQ3_XXS:
        return decode_iq3_xxs;
    case TENSOR_IQ3_S:
        return decode_iq3_s;
    case TENSOR_IQ4_NL:
        return decode_iq4_nl;
    case TENSOR_IQ4_XS:
        return decode_iq4_xs;
    default:
        return NULL;
    }
}
