#define LOG_MODULE "rpc"
#include "rpc/grpc/call.h"

#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "rpc/grpc/channel.h"
#include "rpc/grpc/server.h"

#define CALL_OF(t, member) LIST_ENTRY(t, struct rpc_call, member)

void rpc_call_retain(struct rpc_call *c)
{
    atomic_fetch_add(&c->refs, 1);
}

void rpc_call_release(struct rpc_call *c)
{
    int before = atomic_fetch_sub(&c->refs, 1);
    ASSERT(before > 0);
    if (before == 1)
        c->ops->destroy(c);
}

int rpc_call_closed(struct rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    int closed = c->closed;
    pthread_mutex_unlock(&c->lock);
    return closed;
}

/* With well-formed batches only misuse of the API fails; a call that has ended takes the batch and fails its tag. */
static void start(struct rpc_call *c, const grpc_op *ops, size_t n, struct rpc_tag *t)
{
    RPC_TAG_STARTS(t);
    grpc_call_error e = grpc_call_start_batch(c->call, ops, n, t, NULL);
    if (e != GRPC_CALL_OK)
        LOG_ERROR("core: start_batch: %s", grpc_call_error_to_string(e));
    CHECK(e == GRPC_CALL_OK);
}

/* No batch is out and none will be: the core's part of the call is over. */
static void end(struct rpc_call *c)
{
    struct error err = {0};
    if (c->channel)
        error_from_trailers(c->code, c->details, &c->trailers, &err);
    else if (c->cancelled_by_peer)
        error_set(&err, STATUS_CANCELLED, "%s", status_text(STATUS_CANCELLED));
    c->ops->on_closed(c, &err);
    rpc_timer_cancel(c->loop, &c->linger);
    /* Handles may outlive the core (grpc_shutdown): what is the core's goes now. */
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailers);
    grpc_slice_unref(c->details);
    grpc_call_unref(c->call);
    if (c->channel)
        rpc_channel__remove(c->channel, c);
    else
        rpc_server__remove(c->server, c);
    rpc_call_release(c);
}

static void op_done(struct rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    int last = --c->n_ops == 0 && c->closed && !c->ended;
    if (last)
        c->ended = 1;
    pthread_mutex_unlock(&c->lock);
    if (last)
        end(c);
}

/* RECV_CLOSE_ON_SERVER, RECV_STATUS_ON_CLIENT. */
static void on_close(struct rpc_tag *t, int ok)
{
    struct rpc_call *c = CALL_OF(t, tag_close);
    (void)ok;
    pthread_mutex_lock(&c->lock);
    c->closed = 1;
    pthread_mutex_unlock(&c->lock);
    op_done(c);
}

static void on_headers(struct rpc_tag *t, int ok)
{
    struct rpc_call *c = CALL_OF(t, tag_headers);
    /* A call that fails before any header gets an empty set of them and then its status. */
    if (c->channel && ok && c->ops->on_open && !rpc_call_closed(c))
        c->ops->on_open(c);
    op_done(c);
}

static void on_sent(struct rpc_tag *t, int ok)
{
    struct rpc_call *c = CALL_OF(t, tag_send);
    pthread_mutex_lock(&c->lock);
    c->sending = 0;
    grpc_byte_buffer *out = c->out;
    c->out = NULL;
    pthread_mutex_unlock(&c->lock);
    grpc_byte_buffer_destroy(out);
    if (ok)
        rpc_call_kick(c);
    op_done(c);
}

static void on_status_sent(struct rpc_tag *t, int ok)
{
    (void)ok;
    op_done(CALL_OF(t, tag_status));
}

static void on_read(struct rpc_tag *t, int ok)
{
    struct rpc_call *c = CALL_OF(t, tag_read);
    pthread_mutex_lock(&c->lock);
    c->reading = 0;
    grpc_byte_buffer *in = c->in;
    c->in = NULL;
    pthread_mutex_unlock(&c->lock);
    if (ok && c->ops->on_message)
        c->ops->on_message(c, in);
    if (in)
        grpc_byte_buffer_destroy(in);
    op_done(c);
}

static void on_linger(struct rpc_timer *t, int fired)
{
    struct rpc_call *c = CALL_OF(t, linger);
    struct error err;
    if (fired) {
        error_set(&err, STATUS_WRITE_STALLED, "%s", status_text(STATUS_WRITE_STALLED));
        rpc_call_cancel(c, &err);
    }
    rpc_call_release(c);
}

void rpc_call_init(struct rpc_call *c, const struct rpc_call_ops *ops, struct rpc_loop *l)
{
    c->ops = ops;
    c->loop = l;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    c->tag_close.fn = on_close;
    c->tag_send.fn = on_sent;
    c->tag_status.fn = on_status_sent;
    c->tag_read.fn = on_read;
    c->tag_headers.fn = on_headers;
    c->linger.fn = on_linger;
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailers);
    c->details = grpc_empty_slice();
}

void rpc_call_fini(struct rpc_call *c)
{
    pthread_mutex_destroy(&c->lock);
}

/* Locked: a cancel may come from another thread before the first batch. */
static void set_core(struct rpc_call *c, grpc_call *core)
{
    pthread_mutex_lock(&c->lock);
    c->call = core;
    pthread_mutex_unlock(&c->lock);
}

/* A refusal without headers looks to a client's core like empty headers followed by a status; this one tells them apart. */
#define STREAM_HEADER "sluice-stream"

