/* common/text/bpe.h - byte-pair merges of one word.
 *
 * Purpose    Applies the merge list to the bytes of one word: always the pair with the lowest rank, the leftmost of
 *            equals (Sennrich, Haddow, Birch 2016; order of ties as in `tokenizers` and llama.cpp). Short words are
 *            scanned, long ones use a heap: n log n, so that a megabyte without a word boundary takes under a second.
 * Ownership  bpe_init/fini in place; bpe_scratch is one call's.
 * Threading  Read-only after the last bpe_add.
 * Invariants 1. A pair is in the table once, with the lowest rank it was added with.
 *            2. Every id that is written was given as a byte's or as a merge's.
 * Errors     STATUS_OUT_OF_MEMORY, STATUS_TIMEOUT.
 */
#ifndef SLUICE_COMMON_TEXT_BPE_H
#define SLUICE_COMMON_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/text/merge_heap.h"
#include "common/text/vocab_map.h"
#include "common/text/work.h"

struct bpe_merge {
    uint32_t left, right, rank, id; /* left == VOCAB_NO_ID: free slot */
};

struct bpe {
    uint32_t byte_id[256]; /* VOCAB_NO_ID: the vocabulary cannot say this byte, it is left out */
    struct bpe_merge *merges;
    size_t mask;
    uint64_t seed;
};

struct bpe_symbol;
struct bpe_scratch {
    struct bpe_symbol *symbols; /* [size] */
    struct merge_heap heap;     /* [2 * size] */
    size_t size;
};

/* Room for n_merges; byte_id is all VOCAB_NO_ID afterwards. */
enum status bpe_init(struct bpe *b, size_t n_merges);
void bpe_fini(struct bpe *b);
void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

void bpe_scratch_init(struct bpe_scratch *s);
void bpe_scratch_fini(struct bpe_scratch *s);

/* Gives the ids of a word of len bytes to emit, in order; what emit refuses ends it. */
enum status bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len, struct work *work,
                       enum status (*emit)(void *context, uint32_t id), void *context);

#endif
