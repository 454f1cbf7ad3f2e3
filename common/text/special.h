/* common/text/special.h - finds the texts of control and user-defined tokens.
 *
 * Purpose    A sorted table walked byte by byte: the longest name at the first place where one starts. Control tokens are
 *            looked for only where the caller allows them and never at a marked place.
 * Ownership  special_init/fini in place; points into the vocabulary.
 * Threading  Read-only after special_init.
 * Errors     STATUS_BAD_MODEL: a name over SPECIAL_MAX_BYTES (searching would not be linear). STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_SPECIAL_H
#define SLUICE_COMMON_TEXT_SPECIAL_H

#include "common/text/vocab.h"
#include "common/text/work.h"

enum { SPECIAL_MAX_BYTES = 1024 };

struct special {
    const struct vocab *vocab;
    uint32_t *ids;           /* [n] by bytes; one id, the lowest, for each text */
    uint32_t n;
    uint32_t *n_control_before; /* [n + 1] how many of ids[0..i) are control tokens */
    uint32_t first[257];     /* ids[first[b] .. first[b + 1]) start with byte b */
    unsigned char starts_user[256]; /* some user-defined name starts with b */
};

/* Text to search: marks are the sorted offsets where no control token may start. */
struct special_search {
    const char *text;
    size_t len;
    const size_t *marks;
    size_t n_marks, next_mark;
    int control;
};

enum status special_init(struct special *s, const struct vocab *v, struct error *err);
void special_fini(struct special *s);
/* The first match at or after from: *at, *id. *at == q->len when there is none. Calls go forwards through a text. */
enum status special_find(const struct special *s, struct special_search *q, size_t from, struct work *work, size_t *at,
                         uint32_t *id);
/* Whether a control token may start at text: one of its names does, or text up to one of the two ends (trim <= len,
 * where a template may cut it) is the beginning of one that what follows could complete. */
int special_control_starts(const struct special *s, const char *text, size_t trim, size_t len);

#endif
