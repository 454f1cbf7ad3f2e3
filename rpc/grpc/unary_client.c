#include "rpc/grpc/unary_client.h"

#include <stdlib.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "rpc/grpc/channel.h"
#include "rpc/grpc/message.h"

#define UNARY_OF(c) ((struct unary_client *)(void *)(c))

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct unary_client *u = UNARY_OF(c);
    if (b && !u->reply)
        u->reply = grpc_byte_buffer_copy(b);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct unary_client *u = UNARY_OF(c);
    struct error err = *e;
    grpc_slice s = grpc_empty_slice();
    grpc_byte_buffer_reader r;
    if (u->reply && grpc_byte_buffer_reader_init(&r, u->reply)) {
        s = grpc_byte_buffer_reader_readall(&r);
        grpc_byte_buffer_reader_destroy(&r);
    } else if (err.status == STATUS_OK) {
        error_set(&err, STATUS_PROTOCOL, "the call ended without an answer");
    }
    u->arrived(u, &err, GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s), rpc_loop__scratch(c->loop));
    grpc_slice_unref(s);
    if (u->reply)
        grpc_byte_buffer_destroy(u->reply);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static const struct rpc_call_ops ops = {.on_message = on_message, .on_closed = on_closed, .destroy = destroy};

enum status unary_client_start(struct rpc_channel *ch, const char *path, const ProtobufCMessage *m, int timeout_ms,
                               unary_arrived *arrived, unary_done *done, void *ctx)
{
    struct unary_client *u = calloc(1, sizeof *u);
    if (!u)
        return STATUS_OUT_OF_MEMORY;
    u->arrived = arrived;
    u->done = done;
    u->ctx = ctx;
    rpc_call_init(&u->base, &ops, rpc_channel__loop(ch));
    enum status st = rpc_channel__open(ch, &u->base, path, timeout_ms, 0, message_pack(m), NULL);
    if (st == STATUS_OK)
        rpc_call_read(&u->base);
    rpc_call_release(&u->base);
    return st;
}
