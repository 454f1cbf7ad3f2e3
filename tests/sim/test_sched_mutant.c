/* Built with a planner whose wide ticks cost nothing (SCHED_WIDE_PRICE=0): the share must break, or its test shows nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/share.h"

static void without_the_price_of_wide_ticks_the_share_test_fails(void **state)
{
    (void)state;
    struct sim_request r[N_STREAMS + 4];
    struct sim_options o = pipeline_of(1, 0.9);
    struct sim_result with, alone;
    sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
    run_alone(&o, &alone);
    assert_true(share_excess_us(&o, &with, &alone, 0.9) > 0);
    sim_result_fini(&with);
    sim_result_fini(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_price_of_wide_ticks_the_share_test_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
