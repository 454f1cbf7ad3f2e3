/* rpc/grpc/call.h - one gRPC call, client's or server's, as a counted object. Inside rpc/grpc only.
 *
 * Purpose    Keeps the C core's rules: one SEND and one RECV in flight, headers first, status last, every batch's memory
 *            alive until its tag came. What a call sends is pulled from the layer above, which keeps its own queue.
 * Ownership  Counted. The core holds one reference from start to on_closed; handles hold theirs. grpc_call itself goes
 *            with on_closed, so handles may outlive server, channel and loop.
 * Threading  Functions from any thread. on_* on the loop's thread, never with the lock held; pull with the lock held, on
 *            any thread. c->lock also guards the queue of the layer above.
 * Invariants 1. on_closed comes exactly once, last, when no batch is out. 2. After `closed` no batch starts.
 *
 *   START --open/accept--> OPEN --finish--> FINISHING --queue empty--> STATUS_SENT --close tag--> CLOSED --n_ops 0--> ENDED
 *                           \----- peer's status, cancel, broken connection ------------------------^
 */
#ifndef SLUICE_RPC_GRPC_CALL_H
#define SLUICE_RPC_GRPC_CALL_H

#include <stdatomic.h>

#include "rpc/grpc/error_wire.h"
#include "rpc/grpc/loop.h"
#include "rpc/grpc/rpc.h"

struct rpc_call;
struct channel_core;

struct rpc_call_ops {
    /* The next message to send, or NULL: none now. Called when nothing is being sent. */
    grpc_byte_buffer *(*pull)(struct rpc_call *c);
    void (*on_open)(struct rpc_call *c);                          /* server: the call is here; client: headers came */
    void (*on_message)(struct rpc_call *c, grpc_byte_buffer *b);  /* b is borrowed; NULL: the peer sends no more */
    void (*on_closed)(struct rpc_call *c, const struct error *e); /* client: how it ended; server: CANCELLED or OK */
    void (*destroy)(struct rpc_call *c);                          /* frees it, after the last reference */
};

struct rpc_call {
    const struct rpc_call_ops *ops;
    struct rpc_loop *loop;
    struct rpc_server *server;   /* of a server's call, until on_closed */
    struct rpc_method *method;   /* the same */
    void *service;               /* the same: method->service */
    struct rpc_channel *channel; /* of a client's call, until on_closed */
    struct list in_channel;
    struct channel_core *core;   /* the channel's connection that it uses */
    atomic_int refs;
    struct rpc_tag tag_close, tag_send, tag_status, tag_read, tag_headers;
    /* Of the peer, set before on_open. */
    int trusted;
    int64_t deadline_ns;   /* clock_now_ns scale; 0: none */
    char peer[64], identity[40], gateway[80];

    pthread_mutex_t lock; /* guards what follows */
    grpc_call *call;
    int n_ops;            /* batches out */
    int closed, ended, headers_sent, status_sent, sending, reading, finishing;
    int cancelled_by_peer;
    int64_t send_started_ns;
    grpc_byte_buffer *out, *in;
    struct error final;
    struct rpc_timer linger;
    int linger_ms;        /* after finish, what the peer does not read is dropped after this; 0: never */
    /* client */
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
};

void rpc_call_init(struct rpc_call *c, const struct rpc_call_ops *ops, struct rpc_loop *l);
void rpc_call_retain(struct rpc_call *c);
void rpc_call_release(struct rpc_call *c);
/* For ops->destroy: what rpc_call_init made. */
void rpc_call_fini(struct rpc_call *c);

/* Server: takes over the core's call; early_headers: the client learns at once that the call stands. */
void rpc_call_accept(struct rpc_call *c, grpc_call *core, int early_headers);
/* Client: starts it. first: the only message of a call that sends one (the stream is then half-closed), or NULL. */
void rpc_call_open(struct rpc_call *c, grpc_call *core, const grpc_metadata *md, size_t n_md, int wait_for_ready,
                   grpc_byte_buffer *first);

void rpc_call_read(struct rpc_call *c);  /* asks for one message; nothing if one is asked for or the call has closed */
void rpc_call_kick(struct rpc_call *c);  /* something may be there to pull */
/* Server: status after what pull gives. Once; later ones are ignored. err NULL: OK. */
void rpc_call_finish(struct rpc_call *c, const struct error *err);
void rpc_call_cancel(struct rpc_call *c, const struct error *why); /* why may be NULL */
int rpc_call_stands(const struct rpc_call *c); /* client, in on_open: the server sent early headers, not a refusal */
int rpc_call_closed(struct rpc_call *c);

#endif
