/* coordinator/block_pool.h - blocks of one group, each in the list of its state.
 *
 * Purpose    What blocks.c keeps for the PAGED group and blocks_window.c for the WINDOW group. It knows neither tables nor ticks.
 * Ownership  block_pool_make_room allocates, block_pool_free frees; a zeroed pool is an empty one.
 * Threading  Engine thread only.
 * Invariants 1. Every block is counted in the list of its state, and linked in it unless it is live.
 * Errors     OUT_OF_MEMORY (block_pool_make_room), nothing changed then.
 */
#ifndef SLUICE_COORDINATOR_BLOCK_POOL_H
#define SLUICE_COORDINATOR_BLOCK_POOL_H

#include <stdint.h>

#include "common/base/status.h"

enum { NO_BLOCK = UINT32_MAX };

enum block_state {
    BLOCK_FREE,     /* in nobody's hands, holds nothing */
    BLOCK_CACHED,   /* in nobody's hands, in the map; oldest at the head */
    BLOCK_LIVE,     /* in the tables of n_holders sequences */
    BLOCK_DRAINING, /* in nobody's hands, a tick in flight may touch it; by tick */
    BLOCK_N_STATES,
};

struct block {
    enum block_state state;
    uint32_t next, prev; /* in the list of its state; a live twin's: among the twins of its entry (PAGED) */
    uint32_t n_holders;
    uint32_t entry;      /* of the map, which it stands for or is a twin of (PAGED), or that has it (WINDOW); NO_ENTRY: none */
    uint64_t tick;       /* draining: until this one is retired */
    int hollow;          /* in the map, but the lower stages have lost what it holds (PAGED) */
};

struct blocks_list {
    uint32_t head, tail, n;
};

struct block_pool {
    uint32_t total, capacity; /* total <= capacity, that of block */
    struct blocks_list list[BLOCK_N_STATES]; /* of live ones only n */
    struct block *block;
};

/* Room for n blocks; the pool stays what it was. Allocates if n is more than ever before. */
enum status block_pool_make_room(struct block_pool *p, uint32_t n);
/* n blocks (room was made), every one free, the lowest number on top. */
void block_pool_forget(struct block_pool *p, uint32_t n);
void block_pool_free(struct block_pool *p);

void block_pool_move(struct block_pool *p, uint32_t i, enum block_state to);

static inline struct block *block_at(const struct block_pool *p, uint32_t i)
{
    return &p->block[i];
}

#endif
