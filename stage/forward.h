/* stage/forward.h - runs the rows of a tick through a stage's layers.
 *
 * Purpose    One loop for every architecture: which tensors a layer has is data (struct weights, struct arch). All threads of
 *            the team go through the same steps and do their shares; a barrier stands only where a share of another thread
 *            is read next. Knows nothing of plans, links or memory limits.
 * Ownership  forward_create allocates every buffer; forward_run allocates nothing. Weights, pool and team must outlive it.
 * Threading  forward_run on the thread that owns the team.
 * Invariants 1. Bits of a row do not depend on the other rows, on the cut into chunks, or on the number of threads.
 *            2. Rows of a tick stand in order, so a chunk finds the K and V of its earlier rows stored.
 * Errors     forward_create: STATUS_OUT_OF_MEMORY. forward_run cannot fail: its caller has checked the tick.
 *
 * Two ways to share rows. Up to 16 rows (one tile) every thread does the row work (norms, quantizing, gates) for itself into
 * buffers of its own: the others would wait for it anyway, and four of ten barriers a layer fall away. Above, rows are
 * shared out in tiles and a barrier follows.
 */
#ifndef SLUICE_STAGE_FORWARD_H
#define SLUICE_STAGE_FORWARD_H

#include <stdatomic.h>

#include "kernels/team.h"
#include "stage/compute.h"
#include "stage/kv.h"
#include "stage/weights.h"

typedef void (*forward_logits_fn)(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab);

struct forward_options {
    const struct weights *weights; /* planned; loaded before forward_run */
    struct team *team;
    uint32_t max_rows;
};

struct forward;

size_t forward_bytes(const struct forward_options *o);
enum status forward_create(const struct forward_options *o, struct forward **out, struct error *err);
void forward_destroy(struct forward *f); /* NULL is allowed */

void forward_set_pool(struct forward *f, const struct kv_pool *pool);
/* Sees the logits of every sampled row, on the caller's thread (tests). NULL: off. */
void forward_set_logits_sink(struct forward *f, forward_logits_fn fn, void *ctx);
/* progress grows by one with every layer. */
void forward_run(struct forward *f, struct tick *t, atomic_uint_fast64_t *progress);

#endif
