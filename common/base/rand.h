/* common/base/rand.h - random numbers that depend on where they are drawn, not on when.
 *
 * Purpose    A draw is a pure function of (seed, position), so that batching, preemption and replay repeat it. The
 *            mixer is SplitMix64's finalizer (Steele, Lea, Flood 2014) applied to both words.
 * Threading  Pure.
 */
#ifndef SLUICE_COMMON_BASE_RAND_H
#define SLUICE_COMMON_BASE_RAND_H

#include <stdint.h>

static inline uint64_t rand_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint64_t rand_at(uint64_t seed, uint64_t position)
{
    return rand_mix(rand_mix(seed) ^ rand_mix(position + 0x632be59bd9b4e019ull));
}

/* In [0, 1), 24 bits, exact in f32. */
static inline float rand_unit(uint64_t seed, uint64_t position)
{
    return (float)(rand_at(seed, position) >> 40) * 0x1p-24f;
}

#endif
