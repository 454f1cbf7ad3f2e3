#include "rpc/grpc/generate_call.h"

#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"

#define GENERATE_OF(c) ((struct generate_call *)(void *)(c))

/* --- the queue: base.lock held ----------------------------------------------------------------------------------------- */

static struct queued_event *tail(struct generate_call *g)
{
    return g->n_queued ? &g->queue[(g->head + g->n_queued - 1) % MAX_QUEUED] : NULL;
}

static void push(struct generate_call *g, struct queued_event q)
{
    ASSERT(g->n_queued < MAX_QUEUED);
    g->queue[(g->head + g->n_queued++) % MAX_QUEUED] = q;
}

static void clear_text(struct generate_call *g)
{
    buf_clear(&g->text);
    g->n_ids = g->n_logprobs = 0;
    g->has_usage = 0;
}

static struct queued_event close_text(struct generate_call *g)
{
    struct generate_event e = {.kind = GENERATE_TEXT, .text = {g->text.data, g->text.len}, .ids = g->ids, .n_ids = g->n_ids,
                               .logprobs = g->logprobs, .n_logprobs = g->n_logprobs, .has_usage = g->has_usage,
                               .usage = g->usage};
    struct queued_event q = {inference_wire_pack_event(&e), GENERATE_TEXT,
                             g->text.len + g->n_logprobs * sizeof *g->logprobs, g->n_ids};
    if (q.message) /* else it stays open and is tried again */
        clear_text(g);
    return q;
}

static int text_is_open(const struct generate_call *g)
{
    return g->text.len || g->n_ids;
}

static grpc_byte_buffer *pull(struct rpc_call *c)
{
    struct generate_call *g = GENERATE_OF(c);
    struct queued_event q = {0};
    g->unsent_bytes -= g->out_bytes;
    g->unsent_ids -= g->out_ids;
    if (g->n_queued) {
        q = g->queue[g->head];
        g->head = (g->head + 1) % MAX_QUEUED;
        g->n_queued--;
    } else if (text_is_open(g)) {
        q = close_text(g);
    }
    g->out_bytes = q.message ? q.bytes : 0;
    g->out_ids = q.message ? q.n_ids : 0;
    return q.message;
}

/* Room for n more of an array's items; array: the address of its pointer. */
static int grow(void *array, size_t item_bytes, size_t n_now, size_t n, size_t *max_n)
{
    void *old;
    if (n <= *max_n - n_now)
        return 1;
    size_t max = *max_n ? *max_n : 16;
    while (max < n_now + n)
        max *= 2;
    memcpy(&old, array, sizeof old);
    void *new = realloc(old, max * item_bytes);
    if (!new)
        return 0;
    memcpy(array, &new, sizeof new);
    *max_n = max;
    return 1;
}

static int items_fit(struct generate_call *g, const struct generate_event *e)
{
    return grow(&g->ids, sizeof *g->ids, g->n_ids, e->n_ids, &g->max_ids) &&
           grow(&g->logprobs, sizeof *g->logprobs, g->n_logprobs, e->n_logprobs, &g->max_logprobs);
}

static enum status queue_text(struct generate_call *g, const struct generate_event *e)
{
    const size_t bytes = e->text.len + e->n_logprobs * sizeof *e->logprobs;
    ASSERT(e->n_logprobs == 0 || (e->n_logprobs == e->n_ids && g->n_logprobs == g->n_ids));
    /* Something is always taken when nothing waits, so that one large event cannot be refused for ever. */
    if ((g->unsent_bytes || g->unsent_ids) && (g->unsent_bytes + bytes > MAX_UNSENT_BYTES ||
                                               g->unsent_ids + e->n_ids > MAX_UNSENT_IDS))
        return STATUS_FULL;
    if (!items_fit(g, e) || buf_append(&g->text, e->text.data, e->text.len) != STATUS_OK)
        return STATUS_OUT_OF_MEMORY;
    if (e->n_ids)
        memcpy(g->ids + g->n_ids, e->ids, e->n_ids * sizeof *e->ids);
    if (e->n_logprobs)
        memcpy(g->logprobs + g->n_logprobs, e->logprobs, e->n_logprobs * sizeof *e->logprobs);
    if (e->has_usage) {
        g->has_usage = 1;
        g->usage = e->usage;
    }
    g->n_ids += e->n_ids;
    g->n_logprobs += e->n_logprobs;
    g->unsent_bytes += bytes;
    g->unsent_ids += e->n_ids;
    return STATUS_OK;
}

static enum status queue_other(struct generate_call *g, const struct generate_event *e)
{
    struct queued_event *last = tail(g);
    int replace = e->kind == GENERATE_PROGRESS && last && last->kind == GENERATE_PROGRESS && !text_is_open(g);
    if (!replace && g->n_queued + (size_t)text_is_open(g) + 1 > MAX_QUEUED)
        return STATUS_FULL;
    struct queued_event q = {inference_wire_pack_event(e), e->kind, 0, 0}, text = {0};
    if (q.message && !replace && text_is_open(g))
        text = close_text(g);
    if (!q.message || (!replace && text_is_open(g))) { /* no memory: nothing was queued, the text is still open */
        if (q.message)
            grpc_byte_buffer_destroy(q.message);
        return STATUS_OUT_OF_MEMORY;
    }
    if (replace) {
        grpc_byte_buffer_destroy(last->message);
        *last = q;
        return STATUS_OK;
    }
    if (text.message)
        push(g, text);
    push(g, q);
    return STATUS_OK;
}

