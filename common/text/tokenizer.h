/* common/text/tokenizer.h - text to token ids and back.
 *
 * Purpose    Two kinds of vocabulary, as tokenizer.ggml.model says: "gpt2", byte-level BPE with the pre-tokenizer that
 *            tokenizer.ggml.pre names (byte_level.h), and "llama", SentencePiece-style merges by score with byte fallback
 *            (spm.h). Another kind or an unknown pre-tokenizer refuses the load.
 *            Control tokens (type 3) come from templates only: a marked text span (TOKENIZER_MARK) never matches one.
 * Ownership  tokenizer_create/tokenizer_destroy; it keeps pointers into the gguf, which must outlive it.
 * Threading  Read-only after create: any number of threads encode at once.
 * Errors     STATUS_BAD_MODEL (create), STATUS_BAD_REQUEST (bad UTF-8: param and byte offset; over max_ids),
 *            STATUS_TIMEOUT (deadline passed), STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_TOKENIZER_H
#define SLUICE_COMMON_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/model/gguf.h"

struct tokenizer;

enum {
    TOKENIZE_ADD_SPECIAL = 1,   /* BOS/EOS where the model wants them; BOS is never doubled */
    TOKENIZE_PARSE_SPECIAL = 2, /* texts of control tokens become those tokens */
};

/* A private-use code point that the chat template side puts in front of what looks like a control token in user
 * strings: encode drops it and does not match a control token right behind it. UTF-8 of U+10FFFD. */
#define TOKENIZER_MARK "\xf4\x8f\xbf\xbd"

enum status tokenizer_create(const struct gguf *g, struct tokenizer **out, struct error *err);
void tokenizer_destroy(struct tokenizer *t);

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The most ids that a text of len bytes becomes, with those that ADD_SPECIAL adds. */
size_t tokenizer_max_ids(const struct tokenizer *t, size_t len);
/* Writes at most max_ids; *n_ids is written on success. Linear in len apart from the merges of one pre-token, which are
 * n log n. deadline_ns: clock_now_ns scale, INT64_MAX for none; looked at at least every millisecond of work. */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags, int64_t deadline_ns,
                             uint32_t *ids, size_t max_ids, size_t *n_ids, struct error *err);
/* Raw bytes of one token; control tokens give "" unless show_special. Many end inside a character. id < n_vocab. */
struct text tokenizer_piece(const struct tokenizer *t, uint32_t id, int show_special);
int tokenizer_is_control(const struct tokenizer *t, uint32_t id);
/* True for tokens that end an answer (EOS, EOT, <|im_end|> and their kin by the GGUF's keys and by name). */
int tokenizer_is_end(const struct tokenizer *t, uint32_t id);
int64_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int64_t tokenizer_eos(const struct tokenizer *t);
/* Number of control tokens and the text of the i-th, for marking user strings. */
uint32_t tokenizer_n_control(const struct tokenizer *t);
struct text tokenizer_control_text(const struct tokenizer *t, uint32_t i);

#endif
