/* stage/kv.h - the pool of KV blocks of one stage, and what says whether its content may be used again.
 *
 * Purpose    Maps a descriptor (the launcher's, else an own memfd), so that a pool outlives a process, and gives the views of
 *            it that kernels take. All layers of a block stand together: a block is one run of bytes, which a lower tier can copy
 *            at once. Which block belongs to whom is not known here (coordinator). Layers with a window have blocks of their
 *            own, as many as follow from the number of the others (common/model/kv_window.h).
 *
 *            The descriptor holds one page of header, then the PAGED blocks, then the WINDOW blocks. The header names the content (id), says what gives the
 *            bytes their meaning, keeps the watermark (the last tick that was computed to its end) and the costs that were
 *            measured. A header that does not say exactly what kv_pool_open is told: the blocks are zeroed and get a new id.
 * Ownership  kv_pool_open/kv_pool_close; a given descriptor stays the caller's.
 * Threading  The compute thread; the blocks' bytes belong to the kernels.
 * Invariants 1. The id changes whenever what earlier ticks wrote may be gone, and never otherwise.
 *            2. Killed anywhere, a process leaves a watermark that was true at some moment: it is written aside, then made the
 *               current one by one store.
 *            3. Rows of ticks after the watermark may hold anything.
 * Errors     STATUS_OUT_OF_MEMORY (every page is taken at open: no fault later), STATUS_IO.
 */
#ifndef SLUICE_STAGE_KV_H
#define SLUICE_STAGE_KV_H

#include <stddef.h>

#include "common/model/hparams.h"
#include "common/model/kv_window.h"
#include "common/wire/control.h"

struct kv_view; /* kernels/ops.h */

struct kv_shape {
    uint32_t n_layers, n_kv_heads, head_dim, block_positions;
    struct kv_window window;                      /* zero: there is no WINDOW group */
    uint32_t window_layers[MODEL_MAX_LAYERS / 32]; /* bit l % 32 of l / 32: layer l, from the stage's first, is of that group */
};

/* What must be the same for bytes of an earlier process to be ours. Zero all of it before filling: it is compared whole. */
struct kv_meaning {
    uint8_t model_hash[32];
    char kv_type[8], profile[64];
    uint32_t first_layer, end_layer;
    struct kv_shape shape;
};

struct kv_options {
    struct kv_meaning meaning;
    uint32_t n_blocks; /* PAGED */
    int fd;   /* -1: an own memfd. A given one is brought to the pool's size */
    int lazy; /* pages are taken when they are written to */
};

/* Costs and what they were measured for: another process with the same need not measure again. Zero all of it before filling. */
struct kv_costs {
    uint32_t max_rows, slots, context, n_threads, has_embedding, has_head;
    char backend[32];
    struct msg_loaded measured;
};

struct kv_mark {
    uint64_t session, epoch, tick;
};

struct kv_header;

struct kv_pool {
    struct kv_shape shape;
    uint32_t n_blocks, n_window; /* PAGED, WINDOW */
    uint8_t *data;
    size_t bytes;             /* of the blocks */
    struct kv_header *header; /* in front of data */
    int kept;                 /* an earlier process's content was taken up */
};

enum { KV_HEADER_BYTES = 4096 };

/* Of the stage with this assignment (slots, context, kv_block, max_rows, window and its layers are read). */
struct kv_shape kv_shape_of(const struct model *m, const struct msg_assign *a);
size_t kv_layer_bytes(const struct kv_shape *s); /* of one block */
size_t kv_block_bytes(const struct kv_shape *s); /* of one PAGED block; 0: every layer has a window */
size_t kv_window_block_bytes(const struct kv_shape *s); /* of one WINDOW block; 0: no such group, or none of its layers here */
/* Of a pool with n PAGED blocks and the WINDOW blocks that go with them. */
uint64_t kv_pool_bytes(const struct kv_shape *s, uint64_t n);

enum status kv_pool_open(const struct kv_options *o, struct kv_pool *out, struct error *err);
void kv_pool_close(struct kv_pool *p); /* also of a zeroed pool */
/* Blocks of the pool that lies in fd, when kv_pool_open with this meaning and as many would keep it; else 0. */
uint32_t kv_pool_kept_blocks(int fd, const struct kv_meaning *m);

uint64_t kv_pool_id(const struct kv_pool *p);
struct kv_mark kv_pool_watermark(const struct kv_pool *p); /* all 0: no tick yet */
void kv_pool_mark(struct kv_pool *p, const struct kv_mark *m);
/* 1: costs of the same kind (measured aside) are kept and copied to *c. */
int kv_pool_costs(const struct kv_pool *p, struct kv_costs *c);
void kv_pool_keep_costs(struct kv_pool *p, const struct kv_costs *c);

/* layer counts from the stage's first. */
struct kv_view kv_pool_view(const struct kv_pool *p, uint32_t layer);
int kv_pool_is_window(const struct kv_pool *p, uint32_t layer); /* its blocks are those of the WINDOW group */
/* Bytes that the descriptor already holds in memory: they need not be found again. */
uint64_t kv_fd_resident(int fd);

#endif
