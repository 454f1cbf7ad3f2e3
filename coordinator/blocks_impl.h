/* coordinator/blocks_impl.h - the tables of blocks.c and blocks_window.c, and their check.
 *
 * Purpose    What blocks.c, blocks_window.c and blocks_check.c see. Nobody else includes it.
 * Ownership  blocks_create/blocks_destroy.
 * Threading  Engine thread only.
 */
#ifndef SLUICE_COORDINATOR_BLOCKS_IMPL_H
#define SLUICE_COORDINATOR_BLOCKS_IMPL_H

#include "coordinator/block_pool.h"
#include "coordinator/blocks.h"
#include "coordinator/prefix_map.h"

struct table {
    uint64_t seq;        /* 0: nobody's */
    uint32_t n_blocks;   /* in the table */
    uint32_t n_entered;  /* the first of them, which are in the map or twins of entries */
    uint32_t n_full;     /* the first of these, which are not hollow */
    uint32_t n_reserved; /* it may grow to so many */
    uint32_t first;      /* WINDOW: of the first block that it still holds; those from there to n_blocks are */
    uint32_t n_window;   /* WINDOW: it may hold so many at a time */
};

/* The WINDOW group. An entry of the map may have a block of it; it goes with the entry, or earlier. */
struct window_group {
    uint32_t hold;       /* of one sequence at most; 0: the model has no such group */
    uint32_t promised;   /* sum of the tables' n_window: shared blocks count for each that holds them */
    uint64_t n_evicted;
    struct block_pool pool;
    uint32_t *of_entry;  /* [entry_capacity] an entry's block, or NO_BLOCK */
    uint32_t entry_capacity;
    uint32_t *entries;   /* [n_slots][per_seq] block numbers by place in the table; below `first` what was there */
    unsigned char *present; /* [2][per_seq] scratch, for usable_prefix */
};

struct blocks {
    struct blocks_options o;
    uint32_t per_seq;
    uint32_t twins_capacity;
    uint32_t promised, n_hollow;
    struct block_pool pool;
    uint64_t retired;    /* newest tick that blocks_retire has seen */
    uint64_t n_evicted;
    struct prefix_map *map;
    uint32_t *twins;     /* [twins_capacity] by entry: its first twin */
    uint32_t *entries;   /* [n_slots][per_seq] block numbers */
    uint32_t *found;     /* [per_seq] scratch: blocks that a chain finds */
    struct window_group window;
    struct table table[];
};

/* blocks_window.c. All do nothing where there is no such group. */
enum status window__create(struct blocks *b);
void window__destroy(struct blocks *b);
enum status window__make_room(struct blocks *b, uint32_t n_blocks); /* of the PAGED group, and so of entries */
void window__forget(struct blocks *b, uint32_t n_blocks);
/* Of n blocks of a chain that stand in b->found: how many both groups allow to take up. */
uint32_t window__usable(const struct blocks *b, uint32_t n);
/* Could a sequence that reserves n_reserved blocks have its share, instead of `instead`? */
int window__fits(const struct blocks *b, uint32_t n_reserved, uint32_t instead);
/* The sequence in t begins with n blocks of b->found; its right is as for window__fits. */
void window__open(struct blocks *b, struct table *t, uint32_t n);
void window__reserve(struct blocks *b, struct table *t, uint32_t n_reserved);
void window__take(struct blocks *b, const struct table *t, uint32_t place);
/* The block at a place that was entered in the map is found from now on. */
void window__publish(struct blocks *b, const struct table *t, uint32_t place);
/* Rows below n_positions are retired: what is behind the window goes. */
void window__trim(struct blocks *b, struct table *t, uint32_t n_positions);
void window__close(struct blocks *b, struct table *t, uint64_t tick);
void window__retire(struct blocks *b);
void window__leave_map(struct blocks *b, uint32_t entry); /* the entry is removed next */
const char *window__check(const struct blocks *b);        /* NULL: all is well */

/* For ASSERT after each change: walks the map if it is small; with large pools that would be all a debug build does. */
int blocks__check_small(const struct blocks *b);

#endif
