#include "rpc/gateway/unary.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/json_out.h"
#include "rpc/gateway/model_names.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/routes.h"
#include "rpc/gateway/status_json.h"

enum { TEXT_TIMEOUT_MS = 30000, STATUS_TIMEOUT_MS = 500, METRICS_TIMEOUT_MS = 500, REPLY_MAX_BYTES = 1 << 30 };

static void reply_json(struct exchange *x, struct buf *body)
{
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, 200, "application/json", body);
    pthread_mutex_unlock(&x->lock);
}

static void reply_error(struct exchange *x, const struct error *err)
{
    struct error told = *err;
    if (err->status == STATUS_CLOSED || err->status == STATUS_CANCELLED)
        error_param(&told, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s",
                    err->message);
    pthread_mutex_lock(&x->lock);
    exchange_reply_error(x, &told);
    pthread_mutex_unlock(&x->lock);
}

static void on_tokens(void *ctx, const struct error *err, const uint32_t *ids, size_t n)
{
    struct exchange *x = ctx;
    if (err->status != STATUS_OK) {
        reply_error(x, err);
    } else {
        struct buf b;
        buf_init(&b, REPLY_MAX_BYTES);
        buf_text(&b, "{\"tokens\":");
        json_out_ids(&b, ids, n);
        buf_printf(&b, ",\"count\":%zu}", n);
        reply_json(x, &b);
    }
    exchange_release(x);
}

static void reply_text(struct exchange *x, const char *field, const struct error *err, struct bytes text)
{
    if (err->status != STATUS_OK) {
        reply_error(x, err);
    } else {
        struct buf b;
        buf_init(&b, REPLY_MAX_BYTES);
        buf_printf(&b, "{\"%s\":", field);
        json_out_string(&b, text.data, text.len);
        buf_text(&b, "}");
        reply_json(x, &b);
    }
    exchange_release(x);
}

static void on_content(void *ctx, const struct error *err, struct bytes text)
{
    reply_text(ctx, "content", err, text);
}

static void on_prompt(void *ctx, const struct error *err, struct bytes text)
{
    reply_text(ctx, "prompt", err, text);
}

static enum status call(struct exchange *x, const struct request *r, struct error *err)
{
    struct rpc_channel *ch = backend_channel(x->gw->backend);
    const struct generate_request *q = &r->generate;
    char model[MODEL_NAME_BYTES];
    TRY(model_names_choose(x->gw->backend, r->model, model, sizeof model, err));
    enum status s = STATUS_INTERNAL;
    exchange_retain(x);
    if (r->endpoint == ENDPOINT_TOKENIZE)
        s = inference_tokenize(ch, r->content, r->add_special, r->parse_special, TEXT_TIMEOUT_MS, on_tokens, x);
    else if (r->endpoint == ENDPOINT_DETOKENIZE)
        s = inference_detokenize(ch, q->ids, q->n_ids, r->show_special, TEXT_TIMEOUT_MS, on_content, x);
    else if (r->endpoint == ENDPOINT_TEMPLATE)
        s = inference_apply_template(ch, q->chat_json, TEXT_TIMEOUT_MS, on_prompt, x);
    if (s == STATUS_OK)
        return s;
    exchange_release(x);
    return error_set(err, s, "%s", status_text(s));
}

static void start(struct exchange *x)
{
    struct error err;
    struct request r;
    request_init(&r, x->route->endpoint, x->body.len);
    enum status s = request_parse(&r, x->body.data, x->body.len, &err);
    if (s == STATUS_OK)
        s = call(x, &r, &err);
    if (s != STATUS_OK)
        reply_error(x, &err);
    request_fini(&r);
}

void unary_start_tokenize(struct exchange *x)
{
    start(x);
}

void unary_start_detokenize(struct exchange *x)
{
    start(x);
}

void unary_start_template(struct exchange *x)
{
    start(x);
}

/* --- status ------------------------------------------------------------------------------------------------------- */

/* fresh NULL: what was known last, which then is not ready. */
static void reply_status(struct exchange *x, const struct service_status *fresh)
{
    struct error err;
    struct buf b;
    struct service_status *s = malloc(sizeof *s); /* 100 KiB: not on a stack */
    if (!s) {
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the status");
        reply_error(x, &err);
        return;
    }
    if (fresh) {
        *s = *fresh;
        backend_add_self(x->gw->backend, s);
    } else {
        backend_status(x->gw->backend, s);
        s->ready = 0;
        s->live = 1; /* the gateway is; what is not is said by ready */
    }
    if (atomic_load(&x->gw->draining)) {
        s->draining = 1;
        s->ready = 0;
    }
    buf_init(&b, REPLY_MAX_BYTES);
    status_json_write(&b, s);
    free(s);
    reply_json(x, &b);
}

static void on_status(void *ctx, const struct error *err, const struct service_status *s)
{
    struct exchange *x = ctx;
    reply_status(x, err->status == STATUS_OK ? s : NULL);
    exchange_release(x);
}

void unary_start_status(struct exchange *x)
{
    exchange_retain(x);
    if (admin_get_status(backend_channel(x->gw->backend), STATUS_TIMEOUT_MS, on_status, x) != STATUS_OK) {
        reply_status(x, NULL);
        exchange_release(x);
    }
}

/* --- metrics ------------------------------------------------------------------------------------------------------ */

#define STALLED "sluice_write_stalled_total"

/* A line of the family: its HELP, its TYPE, or a sample without labels, whose value goes to *value. */
static int is_stalled_line(const char *line, size_t len, unsigned long long *value)
{
    static const char name[] = STALLED;
    static const char *const heads[] = {"# HELP " STALLED " ", "# TYPE " STALLED " "};
    for (int i = 0; i < 2; i++)
        if (len >= strlen(heads[i]) && memcmp(line, heads[i], strlen(heads[i])) == 0)
            return 1;
    if (len <= sizeof name - 1 || memcmp(line, name, sizeof name - 1) || line[sizeof name - 1] != ' ')
        return 0;
    *value += (unsigned long long)strtod(line + sizeof name, NULL);
    return 1;
}

void unary_join_metrics(struct buf *out, const char *text, size_t len, unsigned long long write_stalled)
{
    while (len) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) + 1 : len;
        if (!end || !is_stalled_line(text, n, &write_stalled))
            buf_append(out, text, n);
        text += n;
        len -= n;
    }
    if (out->len && out->data[out->len - 1] != '\n')
        buf_text(out, "\n");
    buf_printf(out,
               "# HELP " STALLED " Clients dropped because they read nothing for --write-stall-ms.\n# TYPE " STALLED
               " counter\n" STALLED " %llu\n",
               write_stalled);
}

static void reply_metrics(struct exchange *x, const char *text, size_t len)
{
    struct buf b;
    buf_init(&b, REPLY_MAX_BYTES);
    unary_join_metrics(&b, text, len, atomic_load(&x->gw->write_stalled));
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    pthread_mutex_unlock(&x->lock);
}

static void on_metrics(void *ctx, const struct error *err, const char *text, size_t len)
{
    struct exchange *x = ctx;
    reply_metrics(x, text, err->status == STATUS_OK ? len : 0);
    exchange_release(x);
}

void unary_start_metrics(struct exchange *x)
{
    exchange_retain(x);
    if (admin_get_metrics(backend_channel(x->gw->backend), METRICS_TIMEOUT_MS, on_metrics, x) != STATUS_OK) {
        reply_metrics(x, "", 0);
        exchange_release(x);
    }
}
