#include "tests/unit/rpc/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "rpc/grpc/stage_api.h"
#include "tests/lib/certificates.h"

enum { N_OBJECTS = 8 };

/* Both ends of an Attach stream in one process, each with its loop. */
static struct {
    struct rpc_loop *loop, *client_loop;
    struct rpc_server *server;
    struct rpc_channel *channel;
    struct stage_client *client;
    char address[64];
    struct rpc_options options;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct stage_conn *conn; /* retained */
    int n_attached, n_conn_closed, n_from, n_opened, n_closed, n_to, n_acquired;
    struct from_stage from;
    struct to_stage to;
    struct error why;
    int64_t opened_ns;
    struct result *results[N_OBJECTS];
    struct plan *plans[N_OBJECTS];
    int echo; /* the stage answers a plan with a result at once */
} t;

static void change(int *count)
{
    (*count)++;
    pthread_cond_broadcast(&t.changed);
}

static void wait_for(const int *count, int n, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&t.lock);
    int rc = 0;
    while (*count < n && rc == 0)
        rc = pthread_cond_timedwait(&t.changed, &t.lock, &until);
    int reached = *count;
    pthread_mutex_unlock(&t.lock);
    if (reached < n)
        fail_msg("waited %d ms for %d, have %d", ms, n, reached);
}

static void on_attach(void *ctx, struct stage_conn *c)
{
    struct stage_conn *old;
    pthread_mutex_lock(&t.lock);
    old = t.conn;
    t.conn = c;
    stage_conn_retain(c);
    stage_conn_set_data(c, ctx);
    change(&t.n_attached);
    pthread_mutex_unlock(&t.lock);
    if (old)
        stage_conn_release(old);
}

static void on_from(void *ctx, struct stage_conn *c, const struct from_stage *m)
{
    pthread_mutex_lock(&t.lock);
    assert_ptr_equal(stage_conn_data(c), ctx);
    t.from = *m;
    change(&t.n_from);
    pthread_mutex_unlock(&t.lock);
}

static void on_conn_closed(void *ctx, struct stage_conn *c)
{
    (void)ctx;
    (void)c;
    pthread_mutex_lock(&t.lock);
    change(&t.n_conn_closed);
    pthread_mutex_unlock(&t.lock);
}

static struct result *result_acquire(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&t.lock);
    /* The last one is what the echo sends. */
    struct result *r = t.n_acquired < 0 ? NULL : t.results[t.n_acquired++ % (N_OBJECTS - 1)];
    pthread_mutex_unlock(&t.lock);
    return r;
}

static void on_open(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&t.lock);
    t.opened_ns = clock_now_ns();
    change(&t.n_opened);
    pthread_mutex_unlock(&t.lock);
}

static void on_to(void *ctx, const struct to_stage *m)
{
    (void)ctx;
    pthread_mutex_lock(&t.lock);
    int echo = t.echo;
    pthread_mutex_unlock(&t.lock);
    if (echo && m->kind == TO_STAGE_PLAN) {
        struct result *r = t.results[N_OBJECTS - 1];
        r->tick = m->plan->tick;
        r->n_runs = m->plan->n_runs;
        for (uint32_t i = 0; i < r->n_runs; i++)
            r->runs[i] = (struct result_run){.seq = m->plan->runs[i].seq, .n_accepted = 1, .id = 77};
        struct from_stage f = {.kind = FROM_STAGE_RESULT, .result = r};
        stage_client_send(t.client, &f);
        return;
    }
    pthread_mutex_lock(&t.lock);
    t.to = *m;
    change(&t.n_to);
    pthread_mutex_unlock(&t.lock);
}

static void on_closed(void *ctx, const struct error *why)
{
    (void)ctx;
    pthread_mutex_lock(&t.lock);
    t.why = *why;
    change(&t.n_closed);
    pthread_mutex_unlock(&t.lock);
}

static struct plan *plan_acquire(void *ctx)
{
    (void)ctx;
    return t.plans[t.n_to % N_OBJECTS];
}

