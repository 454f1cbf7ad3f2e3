#include "coordinator/service.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "rpc/grpc/stage_api.h"

#define LOG_MODULE "service"
#include "common/base/log.h"

/* A gateway that has asked for nothing this long is gone. */
static const int64_t GATEWAY_SEEN_NS = 5 * NS_PER_S;
/* An answer's ids, the prompt's ids and its text: a body of max_body_mib needs no more than this many times its size. */
enum { ARENA_PER_BODY_BYTE = 8 };

struct seen_gateway {
    struct process_status process;
    int64_t seen_ns;
};

struct service {
    struct service_options o;
    struct rpc_loop *loop;
    struct rpc_server *server;
    atomic_int draining;
    atomic_size_t text_bytes; /* of what waits for a text worker or is with one */
    size_t max_text_bytes, arena_bytes;
    struct resume_key resume;
    char host[64];
    int64_t started_ns, created_s;
    struct seen_gateway gateways[STATUS_MAX_GATEWAYS]; /* loop thread only */
};

/* --- what every call for a text worker goes through ------------------------------------------------------------------------ */

/* Room for a text of so many bytes until release_text; refused, the caller has nothing to give back. is_new: not by its own word a
 * part of something that runs. */
static enum status reserve_text(struct service *s, size_t bytes, int is_new, struct error *err)
{
    enum status st = STATUS_OK;
    if (is_new && atomic_load(&s->draining)) {
        st = error_set(err, STATUS_DRAINING, "the service is ending and takes no new requests");
        err->retry_after_s = 5;
    } else if (atomic_fetch_add(&s->text_bytes, bytes) + bytes > s->max_text_bytes) {
        atomic_fetch_sub(&s->text_bytes, bytes);
        st = error_set(err, STATUS_QUEUE_FULL, "too many large texts are being read in");
        err->retry_after_s = 1;
    }
    return st;
}

static void release_text(struct service *s, size_t bytes)
{
    atomic_fetch_sub(&s->text_bytes, bytes);
}

/* --- Generate ------------------------------------------------------------------------------------------------------------ */

static enum status sink_send(void *ctx, const struct generate_event *e)
{
    return generate_call_send(ctx, e);
}

static int64_t sink_stalled(void *ctx)
{
    return generate_call_stalled_since_ns(ctx);
}

static void sink_finish(void *ctx, const struct error *err)
{
    generate_call_finish(ctx, err);
}

static void sink_release(void *ctx)
{
    generate_call_release(ctx);
}

struct text_job {
    struct service *service;
    struct request *request;
    size_t bytes;
};

/* A first attempt gets the token that a later one must show. */
static enum status settle_token(struct service *s, struct request *r, struct error *err)
{
    if (r->resumed) {
        TRY(resume_token_check(&s->resume, r, &r->token, err));
        return request_take_up(r, s->o.text.tokenizer, err);
    }
    snprintf(r->token.profile, sizeof r->token.profile, "%s", engine_profile(s->o.engine));
    return resume_token_make(&s->resume, r, &r->token, err);
}

static void prepare_and_submit(void *arg)
{
    struct text_job *job = arg;
    struct service *s = job->service;
    struct request *r = job->request;
    struct error err = {0};
    enum status st = atomic_load(&r->cancelled) ? error_set(&err, STATUS_CANCELLED, "the client left")
                                                : text_prepare(&s->o.text, r, &err);
    if (st == STATUS_OK)
        st = settle_token(s, r, &err);
    request_drop_text(r); /* it may wait in the queue for long: with its ids, not with up to a body of text */
    if (st == STATUS_OK) {
        request_retain(r); /* the engine's */
        st = engine_submit(s->o.engine, r);
        if (st != STATUS_OK) {
            request_release(r);
            error_set(&err, st == STATUS_FULL ? STATUS_QUEUE_FULL : st, "the service takes no more requests right now");
            err.retry_after_s = 1;
        }
    }
    if (st != STATUS_OK) {
        engine_count_refused(s->o.engine, st);
        LOG_DEBUG("req %s: refused: %s", r->id, err.message);
        r->sink.finish(r->sink.ctx, &err);
    }
    release_text(s, job->bytes);
    request_release(r);
    free(job);
}

