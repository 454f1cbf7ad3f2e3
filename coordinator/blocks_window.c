/* The WINDOW group of blocks: layers whose rows see the last positions only.
 *
 * A sequence has a block of it wherever it has one of the PAGED group, but gives it back as soon as no row that is still to
 * retire can read it. It is taken and named together with the PAGED one, so that a table's end is the same in both groups.
 *
 * The map knows PAGED blocks; an entry may have a WINDOW block as well, which goes with it or earlier: it is evicted apart. So a
 * chain has gaps in this group, and a prefix can be taken up only where the blocks of the window before its end are there.
 *
 * A sequence reserves the most that it can hold at a time, and what it shares with others counts for each of them: then
 * distinct live blocks are never more than what is promised, and whoever opened can always go on. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "coordinator/blocks_impl.h"

static uint32_t *entries_of(const struct blocks *b, const struct table *t)
{
    return b->window.entries + (size_t)(t - b->table) * b->per_seq;
}

static uint32_t right_of(const struct blocks *b, uint32_t n_reserved)
{
    return n_reserved < b->window.hold ? n_reserved : b->window.hold;
}

/* --- entries ---------------------------------------------------------------------------------------------------------------- */

static void unbind(struct blocks *b, uint32_t i)
{
    struct block *k = block_at(&b->window.pool, i);
    b->window.of_entry[k->entry] = NO_BLOCK;
    k->entry = NO_ENTRY;
    if (k->state == BLOCK_CACHED)
        block_pool_move(&b->window.pool, i, BLOCK_FREE);
}

/* Of two that hold the same, the one that is held stays: it is released later, and so evicted later. */
static void bind(struct blocks *b, uint32_t i, uint32_t entry)
{
    uint32_t *of_entry = &b->window.of_entry[entry];
    if (*of_entry == i)
        return;
    if (*of_entry != NO_BLOCK) {
        if (block_at(&b->window.pool, *of_entry)->state == BLOCK_LIVE)
            return;
        unbind(b, *of_entry);
    }
    *of_entry = i;
    block_at(&b->window.pool, i)->entry = entry;
}

/* Of the entry that the PAGED block at a place stands for, or is a twin of. */
static void bind_place(struct blocks *b, const struct table *t, uint32_t place)
{
    const uint32_t paged = b->entries[(size_t)(t - b->table) * b->per_seq + place];
    bind(b, entries_of(b, t)[place], b->pool.block[paged].entry);
}

/* --- holders ---------------------------------------------------------------------------------------------------------------- */

static void hold(struct blocks *b, uint32_t i)
{
    if (block_at(&b->window.pool, i)->n_holders++ == 0)
        block_pool_move(&b->window.pool, i, BLOCK_LIVE);
}

static void settle(struct blocks *b, uint32_t i)
{
    block_pool_move(&b->window.pool, i, block_at(&b->window.pool, i)->entry == NO_ENTRY ? BLOCK_FREE : BLOCK_CACHED);
}

