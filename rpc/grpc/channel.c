#include "rpc/grpc/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "rpc/grpc/server.h"
#include "rpc/grpc/tls.h"

/* One connection with the certificates of one moment; goes when newer ones came and its last call has ended. */
struct channel_core {
    grpc_channel *core;
    uint64_t tls_version;
    uint32_t n_calls;
};

struct rpc_channel {
    struct rpc_loop *loop;
    struct rpc_options options; /* the secret's text is not kept */
    char *host_port;
    pthread_mutex_t lock; /* guards what follows */
    struct channel_core *now;
    pthread_cond_t changed;
    struct list calls;
    int ending;
    grpc_metadata md[2]; /* bearer and gateway, as far as set */
    size_t n_md;
};

struct rpc_loop *rpc_channel__loop(struct rpc_channel *c)
{
    return c->loop;
}

/* version: of the certificates, 0 without. */
static grpc_channel_credentials *create_credentials(struct rpc_tls *tls, uint64_t *version)
{
    *version = 0;
    if (!rpc_tls_is_mutual(tls))
        return grpc_insecure_credentials_create();
    const struct rpc_tls_pem *pem = rpc_tls_acquire(tls);
    grpc_ssl_pem_key_cert_pair pair = {pem->key, pem->cert};
    grpc_channel_credentials *c = grpc_ssl_credentials_create(pem->ca, &pair, NULL, NULL);
    *version = pem->version;
    rpc_tls_release(pem);
    return c;
}

static struct channel_core *create_core(const char *host_port, const struct rpc_options *o)
{
    struct channel_core *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    grpc_arg a[RPC_MAX_ARGS];
    size_t n = rpc__common_args(o, a);
    a[n++] = rpc__int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
    a[n++] = rpc__int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    a[n++] = rpc__int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    a[n++] = rpc__int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    a[n++] = rpc__int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    a[n++] = rpc__int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000); /* how long one attempt may take */
    a[n++] = rpc__int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    a[n++] = rpc__int_arg(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 100);
    if (o->heartbeat_ms > 0)
        a[n++] = rpc__int_arg(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, o->heartbeat_ms / 2);
    if (strncmp(host_port, "unix:", 5) == 0) /* a path is no name that a certificate could have */
        a[n++] = (grpc_arg){.type = GRPC_ARG_STRING,
                            .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
                            .value.string = (char *)(uintptr_t) "localhost"};
    ASSERT(n <= RPC_MAX_ARGS);
    grpc_channel_args args = {.num_args = n, .args = a};
    grpc_channel_credentials *who = create_credentials(o->tls, &c->tls_version);
    c->core = grpc_channel_create(host_port, who, &args);
    grpc_channel_credentials_release(who);
    return c;
}

/* Lock held. */
static void drop_call(struct rpc_channel *ch, struct channel_core *k)
{
    k->n_calls--;
    if (k->n_calls || k == ch->now)
        return;
    grpc_channel_destroy(k->core);
    free(k);
}

/* Lock held. The connection for a new call: a new one when other certificates were read. Without memory the old one does. */
static struct channel_core *take_core(struct rpc_channel *ch)
{
    struct channel_core *old = ch->now, *fresh = NULL;
    if (old->tls_version && old->tls_version != rpc_tls_version(ch->options.tls))
        fresh = create_core(ch->host_port, &ch->options);
    if (fresh) {
        ch->now = fresh;
        old->n_calls++;
        drop_call(ch, old);
    }
    ch->now->n_calls++;
    return ch->now;
}

static void set_md(struct rpc_channel *c, const char *key, const char *prefix, const char *value)
{
    char text[1100];
    snprintf(text, sizeof text, "%s%s", prefix, value);
    grpc_slice k = grpc_slice_from_static_string(key);
    pthread_mutex_lock(&c->lock);
    size_t i = 0;
    while (i < c->n_md && !grpc_slice_eq(c->md[i].key, k))
        i++;
    if (i < c->n_md)
        grpc_slice_unref(c->md[i].value);
    else
        c->n_md++;
    c->md[i] = (grpc_metadata){.key = k, .value = grpc_slice_from_copied_string(text)};
    pthread_mutex_unlock(&c->lock);
}