static enum status start_request(struct service *s, struct generate_call *call, const struct generate_request *g,
                                 struct error *err)
{
    size_t bytes = g->text.len + g->chat_json.len + (g->n_ids + g->resume.n_ids) * sizeof *g->ids;
    TRY(reserve_text(s, bytes, !g->sibling.len && !g->resume.token.len, err));
    char client[72];
    if (g->client.len) /* the gRPC side has decided whom to believe (inference_api.h) */
        snprintf(client, sizeof client, "%.*s", (int)(g->client.len < 70 ? g->client.len : 70), g->client.data);
    else
        snprintf(client, sizeof client, "%s", generate_call_peer(call));
    const struct request_sink sink = {call, sink_send, sink_stalled, sink_finish, sink_release};
    struct text_job *job = calloc(1, sizeof *job);
    struct request *r = NULL;
    enum status st = job ? request_create(g, client, &sink, s->arena_bytes, &r, err)
                         : error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    if (st == STATUS_OK) {
        generate_call_retain(call); /* the sink's */
        generate_call_set_data(call, r); /* with it the service's reference, dropped in generate_closed */
        request_retain(r);
        *job = (struct text_job){s, r, bytes};
        st = text_workers_submit(s->o.workers, prepare_and_submit, job);
        if (st == STATUS_OK)
            return STATUS_OK;
        request_release(r);
        error_set(err, st, "too many requests wait to be tokenized");
        err->retry_after_s = 1;
    }
    free(job);
    release_text(s, bytes);
    return st;
}

static void on_generate(void *ctx, struct generate_call *call, const struct generate_request *g)
{
    struct service *s = ctx;
    struct error err = {0};
    if (start_request(s, call, g, &err) == STATUS_OK)
        return;
    engine_count_refused(s->o.engine, err.status);
    generate_call_finish(call, &err);
}

static void on_generate_closed(void *ctx, struct generate_call *call)
{
    struct service *s = ctx;
    struct request *r = generate_call_data(call);
    if (!r)
        return;
    generate_call_set_data(call, NULL);
    atomic_store(&r->cancelled, 1);
    engine_cancel(s->o.engine, r);
    request_release(r);
}

/* --- Tokenize, Detokenize, ApplyTemplate, GetModel, GetPieces ------------------------------------------------------------------------- */

enum unary_kind { UNARY_TOKENIZE, UNARY_DETOKENIZE, UNARY_TEMPLATE, UNARY_PIECES };

struct unary_job {
    struct service *service;
    struct unary_call *call;
    enum unary_kind kind;
    unsigned flags;
    int show_special;
    size_t len, n_ids;
    const char *text; /* behind the ids */
    uint32_t ids[];
};

static void run_tokenize(struct unary_job *j, struct error *err)
{
    uint32_t *ids;
    size_t n;
    if (text_tokenize(&j->service->o.text, j->text, j->len, j->flags, "content", SIZE_MAX / 8, &ids, &n, err) != STATUS_OK) {
        unary_call_fail(j->call, err);
        return;
    }
    unary_call_tokens(j->call, ids, n);
    free(ids);
}

