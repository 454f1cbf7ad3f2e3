#include "rpc/gateway/pieces.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct piece {
    uint32_t at, len;
    uint32_t chars; /* that it shows */
};

struct pieces {
    atomic_int refs;
    size_t n;
    char *text;
    struct piece piece[];
};

static uint32_t characters(const char *text, size_t len)
{
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static int fill(struct pieces *p, struct bytes text, const uint32_t *lengths)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (lengths[i] > text.len - at)
            return 0;
        p->piece[i] = (struct piece){(uint32_t)at, lengths[i], characters(text.data + at, lengths[i])};
        at += lengths[i];
    }
    return at == text.len;
}

struct pieces *pieces_create(struct bytes text, const uint32_t *lengths, size_t n, const uint32_t *hidden, size_t n_hidden)
{
    if (text.len > UINT32_MAX || n > UINT32_MAX)
        return NULL;
    struct pieces *p = calloc(1, sizeof *p + n * sizeof p->piece[0]);
    if (!p)
        return NULL;
    atomic_init(&p->refs, 1);
    p->n = n;
    p->text = malloc(text.len + 1);
    if (!p->text || !fill(p, text, lengths)) {
        pieces_release(p);
        return NULL;
    }
    if (text.len)
        memcpy(p->text, text.data, text.len);
    for (size_t i = 0; i < n_hidden; i++)
        if (hidden[i] < n)
            p->piece[hidden[i]].chars = 0;
    return p;
}

struct pieces *pieces_acquire(struct pieces *p)
{
    if (p)
        atomic_fetch_add(&p->refs, 1);
    return p;
}

void pieces_release(struct pieces *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    free(p->text);
    free(p);
}

struct bytes pieces_get(const struct pieces *p, uint32_t id)
{
    if (!p || id >= p->n)
        return (struct bytes){"", 0};
    return (struct bytes){p->text + p->piece[id].at, p->piece[id].len};
}

uint32_t pieces_chars(const struct pieces *p, uint32_t id)
{
    return p && id < p->n ? p->piece[id].chars : 0;
}
