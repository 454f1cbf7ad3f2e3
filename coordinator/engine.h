/* coordinator/engine.h - the single writer: admission, slots, blocks, plans, stages.
 *
 * Purpose    One thread that owns every decision. Others talk to it by messages: the gRPC loop and the text workers hand
 *            in requests, cancels and stage messages; the engine answers through ports and calls.
 * Ownership  engine_create/engine_destroy. A request passes to the engine with engine_submit and is released when its terminal
 *            event is out.
 * Threading  engine_* functions may be called from any thread; they enqueue. Port functions are called on the engine's
 *            thread and must not block.
 * Invariants 1. Every accepted request gets exactly one terminal event.
 *            2. free + cached + live + draining == total blocks, and the slot sums, after every message (debug builds check).
 * Errors     STATUS_FULL (the inbox is full: told to the client as STATUS_QUEUE_FULL).
 */
#ifndef SLUICE_COORDINATOR_ENGINE_H
#define SLUICE_COORDINATOR_ENGINE_H

#include "common/base/buf.h"
#include "common/base/config.h"
#include "common/model/split.h"
#include "common/text/tokenizer.h"
#include "common/wire/control.h"
#include "rpc/grpc/admin_api.h" /* struct service_status: plain data */

struct engine;
struct request; /* coordinator/request.h */

/* How the engine reaches one attached stage: an Attach stream, or a worker in the same process (tests/lib). */
struct stage_port {
    void *ctx;
    enum status (*send)(void *ctx, const struct to_stage *m); /* m->plan stays the engine's */
    void (*close)(void *ctx, const struct error *why); /* last call on the port; exactly once for every attachment */
};

struct engine_options {
    const struct config *config;
    const struct model *model;         /* hparams and hash; tensors are not read */
    const struct tokenizer *tokenizer;
    const struct split *split;
    const char *model_name;            /* told in ACCEPTED; lives as long as the engine */
    uint32_t hash_bits;                /* of the prefix map; 0: all. Tests make it collide. */
    int manual;                        /* no thread: the caller runs engine_step, on a clock of his own (simulation) */
};

enum status engine_create(const struct engine_options *o, struct engine **out, struct error *err);
/* Manual engines only: handles what has come and does one turn at now_ns (never falling, > 0); the engine reads no other clock.
 * Returns when to call next at the latest, if nothing comes before. One thread makes all calls then. */
int64_t engine_step(struct engine *e, int64_t now_ns);
/* Ends everything now: requests get their terminal event, ports are closed, the thread is joined. Calls that come later are
 * refused (submit) or ignored, so that the gRPC side can be taken down after it. */
void engine_stop(struct engine *e);
void engine_destroy(struct engine *e); /* stops first if need be */

/* Stages. attach returns an id > 0 that the other two name. A result inside m passes to the engine. */
uint64_t engine_stage_attached(struct engine *e, const struct stage_port *port);
void engine_stage_message(struct engine *e, uint64_t attachment, const struct from_stage *m);
void engine_stage_closed(struct engine *e, uint64_t attachment);
struct result *engine_result_acquire(struct engine *e); /* NULL: more than the window is outstanding */

/* Requests: tokenized, with the sink that takes its events (request.h). */
enum status engine_submit(struct engine *e, struct request *r);
/* A request was refused before it could be submitted: it counts among the rejected like the engine's own. */
void engine_count_refused(struct engine *e, enum status why);
void engine_cancel(struct engine *e, struct request *r);
void engine_drain(struct engine *e, int on);
int engine_idle(struct engine *e); /* nothing queued or running */

/* From a snapshot that the engine publishes at least every 100 ms and after every change of state: never waits for it. */
void engine_status(struct engine *e, struct service_status *out);
void engine_metrics(struct engine *e, enum metric_aliases aliases, struct buf *out);
int engine_ready(struct engine *e);
uint64_t engine_turns(const struct engine *e); /* of the engine thread so far; it turns every 50 ms at least */
/* Numerics profile that the stages reported last; "" before the first one. The text lives with the engine and does not change. */
const char *engine_profile(const struct engine *e);

#endif
