/* deploy/job: who may speak on the control socket, how lines come, and that READY, END and EXIT reach everybody once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "deploy/job.h"

enum { N_RANKS = 4 };
#define SECRET "0123456789abcdef0123456789abcdef"

static struct job zero, rank[N_RANKS];
static uint16_t port;

static void open_zero(void)
{
    struct error err = {0};
    job_init(&zero, 0, N_RANKS);
    snprintf(zero.secret, sizeof zero.secret, SECRET);
    if (job_listen(&zero, "127.0.0.1", &port, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static struct job *join(int r, const char *secret)
{
    struct error err = {0};
    job_init(&rank[r], r, N_RANKS);
    snprintf(rank[r].secret, sizeof rank[r].secret, "%s", secret);
    if (job_connect(&rank[r], "127.0.0.1", port, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return &rank[r];
}

/* Next event of j; rank 0 keeps reading beside it. JOB_NONE after ms. */
static struct job_event wait_event(struct job *j, int ms)
{
    struct job_event ev, ignored;
    for (int64_t until_ns = clock_now_ns() + ms * NS_PER_MS; clock_now_ns() < until_ns; usleep(500)) {
        if (job_next(j, clock_now_ns(), &ev))
            return ev;
        if (j != &zero && job_next(&zero, clock_now_ns(), &ignored))
            fail_msg("rank 0 got event %d of rank %d", ignored.kind, ignored.rank);
    }
    return (struct job_event){.kind = JOB_NONE};
}

static int raw(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const char *text, size_t len)
{
    assert_int_equal(send(fd, text, len, MSG_NOSIGNAL), len);
}

/* Rank 0 has closed this connection (it reads beside us). */
static void assert_closed(int fd)
{
    char byte;
    struct job_event ev;
    for (int64_t until_ns = clock_now_ns() + 2 * NS_PER_S; clock_now_ns() < until_ns; usleep(500)) {
        if (job_next(&zero, clock_now_ns(), &ev))
            fail_msg("rank 0 got event %d", ev.kind);
        ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n > 0)
            fail_msg("rank 0 spoke to a stranger");
        if (n == 0)
            return;
    }
    fail_msg("the connection stands");
}

static void settle(void)
{
    struct job_event ev;
    for (int i = 0; i < 20; i++, usleep(1000))
        if (job_next(&zero, clock_now_ns(), &ev))
            fail_msg("rank 0 got event %d", ev.kind);
}

/* What rank r says first: taken from the wire, as somebody who listens would. */
static size_t record_hello(int r, const char *secret, char line[200])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    uint16_t zero_port = port;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    port = ntohs(a.sin_port);
    join(r, secret);
    int peer = accept(fd, NULL, NULL);
    ssize_t n = recv(peer, line, 199, 0);
    assert_true(n > 0 && line[n - 1] == '\n');
    close(peer);
    close(fd);
    job_close(&rank[r]);
    port = zero_port;
    return (size_t)n;
}

static void job_ready_and_end_reach_every_rank(void **state)
{
    (void)state;
    open_zero();
    for (int r = 1; r < N_RANKS; r++)
        join(r, SECRET);
    settle();
    job_tell_ready(&zero);
    job_tell_end(&zero, 3);
    for (int r = 1; r < N_RANKS; r++) {
        assert_int_equal(wait_event(&rank[r], 2000).kind, JOB_READY);
        struct job_event ev = wait_event(&rank[r], 2000);
        assert_int_equal(ev.kind, JOB_END);
        assert_int_equal(ev.code, 3);
    }
    job_close(&zero);
    for (int r = 1; r < N_RANKS; r++) {
        assert_int_equal(wait_event(&rank[r], 2000).kind, JOB_LOST);
        job_close(&rank[r]);
    }
}

