#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "real_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

static const struct real_model *model;
static struct vocabulary real;

/* FC-58, FC-59 */
static void ids_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    char file[128];
    snprintf(file, sizeof file, "tokenizer/%s.jsonl", model->name);
    assert_int_equal(cases_encode(real.tokenizer, file), model->n_encode);
}

static void bytes_are_those_of_the_outside_reference_and_streams_equal_the_whole(void **state)
{
    (void)state;
    char file[128];
    snprintf(file, sizeof file, "tokenizer/%s.detok.jsonl", model->name);
    assert_int_equal(cases_decode(real.tokenizer, file), model->n_decode);
}

static void decoding_what_was_encoded_gives_ten_thousand_random_texts_back(void **state)
{
    (void)state;
    cases_round_trip(real.tokenizer, 10000);
}

static double seconds_for(const char *unit, size_t len)
{
    char *text = malloc(len);
    uint32_t *ids = malloc(len * sizeof *ids);
    size_t n;
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % strlen(unit)];
    double start = cpu_seconds();
    assert_int_equal(tokenizer_encode(real.tokenizer, text, len, 0, INT64_MAX, ids, len, &n, NULL), STATUS_OK);
    double seconds = cpu_seconds() - start;
    free(text);
    free(ids);
    return seconds;
}

static double best_of_three(const char *unit, size_t len)
{
    double best = seconds_for(unit, len);
    for (int i = 0; i < 2; i++)
        best = fmin(best, seconds_for(unit, len));
    return best;
}

/* FC-61. Both lengths in turns, so that a busy machine hits both; the best of each. */
static void a_megabyte_of_one_letter_takes_under_two_seconds_and_in_proportion(void **state)
{
    (void)state;
    double half = INFINITY, whole = INFINITY, spaces = best_of_three(" ", 1000000);
    for (int i = 0; i < 4; i++) {
        half = fmin(half, seconds_for("a", 500000));
        whole = fmin(whole, seconds_for("a", 1000000));
    }
    print_message("0.5 MB of a: %.3f s, 1 MB: %.3f s, 1 MB of spaces: %.3f s, 1 MB of words: %.3f s\n", half, whole, spaces,
                  best_of_three("The server holds its state. ", 1000000));
    assert_true(whole < 2 * SLOWER);
    assert_true(spaces < 2 * SLOWER);
    assert_true(whole <= 2.5 * half);
}

static void what_is_special_about_this_model_holds(void **state)
{
    (void)state;
    model->more(real.tokenizer);
}

int real_cases_run(const struct real_model *m)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_outside_reference),
        cmocka_unit_test(bytes_are_those_of_the_outside_reference_and_streams_equal_the_whole),
        cmocka_unit_test(decoding_what_was_encoded_gives_ten_thousand_random_texts_back),
        cmocka_unit_test(a_megabyte_of_one_letter_takes_under_two_seconds_and_in_proportion),
        cmocka_unit_test(what_is_special_about_this_model_holds),
    };
    model = m;
    real = vocabulary_open(real_model_path_of(m->variable));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vocabulary_close(&real);
    return failed;
}
