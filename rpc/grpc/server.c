#define LOG_MODULE "rpc"
#include "rpc/grpc/server.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "rpc/grpc/tls.h"

/* Calls the core may have matched and we not yet seen; each is re-armed as soon as it is dispatched. */
enum { N_ACCEPTS = 8, DEFAULT_MAX_MESSAGE_BYTES = 64 << 20, MAX_SECRET_BYTES = 1024, HANDSHAKE_TIMEOUT_MS = 5000 };

struct accept {
    struct rpc_tag tag;
    struct rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array md;
};

struct rpc_server {
    struct rpc_loop *loop;
    struct rpc_options options;
    grpc_server *core;
    int port, started;
    struct rpc_method methods[RPC_MAX_METHODS];
    size_t n_methods;
    struct {
        const char *name;
        void *service;
        void (*on_end)(void *service);
    } services[RPC_MAX_SERVICES];
    size_t n_services;
    struct health *health;
    atomic_uint_fast64_t tls_version; /* of the certificates that the core has */
    struct accept accepts[N_ACCEPTS];
    struct rpc_tag shut;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint32_t n_calls, n_accepts;
    int is_shut;
    atomic_int ending;    /* written with the lock held */
};

/* --- options ----------------------------------------------------------------------------------------------------------- */

grpc_arg rpc__int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* A dead peer is noticed after time + timeout, about 3.3 heartbeats, in the worst case five (recipes.md, section 3).
 * BDP probing would grow the window, and with it what a client that reads nothing can hide from us. */
size_t rpc__common_args(const struct rpc_options *o, grpc_arg a[RPC_MAX_ARGS])
{
    size_t n = 0;
    int64_t max = o->max_message_bytes > 0 ? o->max_message_bytes : DEFAULT_MAX_MESSAGE_BYTES;
    int bytes = max < INT32_MAX ? (int)max : INT32_MAX;
    a[n++] = rpc__int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, bytes);
    a[n++] = rpc__int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, bytes);
    a[n++] = rpc__int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    a[n++] = rpc__int_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1); /* none */
    if (o->heartbeat_ms > 0) {
        a[n++] = rpc__int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, o->heartbeat_ms);
        a[n++] = rpc__int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, o->heartbeat_ms * 3);
        a[n++] = rpc__int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
        a[n++] = rpc__int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    }
    return n;
}

enum status rpc__check_secret(const char *secret, struct error *err)
{
    size_t len = secret ? strlen(secret) : 0;
    int bad = len > MAX_SECRET_BYTES;
    for (size_t i = 0; i < len && !bad; i++)
        bad = secret[i] <= ' ' || secret[i] >= 127;
    return bad ? error_set(err, STATUS_CONFIG, "the secret must be printable ASCII without spaces, at most %d bytes",
                           MAX_SECRET_BYTES)
               : STATUS_OK;
}

static grpc_server *create_core(const struct rpc_options *o)
{
    grpc_arg a[RPC_MAX_ARGS];
    size_t n = rpc__common_args(o, a);
    a[n++] = rpc__int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0);
    a[n++] = rpc__int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS);
    a[n++] = rpc__int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 16384);
    /* A client's pings are its own affair, however it is set. */
    a[n++] = rpc__int_arg(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    if (o->heartbeat_ms > 0)
        a[n++] = rpc__int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, o->heartbeat_ms / 2);
    ASSERT(n <= RPC_MAX_ARGS);
    grpc_channel_args args = {.num_args = n, .args = a};
    return grpc_server_create(&args, NULL);
}

/* --- who calls --------------------------------------------------------------------------------------------------------- */

/* Takes the same time for any value of one length. */
static int equal_in_constant_time(const uint8_t *a, size_t n_a, const uint8_t *b, size_t n_b)
{
    volatile unsigned diff = n_a != n_b;
    for (size_t i = 0; i < n_a; i++)
        diff |= (unsigned)(a[i] ^ (n_b ? b[i % n_b] : 0));
    return diff == 0;
}

static void name_by_hash(struct rpc_call *c, const uint8_t *value, size_t len)
{
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA256(value, len, hash);
    int at = snprintf(c->identity, sizeof c->identity, "key-");
    for (int i = 0; i < 16; i++)
        at += snprintf(c->identity + at, sizeof c->identity - (size_t)at, "%02x", hash[i]);
}

