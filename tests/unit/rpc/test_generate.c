#include "tests/unit/rpc/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

static struct fixture f;

static struct generate_request text_request(const char *text)
{
    return (struct generate_request){.prompt = PROMPT_TEXT, .text = text_bytes(text), .sampler = {.top_p = 1}, .max_tokens = -1};
}

static void generate_request_arrives_with_every_field(void **state)
{
    static const uint32_t ids[] = {1, 300000, 7}, resume[] = {5, 6};
    (void)state;
    fixture_start(&f, "s3cret", "s3cret");
    struct generate_request r = {.request_id = text_bytes("req-17"),
                                 .attempt = 3,
                                 .prompt = PROMPT_IDS,
                                 .ids = ids,
                                 .n_ids = 3,
                                 .sampler = {.temperature = 0.7f, .top_p = 0, .min_p = 0.05f, .top_k = 40, .seed = ~0ull},
                                 .has_seed = 1,
                                 .max_tokens = 123456789012,
                                 .stop = {text_bytes("a"), text_bytes("\xe2\x82\xac")},
                                 .n_stops = 2,
                                 .ignore_eos = 1,
                                 .batch_priority = 1,
                                 .deadline_ms = 5000,
                                 .client = text_bytes("key:alice"),
                                 .resume = {.token = text_bytes("a token"), .ids = resume, .n_ids = 2,
                                            .usage = {.cached_tokens = 2, .queue_ms = 1.5, .prompt_ms = 2.5, .decode_ms = 3.5}},
                                 .sibling = text_bytes("its token"),
                                 .no_cache = 1};
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    const struct generate_request *g = &f.request;
    assert_true(f.trusted);
    assert_string_equal(generate_call_peer(f.call), "ipv4:127.0.0.1");
    assert_memory_equal(g->request_id.data, "req-17", 6);
    assert_int_equal(g->attempt, 3);
    assert_int_equal(g->prompt, PROMPT_IDS);
    assert_int_equal(g->n_ids, 3);
    assert_memory_equal(f.ids, ids, sizeof ids);
    assert_memory_equal(&g->sampler, &r.sampler, sizeof r.sampler);
    assert_true(g->has_seed && g->ignore_eos && g->batch_priority && g->no_cache);
    assert_int_equal(g->max_tokens, 123456789012);
    assert_int_equal(g->n_stops, 2);
    assert_int_equal(g->stop[1].len, 3);
    assert_memory_equal(g->stop[1].data, "\xe2\x82\xac", 3);
    assert_int_equal(g->deadline_ms, 5000);
    assert_int_equal(g->client.len, 9);
    assert_int_equal(g->resume.n_ids, 2);
    assert_int_equal(g->resume.token.len, 7);
    assert_memory_equal(g->resume.token.data, "a token", 7);
    assert_int_equal(g->sibling.len, 9);
    assert_memory_equal(g->sibling.data, "its token", 9);
    assert_memory_equal(&g->resume.usage, &r.resume.usage, sizeof r.resume.usage);
    assert_memory_equal(f.resume, resume, sizeof resume);
    fixture_stop(&f);
}

static void generate_prompt_keeps_a_nul_inside(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("");
    r.text = (struct bytes){"a\0b", 3};
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    assert_int_equal(f.request.text.len, 3);
    assert_memory_equal(f.request.text.data, "a\0b", 3);
    assert_false(f.request.has_seed);
    assert_int_equal(f.request.max_tokens, -1);
    fixture_stop(&f);
}

