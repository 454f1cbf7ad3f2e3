/* rpc/grpc/loop.h - the completion-queue thread, its tags and timers. Inside rpc/grpc only.
 *
 * Purpose    A tag is embedded in the object that waits for an operation; the loop calls its fn on the loop's thread. The
 *            C core does its input and output only inside grpc_completion_queue_next, so callbacks must be short.
 * Ownership  A tag belongs to its object, which must live until fn was called.
 * Threading  rpc_timer_* and rpc_loop_at from any thread; fn on the loop's thread.
 * Invariants 1. A timer that was started fires exactly once: with fired == 1 at its time, or 0 when cancelled or when the
 *            loop ends. 2. Timers are sorted by time.
 */
#ifndef SLUICE_RPC_GRPC_LOOP_H
#define SLUICE_RPC_GRPC_LOOP_H

#include <grpc/grpc.h>
#include <pthread.h>

#include "common/base/arena.h"
#include "common/base/list.h"
#include "rpc/grpc/rpc.h"

struct rpc_tag {
    void (*fn)(struct rpc_tag *t, int ok);
};

struct rpc_timer {
    struct list in_loop;
    int64_t time_ns;
    int cancelled;
    void (*fn)(struct rpc_timer *t, int fired);
};

/* The core is not built for ThreadSanitizer: who starts a batch tells it that its tag's callback comes after. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define RPC_TAG_STARTS(t) __tsan_release(t)
#define RPC_TAG_COMES(t) __tsan_acquire(t)
#else
#define RPC_TAG_STARTS(t) ((void)(t))
#define RPC_TAG_COMES(t) ((void)(t))
#endif

grpc_completion_queue *rpc_loop__cq(struct rpc_loop *l);
/* Memory for what is unpacked from one message: used on the loop's thread only, emptied with each message. */
struct arena *rpc_loop__scratch(struct rpc_loop *l);
int rpc_loop__is_here(const struct rpc_loop *l);

void rpc_timer_start(struct rpc_loop *l, struct rpc_timer *t, int64_t time_ns);
/* Makes it fire soon with fired == 0, if it has not fired yet. */
void rpc_timer_cancel(struct rpc_loop *l, struct rpc_timer *t);

gpr_timespec rpc__deadline(int timeout_ms); /* <= 0: none */

#endif
