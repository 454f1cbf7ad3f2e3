/* rpc/grpc/rpc.h - gRPC's C core behind a small, thread-safe face.
 *
 * Purpose    One completion-queue loop with its own thread (which does nothing but cq_next and short callbacks), servers
 *            with a method table, channels, and calls that queue writes. The *_api modules put plain structs on top; only
 *            rpc/grpc sees gRPC or *.pb-c.h.
 * Ownership  rpc_loop, rpc_server and rpc_channel are created and destroyed by the program. Calls are reference-counted by
 *            the *_api modules.
 * Threading  Every callback runs on the loop's thread and must not block. Everything else may be called from any thread
 *            unless said otherwise.
 * Errors     STATUS_ADDRESS_IN_USE (rpc_server_listen), STATUS_CONFIG, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_RPC_GRPC_RPC_H
#define SLUICE_RPC_GRPC_RPC_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

struct rpc_loop;
struct rpc_server;
struct rpc_channel;
struct rpc_tls;

/* Calls grpc_init, starts the thread. */
enum status rpc_loop_create(struct rpc_loop **out, struct error *err);
/* After servers and channels are destroyed. Joins the thread, grpc_shutdown. */
void rpc_loop_destroy(struct rpc_loop *l);
/* fn(arg) on the loop's thread at about time_ns (clock_now_ns scale); for reconnects and periodic work. */
enum status rpc_loop_at(struct rpc_loop *l, int64_t time_ns, void (*fn)(void *arg), void *arg);
/* From now on until the loop ends its thread tells the launcher every so often that it lives (common/base/beat.h). */
enum status rpc_loop_beat(struct rpc_loop *l, int every_ms);

struct rpc_options {
    const char *secret;        /* bearer between processes; NULL or "": none asked for, none sent */
    int64_t max_message_bytes; /* both directions */
    int heartbeat_ms;          /* keepalive interval; a dead peer is noticed after about four */
    struct rpc_tls *tls;       /* tls.h; NULL or without a CA: plaintext. Outlives server and channel */
};

/* host_port: "127.0.0.1:7411" (port 0: any, see rpc_server_port). SO_REUSEPORT is off, so a taken port is an error.
 * Services are added by inference_api, stage_api, admin_api and health before rpc_server_start. */
enum status rpc_server_create(struct rpc_loop *l, const struct rpc_options *o, struct rpc_server **out, struct error *err);
enum status rpc_server_listen(struct rpc_server *s, const char *host_port, struct error *err);
int rpc_server_port(const struct rpc_server *s);
enum status rpc_server_start(struct rpc_server *s, struct error *err);
/* Refuses new calls, cancels open ones after grace_ms, waits for the end. Not on the loop's thread. */
void rpc_server_destroy(struct rpc_server *s, int grace_ms);

/* grpc.health.v1.Health: one status for "" and every service of ours. Also serves Watch. */
void rpc_server_set_health(struct rpc_server *s, int serving);

/* Reconnects by itself (50-100 ms back-off). With TLS the server's certificate must name the host of host_port (for unix: paths
 * "localhost"). After rpc_tls_reload new calls go over a new connection; open ones stay on theirs. */
enum status rpc_channel_create(struct rpc_loop *l, const char *host_port, const struct rpc_options *o,
                               struct rpc_channel **out, struct error *err);
void rpc_channel_destroy(struct rpc_channel *c);

#endif