static void generate_events_arrive_in_order_and_end_ok(void **state)
{
    static const uint32_t prompt[] = {1, 2, 3}, answer[] = {900, 901};
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    f.hold = 1;
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    struct generate_event accepted = {.kind = GENERATE_ACCEPTED,
                                      .request_id = text_bytes("req-1"),
                                      .model = text_bytes("m"),
                                      .profile = text_bytes("p"),
                                      .seed = 1ull << 63,
                                      .prompt_tokens = 3,
                                      .ids = prompt,
                                      .n_ids = 3,
                                      .resume_token = {"to\0ken", 6}};
    assert_int_equal(generate_call_send(f.call, &accepted), STATUS_OK);
    fixture_wait(&f, &f.n_events, 1, 2000);
    assert_int_equal(f.last.kind, GENERATE_ACCEPTED);
    assert_true(f.last.seed == 1ull << 63);
    assert_int_equal(f.last.n_ids, 3);
    assert_int_equal(f.last.resume_token.len, 6);
    f.hold = 0;
    generate_stream_next(f.stream);
    struct generate_event progress = {.kind = GENERATE_PROGRESS, .queue_position = 2};
    assert_int_equal(generate_call_send(f.call, &progress), STATUS_OK);
    fixture_wait(&f, &f.n_events, 2, 2000);
    assert_int_equal(f.last.queue_position, 2);
    fixture_send_text(&f, "Hi \xe2\x82\xac", answer, 2, STATUS_OK);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 2000);
    assert_int_equal(f.end.status, STATUS_OK);
    assert_int_equal(f.last.kind, GENERATE_DONE);
    assert_int_equal(f.last.finish, FINISH_STOP);
    assert_int_equal(f.last.usage.completion_tokens, 7);
    assert_true(f.last.usage.prompt_ms == 20.25);
    assert_int_equal(f.text_len, 6);
    assert_memory_equal(f.text, "Hi \xe2\x82\xac", 6);
    assert_int_equal(f.n_ids, 2);
    fixture_wait(&f, &f.n_closed, 1, 2000);
    assert_int_equal(generate_call_send(f.call, &progress), STATUS_CLOSED);
    fixture_stop(&f);
}

static void generate_error_arrives_with_every_field(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    struct error err = {.status = STATUS_CLIENT_LIMIT, .retry_after_s = 17};
    strcpy(err.message, "client x has 4 of 4 \xe2\x82\xac");
    strcpy(err.param, "messages[3]");
    strcpy(err.code, "client_queue");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    fixture_send_text(&f, "part", NULL, 0, STATUS_OK);
    generate_call_finish(f.call, &err);
    generate_call_finish(f.call, NULL); /* ignored */
    fixture_wait(&f, &f.n_ended, 1, 2000);
    assert_int_equal(f.end.status, STATUS_CLIENT_LIMIT);
    assert_int_equal(f.end.retry_after_s, 17);
    assert_string_equal(f.end.message, err.message);
    assert_string_equal(f.end.param, err.param);
    assert_string_equal(f.end.code, err.code);
    assert_memory_equal(f.text, "part", 4);
    fixture_wait(&f, &f.n_closed, 1, 2000);
    fixture_stop(&f);
}

static void generate_every_status_survives_the_wire(void **state)
{
#define X(name, code, http, grpc, retry, type, text) code,
    static const int all[] = {STATUS_MAP(X)};
#undef X
    (void)state;
    fixture_start(&f, NULL, NULL);
    f.unary_error.status = STATUS_OK;
    int n = 0;
    for (size_t i = 1; i < sizeof all / sizeof all[0]; i++) {
        struct generate_request r = text_request("x");
        struct error err = {.status = (enum status)all[i]};
        if (all[i] == STATUS_WRITE_STALLED) /* cancels: nobody reads */
            continue;
        fixture_generate(&f, &r);
        fixture_wait(&f, &f.n_generate, ++n, 2000);
        generate_call_finish(f.call, &err);
        fixture_wait(&f, &f.n_ended, n, 2000);
        assert_int_equal(f.end.status, all[i]);
        fixture_drop_stream(&f);
    }
    fixture_stop(&f);
}

/* Sends until the window of a client that does not read is full and 32 KiB wait. */
static void stall(struct fixture *x)
{
    static char part[8 * 1024 + 1];
    memset(part, 's', sizeof part - 1);
    for (int i = 0; i < 100 && generate_call_unsent_bytes(x->call) < 32 * 1024; i++) {
        fixture_send_text(x, part, NULL, 0, STATUS_OK);
        sleep_ms(2);
    }
    sleep_ms(10);
    assert_true(generate_call_unsent_bytes(x->call) >= 32 * 1024);
}

static void read_on(struct fixture *x)
{
    pthread_mutex_lock(&x->lock);
    x->hold = 0;
    pthread_mutex_unlock(&x->lock);
    generate_stream_next(x->stream);
}

