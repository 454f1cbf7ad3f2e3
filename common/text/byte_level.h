/* common/text/byte_level.h - byte-level BPE as a whole (tokenizer.ggml.model "gpt2").
 *
 * Purpose    Pre-tokenizer, merge list and the table of what merges may make, built from a GGUF. tokenizer.ggml.pre names
 *            the pre-tokenizer; where the key is absent "default" is taken, and it is logged.
 * Ownership  byte_level_init, then byte_level_build; byte_level_fini after either, in place. Points into the vocabulary.
 * Threading  Read-only after byte_level_build; a scratch is one call's.
 * Errors     STATUS_BAD_MODEL (unknown pre-tokenizer, merges or bytes absent), and those of pretokenizer.h and bpe.h.
 */
#ifndef SLUICE_COMMON_TEXT_BYTE_LEVEL_H
#define SLUICE_COMMON_TEXT_BYTE_LEVEL_H

#include "common/text/bpe.h"
#include "common/text/pretokenizer.h"
#include "common/text/vocab.h"

struct byte_level {
    const struct vocab *vocab;
    struct vocab_map map; /* bytes of what ordinary text may become */
    struct bpe bpe;
    struct pretokenizer *pre;
};

struct byte_level_scratch {
    struct bpe_scratch bpe;
    struct pretokenizer_scratch *pre;
};

/* The pre-tokenizer alone: it says what the vocabulary's defaults are. */
enum status byte_level_init(struct byte_level *b, const struct gguf *g, struct error *err);
enum status byte_level_build(struct byte_level *b, const struct vocab *v, const struct gguf *g, struct error *err);
void byte_level_fini(struct byte_level *b);

enum status byte_level_scratch_init(struct byte_level_scratch *c); /* STATUS_OUT_OF_MEMORY; fini all the same */
void byte_level_scratch_fini(struct byte_level_scratch *c);

/* Gives the ids of well-formed UTF-8 between two special tokens to emit, in order; what emit refuses ends it. */
enum status byte_level_encode(const struct byte_level *b, struct byte_level_scratch *c, const char *text, size_t len,
                              struct work *work, enum status (*emit)(void *context, uint32_t id), void *context);

#endif
