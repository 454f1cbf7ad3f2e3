#include "coordinator/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "coordinator/blocks_impl.h"

static void move(struct blocks *b, uint32_t i, enum block_state state)
{
    block_pool_move(&b->pool, i, state);
}

/* --- twins: live blocks that hold the same as an entry's block ------------------------------------------------------------------
 *
 * Two sequences that read the same beginning side by side both own its blocks. The entry stands for one of them; the others
 * are its twins, and inherit the entry when it would lose its holder. So an entry that a sequence depends on is always live,
 * and an entry is released no earlier than those below it: the cache is in order without looking. */

static void add_twin(struct blocks *b, uint32_t i, uint32_t entry)
{
    struct block *k = &b->pool.block[i];
    k->entry = entry;
    k->prev = NO_BLOCK;
    k->next = b->twins[entry];
    if (k->next != NO_BLOCK)
        b->pool.block[k->next].prev = i;
    b->twins[entry] = i;
}

static void remove_twin(struct blocks *b, uint32_t i)
{
    struct block *k = &b->pool.block[i];
    *(k->prev == NO_BLOCK ? &b->twins[k->entry] : &b->pool.block[k->prev].next) = k->next;
    if (k->next != NO_BLOCK)
        b->pool.block[k->next].prev = k->prev;
    k->next = k->prev = NO_BLOCK;
}

static void set_hollow(struct blocks *b, uint32_t i, int hollow)
{
    b->n_hollow += (uint32_t)hollow - (uint32_t)b->pool.block[i].hollow;
    b->pool.block[i].hollow = hollow;
}

/* Its entry stands for it no more. No entry may have that one as its parent. */
static void leave_map(struct blocks *b, uint32_t i)
{
    window__leave_map(b, b->pool.block[i].entry);
    prefix_map_remove(b->map, b->pool.block[i].entry);
    b->pool.block[i].entry = NO_ENTRY;
    set_hollow(b, i, 0);
}

/* The block loses its last holder: its entry, if another live block holds the same, goes on without it. */
static void leave_entry_to_twins(struct blocks *b, uint32_t i)
{
    struct block *k = &b->pool.block[i];
    if (k->entry == NO_ENTRY)
        return;
    if (prefix_map_block(b->map, k->entry) != i) {
        remove_twin(b, i);
        k->entry = NO_ENTRY;
    } else if (b->twins[k->entry] != NO_BLOCK) {
        uint32_t heir = b->twins[k->entry];
        remove_twin(b, heir);
        prefix_map_move(b->map, k->entry, heir);
        k->entry = NO_ENTRY;
        set_hollow(b, i, 0);
    }
}

/* --- holders ------------------------------------------------------------------------------------------------------------------- */

static void hold(struct blocks *b, uint32_t i)
{
    if (b->pool.block[i].n_holders++ == 0)
        move(b, i, BLOCK_LIVE);
}

/* No tick can touch it any more. */
static void settle(struct blocks *b, uint32_t i)
{
    move(b, i, b->pool.block[i].entry == NO_ENTRY ? BLOCK_FREE : BLOCK_CACHED);
}

static void release(struct blocks *b, uint32_t i, uint64_t tick)
{
    struct block *k = &b->pool.block[i];
    if (--k->n_holders > 0)
        return;
    leave_entry_to_twins(b, i);
#ifdef BLOCKS_MUTANT_NO_RETIRE /* a test build that must fail its test */
    tick = 0;
#endif
    k->tick = tick;
    if (tick <= b->retired)
        settle(b, i);
    else
        move(b, i, BLOCK_DRAINING);
}

/* The promise covers it, so there is one. */
static uint32_t take(struct blocks *b)
{
    uint32_t i = b->pool.list[BLOCK_FREE].head;
    if (i == NO_BLOCK) {
        i = b->pool.list[BLOCK_CACHED].head;
        CHECK(i != NO_BLOCK);
        if (b->o.on_evict)
            b->o.on_evict(b->o.evict_ctx, i, prefix_map_key(b->map, b->pool.block[i].entry));
        leave_map(b, i);
        b->n_evicted++;
    }
    hold(b, i);
    return i;
}

