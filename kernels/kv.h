/* kernels/kv.h - addresses inside the KV pool (the formulas of ops.h, once). Threading: pure. */
#ifndef SLUICE_KERNELS_KV_H
#define SLUICE_KERNELS_KV_H

#include "kernels/ops.h"

enum { KV_GROUP = 16, KV_TILE = 64 }; /* positions of one K group; of one attention tile */

static inline uint8_t *kv_head(const struct kv_view *kv, const uint32_t *blocks, uint32_t head, uint32_t position)
{
    return kv->pool + blocks[position / kv->block_positions] * kv->block_stride + kv->layer_offset +
           (size_t)head * 4 * kv->head_dim * kv->block_positions;
}

/* K of the 16 positions around `position`: [head_dim][16] f16. */
static inline uint16_t *kv_k_group(const struct kv_view *kv, const uint32_t *blocks, uint32_t head, uint32_t position)
{
    uint32_t p = position % kv->block_positions;
    return (uint16_t *)(void *)(kv_head(kv, blocks, head, position) + (size_t)(p / KV_GROUP) * KV_GROUP * kv->head_dim * 2);
}

/* V of one position: [head_dim] f16; the positions of a block follow each other. */
static inline uint16_t *kv_v_row(const struct kv_view *kv, const uint32_t *blocks, uint32_t head, uint32_t position)
{
    uint32_t p = position % kv->block_positions;
    return (uint16_t *)(void *)(kv_head(kv, blocks, head, position) +
                                ((size_t)kv->block_positions + p) * kv->head_dim * 2);
}

/* First position that a row at `position` sees. */
static inline uint32_t kv_first(uint32_t position, uint32_t window)
{
    return window && position >= window ? position - window + 1 : 0;
}

#endif
