#include "coordinator/prefix_map.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/rand.h"
#include "common/base/siphash.h"

struct entry {
    uint64_t key, salt;
    uint32_t parent;     /* NO_ENTRY: the chain starts here */
    uint32_t block;      /* NO_ENTRY: the entry is unused */
    uint32_t next;       /* of its bucket, or of the unused ones */
    uint32_t n_children;
};

struct prefix_map {
    uint32_t kv_block, capacity;
    uint64_t k0, k1, key_mask;
    uint32_t bucket_mask;
    uint32_t total, n, unused;
    struct entry *entries;
    uint64_t *items;     /* [capacity][kv_block]; pages are touched as entries are made */
    uint32_t *buckets;   /* [bucket_mask + 1] newest entry */
};

static uint64_t salt_of(const struct block_chain *c)
{
#ifdef BLOCKS_MUTANT_NO_SALT /* a test build that must fail its test */
    (void)c;
    return 0;
#else
    return c->salt;
#endif
}

static uint64_t *items_of(const struct prefix_map *m, uint32_t entry)
{
    return m->items + (size_t)entry * m->kv_block;
}

enum status prefix_map_create(uint32_t kv_block, uint64_t hash_key, uint32_t hash_bits, struct prefix_map **out)
{
    CHECK(kv_block >= 1 && hash_bits <= 64);
    struct prefix_map *m = calloc(1, sizeof *m);
    if (!m)
        return STATUS_OUT_OF_MEMORY;
    m->kv_block = kv_block;
    m->k0 = hash_key;
    m->k1 = rand_mix(hash_key);
    m->key_mask = hash_bits == 0 || hash_bits == 64 ? UINT64_MAX : (1ull << hash_bits) - 1;
    enum status s = prefix_map_reset(m, 0);
    if (s != STATUS_OK) {
        prefix_map_destroy(m);
        return s;
    }
    *out = m;
    return STATUS_OK;
}

void prefix_map_destroy(struct prefix_map *m)
{
    if (!m)
        return;
    free(m->entries);
    free(m->items);
    free(m->buckets);
    free(m);
}

static enum status make_room(struct prefix_map *m, uint32_t n)
{
    if (m->buckets && n <= m->capacity)
        return STATUS_OK;
    uint32_t n_buckets = 16;
    while (n_buckets < n && n_buckets < 1u << 31)
        n_buckets *= 2;
    struct entry *entries = malloc((n + (size_t)1) * sizeof *entries);
    uint64_t *items = malloc((n + (size_t)1) * m->kv_block * sizeof *items);
    uint32_t *buckets = malloc(n_buckets * sizeof *buckets);
    if (!entries || !items || !buckets) {
        free(entries);
        free(items);
        free(buckets);
        return STATUS_OUT_OF_MEMORY;
    }
    free(m->entries);
    free(m->items);
    free(m->buckets);
    m->entries = entries;
    m->items = items;
    m->buckets = buckets;
    m->bucket_mask = n_buckets - 1;
    m->capacity = n;
    return STATUS_OK;
}

enum status prefix_map_reset(struct prefix_map *m, uint32_t n)
{
    TRY(make_room(m, n));
    memset(m->buckets, 0xff, ((size_t)m->bucket_mask + 1) * sizeof *m->buckets);
    m->total = n;
    m->n = 0;
    m->unused = NO_ENTRY;
    for (uint32_t i = n; i-- > 0; m->unused = i)
        m->entries[i] = (struct entry){.block = NO_ENTRY, .next = m->unused};
    return STATUS_OK;
}

static uint64_t key_of(const struct prefix_map *m, uint32_t parent, const struct block_chain *c, uint32_t index)
{
    struct siphash h = siphash_start(m->k0, m->k1);
    siphash_add(&h, parent == NO_ENTRY ? 0 : m->entries[parent].key);
    siphash_add(&h, salt_of(c));
    for (uint32_t i = 0; i < m->kv_block; i++)
        siphash_add(&h, c->item(c->ctx, index * m->kv_block + i));
    return siphash_end(h) & m->key_mask;
}

static int same_items(const struct prefix_map *m, uint32_t entry, const struct block_chain *c, uint32_t index)
{
    const uint64_t *items = items_of(m, entry);
    for (uint32_t i = 0; i < m->kv_block; i++)
        if (items[i] != c->item(c->ctx, index * m->kv_block + i))
            return 0;
    return 1;
}

