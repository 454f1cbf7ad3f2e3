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
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/openai.h"

enum { STREAM_BLOCK_BYTES = 16 << 10, STALL_CHECK_MS = 250 };

static atomic_uint_fast64_t next_serial = 1;

struct exchange *exchange_create(struct gateway *gw, struct MHD_Connection *conn)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->gw = gw;
    atomic_fetch_add(&gw->n_exchanges, 1);
    x->serial = atomic_fetch_add(&next_serial, 1);
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    x->conn = conn;
    x->fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->started_ns = clock_now_ns();
    buf_init(&x->out, EXCHANGE_OUT_MAX);
    return x;
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
    buf_fini(&x->body);
    buf_fini(&x->out);
    pthread_mutex_destroy(&x->lock);
    atomic_fetch_sub(&x->gw->n_exchanges, 1);
    free(x);
}

/* Lets libmicrohttpd ask again: for the reply, or for more of the stream. */
static void wake(struct exchange *x)
{
    if (x->suspended && x->conn) {
        x->suspended = 0;
        MHD_resume_connection(x->conn);
    }
}

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
    if (x->conn)
        setsockopt(x->fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
    x->http = 200;
    x->content_type = "text/event-stream";
    x->have_reply = x->streaming = 1;
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
    buf_clear(&x->out);
    if (x->ops && x->ops->gone)
        x->ops->gone(x);
    /* A connection that waits to write is woken by its socket, a suspended one by us. */
    if (x->conn && x->have_reply)
        shutdown(x->fd, SHUT_RDWR);
    wake(x);
}

int exchange_stalled(struct exchange *x, int64_t now_ns, int64_t stall_ms)
{
    if (!x->conn || !x->have_reply || now_ns - x->stall_check_ns < STALL_CHECK_MS * NS_PER_MS)
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

/* libmicrohttpd asks for the next bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t pos, char *to, size_t max)
{
    struct exchange *x = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    if (x->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->out.len) {
        n = (ssize_t)(x->out.len < max ? x->out.len : max);
        memcpy(to, x->out.data, (size_t)n);
        buf_consume(&x->out, (size_t)n);
        if (x->full && x->out.len < EXCHANGE_OUT_LOW) {
            x->full = 0;
            if (x->ops && x->ops->room)
                x->ops->room(x);
        }
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else { /* returning 0 without this would spin */
        x->suspended = 1;
        MHD_suspend_connection(x->conn);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void add_headers(struct exchange *x, struct MHD_Response *r)
{
    char seconds[16];
    MHD_add_response_header(r, "x-request-id", x->request_id);
    MHD_add_response_header(r, "Access-Control-Allow-Origin", "*");
    MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, Retry-After");
    if (x->content_type)
        MHD_add_response_header(r, "Content-Type", x->content_type);
    if (x->streaming) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* nginx would hold the events back */
    }
    if (x->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%d", x->retry_after_s);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    if (x->allow)
        MHD_add_response_header(r, "Allow", x->allow);
    if (x->http == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->http == 204) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", x->allow ? x->allow : "GET, POST, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Allow-Headers", "authorization, content-type, x-request-id, *");
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
    }
}

/* The response's memory is taken from x with the lock, but libmicrohttpd is called without it: it holds a response's lock
 * when it asks read_stream, so the other order is not allowed. */
enum MHD_Result exchange_queue(struct exchange *x)
{
    struct MHD_Response *r;
    pthread_mutex_lock(&x->lock);
    if (x->streaming) {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, x, NULL);
    } else {
        r = MHD_create_response_from_buffer(x->out.len, x->out.data, MHD_RESPMEM_MUST_FREE);
        if (r) /* its data is the response's now */
            x->out = (struct buf){.limit = EXCHANGE_OUT_MAX};
    }
    pthread_mutex_unlock(&x->lock);
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    enum MHD_Result queued = MHD_queue_response(x->conn, (unsigned)x->http, r);
    MHD_destroy_response(r);
    return queued;
}
