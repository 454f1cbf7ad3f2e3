/* deploy/supervisor: children start with what they are to inherit, are reported, come back, and never outlive the launcher. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "deploy/supervisor.h"

static struct supervisor sup; /* large */

static struct child *shell(const char *name, const char *script)
{
    struct child *c = supervisor_add(&sup, name);
    c->argv[0] = "/bin/sh";
    c->argv[1] = "-c";
    c->argv[2] = script;
    return c;
}

static void reap(struct child_end *end)
{
    for (int64_t until_ns = clock_now_ns() + 5 * NS_PER_S; !supervisor_reap(&sup, end); usleep(1000))
        if (clock_now_ns() > until_ns)
            fail_msg("no child ended within 5 s");
}

static void run(struct child_end *end)
{
    supervisor_start_due(&sup, clock_now_ns());
    reap(end);
}

/* What the child printed on its inherited descriptor 'fd'. */
static const char *said(int fd)
{
    static char text[512];
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void supervisor_tells_codes_from_signals(void **state)
{
    (void)state;
    struct child_end end;
    supervisor_init(&sup, 0, 10);
    struct child *a = shell("a", "exit 3");
    run(&end);
    assert_ptr_equal(end.child, a);
    assert_int_equal(end.code, 3);
    assert_int_equal(end.signal, 0);
    struct child *b = shell("b", "kill -9 $$");
    run(&end);
    assert_ptr_equal(end.child, b);
    assert_int_equal(end.signal, SIGKILL);
    assert_int_equal(end.code, 128 + SIGKILL);
    assert_int_equal(supervisor_running(&sup), 0);
    assert_int_equal(supervisor_reap(&sup, &end), 0);
}

static void supervisor_program_that_is_not_there_is_bad_configuration(void **state)
{
    (void)state;
    struct child_end end;
    supervisor_init(&sup, 0, 10);
    supervisor_add(&sup, "nobody")->argv[0] = "/nonexistent/sluice-stage";
    run(&end);
    assert_int_equal(end.code, EXIT_CONFIG);
}

static void supervisor_restarts_within_the_limit_and_after_the_delay(void **state)
{
    (void)state;
    struct child_end end;
    int64_t now = clock_now_ns();
    supervisor_init(&sup, 50, 3);
    struct child *c = shell("c", "exit 1");
    run(&end);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(supervisor_restart(&sup, c, now), STATUS_OK);
        assert_int_equal(supervisor_next_start(&sup), now + 50 * NS_PER_MS);
        supervisor_start_due(&sup, now + 49 * NS_PER_MS);
        assert_int_equal(supervisor_running(&sup), 0);
        supervisor_start_due(&sup, now + 50 * NS_PER_MS);
        assert_int_equal(supervisor_running(&sup), 1);
        reap(&end);
    }
    assert_int_equal(supervisor_restart(&sup, c, now + 599 * NS_PER_S), STATUS_FULL);
    assert_int_equal(supervisor_next_start(&sup), INT64_MAX);
    assert_int_equal(supervisor_restart(&sup, c, now + 601 * NS_PER_S), STATUS_OK); /* the window has moved on */
}

static void supervisor_without_restarts_gives_up_at_once(void **state)
{
    (void)state;
    struct child_end end;
    supervisor_init(&sup, 0, 0);
    struct child *c = shell("c", "exit 1");
    run(&end);
    assert_int_equal(supervisor_restart(&sup, c, clock_now_ns()), STATUS_FULL);
}

static void supervisor_that_ends_starts_nothing(void **state)
{
    (void)state;
    struct child_end end;
    supervisor_init(&sup, 0, 10);
    struct child *c = shell("c", "exit 1");
    run(&end);
    assert_int_equal(supervisor_restart(&sup, c, clock_now_ns()), STATUS_OK);
    sup.ending = 1;
    supervisor_start_due(&sup, clock_now_ns() + NS_PER_S);
    assert_int_equal(supervisor_running(&sup), 0);
    assert_int_equal(supervisor_next_start(&sup), INT64_MAX);
}

