/* tests/unit/coordinator/blocks_model_impl.h - inside of the plain model: blocks_model.c and, for the WINDOW group,
 * blocks_model_window.c.
 *
 * Purpose    Its fields, and what both files need.
 * Ownership  blocks_model_play's.
 * Threading  One thread.
 * Errors     The rule that was broken first.
 */
#ifndef SLUICE_TESTS_UNIT_COORDINATOR_BLOCKS_MODEL_IMPL_H
#define SLUICE_TESTS_UNIT_COORDINATOR_BLOCKS_MODEL_IMPL_H

#include "coordinator/blocks.h"
#include "tests/unit/coordinator/blocks_model.h"

enum { MAX_BLOCKS = 64, N_SLOTS = 5, KV_BLOCK = 3, PER_SEQ = 8, CONTEXT = KV_BLOCK * PER_SEQ - 1, N_SALTS = 3, N_PAST = 12 };

enum state { FREE, CACHED, LIVE, DRAINING };

/* What a block holds: the last KV_BLOCK of n items, after those before them. n 0: unknown. */
struct content {
    uint64_t salt;
    uint32_t n;
    unsigned char items[CONTEXT];
};

struct cell {
    enum state state;
    uint32_t n_holders;
    int entered;              /* may be found as its content */
    int hollow;               /* and the lower stages have lost it */
    struct content content;
    uint64_t drain_tick, busy_tick, released; /* released: of a WINDOW block, when it was settled or began to drain */
};

struct sequence {
    struct slot_ref ref;      /* seq 0: not open */
    struct content text;      /* all its items, prompt and answer */
    uint32_t n_reserved, n_blocks, n_entered, n_full, n_run, n_retired;
    uint64_t run_tick[CONTEXT];
    uint32_t table[PER_SEQ];
    uint32_t first, window[PER_SEQ]; /* WINDOW: its blocks by place, from first on */
};

struct model {
    struct blocks_model_run *run;
    struct blocks *b;
    uint64_t draws, next_seq, tick, retired, clock, evicted, told;
    uint32_t total;
    struct cell cell[MAX_BLOCKS];
    struct sequence seq[N_SLOTS];
    struct content past[N_PAST];
    struct kv_window w;       /* the rule of the WINDOW group; window 0: there is none */
    uint32_t window_total;
    uint64_t window_evicted;
    struct cell window[MAX_BLOCKS];
};

#define RULE(holds, text)                                                                                                      \
    do {                                                                                                                       \
        if (!(holds))                                                                                                          \
            return (text);                                                                                                     \
    } while (0)

static inline int holds(const struct cell *c, const struct content *text, uint32_t n)
{
    return c->content.n == n && c->content.salt == text->salt && !__builtin_memcmp(c->content.items, text->items, n);
}

/* All do nothing, or allow all, without the group. */
uint32_t window_usable(const struct model *m, const struct content *text, uint32_t n);
int window_fits(const struct model *m, uint32_t n_reserved, const struct sequence *instead);
const char *window_open(struct model *m, struct sequence *q);  /* q has its hits */
const char *window_take(struct model *m, struct sequence *q, uint32_t place); /* with the PAGED block there */
void window_write(struct model *m, struct sequence *q, uint32_t position);
uint32_t window_most_rows(const struct model *m, const struct sequence *q); /* that may still be in flight */
const char *window_commit(struct model *m, struct sequence *q, uint32_t first_entered);
void window_close(struct model *m, struct sequence *q);
void window_retire(struct model *m);
void window_forget(struct model *m);
void window_left_map(struct model *m, const struct content *c); /* the PAGED entry of this content */
const char *window_compare(const struct model *m);

#endif
