#include "common/base/queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

struct queue {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t filled;
    uint32_t capacity, head, n;
    size_t message_bytes;
    int closed, woken;
    unsigned char data[];
};

enum status queue_create(uint32_t capacity, size_t message_bytes, struct queue **out)
{
    struct queue *q = calloc(1, sizeof *q + (size_t)capacity * message_bytes);
    if (!q)
        return STATUS_OUT_OF_MEMORY;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
    q->capacity = capacity;
    q->message_bytes = message_bytes;
    *out = q;
    return STATUS_OK;
}

void queue_destroy(struct queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

enum status queue_push(struct queue *q, const void *message)
{
    enum status s = STATUS_OK;
    pthread_mutex_lock(&q->lock);
    if (q->closed) {
        s = STATUS_CLOSED;
    } else if (q->n == q->capacity) {
        s = STATUS_FULL;
    } else {
        uint32_t at = (q->head + q->n++) % q->capacity;
        memcpy(q->data + (size_t)at * q->message_bytes, message, q->message_bytes);
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    return s;
}

enum status queue_pop(struct queue *q, void *message, int64_t deadline_ns)
{
    enum status s = STATUS_OK;
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    pthread_mutex_lock(&q->lock);
    while (q->n == 0 && s == STATUS_OK) {
        if (q->closed) {
            s = STATUS_CLOSED;
        } else if (q->woken) {
            q->woken = 0;
            s = STATUS_TIMEOUT;
        } else if (deadline_ns == 0) {
            s = STATUS_TIMEOUT;
        } else if (deadline_ns == INT64_MAX) {
            pthread_cond_wait(&q->filled, &q->lock);
        } else if (pthread_cond_timedwait(&q->filled, &q->lock, &until) != 0) {
            s = q->n ? STATUS_OK : STATUS_TIMEOUT;
        }
    }
    if (s == STATUS_OK) {
        memcpy(message, q->data + (size_t)q->head * q->message_bytes, q->message_bytes);
        q->head = (q->head + 1) % q->capacity;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return s;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = 1;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

void queue_wake(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->woken = 1;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

