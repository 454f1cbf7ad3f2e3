#include "coordinator/output.h"

#include <string.h>

enum { MAX_HELD_BYTES = 64 << 10 };

void output_init(struct output *o, const struct tokenizer *t, const struct bytes *stops, uint32_t n_stops)
{
    *o = (struct output){.stops = stops, .n_stops = n_stops};
    detokenizer_init(&o->detokenizer, t, 0);
    buf_init(&o->held, MAX_HELD_BYTES);
    for (uint32_t i = 0; i < n_stops; i++)
        if (stops[i].len > o->longest_stop)
            o->longest_stop = (uint32_t)stops[i].len;
}

void output_fini(struct output *o)
{
    buf_fini(&o->held);
}

/* The stop that ends first among those that end at or after `from`; its start, or -1. */
static ptrdiff_t find_stop(const struct output *o, size_t from, int *which)
{
    const char *text = o->held.data;
    for (size_t end = from + 1; end <= o->held.len; end++) {
        ptrdiff_t start = -1;
        for (uint32_t i = 0; i < o->n_stops; i++) {
            size_t len = o->stops[i].len;
            if (len > end || memcmp(text + end - len, o->stops[i].data, len) != 0)
                continue;
            if (start < 0 || (ptrdiff_t)(end - len) < start) {
                start = (ptrdiff_t)(end - len);
                *which = (int)i;
            }
        }
        if (start >= 0)
            return start;
    }
    return -1;
}

/* Length of the longest suffix of the held text that begins some stop string. */
static size_t possible_stop(const struct output *o)
{
    size_t longest = o->longest_stop ? o->longest_stop - 1 : 0;
    if (longest > o->held.len)
        longest = o->held.len;
    for (size_t n = longest; n > 0; n--)
        for (uint32_t i = 0; i < o->n_stops; i++)
            if (o->stops[i].len > n && memcmp(o->held.data + o->held.len - n, o->stops[i].data, n) == 0)
                return n;
    return 0;
}

/* A stop may begin inside a character (clients send bytes, not always characters): never cut one in two. */
static size_t whole_characters(const char *text, size_t len)
{
    size_t n = len;
    while (n > 0 && len - n < 4 && ((unsigned char)text[n - 1] & 0xc0) == 0x80)
        n--;
    if (n == 0)
        return len;
    unsigned char lead = (unsigned char)text[n - 1];
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return len - (n - 1) < need ? n - 1 : len;
}

static enum status scan(struct output *o, size_t old_len, struct buf *emit, int *stopped)
{
    int which = 0;
    ptrdiff_t start = o->n_stops ? find_stop(o, old_len, &which) : -1;
    if (start >= 0) {
        o->stopped = *stopped = which + 1;
        enum status s = buf_append(emit, o->held.data, whole_characters(o->held.data, (size_t)start));
        buf_clear(&o->held);
        return s;
    }
    size_t safe = whole_characters(o->held.data ? o->held.data : "", o->held.len - possible_stop(o));
    enum status s = buf_append(emit, o->held.data, safe);
    buf_consume(&o->held, safe);
    return s;
}

enum status output_push(struct output *o, uint32_t id, struct buf *emit, int *stopped)
{
    size_t old_len = o->held.len;
    *stopped = 0;
    enum status s = detokenizer_push(&o->detokenizer, id, &o->held);
    return s != STATUS_OK ? s : scan(o, old_len, emit, stopped);
}

enum status output_finish(struct output *o, struct buf *emit, int *stopped)
{
    size_t old_len = o->held.len;
    *stopped = 0;
    enum status s = detokenizer_finish(&o->detokenizer, &o->held);
    if (s == STATUS_OK)
        s = scan(o, old_len, emit, stopped);
    if (s == STATUS_OK && !*stopped) {
        s = buf_append(emit, o->held.data, o->held.len);
        buf_clear(&o->held);
    }
    return s;
}
