#include "rpc/gateway/completion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/model_names.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/routes.h"

#define LOG_MODULE "completion"
#include "common/base/log.h"

enum {
    FIRST_COMMENT_MS = 5000, /* interface.md: headers go out with the first event or after 5 s */
    COMMENT_MS = 4500,       /* at least every 5 s, with room for a late tick */
    RETRY_MS = 50,
    BLIND_RETRY_MS = 1000,   /* while the backend hears nothing from the coordinator either */
    NEW_WAIT_MS = 10000,     /* a request that no coordinator has accepted waits so long for one that was there, */
    NEVER_WAIT_MS = 1500,    /* and so long for one that this process has never seen */
    MAX_IN_VAIN = 10,        /* losses in a row without a token between them: it may be this request that ends coordinators */
    TEXT_MAX_BYTES = 256 << 20,
};

enum completion_state {
    COMPLETION_WAITING, /* no call is open, before the answer or amid it; the tick submits at retry_ns */
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
    int told_to_end;                      /* lost because the coordinator was told to end */
    uint32_t n_in_vain;
    uint32_t queue_position, read_tokens, prompt_tokens;
    int first_sent, paused;
    int adopted; /* by this process: the one before has seen a coordinator */
    struct buf text; /* not streaming: the answer so far */
    /* What another attempt goes on with: token "": no attempt was accepted, so it is the request as it came. */
    char token[MAX_RESUME_TOKEN];
    size_t n_token;
    uint64_t seed;
    struct buf ids, prompt_ids;
    struct usage usage; /* of the first text */
    int64_t text_ns;    /* when it came, 0: it has not */
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

static void give_up(struct completion *c, const char *why)
{
    struct error err;
    if (c->text_ns) {
        error_param(&err, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    why);
    } else {
        error_param(&err, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s", why);
        err.retry_after_s = 2;
    }
    fail(c, &err);
}

static int is_over(const struct completion *c, int64_t now)
{
    int64_t ms = c->x->gw->config->recovery_timeout_ms;
    int64_t new_ms = c->adopted || backend_answered_once(c->x->gw->backend) ? NEW_WAIT_MS : NEVER_WAIT_MS;
    if (!c->n_token && new_ms < ms)
        ms = new_ms;
    return c->lost_ns && now - c->lost_ns > ms * NS_PER_MS;
}

/* A coordinator that gives no tokens cannot go on with what it began. */
static int cannot_go_on(const struct completion *c)
{
    return (c->text_ns && !c->n_token) || c->n_in_vain > MAX_IN_VAIN || c->ids.failed || c->prompt_ids.failed;
}

/* No coordinator at the moment: a pause, whatever the client has heard, up to --recovery-timeout-ms. Who was never accepted is
 * told sooner, and can try elsewhere. */
static void lost(struct completion *c, const char *why)
{
    int64_t now = clock_now_ns();
    if (!c->lost_ns) {
        c->lost_ns = now;
        if (c->n_token)
            LOG_INFO("req %s: attempt %u lost after %zu answer tokens: %.200s", c->x->request_id, c->attempt - 1,
                     c->ids.len / sizeof(uint32_t), why);
    }
    if (is_over(c, now) || cannot_go_on(c)) {
        give_up(c, why);
        return;
    }
    set_state(c, COMPLETION_WAITING);
    c->retry_ns = now + RETRY_MS * NS_PER_MS;
}

static void submit(struct completion *c);

/* A place at the coordinator is asked for when the backend hears it: thousands may wait. */
static void retry(struct completion *c, int64_t now)
{
    if (is_over(c, now)) {
        give_up(c, "it did not come back");
    } else if (c->told_to_end && atomic_load(&c->x->gw->draining)) {
        give_up(c, "the service is ending");
    } else if (now >= c->retry_ns && !c->paused) { /* paused: its client does not read now */
        int blind = !backend_answers(c->x->gw->backend);
        if (!blind || now >= c->retry_ns + (BLIND_RETRY_MS - RETRY_MS) * NS_PER_MS)
            submit(c);
    }
}

static const struct generate_events events;

/* Goes on where the answer was lost: the prompt by its ids, with the seed and the token of the attempt that was accepted. */
static void ask_for_the_rest(struct completion *c, struct generate_request *q, int64_t now)
{
    q->prompt = PROMPT_IDS;
    q->text = q->chat_json = (struct bytes){"", 0};
    q->ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    q->n_ids = c->prompt_ids.len / sizeof(uint32_t);
    q->sampler.seed = c->seed;
    q->has_seed = 1;
    q->resume = (struct generate_resume){.token = {c->token, c->n_token},
                                         .ids = (const uint32_t *)(const void *)c->ids.data,
                                         .n_ids = c->ids.len / sizeof(uint32_t),
                                         .usage = c->usage};
    if (c->text_ns)
        q->resume.usage.decode_ms = (double)(now - c->text_ns) / 1e6;
    else
        q->resume.usage.queue_ms = (double)(now - c->x->started_ns) / 1e6;
}

/* 0: there is none left. */
static int take_time(struct completion *c, struct generate_request *q, int64_t now)
{
    if (q->deadline_ms <= 0 || c->attempt == 0)
        return 1;
    q->deadline_ms -= (now - c->x->started_ns) / NS_PER_MS;
    return q->deadline_ms > 0;
}

static void submit(struct completion *c)
{
    struct exchange *x = c->x;
    struct error err;
    int64_t now = clock_now_ns();
    if (!c->head.model[0]) {
        enum status s = model_names_choose(x->gw->backend, c->request.model, c->head.model, sizeof c->head.model, &err);
        if (s != STATUS_OK) {
            if (s == STATUS_CLOSED)
                lost(c, "it has not told its model yet");
            else
                fail(c, &err);
            return;
        }
        if (x->keeper)
            kept_write_model(x->keeper, c->head.model);
    }
    struct generate_request q = c->request.generate;
    q.request_id = (struct bytes){c->id, strlen(c->id)};
    q.client = (struct bytes){x->client, strlen(x->client)};
    if (c->n_token)
        ask_for_the_rest(c, &q, now);
    if (!take_time(c, &q, now)) {
        error_set(&err, STATUS_TIMEOUT, "the request's deadline passed while no coordinator answered");
        fail(c, &err);
        return;
    }
    q.attempt = c->attempt++;
    if (x->keeper)
        keeper_state(x->keeper)->attempt = c->attempt;
    exchange_publish(x);
    enum status s = inference_generate(backend_channel(x->gw->backend), &q, &events, c, &c->gs, &err);
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

static void keep_accepted(struct completion *c)
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
    keep_accepted(c);
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
    c->n_in_vain = 0;
    buf_append(&c->ids, e->ids, e->n_ids * sizeof *e->ids);
    if (!c->text_ns) {
        c->text_ns = clock_now_ns();
        c->usage = e->usage;
        if (c->x->keeper)
            kept_write_first(c->x->keeper, &(struct kept_first){c->usage, c->text_ns});
    }
    if (c->x->keeper)
        kept_write_text(c->x->keeper, e->ids, e->n_ids, c->request.stream ? NULL : &e->text);
    if (!c->request.stream) {
        buf_append(&c->text, e->text.data, e->text.len);
        exchange_publish(c->x);
        return;
    }
    if (!e->text.len && !c->head.return_token_ids) { /* a part of a character */
        exchange_publish(c->x);
        return;
    }
    openai_text_chunk(out_with_head(c), &c->head, e->text, e->ids, e->n_ids);
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

/* It was told to end, or has ended: another one may come. Not the service as a whole, of which this process is a part. */
static int is_restart(const struct completion *c, const struct error *err)
{
    return c->n_token && (err->status == STATUS_DRAINING || (err->status == STATUS_CANCELLED && !err->code[0])) &&
           !atomic_load(&c->x->gw->draining);
}

/* A coordinator that has just come may not take it yet: it was accepted once, so that is no refusal. */
static int is_not_yet(const struct completion *c, const struct error *err)
{
    return c->lost_ns && (err->status == STATUS_DRAINING || err->status == STATUS_QUEUE_FULL || err->status == STATUS_FULL ||
                          err->status == STATUS_PIPELINE || err->status == STATUS_OUT_OF_MEMORY);
}

/* A coordinator with another secret: whoever has heard nothing begins anew. */
static int begins_anew(struct completion *c, const struct error *err)
{
    if (err->status != STATUS_FORBIDDEN || strcmp(err->code, "resume_token") != 0 || !c->n_token || c->text_ns)
        return 0;
    c->n_token = 0;
    keep_accepted(c);
    return 1;
}

/* The call ended before the answer did. */
static void on_broken(struct completion *c, const struct error *err)
{
    struct error told = *err;
    c->n_in_vain += !c->lost_ns && c->n_token;
    c->told_to_end |= err->status == STATUS_DRAINING;
    if (err->status == STATUS_CLOSED || is_restart(c, err) || is_not_yet(c, err) || begins_anew(c, err)) {
        lost(c, err->message);
        return;
    }
    if (err->status == STATUS_OK)
        error_set(&told, STATUS_PROTOCOL, "the coordinator ended the answer early");
    else if (err->status == STATUS_CANCELLED) /* not by us: the coordinator ended */
        error_set(&told, STATUS_PIPELINE, "the coordinator gave the request up");
    else if (err->status == STATUS_FORBIDDEN && c->n_token)
        error_param(&told, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    err->message);
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
        retry(c, now_ns);
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
        s = request_parse(&c->request, x->body.data, x->body.len, &err);
        name_answer(c);
    }
    pthread_mutex_lock(&x->lock);
    if (c)
        attach(c);
    if (!c) {
        exchange_reply_error(x, &err);
    } else if (s != STATUS_OK) {
        fail(c, &err);
    } else if (x->gone) { /* while a large body was parsed */
        close_call(c, 0);
    } else {
        keep_request(c);
        submit(c);
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
    enum status s = request_parse(&c->request, k->body.data, k->body.len, &err);
    name_answer(c);
    take_kept(c, k);
    attach(c);
    c->adopted = 1;
    c->output_ns = c->lost_ns = clock_now_ns(); /* the tick submits */
    if (s != STATUS_OK)
        fail(c, &err);
}
