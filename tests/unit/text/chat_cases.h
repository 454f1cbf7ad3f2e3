/* tests/unit/text/chat_cases.h - runs a chat vector file against a template.
 *
 * Purpose    Output equals the reference's to the byte; raise_exception's message comes through; where the reference's
 *            template trips, an error is as good as a rendering.
 * Threading  One thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_TEXT_CHAT_CASES_H
#define SLUICE_TESTS_UNIT_TEXT_CHAT_CASES_H

#include "common/text/chat_template.h"
#include "vectors.h"

#define PYTHON "/usr/bin/python3"

/* Opens with the file's clock; a failed assertion when it does not compile. */
struct chat_template *chat_open(const char *source, size_t len, const char *now, const struct tokenizer *tok);
/* One case {context, output | error, message}. */
void chat_case(struct chat_template *t, json_t *c);
/* "chat/NAME.json"; source NULL: the file's own template. Returns the number of cases. */
int chat_file(const char *file, const char *source, size_t len, const struct tokenizer *tok);

#endif
