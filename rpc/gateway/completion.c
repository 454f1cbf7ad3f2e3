#include "rpc/gateway/completion_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/routes.h"
#include "rpc/gateway/server.h"

#define LOG_MODULE "completion"
#include "common/base/log.h"

enum {
    FIRST_COMMENT_MS = 5000, /* interface.md: headers go out with the first event or after 5 s */
    COMMENT_MS = 4500,       /* at least every 5 s, with room for a late tick */
};

void completion__set_state(struct choice *h, enum completion_state to)
{
    trace_event("completion", (int64_t)h->c->x->serial, h->state, to, h->attempt);
    h->state = to;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* Nothing is under way any more for it; with the last choice, for the exchange. Whoever calls this holds a reference of his own. */
static void end_idle(struct choice *h)
{
    completion__set_state(h, COMPLETION_ENDED);
    if (--h->c->n_open == 0)
        exchange_release(h->c->x);
}

void completion__close(struct choice *h, int cancel)
{
    if (!h->gs) {
        end_idle(h);
        return;
    }
    completion__set_state(h, COMPLETION_CLOSING);
    if (cancel)
        generate_stream_cancel(h->gs);
}

void completion__close_all(struct completion *c)
{
    c->over = 1;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->choices[i].state < COMPLETION_CLOSING)
            completion__close(&c->choices[i], 1);
}

/* As the coordinator's log and /v1/status call it, and as the client does where it gave a name of its own. */
const char *completion__name(const struct completion *c, char name[COMPLETION_NAME])
{
    snprintf(name, COMPLETION_NAME, c->x->named_by_client ? "%s (x-request-id %s)" : "%s", c->id, c->x->request_id);
    return name;
}

/* What many clients may be told at once, as long as it is full or ends. */
static int is_refusal(enum status s)
{
    return s == STATUS_QUEUE_FULL || s == STATUS_QUEUE_WAIT || s == STATUS_CLIENT_LIMIT || s == STATUS_DRAINING || s == STATUS_PIPELINE;
}

static void tell_error(struct completion *c, const struct error *err)
{
    struct exchange *x = c->x;
    char name[COMPLETION_NAME];
    if (is_refusal(err->status))
        LOG_SOME(LOG_LEVEL_INFO, "req %s: refused: %s: %s", completion__name(c, name), status_name(err->status), err->message);
    else if (openai_http_status(err) >= 500 && err->status != STATUS_UNSUPPORTED)
        LOG_WARN("req %s: failed: %s: %s", completion__name(c, name), status_name(err->status), err->message);
    if (!x->streaming) {
        exchange_reply_error(x, err);
        return;
    }
    openai_error_event(exchange_stream_out(x), err);
    exchange_stream_end(x);
}

