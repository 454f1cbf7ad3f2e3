/* The arithmetic of sluice bench against figures worked out by hand or by numpy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/bench_stats.h"

static struct samples filled(const double *v, size_t n)
{
    struct samples s = {0};
    for (size_t i = 0; i < n; i++)
        samples_add(&s, v[i]);
    return s;
}

static void percentiles_are_those_of_numpy(void **state)
{
    (void)state;
    const double v[] = {15, 20, 35, 40, 50, 1, 7, 99, 3, 4};
    struct samples s = filled(v, 10);
    struct summary m = samples_summary(&s);
    /* numpy.percentile of the same: 50 -> 17.5, 90 -> 54.9, 99 -> 94.59 */
    assert_int_equal(m.n, 10);
    assert_float_equal(m.mean, 27.4, 1e-6);
    assert_float_equal(m.median, 17.5, 1e-6);
    assert_float_equal(m.p90, 54.9, 1e-5);
    assert_float_equal(m.p99, 94.59, 1e-4);
    assert_float_equal(m.min, 1, 0);
    assert_float_equal(m.max, 99, 0);
    samples_fini(&s);
}

static void one_sample_is_every_percentile_and_none_is_zero(void **state)
{
    (void)state;
    const double v[] = {12.5};
    struct samples one = filled(v, 1), none = {0};
    struct summary m = samples_summary(&one), z = samples_summary(&none);
    assert_float_equal(m.median, 12.5, 0);
    assert_float_equal(m.p99, 12.5, 0);
    assert_float_equal(m.mean, 12.5, 0);
    assert_int_equal(z.n, 0);
    assert_float_equal(z.p99 + z.mean + z.max, 0, 0);
    samples_fini(&one);
}

static void samples_of_many_requests_are_pooled(void **state)
{
    (void)state;
    struct samples all = {0};
    for (int i = 0; i < 100; i++) {
        struct samples part = {0};
        for (int k = 0; k < 100; k++)
            samples_add(&part, i * 100 + k);
        samples_add_all(&all, &part);
        samples_fini(&part);
    }
    struct summary m = samples_summary(&all);
    assert_int_equal(m.n, 10000);
    assert_float_equal(m.mean, 4999.5, 1e-6);
    assert_float_equal(m.median, 4999.5, 1e-6);
    assert_int_equal(all.n_lost, 0);
    samples_fini(&all);
}

static void objectives_are_read_and_wrong_ones_refused(void **state)
{
    (void)state;
    const char *wrong[] = {"", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:5,", "ttft:5,ttft:6", "speed:4", "ttft:5;itl:6", "itl:1x"};
    struct slo o = {0};
    struct error err = {0};
    assert_int_equal(slo_parse("ttft:500,itl:100.5", &o, &err), STATUS_OK);
    assert_float_equal(o.ttft_ms, 500, 0);
    assert_float_equal(o.itl_ms, 100.5, 0);
    assert_true(o.tpot_ms == 0 && o.e2e_ms == 0 && slo_any(&o));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct slo x = {.ttft_ms = 7};
        assert_int_equal(slo_parse(wrong[i], &x, &err), STATUS_CONFIG);
        assert_float_equal(x.ttft_ms, 7, 0);
        assert_true(err.message[0] != 0);
    }
}

static void goodput_needs_every_objective(void **state)
{
    (void)state;
    struct slo o, good = {.ttft_ms = 500, .itl_ms = 100, .tpot_ms = 900, .e2e_ms = 1e6}, slow_gap = good, slow_start = good, none = {0};
    struct error err;
    assert_int_equal(slo_parse("ttft:500,itl:100", &o, &err), STATUS_OK);
    slow_gap.itl_ms = 100.01;
    slow_start.ttft_ms = 501;
    assert_true(slo_met(&o, &good)); /* the bound itself is met, what was not asked for does not count */
    assert_false(slo_met(&o, &slow_gap));
    assert_false(slo_met(&o, &slow_start));
    assert_true(slo_met(&none, &slow_start));
    assert_false(slo_any(&none));
}

static struct marks steady(int64_t from_ms, int64_t step_ms, int n)
{
    struct marks m = {0};
    for (int i = 0; i < n; i++)
        marks_add(&m, (from_ms + i * step_ms) * NS_PER_MS, i == 0);
    return m;
}

static void tokens_of_a_window_are_counted_once(void **state)
{
    (void)state;
    struct marks m = steady(10, 10, 100); /* 10, 20, ... 1000 ms */
    assert_int_equal(marks_count(&m, 0, 500 * NS_PER_MS), 50);
    assert_int_equal(marks_count(&m, 500 * NS_PER_MS, 1000 * NS_PER_MS), 50); /* the one at 500 was in the window before */
    assert_int_equal(marks_count(&m, 2000 * NS_PER_MS, 3000 * NS_PER_MS), 0);
    marks_fini(&m);
}

