/* How fast prompts are read, beside streams and alone, and that no stage idles while there is work. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/sim/share.h"

static void streams_alone_are_bound_by_the_stages_and_not_by_the_coordinator(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result alone;
        struct sim_request r = {.n_prompt = 16, .n_answer = 200};
        o.sched.lambda_us = 1000; /* ten times the feedback */
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

/* Streams that joined at different times settle into as many groups as pay, and stay in their order. */
static void streams_that_joined_one_by_one_take_the_best_round(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++)
        for (uint32_t n = 2; n <= 12; n++) {
            struct sim_options o = pipeline_of(n_stages, 0.5);
            struct sim_result out;
            struct sim_request r[12];
            for (uint32_t i = 0; i < n_stages; i++)
                o.stage[i] = sim_straight_stage(2000, 500, 500);
            for (uint32_t i = 0; i < n; i++)
                r[i] = (struct sim_request){.arrives_us = 3777.0 * i, .n_prompt = 8, .n_answer = 300};
            sim_run(&o, r, n, &out);
            double period = alone_us(&out, 0, 150, 250) / 100, best = INFINITY;
            for (uint32_t g = 1; g <= n_stages && g <= n; g++) {
                double tick = 2000 + 500 * ((n + g - 1) / g);
                best = fmin(best, fmax(n_stages * tick + o.sched.delta_us, g * tick));
            }
            if (period > 1.1 * best)
                fail_msg("%u stages, %u streams: %.0f us a token, the best round takes %.0f", n_stages, n, period, best);
            sim_result_fini(&out);
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

/* With the streams' share at one half the bounds allow more than the stages can do. */
static void no_stage_that_bounds_idles_while_a_reader_waits_beside_streams(void **state)
{
    (void)state;
    static const double shares[] = {0, 0.25, 0.5};
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++)
        for (int k = 0; k < 3; k++) {
            struct sim_options o = pipeline_of(n_stages, shares[k]);
            struct sim_result out;
            struct sim_request r[N_STREAMS + 16];
            uint32_t n = streams_and_prompts(r, 16, 10000);
            for (uint32_t i = 0; i < n_stages; i++) /* even stages: else one is the slowest of some ticks, another of others */
                o.stage[i] = sim_stage(8000.0 / n_stages, 300.0 / n_stages, 0, 30.0 / n_stages);
            for (uint32_t i = 0; i < N_STREAMS; i++)
                r[i].n_answer = 5000;
            o.until_us = 8e6;
            sim_run(&o, r, n, &out);
            double busy = out.reading_busy_us / out.reading_us;
            if (busy < 0.95)
                fail_msg("%u stages, share %.2f: busy %.3f of the time", n_stages, shares[k], busy);
            sim_result_fini(&out);
        }
}

/* --- failure cases ---------------------------------------------------------------------------------------------------------- */

static void check_fc_10(uint32_t n_stages, int noisy)
{
    struct sim_options o = case_pipeline(n_stages);
    struct sim_request alone = {.n_prompt = 16000, .n_answer = 1};
    struct sim_request r[2] = {{.n_prompt = 8, .n_answer = 4000}, {.arrives_us = 3e6, .n_prompt = 16000, .n_answer = 1}};
    struct sim_result by_itself, beside;
    o.noise_low = noisy ? 0.8 : 1, o.noise_high = noisy ? 1.2 : 1;
    o.until_us = 60e6;
    sim_run(&o, &alone, 1, &by_itself);
    sim_run(&o, r, 2, &beside);
    assert_int_equal(beside.tokens[1].n, 1);
    double end = beside.tokens[1].at_us[0], times = (end - 3e6) / by_itself.tokens[0].at_us[0];
    double kept = rate_between(&beside.tokens[0], 3e6, end) / rate_between(&beside.tokens[0], 1e6, 3e6);
    double gap = longest_gap_us(&beside, 0, 1);
    if (kept < (noisy ? 0.97 * 0.5 : 0.5) || gap > o.sched.max_stall_us + 50e3 || times > 2.2)
        fail_msg("%u stages%s: kept %.3f, longest gap %.0f ms, %.2f times the read alone", n_stages, noisy ? ", noisy" : "",
                 kept, gap / 1e3, times);
    sim_result_fini(&by_itself);
    sim_result_fini(&beside);
}

static void fc_10_a_stream_beside_a_long_prompt_keeps_half_its_speed_and_the_read_takes_little_more_than_twice(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages *= 2)
        for (int noisy = 0; noisy < 2; noisy++)
            check_fc_10(n_stages, noisy);
}

