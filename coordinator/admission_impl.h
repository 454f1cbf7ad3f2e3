/* coordinator/admission_impl.h - what the files of admission share.
 *
 * Purpose    The tables behind admission.h. admission.c: the life of an item. admission_clients.c: clients, their flows and
 *            counters. admission_order.c: whose turn it is, and the rank of everybody. admission_rate.c: what is measured and
 *            the time until a place is free.
 * Ownership  One struct admission; all arrays are made by admission_create.
 * Threading  As admission.h.
 * Invariants 1. A flow is in its class's heap if and only if it has waiting items and its client is below its slots.
 *            2. A client is on the idle list if and only if it has neither waiting nor running items.
 *            3. A flow's counter never falls below what it was when its client came back: refunds return what was prepaid.
 */
#ifndef SLUICE_COORDINATOR_ADMISSION_IMPL_H
#define SLUICE_COORDINATOR_ADMISSION_IMPL_H

#include "coordinator/admission.h"

enum admission_class { CLASS_INTERACTIVE, CLASS_BATCH, N_CLASSES };

/* The items of one client in one class. */
struct flow {
    struct heap_node node;       /* key: served; tie: order of its first item */
    struct list parked, fresh;   /* waiting: those that were admitted before stand in front */
    uint64_t served;             /* virtual counter: tokens charged, and what it was lifted by */
    uint32_t n_waiting, n_running;
    uint32_t client;             /* index of its client */
    int known;                   /* had a turn before, so its counter says something */
    enum admission_class class;
    struct heap_node walk;       /* admission_order.c: the same order, run forward */
    struct list *walk_at;
};

struct client {
    uint64_t key;
    struct list idle;            /* least recently used first */
    struct flow flow[N_CLASSES];
    uint32_t next;               /* in its bucket, NO_CLIENT: last */
    uint32_t n_waiting, n_running;
    uint32_t n_promised;         /* refused for its own limit, less its departures since */
    uint32_t walk_running;
};

struct class_order {
    struct heap flows;           /* those whose turn can come */
    uint64_t served;             /* tokens charged * weight: what interactive would pay for the same share */
    double level;                /* fair virtual time: charged tokens / active flows. Who comes back is lifted to it */
    double ahead;                /* refunds that the level, which never falls, has not made up for yet */
    uint64_t largest;            /* tokens of the largest single request */
    uint32_t n_active;           /* flows with waiting or running items */
};

/* admission_rate.c */
struct measured {
    int64_t now_ns;              /* the latest time anybody told */
    double tokens_per_s, answer_mean;
    int64_t rate_from_ns;
    uint64_t rate_tokens;
    double interval_s, variance; /* between departures from the queue while it was never empty: mean, and s^2 */
    uint32_t n_intervals, n_ended;
    double finished_prompt;      /* mean prompt of the requests that ended */
    int64_t left_ns;             /* latest departure, or since when the queue is not empty */
    int queue_held;              /* it was not empty since a departure at left_ns */
    uint32_t n_promised;         /* refused for a full queue, less departures since */
};

enum { NO_CLIENT = UINT32_MAX };

struct admission {
    struct admission_limits limits;
    struct list waiting;         /* item.all, by the time since when it waits */
    uint32_t n_waiting, n_first; /* n_first: of them, those that count against queue_requests */
    uint32_t n_running, n_clients;
    uint32_t capacity;           /* n_waiting + n_running is never above it */
    uint64_t n_tokens, n_first_tokens;
    uint64_t all_prompt, all_answer_max; /* sums over waiting and running items */
    uint64_t next_order;
    struct heap due;             /* waiting items by deadline */
    struct class_order class[N_CLASSES];
    uint64_t virtual_time;       /* class counter at the latest start: a class that comes back begins there */
    struct measured measured;
    int positions_stale;
    int64_t walked_ns;
    struct heap walk[N_CLASSES];
    struct list idle;
    uint32_t *bucket;            /* [n_buckets] first client, NO_CLIENT: empty */
    uint32_t n_buckets;          /* power of two */
    uint32_t n_entries, n_used;  /* entries from n_used on were never used */
    struct client *client;       /* [n_entries] */
};

static inline enum admission_class admission__class(const struct admission_item *item)
{
    return item->batch ? CLASS_BATCH : CLASS_INTERACTIVE;
}

static inline struct flow *admission__flow(struct admission *a, const struct admission_item *item)
{
    return &a->client[item->client_entry].flow[admission__class(item)];
}

/* How far a client has come. The mutant of the tests forgets it: what is left is first come, first served. */
static inline uint64_t admission__key(uint64_t served)
{
#ifdef ADMISSION_MUTANT_FCFS
    return served & 0;
#else
    return served;
#endif
}

static inline uint64_t admission__weighted(enum admission_class c, uint64_t n_tokens)
{
    return c == CLASS_BATCH ? n_tokens * ADMISSION_BATCH_DIVISOR : n_tokens;
}

/* What its start charges if nothing of its prompt is cached. */
static inline uint64_t admission__start_cost(const struct admission_item *item)
{
    return (item->resumed ? 0 : item->n_prompt) + (uint64_t)(item->started ? 0 : item->n_expected);
}

/* admission_clients.c */
enum status admission__create_clients(struct admission *a, uint32_t n_entries);
void admission__destroy_clients(struct admission *a);
struct client *admission__find(const struct admission *a, uint64_t key); /* NULL: unknown */
/* Its entry, which may be an idle other one's until now. There are more entries than items, so one is found. */
uint32_t admission__enter(struct admission *a, uint64_t key);
int admission__held(const struct admission *a, const struct client *c); /* has all the slots it may have */
void admission__count(struct admission *a, struct admission_item *item, int waiting, int running);
struct admission_item *admission__head(const struct flow *f);
/* The client pays n tokens; n_served is what the item was really given. */
void admission__charge(struct admission *a, struct admission_item *item, uint64_t n_tokens, uint64_t n_served);
void admission__refund(struct admission *a, struct admission_item *item);
/* Puts both flows of an item's client where they belong after any change. */
void admission__place(struct admission *a, struct admission_item *item);
const char *admission__check_clients(const struct admission *a);

/* admission_rate.c */
void admission__tell_time(struct admission *a, int64_t now_ns);
void admission__note_arrival(struct admission *a);   /* the queue was empty */
void admission__note_departure(struct admission *a, struct admission_item *item);
void admission__note_end(struct admission *a, const struct admission_item *item);
int admission__promise_place(struct admission *a, uint32_t n_departures); /* seconds; counts the promise */
int admission__promise_client(struct admission *a, struct client *c);

#endif
