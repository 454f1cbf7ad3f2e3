#include "rpc/gateway/json_out.h"

#include <math.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at p (n bytes left), or 0. Surrogates and overlong forms are not valid. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (len <= 1 || len > n)
        return len <= n ? len : 0;
    uint32_t c = p[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    return c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

static enum status escape(struct buf *b, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return buf_printf(b, "\\u%04x", c);
    char text[2] = {'\\', to[at - from]};
    return buf_append(b, text, 2);
}

enum status json_out_escaped(struct buf *b, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t plain = 0; /* start of what has not been written and needs no escape */
    for (size_t i = 0; i < len;) {
        size_t n = utf8_length(p + i, len - i);
        if (n > 1 || (n == 1 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0x7f)) {
            i += n;
            continue;
        }
        buf_append(b, text + plain, i - plain);
        if (n == 0)
            buf_text(b, "\xef\xbf\xbd");
        else
            escape(b, p[i]);
        plain = ++i;
    }
    return buf_append(b, text + plain, len - plain);
}

/* Length of what is the same at the beginning: characters, or none. */
static size_t run(const char *text, size_t len, int of_text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0, n;
    while (i < len && ((n = utf8_length(p + i, len - i)) > 0) == of_text)
        i += of_text ? n : 1;
    return i;
}

int json_out_is_text(const char *text, size_t len)
{
    return run(text, len, 1) == len;
}

enum status json_out_token(struct buf *b, const char *text, size_t len)
{
    while (len) {
        size_t good = run(text, len, 1), bad = run(text + good, len - good, 0);
        json_out_escaped(b, text, good);
        for (size_t i = 0; i < bad; i++)
            buf_printf(b, "\\\\x%02x", (unsigned)(unsigned char)text[good + i]);
        text += good + bad;
        len -= good + bad;
    }
    return b->failed ? STATUS_OUT_OF_MEMORY : STATUS_OK;
}

enum status json_out_string(struct buf *b, const char *text, size_t len)
{
    buf_append(b, "\"", 1);
    json_out_escaped(b, text, len);
    return buf_append(b, "\"", 1);
}

enum status json_out_text(struct buf *b, const char *text)
{
    return json_out_string(b, text, strlen(text));
}

enum status json_out_text_or_null(struct buf *b, const char *text)
{
    return text[0] ? json_out_text(b, text) : buf_text(b, "null");
}

/* By hand: a prompt of a megabyte has 250,000 ids, and snprintf would hold the loop's thread for 30 ms. */
static size_t digits(char out[10], uint32_t v)
{
    char reversed[10];
    size_t n = 0;
    do
        reversed[n++] = (char)('0' + v % 10);
    while (v /= 10);
    for (size_t i = 0; i < n; i++)
        out[i] = reversed[n - 1 - i];
    return n;
}

enum status json_out_ids(struct buf *b, const uint32_t *ids, size_t n)
{
    char piece[1024];
    size_t used = 0;
    piece[used++] = '[';
    for (size_t i = 0; i < n; i++) {
        if (used > sizeof piece - 16) {
            buf_append(b, piece, used);
            used = 0;
        }
        if (i)
            piece[used++] = ',';
        used += digits(piece + used, ids[i]);
    }
    piece[used++] = ']';
    return buf_append(b, piece, used);
}

enum status json_out_real(struct buf *b, double v)
{
    return buf_printf(b, "%.3f", isfinite(v) ? v : 0.0);
}
