/* Links alone: bytes arrive, waits end, strangers are shown the door. */
#include "tests/unit/stage/cmocka_all.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "stage/handshake.h"
#include "stage/link_listener.h"
#include "tests/unit/stage/ends.h"

enum { N_BYTES = 1 << 19 };

/* --- bytes ------------------------------------------------------------------------------------------------------------------------- */

static enum status no_drain(void *ctx, struct error *err)
{
    (void)ctx;
    (void)err;
    return STATUS_OK;
}

static void *write_thread(void *arg)
{
    struct end *e = arg;
    uint8_t *bytes = malloc(N_BYTES);
    for (uint32_t i = 0; i < N_BYTES; i++)
        bytes[i] = (uint8_t)rand_at(7, i);
    /* in odd pieces, so that frames and buffers never end together */
    for (uint32_t at = 0, n = 1; at < N_BYTES && e->status == STATUS_OK; at += n, n = (n * 7 + 13) % 70000) {
        n = n < (uint32_t)N_BYTES - at ? n : (uint32_t)N_BYTES - at;
        uint32_t half = n / 3;
        struct iovec iov[2] = {{bytes + at, half}, {bytes + at + half, n - half}};
        e->status = link_write_all(e->pair.out, iov, 2, 3000, NULL, no_drain, NULL, &e->err);
    }
    free(bytes);
    return NULL;
}

static void every_byte_arrives_in_order(void **state)
{
    (void)state;
    for (enum how how = IN_MEMORY; how < N_WAYS; how++) {
        struct end e[2];
        pthread_t t;
        ends_open(how, e);
        pthread_create(&t, NULL, write_thread, &e[0]);
        uint8_t *got = malloc(N_BYTES);
        struct error err;
        assert_int_equal(link_read_all(e[1].pair.in, got, 64, 3000, &err), STATUS_OK);
        assert_int_equal(link_read_all(e[1].pair.in, got + 64, N_BYTES - 64, 3000, &err), STATUS_OK);
        pthread_join(t, NULL);
        assert_int_equal(e[0].status, STATUS_OK);
        for (uint32_t i = 0; i < N_BYTES; i++)
            if (got[i] != (uint8_t)rand_at(7, i))
                fail_msg("byte %u differs", i);
        free(got);
        ends_close(e);
    }
}

/* Its kernel still answers; that nobody answers is for tests/cluster, which can cut a way. */
static void a_reader_that_reads_nothing_is_no_silent_host(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 20];
    for (enum how how = IN_MEMORY; how < N_WAYS; how++) {
        struct end e[2];
        struct error err;
        enum status s = STATUS_OK;
        ends_open(how, e);
        while (s == STATUS_OK) {
            struct iovec iov = {bytes, sizeof bytes};
            s = link_write_all(e[0].pair.out, &iov, 1, 20, NULL, no_drain, NULL, &err);
        }
        assert_int_equal(s, STATUS_TIMEOUT); /* all buffers are full */
        for (int i = 0; i < 10; i++) {
            assert_in_range(link_unheard_ms(e[0].pair.out), 0, 150);
            usleep(40000);
        }
        ends_close(e);
    }
}

static void a_silent_or_closed_other_end_is_told_apart(void **state)
{
    (void)state;
    for (enum how how = IN_MEMORY; how < N_WAYS; how++) {
        struct end e[2];
        uint8_t byte;
        size_t got = 9;
        struct error err;
        ends_open(how, e);
        assert_int_equal(link_read(e[1].pair.in, &byte, 1, 0, &got, &err), STATUS_OK);
        assert_int_equal(got, 0);
        int64_t start_ns = clock_now_ns();
        assert_int_equal(link_read_all(e[1].pair.in, &byte, 1, 30, &err), STATUS_TIMEOUT);
        assert_true(clock_now_ns() - start_ns >= 29 * NS_PER_MS);
        struct iovec iov = {&(uint8_t){42}, 1};
        assert_int_equal(link_write_all(e[0].pair.out, &iov, 1, 100, NULL, no_drain, NULL, &err), STATUS_OK);
        link_destroy(e[0].pair.out);
        e[0].pair.out = NULL;
        assert_int_equal(link_read_all(e[1].pair.in, &byte, 1, 1000, &err), STATUS_OK); /* what was sent before still comes */
        assert_int_equal(byte, 42);
        assert_int_equal(link_read_all(e[1].pair.in, &byte, 1, 1000, &err), STATUS_LINK);
        ends_close(e);
    }
}

