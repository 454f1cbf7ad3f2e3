#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "coordinator/cost_model.h"

static const struct msg_loaded measured = {.cost_rows = {1, 8, 64, 512},
                                           .prompt_us = {100, 200, 800, 6400},
                                           .decode_us = {150, 280, 1400, 10000},
                                           .attention_ns = 10};

static struct cost_model one_stage(const struct msg_loaded *l)
{
    struct cost_model m;
    cost_model_init(&m, 1);
    cost_model_set_stage(&m, 0, l);
    return m;
}

static double base(const struct cost_model *m, uint32_t rows, uint32_t sampled, uint64_t reads)
{
    return cost_base_us(m, 0, &(struct cost_shape){.rows = rows, .sampled = sampled, .reads = reads});
}

static void measured_points_are_met_and_between_them_it_is_linear(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    assert_true(base(&m, 8, 0, 0) == 200);
    assert_true(base(&m, 8, 8, 0) == 280); /* decode rows */
    assert_true(base(&m, 36, 0, 0) == 500);
    assert_true(base(&m, 1024, 0, 0) == 12800); /* on by the last slope */
    assert_true(base(&m, 8, 0, 1000) == 210);
    assert_true(base(&m, 0, 0, 0) == 0);
}

static void figures_that_make_no_sense_are_mended(void **state)
{
    (void)state;
    struct msg_loaded bad = {.cost_rows = {4, 8, 8, 2}, .prompt_us = {0, 500, 3, 1}, .decode_us = {0, 100}, .attention_ns = NAN};
    struct cost_model m = one_stage(&bad);
    double before = 0;
    for (uint32_t rows = 1; rows < 600; rows++) {
        double us = base(&m, rows, rows, 1u << 20);
        assert_true(isfinite(us) && us > 0 && us >= before);
        before = us;
    }
    m = one_stage(&(struct msg_loaded){0}); /* nothing measured */
    assert_true(base(&m, 1, 1, 0) > 0);
    m = one_stage(&(struct msg_loaded){.cost_rows = {16}, .prompt_us = {160}, .attention_ns = -1e300});
    assert_true(base(&m, 32, 0, 1) == 320);
    m = one_stage(&(struct msg_loaded){.cost_rows = {16}, .prompt_us = {160}, .attention_ns = 1.7e308}); /* finite, but times reads it is not */
    assert_true(isfinite(base(&m, 4096, 0, 4096ull << 24)));
}

static void learn_many(struct cost_model *m, const struct cost_shape *s, double us, double spread, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        cost_model_learn(m, 0, s, us * (1 + spread * ((double)(rand_at(5, i) % 1001) / 500 - 1)));
}

static void close_to(double got, double want, double part)
{
    if (got < want * (1 - part) || got > want * (1 + part))
        fail_msg("%.1f, wanted %.1f", got, want);
}

static void typical_costs_follow_the_mean_of_timings_and_the_guard_their_95th_percentile(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    struct cost_shape decode = {.rows = 8, .sampled = 8}, mixed = {.rows = 64, .sampled = 1, .n_prompt = 60};
    double quiet = cost_predict_us(&m, 0, &mixed);
    learn_many(&m, &decode, 420, 0.2, 1000);
    close_to(cost_predict_us(&m, 0, &decode), 420, 0.06);
    assert_true(cost_guard(&m, 0, COST_DECODE) > 1.1 && cost_guard(&m, 0, COST_DECODE) < 1.3);
    assert_true(cost_predict_us(&m, 0, &mixed) == quiet); /* the kinds are apart */
    assert_true(cost_guard(&m, 0, COST_WIDE) == cost_guard(&m, 0, COST_DECODE)); /* until it is known */
}