/* With the client not reading, the window fills; then texts join, and the queue refuses at its bound. */
static void generate_texts_join_while_the_peer_does_not_read(void **state)
{
    static char kib[1025];
    uint32_t id = 7;
    size_t n = 0;
    enum status st;
    (void)state;
    fixture_start(&f, NULL, NULL);
    memset(kib, 'x', 1024);
    f.hold = 1;
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    struct generate_event e = {.kind = GENERATE_TEXT, .text = text_bytes(kib), .ids = &id, .n_ids = 1};
    for (int i = 0; i < 2000; i++) {
        e.has_usage = i == 200; /* amid texts that join */
        e.usage = (struct usage){.cached_tokens = 3, .prompt_ms = 1.5};
        st = generate_call_send(f.call, &e);
        if (st != STATUS_OK)
            break;
        n++;
        if (i % 16 == 0)
            sleep_ms(1);
    }
    assert_int_equal(st, STATUS_FULL);
    assert_true(generate_call_unsent_bytes(f.call) > 250 * 1024);
    assert_true(generate_call_unsent_bytes(f.call) <= 256 * 1024);
    assert_true(generate_call_stalled_since_ns(f.call) > 0);
    assert_true(clock_now_ns() - generate_call_stalled_since_ns(f.call) < 5 * NS_PER_S);
    printf("[          ] %zu KiB were taken before the queue was full\n", n);
    read_on(&f);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 5000);
    assert_int_equal(f.end.status, STATUS_OK);
    assert_int_equal(f.text_len, n * 1024);
    assert_int_equal(f.n_ids, n);
    assert_true(f.n_text_events < n);
    assert_true(n > 200);
    assert_int_equal(f.n_usages, 1);
    assert_int_equal(f.first.cached_tokens, 3);
    assert_true(f.first.prompt_ms == 1.5);
    fixture_stop(&f);
}

static void generate_ids_alone_fill_the_queue(void **state)
{
    static uint32_t ids[1000];
    enum status st = STATUS_OK;
    (void)state;
    fixture_start(&f, NULL, NULL);
    f.hold = 1;
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    stall(&f);
    struct generate_event e = {.kind = GENERATE_TEXT, .ids = ids, .n_ids = 1000};
    int n = 0;
    while (n < 10 && (st = generate_call_send(f.call, &e)) == STATUS_OK)
        n++;
    assert_int_equal(st, STATUS_FULL);
    assert_int_equal(n, 4);
    fixture_stop(&f);
}

static void generate_progress_waits_only_once(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    f.hold = 1;
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    stall(&f);
    for (uint32_t i = 1; i <= 100; i++) {
        struct generate_event e = {.kind = GENERATE_PROGRESS, .read_tokens = i, .prompt_tokens = 100};
        assert_int_equal(generate_call_send(f.call, &e), STATUS_OK);
    }
    read_on(&f);
    fixture_wait(&f, &f.n_events, 2, 2000);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 2000);
    assert_int_equal(f.n_progress, 1);
    fixture_stop(&f);
}

static void generate_stalled_client_is_dropped_at_once(void **state)
{
    struct error err = {.status = STATUS_WRITE_STALLED};
    (void)state;
    fixture_start(&f, NULL, NULL);
    f.hold = 1;
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    stall(&f);
    int64_t start = clock_now_ns();
    generate_call_finish(f.call, &err);
    fixture_wait(&f, &f.n_closed, 1, 1000);
    assert_true(f.closed_ns - start < 50 * NS_PER_MS);
    fixture_stop(&f);
}

static void generate_cancel_of_the_client_reaches_the_server(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    for (int i = 1; i <= 2; i++) {
        fixture_generate(&f, &r);
        fixture_wait(&f, &f.n_generate, i, 2000);
        fixture_send_text(&f, "some", NULL, 0, STATUS_OK);
        int64_t start = clock_now_ns();
        if (i == 1)
            generate_stream_cancel(f.stream);
        else
            fixture_drop_stream(&f);
        fixture_wait(&f, &f.n_closed, i, 1000);
        assert_true(f.closed_ns - start < 50 * NS_PER_MS);
        if (i == 1) {
            fixture_wait(&f, &f.n_ended, 1, 1000);
            assert_int_equal(f.end.status, STATUS_CANCELLED);
            fixture_drop_stream(&f);
        }
    }
    assert_int_equal(f.n_ended, 1); /* released: no callback */
    fixture_stop(&f);
}

