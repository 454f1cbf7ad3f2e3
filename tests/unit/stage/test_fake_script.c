/* Scripts of fake stages: who a line is for, what the events say, and what is no line. */
#include "tests/unit/stage/cmocka_all.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/fake_script.h"

static enum status read_text(const char *text, uint32_t stage, uint32_t life, struct fake_script *s, struct error *err)
{
    char path[FAKE_SCRIPT_PATH];
    fake_script_file(text, path);
    enum status st = fake_script_read(path, stage, life, s, err);
    unlink(path);
    return st;
}

static void a_line_is_for_a_stage_and_for_one_of_its_lives(void **state)
{
    (void)state;
    static const char text[] = "# costs\ntick_us 10\nstage 1 tick_us 20\nstage 1 life 2 tick_us 30\nlife 0 row_us 5\n"
                               "stage 0 life 1 poison 7\n";
    static const struct {
        uint32_t stage, life, tick_us, row_us;
        int poison_signal;
    } want[] = {{0, 0, 10, 5, 0}, {0, 1, 10, 0, SIGSEGV}, {1, 0, 20, 5, 0}, {1, 1, 20, 0, 0}, {1, 2, 30, 0, 0}};
    for (unsigned i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct fake_script s;
        struct error err = {0};
        assert_int_equal(read_text(text, want[i].stage, want[i].life, &s, &err), STATUS_OK);
        assert_int_equal(s.tick_us, want[i].tick_us);
        assert_int_equal(s.row_us, want[i].row_us);
        assert_int_equal(s.poison_signal, want[i].poison_signal);
        fake_script_free(&s);
    }
}

static void events_say_when_what_and_how(void **state)
{
    (void)state;
    struct fake_script s;
    struct error err = {0};
    assert_int_equal(read_text("start_ms 20\nslow_tick 3 400\nsleep_tick 4 500\nfail_tick 5 OUT_OF_MEMORY\nfail_from 6 STAGE\n"
                               "crash_tick 7\ncrash_tick 8 11\npoison 9 6\n",
                               0, 0, &s, &err),
                     STATUS_OK);
    static const struct fake_event want[] = {{FAKE_SLOW, 3, 400}, {FAKE_SLEEP, 4, 500},
                                             {FAKE_FAIL, 5, STATUS_OUT_OF_MEMORY}, {FAKE_FAIL_FROM, 6, STATUS_STAGE},
                                             {FAKE_CRASH, 7, SIGKILL}, {FAKE_CRASH, 8, SIGSEGV}};
    assert_int_equal(s.start_ms, 20);
    assert_int_equal(s.n_events, sizeof want / sizeof want[0]);
    for (uint32_t i = 0; i < s.n_events; i++)
        assert_true(s.events[i].kind == want[i].kind && s.events[i].tick == want[i].tick && s.events[i].value == want[i].value);
    assert_int_equal(s.poison_id, 9);
    assert_int_equal(s.poison_signal, SIGABRT);
    fake_script_free(&s);
}

static void what_is_no_line_is_refused_with_its_number(void **state)
{
    (void)state;
    static const char *const bad[] = {"poison\n", "poison x\n", "poison 5 65\n", "poison 5 0\n", "life tick_us 3\n", "life -1 tick_us 3\n",
                                      "stage 1 stage 1 tick_us 3\n", "life 1 stage 1 tick_us 3\n", "slow_tick 0 5\n", "slow_tick 1\n",
                                      "slow_tick 1 -5\n", "start_ms\n", "crash_tick 1 65\n", "fail_tick 1 OK\n", "what 1\n"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct fake_script s;
        struct error err = {0};
        char text[80];
        snprintf(text, sizeof text, "tick_us 1\n%s", bad[i]);
        if (read_text(text, 1, 1, &s, &err) != STATUS_CONFIG || !strstr(err.message, ":2: "))
            fail_msg("'%s': '%s'", bad[i], err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_for_a_stage_and_for_one_of_its_lives),
        cmocka_unit_test(events_say_when_what_and_how),
        cmocka_unit_test(what_is_no_line_is_refused_with_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
