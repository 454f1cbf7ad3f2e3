/* coordinator/blocks_impl.h - the tables of blocks.c, for its check.
 *
 * Purpose    What blocks.c and blocks_check.c both see. Nobody else includes it.
 * Ownership  blocks_create/blocks_destroy.
 * Threading  Engine thread only.
 */
#ifndef SLUICE_COORDINATOR_BLOCKS_IMPL_H
#define SLUICE_COORDINATOR_BLOCKS_IMPL_H

#include "coordinator/blocks.h"
#include "coordinator/prefix_map.h"

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
    uint32_t next, prev; /* in the list of its state; a live twin's: among the twins of its entry */
    uint32_t n_holders;
    uint32_t entry;      /* of the map, which it stands for or is a twin of; NO_ENTRY: none */
    uint64_t tick;       /* draining: until this one is retired */
    int hollow;          /* in the map, but the lower stages have lost what it holds */
};

struct blocks_list {
    uint32_t head, tail, n;
};

struct table {
    uint64_t seq;        /* 0: nobody's */
    uint32_t n_blocks;   /* in the table */
    uint32_t n_entered;  /* the first of them, which are in the map or twins of entries */
    uint32_t n_full;     /* the first of these, which are not hollow */
    uint32_t n_reserved; /* it may grow to so many */
};

struct blocks {
    struct blocks_options o;
    uint32_t per_seq;
    uint32_t capacity;   /* of block and twins; total is at most that */
    uint32_t total, promised, n_hollow;
    struct blocks_list list[BLOCK_N_STATES]; /* of live ones only n */
    uint64_t retired;    /* newest tick that blocks_retire has seen */
    uint64_t n_evicted;
    struct prefix_map *map;
    struct block *block;
    uint32_t *twins;     /* [capacity] by entry: its first twin */
    uint32_t *entries;   /* [n_slots][per_seq] block numbers */
    uint32_t *found;     /* [per_seq] scratch: blocks that a chain finds */
    unsigned char *present; /* [per_seq] scratch, for usable_prefix */
    struct table table[];
};

/* For ASSERT after each change: walks the map if it is small; with large pools that would be all a debug build does. */
int blocks__check_small(const struct blocks *b);

#endif
