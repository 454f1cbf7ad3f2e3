/* kernels/share.h - who does what.
 *
 * Purpose    The partitions of ops.h: rows in tiles of 16, output columns in strips of 16. A result never depends on them.
 * Threading  Pure.
 */
#ifndef SLUICE_KERNELS_SHARE_H
#define SLUICE_KERNELS_SHARE_H

#include <stdint.h>

enum { SHARE_TILE = 16, STRIP = 16 };

struct share {
    uint32_t begin, end;
};

static inline struct share share_of(uint32_t n, int thread, int n_threads)
{
    return (struct share){(uint32_t)((uint64_t)n * (uint32_t)thread / (uint32_t)n_threads),
                          (uint32_t)((uint64_t)n * (uint32_t)(thread + 1) / (uint32_t)n_threads)};
}

/* Rows in whole tiles of 16: rows of one tile share cache lines of the int8 activations (docs/numerics.md, Threads). */
static inline struct share share_rows(uint32_t n_rows, int thread, int n_threads)
{
    struct share s = share_of((n_rows + SHARE_TILE - 1) / SHARE_TILE, thread, n_threads);
    s.begin *= SHARE_TILE;
    s.end *= SHARE_TILE;
    if (s.end > n_rows)
        s.end = n_rows;
    if (s.begin > s.end)
        s.begin = s.end;
    return s;
}

#endif