static void plan_release(void *ctx, struct plan *p)
{
    (void)ctx;
    (void)p; /* it never left the table */
}

static void start_server(const char *host_port)
{
    struct error err;
    struct stages_service svc = {&t, on_attach, on_from, on_conn_closed, result_acquire};
    assert_int_equal(rpc_server_create(t.loop, &t.options, &t.server, &err), STATUS_OK);
    assert_int_equal(stages_service_add(t.server, &svc), STATUS_OK);
    assert_int_equal(rpc_server_listen(t.server, host_port, &err), STATUS_OK);
    assert_int_equal(rpc_server_start(t.server, &err), STATUS_OK);
    snprintf(t.address, sizeof t.address, "127.0.0.1:%d", rpc_server_port(t.server));
}

static void start_tls(const char *client_secret, struct rpc_tls *server_tls, struct rpc_tls *client_tls)
{
    struct error err;
    memset(&t, 0, sizeof t);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    for (int i = 0; i < N_OBJECTS; i++) {
        result_create(256, &t.results[i]);
        plan_create(64, 256, 4096, &t.plans[i]);
    }
    t.options = (struct rpc_options){.secret = "job", .max_message_bytes = 8 << 20, .heartbeat_ms = 300, .tls = server_tls};
    assert_int_equal(rpc_loop_create(&t.loop, &err), STATUS_OK);
    start_server("127.0.0.1:0");
    struct rpc_options o = t.options;
    o.secret = client_secret;
    o.tls = client_tls;
    assert_int_equal(rpc_loop_create(&t.client_loop, &err), STATUS_OK);
    assert_int_equal(rpc_channel_create(t.client_loop, t.address, &o, &t.channel, &err), STATUS_OK);
    struct stage_client_events ev = {NULL, on_open, on_to, on_closed, plan_acquire, plan_release};
    assert_int_equal(stage_client_create(t.channel, &ev, &t.client, &err), STATUS_OK);
}

static void start(const char *client_secret)
{
    start_tls(client_secret, NULL, NULL);
}

/* The headers go out before on_attach is called: either end may be first to know. */
static void wait_open(void)
{
    wait_for(&t.n_attached, 1, 2000);
    wait_for(&t.n_opened, 1, 2000);
}

static void stop(void)
{
    stage_client_destroy(t.client);
    rpc_channel_destroy(t.channel);
    rpc_server_destroy(t.server, 0);
    rpc_loop_destroy(t.client_loop);
    rpc_loop_destroy(t.loop);
    if (t.conn)
        stage_conn_release(t.conn);
    for (int i = 0; i < N_OBJECTS; i++) {
        result_destroy(t.results[i]);
        plan_destroy(t.plans[i]);
    }
    pthread_mutex_destroy(&t.lock);
    pthread_cond_destroy(&t.changed);
}

static struct plan *sample_plan(uint64_t tick)
{
    static const uint32_t blocks[] = {0, 300, 70000}, ids[] = {1, 300000, 5, 9};
    struct plan *p;
    plan_create(8, 8, 64, &p);
    p->session = 0xfedcba9876543210;
    p->epoch = 4;
    p->tick = tick;
    p->budget_us = 250000;
    struct plan_op open = {.kind = OP_OPEN,
                           .seq = 11,
                           .slot = 2,
                           .length = 64,
                           .n_blocks = 2,
                           .n_window = 1,
                           .sampler = {.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .top_k = 3, .seed = 1ull << 60}};
    struct plan_op more = {.kind = OP_APPEND, .seq = 12, .n_blocks = 1}, cut = {.kind = OP_TRUNCATE, .seq = 13, .length = 7},
                   end = {.kind = OP_CLOSE, .seq = 14};
    plan_add_op(p, &open, blocks);
    plan_add_op(p, &more, blocks + 1);
    plan_add_op(p, &cut, NULL);
    plan_add_op(p, &end, NULL);
    struct plan_run prompt = {
        .seq = 11, .n = 4, .kv_index = 64, .source = SOURCE_IDS, .sample = SAMPLE_LAST, .last_stage = 3, .table_check = 0xdeadbeef};
    struct plan_run decode = {
        .seq = 12, .n = 1, .kv_index = 900, .source = SOURCE_FROM_TICK, .from_tick = tick - 3, .sample = SAMPLE_LAST};
    plan_add_run(p, &prompt, ids);
    plan_add_run(p, &decode, NULL);
    return p;
}