static void read_bearer(const struct rpc_server *s, struct rpc_call *c, grpc_slice value)
{
    static const char bearer[] = "Bearer ";
    const uint8_t *p = GRPC_SLICE_START_PTR(value);
    size_t len = GRPC_SLICE_LENGTH(value), skip = sizeof bearer - 1;
    int is_bearer = len > skip && memcmp(p, bearer, skip) == 0;
    if (is_bearer) {
        p += skip;
        len -= skip;
    }
    const char *secret = s->options.secret;
    if (secret && is_bearer && equal_in_constant_time(p, len, (const uint8_t *)secret, strlen(secret)))
        c->trusted = 1;
    else
        name_by_hash(c, p, len);
}

static void read_metadata(const struct rpc_server *s, struct rpc_call *c, const grpc_metadata_array *md)
{
    c->trusted = s->options.secret == NULL;
    for (size_t i = 0; i < md->count; i++) {
        const grpc_metadata *m = &md->metadata[i];
        if (grpc_slice_str_cmp(m->key, "authorization") == 0)
            read_bearer(s, c, m->value);
        else if (grpc_slice_str_cmp(m->key, "sluice-gateway") == 0)
            snprintf(c->gateway, sizeof c->gateway, "%.*s", (int)GRPC_SLICE_LENGTH(m->value),
                     (const char *)GRPC_SLICE_START_PTR(m->value));
    }
}

/* "ipv4:10.0.0.7:4711" without the port: what stays the same over a client's connections. */
static void read_peer(struct rpc_call *c, grpc_call *core)
{
    char *peer = grpc_call_get_peer(core);
    if (!peer)
        return;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    gpr_free(peer);
    char *colon = strrchr(c->peer, ':');
    if (colon && strncmp(c->peer, "ip", 2) == 0 && colon != strchr(c->peer, ':'))
        *colon = 0;
}

static int64_t deadline_ns(gpr_timespec deadline)
{
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0)
        return 0;
    gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC), gpr_now(GPR_CLOCK_MONOTONIC));
    if (left.tv_sec >= (int64_t)1 << 30)
        return 0;
    return clock_now_ns() + left.tv_sec * NS_PER_S + left.tv_nsec;
}

/* --- dispatch ---------------------------------------------------------------------------------------------------------- */

static struct rpc_method *find_method(struct rpc_server *s, grpc_slice path)
{
    for (size_t i = 0; i < s->n_methods; i++)
        if (grpc_slice_str_cmp(path, s->methods[i].path) == 0)
            return &s->methods[i];
    return NULL;
}

static void refuse_open(struct rpc_call *c)
{
    (void)c;
}

static void refuse_closed(struct rpc_call *c, const struct error *e)
{
    (void)c;
    (void)e;
}

static void refuse_destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static const struct rpc_call_ops refuse_ops = {.on_open = refuse_open, .on_closed = refuse_closed, .destroy = refuse_destroy};

static enum status may_call(struct rpc_server *s, const struct rpc_call *c, const struct rpc_method *m, struct error *err)
{
    if (!m)
        return error_set(err, STATUS_UNSUPPORTED, "no such method");
    if (m->needs_secret && !c->trusted) {
        LOG_SOME(LOG_LEVEL_WARN, "%s: %s needs the job's secret as bearer", c->peer, m->path);
        return error_set(err, STATUS_UNAUTHENTICATED, "%s needs the job's secret as bearer", m->path);
    }
    if (s->ending)
        return error_set(err, STATUS_DRAINING, "%s", status_text(STATUS_DRAINING));
    if (m->n_open >= m->max_open) {
        error_set(err, STATUS_FULL, "%u calls of %s are open", m->n_open, m->path);
        if (err)
            err->retry_after_s = 1;
        return STATUS_FULL;
    }
    return STATUS_OK;
}

