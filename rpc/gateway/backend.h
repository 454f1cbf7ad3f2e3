/* rpc/gateway/backend.h - the coordinator, as the gateway sees it.
 *
 * Purpose    The channel, and what is known of the coordinator at any moment: its status (asked every 250 ms), its metrics
 *            (every second) and the model it serves. So health is answered from memory, whatever the coordinator does.
 * Ownership  backend_create/backend_destroy; the loop stays the caller's. Copies go out.
 * Threading  Any thread; the lock inside guards the copies. backend_tick from the watcher's thread.
 * Errors     STATUS_CONFIG for a bad address; what the coordinator does not answer shows as not ready.
 */
#ifndef SLUICE_RPC_GATEWAY_BACKEND_H
#define SLUICE_RPC_GATEWAY_BACKEND_H

#include "common/base/config.h"
#include "rpc/grpc/admin_api.h"
#include "rpc/grpc/inference_api.h"

enum { BACKEND_POLL_MS = 250, BACKEND_LOST_POLL_MS = 50, BACKEND_SILENT_MS = 900, BACKEND_METRICS_MS = 1000, MODEL_NAMES_MAX = 16, MODEL_NAME_BYTES = 128 };

struct model_card {
    uint32_t n_names;
    char names[MODEL_NAMES_MAX][MODEL_NAME_BYTES]; /* the first is the default */
    char architecture[32];
    uint32_t context;
    int64_t created_s;
};

struct backend;
struct pieces;

/* tls: how to reach the coordinator (rpc.h). */
enum status backend_create(struct rpc_loop *loop, const struct config *c, struct rpc_tls *tls, struct backend **out, struct error *err);
/* Waits for calls that are under way. Not on the loop's thread. */
void backend_destroy(struct backend *b);
struct rpc_channel *backend_channel(struct backend *b);
void backend_tick(struct backend *b, int64_t now_ns);

int backend_ready(struct backend *b);
/* How long a request that no coordinator has accepted waits for one. */
enum { BACKEND_NEW_WAIT_MS = 10000 };           /* that was there */
int64_t backend_new_wait_ms(struct backend *b); /* the same, or less while this process has never seen one */
/* Requests that run or wait at the coordinator at most; UINT64_MAX while it has not told. */
uint64_t backend_capacity(struct backend *b);
int backend_answers(struct backend *b); /* the coordinator does, whether it is ready or not */
/* The last status, with its age, ready as backend_ready has it and this gateway in the list. */
void backend_status(struct backend *b, struct service_status *out);
/* Puts this gateway into a status that came fresh. */
void backend_add_self(const struct backend *b, struct service_status *s);
/* Appends the last metrics page; nothing while the coordinator is silent: stale numbers would look like live ones. 1: there
 * was one. */
int backend_metrics(struct backend *b, struct buf *out);
/* A page that came to somebody else: a later one is never older than one that was shown. */
void backend_keep_metrics(struct backend *b, const char *text, size_t len);
/* The names that --metrics-aliases asks for. */
enum metric_aliases backend_aliases(const struct config *c);
/* Returns 0 while the model is not known yet. */
int backend_model(struct backend *b, struct model_card *out);
/* The vocabulary's texts, acquired for the caller; NULL while they are not known: then they are asked for. Not on the loop's thread. */
struct pieces *backend_pieces(struct backend *b);
/* Index of a name of the card, 0 for "", or -1. */
int model_card_find(const struct model_card *card, const char *name, size_t len);

#endif