static void supervisor_children_get_their_own_variables_and_none_of_mpi(void **state)
{
    (void)state;
    struct child_end end;
    int pipe_fd[2];
    char script[200], mine[] = "SLUICE_TEST=child";
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("PMIX_RANK", "3", 1);
    setenv("SLUICE_TEST", "launcher", 1);
    assert_true(supervisor_started_by_mpi());
    assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
    supervisor_init(&sup, 0, 10);
    snprintf(script, sizeof script, "echo \"$OMPI_COMM_WORLD_RANK$PMIX_RANK $SLUICE_TEST $SLUICE_INCARNATION\" >&$SLUICE_SAY_FD");
    struct child *c = shell("c", script);
    c->env[c->n_env++] = mine;
    supervisor_pass(c, "SAY", pipe_fd[1]);
    run(&end);
    assert_string_equal(said(pipe_fd[0]), " child 0\n");
    assert_int_equal(supervisor_restart(&sup, c, clock_now_ns()), STATUS_OK);
    run(&end);
    assert_string_equal(said(pipe_fd[0]), " child 1\n");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("PMIX_RANK");
    assert_false(supervisor_started_by_mpi());
    struct child *other = shell("other", script); /* the descriptor is not its own */
    supervisor_start_due(&sup, clock_now_ns());
    reap(&end);
    assert_ptr_equal(end.child, other);
    assert_int_not_equal(end.code, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

static void supervisor_children_take_signals_that_the_launcher_blocks(void **state)
{
    (void)state;
    struct child_end end;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &before);
    supervisor_init(&sup, 0, 10);
    shell("c", "exec sleep 60");
    supervisor_start_due(&sup, clock_now_ns());
    supervisor_signal(&sup, SIGTERM);
    reap(&end);
    sigprocmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(end.signal, SIGTERM);
}

/* A launcher in a process of its own, with a child; its pid comes through the pipe. */
static pid_t start_launcher(pid_t *grandchild)
{
    int pipe_fd[2];
    assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        supervisor_init(&sup, 0, 10);
        struct child *c = shell("c", "exec sleep 60");
        supervisor_start_due(&sup, clock_now_ns());
        usleep(50 * 1000); /* past its exec */
        if (write(pipe_fd[1], &c->pid, sizeof c->pid) != sizeof c->pid)
            _exit(1);
        pause();
        _exit(1);
    }
    assert_int_equal(read(pipe_fd[0], grandchild, sizeof *grandchild), sizeof *grandchild);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    return launcher;
}

static void supervisor_children_die_with_a_launcher_that_is_killed(void **state)
{
    (void)state;
    pid_t child, launcher;
    int how = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to this process */
    launcher = start_launcher(&child);
    assert_int_equal(getpgid(child), child); /* a terminal's Ctrl-C does not reach it */
    kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, &how, 0), launcher);
    pid_t got = 0;
    for (int64_t until_ns = clock_now_ns() + 2 * NS_PER_S; (got = waitpid(child, &how, WNOHANG)) == 0; usleep(1000))
        if (clock_now_ns() > until_ns)
            fail_msg("the child lives on");
    assert_int_equal(got, child);
    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supervisor_tells_codes_from_signals),
        cmocka_unit_test(supervisor_program_that_is_not_there_is_bad_configuration),
        cmocka_unit_test(supervisor_restarts_within_the_limit_and_after_the_delay),
        cmocka_unit_test(supervisor_without_restarts_gives_up_at_once),
        cmocka_unit_test(supervisor_that_ends_starts_nothing),
        cmocka_unit_test(supervisor_children_get_their_own_variables_and_none_of_mpi),
        cmocka_unit_test(supervisor_children_take_signals_that_the_launcher_blocks),
        cmocka_unit_test(supervisor_children_die_with_a_launcher_that_is_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