static void job_exit_says_who_and_why(void **state)
{
    (void)state;
    open_zero();
    join(1, SECRET);
    join(2, SECRET);
    char long_text[400];
    memset(long_text, 'w', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    job_report_exit(&rank[2], 3, "stage 2 exited with code 3");
    struct job_event ev = wait_event(&zero, 2000);
    assert_int_equal(ev.kind, JOB_EXIT);
    assert_int_equal(ev.rank, 2);
    assert_int_equal(ev.code, 3);
    assert_string_equal(ev.what, "stage 2 exited with code 3");
    job_report_exit(&rank[1], 4, long_text);
    ev = wait_event(&zero, 2000);
    assert_int_equal(ev.rank, 1);
    assert_int_equal(strspn(ev.what, "w"), 150);
    job_close(&rank[1]);
    ev = wait_event(&zero, 2000);
    assert_int_equal(ev.kind, JOB_LOST);
    assert_int_equal(ev.rank, 1);
    job_close(&rank[2]);
    job_close(&zero);
}

static void job_exit_code_becomes_one_that_a_process_can_have(void **state)
{
    (void)state;
    open_zero();
    join(1, SECRET);
    static const int codes[] = {0, -1, 256, 1 << 30};
    for (int i = 0; i < 4; i++) {
        job_report_exit(&rank[1], codes[i], "x");
        assert_int_equal(wait_event(&zero, 2000).code, EXIT_BUG);
    }
    job_close(&rank[1]);
    job_close(&zero);
}

static void job_late_rank_is_told_what_it_missed(void **state)
{
    (void)state;
    open_zero();
    job_tell_ready(&zero);
    job_tell_end(&zero, 5);
    join(3, SECRET);
    assert_int_equal(wait_event(&rank[3], 2000).kind, JOB_READY);
    struct job_event ev = wait_event(&rank[3], 2000);
    assert_int_equal(ev.kind, JOB_END);
    assert_int_equal(ev.code, 5);
    job_close(&rank[3]);
    job_close(&zero);
}

static void job_settle_waits_for_all_and_not_for_ever(void **state)
{
    (void)state;
    open_zero();
    for (int r = 1; r < N_RANKS; r++)
        join(r, SECRET);
    job_tell_end(&zero, 2);
    int64_t from_ns = clock_now_ns();
    job_settle(&zero, 5000);
    assert_true(clock_now_ns() - from_ns < 2 * NS_PER_S);
    job_close(&zero);
    for (int r = 1; r < N_RANKS; r++) { /* the end was told before the socket went */
        struct job_event ev;
        while (!job_next(&rank[r], clock_now_ns(), &ev))
            usleep(500);
        assert_int_equal(ev.kind, JOB_END);
        assert_int_equal(ev.code, 2);
        job_close(&rank[r]);
    }
    open_zero();
    from_ns = clock_now_ns();
    job_settle(&zero, 100);
    assert_true(clock_now_ns() - from_ns >= 100 * NS_PER_MS);
    job_close(&zero);
}

static void job_wrong_secret_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "0123456789abcdef0123456789abcdee", "x"};
    open_zero();
    for (int i = 0; i < 3; i++) {
        join(1, wrong[i]);
        assert_int_equal(wait_event(&rank[1], 2000).kind, JOB_LOST);
        job_close(&rank[1]);
    }
    join(1, SECRET); /* the real one is not kept out by them */
    settle();
    job_tell_ready(&zero);
    assert_int_equal(wait_event(&rank[1], 2000).kind, JOB_READY);
    job_close(&rank[1]);
    job_close(&zero);
}

static void job_rank_speaks_on_one_connection_only(void **state)
{
    (void)state;
    char line[200];
    open_zero();
    size_t n = record_hello(2, SECRET, line);
    join(2, SECRET);
    settle();
    int listener = raw(); /* repeats what it heard */
    say(listener, line, n);
    assert_closed(listener);
    close(listener);
    line[6] = '1'; /* another rank than the proof is for */
    int other = raw();
    say(other, line, n);
    assert_closed(other);
    close(other);
    job_tell_ready(&zero);
    assert_int_equal(wait_event(&rank[2], 2000).kind, JOB_READY);
    job_close(&rank[2]);
    job_close(&zero);
}