static void check_same_plan(const struct plan *a, const struct plan *b)
{
    assert_int_equal(a->n_ops, b->n_ops);
    assert_int_equal(a->n_runs, b->n_runs);
    assert_int_equal(a->n_words, b->n_words);
    assert_memory_equal(a->ops, b->ops, a->n_ops * sizeof *a->ops);
    assert_memory_equal(a->runs, b->runs, a->n_runs * sizeof *a->runs);
    assert_memory_equal(a->words, b->words, a->n_words * sizeof *a->words);
    assert_true(a->session == b->session && a->epoch == b->epoch && a->tick == b->tick && a->n_rows == b->n_rows);
    assert_true(a->budget_us == b->budget_us);
}

static void stage_plan_and_control_reach_the_stage(void **state)
{
    (void)state;
    start("job");
    wait_open();
    assert_string_equal(stage_conn_peer(t.conn), "ipv4:127.0.0.1");
    struct to_stage m = {.kind = TO_STAGE_ASSIGN,
                         .assign = {1, 2, 15, 30, 8, 8192, 64, 500, 256, 1ull << 40, 300, 10000, 3, "f16"}};
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    wait_for(&t.n_to, 1, 2000);
    assert_int_equal(t.to.kind, TO_STAGE_ASSIGN);
    assert_memory_equal(&t.to.assign, &m.assign, sizeof m.assign);
    memset(&m, 0, sizeof m);
    m.kind = TO_STAGE_LINKS;
    m.links.session = ~0ull;
    m.links.epoch = 9;
    strcpy(m.links.next.tcp, "10.0.0.2:41234");
    strcpy(m.links.next.unix_name, "sluice-17");
    strcpy(m.links.next.boot_id, "2b1d8f1e-0000-4000-8000-000000000000");
    m.links.next.net_namespace = 4026531840;
    memset(m.links.key, 0xab, sizeof m.links.key);
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    wait_for(&t.n_to, 2, 2000);
    assert_memory_equal(&t.to.links, &m.links, sizeof m.links);
    struct plan *p = sample_plan(100);
    m = (struct to_stage){.kind = TO_STAGE_PLAN, .plan = p};
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    wait_for(&t.n_to, 3, 2000);
    assert_int_equal(t.to.kind, TO_STAGE_PLAN);
    check_same_plan(p, t.to.plan);
    plan_destroy(p);
    m = (struct to_stage){.kind = TO_STAGE_EXIT, .exit = {.status = STATUS_CONFIG, .message = "wrong profile"}};
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    wait_for(&t.n_to, 4, 2000);
    assert_int_equal(t.to.exit.status, STATUS_CONFIG);
    assert_string_equal(t.to.exit.message, "wrong profile");
    stop();
}

