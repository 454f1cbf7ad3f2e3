/* Real workers whose ticks take too long, or only long: who is blamed, and what becomes of the requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/engine/fake_bed.h"

/* Until the request ends: what was said of the service while it was not ready. */
static void watch(struct bed *t, struct bed_request *r, char *why, size_t size)
{
    struct service_status *s = malloc(sizeof *s);
    assert_non_null(s);
    why[0] = '\0';
    for (int64_t end_ns = clock_now_ns() + 10 * NS_PER_S; !bed_ended(r); usleep(2000)) {
        if (clock_now_ns() > end_ns)
            fail_msg("not ended within 10 s: %s", why);
        engine_status(engine_bed_engine(t->b), s);
        if (!s->ready && !why[0])
            snprintf(why, size, "%s", s->not_ready);
    }
    free(s);
}

static void of_real_stages_the_one_that_is_stuck_is_named(void **state)
{
    (void)state;
    for (uint32_t stuck = 0; stuck < 3; stuck++) {
        char script[64], why[256], name[32];
        snprintf(script, sizeof script, "tick_us 1000\nstage %u sleep_tick 12 1500\n", stuck);
        struct bed *t = bed_open(3, script, FLAGS("--slots", "2", "--stuck-ms", "500"));
        struct bed_request *r = start(t, 20, 30), *other = start(t, 60, 30);
        watch(t, r, why, sizeof why);
        snprintf(name, sizeof name, "stage %u was lost: stuck", stuck);
        if (strncmp(why, name, strlen(name)) != 0)
            fail_msg("stage %u is stuck, and it was said: %s", stuck, why);
        bed_wait(other, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OK);
        assert_int_equal(other->end.status, STATUS_OK);
        check_answer(t, r);
        check_answer(t, other);
        engine_bed_wait_ready(t->b);
        engine_bed_assert_quiet(t->b);
        bed_close(t);
    }
}

static void a_long_tick_that_is_shorter_than_allowed_changes_no_epoch(void **state)
{
    (void)state;
    for (uint32_t slow = 0; slow < 3; slow++) {
        char script[96], why[256];
        /* One after the other: who has waited for the first has as much time for its own. */
        snprintf(script, sizeof script, "tick_us 1000\nstage %u sleep_tick 12 600\nstage %u sleep_tick 13 600\n", slow, (slow + 1) % 3);
        struct bed *t = bed_open(3, script, FLAGS("--slots", "2", "--stuck-ms", "1000"));
        struct bed_request *r = start(t, 20, 30);
        watch(t, r, why, sizeof why);
        assert_string_equal(why, "");
        assert_int_equal(r->end.status, STATUS_OK);
        check_answer(t, r);
        engine_bed_assert_quiet(t->b);
        bed_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_real_stages_the_one_that_is_stuck_is_named),
        cmocka_unit_test(a_long_tick_that_is_shorter_than_allowed_changes_no_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
