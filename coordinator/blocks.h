/* coordinator/blocks.h - the one map of KV blocks.
 *
 * Purpose    A block is KV room for kv_block positions, at the same index on every stage. This module says who holds each
 *            block, keeps every sequence's block table, and finds what an earlier sequence left: full blocks whose results
 *            are retired are entered in the prefix map, shared by who has the same beginning, and kept when nobody holds
 *            them until room is needed. It does not know tokens, clients or the model: a chain names 64-bit items and a salt.
 *
 *            A model whose layers see a window only has blocks of a second group, WINDOW, with numbers of their own
 *            (common/model/kv_window.h): a sequence has them at its last positions only. "Blocks" without more are those of
 *            the PAGED group, which every sequence has at all positions. Without windows there is nothing of the other group.
 * Ownership  blocks_create/blocks_destroy. Tables returned are read-only and valid until the next grow, close or reset of
 *            that sequence. A chain is only read during the call.
 * Threading  Engine thread only.
 * Invariants 1. free + cached + live + draining == total, in each group.
 *            2. promised <= free + cached: a sequence that was opened can always grow to what it reserved.
 *            3. A block is live exactly while some table holds it, however many do. Nobody writes into a block that the map
 *               has: it is full, and a hit leaves at least one item to be read into a block of one's own.
 *            4. A block is in nobody's new table while a tick that may touch it for an earlier holder is in flight, unless
 *               that holder only ever reads it (a hit on a draining block of the map).
 *            5. A block of the map whose beginning left the map does not exist: a chain loses its tail first.
 *            6. A hollow block is of the map, and no hit finds it: the lower stages have lost what it holds (blocks_lose). One
 *               sequence at a time takes it up and has it read again; then it is like any other. With a WINDOW group there are
 *               none.
 *            7. An open sequence has a WINDOW block at every place of its table that a row which is not retired may read; those
 *               before are free, others', or cached with their place's entry, and evicted apart from it. A prefix is taken up
 *               only where the window before its end is there.
 * Errors     BLOCKS_BUSY (nothing taken), SLOT_STALE, OUT_OF_MEMORY (create, reset; nothing else allocates).
 *
 *                open, grow            last close(tick)                  retire(tick)
 *         FREE ------------> LIVE ------------------------> DRAINING -----------------> FREE    (not in the map)
 *          ^                 ^  ^                            |   |
 *          |   evicted       |  +------- a hit --------------+   | retire(tick)
 *          +----- CACHED ----+ a hit                             |                      (in the map)
 *                   ^--------------------------------------------+
 */
#ifndef SLUICE_COORDINATOR_BLOCKS_H
#define SLUICE_COORDINATOR_BLOCKS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/model/kv_window.h"
#include "coordinator/kv_groups.h"
#include "coordinator/slots.h"

struct blocks;

/* What a sequence holds, or will hold, at its positions. item(ctx, p) for p in 0..n-1 is a token id or the content hash of
 * an image row. The salt (tenant x adapter x numerics profile) is kept with every entry and compared, as the items are. */
struct block_chain {
    uint64_t salt;
    uint64_t (*item)(const void *ctx, uint32_t position);
    const void *ctx;
    uint32_t n; /* items known */
};

struct blocks_options {
    uint32_t n_blocks;   /* may be 0: no pool is known before the stages have loaded (blocks_reset) */
    uint32_t n_slots;    /* 1..SLOTS_MAX */
    uint32_t context;    /* a table has room for ceil(context / kv_block) blocks */
    uint32_t kv_block;
    uint64_t hash_key;   /* random for each process, so that nobody can make chains that collide */
    uint32_t hash_bits;  /* 0: 64; tests shorten it, and everything stays right */
    struct kv_window window; /* of the same slots, context and kv_block; zero: no WINDOW group */
    /* Told of every cached block before it is given to somebody else (a lower tier saves it); NULL: nobody. key names its
     * content within this process. Must not call back. */
    void (*on_evict)(void *ctx, uint32_t block, uint64_t key);
    void *evict_ctx;
};

struct blocks_count {
    uint32_t total, free, cached, live, draining;
    uint32_t promised; /* of the free and cached ones: reserved by open sequences, not in a table yet */
    uint32_t hollow;   /* of the cached and live ones */
    uint64_t evicted;  /* cached blocks given to somebody else, since create */
};