/* --- life ---------------------------------------------------------------------------------------------------------------------- */

static void forget(struct blocks *b, uint32_t n_blocks)
{
    memset(b->table, 0, b->o.n_slots * sizeof b->table[0]);
    b->promised = 0;
    b->n_hollow = 0;
    b->retired = 0;
    block_pool_forget(&b->pool, n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++)
        b->twins[i] = NO_BLOCK;
    window__forget(b, n_blocks);
}

static enum status make_room(struct blocks *b, uint32_t n_blocks)
{
    if (!b->twins || n_blocks > b->twins_capacity) {
        uint32_t *twins = malloc((n_blocks + (size_t)1) * sizeof *twins);
        if (!twins)
            return STATUS_OUT_OF_MEMORY;
        if (b->pool.total) /* the old pool stands until all memory is there */
            memcpy(twins, b->twins, b->pool.total * sizeof *twins);
        free(b->twins);
        b->twins = twins;
        b->twins_capacity = n_blocks;
    }
    TRY(block_pool_make_room(&b->pool, n_blocks));
    return window__make_room(b, n_blocks);
}

enum status blocks_create(const struct blocks_options *o, struct blocks **out)
{
    CHECK(o->n_slots >= 1 && o->n_slots <= SLOTS_MAX && o->context >= 1 && o->kv_block >= 1 && o->hash_bits <= 64);
    CHECK(o->window.window == 0 || (o->window.kv_block == o->kv_block && o->window.context == o->context));
    struct blocks *b = calloc(1, sizeof *b + o->n_slots * sizeof b->table[0]);
    if (!b)
        return STATUS_OUT_OF_MEMORY;
    b->o = *o;
    b->per_seq = o->context / o->kv_block + (o->context % o->kv_block != 0);
    b->entries = malloc((size_t)o->n_slots * b->per_seq * sizeof *b->entries);
    b->found = malloc(b->per_seq * sizeof *b->found);
    enum status s = b->entries && b->found ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (s == STATUS_OK)
        s = window__create(b);
    if (s == STATUS_OK)
        s = prefix_map_create(o->kv_block, o->hash_key, o->hash_bits, &b->map);
    if (s == STATUS_OK)
        s = blocks_reset(b, o->n_blocks);
    if (s != STATUS_OK) {
        blocks_destroy(b);
        return s;
    }
    *out = b;
    return STATUS_OK;
}

void blocks_destroy(struct blocks *b)
{
    if (!b)
        return;
    prefix_map_destroy(b->map);
    block_pool_free(&b->pool);
    window__destroy(b);
    free(b->twins);
    free(b->entries);
    free(b->found);
    free(b);
}

enum status blocks_reset(struct blocks *b, uint32_t n_blocks)
{
    TRY(make_room(b, n_blocks));
    TRY(prefix_map_reset(b->map, n_blocks));
    forget(b, n_blocks);
    ASSERT(blocks__check_small(b));
    return STATUS_OK;
}

void blocks_new_epoch(struct blocks *b)
{
    CHECK(b->pool.list[BLOCK_LIVE].n == 0 && b->window.pool.list[BLOCK_LIVE].n == 0);
    blocks_retire(b, UINT64_MAX);
    b->retired = 0;
}

void blocks_lose(struct blocks *b)
{
    CHECK(b->pool.list[BLOCK_LIVE].n == 0 && b->pool.list[BLOCK_DRAINING].n == 0);
    if (b->window.hold) { /* what the upper stages hold of a chain ends with windows that the lower ones would have to refill */
        CHECK(prefix_map_reset(b->map, b->pool.total) == STATUS_OK); /* it does not grow */
        forget(b, b->pool.total);
        return;
    }
    for (uint32_t i = b->pool.list[BLOCK_CACHED].head; i != NO_BLOCK; i = b->pool.block[i].next)
        set_hollow(b, i, 1);
}

/* --- sequences ---------------------------------------------------------------------------------------------------------------- */

