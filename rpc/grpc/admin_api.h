/* rpc/grpc/admin_api.h - service sluice.v1.Admin as plain structs.
 *
 * Purpose    GetStatus (the facts of `GET /v1/status`), WatchStatus, GetMetrics (Prometheus text), Drain, Undrain.
 * Ownership  The status struct is filled by the service into memory that lives for the callback; the client's callback
 *            borrows it.
 * Threading  Callbacks on the loop's thread: the service answers from a published snapshot and never waits for the engine.
 * Errors     As inference_api.h. Callers without the secret may read (GetStatus, GetMetrics, WatchStatus), not Drain.
 */
#ifndef SLUICE_RPC_GRPC_ADMIN_API_H
#define SLUICE_RPC_GRPC_ADMIN_API_H

#include <stdint.h>

#include "common/base/buf.h"
#include "rpc/grpc/rpc.h"

enum { STATUS_MAX_SLOTS = 1024, STATUS_MAX_STAGES = 64, STATUS_MAX_GATEWAYS = 16 };

struct slot_status {
    uint32_t slot;
    char state[12];   /* free, reading, decoding */
    char request[64]; /* "" when free */
    uint32_t prompt_tokens, cached_tokens, read_tokens, generated_tokens;
    uint64_t age_ms;
};

struct stage_status {
    uint32_t stage, pid, first_layer, end_layer, restarts;
    char host[64], state[12], backend[32]; /* attaching, loading, linking, ready, lost */
    uint64_t weight_bytes, kv_bytes, tick_age_ms;
    double busy_ratio;
};

struct process_status {
    char host[64];
    uint32_t pid;
};

struct service_status {
    char version[48];
    int live, ready, draining;
    uint64_t epoch;
    double uptime_s;
    char model_id[128], architecture[32], profile[64];
    uint32_t model_layers, model_context, model_vocabulary;
    uint32_t concurrency_requested, concurrency_serving;
    uint64_t queued, reading, decoding, parked;            /* now */
    uint64_t accepted, done, failed, cancelled;            /* since start */
    uint64_t queue_requests, queue_tokens, queue_oldest_ms, queue_limit_requests, queue_limit_tokens;
    uint32_t block_size, blocks_total, blocks_free, blocks_cached, blocks_live, blocks_draining;
    struct process_status coordinator;
    uint32_t n_gateways;
    struct process_status gateways[STATUS_MAX_GATEWAYS];
    uint32_t n_slots;
    struct slot_status slots[STATUS_MAX_SLOTS];
    uint32_t n_stages;
    struct stage_status stages[STATUS_MAX_STAGES];
    uint64_t ticks_sent;
    uint32_t ticks_in_flight;
};

struct admin_service {
    void *ctx;
    void (*get_status)(void *ctx, struct service_status *out);
    void (*get_metrics)(void *ctx, struct buf *out);
    void (*drain)(void *ctx, int on);
    /* A gateway tells where it runs with every status call (metadata sluice-gateway: HOST PID). */
    void (*seen_gateway)(void *ctx, const char *host, uint32_t pid);
};

enum status admin_service_add(struct rpc_server *s, const struct admin_service *svc);

typedef void status_done(void *ctx, const struct error *err, const struct service_status *s);
typedef void metrics_done(void *ctx, const struct error *err, const char *text, size_t len);
enum status admin_get_status(struct rpc_channel *c, int timeout_ms, status_done *done, void *ctx);
enum status admin_get_metrics(struct rpc_channel *c, int timeout_ms, metrics_done *done, void *ctx);
/* Names this process in the calls of this channel as a gateway. */
void admin_set_gateway(struct rpc_channel *c, const char *host, uint32_t pid);

#endif
