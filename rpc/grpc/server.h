/* rpc/grpc/server.h - a server's method table and its open calls. Inside rpc/grpc only.
 *
 * Purpose    The *_server modules add their methods before rpc_server_start; a call of an unknown method gets
 *            UNIMPLEMENTED, one without the secret where it is needed UNAUTHENTICATED, one over the bound
 *            RESOURCE_EXHAUSTED.
 * Ownership  Methods are copied. on_end frees a service's own memory with the server.
 * Threading  rpc_server__add_* before start; the rest on the loop's thread.
 */
#ifndef SLUICE_RPC_GRPC_SERVER_H
#define SLUICE_RPC_GRPC_SERVER_H

#include "rpc/grpc/call.h"

enum { RPC_MAX_METHODS = 24, RPC_MAX_SERVICES = 8 };

struct rpc_method {
    const char *path;       /* "/sluice.v1.Inference/Generate" */
    size_t call_bytes;      /* of the struct that begins with struct rpc_call */
    const struct rpc_call_ops *ops;
    int needs_secret;
    int early_headers;
    uint32_t max_open;
    int linger_ms;
    void *service;          /* becomes call->service */
    uint32_t n_open;        /* the server's */
};

enum status rpc_server__add_method(struct rpc_server *s, const struct rpc_method *m);
/* Name for health and reflection; on_end(service) when the server is destroyed. */
enum status rpc_server__add_service(struct rpc_server *s, const char *name, void *service, void (*on_end)(void *service));
size_t rpc_server__services(const struct rpc_server *s, const char *names[RPC_MAX_SERVICES]);
void rpc_server__remove(struct rpc_server *s, struct rpc_call *c);

/* health.c, reflection.c: part of every server. */
enum status health_service_add(struct rpc_server *s);
enum status reflection_service_add(struct rpc_server *s);
struct health;
void rpc_server__set_health(struct rpc_server *s, struct health *h);
void health_set(struct health *h, int serving);

/* Settings that both ends share (recipes: keepalive, sizes, no hidden behaviour). Returns how many. */
enum { RPC_MAX_ARGS = 24 };
size_t rpc__common_args(const struct rpc_options *o, grpc_arg a[RPC_MAX_ARGS]);
grpc_arg rpc__int_arg(const char *key, int value);
/* The bearer's text: printable ASCII of at most 1,024 bytes. */
enum status rpc__check_secret(const char *secret, struct error *err);

#endif
