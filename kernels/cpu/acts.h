/* kernels/cpu/acts.h - writing one quantized block of activations. Threading: pure. */
#ifndef SLUICE_KERNELS_CPU_ACTS_H
#define SLUICE_KERNELS_CPU_ACTS_H

#include <string.h>

#include "kernels/cpu/layout.h"
#include "kernels/math.h"
#include "kernels/ops.h"

/* Scale of a block from the largest |x| by its bits; *inverse is 0 when q is 0 (docs/numerics.md, Activations). */
static inline float act_scale(uint32_t max_bits, float *inverse)
{
    float amax = math_from_bits(max_bits);
    *inverse = 0;
    if (max_bits >= 0x7f800000)
        return NAN;
    if (amax < 0x1p-100f)
        return 0;
    *inverse = 127.f / amax;
    return amax / 127.f;
}

/* The fields of row r of a block whose tile has R rows. sum: of q's lower and upper 16. */
static inline void act_put_fields(uint8_t *block, uint32_t R, uint32_t r, float d, int32_t sum_lo, int32_t sum_hi)
{
    int32_t sum = sum_lo + sum_hi;
    float *f = (float *)(void *)ACT_FIELD(block, R, 0) + r;
    int32_t *n = (int32_t *)(void *)f;
    f[ACT_D * R] = d;
    f[ACT_XS * R] = d * (float)sum;
    n[ACT_N8 * R] = -8 * sum;
    n[ACT_N16 * R] = -16 * sum;
    n[ACT_N128 * R] = -128 * sum;
    n[ACT_N32_LO * R] = -32 * sum_lo;
    n[ACT_N32_HI * R] = -32 * sum_hi;
}

static inline void acts_begin(struct acts *a, uint32_t n_rows, uint32_t k, int thread)
{
    if (thread == 0) {
        a->n_rows = n_rows;
        a->k = k;
    }
}

#endif
