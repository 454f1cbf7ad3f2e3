/* common/base/arena.h - many small allocations with one end.
 *
 * Purpose    A request's memory: bump allocation in chunks, freed together. Bounded, so that a client's request can
 *            fail and nothing else does.
 * Ownership  arena_init/arena_fini in place; what arena_alloc returns lives until arena_reset or arena_fini.
 * Threading  One thread at a time.
 * Errors     NULL when the bound or memory is exhausted.
 */
#ifndef SLUICE_COMMON_BASE_ARENA_H
#define SLUICE_COMMON_BASE_ARENA_H

#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
    size_t used_bytes, limit_bytes;
};

void arena_init(struct arena *a, size_t limit_bytes);
void arena_fini(struct arena *a);
void arena_reset(struct arena *a);                              /* frees everything but keeps the arena usable */
void *arena_alloc(struct arena *a, size_t bytes);               /* zeroed, 16-byte aligned; NULL: bound or memory */
void *arena_array(struct arena *a, size_t n, size_t size);      /* the same with overflow check */
char *arena_text(struct arena *a, const char *text, size_t len); /* a copy with a 0 behind */

#endif
