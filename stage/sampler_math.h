/* stage/sampler_math.h - exp and log in double with one result on every CPU.
 *
 * Purpose    libm picks variants of both by CPU, which differ in the last bit; a logprob must not. Chains of additions,
 *            products and one division, each rounded once (-ffp-contract=off).
 * Ownership  Values.
 * Threading  Pure.
 * Invariants Relative error of exp < 3e-16 * (1 + |x|), of log < 4e-16 (absolute near 1).
 * Errors     None.
 */
#ifndef SLUICE_STAGE_SAMPLER_MATH_H
#define SLUICE_STAGE_SAMPLER_MATH_H

#include <stdint.h>
#include <string.h>

#define SAMPLER_LN2 0.6931471805599453
#define SAMPLER_LN2_HI 0x1.62e42fefa38p-1 /* its low 11 bits are 0: exact times any exponent */
#define SAMPLER_LN2_LO 0x1.ef35793c7673p-45

static inline uint64_t sampler_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double sampler_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* e^x for x <= 0; 0 below -700. Taylor to degree 13 within ln2 / 2 of a power of 2. */
static inline double sampler_exp(double x)
{
    const double shift = 0x1.8p52;
    double in = x > -700 ? x : -700;
    double t = in * 1.4426950408889634 + shift; /* the low bits are the nearest integer */
    double n = t - shift, r = (in - n * SAMPLER_LN2_HI) - n * SAMPLER_LN2_LO;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    double y = p * sampler_from_bits((sampler_bits(t) + 1023) << 52);
    return x > -700 ? y : 0;
}

/* For normal x > 0. ln m = 2 atanh((m - 1) / (m + 1)) for m within sqrt(2) of 1. */
static inline double sampler_log(double x)
{
    uint64_t u = sampler_bits(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = sampler_from_bits((u & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, p = 0;
    for (int k = 23; k >= 3; k -= 2)
        p = (p + 1.0 / k) * s2;
    return (double)e * SAMPLER_LN2_HI + (2 * (s + s * p) + (double)e * SAMPLER_LN2_LO);
}

#endif