struct aborter {
    struct link *link;
    struct link_port *port;
};

static void *abort_soon(void *arg)
{
    struct aborter *a = arg;
    usleep(20000);
    if (a->link)
        link_abort(a->link);
    if (a->port)
        link_port_abort(a->port, 100);
    return NULL;
}

static void an_abort_wakes_reader_writer_and_whoever_forms(void **state)
{
    (void)state;
    for (enum how how = IN_MEMORY; how < N_WAYS; how++) {
        struct end e[2];
        pthread_t t;
        struct error err;
        uint8_t *bytes = calloc(1, 16 << 20);
        ends_open(how, e);
        pthread_create(&t, NULL, abort_soon, &(struct aborter){.link = e[1].pair.in});
        assert_int_equal(link_read_all(e[1].pair.in, bytes, 1, 5000, &err), STATUS_CLOSED);
        pthread_join(t, NULL);
        pthread_create(&t, NULL, abort_soon, &(struct aborter){.link = e[1].pair.out});
        struct iovec iov = {bytes, 16 << 20};
        assert_int_equal(link_write_all(e[1].pair.out, &iov, 1, 5000, NULL, no_drain, NULL, &err), STATUS_CLOSED);
        pthread_join(t, NULL);
        /* alone in epoch 2: nobody comes */
        struct link_pair pair;
        struct link_form f = ends_form(0, 2, e[1].port);
        pthread_create(&t, NULL, abort_soon, &(struct aborter){.port = e[0].port});
        int64_t start_ns = clock_now_ns();
        assert_int_equal(link_port_form(e[0].port, &f, &pair, &err), STATUS_CLOSED);
        assert_true(clock_now_ns() - start_ns < NS_PER_S);
        pthread_join(t, NULL);
        /* a form that begins after its abort ends at once, a newer one does not */
        f.generation = 99;
        assert_int_equal(link_port_form(e[0].port, &f, &pair, &err), STATUS_CLOSED);
        f.generation = 100;
        f.timeout_ms = 50;
        enum status s = link_port_form(e[0].port, &f, &pair, &err);
        assert_true(s == STATUS_TIMEOUT || s == STATUS_LINK);
        free(bytes);
        ends_close(e);
    }
}

static void check_drain(enum how how)
{
    struct end e[2];
    struct error err;
    ends_open(how, e);
    uint8_t *bytes = calloc(1, 16 << 20);
    struct iovec small = {&(uint8_t){7}, 1};
    assert_int_equal(link_write_all(e[1].pair.out, &small, 1, 100, NULL, no_drain, NULL, &err), STATUS_OK);
    /* End 0 writes more than anybody takes; what lies in its in link must be offered to drain. */
    size_t put = 1;
    struct iovec big = {bytes, 16 << 20};
    while (put) {
        enum status s = e[0].pair.out->table->write(e[0].pair.out, &big, 1, clock_now_ns() + NS_PER_S, e[0].pair.in, &put, &err);
        assert_int_equal(s, STATUS_OK);
        big.iov_base = (char *)big.iov_base + put;
        big.iov_len -= put;
    }
    assert_true(big.iov_len > 0);
    free(bytes);
    ends_close(e);
}

static void a_waiting_writer_lets_the_other_direction_drain(void **state)
{
    (void)state;
    check_drain(BY_UNIX);
    check_drain(BY_TLS);
}

/* --- addresses ------------------------------------------------------------------------------------------------------------------------ */

static void addresses_are_reachable_and_say_where_they_are(void **state)
{
    (void)state;
    struct link_port *p;
    struct link_addresses a;
    struct error err;
    const struct link_socket_options any = {.data = "0.0.0.0", .coordinator = "127.0.0.1:7411"};
    assert_int_equal(link_socket_port_create(&any, &p, &err), STATUS_OK);
    link_port_addresses(p, &a);
    assert_memory_equal(a.tcp, "127.0.0.1:", 10); /* not 0.0.0.0 */
    assert_true(strlen(a.boot_id) == 36);
    assert_true(a.net_namespace != 0);
    assert_true(a.unix_name[0] != 0);
    struct link_port *q;
    const struct link_socket_options taken = {.data = a.tcp};
    assert_int_equal(link_socket_port_create(&taken, &q, &err), STATUS_ADDRESS_IN_USE);
    const struct link_socket_options nonsense = {.data = "127.0.0.1:x"};
    assert_int_equal(link_socket_port_create(&nonsense, &q, &err), STATUS_CONFIG);
    link_port_destroy(p);
}

