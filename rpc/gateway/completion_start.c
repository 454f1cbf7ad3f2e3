/* How a completion comes into being: from a request's body, or from the journal of a gateway that was killed (docs/adr/0011). */
#include "rpc/gateway/completion_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/request_head.h"
#include "rpc/gateway/routes.h"

enum { TEXT_MAX_BYTES = 256 << 20 };

/* x-request-id, the answer's id, the coordinator's log and /v1/status all have the same name, unless the client chose one. */
static void name_answer(struct completion *c)
{
    struct exchange *x = c->x;
    char own[REQUEST_ID_BYTES];
    const char *id = x->request_id;
    if (x->named_by_client)
        id = request_id_make(x->serial, own);
    snprintf(c->id, sizeof c->id, "%.39s", id);
    snprintf(c->head.id, sizeof c->head.id, "%s%s", c->request.endpoint == ENDPOINT_CHAT ? "chatcmpl" : "cmpl", c->id + strlen("req"));
    c->head.created_s = clock_wall_s();
}

/* Only the request of a body that cannot be parsed, which has one choice: somebody is to be told. */
static struct completion *create(struct exchange *x, struct request *r)
{
    uint32_t n = r->n ? r->n : 1;
    struct completion *c = calloc(1, sizeof *c + n * sizeof c->choices[0]);
    if (!c)
        return NULL;
    c->x = x;
    c->request = *r;
    c->output_ns = x->started_ns;
    c->n = c->n_open = n;
    c->head.endpoint = r->endpoint;
    c->head.include_usage = r->include_usage;
    c->head.return_token_ids = r->return_token_ids;
    buf_init(&c->prompt_ids, TEXT_MAX_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        struct choice *h = &c->choices[i];
        h->c = c;
        h->index = i;
        h->state = i == 0 ? COMPLETION_WAITING : COMPLETION_IDLE;
        buf_init(&h->text, TEXT_MAX_BYTES);
        buf_init(&h->logprobs, TEXT_MAX_BYTES);
        buf_init(&h->ids, TEXT_MAX_BYTES);
    }
    return c;
}

/* The request is parsed and the operation made; *s says how that went. NULL: no memory. */
static struct completion *parse(struct exchange *x, enum endpoint endpoint, struct bytes body, enum status *s, struct error *err)
{
    struct request r;
    request_init(&r, endpoint, body.len);
    *s = request_parse(&r, body.data, body.len, err);
    struct completion *c = create(x, &r);
    if (!c) {
        request_fini(&r);
        *s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    }
    return c;
}

/* The operation is the exchange's, with a reference. (with its lock) */
static void attach(struct completion *c)
{
    c->x->ops = &completion__ops;
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
                             .n = c->n,
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
    enum status s;
    struct completion *c = parse(x, x->route->endpoint, (struct bytes){x->body.data ? x->body.data : "", x->body.len}, &s, &err);
    if (c)
        name_answer(c);
    pthread_mutex_lock(&x->lock);
    if (c)
        attach(c);
    if (!c) {
        exchange_reply_error(x, &err);
    } else if (s != STATUS_OK) {
        completion__fail(c, &err);
    } else if (x->gone) { /* while a large body was parsed */
        completion__close_all(c);
    } else {
        keep_request(c);
        completion__submit(&c->choices[0]);
    }
    pthread_mutex_unlock(&x->lock);
}

static void take_choice(struct choice *h, struct kept_choice *k)
{
    h->seed = k->accepted.seed;
    h->n_token = k->token.len;
    if (h->n_token)
        memcpy(h->token, k->token.data, h->n_token);
    buf_append(&h->ids, k->ids.data, k->ids.len);
    buf_append(&h->text, k->text.data, k->text.len);
    buf_append(&h->logprobs, k->logprobs.data, k->logprobs.len);
    h->chars = k->chars;
    h->usage = k->first.usage;
    h->text_ns = k->first.text_ns;
    if (k->is_done) {
        h->done = 1;
        h->finish = (enum finish_reason)k->done.finish;
        h->usage = k->done.usage;
    }
}

static void take_kept(struct completion *c, struct completion_kept *k)
{
    memcpy(c->id, k->request.id, sizeof c->id);
    c->x->named_by_client = strcmp(c->id, c->x->request_id) != 0;
    memcpy(c->head.id, k->request.answer_id, sizeof c->head.id);
    c->head.created_s = k->request.created_s;
    memcpy(c->head.model, k->model, sizeof c->head.model);
    memcpy(c->head.fingerprint, k->choices[0].accepted.fingerprint, sizeof c->head.fingerprint);
    c->prompt_tokens = k->choices[0].accepted.prompt_tokens;
    if (k->n_prompt_ids)
        buf_append(&c->prompt_ids, k->prompt_ids, k->n_prompt_ids * sizeof(uint32_t));
    c->first_sent = k->told;
    for (uint32_t i = 0; i < c->n; i++) {
        take_choice(&c->choices[i], &k->choices[i]);
        c->choices[i].attempt = k->attempt;
        c->n_done += (uint32_t)c->choices[i].done;
    }
}

/* Those that have begun, or may, are submitted by the tick. */
static void go_on(struct completion *c)
{
    c->output_ns = clock_now_ns();
    if (c->choices[0].text_ns)
        completion__wake_others(c);
    for (uint32_t i = 0; i < c->n; i++) {
        struct choice *h = &c->choices[i];
        if (h->done)
            completion__close(h, 0);
        else if (h->state == COMPLETION_WAITING)
            h->lost_ns = c->output_ns;
    }
}

void completion_adopt(struct exchange *x, struct completion_kept *k)
{
    struct error err;
    enum status s;
    struct completion *c = parse(x, (enum endpoint)k->request.endpoint, k->body, &s, &err);
    if (!c) {
        exchange_leave(x);
        return;
    }
    attach(c);
    c->adopted = 1;
    if (s == STATUS_OK && c->n != k->request.n)
        s = error_set(&err, STATUS_PROTOCOL, "the journal of the gateway before this one does not fit its request");
    if (s == STATUS_OK) {
        take_kept(c, k);
        go_on(c);
        if (c->n_done == c->n) /* told in one with the end of the answer, so never */
            s = error_set(&err, STATUS_PROTOCOL, "the journal of the gateway before this one lacks the end of its answer");
    }
    if (s != STATUS_OK)
        completion__fail(c, &err);
}
