/* common/model/kv_window.h - how much KV room the layers with a window need (sliding attention).
 *
 * Purpose    Layers whose rows see only the last `window` positions are a group of their own, WINDOW, with blocks of its own; all
 *            others are PAGED. Coordinator and stages work out its sizes from the same facts, so that one number of blocks, that of
 *            the PAGED group, says both on the wire.
 * Ownership  Plain values.
 * Threading  Pure.
 * Invariants Sizes grow with the number of blocks: the smallest PAGED pool of all stages is the smallest WINDOW pool too.
 */
#ifndef SLUICE_COMMON_MODEL_KV_WINDOW_H
#define SLUICE_COMMON_MODEL_KV_WINDOW_H

#include <stdint.h>

struct kv_window {
    uint32_t window;   /* positions that a row sees, its own among them; 0: the model has no such group */
    uint32_t kv_block; /* positions of a block, of either group */
    uint32_t slots, context;
    uint32_t max_rows; /* of a tick */
    uint32_t ticks;    /* in flight at most */
};

/* The group of a model whose layers have such windows, or none (all zero): a window that reaches over the whole context frees
 * nothing. */
struct kv_window kv_window_of(const struct kv_window *w);

/* The first block that rows at positions >= n may read; those before it are behind the window. */
uint32_t kv_window_first(const struct kv_window *w, uint32_t n);
/* Positions before its own that a row reads. */
uint32_t kv_window_reach(const struct kv_window *w);
/* Blocks that one sequence holds at most: of its window, and of the rows that are in flight. */
uint32_t kv_window_hold(const struct kv_window *w);
/* Blocks of the WINDOW group in a pool that has n_blocks of the PAGED one: what all slots hold at most and an eighth as cache,
 * but never more than there are of the other. */
uint32_t kv_window_blocks(const struct kv_window *w, uint32_t n_blocks);

#endif