static void generate_destroyed_server_is_noticed_by_the_client(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    int64_t start = clock_now_ns();
    rpc_server_destroy(f.server, 0);
    f.server = NULL;
    fixture_wait(&f, &f.n_ended, 1, 1000);
    assert_int_equal(f.end.status, STATUS_CLOSED);
    assert_true(f.ended_ns - start < 50 * NS_PER_MS);
    assert_int_equal(f.n_closed, 1);
    fixture_drop_stream(&f);
    fixture_drop_call(&f);
    /* And nobody there at all. */
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_ended, 2, 3000);
    assert_int_equal(f.end.status, STATUS_CLOSED);
    fixture_drop_stream(&f);
    fixture_stop(&f);
}

static void generate_call_ends_within_the_grace_of_a_server(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    fixture_send_done(&f);
    int64_t start = clock_now_ns();
    rpc_server_destroy(f.server, 5000);
    f.server = NULL;
    assert_true(clock_now_ns() - start < NS_PER_S);
    fixture_wait(&f, &f.n_ended, 1, 1000);
    assert_int_equal(f.end.status, STATUS_OK);
    fixture_stop(&f);
}

/* Events that wait for a send join into one: their logprobs stand in the order of their ids. */
static void generate_text_that_joins_keeps_each_ids_logprobs(void **state)
{
    enum { N = 600 };
    static uint32_t ids[2] = {1, 2};
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("hello");
    f.hold = 1; /* the client reads one event, then no more */
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    uint32_t n_sent = 0, n_got = 0;
    enum status s = STATUS_OK;
    for (; n_sent < N && s == STATUS_OK; n_sent += s == STATUS_OK) {
        struct token_logprobs l[2] = {{.id = 2 * n_sent, .logprob = -1, .n_top = 1, .top_ids = {9}},
                                      {.id = 2 * n_sent + 1, .logprob = -2}};
        ids[0] = l[0].id;
        ids[1] = l[1].id;
        const struct generate_event e = {.kind = GENERATE_TEXT, .text = {"x", 1}, .ids = ids, .n_ids = 2, .logprobs = l, .n_logprobs = 2};
        s = generate_call_send(f.call, &e);
    }
    assert_true(s == STATUS_OK || s == STATUS_FULL);
    assert_true(n_sent > 100);
    fixture_wait(&f, &f.n_events, 1, 2000);
    f.hold = 0;
    generate_stream_next(f.stream);
    for (int i = 1; n_got < 2 * n_sent; i++) {
        fixture_wait(&f, &f.n_events, i, 2000);
        pthread_mutex_lock(&f.lock);
        n_got = (uint32_t)f.n_logprobs;
        pthread_mutex_unlock(&f.lock);
    }
    assert_true(f.n_text_events < n_sent);
    for (uint32_t i = 0; i < n_got; i++)
        assert_true(f.logprob_ids[i] == i);
    fixture_stop(&f);
}

static void generate_refuses_what_is_no_sane_request(void **state)
{
    struct {
        struct generate_request r;
        const char *param;
    } bad[] = {
        {text_request("\xff\xfe"), "prompt"},
        {text_request("x"), "request_id"},
        {text_request("x"), "stop"},
        {text_request("x"), "temperature"},
        {text_request("x"), "max_tokens"},
        {text_request("x"), "top_p"},
    };
    (void)state;
    bad[1].r.request_id = text_bytes("a b");
    bad[2].r.n_stops = 1;
    bad[3].r.sampler.temperature = -1;
    bad[4].r.max_tokens = -2;
    bad[5].r.sampler.top_p = 1.5f;
    fixture_start(&f, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture_generate(&f, &bad[i].r);
        fixture_wait(&f, &f.n_ended, (int)i + 1, 2000);
        assert_int_equal(f.end.status, STATUS_BAD_REQUEST);
        assert_string_equal(f.end.param, bad[i].param);
        fixture_drop_stream(&f);
    }
    assert_int_equal(f.n_generate, 0);
    assert_int_equal(f.n_closed, 0);
    fixture_stop(&f);
}

