/* Encrypted links: who gets in, what a listener on the wire sees, and what a changed byte does. */
#include "tests/unit/stage/ends.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <poll.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "stage/link_listener.h"
#include "stage/link_tls.h"

/* --- two ends of a socket pair, with a hand on the wire ------------------------------------------------------------------------ */

struct wire {
    struct link_tls_context *context;
    struct link_tls *end[2];
    int near[2], far[2]; /* end i writes to near[i]; the test carries from far[i] to far[1 - i] */
    uint8_t seen[1 << 20];
    size_t n_seen;
};

static struct wire w;

/* Moves what one end has sent to the other; spoil: flips a bit of the last byte of it. Returns how much. */
static size_t carry(int from, int spoil)
{
    uint8_t buf[65536];
    size_t all = 0;
    for (ssize_t n; (n = recv(w.far[from], buf, sizeof buf, MSG_DONTWAIT)) > 0; all += (size_t)n) {
        if (spoil)
            buf[n - 1] ^= 1;
        for (ssize_t i = 0; i < n && w.n_seen < sizeof w.seen; i++)
            w.seen[w.n_seen++] = buf[i];
        assert_int_equal(send(w.far[1 - from], buf, (size_t)n, MSG_NOSIGNAL), n);
    }
    return all;
}

static void wire_open(uint32_t rekey_records, const uint8_t *other_key)
{
    static const uint8_t hello[HANDSHAKE_HELLO_BYTES] = {1};
    struct error err;
    memset(&w, 0, sizeof w);
    assert_int_equal(link_tls_context_create(rekey_records, &w.context, &err), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
        w.near[i] = pair[0];
        w.far[i] = pair[1];
        assert_int_equal(link_tls_create(w.context, i ? LINK_TLS_ACCEPT : LINK_TLS_CONNECT, w.near[i],
                                         i && other_key ? other_key : ends_key, hello, &w.end[i], &err),
                         STATUS_OK);
    }
}

/* Until both ends stand or one fails. */
static enum status wire_shake(void)
{
    int standing = 0;
    for (int round = 0; round < 20 && standing != 3; round++)
        for (int i = 0; i < 2; i++) {
            short events;
            struct error err;
            enum status s = link_tls_shake(w.end[i], &events, &err);
            if (s != STATUS_OK)
                return s;
            standing |= events == 0 ? 1 << i : 0;
            carry(i, 0);
        }
    return standing == 3 ? STATUS_OK : STATUS_TIMEOUT;
}

static void wire_close(void)
{
    for (int i = 0; i < 2; i++) {
        link_tls_destroy(w.end[i]);
        close(w.near[i]);
        close(w.far[i]);
    }
    link_tls_context_destroy(w.context);
}

static enum status send_bytes(const void *data, size_t len, struct error *err)
{
    size_t put;
    short events;
    struct iovec iov[2] = {{(char *)(uintptr_t)data, len / 2}, {(char *)(uintptr_t)data + len / 2, len - len / 2}};
    enum status s = link_tls_write(w.end[0], iov, 2, &put, &events, err);
    if (s == STATUS_OK)
        assert_int_equal(put, len);
    return s;
}

static void what_is_sent_cannot_be_read_on_the_wire(void **state)
{
    static const char secret[] = "the activations of somebody's prompt";
    char got[64];
    size_t n;
    short events;
    struct error err;
    (void)state;
    wire_open(LINK_TLS_REKEY_RECORDS, NULL);
    assert_int_equal(wire_shake(), STATUS_OK);
    assert_int_equal(send_bytes(secret, sizeof secret, &err), STATUS_OK);
    assert_true(carry(0, 0) > sizeof secret);
    assert_int_equal(link_tls_read(w.end[1], got, sizeof got, &n, &events, &err), STATUS_OK);
    assert_int_equal(n, sizeof secret);
    assert_memory_equal(got, secret, sizeof secret);
    assert_null(memmem(w.seen, w.n_seen, "activations", 11));
    assert_null(memmem(w.seen, w.n_seen, ends_key, 32));
    assert_int_equal(carry(1, 0), 0); /* the reader has nothing to say: no ticket, no acknowledgement */
    wire_close();
}

static void a_changed_byte_ends_the_link(void **state)
{
    char got[64];
    size_t n;
    short events;
    struct error err;
    (void)state;
    wire_open(LINK_TLS_REKEY_RECORDS, NULL);
    assert_int_equal(wire_shake(), STATUS_OK);
    assert_int_equal(send_bytes("0123456789", 10, &err), STATUS_OK);
    carry(0, 1);
    assert_int_equal(link_tls_read(w.end[1], got, sizeof got, &n, &events, &err), STATUS_LINK);
    assert_int_equal(n, 0);
    wire_close();
}

