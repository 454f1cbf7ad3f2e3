/* tests/lib/tiny.h - the tiny models of tests/vectors/tiny with their reference logits.
 *
 * Purpose    Reads NAME.json, NAME.logits.f32 and the int8 reference; computes the same rows; says how far logits are from others.
 * Ownership  tiny_open/tiny_close.
 * Threading  One thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_LIB_TINY_H
#define SLUICE_TESTS_LIB_TINY_H

#include <stdint.h>

#include "tests/lib/chain.h"

enum { TINY_SEQUENCES = 4, TINY_GREEDY = 2, TINY_GREEDY_IDS = 24, TINY_MAX_ROWS = 256 };

struct tiny_ids {
    uint32_t n, first_row;
    uint32_t *ids;
};

struct tiny_greedy {
    uint32_t n_prompt, n;
    uint32_t *prompt, *ids;
    float *gaps;
};

struct tiny {
    char path[512];
    uint32_t n_vocab, n_rows;
    struct tiny_ids sequences[TINY_SEQUENCES];
    struct tiny_greedy greedy[TINY_GREEDY];
    float *logits; /* [n_rows][n_vocab] */
};

/* reference: "" (float activations) or ".int8". */
struct tiny *tiny_open(const char *name, const char *reference);
void tiny_close(struct tiny *t);
/* Logits [n_rows][n_vocab] of every position of every sequence, each read in one tick; free() them. */
float *tiny_logits(struct chain *c, const struct tiny *t);

struct distance {
    double max_abs, rms, mean_kl, top1;
};

/* Of n_rows rows of logits from the reference's. */
struct distance tiny_distance(const float *reference, const float *got, uint32_t n_rows, uint32_t n_vocab);
/* The largest difference of each row, ascending. */
void tiny_row_max(const float *reference, const float *got, const struct tiny *t, double out[TINY_MAX_ROWS]);

#endif
