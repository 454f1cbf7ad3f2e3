/* rpc/grpc/admin_api.h - service sluice.v1.Admin as plain structs.
 *
 * Purpose    GetStatus (the facts of `GET /v1/status`), WatchStatus, GetMetrics (Prometheus text), Drain, Undrain.
 * Ownership  The status struct is filled by the service into memory that lives for the callback; the client's callback
 *            borrows it. It is large (STATUS_MAX_SLOTS rows): never on a stack, and copied with service_status_copy.
 * Threading  Callbacks on the loop's thread: the service answers from a published snapshot and never waits for the engine.
 * Errors     As inference_api.h. Callers without the secret may read (GetStatus, GetMetrics, WatchStatus), not Drain.
 */
#ifndef SLUICE_RPC_GRPC_ADMIN_API_H
#define SLUICE_RPC_GRPC_ADMIN_API_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/buf.h"
#include "rpc/grpc/rpc.h"

enum { STATUS_MAX_SLOTS = 4096, STATUS_MAX_STAGES = 64, STATUS_MAX_GATEWAYS = 16 };

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
    double busy_ratio, bubble_ratio; /* of its last second of work: computing; waiting for rows with a plan in hand */
    uint64_t hop_us;                 /* mean time of a send in it */
};

struct process_status {
    char host[64];
    uint32_t pid;
};

struct service_status {
    char version[48];
    int live, ready, draining;
    char not_ready[256];                                   /* why, in words; "" when it is ready */
    uint64_t lost_ms;                                      /* since the pipeline was lost, 0: it is not, or never was there */
    uint64_t epoch;
    double uptime_s;
    char model_id[128], architecture[32], profile[64];
    uint32_t model_layers, model_context, model_vocabulary;
    uint32_t concurrency_requested, concurrency_serving;
    uint64_t queued, reading, decoding, parked;            /* now */
    uint64_t accepted, done, failed, cancelled;            /* since start */
    uint64_t queue_requests, queue_tokens, queue_oldest_ms, queue_limit_requests, queue_limit_tokens;
    uint32_t block_size, blocks_total, blocks_free, blocks_cached, blocks_live, blocks_draining, blocks_promised;
    uint64_t blocks_evicted;                               /* since start */
    struct process_status coordinator;
    uint32_t n_gateways;
    struct process_status gateways[STATUS_MAX_GATEWAYS];
    uint32_t n_stages;
    struct stage_status stages[STATUS_MAX_STAGES];
    uint64_t ticks_sent;
    uint32_t ticks_in_flight;
    /* What the planner works with now: how many ticks may be in flight; sequences it plans, and those that stand still for
     * want of blocks; the period of the streams and the budget of a tick; what is saved up for a burst of prompt rows (below
     * zero: owed to the streams) and the most that may be; whether decoding alone breaks --max-stall-ms. */
    uint32_t tick_window, tick_streams, tick_readers, tick_starved, tick_period_us, tick_budget_us;
    int32_t bank_us;
    uint32_t bank_bound_us, stall_unmet;
    uint64_t age_ms;                                       /* of these figures, where they are not fresh; the gateway's word */
    uint32_t n_slots;
    struct slot_status slots[STATUS_MAX_SLOTS];            /* last: service_status_copy */
};

/* The first n_slots rows and all else. */
static inline void service_status_copy(struct service_status *out, const struct service_status *in)
{
    memcpy(out, in, offsetof(struct service_status, slots) + in->n_slots * sizeof in->slots[0]);
}

/* A second set of names in the metrics page. */
enum metric_aliases { METRIC_ALIASES_NONE, METRIC_ALIASES_VLLM };

struct admin_service {
    void *ctx;
    void (*get_status)(void *ctx, struct service_status *out); /* zero but for the rows of slots, which hold anything */
    void (*get_metrics)(void *ctx, enum metric_aliases aliases, struct buf *out);
    void (*drain)(void *ctx, int on);
    /* A gateway tells where it runs with every status call (metadata sluice-gateway: HOST PID). */
    void (*seen_gateway)(void *ctx, const char *host, uint32_t pid);
};

enum status admin_service_add(struct rpc_server *s, const struct admin_service *svc);

typedef void status_done(void *ctx, const struct error *err, const struct service_status *s);
typedef void metrics_done(void *ctx, const struct error *err, const char *text, size_t len);
enum status admin_get_status(struct rpc_channel *c, int timeout_ms, status_done *done, void *ctx);
enum status admin_get_metrics(struct rpc_channel *c, enum metric_aliases aliases, int timeout_ms, metrics_done *done, void *ctx);
/* Names this process in the calls of this channel as a gateway. */
void admin_set_gateway(struct rpc_channel *c, const char *host, uint32_t pid);

#endif
