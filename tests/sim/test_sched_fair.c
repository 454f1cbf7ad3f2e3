/* Between prompts: the shortest first, the oldest never forgotten. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/share.h"

enum { N_FLOOD = 1200 };

static void a_short_prompt_passes_long_ones(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result out;
        struct sim_request r[3] = {{.n_prompt = 20000, .n_answer = 1}, {.n_prompt = 20000, .n_answer = 1},
                                   {.arrives_us = 1e6, .n_prompt = 100, .n_answer = 1}};
        sim_run(&o, r, 3, &out);
        /* S+1 ticks in flight, its own and that of the oldest's quarter before it, through S stages */
        double ttft = out.tokens[2].at_us[0] - 1e6, most = (2 * n_stages + 2) * out.most_tick_us;
        if (ttft > most)
            fail_msg("%u stages: %.0f ms, the bound is %.0f", n_stages, ttft / 1e3, most / 1e3);
        sim_result_fini(&out);
    }
}

static void the_shorter_of_two_long_prompts_ends_first_and_both_end(void **state)
{
    (void)state;
    struct sim_options o = pipeline_of(2, 0.5);
    struct sim_result out;
    struct sim_request r[3] = {{.n_prompt = 9000, .n_answer = 2}, {.n_prompt = 6000, .n_answer = 2},
                               {.arrives_us = 50e3, .n_prompt = 64, .n_answer = 300}};
    sim_run(&o, r, 3, &out);
    assert_true(out.tokens[2].at_us[0] < out.tokens[1].at_us[0]);
    assert_true(out.tokens[1].at_us[0] < out.tokens[0].at_us[0]);
    sim_result_fini(&out);
}

static void a_flood_of_short_prompts_leaves_a_prompt_of_100000_its_quarter(void **state)
{
    (void)state;
    struct sim_options o = case_pipeline(2);
    struct sim_result out;
    static struct sim_request r[N_FLOOD];
    o.sched.n_slots = 8;
    r[0] = (struct sim_request){.n_prompt = 100000, .n_answer = 1};
    for (int i = 1; i < N_FLOOD; i++)
        r[i] = (struct sim_request){.arrives_us = 50e3 * i, .n_prompt = 200, .n_answer = 1};
    o.until_us = 120e6;
    sim_run(&o, r, N_FLOOD, &out);
    /* 25 s alone; the flood needs more than all of the time, so the long one has its quarter: 4 times, and a little */
    if (out.tokens[0].n == 0 || out.tokens[0].at_us[0] > 4.4 * 25e6)
        fail_msg("%.1f s", out.tokens[0].n ? out.tokens[0].at_us[0] / 1e6 : -1);
    assert_true(out.tokens[0].piece_wait_us < 2e6);
    sim_result_fini(&out);
}

static void fc_12_a_long_read_beside_short_ones_advances_in_every_two_seconds_and_ends(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages *= 2) {
        struct sim_options o = case_pipeline(n_stages);
        struct sim_result out;
        static struct sim_request r[N_FLOOD];
        r[0] = (struct sim_request){.n_prompt = 30000, .n_answer = 1};
        for (int i = 1; i < N_FLOOD; i++)
            r[i] = (struct sim_request){.arrives_us = 100e3 * i, .n_prompt = 200, .n_answer = 8};
        o.until_us = 80e6;
        sim_run(&o, r, N_FLOOD, &out);
        const struct sim_tokens *t = &out.tokens[0];
        if (t->n == 0 || t->at_us[0] > 75e6 || t->piece_wait_us > 2e6)
            fail_msg("%u stages: %u tokens after %.1f s, at most %.2f s without a piece", n_stages, t->n,
                     t->n ? t->at_us[0] / 1e6 : 0, t->piece_wait_us / 1e6);
        double gap = longest_gap_us(&out, 1, N_FLOOD);
        if (gap > o.sched.max_stall_us)
            fail_msg("%u stages: a gap of %.0f ms", n_stages, gap / 1e3);
        sim_result_fini(&out);
    }
}

static void several_short_prompts_share_a_tick(void **state)
{
    (void)state;
    struct sim_options o = case_pipeline(2);
    struct sim_result out;
    struct sim_request r[16];
    for (int i = 0; i < 16; i++)
        r[i] = (struct sim_request){.n_prompt = 10, .n_answer = 1};
    sim_run(&o, r, 16, &out);
    assert_true(out.n_ticks <= 4);
    sim_result_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_prompt_passes_long_ones),
        cmocka_unit_test(the_shorter_of_two_long_prompts_ends_first_and_both_end),
        cmocka_unit_test(a_flood_of_short_prompts_leaves_a_prompt_of_100000_its_quarter),
        cmocka_unit_test(fc_12_a_long_read_beside_short_ones_advances_in_every_two_seconds_and_ends),
        cmocka_unit_test(several_short_prompts_share_a_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