static void release(struct blocks *b, const struct table *t, uint32_t place, uint64_t tick)
{
    uint32_t i = entries_of(b, t)[place];
    struct block *k = block_at(&b->window.pool, i);
    if (place < t->n_entered)
        bind_place(b, t, place);
    if (--k->n_holders > 0)
        return;
#ifdef BLOCKS_MUTANT_NO_RETIRE /* a test build that must fail its test */
    tick = 0;
#endif
    k->tick = tick;
    if (tick <= b->retired)
        settle(b, i);
    else
        block_pool_move(&b->window.pool, i, BLOCK_DRAINING);
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

enum status window__create(struct blocks *b)
{
    struct window_group *w = &b->window;
    if (b->o.window.window == 0)
        return STATUS_OK;
    w->hold = kv_window_hold(&b->o.window);
    w->entries = malloc((size_t)b->o.n_slots * b->per_seq * sizeof *w->entries);
    w->present = malloc(2 * (size_t)b->per_seq);
    return w->entries && w->present ? STATUS_OK : STATUS_OUT_OF_MEMORY;
}

void window__destroy(struct blocks *b)
{
    block_pool_free(&b->window.pool);
    free(b->window.of_entry);
    free(b->window.entries);
    free(b->window.present);
}

enum status window__make_room(struct blocks *b, uint32_t n_blocks)
{
    struct window_group *w = &b->window;
    if (!w->hold)
        return STATUS_OK;
    if (!w->of_entry || n_blocks > w->entry_capacity) {
        uint32_t *of_entry = malloc((n_blocks + (size_t)1) * sizeof *of_entry);
        if (!of_entry)
            return STATUS_OUT_OF_MEMORY;
        if (w->of_entry)
            memcpy(of_entry, w->of_entry, w->entry_capacity * sizeof *of_entry);
        free(w->of_entry);
        w->of_entry = of_entry;
        w->entry_capacity = n_blocks;
    }
    return block_pool_make_room(&w->pool, kv_window_blocks(&b->o.window, n_blocks));
}

void window__forget(struct blocks *b, uint32_t n_blocks)
{
    struct window_group *w = &b->window;
    if (!w->hold)
        return;
    w->promised = 0;
    block_pool_forget(&w->pool, kv_window_blocks(&b->o.window, n_blocks));
    for (uint32_t i = 0; i < w->entry_capacity; i++)
        w->of_entry[i] = NO_BLOCK;
}

/* --- sequences -------------------------------------------------------------------------------------------------------------- */

uint32_t window__usable(const struct blocks *b, uint32_t n)
{
    const struct window_group *w = &b->window;
    const struct kv_group groups[] = {{.kind = KV_PAGED}, {KV_WINDOW, kv_window_reach(&b->o.window)}};
    if (!w->hold || n == 0)
        return n;
    unsigned char *paged = w->present, *window = w->present + b->per_seq;
    for (uint32_t i = 0; i < n; i++) {
        paged[i] = 1;
        window[i] = w->of_entry[b->pool.block[b->found[i]].entry] != NO_BLOCK;
    }
    return usable_prefix(groups, 2, b->o.kv_block, (const unsigned char *const[]){paged, window}, n);
}

int window__fits(const struct blocks *b, uint32_t n_reserved, uint32_t instead)
{
    const struct window_group *w = &b->window;
    uint64_t taken = (uint64_t)w->promised - instead + w->pool.list[BLOCK_DRAINING].n;
    return !w->hold || taken + right_of(b, n_reserved) <= w->pool.total;
}

void window__open(struct blocks *b, struct table *t, uint32_t n)
{
    if (!b->window.hold)
        return;
    t->first = kv_window_first(&b->o.window, n * b->o.kv_block);
    for (uint32_t i = t->first; i < n; i++) {
        uint32_t k = b->window.of_entry[b->pool.block[b->found[i]].entry];
        hold(b, k);
        entries_of(b, t)[i] = k;
    }
    t->n_window = 0;
    window__reserve(b, t, t->n_reserved);
}

void window__reserve(struct blocks *b, struct table *t, uint32_t n_reserved)
{
    if (!b->window.hold)
        return;
    b->window.promised += right_of(b, n_reserved) - t->n_window;
    t->n_window = right_of(b, n_reserved);
}

void window__take(struct blocks *b, const struct table *t, uint32_t place)
{
    struct window_group *w = &b->window;
    if (!w->hold)
        return;
    CHECK(place - t->first < t->n_window);
    uint32_t i = w->pool.list[BLOCK_FREE].head;
    if (i == NO_BLOCK) {
        i = w->pool.list[BLOCK_CACHED].head;
        CHECK(i != NO_BLOCK); /* what was promised is free or cached */
        unbind(b, i);
        w->n_evicted++;
    }
    hold(b, i);
    entries_of(b, t)[place] = i;
}

void window__publish(struct blocks *b, const struct table *t, uint32_t place)
{
    if (b->window.hold)
        bind_place(b, t, place);
}

/* At once, without draining: rows in flight of this sequence stand at positions >= n_positions, and whoever shared a block with
 * it and has ended only ever read it. */
void window__trim(struct blocks *b, struct table *t, uint32_t n_positions)
{
    if (!b->window.hold)
        return;
    uint32_t first = kv_window_first(&b->o.window, n_positions);
    for (; t->first < first && t->first < t->n_blocks; t->first++)
        release(b, t, t->first, 0);
}

/* From the head on: the last blocks of the window are those that the next turn of a conversation cannot do without. */
void window__close(struct blocks *b, struct table *t, uint64_t tick)
{
    if (!b->window.hold)
        return;
    for (uint32_t i = t->first; i < t->n_blocks; i++)
        release(b, t, i, tick);
    b->window.promised -= t->n_window;
}

void window__retire(struct blocks *b)
{
    const struct block_pool *p = &b->window.pool;
    const struct blocks_list *draining = &p->list[BLOCK_DRAINING];
    while (draining->n && block_at(p, draining->head)->tick <= b->retired)
        settle(b, draining->head);
}

void window__leave_map(struct blocks *b, uint32_t entry)
{
    if (b->window.hold && b->window.of_entry[entry] != NO_BLOCK)
        unbind(b, b->window.of_entry[entry]);
}
