#include "rpc/gateway/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/model_names.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/routes.h"

#define LOG_MODULE "completion"
#include "common/base/log.h"

enum {
    FIRST_COMMENT_MS = 5000, /* interface.md: headers go out with the first event or after 5 s */
    COMMENT_MS = 4500,       /* at least every 5 s, with room for a late tick */
    LOST_MS = 1500,          /* a coordinator that restarts is away this long; a client does not notice */
    RETRY_MS = 100,
    TEXT_MAX_BYTES = 256 << 20,
};

enum completion_state {
    COMPLETION_WAITING, /* no call is open; the tick submits at retry_ns */
    COMPLETION_CALLING, /* a call is open, no text has come */
    COMPLETION_TALKING, /* text has come */
    COMPLETION_CLOSING, /* the client has its answer, or left; the call is not ended yet */
    COMPLETION_ENDED,
};

struct completion {
    struct exchange *x;
    struct request request;
    struct answer_head head;
    char id[40]; /* of the request at the coordinator: never the client's own, which others could use too */
    enum completion_state state;
    struct generate_stream *gs;
    uint32_t attempt;
    int64_t lost_ns, retry_ns, output_ns; /* lost: since when no coordinator answers, 0: it does */
    uint32_t queue_position, read_tokens, prompt_tokens;
    int first_sent, paused;
    struct buf text; /* not streaming: the answer so far */
    struct buf ids, prompt_ids;
};

