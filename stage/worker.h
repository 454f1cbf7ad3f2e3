/* stage/worker.h - the compute thread of a stage: assignments, epochs, links, ticks.
 *
 * Purpose    Takes the messages of the coordinator (wire.md), checks them against its own state, and runs the ticks: plan ->
 *            frame in -> compute -> frame or feedback out -> result. It knows nothing of gRPC; control.c or a test carries
 *            the messages.
 * Ownership  worker_create/worker_destroy. It owns its compute and its link port. A plan from worker_plan_acquire that is
 *            posted passes back to the worker.
 * Threading  One compute thread inside. worker_post, worker_detach, worker_plan_acquire, worker_heartbeat and worker_counters
 *            may be called from any thread and never wait for the compute thread. `send` is called on the compute thread.
 * Invariants 1. A new epoch or a detach wakes the compute thread from any wait on a link; a tick that runs is finished first
 *               and then forgotten.
 *            2. Whatever carries another session or epoch is dropped and counted.
 *            3. Any other violation is answered by FAILED with both values and ends this stage's part in the epoch; weights
 *               stay, and the next epoch works.
 *            4. Nothing is allocated between READY and the end of the epoch.
 * Errors     FAILED: PROTOCOL, LINK, TIMEOUT, STAGE, ...; fatal when the assignment cannot be loaded.
 *
 *              ASSIGN             EPOCH             LINKS (formed)
 *      EMPTY ---------> LOADED ---------> JOINED -----------------> READY --+
 *                         ^  ^              |  ^                      |  ^  | PLAN
 *                         |  +-- failure ---+  +------- EPOCH --------+  +--+
 *                         +------------- failure, detach -------------+
 */
#ifndef SLUICE_STAGE_WORKER_H
#define SLUICE_STAGE_WORKER_H

#include "common/wire/control.h"
#include "stage/compute.h"
#include "stage/link.h"

enum { WORKER_MAX_WINDOW = 65, WORKER_MAX_SLOTS = 4096, WORKER_MAX_ROWS = 4096, WORKER_MAX_HEARTBEAT_MS = 60000 };

struct worker;

struct worker_options {
    /* Also called again when another assignment replaces the loaded one; the old compute is destroyed before. */
    enum status (*create_compute)(void *ctx, struct compute **out, struct error *err);
    void *compute_ctx;
    struct link_port *port;                              /* passes to the worker, also when worker_create fails */
    void (*send)(void *ctx, const struct from_stage *m); /* m and its result are borrowed */
    void *send_ctx;
};

enum status worker_create(const struct worker_options *o, struct worker **out, struct error *err);
/* Ends the epoch and the thread and gives the compute back; waits for a tick or a load that is under way. Afterwards `send` is
 * called no more, and what is posted is dropped. */
void worker_stop(struct worker *w);
/* worker_stop, and the rest. */
void worker_destroy(struct worker *w);

/* What HELLO says of the model, the links and the highest epoch; the caller adds the process's own facts. */
void worker_describe(struct worker *w, struct msg_hello *out);
/* A plan to fill. NULL: nothing is assigned, or window + 1 plans are here already (STATUS_PROTOCOL for the sender). */
struct plan *worker_plan_acquire(struct worker *w);
void worker_plan_release(struct worker *w, struct plan *p);
/* ASSIGN, EPOCH, LINKS, PLAN; the plan passes to the worker. EXIT is the caller's. */
void worker_post(struct worker *w, const struct to_stage *m);
/* The coordinator is gone: leave the epoch, keep the weights. */
void worker_detach(struct worker *w);
void worker_heartbeat(struct worker *w, struct msg_heartbeat *out);
/* 1, once an epoch: what this stage has sent over its link has been without any word of the other host for limit_ms. The compute
 * thread may have nothing to wait for there and would find out much later. Ask about as often as a heartbeat is due. */
int worker_link_is_silent(struct worker *w, uint32_t limit_ms, struct msg_failed *out);

struct worker_counters {
    uint64_t ticks, failures;
    struct stale_counts stale;
};
void worker_counters(struct worker *w, struct worker_counters *out);

#endif
