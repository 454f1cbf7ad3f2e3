/* rpc/gateway/gateway.h - what the parts of the gateway share.
 *
 * Purpose    One struct with the process's configuration and its long-lived parts, made by main.c.
 * Ownership  main.c creates and destroys all of it; exchanges borrow it.
 * Threading  The pointers are set before threads start; the counters are atomic.
 * Invariants n_exchanges counts exchange objects alive; when it is 0 no callback of ours is under way.
 * Errors     None.
 */
#ifndef SLUICE_RPC_GATEWAY_GATEWAY_H
#define SLUICE_RPC_GATEWAY_GATEWAY_H

#include <stdatomic.h>

#include "common/base/config.h"
#include "rpc/gateway/auth.h"
#include "rpc/gateway/backend.h"

struct adopt;
struct held;
struct server;
struct rpc_tls;

struct gateway {
    const struct config *config;
    struct backend *backend;
    struct auth *auth;
    struct rpc_tls *tls; /* NULL: plain HTTP; without a CA for HTTPS only */
    struct server *server;
    struct held *held;   /* NULL: no holder, a connection ends with the process */
    struct adopt *adopt; /* NULL: nothing was taken over */
    atomic_int draining;
    atomic_uint_fast64_t write_stalled;
    atomic_uint_fast32_t n_exchanges;
    atomic_uint_fast64_t body_bytes; /* bodies held at the moment */
};

#endif