static void set_state(struct completion *c, enum completion_state to)
{
    trace_event("completion", (int64_t)c->x->serial, c->state, to, c->attempt);
    c->state = to;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* Nothing is under way any more. Whoever calls this holds a reference of his own. */
static void end_idle(struct completion *c)
{
    set_state(c, COMPLETION_ENDED);
    exchange_release(c->x);
}

/* The answer is complete or will not be: what is left of the call is ended. */
static void close_call(struct completion *c, int cancel)
{
    if (!c->gs) {
        end_idle(c);
        return;
    }
    set_state(c, COMPLETION_CLOSING);
    if (cancel)
        generate_stream_cancel(c->gs);
}

static void tell_error(struct completion *c, const struct error *err)
{
    struct exchange *x = c->x;
    if (openai_http_status(err) >= 500 && err->status != STATUS_UNSUPPORTED)
        LOG_INFO("req %s: failed: %s: %s", x->request_id, status_name(err->status), err->message);
    if (!x->streaming) {
        exchange_reply_error(x, err);
        return;
    }
    openai_error_event(exchange_stream_out(x), err);
    exchange_stream_end(x);
}

static void fail(struct completion *c, const struct error *err)
{
    tell_error(c, err);
    if (c->state != COMPLETION_CLOSING && c->state != COMPLETION_ENDED)
        close_call(c, 1);
}

/* --- submitting --------------------------------------------------------------------------------------------------- */

/* No coordinator at the moment. While nothing was said to the client it is a pause, up to LOST_MS. */
static void lost(struct completion *c, const char *why)
{
    struct error err;
    int64_t now = clock_now_ns();
    if (c->state == COMPLETION_TALKING) {
        error_param(&err, STATUS_PIPELINE_LOST, NULL, "coordinator_lost",
                    "the coordinator was lost during the answer: %.200s", why);
        fail(c, &err);
        return;
    }
    if (!c->lost_ns)
        c->lost_ns = now;
    if (now - c->lost_ns > LOST_MS * NS_PER_MS) {
        error_param(&err, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s",
                    why);
        err.retry_after_s = 2;
        fail(c, &err);
        return;
    }
    set_state(c, COMPLETION_WAITING);
    c->retry_ns = now + RETRY_MS * NS_PER_MS;
}

static const struct generate_events events;

static void submit(struct completion *c)
{
    struct exchange *x = c->x;
    struct error err;
    if (!c->head.model[0]) {
        enum status s = model_names_choose(x->gw->backend, c->request.model, c->head.model, sizeof c->head.model, &err);
        if (s != STATUS_OK) {
            if (s == STATUS_CLOSED)
                lost(c, "it has not told its model yet");
            else
                fail(c, &err);
            return;
        }
    }
    struct generate_request *q = &c->request.generate;
    q->request_id = (struct bytes){c->id, strlen(c->id)};
    q->client = (struct bytes){x->client, strlen(x->client)};
    q->attempt = c->attempt++;
    enum status s = inference_generate(backend_channel(x->gw->backend), q, &events, c, &c->gs, &err);
    if (s == STATUS_OK)
        set_state(c, COMPLETION_CALLING);
    else if (s == STATUS_CLOSED)
        lost(c, err.message);
    else
        fail(c, &err);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static void begin_stream(struct completion *c)
{
    exchange_stream_begin(c->x);
    c->output_ns = clock_now_ns();
}

/* The stream's head, once, in front of the first text or the end. */
static struct buf *out_with_head(struct completion *c)
{
    struct buf *out = exchange_stream_out(c->x);
    if (!c->x->streaming)
        begin_stream(c);
    if (!c->first_sent) {
        c->head.prompt_ids = (const uint32_t *)(const void *)c->prompt_ids.data;
        c->head.n_prompt_ids = c->prompt_ids.len / sizeof(uint32_t);
        openai_first_chunk(out, &c->head);
        c->first_sent = 1;
    }
    return out;
}

/* Asks for the next event unless the client is slow; then room() does. The end of a call is always asked for. */
static void next(struct completion *c)
{
    if (c->state != COMPLETION_CLOSING && c->x->streaming && c->x->out.len >= EXCHANGE_OUT_HIGH) {
        c->x->full = c->paused = 1;
        return;
    }
    generate_stream_next(c->gs);
}

static void on_accepted(struct completion *c, const struct generate_event *e)
{
    openai_fingerprint(e->profile, c->head.fingerprint);
    c->prompt_tokens = e->prompt_tokens;
    buf_clear(&c->prompt_ids);
    if (c->head.return_token_ids)
        buf_append(&c->prompt_ids, e->ids, e->n_ids * sizeof *e->ids);
}

static void on_progress(struct completion *c, const struct generate_event *e)
{
    c->queue_position = e->queue_position;
    c->read_tokens = e->read_tokens;
    if (e->prompt_tokens)
        c->prompt_tokens = e->prompt_tokens;
}

static void on_text(struct completion *c, const struct generate_event *e)
{
    set_state(c, COMPLETION_TALKING);
    if (!c->request.stream) {
        buf_append(&c->text, e->text.data, e->text.len);
        if (c->head.return_token_ids)
            buf_append(&c->ids, e->ids, e->n_ids * sizeof *e->ids);
        return;
    }
    if (!e->text.len && !c->head.return_token_ids)
        return; /* a part of a character */
    openai_text_chunk(out_with_head(c), &c->head, e->text, e->ids, e->n_ids);
    c->output_ns = clock_now_ns();
    exchange_stream_written(c->x);
}

static void reply_whole(struct completion *c, const struct generate_event *e)
{
    struct buf body;
    struct error err;
    if (c->text.failed || c->ids.failed || c->prompt_ids.failed) {
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the answer");
        tell_error(c, &err);
        return;
    }
    c->head.prompt_ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    c->head.n_prompt_ids = c->prompt_ids.len / sizeof(uint32_t);
    buf_init(&body, 7 * c->text.len + 12 * (c->ids.len + c->prompt_ids.len) / 4 + (64 << 10));
    openai_answer(&body, &c->head, (struct bytes){c->text.data ? c->text.data : "", c->text.len},
                  (const uint32_t *)(const void *)c->ids.data, c->ids.len / sizeof(uint32_t), e->finish, &e->usage);
    exchange_reply(c->x, 200, "application/json", &body);
}

static void on_done(struct completion *c, const struct generate_event *e)
{
    struct error err;
    if (e->finish != FINISH_STOP && e->finish != FINISH_LENGTH) {
        error_set(&err, STATUS_PROTOCOL, "the coordinator ended the answer without a reason");
        fail(c, &err);
        return;
    }
    if (c->request.stream) {
        openai_last_chunks(out_with_head(c), &c->head, e->finish, &e->usage);
        exchange_stream_end(c->x);
    } else {
        reply_whole(c, e);
    }
    LOG_DEBUG("req %s: %u prompt tokens (%u cached), %u answered", c->x->request_id, e->usage.prompt_tokens,
              e->usage.cached_tokens, e->usage.completion_tokens);
    if (c->state != COMPLETION_CLOSING) /* unless the output failed, which closed it */
        close_call(c, 0);
}

static void on_event(void *ctx, struct generate_stream *gs, const struct generate_event *e)
{
    struct completion *c = ctx;
    (void)gs;
    pthread_mutex_lock(&c->x->lock);
    if (c->state == COMPLETION_CALLING || c->state == COMPLETION_TALKING) {
        c->lost_ns = 0;
        switch (e->kind) {
        case GENERATE_ACCEPTED:
            on_accepted(c, e);
            break;
        case GENERATE_PROGRESS:
            on_progress(c, e);
            break;
        case GENERATE_TEXT:
            on_text(c, e);
            break;
        case GENERATE_DONE:
            on_done(c, e);
            break;
        }
        next(c);
    }
    pthread_mutex_unlock(&c->x->lock);
}

/* The call ended before the answer did. */
static void on_broken(struct completion *c, const struct error *err)
{
    struct error told = *err;
    if (err->status == STATUS_CLOSED) {
        lost(c, err->message);
        return;
    }
    if (err->status == STATUS_OK)
        error_set(&told, STATUS_PROTOCOL, "the coordinator ended the answer early");
    else if (err->status == STATUS_CANCELLED) /* not by us: the coordinator ended */
        error_set(&told, STATUS_PIPELINE, "the coordinator gave the request up");
    fail(c, &told);
}

static void on_end(void *ctx, struct generate_stream *gs, const struct error *err)
{
    struct completion *c = ctx;
    struct exchange *x = c->x;
    pthread_mutex_lock(&x->lock);
    exchange_retain(x); /* ending gives the operation's reference back, and the lock is held */
    generate_stream_release(gs);
    c->gs = NULL;
    if (c->state == COMPLETION_CLOSING)
        end_idle(c);
    else
        on_broken(c, err);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}

static const struct generate_events events = {.on_event = on_event, .on_end = on_end};

/* --- the exchange's side ------------------------------------------------------------------------------------------ */

static void comment(struct completion *c)
{
    struct buf *out = exchange_stream_out(c->x);
    begin_stream(c);
    if (c->state == COMPLETION_TALKING)
        buf_text(out, ": waiting\n\n");
    else if (c->queue_position || !c->prompt_tokens)
        buf_printf(out, ": queued %u\n\n", c->queue_position);
    else
        buf_printf(out, ": reading %u/%u\n\n", c->read_tokens, c->prompt_tokens);
    exchange_stream_written(c->x);
}

static void op_tick(struct exchange *x, int64_t now_ns)
{
    struct completion *c = x->op;
    if (c->state == COMPLETION_WAITING && now_ns >= c->retry_ns)
        submit(c);
    int64_t after = x->streaming ? COMMENT_MS : FIRST_COMMENT_MS;
    /* What waits in the output already keeps the connection busy. */
    if (c->request.stream && c->state < COMPLETION_CLOSING && !x->out.len && now_ns - c->output_ns >= after * NS_PER_MS)
        comment(c);
}

static void op_gone(struct exchange *x)
{
    struct completion *c = x->op;
    if (c->state < COMPLETION_CLOSING)
        close_call(c, 1);
}

static void op_room(struct exchange *x)
{
    struct completion *c = x->op;
    if (c->paused && c->gs && c->state < COMPLETION_CLOSING)
        generate_stream_next(c->gs);
    c->paused = 0;
}

static void op_expire(struct exchange *x, const struct error *why)
{
    struct completion *c = x->op;
    if (c->state < COMPLETION_CLOSING)
        fail(c, why);
}

static void op_fini(struct exchange *x)
{
    struct completion *c = x->op;
    request_fini(&c->request);
    buf_fini(&c->text);
    buf_fini(&c->ids);
    buf_fini(&c->prompt_ids);
    free(c);
}

static const struct exchange_ops ops = {
    .tick = op_tick, .gone = op_gone, .room = op_room, .expire = op_expire, .fini = op_fini};

static void name_answer(struct completion *c)
{
    uint8_t raw[12] = {0};
    char hex[2 * sizeof raw + 1];
    if (getrandom(raw, sizeof raw, GRND_NONBLOCK) != (ssize_t)sizeof raw)
        memcpy(raw, &c->x->serial, sizeof c->x->serial);
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(hex + 2 * i, 3, "%02x", raw[i]);
    snprintf(c->id, sizeof c->id, "req-%s", hex);
    snprintf(c->head.id, sizeof c->head.id, "%s-%s", c->request.endpoint == ENDPOINT_CHAT ? "chatcmpl" : "cmpl", hex);
    c->head.endpoint = c->request.endpoint;
    c->head.created_s = clock_wall_s();
    c->head.include_usage = c->request.include_usage;
    c->head.return_token_ids = c->request.return_token_ids;
}

void completion_start(struct exchange *x)
{
    struct error err;
    struct completion *c = calloc(1, sizeof *c);
    enum status s = c ? STATUS_OK : error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    if (c) {
        c->x = x;
        c->output_ns = x->started_ns;
        request_init(&c->request, x->route->endpoint, x->body.len);
        buf_init(&c->text, TEXT_MAX_BYTES);
        buf_init(&c->ids, TEXT_MAX_BYTES);
        buf_init(&c->prompt_ids, TEXT_MAX_BYTES);
        s = request_parse(&c->request, x->body.data, x->body.len, &err);
        name_answer(c);
    }
    pthread_mutex_lock(&x->lock);
    if (c) {
        x->ops = &ops;
        x->op = c;
        exchange_retain(x);
    }
    if (!c)
        exchange_reply_error(x, &err);
    else if (s != STATUS_OK)
        fail(c, &err);
    else if (x->gone) /* while a large body was parsed */
        close_call(c, 0);
    else
        submit(c);
    pthread_mutex_unlock(&x->lock);
}
