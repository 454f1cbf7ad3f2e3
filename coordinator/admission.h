/* coordinator/admission.h - who waits, for how long, and who is next.
 *
 * Purpose    The bounded queue in front of the slots. First come, first served within a client; across clients by counters
 *            of tokens served (virtual token counters: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024);
 *            two classes, batch with 1/8 of the weight of interactive. It does not know slots or blocks: the engine asks for
 *            the next one, looks whether it fits now, and starts it. The next one is never overtaken because it is large.
 * Ownership  admission_create/admission_destroy. Items are the caller's (part of a request); they are linked while waiting,
 *            and must stay where they are until they are finished or removed. Nothing allocates after create.
 * Threading  Engine thread only; pure of clocks: the caller says what time it is. Where a call takes no time it is that of
 *            the latest call that took one.
 * Invariants 1. n_waiting and n_tokens are the sums over the waiting; first admissions among them stay within the limits;
 *               a single one may have more tokens than that.
 *            2. Per client: waiting and running are the counts of its items. Who has neither is idle: its counters are kept,
 *               the least recently used ones go when their place is needed.
 *            3. A client's waiting items of one class are in order of arrival, those that were admitted before first.
 *            4. A client that comes back is lifted to the level of those who wait: time away earns nothing.
 * Errors     QUEUE_FULL and CLIENT_LIMIT, with err->retry_after_s set (1..60). A passed deadline is QUEUE_WAIT, made by the
 *            engine with admission_retry_after_s.
 */
#ifndef SLUICE_COORDINATOR_ADMISSION_H
#define SLUICE_COORDINATOR_ADMISSION_H

#include <stdint.h>

#include "common/base/error.h"
#include "common/base/list.h"
#include "coordinator/heap.h"

struct admission;

enum { ADMISSION_BATCH_DIVISOR = 8 }; /* batch has this part of the weight of interactive */

struct admission_limits {
    uint32_t queue_requests; /* waiting requests, 0 allowed */
    uint64_t queue_tokens;   /* their prompt tokens; one that has more may wait alone */
    int64_t queue_wait_ns;   /* longest wait */
    uint32_t n_slots;        /* bounds the running ones */
    uint32_t client_slots;   /* 0: no limit */
    uint32_t client_queue;   /* 0: no limit */
};

struct admission_item {
    struct list link;        /* all 0 unless it waits */
    uint64_t client;         /* hash of the client's identity */
    uint32_t n_prompt;       /* tokens */
    uint32_t n_answer_max;
    int batch;               /* the class: 0 interactive */
    int resumed;             /* was admitted before: passes every cap (design.md) and is not charged for its prompt again */
    int sibling;             /* another answer to a request of which one is here: was let in with it, passes the bounds of the queue */
    int64_t deadline_ns;     /* at push and park: the request's own, 0: none. Where it waits: that or, if it is not resumed and
                                that is earlier, the end of the longest wait */
    int64_t arrived_ns;      /* set by push */
    /* admission's own */
    struct list all;
    struct heap_node due;
    uint64_t order, served;
    int64_t own_deadline_ns, since_ns;
    uint32_t client_entry, position, n_expected, n_prepaid;
    int started;
    int running;
};

struct admission_stats {
    uint32_t n_waiting, n_running, n_clients; /* n_clients: with waiting or running items */
    uint64_t n_tokens;       /* prompt tokens waiting */
    int64_t oldest_ns;       /* since when the longest waiting one waits, 0: none */
    double tokens_per_s;     /* measured rate: prompt and answer tokens; 0: not measured yet */
};

enum status admission_create(const struct admission_limits *l, struct admission **out);
void admission_destroy(struct admission *a);

/* The item waits. may_start: it could start at once (a slot and blocks are free); the queue's caps then do not count if
 * nobody waits. On error it is not linked. */
enum status admission_push(struct admission *a, struct admission_item *item, int may_start, int64_t now_ns, struct error *err);
/* Leaves the queue without starting (cancel, deadline). Nothing if it does not wait. */
void admission_remove(struct admission *a, struct admission_item *item);
/* Whose turn it is, among clients under their slots; NULL: none. It stays in the queue until started. */
struct admission_item *admission_next(struct admission *a);
/* Leaves the queue for a slot; its client's running count grows until admission_finish. n_uncached: prompt tokens that must
 * be read, charged to the client unless the item is resumed. */
void admission_start(struct admission *a, struct admission_item *item, uint32_t n_uncached);
/* A running item was served n answer tokens, or n tokens to read again that its client is to pay for. */
void admission_charge(struct admission *a, struct admission_item *item, uint32_t n_tokens);
/* A running item loses its slot and waits again, as resumed, without a longest wait. Cannot fail. */
void admission_park(struct admission *a, struct admission_item *item, int64_t now_ns);
/* A started item has left its slot for good. */
void admission_finish(struct admission *a, struct admission_item *item);

/* A waiting item whose deadline has passed, NULL: none. It stays until removed. */
struct admission_item *admission_expired(struct admission *a, int64_t now_ns);
/* Earliest deadline of a waiting item, INT64_MAX: none. */
int64_t admission_deadline(const struct admission *a);
/* Its rank in the order in which admission_next and admission_start would take the waiting ones now; those whose client has
 * all its slots come last. 0: it does not wait. One walk over the queue, n log n, after a change; then O(1). Where thousands
 * wait, a rank may be that of two seconds ago, and a newcomer's the last. */
uint32_t admission_position(struct admission *a, const struct admission_item *item);

/* Tokens that passed the pipeline (prompt rows read and answer rows), for the measured rate. Call per retired tick. */
void admission_served(struct admission *a, uint32_t n_tokens, int64_t now_ns);
/* An answer ended with n tokens: their mean length is part of the predicted work. */
void admission_answered(struct admission *a, uint32_t n_tokens);
/* 0: none ended yet. */
uint32_t admission_mean_answer(const struct admission *a);
/* Predicted time until a place in the queue is free for one who is refused now or, if one is free, until those who wait now
 * have started. 1..60. */
int admission_retry_after_s(const struct admission *a);

struct admission_stats admission_stats(const struct admission *a);
int admission__check(const struct admission *a, const char **why);

#endif
