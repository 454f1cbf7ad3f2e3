/* kernels/cpu/layout.h - how weights and activations lie in memory for every CPU kernel.
 *
 * Purpose    Weights: a strip is 16 output rows, one 32-bit lane each; a cell is a strip x 64 k (the last may be half
 *            used): scales, minimums, high bits, payload, each 64-byte aligned. A byte vector of 64 holds 4 consecutive k of
 *            each lane: the operand of vpdpbusd, two AVX2 halves, and a row of an AMX tile alike. Nibble vector v holds the
 *            k-quads v (low) and v+4 (high). Weights stay unsigned (q); the offset leaves through the sums. A header (d,
 *            dmin) precedes each 4 cells of a K-quant. Float types, and plain ones as F32: [k][16] elements, k-major.
 *            Activations: tiles of R rows (16, or what is left of the last: R = n_rows - 16*tile), inside a tile
 *            block-major; a block of 32 is q [R][32] int8, then the fields of enum act_field [field][R] of 4 bytes.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_CPU_LAYOUT_H
#define SLUICE_KERNELS_CPU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/model/tensor_type.h"
#include "kernels/share.h"

/* Offsets inside a cell (0: absent; the scales are at 0), bytes of the payload of one half (32 k). */
struct strip_layout {
    uint32_t header, mins, high, payload, cell, half;
    int offset;
    int has_min, n_scales, is_int;
};

/* static: each kernel's offsets fold to constants. */
static inline struct strip_layout strip_layout(enum tensor_type type)
{
    switch ((int)type) {
    case TENSOR_Q4_0:
        return (struct strip_layout){0, 0, 0, 64, 576, 256, 8, 0, 1, 1};
    case TENSOR_Q4_1:
        return (struct strip_layout){0, 64, 0, 128, 640, 256, 0, 1, 1, 1};
    case TENSOR_Q5_0:
        return (struct strip_layout){0, 0, 64, 192, 704, 256, 16, 0, 1, 1};
    case TENSOR_Q5_1:
        return (struct strip_layout){0, 64, 128, 256, 768, 256, 0, 1, 1, 1};
    case TENSOR_Q8_0:
        return (struct strip_layout){0, 0, 0, 64, 1088, 512, 128, 0, 1, 1};
    case TENSOR_Q4_K:
        return (struct strip_layout){64, 0, 0, 64, 576, 256, 0, 1, 1, 1};
    case TENSOR_Q5_K:
        return (struct strip_layout){64, 0, 64, 192, 704, 256, 0, 1, 1, 1};
    case TENSOR_Q6_K:
        return (struct strip_layout){64, 0, 64, 320, 832, 256, 32, 0, 2, 1};
    default:
        return (struct strip_layout){0};
    }
}

static inline uint32_t float_bytes(enum tensor_type type) /* of one element of a type without integers, as packed */
{
    return type == TENSOR_F16 || type == TENSOR_BF16 ? 2 : 4;
}

/* Bytes of one strip, a multiple of 64. */
static inline size_t strip_bytes(enum tensor_type type, uint32_t k)
{
    struct strip_layout l = strip_layout(type);
    if (!l.is_int)
        return ((size_t)k * STRIP * float_bytes(type) + 63) / 64 * 64;
    return (size_t)((k + 63) / 64) * l.cell + (size_t)((k + 255) / 256) * l.header;
}

enum act_field {
    ACT_D,      /* f32 scale */
    ACT_XS,     /* f32 d * sum(q) */
    ACT_N8,     /* i32 -8 * sum(q), the start value that takes the offset of Q4_0 out; likewise: */
    ACT_N16,
    ACT_N128,
    ACT_N32_LO, /* -32 * sum of q[0..15] */
    ACT_N32_HI,
    ACT_N_FIELDS,
};

enum { ACT_BLOCK_BYTES = 32 + 4 * ACT_N_FIELDS }; /* one row, one block of 32 */

static inline uint32_t act_tile_rows(uint32_t n_rows, uint32_t tile)
{
    uint32_t left = n_rows - tile * SHARE_TILE;
    return left < SHARE_TILE ? left : SHARE_TILE;
}

static inline size_t act_tile_offset(uint32_t k, uint32_t tile)
{
    return (size_t)tile * SHARE_TILE * (k / 32) * ACT_BLOCK_BYTES;
}

/* The place of field f of a block whose tile has R rows; p is the block's begin. */
#define ACT_FIELD(p, R, f) ((p) + 32 * (size_t)(R) + 4 * (size_t)(R) * (size_t)(f))

#endif
