/* common/text/spm.h - SentencePiece-style merges (tokenizer.ggml.model "llama").
 *
 * Purpose    A text's spaces become U+2581; then neighbours whose text together is a token are merged, always the pair
 *            with the highest score, the leftmost of equals (Kudo, Richardson 2018, BPE; sentencepiece's bpe_model).
 *            A character that ends up in no token becomes its bytes' tokens <0xXX>; where the vocabulary lacks one of
 *            those, a run of such characters becomes one unknown token, or nothing where there is none. Unused tokens
 *            take part in merges and are taken apart again.
 *            Two characters that are neighbours in no token can never be merged: text is cut there into words, so memory
 *            and time depend on a word's length, not on the text's.
 * Ownership  spm_init/fini in place; it points into the vocabulary. spm_scratch is one call's.
 * Threading  Read-only after spm_init.
 * Errors     STATUS_BAD_MODEL (scores absent, too few or not numbers; a token over SPM_MAX_TOKEN; nothing to say text
 *            with), STATUS_BAD_REQUEST (a word over PRETOKENIZER_MAX_WORD), STATUS_TIMEOUT, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_SPM_H
#define SLUICE_COMMON_TEXT_SPM_H

#include "common/text/merge_heap.h"
#include "common/text/vocab.h"
#include "common/text/vocab_map.h"
#include "common/text/work.h"

/* Longest token that merges may make, in bytes: bounds what looking one up costs. Known vocabularies stay below 100. */
enum { SPM_MAX_TOKEN = 1024 };

struct spm {
    const struct vocab *vocab;
    struct vocab_map map;      /* texts, as in the file, of normal and unused tokens */
    uint32_t *rank;            /* [n] place of a token's score among all, 0: the highest; equal scores share one */
    uint64_t *neighbours;      /* bits, by hash of two characters: they are neighbours in some token (or another pair is) */
    uint64_t seed;
    size_t longest;            /* bytes of the longest text in map */
    uint32_t byte_id[256];     /* VOCAB_NO_ID: no such byte token */
    uint32_t unknown;          /* VOCAB_NO_ID: none */
    int all_bytes;             /* every byte has a token: no text is lost */
    unsigned space_ids;        /* most ids that one space becomes: 3 where U+2581 is no token */
    int space_prefix;          /* a space is put before what stands at the start and behind each special token */
};

struct spm_place;
struct spm_scratch {
    char *text;                /* the word, escaped */
    struct spm_place *places;  /* [size] its characters */
    struct merge_heap heap;    /* [2 * size] */
    size_t n_text, n, size;
    size_t n_source;           /* bytes of the text that became the word */
    uint32_t last;             /* code point that was put last */
    int in_unknown;            /* what was given last was the unknown token */
};

enum status spm_init(struct spm *s, const struct vocab *v, const struct gguf *g, struct error *err);
void spm_fini(struct spm *s);

void spm_scratch_init(struct spm_scratch *c);
void spm_scratch_fini(struct spm_scratch *c);

/* Gives the ids of well-formed UTF-8 between two special tokens to emit, in order; what emit refuses ends it. */
enum status spm_encode(const struct spm *s, struct spm_scratch *c, const char *text, size_t len, struct work *work,
                       enum status (*emit)(void *context, uint32_t id), void *context);

#endif
