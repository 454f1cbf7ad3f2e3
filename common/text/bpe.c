#include "common/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"

enum { SHORT_WORD = 32 }; /* up to here the quadratic scan of an array in cache beats the heap */
#define NO_SYMBOL UINT32_MAX

/* One place of a word. A symbol that was merged into its left neighbour has id VOCAB_NO_ID. */
struct bpe_symbol {
    uint32_t id, rank; /* rank of the merge with the next symbol, MERGE_NO_RANK: none */
    uint32_t prev, next;
};

enum status bpe_init(struct bpe *b, size_t n_merges)
{
    size_t size = 16;
    while (size < 2 * n_merges)
        size *= 2;
    struct bpe_merge *merges = malloc(size * sizeof *merges);
    if (!merges)
        return STATUS_OUT_OF_MEMORY;
    for (size_t i = 0; i < size; i++)
        merges[i].left = VOCAB_NO_ID;
    memset(b->byte_id, 0xff, sizeof b->byte_id);
    b->merges = merges;
    b->mask = size - 1;
    b->seed = vocab_seed();
    return STATUS_OK;
}

void bpe_fini(struct bpe *b)
{
    free(b->merges);
    b->merges = NULL;
}

static struct bpe_merge *probe(const struct bpe *b, uint32_t left, uint32_t right)
{
    size_t at = (size_t)rand_mix(b->seed ^ ((uint64_t)left << 32 | right)) & b->mask;
    while (b->merges[at].left != VOCAB_NO_ID && (b->merges[at].left != left || b->merges[at].right != right))
        at = (at + 1) & b->mask;
    return &b->merges[at];
}

void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    struct bpe_merge *m = probe(b, left, right);
    if (m->left == VOCAB_NO_ID)
        *m = (struct bpe_merge){.left = left, .right = right, .rank = rank, .id = id};
}

static uint32_t rank_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    const struct bpe_merge *m = probe(b, left, right);
    return m->left == VOCAB_NO_ID ? MERGE_NO_RANK : m->rank;
}

static size_t bytes_to_ids(const struct bpe *b, const char *word, size_t len, uint32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = b->byte_id[(unsigned char)word[i]];
        if (id != VOCAB_NO_ID)
            ids[n++] = id;
    }
    return n;
}

/* Repeatedly merges the lowest rank of an array that shrinks. ranks[i] belongs to the pair (i, i + 1). */
static size_t merge_short(const struct bpe *b, uint32_t *ids, size_t n)
{
    uint32_t ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == MERGE_NO_RANK)
            break;
        ids[best] = probe(b, ids[best], ids[best + 1])->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (n - best - 1) * sizeof *ranks);
        if (best + 1 < n)
            ranks[best] = rank_of(b, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = rank_of(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* Gives the symbol its new rank and puts the pair into the heap; an older entry of the same place becomes stale. */
static void rank_pair(const struct bpe *b, struct bpe_scratch *s, uint32_t at)
{
    struct bpe_symbol *left = &s->symbols[at];
    left->rank = left->next == NO_SYMBOL ? MERGE_NO_RANK : rank_of(b, left->id, s->symbols[left->next].id);
    if (left->rank != MERGE_NO_RANK)
        merge_heap_push(&s->heap, merge_entry(left->rank, at));
}

static enum status scratch_reserve(struct bpe_scratch *s, size_t n, struct work *work)
{
    if (n <= s->size)
        return STATUS_OK;
    bpe_scratch_fini(s);
    s->symbols = malloc(n * sizeof *s->symbols);
    s->heap.entries = malloc(2 * n * sizeof *s->heap.entries);
    if (!s->symbols || !s->heap.entries) {
        bpe_scratch_fini(s);
        return error_set(work->err, STATUS_OUT_OF_MEMORY, "no memory to tokenize a word of %zu bytes", n);
    }
    s->size = n;
    return STATUS_OK;
}

static enum status fill(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len, struct work *work,
                        size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = b->byte_id[(unsigned char)word[i]];
        if (id == VOCAB_NO_ID)
            continue;
        s->symbols[n] = (struct bpe_symbol){.id = id, .rank = MERGE_NO_RANK, .prev = (uint32_t)n - 1, .next = NO_SYMBOL};
        if (n)
            s->symbols[n - 1].next = (uint32_t)n;
        n++;
    }
    s->heap.n = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        TRY(work_step(work, 1));
        s->symbols[i].rank = rank_of(b, s->symbols[i].id, s->symbols[i + 1].id);
        if (s->symbols[i].rank != MERGE_NO_RANK)
            s->heap.entries[s->heap.n++] = merge_entry(s->symbols[i].rank, (uint32_t)i);
    }
    for (size_t i = s->heap.n / 4 + 1; i-- > 0 && s->heap.n;) {
        TRY(work_step(work, 1));
        merge_heap_sift_down(&s->heap, i);
    }
    *n_out = n;
    return STATUS_OK;
}

static enum status merge_long(const struct bpe *b, struct bpe_scratch *s, struct work *work)
{
    while (s->heap.n) {
        TRY(work_step(work, 1));
        uint64_t top = merge_heap_pop(&s->heap);
        uint32_t at = (uint32_t)top;
        struct bpe_symbol *left = &s->symbols[at];
        if (left->id == VOCAB_NO_ID || left->rank != top >> 32)
            continue; /* stale: this place was merged since */
        struct bpe_symbol *right = &s->symbols[left->next];
        left->id = probe(b, left->id, right->id)->id;
        right->id = VOCAB_NO_ID;
        left->next = right->next;
        if (left->next != NO_SYMBOL)
            s->symbols[left->next].prev = at;
        rank_pair(b, s, at);
        if (left->prev != NO_SYMBOL)
            rank_pair(b, s, left->prev);
    }
    return STATUS_OK;
}

void bpe_scratch_init(struct bpe_scratch *s)
{
    *s = (struct bpe_scratch){0};
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap.entries);
    *s = (struct bpe_scratch){0};
}

static enum status encode_long(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len,
                               struct work *work, enum status (*emit)(void *context, uint32_t id), void *context)
{
    size_t n;
    TRY(scratch_reserve(s, len, work));
    TRY(fill(b, s, word, len, work, &n));
    TRY(merge_long(b, s, work));
    for (uint32_t i = n ? 0 : NO_SYMBOL; i != NO_SYMBOL; i = s->symbols[i].next) {
        TRY(work_step(work, 1));
        TRY(emit(context, s->symbols[i].id));
    }
    return STATUS_OK;
}

enum status bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len, struct work *work,
                       enum status (*emit)(void *context, uint32_t id), void *context)
{
    if (len > SHORT_WORD)
        return encode_long(b, s, word, len, work, emit, context);
    uint32_t ids[SHORT_WORD];
    TRY(work_step(work, len));
    size_t n = merge_short(b, ids, bytes_to_ids(b, word, len, ids));
    for (size_t i = 0; i < n; i++)
        TRY(emit(context, ids[i]));
    return STATUS_OK;
}