static uint32_t *entries_of(const struct blocks *b, uint32_t slot)
{
    return b->entries + (size_t)slot * b->per_seq;
}

static struct table *find(struct blocks *b, struct slot_ref ref)
{
    if (ref.slot >= b->o.n_slots || ref.seq == 0 || b->table[ref.slot].seq != ref.seq)
        return NULL;
    return &b->table[ref.slot];
}

uint32_t blocks_needed(const struct blocks *b, uint32_t n_positions)
{
    return n_positions / b->o.kv_block + (n_positions % b->o.kv_block != 0);
}

int blocks_ever_fit(const struct blocks *b, uint32_t n)
{
    return n <= b->pool.total && n <= b->per_seq;
}

/* Hollow blocks that go on behind the first n of b->found, and that nobody else is having read again. They stay hollow to
 * their chain's end: what was entered below them since belongs to twins. */
static uint32_t look_up_hollow(const struct blocks *b, const struct block_chain *c, uint32_t n, uint32_t most)
{
    uint32_t first = n, entry = n ? b->pool.block[b->found[n - 1]].entry : NO_ENTRY;
    uint64_t key;
    if (b->n_hollow == 0)
        return 0;
    while (n < most && (entry = prefix_map_find(b->map, entry, c, n, &key)) != NO_ENTRY) {
        uint32_t i = prefix_map_block(b->map, entry);
        if (!b->pool.block[i].hollow || b->pool.block[i].state != BLOCK_CACHED)
            break;
        b->found[n++] = i;
    }
    return n - first;
}

/* Blocks of the chain that can be taken up, at most `most`, in b->found: *n_hollow of them, the last, are hollow. The map keeps
 * whole chains of the PAGED group, so what is found has no gaps; it ends where the other group has its window too. */
static uint32_t look_up(const struct blocks *b, const struct block_chain *c, uint32_t most, uint32_t *n_hollow)
{
    uint32_t n = 0, entry = NO_ENTRY;
    uint64_t key;
    *n_hollow = 0;
    if (!c || c->n == 0)
        return 0;
    most = most < (c->n - 1) / b->o.kv_block ? most : (c->n - 1) / b->o.kv_block;
    most = most < b->per_seq ? most : b->per_seq;
    while (n < most && (entry = prefix_map_find(b->map, entry, c, n, &key)) != NO_ENTRY) {
        uint32_t i = prefix_map_block(b->map, entry);
        if (b->pool.block[i].hollow)
            break;
        b->found[n++] = i;
    }
    n = window__usable(b, n);
    return n + (*n_hollow = look_up_hollow(b, c, n, most));
}

uint32_t blocks_match(const struct blocks *b, const struct block_chain *c)
{
    uint32_t n_hollow, n = look_up(b, c, UINT32_MAX, &n_hollow);
    return n - n_hollow;
}

/* Could n_reserved blocks be promised whose first n_found are b->found? Hits that are cached now can be promised to nobody. */
static int fits(const struct blocks *b, uint32_t n_found, uint32_t n_reserved)
{
    uint32_t cached = 0;
    for (uint32_t i = 0; i < n_found; i++)
        cached += b->pool.block[b->found[i]].state == BLOCK_CACHED;
    return window__fits(b, n_reserved, 0) && n_reserved <= b->per_seq && n_reserved - n_found + cached <= blocks_available(b);
}

/* It is asked again and again for whoever waits: the chain is looked up only where hits decide. */
int blocks_can_open(const struct blocks *b, const struct block_chain *c, uint32_t n_reserved)
{
    uint32_t most = c && c->n ? (c->n - 1) / b->o.kv_block : 0, room = blocks_available(b);
    if (n_reserved > b->per_seq || (n_reserved > most && n_reserved - most > room))
        return 0; /* not even if all hits were live */
    if (!window__fits(b, n_reserved, 0))
        return 0;
    if (n_reserved <= room)
        return 1; /* a hit never needs more than a new block */
    uint32_t n_hollow;
    return fits(b, look_up(b, c, n_reserved, &n_hollow), n_reserved);
}