static void run_detokenize(struct unary_job *j, struct error *err)
{
    struct buf text;
    struct detokenizer d;
    buf_init(&text, TEXT_MAX_BYTES);
    detokenizer_init_text(&d, j->service->o.text.tokenizer, j->show_special);
    enum status st = STATUS_OK;
    for (size_t i = 0; i < j->n_ids && st == STATUS_OK; i++)
        st = j->ids[i] < tokenizer_n_vocab(d.tokenizer)
                 ? detokenizer_push(&d, j->ids[i], &text)
                 : error_param(err, STATUS_BAD_REQUEST, "tokens", "bad_token_id", "token id %u, the vocabulary has %u", j->ids[i],
                               tokenizer_n_vocab(d.tokenizer));
    if (st == STATUS_OK)
        st = detokenizer_finish(&d, &text);
    if (st == STATUS_OK) {
        unary_call_text(j->call, (struct bytes){text.data ? text.data : "", text.len});
    } else {
        if (!err->status)
            error_set(err, st, "the text cannot be built");
        unary_call_fail(j->call, err);
    }
    buf_fini(&text);
}

static void run_template(struct unary_job *j, struct error *err)
{
    struct service *s = j->service;
    struct buf text;
    buf_init(&text, TEXT_MAX_BYTES);
    enum status st = text_render(&s->o.text, (struct bytes){j->text, j->len}, 0, &text, err);
    if (st == STATUS_OK)
        unary_call_text(j->call, (struct bytes){text.data ? text.data : "", text.len});
    else
        unary_call_fail(j->call, err);
    buf_fini(&text);
}

static void run_pieces(struct unary_job *j, struct error *err)
{
    const struct tokenizer *t = j->service->o.text.tokenizer;
    uint32_t n = tokenizer_n_vocab(t), n_hidden = 0;
    uint32_t *lengths = calloc(2 * (size_t)n + 1, sizeof *lengths), *hidden = lengths + n;
    struct buf text;
    buf_init(&text, TEXT_MAX_BYTES);
    for (uint32_t id = 0; lengths && id < n; id++) {
        struct text piece = tokenizer_piece(t, id, 1);
        lengths[id] = (uint32_t)piece.len;
        if (tokenizer_is_control(t, id))
            hidden[n_hidden++] = id;
        buf_append(&text, piece.data, piece.len);
    }
    if (!lengths || text.failed) {
        error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the vocabulary");
        unary_call_fail(j->call, err);
    } else {
        unary_call_pieces(j->call, &(struct vocabulary_pieces){{text.data ? text.data : "", text.len}, lengths, hidden, n, n_hidden});
    }
    buf_fini(&text);
    free(lengths);
}

static void run_unary(void *arg)
{
    struct unary_job *j = arg;
    struct error err = {0};
    if (j->kind == UNARY_TOKENIZE)
        run_tokenize(j, &err);
    else if (j->kind == UNARY_DETOKENIZE)
        run_detokenize(j, &err);
    else if (j->kind == UNARY_PIECES)
        run_pieces(j, &err);
    else
        run_template(j, &err);
    release_text(j->service, j->len + j->n_ids * sizeof *j->ids);
    free(j);
}

static void submit_unary(struct service *s, struct unary_call *call, enum unary_kind kind, struct bytes text,
                         const uint32_t *ids, size_t n_ids, unsigned flags, int show_special)
{
    struct error err = {0};
    size_t bytes = text.len + n_ids * sizeof *ids;
    if (reserve_text(s, bytes, 1, &err) != STATUS_OK) {
        unary_call_fail(call, &err);
        return;
    }
    struct unary_job *j = calloc(1, sizeof *j + bytes + 1);
    enum status st = j ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (j) {
        char *copy = (char *)(j->ids + n_ids);
        *j = (struct unary_job){s, call, kind, flags, show_special, text.len, n_ids, copy};
        if (text.len)
            memcpy(copy, text.data, text.len);
        if (n_ids)
            memcpy(j->ids, ids, n_ids * sizeof *ids);
        st = text_workers_submit(s->o.workers, run_unary, j);
    }
    if (st == STATUS_OK)
        return;
    free(j);
    release_text(s, bytes);
    error_set(&err, st, "%s", status_text(st));
    err.retry_after_s = 1;
    unary_call_fail(call, &err);
}

