/* The gateway in one process, with a holder and without a coordinator: who asks for an answer waits and is told. What clients and the gateway
 * before this one can do to server, exchange and adopt at a bad moment. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "deploy/holder.h"
#include "rpc/gateway/adopt.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/held.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/server.h"

enum { WAIT_S = 20 };

static struct {
    struct config config;
    struct gateway gw;
    struct rpc_loop *loop;
    struct holder *holder;
    pthread_t holder_thread;
    pthread_mutex_t holder_lock;
    atomic_int stop;
    int port;
} bed;

static void *serve_holder(void *arg)
{
    (void)arg;
    while (!atomic_load(&bed.stop)) {
        struct pollfd p = {holder_fd(bed.holder), POLLIN, 0};
        poll(&p, 1, 5);
        pthread_mutex_lock(&bed.holder_lock);
        holder_serve(bed.holder);
        pthread_mutex_unlock(&bed.holder_lock);
    }
    return NULL;
}

static uint32_t n_held(void)
{
    pthread_mutex_lock(&bed.holder_lock);
    uint32_t n = holder_held(bed.holder);
    pthread_mutex_unlock(&bed.holder_lock);
    return n;
}

/* A holder, which may be given something before the gateway comes. */
static void open_holder(void)
{
    struct error err;
    pthread_mutex_init(&bed.holder_lock, NULL);
    atomic_store(&bed.stop, 0);
    assert_int_equal(holder_create(&bed.holder, &err), STATUS_OK);
    assert_int_equal(pthread_create(&bed.holder_thread, NULL, serve_holder, NULL), 0);
}

static void hold(uint32_t verb, uint64_t id, uint64_t value, int socket, int journal)
{
    const uint32_t before = n_held();
    const int fds[HOLD_MAX_FDS] = {socket, journal};
    const struct hold_message m = {.verb = verb, .id = id, .value = value};
    assert_int_equal(hold_send(holder_gateway_fd(bed.holder), &m, fds), STATUS_OK);
    while (n_held() == before)
        usleep(1000);
}

static void open_gateway(int argc, char **argv)
{
    static struct held_connection left[HOLD_MAX];
    enum config_action action;
    struct error err;
    char text[16];
    int listener, fd = fcntl(holder_gateway_fd(bed.holder), F_DUPFD_CLOEXEC, 3);
    assert_int_equal(config_read(PROGRAM_GATEWAY, argc, argv, &bed.config, &action, &err), STATUS_OK);
    bed.gw = (struct gateway){.config = &bed.config};
    assert_int_equal(auth_create(NULL, &bed.gw.auth, &err), STATUS_OK);
    assert_int_equal(rpc_loop_create(&bed.loop, &err), STATUS_OK);
    assert_int_equal(backend_create(bed.loop, &bed.config, NULL, &bed.gw.backend, &err), STATUS_OK);
    snprintf(text, sizeof text, "%d", fd);
    setenv("SLUICE_HOLD_FD", text, 1);
    bed.gw.held = held_create();
    assert_non_null(bed.gw.held);
    uint32_t n = held_take(bed.gw.held, left, &listener);
    assert_int_equal(server_create(&bed.gw, bed.config.http, listener, &bed.gw.server, &err), STATUS_OK);
    bed.port = atoi(strrchr(server_address(bed.gw.server), ':') + 1);
    assert_int_equal(adopt_create(&bed.gw, &bed.gw.adopt, &err), STATUS_OK);
    adopt_begin(bed.gw.adopt, left, n);
}

#define OPEN_GATEWAY(...)                                                                                                     \
    do {                                                                                                                      \
        char *args[] = {"gateway", "--coordinator", "127.0.0.1:1", "--http", "127.0.0.1:0", __VA_ARGS__};                     \
        open_gateway(sizeof args / sizeof args[0], args);                                                                     \
    } while (0)

