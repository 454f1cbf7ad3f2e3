#include "deploy/cli/sse.h"

#include <string.h>

void sse_init(struct sse *s, size_t max_line_bytes)
{
    buf_init(&s->part, max_line_bytes);
    s->limit = max_line_bytes;
}

void sse_fini(struct sse *s)
{
    buf_fini(&s->part);
}

static void take_line(const char *line, size_t len, void (*on_data)(void *ctx, const char *data, size_t len), void *ctx)
{
    if (len && line[len - 1] == '\r')
        len--;
    if (len < 5 || memcmp(line, "data:", 5) != 0)
        return;
    size_t skip = len > 5 && line[5] == ' ' ? 6 : 5;
    on_data(ctx, line + skip, len - skip);
}

enum status sse_feed(struct sse *s, const char *bytes, size_t len, void (*on_data)(void *ctx, const char *data, size_t len),
                     void *ctx)
{
    const char *end;
    if (s->part.failed)
        return STATUS_OUT_OF_MEMORY;
    while (len && (end = memchr(bytes, '\n', len))) {
        size_t n = (size_t)(end - bytes);
        if (s->part.len + n > s->limit) {
            s->part.failed = 1;
            return STATUS_OUT_OF_MEMORY;
        }
        if (s->part.len) { /* else the line is read where it lies: the usual case copies nothing */
            if (buf_append(&s->part, bytes, n) != STATUS_OK)
                return STATUS_OUT_OF_MEMORY;
            take_line(s->part.data, s->part.len, on_data, ctx);
            buf_clear(&s->part);
        } else {
            take_line(bytes, n, on_data, ctx);
        }
        bytes += n + 1;
        len -= n + 1;
    }
    return len ? buf_append(&s->part, bytes, len) : STATUS_OK;
}
