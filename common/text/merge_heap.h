/* common/text/merge_heap.h - which merge comes next.
 *
 * Purpose    A heap of (rank, place) in one number each: what comes first is smaller, the leftmost of equal ranks. Four
 *            children to a node: half the levels of a binary heap, and the children of one node share a cache line.
 *            An entry goes stale when its place changes; who pops it compares the rank with the place's own.
 * Ownership  The caller's array: each merge takes one entry out and puts at most two in, so 2 n entries are enough for n
 *            places.
 * Threading  One thread at a time.
 * Errors     None.
 */
#ifndef SLUICE_COMMON_TEXT_MERGE_HEAP_H
#define SLUICE_COMMON_TEXT_MERGE_HEAP_H

#include <stddef.h>
#include <stdint.h>

#define MERGE_NO_RANK UINT32_MAX

struct merge_heap {
    uint64_t *entries;
    size_t n;
};

static inline uint64_t merge_entry(uint32_t rank, uint32_t at)
{
    return (uint64_t)rank << 32 | at;
}

static inline void merge_heap_sift_down(struct merge_heap *h, size_t i)
{
    uint64_t *heap = h->entries, moving = heap[i];
    for (size_t first; (first = 4 * i + 1) < h->n;) {
        size_t end = first + 4 < h->n ? first + 4 : h->n, least = first;
        for (size_t c = first + 1; c < end; c++)
            if (heap[c] < heap[least])
                least = c;
        if (heap[least] >= moving)
            break;
        heap[i] = heap[least];
        i = least;
    }
    heap[i] = moving;
}

static inline void merge_heap_push(struct merge_heap *h, uint64_t e)
{
    size_t i = h->n++;
    for (; i > 0 && e < h->entries[(i - 1) / 4]; i = (i - 1) / 4)
        h->entries[i] = h->entries[(i - 1) / 4];
    h->entries[i] = e;
}

static inline uint64_t merge_heap_pop(struct merge_heap *h)
{
    uint64_t top = h->entries[0];
    h->entries[0] = h->entries[--h->n];
    if (h->n)
        merge_heap_sift_down(h, 0);
    return top;
}

#endif