enum status blocks_create(const struct blocks_options *o, struct blocks **out);
void blocks_destroy(struct blocks *b);
/* A new epoch: forgets every sequence and the cache, every block is free, and the pool has n_blocks. Allocates if the pool
 * grew; on OUT_OF_MEMORY nothing changed. */
enum status blocks_reset(struct blocks *b, uint32_t n_blocks);
/* A new epoch over the same pool, with every sequence closed: ticks count from 1 again, and nothing drains any more, since
 * the stages have finished or forgotten the ticks of the epoch before. The cache stays. */
void blocks_new_epoch(struct blocks *b);
/* The lower stages of the pipeline lost their pools: every block of the map becomes hollow. With every sequence closed. Where
 * there is a WINDOW group the cache is forgotten instead: all stages read again. */
void blocks_lose(struct blocks *b);

uint32_t blocks_needed(const struct blocks *b, uint32_t n_positions); /* ceil */
/* Could a reservation of n blocks ever be met (n <= total and n <= a table's room)? Else the request is refused at once. */
int blocks_ever_fit(const struct blocks *b, uint32_t n);

/* Whole blocks that a new sequence would get from the cache now: at most (n - 1) / kv_block, so that a row is left to be
 * read. Changes nothing. O(blocks found). */
uint32_t blocks_match(const struct blocks *b, const struct block_chain *c);
/* Would blocks_open succeed now? chain NULL: without the cache. */
int blocks_can_open(const struct blocks *b, const struct block_chain *c, uint32_t n_reserved);
/* The sequence starts with the blocks that it got from the cache as its table (*n_cached of them, held from now on) and the
 * right to n_reserved blocks, those included. c NULL: no lookup. BLOCKS_BUSY: too few are free, cached and unpromised. */
enum status blocks_open(struct blocks *b, struct slot_ref ref, const struct block_chain *c, uint32_t n_reserved,
                        uint32_t *n_cached);
/* Blocks that the sequence took up hollow, behind those that it got from the cache: the lower stages read them again. */
uint32_t blocks_hollow(const struct blocks *b, struct slot_ref ref);
/* Raises the right to n_reserved blocks (never lowers it). BLOCKS_BUSY: not all of them could be promised, nothing changed. */
enum status blocks_reserve(struct blocks *b, struct slot_ref ref, uint32_t n_reserved);
/* Makes the table cover n_positions: free blocks first, then the least recently used of the cache. New blocks are the last
 * *n_new of the table (0: it already did). BLOCKS_BUSY: more than the reservation, nothing taken. */
enum status blocks_grow(struct blocks *b, struct slot_ref ref, uint32_t n_positions, uint32_t *n_new);
/* The results of all positions < c->n are retired: blocks of the table that became full enter the map. O(new full blocks).
 * Every commit of a sequence must name the same beginning as those before it and as its open. A stale ref: nothing. */
void blocks_commit(struct blocks *b, struct slot_ref ref, const struct block_chain *c);
/* NULL and *n = 0 when ref's use has ended. */
const uint32_t *blocks_table(const struct blocks *b, struct slot_ref ref, uint32_t *n);
/* The WINDOW block at each place of the same table from *first on; NULL: no such group, or ref's use has ended. */
const uint32_t *blocks_window_table(const struct blocks *b, struct slot_ref ref, uint32_t *first);
/* What an open sequence entered leaves the map, as far as nobody else holds it: its chain's salt is its own, and it will not
 * come back. Before its close. */
void blocks_forget(struct blocks *b, struct slot_ref ref);
/* The sequence ends. Blocks that nobody else holds drain until `tick` (the newest tick that was sent; 0: none) is retired;
 * its promise is given back at once. tick never falls from one close to the next within an epoch. */
enum status blocks_close(struct blocks *b, struct slot_ref ref, uint64_t tick);
/* Tick and all before it are retired: what drained for them is cached (in the map) or free. */
void blocks_retire(struct blocks *b, uint64_t tick);

struct blocks_count blocks_counts(const struct blocks *b);
struct blocks_count blocks_window_counts(const struct blocks *b); /* of the WINDOW group; all 0: there is none */
/* Blocks that a new reservation without hits could have now: free + cached - promised. */
uint32_t blocks_available(const struct blocks *b);

int blocks__check(const struct blocks *b, const char **why);

#endif
