/* coordinator/blocks.h - the one map of KV blocks.
 *
 * Purpose    A block is KV room for kv_block positions, at the same index on every stage. This module says whose each
 *            block is and keeps every sequence's block table. It does not know tokens or prefixes: the cache of issue 4
 *            adds the state CACHED between draining and free, and eviction in front of reserve.
 * Ownership  blocks_create/blocks_destroy. Tables returned are read-only and valid until the next grow, close or reset of
 *            that sequence.
 * Threading  Engine thread only.
 * Invariants 1. free + cached + live + draining == total.
 *            2. promised <= free: a sequence that was opened can always grow to what it reserved, so nobody runs out of
 *               blocks while it runs. (With preemption, issue 4 reserves less and grow may answer BLOCKS_BUSY.)
 *            3. Every block is in exactly one of: the free list, one sequence's table, the draining list.
 *            4. The draining list is ordered by tick.
 * Errors     BLOCKS_BUSY (nothing taken), SLOT_STALE, OUT_OF_MEMORY (create, reset).
 *
 *                open + grow            close(tick)               retire(tick)
 *         FREE -------------> LIVE -----------------> DRAINING ----------------> FREE
 */
#ifndef SLUICE_COORDINATOR_BLOCKS_H
#define SLUICE_COORDINATOR_BLOCKS_H

#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/slots.h"

struct blocks;

struct blocks_count {
    uint32_t total, free, cached, live, draining;
    uint32_t promised; /* of the free ones: reserved by open sequences, not in a table yet */
};

/* n_blocks may be 0 (no pool is known before the stages have loaded; see blocks_reset). A table has room for
 * ceil(context / kv_block) blocks. Everything is allocated here and in reset. */
enum status blocks_create(uint32_t n_blocks, uint32_t n_slots, uint32_t context, uint32_t kv_block, struct blocks **out);
void blocks_destroy(struct blocks *b);
/* A new epoch: forgets every sequence, every block is free, and the pool has n_blocks. Allocates if the pool grew; on
 * OUT_OF_MEMORY nothing changed. */
enum status blocks_reset(struct blocks *b, uint32_t n_blocks);

uint32_t blocks_needed(const struct blocks *b, uint32_t n_positions); /* ceil */
/* Could a reservation of n blocks ever be met (n <= total and n <= a table's room)? Else the request is refused at once. */
int blocks_ever_fit(const struct blocks *b, uint32_t n);

/* The sequence starts with an empty table and the right to n_reserved blocks. BLOCKS_BUSY: fewer are free and unpromised. */
enum status blocks_open(struct blocks *b, struct slot_ref ref, uint32_t n_reserved);
/* Makes the table cover n_positions. New blocks are the last *n_new of the table (0: it already did). BLOCKS_BUSY: more
 * than the reservation, nothing taken. */
enum status blocks_grow(struct blocks *b, struct slot_ref ref, uint32_t n_positions, uint32_t *n_new);
/* NULL and *n = 0 when ref's use has ended. */
const uint32_t *blocks_table(const struct blocks *b, struct slot_ref ref, uint32_t *n);
/* The sequence ends. Its blocks drain until `tick` (the newest tick that was sent; 0: none) is retired; its promise is
 * given back at once. tick never falls from one close to the next within an epoch. */
enum status blocks_close(struct blocks *b, struct slot_ref ref, uint64_t tick);
/* Tick and all before it are retired: what drained for them is free. */
void blocks_retire(struct blocks *b, uint64_t tick);

struct blocks_count blocks_counts(const struct blocks *b);
/* Blocks that a new reservation could have now. */
uint32_t blocks_available(const struct blocks *b);

int blocks__check(const struct blocks *b, const char **why);

#endif
