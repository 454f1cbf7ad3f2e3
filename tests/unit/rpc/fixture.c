#include "tests/unit/rpc/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

struct bytes text_bytes(const char *text)
{
    return (struct bytes){text, strlen(text)};
}

void sleep_ms(int ms)
{
    struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&ts, NULL);
}

static void change(struct fixture *f, int *count)
{
    (*count)++;
    pthread_cond_broadcast(&f->changed);
}

void fixture_wait(struct fixture *f, const int *count, int n, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&f->lock);
    int rc = 0;
    while (*count < n && rc == 0)
        rc = pthread_cond_timedwait(&f->changed, &f->lock, &until);
    int reached = *count;
    pthread_mutex_unlock(&f->lock);
    if (reached < n)
        fail_msg("waited %d ms for %d, have %d", ms, n, reached);
}

/* --- server ------------------------------------------------------------------------------------------------------------ */

static void keep(struct fixture *f, int slot, struct bytes *b)
{
    size_t n = b->len < sizeof f->texts[0] ? b->len : sizeof f->texts[0];
    if (n)
        memcpy(f->texts[slot], b->data, n);
    *b = (struct bytes){f->texts[slot], n};
}

static void on_generate(void *ctx, struct generate_call *call, const struct generate_request *r)
{
    struct fixture *f = ctx;
    struct generate_call *old;
    pthread_mutex_lock(&f->lock);
    old = f->call;
    f->call = call;
    generate_call_retain(call);
    generate_call_set_data(call, f);
    f->trusted = generate_call_trusted(call);
    f->request = *r;
    keep(f, 0, &f->request.request_id);
    keep(f, 1, &f->request.text);
    keep(f, 2, &f->request.chat_json);
    keep(f, 3, &f->request.client);
    for (uint32_t i = 0; i < r->n_stops && i < 4; i++)
        keep(f, 4 + (int)i, &f->request.stop[i]);
    if (r->n_ids)
        memcpy(f->ids, r->ids, (r->n_ids < 4096 ? r->n_ids : 4096) * sizeof *f->ids);
    keep(f, 8, &f->request.resume.token);
    keep(f, 9, &f->request.sibling);
    if (r->resume.n_ids)
        memcpy(f->resume, r->resume.ids, (r->resume.n_ids < 64 ? r->resume.n_ids : 64) * sizeof *f->resume);
    change(f, &f->n_generate);
    pthread_mutex_unlock(&f->lock);
    if (old)
        generate_call_release(old);
}

static void on_closed(void *ctx, struct generate_call *call)
{
    struct fixture *f = ctx;
    pthread_mutex_lock(&f->lock);
    assert_ptr_equal(generate_call_data(call), f);
    f->closed_ns = clock_now_ns();
    change(f, &f->n_closed);
    pthread_mutex_unlock(&f->lock);
}

static int refuses(struct fixture *f, struct unary_call *call)
{
    if (f->unary_error.status == STATUS_OK)
        return 0;
    unary_call_fail(call, &f->unary_error);
    return 1;
}

/* Answers the bytes of the text, +1000 with add_special, +2000 with parse_special. */
static void on_tokenize(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special)
{
    uint32_t ids[256];
    size_t n = text.len < 256 ? text.len : 256;
    if (refuses(ctx, call))
        return;
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text.data[i] + (add_special ? 1000u : 0) + (parse_special ? 2000u : 0);
    unary_call_tokens(call, ids, n);
}

static void *answer_text(void *arg)
{
    sleep_ms(2);
    unary_call_text(arg, (struct bytes){"from\0another thread", 19});
    return NULL;
}

static void on_detokenize(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n_ids, int show_special)
{
    pthread_t t;
    if (refuses(ctx, call))
        return;
    assert_int_equal(n_ids, 3);
    assert_int_equal(ids[2], 300000);
    assert_true(show_special);
    pthread_create(&t, NULL, answer_text, call);
    pthread_detach(t);
}

static void on_template(void *ctx, struct unary_call *call, struct bytes chat_json)
{
    if (!refuses(ctx, call))
        unary_call_text(call, chat_json);
}

static void on_model(void *ctx, struct unary_call *call)
{
    struct model_facts m = {.ids = {text_bytes("one"), text_bytes("two")},
                            .n_ids = 2,
                            .architecture = text_bytes("llama"),
                            .profile = text_bytes("exact"),
                            .n_layers = 30,
                            .context = 8192,
                            .n_vocab = 49152,
                            .has_chat_template = 1,
                            .created_s = 1700000000};
    if (!refuses(ctx, call))
        unary_call_model(call, &m);
}

/* As many as large vocabularies have: piece i is i % 17 bytes of the letter i % 26; the even ones of the first 100 are hidden. */
static void on_pieces(void *ctx, struct unary_call *call)
{
    static uint32_t lengths[FIXTURE_PIECES], hidden[50];
    static char text[17 * FIXTURE_PIECES];
    size_t n = 0;
    for (uint32_t i = 0; i < FIXTURE_PIECES; i++) {
        lengths[i] = i % 17;
        memset(text + n, 'a' + (int)(i % 26), lengths[i]);
        n += lengths[i];
    }
    for (uint32_t i = 0; i < 50; i++)
        hidden[i] = 2 * i;
    if (!refuses(ctx, call))
        unary_call_pieces(call, &(struct vocabulary_pieces){{text, n}, lengths, hidden, FIXTURE_PIECES, 50});
}