static void job_rank_comes_back_and_what_was_overheard_does_not(void **state)
{
    (void)state;
    char line[200];
    struct error err = {0};
    open_zero();
    size_t n = record_hello(2, SECRET, line);
    join(2, SECRET);
    settle();
    job_tell_ready(&zero);
    assert_int_equal(wait_event(&rank[2], 2000).kind, JOB_READY);
    shutdown(rank[2].lines[0].fd, SHUT_RDWR); /* the network between them */
    struct job_event ev = wait_event(&zero, 2000);
    assert_int_equal(ev.kind, JOB_LOST);
    assert_int_equal(ev.rank, 2);
    int listener = raw(); /* the place is free now */
    say(listener, line, n);
    assert_closed(listener);
    close(listener);
    assert_int_equal(job_reconnect(&rank[2], &err), STATUS_OK);
    assert_int_equal(wait_event(&rank[2], 2000).kind, JOB_READY);
    job_report_exit(&rank[2], 5, "gone");
    assert_int_equal(wait_event(&zero, 2000).code, 5);
    job_close(&zero);
    assert_int_equal(wait_event(&rank[2], 2000).kind, JOB_LOST);
    int64_t from_ns = clock_now_ns();
    assert_int_equal(job_reconnect(&rank[2], &err), STATUS_IO);
    assert_true(clock_now_ns() - from_ns < 1 * NS_PER_S);
    job_close(&rank[2]);
}

static void job_rank_that_cannot_be_is_refused(void **state)
{
    (void)state;
    open_zero();
    static const char *const ranks[] = {"0", "-1", "4", "99999999999", "x", ""};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        char line[200];
        int n = snprintf(line, sizeof line, "HELLO %s 0011223344556677 %064d\n", ranks[i], 0), fd = raw();
        say(fd, line, (size_t)n);
        assert_closed(fd);
        close(fd);
    }
    job_close(&zero);
}

static void job_lines_may_come_in_pieces_and_together(void **state)
{
    (void)state;
    char line[200];
    open_zero();
    size_t n = record_hello(1, SECRET, line);
    int fd = raw();
    for (size_t i = 0; i < n; i++) {
        say(fd, line + i, 1);
        if (i % 16 == 0)
            settle();
    }
    static const char two[] = "EXIT 3 first\nEXIT 4 second\nEXI";
    say(fd, two, sizeof two - 1);
    assert_int_equal(wait_event(&zero, 2000).code, 3);
    assert_int_equal(wait_event(&zero, 2000).code, 4);
    assert_int_equal(wait_event(&zero, 20).kind, JOB_NONE);
    say(fd, "T 5 third\n", 10);
    struct job_event ev = wait_event(&zero, 2000);
    assert_int_equal(ev.code, 5);
    assert_string_equal(ev.what, "third");
    close(fd);
    job_close(&zero);
}

static void job_garbage_closes_the_connection_and_nothing_else(void **state)
{
    (void)state;
    char endless[400];
    memset(endless, 'A', sizeof endless);
    open_zero();
    join(1, SECRET);
    settle();
    static const struct {
        const char *text;
        size_t len;
    } cases[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {"\n", 1}, {"\0\0\0\n", 4}, {"HELLO 1\n", 8}, {"EXIT 3 who\n", 11}, {"END 0\n", 6}};
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        int fd = raw();
        if (i < sizeof cases / sizeof *cases)
            say(fd, cases[i].text, cases[i].len);
        else
            say(fd, endless, sizeof endless);
        assert_closed(fd);
        close(fd);
    }
    job_tell_ready(&zero);
    assert_int_equal(wait_event(&rank[1], 2000).kind, JOB_READY);
    job_close(&rank[1]);
    job_close(&zero);
}

