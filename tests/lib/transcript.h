/* tests/lib/transcript.h - everything that one sequence gets from a pipeline, to the bit.
 *
 * Purpose    Reads a prompt in pieces and draws tokens, alone or beside other sequences, and keeps the ids and the logits of
 *            every sampled row. Two transcripts of the same sequence must be equal whatever the pipeline looks like.
 * Ownership  transcript_free.
 * Threading  One thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_LIB_TRANSCRIPT_H
#define SLUICE_TESTS_LIB_TRANSCRIPT_H

#include "tests/lib/chain.h"

struct transcript_options {
    struct chain_options chain;
    const uint32_t *prompt;
    uint32_t n_prompt, n_decode;
    uint32_t piece;        /* rows of the prompt in one tick */
    uint32_t sample_every; /* every so many rows of the prompt are sampled too, and the last */
    uint32_t n_others;     /* sequences beside it, before and behind its rows, 0..7 */
};

struct transcript {
    uint32_t n_samples, n_vocab;
    int32_t *ids;    /* [n_samples] in order of positions */
    float *logits;   /* [n_samples][n_vocab] */
};

struct transcript transcript_make(const struct transcript_options *o);
void transcript_free(struct transcript *t);
/* Fails with `what` at the first bit that differs. */
void transcript_compare(const struct transcript *want, const struct transcript *got, const char *what);

#endif
