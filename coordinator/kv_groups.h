/* coordinator/kv_groups.h - kinds of per-sequence memory of a model, and how much of a prefix they allow to take up.
 *
 * Purpose    A model's layers fall into groups: PAGED (attention over all positions), WINDOW (attention over the last
 *            `window` positions), STATE (a recurrent state, kept as a copy at block boundaries). A sequence can start at a
 *            block boundary only if every group has what the next row reads there. Which blocks exist is blocks' business.
 * Ownership  Nothing is kept.
 * Threading  Pure.
 */
#ifndef SLUICE_COORDINATOR_KV_GROUPS_H
#define SLUICE_COORDINATOR_KV_GROUPS_H

#include <stdint.h>

enum { KV_GROUPS_MAX = 8 };
enum kv_group_kind { KV_PAGED, KV_WINDOW, KV_STATE };

struct kv_group {
    enum kv_group_kind kind;
    uint32_t window; /* KV_WINDOW: positions before its own that a row may read */
};

/* The longest prefix, in blocks and <= n, that all groups allow to take up. present[g][i] != 0: group g has block i
 * (positions [i*kv_block, (i+1)*kv_block)); a STATE group: it has the state as it was at the end of block i.
 * PAGED wants every block before the end, WINDOW those that cover [end - window, end), STATE the last one.
 * n_groups in 1..KV_GROUPS_MAX. */
uint32_t usable_prefix(const struct kv_group *groups, uint32_t n_groups, uint32_t kv_block,
                       const unsigned char *const *present, uint32_t n);

#endif