static void a_gap_that_reaches_into_a_window_counts_whole(void **state)
{
    (void)state;
    const int64_t at_ms[] = {0, 100, 200, 1200, 1300};
    struct marks m = {0};
    struct samples within = {0}, across = {0}, later = {0};
    for (size_t i = 0; i < 5; i++)
        marks_add(&m, at_ms[i] * NS_PER_MS, i == 0);
    marks_gaps_within(&m, 0, 1000 * NS_PER_MS, &within);
    assert_int_equal(within.n, 2); /* 100, 100; that of 1000 ends outside */
    marks_gaps_across(&m, 500 * NS_PER_MS, 800 * NS_PER_MS, 0, &across);
    assert_int_equal(across.n, 1);
    assert_float_equal(across.v[0], 1000, 1e-3);
    marks_gaps_across(&m, 1200 * NS_PER_MS, 1250 * NS_PER_MS, 0, &later); /* touching is not sharing time */
    assert_int_equal(later.n, 1);
    assert_float_equal(later.v[0], 100, 1e-3);
    samples_fini(&within);
    samples_fini(&across);
    samples_fini(&later);
    marks_fini(&m);
}

static void a_stream_that_says_nothing_more_has_an_open_gap(void **state)
{
    (void)state;
    struct marks m = steady(0, 10, 11); /* the last at 100 */
    struct samples open = {0}, ended = {0};
    marks_gaps_across(&m, 200 * NS_PER_MS, 300 * NS_PER_MS, 900 * NS_PER_MS, &open);
    assert_int_equal(open.n, 1);
    assert_float_equal(open.v[0], 800, 1e-3);
    marks_gaps_across(&m, 200 * NS_PER_MS, 300 * NS_PER_MS, 0, &ended);
    assert_int_equal(ended.n, 0);
    samples_fini(&open);
    samples_fini(&ended);
    marks_fini(&m);
}

static void between_two_answers_there_is_no_gap(void **state)
{
    (void)state;
    struct marks m = steady(0, 10, 3);
    struct samples gaps = {0};
    marks_add(&m, 5000 * NS_PER_MS, 1);
    marks_add(&m, 5010 * NS_PER_MS, 0);
    marks_gaps_across(&m, 0, 6000 * NS_PER_MS, 0, &gaps);
    struct summary s = samples_summary(&gaps);
    assert_int_equal(s.n, 3);
    assert_float_equal(s.max, 10, 1e-3);
    samples_fini(&gaps);
    marks_fini(&m);
}

/* An example is cut to its place, perhaps within a character, and a server that speaks no HTTP says any bytes. */
static void a_failure_is_in_the_report_whatever_its_message(void **state)
{
    struct bench_options o = {.http = {.url = "http://x"}};
    struct plan p = {.o = {.model = "m\033[2J"}};
    struct load_result r = {.n_sent = 2};
    struct client_cost c = {0};
    char text[400];
    (void)state;
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    text[sizeof text - 2] = 0;
    failures_add(&r.failures, "event", text + 1);
    failures_add(&r.failures, "broken", "\xff\xc2\x9b\n");
    json_t *v = load_report_json(&o, &p, &r, &c), *all = json_object_get(v, "failures");
    const char *cut = json_string_value(json_object_get(json_object_get(all, "event"), "example"));
    assert_non_null(cut);
    assert_int_equal(strlen(cut), 199);
    assert_string_equal(json_string_value(json_object_get(json_object_get(all, "broken"), "example")), "????");
    json_decref(v);
    char *table = NULL;
    size_t len;
    FILE *f = open_memstream(&table, &len);
    load_report(f, &o, &p, &r, &c);
    fclose(f);
    assert_non_null(strstr(table, "m?[2J"));
    assert_null(strchr(table, 27));
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_those_of_numpy),
        cmocka_unit_test(one_sample_is_every_percentile_and_none_is_zero),
        cmocka_unit_test(samples_of_many_requests_are_pooled),
        cmocka_unit_test(objectives_are_read_and_wrong_ones_refused),
        cmocka_unit_test(goodput_needs_every_objective),
        cmocka_unit_test(tokens_of_a_window_are_counted_once),
        cmocka_unit_test(a_gap_that_reaches_into_a_window_counts_whole),
        cmocka_unit_test(a_stream_that_says_nothing_more_has_an_open_gap),
        cmocka_unit_test(between_two_answers_there_is_no_gap),
        cmocka_unit_test(a_failure_is_in_the_report_whatever_its_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
