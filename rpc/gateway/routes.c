#include "rpc/gateway/routes.h"

#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/completion.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/json_out.h"
#include "rpc/gateway/unary.h"

enum { SMALL_REPLY_BYTES = 64 << 10 };

static void reply(struct exchange *x, int http, struct buf *body)
{
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, http, "application/json", body);
    pthread_mutex_unlock(&x->lock);
}

static void reply_error(struct exchange *x, const struct error *err)
{
    pthread_mutex_lock(&x->lock);
    exchange_reply_error(x, err);
    pthread_mutex_unlock(&x->lock);
}

static void start_live(struct exchange *x)
{
    struct buf b;
    buf_init(&b, SMALL_REPLY_BYTES);
    buf_text(&b, "{\"status\":\"ok\"}");
    reply(x, 200, &b);
}

static void start_ready(struct exchange *x)
{
    struct error err;
    if (!atomic_load(&x->gw->draining) && backend_ready(x->gw->backend)) {
        start_live(x);
        return;
    }
    if (atomic_load(&x->gw->draining))
        error_param(&err, STATUS_DRAINING, NULL, "draining", "this gateway is ending");
    else
        error_param(&err, STATUS_PIPELINE, NULL, "not_ready", "the pipeline is not ready");
    reply_error(x, &err);
}

static void start_version(struct exchange *x)
{
    struct buf b;
    buf_init(&b, SMALL_REPLY_BYTES);
    buf_text(&b, "{\"version\":");
    json_out_text(&b, config_version());
    buf_text(&b, "}");
    reply(x, 200, &b);
}

static void start_options(struct exchange *x)
{
    struct buf b;
    buf_init(&b, SMALL_REPLY_BYTES);
    reply(x, 204, &b);
}

static void start_unbuilt(struct exchange *x)
{
    struct error err;
    error_param(&err, STATUS_UNSUPPORTED, NULL, "not_implemented", "%s is not built yet", x->route->path);
    reply_error(x, &err);
}

static void write_model(struct buf *b, const struct model_card *card, uint32_t i)
{
    buf_text(b, "{\"id\":");
    json_out_text(b, card->names[i]);
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"sluice\",\"max_model_len\":%u}",
               (long long)card->created_s, card->context);
}

static int model_or_error(struct exchange *x, struct model_card *card)
{
    struct error err;
    if (backend_model(x->gw->backend, card))
        return 1;
    error_param(&err, STATUS_PIPELINE, NULL, "not_ready", "the coordinator has not told its model yet");
    reply_error(x, &err);
    return 0;
}

static void start_models(struct exchange *x)
{
    struct model_card card;
    struct buf b;
    if (!model_or_error(x, &card))
        return;
    buf_init(&b, SMALL_REPLY_BYTES);
    buf_text(&b, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < card.n_names; i++) {
        buf_text(&b, i ? "," : "");
        write_model(&b, &card, i);
    }
    buf_text(&b, "]}");
    reply(x, 200, &b);
}

static void start_model(struct exchange *x)
{
    struct model_card card;
    struct error err;
    struct buf b;
    if (!model_or_error(x, &card))
        return;
    int i = model_card_find(&card, x->path_rest, strlen(x->path_rest));
    if (i < 0) {
        error_param(&err, STATUS_NOT_FOUND, "model", "model_not_found", "model '%.60s' is not served here; %s is",
                    x->path_rest, card.names[0]);
        reply_error(x, &err);
        return;
    }
    buf_init(&b, SMALL_REPLY_BYTES);
    write_model(&b, &card, (uint32_t)i);
    reply(x, 200, &b);
}

enum { GENERATE = ROUTE_BODY | ROUTE_GENERATES };

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", GENERATE, completion_start, ENDPOINT_CHAT},
    {"/chat/completions", "POST", GENERATE, completion_start, ENDPOINT_CHAT},
    {"/v1/completions", "POST", GENERATE, completion_start, ENDPOINT_COMPLETION},
    {"/completions", "POST", GENERATE, completion_start, ENDPOINT_COMPLETION},
    {"/v1/models", "GET", 0, start_models, 0},
    {"/models", "GET", 0, start_models, 0},
    {"/v1/models/", "GET", ROUTE_PREFIX, start_model, 0},
    {"/models/", "GET", ROUTE_PREFIX, start_model, 0},
    {"/tokenize", "POST", ROUTE_BODY, unary_start_text, ENDPOINT_TOKENIZE},
    {"/detokenize", "POST", ROUTE_BODY, unary_start_text, ENDPOINT_DETOKENIZE},
    {"/apply-template", "POST", ROUTE_BODY, unary_start_text, ENDPOINT_TEMPLATE},
    {"/v1/status", "GET", 0, unary_start_status, 0},
    {"/metrics", "GET", 0, unary_start_metrics, 0},
    {"/version", "GET", 0, start_version, 0},
    {"/health", "GET", ROUTE_OPEN, start_ready, 0},
    {"/ready", "GET", ROUTE_OPEN, start_ready, 0},
    {"/live", "GET", ROUTE_OPEN, start_live, 0},
    {"/v1/responses", "POST", ROUTE_BODY, start_unbuilt, 0},
    {"/v1/messages", "POST", ROUTE_BODY, start_unbuilt, 0},
    {"/v1/messages/count_tokens", "POST", ROUTE_BODY, start_unbuilt, 0},
    {"/v1/embeddings", "POST", ROUTE_BODY, start_unbuilt, 0},
    {"/", "GET", 0, start_unbuilt, 0},
};

/* A preflight has no key and asks for a path that exists. */
static const struct route options = {"*", "OPTIONS", ROUTE_OPEN, start_options, 0};

static int path_is(const struct route *r, const char *url, const char **rest)
{
    size_t n = strlen(r->path);
    *rest = url + n;
    if (!(r->flags & ROUTE_PREFIX))
        return strcmp(r->path, url) == 0;
    return strncmp(r->path, url, n) == 0 && url[n];
}

enum status route_find(const char *url, const char *method, const struct route **out, const char **rest,
                       const char **allow, struct error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        const struct route *r = &routes[i];
        int get = strcmp(r->method, "GET") == 0;
        if (!path_is(r, url, rest))
            continue;
        if (strcmp(method, "OPTIONS") == 0) {
            *allow = get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
            *out = &options;
            return STATUS_OK;
        }
        if (strcmp(method, r->method) == 0 || (get && strcmp(method, "HEAD") == 0)) {
            *out = r;
            return STATUS_OK;
        }
        *allow = get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
        return error_param(err, STATUS_METHOD, NULL, "method_not_allowed", "%.60s takes %s, not %.20s", url, r->method,
                           method);
    }
    return error_param(err, STATUS_NOT_FOUND, NULL, "unknown_path", "there is nothing at %.100s", url);
}
