#include "common/base/check.h"
#include "common/base/clock.h"
#include "coordinator/admission_impl.h"

/* Up to so many waiting the ranks are exact at every moment; above, where a walk takes up to 50 ms for 100,000, it is not repeated
 * within WALK_NS. */
enum { WALK_AT_ONCE = 4096 };
static const int64_t WALK_NS = 2 * NS_PER_S;

/* What it would charge its class if it were admitted first now: also for one that was parked, which must be read again. */
static uint64_t size_of(const struct admission_item *item)
{
    return item->n_prompt + (uint64_t)item->n_expected;
}

/* Weighted fair queueing between the classes: the one whose next request ends earlier in virtual time. Batch pays eight times,
 * so that one request of it waits for eight times its size of interactive ones, and no longer. */
static enum admission_class choose(const struct admission_item *const head[N_CLASSES], const uint64_t served[N_CLASSES])
{
    if (!head[CLASS_BATCH] || !head[CLASS_INTERACTIVE])
        return head[CLASS_BATCH] ? CLASS_BATCH : CLASS_INTERACTIVE;
    uint64_t end[N_CLASSES];
    for (int k = 0; k < N_CLASSES; k++)
        end[k] = served[k] + admission__weighted((enum admission_class)k, size_of(head[k]));
    return end[CLASS_BATCH] < end[CLASS_INTERACTIVE] ? CLASS_BATCH : CLASS_INTERACTIVE;
}

struct admission_item *admission_next(struct admission *a)
{
    const struct admission_item *head[N_CLASSES] = {0};
    uint64_t served[N_CLASSES];
    for (int k = 0; k < N_CLASSES; k++) {
        struct heap_node *n = heap_top(&a->class[k].flows);
        if (n)
            head[k] = admission__head(LIST_ENTRY(n, struct flow, node));
        served[k] = a->class[k].served;
    }
    return (struct admission_item *)head[choose(head, served)];
}

/* --- the rank of everybody: the same choices, run forward on a copy of the counters ------------------------------------------ */

static struct list *after(struct flow *f, struct list *at)
{
    at = at->next;
    if (at == &f->parked)
        at = f->fresh.next;
    return at == &f->fresh ? NULL : at;
}

/* The copy of a heap is one, in the same order. */
static void copy_flows(struct admission *a, int class)
{
    const struct heap *from = &a->class[class].flows;
    struct heap *to = &a->walk[class];
    to->n = from->n;
    for (uint32_t i = 0; i < from->n; i++) {
        struct flow *f = LIST_ENTRY(from->node[i], struct flow, node);
        f->walk = f->node;
        f->walk_at = &admission__head(f)->link;
        a->client[f->client].walk_running = a->client[f->client].n_running;
        to->node[i] = &f->walk;
    }
}

static struct flow *top_flow(const struct heap *h)
{
    struct heap_node *n = heap_top(h);
    return n ? LIST_ENTRY(n, struct flow, walk) : NULL;
}

static void walk_start(struct admission *a, struct flow *f, uint64_t cost)
{
    struct client *c = &a->client[f->client];
    f->walk_at = after(f, f->walk_at);
    if (a->limits.client_slots && ++c->walk_running >= a->limits.client_slots) {
        for (int k = 0; k < N_CLASSES; k++)
            if (c->flow[k].node.at) /* else its copy is of another walk */
                heap_remove(&a->walk[k], &c->flow[k].walk);
    } else if (f->walk_at) {
        heap_put(&a->walk[f->class], &f->walk, admission__key(f->walk.key + cost),
                 LIST_ENTRY(f->walk_at, struct admission_item, link)->order);
    } else {
        heap_remove(&a->walk[f->class], &f->walk);
    }
}

static uint32_t walk_turns(struct admission *a)
{
    uint64_t served[N_CLASSES];
    uint32_t n = 0;
    for (int k = 0; k < N_CLASSES; k++) {
        copy_flows(a, k);
        served[k] = a->class[k].served;
    }
    for (;; n++) {
        const struct admission_item *head[N_CLASSES];
        struct flow *top[N_CLASSES];
        for (int k = 0; k < N_CLASSES; k++) {
            top[k] = top_flow(&a->walk[k]);
            head[k] = top[k] ? LIST_ENTRY(top[k]->walk_at, struct admission_item, link) : NULL;
        }
        enum admission_class c = choose(head, served);
        if (!top[c])
            return n;
        struct admission_item *item = LIST_ENTRY(top[c]->walk_at, struct admission_item, link);
        uint64_t cost = admission__start_cost(item);
        item->position = n + 1;
        served[c] += admission__weighted(c, cost);
        walk_start(a, top[c], cost);
    }
}

static void walk(struct admission *a)
{
    LIST_EACH(it, &a->waiting)
        LIST_ENTRY(it, struct admission_item, all)->position = 0;
    uint32_t n = walk_turns(a);
    LIST_EACH(it, &a->waiting) {
        struct admission_item *item = LIST_ENTRY(it, struct admission_item, all);
        if (item->position == 0) /* its client has all its slots */
            item->position = ++n;
    }
    ASSERT(n == a->n_waiting);
    a->positions_stale = 0;
    a->walked_ns = a->measured.now_ns;
}

uint32_t admission_position(struct admission *a, const struct admission_item *item)
{
    if (!list_linked(&item->link))
        return 0;
    if (a->positions_stale && (a->n_waiting <= WALK_AT_ONCE || a->measured.now_ns - a->walked_ns >= WALK_NS))
        walk(a);
    return item->position ? item->position : a->n_waiting; /* it came after the last walk */
}
