/* common/text/tokenizer_impl.h - what files of this folder may see of a tokenizer.
 *
 * Purpose    The table of special names, for marking user strings (chat_mark).
 * Ownership  The tokenizer's.
 * Threading  Read-only.
 * Errors     None.
 */
#ifndef SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H
#define SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H

#include "common/text/special.h"
#include "common/text/tokenizer.h"

const struct special *tokenizer__special(const struct tokenizer *t);

#endif
