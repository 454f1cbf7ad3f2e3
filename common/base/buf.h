/* common/base/buf.h - bytes that grow up to a bound.
 *
 * Purpose    Text under construction: an SSE event, a JSON body, a metrics page.
 * Ownership  buf_init/buf_fini in place; data is valid until the next append, and always has a 0 behind its len bytes.
 * Threading  One thread at a time.
 * Errors     Sticky: once the bound or memory is exhausted `failed` is set, appends do nothing and return
 *            STATUS_OUT_OF_MEMORY; so a caller may check once at the end.
 */
#ifndef SLUICE_COMMON_BASE_BUF_H
#define SLUICE_COMMON_BASE_BUF_H

#include <stddef.h>

#include "common/base/status.h"

struct buf {
    char *data;
    size_t len, size, limit;
    int failed;
};

void buf_init(struct buf *b, size_t limit);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */
enum status buf_append(struct buf *b, const void *bytes, size_t len);
enum status buf_text(struct buf *b, const char *text);
enum status buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first len bytes. */
void buf_consume(struct buf *b, size_t len);

#endif