static void close_all(void)
{
    struct error why;
    error_set(&why, STATUS_DRAINING, "the test is over");
    server_destroy(bed.gw.server, &why);
    for (int i = 0; atomic_load(&bed.gw.n_exchanges) && i < 1000 * WAIT_S; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&bed.gw.n_exchanges), 0);
    held_destroy(bed.gw.held);
    backend_destroy(bed.gw.backend);
    rpc_loop_destroy(bed.loop);
    auth_destroy(bed.gw.auth);
    atomic_store(&bed.stop, 1);
    pthread_join(bed.holder_thread, NULL);
    holder_destroy(bed.holder);
    pthread_mutex_destroy(&bed.holder_lock);
}

static int wait_until(int (*is_so)(void))
{
    for (int i = 0; i < 1000 * WAIT_S; i++) {
        if (is_so())
            return 1;
        usleep(1000);
    }
    return 0;
}

/* --- clients ------------------------------------------------------------------------------------------------------------ */

static int connect_to(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct timeval tv = {.tv_sec = WAIT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void send_text(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* it was refused before it was read */
        data += n;
        len -= (size_t)n;
    }
}

static void ask(int fd, const char *method, const char *path, size_t body_len)
{
    char head[200];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", method, path, body_len);
    send_text(fd, head, (size_t)n);
}

/* Status of the answer whose head comes first; 0: the connection ended. */
static int read_status(int fd)
{
    char got[4096] = "";
    size_t n = 0;
    ssize_t k;
    while (n < sizeof got - 1 && !strstr(got, "\r\n\r\n") && (k = recv(fd, got + n, sizeof got - 1 - n, 0)) > 0)
        got[n += (size_t)k] = 0;
    return strstr(got, "\r\n\r\n") ? atoi(got + strlen("HTTP/1.1 ")) : 0;
}

static void read_end(int fd)
{
    char nothing[65536];
    while (recv(fd, nothing, sizeof nothing, 0) > 0)
        ;
}

/* --- answers that a gateway before this one began ------------------------------------------------------------------------ */

/* Both ends of a connection. */
static void pair(int *client, int *server)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *client = connect_to(ntohs(a.sin_port));
    *server = accept(fd, NULL, NULL);
    assert_true(*server >= 0);
    close(fd);
}

static struct keeper *journal(int socket, int close_after)
{
    static const char body[] = "{\"prompt\":[5,6,7],\"stream\":true}";
    struct kept_request r = {.endpoint = ENDPOINT_COMPLETION, .close_after = (uint32_t)close_after, .n = 1, .started_ns = clock_now_ns()};
    struct keeper *k;
    uint64_t position;
    assert_int_equal(keeper_position(socket, &position), STATUS_OK);
    assert_int_equal(keeper_create(position, &k), STATUS_OK);
    snprintf(r.request_id, sizeof r.request_id, "mine-1");
    snprintf(r.client, sizeof r.client, "key-abc");
    snprintf(r.id, sizeof r.id, "req-00");
    snprintf(r.answer_id, sizeof r.answer_id, "cmpl-00");
    kept_write_request(k, &r, body, strlen(body));
    return k;
}

/* The gateway before is dead: what it had is the holder's alone. */
static void leave(int socket, struct keeper *k)
{
    keeper_publish(k);
    assert_false(keeper_failed(k));
    hold(HOLD_KEEP, 1, 0, socket, keeper_fd(k));
    keeper_close(k);
    close(socket);
}

static void leave_reply(int socket, struct keeper *k, const char *body, size_t len)
{
    const struct keeper_reply head = {200, 0};
    const struct keeper_part parts[] = {{&head, sizeof head}, {body, len}};
    keeper_record_parts(k, KEEPER_REPLY, parts, 2);
    keeper_state(k)->framing = KEEPER_LENGTH;
    keeper_state(k)->produced = len;
    keeper_state(k)->ended = 1;
    leave(socket, k);
}

static int none_is_open(void)
{
    return server_open_requests(bed.gw.server) == 0;
}