static void job_peer_that_talks_nonsense_is_lost(void **state)
{
    (void)state;
    open_zero();
    join(1, SECRET);
    settle();
    say(rank[1].lines[0].fd, "READY\n", 6); /* what only rank 0 may say */
    struct job_event ev = wait_event(&zero, 2000);
    assert_int_equal(ev.kind, JOB_LOST);
    assert_int_equal(ev.rank, 1);
    job_close(&rank[1]);
    join(1, SECRET);
    settle();
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        if (zero.lines[i].fd >= 0)
            say(zero.lines[i].fd, "EXIT 1 x\n", 9); /* what only the others may say */
    assert_int_equal(wait_event(&rank[1], 2000).kind, JOB_LOST); /* else it would never learn of the end */
    job_close(&rank[1]);
    job_close(&zero);
}

static void job_stranger_that_is_silent_is_closed_after_two_seconds(void **state)
{
    (void)state;
    struct job_event ev;
    char byte;
    open_zero();
    int fd = raw();
    settle();
    int64_t now = clock_now_ns();
    job_next(&zero, now + 1900 * NS_PER_MS, &ev);
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    job_next(&zero, now + 2100 * NS_PER_MS, &ev);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    job_close(&zero);
}

static void job_strangers_cannot_take_all_places(void **state)
{
    (void)state;
    int fds[2 * JOB_MAX_RANKS + 20], n = (int)(sizeof fds / sizeof *fds);
    struct pollfd polls[JOB_MAX_FDS];
    open_zero();
    for (int i = 0; i < n; i++) {
        fds[i] = raw();
        struct job_event ev;
        assert_int_equal(job_next(&zero, clock_now_ns(), &ev), 0);
    }
    assert_true(job_poll_fds(&zero, polls, JOB_MAX_FDS) <= JOB_MAX_FDS);
    struct job_event ev;
    job_next(&zero, clock_now_ns() + 3 * NS_PER_S, &ev); /* their time is over */
    join(1, SECRET);
    settle();
    job_tell_ready(&zero);
    assert_int_equal(wait_event(&rank[1], 2000).kind, JOB_READY);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    job_close(&rank[1]);
    job_close(&zero);
}

static void job_without_rank_zero_is_an_error(void **state)
{
    (void)state;
    struct error err = {0};
    open_zero();
    job_close(&zero);
    job_init(&rank[1], 1, N_RANKS);
    snprintf(rank[1].secret, sizeof rank[1].secret, SECRET);
    assert_int_equal(job_connect(&rank[1], "127.0.0.1", port, &err), STATUS_IO);
    assert_non_null(strstr(err.message, "127.0.0.1"));
    job_close(&rank[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_ready_and_end_reach_every_rank),
        cmocka_unit_test(job_exit_says_who_and_why),
        cmocka_unit_test(job_exit_code_becomes_one_that_a_process_can_have),
        cmocka_unit_test(job_late_rank_is_told_what_it_missed),
        cmocka_unit_test(job_settle_waits_for_all_and_not_for_ever),
        cmocka_unit_test(job_wrong_secret_is_refused),
        cmocka_unit_test(job_rank_speaks_on_one_connection_only),
        cmocka_unit_test(job_rank_comes_back_and_what_was_overheard_does_not),
        cmocka_unit_test(job_rank_that_cannot_be_is_refused),
        cmocka_unit_test(job_lines_may_come_in_pieces_and_together),
        cmocka_unit_test(job_garbage_closes_the_connection_and_nothing_else),
        cmocka_unit_test(job_peer_that_talks_nonsense_is_lost),
        cmocka_unit_test(job_stranger_that_is_silent_is_closed_after_two_seconds),
        cmocka_unit_test(job_strangers_cannot_take_all_places),
        cmocka_unit_test(job_without_rank_zero_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