enum status blocks_open(struct blocks *b, struct slot_ref ref, const struct block_chain *c, uint32_t n_reserved,
                        uint32_t *n_cached)
{
    if (ref.slot >= b->o.n_slots || ref.seq == 0 || b->table[ref.slot].seq != 0)
        return STATUS_SLOT_STALE;
    uint32_t n_hollow, n = look_up(b, c, n_reserved, &n_hollow);
    if (!fits(b, n, n_reserved))
        return STATUS_BLOCKS_BUSY;
    for (uint32_t i = 0; i < n; i++) {
        hold(b, b->found[i]);
        entries_of(b, ref.slot)[i] = b->found[i];
    }
    b->table[ref.slot] = (struct table){
        .seq = ref.seq, .n_blocks = n, .n_entered = n, .n_full = n - n_hollow, .n_reserved = n_reserved};
    b->promised += n_reserved - n;
    window__open(b, &b->table[ref.slot], n);
    *n_cached = n - n_hollow;
    ASSERT(blocks__check_small(b));
    return STATUS_OK;
}

uint32_t blocks_hollow(const struct blocks *b, struct slot_ref ref)
{
    const struct table *t = find((struct blocks *)b, ref);
    return t ? t->n_entered - t->n_full : 0;
}

enum status blocks_reserve(struct blocks *b, struct slot_ref ref, uint32_t n_reserved)
{
    struct table *t = find(b, ref);
    if (!t)
        return STATUS_SLOT_STALE;
    if (n_reserved <= t->n_reserved)
        return STATUS_OK;
    if (n_reserved > b->per_seq || n_reserved - t->n_reserved > blocks_available(b) ||
        !window__fits(b, n_reserved, t->n_window))
        return STATUS_BLOCKS_BUSY;
    b->promised += n_reserved - t->n_reserved;
    window__reserve(b, t, n_reserved);
    t->n_reserved = n_reserved;
    ASSERT(blocks__check_small(b));
    return STATUS_OK;
}

enum status blocks_grow(struct blocks *b, struct slot_ref ref, uint32_t n_positions, uint32_t *n_new)
{
    struct table *t = find(b, ref);
    if (!t)
        return STATUS_SLOT_STALE;
    uint32_t needed = blocks_needed(b, n_positions);
    if (needed > t->n_reserved)
        return STATUS_BLOCKS_BUSY;
    uint32_t taken = 0;
    for (; t->n_blocks < needed; taken++) {
        entries_of(b, ref.slot)[t->n_blocks] = take(b);
        window__take(b, t, t->n_blocks++);
    }
    b->promised -= taken;
    *n_new = taken;
    ASSERT(blocks__check_small(b));
    return STATUS_OK;
}

/* Block i of a chain, below the entry `parent`, is full and final. */
static void publish(struct blocks *b, uint32_t i, uint32_t parent, const struct block_chain *c, uint32_t index)
{
    uint64_t key;
    uint32_t entry = prefix_map_find(b->map, parent, c, index, &key);
    if (entry == NO_ENTRY) {
        b->pool.block[i].entry = prefix_map_enter(b->map, parent, c, index, key, i);
        return;
    }
    uint32_t other = prefix_map_block(b->map, entry);
    if (b->pool.block[other].state == BLOCK_LIVE) {
        add_twin(b, i, entry);
        return;
    }
    set_hollow(b, other, 0);
    b->pool.block[i].entry = entry;
    prefix_map_move(b->map, entry, i);
    b->pool.block[other].entry = NO_ENTRY; /* if it drains, it is free after that */
    if (b->pool.block[other].state == BLOCK_CACHED)
        move(b, other, BLOCK_FREE);
}

void blocks_commit(struct blocks *b, struct slot_ref ref, const struct block_chain *c)
{
    struct table *t = find(b, ref);
    if (!t)
        return;
    const uint32_t *table = entries_of(b, ref.slot);
    uint32_t full = c->n / b->o.kv_block;
    for (; t->n_full < full && t->n_full < t->n_entered; t->n_full++)
        set_hollow(b, table[t->n_full], 0); /* read again */
    for (; t->n_entered < full && t->n_entered < t->n_blocks; t->n_full = ++t->n_entered) {
        uint32_t k = t->n_entered;
        publish(b, table[k], k ? b->pool.block[table[k - 1]].entry : NO_ENTRY, c, k);
        window__publish(b, t, k);
    }
    window__trim(b, t, c->n);
    ASSERT(blocks__check_small(b));
}