void rpc_channel__set_gateway(struct rpc_channel *ch, const char *text)
{
    set_md(ch, "sluice-gateway", "", text);
}

static void free_channel(struct rpc_channel *ch)
{
    if (ch->now) {
        grpc_channel_destroy(ch->now->core);
        free(ch->now);
    }
    for (size_t i = 0; i < ch->n_md; i++)
        grpc_slice_unref(ch->md[i].value);
    pthread_mutex_destroy(&ch->lock);
    pthread_cond_destroy(&ch->changed);
    free(ch->host_port);
    free(ch);
}

enum status rpc_channel_create(struct rpc_loop *l, const char *host_port, const struct rpc_options *o,
                               struct rpc_channel **out, struct error *err)
{
    TRY(rpc__check_secret(o->secret, err));
    struct rpc_channel *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for an RPC channel");
    c->loop = l;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    list_init(&c->calls);
    if (o->secret && o->secret[0])
        set_md(c, "authorization", "Bearer ", o->secret);
    c->options = *o;
    c->options.secret = NULL;
    c->host_port = strdup(host_port);
    c->now = c->host_port ? create_core(host_port, o) : NULL;
    if (!c->now) {
        free_channel(c);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for an RPC channel");
    }
    *out = c;
    return STATUS_OK;
}

/* The list's reference is the core's; ours keeps the call through the start. */
static int insert(struct rpc_channel *ch, struct rpc_call *c, grpc_metadata md[2], size_t *n_md)
{
    pthread_mutex_lock(&ch->lock);
    int open = !ch->ending;
    if (open) {
        list_push_back(&ch->calls, &c->in_channel);
        c->channel = ch;
        c->core = take_core(ch);
        *n_md = ch->n_md;
        for (size_t i = 0; i < ch->n_md; i++)
            md[i] = (grpc_metadata){.key = ch->md[i].key, .value = grpc_slice_ref(ch->md[i].value)};
    }
    pthread_mutex_unlock(&ch->lock);
    return open;
}

enum status rpc_channel__open(struct rpc_channel *ch, struct rpc_call *c, const char *path, int timeout_ms,
                              int wait_for_ready, grpc_byte_buffer *first, struct error *err)
{
    grpc_metadata md[2];
    size_t n_md = 0;
    if (!insert(ch, c, md, &n_md)) {
        if (first)
            grpc_byte_buffer_destroy(first);
        return error_set(err, STATUS_CLOSED, "the channel is closing");
    }
    rpc_call_retain(c);
    grpc_call *core = grpc_channel_create_call(c->core->core, NULL, GRPC_PROPAGATE_DEFAULTS, rpc_loop__cq(ch->loop),
                                               grpc_slice_from_static_string(path), NULL, rpc__deadline(timeout_ms), NULL);
    rpc_call_open(c, core, md, n_md, wait_for_ready, first);
    for (size_t i = 0; i < n_md; i++)
        grpc_slice_unref(md[i].value);
    return STATUS_OK;
}

void rpc_channel__remove(struct rpc_channel *ch, struct rpc_call *c)
{
    pthread_mutex_lock(&ch->lock);
    list_remove(&c->in_channel);
    drop_call(ch, c->core);
    c->core = NULL;
    pthread_cond_broadcast(&ch->changed);
    pthread_mutex_unlock(&ch->lock);
}

void rpc_channel_destroy(struct rpc_channel *ch)
{
    if (!ch)
        return;
    CHECK(!rpc_loop__is_here(ch->loop));
    pthread_mutex_lock(&ch->lock);
    ch->ending = 1;
    while (!list_empty(&ch->calls)) {
        LIST_EACH(it, &ch->calls)
        rpc_call_cancel(LIST_ENTRY(it, struct rpc_call, in_channel), NULL);
        /* A call that was entered but whose core is not made yet is cancelled in the next round. */
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 20 * 1000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&ch->changed, &ch->lock, &soon);
    }
    pthread_mutex_unlock(&ch->lock);
    free_channel(ch);
}
