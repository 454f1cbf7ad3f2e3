#include "tests/unit/rpc/fixture.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "rpc/grpc/admin_api.h"

static struct fixture f;

static struct {
    int n_done;
    struct error err;
    uint32_t ids[64];
    size_t n_ids;
    char text[256];
    size_t len;
    int model_ok;
} u;

static void done(const struct error *err)
{
    pthread_mutex_lock(&f.lock);
    u.err = *err;
    u.n_done++;
    pthread_cond_broadcast(&f.changed);
    pthread_mutex_unlock(&f.lock);
}

static void on_tokens(void *ctx, const struct error *err, const uint32_t *ids, size_t n_ids)
{
    (void)ctx;
    u.n_ids = n_ids;
    for (size_t i = 0; i < n_ids && i < 64; i++)
        u.ids[i] = ids[i];
    done(err);
}

static void on_text(void *ctx, const struct error *err, struct bytes text)
{
    (void)ctx;
    u.len = text.len < sizeof u.text ? text.len : sizeof u.text;
    if (u.len)
        memcpy(u.text, text.data, u.len);
    done(err);
}

static void on_model(void *ctx, const struct error *err, const struct model_facts *m)
{
    (void)ctx;
    u.model_ok = err->status == STATUS_OK && m->n_ids == 2 && m->ids[1].len == 3 && memcmp(m->ids[1].data, "two", 3) == 0 &&
                 m->context == 8192 && m->n_layers == 30 && m->n_vocab == 49152 && m->has_chat_template &&
                 m->created_s == 1700000000 && m->architecture.len == 5 && m->profile.len == 5;
    done(err);
}

static void setup(void)
{
    memset(&u, 0, sizeof u);
    fixture_start(&f, NULL, NULL);
}

