/* The chains of kernels/math.h against double precision, and f16 conversion over every pattern. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/math.h"

/* In units of the last place of the exact value. */
static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs(got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void sin_and_cos_are_within_an_ulp_up_to_a_million(void **state)
{
    double worst = 0;
    (void)state;
    for (float a = 0; a < 1e6f; a = a * 1.00003f + 1e-4f) {
        float s, c;
        math_sincos(a, &s, &c);
        double es = ulps(s, sin((double)a)), ec = ulps(c, cos((double)a));
        worst = es > worst ? es : worst;
        worst = ec > worst ? ec : worst;
        math_sincos(-a, &s, &c);
        assert_true(ulps(s, sin(-(double)a)) < 1 && ulps(c, cos((double)a)) < 1);
    }
    print_message("sin, cos: %.3f ulp\n", worst);
    assert_true(worst < 1);
}

static void exponentials_are_close_to_double(void **state)
{
    (void)state;
    for (float x = 0; x > -86; x -= 0.0007f) {
        double e2 = exp2((double)x), e = exp((double)x);
        assert_true(fabs(math_exp2_neg(x) - e2) < 3e-7 * e2);
        assert_true(fabs(math_exp_neg(x) - e) < 1.5e-7 * e);
    }
    assert_true(math_exp2_neg(-126) == 0 && math_exp_neg(-88) == 0 && math_exp2_neg(-INFINITY) == 0);
    assert_true(math_exp2_neg(0) == 1 && math_exp_neg(0) == 1);
    assert_true(isnan(math_exp2_neg(NAN)) && isnan(math_exp_neg(NAN)) && isnan(math_silu(NAN)));
}

static void tanh_is_close_to_double_and_odd(void **state)
{
    double worst = 0;
    (void)state;
    for (float x = 1e-6f; x < 50; x = x * 1.0001f) {
        double u = ulps(math_tanh(x), tanh((double)x));
        worst = u > worst ? u : worst;
        assert_true(math_tanh(-x) == -math_tanh(x));
    }
    print_message("tanh: %.3f ulp\n", worst);
    assert_true(worst < 2.5);
    assert_true(math_tanh(0) == 0 && math_tanh(INFINITY) == 1 && math_tanh(-INFINITY) == -1 && isnan(math_tanh(NAN)));
}

static void gates_are_close_to_double(void **state)
{
    (void)state;
    for (float f = -30; f < 30; f += 0.003f) {
        double x = f;
        double silu = x / (1 + exp(-x));
        double gelu = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        assert_true(fabs(math_silu(f) - silu) < 3e-7 * fabs(silu) + 1e-30);
        assert_true(fabs(math_gelu_tanh(f) - gelu) < 2e-7 * fabs(x) + 1e-30);
    }
}

static void every_half_survives_the_way_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = math_from_f16((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00 && h & 0x3ff)
            assert_true(isnan(f));
        else
            assert_int_equal(math_to_f16(f), h);
    }
}

static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) { /* between each half and the next one */
        double a = math_from_f16((uint16_t)h), b = h == 0x7bff ? 65536 : math_from_f16((uint16_t)(h + 1)), middle = (a + b) / 2;
        assert_int_equal(math_to_f16((float)middle), h & 1 ? h + 1 : h);
        assert_int_equal(math_to_f16(nextafterf((float)middle, 0)), h);
        assert_int_equal(math_to_f16(nextafterf((float)middle, INFINITY)), h + 1);
        assert_int_equal(math_to_f16(-(float)middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(math_to_f16(1e30f), 0x7c00);
    assert_int_equal(math_to_f16(1e-30f), 0);
    assert_int_equal(math_to_f16(NAN) & 0x7c00, 0x7c00);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sin_and_cos_are_within_an_ulp_up_to_a_million),
        cmocka_unit_test(exponentials_are_close_to_double),
        cmocka_unit_test(tanh_is_close_to_double_and_odd),
        cmocka_unit_test(gates_are_close_to_double),
        cmocka_unit_test(every_half_survives_the_way_to_f32_and_back),
        cmocka_unit_test(f16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests_name("math", tests, NULL, NULL);
}
