/* The small pieces everything stands on: status map, arena, buf, queue, log, addresses, random draws. */
#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/address.h"
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/cores.h"
#include "common/base/file.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/base/rand.h"
#include "common/base/trace.h"

static void status_codes_are_unique_and_never_blame_the_client_for_our_faults(void **state)
{
    (void)state;
    const int codes[] = {
#define X(name, code, http, grpc, retry, type, text) code,
        STATUS_MAP(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(codes[i], codes[k]);
        enum status s = (enum status)codes[i];
        assert_int_equal(status_from_int(codes[i]), s);
        if (status_retryable(s)) /* what may be tried again is never told as a mistake of the request */
            assert_int_not_equal(status_http(s), 400);
    }
    assert_int_equal(status_from_int(-9999), STATUS_INTERNAL);
    assert_int_equal(status_http(STATUS_QUEUE_FULL), 503);
    assert_int_equal(status_exit_code(STATUS_ADDRESS_IN_USE), 4);
}

static void arena_stops_at_its_bound_and_zeroes(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 100000);
    size_t given = 0;
    for (char *p; (p = arena_alloc(&a, 1000)); given += 1008) {
        for (int i = 0; i < 1000; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, 1000);
    }
    assert_in_range(given, 99000, 100000);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_array(&a, SIZE_MAX / 2, 16));
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 99000));
    arena_fini(&a);
}

static void buf_failure_is_sticky_and_bounded(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_printf(&b, "%s-%d", "abc", 12), STATUS_OK);
    assert_string_equal(b.data, "abc-12");
    assert_int_equal(buf_text(&b, "12345"), STATUS_OUT_OF_MEMORY);
    assert_int_equal(buf_text(&b, "1"), STATUS_OUT_OF_MEMORY);
    assert_string_equal(b.data, "abc-12");
    buf_clear(&b);
    assert_int_equal(buf_text(&b, "1234567890"), STATUS_OK);
    buf_consume(&b, 3);
    assert_string_equal(b.data, "4567890");
    buf_fini(&b);
}

static void list_order_survives_removal_while_walking(void **state)
{
    (void)state;
    struct item {
        struct list link;
        int value;
    } items[5] = {0};
    struct list head;
    list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        list_push_back(&head, &items[i].link);
    }
    int seen = 0;
    LIST_EACH(it, &head) {
        struct item *x = LIST_ENTRY(it, struct item, link);
        assert_int_equal(x->value, seen++);
        if (x->value % 2)
            list_remove(it);
    }
    assert_int_equal(seen, 5);
    assert_false(list_linked(&items[1].link));
    list_push_front(&head, &items[1].link);
    assert_int_equal(LIST_ENTRY(head.next, struct item, link)->value, 1);
}

enum { PUSHERS = 3, PER_PUSHER = 5000 };

static void *push_many(void *arg)
{
    for (int i = 0; i < PER_PUSHER; i++)
        while (queue_push(arg, &i) == STATUS_FULL)
            usleep(50);
    return NULL;
}

static void queue_gives_every_message_once(void **state)
{
    (void)state;
    struct queue *q;
    pthread_t threads[PUSHERS];
    assert_int_equal(queue_create(16, sizeof(int), &q), STATUS_OK);
    for (int i = 0; i < PUSHERS; i++)
        pthread_create(&threads[i], NULL, push_many, q);
    static int count[PER_PUSHER];
    for (int n = 0, v; n < PUSHERS * PER_PUSHER; n++) {
        assert_int_equal(queue_pop(q, &v, INT64_MAX), STATUS_OK);
        count[v]++;
    }
    for (int i = 0; i < PUSHERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < PER_PUSHER; i++)
        assert_int_equal(count[i], PUSHERS);
    queue_destroy(q);
}

