#include "rpc/gateway/backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "rpc/gateway/pieces.h"

#define LOG_MODULE "backend"
#include "common/base/log.h"

/* A coordinator that came back may serve another model, so the card is asked again after a silence and now and then. */
enum { MODEL_POLL_MS = 5000, MODEL_FIRST_MS = 50, CALL_TIMEOUT_MS = 900, NEVER_WAIT_MS = 1500, METRICS_MAX_BYTES = 16 << 20, PIECES_TIMEOUT_MS = 10000 };

struct backend {
    struct rpc_channel *channel;
    char secret[65], host[64];
    uint32_t pid;
    enum metric_aliases aliases;
    int64_t created_ns;
    int64_t poll_at_ns, model_at_ns, metrics_at_ns; /* the watcher's thread */
    atomic_int status_out, model_out, metrics_out, pieces_out; /* calls under way */

    pthread_mutex_t lock; /* guards what follows */
    struct service_status status;
    int64_t answered_ns; /* 0: never */
    int silent;          /* the last call failed */
    struct model_card card;
    struct buf metrics;
    struct pieces *pieces; /* NULL: not known, or of a coordinator that went */
    uint32_t n_silences, pieces_asked; /* the second: the first when they were asked for */
};

static void take_bytes(char *to, size_t size, struct bytes from)
{
    size_t n = from.len < size - 1 ? from.len : size - 1;
    if (n)
        memcpy(to, from.data, n);
    to[n] = 0;
}

static void on_status(void *ctx, const struct error *err, const struct service_status *s)
{
    struct backend *b = ctx;
    int ok = err->status == STATUS_OK;
    pthread_mutex_lock(&b->lock);
    int was_silent = b->silent;
    b->silent = !ok;
    if (!ok && !was_silent) { /* who comes back may have another model */
        b->n_silences++;
        pieces_release(b->pieces);
        b->pieces = NULL;
    }
    if (ok) {
        service_status_copy(&b->status, s);
        b->answered_ns = clock_now_ns();
    }
    pthread_mutex_unlock(&b->lock);
    if (ok && was_silent)
        LOG_INFO("the coordinator answers");
    else if (!ok && !was_silent)
        LOG_WARN("the coordinator does not answer: %s", err->message);
    atomic_store(&b->status_out, 0);
}

static void on_model(void *ctx, const struct error *err, const struct model_facts *m)
{
    struct backend *b = ctx;
    if (err->status == STATUS_OK && m->n_ids > 0) {
        struct model_card card = {.context = m->context, .created_s = m->created_s};
        for (uint32_t i = 0; i < m->n_ids && i < MODEL_NAMES_MAX; i++)
            take_bytes(card.names[card.n_names++], MODEL_NAME_BYTES, m->ids[i]);
        take_bytes(card.architecture, sizeof card.architecture, m->architecture);
        pthread_mutex_lock(&b->lock);
        b->card = card;
        pthread_mutex_unlock(&b->lock);
    }
    atomic_store(&b->model_out, 0);
}

static void on_pieces(void *ctx, const struct error *err, const struct vocabulary_pieces *v)
{
    struct backend *b = ctx;
    struct pieces *p = err->status == STATUS_OK ? pieces_create(v->text, v->lengths, v->n, v->hidden, v->n_hidden) : NULL;
    if (!p)
        LOG_WARN("the vocabulary is not there: %s", err->status == STATUS_OK ? "no memory for it" : err->message);
    pthread_mutex_lock(&b->lock);
    struct pieces *old = b->pieces;
    b->pieces = b->pieces_asked == b->n_silences ? p : NULL;
    struct pieces *late = b->pieces ? NULL : p;
    pthread_mutex_unlock(&b->lock);
    pieces_release(old);
    pieces_release(late);
    atomic_store(&b->pieces_out, 0);
}

static void on_metrics(void *ctx, const struct error *err, const char *text, size_t len)
{
    struct backend *b = ctx;
    if (err->status == STATUS_OK)
        backend_keep_metrics(b, text, len);
    atomic_store(&b->metrics_out, 0);
}

enum status backend_create(struct rpc_loop *loop, const struct config *c, struct rpc_tls *tls, struct backend **out, struct error *err)
{
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the coordinator's status");
    pthread_mutex_init(&b->lock, NULL);
    buf_init(&b->metrics, METRICS_MAX_BYTES);
    gethostname(b->host, sizeof b->host - 1);
    b->pid = (uint32_t)getpid();
    b->aliases = backend_aliases(c);
    b->created_ns = clock_now_ns();
    enum status s = config_secret(c, b->secret, err);
    struct rpc_options o = {
        .secret = b->secret, .max_message_bytes = c->max_body_mib << 20, .heartbeat_ms = (int)c->heartbeat_ms, .tls = tls};
    if (s == STATUS_OK)
        s = rpc_channel_create(loop, c->coordinator, &o, &b->channel, err);
    if (s != STATUS_OK) {
        pthread_mutex_destroy(&b->lock);
        free(b);
        return s;
    }
    admin_set_gateway(b->channel, b->host, b->pid);
    *out = b;
    return STATUS_OK;
}