static void stage_hello_and_results_reach_the_coordinator(void **state)
{
    struct from_stage m = {.kind = FROM_STAGE_HELLO};
    (void)state;
    start("job");
    wait_open();
    m.hello.wire_version = WIRE_VERSION;
    m.hello.stage = 1;
    strcpy(m.hello.host, "n0");
    strcpy(m.hello.profile, "llama/q4_0");
    m.hello.incarnation = ~0ull;
    m.hello.memory_bytes = 1ull << 45;
    m.hello.last_signal = 11;
    memset(m.hello.model_hash, 7, sizeof m.hello.model_hash);
    strcpy(m.hello.addresses.tcp, "127.0.0.1:1");
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 1, 2000);
    assert_memory_equal(&t.from.hello, &m.hello, sizeof m.hello);
    memset(&m, 0, sizeof m);
    m.kind = FROM_STAGE_LOADED;
    m.loaded = (struct msg_loaded){100, 1ull << 33, 1ull << 30, {1, 8, 64}, {900, 1000, 2000}, {800, 1100, 2100}, 1.25};
    m.assigned = (struct msg_assign){1, 3, 10, 20, 4, 1024, 16, 2000, 256, 1ull << 33, 300, 10000, 4, "f16"};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 2, 2000);
    assert_memory_equal(&t.from.loaded, &m.loaded, sizeof m.loaded);
    assert_null(assign_difference(&t.from.assigned, &m.assigned));
    assert_int_equal(t.from.assigned.window, 4);
    struct result *r;
    result_create(2, &r);
    r->session = 5;
    r->tick = 6;
    r->timing = (struct stage_timing){6, 1, 2, 3, 4, 5, 6, 7};
    r->n_runs = 2;
    r->runs[0] = (struct result_run){.seq = 11, .n_accepted = 4, .id = -1, .bad_logits = 1};
    r->runs[1] = (struct result_run){.seq = 12, .n_accepted = 1, .id = 49151};
    m = (struct from_stage){.kind = FROM_STAGE_RESULT, .result = r};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 3, 2000);
    assert_ptr_equal(t.from.result, t.results[0]);
    assert_int_equal(t.from.result->n_runs, 2);
    assert_memory_equal(t.from.result->runs, r->runs, 2 * sizeof r->runs[0]);
    assert_memory_equal(&t.from.result->timing, &r->timing, sizeof r->timing);
    result_destroy(r);
    memset(&m, 0, sizeof m);
    m.kind = FROM_STAGE_FAILED;
    m.failed = (struct msg_failed){1, 2, 3, STATUS_BAD_LOGITS, "why", 1};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 4, 2000);
    assert_memory_equal(&t.from.failed, &m.failed, sizeof m.failed);
    memset(&m, 0, sizeof m);
    m.kind = FROM_STAGE_HEARTBEAT;
    m.heartbeat = (struct msg_heartbeat){.session = 1, .epoch = 2, .tick = 3, .layer_counter = 4, .busy = 1, .waits = 1,
                                         .stale = {.plans = 5, .epochs = 6, .links = 7, .frames = 8, .feedback = 1ull << 40}};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 5, 2000);
    assert_int_equal(t.from.heartbeat.tick, 3);
    assert_int_equal(t.from.heartbeat.waits, 1);
    assert_memory_equal(&t.from.heartbeat.stale, &m.heartbeat.stale, sizeof m.heartbeat.stale);
    memset(&m, 0, sizeof m);
    m.kind = FROM_STAGE_ACK;
    m.ack = (struct msg_ack){~0ull, 2, 1ull << 63, 4, 5, 1ull << 40};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_from, 6, 2000);
    assert_memory_equal(&t.from.ack, &m.ack, sizeof m.ack);
    stop();
}

static void stage_without_the_secret_is_refused_by_name(void **state)
{
    (void)state;
    start("wrong");
    wait_for(&t.n_closed, 2, 2000); /* and it tries again by itself */
    assert_int_equal(t.why.status, STATUS_UNAUTHENTICATED);
    assert_int_equal(t.n_attached, 0);
    assert_int_equal(t.n_opened, 0);
    struct from_stage m = {.kind = FROM_STAGE_HEARTBEAT};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_CLOSED);
    stop();
}

