#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>

#include "common/base/clock.h"
#include "rpc/grpc/admin_wire.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/server.h"
#include "rpc/proto/admin.pb-c.h"

enum { MAX_OPEN_ADMIN = 1024, MAX_OPEN_STATUS_WATCHES = 128, MIN_INTERVAL_MS = 100, MAX_INTERVAL_MS = 60000 };
enum { METRICS_MAX_BYTES = 8 << 20 };

/* The service's copy and room for a status; the loop's thread only. */
struct admin {
    struct admin_service svc;
    struct service_status status;
};

struct admin_call {
    struct rpc_call base;
    grpc_byte_buffer *reply; /* guarded by base.lock: not sent yet */
    int asked;               /* the loop's thread only, like what follows */
    uint32_t interval_ms;    /* WatchStatus */
    struct rpc_timer timer;
};

#define ADMIN_OF(c) ((struct admin_call *)(void *)(c))

static grpc_byte_buffer *pull(struct rpc_call *c)
{
    grpc_byte_buffer *b = ADMIN_OF(c)->reply;
    ADMIN_OF(c)->reply = NULL;
    return b;
}

/* A newer answer replaces one that still waits. b NULL: no memory. */
static void reply(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct error err;
    if (!b) {
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the answer");
        rpc_call_finish(c, &err);
        return;
    }
    pthread_mutex_lock(&c->lock);
    grpc_byte_buffer *old = ADMIN_OF(c)->reply;
    ADMIN_OF(c)->reply = b;
    pthread_mutex_unlock(&c->lock);
    if (old)
        grpc_byte_buffer_destroy(old);
    rpc_call_kick(c);
}

static void *asked(struct rpc_call *c, grpc_byte_buffer *b, const ProtobufCMessageDescriptor *d)
{
    struct error err;
    if (ADMIN_OF(c)->asked)
        return NULL;
    void *m = b ? message_unpack_buffer(d, rpc_loop__scratch(c->loop), b) : NULL;
    ADMIN_OF(c)->asked = 1;
    if (!m) {
        error_set(&err, b ? message_why(rpc_loop__scratch(c->loop)) : STATUS_BAD_REQUEST, "no %s in the request", d->short_name);
        rpc_call_finish(c, &err);
    }
    return m;
}

static void on_open(struct rpc_call *c)
{
    rpc_call_read(c);
}

/* "HOST PID", from peers that showed the secret. */
static void see_gateway(struct rpc_call *c)
{
    struct admin *a = c->service;
    char host[sizeof((struct process_status *)0)->host];
    unsigned pid;
    if (c->trusted && a->svc.seen_gateway && sscanf(c->gateway, "%63s %u", host, &pid) == 2)
        a->svc.seen_gateway(a->svc.ctx, host, pid);
}

static grpc_byte_buffer *snapshot(struct admin *a)
{
    memset(&a->status, 0, offsetof(struct service_status, slots));
    a->svc.get_status(a->svc.ctx, &a->status);
    return admin_wire_pack(&a->status);
}

static void on_get_status(struct rpc_call *c, grpc_byte_buffer *b)
{
    if (!asked(c, b, &sluice__v1__get_status_request__descriptor))
        return;
    see_gateway(c);
    reply(c, snapshot(c->service));
    rpc_call_finish(c, NULL);
}

static enum status aliases_named(ProtobufCBinaryData name, enum metric_aliases *out, struct error *err)
{
    if (name.len && (name.len != 4 || memcmp(name.data, "vllm", 4) != 0))
        return error_param(err, STATUS_BAD_REQUEST, "aliases", "", "metric names as '%.*s': there are those of vllm",
                           (int)(name.len < 40 ? name.len : 40), (const char *)name.data);
    *out = name.len ? METRIC_ALIASES_VLLM : METRIC_ALIASES_NONE;
    return STATUS_OK;
}

static void on_get_metrics(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct admin *a = c->service;
    Sluice__V1__GetMetricsResponse m = SLUICE__V1__GET_METRICS_RESPONSE__INIT;
    struct buf text;
    enum metric_aliases aliases = METRIC_ALIASES_NONE;
    struct error err;
    const Sluice__V1__GetMetricsRequest *request = asked(c, b, &sluice__v1__get_metrics_request__descriptor);
    if (!request)
        return;
    if (aliases_named(request->aliases, &aliases, &err) != STATUS_OK) {
        rpc_call_finish(c, &err);
        return;
    }
    see_gateway(c);
    buf_init(&text, METRICS_MAX_BYTES);
    a->svc.get_metrics(a->svc.ctx, aliases, &text);
    m.text = (ProtobufCBinaryData){.len = text.len, .data = (uint8_t *)text.data};
    reply(c, text.failed ? NULL : message_pack(&m.base));
    buf_fini(&text);
    rpc_call_finish(c, NULL);
}