void completion__fail(struct completion *c, const struct error *err)
{
    if (c->over)
        return;
    c->over = 1;
    tell_error(c, err);
    completion__close_all(c);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static void begin_stream(struct completion *c)
{
    exchange_stream_begin(c->x);
    c->output_ns = clock_now_ns();
}

static void name_prompt(struct completion *c)
{
    c->head.prompt_ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    c->head.n_prompt_ids = c->prompt_ids.len / sizeof(uint32_t);
}

/* The stream's head with the first chunk of every choice, once, in front of the first text or the end. */
static struct buf *out_with_head(struct completion *c)
{
    struct buf *out = exchange_stream_out(c->x);
    if (!c->x->streaming)
        begin_stream(c);
    if (!c->first_sent) {
        name_prompt(c);
        for (uint32_t i = 0; i < c->n; i++)
            openai_first_chunk(out, &c->head, i);
        c->first_sent = 1;
        if (c->x->keeper)
            keeper_state(c->x->keeper)->user_flags |= KEPT_TOLD;
    }
    return out;
}

/* Asks for the next event unless the client is slow; then room() does. The end of a call is always asked for. */
static void next(struct choice *h)
{
    struct exchange *x = h->c->x;
    if (h->state != COMPLETION_CLOSING && x->streaming && x->out.len >= EXCHANGE_OUT_HIGH) {
        x->full = h->paused = 1;
        return;
    }
    generate_stream_next(h->gs);
}

void completion__keep_accepted(struct choice *h)
{
    struct completion *c = h->c;
    struct kept_accepted a = {.choice = h->index, .seed = h->seed, .prompt_tokens = c->prompt_tokens, .n_token = (uint32_t)h->n_token};
    if (!c->x->keeper)
        return;
    memcpy(a.fingerprint, c->head.fingerprint, sizeof a.fingerprint);
    kept_write_accepted(c->x->keeper, &a, h->token, (const uint32_t *)(const void *)c->prompt_ids.data,
                        h->index == 0 ? c->prompt_ids.len / sizeof(uint32_t) : 0);
    exchange_publish(c->x);
}

/* Of a later attempt nothing is new. */
static void on_accepted(struct choice *h, const struct generate_event *e)
{
    struct completion *c = h->c;
    h->lost_ns = 0;
    h->told_to_end = 0;
    if (h->n_token)
        return;
    h->seed = e->seed;
    if (h->index == 0) {
        openai_fingerprint(e->profile, c->head.fingerprint);
        c->prompt_tokens = e->prompt_tokens;
        buf_clear(&c->prompt_ids);
        buf_append(&c->prompt_ids, e->ids, e->n_ids * sizeof *e->ids);
    }
    if (e->resume_token.len && e->resume_token.len <= sizeof h->token) {
        memcpy(h->token, e->resume_token.data, e->resume_token.len);
        h->n_token = e->resume_token.len;
    }
    completion__keep_accepted(h);
}

static void on_progress(struct choice *h, const struct generate_event *e)
{
    h->queue_position = e->queue_position;
    h->read_tokens = e->read_tokens;
    if (e->prompt_tokens)
        h->c->prompt_tokens = e->prompt_tokens;
}

/* Into the journal, for the next publishing: which must have the text as well. */
static void keep_text(struct choice *h, const struct generate_event *e, int is_first, size_t logprobs_at)
{
    struct completion *c = h->c;
    if (!c->x->keeper)
        return;
    if (is_first)
        kept_write_first(c->x->keeper, &(struct kept_first){h->index, h->usage, h->text_ns});
    kept_write_ids(c->x->keeper, h->index, h->chars, e->ids, e->n_ids);
    if (!c->request.stream)
        kept_write_text(c->x->keeper, h->index, e->text,
                        (struct bytes){h->logprobs.len > logprobs_at ? h->logprobs.data + logprobs_at : "", h->logprobs.len - logprobs_at});
}

/* The prompt is in the cache now. The tick opens their calls: this is the loop's thread. */
void completion__wake_others(struct completion *c)
{
    for (uint32_t i = 1; i < c->n; i++)
        if (c->choices[i].state == COMPLETION_IDLE)
            completion__set_state(&c->choices[i], COMPLETION_WAITING);
}

/* h->logprobs: of this event alone in a stream, else of all. */
static void write_chunk(struct choice *h, const struct generate_event *e, uint32_t offset)
{
    struct completion *c = h->c;
    struct answer_part part = {
        .index = h->index, .text = e->text, .ids = e->ids, .n_ids = e->n_ids, .text_offset = offset};
    if (e->n_logprobs)
        part.logprobs = (struct bytes){h->logprobs.data ? h->logprobs.data : "", h->logprobs.len};
    openai_text_chunk(exchange_stream_out(c->x), &c->head, &part);
    c->x->out.failed |= h->logprobs.failed;
    c->output_ns = clock_now_ns();
    exchange_stream_written(c->x);
}

static void on_text(struct choice *h, const struct generate_event *e)
{
    struct completion *c = h->c;
    int is_first = !h->text_ns;
    uint32_t offset = h->chars;
    completion__set_state(h, COMPLETION_TALKING);
    h->n_in_vain = 0;
    buf_append(&h->ids, e->ids, e->n_ids * sizeof *e->ids);
    if (is_first) {
        h->text_ns = clock_now_ns();
        h->usage = e->usage;
        if (h->index == 0)
            completion__wake_others(c);
    }
    if (c->request.stream)
        buf_clear(&h->logprobs);
    else
        buf_append(&h->text, e->text.data, e->text.len);
    size_t logprobs_at = h->logprobs.len;
    logprobs_keep(&h->logprobs, e->logprobs, e->n_logprobs);
    if (c->pieces)
        h->chars += logprobs_chars(e->ids, e->n_ids, c->pieces);
    if (!c->request.stream || (!e->text.len && !e->n_logprobs && !c->head.return_token_ids)) { /* or a part of a character */
        keep_text(h, e, is_first, logprobs_at);
        exchange_publish(c->x);
        return;
    }
    out_with_head(c); /* which may publish */
    keep_text(h, e, is_first, logprobs_at);
    write_chunk(h, e, offset);
}

/* The prompt was read once; the times are the first answer's, to the end of the longest. */
static struct usage usage_of_all(const struct completion *c)
{
    struct usage u = c->choices[0].usage;
    for (uint32_t i = 1; i < c->n; i++) {
        u.completion_tokens += c->choices[i].usage.completion_tokens;
        if (c->choices[i].usage.decode_ms > u.decode_ms)
            u.decode_ms = c->choices[i].usage.decode_ms;
    }
    return u;
}

/* No memory for some of it. */
static int is_cut(const struct completion *c)
{
    int with_ids = c->head.return_token_ids, failed = with_ids && c->prompt_ids.failed;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *h = &c->choices[i];
        failed |= h->text.failed || h->logprobs.failed || (with_ids && h->ids.failed);
    }
    return failed;
}