static void drop_queue(struct generate_call *g)
{
    for (; g->n_queued; g->n_queued--) {
        grpc_byte_buffer_destroy(g->queue[g->head].message);
        g->head = (g->head + 1) % MAX_QUEUED;
    }
    clear_text(g);
    g->unsent_bytes = g->out_bytes;
    g->unsent_ids = g->out_ids;
}

/* --- the call ---------------------------------------------------------------------------------------------------------- */

static void on_open(struct rpc_call *c)
{
    struct generate_call *g = GENERATE_OF(c);
    buf_init(&g->text, (size_t)16 << 20);
    rpc_call_read(c);
}

/* A peer without the secret is who its key or address says, not who it claims to be. */
static struct bytes client_of(const struct rpc_call *c, struct bytes claimed)
{
    if (c->trusted)
        return claimed;
    const char *name = c->identity[0] ? c->identity : c->peer;
    return (struct bytes){name, strlen(name)};
}

static int64_t ms_left(int64_t deadline_ns)
{
    int64_t left = (deadline_ns - clock_now_ns()) / NS_PER_MS;
    return left > 0 ? left : 1;
}

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct generate_call *g = GENERATE_OF(c);
    const struct inference_service *svc = c->service;
    struct generate_request r;
    struct error err;
    if (g->started)
        return;
    if (!b) {
        error_set(&err, STATUS_BAD_REQUEST, "Generate without a request");
        rpc_call_finish(c, &err);
        return;
    }
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, b))
        return;
    grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    enum status st = inference_wire_unpack_request(GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s),
                                                   rpc_loop__scratch(c->loop), &r, &err);
    grpc_slice_unref(s);
    if (st != STATUS_OK) {
        rpc_call_finish(c, &err);
        return;
    }
    r.client = client_of(c, r.client);
    if (!r.deadline_ms && c->deadline_ns)
        r.deadline_ms = ms_left(c->deadline_ns);
    g->started = 1;
    svc->generate(svc->ctx, g, &r);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct generate_call *g = GENERATE_OF(c);
    const struct inference_service *svc = c->service;
    (void)e;
    pthread_mutex_lock(&c->lock);
    drop_queue(g);
    pthread_mutex_unlock(&c->lock);
    if (g->started)
        svc->generate_closed(svc->ctx, g);
}

static void destroy(struct rpc_call *c)
{
    struct generate_call *g = GENERATE_OF(c);
    buf_fini(&g->text);
    free(g->ids);
    free(g->logprobs);
    rpc_call_fini(c);
    free(g);
}

const struct rpc_call_ops generate_call__ops = {
    .pull = pull, .on_open = on_open, .on_message = on_message, .on_closed = on_closed, .destroy = destroy};

/* --- inference_api.h --------------------------------------------------------------------------------------------------- */

void generate_call_retain(struct generate_call *g)
{
    rpc_call_retain(&g->base);
}

void generate_call_release(struct generate_call *g)
{
    rpc_call_release(&g->base);
}

void generate_call_set_data(struct generate_call *g, void *data)
{
    g->data = data;
}

void *generate_call_data(const struct generate_call *g)
{
    return g->data;
}

int generate_call_trusted(const struct generate_call *g)
{
    return g->base.trusted;
}

const char *generate_call_peer(const struct generate_call *g)
{
    return g->base.peer;
}

enum status generate_call_send(struct generate_call *g, const struct generate_event *e)
{
    enum status st;
    pthread_mutex_lock(&g->base.lock);
    if (g->base.closed || g->base.finishing)
        st = STATUS_CLOSED;
    else
        st = e->kind == GENERATE_TEXT ? queue_text(g, e) : queue_other(g, e);
    pthread_mutex_unlock(&g->base.lock);
    if (st == STATUS_OK)
        rpc_call_kick(&g->base);
    return st;
}

size_t generate_call_unsent_bytes(const struct generate_call *g)
{
    struct rpc_call *c = (struct rpc_call *)(uintptr_t)&g->base;
    pthread_mutex_lock(&c->lock);
    size_t n = g->unsent_bytes;
    pthread_mutex_unlock(&c->lock);
    return n;
}

int64_t generate_call_stalled_since_ns(const struct generate_call *g)
{
    struct rpc_call *c = (struct rpc_call *)(uintptr_t)&g->base;
    pthread_mutex_lock(&c->lock);
    int64_t ns = c->sending && !c->closed ? c->send_started_ns : 0;
    pthread_mutex_unlock(&c->lock);
    return ns;
}

void generate_call_finish(struct generate_call *g, const struct error *err)
{
    if (err && err->status == STATUS_WRITE_STALLED) {
        /* The peer reads nothing: a status behind the queue would never leave. */
        rpc_call_cancel(&g->base, err);
        return;
    }
    rpc_call_finish(&g->base, err);
}
