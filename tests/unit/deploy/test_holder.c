/* The holder of connections: what a gateway hands it is there for the next one, and goes when it is dropped. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/hold.h"
#include "deploy/holder.h"

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void send_verb(struct holder *h, uint32_t verb, uint64_t id, const int *fds)
{
    struct hold_message m = {.verb = verb, .id = id};
    enum status s;
    while ((s = hold_send(holder_gateway_fd(h), &m, fds)) == STATUS_FULL)
        holder_serve(h);
    assert_int_equal(s, STATUS_OK);
}

/* A pipe stands for a connection: its reader sees the end when the last writer is closed. */
static int keep(struct holder *h, uint64_t id)
{
    int ends[2], journal = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    int fds[2] = {ends[1], journal};
    send_verb(h, HOLD_KEEP, id, fds);
    close(ends[1]);
    close(journal);
    return ends[0];
}

static int is_open(int reader)
{
    char byte;
    return read(reader, &byte, 1) != 0;
}

/* What TAKE answers; the descriptors are closed again. Returns how many were given. */
static int take(struct holder *h, uint64_t me, uint64_t *ids, int *listeners)
{
    struct hold_message m;
    int fds[HOLD_MAX_FDS], n = 0;
    send_verb(h, HOLD_TAKE, me, NULL);
    *listeners = 0;
    for (;;) {
        holder_serve(h);
        enum status s = hold_receive(holder_gateway_fd(h), &m, fds);
        if (s == STATUS_TIMEOUT)
            continue;
        assert_int_equal(s, STATUS_OK);
        assert_int_equal(m.about, me);
        if (m.verb == HOLD_END)
            return n;
        if (m.verb == HOLD_GIVEN || m.verb == HOLD_GIVEN_WAITING)
            ids[n++] = m.verb == HOLD_GIVEN ? m.id : m.id * 1000 + m.value;
        *listeners += m.verb == HOLD_GIVEN_LISTENER;
        for (int i = 0; i < hold_descriptors(m.verb); i++)
            close(fds[i]);
    }
}

static void what_is_kept_stays_open_until_it_is_dropped(void **state)
{
    struct error err;
    struct holder *h;
    int before = open_descriptors();
    (void)state;
    assert_int_equal(holder_create(&h, &err), STATUS_OK);
    int a = keep(h, 1), b = keep(h, 2);
    holder_serve(h);
    assert_int_equal(holder_held(h), 2);
    assert_true(is_open(a) && is_open(b));
    send_verb(h, HOLD_DROP, 1, NULL);
    send_verb(h, HOLD_DROP, 99, NULL); /* nobody's */
    holder_serve(h);
    assert_true(!is_open(a) && is_open(b));
    holder_clear(h);
    assert_false(is_open(b));
    holder_destroy(h);
    close(a);
    close(b);
    assert_int_equal(open_descriptors(), before);
}

static void everything_held_is_given_to_whoever_takes_and_stays_held(void **state)
{
    struct error err;
    struct holder *h;
    uint64_t ids[HOLD_MAX];
    int listeners, readers[5], one = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)state;
    assert_int_equal(holder_create(&h, &err), STATUS_OK);
    assert_int_equal(take(h, 3, ids, &listeners), 0);
    assert_int_equal(listeners, 0);
    send_verb(h, HOLD_LISTENER, 0, &one);
    send_verb(h, HOLD_LISTENER, 0, &one);
    for (int i = 0; i < 5; i++)
        readers[i] = keep(h, (uint64_t)(10 + i));
    for (uint64_t round = 1; round <= 2; round++) {
        assert_int_equal(take(h, round, ids, &listeners), 5);
        assert_int_equal(listeners, 1);
        for (int i = 0; i < 5; i++)
            assert_true(ids[i] == (uint64_t)(10 + i) && is_open(readers[i]));
    }
    send_verb(h, HOLD_CLEAR, 0, NULL);
    assert_int_equal(take(h, 3, ids, &listeners), 0);
    assert_int_equal(listeners, 0);
    for (int i = 0; i < 5; i++) {
        assert_false(is_open(readers[i]));
        close(readers[i]);
    }
    close(one);
    holder_destroy(h);
}

