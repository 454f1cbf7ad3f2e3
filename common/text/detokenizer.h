/* common/text/detokenizer.h - streaming ids to text, whole characters only.
 *
 * Purpose    Holds back the bytes of an unfinished UTF-8 character; bytes that can never become one turn into U+FFFD, so
 *            that what is given is always valid UTF-8 and the sum of all pieces equals decoding all ids at once.
 * Ownership  In place, no heap.
 * Threading  One thread at a time.
 */
#ifndef SLUICE_COMMON_TEXT_DETOKENIZER_H
#define SLUICE_COMMON_TEXT_DETOKENIZER_H

#include "common/base/buf.h"
#include "common/text/tokenizer.h"

struct detokenizer {
    const struct tokenizer *tokenizer;
    int show_special;
    int undo_prefix;  /* spaces that encoding put in front are dropped */
    int at_start;     /* the next token stands where encoding would have put one */
    unsigned char held[4];
    unsigned n_held;
};

/* What a model answers: every byte of every token. */
void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, int show_special);
/* A text that tokenizer_encode took apart: without the space that some vocabularies (tokenizer.ggml.add_space_prefix) get
 * put before the start and behind special tokens. */
void detokenizer_init_text(struct detokenizer *d, const struct tokenizer *t, int show_special);
/* Appends what the token completes. */
enum status detokenizer_push(struct detokenizer *d, uint32_t id, struct buf *out);
/* End of the answer: a held, unfinished character becomes one U+FFFD. */
enum status detokenizer_finish(struct detokenizer *d, struct buf *out);

#endif
