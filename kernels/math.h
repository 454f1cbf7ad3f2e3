/* kernels/math.h - exp, sin, cos and their like with one result on every CPU.
 *
 * Purpose    libm picks a variant by CPU; these are fixed chains of explicit f32/f64 operations, so that scalar and vector
 *            code, AVX2 and AVX-512, give the same bits. Vector forms in kernels/cpu follow the chains stated here.
 * Threading  Pure.
 * Invariants Built with -ffp-contract=off; a product and a sum are one rounding only where fmaf is written. rintf, sqrtf and
 *            fmaf are exact in every libm. A NaN gives a NaN (its payload is not defined).
 */
#ifndef SLUICE_KERNELS_MATH_H
#define SLUICE_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^x for x <= 0, relative error < 3e-7; 0 below -125. Degree 5 in r = x - rint(x): 1 + r*p(r), p interpolates (2^r - 1)/r at
 * the Chebyshev nodes of [-1/2, 1/2] (docs/numerics.md). */
#define EXP2_C0 1.0f
#define EXP2_C1 0.693147182f
#define EXP2_C2 0.240223490f
#define EXP2_C3 0.0555038101f
#define EXP2_C4 0.00966636852f
#define EXP2_C5 0.00133813025f
#define LOG2E_F 1.44269504f

/* e^x for x <= 0: Cody-Waite reduction and the degree-6 polynomial of Cephes' expf (Moshier); 0 below -87. */
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO -2.12194440e-4f
#define EXP_P0 1.9875691500e-4f
#define EXP_P1 1.3981999507e-3f
#define EXP_P2 8.3334519073e-3f
#define EXP_P3 4.1665795894e-2f
#define EXP_P4 1.6666665459e-1f
#define EXP_P5 5.0000001201e-1f

/* GELU (tanh form): 0.5 x (1 + tanh(u)) = x sigmoid(2u), 2u = x (GELU_C1 + GELU_C3 x^2) = 2 sqrt(2/pi) (x + 0.044715 x^3). */
#define GELU_C1 1.59576912f
#define GELU_C3 0.0713548163f

/* tanh: Cephes' tanhf (Moshier), x + x^3 P(x^2) below 0.625; from there (1 - t)/(1 + t), t = e^(-2|x|). */
#define TANH_SMALL 0.625f
#define TANH_P0 -5.70498872745e-3f
#define TANH_P1 2.06390887954e-2f
#define TANH_P2 -5.37397155531e-2f
#define TANH_P3 1.33314422036e-1f
#define TANH_P4 -3.33332819422e-1f

static inline uint32_t math_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float math_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float math_scale2(float p, int n) /* p * 2^n, p in [0.5, 2], n in -125..127: exact */
{
    return math_from_bits(math_bits(p) + ((uint32_t)n << 23));
}

static inline float math_exp2_neg(float x)
{
    if (!(x >= -125.f))
        return x != x ? x : 0.f;
    float n = rintf(x), r = x - n;
    float p = fmaf(EXP2_C5, r, EXP2_C4);
    p = fmaf(p, r, EXP2_C3);
    p = fmaf(p, r, EXP2_C2);
    p = fmaf(p, r, EXP2_C1);
    p = fmaf(p, r, EXP2_C0);
    return math_scale2(p, (int)n);
}

static inline float math_exp_neg(float x)
{
    if (!(x >= -87.f))
        return x != x ? x : 0.f;
    float n = rintf(x * LOG2E_F);
    float r = fmaf(n, -EXP_LN2_LO, fmaf(n, -EXP_LN2_HI, x));
    float p = fmaf(EXP_P0, r, EXP_P1);
    p = fmaf(p, r, EXP_P2);
    p = fmaf(p, r, EXP_P3);
    p = fmaf(p, r, EXP_P4);
    p = fmaf(p, r, EXP_P5);
    p = fmaf(p, r * r, r) + 1.f;
    return math_scale2(p, (int)n);
}

static inline float math_sigmoid(float x)
{
    float e = math_exp_neg(-fabsf(x));
    return (x < 0.f ? e : 1.f) / (1.f + e);
}

static inline float math_silu(float x)
{
    return x * math_sigmoid(x);
}

static inline float math_gelu_tanh(float x)
{
    return x * math_sigmoid(fmaf(GELU_C3, x * x, GELU_C1) * x);
}

static inline float math_tanh(float x)
{
    float a = fabsf(x), z = x * x;
    if (a < TANH_SMALL) {
        float p = fmaf(TANH_P0, z, TANH_P1);
        p = fmaf(p, z, TANH_P2);
        p = fmaf(p, z, TANH_P3);
        p = fmaf(p, z, TANH_P4);
        return fmaf(p * z, x, x);
    }
    float t = math_exp_neg(-2.f * a);
    return copysignf((1.f - t) / (1.f + t), x);
}

/* sin and cos of a, |a| up to 1e8, within 0.51 ulp: n = rint(a * 2/pi), the rest against a 25+53 bit pi/2 in f64, then the
 * polynomials of FreeBSD's k_sindf and k_cosdf (error below 2^-37), each product and sum rounded on its own. */
static inline void math_sincos(float a, float *sin_out, float *cos_out)
{
    if (!(fabsf(a) <= 1e8f)) {
        *sin_out = *cos_out = NAN;
        return;
    }
    double n = rint((double)a * 6.36619772367581382433e-01);
    double x = ((double)a - n * 1.57079631090164184570e+00) - n * 1.58932547735281966916e-08;
    double z = x * x, w = z * z;
    double s = (x + z * x * (-0x15555554cbac77.0p-55 + z * 0x111110896efbb2.0p-59)) +
               z * x * w * (-0x1a00f9e2cae774.0p-65 + z * 0x16cd878c3b46a7.0p-71);
    double c = ((1.0 + z * -0x1ffffffd0c5e81.0p-54) + w * 0x155553e1053a42.0p-57) +
               w * z * (-0x16c087e80f1e27.0p-62 + z * 0x199342e0ee5069.0p-68);
    unsigned quadrant = (unsigned)(int64_t)n & 3;
    float sf = (float)s, cf = (float)c;
    *sin_out = quadrant == 0 ? sf : quadrant == 1 ? cf : quadrant == 2 ? -sf : -cf;
    *cos_out = quadrant == 0 ? cf : quadrant == 1 ? -sf : quadrant == 2 ? -cf : sf;
}

static inline float math_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 0) /* zero or subnormal: m * 2^-24, exact */
        return math_from_bits(sign | math_bits((float)m * 0x1p-24f));
    if (e == 31)
        return math_from_bits(sign | 0x7f800000 | m << 13);
    return math_from_bits(sign | (e + 112) << 23 | m << 13);
}

static inline uint16_t math_to_f16(float x) /* nearest, halves to even; too large: infinity */
{
    uint32_t u = math_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x47800000) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: adding 0.5 leaves the value in units of 2^-24 */
        float f = math_from_bits(a) + 0.5f;
        return (uint16_t)(sign | (math_bits(f) - math_bits(0.5f)));
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

static inline float math_from_bf16(uint16_t h)
{
    return math_from_bits((uint32_t)h << 16);
}

#endif
