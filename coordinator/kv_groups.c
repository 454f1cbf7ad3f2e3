#include "coordinator/kv_groups.h"

#include "common/base/check.h"

/* How many blocks directly before block k must be there to start at it. */
static uint32_t wanted(const struct kv_group *g, uint32_t kv_block, uint32_t k)
{
    uint32_t n = k;
    if (g->kind == KV_WINDOW)
        n = g->window / kv_block + (g->window % kv_block != 0);
    else if (g->kind == KV_STATE)
        n = 1;
    return n < k ? n : k;
}

uint32_t usable_prefix(const struct kv_group *groups, uint32_t n_groups, uint32_t kv_block,
                       const unsigned char *const *present, uint32_t n)
{
    uint32_t together[KV_GROUPS_MAX] = {0}; /* present blocks of the group without a gap up to block i */
    uint32_t best = 0;
    CHECK(n_groups >= 1 && n_groups <= KV_GROUPS_MAX && kv_block >= 1);
    for (uint32_t i = 0; i < n; i++) {
        int all = 1;
        for (uint32_t g = 0; g < n_groups; g++) {
            together[g] = present[g][i] ? together[g] + 1 : 0;
            all &= together[g] >= wanted(&groups[g], kv_block, i + 1);
        }
        if (all)
            best = i + 1;
    }
    return best;
}
