/* common/base/utf8.h - the few questions about UTF-8.
 *
 * Purpose    Finds the first byte that is not well-formed UTF-8 (Unicode 14, table 3-7: no overlong forms, no surrogates,
 *            nothing above U+10FFFF) and decodes one code point. Properties of code points are PCRE2's business.
 * Ownership  None.
 * Threading  Pure.
 * Errors     None: malformed input has a defined answer.
 */
#ifndef SLUICE_COMMON_BASE_UTF8_H
#define SLUICE_COMMON_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that belongs to no character; len when all is well. */
size_t utf8_valid_len(const char *text, size_t len);
/* Decodes the code point at text; returns its length, or 0 when there is none (malformed, or len is 0). */
unsigned utf8_decode(const char *text, size_t len, uint32_t *out);
/* ASCII's and C1: what steers a terminal. */
static inline int utf8_is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
}
/* Writes the UTF-8 of a code point; returns its length. */
unsigned utf8_encode(uint32_t cp, char out[4]);
/* 1: byte may follow the first `n_held` bytes of a character (n_held 0: it may start one). *total: its whole length. */
int utf8_accepts(const unsigned char *held, unsigned n_held, unsigned char byte, unsigned *total);

#endif
