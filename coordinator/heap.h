/* coordinator/heap.h - intrusive binary heap: the least key first, ties by a second key.
 *
 * Purpose    Order with changes: the earliest deadline, the client whose turn it is. A node knows its place, so it can be
 *            moved or taken out in O(log n).
 * Ownership  The array is the caller's and has room for every node that can be in at once; nodes are the elements'.
 * Threading  Pure.
 * Invariants 1. No node comes before its parent. 2. node[n->at - 1] == n for every node in the heap; at is 0 outside.
 */
#ifndef SLUICE_COORDINATOR_HEAP_H
#define SLUICE_COORDINATOR_HEAP_H

#include <stdint.h>

struct heap_node {
    uint64_t key, tie;
    uint32_t at; /* place + 1; 0: in no heap */
};

struct heap {
    struct heap_node **node;
    uint32_t n;
};

static inline int heap_before(const struct heap_node *a, const struct heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static inline void heap_set(struct heap *h, uint32_t at, struct heap_node *n)
{
    h->node[at] = n;
    n->at = at + 1;
}

static inline void heap_sift(struct heap *h, struct heap_node *n)
{
    uint32_t at = n->at - 1, child;
    for (; at > 0 && heap_before(n, h->node[(at - 1) / 2]); at = (at - 1) / 2)
        heap_set(h, at, h->node[(at - 1) / 2]);
    for (; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && heap_before(h->node[child + 1], h->node[child]))
            child++;
        if (!heap_before(h->node[child], n))
            break;
        heap_set(h, at, h->node[child]);
    }
    heap_set(h, at, n);
}

static inline struct heap_node *heap_top(const struct heap *h)
{
    return h->n ? h->node[0] : (struct heap_node *)0;
}

/* Enters the node, or moves it if it is in. */
static inline void heap_put(struct heap *h, struct heap_node *n, uint64_t key, uint64_t tie)
{
    n->key = key;
    n->tie = tie;
    if (n->at == 0)
        heap_set(h, h->n++, n);
    heap_sift(h, n);
}

/* Nothing if it is in no heap. */
static inline void heap_remove(struct heap *h, struct heap_node *n)
{
    if (n->at == 0)
        return;
    struct heap_node *last = h->node[--h->n];
    if (last != n) {
        heap_set(h, n->at - 1, last);
        heap_sift(h, last);
    }
    n->at = 0;
}

/* Invariants 1 and 2. */
static inline int heap_valid(const struct heap *h)
{
    for (uint32_t i = 0; i < h->n; i++)
        if (h->node[i]->at != i + 1 || (i > 0 && heap_before(h->node[i], h->node[(i - 1) / 2])))
            return 0;
    return 1;
}

#endif