int rpc_call_stands(const struct rpc_call *c)
{
    for (size_t i = 0; i < c->headers.count; i++)
        if (grpc_slice_str_cmp(c->headers.metadata[i].key, STREAM_HEADER) == 0)
            return 1;
    return 0;
}

void rpc_call_accept(struct rpc_call *c, grpc_call *core, int early_headers)
{
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    grpc_op headers = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_metadata open = {.key = grpc_slice_from_static_string(STREAM_HEADER), .value = grpc_slice_from_static_string("open")};
    headers.data.send_initial_metadata.metadata = &open;
    headers.data.send_initial_metadata.count = 1;
    set_core(c, core);
    close.data.recv_close_on_server.cancelled = &c->cancelled_by_peer;
    c->n_ops = early_headers ? 2 : 1;
    c->headers_sent = early_headers;
    rpc_call_retain(c);
    start(c, &close, 1, &c->tag_close);
    if (early_headers)
        start(c, &headers, 1, &c->tag_headers);
    c->ops->on_open(c);
    rpc_call_release(c);
}

static void send_first(struct rpc_call *c, const grpc_metadata *md, size_t n_md, int wait_for_ready,
                       grpc_byte_buffer *first)
{
    grpc_op op[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}};
    op[0].flags = wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET : 0;
    op[0].data.send_initial_metadata.metadata = (grpc_metadata *)(uintptr_t)md;
    op[0].data.send_initial_metadata.count = n_md;
    op[1].data.send_message.send_message = first;
    c->headers_sent = 1;
    c->out = first;
    c->sending = 1;
    c->send_started_ns = clock_now_ns();
    start(c, op, first ? 3 : 1, &c->tag_send);
}

void rpc_call_open(struct rpc_call *c, grpc_call *core, const grpc_metadata *md, size_t n_md, int wait_for_ready,
                   grpc_byte_buffer *first)
{
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}, headers = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    set_core(c, core);
    c->n_ops = 3;
    status.data.recv_status_on_client.trailing_metadata = &c->trailers;
    status.data.recv_status_on_client.status = &c->code;
    status.data.recv_status_on_client.status_details = &c->details;
    headers.data.recv_initial_metadata.recv_initial_metadata = &c->headers;
    /* n_ops keeps the call from ending before the third batch; the reference keeps its memory after that. */
    rpc_call_retain(c);
    start(c, &status, 1, &c->tag_close);
    send_first(c, md, n_md, wait_for_ready, first);
    start(c, &headers, 1, &c->tag_headers);
    rpc_call_release(c);
}

void rpc_call_read(struct rpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    pthread_mutex_lock(&c->lock);
    int skip = c->closed || c->reading;
    if (!skip) {
        c->reading = 1;
        c->n_ops++;
    }
    pthread_mutex_unlock(&c->lock);
    if (skip)
        return;
    op.data.recv_message.recv_message = &c->in;
    start(c, &op, 1, &c->tag_read);
}

static void send_message(struct rpc_call *c, int with_headers)
{
    grpc_op op[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    op[1].data.send_message.send_message = c->out;
    start(c, with_headers ? op : op + 1, with_headers ? 2 : 1, &c->tag_send);
}

static void send_status(struct rpc_call *c, int with_headers)
{
    grpc_op op[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
    struct error_trailers t;
    error_trailers_init(&t, &c->final);
    op[1].data.send_status_from_server.status = t.code;
    op[1].data.send_status_from_server.status_details = &t.message;
    op[1].data.send_status_from_server.trailing_metadata = t.md;
    op[1].data.send_status_from_server.trailing_metadata_count = t.n_md;
    start(c, with_headers ? op : op + 1, with_headers ? 2 : 1, &c->tag_status);
    error_trailers_fini(&t);
}

void rpc_call_kick(struct rpc_call *c)
{
    int message = 0, status = 0, with_headers;
    pthread_mutex_lock(&c->lock);
    if (!c->closed && !c->sending && !c->status_sent && c->call) {
        c->out = c->ops->pull ? c->ops->pull(c) : NULL;
        message = c->out != NULL;
        status = !message && c->finishing;
    }
    if (message) {
        c->sending = 1;
        c->send_started_ns = clock_now_ns();
    }
    c->status_sent |= status;
    with_headers = !c->headers_sent;
    if (message || status) {
        c->n_ops++;
        c->headers_sent = 1;
    }
    pthread_mutex_unlock(&c->lock);
    if (message)
        send_message(c, with_headers);
    else if (status)
        send_status(c, with_headers);
}

void rpc_call_finish(struct rpc_call *c, const struct error *err)
{
    int lingers = 0;
    pthread_mutex_lock(&c->lock);
    if (!c->finishing && !c->closed) {
        c->finishing = 1;
        if (err)
            c->final = *err;
        lingers = c->sending && c->linger_ms > 0;
    }
    if (lingers) {
        rpc_call_retain(c);
        rpc_timer_start(c->loop, &c->linger, clock_now_ns() + c->linger_ms * NS_PER_MS);
    }
    pthread_mutex_unlock(&c->lock);
    rpc_call_kick(c);
}

void rpc_call_cancel(struct rpc_call *c, const struct error *why)
{
    pthread_mutex_lock(&c->lock);
    if (!c->ended && c->call) {
        if (why)
            grpc_call_cancel_with_status(c->call, (grpc_status_code)status_grpc(why->status), why->message, NULL);
        else
            grpc_call_cancel(c->call, NULL);
    }
    pthread_mutex_unlock(&c->lock);
}
