#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "coordinator/admission_impl.h"

static uint32_t *bucket_of(const struct admission *a, uint64_t key)
{
    return &a->bucket[(uint32_t)rand_mix(key) & (a->n_buckets - 1)];
}

enum status admission__create_clients(struct admission *a, uint32_t n_entries)
{
    a->n_entries = n_entries;
    for (a->n_buckets = 16; a->n_buckets < n_entries;)
        a->n_buckets *= 2;
    list_init(&a->idle);
    a->client = calloc(n_entries, sizeof *a->client); /* pages that no client ever needed stay untouched */
    a->bucket = malloc(a->n_buckets * sizeof *a->bucket);
    if (!a->client || !a->bucket)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < a->n_buckets; i++)
        a->bucket[i] = NO_CLIENT;
    return STATUS_OK;
}

void admission__destroy_clients(struct admission *a)
{
    free(a->client);
    free(a->bucket);
}

struct client *admission__find(const struct admission *a, uint64_t key)
{
    uint32_t i = *bucket_of(a, key);
    while (i != NO_CLIENT && a->client[i].key != key)
        i = a->client[i].next;
    return i == NO_CLIENT ? NULL : &a->client[i];
}

static uint32_t evict_idle(struct admission *a)
{
    CHECK(!list_empty(&a->idle));
    struct client *c = LIST_ENTRY(a->idle.next, struct client, idle);
    uint32_t at = (uint32_t)(c - a->client), *link = bucket_of(a, c->key);
    while (*link != at)
        link = &a->client[*link].next;
    *link = c->next;
    list_remove(&c->idle);
    return at;
}

uint32_t admission__enter(struct admission *a, uint64_t key)
{
    struct client *c = admission__find(a, key);
    if (c)
        return (uint32_t)(c - a->client);
    uint32_t at = a->n_used < a->n_entries ? a->n_used++ : evict_idle(a);
    uint32_t *bucket = bucket_of(a, key);
    c = &a->client[at];
    *c = (struct client){.key = key, .next = *bucket};
    *bucket = at;
    for (int k = 0; k < N_CLASSES; k++) {
        c->flow[k].client = at;
        c->flow[k].class = (enum admission_class)k;
        list_init(&c->flow[k].parked);
        list_init(&c->flow[k].fresh);
    }
    list_push_back(&a->idle, &c->idle);
    return at;
}

int admission__held(const struct admission *a, const struct client *c)
{
    return a->limits.client_slots && c->n_running >= a->limits.client_slots;
}

void admission__count(struct admission *a, struct admission_item *item, int waiting, int running)
{
    struct client *c = &a->client[item->client_entry];
    struct flow *f = admission__flow(a, item);
    uint32_t was = c->n_waiting + c->n_running, flow_was = f->n_waiting + f->n_running;
    c->n_waiting += (uint32_t)waiting;
    c->n_running += (uint32_t)running;
    f->n_waiting += (uint32_t)waiting;
    f->n_running += (uint32_t)running;
    a->n_waiting += (uint32_t)waiting;
    a->n_running += (uint32_t)running;
    uint32_t is = c->n_waiting + c->n_running, flow_is = f->n_waiting + f->n_running;
    a->class[f->class].n_active += (uint32_t)(flow_is > 0) - (uint32_t)(flow_was > 0);
    if (is > 0 && was == 0) {
        list_remove(&c->idle);
        a->n_clients++;
    } else if (is == 0 && was > 0) {
        list_push_back(&a->idle, &c->idle);
        a->n_clients--;
    }
}

struct admission_item *admission__head(const struct flow *f)
{
    if (f->n_waiting == 0)
        return NULL;
    return LIST_ENTRY(list_empty(&f->parked) ? f->fresh.next : f->parked.next, struct admission_item, link);
}

/* Where a flow begins that comes back: not below the least of those who wait, so that time away earns nothing (the paper's rule).
 * One that is new begins at the class's level, which moves on with the service: newcomers without end would otherwise all stand
 * at the least, and who stands above it would wait for ever. The level is at most the largest request ahead of the least; that
 * bounds what a newcomer can lose by it. */
static void lift(struct admission *a, struct class_order *o, struct flow *f)
{
    const struct heap_node *least = heap_top(&o->flows);
    double from = o->level;
    if (!least) {
        if (o->served < a->virtual_time)
            o->served = a->virtual_time;
    } else {
        double floor = (double)least->key, most = floor + (double)o->largest;
        if (o->level < floor || o->level > most) {
            o->level = o->level < floor ? floor : most;
            o->ahead = 0;
        }
        from = f->known ? floor : o->level;
    }
    if (f->served < (uint64_t)from)
        f->served = (uint64_t)from;
    f->known = 1;
}

