/* rpc/grpc/generate_call.h - the server's side of one Generate. Inside rpc/grpc only; see inference_api.h.
 *
 * Purpose    Turns the service's events into messages with a bounded queue in front of the one send the core allows.
 * Ownership  As struct rpc_call; the queue is emptied when the call closes.
 * Threading  base.lock guards the queue.
 * Invariants unsent_bytes (of text and logprobs) and unsent_ids are the sums over TEXT events that are open, queued or being sent; of other
 *            events at most MAX_QUEUED wait.
 */
#ifndef SLUICE_RPC_GRPC_GENERATE_CALL_H
#define SLUICE_RPC_GRPC_GENERATE_CALL_H

#include "common/base/buf.h"
#include "rpc/grpc/call.h"
#include "rpc/grpc/inference_api.h"

enum { MAX_QUEUED = 16, MAX_UNSENT_BYTES = 256 << 10, MAX_UNSENT_IDS = 4096 };

struct queued_event {
    grpc_byte_buffer *message;
    enum generate_event_kind kind;
    size_t bytes, n_ids; /* of unsent_bytes and unsent_ids */
};

struct generate_call {
    struct rpc_call base;
    void *data;
    int started; /* the service knows it; the loop's thread only */
    /* Guarded by base.lock. */
    struct queued_event queue[MAX_QUEUED];
    size_t head, n_queued;
    size_t out_bytes, out_ids; /* of the message being sent */
    struct buf text;           /* the open TEXT event */
    uint32_t *ids;
    struct token_logprobs *logprobs; /* [n_ids] where they were asked for */
    size_t n_ids, max_ids, n_logprobs, max_logprobs;
    int has_usage;             /* of the open TEXT event */
    struct usage usage;
    size_t unsent_bytes, unsent_ids;
};

extern const struct rpc_call_ops generate_call__ops;

#endif