static void dispatch(struct rpc_server *s, struct accept *a)
{
    struct rpc_method *m = find_method(s, a->details.method);
    struct rpc_call *c = calloc(1, m ? m->call_bytes : sizeof *c);
    struct error err = {0};
    if (!c) {
        grpc_call_cancel_with_status(a->call, GRPC_STATUS_RESOURCE_EXHAUSTED, "no memory", NULL);
        grpc_call_unref(a->call);
        return;
    }
    read_metadata(s, c, &a->md);
    read_peer(c, a->call);
    c->deadline_ns = deadline_ns(a->details.deadline);
    enum status st = may_call(s, c, m, &err);
    rpc_call_init(c, st == STATUS_OK ? m->ops : &refuse_ops, s->loop);
    c->server = s;
    if (st == STATUS_OK) {
        c->method = m;
        c->service = m->service;
        c->linger_ms = m->linger_ms;
        m->n_open++;
    }
    pthread_mutex_lock(&s->lock);
    s->n_calls++;
    pthread_mutex_unlock(&s->lock);
    rpc_call_retain(c);
    rpc_call_accept(c, a->call, st == STATUS_OK && m->early_headers);
    if (st != STATUS_OK)
        rpc_call_finish(c, &err);
    rpc_call_release(c);
}

/* Lock held: is_shut and the core's shutdown do not cross. */
static void arm(struct accept *a)
{
    struct rpc_server *s = a->server;
    grpc_call_details_init(&a->details);
    grpc_metadata_array_init(&a->md);
    grpc_completion_queue *cq = rpc_loop__cq(s->loop);
    RPC_TAG_STARTS(&a->tag);
    grpc_call_error e = grpc_server_request_call(s->core, &a->call, &a->details, &a->md, cq, cq, &a->tag);
    CHECK(e == GRPC_CALL_OK);
    s->n_accepts++;
}

static void disarm(struct accept *a)
{
    grpc_call_details_destroy(&a->details);
    grpc_metadata_array_destroy(&a->md);
    a->server->n_accepts--;
}

