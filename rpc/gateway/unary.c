#include "rpc/gateway/unary.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/json_out.h"
#include "rpc/gateway/model_names.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/routes.h"
#include "rpc/gateway/status_json.h"

enum { TEXT_TIMEOUT_MS = 30000, STATUS_TIMEOUT_MS = 500, REPLY_MAX_BYTES = 1 << 30 };
/* A scrape is answered within 100 ms, if need be with the page of the last second. */
enum { METRICS_TIMEOUT_MS = 60 };
/* As in completion.c: a coordinator that restarts is a pause. */
enum { RETRY_MS = 100 };

static void reply_json(struct exchange *x, struct buf *body)
{
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, 200, "application/json", body);
    pthread_mutex_unlock(&x->lock);
}

/* (locked) */
static void tell_error(struct exchange *x, const struct error *err)
{
    struct error told = *err;
    if (err->status == STATUS_CLOSED || err->status == STATUS_CANCELLED)
        error_param(&told, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s",
                    err->message);
    exchange_reply_error(x, &told);
}

/* --- text: tokenize, detokenize, apply-template ------------------------------------------------------------------- */

/* The request is kept until it is answered, so that it can be asked again while the coordinator is away for a moment.
 */
struct text_call {
    struct exchange *x;
    struct request request;
    int64_t lost_ns, retry_ns; /* retry_ns 0: a call is under way, or it is answered */
};

/* (locked) Whoever calls this holds a reference of his own. */
static void answered(struct text_call *t)
{
    t->retry_ns = 0;
    exchange_release(t->x);
}

/* (locked) */
static void fail(struct text_call *t, const struct error *err)
{
    int64_t now = clock_now_ns();
    if (!t->lost_ns)
        t->lost_ns = now;
    int64_t ms = backend_new_wait_ms(t->x->gw->backend);
    if (err->status == STATUS_CLOSED && !t->x->gone && now - t->lost_ns < ms * NS_PER_MS) {
        t->retry_ns = now + RETRY_MS * NS_PER_MS;
        return;
    }
    tell_error(t->x, err);
    answered(t);
}

static void on_answer(struct text_call *t, const struct error *err, struct buf *body)
{
    struct exchange *x = t->x;
    pthread_mutex_lock(&x->lock);
    exchange_retain(x);
    if (err->status != STATUS_OK) {
        fail(t, err);
    } else {
        exchange_reply(x, 200, "application/json", body);
        answered(t);
    }
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
}

static void on_tokens(void *ctx, const struct error *err, const uint32_t *ids, size_t n)
{
    struct buf b;
    buf_init(&b, REPLY_MAX_BYTES);
    if (err->status == STATUS_OK) {
        buf_text(&b, "{\"tokens\":");
        json_out_ids(&b, ids, n);
        buf_printf(&b, ",\"count\":%zu}", n);
    }
    on_answer(ctx, err, &b);
}

static void on_text(void *ctx, const struct error *err, struct bytes text)
{
    struct text_call *t = ctx;
    struct buf b;
    buf_init(&b, REPLY_MAX_BYTES);
    if (err->status == STATUS_OK) {
        buf_printf(&b, "{\"%s\":", t->request.endpoint == ENDPOINT_DETOKENIZE ? "content" : "prompt");
        json_out_string(&b, text.data, text.len);
        buf_text(&b, "}");
    }
    on_answer(t, err, &b);
}

static enum status open_call(struct text_call *t, struct error *err)
{
    struct rpc_channel *ch = backend_channel(t->x->gw->backend);
    const struct request *r = &t->request;
    const struct generate_request *q = &r->generate;
    char model[MODEL_NAME_BYTES];
    TRY(model_names_choose(t->x->gw->backend, r->model, model, sizeof model, err));
    enum status s = STATUS_INTERNAL;
    if (r->endpoint == ENDPOINT_TOKENIZE)
        s = inference_tokenize(ch, r->content, r->add_special, r->parse_special, TEXT_TIMEOUT_MS, on_tokens, t);
    else if (r->endpoint == ENDPOINT_DETOKENIZE)
        s = inference_detokenize(ch, q->ids, q->n_ids, r->show_special, TEXT_TIMEOUT_MS, on_text, t);
    else if (r->endpoint == ENDPOINT_TEMPLATE)
        s = inference_apply_template(ch, q->chat_json, TEXT_TIMEOUT_MS, on_text, t);
    return s == STATUS_OK ? s : error_set(err, s, "%s", status_text(s));
}

/* (locked) */
static void call(struct text_call *t)
{
    struct error err;
    t->retry_ns = 0;
    if (open_call(t, &err) != STATUS_OK)
        fail(t, &err);
}

