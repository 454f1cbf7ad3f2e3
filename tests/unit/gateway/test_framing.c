/* What keeper.h takes for granted of libmicrohttpd: it asks for more of a body only when the kernel has taken all before it, and frames each piece as
 * one chunk. The server is a process that is killed at any moment; the test holds its connection and counts what the client gets in the end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/hold.h"
#include "common/base/rand.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/keeper.h"

enum { CONTENT_BYTES = 300000, GOT_MAX = 2 * CONTENT_BYTES };

/* The server's process: */
static struct keeper *journal;
static int holder, client_fd;
static uint64_t seed;
static uint32_t framing;

static char letter(uint64_t at)
{
    return (char)('a' + at % 23);
}

static ssize_t read_body(void *cls, uint64_t pos, char *to, size_t max)
{
    struct keeper_state *s = keeper_state(journal);
    (void)cls;
    (void)pos;
    if (s->handed == CONTENT_BYTES) {
        s->ended = 1;
        keeper_frame(journal, KEEPER_LAST, client_fd);
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    uint64_t random = rand_mix(seed ^ s->handed), n = random % 3 ? 1 + random / 3 % 300 : KEEPER_FRAME_MAX;
    n = n < max ? n : max;
    n = n < CONTENT_BYTES - s->handed ? n : CONTENT_BYTES - s->handed;
    for (uint64_t i = 0; i < n; i++)
        to[i] = letter(s->handed + i);
    if (framing == KEEPER_CHUNKED)
        keeper_content(journal, to, n);
    keeper_frame(journal, (long)n, client_fd);
    return (ssize_t)n;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_size, void **con_cls)
{
    uint64_t position;
    (void)cls, (void)url, (void)method, (void)version, (void)upload, (void)upload_size;
    if (!*con_cls) {
        *con_cls = &journal;
        return MHD_YES;
    }
    client_fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    if (keeper_position(client_fd, &position) != STATUS_OK || keeper_create(position, &journal) != STATUS_OK)
        return MHD_NO;
    keeper_state(journal)->framing = framing;
    if (framing == KEEPER_LENGTH)
        keeper_state(journal)->produced = CONTENT_BYTES;
    keeper_publish(journal);
    const int fds[HOLD_MAX_FDS] = {client_fd, keeper_fd(journal)};
    if (hold_send(holder, &(struct hold_message){.verb = HOLD_KEEP, .id = 1}, fds) != STATUS_OK)
        return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_callback(framing == KEEPER_CHUNKED ? MHD_SIZE_UNKNOWN : CONTENT_BYTES, 16 << 10,
                                                               read_body, NULL, NULL);
    enum MHD_Result queued = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return queued;
}

static pid_t start_server(int listener)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, NULL,
                          MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_END))
        _exit(1);
    for (;;)
        pause();
}

static int listen_somewhere(struct sockaddr_in *a)
{
    socklen_t len = sizeof *a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)a, sizeof *a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)a, &len), 0);
    return fd;
}

static int ask(const struct sockaddr_in *a)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    int small = 8192, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (const struct sockaddr *)a, sizeof *a), 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    return fd;
}

static size_t read_some(int fd, char *got, size_t n, size_t most)
{
    for (int idle = 0; n < most && idle < 20;) {
        ssize_t k = recv(fd, got + n, 2000 < most - n ? 2000 : most - n, MSG_DONTWAIT);
        idle = k > 0 ? 0 : idle + 1;
        if (k > 0)
            n += (size_t)k;
        else
            usleep(100);
    }
    return n;
}

