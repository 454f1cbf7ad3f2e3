/* What sluice bench asks, and when: lengths, arrivals, prompts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/bench_plan.h"

static struct length length(const char *text)
{
    struct length l = {0};
    struct error err = {0};
    if (length_parse("x", text, &l, &err) != STATUS_OK)
        fail_msg("%s: %s", text, err.message);
    return l;
}

static void lengths_are_read_and_wrong_ones_refused(void **state)
{
    (void)state;
    const char *wrong[] = {"", "0", "-5", "5-", "5-4", "a", "7x", "lognormal:", "lognormal:5", "lognormal:5-2", "1-99999999999", "3-4-5"};
    struct length l = length("128");
    assert_true(l.kind == LENGTH_FIXED && l.min == 128 && l.max == 128);
    l = length("10-20");
    assert_true(l.kind == LENGTH_UNIFORM && l.min == 10 && l.max == 20);
    l = length("lognormal:10-1000");
    assert_true(l.kind == LENGTH_LOGNORMAL && l.min == 10 && l.max == 1000);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct error err = {0};
        assert_int_equal(length_parse("prompt-tokens", wrong[i], &l, &err), STATUS_CONFIG);
        assert_non_null(strstr(err.message, "--prompt-tokens"));
    }
}

static void uniform_lengths_fill_their_range_evenly(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct length l = length("10-19");
    uint32_t count[10] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint32_t n = length_draw(&l, 5, i);
        assert_in_range(n, 10, 19);
        count[n - 10]++;
    }
    for (int i = 0; i < 10; i++)
        assert_in_range(count[i], 9500, 10500);
}

static void lognormal_lengths_have_their_median_and_spread(void **state)
{
    (void)state;
    enum { N = 100000 };
    struct length l = length("lognormal:100-10000"); /* median 1000, deviation ln(100)/4 = 1.151 */
    double sum = 0, squares = 0;
    uint32_t below = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint32_t n = length_draw(&l, 6, i);
        assert_in_range(n, 100, 10000);
        below += n < 1000;
        sum += log(n);
        squares += log(n) * log(n);
    }
    double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
    assert_in_range(below, N * 49 / 100, N * 51 / 100);
    assert_float_equal(mean, log(1000), 0.02);
    assert_float_equal(deviation, 1.10, 0.03); /* a little less than 1.151: both tails are cut */
}

static void arrivals_are_a_poisson_process(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0, squares = 0;
    uint32_t within_mean = 0;
    for (uint64_t i = 0; i < N; i++) {
        double gap = plan_arrival_gap_s(20, 9, i);
        assert_true(gap > 0 && gap < 10);
        sum += gap;
        squares += gap * gap;
        within_mean += gap < 1.0 / 20;
    }
    double mean = sum / N;
    assert_float_equal(mean, 0.05, 0.001);
    assert_float_equal(sqrt(squares / N - mean * mean), 0.05, 0.001);      /* an exponential's deviation is its mean */
    assert_in_range(within_mean, N * 626 / 1000, N * 638 / 1000);         /* 1 - 1/e */
}

static void a_seed_repeats_and_another_differs(void **state)
{
    (void)state;
    struct length l = length("1-1000000");
    int same_arrivals = 0, same_lengths = 0;
    for (uint64_t i = 0; i < 100; i++) {
        assert_float_equal(plan_arrival_gap_s(3, 1, i), plan_arrival_gap_s(3, 1, i), 0);
        same_arrivals += plan_arrival_gap_s(3, 1, i) == plan_arrival_gap_s(3, 2, i);
        same_lengths += length_draw(&l, 1, i) == length_draw(&l, 2, i);
    }
    assert_int_equal(same_arrivals, 0);
    assert_in_range(same_lengths, 0, 1);
}

/* --- bodies --- */

static struct plan plan(struct plan_options o)
{
    struct plan p;
    struct error err = {0};
    if (plan_init(&p, &o, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return p;
}

static json_t *body(const struct plan *p, uint64_t index, uint32_t n_prompt, uint32_t n_answer)
{
    size_t len;
    char *text = plan_body(p, index, n_prompt, n_answer, 0, &len);
    assert_non_null(text);
    assert_int_equal(strlen(text), len);
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(v));
    free(text);
    return v;
}

static uint32_t count_words(const char *text)
{
    uint32_t n = 1;
    for (; *text; text++)
        n += *text == ' ';
    return n;
}

static void a_body_asks_for_a_stream_of_that_length(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.model = "a \"model\"", .extra_json = "{\"priority\": \"batch\"}", .seed = 3});
    json_t *v = body(&p, 0, 37, 11);
    assert_string_equal(json_string_value(json_object_get(v, "model")), "a \"model\"");
    assert_string_equal(json_string_value(json_object_get(v, "priority")), "batch");
    assert_int_equal(json_integer_value(json_object_get(v, "max_tokens")), 11);
    assert_true(json_is_true(json_object_get(v, "stream")) && json_is_true(json_object_get(v, "ignore_eos")));
    assert_true(json_is_true(json_object_get(json_object_get(v, "stream_options"), "include_usage")));
    assert_int_equal(count_words(json_string_value(json_object_get(v, "prompt"))), 37);
    json_decref(v);
    plan_fini(&p);
}

static void a_chat_body_has_one_message(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.is_chat = 1, .seed = 3});
    json_t *v = body(&p, 0, 12, 5), *m = json_array_get(json_object_get(v, "messages"), 0);
    assert_string_equal(plan_path(&p), "/v1/chat/completions");
    assert_string_equal(json_string_value(json_object_get(m, "role")), "user");
    assert_int_equal(count_words(json_string_value(json_object_get(m, "content"))), 12);
    json_decref(v);
    plan_fini(&p);
}

