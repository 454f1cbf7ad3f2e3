/* tests/unit/coordinator/blocks_model.h - blocks against a plain model of the same rules.
 *
 * Purpose    Plays a random service on a small pool and compares every answer of blocks.c with a model that searches plain
 *            arrays: prefixes are compared item by item from their beginning, the least recently released block is looked
 *            for, and what each block really holds is written down as its sequences run.
 * Ownership  Nothing is kept.
 * Threading  One thread.
 * Errors     The rule that was broken first.
 */
#ifndef SLUICE_TESTS_UNIT_COORDINATOR_BLOCKS_MODEL_H
#define SLUICE_TESTS_UNIT_COORDINATOR_BLOCKS_MODEL_H

#include <stdint.h>

struct blocks_model_run {
    uint64_t seed;
    uint32_t hash_bits, n_steps;
    uint32_t n_blocks;    /* <= 64 */
    uint32_t window;      /* positions that a row of the WINDOW group sees; 0: there is no such group */
    uint32_t window_slots; /* sequences that its pool is made for */
    /* out: what happened, so that a test can see that it happened at all */
    uint32_t n_hits, n_draining_hits, n_evictions, n_busy, n_duplicates, n_resets, n_hollow, failed_step;
    uint32_t n_trimmed, n_window_hits, n_window_misses, n_window_evictions;
};

/* NULL: every answer was the model's. */
const char *blocks_model_play(struct blocks_model_run *run);

/* The rule whose breach the mutant without salts must show. */
extern const char blocks_model_foreign[];

/* Sequences run, end and start on a tight pool while results come late. How many of the blocks that were handed out could
 * still be touched by a tick in flight? *n_out: how many were handed out. Looks at nothing but tables. */
uint32_t blocks_model_early(uint64_t seed, uint32_t n_steps, uint32_t *n_out);

#endif