static void on_tokenize(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special)
{
    unsigned flags = (add_special ? TOKENIZE_ADD_SPECIAL : 0u) | (parse_special ? TOKENIZE_PARSE_SPECIAL : 0u);
    submit_unary(ctx, call, UNARY_TOKENIZE, text, NULL, 0, flags, 0);
}

static void on_detokenize(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n_ids, int show_special)
{
    submit_unary(ctx, call, UNARY_DETOKENIZE, (struct bytes){"", 0}, ids, n_ids, 0, show_special);
}

static void on_apply_template(void *ctx, struct unary_call *call, struct bytes chat_json)
{
    submit_unary(ctx, call, UNARY_TEMPLATE, chat_json, NULL, 0, 0, 0);
}

static void on_get_pieces(void *ctx, struct unary_call *call)
{
    submit_unary(ctx, call, UNARY_PIECES, (struct bytes){"", 0}, NULL, 0, 0, 0);
}

static void on_get_model(void *ctx, struct unary_call *call)
{
    struct service *s = ctx;
    const struct hparams *hp = &s->o.model->hp;
    const char *profile = engine_profile(s->o.engine);
    struct model_facts m = {
        .n_ids = s->o.n_names,
        .architecture = {hp->arch->name, strlen(hp->arch->name)},
        .profile = {profile, strlen(profile)},
        .n_layers = hp->n_layers,
        .context = s->o.text.context,
        .n_vocab = hp->n_vocab,
        .has_chat_template = s->o.text.chat_template != NULL,
        .created_s = s->created_s,
    };
    for (uint32_t i = 0; i < m.n_ids; i++)
        m.ids[i] = (struct bytes){s->o.names[i], strlen(s->o.names[i])};
    unary_call_model(call, &m);
}

/* --- Stages ---------------------------------------------------------------------------------------------------------------- */

static enum status port_send(void *ctx, const struct to_stage *m)
{
    return stage_conn_send(ctx, m);
}

static void port_close(void *ctx, const struct error *why)
{
    stage_conn_close(ctx, why);
    stage_conn_release(ctx);
}

/* The engine calls close exactly once for every attachment, also when the stream has ended by itself. */
static void on_attach(void *ctx, struct stage_conn *c)
{
    struct service *s = ctx;
    stage_conn_retain(c);
    const struct stage_port port = {c, port_send, port_close};
    stage_conn_set_data(c, (void *)(uintptr_t)engine_stage_attached(s->o.engine, &port));
}

static void on_stage_message(void *ctx, struct stage_conn *c, const struct from_stage *m)
{
    struct service *s = ctx;
    engine_stage_message(s->o.engine, (uint64_t)(uintptr_t)stage_conn_data(c), m);
}

static void on_stage_closed(void *ctx, struct stage_conn *c)
{
    struct service *s = ctx;
    engine_stage_closed(s->o.engine, (uint64_t)(uintptr_t)stage_conn_data(c));
}

static struct result *on_result_acquire(void *ctx)
{
    struct service *s = ctx;
    return engine_result_acquire(s->o.engine);
}

/* --- Admin ----------------------------------------------------------------------------------------------------------------- */

static void on_get_status(void *ctx, struct service_status *out)
{
    struct service *s = ctx;
    int64_t now = clock_now_ns();
    engine_status(s->o.engine, out);
    out->live = 1;
    out->draining = atomic_load(&s->draining);
    out->uptime_s = (double)(now - s->started_ns) / 1e9;
    snprintf(out->version, sizeof out->version, "%s", config_version());
    snprintf(out->model_id, sizeof out->model_id, "%s", s->o.names[0]);
    snprintf(out->profile, sizeof out->profile, "%s", engine_profile(s->o.engine));
    snprintf(out->coordinator.host, sizeof out->coordinator.host, "%s", s->host);
    out->coordinator.pid = (uint32_t)getpid();
    out->n_gateways = 0;
    for (int i = 0; i < STATUS_MAX_GATEWAYS; i++)
        if (s->gateways[i].process.pid && now - s->gateways[i].seen_ns < GATEWAY_SEEN_NS)
            out->gateways[out->n_gateways++] = s->gateways[i].process;
}