static void place_flow(struct admission *a, const struct client *c, struct flow *f)
{
    struct class_order *o = &a->class[f->class];
    if (f->n_waiting == 0 || admission__held(a, c)) {
        heap_remove(&o->flows, &f->node);
        return;
    }
    if (f->node.at == 0)
        lift(a, o, f);
    heap_put(&o->flows, &f->node, admission__key(f->served), admission__head(f)->order);
}

void admission__place(struct admission *a, struct admission_item *item)
{
    struct client *c = &a->client[item->client_entry];
    for (int k = 0; k < N_CLASSES; k++)
        place_flow(a, c, &c->flow[k]);
    a->positions_stale = 1;
}

static double per_flow(const struct class_order *o, uint64_t n_tokens)
{
    return (double)n_tokens / (o->n_active ? o->n_active : 1);
}

void admission__charge(struct admission *a, struct admission_item *item, uint64_t n_tokens, uint64_t n_served)
{
    struct flow *f = admission__flow(a, item);
    struct class_order *o = &a->class[f->class];
    f->served += n_tokens;
    o->served += admission__weighted(f->class, n_tokens);
    double rise = per_flow(o, n_tokens), back = rise < o->ahead ? rise : o->ahead;
    o->ahead -= back;
    o->level += rise - back;
    item->served += n_served;
    if (item->served > o->largest)
        o->largest = item->served;
}

void admission__refund(struct admission *a, struct admission_item *item)
{
    struct flow *f = admission__flow(a, item);
    struct class_order *o = &a->class[f->class];
    f->served -= item->n_prepaid;
    o->served -= admission__weighted(f->class, item->n_prepaid);
    o->ahead += per_flow(o, item->n_prepaid);
    item->n_prepaid = 0;
}

static const char *check_flow(const struct admission *a, const struct client *c, const struct flow *f)
{
    const struct list *const lists[] = {&f->parked, &f->fresh};
    uint32_t n = 0;
    for (size_t k = 0; k < ARRAY_LEN(lists); k++) {
        uint64_t before = 0;
        LIST_EACH(it, lists[k]) {
            const struct admission_item *item = LIST_ENTRY(it, struct admission_item, link);
            if (&a->client[item->client_entry] != c || admission__class(item) != f->class || item->running ||
                item->resumed != (k == 0))
                return "an item stands in the list of its client and class, resumed ones in front";
            if (item->order <= before)
                return "arrival order is list order";
            before = item->order;
            n++;
        }
    }
    if (n != f->n_waiting)
        return "a flow's count is that of its lists";
    if ((f->node.at > 0) != (n > 0 && !admission__held(a, c)))
        return "a flow has a turn if it waits and its client has a slot left";
    if (f->node.at > 0 && (f->node.key != admission__key(f->served) || f->node.tie != admission__head(f)->order))
        return "the order of turns is that of the counters";
    return NULL;
}

static const char *check_client(const struct admission *a, const struct client *c)
{
    uint32_t waiting = 0, running = 0;
    for (int k = 0; k < N_CLASSES; k++) {
        const char *why = check_flow(a, c, &c->flow[k]);
        if (why)
            return why;
        waiting += c->flow[k].n_waiting;
        running += c->flow[k].n_running;
    }
    if (waiting != c->n_waiting || running != c->n_running)
        return "a client's counts are those of its flows";
    if (list_linked(&c->idle) != (waiting + running == 0))
        return "who has nothing is idle";
    return admission__find(a, c->key) == c ? NULL : "every client is found by its key";
}

const char *admission__check_clients(const struct admission *a)
{
    uint32_t waiting = 0, running = 0, n = 0, active[N_CLASSES] = {0};
    for (uint32_t i = 0; i < a->n_used; i++) {
        const struct client *c = &a->client[i];
        const char *why = check_client(a, c);
        if (why)
            return why;
        waiting += c->n_waiting;
        running += c->n_running;
        n += c->n_waiting + c->n_running > 0;
        for (int k = 0; k < N_CLASSES; k++)
            active[k] += c->flow[k].n_waiting + c->flow[k].n_running > 0;
    }
    if (waiting != a->n_waiting || running != a->n_running || n != a->n_clients)
        return "the clients' counts add up to the queue and the slots";
    for (int k = 0; k < N_CLASSES; k++)
        if (active[k] != a->class[k].n_active || !heap_valid(&a->class[k].flows))
            return "a class knows its flows";
    return NULL;
}
