/* tests/unit/text/vocabulary_maker.h - GGUF files in memory that hold a vocabulary and nothing else.
 *
 * Purpose    Right and wrong vocabularies for tests and fuzzing: keys are written as they are given.
 * Ownership  maker_init/maker_fini; a gguf opened over the bytes must be closed first.
 * Threading  One thread.
 * Errors     None: out of memory leaves a file that does not open.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_VOCABULARY_MAKER_H
#define SLUICE_TESTS_UNIT_TEXT_VOCABULARY_MAKER_H

#include "common/base/buf.h"
#include "common/model/gguf.h"
#include "common/text/tokenizer.h"

struct vocabulary_maker {
    struct buf bytes;
    uint64_t n_keys;
};

void vocabulary_maker_init(struct vocabulary_maker *m);
void vocabulary_maker_fini(struct vocabulary_maker *m);
void vocabulary_maker_text(struct vocabulary_maker *m, const char *key, const char *value);
void vocabulary_maker_u32(struct vocabulary_maker *m, const char *key, uint32_t value);
void vocabulary_maker_i32(struct vocabulary_maker *m, const char *key, int32_t value);
void vocabulary_maker_bool(struct vocabulary_maker *m, const char *key, int value);
void vocabulary_maker_texts(struct vocabulary_maker *m, const char *key, const struct text *texts, uint64_t n);
void vocabulary_maker_ints(struct vocabulary_maker *m, const char *key, const int32_t *ints, uint64_t n);
void vocabulary_maker_floats(struct vocabulary_maker *m, const char *key, const float *floats, uint64_t n);
/* The finished file; keys may not be added afterwards. */
const void *vocabulary_maker_bytes(struct vocabulary_maker *m, size_t *len);

/* The 256 byte symbols in the order of the bytes; texts[256] point to static memory. */
void vocabulary_maker_symbols(struct text texts[256]);

#endif