/* Of the whole answer at most: escapes take six bytes for one, an alternative about 100. */
static size_t room_for_all(const struct completion *c)
{
    size_t n = 64 << 10;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *h = &c->choices[i];
        n += 7 * h->text.len + 160 * h->logprobs.len + 12 * (h->ids.len + c->prompt_ids.len) / 4 + 1024;
    }
    return n;
}

static void write_whole(struct completion *c, struct buf *out)
{
    struct buf body;
    const struct usage all = usage_of_all(c);
    name_prompt(c);
    buf_init(&body, room_for_all(c));
    openai_answer_begin(&body, &c->head);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *h = &c->choices[i];
        struct answer_part part = {.index = i,
                                   .text = {h->text.data ? h->text.data : "", h->text.len},
                                   .ids = (const uint32_t *)(const void *)h->ids.data,
                                   .n_ids = h->ids.len / sizeof(uint32_t),
                                   .finish = h->finish};
        if (c->pieces)
            part.logprobs = (struct bytes){h->logprobs.data ? h->logprobs.data : "", h->logprobs.len};
        openai_answer_choice(&body, &c->head, &part);
    }
    openai_answer_end(&body, &c->head, &all);
    *out = body;
}

static void reply_whole(struct completion *c, struct buf *body)
{
    struct error err;
    if (!is_cut(c)) {
        exchange_reply(c->x, 200, "application/json", body);
        return;
    }
    buf_fini(body);
    error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the answer");
    tell_error(c, &err);
}

/* Nothing of it changes any more: no lock is needed to write it. */
static void op_build(struct exchange *x)
{
    struct buf body;
    pthread_mutex_lock(&x->lock);
    int gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    if (gone)
        return;
    write_whole(x->op, &body);
    pthread_mutex_lock(&x->lock);
    reply_whole(x->op, &body);
    pthread_mutex_unlock(&x->lock);
}

/* Log probabilities take some 2 us each to write, many of them longer than streams may wait: this is the thread of all events. */
static void finish_whole(struct completion *c)
{
    enum { HERE_MAX_BYTES = 64 << 10 }; /* as they are kept: 3 ms */
    struct buf body;
    size_t bytes = 0;
    for (uint32_t i = 0; i < c->n; i++)
        bytes += c->choices[i].logprobs.len;
    if (bytes > HERE_MAX_BYTES && server_hand_over(c->x->gw->server, c->x) == STATUS_OK)
        return;
    write_whole(c, &body);
    reply_whole(c, &body);
}

/* This answer is complete, and with the last one everything. One publishing tells both to the journal. */
static void take_done(struct choice *h, const struct generate_event *e)
{
    struct completion *c = h->c;
    struct buf *out = c->request.stream ? out_with_head(c) : NULL;
    h->done = 1;
    h->finish = e->finish;
    h->usage = e->usage;
    c->n_done++;
    if (c->x->keeper)
        kept_write_done(c->x->keeper, &(struct kept_done){.choice = h->index, .finish = (uint32_t)e->finish, .usage = e->usage});
    struct usage all = usage_of_all(c);
    int is_last = c->n_done == c->n;
    c->over |= is_last;
    if (out)
        openai_finish_chunk(out, &c->head, h->index, e->finish, is_last ? &all : &h->usage);
    if (out && is_last)
        openai_end_of_stream(out, &c->head, &all);
    if (is_last && !out)
        finish_whole(c);
    else if (is_last)
        exchange_stream_end(c->x);
    else if (out)
        exchange_stream_written(c->x);
    else
        exchange_publish(c->x);
}

