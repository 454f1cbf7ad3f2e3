#include "rpc/gateway/completion_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/routes.h"

#define LOG_MODULE "completion"
#include "common/base/log.h"

enum {
    FIRST_COMMENT_MS = 5000, /* interface.md: headers go out with the first event or after 5 s */
    COMMENT_MS = 4500,       /* at least every 5 s, with room for a late tick */
    TEXT_MAX_BYTES = 256 << 20,
};

void completion__set_state(struct completion *c, enum completion_state to)
{
    trace_event("completion", (int64_t)c->x->serial, c->state, to, c->attempt);
    c->state = to;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* Nothing is under way any more. Whoever calls this holds a reference of his own. */
static void end_idle(struct completion *c)
{
    completion__set_state(c, COMPLETION_ENDED);
    exchange_release(c->x);
}

/* The answer is complete or will not be: what is left of the call is ended. */
static void close_call(struct completion *c, int cancel)
{
    if (!c->gs) {
        end_idle(c);
        return;
    }
    completion__set_state(c, COMPLETION_CLOSING);
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

void completion__fail(struct completion *c, const struct error *err)
{
    tell_error(c, err);
    if (c->state != COMPLETION_CLOSING && c->state != COMPLETION_ENDED)
        close_call(c, 1);
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
        if (c->x->keeper)
            keeper_state(c->x->keeper)->user_flags |= KEPT_TOLD;
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

void completion__keep_accepted(struct completion *c)
{
    struct kept_accepted a = {.seed = c->seed, .prompt_tokens = c->prompt_tokens, .n_token = (uint32_t)c->n_token};
    if (!c->x->keeper)
        return;
    memcpy(a.fingerprint, c->head.fingerprint, sizeof a.fingerprint);
    kept_write_accepted(c->x->keeper, &a, c->token, (const uint32_t *)(const void *)c->prompt_ids.data,
                        c->prompt_ids.len / sizeof(uint32_t));
    exchange_publish(c->x);
}

/* Of a later attempt nothing is new. */
static void on_accepted(struct completion *c, const struct generate_event *e)
{
    c->lost_ns = 0;
    c->told_to_end = 0;
    if (c->n_token)
        return;
    openai_fingerprint(e->profile, c->head.fingerprint);
    c->prompt_tokens = e->prompt_tokens;
    c->seed = e->seed;
    buf_clear(&c->prompt_ids);
    buf_append(&c->prompt_ids, e->ids, e->n_ids * sizeof *e->ids);
    if (e->resume_token.len && e->resume_token.len <= sizeof c->token) {
        memcpy(c->token, e->resume_token.data, e->resume_token.len);
        c->n_token = e->resume_token.len;
    }
    completion__keep_accepted(c);
}

static void on_progress(struct completion *c, const struct generate_event *e)
{
    c->queue_position = e->queue_position;
    c->read_tokens = e->read_tokens;
    if (e->prompt_tokens)
        c->prompt_tokens = e->prompt_tokens;
}

/* Into the journal, for the next publishing: which must have the text as well. */
static void keep_text(struct completion *c, const struct generate_event *e, int is_first)
{
    if (!c->x->keeper)
        return;
    if (is_first)
        kept_write_first(c->x->keeper, &(struct kept_first){c->usage, c->text_ns});
    kept_write_text(c->x->keeper, e->ids, e->n_ids, c->request.stream ? NULL : &e->text);
}

static void on_text(struct completion *c, const struct generate_event *e)
{
    int is_first = !c->text_ns;
    completion__set_state(c, COMPLETION_TALKING);
    c->n_in_vain = 0;
    buf_append(&c->ids, e->ids, e->n_ids * sizeof *e->ids);
    if (is_first) {
        c->text_ns = clock_now_ns();
        c->usage = e->usage;
    }
    if (!c->request.stream)
        buf_append(&c->text, e->text.data, e->text.len);
    if (!c->request.stream || (!e->text.len && !c->head.return_token_ids)) { /* or a part of a character */
        keep_text(c, e, is_first);
        exchange_publish(c->x);
        return;
    }
    struct buf *out = out_with_head(c); /* which may publish */
    keep_text(c, e, is_first);
    openai_text_chunk(out, &c->head, e->text, e->ids, e->n_ids);
    c->output_ns = clock_now_ns();
    exchange_stream_written(c->x);
}

static void reply_whole(struct completion *c, const struct generate_event *e)
{
    struct buf body;
    struct error err;
    int with_ids = c->head.return_token_ids;
    if (c->text.failed || (with_ids && (c->ids.failed || c->prompt_ids.failed))) {
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the answer");
        tell_error(c, &err);
        return;
    }
    c->head.prompt_ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    c->head.n_prompt_ids = c->prompt_ids.len / sizeof(uint32_t);
    buf_init(&body, 7 * c->text.len + (with_ids ? 12 * (c->ids.len + c->prompt_ids.len) / 4 : 0) + (64 << 10));
    openai_answer(&body, &c->head, (struct bytes){c->text.data ? c->text.data : "", c->text.len},
                  (const uint32_t *)(const void *)c->ids.data, c->ids.len / sizeof(uint32_t), e->finish, &e->usage);
    exchange_reply(c->x, 200, "application/json", &body);
}

static void on_done(struct completion *c, const struct generate_event *e)
{
    struct error err;
    if (e->finish != FINISH_STOP && e->finish != FINISH_LENGTH) {
        error_set(&err, STATUS_PROTOCOL, "the coordinator ended the answer without a reason");
        completion__fail(c, &err);
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
        completion__broken(c, err);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}

const struct generate_events completion__events = {.on_event = on_event, .on_end = on_end};

/* --- the exchange's side ------------------------------------------------------------------------------------------ */

static void comment(struct completion *c)
{
    struct buf *out = exchange_stream_out(c->x);
    begin_stream(c);
    if (c->text_ns)
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
    if (c->state == COMPLETION_WAITING)
        completion__retry(c, now_ns);
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
        completion__fail(c, why);
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
    c->head.created_s = clock_wall_s();
}

static enum status parse(struct completion *c, const void *body, size_t len, struct error *err)
{
    enum status s = request_parse(&c->request, body, len, err);
    c->head.endpoint = c->request.endpoint;
    c->head.include_usage = c->request.include_usage;
    c->head.return_token_ids = c->request.return_token_ids;
    return s;
}

static struct completion *create(struct exchange *x, enum endpoint endpoint, size_t body_len)
{
    struct completion *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->x = x;
    c->output_ns = x->started_ns;
    request_init(&c->request, endpoint, body_len);
    buf_init(&c->text, TEXT_MAX_BYTES);
    buf_init(&c->ids, TEXT_MAX_BYTES);
    buf_init(&c->prompt_ids, TEXT_MAX_BYTES);
    return c;
}

/* The operation is the exchange's, with a reference. (with its lock) */
static void attach(struct completion *c)
{
    c->x->ops = &ops;
    c->x->op = c;
    exchange_retain(c->x);
}

/* The process may die from here on: another one can go on with this. */
static void keep_request(struct completion *c)
{
    struct exchange *x = c->x;
    struct keeper *k = exchange_hold(x);
    if (!k)
        return;
    struct kept_request r = {.endpoint = c->request.endpoint,
                             .close_after = (uint32_t)x->close_after,
                             .created_s = c->head.created_s,
                             .started_ns = x->started_ns};
    memcpy(r.request_id, x->request_id, sizeof r.request_id);
    memcpy(r.client, x->client, sizeof r.client);
    memcpy(r.id, c->id, sizeof r.id);
    memcpy(r.answer_id, c->head.id, sizeof r.answer_id);
    kept_write_request(k, &r, x->body.data, x->body.len);
    exchange_publish(x);
}

void completion_start(struct exchange *x)
{
    struct error err;
    struct completion *c = create(x, x->route->endpoint, x->body.len);
    enum status s = c ? STATUS_OK : error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    if (c) {
        s = parse(c, x->body.data, x->body.len, &err);
        name_answer(c);
    }
    pthread_mutex_lock(&x->lock);
    if (c)
        attach(c);
    if (!c) {
        exchange_reply_error(x, &err);
    } else if (s != STATUS_OK) {
        completion__fail(c, &err);
    } else if (x->gone) { /* while a large body was parsed */
        close_call(c, 0);
    } else {
        keep_request(c);
        completion__submit(c);
    }
    pthread_mutex_unlock(&x->lock);
}

static void take_kept(struct completion *c, struct completion_kept *k)
{
    memcpy(c->id, k->request.id, sizeof c->id);
    memcpy(c->head.id, k->request.answer_id, sizeof c->head.id);
    c->head.created_s = k->request.created_s;
    memcpy(c->head.model, k->model, sizeof c->head.model);
    memcpy(c->head.fingerprint, k->accepted.fingerprint, sizeof c->head.fingerprint);
    c->prompt_tokens = k->accepted.prompt_tokens;
    c->seed = k->accepted.seed;
    c->n_token = k->token.len;
    if (c->n_token)
        memcpy(c->token, k->token.data, c->n_token);
    if (k->n_prompt_ids)
        buf_append(&c->prompt_ids, k->prompt_ids, k->n_prompt_ids * sizeof(uint32_t));
    buf_append(&c->ids, k->ids.data, k->ids.len);
    buf_append(&c->text, k->text.data, k->text.len);
    c->usage = k->first.usage;
    c->text_ns = k->first.text_ns;
    c->attempt = k->attempt;
    c->first_sent = k->told;
}

void completion_adopt(struct exchange *x, struct completion_kept *k)
{
    struct error err;
    struct completion *c = create(x, (enum endpoint)k->request.endpoint, k->body.len);
    if (!c) {
        exchange_leave(x);
        return;
    }
    enum status s = parse(c, k->body.data, k->body.len, &err);
    take_kept(c, k);
    attach(c);
    c->adopted = 1;
    c->output_ns = c->lost_ns = clock_now_ns(); /* the tick submits */
    if (s != STATUS_OK)
        completion__fail(c, &err);
}
