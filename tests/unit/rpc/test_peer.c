/* What happens to calls when the process at the other end dies or stops: a server in its own process. */
#include "tests/unit/rpc/fixture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

static struct fixture f;
static pid_t server;
static int input;

static void spawn(void)
{
    int in[2], out[2];
    char port[16] = "";
    struct error err;
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(SERVER_PROGRAM, SERVER_PROGRAM, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    input = in[1];
    assert_true(read(out[0], port, sizeof port - 1) > 0);
    close(out[0]);
    fixture_start(&f, NULL, NULL);
    rpc_channel_destroy(f.channel);
    snprintf(f.address, sizeof f.address, "127.0.0.1:%d", atoi(port));
    assert_int_equal(rpc_channel_create(f.loop, f.address, &f.channel_options, &f.channel, &err), STATUS_OK);
    struct generate_request r = {.prompt = PROMPT_TEXT, .text = text_bytes("say x"), .sampler = {.top_p = 1}, .max_tokens = -1};
    fixture_generate(&f, &r); /* the connection stands */
    fixture_wait(&f, &f.n_ended, 1, 5000);
    assert_int_equal(f.end.status, STATUS_OK);
    fixture_drop_stream(&f);
    r.text = text_bytes("hang");
    fixture_generate(&f, &r);
    sleep_ms(50);
}

static void reap(void)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    close(input);
    fixture_stop(&f);
}

static void killed_server_is_noticed_at_once(void **state)
{
    (void)state;
    spawn();
    int64_t start = clock_now_ns();
    kill(server, SIGKILL);
    fixture_wait(&f, &f.n_ended, 2, 2000);
    assert_int_equal(f.end.status, STATUS_CLOSED);
    printf("[          ] noticed after %.1f ms\n", (double)(f.ended_ns - start) / 1e6);
    assert_true(f.ended_ns - start < 50 * NS_PER_MS);
    reap();
}

static void stopped_server_is_noticed_by_heartbeats(void **state)
{
    (void)state;
    spawn();
    int64_t start = clock_now_ns();
    kill(server, SIGSTOP);
    fixture_wait(&f, &f.n_ended, 2, 3000);
    assert_int_equal(f.end.status, STATUS_CLOSED);
    printf("[          ] noticed after %.0f ms\n", (double)(f.ended_ns - start) / 1e6);
    assert_true(f.ended_ns - start > 600 * NS_PER_MS && f.ended_ns - start < 2000 * NS_PER_MS);
    reap();
}

static void quiet_connection_lives(void **state)
{
    (void)state;
    spawn();
    sleep_ms(4000); /* "too many pings" would end it after three seconds */
    assert_int_equal(f.n_ended, 1);
    reap();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_server_is_noticed_at_once),
        cmocka_unit_test(stopped_server_is_noticed_by_heartbeats),
        cmocka_unit_test(quiet_connection_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