static void on_done(struct choice *h, const struct generate_event *e)
{
    struct error err;
    if (e->finish != FINISH_STOP && e->finish != FINISH_LENGTH) {
        error_set(&err, STATUS_PROTOCOL, "the coordinator ended the answer without a reason");
        completion__fail(h->c, &err);
        return;
    }
    take_done(h, e);
    LOG_DEBUG("req %s: answer %u: %u prompt tokens (%u cached), %u answered", h->c->id, h->index, e->usage.prompt_tokens,
              e->usage.cached_tokens, e->usage.completion_tokens);
    if (h->state < COMPLETION_CLOSING) /* unless the output failed, which closed it */
        completion__close(h, 0);
}

static void on_event(void *ctx, struct generate_stream *gs, const struct generate_event *e)
{
    struct choice *h = ctx;
    struct exchange *x = h->c->x;
    (void)gs;
    pthread_mutex_lock(&x->lock);
    if (h->state == COMPLETION_CALLING || h->state == COMPLETION_TALKING) {
        switch (e->kind) {
        case GENERATE_ACCEPTED:
            on_accepted(h, e);
            break;
        case GENERATE_PROGRESS:
            on_progress(h, e);
            break;
        case GENERATE_TEXT:
            on_text(h, e);
            break;
        case GENERATE_DONE:
            on_done(h, e);
            break;
        }
        next(h);
    }
    pthread_mutex_unlock(&x->lock);
}

static void on_end(void *ctx, struct generate_stream *gs, const struct error *err)
{
    struct choice *h = ctx;
    struct exchange *x = h->c->x;
    pthread_mutex_lock(&x->lock);
    exchange_retain(x); /* ending gives the operation's reference back, and the lock is held */
    generate_stream_release(gs);
    h->gs = NULL;
    if (h->state == COMPLETION_CLOSING)
        end_idle(h);
    else
        completion__broken(h, err);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}

const struct generate_events completion__events = {.on_event = on_event, .on_end = on_end};

/* --- the exchange's side ------------------------------------------------------------------------------------------ */

static void comment(struct completion *c)
{
    struct buf *out = exchange_stream_out(c->x);
    const struct choice *first = &c->choices[0];
    begin_stream(c);
    if (first->text_ns)
        buf_text(out, ": waiting\n\n");
    else if (first->queue_position || !c->prompt_tokens)
        buf_printf(out, ": queued %u\n\n", first->queue_position);
    else
        buf_printf(out, ": reading %u/%u\n\n", first->read_tokens, c->prompt_tokens);
    exchange_stream_written(c->x);
}

static void op_tick(struct exchange *x, int64_t now_ns)
{
    struct completion *c = x->op;
    if (c->choices[0].n_token && atomic_load(&x->gw->draining)) /* the coordinator takes them as long as the first one runs */
        completion__wake_others(c);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->choices[i].state == COMPLETION_WAITING)
            completion__retry(&c->choices[i], now_ns);
    int64_t after = x->streaming ? COMMENT_MS : FIRST_COMMENT_MS;
    /* What waits in the output already keeps the connection busy. */
    if (c->request.stream && !c->over && !x->out.len && now_ns - c->output_ns >= after * NS_PER_MS)
        comment(c);
}

static void op_gone(struct exchange *x)
{
    completion__close_all(x->op);
}

static void op_room(struct exchange *x)
{
    struct completion *c = x->op;
    for (uint32_t i = 0; i < c->n; i++) {
        struct choice *h = &c->choices[i];
        if (h->paused && h->gs && h->state < COMPLETION_CLOSING)
            generate_stream_next(h->gs);
        h->paused = 0;
    }
}

static void op_expire(struct exchange *x, const struct error *why)
{
    completion__fail(x->op, why);
}

static void op_fini(struct exchange *x)
{
    struct completion *c = x->op;
    for (uint32_t i = 0; i < c->n; i++) {
        buf_fini(&c->choices[i].text);
        buf_fini(&c->choices[i].logprobs);
        buf_fini(&c->choices[i].ids);
    }
    buf_fini(&c->prompt_ids);
    pieces_release(c->pieces);
    request_fini(&c->request);
    free(c);
}

const struct exchange_ops completion__ops = {
    .tick = op_tick, .gone = op_gone, .room = op_room, .expire = op_expire, .build = op_build, .fini = op_fini};
