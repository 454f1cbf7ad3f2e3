/* Built once for each rule of the planner, with that rule taken away: what its test measures must then break, or the test
 * shows nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/sim/share.h"

/* By the worst window, and over 256 tokens. */
static int share_is_broken(uint32_t n_stages, double share)
{
    struct sim_request r[N_STREAMS + 4];
    struct sim_options o = pipeline_of(n_stages, share);
    struct sim_result with, alone;
    sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
    run_alone(&o, &alone);
    double excess = share_excess_us(&o, &with, &alone, share);
    double kept = kept_share(&with, &alone, 300e3, 256);
    sim_result_fini(&with);
    sim_result_fini(&alone);
    return excess > 0 && kept < 0.97 * share;
}

#if defined(SCHED_MUTANT_NO_SHARE)
static void without_the_share_rule_the_share_breaks(void **state)
{
    (void)state;
    assert_true(share_is_broken(2, 0.5));
}
#define TEST without_the_share_rule_the_share_breaks

#elif defined(SCHED_MUTANT_NO_STALL)
static void without_the_stall_rule_a_gap_is_longer_than_the_stall(void **state)
{
    (void)state;
    (void)share_is_broken;
    struct sim_request r[N_STREAMS + 4];
    struct sim_options o = pipeline_of(2, 0);
    struct sim_result with;
    o.sched.max_rows = 2048; /* else the rows bound the ticks */
    sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
    assert_true(longest_gap_us(&with, 0, N_STREAMS) > o.sched.max_stall_us);
    sim_result_fini(&with);
}
#define TEST without_the_stall_rule_a_gap_is_longer_than_the_stall

#elif defined(SCHED_MUTANT_NO_QUARTER)
static void without_the_oldest_readers_quarter_it_waits_for_the_whole_flood(void **state)
{
    (void)state;
    (void)share_is_broken;
    enum { N = 1200 };
    static struct sim_request r[N];
    struct sim_options o = case_pipeline(2);
    struct sim_result out;
    r[0] = (struct sim_request){.n_prompt = 30000, .n_answer = 1};
    for (int i = 1; i < N; i++)
        r[i] = (struct sim_request){.arrives_us = 100e3 * i, .n_prompt = 200, .n_answer = 8};
    o.until_us = 80e6;
    sim_run(&o, r, N, &out);
    assert_true(out.tokens[0].n == 0 || out.tokens[0].at_us[0] > 75e6 || out.tokens[0].piece_wait_us > 2e6);
    sim_result_fini(&out);
}
#define TEST without_the_oldest_readers_quarter_it_waits_for_the_whole_flood

#else
static void without_the_price_of_a_burst_the_share_breaks(void **state)
{
    (void)state;
    assert_true(SCHED_WIDE_PRICE == 0);
    assert_true(share_is_broken(1, 0.9));
}
#define TEST without_the_price_of_a_burst_the_share_breaks
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(TEST)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