void backend_destroy(struct backend *b)
{
    while (atomic_load(&b->status_out) || atomic_load(&b->model_out) || atomic_load(&b->metrics_out) ||
           atomic_load(&b->pieces_out))
        nanosleep(&(struct timespec){.tv_nsec = 5 * NS_PER_MS}, NULL);
    rpc_channel_destroy(b->channel);
    buf_fini(&b->metrics);
    pieces_release(b->pieces);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

struct rpc_channel *backend_channel(struct backend *b)
{
    return b->channel;
}

void backend_tick(struct backend *b, int64_t now_ns)
{
    struct model_card card;
    if (now_ns >= b->poll_at_ns && !atomic_exchange(&b->status_out, 1)) {
        b->poll_at_ns = now_ns + (backend_answers(b) ? BACKEND_POLL_MS : BACKEND_LOST_POLL_MS) * NS_PER_MS;
        if (admin_get_status(b->channel, CALL_TIMEOUT_MS, on_status, b) != STATUS_OK)
            atomic_store(&b->status_out, 0);
    }
    if (now_ns >= b->model_at_ns && !atomic_exchange(&b->model_out, 1)) {
        int known = backend_model(b, &card);
        b->model_at_ns = now_ns + (known ? MODEL_POLL_MS : MODEL_FIRST_MS) * NS_PER_MS;
        if (inference_get_model(b->channel, CALL_TIMEOUT_MS, on_model, b) != STATUS_OK)
            atomic_store(&b->model_out, 0);
    }
    if (now_ns >= b->metrics_at_ns && !atomic_exchange(&b->metrics_out, 1)) {
        b->metrics_at_ns = now_ns + BACKEND_METRICS_MS * NS_PER_MS;
        if (admin_get_metrics(b->channel, b->aliases, CALL_TIMEOUT_MS, on_metrics, b) != STATUS_OK)
            atomic_store(&b->metrics_out, 0);
    }
}

/* With the lock held. */
static int is_heard(const struct backend *b)
{
    return b->answered_ns && !b->silent && clock_now_ns() - b->answered_ns < BACKEND_SILENT_MS * NS_PER_MS;
}

/* While the model is not known its requests wait here, in no order. */
static int is_ready(const struct backend *b)
{
    return is_heard(b) && b->status.ready && !b->status.draining && b->card.n_names > 0;
}

int backend_ready(struct backend *b)
{
    pthread_mutex_lock(&b->lock);
    int ready = is_ready(b);
    pthread_mutex_unlock(&b->lock);
    return ready;
}

int64_t backend_new_wait_ms(struct backend *b)
{
    pthread_mutex_lock(&b->lock);
    int once = b->answered_ns != 0;
    pthread_mutex_unlock(&b->lock);
    return once ? BACKEND_NEW_WAIT_MS : NEVER_WAIT_MS;
}

uint64_t backend_capacity(struct backend *b)
{
    pthread_mutex_lock(&b->lock);
    uint64_t n = b->status.concurrency_serving && b->status.queue_limit_requests
                     ? b->status.concurrency_serving + b->status.queue_limit_requests
                     : UINT64_MAX;
    pthread_mutex_unlock(&b->lock);
    return n;
}

int backend_answers(struct backend *b)
{
    pthread_mutex_lock(&b->lock);
    int answers = is_heard(b);
    pthread_mutex_unlock(&b->lock);
    return answers;
}

struct pieces *backend_pieces(struct backend *b)
{
    pthread_mutex_lock(&b->lock);
    struct pieces *p = pieces_acquire(b->pieces);
    int ask = !p && !atomic_exchange(&b->pieces_out, 1);
    if (ask)
        b->pieces_asked = b->n_silences;
    pthread_mutex_unlock(&b->lock);
    if (ask && inference_get_pieces(b->channel, PIECES_TIMEOUT_MS, on_pieces, b) != STATUS_OK)
        atomic_store(&b->pieces_out, 0);
    return p;
}

int backend_metrics(struct backend *b, struct buf *out)
{
    pthread_mutex_lock(&b->lock);
    int heard = is_heard(b) && b->metrics.len > 0;
    if (heard)
        buf_append(out, b->metrics.data, b->metrics.len);
    pthread_mutex_unlock(&b->lock);
    return heard;
}

void backend_keep_metrics(struct backend *b, const char *text, size_t len)
{
    pthread_mutex_lock(&b->lock);
    buf_clear(&b->metrics);
    buf_append(&b->metrics, text, len);
    pthread_mutex_unlock(&b->lock);
}

enum metric_aliases backend_aliases(const struct config *c)
{
    return strcmp(c->metrics_aliases, "vllm") == 0 ? METRIC_ALIASES_VLLM : METRIC_ALIASES_NONE;
}

void backend_add_self(const struct backend *b, struct service_status *s)
{
    for (uint32_t i = 0; i < s->n_gateways; i++)
        if (s->gateways[i].pid == b->pid && strcmp(s->gateways[i].host, b->host) == 0)
            return;
    if (s->n_gateways >= STATUS_MAX_GATEWAYS)
        return;
    struct process_status *self = &s->gateways[s->n_gateways++];
    snprintf(self->host, sizeof self->host, "%s", b->host);
    self->pid = b->pid;
}

void backend_status(struct backend *b, struct service_status *out)
{
    pthread_mutex_lock(&b->lock);
    service_status_copy(out, &b->status);
    out->age_ms = (uint64_t)((clock_now_ns() - (b->answered_ns ? b->answered_ns : b->created_ns)) / NS_PER_MS);
    out->ready = is_ready(b);
    if (!is_heard(b))
        snprintf(out->not_ready, sizeof out->not_ready, "the coordinator does not answer");
    pthread_mutex_unlock(&b->lock);
    backend_add_self(b, out);
}

int backend_model(struct backend *b, struct model_card *out)
{
    pthread_mutex_lock(&b->lock);
    *out = b->card;
    pthread_mutex_unlock(&b->lock);
    return out->n_names > 0;
}

int model_card_find(const struct model_card *card, const char *name, size_t len)
{
    if (len == 0)
        return 0;
    for (uint32_t i = 0; i < card->n_names; i++)
        if (strlen(card->names[i]) == len && memcmp(card->names[i], name, len) == 0)
            return (int)i;
    return -1;
}
