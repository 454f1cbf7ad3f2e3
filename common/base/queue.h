/* common/base/queue.h - bounded queue between threads.
 *
 * Purpose    Fixed-size messages, many writers, many readers; the way other threads talk to a single writer (engine,
 *            compute thread).
 * Ownership  queue_create/queue_destroy; messages are copied in and out, what they point to passes with them.
 * Threading  Any thread; the lock inside guards every field. Waiters sleep on a futex (condition variable), none spins.
 * Errors     STATUS_FULL, STATUS_TIMEOUT, STATUS_CLOSED (closed and empty).
 */
#ifndef SLUICE_COMMON_BASE_QUEUE_H
#define SLUICE_COMMON_BASE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct queue;

enum status queue_create(uint32_t capacity, size_t message_bytes, struct queue **out);
void queue_destroy(struct queue *q);
/* STATUS_FULL: nothing was taken. STATUS_CLOSED after queue_close. */
enum status queue_push(struct queue *q, const void *message);
/* Waits until deadline_ns (clock_now_ns scale; 0: not at all, INT64_MAX: for ever). */
enum status queue_pop(struct queue *q, void *message, int64_t deadline_ns);
/* No more pushes; readers drain what is there, then get STATUS_CLOSED. */
void queue_close(struct queue *q);
/* Wakes one waiter, which returns STATUS_TIMEOUT early. */
void queue_wake(struct queue *q);

#endif
