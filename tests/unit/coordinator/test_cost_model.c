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
}

static void the_factor_is_the_95th_percentile_of_what_was_measured(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    struct cost_shape decode = {.rows = 8, .sampled = 8}, mixed = {.rows = 64, .sampled = 1, .n_prompt = 60};
    double quiet = cost_predict_us(&m, 0, &mixed);
    for (int i = 0; i < 7; i++)
        cost_model_learn(&m, 0, COST_DECODE, 280, 560);
    assert_true(cost_predict_us(&m, 0, &decode) == 280); /* too few to say */
    for (uint64_t i = 0; i < 1000; i++)
        cost_model_learn(&m, 0, COST_DECODE, 280, 280 * (1 + (double)(rand_at(5, i) % 1000) / 1000));
    double factor = cost_predict_us(&m, 0, &decode) / 280;
    assert_true(factor > 1.85 && factor < 2);
    assert_true(cost_predict_us(&m, 0, &mixed) == quiet); /* the kinds are apart */
}

static void outliers_and_nonsense_change_little(void **state)
{
    (void)state;
    struct cost_model m = one_stage(&measured);
    struct cost_shape decode = {.rows = 8, .sampled = 8};
    for (int i = 0; i < 200; i++) {
        cost_model_learn(&m, 0, COST_DECODE, 280, i % 50 == 0 ? 1e9 : 280);
        cost_model_learn(&m, 0, COST_DECODE, 280, NAN);
        cost_model_learn(&m, 0, COST_DECODE, 0, 100);
        cost_model_learn(&m, 9, COST_DECODE, 280, 100);
    }
    assert_true(cost_predict_us(&m, 0, &decode) == 280);
    for (int i = 0; i < 200; i++)
        cost_model_learn(&m, 0, COST_DECODE, 280, 1e12);
    assert_true(cost_predict_us(&m, 0, &decode) <= 280 * COST_FACTOR_MAX);
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
        cmocka_unit_test(the_factor_is_the_95th_percentile_of_what_was_measured),
        cmocka_unit_test(outliers_and_nonsense_change_little),
        cmocka_unit_test(the_slowest_stage_bounds_a_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