static void another_key_is_another_end(void **state)
{
    uint8_t other[32];
    (void)state;
    memcpy(other, ends_key, 32);
    other[31] ^= 1;
    wire_open(LINK_TLS_REKEY_RECORDS, other);
    assert_int_equal(wire_shake(), STATUS_UNAUTHENTICATED);
    wire_close();
}

static void keys_change_under_way_and_no_byte_is_lost(void **state)
{
    enum { N = 4000, PIECE = 37 };
    uint8_t piece[PIECE], got[PIECE];
    short events;
    struct error err;
    (void)state;
    wire_open(7, NULL);
    assert_int_equal(wire_shake(), STATUS_OK);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < PIECE; k++)
            piece[k] = (uint8_t)rand_at(i, k);
        assert_int_equal(send_bytes(piece, PIECE, &err), STATUS_OK);
        assert_true(carry(0, 0) > PIECE);
        size_t n;
        assert_int_equal(link_tls_read(w.end[1], got, sizeof got, &n, &events, &err), STATUS_OK);
        assert_int_equal(n, PIECE);
        assert_memory_equal(got, piece, PIECE);
    }
    assert_int_equal(carry(1, 0), 0);
    wire_close();
}

/* The socket takes a part of a record: the same bytes are offered again, whole and in order at the other end. */
static void a_write_that_waits_is_repeated(void **state)
{
    enum { N = 300000 };
    uint8_t *bytes = malloc(N), *got = malloc(N);
    size_t n_got = 0, waits = 0;
    struct error err;
    (void)state;
    wire_open(5, NULL);
    assert_int_equal(wire_shake(), STATUS_OK);
    setsockopt(w.near[0], SOL_SOCKET, SO_SNDBUF, &(int){5000}, sizeof(int));
    for (uint32_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)rand_at(3, i);
    struct iovec iov[3] = {{bytes, 100}, {bytes + 100, 0}, {bytes + 100, N - 100}}, *at = iov;
    for (int n_iov = 3; n_got < N;) {
        size_t put = 0, n = 0;
        short events = 0;
        if (n_iov)
            assert_int_equal(link_tls_write(w.end[0], at, n_iov, &put, &events, &err), STATUS_OK);
        if (n_iov && !put) {
            assert_int_equal(events, POLLOUT);
            waits++;
        }
        while (n_iov && put >= at->iov_len) {
            put -= at->iov_len;
            at++;
            n_iov--;
        }
        if (n_iov) {
            at->iov_base = (uint8_t *)at->iov_base + put;
            at->iov_len -= put;
        }
        carry(0, 0);
        do {
            assert_int_equal(link_tls_read(w.end[1], got + n_got, N - n_got, &n, &events, &err), STATUS_OK);
            n_got += n;
        } while (n && n_got < N);
    }
    assert_true(waits > 3);
    assert_memory_equal(bytes, got, N);
    wire_close();
    free(bytes);
    free(got);
}

/* --- strangers at a stage's port ------------------------------------------------------------------------------------------------ */

/* Stage 0 forms epoch 1 with stage 1, whose place the test takes. */
struct lonely {
    struct end e;
    struct link_port *other;
    pthread_t thread;
};

static void lonely_open(struct lonely *l, uint32_t timeout_ms)
{
    memset(l, 0, sizeof *l);
    l->e.port = ends_make_port(BY_TLS);
    l->other = ends_make_port(BY_TLS);
    l->e.form = ends_form(0, 1, l->other);
    l->e.form.timeout_ms = timeout_ms;
    assert_int_equal(pthread_create(&l->thread, NULL, ends_form_thread, &l->e), 0);
    usleep(20000);
}

static void lonely_close(struct lonely *l, struct link_socket_counters *n)
{
    link_socket_port_counters(l->e.port, n);
    pthread_join(l->thread, NULL);
    assert_int_not_equal(l->e.status, STATUS_OK);
    link_port_destroy(l->e.port);
    link_port_destroy(l->other);
}

static int say_hello(struct link_port *p, uint32_t tls)
{
    uint8_t hello[HANDSHAKE_HELLO_BYTES];
    int fd = ends_connect_to(p, 0);
    assert_int_equal(handshake_hello(&(struct handshake_edge){ENDS_SESSION, 1, 1, 0, tls}, hello, NULL), STATUS_OK);
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    return fd;
}