static void queue_full_closed_and_timeout_are_statuses(void **state)
{
    (void)state;
    struct queue *q;
    int v = 7;
    assert_int_equal(queue_create(1, sizeof v, &q), STATUS_OK);
    assert_int_equal(queue_pop(q, &v, 0), STATUS_TIMEOUT);
    int64_t before = clock_now_ns();
    assert_int_equal(queue_pop(q, &v, before + 20 * NS_PER_MS), STATUS_TIMEOUT);
    assert_true(clock_now_ns() - before >= 20 * NS_PER_MS);
    queue_wake(q);
    assert_int_equal(queue_pop(q, &v, INT64_MAX), STATUS_TIMEOUT);
    assert_int_equal(queue_push(q, &v), STATUS_OK);
    assert_int_equal(queue_push(q, &v), STATUS_FULL);
    queue_close(q);
    assert_int_equal(queue_push(q, &v), STATUS_CLOSED);
    assert_int_equal(queue_pop(q, &v, INT64_MAX), STATUS_OK);
    assert_int_equal(queue_pop(q, &v, INT64_MAX), STATUS_CLOSED);
    queue_destroy(q);
}

static void log_levels_go_by_module(void **state)
{
    (void)state;
    struct error err = {0};
    assert_int_equal(log_set_levels("warn,engine=trace", &err), STATUS_OK);
    assert_true(log_enabled(LOG_LEVEL_TRACE, "engine"));
    assert_false(log_enabled(LOG_LEVEL_INFO, "link"));
    assert_true(log_enabled(LOG_LEVEL_WARN, "link"));
    assert_int_equal(log_set_levels("loud", &err), STATUS_CONFIG);
    assert_int_equal(log_set_levels("info", &err), STATUS_OK);
}