static uint32_t common_ids(const json_t *a, const json_t *b)
{
    uint32_t n = 0;
    while (n < json_array_size(a) && n < json_array_size(b) && json_equal(json_array_get(a, n), json_array_get(b, n)))
        n++;
    return n;
}

static void prompts_share_what_was_asked_for_and_no_more(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.has_ids = 1, .first_id = 100, .last_id = 60000, .shared_prefix = 64, .seed = 8});
    json_t *a = body(&p, 0, 200, 1), *b = body(&p, 1, 300, 1), *again = body(&p, 0, 200, 1), *short_one = body(&p, 2, 10, 1);
    const json_t *ia = json_object_get(a, "prompt"), *ib = json_object_get(b, "prompt"), *is = json_object_get(short_one, "prompt");
    assert_int_equal(json_array_size(ia), 200);
    assert_int_equal(json_array_size(ib), 300);
    assert_int_equal(json_array_size(is), 10);
    assert_in_range(common_ids(ia, ib), 64, 65);
    assert_int_equal(common_ids(ia, is), 10);
    assert_true(json_equal(a, again));
    for (size_t i = 0; i < json_array_size(ib); i++)
        assert_in_range(json_integer_value(json_array_get(ib, i)), 100, 60000);
    json_decref(a);
    json_decref(b);
    json_decref(again);
    json_decref(short_one);
    plan_fini(&p);
}

static void prompts_of_words_differ_from_the_first_ones_on(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.seed = 8});
    char seen[200][24];
    int same = 0;
    for (int i = 0; i < 200; i++) {
        json_t *v = body(&p, (uint64_t)i, 8, 1);
        snprintf(seen[i], sizeof seen[i], "%s", json_string_value(json_object_get(v, "prompt")));
        for (int k = 0; k < i; k++)
            same += strcmp(seen[i], seen[k]) == 0;
        json_decref(v);
    }
    assert_in_range(same, 0, 2); /* 23 characters: about four words of 250 */
    plan_fini(&p);
}

static void a_body_asks_for_token_ids_when_it_is_told_to(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.shared_prefix = 5, .seed = 8});
    size_t len;
    char *text = plan_body(&p, 0, 10, 1, PLAN_TOKEN_IDS, &len), *own = plan_body(&p, 0, 10, 1, PLAN_OWN_PREFIX, &len);
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *w = json_loads(own, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_true(json_object_get(v, "return_token_ids")));
    assert_null(json_object_get(w, "return_token_ids"));
    assert_string_not_equal(json_string_value(json_object_get(v, "prompt")), json_string_value(json_object_get(w, "prompt")));
    json_decref(v);
    json_decref(w);
    free(text);
    free(own);
    plan_fini(&p);
}

static void lengths_follow_the_servers_own_count(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.is_chat = 1, .seed = 8});
    plan_calibrate(&p, 16, 16 * 6 + 30, 144, 144 * 6 + 30); /* six tokens a word, thirty around */
    json_t *v = body(&p, 0, 630, 1), *m = json_array_get(json_object_get(v, "messages"), 0);
    assert_int_equal(count_words(json_string_value(json_object_get(m, "content"))), 100);
    json_decref(v);
    v = body(&p, 0, 5, 1); /* shorter than the template: one word is the least */
    assert_int_equal(count_words(json_string_value(json_object_get(json_array_get(json_object_get(v, "messages"), 0), "content"))), 1);
    json_decref(v);
    plan_fini(&p);
}

static void a_server_that_does_not_count_changes_nothing(void **state)
{
    (void)state;
    struct plan p = plan((struct plan_options){.seed = 8});
    plan_calibrate(&p, 16, 0, 144, 0);
    assert_float_equal(p.tokens_per_word, 1, 0);
    plan_calibrate(&p, 16, INT64_MAX, 144, INT64_MIN); /* their difference is no int64_t */
    plan_calibrate(&p, 16, INT64_MIN, 144, INT64_MAX);
    assert_float_equal(p.tokens_per_word, 1, 0);
    assert_float_equal(p.tokens_around, 0, 0);
    plan_fini(&p);
}

static void more_fields_must_be_an_object(void **state)
{
    (void)state;
    const char *wrong[] = {"", "[1]", "{", "3", "{\"a\": 1} x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct plan p;
        struct error err = {0};
        struct plan_options o = {.extra_json = wrong[i]};
        assert_int_equal(plan_init(&p, &o, &err), STATUS_CONFIG);
        assert_non_null(strstr(err.message, "--body"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_read_and_wrong_ones_refused),
        cmocka_unit_test(uniform_lengths_fill_their_range_evenly),
        cmocka_unit_test(lognormal_lengths_have_their_median_and_spread),
        cmocka_unit_test(arrivals_are_a_poisson_process),
        cmocka_unit_test(a_seed_repeats_and_another_differs),
        cmocka_unit_test(a_body_asks_for_a_stream_of_that_length),
        cmocka_unit_test(a_chat_body_has_one_message),
        cmocka_unit_test(prompts_share_what_was_asked_for_and_no_more),
        cmocka_unit_test(prompts_of_words_differ_from_the_first_ones_on),
        cmocka_unit_test(a_body_asks_for_token_ids_when_it_is_told_to),
        cmocka_unit_test(lengths_follow_the_servers_own_count),
        cmocka_unit_test(a_server_that_does_not_count_changes_nothing),
        cmocka_unit_test(more_fields_must_be_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
