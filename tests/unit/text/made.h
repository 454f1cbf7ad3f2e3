/* tests/unit/text/made.h - a vocabulary that a test made, as a tokenizer or as a refusal.
 *
 * Purpose    Opens what a test has put into a vocabulary_maker.
 * Ownership  made_must_open takes the keys that lie in made.maker; unmake frees all of it.
 * Threading  One thread.
 * Errors     made_must_open and made_must_be_refused fail the test.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_MADE_H
#define SLUICE_TESTS_UNIT_TEXT_MADE_H

#include "vocabulary_maker.h"

struct made {
    struct vocabulary_maker maker;
    struct gguf *gguf;
    struct tokenizer *t;
};

void made_must_open(struct made *m);
/* BAD_MODEL, and its message says both words. Frees m. */
void made_must_be_refused(struct made *m, const char *word, const char *word2);
void unmake(struct made *m);

#endif
