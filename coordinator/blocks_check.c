/* The invariants of blocks.h, walked. Debug builds do so after every change of a small pool, tests always. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/blocks_impl.h"

/* What the walk finds out about each block. */
struct seen {
    uint32_t n_holders;
    uint32_t place; /* in the list of its state, from 1 */
};

/* Every block in the list of its state, once. */
static const char *check_list(const struct blocks *b, enum block_state state, struct seen *seen)
{
    uint32_t n = 0, before = NO_BLOCK;
    for (uint32_t i = b->pool.list[state].head; i != NO_BLOCK; before = i, i = b->pool.block[i].next) {
        if (i >= b->pool.total || seen[i].place || b->pool.block[i].state != state || b->pool.block[i].prev != before)
            return "a block is in one list, that of its state";
        seen[i].place = ++n;
    }
    if (before != b->pool.list[state].tail || n != b->pool.list[state].n)
        return "the lists have the lengths of their counts";
    return NULL;
}

static const char *check_tables(const struct blocks *b, struct seen *seen)
{
    uint32_t promised = 0;
    for (uint32_t s = 0; s < b->o.n_slots; s++) {
        const struct table *t = &b->table[s];
        const uint32_t *entries = b->entries + (size_t)s * b->per_seq;
        if (t->n_blocks > t->n_reserved || t->n_reserved > b->per_seq || t->n_entered > t->n_blocks ||
            t->n_full > t->n_entered)
            return "a table has at most what its sequence reserved";
        for (uint32_t i = 0; i < t->n_blocks; i++) {
            const struct block *k = &b->pool.block[entries[i]];
            if (entries[i] >= b->pool.total || k->state != BLOCK_LIVE)
                return "a block of a table is live";
            if ((k->entry != NO_ENTRY) != (i < t->n_entered))
                return "the first n_entered blocks of a table have entries";
            if (k->hollow != (i >= t->n_full && i < t->n_entered))
                return "the first n_full blocks of a table are not hollow, those up to n_entered are";
            uint32_t above = i ? b->pool.block[entries[i - 1]].entry : NO_ENTRY;
            if (k->entry != NO_ENTRY && prefix_map_parent(b->map, k->entry) != above)
                return "a table's entries are a chain";
            seen[entries[i]].n_holders++;
        }
        promised += t->n_reserved - t->n_blocks;
    }
    return promised == b->promised ? NULL : "promised is the sum over the tables";
}

static const char *check_block(const struct blocks *b, uint32_t i, const struct seen *seen)
{
    const struct block *k = &b->pool.block[i];
    int stands = k->entry != NO_ENTRY && prefix_map_block(b->map, k->entry) == i;
    if (k->hollow && (!stands || k->n_holders > 1))
        return "a hollow block is in the map, and one sequence at most has it read again";
    if (k->n_holders != seen[i].n_holders || (k->n_holders > 0) != (k->state == BLOCK_LIVE))
        return "a block is live while it has holders, as many as tables name it";
    if (k->state != BLOCK_LIVE && !seen[i].place)
        return "a block that is not live is in a list";
    if ((k->state == BLOCK_CACHED && !stands) || (k->state == BLOCK_FREE && k->entry != NO_ENTRY))
        return "cached blocks are in the map, free ones are not";
    if (k->entry != NO_ENTRY && !stands && (k->state != BLOCK_LIVE || k->n_holders != 1))
        return "a twin is held by the one who made it";
    if (stands && k->state != BLOCK_LIVE && b->twins[k->entry] != NO_BLOCK)
        return "an entry with twins is live";
    uint32_t next = k->next;
    if (k->state == BLOCK_DRAINING && (k->tick <= b->retired || (next != NO_BLOCK && k->tick > b->pool.block[next].tick)))
        return "the draining list is ordered by tick, all to come";
    if (!stands || prefix_map_parent(b->map, k->entry) == NO_ENTRY)
        return NULL;
    uint32_t above = prefix_map_block(b->map, prefix_map_parent(b->map, k->entry));
    if (b->pool.block[above].state == BLOCK_CACHED && (k->state != BLOCK_CACHED || seen[above].place < seen[i].place))
        return "a tail is evicted before its head";
    if (b->pool.block[above].state == BLOCK_DRAINING && k->state == BLOCK_LIVE)
        return "who holds a tail holds its head";
    return NULL;
}

static const char *check_map(const struct blocks *b)
{
    const char *why;
    uint32_t stand = 0, twins = 0, listed = 0, hollow = 0;
    for (uint32_t i = 0; i < b->pool.total; i++) {
        uint32_t entry = b->pool.block[i].entry;
        hollow += b->pool.block[i].hollow != 0;
        if (entry == NO_ENTRY)
            continue;
        if (prefix_map_block(b->map, entry) == i)
            stand++;
        else
            twins++;
    }
    for (uint32_t i = 0; i < b->pool.total; i++)
        for (uint32_t k = b->twins[i], before = NO_BLOCK; k != NO_BLOCK; before = k, k = b->pool.block[k].next)
            if (++listed > twins || b->pool.block[k].entry != i || b->pool.block[k].prev != before)
                return "an entry's twins are in its list";
    if (hollow != b->n_hollow)
        return "the hollow blocks are counted";
    if (stand != prefix_map_count(b->map) || listed != twins)
        return "every entry stands for one block of its own";
    return prefix_map__check(b->map, &why) ? NULL : why;
}

static const char *check_all(const struct blocks *b, struct seen *seen)
{
    const struct blocks_count n = blocks_counts(b);
    const char *why = NULL;
    if (n.free + n.cached + n.live + n.draining != n.total)
        return "free + cached + live + draining == total";
    if (n.promised > n.free + n.cached)
        return "what was promised is free or cached";
    for (int s = 0; s < BLOCK_N_STATES && !why; s++)
        if (s != BLOCK_LIVE)
            why = check_list(b, (enum block_state)s, seen);
    if (!why)
        why = check_tables(b, seen);
    for (uint32_t i = 0; i < b->pool.total && !why; i++)
        why = check_block(b, i, seen);
    if (!why)
        why = check_map(b);
    return why ? why : window__check(b);
}

int blocks__check(const struct blocks *b, const char **why)
{
    struct seen *seen = calloc((size_t)b->pool.total + 1, sizeof *seen);
    *why = seen ? check_all(b, seen) : NULL;
    free(seen);
    return !*why;
}

int blocks__check_small(const struct blocks *b)
{
    return b->pool.total > 4096 || blocks__check(b, &(const char *){0});
}
