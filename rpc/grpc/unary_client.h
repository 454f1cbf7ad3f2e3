/* rpc/grpc/unary_client.h - one request, one answer. Inside rpc/grpc only.
 *
 * Purpose    Sends a message, waits for the reply and the status, then calls `arrived` once, which unpacks and calls the
 *            user's `done` (kept as a function of no type; each `arrived` knows its own).
 * Ownership  Frees itself. data lives during the callback.
 * Threading  arrived on the loop's thread.
 * Errors     A status other than OK from unary_client_start: arrived is never called.
 */
#ifndef SLUICE_RPC_GRPC_UNARY_CLIENT_H
#define SLUICE_RPC_GRPC_UNARY_CLIENT_H

#include <google/protobuf-c/protobuf-c.h>

#include "rpc/grpc/call.h"

struct unary_client;
typedef void unary_done(void);
typedef void unary_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a);

struct unary_client {
    struct rpc_call base;
    unary_arrived *arrived;
    unary_done *done;
    void *ctx;
    grpc_byte_buffer *reply;
};

enum status unary_client_start(struct rpc_channel *ch, const char *path, const ProtobufCMessage *m, int timeout_ms,
                               unary_arrived *arrived, unary_done *done, void *ctx);

#endif