static void a_client_that_does_not_read_what_was_adopted_is_let_go(void **state)
{
    enum { CONTENT = 120 << 10 };
    char *content = malloc(CONTENT);
    int client, server;
    (void)state;
    memset(content, 'a', CONTENT);
    open_holder();
    pair(&client, &server);
    struct keeper *k = journal(server, 0);
    keeper_state(k)->framing = KEEPER_CHUNKED;
    keeper_content(k, content, CONTENT);
    leave(server, k);
    OPEN_GATEWAY("--write-stall-ms", "300");
    assert_int_equal(server_open_requests(bed.gw.server), 1);
    assert_true(wait_until(none_is_open));
    assert_int_equal(atomic_load(&bed.gw.write_stalled), 1);
    read_end(client);
    close(client);
    close_all();
    free(content);
}

static void a_large_whole_answer_is_adopted_too(void **state)
{
    enum { BODY = 12 << 20 };
    char *body = malloc(BODY), *got = malloc(BODY + 4096);
    int client, server;
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < BODY; i++)
        body[i] = (char)('a' + i % 23);
    open_holder();
    pair(&client, &server);
    leave_reply(server, journal(server, 1), body, BODY);
    OPEN_GATEWAY("--write-stall-ms", "20000");
    for (ssize_t k; n < BODY + 4096 && (k = recv(client, got + n, BODY + 4096 - n, 0)) > 0;)
        n += (size_t)k;
    const char *at = memmem(got, n, "\r\n\r\n", 4);
    assert_non_null(at);
    assert_int_equal(got + n - (at + 4), BODY);
    assert_memory_equal(at + 4, body, BODY);
    close(client);
    close_all();
    free(body);
    free(got);
}

static int one_is_held(void)
{
    return n_held() == 1;
}

static int none_is_held(void)
{
    return n_held() == 0;
}

static void after_a_journal_that_is_of_no_use_connections_are_held_as_before(void **state)
{
    int client, server;
    (void)state;
    open_holder();
    pair(&client, &server);
    struct keeper *k = journal(server, 0);
    keeper_state(k)->wire_begin += 7;
    leave(server, k);
    OPEN_GATEWAY("--write-stall-ms", "20000");
    assert_int_equal(read_status(client), 0);
    assert_true(wait_until(none_is_held));
    close(client);
    client = connect_to(bed.port);
    assert_true(wait_until(one_is_held));
    close(client);
    assert_true(wait_until(none_is_held));
    close_all();
}

static void a_connection_that_is_told_of_twice_is_taken_once(void **state)
{
    int client, server;
    (void)state;
    open_holder();
    pair(&client, &server);
    uint64_t consumed;
    assert_int_equal(keeper_consumed(server, &consumed), STATUS_OK);
    hold(HOLD_WAIT, 5, consumed, server, -1);
    leave_reply(server, journal(server, 0), "{}", 2);
    OPEN_GATEWAY("--write-stall-ms", "20000");
    assert_int_equal(read_status(client), 200);
    usleep(200000);
    assert_int_equal(n_held(), 1);
    close(client);
    assert_true(wait_until(none_is_held));
    close_all();
}

/* --- bodies --------------------------------------------------------------------------------------------------------------- */

enum { LARGE = 60 << 20, SMALL = 130 << 10, CLIENTS = 320 };

static int all_but_one_byte_is_there(void)
{
    return atomic_load(&bed.gw.body_bytes) == LARGE + CLIENTS * (SMALL - 1);
}

/* A body is let go a moment after its answer. */
static int no_body_is_there(void)
{
    return atomic_load(&bed.gw.body_bytes) == 0;
}

static void bodies_that_found_no_place_are_forgotten(void **state)
{
    static int fds[CLIENTS];
    char *body = malloc(LARGE);
    int n_full = 0;
    (void)state;
    open_holder();
    OPEN_GATEWAY("--write-stall-ms", "20000");
    for (size_t i = 0; i < LARGE; i += 2)
        memcpy(body + i, "\\n", 2);
    memcpy(body, "{\"content\": \"", 13);
    memcpy(body + LARGE - 2, "1 ", 2); /* it is read to its end, and then it is no JSON */
    int first = connect_to(bed.port);
    ask(first, "POST", "/tokenize", LARGE);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = connect_to(bed.port);
        ask(fds[i], "POST", "/tokenize", SMALL);
        send_text(fds[i], body, SMALL - 1);
    }
    send_text(first, body, LARGE);
    assert_true(wait_until(all_but_one_byte_is_there));
    for (int i = 0; i < CLIENTS; i++)
        send_text(fds[i], "x", 1);
    for (int i = 0; i < CLIENTS; i++) {
        int http = read_status(fds[i]);
        assert_true(http == 400 || http == 503);
        n_full += http == 503;
        close(fds[i]);
    }
    assert_int_equal(read_status(first), 400);
    close(first);
    assert_true(wait_until(none_is_open));
    printf("%d of %d found no place\n", n_full, CLIENTS);
    assert_true(n_full > 0);
    assert_true(wait_until(no_body_is_there));
    close_all();
    free(body);
}

