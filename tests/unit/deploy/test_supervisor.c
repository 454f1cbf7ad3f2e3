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
    for (int64_t until_ns = clock_now_ns() + 5 * NS_PER_S; !supervisor_reap(&sup, clock_now_ns(), end); usleep(1000))
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
    assert_int_equal(supervisor_reap(&sup, clock_now_ns(), &end), 0);
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

/* An end of c that is made up: its process lived so long and ended so. */
static struct child_end made(struct child *c, int code, int signal, int64_t lived_ms)
{
    return (struct child_end){.child = c, .code = signal ? 128 + signal : code, .signal = signal, .lived_ns = lived_ms * NS_PER_MS};
}

static int64_t delay_of(struct child_end end, int64_t now)
{
    struct restart r;
    assert_int_equal(supervisor_restart(&sup, &end, now, &r), STATUS_OK);
    assert_int_equal(end.child->start_at_ns, now + r.delay_ms * NS_PER_MS);
    return r.delay_ms;
}

static void supervisor_restarts_within_the_limit_and_after_the_delay(void **state)
{
    (void)state;
    struct child_end end;
    struct restart r;
    int64_t now = clock_now_ns();
    supervisor_init(&sup, 50, 3);
    struct child *c = shell("c", "exit 1");
    run(&end);
    static const int64_t delays_ms[] = {50, 100, 200}; /* each life was a short one */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(supervisor_restart(&sup, &end, now, &r), STATUS_OK);
        assert_int_equal(r.delay_ms, delays_ms[i]);
        assert_int_equal(r.left, 2 - i);
        assert_int_equal(supervisor_next_start(&sup), now + delays_ms[i] * NS_PER_MS);
        supervisor_start_due(&sup, now + (delays_ms[i] - 1) * NS_PER_MS);
        assert_int_equal(supervisor_running(&sup), 0);
        supervisor_start_due(&sup, now + delays_ms[i] * NS_PER_MS);
        assert_int_equal(supervisor_running(&sup), 1);
        reap(&end);
        assert_ptr_equal(end.child, c);
    }
    assert_int_equal(supervisor_restart(&sup, &end, now + 599 * NS_PER_S, &r), STATUS_FULL);
    assert_int_equal(supervisor_next_start(&sup), INT64_MAX);
    assert_int_equal(supervisor_restart(&sup, &end, now + 601 * NS_PER_S, &r), STATUS_OK); /* the window has moved on */
}

static void supervisor_counts_many_restarts_too(void **state)
{
    (void)state;
    struct restart r;
    const int64_t now = clock_now_ns();
    supervisor_init(&sup, 0, 600);
    const struct child_end end = made(shell("c", "exit 1"), 0, SIGKILL, 1100);
    for (int i = 0; i < 600; i++) {
        assert_int_equal(supervisor_restart(&sup, &end, now + i * NS_PER_MS, &r), STATUS_OK);
        assert_int_equal(r.left, 599 - i);
    }
    assert_int_equal(supervisor_restart(&sup, &end, now + NS_PER_S, &r), STATUS_FULL);
}

static void supervisor_without_restarts_gives_up_at_once(void **state)
{
    (void)state;
    struct child_end end;
    struct restart r;
    supervisor_init(&sup, 0, 0);
    shell("c", "exit 1");
    run(&end);
    assert_int_equal(supervisor_restart(&sup, &end, clock_now_ns(), &r), STATUS_FULL);
}

