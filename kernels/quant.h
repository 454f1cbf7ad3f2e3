/* kernels/quant.h - decoding of weight blocks.
 *
 * Purpose    One row of any supported type to f32, to the bit as gguf-py does (tests/vectors/quants); and whether it holds
 *            numbers only.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_QUANT_H
#define SLUICE_KERNELS_QUANT_H

#include <stdint.h>

#include "common/model/tensor_type.h"

/* k: a multiple of the type's block. Returns 0 and writes nothing for a type that holds no weights (integers, F64). */
int quant_decode_row(enum tensor_type type, const void *src, uint32_t k, float *dst);
int quant_supported(enum tensor_type type);
/* 1: none of the row's values is infinite or NaN. Reads no more than scales where those decide. The type is supported. */
int quant_row_is_finite(enum tensor_type type, const void *src, uint32_t k);

#endif