/* Sockets of both kinds listen; which one is used shows by destroying the other's name. */
static void auto_takes_unix_only_with_the_same_boot_and_namespace(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct end e[2];
        struct error err;
        memset(e, 0, sizeof e);
        for (int i = 0; i < 2; i++)
            assert_int_equal(link_socket_port_create(&(struct link_socket_options){0}, &e[i].port, &err), STATUS_OK);
        for (int i = 0; i < 2; i++) {
            e[i].form = ends_form((uint32_t)i, 1, e[1 - i].port);
            if (same)
                snprintf(e[i].form.next.tcp, sizeof e[i].form.next.tcp, "nowhere.invalid:1");
            else
                e[i].form.next.net_namespace++; /* another container: the name would lead elsewhere */
            if (!same)
                snprintf(e[i].form.next.unix_name, sizeof e[i].form.next.unix_name, "sluice-of-a-stranger");
        }
        ends_join(e);
        for (int i = 0; i < 2; i++)
            assert_int_equal(e[i].status, STATUS_OK);
        ends_destroy(e);
    }
}

/* --- strangers --------------------------------------------------------------------------------------------------------------------------- */

static void nonsense_is_closed_at_once(void **state)
{
    (void)state;
    struct link_port *p = ends_make_port(BY_TCP);
    static const char *const words[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                        "\x7f\x45\x4c\x46\x02\x01\x01\x00\x00", "SLUILNK2xxxxxxxx"};
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        int fd = ends_connect_to(p, 0);
        assert_true(send(fd, words[i], i == 1 ? 11 : strlen(words[i]), MSG_NOSIGNAL) > 0);
        assert_true(ends_closed_after(fd, 1500) < 1000);
        close(fd);
    }
    /* our magic, but bits that must be 0 */
    uint8_t hello[HANDSHAKE_HELLO_BYTES];
    assert_int_equal(handshake_hello(&(struct handshake_edge){ENDS_SESSION, 1, 1, 0}, hello, NULL), STATUS_OK);
    hello[28] = 2;
    int fd = ends_connect_to(p, 0);
    send(fd, hello, sizeof hello, MSG_NOSIGNAL);
    assert_true(ends_closed_after(fd, 1500) < 1000);
    close(fd);
    struct link_socket_counters n;
    link_socket_port_counters(p, &n);
    assert_int_equal(n.refused, 5);
    assert_int_equal(n.accepted, 0);
    link_port_destroy(p);
}

/* The listener of stage 0 expects stage 1 in epoch 1. */
static struct link_listener *expecting(int listen_fd)
{
    struct link_listener *l;
    struct error err;
    assert_int_equal(link_listener_create(listen_fd, -1, NULL, &l, &err), STATUS_OK);
    assert_int_equal(link_listener_expect(l, 1, &(struct handshake_edge){ENDS_SESSION, 1, 1, 0}, ends_key), STATUS_OK);
    return l;
}

static int listen_anywhere(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    assert_int_equal(listen(fd, 16), 0);
    getsockname(fd, (struct sockaddr *)at, &len);
    return fd;
}

static int dial(const struct sockaddr_in *at)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)at, sizeof *at), 0);
    return fd;
}