static void generate_message_over_the_limit_is_too_large(void **state)
{
    (void)state;
    fixture_start(&f, NULL, NULL);
    struct generate_request r = text_request("");
    char *big = malloc(9 << 20);
    memset(big, 'a', 9 << 20);
    r.text = (struct bytes){big, 9 << 20};
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_ended, 1, 5000);
    assert_int_equal(f.end.status, STATUS_BODY_TOO_LARGE);
    fixture_drop_stream(&f);
    free(big);
    /* 5 MB, over gRPC's default, pass. */
    char *fits = malloc(5 << 20);
    memset(fits, 'b', 5 << 20);
    r.text = (struct bytes){fits, 5 << 20};
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 5000);
    free(fits);
    fixture_stop(&f);
}

static void generate_client_without_the_secret_is_named_by_its_key(void **state)
{
    struct error err;
    (void)state;
    fixture_start(&f, "right", NULL);
    struct generate_request r = text_request("x");
    r.client = text_bytes("somebody-else");
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 1, 2000);
    assert_false(f.trusted);
    assert_int_equal(f.request.client.len, strlen("ipv4:127.0.0.1"));
    assert_memory_equal(f.request.client.data, "ipv4:127.0.0.1", f.request.client.len);
    fixture_drop_stream(&f);
    rpc_channel_destroy(f.channel);
    f.channel_options.secret = "wrong";
    assert_int_equal(rpc_channel_create(f.loop, f.address, &f.channel_options, &f.channel, &err), STATUS_OK);
    fixture_generate(&f, &r);
    fixture_wait(&f, &f.n_generate, 2, 2000);
    assert_false(f.trusted);
    assert_int_equal(f.request.client.len, 36);
    assert_memory_equal(f.request.client.data, "key-", 4);
    fixture_stop(&f);
}

/* --- many at once ------------------------------------------------------------------------------------------------------ */

enum { N_STREAMS = 100, N_TEXTS = 40, N_WRITERS = 3 };

static struct {
    pthread_mutex_t lock;
    struct generate_call *calls[N_STREAMS];
    int n_calls, n_closed, stop;
    int n_ended, n_ok;
    size_t n_chars;
} many = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void many_generate(void *ctx, struct generate_call *call, const struct generate_request *r)
{
    (void)ctx;
    (void)r;
    pthread_mutex_lock(&many.lock);
    generate_call_retain(call);
    many.calls[many.n_calls++] = call;
    pthread_mutex_unlock(&many.lock);
}

static void many_closed(void *ctx, struct generate_call *call)
{
    (void)ctx;
    (void)call;
    pthread_mutex_lock(&many.lock);
    many.n_closed++;
    pthread_mutex_unlock(&many.lock);
}

static void many_event(void *ctx, struct generate_stream *s, const struct generate_event *e)
{
    (void)ctx;
    many.n_chars += e->text.len;
    generate_stream_next(s);
}

static void many_end(void *ctx, struct generate_stream *s, const struct error *err)
{
    (void)ctx;
    (void)s;
    pthread_mutex_lock(&many.lock);
    many.n_ended++;
    many.n_ok += err->status == STATUS_OK;
    pthread_mutex_unlock(&many.lock);
}

/* Each writer sends to all calls it is there for; writer i finishes those with index i modulo N_WRITERS. */
static void *many_writer(void *arg)
{
    int me = (int)(intptr_t)arg, n = 0;
    for (int k = 0; k < N_TEXTS; k++) {
        pthread_mutex_lock(&many.lock);
        n = many.n_calls;
        pthread_mutex_unlock(&many.lock);
        struct generate_event e = {.kind = GENERATE_TEXT, .text = text_bytes("x")};
        for (int i = me; i < n; i += N_WRITERS)
            generate_call_send(many.calls[i], &e);
    }
    for (int i = me; i < n; i += N_WRITERS) {
        struct generate_event e = {.kind = GENERATE_DONE, .finish = FINISH_STOP};
        generate_call_send(many.calls[i], &e);
        generate_call_finish(many.calls[i], NULL);
    }
    return NULL;
}

