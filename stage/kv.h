/* stage/kv.h - the pool of KV blocks of one stage.
 *
 * Purpose    Maps a descriptor (the launcher's, else an own memfd), so that a pool can outlive a process, and gives the
 *            views of it that kernels take. All layers of a block stand together: a block is one run of bytes, which a lower
 *            tier can copy at once. Which block belongs to whom is not known here (coordinator).
 * Ownership  kv_pool_open/kv_pool_close; a given descriptor stays the caller's.
 * Threading  Read-only after open; the bytes belong to the kernels.
 * Errors     STATUS_OUT_OF_MEMORY (every page is taken at open: no fault later), STATUS_IO.
 */
#ifndef SLUICE_STAGE_KV_H
#define SLUICE_STAGE_KV_H

#include "common/base/error.h"
#include "kernels/ops.h"

struct kv_shape {
    uint32_t n_layers, n_kv_heads, head_dim, block_positions;
};

struct kv_pool {
    struct kv_shape shape;
    uint32_t n_blocks;
    uint8_t *data;
    size_t bytes;
    int own_fd; /* -1: the descriptor is the caller's, or there is none */
};

size_t kv_layer_bytes(const struct kv_shape *s); /* of one block */
size_t kv_block_bytes(const struct kv_shape *s);

/* fd -1: an own memfd. A given one is brought to the pool's size; what it held stays where sizes agree. */
enum status kv_pool_open(const struct kv_shape *s, uint32_t n_blocks, int fd, struct kv_pool *out, struct error *err);
void kv_pool_close(struct kv_pool *p); /* also of a zeroed pool */

/* layer counts from the stage's first. */
struct kv_view kv_pool_view(const struct kv_pool *p, uint32_t layer);
/* Bytes that the descriptor already holds in memory: they need not be found again. */
uint64_t kv_fd_resident(int fd);

#endif
