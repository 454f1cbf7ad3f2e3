/* sluice-stage-fake as a process: flags, exit codes, signals. */
#include "tests/unit/stage/mini_coordinator.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/lib/fake_compute.h"

extern char **environ;

static char words[4096]; /* stderr of the last program */
static FILE *log_file;

static pid_t run(const char *const *flags)
{
    char *argv[16] = {(char *)(uintptr_t)STAGE_PROGRAM};
    int n = 1;
    for (; flags[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)flags[n - 1];
    posix_spawn_file_actions_t actions;
    pid_t pid;
    log_file = tmpfile();
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(log_file), STDERR_FILENO);
    assert_int_equal(posix_spawn(&pid, STAGE_PROGRAM, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* The exit code, within five seconds; a signal counts as 1000. */
static int end_of(pid_t pid)
{
    int status;
    for (int i = 0; i < 500; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            rewind(log_file);
            words[fread(words, 1, sizeof words - 1, log_file)] = 0;
            fclose(log_file);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
        }
        usleep(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    fail_msg("it does not end");
    return -1;
}

static char *secret_file(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/sluice-secret-XXXXXX");
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "0123456789abcdef\n", 17), 17);
    close(fd);
    return path;
}

static void a_wrong_start_has_its_exit_code_and_one_line(void **state)
{
    (void)state;
    const struct {
        const char *flags[6];
        int code;
        const char *words;
    } cases[] = {
        {{NULL}, 2, "--coordinator HOST:PORT is needed"},
        {{"--coordinator", "127.0.0.1:1", "--nonsense", "1", NULL}, 2, "--nonsense is no flag of sluice-stage"},
        {{"--coordinator", "somewhere", NULL}, 2, "no HOST:PORT"},
        {{"--coordinator", "127.0.0.1:1", "--link", "nccl", NULL}, 2, "nccl is not built"},
        {{"--coordinator", "127.0.0.1:1", "--threads", "x", NULL}, 2, "no list of positive numbers"},
        {{"--coordinator", "127.0.0.1:1", "--script", "/nonexistent", NULL}, 2, "--script /nonexistent"},
        {{"--coordinator", "127.0.0.1:1", "--token-file", "/nonexistent", NULL}, 2, "--token-file /nonexistent"},
        {{"--coordinator", "127.0.0.1:1", "--model", "/nonexistent", NULL}, 3, "/nonexistent"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = end_of(run(cases[i].flags));
        if (code != cases[i].code || !strstr(words, cases[i].words) || strchr(words, '\n') != strrchr(words, '\n'))
            fail_msg("case %u: exit code %d, '%s'", i, code, words);
    }
}

static void a_taken_data_address_is_exit_code_4(void **state)
{
    (void)state;
    struct mini *m = mini_open("127.0.0.1:0", "");
    const char *const flags[] = {"--coordinator", "127.0.0.1:1", "--data", mini_address(m), NULL};
    assert_int_equal(end_of(run(flags)), 4);
    assert_non_null(strstr(words, "in use"));
    mini_close(m);
}

static void sigterm_ends_it_soon_and_sigusr2_dumps_its_trace(void **state)
{
    (void)state;
    char *secret = secret_file();
    struct mini *m = mini_open("127.0.0.1:0", "0123456789abcdef");
    struct from_stage got;
    const char *const flags[] = {"--coordinator", mini_address(m), "--stage", "3", "--token-file", secret, NULL};
    pid_t pid = run(flags);
    mini_await(m, FROM_STAGE_HELLO, &got);
    assert_int_equal(got.hello.stage, 3);
    assert_int_equal(got.hello.pid, pid);
    mini_assign(m, 2);
    mini_join(m, 1);
    kill(pid, SIGUSR2);
    usleep(100000);
    int64_t start_ns = clock_now_ns();
    kill(pid, SIGTERM);
    assert_int_equal(end_of(pid), 0);
    assert_true(clock_now_ns() - start_ns < NS_PER_S);
    assert_non_null(strstr(words, "epoch 1 tick 0"));
    assert_non_null(strstr(words, "worker"));
    mini_close(m);
    unlink(secret);
}

static void a_refusal_by_the_coordinator_is_its_exit_code(void **state)
{
    (void)state;
    const struct {
        enum status status;
        int code;
    } cases[] = {{STATUS_OK, 0}, {STATUS_CONFIG, 2}, {STATUS_BAD_MODEL, 3}};
    char *secret = secret_file();
    struct mini *m = mini_open("127.0.0.1:0", "0123456789abcdef");
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct from_stage got;
        const char *const flags[] = {"--coordinator", mini_address(m), "--token-file", secret, NULL};
        pid_t pid = run(flags);
        mini_await(m, FROM_STAGE_HELLO, &got);
        mini_send(m, &(struct to_stage){.kind = TO_STAGE_EXIT,
                                        .exit = {.status = cases[i].status, .message = "stage 0 has 12 layers, not 13"}});
        assert_int_equal(end_of(pid), cases[i].code);
        assert_non_null(strstr(words, "stage 0 has 12 layers, not 13"));
    }
    /* without the token: refused by name */
    const char *const flags[] = {"--coordinator", mini_address(m), NULL};
    assert_int_equal(end_of(run(flags)), 2);
    assert_non_null(strstr(words, "token"));
    mini_close(m);
    unlink(secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_start_has_its_exit_code_and_one_line),
        cmocka_unit_test(a_taken_data_address_is_exit_code_4),
        cmocka_unit_test(sigterm_ends_it_soon_and_sigusr2_dumps_its_trace),
        cmocka_unit_test(a_refusal_by_the_coordinator_is_its_exit_code),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
