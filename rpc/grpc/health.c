#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>

#include "common/base/list.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/server.h"
#include "rpc/proto/health.pb-c.h"

enum { MAX_OPEN_CHECKS = 1024, MAX_OPEN_WATCHES = 1024 };

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct health {
    struct rpc_server *server;
    pthread_mutex_t lock; /* guards what follows */
    int serving;
    struct list watches;
};

/* A Check or a Watch. Watch keeps only the newest status: a peer that reads slowly misses what lies between. */
struct health_call {
    struct rpc_call base;
    struct list in_health; /* guarded by health->lock; linked while it watches */
    int is_watch, known;   /* the loop's thread only */
    int pending, sent, next; /* guarded by base.lock; sent: -1 none yet */
};

#define HEALTH_OF(c) ((struct health_call *)(void *)(c))

static grpc_byte_buffer *pull(struct rpc_call *c)
{
    struct health_call *h = HEALTH_OF(c);
    if (!h->pending || h->next == h->sent)
        return NULL;
    Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    m.status = (serving_status)h->next;
    h->pending = 0;
    h->sent = h->next;
    return message_pack(&m.base);
}

static void tell(struct health_call *h, serving_status s)
{
    pthread_mutex_lock(&h->base.lock);
    h->next = (int)s;
    h->pending = 1;
    pthread_mutex_unlock(&h->base.lock);
    rpc_call_kick(&h->base);
}

static void on_open(struct rpc_call *c)
{
    HEALTH_OF(c)->sent = -1;
    rpc_call_read(c);
}

static int is_known(struct health *h, ProtobufCBinaryData service)
{
    const char *names[RPC_MAX_SERVICES];
    size_t n = rpc_server__services(h->server, names);
    int known = service.len == 0;
    for (size_t i = 0; i < n; i++)
        known |= service.len == strlen(names[i]) && memcmp(service.data, names[i], service.len) == 0;
    return known;
}

/* -1: the message is none, and the call has been answered. */
static int asked_for(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct error err;
    Grpc__Health__V1__HealthCheckRequest *m =
        b ? message_unpack_buffer(&grpc__health__v1__health_check_request__descriptor, rpc_loop__scratch(c->loop), b) : NULL;
    if (m)
        return is_known(c->service, m->service);
    error_set(&err, STATUS_BAD_REQUEST, "no HealthCheckRequest");
    rpc_call_finish(c, &err);
    return -1;
}

static serving_status now(struct health *h)
{
    pthread_mutex_lock(&h->lock);
    serving_status s = h->serving ? SERVING : NOT_SERVING;
    pthread_mutex_unlock(&h->lock);
    return s;
}

static void on_check(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct error err;
    int known = asked_for(c, b);
    if (known < 0)
        return;
    if (!known) {
        error_set(&err, STATUS_NOT_FOUND, "no such service");
        rpc_call_finish(c, &err);
        return;
    }
    tell(HEALTH_OF(c), now(c->service));
    rpc_call_finish(c, NULL);
}

static void on_watch(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct health *all = c->service;
    struct health_call *h = HEALTH_OF(c);
    int known = h->is_watch ? -1 : asked_for(c, b);
    if (known < 0)
        return;
    h->is_watch = 1;
    h->known = known;
    pthread_mutex_lock(&all->lock);
    list_push_back(&all->watches, &h->in_health);
    /* Under the lock, so that a change cannot be told first. */
    tell(h, !known ? SERVICE_UNKNOWN : all->serving ? SERVING : NOT_SERVING);
    pthread_mutex_unlock(&all->lock);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct health *all = c->service;
    (void)e;
    pthread_mutex_lock(&all->lock);
    if (list_linked(&HEALTH_OF(c)->in_health))
        list_remove(&HEALTH_OF(c)->in_health);
    pthread_mutex_unlock(&all->lock);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static const struct rpc_call_ops check_ops = {
    .pull = pull, .on_open = on_open, .on_message = on_check, .on_closed = on_closed, .destroy = destroy};
static const struct rpc_call_ops watch_ops = {
    .pull = pull, .on_open = on_open, .on_message = on_watch, .on_closed = on_closed, .destroy = destroy};

/* Any thread; a watch leaves the list before its call ends, so it lives while the lock is held. */
void health_set(struct health *h, int serving)
{
    pthread_mutex_lock(&h->lock);
    h->serving = serving != 0;
    LIST_EACH(it, &h->watches)
    {
        struct health_call *w = LIST_ENTRY(it, struct health_call, in_health);
        if (w->known)
            tell(w, serving ? SERVING : NOT_SERVING);
    }
    pthread_mutex_unlock(&h->lock);
}

static void end(void *service)
{
    struct health *h = service;
    pthread_mutex_destroy(&h->lock);
    free(h);
}

enum status health_service_add(struct rpc_server *s)
{
    struct health *h = calloc(1, sizeof *h);
    if (!h)
        return STATUS_OUT_OF_MEMORY;
    h->server = s;
    pthread_mutex_init(&h->lock, NULL);
    list_init(&h->watches);
    enum status st = rpc_server__add_service(s, "grpc.health.v1.Health", h, end);
    if (st != STATUS_OK) {
        end(h);
        return st;
    }
    rpc_server__set_health(s, h);
    struct rpc_method check = {.path = "/grpc.health.v1.Health/Check",
                               .call_bytes = sizeof(struct health_call),
                               .ops = &check_ops,
                               .max_open = MAX_OPEN_CHECKS,
                               .service = h};
    struct rpc_method watch = {.path = "/grpc.health.v1.Health/Watch",
                               .call_bytes = sizeof(struct health_call),
                               .ops = &watch_ops,
                               .max_open = MAX_OPEN_WATCHES,
                               .service = h};
    TRY(rpc_server__add_method(s, &check));
    return rpc_server__add_method(s, &watch);
}