static void on_accept(struct rpc_tag *t, int ok)
{
    struct accept *a = LIST_ENTRY(t, struct accept, tag);
    struct rpc_server *s = a->server;
    if (ok)
        dispatch(s, a);
    pthread_mutex_lock(&s->lock);
    disarm(a);
    if (ok && !s->ending)
        arm(a);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_shut(struct rpc_tag *t, int ok)
{
    struct rpc_server *s = LIST_ENTRY(t, struct rpc_server, shut);
    (void)ok;
    pthread_mutex_lock(&s->lock);
    s->is_shut = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void rpc_server__remove(struct rpc_server *s, struct rpc_call *c)
{
    if (c->method)
        c->method->n_open--;
    c->server = NULL;
    c->method = NULL;
    pthread_mutex_lock(&s->lock);
    s->n_calls--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* --- the server -------------------------------------------------------------------------------------------------------- */

enum status rpc_server__add_method(struct rpc_server *s, const struct rpc_method *m)
{
    CHECK(!s->started && m->call_bytes >= sizeof(struct rpc_call));
    if (s->n_methods == RPC_MAX_METHODS)
        return STATUS_FULL;
    s->methods[s->n_methods++] = *m;
    return STATUS_OK;
}

enum status rpc_server__add_service(struct rpc_server *s, const char *name, void *service, void (*on_end)(void *service))
{
    CHECK(!s->started);
    if (s->n_services == RPC_MAX_SERVICES)
        return STATUS_FULL;
    s->services[s->n_services].name = name;
    s->services[s->n_services].service = service;
    s->services[s->n_services++].on_end = on_end;
    return STATUS_OK;
}

size_t rpc_server__services(const struct rpc_server *s, const char *names[RPC_MAX_SERVICES])
{
    for (size_t i = 0; i < s->n_services; i++)
        names[i] = s->services[i].name;
    return s->n_services;
}

void rpc_server__set_health(struct rpc_server *s, struct health *h)
{
    s->health = h;
}

void rpc_server_set_health(struct rpc_server *s, int serving)
{
    health_set(s->health, serving);
}

static void free_server(struct rpc_server *s)
{
    for (size_t i = 0; i < s->n_services; i++)
        if (s->services[i].on_end)
            s->services[i].on_end(s->services[i].service);
    grpc_server_destroy(s->core);
    free((char *)(uintptr_t)s->options.secret);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

static void init_server(struct rpc_server *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    s->shut.fn = on_shut;
    for (size_t i = 0; i < N_ACCEPTS; i++)
        s->accepts[i] = (struct accept){.tag.fn = on_accept, .server = s};
    s->core = create_core(&s->options);
    grpc_server_register_completion_queue(s->core, rpc_loop__cq(s->loop), NULL);
}

enum status rpc_server_create(struct rpc_loop *l, const struct rpc_options *o, struct rpc_server **out, struct error *err)
{
    TRY(rpc__check_secret(o->secret, err));
    struct rpc_server *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the RPC server");
    s->loop = l;
    s->options = *o;
    s->options.secret = o->secret && o->secret[0] ? strdup(o->secret) : NULL;
    init_server(s);
    enum status st = health_service_add(s);
    if (st == STATUS_OK)
        st = reflection_service_add(s);
    if (st == STATUS_OK && o->secret && o->secret[0] && !s->options.secret)
        st = STATUS_OUT_OF_MEMORY;
    if (st != STATUS_OK) {
        rpc_server_destroy(s, 0);
        return error_set(err, st, "RPC server: %s", status_text(st));
    }
    *out = s;
    return STATUS_OK;
}

/* The core asks before each handshake. */
static grpc_ssl_certificate_config_reload_status on_certificates(void *arg, grpc_ssl_server_certificate_config **out)
{
    struct rpc_server *s = arg;
    if (rpc_tls_version(s->options.tls) == atomic_load(&s->tls_version))
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const struct rpc_tls_pem *pem = rpc_tls_acquire(s->options.tls);
    const grpc_ssl_pem_key_cert_pair pair = {pem->key, pem->cert};
    *out = grpc_ssl_server_certificate_config_create(pem->ca, &pair, 1);
    atomic_store(&s->tls_version, pem->version);
    rpc_tls_release(pem);
    return *out ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
}

static grpc_server_credentials *create_credentials(struct rpc_server *s)
{
    if (!rpc_tls_is_mutual(s->options.tls))
        return grpc_insecure_server_credentials_create();
    return grpc_ssl_server_credentials_create_with_options(grpc_ssl_server_credentials_create_options_using_config_fetcher(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, on_certificates, s));
}

enum status rpc_server_listen(struct rpc_server *s, const char *host_port, struct error *err)
{
    grpc_server_credentials *who = create_credentials(s);
    int port = grpc_server_add_http2_port(s->core, host_port, who);
    grpc_server_credentials_release(who);
    if (!port)
        return error_set(err, STATUS_ADDRESS_IN_USE, "cannot listen on %s: the address is in use or not this host's", host_port);
    s->port = port;
    return STATUS_OK;
}

int rpc_server_port(const struct rpc_server *s)
{
    return s->port;
}

enum status rpc_server_start(struct rpc_server *s, struct error *err)
{
    if (s->started)
        return error_set(err, STATUS_INTERNAL, "the RPC server has started already");
    s->started = 1;
    grpc_server_start(s->core);
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < N_ACCEPTS; i++)
        arm(&s->accepts[i]);
    pthread_mutex_unlock(&s->lock);
    return STATUS_OK;
}

/* Lock held. The core is shut when its last call has ended; our objects follow within the loop's next rounds. */
static int at_rest(const struct rpc_server *s)
{
    return s->is_shut && s->n_calls == 0 && s->n_accepts == 0;
}

static void wait_for_rest(struct rpc_server *s, int64_t until_ns)
{
    struct timespec ts = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    pthread_mutex_lock(&s->lock);
    while (!at_rest(s) && clock_now_ns() < until_ns)
        pthread_cond_timedwait(&s->changed, &s->lock, &ts);
    pthread_mutex_unlock(&s->lock);
}

void rpc_server_destroy(struct rpc_server *s, int grace_ms)
{
    if (!s)
        return;
    CHECK(!rpc_loop__is_here(s->loop));
    pthread_mutex_lock(&s->lock);
    s->ending = 1;
    pthread_mutex_unlock(&s->lock);
    RPC_TAG_STARTS(&s->shut);
    grpc_server_shutdown_and_notify(s->core, rpc_loop__cq(s->loop), &s->shut);
    if (grace_ms > 0)
        wait_for_rest(s, clock_now_ns() + grace_ms * NS_PER_MS);
    grpc_server_cancel_all_calls(s->core);
    wait_for_rest(s, INT64_MAX / 2);
    free_server(s);
}
