/* common/text/pretokenizer.h - cuts text into the words that byte-pair merges stay inside of.
 *
 * Purpose    One row for each tokenizer.ggml.pre: the model's own patterns, applied one after the other to the pieces of
 *            the one before (matches and the gaps between them are both pieces), and the two habits that come with the
 *            name. PCRE2 runs them with Unicode properties, compiled to machine code where the CPU allows.
 * Ownership  pretokenizer_create/destroy; scratch is one call's, pretokenizer_scratch_create/destroy.
 * Threading  Read-only after create; a scratch belongs to one thread.
 * Errors     STATUS_BAD_MODEL (unknown name; the known ones are listed), STATUS_BAD_REQUEST (a word over
 *            PRETOKENIZER_MAX_WORD), STATUS_TIMEOUT, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_PRETOKENIZER_H
#define SLUICE_COMMON_TEXT_PRETOKENIZER_H

#include "common/model/gguf.h"
#include "common/text/work.h"

/* Longest run without a word boundary, in bytes: bounds the memory of merges (32 bytes for each) and the time of one
 * match, which cannot be interrupted. */
enum { PRETOKENIZER_MAX_WORD = 2 << 20 };

struct pretokenizer;
struct pretokenizer_scratch;

typedef enum status (*pretokenizer_sink)(void *context, const char *word, size_t len);

enum status pretokenizer_create(struct text name, struct pretokenizer **out, struct error *err);
void pretokenizer_destroy(struct pretokenizer *p);
/* A word that is itself a token is taken whole, before any merge. */
int pretokenizer_whole_words(const struct pretokenizer *p);
/* BOS is added when the file has no add_bos_token. */
int pretokenizer_adds_bos(const struct pretokenizer *p);

struct pretokenizer_scratch *pretokenizer_scratch_create(void); /* NULL: no memory */
void pretokenizer_scratch_destroy(struct pretokenizer_scratch *s);

/* Calls sink for each word of well-formed UTF-8 in order; the words put together are the text. */
enum status pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_scratch *s, const char *text, size_t len,
                               struct work *work, pretokenizer_sink sink, void *context);

#endif
