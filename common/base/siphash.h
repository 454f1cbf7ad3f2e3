/* common/base/siphash.h - a keyed hash of 64-bit words for tables that strangers fill.
 *
 * Purpose    SipHash-1-3 (Aumasson and Bernstein, INDOCRYPT 2012, with 1 and 3 rounds as Python and Rust use it for their
 *            tables): who does not know the key cannot choose words that collide.
 * Ownership  The caller's struct.
 * Threading  Pure.
 */
#ifndef SLUICE_COMMON_BASE_SIPHASH_H
#define SLUICE_COMMON_BASE_SIPHASH_H

#include <stdint.h>

struct siphash {
    uint64_t v[4];
    uint64_t n_words;
};

static inline uint64_t siphash_rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static inline void siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = siphash_rotate(v[1], 13) ^ v[0];
    v[0] = siphash_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = siphash_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = siphash_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = siphash_rotate(v[1], 17) ^ v[2];
    v[2] = siphash_rotate(v[2], 32);
}

static inline struct siphash siphash_start(uint64_t k0, uint64_t k1)
{
    return (struct siphash){.v = {k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull, k0 ^ 0x6c7967656e657261ull,
                                  k1 ^ 0x7465646279746573ull}};
}

static inline void siphash_add(struct siphash *s, uint64_t word)
{
    s->v[3] ^= word;
    siphash_round(s->v);
    s->v[0] ^= word;
    s->n_words++;
}

static inline uint64_t siphash_end(struct siphash s)
{
    uint64_t last = s.n_words << 59; /* the length in bytes, in the highest byte */
    s.v[3] ^= last;
    siphash_round(s.v);
    s.v[0] ^= last;
    s.v[2] ^= 255;
    for (int i = 0; i < 3; i++)
        siphash_round(s.v);
    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}

#endif
