/* The invariants of the WINDOW group, walked (blocks__check). */
#include <stdlib.h>

#include "common/base/check.h"
#include "coordinator/blocks_impl.h"

static const char *check_list(const struct block_pool *p, enum block_state state, uint32_t *n_linked)
{
    uint32_t n = 0, before = NO_BLOCK;
    for (uint32_t i = p->list[state].head; i != NO_BLOCK; before = i, i = p->block[i].next)
        if (i >= p->total || p->block[i].state != state || p->block[i].prev != before || ++n > p->total)
            return "a WINDOW block is in the list of its state";
    *n_linked += n;
    return before == p->list[state].tail && n == p->list[state].n ? NULL : "the WINDOW lists have the lengths of their counts";
}

/* Counts holders in n_holders [total]. */
static const char *check_tables(const struct blocks *b, uint32_t *n_holders)
{
    const struct window_group *w = &b->window;
    uint32_t promised = 0;
    for (uint32_t s = 0; s < b->o.n_slots; s++) {
        const struct table *t = &b->table[s];
        promised += t->n_window;
        if (t->first > t->n_blocks || t->n_blocks - t->first > t->n_window || t->n_window > w->hold)
            return "a sequence holds at most as many WINDOW blocks as it reserved";
        for (uint32_t i = t->first; i < t->n_blocks; i++) {
            uint32_t k = w->entries[(size_t)s * b->per_seq + i], paged = b->entries[(size_t)s * b->per_seq + i];
            if (k >= w->pool.total || w->pool.block[k].state != BLOCK_LIVE)
                return "a WINDOW block of a table is live";
            if (w->pool.block[k].entry != NO_ENTRY && w->pool.block[k].entry != b->pool.block[paged].entry)
                return "both groups' blocks of a place have the same entry";
            n_holders[k]++;
        }
    }
    return promised == w->promised ? NULL : "WINDOW promises are the sum over the tables";
}

static const char *check_block(const struct blocks *b, uint32_t i, uint32_t n_holders)
{
    const struct block *k = &b->window.pool.block[i];
    if (k->n_holders != n_holders || (n_holders > 0) != (k->state == BLOCK_LIVE))
        return "a WINDOW block is live while it has holders, as many as tables name it";
    if ((k->state == BLOCK_CACHED && k->entry == NO_ENTRY) || (k->state == BLOCK_FREE && k->entry != NO_ENTRY))
        return "cached WINDOW blocks have an entry, free ones have none";
    if (k->entry != NO_ENTRY && b->window.of_entry[k->entry] != i)
        return "an entry and its WINDOW block name each other";
    if (k->state == BLOCK_DRAINING &&
        (k->tick <= b->retired || (k->next != NO_BLOCK && k->tick > b->window.pool.block[k->next].tick)))
        return "the WINDOW draining list is ordered by tick, all to come";
    return NULL;
}

static const char *check_all(const struct blocks *b, uint32_t *n_holders)
{
    const struct window_group *w = &b->window;
    const struct blocks_count n = blocks_window_counts(b);
    uint32_t linked = n.live;
    const char *why = NULL;
    if (n.free + n.cached + n.live + n.draining != n.total)
        return "WINDOW: free + cached + live + draining == total";
    for (int s = 0; s < BLOCK_N_STATES && !why; s++)
        if (s != BLOCK_LIVE)
            why = check_list(&w->pool, (enum block_state)s, &linked);
    if (!why && linked != n.total)
        why = "every WINDOW block is live or in a list";
    if (!why)
        why = check_tables(b, n_holders);
    if (!why && (n.live > w->promised || n.promised > n.free + n.cached))
        why = "what was promised of the WINDOW group is free or cached";
    for (uint32_t i = 0; i < w->pool.total && !why; i++)
        why = check_block(b, i, n_holders[i]);
    for (uint32_t e = 0; e < b->pool.total && !why; e++)
        if (w->of_entry[e] != NO_BLOCK &&
            (prefix_map_block(b->map, e) == NO_ENTRY || w->pool.block[w->of_entry[e]].entry != e))
            why = "what has a WINDOW block is in the map";
    return why;
}

const char *window__check(const struct blocks *b)
{
    if (!b->window.hold)
        return NULL;
    uint32_t *n_holders = calloc((size_t)b->window.pool.total + 1, sizeof *n_holders);
    const char *why = n_holders ? check_all(b, n_holders) : NULL;
    free(n_holders);
    return why;
}
