#include "common/base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void arena_init(struct arena *a, size_t limit_bytes)
{
    *a = (struct arena){.limit_bytes = limit_bytes};
}

void arena_reset(struct arena *a)
{
    while (a->chunks) {
        struct arena_chunk *c = a->chunks;
        a->chunks = c->next;
        free(c);
    }
    a->used_bytes = 0;
}

void arena_fini(struct arena *a)
{
    arena_reset(a);
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct arena_chunk *c = a->chunks;
    if (!c || c->size - c->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        if (bytes > a->limit_bytes - a->used_bytes || !(c = malloc(sizeof *c + size)))
            return NULL;
        *c = (struct arena_chunk){.next = a->chunks, .size = size};
        a->chunks = c;
    }
    if (bytes > a->limit_bytes - a->used_bytes)
        return NULL;
    void *p = c->data + c->used;
    c->used += bytes;
    a->used_bytes += bytes;
    return memset(p, 0, bytes);
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    return size && n > SIZE_MAX / 2 / size ? NULL : arena_alloc(a, n * size);
}

char *arena_text(struct arena *a, const char *text, size_t len)
{
    char *p = len < SIZE_MAX / 2 ? arena_alloc(a, len + 1) : NULL;
    if (p && len)
        memcpy(p, text, len);
    return p;
}
