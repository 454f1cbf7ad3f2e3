#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "cases.h"
#include "vectors.h"

static void vectors_agree(const char *model, const char *name, int n_encode, int n_decode)
{
    char file[128];
    struct vocabulary v = vocabulary_open_tiny(model);
    snprintf(file, sizeof file, "tokenizer/%s.jsonl", name);
    assert_int_equal(cases_encode(v.tokenizer, file), n_encode);
    snprintf(file, sizeof file, "tokenizer/%s.detok.jsonl", name);
    assert_int_equal(cases_decode(v.tokenizer, file), n_decode);
    vocabulary_close(&v);
}

static void gpt2_ids_and_bytes_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    vectors_agree("llama-f32", "tiny-gpt-2", 275, 289);
}

static void smollm_ids_and_bytes_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    vectors_agree("llama-tied-f32", "tiny-smollm", 275, 289);
}

static void qwen2_ids_and_bytes_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    vectors_agree("qwen2-f32", "tiny-qwen2", 275, 289);
}

static void sentencepiece_ids_and_bytes_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    vectors_agree("gemma3-f32", "tiny-spm", 370, 463);
}

/* FC-59 */
static void decoding_what_was_encoded_gives_ten_thousand_random_texts_back(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-f32", "gemma3-f32"};
    for (size_t m = 0; m < 2; m++) {
        struct vocabulary v = vocabulary_open_tiny(models[m]);
        cases_round_trip(v.tokenizer, 10000);
        vocabulary_close(&v);
    }
}

static void blanks_survive_at_every_place(void **state)
{
    (void)state;
    static const char *const texts[] = {" lead", "  lead", "trail ", "trail  ", "a\tb", "\t\ta", "a\r\nb", "\r\n", " ", "   ",
                                        "a \n b", "\n\n\n", "a  b   c", "1 2  3", "x\t\r\n y"};
    static const char *const models[] = {"llama-f32", "llama-tied-f32", "qwen2-f32", "gemma3-f32"};
    for (size_t m = 0; m < 4; m++) {
        struct vocabulary v = vocabulary_open_tiny(models[m]);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            size_t n, len;
            uint32_t *ids = encode(v.tokenizer, texts[i], strlen(texts[i]), 0, &n);
            char *back = decode(v.tokenizer, ids, n, 0, &len);
            assert_string_equal(back, texts[i]);
            free(ids);
            free(back);
        }
        vocabulary_close(&v);
    }
}

static void bad_utf8_is_refused_with_its_byte_offset(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len, offset;
    } bad[] = {{"\xff", 1, 0},
               {"abc\x80", 4, 3},
               {"ab\xc3", 3, 2},
               {"\xc0\xaf", 2, 0},
               {"\xed\xa0\x80", 3, 0},
               {"\xf4\x90\x80\x80", 4, 0},
               {"0123456789\xe2\x82z", 13, 10}};
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t ids[32];
        size_t n = 99;
        char want[32];
        struct error err;
        assert_int_equal(tokenizer_encode(v.tokenizer, bad[i].text, bad[i].len, 0, INT64_MAX, ids, 32, &n, &err),
                         STATUS_BAD_REQUEST);
        snprintf(want, sizeof want, "at byte %zu", bad[i].offset);
        assert_non_null(strstr(err.message, want));
        assert_string_equal(err.code, "invalid_utf8");
        assert_string_not_equal(err.param, "");
        assert_int_equal(n, 99);
    }
    vocabulary_close(&v);
}

static void bad_utf8_far_into_a_long_text_is_found_at_its_offset(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    size_t len = 300000, n;
    char *text = malloc(len);
    uint32_t *ids = malloc(len * sizeof *ids);
    struct error err;
    for (size_t i = 0; i < len; i++)
        text[i] = "\xe2\x82\xac"[i % 3];
    text[299998] = 'x';
    assert_int_equal(tokenizer_encode(v.tokenizer, text, len, 0, INT64_MAX, ids, len, &n, &err), STATUS_BAD_REQUEST);
    assert_non_null(strstr(err.message, "at byte 299997"));
    free(text);
    free(ids);
    vocabulary_close(&v);
}

static int has_control(const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tokenizer_is_control(t, ids[i]))
            return 1;
    return 0;
}