/* Two requests among six that leave at random, in every order of arrival. */
static double rate_of_two(uint32_t n_stages, uint32_t a, uint32_t b, uint64_t seed)
{
    struct sim_options o = case_pipeline(n_stages);
    struct sim_request r[8];
    struct sim_result out;
    for (uint32_t i = 0; i < 8; i++) {
        double leaves_us = 200e3 + (double)((seed * 7919 + i * 104729) % 1000) * 1e3;
        r[i] = (struct sim_request){.arrives_us = 5e3 * i, .n_prompt = 16, .n_answer = 1200};
        r[i].leaves_us = i == a || i == b ? 0 : leaves_us;
    }
    o.until_us = 4e6;
    sim_run(&o, r, 8, &out);
    double rate = rate_between(&out.tokens[a], 1.5e6, 4e6) + rate_between(&out.tokens[b], 1.5e6, 4e6);
    sim_result_fini(&out);
    return rate;
}

static void fc_13_two_streams_are_nearly_twice_as_fast_as_one_in_whatever_order_they_came(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages *= 2) {
        struct sim_options o = case_pipeline(n_stages);
        struct sim_request one = {.n_prompt = 16, .n_answer = 1200};
        struct sim_result out;
        o.until_us = 4e6;
        sim_run(&o, &one, 1, &out);
        double single = rate_between(&out.tokens[0], 1.5e6, 4e6);
        sim_result_fini(&out);
        for (uint32_t a = 0; a < 8; a++)
            for (uint32_t b = a + 1; b < 8; b++) {
                double both = rate_of_two(n_stages, a, b, a * 8 + b);
                if (both < 1.8 * single)
                    fail_msg("%u stages, joined as %u and %u: %.2f times one stream", n_stages, a, b, both / single);
            }
    }
}

static void fc_14_four_stages_read_a_long_prompt_nearly_as_fast_as_a_stage_each_piece_could(void **state)
{
    (void)state;
    struct sim_options o = case_pipeline(4);
    struct sim_request r = {.n_prompt = 16000, .n_answer = 1};
    struct sim_result out;
    sim_run(&o, &r, 1, &out);
    if (out.end_us > 1.3 * 4e6)
        fail_msg("%.2f s", out.end_us / 1e6);
    sim_result_fini(&out);
}

/* --- scale ------------------------------------------------------------------------------------------------------------------ */

static void sixty_four_stages_and_4096_streams_keep_the_busiest_stage_busy(void **state)
{
    (void)state;
    enum { N = 8000 };
    struct sim_options o = {.noise_low = 1, .noise_high = 1, .seed = 1};
    struct sim_result out;
    struct sim_request *r = calloc(N, sizeof *r);
    assert_non_null(r);
    o.sched = (struct sched_options){.n_stages = 64, .n_slots = 4096, .max_rows = 1024, .decode_share = 0.5, .max_stall_us = 2e6,
                                     .max_tick_us = 250e3, .delta_us = 50, .lambda_us = 50};
    for (uint32_t i = 0; i < 64; i++)
        o.stage[i] = sim_straight_stage(1000, 20, 20);
    for (uint32_t i = 0; i < N; i++)
        r[i] = (struct sim_request){.n_prompt = 200, .n_answer = 20};
    sim_run(&o, r, N, &out);
    double busy = out.reading_busy_us / out.reading_us;
    print_message("%u ticks, %llu rows, busy %.3f while prompts wait\n", out.n_ticks, (unsigned long long)out.n_rows, busy);
    assert_true(busy >= 0.95);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(out.tokens[i].n, 20);
    assert_int_equal(out.n_rows, (uint64_t)N * (200 + 19));
    sim_result_fini(&out);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_alone_are_bound_by_the_stages_and_not_by_the_coordinator),
        cmocka_unit_test(streams_that_joined_one_by_one_take_the_best_round),
        cmocka_unit_test(a_lone_prompt_of_512_on_two_stages_overlaps_its_pieces),
        cmocka_unit_test(prompts_without_streams_keep_the_busiest_stage_busy),
        cmocka_unit_test(no_stage_that_bounds_idles_while_a_reader_waits_beside_streams),
        cmocka_unit_test(fc_10_a_stream_beside_a_long_prompt_keeps_half_its_speed_and_the_read_takes_little_more_than_twice),
        cmocka_unit_test(fc_13_two_streams_are_nearly_twice_as_fast_as_one_in_whatever_order_they_came),
        cmocka_unit_test(fc_14_four_stages_read_a_long_prompt_nearly_as_fast_as_a_stage_each_piece_could),
        cmocka_unit_test(sixty_four_stages_and_4096_streams_keep_the_busiest_stage_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