static void stage_comes_back_when_the_server_does(void **state)
{
    char address[64];
    int64_t best_ms = INT64_MAX;
    (void)state;
    start("job");
    wait_open();
    memcpy(address, t.address, sizeof address);
    for (int i = 2; i <= 4; i++) {
        rpc_server_destroy(t.server, 0);
        wait_for(&t.n_closed, i - 1, 1000);
        assert_int_equal(t.why.status, STATUS_CLOSED);
        assert_int_equal(t.n_conn_closed, i - 1);
        sleep_ms(40 * i);
        int64_t back = clock_now_ns();
        start_server(address);
        wait_for(&t.n_opened, i, 2000);
        int64_t ms = (t.opened_ns - back) / NS_PER_MS;
        printf("[          ] open again after %lld ms\n", (long long)ms);
        best_ms = ms < best_ms ? ms : best_ms;
    }
    assert_true(best_ms < 200); /* the best of three: a busy machine adds to each */
    assert_int_equal(t.n_closed, 3);
    stop();
}

static void stage_stream_ends_after_what_is_queued(void **state)
{
    struct error why = {.status = STATUS_BAD_MODEL, .message = "another model"};
    struct to_stage m = {.kind = TO_STAGE_EPOCH, .epoch = {1, 2}};
    (void)state;
    start("job");
    wait_open();
    for (int i = 0; i < 40; i++)
        assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    stage_conn_close(t.conn, &why);
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_CLOSED);
    wait_for(&t.n_closed, 1, 2000);
    assert_int_equal(t.n_to, 40);
    assert_int_equal(t.why.status, STATUS_BAD_MODEL);
    assert_string_equal(t.why.message, "another model");
    stop();
}

static void stage_result_beyond_the_window_ends_the_stream(void **state)
{
    (void)state;
    start("job");
    wait_open();
    pthread_mutex_lock(&t.lock);
    t.n_acquired = -1; /* none to give */
    pthread_mutex_unlock(&t.lock);
    struct from_stage m = {.kind = FROM_STAGE_RESULT, .result = t.results[3]};
    assert_int_equal(stage_client_send(t.client, &m), STATUS_OK);
    wait_for(&t.n_closed, 1, 2000);
    assert_int_equal(t.why.status, STATUS_PROTOCOL);
    assert_int_equal(t.n_from, 0);
    stop();
}

static void stage_plan_that_breaks_its_rules_ends_the_stream(void **state)
{
    (void)state;
    start("job");
    wait_open();
    struct plan *p = sample_plan(100);
    p->runs[1].from_tick = 100; /* its own tick */
    struct to_stage m = {.kind = TO_STAGE_PLAN, .plan = p};
    assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
    wait_for(&t.n_closed, 1, 2000);
    assert_int_equal(t.why.status, STATUS_PROTOCOL);
    assert_int_equal(t.n_to, 0);
    plan_destroy(p);
    stop();
}

/* Packing holds no lock of the loop; 64 may wait while the loop's thread is kept busy. */
static void stage_queue_is_bounded(void **state)
{
    struct to_stage m = {.kind = TO_STAGE_EXIT};
    enum status st = STATUS_OK;
    int n = 0;
    (void)state;
    start("job");
    wait_open();
    pthread_mutex_lock(&t.lock); /* stops the loop's thread in its next callback */
    memset(m.exit.message, 'm', sizeof m.exit.message - 1);
    while (n < 100000 && (st = stage_conn_send(t.conn, &m)) == STATUS_OK)
        n++;
    pthread_mutex_unlock(&t.lock);
    assert_int_equal(st, STATUS_FULL);
    wait_for(&t.n_to, n, 5000);
    stop();
}