/* FC-60 */
static void control_tokens_come_only_with_parse_special_and_never_behind_a_mark(void **state)
{
    (void)state;
    static const char plain[] = "a<|im_end|>\n<|im_start|>system";
    static const char marked[] = "a" TOKENIZER_MARK "<|im_end|>\n" TOKENIZER_MARK "<|im_start|>system";
    static const char half[] = "a" TOKENIZER_MARK "<|im_end|>\n<|im_start|>system";
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    size_t n_plain, n_marked, n_half, n;
    uint32_t *a = encode(v.tokenizer, plain, strlen(plain), 0, &n_plain);
    uint32_t *b = encode(v.tokenizer, marked, strlen(marked), TOKENIZE_PARSE_SPECIAL, &n_marked);
    uint32_t *c = encode(v.tokenizer, half, strlen(half), TOKENIZE_PARSE_SPECIAL, &n_half);
    uint32_t *d = encode(v.tokenizer, plain, strlen(plain), TOKENIZE_PARSE_SPECIAL, &n);
    assert_false(has_control(v.tokenizer, a, n_plain));
    assert_int_equal(n_plain, n_marked);
    assert_memory_equal(a, b, n_plain * sizeof *a);
    assert_true(has_control(v.tokenizer, c, n_half));
    assert_true(n < n_half);
    size_t len;
    char *back = decode(v.tokenizer, b, n_marked, 0, &len);
    assert_string_equal(back, plain);
    free(back), free(a), free(b), free(c), free(d);
    vocabulary_close(&v);
}

static void marks_without_a_name_behind_them_change_nothing(void **state)
{
    (void)state;
    static const char plain[] = "The server holds its state", marked[] = "The" TOKENIZER_MARK " ser" TOKENIZER_MARK
                                                                         TOKENIZER_MARK "ver holds its state" TOKENIZER_MARK;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    size_t n, m;
    uint32_t *a = encode(v.tokenizer, plain, strlen(plain), 0, &n);
    uint32_t *b = encode(v.tokenizer, marked, strlen(marked), TOKENIZE_PARSE_SPECIAL, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof *a);
    uint32_t *c = encode(v.tokenizer, TOKENIZER_MARK, 4, 0, &m);
    assert_int_equal(m, 0);
    free(a), free(b), free(c);
    vocabulary_close(&v);
}

static void more_ids_than_allowed_is_a_bad_request_that_names_the_limit(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    uint32_t ids[4];
    size_t n;
    struct error err;
    assert_int_equal(tokenizer_encode(v.tokenizer, "xyxyx", 5, 0, INT64_MAX, ids, 4, &n, &err), STATUS_BAD_REQUEST);
    assert_non_null(strstr(err.message, "4 tokens"));
    assert_int_equal(tokenizer_encode(v.tokenizer, "xyxy", 4, 0, INT64_MAX, ids, 4, &n, &err), STATUS_OK);
    assert_int_equal(n, 4);
    assert_int_equal(tokenizer_encode(v.tokenizer, "", 0, 0, INT64_MAX, ids, 0, &n, &err), STATUS_OK);
    assert_int_equal(n, 0);
    vocabulary_close(&v);
}

static double seconds_for(const struct tokenizer *t, const char *unit, size_t len, enum status want)
{
    char *text = malloc(len);
    uint32_t *ids = malloc(len * sizeof *ids);
    size_t n, unit_len = strlen(unit);
    struct error err = {0};
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % unit_len];
    double start = cpu_seconds();
    enum status s = tokenizer_encode(t, text, len - len % unit_len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, len, &n, &err);
    double seconds = cpu_seconds() - start;
    if (s != want)
        fail_msg("%s... gives %d: %s", unit, s, err.message);
    free(text);
    free(ids);
    return seconds;
}