static void drain(struct rpc_call *c, grpc_byte_buffer *b, int on)
{
    struct admin *a = c->service;
    Sluice__V1__DrainResponse m = SLUICE__V1__DRAIN_RESPONSE__INIT;
    if (!asked(c, b, &sluice__v1__drain_request__descriptor))
        return;
    a->svc.drain(a->svc.ctx, on);
    reply(c, message_pack(&m.base));
    rpc_call_finish(c, NULL);
}

static void on_drain(struct rpc_call *c, grpc_byte_buffer *b)
{
    drain(c, b, 1);
}

static void on_undrain(struct rpc_call *c, grpc_byte_buffer *b)
{
    drain(c, b, 0);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    (void)e;
    pthread_mutex_lock(&c->lock);
    grpc_byte_buffer *b = pull(c);
    pthread_mutex_unlock(&c->lock);
    if (b)
        grpc_byte_buffer_destroy(b);
    rpc_timer_cancel(c->loop, &ADMIN_OF(c)->timer);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

/* --- WatchStatus: the timer holds a reference --------------------------------------------------------------------------- */

static void arm(struct rpc_call *c)
{
    rpc_call_retain(c);
    rpc_timer_start(c->loop, &ADMIN_OF(c)->timer, clock_now_ns() + ADMIN_OF(c)->interval_ms * NS_PER_MS);
}

static void on_timer(struct rpc_timer *t, int fired)
{
    struct rpc_call *c = &LIST_ENTRY(t, struct admin_call, timer)->base;
    if (fired && !rpc_call_closed(c)) {
        reply(c, snapshot(c->service));
        arm(c);
    }
    rpc_call_release(c);
}

static void on_watch_status(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct admin_call *w = ADMIN_OF(c);
    Sluice__V1__WatchStatusRequest *m = asked(c, b, &sluice__v1__watch_status_request__descriptor);
    if (!m)
        return;
    w->interval_ms = m->interval_ms == 0                 ? 1000
                     : m->interval_ms < MIN_INTERVAL_MS ? MIN_INTERVAL_MS
                     : m->interval_ms > MAX_INTERVAL_MS ? MAX_INTERVAL_MS
                                                        : m->interval_ms;
    w->timer.fn = on_timer;
    see_gateway(c);
    reply(c, snapshot(c->service));
    arm(c);
}

#define ADMIN_OPS(handler)                                                                                             \
    {                                                                                                                  \
        .pull = pull, .on_open = on_open, .on_message = handler, .on_closed = on_closed, .destroy = destroy            \
    }
static const struct rpc_call_ops get_status_ops = ADMIN_OPS(on_get_status), get_metrics_ops = ADMIN_OPS(on_get_metrics),
                                 drain_ops = ADMIN_OPS(on_drain), undrain_ops = ADMIN_OPS(on_undrain),
                                 watch_ops = ADMIN_OPS(on_watch_status);

static enum status add(struct rpc_server *s, const char *path, const struct rpc_call_ops *ops, int needs_secret,
                       uint32_t max_open, void *service)
{
    struct rpc_method m = {.path = path,
                           .call_bytes = sizeof(struct admin_call),
                           .ops = ops,
                           .needs_secret = needs_secret,
                           .max_open = max_open,
                           .service = service};
    return rpc_server__add_method(s, &m);
}

enum status admin_service_add(struct rpc_server *s, const struct admin_service *svc)
{
    struct admin *a = calloc(1, sizeof *a);
    if (!a)
        return STATUS_OUT_OF_MEMORY;
    a->svc = *svc;
    enum status st = rpc_server__add_service(s, "sluice.v1.Admin", a, free);
    if (st != STATUS_OK) {
        free(a);
        return st;
    }
    TRY(add(s, "/sluice.v1.Admin/GetStatus", &get_status_ops, 0, MAX_OPEN_ADMIN, a));
    TRY(add(s, "/sluice.v1.Admin/WatchStatus", &watch_ops, 0, MAX_OPEN_STATUS_WATCHES, a));
    TRY(add(s, "/sluice.v1.Admin/GetMetrics", &get_metrics_ops, 0, MAX_OPEN_ADMIN, a));
    TRY(add(s, "/sluice.v1.Admin/Drain", &drain_ops, 1, MAX_OPEN_ADMIN, a));
    return add(s, "/sluice.v1.Admin/Undrain", &undrain_ops, 1, MAX_OPEN_ADMIN, a);
}
