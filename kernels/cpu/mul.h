/* kernels/cpu/mul.h - the inner products, one function for each instruction set.
 *
 * Purpose    What the driver (matmul.c) calls: rows [row0, row1) against strips [strip0, strip1) of one matrix. row0 is a
 *            multiple of 16 and row1 too, or the last row. Any cut gives the same bits.
 * Threading  Pure; scratch is on the stack.
 */
#ifndef SLUICE_KERNELS_CPU_MUL_H
#define SLUICE_KERNELS_CPU_MUL_H

#include <string.h>

#include "kernels/cpu/layout.h"
#include "kernels/ops.h"

struct mul {
    enum tensor_type type;
    uint32_t n, k, n_rows;
    const uint8_t *packed; /* of strip 0 */
    const uint8_t *acts;   /* int8 tiles */
    const float *x;        /* [n_rows][k], for float types */
    float *y;
    size_t y_stride;
};

typedef void mul_fn(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1);

mul_fn mul_portable, mul_avx2, mul_avxvnni, mul_avx512, mul_amx; /* quantized types */
mul_fn mul_float_portable, mul_float_avx2, mul_float_avx512;

/* Columns of a strip that exist. */
static inline uint32_t strip_columns(const struct mul *m, uint32_t strip)
{
    uint32_t left = m->n - strip * STRIP;
    return left < STRIP ? left : STRIP;
}

/* Jobs to kernels: the driver (matmul.c). */
void matmul_drive(mul_fn *quantized, mul_fn *floats, const struct matmul_job *jobs, int n_jobs, const struct acts *a,
                  int thread, int n_threads);

size_t pack_weight_bytes(enum tensor_type type, uint32_t n, uint32_t k);
void pack_weight(struct weight *w, uint32_t row0, uint32_t row1);
size_t acts_int8_bytes(uint32_t max_rows, uint32_t max_k);

#endif
