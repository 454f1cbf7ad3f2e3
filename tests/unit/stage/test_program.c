/* sluice-stage-fake as a process: flags, exit codes, signals. */
#include "tests/unit/stage/mini_coordinator.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/fake_script.h"

extern char **environ;

static char words[4096]; /* stderr of the last program */
static FILE *log_file;
static const char *model; /* NULL: fake stages */

static pid_t run_program(const char *program, const char *const *flags)
{
    char *argv[16] = {(char *)(uintptr_t)program};
    int n = 1;
    for (; flags[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)flags[n - 1];
    posix_spawn_file_actions_t actions;
    pid_t pid;
    log_file = tmpfile();
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(log_file), STDERR_FILENO);
    assert_int_equal(posix_spawn(&pid, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static pid_t run(const char *const *flags)
{
    return run_program(STAGE_PROGRAM, flags);
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
    const char *const flags[] = {"--coordinator", mini_address(m), "--token-file", secret, NULL};
    pid_t pid = run(flags);
    mini_await(m, FROM_STAGE_HELLO, &got);
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

static void it_says_the_index_that_it_was_told(void **state)
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
    kill(pid, SIGTERM);
    assert_int_equal(end_of(pid), 0);
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

/* --- the next process -------------------------------------------------------------------------------------------------------------- */

static const uint32_t prompt[] = {40, 41, 42};

/* Starts life n of a stage as the launcher does: with its KV descriptor and the signal that ended the one before. */
static pid_t run_life(struct mini *m, int life, int kv_fd, const char *script, struct from_stage *hello)
{
    const char *const fake[] = {"--coordinator", mini_address(m), script ? "--script" : NULL, script, NULL};
    const char *const real[] = {"--coordinator", mini_address(m), "--model", model, "--threads", "1", NULL};
    char text[16];
    snprintf(text, sizeof text, "%d", kv_fd);
    setenv("SLUICE_KV_FD", text, 1);
    snprintf(text, sizeof text, "%d", life);
    setenv("SLUICE_INCARNATION", text, 1);
    setenv("SLUICE_LAST_SIGNAL", life ? "9" : "0", 1);
    pid_t pid = model ? run_program(MODEL_STAGE_PROGRAM, real) : run(fake);
    unsetenv("SLUICE_KV_FD");
    unsetenv("SLUICE_INCARNATION");
    unsetenv("SLUICE_LAST_SIGNAL");
    mini_await(m, FROM_STAGE_HELLO, hello);
    return pid;
}

static struct msg_ack join(struct mini *m, uint64_t epoch)
{
    struct from_stage got;
    mini_send(m, &(struct to_stage){.kind = TO_STAGE_EPOCH, .epoch = {.session = MINI_SESSION, .epoch = epoch}});
    mini_await(m, FROM_STAGE_ACK, &got);
    const struct msg_ack ack = got.ack;
    mini_send(m, &(struct to_stage){.kind = TO_STAGE_LINKS, .links = {.session = MINI_SESSION, .epoch = epoch}});
    mini_await(m, FROM_STAGE_READY, &got);
    return ack;
}

static void end_by(pid_t pid, int signal_number)
{
    int status;
    kill(pid, signal_number);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signal_number);
    fclose(log_file);
}

static void a_killed_process_leaves_its_pool_to_the_next_within_200_ms(void **state)
{
    (void)state;
    struct mini *m = mini_open("127.0.0.1:0", "");
    struct from_stage got;
    int fd = memfd_create("kv-of-a-launcher", 0);
    struct msg_ack first = {0};
    for (int life = 0; life < 3; life++) {
        int64_t start_ns = clock_now_ns();
        pid_t pid = run_life(m, life, fd, NULL, &got);
        assert_int_equal(got.hello.stage, STAGE_ANY);
        assert_int_equal(got.hello.last_signal, life ? 9 : 0);
        assert_int_equal(got.hello.incarnation & 0xffff, life);
        mini_assign(m, 2);
        int64_t ms = (clock_now_ns() - start_ns) / NS_PER_MS;
        print_message("life %d: %lld ms from its start to LOADED\n", life, (long long)ms);
        const struct msg_ack ack = join(m, (uint64_t)life + 1);
        if (life == 0) {
            first = ack;
            assert_true(ack.kv_id && !ack.kv_session && !ack.kv_epoch && !ack.kv_tick);
        } else {
            assert_true(ms < 200);
            assert_true(ack.kv_id == first.kv_id && ack.kv_session == MINI_SESSION && ack.kv_tick == 1);
            assert_int_equal(ack.kv_epoch, life);
        }
        mini_tick(m, (uint64_t)life + 1, prompt, 3);
        mini_await(m, FROM_STAGE_RESULT, &got);
        assert_int_equal(got.result->status, STATUS_OK);
        mini_release(&got);
        end_by(pid, SIGKILL);
    }
    close(fd);
    mini_close(m);
}

/* A stage of the real model: what it measured before is what it says after, without measuring. */
static void a_killed_stage_of_a_model_does_not_measure_again(void **state)
{
    (void)state;
    struct mini *m = mini_open("127.0.0.1:0", "");
    struct from_stage got, loaded[2];
    int fd = memfd_create("kv-of-a-launcher", 0);
    struct msg_ack ack[2];
    int32_t id[2];
    int64_t ms[2];
    for (int life = 0; life < 2; life++) {
        int64_t start_ns = clock_now_ns();
        pid_t pid = run_life(m, life, fd, NULL, &got);
        const struct to_stage assign = {.kind = TO_STAGE_ASSIGN,
                                        .assign = {.n_stages = 1, .end_layer = got.hello.n_layers, .slots = 4, .context = 2048,
                                                   .kv_block = 64, .max_rows = 32, .heartbeat_ms = 20, .stuck_ms = 5000,
                                                   .window = 2, .kv_type = "f16"}};
        mini_send(m, &assign);
        mini_await(m, FROM_STAGE_LOADED, &loaded[life]);
        ms[life] = (clock_now_ns() - start_ns) / NS_PER_MS;
        ack[life] = join(m, (uint64_t)life + 1);
        mini_tick(m, (uint64_t)life + 1, prompt, 3);
        mini_await(m, FROM_STAGE_RESULT, &got);
        assert_int_equal(got.result->status, STATUS_OK);
        id[life] = got.result->runs[0].id;
        mini_release(&got);
        end_by(pid, SIGKILL);
    }
    print_message("from start to LOADED: %lld ms, again %lld ms\n", (long long)ms[0], (long long)ms[1]);
    assert_true(ack[0].kv_id == ack[1].kv_id && ack[1].kv_tick == 1);
    assert_true(loaded[0].loaded.cost_rows[0] > 0);
    assert_memory_equal(&loaded[0].loaded, &loaded[1].loaded, sizeof loaded[0].loaded);
    assert_int_equal(id[0], id[1]);
    close(fd);
    mini_close(m);
}

/* Runs the tick that kills it; returns the signal. */
static int signal_of_tick(struct mini *m, pid_t pid, uint64_t epoch)
{
    int status;
    mini_assign(m, 2);
    join(m, epoch);
    mini_tick(m, epoch, prompt, 3);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    fclose(log_file);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void poison_kills_every_life_and_a_line_for_one_life_only_that(void **state)
{
    (void)state;
    struct mini *m = mini_open("127.0.0.1:0", "");
    struct from_stage got;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("stage 0 poison 41\nstage 1 poison 40\n", script);
    for (int life = 0; life < 2; life++) {
        pid_t pid = run_life(m, life, -1, script, &got);
        assert_int_equal(signal_of_tick(m, pid, 1), SIGSEGV);
    }
    unlink(script);
    fake_script_file("life 0 poison 42 6\nlife 1 crash_tick 2\n", script);
    pid_t pid = run_life(m, 0, -1, script, &got);
    assert_int_equal(signal_of_tick(m, pid, 1), SIGABRT);
    pid = run_life(m, 1, -1, script, &got);
    mini_assign(m, 2);
    for (uint64_t epoch = 1; epoch <= 2; epoch++) {
        join(m, epoch);
        mini_tick(m, epoch, prompt, 3);
        if (epoch == 1)
            mini_await(m, FROM_STAGE_RESULT, &got);
    }
    mini_release(&got);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fclose(log_file);
    unlink(script);
    mini_close(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest of_a_model[] = {cmocka_unit_test(a_killed_stage_of_a_model_does_not_measure_again)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_start_has_its_exit_code_and_one_line),
        cmocka_unit_test(a_taken_data_address_is_exit_code_4),
        cmocka_unit_test(it_says_the_index_that_it_was_told),
        cmocka_unit_test(sigterm_ends_it_soon_and_sigusr2_dumps_its_trace),
        cmocka_unit_test(a_refusal_by_the_coordinator_is_its_exit_code),
        cmocka_unit_test(a_killed_process_leaves_its_pool_to_the_next_within_200_ms),
        cmocka_unit_test(poison_kills_every_life_and_a_line_for_one_life_only_that),
    };
    log_set_levels("error", NULL);
    if (argc > 1) {
        model = strcmp(argv[1], "smollm2") == 0 ? getenv("SLUICE_MODEL_SMOLLM2") : SLUICE_VECTORS "/tiny/llama-q4_k.gguf";
        if (!model) {
            puts("skipped: SLUICE_MODEL_SMOLLM2 does not name the model");
            return 77;
        }
        return cmocka_run_group_tests(of_a_model, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