static void start_server(struct fixture *f, const char *host_port)
{
    struct error err;
    struct inference_service svc = {.ctx = f,
                                    .generate = on_generate,
                                    .generate_closed = on_closed,
                                    .tokenize = on_tokenize,
                                    .detokenize = on_detokenize,
                                    .apply_template = on_template,
                                    .get_model = on_model,
                                    .get_pieces = on_pieces};
    assert_int_equal(rpc_server_create(f->loop, &f->server_options, &f->server, &err), STATUS_OK);
    assert_int_equal(inference_service_add(f->server, &svc), STATUS_OK);
    assert_int_equal(rpc_server_listen(f->server, host_port, &err), STATUS_OK);
    assert_int_equal(rpc_server_start(f->server, &err), STATUS_OK);
    snprintf(f->address, sizeof f->address, "127.0.0.1:%d", rpc_server_port(f->server));
}

void fixture_restart_server(struct fixture *f)
{
    char address[64];
    memcpy(address, f->address, sizeof address);
    start_server(f, address);
}

void fixture_start(struct fixture *f, const char *server_secret, const char *channel_secret)
{
    fixture_start_tls(f, server_secret, NULL, channel_secret, NULL);
}

void fixture_start_tls(struct fixture *f, const char *server_secret, struct rpc_tls *server_tls, const char *channel_secret,
                       struct rpc_tls *channel_tls)
{
    struct error err;
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->server_options = (struct rpc_options){
        .secret = server_secret, .max_message_bytes = 8 << 20, .heartbeat_ms = 300, .tls = server_tls};
    f->channel_options = f->server_options;
    f->channel_options.secret = channel_secret;
    f->channel_options.tls = channel_tls;
    assert_int_equal(rpc_loop_create(&f->loop, &err), STATUS_OK);
    start_server(f, "127.0.0.1:0");
    assert_int_equal(rpc_channel_create(f->loop, f->address, &f->channel_options, &f->channel, &err), STATUS_OK);
}

void fixture_drop_call(struct fixture *f)
{
    pthread_mutex_lock(&f->lock);
    struct generate_call *call = f->call;
    f->call = NULL;
    pthread_mutex_unlock(&f->lock);
    if (call)
        generate_call_release(call);
}

void fixture_drop_stream(struct fixture *f)
{
    if (f->stream)
        generate_stream_release(f->stream);
    f->stream = NULL;
}

void fixture_stop(struct fixture *f)
{
    fixture_drop_stream(f);
    rpc_channel_destroy(f->channel);
    rpc_server_destroy(f->server, 0);
    rpc_loop_destroy(f->loop);
    /* A handle may outlive all of them. */
    fixture_drop_call(f);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
}

/* --- client ------------------------------------------------------------------------------------------------------------ */

static void on_event(void *ctx, struct generate_stream *s, const struct generate_event *e)
{
    struct fixture *f = ctx;
    pthread_mutex_lock(&f->lock);
    f->last = *e;
    if (e->kind == GENERATE_TEXT) {
        assert_true(f->text_len + e->text.len <= sizeof f->text);
        if (e->text.len)
            memcpy(f->text + f->text_len, e->text.data, e->text.len);
        f->text_len += e->text.len;
        for (size_t i = 0; i < e->n_ids && f->n_ids + i < 4096; i++)
            f->ids[f->n_ids + i] = e->ids[i];
        f->n_ids += e->n_ids;
        for (size_t i = 0; i < e->n_logprobs && f->n_logprobs < 4096; i++)
            f->logprob_ids[f->n_logprobs++] = e->logprobs[i].id;
        f->n_text_events++;
        if (e->has_usage) {
            f->first = e->usage;
            f->n_usages++;
        }
    }
    f->n_progress += e->kind == GENERATE_PROGRESS;
    int hold = f->hold;
    change(f, &f->n_events);
    pthread_mutex_unlock(&f->lock);
    if (!hold)
        generate_stream_next(s);
}

static void on_end(void *ctx, struct generate_stream *s, const struct error *err)
{
    struct fixture *f = ctx;
    (void)s;
    pthread_mutex_lock(&f->lock);
    f->end = *err;
    f->ended_ns = clock_now_ns();
    change(f, &f->n_ended);
    pthread_mutex_unlock(&f->lock);
}

void fixture_generate(struct fixture *f, const struct generate_request *r)
{
    static const struct generate_events events = {on_event, on_end};
    struct error err;
    assert_null(f->stream);
    f->text_len = f->n_usages = f->n_text_events = f->n_ids = f->n_progress = f->n_logprobs = 0;
    assert_int_equal(inference_generate(f->channel, r, &events, f, &f->stream, &err), STATUS_OK);
}

void fixture_send_text(struct fixture *f, const char *text, const uint32_t *ids, size_t n_ids, enum status want)
{
    struct generate_event e = {.kind = GENERATE_TEXT, .text = text_bytes(text), .ids = ids, .n_ids = n_ids};
    assert_int_equal(generate_call_send(f->call, &e), want);
}

void fixture_send_done(struct fixture *f)
{
    struct generate_event e = {.kind = GENERATE_DONE,
                               .finish = FINISH_STOP,
                               .stop_text = text_bytes("END"),
                               .usage = {10, 4, 7, 1.5, 20.25, 300.125}};
    assert_int_equal(generate_call_send(f->call, &e), STATUS_OK);
    generate_call_finish(f->call, NULL);
}
