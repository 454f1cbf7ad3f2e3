#include "common/model/kv_window.h"

enum { CACHE_PART = 8 };

struct kv_window kv_window_of(const struct kv_window *w)
{
    return w->window > 0 && w->window < w->context ? *w : (struct kv_window){0};
}

uint32_t kv_window_first(const struct kv_window *w, uint32_t n)
{
    return n < w->window ? 0 : (n - w->window + 1) / w->kv_block;
}

uint32_t kv_window_reach(const struct kv_window *w)
{
    return w->window - 1;
}

/* So many positions, wherever they begin, lie in ceil((n - 1) / kv_block) + 1 blocks at most. */
uint32_t kv_window_hold(const struct kv_window *w)
{
    uint64_t n = (uint64_t)w->window - 1 + (uint64_t)w->ticks * w->max_rows;
    uint64_t most = (n + w->kv_block - 2) / w->kv_block + 1, all = ((uint64_t)w->context + w->kv_block - 1) / w->kv_block;
    return (uint32_t)(most < all ? most : all);
}

uint32_t kv_window_blocks(const struct kv_window *w, uint32_t n_blocks)
{
    if (w->window == 0)
        return 0;
    uint64_t n = (uint64_t)w->slots * kv_window_hold(w) + n_blocks / CACHE_PART;
    return n < n_blocks ? (uint32_t)n : n_blocks;
}
