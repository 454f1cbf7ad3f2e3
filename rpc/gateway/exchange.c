#include "rpc/gateway/exchange.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "rpc/gateway/adopt.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/held.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/openai.h"

enum { STREAM_BLOCK_BYTES = 16 << 10, STALL_CHECK_MS = 250 };

static atomic_uint_fast64_t next_serial = 1;

static struct exchange *create(struct gateway *gw, int fd)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->gw = gw;
    atomic_fetch_add(&gw->n_exchanges, 1);
    x->serial = atomic_fetch_add(&next_serial, 1);
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    x->fd = fd;
    x->started_ns = clock_now_ns();
    buf_init(&x->out, EXCHANGE_OUT_MAX);
    return x;
}

struct exchange *exchange_create(struct gateway *gw, struct MHD_Connection *conn)
{
    struct exchange *x = create(gw, MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    if (x)
        x->conn = conn;
    return x;
}

struct exchange *exchange_create_adopted(struct gateway *gw, int fd)
{
    return create(gw, fd);
}

void exchange_retain(struct exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void exchange_release(struct exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->ops && x->ops->fini)
        x->ops->fini(x);
    exchange_unhold(x);
    buf_fini(&x->body);
    buf_fini(&x->out);
    pthread_mutex_destroy(&x->lock);
    atomic_fetch_sub(&x->gw->n_exchanges, 1);
    free(x);
}

/* Lets libmicrohttpd, or the thread of what was adopted, ask again: for the reply, or for more of the stream. */
static void wake(struct exchange *x)
{
    if (!x->suspended || (!x->conn && !x->adopted))
        return;
    x->suspended = 0;
    if (x->conn)
        MHD_resume_connection(x->conn);
    else
        adopt_wake(x->gw->adopt, x->adopted);
}

/* --- what outlives the process -------------------------------------------------------------------------------------- */

struct keeper *exchange_hold(struct exchange *x)
{
    enum { UNREAD_MAX = 16 << 10 }; /* with more of an older answer on its way, a head might not be sent in one piece */
    uint64_t position;
    int unread = 0;
    if (!x->gw->held || !x->can_hold || !x->conn || x->have_reply || x->gone || x->keeper)
        return NULL;
    if (ioctl(x->fd, SIOCOUTQ, &unread) != 0 || unread > UNREAD_MAX || keeper_position(x->fd, &position) != STATUS_OK ||
        keeper_create(position, &x->keeper) != STATUS_OK)
        x->keeper = NULL;
    return x->keeper;
}

void exchange_unhold(struct exchange *x)
{
    if (!x->keeper)
        return;
    held_drop(x->gw->held, x->held_id);
    keeper_close(x->keeper);
    x->keeper = NULL;
    x->held_id = 0;
}

void exchange_publish(struct exchange *x)
{
    if (!x->keeper)
        return;
    keeper_publish(x->keeper);
    if (!keeper_failed(x->keeper) && !x->held_id)
        x->held_id = held_keep(x->gw->held, x->fd, keeper_fd(x->keeper));
    if (keeper_failed(x->keeper) || !x->held_id)
        exchange_unhold(x);
}

static void keep_reply(struct exchange *x)
{
    if (!x->keeper)
        return;
    struct keeper_state *s = keeper_state(x->keeper);
    const struct keeper_reply head = {(uint32_t)x->http, (uint32_t)x->retry_after_s};
    const struct keeper_part parts[] = {{&head, sizeof head}, {x->out.data, x->out.len}};
    keeper_record_parts(x->keeper, KEEPER_REPLY, parts, 2);
    s->framing = KEEPER_LENGTH;
    s->produced = x->out.len;
    s->ended = 1;
    exchange_publish(x);
}

/* What was appended to the output since the last time, and whether it is the end. */
static void keep_output(struct exchange *x)
{
    if (!x->keeper)
        return;
    keeper_content(x->keeper, x->out.data + x->out_kept, x->out.len - x->out_kept);
    x->out_kept = x->out.len;
    keeper_state(x->keeper)->framing = KEEPER_CHUNKED;
    keeper_state(x->keeper)->ended = (uint32_t)x->ended;
    exchange_publish(x);
}

/* --- answering ------------------------------------------------------------------------------------------------------ */

void exchange_reply(struct exchange *x, int http, const char *content_type, struct buf *body)
{
    if (x->have_reply || x->gone) {
        buf_fini(body);
        return;
    }
    int failed = body->failed;
    buf_fini(&x->out);
    x->out = *body;
    *body = (struct buf){0};
    x->http = http;
    x->content_type = content_type;
    x->have_reply = x->ended = 1;
    if (failed)
        exchange_leave(x);
    else
        keep_reply(x);
    wake(x);
}

void exchange_reply_error(struct exchange *x, const struct error *err)
{
    struct buf b;
    buf_init(&b, 64 << 10);
    openai_error(&b, err);
    x->retry_after_s = openai_retry_after(err);
    exchange_reply(x, openai_http_status(err), "application/json", &b);
}

void exchange_stream_begin(struct exchange *x)
{
    int sndbuf = EXCHANGE_SNDBUF;
    if (x->have_reply || x->gone)
        return;
    if (x->conn || x->adopted)
        setsockopt(x->fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
    x->http = 200;
    x->content_type = "text/event-stream";
    x->have_reply = x->streaming = 1;
    keep_output(x);
    wake(x);
}

struct buf *exchange_stream_out(struct exchange *x)
{
    return &x->out;
}

void exchange_stream_written(struct exchange *x)
{
    if (x->out.failed)
        exchange_leave(x);
    else
        keep_output(x);
    wake(x);
}

void exchange_stream_end(struct exchange *x)
{
    x->ended = 1;
    exchange_stream_written(x);
}

void exchange_leave(struct exchange *x)
{
    if (x->gone)
        return;
    x->gone = 1;
    exchange_unhold(x);
    buf_clear(&x->out);
    if (x->ops && x->ops->gone)
        x->ops->gone(x);
    /* A connection that waits to write is woken by its socket, a suspended one by us. */
    if ((x->conn && x->have_reply) || x->adopted)
        shutdown(x->fd, SHUT_RDWR);
    if (x->adopted)
        adopt_wake(x->gw->adopt, x->adopted);
    wake(x);
}

int exchange_stalled(struct exchange *x, int64_t now_ns, int64_t stall_ms)
{
    if ((!x->conn && !x->adopted) || !x->have_reply || now_ns - x->stall_check_ns < STALL_CHECK_MS * NS_PER_MS)
        return 0;
    x->stall_check_ns = now_ns;
    struct tcp_info info;
    socklen_t len = sizeof info;
    int unsent = 0;
    if (ioctl(x->fd, SIOCOUTQ, &unsent) != 0 || getsockopt(x->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0;
    if (unsent == 0 || info.tcpi_bytes_acked != x->acked_bytes || x->acked_ns == 0) {
        x->acked_bytes = info.tcpi_bytes_acked;
        x->acked_ns = now_ns;
    }
    return now_ns - x->acked_ns > stall_ms * NS_PER_MS;
}

static long take_bytes(struct exchange *x, char *to, size_t max)
{
    size_t left = x->out.len - x->out_taken, n = left < max ? left : max;
    memcpy(to, x->out.data + x->out_taken, n);
    if (x->streaming) {
        buf_consume(&x->out, n);
        x->out_kept -= x->keeper ? n : 0;
    } else {
        x->out_taken += n;
    }
    if (x->keeper)
        keeper_frame(x->keeper, (long)n, x->fd);
    if (x->full && x->out.len < EXCHANGE_OUT_LOW) {
        x->full = 0;
        if (x->ops && x->ops->room)
            x->ops->room(x);
    }
    return (long)n;
}

long exchange_take(struct exchange *x, char *to, size_t max)
{
    long n = EXCHANGE_GONE;
    if (x->gone)
        return n;
    if (x->out.len > x->out_taken) {
        n = take_bytes(x, to, max < KEEPER_FRAME_MAX ? max : KEEPER_FRAME_MAX);
    } else {
        n = x->ended ? EXCHANGE_END : 0;
        if (x->keeper)
            keeper_frame(x->keeper, x->ended ? KEEPER_LAST : 0, x->fd);
        x->suspended = !x->ended;
    }
    if (x->keeper && keeper_failed(x->keeper))
        exchange_unhold(x);
    return n;
}

/* libmicrohttpd asks for the next bytes of a body. */
static ssize_t read_body(void *cls, uint64_t pos, char *to, size_t max)
{
    struct exchange *x = cls;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    ssize_t n = exchange_take(x, to, max);
    if (n == 0) /* returning 0 without this would spin */
        MHD_suspend_connection(x->conn);
    else if (n < 0)
        n = n == EXCHANGE_END ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    pthread_mutex_unlock(&x->lock);
    return n;
}

void exchange_headers(const struct exchange *x, void (*add)(void *ctx, const char *name, const char *value), void *ctx)
{
    char seconds[16];
    add(ctx, "x-request-id", x->request_id);
    add(ctx, "Access-Control-Allow-Origin", "*");
    add(ctx, "Access-Control-Expose-Headers", "x-request-id, Retry-After");
    if (x->content_type)
        add(ctx, "Content-Type", x->content_type);
    if (x->streaming) {
        add(ctx, "Cache-Control", "no-cache");
        add(ctx, "X-Accel-Buffering", "no"); /* nginx would hold the events back */
    }
    if (x->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%d", x->retry_after_s);
        add(ctx, "Retry-After", seconds);
    }
    if (x->allow)
        add(ctx, "Allow", x->allow);
    if (x->http == 401)
        add(ctx, "WWW-Authenticate", "Bearer");
    if (x->http == 204) {
        add(ctx, "Access-Control-Allow-Methods", x->allow ? x->allow : "GET, POST, OPTIONS");
        add(ctx, "Access-Control-Allow-Headers", "authorization, content-type, x-request-id, *");
        add(ctx, "Access-Control-Max-Age", "600");
    }
}

static void add_header(void *ctx, const char *name, const char *value)
{
    MHD_add_response_header(ctx, name, value);
}

/* The response's memory is taken from x with the lock, but libmicrohttpd is called without it: it holds a response's lock
 * when it asks read_body, so the other order is not allowed. A whole reply that is held is read like a stream, so that its journal
 * knows where its body begins on the wire. */
enum MHD_Result exchange_queue(struct exchange *x)
{
    struct MHD_Response *r;
    pthread_mutex_lock(&x->lock);
    if (x->streaming || x->keeper) {
        r = MHD_create_response_from_callback(x->streaming ? MHD_SIZE_UNKNOWN : x->out.len, STREAM_BLOCK_BYTES, read_body, x, NULL);
    } else {
        r = MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_FREE);
        if (r) /* its data is the response's now */
            x->out = (struct buf){.limit = EXCHANGE_OUT_MAX};
    }
    pthread_mutex_unlock(&x->lock);
    if (!r)
        return MHD_NO;
    exchange_headers(x, add_header, r);
    enum MHD_Result queued = MHD_queue_response(x->conn, (unsigned)x->http, r);
    MHD_destroy_response(r);
    return queued;
}
