#include "common/text/vocab_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/rand.h"

uint64_t vocab_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint64_t)clock_now_ns();
    return seed;
}

static size_t hash(uint64_t seed, const char *bytes, size_t len)
{
    uint64_t h = rand_mix(seed ^ len);
    for (; len >= 8; bytes += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = rand_mix(h ^ word);
    }
    uint64_t tail = 0;
    memcpy(&tail, bytes, len);
    return (size_t)rand_mix(h ^ tail);
}

static int same(struct text t, const char *bytes, size_t len)
{
    return t.len == len && memcmp(t.data, bytes, len) == 0;
}

/* The slot that holds these bytes, or the free one where they would go. */
static size_t probe(const struct vocab_map *m, const char *bytes, size_t len)
{
    size_t at = hash(m->seed, bytes, len) & m->mask;
    while (m->slots[at] != VOCAB_NO_ID && !same(m->texts[m->slots[at]], bytes, len))
        at = (at + 1) & m->mask;
    return at;
}

enum status vocab_map_init(struct vocab_map *m, const struct text *texts, uint32_t n)
{
    size_t size = 16;
    while (size < 2 * (size_t)n)
        size *= 2;
    uint32_t *slots = malloc(size * sizeof *slots);
    if (!slots)
        return STATUS_OUT_OF_MEMORY;
    memset(slots, 0xff, size * sizeof *slots);
    *m = (struct vocab_map){.texts = texts, .slots = slots, .mask = size - 1, .seed = vocab_seed()};
    return STATUS_OK;
}

void vocab_map_fini(struct vocab_map *m)
{
    free(m->slots);
    *m = (struct vocab_map){0};
}

void vocab_map_add(struct vocab_map *m, uint32_t id)
{
    size_t at = probe(m, m->texts[id].data, m->texts[id].len);
    if (m->slots[at] == VOCAB_NO_ID)
        m->slots[at] = id;
}

uint32_t vocab_map_find(const struct vocab_map *m, const char *bytes, size_t len)
{
    return m->slots[probe(m, bytes, len)];
}