static int many_count(const int *count)
{
    pthread_mutex_lock(&many.lock);
    int n = *count;
    pthread_mutex_unlock(&many.lock);
    return n;
}

/* Every fifth is cancelled by its client while three threads write; then the server goes with the rest. */
static void generate_many_streams_live_and_die_together(void **state)
{
    static struct generate_stream *streams[N_STREAMS];
    static const struct generate_events events = {many_event, many_end};
    struct inference_service svc = {.generate = many_generate, .generate_closed = many_closed};
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct error err;
    char address[32];
    pthread_t writers[N_WRITERS];
    (void)state;
    fixture_start(&f, NULL, NULL);
    assert_int_equal(rpc_loop_create(&loop, &err), STATUS_OK);
    assert_int_equal(rpc_server_create(loop, &f.server_options, &server, &err), STATUS_OK);
    assert_int_equal(inference_service_add(server, &svc), STATUS_OK);
    assert_int_equal(rpc_server_listen(server, "127.0.0.1:0", &err), STATUS_OK);
    assert_int_equal(rpc_server_start(server, &err), STATUS_OK);
    snprintf(address, sizeof address, "127.0.0.1:%d", rpc_server_port(server));
    rpc_channel_destroy(f.channel);
    assert_int_equal(rpc_channel_create(f.loop, address, &f.channel_options, &f.channel, &err), STATUS_OK);
    struct generate_request r = text_request("x");
    for (int i = 0; i < N_STREAMS; i++)
        assert_int_equal(inference_generate(f.channel, &r, &events, NULL, &streams[i], &err), STATUS_OK);
    for (int i = 0; i < 400 && many_count(&many.n_calls) < N_STREAMS; i++)
        sleep_ms(5);
    assert_int_equal(many_count(&many.n_calls), N_STREAMS);
    for (int i = 0; i < N_WRITERS; i++)
        pthread_create(&writers[i], NULL, many_writer, (void *)(intptr_t)i);
    for (int i = 0; i < N_STREAMS; i += 5)
        generate_stream_cancel(streams[i]);
    pthread_join(writers[0], NULL);
    rpc_server_destroy(server, 20);
    assert_int_equal(many.n_closed, N_STREAMS);
    for (int i = 1; i < N_WRITERS; i++)
        pthread_join(writers[i], NULL);
    rpc_loop_destroy(loop);
    for (int i = 0; i < 400 && many_count(&many.n_ended) < N_STREAMS; i++)
        sleep_ms(5);
    assert_int_equal(many_count(&many.n_ended), N_STREAMS);
    printf("[          ] %d of %d streams ended well, %zu texts\n", many.n_ok, N_STREAMS, many.n_chars);
    for (int i = 0; i < N_STREAMS; i++) {
        generate_stream_release(streams[i]);
        generate_call_release(many.calls[i]);
    }
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generate_request_arrives_with_every_field),
        cmocka_unit_test(generate_prompt_keeps_a_nul_inside),
        cmocka_unit_test(generate_events_arrive_in_order_and_end_ok),
        cmocka_unit_test(generate_error_arrives_with_every_field),
        cmocka_unit_test(generate_every_status_survives_the_wire),
        cmocka_unit_test(generate_texts_join_while_the_peer_does_not_read),
        cmocka_unit_test(generate_ids_alone_fill_the_queue),
        cmocka_unit_test(generate_progress_waits_only_once),
        cmocka_unit_test(generate_stalled_client_is_dropped_at_once),
        cmocka_unit_test(generate_cancel_of_the_client_reaches_the_server),
        cmocka_unit_test(generate_destroyed_server_is_noticed_by_the_client),
        cmocka_unit_test(generate_call_ends_within_the_grace_of_a_server),
        cmocka_unit_test(generate_text_that_joins_keeps_each_ids_logprobs),
        cmocka_unit_test(generate_refuses_what_is_no_sane_request),
        cmocka_unit_test(generate_message_over_the_limit_is_too_large),
        cmocka_unit_test(generate_client_without_the_secret_is_named_by_its_key),
        cmocka_unit_test(generate_many_streams_live_and_die_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