/* Does what the next process would: sends what is missing, from the journal alone. */
static void send_rest(int fd, int journal_fd)
{
    struct kept k;
    struct keeper *next;
    struct keeper_rest rest;
    struct error err;
    struct buf out;
    uint64_t position;
    assert_int_equal(keeper_open(journal_fd, &next, &err), STATUS_OK);
    keeper_view(next, &k);
    assert_int_equal(keeper_position(fd, &position), STATUS_OK);
    assert_int_equal(keeper_rest(&k.state, 0, position, &rest), STATUS_OK);
    assert_int_equal(rest.head_left, 0);
    buf_init(&out, 4 * CONTENT_BYTES);
    if (rest.whole)
        buf_text(&out, framing == KEEPER_CHUNKED ? "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n");
    size_t before = out.len;
    if (rest.frame_left) {
        keeper_frame_open(&out, k.state.frame_content);
        assert_int_equal(keeper_copy(&k, k.state.handed - k.state.frame_content, k.state.handed, &out), STATUS_OK);
        keeper_frame_close(&out);
        size_t frame = out.len - before;
        assert_true(rest.frame_left <= frame);
        memmove(out.data + before, out.data + before + frame - rest.frame_left, rest.frame_left);
        out.len = before + rest.frame_left;
    }
    for (uint64_t at = rest.content_at; at < CONTENT_BYTES;) {
        size_t n = CONTENT_BYTES - at < 10000 ? CONTENT_BYTES - at : 10000;
        if (framing == KEEPER_CHUNKED)
            keeper_frame_open(&out, n);
        for (size_t i = 0; i < n; i++, at++)
            buf_append(&out, (char[]){letter(at)}, 1);
        if (framing == KEEPER_CHUNKED)
            keeper_frame_close(&out);
    }
    if (framing == KEEPER_CHUNKED && !k.state.last)
        buf_text(&out, "0\r\n\r\n");
    pid_t writer = fork(); /* the test's own thread reads */
    if (writer == 0) {
        while (out.len) {
            ssize_t n = send(fd, out.data, out.len, MSG_NOSIGNAL);
            if (n <= 0 && errno != EAGAIN && errno != EINTR)
                _exit(1);
            if (n <= 0)
                usleep(100);
            buf_consume(&out, n > 0 ? (size_t)n : 0);
        }
        shutdown(fd, SHUT_WR);
        _exit(0);
    }
    buf_fini(&out);
    keeper_close(next);
}

/* The body without its framing: the letters, all of them, once. */
static void assert_answer(const char *got, size_t n)
{
    const char *at = memmem(got, n, "\r\n\r\n", 4), *end = got + n;
    uint64_t content = 0;
    assert_non_null(at);
    at += 4;
    while (at < end) {
        unsigned long long len = (unsigned long long)(end - at);
        if (framing == KEEPER_CHUNKED) {
            char *line_end;
            len = strtoull(at, &line_end, 16);
            assert_true(line_end > at && memcmp(line_end, "\r\n", 2) == 0);
            at = line_end + 2;
        }
        for (; len; len--)
            assert_int_equal(*at++, letter(content++));
        if (framing == KEEPER_CHUNKED) {
            assert_memory_equal(at, "\r\n", 2);
            at += 2;
        }
    }
    assert_int_equal(content, CONTENT_BYTES);
}

static void one_death(uint64_t round)
{
    static char got[GOT_MAX];
    struct sockaddr_in a;
    struct hold_message m;
    int pair[2], fds[HOLD_MAX_FDS], listener = listen_somewhere(&a);
    enum status s;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    holder = pair[1];
    seed = rand_mix(round);
    pid_t pid = start_server(listener);
    int client = ask(&a);
    while ((s = hold_receive(pair[0], &m, fds)) == STATUS_TIMEOUT)
        usleep(50);
    assert_int_equal(s, STATUS_OK);
    usleep((useconds_t)(seed % 400));
    size_t n = read_some(client, got, 0, seed / 400 % (CONTENT_BYTES + 20000));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    send_rest(fds[0], fds[1]);
    close(fds[0]);
    for (ssize_t k; n < sizeof got && (k = recv(client, got + n, sizeof got - n, 0)) > 0;)
        n += (size_t)k;
    waitpid(-1, NULL, 0);
    assert_answer(got, n);
    close(client);
    close(listener);
    close(pair[0]);
    close(pair[1]);
}

static void the_rest_of_a_stream_follows_to_the_byte(void **state)
{
    (void)state;
    framing = KEEPER_CHUNKED;
    for (uint64_t round = 0; round < 18; round++)
        one_death(round);
}

static void the_rest_of_a_whole_answer_follows_to_the_byte(void **state)
{
    (void)state;
    framing = KEEPER_LENGTH;
    for (uint64_t round = 100; round < 112; round++)
        one_death(round);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rest_of_a_stream_follows_to_the_byte),
        cmocka_unit_test(the_rest_of_a_whole_answer_follows_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