static void supervisor_waits_twice_as_long_after_each_short_life_and_at_most_five_seconds(void **state)
{
    (void)state;
    supervisor_init(&sup, 100, 100);
    struct child *c = shell("c", "exit 1");
    static const int64_t want[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(delay_of(made(c, 1, 0, 9999), 1), want[i]);
    assert_int_equal(delay_of(made(c, 0, SIGSEGV, 10001), 1), 100); /* it had lived */
    assert_int_equal(delay_of(made(c, 0, SIGSEGV, 50), 1), 100);
    assert_int_equal(delay_of(made(c, 0, SIGSEGV, 50), 1), 200);
    supervisor_init(&sup, 0, 100);
    c = shell("c", "exit 1");
    assert_int_equal(delay_of(made(c, 1, 0, 5), 1), 0);
    assert_int_equal(delay_of(made(c, 1, 0, 5), 1), 50); /* no busy loop */
    supervisor_init(&sup, 30000, 100);
    c = shell("c", "exit 1");
    assert_int_equal(delay_of(made(c, 1, 0, 5), 1), 30000);
    assert_int_equal(delay_of(made(c, 1, 0, 5), 1), 30000); /* what was asked for, not less */
}

static void supervisor_does_not_hold_it_against_a_process_that_it_was_killed(void **state)
{
    (void)state;
    supervisor_init(&sup, 100, 100);
    struct child *c = shell("c", "exit 1");
    for (int i = 0; i < 5; i++)
        assert_int_equal(delay_of(made(c, 0, SIGKILL, 1500), 1), 100);
    assert_int_equal(delay_of(made(c, 0, SIGKILL, 900), 1), 100);
    assert_int_equal(delay_of(made(c, 0, SIGKILL, 900), 1), 200); /* killed as soon as it starts: by lack of memory, say */
    struct child_end silent = made(c, 0, SIGKILL, 2500);
    silent.was_silent = 1;
    assert_int_equal(delay_of(silent, 1), 400); /* it hung by itself */
}

static void supervisor_restarts_that_were_asked_for_are_free(void **state)
{
    (void)state;
    struct restart r;
    supervisor_init(&sup, 100, 1);
    struct child *c = shell("c", "exit 1");
    const struct child_end asked[] = {made(c, EXIT_AGAIN, 0, 60000), made(c, EXIT_ASKED, 0, 60000), made(c, 0, SIGTERM, 60000)};
    for (int i = 0; i < 12; i++) {
        assert_int_equal(supervisor_restart(&sup, &asked[i % 3], 1, &r), STATUS_OK);
        assert_int_equal(r.left, 1);
        assert_int_equal(r.delay_ms, 100);
    }
    const struct child_end at_once = made(c, EXIT_ASKED, 0, 20); /* a process that always ends so is no rolling restart */
    assert_int_equal(supervisor_restart(&sup, &at_once, 1, &r), STATUS_OK);
    assert_int_equal(r.left, 0);
    assert_int_equal(supervisor_restart(&sup, &at_once, 1, &r), STATUS_FULL);
    assert_int_equal(supervisor_restart(&sup, &asked[0], 1, &r), STATUS_OK);
}

static void supervisor_that_ends_starts_nothing(void **state)
{
    (void)state;
    struct child_end end;
    struct restart r;
    supervisor_init(&sup, 0, 10);
    shell("c", "exit 1");
    run(&end);
    assert_int_equal(supervisor_restart(&sup, &end, clock_now_ns(), &r), STATUS_OK);
    sup.ending = 1;
    supervisor_start_due(&sup, clock_now_ns() + NS_PER_S);
    assert_int_equal(supervisor_running(&sup), 0);
    assert_int_equal(supervisor_next_start(&sup), INT64_MAX);
}

/* --- memory that outlives a process --- */

/* What the child finds in its memory, after which it adds a letter and ends by `how`. */
static const char *keeper(char *script, size_t size, const char *how)
{
    snprintf(script, size, "cat /proc/self/fd/$SLUICE_KV_FD >&$SLUICE_SAY_FD; echo \" $SLUICE_LAST_SIGNAL\" >&$SLUICE_SAY_FD; "
                           "printf x >>/proc/self/fd/$SLUICE_KV_FD; %s", how);
    return script;
}

static void supervisor_memory_stays_over_an_end_that_was_clean_and_goes_after_a_crash(void **state)
{
    (void)state;
    static const struct {
        const char *how;
        int kept;
        const char *signal;
    } ends[] = {{"kill -KILL $$", 1, "9"},   {"kill -TERM $$", 1, "15"}, {"exit 0", 1, "0"},       {"exit 5", 1, "0"},
                {"kill -SEGV $$", -1, "11"}, {"kill -ABRT $$", -1, "6"}, {"kill -BUS $$", -1, "7"}, {"kill -ILL $$", -1, "4"},
                {"kill -FPE $$", -1, "8"},   {"exit 70", -1, "0"}};
    struct child_end end;
    struct error err = {0};
    int pipe_fd[2];
    char script[300], want[40];
    assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        supervisor_init(&sup, 0, 100);
        struct child *c = shell("c", keeper(script, sizeof script, ends[i].how));
        supervisor_pass(c, "SAY", pipe_fd[1]);
        assert_int_equal(supervisor_keep_memory(c, "KV", &err), STATUS_OK);
        for (int life = 0; life < 3; life++) {
            struct restart r;
            c->start_at_ns = 1;
            run(&end);
            assert_int_equal(end.kept, ends[i].kept);
            const char *xs = ends[i].kept < 0 ? "" : life == 0 ? "" : life == 1 ? "x" : "xx";
            snprintf(want, sizeof want, "%s %s\n", xs, life ? ends[i].signal : "0");
            assert_string_equal(said(pipe_fd[0]), want);
            assert_int_equal(supervisor_restart(&sup, &end, clock_now_ns(), &r), STATUS_OK);
        }
        close(c->kept_fd);
    }
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

/* --- beats --- */

static int64_t at_ns; /* what the supervisor takes for the time: only what is said below passes */

static struct child *start_talker(const char *script)
{
    supervisor_init(&sup, 0, 10);
    sup.silence_ns = 500 * NS_PER_MS;
    at_ns = clock_now_ns();
    struct child *c = shell("c", script);
    supervisor_start_due(&sup, at_ns);
    return c;
}

static void pass_ms(int64_t ms)
{
    at_ns += ms * NS_PER_MS;
    supervisor_listen(&sup, at_ns);
}

/* Waits, while no time passes for the supervisor, until c was heard. */
static void wait_heard(struct child *c)
{
    for (int64_t until_ns = clock_now_ns() + 5 * NS_PER_S; c->beat_ns != at_ns; usleep(500)) {
        supervisor_listen(&sup, at_ns);
        if (clock_now_ns() > until_ns)
            fail_msg("it said nothing within 5 s");
    }
}

static void supervisor_kills_a_process_that_falls_silent(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("trap 'printf b >&$SLUICE_BEAT_FD' USR1; printf b >&$SLUICE_BEAT_FD; while :; do sleep 0.005; done");
    for (int i = 0; i < 10; i++) {
        wait_heard(c);
        pass_ms(250);
        pass_ms(240);
        assert_int_equal(c->was_silent, 0);
        kill(c->pid, SIGUSR1);
    }
    wait_heard(c);
    pass_ms(500);
    assert_int_equal(c->was_silent, 0);
    pass_ms(1);
    assert_int_equal(c->was_silent, 1);
    reap(&end);
    assert_int_equal(end.signal, SIGKILL);
    assert_int_equal(end.was_silent, 1);
    c = start_talker("printf b >&$SLUICE_BEAT_FD; kill -STOP $$; exit 0"); /* a stopped one, too */
    wait_heard(c);
    pass_ms(501);
    reap(&end);
    assert_int_equal(end.signal, SIGKILL);
}

static void supervisor_leaves_alone_whoever_never_spoke(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("exec sleep 60");
    for (int i = 0; i < 20; i++)
        pass_ms(900);
    assert_int_equal(c->was_silent, 0);
    supervisor_signal(&sup, SIGKILL);
    reap(&end);
    assert_int_equal(end.was_silent, 0);
}

static void supervisor_gives_a_process_that_puts_itself_away_more_time(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("printf be >&$SLUICE_BEAT_FD; exec sleep 60");
    wait_heard(c);
    for (int i = 0; i < 30; i++)
        pass_ms(1000);
    assert_int_equal(c->was_silent, 0);
    pass_ms(1);
    assert_int_equal(c->was_silent, 1);
    reap(&end);
    assert_int_equal(end.is_released, 0);
    assert_int_equal(c->serves, -1);
    start_talker("printf bbr >&$SLUICE_BEAT_FD; exit 0"); /* the last words are heard though it is gone */
    reap(&end);
    assert_int_equal(end.is_released, 1);
}

static void supervisor_hears_which_stage_a_process_is(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("printf 'b\\200b\\277b\\211' >&$SLUICE_BEAT_FD; exit 0");
    reap(&end);
    assert_int_equal(c->serves, 9); /* the last that it said */
    assert_int_equal(end.is_released, 0);
}

static void supervisor_that_was_stopped_itself_judges_nobody_by_it(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("printf b >&$SLUICE_BEAT_FD; exec sleep 60");
    wait_heard(c);
    pass_ms(20000); /* nothing was heard for so long, but nobody listened either */
    assert_int_equal(c->was_silent, 0);
    pass_ms(490);
    assert_int_equal(c->was_silent, 0);
    pass_ms(20); /* from there on it is its own silence */
    assert_int_equal(c->was_silent, 1);
    reap(&end);
    assert_int_equal(end.signal, SIGKILL);
}

static void supervisor_that_ends_kills_nobody_for_silence(void **state)
{
    (void)state;
    struct child_end end;
    struct child *c = start_talker("printf b >&$SLUICE_BEAT_FD; exec sleep 60");
    wait_heard(c);
    sup.ending = 1;
    for (int i = 0; i < 20; i++)
        pass_ms(900);
    assert_int_equal(c->was_silent, 0);
    supervisor_signal(&sup, SIGKILL);
    reap(&end);
}

static void supervisor_children_survive_a_hangup_before_they_know_it(void **state)
{
    (void)state;
    struct child_end end;
    supervisor_init(&sup, 0, 10);
    shell("c", "sleep 0.1; exit 9");
    supervisor_start_due(&sup, clock_now_ns());
    usleep(20 * 1000);
    supervisor_signal(&sup, SIGHUP);
    supervisor_signal(&sup, SIGUSR2);
    reap(&end);
    assert_int_equal(end.code, 9);
}

static void supervisor_children_get_their_own_variables_and_none_of_mpi(void **state)
{
    (void)state;
    struct child_end end;
    struct restart r;
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
    assert_int_equal(supervisor_restart(&sup, &end, clock_now_ns(), &r), STATUS_OK);
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
        cmocka_unit_test(supervisor_counts_many_restarts_too),
        cmocka_unit_test(supervisor_without_restarts_gives_up_at_once),
        cmocka_unit_test(supervisor_that_ends_starts_nothing),
        cmocka_unit_test(supervisor_waits_twice_as_long_after_each_short_life_and_at_most_five_seconds),
        cmocka_unit_test(supervisor_does_not_hold_it_against_a_process_that_it_was_killed),
        cmocka_unit_test(supervisor_restarts_that_were_asked_for_are_free),
        cmocka_unit_test(supervisor_memory_stays_over_an_end_that_was_clean_and_goes_after_a_crash),
        cmocka_unit_test(supervisor_kills_a_process_that_falls_silent),
        cmocka_unit_test(supervisor_leaves_alone_whoever_never_spoke),
        cmocka_unit_test(supervisor_gives_a_process_that_puts_itself_away_more_time),
        cmocka_unit_test(supervisor_hears_which_stage_a_process_is),
        cmocka_unit_test(supervisor_that_was_stopped_itself_judges_nobody_by_it),
        cmocka_unit_test(supervisor_that_ends_kills_nobody_for_silence),
        cmocka_unit_test(supervisor_children_survive_a_hangup_before_they_know_it),
        cmocka_unit_test(supervisor_children_get_their_own_variables_and_none_of_mpi),
        cmocka_unit_test(supervisor_children_take_signals_that_the_launcher_blocks),
        cmocka_unit_test(supervisor_children_die_with_a_launcher_that_is_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
