/* tests/unit/text/cases.h - the checks that every tokenizer vector file gets.
 *
 * Purpose    NAME.jsonl: text to ids. NAME.detok.jsonl: ids to bytes, token by token, and streaming the same ids in any
 *            way equals decoding them at once.
 * Threading  One thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_CASES_H
#define SLUICE_TESTS_UNIT_TEXT_CASES_H

#include "common/text/tokenizer.h"

int cases_encode(const struct tokenizer *t, const char *file); /* returns the number of cases */
int cases_decode(const struct tokenizer *t, const char *file);
/* encode then decode of n random Unicode texts, of spaces, tabs and line ends; skips characters that the vocabulary
 * has no bytes for, the mark, and U+2581, which SentencePiece reads as a space. */
void cases_round_trip(const struct tokenizer *t, int n);

#endif