static void whoever_lacks_the_key_or_comes_for_another_edge_is_refused(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct link_listener *l = expecting(listen_anywhere(&at));
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES], proof[HANDSHAKE_PROOF_BYTES] = {0};
    struct error err;
    /* the right hello, no key: a proof of zeros; the acceptor's own code sent back (reflection) */
    for (int reflect = 0; reflect < 2; reflect++) {
        handshake_hello(&(struct handshake_edge){ENDS_SESSION, 1, 1, 0}, hello, NULL);
        int fd = dial(&at);
        send(fd, hello, sizeof hello, MSG_NOSIGNAL);
        assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
        send(fd, reflect ? challenge + 32 : proof, sizeof proof, MSG_NOSIGNAL);
        assert_true(ends_closed_after(fd, 1500) < 1000);
        close(fd);
        uint8_t wrong[32] = {9};
        assert_int_equal(handshake_prove(wrong, hello, challenge, proof, &err), STATUS_UNAUTHENTICATED);
    }
    /* a recorded proof does not fit a new challenge */
    handshake_hello(&(struct handshake_edge){ENDS_SESSION, 1, 1, 0}, hello, NULL);
    int fd = dial(&at);
    send(fd, hello, sizeof hello, MSG_NOSIGNAL);
    assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    close(fd);
    assert_int_equal(handshake_prove(ends_key, hello, challenge, proof, &err), STATUS_OK);
    fd = dial(&at);
    send(fd, hello, sizeof hello, MSG_NOSIGNAL);
    assert_int_equal(recv(fd, challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    send(fd, proof, sizeof proof, MSG_NOSIGNAL);
    assert_true(ends_closed_after(fd, 1500) < 1000);
    close(fd);
    /* other edges of this epoch, and an older one: stale */
    const struct handshake_edge wrong[] = {{ENDS_SESSION, 1, 0, 0}, {ENDS_SESSION, 1, 1, 1}, {ENDS_SESSION + 1, 1, 1, 0}, {ENDS_SESSION, 0, 1, 0}};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        handshake_hello(&wrong[i], hello, NULL);
        fd = dial(&at);
        send(fd, hello, sizeof hello, MSG_NOSIGNAL);
        assert_true(ends_closed_after(fd, 1500) < 1000);
        close(fd);
    }
    struct link_socket_counters n;
    link_listener_counters(l, &n);
    assert_int_equal(n.accepted, 0);
    assert_int_equal(n.stale, 4);
    struct link_taken none;
    assert_int_equal(link_listener_take(l, 1, clock_now_ns(), &none), STATUS_TIMEOUT);
    link_listener_destroy(l);
}

static void check_early(enum how how)
{
    struct end e[2];
    pthread_t t;
    ends_make(how, e);
    pthread_create(&t, NULL, ends_form_thread, &e[1]);
    usleep(50000); /* its hello is here, our LINKS are not */
    struct link_socket_counters n;
    link_socket_port_counters(e[0].port, &n);
    assert_int_equal(n.pending, 1);
    ends_form_thread(&e[0]);
    pthread_join(t, NULL);
    assert_int_equal(e[0].status, STATUS_OK);
    assert_int_equal(e[1].status, STATUS_OK);
    link_socket_port_counters(e[0].port, &n);
    assert_int_equal(n.accepted, 1);
    assert_int_equal(n.refused + n.stale, 0);
    ends_destroy(e);
}

static void a_neighbour_that_knows_the_epoch_first_waits_for_us(void **state)
{
    (void)state;
    check_early(BY_UNIX);
    check_early(BY_TLS);
}

static void check_keys(enum how how)
{
    struct end e[2];
    ends_make(how, e);
    e[1].form.key[31] ^= 1;
    e[0].form.timeout_ms = e[1].form.timeout_ms = 150;
    ends_join(e);
    assert_true(e[0].status == STATUS_UNAUTHENTICATED || e[1].status == STATUS_UNAUTHENTICATED);
    assert_int_not_equal(e[0].status, STATUS_OK);
    assert_int_not_equal(e[1].status, STATUS_OK);
    for (int i = 0; i < 2; i++)
        link_port_destroy(e[i].port);
}

static void ends_with_different_keys_say_so(void **state)
{
    (void)state;
    check_keys(BY_TCP);
    check_keys(BY_TLS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_arrives_in_order),
        cmocka_unit_test(a_reader_that_reads_nothing_is_no_silent_host),
        cmocka_unit_test(a_silent_or_closed_other_end_is_told_apart),
        cmocka_unit_test(an_abort_wakes_reader_writer_and_whoever_forms),
        cmocka_unit_test(a_waiting_writer_lets_the_other_direction_drain),
        cmocka_unit_test(addresses_are_reachable_and_say_where_they_are),
        cmocka_unit_test(auto_takes_unix_only_with_the_same_boot_and_namespace),
        cmocka_unit_test(nonsense_is_closed_at_once),
        cmocka_unit_test(whoever_lacks_the_key_or_comes_for_another_edge_is_refused),
        cmocka_unit_test(a_neighbour_that_knows_the_epoch_first_waits_for_us),
        cmocka_unit_test(ends_with_different_keys_say_so),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
