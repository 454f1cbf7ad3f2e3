#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "vectors.h"

static struct vocabulary smollm2;

/* FC-58, FC-59 */
static void ids_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    assert_int_equal(cases_encode(smollm2.tokenizer, "tokenizer/smollm2.jsonl"), 2013);
}

static void bytes_are_those_of_the_outside_reference_and_streams_equal_the_whole(void **state)
{
    (void)state;
    assert_int_equal(cases_decode(smollm2.tokenizer, "tokenizer/smollm2.detok.jsonl"), 610);
}

static void decoding_what_was_encoded_gives_ten_thousand_random_texts_back(void **state)
{
    (void)state;
    cases_round_trip(smollm2.tokenizer, 10000);
}

static double seconds_for(const char *unit, size_t len)
{
    char *text = malloc(len);
    uint32_t *ids = malloc(len * sizeof *ids);
    size_t n;
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % strlen(unit)];
    double start = cpu_seconds();
    assert_int_equal(tokenizer_encode(smollm2.tokenizer, text, len, 0, INT64_MAX, ids, len, &n, NULL), STATUS_OK);
    double seconds = cpu_seconds() - start;
    free(text);
    free(ids);
    return seconds;
}

static double best_of_three(const char *unit, size_t len)
{
    double best = seconds_for(unit, len);
    for (int i = 0; i < 2; i++) {
        double again = seconds_for(unit, len);
        best = again < best ? again : best;
    }
    return best;
}

/* FC-61 */
static void a_megabyte_of_one_letter_takes_under_two_seconds_and_in_proportion(void **state)
{
    (void)state;
    double half = best_of_three("a", 500000), whole = best_of_three("a", 1000000), spaces = best_of_three(" ", 1000000);
    print_message("0.5 MB of a: %.3f s, 1 MB: %.3f s, 1 MB of spaces: %.3f s, 1 MB of words: %.3f s\n", half, whole, spaces,
                  best_of_three("The server holds its state. ", 1000000));
    assert_true(whole < 2 * SLOWER);
    assert_true(spaces < 2 * SLOWER);
    assert_true(whole <= 2.5 * half);
}

static void bos_is_not_added_where_the_model_does_not_want_it(void **state)
{
    (void)state;
    size_t n;
    uint32_t *ids = encode(smollm2.tokenizer, "a", 1, TOKENIZE_ADD_SPECIAL, &n);
    assert_int_equal(n, 1);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_outside_reference),
        cmocka_unit_test(bytes_are_those_of_the_outside_reference_and_streams_equal_the_whole),
        cmocka_unit_test(decoding_what_was_encoded_gives_ten_thousand_random_texts_back),
        cmocka_unit_test(a_megabyte_of_one_letter_takes_under_two_seconds_and_in_proportion),
        cmocka_unit_test(bos_is_not_added_where_the_model_does_not_want_it),
    };
    smollm2 = vocabulary_open(real_model_path());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vocabulary_close(&smollm2);
    return failed;
}
