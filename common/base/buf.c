#include "common/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t limit)
{
    *b = (struct buf){.limit = limit};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->data)
        b->data[0] = 0;
}

/* Room for len more bytes and the 0 behind them. */
static enum status reserve(struct buf *b, size_t len)
{
    if (b->failed || len > b->limit - b->len) {
        b->failed = 1;
        return STATUS_OUT_OF_MEMORY;
    }
    size_t need = b->len + len + 1, size = b->size ? b->size : 256;
    while (size < need)
        size *= 2;
    if (size != b->size) {
        char *data = realloc(b->data, size);
        if (!data) {
            b->failed = 1;
            return STATUS_OUT_OF_MEMORY;
        }
        b->data = data;
        b->size = size;
    }
    return STATUS_OK;
}

enum status buf_append(struct buf *b, const void *bytes, size_t len)
{
    enum status s = reserve(b, len);
    if (s != STATUS_OK)
        return s;
    if (len)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = 0;
    return STATUS_OK;
}

enum status buf_text(struct buf *b, const char *text)
{
    return buf_append(b, text, strlen(text));
}

enum status buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    enum status s = n < 0 ? STATUS_INTERNAL : reserve(b, (size_t)n);
    if (s != STATUS_OK)
        return s;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return STATUS_OK;
}

void buf_consume(struct buf *b, size_t len)
{
    if (len > b->len)
        len = b->len;
    if (b->len - len)
        memmove(b->data, b->data + len, b->len - len);
    b->len -= len;
    if (b->data)
        b->data[b->len] = 0;
}
