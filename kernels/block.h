/* kernels/block.h - weight blocks of the file: 32 weights as integers and scales, or whole blocks as values.
 *
 * Purpose    The only place that knows the bit layouts of the file's quantized blocks; decoding of rows, packing and the
 *            reference product all read through it. Types of BLOCK_QUANT_MAP have products of their own; the others are
 *            "plain": decoded to F32 when they are packed. Formats after ggml's block structs (ggml-common.h).
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_BLOCK_H
#define SLUICE_KERNELS_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "common/model/tensor_type.h"

/* X(type, value = q - offset, has a minimum, scales per 32) */
#define BLOCK_QUANT_MAP(X)                                                                                             \
    X(Q4_0, 8, 0, 1)                                                                                                   \
    X(Q4_1, 0, 1, 1)                                                                                                   \
    X(Q5_0, 16, 0, 1)                                                                                                  \
    X(Q5_1, 0, 1, 1)                                                                                                   \
    X(Q8_0, 128, 0, 1)                                                                                                 \
    X(Q4_K, 0, 1, 1)                                                                                                   \
    X(Q5_K, 0, 1, 1)                                                                                                   \
    X(Q6_K, 32, 0, 2)

struct block_traits {
    uint32_t elements, bytes; /* of a block in the file */
    int offset, has_min, n_scales;
};

/* NULL: not a type of BLOCK_QUANT_MAP. */
const struct block_traits *block_traits(enum tensor_type type);
const char *block_type_name(enum tensor_type type); /* "?" for an unknown number */
/* Elements and bytes of a block of any type of the file format; 0, 0 for an unknown number. */
void block_size(enum tensor_type type, uint32_t *elements, uint32_t *bytes);
/* Bytes of one row of k elements in the file; the type is known and k a multiple of its block. */
size_t block_row_bytes(enum tensor_type type, uint32_t k);

/* Sub-block `sub` (32 elements) of a file block: element i is s[i/16] * (q[i] - offset) + *mn. q unsigned. Scales are exact
 * in f32: s = d, or d*sc of a K-quant; *mn = m, or -(dmin*m). */
void block_decode(enum tensor_type type, const uint8_t *block, uint32_t sub, uint8_t q[32], float s[2], float *mn);
/* The 6-bit scale and minimum of sub-block `sub` of a Q4_K or Q5_K block. */
void block_k4_scales(const uint8_t *block, uint32_t sub, uint8_t *scale, uint8_t *min);

/* A whole block of a plain type to its values. */
typedef void block_decode_fn(const uint8_t *block, float *y);
block_decode_fn *block_plain(enum tensor_type type); /* NULL: not a plain type */
enum { BLOCK_ELEMENTS_MAX = 256 };                   /* of any type */
/* The type that products of a type without integers compute with: F16 and BF16 as they are, else F32. */
enum tensor_type block_float_type(enum tensor_type type);

#endif