static void on_get_metrics(void *ctx, enum metric_aliases aliases, struct buf *out)
{
    struct service *s = ctx;
    engine_metrics(s->o.engine, aliases, out);
}

static void on_drain(void *ctx, int on)
{
    service_drain(ctx, on);
}

static void on_seen_gateway(void *ctx, const char *host, uint32_t pid)
{
    struct service *s = ctx;
    struct seen_gateway *oldest = &s->gateways[0];
    for (int i = 0; i < STATUS_MAX_GATEWAYS; i++) {
        struct seen_gateway *g = &s->gateways[i];
        if (g->process.pid == pid && strcmp(g->process.host, host) == 0) {
            g->seen_ns = clock_now_ns();
            return;
        }
        if (g->seen_ns < oldest->seen_ns)
            oldest = g;
    }
    snprintf(oldest->process.host, sizeof oldest->process.host, "%s", host);
    oldest->process.pid = pid;
    oldest->seen_ns = clock_now_ns();
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

void service_drain(struct service *s, int on)
{
    atomic_store(&s->draining, on);
    engine_drain(s->o.engine, on);
    LOG_INFO("%s", on ? "draining: no new requests, running ones finish" : "drain ended: requests are taken again");
}

void service_set_health(struct service *s, int serving)
{
    rpc_server_set_health(s->server, serving);
}

static enum status add_services(struct service *s)
{
    TRY(inference_service_add(s->server, &(struct inference_service){s, on_generate, on_generate_closed, on_tokenize,
                                                                     on_detokenize, on_apply_template, on_get_model, on_get_pieces}));
    TRY(stages_service_add(s->server, &(struct stages_service){s, on_attach, on_stage_message, on_stage_closed,
                                                               on_result_acquire}));
    return admin_service_add(s->server,
                             &(struct admin_service){s, on_get_status, on_get_metrics, on_drain, on_seen_gateway});
}

enum status service_create(const struct service_options *o, struct service **out, struct error *err)
{
    struct service *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the service");
    s->o = *o;
    s->started_ns = clock_now_ns();
    s->created_s = clock_wall_s();
    gethostname(s->host, sizeof s->host - 1);
    size_t body = (size_t)o->config->max_body_mib << 20;
    s->max_text_bytes = body * 4;
    s->arena_bytes = body * ARENA_PER_BODY_BYTE;
    const struct rpc_options rpc = {o->secret, (int64_t)body, (int)o->config->heartbeat_ms, o->tls};
    enum status st = resume_key_init(&s->resume, o->secret, o->model->hash, err);
    if (st == STATUS_OK)
        st = rpc_loop_create(&s->loop, err);
    if (st == STATUS_OK)
        st = rpc_loop_beat(s->loop, (int)o->config->heartbeat_ms);
    if (!o->secret[0])
        LOG_INFO("no secret (--token-file): answers do not outlive this process");
    if (st == STATUS_OK)
        st = rpc_server_create(s->loop, &rpc, &s->server, err);
    if (st == STATUS_OK && (st = add_services(s)) != STATUS_OK)
        error_set(err, st, "the services cannot be set up");
    if (st == STATUS_OK)
        st = rpc_server_listen(s->server, o->config->grpc, err);
    if (st == STATUS_OK)
        st = rpc_server_start(s->server, err);
    if (st != STATUS_OK) {
        service_destroy(s, 0);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void service_destroy(struct service *s, int grace_ms)
{
    if (!s)
        return;
    if (s->server)
        rpc_server_destroy(s->server, grace_ms);
    if (s->loop)
        rpc_loop_destroy(s->loop);
    free(s);
}