static void stage_client_can_go_at_any_moment(void **state)
{
    struct error err;
    (void)state;
    start("job");
    rpc_server_destroy(t.server, 0);
    t.server = NULL;
    for (int i = 0; i < 6; i++) {
        sleep_ms(i * 12);
        stage_client_destroy(t.client);
        struct stage_client_events ev = {NULL, on_open, on_to, on_closed, plan_acquire, plan_release};
        assert_int_equal(stage_client_create(t.channel, &ev, &t.client, &err), STATUS_OK);
    }
    stop();
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The engine's thread sends a plan while the loop's thread is blocked in cq_next; the answer comes back to it. */
static void stage_ping_pong_takes_microseconds(void **state)
{
    enum { N = 2000, WARM = 200 };
    static int64_t ns[N];
    (void)state;
    start("job");
    wait_open();
    pthread_mutex_lock(&t.lock);
    t.echo = 1;
    pthread_mutex_unlock(&t.lock);
    struct plan *p;
    plan_create(8, 8, 64, &p);
    for (int i = 0; i < 8; i++) {
        struct plan_run r = {.seq = (uint64_t)i + 1, .n = 1, .kv_index = 1000, .source = SOURCE_FROM_TICK, .sample = SAMPLE_LAST};
        plan_add_run(p, &r, NULL);
    }
    for (int i = 0; i < N + WARM; i++) {
        p->tick = (uint64_t)i + 1;
        struct to_stage m = {.kind = TO_STAGE_PLAN, .plan = p};
        int64_t start_ns = clock_now_ns();
        assert_int_equal(stage_conn_send(t.conn, &m), STATUS_OK);
        wait_for(&t.n_from, i + 1, 2000);
        if (i >= WARM)
            ns[i - WARM] = clock_now_ns() - start_ns;
    }
    qsort(ns, N, sizeof ns[0], compare);
    printf("[          ] plan and result of 8 rows: median %.1f us, p99 %.1f us, worst %.1f us\n", (double)ns[N / 2] / 1e3,
           (double)ns[N * 99 / 100] / 1e3, (double)ns[N - 1] / 1e3);
    assert_true(ns[N / 2] < 2 * NS_PER_MS); /* not the milliseconds of a poll interval, even on a busy machine */
    plan_destroy(p);
    stop();
}

static void a_stage_that_waits_for_a_connection_takes_new_certificates(void **state)
{
    static const char here[] = "IP:127.0.0.1";
    struct certificates certs;
    struct error err;
    (void)state;
    certificates_open(&certs);
    certificates_make(&certs, &(struct certificate_spec){.name = "ca"});
    certificates_make(&certs, &(struct certificate_spec){.name = "other-ca"});
    certificates_make(&certs, &(struct certificate_spec){.name = "node", .ca = "ca", .san = here});
    certificates_make(&certs, &(struct certificate_spec){.name = "stage", .ca = "other-ca", .san = here});
    certificates_replace(&certs, "stage-ca", "other-ca");
    struct rpc_tls *server = certificates_tls(&certs, "node", "ca"), *client = certificates_tls(&certs, "stage", "stage-ca");
    start_tls("job", server, client);
    sleep_ms(300);
    assert_int_equal(t.n_opened, 0);
    certificates_replace(&certs, "stage-ca", "ca");
    certificates_replace(&certs, "stage", "node");
    assert_int_equal(rpc_tls_reload(client, &err), STATUS_OK);
    stage_client_renew(t.client);
    wait_open();
    stage_client_renew(t.client); /* an open stream stays */
    sleep_ms(200);
    assert_int_equal(t.n_opened, 1);
    assert_int_equal(t.n_closed, 0);
    stop();
    rpc_tls_close(server);
    rpc_tls_close(client);
    certificates_close(&certs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_that_waits_for_a_connection_takes_new_certificates),
        cmocka_unit_test(stage_plan_and_control_reach_the_stage),
        cmocka_unit_test(stage_hello_and_results_reach_the_coordinator),
        cmocka_unit_test(stage_without_the_secret_is_refused_by_name),
        cmocka_unit_test(stage_comes_back_when_the_server_does),
        cmocka_unit_test(stage_stream_ends_after_what_is_queued),
        cmocka_unit_test(stage_result_beyond_the_window_ends_the_stream),
        cmocka_unit_test(stage_plan_that_breaks_its_rules_ends_the_stream),
        cmocka_unit_test(stage_queue_is_bounded),
        cmocka_unit_test(stage_client_can_go_at_any_moment),
        cmocka_unit_test(stage_ping_pong_takes_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