static void what_is_not_the_key_is_closed_at_once(void **state)
{
    struct lonely l;
    struct link_socket_counters n;
    static const struct {
        const char *bytes;
        size_t len;
    } words[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {"\x17\x03\x03\x00\x04" "data", 9}, {"SLUILNK1", 8}};
    (void)state;
    lonely_open(&l, 2500);
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) { /* after a good hello */
        int fd = say_hello(l.e.port, 1);
        send(fd, words[i].bytes, words[i].len, MSG_NOSIGNAL);
        assert_true(ends_closed_after(fd, 1500) < 1000);
        close(fd);
    }
    int fd = say_hello(l.e.port, 0); /* no TLS where TLS is wanted: not even challenged */
    assert_true(ends_closed_after(fd, 1500) < 1000);
    close(fd);
    /* A client of TLS that has everything but the key. */
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    fd = say_hello(l.e.port, 1);
    SSL_set_fd(ssl, fd);
    assert_int_not_equal(SSL_connect(ssl), 1);
    assert_true(ends_closed_after(fd, 1500) < 1000);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    ERR_clear_error();
    link_port_abort(l.e.port, 100);
    lonely_close(&l, &n);
    assert_int_equal(n.refused, 5);
    assert_int_equal(n.accepted, 0);
}

static void silence_in_the_handshake_is_ended_by_its_deadline(void **state)
{
    struct lonely l;
    struct link_socket_counters n;
    (void)state;
    lonely_open(&l, HANDSHAKE_DEADLINE_MS + 1500);
    int mute = say_hello(l.e.port, 1), half = say_hello(l.e.port, 1);
    send(half, "\x16\x03\x01\x02\x00\x01", 6, MSG_NOSIGNAL); /* the beginning of a client's hello */
    int64_t ms = ends_closed_after(mute, HANDSHAKE_DEADLINE_MS + 1000);
    assert_true(ms > HANDSHAKE_DEADLINE_MS / 2 && ms < HANDSHAKE_DEADLINE_MS + 500);
    assert_true(ends_closed_after(half, 1000) < 500);
    close(mute);
    close(half);
    link_port_abort(l.e.port, 100);
    lonely_close(&l, &n);
    assert_int_equal(n.accepted, 0);
}

static void a_stage_with_tls_and_one_without_do_not_meet(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) { /* which of them */
        struct end e[2];
        memset(e, 0, sizeof e);
        for (int i = 0; i < 2; i++)
            e[i].port = ends_make_port(i == with ? BY_TLS : BY_TCP);
        for (int i = 0; i < 2; i++) {
            e[i].form = ends_form((uint32_t)i, 1, e[1 - i].port);
            e[i].form.timeout_ms = 300;
        }
        ends_join(e);
        for (int i = 0; i < 2; i++) {
            struct link_socket_counters n;
            link_socket_port_counters(e[i].port, &n);
            assert_int_not_equal(e[i].status, STATUS_OK);
            assert_int_equal(n.accepted, 0);
            assert_true(n.refused > 0);
            link_port_destroy(e[i].port);
        }
    }
}

/* The epoch that a neighbour waits for ends while its side of TLS lies in our socket. */
static void an_epoch_that_ends_closes_who_waits_for_it(void **state)
{
    struct end e[2];
    pthread_t t;
    (void)state;
    ends_make(BY_TLS, e);
    e[1].form.timeout_ms = 5000;
    pthread_create(&t, NULL, ends_form_thread, &e[1]);
    usleep(50000);
    int64_t start_ns = clock_now_ns();
    link_port_abort(e[1].port, 2);
    pthread_join(t, NULL);
    assert_true(clock_now_ns() - start_ns < NS_PER_S);
    assert_int_equal(e[1].status, STATUS_CLOSED);
    for (int i = 0; i < 2; i++) { /* and the next epoch forms over the same ports */
        e[i].form = ends_form((uint32_t)i, 2, e[1 - i].port);
        e[i].form.generation = 2;
    }
    ends_join(e);
    for (int i = 0; i < 2; i++)
        assert_int_equal(e[i].status, STATUS_OK);
    ends_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_cannot_be_read_on_the_wire),
        cmocka_unit_test(a_changed_byte_ends_the_link),
        cmocka_unit_test(another_key_is_another_end),
        cmocka_unit_test(keys_change_under_way_and_no_byte_is_lost),
        cmocka_unit_test(a_write_that_waits_is_repeated),
        cmocka_unit_test(what_is_not_the_key_is_closed_at_once),
        cmocka_unit_test(silence_in_the_handshake_is_ended_by_its_deadline),
        cmocka_unit_test(a_stage_with_tls_and_one_without_do_not_meet),
        cmocka_unit_test(an_epoch_that_ends_closes_who_waits_for_it),
    };
    signal(SIGPIPE, SIG_IGN);
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
