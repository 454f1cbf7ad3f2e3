#define LOG_MODULE "rpc"
#include "rpc/grpc/stage_api.h"

#include <stdlib.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/log.h"
#include "rpc/grpc/server.h"
#include "rpc/grpc/stage_stream.h"

enum { MAX_OPEN_STAGES = 256, STAGE_LINGER_MS = 1000 };

struct stage_conn {
    struct stage_stream stream;
    void *data;
};

/* The service's copy, with where results come from; the loop's thread only. */
struct stages {
    struct stages_service svc;
    struct stage_source source;
};

#define CONN_OF(c) ((struct stage_conn *)(void *)(c))

static void on_open(struct rpc_call *c)
{
    struct stages *s = c->service;
    s->svc.on_attach(s->svc.ctx, CONN_OF(c));
    rpc_call_read(c);
}

static enum status unpack(struct rpc_call *c, grpc_byte_buffer *b, struct from_stage *m, struct error *err)
{
    struct stages *s = c->service;
    grpc_byte_buffer_reader r;
    if (!grpc_byte_buffer_reader_init(&r, b))
        return error_set(err, STATUS_PROTOCOL, "a message that cannot be read");
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&r);
    grpc_byte_buffer_reader_destroy(&r);
    enum status st = stage_wire__unpack_from(GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes),
                                             rpc_loop__scratch(c->loop), &s->source, m, err);
    grpc_slice_unref(bytes);
    return st;
}

static int is_finishing(struct rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    int finishing = c->finishing;
    pthread_mutex_unlock(&c->lock);
    return finishing;
}

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct stages *s = c->service;
    struct from_stage m;
    struct error err;
    if (is_finishing(c))
        return;
    if (!b) {
        rpc_call_finish(c, NULL);
    } else if (unpack(c, b, &m, &err) != STATUS_OK) {
        LOG_WARN("stage at %s: %s", c->peer, err.message);
        rpc_call_finish(c, &err);
    } else {
        s->svc.on_message(s->svc.ctx, CONN_OF(c), &m);
        rpc_call_read(c);
    }
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct stages *s = c->service;
    (void)e;
    stage_stream__drop(&CONN_OF(c)->stream);
    s->svc.on_closed(s->svc.ctx, CONN_OF(c));
}

static void destroy(struct rpc_call *c)
{
    stage_stream__fini(&CONN_OF(c)->stream);
    free(c);
}

static const struct rpc_call_ops conn_ops = {
    .pull = stage_stream__pull, .on_open = on_open, .on_message = on_message, .on_closed = on_closed, .destroy = destroy};

enum status stages_service_add(struct rpc_server *server, const struct stages_service *svc)
{
    struct stages *s = calloc(1, sizeof *s);
    if (!s)
        return STATUS_OUT_OF_MEMORY;
    s->svc = *svc;
    s->source = (struct stage_source){.ctx = svc->ctx, .result = svc->result_acquire};
    enum status st = rpc_server__add_service(server, "sluice.v1.Stages", s, free);
    if (st != STATUS_OK) {
        free(s);
        return st;
    }
    struct rpc_method m = {.path = "/sluice.v1.Stages/Attach",
                           .call_bytes = sizeof(struct stage_conn),
                           .ops = &conn_ops,
                           .needs_secret = 1,
                           .early_headers = 1,
                           .max_open = MAX_OPEN_STAGES,
                           .linger_ms = STAGE_LINGER_MS,
                           .service = s};
    return rpc_server__add_method(server, &m);
}

void stage_conn_retain(struct stage_conn *c)
{
    rpc_call_retain(&c->stream.base);
}

void stage_conn_release(struct stage_conn *c)
{
    rpc_call_release(&c->stream.base);
}

void stage_conn_set_data(struct stage_conn *c, void *data)
{
    c->data = data;
}

void *stage_conn_data(const struct stage_conn *c)
{
    return c->data;
}

const char *stage_conn_peer(const struct stage_conn *c)
{
    return c->stream.base.peer;
}

enum status stage_conn_send(struct stage_conn *c, const struct to_stage *m)
{
    return stage_stream__send_to(&c->stream, m);
}

void stage_conn_close(struct stage_conn *c, const struct error *why)
{
    rpc_call_finish(&c->stream.base, why);
}
