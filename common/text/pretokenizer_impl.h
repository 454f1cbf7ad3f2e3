/* common/text/pretokenizer_impl.h - the pre-tokenizer with other bounds.
 *
 * Purpose    Text is looked at in windows of megabytes; with small ones a fuzzer's texts have as many as the longest prompts.
 * Ownership  As pretokenizer.h.
 * Threading  As pretokenizer.h.
 * Errors     As pretokenizer.h.
 */
#ifndef SLUICE_COMMON_TEXT_PRETOKENIZER_IMPL_H
#define SLUICE_COMMON_TEXT_PRETOKENIZER_IMPL_H

#include "common/text/pretokenizer.h"

/* A search for a word comes up for air after search_bytes (at least 4: a character), a word has at most max_word bytes. */
enum status pretokenizer__split_within(const struct pretokenizer *p, struct pretokenizer_scratch *s, const char *text, size_t len,
                                       size_t search_bytes, size_t max_word, struct work *work, pretokenizer_sink sink,
                                       void *context);

#endif