static void text_tick(struct exchange *x, int64_t now_ns)
{
    struct text_call *t = x->op;
    if (t->retry_ns && now_ns >= t->retry_ns)
        call(t);
}

static void text_gone(struct exchange *x)
{
    struct text_call *t = x->op;
    if (t->retry_ns)
        answered(t);
}

static void text_expire(struct exchange *x, const struct error *why)
{
    struct text_call *t = x->op;
    exchange_reply_error(x, why);
    if (t->retry_ns)
        answered(t);
}

static void text_fini(struct exchange *x)
{
    struct text_call *t = x->op;
    request_fini(&t->request);
    free(t);
}

static const struct exchange_ops text_ops = {
    .tick = text_tick, .gone = text_gone, .expire = text_expire, .fini = text_fini};

void unary_start_text(struct exchange *x)
{
    struct error err;
    struct text_call *t = calloc(1, sizeof *t);
    enum status s = t ? STATUS_OK : error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    if (t) {
        t->x = x;
        request_init(&t->request, x->route->endpoint, x->body.len);
        s = request_parse(&t->request, x->body.data, x->body.len, &err);
    }
    pthread_mutex_lock(&x->lock);
    if (t) {
        x->op = t;
        x->ops = &text_ops;
        exchange_retain(x);
    }
    if (!t)
        tell_error(x, &err);
    else if (s != STATUS_OK)
        fail(t, &err);
    else if (x->gone)
        answered(t);
    else
        call(t);
    pthread_mutex_unlock(&x->lock);
}

/* --- status ------------------------------------------------------------------------------------------------------- */

/* fresh NULL: what was known last. A coordinator that closed is not ready; one that is slow may be. */
static void reply_status(struct exchange *x, const struct service_status *fresh, int closed)
{
    struct error err;
    struct buf b;
    struct service_status *s = malloc(sizeof *s);
    if (!s) {
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the status");
        pthread_mutex_lock(&x->lock);
        exchange_reply_error(x, &err);
        pthread_mutex_unlock(&x->lock);
        return;
    }
    if (fresh) {
        service_status_copy(s, fresh);
        backend_add_self(x->gw->backend, s);
    } else {
        backend_status(x->gw->backend, s);
        s->ready = s->ready && !closed;
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
    reply_status(x, err->status == STATUS_OK ? s : NULL, err->status == STATUS_CLOSED);
    exchange_release(x);
}

void unary_start_status(struct exchange *x)
{
    exchange_retain(x);
    if (admin_get_status(backend_channel(x->gw->backend), STATUS_TIMEOUT_MS, on_status, x) != STATUS_OK) {
        reply_status(x, NULL, 1);
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

/* What the gateway itself knows. Without the coordinator there are no other numbers: those of its last page would look like
 * live ones. */
static void write_own(struct buf *out, int coordinator_up)
{
    if (!coordinator_up)
        buf_text(out, "# HELP sluice_ready 1 when the pipeline serves.\n# TYPE sluice_ready gauge\nsluice_ready 0\n");
    buf_printf(out,
               "# HELP sluice_coordinator_up 1 when the coordinator answers this gateway.\n# TYPE sluice_coordinator_up gauge\n"
               "sluice_coordinator_up %d\n",
               coordinator_up);
}

/* text NULL: the last page, if it is not too old. */
static void reply_metrics(struct exchange *x, const char *text, size_t len)
{
    struct buf b, last;
    buf_init(&b, REPLY_MAX_BYTES);
    buf_init(&last, REPLY_MAX_BYTES);
    int up = text != NULL;
    if (!text) {
        up = backend_metrics(x->gw->backend, &last);
        text = last.data;
        len = last.len;
    }
    write_own(&b, up);
    unary_join_metrics(&b, text, len, atomic_load(&x->gw->write_stalled));
    buf_fini(&last);
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
    pthread_mutex_unlock(&x->lock);
}

static void on_metrics(void *ctx, const struct error *err, const char *text, size_t len)
{
    struct exchange *x = ctx;
    if (err->status == STATUS_OK)
        backend_keep_metrics(x->gw->backend, text, len);
    reply_metrics(x, err->status == STATUS_OK ? text : NULL, len);
    exchange_release(x);
}

void unary_start_metrics(struct exchange *x)
{
    exchange_retain(x);
    if (admin_get_metrics(backend_channel(x->gw->backend), backend_aliases(x->gw->config), METRICS_TIMEOUT_MS, on_metrics, x) != STATUS_OK) {
        reply_metrics(x, NULL, 0);
        exchange_release(x);
    }
}
