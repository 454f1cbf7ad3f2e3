/* What scheduling.md promises, measured over whole runs in virtual time. The last tests take a rule away and see that its
 * test fails. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/share.h"

enum { N_FLOOD = 512 };

static double longest_gap_us(const struct sim_result *r, uint32_t first, uint32_t end)
{
    double most = 0;
    for (uint32_t s = first; s < end; s++)
        for (uint32_t i = 1; i < r->tokens[s].n; i++)
            most = fmax(most, r->tokens[s].at_us[i] - r->tokens[s].at_us[i - 1]);
    return most;
}

/* --- the promises ---------------------------------------------------------------------------------------------------------------- */

static void streams_keep_their_share_beside_prompts(void **state)
{
    (void)state;
    static const double shares[] = {0.25, 0.5, 0.75, 0.9};
    struct sim_request r[N_STREAMS + 4];
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++)
        for (size_t k = 0; k < sizeof shares / sizeof shares[0]; k++) {
            struct sim_options o = pipeline_of(n_stages, shares[k]);
            struct sim_result with, alone;
            sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
            run_alone(&o, &alone);
            double excess = share_excess_us(&o, &with, &alone, shares[k]);
            double rate = alone_us(&alone, 0, 50, 306) / alone_us(&with, 0, 50, 306);
            if (excess > 0 || rate < 0.97 * shares[k])
                fail_msg("%u stages, share %.2f: %.0f us over the bound, rate %.3f", n_stages, shares[k], excess, rate);
            sim_result_fini(&with);
            sim_result_fini(&alone);
        }
}

static void no_gap_is_longer_than_the_stall(void **state)
{
    (void)state;
    static const double stalls_ms[] = {60, 120, 250};
    struct sim_request r[N_STREAMS + 4];
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++)
        for (int k = 0; k < 3; k++) {
            struct sim_options o = pipeline_of(n_stages, 0);
            struct sim_result with;
            o.sched.max_stall_us = stalls_ms[k] * 1e3;
            o.sched.max_rows = 2048;
            o.noise_low = 0.6;
            sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
            double gap = longest_gap_us(&with, 0, N_STREAMS);
            if (gap > o.sched.max_stall_us)
                fail_msg("%u stages, stall %.0f ms: a gap of %.1f ms", n_stages, stalls_ms[k], gap / 1e3);
            sim_result_fini(&with);
        }
}

static void bounds_scale_with_mispredictions(void **state)
{
    (void)state;
    struct sim_request r[N_STREAMS + 4];
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result with, alone;
        o.noise_low = 0.7, o.noise_high = 1.3;
        o.learn = 1;
        sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
        run_alone(&o, &alone);
        double excess = share_excess_us(&o, &with, &alone, 0.5), gap = longest_gap_us(&with, 0, N_STREAMS);
        if (excess > 0 || gap > 1.3 * o.sched.max_stall_us)
            fail_msg("%u stages: %.0f us over the share's bound, longest gap %.1f ms", n_stages, excess, gap / 1e3);
        sim_result_fini(&with);
        sim_result_fini(&alone);
    }
}

static void a_prompt_that_becomes_a_stream_has_no_long_first_gap(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result with;
        struct sim_request r[12];
        for (uint32_t i = 0; i < 12; i++)
            r[i] = (struct sim_request){.arrives_us = 20e3 * i, .n_prompt = 500 + 317 * i, .n_answer = 60};
        sim_run(&o, r, 12, &with);
        double gap = longest_gap_us(&with, 0, 12);
        if (gap > o.sched.max_stall_us)
            fail_msg("%u stages: a gap of %.1f ms", n_stages, gap / 1e3);
        sim_result_fini(&with);
    }
}

static void uneven_stages_keep_the_share_and_prompts_get_on(void **state)
{
    (void)state;
    struct sim_request r[N_STREAMS + 1];
    for (int slow = 0; slow < 3; slow++) {
        struct sim_options o = pipeline_of(3, 0.75);
        struct sim_result with, alone;
        o.stage[slow] = sim_stage(15e3, 500, 100, 30);
        sim_run(&o, r, streams_and_prompts(r, 1, 1500), &with);
        run_alone(&o, &alone);
        double rate = alone_us(&alone, 0, 20, N_TOKENS - 1) / alone_us(&with, 0, 20, N_TOKENS - 1);
        assert_true(rate >= 0.97 * 0.75);
        assert_true(with.tokens[N_STREAMS].at_us[0] < with.tokens[0].at_us[N_TOKENS - 1]); /* not only after the streams */
        sim_result_fini(&with);
        sim_result_fini(&alone);
    }
}

/* --- speed ---------------------------------------------------------------------------------------------------------------------------- */

static void streams_alone_are_bound_by_the_stages_and_not_by_the_coordinator(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result alone;
        struct sim_request r = {.n_prompt = 16, .n_answer = 200};
        o.sched.lambda_us = 1000; /* ten times the feedback */
        o.stage[n_stages - 1].attention_ns = 0;
        for (uint32_t i = 0; i < n_stages; i++)
            o.stage[i].attention_ns = 0;
        sim_run(&o, &r, 1, &alone);
        double period = (alone.tokens[0].at_us[199] - alone.tokens[0].at_us[9]) / 190, least = o.sched.delta_us;
        for (uint32_t i = 0; i < n_stages; i++)
            least += o.stage[i].decode_us[0];
        if (period > 1.01 * least)
            fail_msg("%u stages: %.0f us a token, the stages and the feedback take %.0f", n_stages, period, least);
        sim_result_fini(&alone);
    }
}

