/* stage/control.h - a stage's line to its coordinator, apart from the compute thread.
 *
 * Purpose    Keeps the Attach stream (rpc/grpc/stage_api.h): HELLO when it stands, messages to and from the worker, heartbeats
 *            by its own timer, EXIT at once. When the stream ends the worker leaves its epoch and keeps its weights; the next
 *            coordinator gets HELLO with the same incarnation.
 * Ownership  control_create/control_destroy. It owns the worker, the channel and the client, and borrows the loop.
 * Threading  Everything here runs on the loop's thread, but for the worker's messages, which go out from the compute thread.
 *            Nothing waits for the compute thread: a stuck tick still obeys EXIT and still beats.
 * Errors     `over` is told why the process must end: the coordinator's EXIT, a refused token, an assignment that cannot be
 *            loaded.
 */
#ifndef SLUICE_STAGE_CONTROL_H
#define SLUICE_STAGE_CONTROL_H

#include "rpc/grpc/rpc.h"
#include "stage/worker.h"

struct control;

struct control_options {
    const char *coordinator;  /* HOST:PORT */
    const char *secret;       /* "": none */
    struct rpc_tls *tls;      /* NULL: none */
    uint32_t stage;           /* of --stage, or STAGE_ANY; the assignment decides */
    int heartbeat_ms;
    int64_t max_message_bytes;
    uint64_t incarnation;
    uint32_t last_signal;     /* that ended the process before this one, 0: none or unknown */
    struct worker_options worker; /* send and send_ctx are filled in here */
    void (*over)(void *ctx, enum status why, const char *message);
    void *over_ctx;
};

enum status control_create(const struct control_options *o, struct rpc_loop *loop, struct control **out, struct error *err);
/* Not on the loop's thread. Waits for a tick or load that is under way. */
void control_destroy(struct control *c);
/* Reads the certificates again. An open stream stays; one that is still looked for is looked for with the new ones. */
void control_reload(struct control *c);
/* The worker's counters and state to the log. */
void control_dump(struct control *c);

#endif