uint32_t prefix_map_find(const struct prefix_map *m, uint32_t parent, const struct block_chain *c, uint32_t index,
                         uint64_t *key)
{
    ASSERT((index + (uint64_t)1) * m->kv_block <= c->n);
    *key = key_of(m, parent, c, index);
    for (uint32_t i = m->buckets[*key & m->bucket_mask]; i != NO_ENTRY; i = m->entries[i].next) {
        const struct entry *e = &m->entries[i];
        if (e->key == *key && e->parent == parent && e->salt == salt_of(c) && same_items(m, i, c, index))
            return i;
    }
    return NO_ENTRY;
}

uint32_t prefix_map_enter(struct prefix_map *m, uint32_t parent, const struct block_chain *c, uint32_t index, uint64_t key,
                          uint32_t block)
{
    CHECK(m->unused != NO_ENTRY && block != NO_ENTRY);
    uint32_t i = m->unused, *bucket = &m->buckets[key & m->bucket_mask];
    m->unused = m->entries[i].next;
    m->entries[i] = (struct entry){.key = key, .salt = salt_of(c), .parent = parent, .block = block, .next = *bucket};
    *bucket = i;
    for (uint32_t k = 0; k < m->kv_block; k++)
        items_of(m, i)[k] = c->item(c->ctx, index * m->kv_block + k);
    if (parent != NO_ENTRY)
        m->entries[parent].n_children++;
    m->n++;
    return i;
}

void prefix_map_remove(struct prefix_map *m, uint32_t entry)
{
    struct entry *e = &m->entries[entry];
    CHECK(e->block != NO_ENTRY && e->n_children == 0);
    uint32_t *at = &m->buckets[e->key & m->bucket_mask];
    while (*at != entry)
        at = &m->entries[*at].next;
    *at = e->next;
    if (e->parent != NO_ENTRY)
        m->entries[e->parent].n_children--;
    *e = (struct entry){.block = NO_ENTRY, .next = m->unused};
    m->unused = entry;
    m->n--;
}

uint32_t prefix_map_block(const struct prefix_map *m, uint32_t entry)
{
    return m->entries[entry].block;
}

void prefix_map_move(struct prefix_map *m, uint32_t entry, uint32_t block)
{
    m->entries[entry].block = block;
}

uint32_t prefix_map_parent(const struct prefix_map *m, uint32_t entry)
{
    return m->entries[entry].parent;
}

uint64_t prefix_map_key(const struct prefix_map *m, uint32_t entry)
{
    return m->entries[entry].key;
}

uint32_t prefix_map_count(const struct prefix_map *m)
{
    return m->n;
}

/* Counts children again in `children` and follows parents; NULL: all is well. */
static const char *check_entries(const struct prefix_map *m, uint32_t *children)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < m->total; i++) {
        const struct entry *e = &m->entries[i];
        if (e->block == NO_ENTRY)
            continue;
        used++;
        if (e->parent == NO_ENTRY)
            continue;
        if (e->parent >= m->total || m->entries[e->parent].block == NO_ENTRY)
            return "an entry's parent is in the map";
        children[e->parent]++;
    }
    for (uint32_t i = 0; i < m->total; i++)
        if (m->entries[i].block != NO_ENTRY && children[i] != m->entries[i].n_children)
            return "n_children counts the entries below";
    return used == m->n ? NULL : "n counts the entries";
}

int prefix_map__check(const struct prefix_map *m, const char **why)
{
    uint32_t *children = calloc((size_t)m->total + 1, sizeof *children);
    *why = children ? check_entries(m, children) : NULL;
    free(children);
    uint32_t n = 0;
    for (uint32_t b = 0; b <= m->bucket_mask && !*why; b++)
        for (uint32_t i = m->buckets[b]; i != NO_ENTRY && !*why; i = m->entries[i].next) {
            if (++n > m->n || m->entries[i].block == NO_ENTRY || (m->entries[i].key & m->bucket_mask) != b)
                *why = "an entry is in the bucket of its key";
        }
    if (!*why && n != m->n)
        *why = "every entry is in a bucket";
    return !*why;
}