static void a_connection_that_waits_is_held_with_its_last_value(void **state)
{
    struct error err;
    struct holder *h;
    uint64_t ids[2];
    int listeners, ends[2], before = open_descriptors();
    (void)state;
    assert_int_equal(holder_create(&h, &err), STATUS_OK);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    for (uint64_t value = 5; value <= 6; value++) {
        struct hold_message m = {.verb = HOLD_WAIT, .id = 7, .value = value};
        assert_int_equal(hold_send(holder_gateway_fd(h), &m, &ends[1]), STATUS_OK);
    }
    close(ends[1]);
    assert_int_equal(take(h, 1, ids, &listeners), 1);
    assert_int_equal(ids[0], 7006);
    assert_true(is_open(ends[0]));
    send_verb(h, HOLD_DROP, 7, NULL);
    holder_serve(h);
    assert_false(is_open(ends[0]));
    close(ends[0]);
    holder_destroy(h);
    assert_int_equal(open_descriptors(), before);
}

static void more_than_it_holds_is_let_go(void **state)
{
    struct error err;
    struct holder *h;
    static uint64_t ids[HOLD_MAX];
    static int readers[HOLD_MAX + 3];
    int listeners;
    struct rlimit r;
    (void)state;
    assert_int_equal(holder_create(&h, &err), STATUS_OK);
    getrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_max < 3 * HOLD_MAX + 64) {
        print_message("at most %llu descriptors are allowed here\n", (unsigned long long)r.rlim_max);
        skip();
    }
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    for (int i = 0; i < HOLD_MAX + 3; i++) {
        readers[i] = keep(h, (uint64_t)i);
        holder_serve(h);
    }
    assert_int_equal(holder_held(h), HOLD_MAX);
    assert_true(is_open(readers[HOLD_MAX - 1]) && !is_open(readers[HOLD_MAX]) && !is_open(readers[HOLD_MAX + 2]));
    assert_int_equal(take(h, 7, ids, &listeners), HOLD_MAX); /* more than the socket takes at once */
    holder_destroy(h);
    for (int i = 0; i < HOLD_MAX + 3; i++) {
        assert_false(is_open(readers[i]));
        close(readers[i]);
    }
}

static void the_launcher_keeps_descriptors_for_itself(void **state)
{
    struct error err;
    struct holder *h;
    struct rlimit low;
    enum { MANY = 60 };
    int readers[MANY];
    (void)state;
    low = (struct rlimit){256 + 2 * 20 + 1, 256 + 2 * 20 + 1}; /* as a process whose hard limit is that */
    pid_t pid = fork();
    if (pid == 0) {
        if (setrlimit(RLIMIT_NOFILE, &low) != 0 || holder_create(&h, &err) != STATUS_OK)
            _exit(1);
        for (int i = 0; i < MANY; i++) {
            readers[i] = keep(h, (uint64_t)i);
            holder_serve(h);
        }
        _exit(holder_held(h) == 20 && is_open(readers[19]) && !is_open(readers[20]) ? 0 : 2);
    }
    int how = 0;
    waitpid(pid, &how, 0);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void what_makes_no_sense_is_ignored(void **state)
{
    struct error err;
    struct holder *h;
    struct hold_message m = {.verb = 77};
    int before = open_descriptors(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)state;
    assert_int_equal(holder_create(&h, &err), STATUS_OK);
    int reader = keep(h, 1);
    assert_int_equal(send(holder_gateway_fd(h), "short", 5, 0), 5);
    assert_int_equal(send(holder_gateway_fd(h), &m, sizeof m, 0), sizeof m);
    m.verb = HOLD_KEEP; /* without its descriptors */
    assert_int_equal(send(holder_gateway_fd(h), &m, sizeof m, 0), sizeof m);
    int fds[2] = {null, null};
    send_verb(h, HOLD_GIVEN, 5, fds); /* the holder's own word */
    send_verb(h, HOLD_DROP, 1, NULL);
    holder_serve(h);
    assert_int_equal(holder_held(h), 0);
    assert_false(is_open(reader));
    close(reader);
    close(null);
    holder_destroy(h);
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_stays_open_until_it_is_dropped),
        cmocka_unit_test(everything_held_is_given_to_whoever_takes_and_stays_held),
        cmocka_unit_test(a_connection_that_waits_is_held_with_its_last_value),
        cmocka_unit_test(more_than_it_holds_is_let_go),
        cmocka_unit_test(the_launcher_keeps_descriptors_for_itself),
        cmocka_unit_test(what_makes_no_sense_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