const uint32_t *blocks_table(const struct blocks *b, struct slot_ref ref, uint32_t *n)
{
    const struct table *t = find((struct blocks *)b, ref);
    *n = t ? t->n_blocks : 0;
    return t ? entries_of(b, ref.slot) : NULL;
}

const uint32_t *blocks_window_table(const struct blocks *b, struct slot_ref ref, uint32_t *first)
{
    const struct table *t = find((struct blocks *)b, ref);
    *first = t ? t->first : 0;
    return t && b->window.hold ? b->window.entries + (size_t)ref.slot * b->per_seq : NULL;
}

void blocks_forget(struct blocks *b, struct slot_ref ref)
{
    struct table *t = find(b, ref);
    while (t && t->n_entered > 0) { /* from the tail on: nobody's beginning leaves before it */
        uint32_t i = entries_of(b, ref.slot)[t->n_entered - 1];
        const struct block *k = &b->pool.block[i];
        if (k->n_holders > 1 || prefix_map_block(b->map, k->entry) != i || b->twins[k->entry] != NO_BLOCK)
            break;
        leave_map(b, i);
        t->n_entered--;
        t->n_full = t->n_full < t->n_entered ? t->n_full : t->n_entered;
    }
    ASSERT(blocks__check_small(b));
}

/* From the tail on: what is released first is evicted first. */
enum status blocks_close(struct blocks *b, struct slot_ref ref, uint64_t tick)
{
    struct table *t = find(b, ref);
    if (!t)
        return STATUS_SLOT_STALE;
    ASSERT(b->pool.list[BLOCK_DRAINING].n == 0 || b->pool.block[b->pool.list[BLOCK_DRAINING].tail].tick <= tick);
    window__close(b, t, tick); /* while the entries of its blocks are known */
    for (uint32_t i = t->n_blocks; i-- > 0;)
        release(b, entries_of(b, ref.slot)[i], tick);
    b->promised -= t->n_reserved - t->n_blocks;
    *t = (struct table){0};
    ASSERT(blocks__check_small(b));
    return STATUS_OK;
}

void blocks_retire(struct blocks *b, uint64_t tick)
{
    const struct blocks_list *draining = &b->pool.list[BLOCK_DRAINING];
    if (tick > b->retired)
        b->retired = tick;
    while (draining->n && b->pool.block[draining->head].tick <= tick)
        settle(b, draining->head);
    window__retire(b);
    ASSERT(blocks__check_small(b));
}

struct blocks_count blocks_window_counts(const struct blocks *b)
{
    const struct window_group *w = &b->window;
    const struct blocks_list *l = w->pool.list;
    return (struct blocks_count){.total = w->pool.total, .free = l[BLOCK_FREE].n, .cached = l[BLOCK_CACHED].n,
                                 .live = l[BLOCK_LIVE].n, .draining = l[BLOCK_DRAINING].n,
                                 .promised = w->hold ? w->promised - l[BLOCK_LIVE].n : 0, .evicted = w->n_evicted};
}

struct blocks_count blocks_counts(const struct blocks *b)
{
    return (struct blocks_count){.total = b->pool.total, .free = b->pool.list[BLOCK_FREE].n, .cached = b->pool.list[BLOCK_CACHED].n,
                                 .live = b->pool.list[BLOCK_LIVE].n, .draining = b->pool.list[BLOCK_DRAINING].n,
                                 .promised = b->promised, .hollow = b->n_hollow, .evicted = b->n_evicted};
}

uint32_t blocks_available(const struct blocks *b)
{
    return b->pool.list[BLOCK_FREE].n + b->pool.list[BLOCK_CACHED].n - b->promised;
}