static void a_body_that_nobody_asked_for_takes_no_room(void **state)
{
    enum { IDLERS = 9, BODY = 1000000 };
    char *body = calloc(1, BODY);
    int fds[IDLERS];
    (void)state;
    open_holder();
    OPEN_GATEWAY("--max-body-mib", "1");
    for (int i = 0; i < IDLERS; i++) {
        fds[i] = connect_to(bed.port);
        ask(fds[i], "GET", "/live", BODY);
        send_text(fds[i], body, BODY - 1);
    }
    assert_int_equal(atomic_load(&bed.gw.body_bytes), 0);
    for (int i = 0; i < IDLERS; i++) {
        send_text(fds[i], body, 1);
        assert_int_equal(read_status(fds[i]), 200);
        close(fds[i]);
    }
    close_all();
    free(body);
}

/* What is held goes out in pieces of 16 KiB, on the thread of all connections: moving the rest for each would take minutes. */
static void a_large_reply_costs_what_it_has_bytes(void **state)
{
    enum { BODY = 96 << 20, PART = 1 << 20, MOST_S = 8 };
    static struct gateway gw;
    struct buf body;
    char *part = calloc(1, PART);
    size_t taken = 0;
    long n;
    (void)state;
    buf_init(&body, BODY);
    while (body.len < BODY)
        buf_append(&body, part, PART);
    struct exchange *x = exchange_create_adopted(&gw, -1);
    pthread_mutex_lock(&x->lock);
    exchange_reply(x, 200, "application/json", &body);
    const int64_t until = clock_now_ns() + MOST_S * NS_PER_S;
    while ((n = exchange_take(x, part, 16 << 10)) > 0 && clock_now_ns() < until)
        taken += (size_t)n;
    assert_int_equal(taken, BODY);
    assert_int_equal(n, EXCHANGE_END);
    pthread_mutex_unlock(&x->lock);
    exchange_release(x);
    free(part);
}

/* --- the end ---------------------------------------------------------------------------------------------------------------- */

static atomic_int asking;

static void *ask_and_ask(void *arg)
{
    (void)arg;
    while (atomic_load(&asking)) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)bed.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            ask(fd, "POST", "/tokenize", 15);
            send_text(fd, "{\"content\":\"a\"}", 15);
            usleep(3000);
        }
        close(fd);
    }
    return NULL;
}

static void the_end_comes_while_clients_go_on_asking(void **state)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    (void)state;
    open_holder();
    OPEN_GATEWAY("--write-stall-ms", "20000");
    atomic_store(&asking, 1);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_and_ask, NULL), 0);
    usleep(50000);
    close_all();
    atomic_store(&asking, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_does_not_read_what_was_adopted_is_let_go),
        cmocka_unit_test(a_large_whole_answer_is_adopted_too),
        cmocka_unit_test(after_a_journal_that_is_of_no_use_connections_are_held_as_before),
        cmocka_unit_test(a_connection_that_is_told_of_twice_is_taken_once),
        cmocka_unit_test(bodies_that_found_no_place_are_forgotten),
        cmocka_unit_test(a_body_that_nobody_asked_for_takes_no_room),
        cmocka_unit_test(a_large_reply_costs_what_it_has_bytes),
        cmocka_unit_test(the_end_comes_while_clients_go_on_asking),
    };
    struct error err;
    json_in_install();
    log_set_levels("error", &err);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
