#include "coordinator/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/error.h"

enum { NO_BLOCK = UINT32_MAX };

struct table {
    uint64_t seq;        /* 0: nobody's */
    uint32_t n_blocks;   /* in the table */
    uint32_t n_reserved; /* it may grow to so many */
};

struct blocks {
    uint32_t kv_block, n_slots, per_seq;
    uint32_t capacity;          /* of next and drain_tick; total is at most that */
    uint32_t total, n_free, n_draining, n_live, promised;
    uint32_t free_head;         /* stack through next[] */
    uint32_t drain_head, drain_tail; /* queue through next[] */
    uint64_t retired;           /* newest tick that blocks_retire has seen */
    uint32_t *next;
    uint64_t *drain_tick;
    uint32_t *entries;          /* [n_slots][per_seq] */
    struct table table[];
};

static uint32_t *entries_of(const struct blocks *b, uint32_t slot)
{
    return b->entries + (size_t)slot * b->per_seq;
}

static struct table *find(struct blocks *b, struct slot_ref ref)
{
    if (ref.slot >= b->n_slots || ref.seq == 0 || b->table[ref.slot].seq != ref.seq)
        return NULL;
    return &b->table[ref.slot];
}

/* A debug build walks the whole map after each change; with large pools that would be all it does. */
static int check_small(const struct blocks *b)
{
    return b->total > 4096 || blocks__check(b, &(const char *){0});
}

static void free_push(struct blocks *b, uint32_t block)
{
    b->next[block] = b->free_head;
    b->free_head = block;
    b->n_free++;
}

static uint32_t free_pop(struct blocks *b)
{
    uint32_t block = b->free_head;
    b->free_head = b->next[block];
    b->n_free--;
    return block;
}

static void drain_push(struct blocks *b, uint32_t block, uint64_t tick)
{
    b->next[block] = NO_BLOCK;
    b->drain_tick[block] = tick;
    if (b->drain_tail == NO_BLOCK)
        b->drain_head = block;
    else
        b->next[b->drain_tail] = block;
    b->drain_tail = block;
    b->n_draining++;
}

/* Every block free, lowest number on top. */
static void forget(struct blocks *b, uint32_t n_blocks)
{
    memset(b->table, 0, b->n_slots * sizeof b->table[0]);
    b->total = n_blocks;
    b->n_free = b->n_draining = b->n_live = b->promised = 0;
    b->free_head = b->drain_head = b->drain_tail = NO_BLOCK;
    b->retired = 0;
    for (uint32_t i = n_blocks; i-- > 0;)
        free_push(b, i);
}

static enum status make_room(struct blocks *b, uint32_t n_blocks)
{
    if (n_blocks <= b->capacity)
        return STATUS_OK;
    uint32_t *next = malloc(n_blocks * sizeof *next);
    uint64_t *drain_tick = malloc(n_blocks * sizeof *drain_tick);
    if (!next || !drain_tick) {
        free(next);
        free(drain_tick);
        return STATUS_OUT_OF_MEMORY;
    }
    free(b->next);
    free(b->drain_tick);
    b->next = next;
    b->drain_tick = drain_tick;
    b->capacity = n_blocks;
    return STATUS_OK;
}

enum status blocks_create(uint32_t n_blocks, uint32_t n_slots, uint32_t context, uint32_t kv_block, struct blocks **out)
{
    CHECK(n_slots >= 1 && n_slots <= SLOTS_MAX && context >= 1 && kv_block >= 1);
    struct blocks *b = calloc(1, sizeof *b + n_slots * sizeof b->table[0]);
    if (!b)
        return STATUS_OUT_OF_MEMORY;
    b->kv_block = kv_block;
    b->n_slots = n_slots;
    b->per_seq = context / kv_block + (context % kv_block != 0);
    b->entries = malloc((size_t)n_slots * b->per_seq * sizeof *b->entries);
    if (!b->entries || make_room(b, n_blocks) != STATUS_OK) {
        blocks_destroy(b);
        return STATUS_OUT_OF_MEMORY;
    }
    forget(b, n_blocks);
    *out = b;
    return STATUS_OK;
}

void blocks_destroy(struct blocks *b)
{
    if (!b)
        return;
    free(b->next);
    free(b->drain_tick);
    free(b->entries);
    free(b);
}

enum status blocks_reset(struct blocks *b, uint32_t n_blocks)
{
    TRY(make_room(b, n_blocks));
    forget(b, n_blocks);
    ASSERT(check_small(b));
    return STATUS_OK;
}

uint32_t blocks_needed(const struct blocks *b, uint32_t n_positions)
{
    return n_positions / b->kv_block + (n_positions % b->kv_block != 0);
}

int blocks_ever_fit(const struct blocks *b, uint32_t n)
{
    return n <= b->total && n <= b->per_seq;
}

