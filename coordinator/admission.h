/* coordinator/admission.h - who waits, for how long, and who is next.
 *
 * Purpose    The bounded queue in front of the slots: first come, first served; a client over its own limits is told so or
 *            passed over, nobody else is. It does not know slots or blocks: the engine asks for the next one, looks
 *            whether it fits now, and starts it. The first in line is never overtaken because it is large. Issue 4
 *            replaces the order across clients behind admission_next.
 * Ownership  admission_create/admission_destroy. Items are the caller's (part of a request); they are linked while waiting.
 * Threading  Engine thread only; pure of clocks: the caller says what time it is.
 * Invariants 1. n_waiting and n_tokens are the sums over the list; first admissions among them stay within the limits.
 *            2. Per client: waiting and running are the counts of its items; a client with neither has no entry.
 *            3. Arrival order is list order.
 * Errors     QUEUE_FULL and CLIENT_LIMIT, with err->retry_after_s set (1..60). A passed deadline is QUEUE_WAIT, made by the
 *            engine with admission_retry_after_s.
 */
#ifndef SLUICE_COORDINATOR_ADMISSION_H
#define SLUICE_COORDINATOR_ADMISSION_H

#include <stdint.h>

#include "common/base/error.h"
#include "common/base/list.h"

struct admission;

struct admission_limits {
    uint32_t queue_requests; /* waiting requests, 0 allowed */
    uint64_t queue_tokens;   /* their prompt tokens */
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
    int resumed;             /* was admitted before: passes the queue's caps (design.md) */
    int64_t deadline_ns;     /* caller may set an earlier one; 0: push sets arrived + queue_wait */
    int64_t arrived_ns;      /* set by push */
    /* admission's own */
    uint32_t position, client_entry;
    int running;
};

struct admission_stats {
    uint32_t n_waiting, n_running, n_clients;
    uint64_t n_tokens;       /* prompt tokens waiting */
    int64_t oldest_ns;       /* arrival of the longest waiting one, 0: none */
    double tokens_per_s;     /* measured rate: prompt and answer tokens; 0: not measured yet */
};

enum status admission_create(const struct admission_limits *l, struct admission **out);
void admission_destroy(struct admission *a);

/* The item waits at the end. may_start: nobody waits and it could start at once (a slot and blocks are free), so the
 * queue's caps do not count. On error it is not linked. */
enum status admission_push(struct admission *a, struct admission_item *item, int may_start, int64_t now_ns, struct error *err);
/* Leaves the queue without starting (cancel, deadline): O(1). Nothing if it does not wait. */
void admission_remove(struct admission *a, struct admission_item *item);
/* The first in line whose client is under --client-slots; NULL: none. It stays in the queue until started. */
struct admission_item *admission_next(struct admission *a);
/* Leaves the queue for a slot; its client's running count grows until admission_finish. */
void admission_start(struct admission *a, struct admission_item *item);
/* A started item has left its slot. */
void admission_finish(struct admission *a, struct admission_item *item);

/* A waiting item whose deadline has passed, NULL: none. It stays until removed. */
struct admission_item *admission_expired(struct admission *a, int64_t now_ns);
/* Earliest deadline, INT64_MAX: none. May be early (a removed item's), never late. */
int64_t admission_deadline(const struct admission *a);
/* 1: next in line. 0: it does not wait. One walk over the queue after a change, then O(1). */
uint32_t admission_position(struct admission *a, const struct admission_item *item);

/* Tokens that passed the pipeline (prompt rows read and answer rows), for the measured rate. Call per retired tick. */
void admission_served(struct admission *a, uint32_t n_tokens, int64_t now_ns);
/* An answer ended with n tokens: the mean length is part of the predicted queued work. */
void admission_answered(struct admission *a, uint32_t n_tokens);
/* Predicted queued work / measured rate, 1..60. */
int admission_retry_after_s(const struct admission *a);

struct admission_stats admission_stats(const struct admission *a);
int admission__check(const struct admission *a, const char **why);

#endif
