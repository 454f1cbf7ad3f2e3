/* tests/unit/text/vectors.h - reading what the tests of common/text share.
 *
 * Purpose    Models of tests/vectors/tiny with their tokenizer, JSON and JSON-lines files. A file that is missing fails
 *            the test that asked for it.
 * Ownership  The caller closes what it opens.
 * Threading  One thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_VECTORS_H
#define SLUICE_TESTS_UNIT_TEXT_VECTORS_H

#include <jansson.h>

#include "common/text/tokenizer.h"

struct vocabulary {
    struct gguf *gguf;
    struct tokenizer *tokenizer;
};

struct vocabulary vocabulary_open(const char *path);
struct vocabulary vocabulary_open_tiny(const char *name); /* "llama-f32" */
void vocabulary_close(struct vocabulary *v);
/* Path of the real model that this variable of the environment names; exits 77 with a reason when it does not. */
const char *real_model_path_of(const char *variable);
const char *real_model_path(void); /* SLUICE_MODEL_SMOLLM2 */

json_t *vectors_json(const char *name); /* "chat/llama3-like.json" */
/* Makes integers beyond 64 bits, which vectors_json gives as strings "@DIGITS", numbers again, in place. */
void unquote_big_integers(char *json);
/* Calls check(line) for each line of a JSON-lines file; returns how many there were. */
int vectors_each_line(const char *name, void (*check)(json_t *line, void *context), void *context);

/* Seconds of this thread's CPU time: bounds hold on a busy machine too. */
double cpu_seconds(void);
/* How much slower this build is than a plain one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 5
#else
#define SLOWER 1
#endif

/* Ids of text or a failed assertion; free() them. */
uint32_t *encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags, size_t *n);
/* All ids at once, as a text that was encoded; free() it. */
char *decode(const struct tokenizer *t, const uint32_t *ids, size_t n, int show_special, size_t *len);

#endif