static void log_lines_begin_with_date_and_time_in_utc(void **state)
{
    (void)state;
    int fds[2], saved = dup(STDERR_FILENO), year, month, day, hour, minute, second, ms, end = 0;
    char out[256] = "";
    time_t now = time(NULL);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    log_write(LOG_LEVEL_WARN, "test", "said");
    dup2(saved, STDERR_FILENO);
    close(fds[1]);
    assert_true(read(fds[0], out, sizeof out - 1) > 0);
    close(fds[0]);
    close(saved);
    assert_int_equal(sscanf(out, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ warn %n", &year, &month, &day, &hour, &minute, &second, &ms, &end), 7);
    assert_true(end > 0);
    struct tm tm = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day, .tm_hour = hour, .tm_min = minute, .tm_sec = second};
    time_t said = timegm(&tm);
    assert_true(said >= now && said <= now + 60);
    assert_non_null(strstr(out, " test: said\n"));
}

static void log_lines_of_one_kind_are_limited_and_the_rest_is_counted(void **state)
{
    (void)state;
    struct log_limit l = {0};
    unsigned left_out, n_taken = 0, n_told = 0;
    const int64_t second = clock_now_ns() / NS_PER_S;
    while (clock_now_ns() / NS_PER_S == second) /* a whole second lies ahead */
        usleep(1000);
    for (int i = 0; i < 1000; i++)
        n_taken += (unsigned)log_limit_take(&l, &left_out);
    assert_true(n_taken >= LOG_LIMIT_PER_S && n_taken <= 2 * LOG_LIMIT_PER_S); /* 2: the loop itself ran over a second's end */
    for (n_told = 0; !log_limit_take(&l, &n_told);)
        usleep(1000);
    assert_true(n_told >= 1000 - n_taken);
}

static void log_lines_that_nobody_reads_stop_nobody(void **state)
{
    (void)state;
    enum { LINES = 2000 };
    char said[400], all[1 << 16];
    int fds[2], saved = dup(STDERR_FILENO), n_lost = 0;
    unsigned n_read = 0;
    memset(said, 'x', sizeof said - 1);
    said[sizeof said - 1] = 0;
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    alarm(10); /* it would wait for ever */
    for (int i = 0; i < LINES; i++)
        log_write(LOG_LEVEL_INFO, "test", "%s", said);
    trace_dump(STDERR_FILENO, 0);
    alarm(0);
    ssize_t n = read(fds[0], all, sizeof all);
    for (ssize_t i = 0; i < n; i++)
        n_read += all[i] == '\n';
    log_write(LOG_LEVEL_INFO, "test", "again");
    dup2(saved, STDERR_FILENO);
    n = read(fds[0], all, sizeof all - 1);
    assert_true(n_read > 100 && n > 0);
    all[n] = 0;
    const char *told = strstr(all, " lines were lost");
    assert_non_null(told);
    while (told[-1] != ' ')
        told--;
    n_lost = atoi(told);
    assert_int_equal(n_read + (unsigned)n_lost, LINES);
    assert_non_null(strstr(all, "again\n"));
    close(fds[0]);
    close(fds[1]);
    close(saved);
}

static void log_lines_stay_one_line_whatever_a_client_sent(void **state)
{
    (void)state;
    int fds[2], saved = dup(STDERR_FILENO);
    char out[2048] = "";
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    log_write(LOG_LEVEL_INFO, "test", "a\nforged line\r%s", "\x1b[31m");
    dup2(saved, STDERR_FILENO);
    close(fds[1]);
    ssize_t n = read(fds[0], out, sizeof out - 1);
    close(fds[0]);
    close(saved);
    assert_true(n > 0);
    assert_ptr_equal(strchr(out, '\n'), out + n - 1);
    assert_null(strchr(out, '\r'));
    assert_null(strchr(out, 27));
}

static void address_forms(void **state)
{
    (void)state;
    struct address a;
    struct error err = {0};
    assert_int_equal(address_parse("[::1]:80", -1, "x", &a, &err), STATUS_OK);
    assert_string_equal(a.host, "::1");
    assert_true(address_is_loopback(&a));
    assert_int_equal(address_parse("host", 0, "x", &a, &err), STATUS_OK);
    assert_int_equal(a.port, 0);
    const char *const bad[] = {"host", ":80", "h:", "h:65536", "h:-1", "h:x", "[::1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(address_parse(bad[i], -1, "x", &a, &err), STATUS_CONFIG);
}

static void address_with_more_than_host_and_port_is_refused(void **state)
{
    (void)state;
    struct address a;
    struct error err = {0};
    const char *const bad[] = {"[::1]80", "[::1]x:80", "[::1]]:80", "::1", "fe80::1", "::1:80", "h:1:2", "h: 80", "h:+80", "h:80 ", "[]:80"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(address_parse(bad[i], 7, "x", &a, &err), STATUS_CONFIG);
        assert_non_null(strstr(err.message, bad[i]));
    }
}

static void address_is_printed_as_it_is_read(void **state)
{
    (void)state;
    struct address a, again;
    char name[255 + 7], out[ADDRESS_TEXT];
    memset(name, 'n', 255);
    memcpy(name + 255, ":65535", 7);
    const char *const texts[] = {"h:0", "10.0.0.1:80", "[::1]:7411", "[fe80::1%eth0]:1", name};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(address_parse(texts[i], -1, "x", &a, NULL), STATUS_OK);
        address_print(&a, out);
        assert_string_equal(out, texts[i]);
        assert_int_equal(address_parse(out, -1, "x", &again, NULL), STATUS_OK);
        assert_true(strcmp(a.host, again.host) == 0 && a.port == again.port);
    }
}

static void loopback_is_an_address_not_the_beginning_of_a_name(void **state)
{
    (void)state;
    struct address a;
    const char *const far[] = {"127.example.com", "127.0.0.1.example.com", "127.", "128.0.0.1", "localhost.example.com", "0.0.0.0"};
    const char *const near[] = {"127.0.0.1", "127.1", "127.255.0.9", "localhost", "[::1]"};
    for (size_t i = 0; i < ARRAY_LEN(far); i++)
        assert_true(address_parse(far[i], 1, "x", &a, NULL) == STATUS_OK && !address_is_loopback(&a));
    for (size_t i = 0; i < ARRAY_LEN(near); i++)
        assert_true(address_parse(near[i], 1, "x", &a, NULL) == STATUS_OK && address_is_loopback(&a));
}

static void draws_depend_on_seed_and_position_alone(void **state)
{
    (void)state;
    double sum = 0;
    for (uint64_t p = 0; p < 10000; p++) {
        float u = rand_unit(42, p);
        assert_true(u >= 0 && u < 1);
        assert_true(u == rand_unit(42, p));
        sum += u;
    }
    assert_true(sum > 4900 && sum < 5100);
    assert_int_not_equal(rand_at(1, 2), rand_at(2, 1));
}

static void one_pinned_thread_has_one_usable_core(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(cores_usable(), CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (size_t i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_usable(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void a_file_is_read_whole_up_to_its_bound_and_errors_name_it(void **state)
{
    char path[] = "/tmp/sluice-file-XXXXXX", *text;
    const size_t bound = 1 << 20;
    struct error err;
    size_t len;
    (void)state;
    const int fd = mkstemp(path);
    assert_int_equal(file_read(path, 5, &text, &len, &err), STATUS_OK);
    assert_true(len == 0 && text[0] == 0);
    free(text);
    assert_int_equal(write(fd, "a\0b\nc", 5), 5);
    assert_int_equal(file_read(path, 5, &text, &len, &err), STATUS_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "a\0b\nc", 6);
    free(text);
    assert_int_equal(file_read(path, 4, &text, &len, &err), STATUS_CONFIG);
    assert_int_equal(ftruncate(fd, (off_t)bound + 1), 0);
    assert_int_equal(file_read(path, bound, &text, &len, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "more than 1 MiB"));
    close(fd);
    unlink(path);
    assert_int_equal(file_read(path, bound, &text, &len, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(file_read("/tmp", bound, &text, &len, &err), STATUS_CONFIG);
    assert_string_equal(err.message, "/tmp: Is a directory");
}

/* In a child: stderr to the pipe, and a read of a mapped page that its file has lost. */
static void die_of_a_file_that_shrank(int to)
{
    char path[] = "/tmp/sluice-shrinks-XXXXXX";
    const int fd = mkstemp(path);
    unlink(path);
    if (fd < 0 || dup2(to, STDERR_FILENO) < 0 || ftruncate(fd, 8192) != 0)
        _exit(1);
    volatile const char *p = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    log_open("stage 7");
    trace_install_crash_handler();
    trace_event("the file shrinks", 1, 2, 3, 4);
    if ((const void *)p == MAP_FAILED || ftruncate(fd, 0) != 0)
        _exit(1);
    _exit(p[4096] ? 2 : 3);
}

static void a_crash_by_a_mapped_file_that_shrank_says_so_and_dumps_the_trace(void **state)
{
    (void)state;
    char said[65536];
    size_t len = 0;
    int ends[2], how;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        die_of_a_file_that_shrank(ends[1]);
    close(ends[1]);
    for (ssize_t n; len + 1 < sizeof said && (n = read(ends[0], said + len, sizeof said - 1 - len)) > 0;)
        len += (size_t)n;
    said[len] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
    assert_non_null(strstr(said, "crash: stage 7: signal 7: a file that this process has mapped became shorter"));
    assert_non_null(strstr(said, "crash: stage 7: signal 7: its last events follow\ntrace stage 7: "));
    assert_non_null(strstr(said, "the file shrinks 1 2 3 4\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_codes_are_unique_and_never_blame_the_client_for_our_faults),
        cmocka_unit_test(arena_stops_at_its_bound_and_zeroes),
        cmocka_unit_test(buf_failure_is_sticky_and_bounded),
        cmocka_unit_test(list_order_survives_removal_while_walking),
        cmocka_unit_test(queue_gives_every_message_once),
        cmocka_unit_test(queue_full_closed_and_timeout_are_statuses),
        cmocka_unit_test(log_levels_go_by_module),
        cmocka_unit_test(log_lines_begin_with_date_and_time_in_utc),
        cmocka_unit_test(log_lines_of_one_kind_are_limited_and_the_rest_is_counted),
        cmocka_unit_test(log_lines_that_nobody_reads_stop_nobody),
        cmocka_unit_test(log_lines_stay_one_line_whatever_a_client_sent),
        cmocka_unit_test(address_forms),
        cmocka_unit_test(address_with_more_than_host_and_port_is_refused),
        cmocka_unit_test(address_is_printed_as_it_is_read),
        cmocka_unit_test(loopback_is_an_address_not_the_beginning_of_a_name),
        cmocka_unit_test(one_pinned_thread_has_one_usable_core),
        cmocka_unit_test(a_file_is_read_whole_up_to_its_bound_and_errors_name_it),
        cmocka_unit_test(a_crash_by_a_mapped_file_that_shrank_says_so_and_dumps_the_trace),
        cmocka_unit_test(draws_depend_on_seed_and_position_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