/* FC-61 at a fraction of its size; the real model's test has all of it. */
static void long_runs_of_one_kind_take_time_in_proportion(void **state)
{
    (void)state;
    static const char *const runs[] = {"a", " ", "\n", " \n", "1", "!", "\t", "\xc3\xa9", "\xf0\x9f\x98\x80", "'", "'s", "<",
                                       "<|im_", "\xe2\x80\x8d"};
    static const char *const models[] = {"llama-f32", "llama-tied-f32", "qwen2-f32", "gemma3-f32"};
    for (size_t m = 0; m < 4; m++) {
        struct vocabulary v = vocabulary_open_tiny(models[m]);
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            double half = seconds_for(v.tokenizer, runs[i], 48 << 10, STATUS_OK);
            double whole = seconds_for(v.tokenizer, runs[i], 96 << 10, STATUS_OK);
            if (whole > 2.5 * half + 0.02 * SLOWER)
                fail_msg("%s, run of \"%s\": %.3f s, then %.3f s", models[m], runs[i], half, whole);
        }
        vocabulary_close(&v);
    }
}

static void a_word_over_the_bound_is_refused_and_one_below_is_not(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    seconds_for(v.tokenizer, "a", (2 << 20) + 1, STATUS_BAD_REQUEST);
    seconds_for(v.tokenizer, "a", 8 << 20, STATUS_BAD_REQUEST);
    seconds_for(v.tokenizer, "a b ", 3 << 20, STATUS_OK);
    vocabulary_close(&v);
}

static void a_passed_deadline_ends_the_work_within_milliseconds(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    size_t len = 1 << 20, n;
    char *text = malloc(len);
    uint32_t *ids = malloc(len * sizeof *ids);
    memset(text, 'a', len);
    for (int spaced = 0; spaced < 2; spaced++) {
        for (size_t i = 0; spaced && i < len; i += 5)
            text[i] = ' ';
        struct error err;
        double start = cpu_seconds();
        assert_int_equal(tokenizer_encode(v.tokenizer, text, len, 0, clock_now_ns() + 2 * NS_PER_MS, ids, len, &n, &err),
                         STATUS_TIMEOUT);
        assert_true(cpu_seconds() - start < 0.05 * SLOWER);
    }
    free(text);
    free(ids);
    vocabulary_close(&v);
}

static void the_ends_of_answers_are_known_by_key_and_by_name(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    assert_int_equal(tokenizer_n_control(v.tokenizer), 3);
    int n_end = 0;
    for (uint32_t id = 0; id < tokenizer_n_vocab(v.tokenizer); id++)
        n_end += tokenizer_is_end(v.tokenizer, id);
    assert_int_equal(n_end, 2); /* <|endoftext|> and <|im_end|> */
    assert_true(tokenizer_is_end(v.tokenizer, (uint32_t)tokenizer_eos(v.tokenizer)));
    assert_false(tokenizer_is_end(v.tokenizer, 1));
    assert_false(tokenizer_is_end(v.tokenizer, UINT32_MAX));
    assert_int_equal(tokenizer_piece(v.tokenizer, 1, 0).len, 0);
    assert_int_equal(tokenizer_piece(v.tokenizer, 1, 1).len, strlen("<|im_start|>"));
    vocabulary_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_ids_and_bytes_are_those_of_the_outside_reference),
        cmocka_unit_test(smollm_ids_and_bytes_are_those_of_the_outside_reference),
        cmocka_unit_test(qwen2_ids_and_bytes_are_those_of_the_outside_reference),
        cmocka_unit_test(sentencepiece_ids_and_bytes_are_those_of_the_outside_reference),
        cmocka_unit_test(decoding_what_was_encoded_gives_ten_thousand_random_texts_back),
        cmocka_unit_test(blanks_survive_at_every_place),
        cmocka_unit_test(bad_utf8_is_refused_with_its_byte_offset),
        cmocka_unit_test(bad_utf8_far_into_a_long_text_is_found_at_its_offset),
        cmocka_unit_test(control_tokens_come_only_with_parse_special_and_never_behind_a_mark),
        cmocka_unit_test(marks_without_a_name_behind_them_change_nothing),
        cmocka_unit_test(more_ids_than_allowed_is_a_bad_request_that_names_the_limit),
        cmocka_unit_test(long_runs_of_one_kind_take_time_in_proportion),
        cmocka_unit_test(a_word_over_the_bound_is_refused_and_one_below_is_not),
        cmocka_unit_test(a_passed_deadline_ends_the_work_within_milliseconds),
        cmocka_unit_test(the_ends_of_answers_are_known_by_key_and_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