static void a_lone_prompt_of_512_on_two_stages_overlaps_its_pieces(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.5);
    struct sim_result out;
    struct sim_request r = {.n_prompt = 512, .n_answer = 1};
    sim_run(&o, &r, 1, &out);
    double sum = o.stage[0].prompt_us[9] + o.stage[1].prompt_us[9];
    if (out.tokens[0].at_us[0] > 0.65 * sum)
        fail_msg("%.1f ms of %.1f", out.tokens[0].at_us[0] / 1e3, sum / 1e3);
    sim_result_fini(&out);
}

static void prompts_without_streams_keep_the_busiest_stage_busy(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result out;
        struct sim_request r[16];
        for (int i = 0; i < 16; i++)
            r[i] = (struct sim_request){.n_prompt = 8000, .n_answer = 1};
        sim_run(&o, r, 16, &out);
        double busy = out.busy_us[n_stages - 1] / out.end_us;
        if (busy < 0.95)
            fail_msg("%u stages: the last stage is busy %.3f of the time", n_stages, busy);
        sim_result_fini(&out);
    }
}

static void ticks_without_streams_stay_within_the_longest_tick(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.5);
    struct sim_result out;
    struct sim_request r = {.n_prompt = 20000, .n_answer = 1};
    o.sched.max_tick_us = 40e3;
    sim_run(&o, &r, 1, &out);
    assert_true(out.most_tick_us <= 40e3);
    sim_result_fini(&out);
}

static void a_tick_limit_below_the_smallest_piece_still_reads(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.9);
    struct sim_result out;
    struct sim_request r[2] = {{.n_prompt = 200, .n_answer = 300}, {.arrives_us = 500e3, .n_prompt = 300, .n_answer = 2}};
    o.sched.max_tick_us = o.sched.max_stall_us = 1000;
    sim_run(&o, r, 2, &out);
    assert_int_equal(out.tokens[1].n, 2);
    assert_true(out.tokens[1].at_us[0] < out.tokens[0].at_us[299]);
    sim_result_fini(&out);
}

/* --- fairness between prompts ---------------------------------------------------------------------------------------------------------- */

static void a_short_prompt_passes_long_ones(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.5);
    struct sim_result out;
    struct sim_request r[3] = {{.n_prompt = 20000, .n_answer = 1}, {.n_prompt = 20000, .n_answer = 1},
                               {.arrives_us = 1e6, .n_prompt = 100, .n_answer = 1}};
    sim_run(&o, r, 3, &out);
    double ttft = out.tokens[2].at_us[0] - 1e6;
    if (ttft > 5 * o.sched.max_tick_us)
        fail_msg("%.0f ms", ttft / 1e3);
    sim_result_fini(&out);
}

static void a_flood_of_short_prompts_leaves_a_long_one_its_quarter(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.5);
    struct sim_result alone, flood;
    static struct sim_request r[N_FLOOD];
    o.sched.n_slots = 8;
    r[0] = (struct sim_request){.n_prompt = 10000, .n_answer = 1};
    sim_run(&o, r, 1, &alone);
    for (int i = 1; i < N_FLOOD; i++)
        r[i] = (struct sim_request){.arrives_us = 20e3 * i, .n_prompt = 200, .n_answer = 1};
    sim_run(&o, r, N_FLOOD, &flood);
    if (flood.tokens[0].at_us[0] > 5 * alone.tokens[0].at_us[0])
        fail_msg("%.0f ms, alone %.0f", flood.tokens[0].at_us[0] / 1e3, alone.tokens[0].at_us[0] / 1e3);
    sim_result_fini(&alone);
    sim_result_fini(&flood);
}

/* --- the tests can fail -------------------------------------------------------------------------------------------------------------- */

static void without_the_share_rule_the_share_test_fails(void **state)
{
    (void)state;
    struct sim_request r[N_STREAMS + 4];
    struct sim_options o = pipeline_of(2, 0);
    struct sim_result with, alone;
    sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
    run_alone(&o, &alone);
    assert_true(share_excess_us(&o, &with, &alone, 0.5) > 0);
    sim_result_fini(&with);
    sim_result_fini(&alone);
}

static void without_the_stall_rule_the_stall_test_fails(void **state)
{
    (void)state;
    struct sim_request r[N_STREAMS + 4];
    struct sim_options o = pipeline_of(2, 0);
    struct sim_result with;
    o.sched.max_stall_us = 1e9;
    o.sched.max_rows = 2048; /* else the rows bound the ticks */
    sim_run(&o, r, streams_and_prompts(r, 4, 6000), &with);
    assert_true(longest_gap_us(&with, 0, N_STREAMS) > 250e3);
    sim_result_fini(&with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_keep_their_share_beside_prompts),
        cmocka_unit_test(no_gap_is_longer_than_the_stall),
        cmocka_unit_test(bounds_scale_with_mispredictions),
        cmocka_unit_test(a_prompt_that_becomes_a_stream_has_no_long_first_gap),
        cmocka_unit_test(uneven_stages_keep_the_share_and_prompts_get_on),
        cmocka_unit_test(streams_alone_are_bound_by_the_stages_and_not_by_the_coordinator),
        cmocka_unit_test(a_lone_prompt_of_512_on_two_stages_overlaps_its_pieces),
        cmocka_unit_test(prompts_without_streams_keep_the_busiest_stage_busy),
        cmocka_unit_test(ticks_without_streams_stay_within_the_longest_tick),
        cmocka_unit_test(a_tick_limit_below_the_smallest_piece_still_reads),
        cmocka_unit_test(a_short_prompt_passes_long_ones),
        cmocka_unit_test(a_flood_of_short_prompts_leaves_a_long_one_its_quarter),
        cmocka_unit_test(without_the_share_rule_the_share_test_fails),
        cmocka_unit_test(without_the_stall_rule_the_stall_test_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