enum status blocks_open(struct blocks *b, struct slot_ref ref, uint32_t n_reserved)
{
    if (ref.slot >= b->n_slots || ref.seq == 0 || b->table[ref.slot].seq != 0)
        return STATUS_SLOT_STALE;
    if (n_reserved > blocks_available(b) || n_reserved > b->per_seq)
        return STATUS_BLOCKS_BUSY;
    b->table[ref.slot] = (struct table){.seq = ref.seq, .n_reserved = n_reserved};
    b->promised += n_reserved;
    ASSERT(check_small(b));
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
    for (; t->n_blocks < needed; taken++)
        entries_of(b, ref.slot)[t->n_blocks++] = free_pop(b);
    b->n_live += taken;
    b->promised -= taken;
    *n_new = taken;
    ASSERT(check_small(b));
    return STATUS_OK;
}

const uint32_t *blocks_table(const struct blocks *b, struct slot_ref ref, uint32_t *n)
{
    const struct table *t = find((struct blocks *)b, ref);
    *n = t ? t->n_blocks : 0;
    return t ? entries_of(b, ref.slot) : NULL;
}

enum status blocks_close(struct blocks *b, struct slot_ref ref, uint64_t tick)
{
    struct table *t = find(b, ref);
    if (!t)
        return STATUS_SLOT_STALE;
    ASSERT(b->drain_tail == NO_BLOCK || b->drain_tick[b->drain_tail] <= tick);
    for (uint32_t i = t->n_blocks; i-- > 0;) {
        if (tick <= b->retired)
            free_push(b, entries_of(b, ref.slot)[i]);
        else
            drain_push(b, entries_of(b, ref.slot)[i], tick);
    }
    b->n_live -= t->n_blocks;
    b->promised -= t->n_reserved - t->n_blocks;
    *t = (struct table){0};
    ASSERT(check_small(b));
    return STATUS_OK;
}

void blocks_retire(struct blocks *b, uint64_t tick)
{
    if (tick > b->retired)
        b->retired = tick;
    while (b->drain_head != NO_BLOCK && b->drain_tick[b->drain_head] <= tick) {
        uint32_t block = b->drain_head;
        b->drain_head = b->next[block];
        if (b->drain_head == NO_BLOCK)
            b->drain_tail = NO_BLOCK;
        b->n_draining--;
        free_push(b, block);
    }
    ASSERT(check_small(b));
}

struct blocks_count blocks_counts(const struct blocks *b)
{
    return (struct blocks_count){.total = b->total, .free = b->n_free, .cached = 0, .live = b->n_live,
                                 .draining = b->n_draining, .promised = b->promised};
}

uint32_t blocks_available(const struct blocks *b)
{
    return b->n_free - b->promised;
}

/* Walks one chain through next[], marks its blocks, and returns its length or UINT32_MAX if a block is met twice. */
static uint32_t walk(const struct blocks *b, uint32_t head, unsigned char *seen)
{
    uint32_t n = 0;
    for (uint32_t i = head; i != NO_BLOCK; i = b->next[i], n++) {
        if (i >= b->total || seen[i])
            return UINT32_MAX;
        seen[i] = 1;
    }
    return n;
}

static const char *check_tables(const struct blocks *b, unsigned char *seen)
{
    uint32_t live = 0, promised = 0;
    for (uint32_t s = 0; s < b->n_slots; s++) {
        const struct table *t = &b->table[s];
        if (t->n_blocks > t->n_reserved || t->n_reserved > b->per_seq)
            return "a table has at most what its sequence reserved";
        for (uint32_t i = 0; i < t->n_blocks; i++) {
            uint32_t block = entries_of(b, s)[i];
            if (block >= b->total || seen[block])
                return "a block is in one place";
            seen[block] = 1;
        }
        live += t->n_blocks;
        promised += t->n_reserved - t->n_blocks;
    }
    if (live != b->n_live || promised != b->promised)
        return "live and promised are the sums over the tables";
    return NULL;
}

int blocks__check(const struct blocks *b, const char **why)
{
    *why = NULL;
    unsigned char *seen = calloc(b->total + 1u, 1);
    if (!seen)
        return 1;
    if (walk(b, b->free_head, seen) != b->n_free || walk(b, b->drain_head, seen) != b->n_draining)
        *why = "the lists have the lengths of their counts, no block twice";
    else
        *why = check_tables(b, seen);
    free(seen);
    if (!*why && b->n_free + b->n_live + b->n_draining != b->total)
        *why = "free + cached + live + draining == total";
    if (!*why && b->promised > b->n_free)
        *why = "what was promised is free";
    for (uint32_t i = b->drain_head; !*why && i != NO_BLOCK && b->next[i] != NO_BLOCK; i = b->next[i])
        if (b->drain_tick[i] > b->drain_tick[b->next[i]])
            *why = "the draining list is ordered by tick";
    return !*why;
}
