#include "common/base/utf8.h"

#include <string.h>

/* Length by the first byte; 0: no character starts so. */
static unsigned length_of(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* The second byte alone decides about overlong forms, surrogates and the end of Unicode. */
static int second_fits(unsigned char first, unsigned char second)
{
    switch (first) {
    case 0xe0:
        return second >= 0xa0 && second <= 0xbf;
    case 0xed:
        return second >= 0x80 && second <= 0x9f;
    case 0xf0:
        return second >= 0x90 && second <= 0xbf;
    case 0xf4:
        return second >= 0x80 && second <= 0x8f;
    default:
        return second >= 0x80 && second <= 0xbf;
    }
}

int utf8_accepts(const unsigned char *held, unsigned n_held, unsigned char byte, unsigned *total)
{
    *total = length_of(n_held ? held[0] : byte);
    if (n_held == 0)
        return *total != 0;
    return n_held == 1 ? second_fits(held[0], byte) : byte >= 0x80 && byte <= 0xbf;
}

unsigned utf8_decode(const char *text, size_t len, uint32_t *out)
{
    const unsigned char *b = (const unsigned char *)text;
    unsigned n = len ? length_of(b[0]) : 0, ignored;
    if (n == 0 || n > len)
        return 0;
    uint32_t cp = n == 1 ? b[0] : b[0] & (0x7fu >> n);
    for (unsigned i = 1; i < n; i++) {
        if (!utf8_accepts(b, i, b[i], &ignored))
            return 0;
        cp = cp << 6 | (b[i] & 0x3fu);
    }
    *out = cp;
    return n;
}

unsigned utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    unsigned n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = n; i-- > 1; cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xf0) | cp);
    return n;
}

size_t utf8_valid_len(const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint64_t word;
        uint32_t cp;
        if (len - at >= sizeof word) {
            memcpy(&word, text + at, sizeof word);
            if (!(word & 0x8080808080808080ull)) { /* eight ASCII bytes */
                at += sizeof word;
                continue;
            }
        }
        unsigned n = utf8_decode(text + at, len - at, &cp);
        if (n == 0)
            return at;
        at += n;
    }
    return at;
}