static void unary_calls_are_answered(void **state)
{
    static const uint32_t ids[] = {1, 2, 300000};
    (void)state;
    setup();
    assert_int_equal(inference_tokenize(f.channel, text_bytes("ab"), 1, 1, 1000, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 2000);
    assert_int_equal(u.err.status, STATUS_OK);
    assert_int_equal(u.n_ids, 2);
    assert_int_equal(u.ids[1], 3000 + 'b');
    assert_int_equal(inference_tokenize(f.channel, text_bytes(""), 0, 0, 1000, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 2, 2000);
    assert_int_equal(u.err.status, STATUS_OK);
    assert_int_equal(u.n_ids, 0);
    assert_int_equal(inference_detokenize(f.channel, ids, 3, 1, 1000, on_text, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 3, 2000);
    assert_int_equal(u.len, 19);
    assert_memory_equal(u.text, "from\0another thread", 19);
    assert_int_equal(inference_apply_template(f.channel, text_bytes("{}"), 1000, on_text, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 4, 2000);
    assert_memory_equal(u.text, "{}", 2);
    assert_int_equal(inference_get_model(f.channel, 1000, on_model, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 5, 2000);
    assert_true(u.model_ok);
    fixture_stop(&f);
}

static void on_pieces(void *ctx, const struct error *err, const struct vocabulary_pieces *p)
{
    (void)ctx;
    if (p->n)
        u.model_ok = p->n == FIXTURE_PIECES && p->n_hidden == 50 && p->hidden[49] == 98 && p->lengths[33] == 16 && p->lengths[34] == 0 &&
                     p->text.data[0] == 'b' && p->text.data[p->text.len - 1] == 'a' + (FIXTURE_PIECES - 1) % 26;
    done(err);
}

static void a_large_vocabulary_comes_in_one_piece(void **state)
{
    (void)state;
    setup();
    assert_int_equal(inference_get_pieces(f.channel, 5000, on_pieces, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 5000);
    assert_int_equal(u.err.status, STATUS_OK);
    assert_true(u.model_ok);
    fixture_stop(&f);
}

static void unary_failure_keeps_its_fields(void **state)
{
    (void)state;
    setup();
    f.unary_error = (struct error){.status = STATUS_BAD_REQUEST, .message = "no", .param = "text", .code = "too_long"};
    assert_int_equal(inference_tokenize(f.channel, text_bytes("ab"), 0, 0, 1000, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 2000);
    assert_int_equal(u.err.status, STATUS_BAD_REQUEST);
    assert_string_equal(u.err.param, "text");
    assert_string_equal(u.err.code, "too_long");
    f.unary_error.status = STATUS_OK;
    assert_int_equal(inference_tokenize(f.channel, text_bytes("\xc0\x80"), 0, 0, 1000, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 2, 2000);
    assert_int_equal(u.err.status, STATUS_BAD_REQUEST);
    fixture_stop(&f);
}

static void taken_port_is_an_error(void **state)
{
    struct rpc_server *second;
    struct error err;
    (void)state;
    setup();
    assert_int_equal(rpc_server_create(f.loop, &f.server_options, &second, &err), STATUS_OK);
    assert_int_equal(rpc_server_listen(second, f.address, &err), STATUS_ADDRESS_IN_USE);
    assert_non_null(strstr(err.message, f.address));
    rpc_server_destroy(second, 0); /* never started */
    fixture_stop(&f);
}

static void secret_with_a_space_is_refused(void **state)
{
    struct rpc_channel *c;
    struct rpc_options o = {.secret = "a b"};
    struct error err;
    (void)state;
    setup();
    assert_int_equal(rpc_channel_create(f.loop, f.address, &o, &c, &err), STATUS_CONFIG);
    fixture_stop(&f);
}

static int n_at;
static int64_t at_ns;

static void on_at(void *arg)
{
    pthread_mutex_lock(&f.lock);
    assert_ptr_equal(arg, &n_at);
    at_ns = clock_now_ns();
    n_at++;
    pthread_cond_broadcast(&f.changed);
    pthread_mutex_unlock(&f.lock);
}

static void timers_run_at_their_time_and_in_order(void **state)
{
    (void)state;
    setup();
    n_at = 0;
    int64_t start = clock_now_ns();
    assert_int_equal(rpc_loop_at(f.loop, start + 60 * NS_PER_MS, on_at, &n_at), STATUS_OK);
    assert_int_equal(rpc_loop_at(f.loop, start + 3600 * NS_PER_S, on_at, &n_at), STATUS_OK); /* dropped with the loop */
    assert_int_equal(rpc_loop_at(f.loop, start + 20 * NS_PER_MS, on_at, &n_at), STATUS_OK);
    fixture_wait(&f, &n_at, 1, 1000);
    assert_true(at_ns - start >= 20 * NS_PER_MS && at_ns - start < 50 * NS_PER_MS);
    fixture_wait(&f, &n_at, 2, 1000);
    assert_true(at_ns - start >= 60 * NS_PER_MS);
    fixture_stop(&f);
    assert_int_equal(n_at, 2);
}

/* Accepts and says nothing: a channel to it never stands. */
static int deaf_listener(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *)&a, &len);
    *port = ntohs(a.sin_port);
    return fd;
}

static void channel_to_a_deaf_peer_times_out_and_can_be_destroyed(void **state)
{
    char address[64];
    int port, fd = deaf_listener(&port);
    struct rpc_channel *c;
    struct error err;
    (void)state;
    setup();
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    assert_int_equal(rpc_channel_create(f.loop, address, &f.channel_options, &c, &err), STATUS_OK);
    assert_int_equal(inference_tokenize(c, text_bytes("ab"), 0, 0, 100, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 2000);
    assert_true(u.err.status == STATUS_TIMEOUT || u.err.status == STATUS_CLOSED);
    assert_int_equal(inference_tokenize(c, text_bytes("ab"), 0, 0, 0, on_tokens, NULL), STATUS_OK);
    int64_t start = clock_now_ns();
    rpc_channel_destroy(c);
    assert_int_equal(u.n_done, 2); /* told before destroy returned */
    assert_true(u.err.status == STATUS_CANCELLED || u.err.status == STATUS_CLOSED);
    assert_true(clock_now_ns() - start < NS_PER_S);
    close(fd);
    fixture_stop(&f);
}

/* --- admin ------------------------------------------------------------------------------------------------------------- */

static struct {
    int n_gateways, drained;
    char host[64];
    uint32_t pid;
    struct service_status got;
} a;

static void admin_status(void *ctx, struct service_status *out)
{
    (void)ctx;
    strcpy(out->version, "1.2.3");
    strcpy(out->model_id, "smol");
    out->live = out->ready = 1;
    out->epoch = 1ull << 50;
    out->uptime_s = 71.25;
    out->blocks_total = 4096;
    out->queue_limit_tokens = 4194304;
    out->n_gateways = 1;
    strcpy(out->gateways[0].host, "n0");
    out->gateways[0].pid = 4701;
    strcpy(out->coordinator.host, "n9");
    out->coordinator.pid = 4700;
    out->n_slots = STATUS_MAX_SLOTS;
    for (uint32_t i = 0; i < out->n_slots; i++) {
        out->slots[i].slot = i;
        out->slots[i].age_ms = i * 1000ull;
        strcpy(out->slots[i].state, "decoding");
        snprintf(out->slots[i].request, sizeof out->slots[i].request, "req-%u", i);
    }
    out->n_stages = 2;
    out->stages[1] = (struct stage_status){1, 4711, 15, 30, 2, "n1", "ready", "cpu", 1ull << 33, 1ull << 30, 3, 0.5, 0.25, 70};
    out->ticks_in_flight = 3;
    out->blocks_evicted = 1ull << 40;
    out->bank_bound_us = 300000;
    out->stall_unmet = 1;
}

static void admin_metrics(void *ctx, enum metric_aliases aliases, struct buf *out)
{
    (void)ctx;
    buf_text(out, aliases == METRIC_ALIASES_VLLM ? "vllm:x 4\n" : "sluice_epoch 3\n");
}

static void admin_drain(void *ctx, int on)
{
    (void)ctx;
    a.drained = on;
}

static void admin_seen(void *ctx, const char *host, uint32_t pid)
{
    (void)ctx;
    snprintf(a.host, sizeof a.host, "%s", host);
    a.pid = pid;
    a.n_gateways++;
}

static void on_status(void *ctx, const struct error *err, const struct service_status *s)
{
    (void)ctx;
    if (err->status == STATUS_OK)
        service_status_copy(&a.got, s);
    done(err);
}

static void on_metrics(void *ctx, const struct error *err, const char *text, size_t len)
{
    on_text(ctx, err, (struct bytes){text, len});
}

static void admin_answers_and_learns_of_the_gateway(void **state)
{
    static struct service_status want;
    struct admin_service svc = {NULL, admin_status, admin_metrics, admin_drain, admin_seen};
    struct rpc_channel *c;
    struct rpc_server *s;
    struct error err;
    char address[64];
    (void)state;
    setup();
    memset(&a, 0, sizeof a);
    assert_int_equal(rpc_server_create(f.loop, &f.server_options, &s, &err), STATUS_OK);
    assert_int_equal(admin_service_add(s, &svc), STATUS_OK);
    assert_int_equal(rpc_server_listen(s, "127.0.0.1:0", &err), STATUS_OK);
    assert_int_equal(rpc_server_start(s, &err), STATUS_OK);
    snprintf(address, sizeof address, "127.0.0.1:%d", rpc_server_port(s));
    assert_int_equal(rpc_channel_create(f.loop, address, &f.channel_options, &c, &err), STATUS_OK);
    admin_set_gateway(c, "gw-host", 99);
    assert_int_equal(admin_get_status(c, 1000, on_status, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 2000);
    assert_int_equal(u.err.status, STATUS_OK);
    admin_status(NULL, &want);
    assert_memory_equal(&a.got, &want, sizeof want);
    assert_int_equal(a.n_gateways, 1);
    assert_string_equal(a.host, "gw-host");
    assert_int_equal(a.pid, 99);
    assert_int_equal(admin_get_metrics(c, METRIC_ALIASES_NONE, 1000, on_metrics, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 2, 2000);
    assert_int_equal(u.len, 15);
    assert_memory_equal(u.text, "sluice_epoch 3\n", 15);
    assert_int_equal(admin_get_metrics(c, METRIC_ALIASES_VLLM, 1000, on_metrics, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 3, 2000);
    assert_memory_equal(u.text, "vllm:x 4\n", u.len);
    rpc_channel_destroy(c);
    rpc_server_destroy(s, 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_calls_are_answered),
        cmocka_unit_test(a_large_vocabulary_comes_in_one_piece),
        cmocka_unit_test(unary_failure_keeps_its_fields),
        cmocka_unit_test(taken_port_is_an_error),
        cmocka_unit_test(secret_with_a_space_is_refused),
        cmocka_unit_test(timers_run_at_their_time_and_in_order),
        cmocka_unit_test(channel_to_a_deaf_peer_times_out_and_can_be_destroyed),
        cmocka_unit_test(admin_answers_and_learns_of_the_gateway),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
