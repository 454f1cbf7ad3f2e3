/* kernels/math.h - exp, sin, cos and their like with one result on every CPU.
 *
 * Purpose    libm picks a variant by CPU; these are fixed chains of explicit f32/f64 operations, so that scalar and vector
 *            code, AVX2 and AVX-512, give the same bits. Vector forms in kernels/cpu follow the chains stated here.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_MATH_H
#define SLUICE_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^x for x <= 0, relative error < 2.5e-7; 0 below -125 (prototypes/cpu_kernels, attn.h). Degree 5 in r = x - rint(x). */
#define EXP2_C0 1.0f
#define EXP2_C1 0.693147182f
#define EXP2_C2 0.240226462f
#define EXP2_C3 0.0555032921f
#define EXP2_C4 0.00967884157f
#define EXP2_C5 0.00132647355f

static inline float math_scale2(float p, int n) /* p * 2^n, p in [0.5, 2], n in -125..127: exact */
{
    uint32_t u;
    memcpy(&u, &p, 4);
    u += (uint32_t)n << 23;
    memcpy(&p, &u, 4);
    return p;
}

static inline float math_exp2_neg(float x)
{
    if (!(x >= -125.f)) /* a NaN gives 0 too: attention masks with it; logits are checked for NaN elsewhere */
        return x != x ? x : 0.f;
    float n = rintf(x), r = x - n;
    float p = fmaf(EXP2_C5, r, EXP2_C4);
    p = fmaf(p, r, EXP2_C3);
    p = fmaf(p, r, EXP2_C2);
    p = fmaf(p, r, EXP2_C1);
    p = fmaf(p, r, EXP2_C0);
    return math_scale2(p, (int)n);
}

#endif
