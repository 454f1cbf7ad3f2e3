/* common/text/tokenizer_impl.h - what files of this folder may see of a tokenizer.
 *
 * Purpose    The table of special names, for marking user strings (chat_mark); where encoding puts a space, for taking it
 *            away again (detokenizer).
 * Ownership  The tokenizer's.
 * Threading  Read-only.
 * Errors     None.
 */
#ifndef SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H
#define SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H

#include "common/text/special.h"
#include "common/text/tokenizer.h"

const struct special *tokenizer__special(const struct tokenizer *t);
/* Encoding puts a space before what stands at the start of a text and behind each special token. */
int tokenizer__space_prefix(const struct tokenizer *t);
/* Behind this token, of n_vocab, it puts one. */
int tokenizer__starts_text(const struct tokenizer *t, uint32_t id);

#endif