static void the_table_bends_where_timings_say_so(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    struct cost_shape small = {.rows = 16, .n_prompt = 14}, large = {.rows = 256, .n_prompt = 256};
    double small_us = cost_predict_us(&m, 0, &small), large_us = cost_predict_us(&m, 0, &large);
    for (int i = 0; i < 50; i++) {
        learn_many(&m, &small, 2 * small_us, 0, 1);
        learn_many(&m, &large, 0.8 * large_us, 0, 1);
    }
    close_to(cost_predict_us(&m, 0, &small), 2 * small_us, 0.01);
    close_to(cost_predict_us(&m, 0, &large), 0.8 * large_us, 0.01);
    struct cost_shape between = {.rows = 24, .n_prompt = 24}; /* half of it is a bucket that was never seen */
    assert_true(cost_predict_us(&m, 0, &between) < 2 * cost_base_us(&m, 0, &between));
    m = one_stage(&measured);
    learn_many(&m, &large, 1.5 * large_us, 0, 100); /* what was never seen is like what was */
    close_to(cost_predict_us(&m, 0, &small), 1.5 * small_us, 0.01);
}

static void attention_is_fitted_apart_from_rows(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured), truth;
    struct msg_loaded slow = measured;
    slow.attention_ns = 40; /* not the 10 that was measured */
    truth = one_stage(&slow);
    for (uint64_t i = 0; i < 4000; i++) {
        uint64_t position = rand_at(9, i) % 8000;
        struct cost_shape s = {.rows = 64, .n_prompt = 64, .reads = 64 * position, .spans = position};
        cost_model_learn(&m, 0, &s, cost_base_us(&truth, 0, &s));
    }
    for (uint64_t position = 0; position <= 8000; position += 4000) {
        struct cost_shape s = {.rows = 64, .n_prompt = 64, .reads = 64 * position, .spans = position};
        close_to(cost_predict_us(&m, 0, &s), cost_base_us(&truth, 0, &s), 0.1);
    }
    close_to(cost_reads_us(&m, 0), 0.04, 0.1);
}

static void outliers_and_nonsense_change_nothing_until_they_are_the_rule(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    struct cost_shape decode = {.rows = 8, .sampled = 8};
    for (int i = 0; i < 200; i++) {
        cost_model_learn(&m, 0, &decode, i % 50 == 0 ? 1e9 : 280);
        cost_model_learn(&m, 0, &decode, NAN);
        cost_model_learn(&m, 0, &decode, -1);
        cost_model_learn(&m, 0, &(struct cost_shape){0}, 100);
        cost_model_learn(&m, 9, &decode, 100);
    }
    close_to(cost_predict_us(&m, 0, &decode), 280, 1e-9);
    assert_true(cost_guard(&m, 0, COST_DECODE) == 1);
    learn_many(&m, &decode, 2800, 0, 200); /* the machine has become slow */
    close_to(cost_predict_us(&m, 0, &decode), 2800, 0.05);
    learn_many(&m, &decode, 1e12, 0, 2000);
    assert_true(cost_predict_us(&m, 0, &decode) <= 280 * COST_FACTOR_MAX);
    assert_true(cost_guard(&m, 0, COST_DECODE) <= COST_GUARD_MAX);
}

static void the_slowest_stage_bounds_a_tick(void **state)
{
    (void)state;
    struct cost_model m;
    struct msg_loaded slow = measured;
    struct cost_shape s = {.rows = 8, .n_prompt = 8};
    slow.prompt_us[1] = 700;
    cost_model_init(&m, 3);
    for (uint32_t i = 0; i < 3; i++)
        cost_model_set_stage(&m, i, i == 1 ? &slow : &measured);
    assert_true(cost_slowest_us(&m, &s) == 700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_points_are_met_and_between_them_it_is_linear),
        cmocka_unit_test(figures_that_make_no_sense_are_mended),
        cmocka_unit_test(typical_costs_follow_the_mean_of_timings_and_the_guard_their_95th_percentile),
        cmocka_unit_test(the_table_bends_where_timings_say_so),
        cmocka_unit_test(attention_is_fitted_apart_from_rows),
        cmocka_unit_test(outliers_and_nonsense_change_nothing_until_they_are_the_rule),
        cmocka_unit_test(the_slowest_stage_bounds_a_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
