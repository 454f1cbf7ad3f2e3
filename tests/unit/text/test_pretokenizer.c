#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/text/pretokenizer.h"
#include "vectors.h"

static enum status join(void *context, const char *word, size_t len)
{
    buf_append(context, word, len);
    return buf_text(context, "|");
}

static void words_are(const char *pre, const char *text, const char *want)
{
    struct pretokenizer *p;
    struct pretokenizer_scratch *s = pretokenizer_scratch_create();
    struct work work = {.deadline_ns = INT64_MAX, .left = WORK_UNITS};
    struct buf out;
    buf_init(&out, 1 << 16);
    buf_text(&out, "");
    assert_int_equal(pretokenizer_create((struct text){pre, strlen(pre)}, &p, NULL), STATUS_OK);
    assert_int_equal(pretokenizer_split(p, s, text, strlen(text), &work, join, &out), STATUS_OK);
    assert_string_equal(out.data, want);
    buf_fini(&out);
    pretokenizer_scratch_destroy(s);
    pretokenizer_destroy(p);
}

static void gpt2_splits_words_numbers_and_signs(void **state)
{
    (void)state;
    words_are("gpt-2", "Hello, world's 1234  end ", "Hello|,| world|'s| 1234| | end| |");
    words_are("gpt-2", "don'T we'll", "don|'|T| we|'ll|");
    words_are("gpt-2", "a\n\n b\t", "a|\n\n| b|\t|");
    words_are("gpt-2", "\xe1\xa0\x8e\xe2\x81\xa0", "\xe1\xa0\x8e\xe2\x81\xa0|"); /* U+180E is no white space */
    words_are("gpt-2", "a\xc2\xa0\xe3\x80\x80" "b", "a|\xc2\xa0|\xe3\x80\x80|b|");
}

static void smollm_splits_every_digit_first(void **state)
{
    (void)state;
    words_are("smollm", "Hello, world's 1234  end ", "Hello|,| world|'s| |1|2|3|4| | end| |");
    words_are("smollm", "x  7", "x|  |7|"); /* the digit ends the piece: both spaces stay together */
    words_are("smollm", "\xc2\xb2\xe2\x85\xa7", "\xc2\xb2|\xe2\x85\xa7|");
}

static void qwen2_splits_single_digits_and_keeps_line_ends_with_signs(void **state)
{
    (void)state;
    words_are("qwen2", "Hello, world'S 1234\n\n x!\r\n", "Hello|,| world|'S| |1|2|3|4|\n\n| x|!\r\n|");
    words_are("qwen2", "(word) \n \n x", "(word|)| \n \n| x|");
    words_are("qwen2", "\tint", "\tint|");
}

static void llama_bpe_takes_digits_by_three(void **state)
{
    (void)state;
    words_are("llama-bpe", "in 12345678 days", "in| |123|456|78| days|");
    words_are("llama-bpe", "we'LL\n  see", "we|'LL|\n| | see|");
}

static void default_cuts_signs_out_first_and_numbers_by_three(void **state)
{
    (void)state;
    words_are("default", "a, b=1234567$", "a|,| b|=|123|456|7|$|");
    words_are("default", "it's (so)  ok", "it|'|s| |(|so|)| | ok|");
}

static enum status note_length(void *context, const char *word, size_t len)
{
    (void)word;
    json_array_append_new(context, json_integer((json_int_t)len));
    return STATUS_OK;
}

/* Compiled once: patterns are long, and there are hundreds of texts. */
static const struct pretokenizer *pretokenizer_of(const char *name)
{
    static struct {
        char name[32];
        struct pretokenizer *p;
    } known[16];
    size_t i = 0;
    while (i < ARRAY_LEN(known) && known[i].p && strcmp(known[i].name, name) != 0)
        i++;
    assert_true(i < ARRAY_LEN(known));
    if (!known[i].p) {
        snprintf(known[i].name, sizeof known[i].name, "%s", name);
        assert_int_equal(pretokenizer_create((struct text){name, strlen(name)}, &known[i].p, NULL), STATUS_OK);
    }
    return known[i].p;
}

static json_t *lengths_of_words(const char *pre, const char *text, size_t len)
{
    struct pretokenizer_scratch *s = pretokenizer_scratch_create();
    struct work work = {.deadline_ns = INT64_MAX, .left = WORK_UNITS};
    json_t *lengths = json_array();
    assert_int_equal(pretokenizer_split(pretokenizer_of(pre), s, text, len, &work, note_length, lengths), STATUS_OK);
    pretokenizer_scratch_destroy(s);
    return lengths;
}

static void split_case(json_t *line, void *context)
{
    json_t *text = json_object_get(line, "text"), *want;
    const char *pre;
    (void)context;
    json_object_foreach(json_object_get(line, "words"), pre, want) {
        json_t *got = lengths_of_words(pre, json_string_value(text), json_string_length(text));
        if (!json_equal(got, want)) {
            char *shown = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII), *a = json_dumps(got, JSON_COMPACT),
                 *b = json_dumps(want, JSON_COMPACT);
            fail_msg("%s cuts %s into %s, not %s", pre, shown, a, b);
        }
        json_decref(got);
    }
}

static void words_are_those_of_the_outside_reference(void **state)
{
    (void)state;
    assert_int_equal(vectors_each_line("tokenizer/splits.jsonl", split_case, NULL), 845);
}

static void names_of_the_same_patterns_cut_alike(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"llama3", "llama-bpe"}, {"glm4", "llama-bpe"}, {"deepseek-r1-qwen", "qwen2"},
                                           {"starcoder", "smollm"}, {"phi-2", "gpt-2"}};
    static const char text[] = "It'S 12345 \n\n  (Odd)\tcase x\u00e9 7";
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        json_t *a = lengths_of_words(pairs[i][0], text, strlen(text)), *b = lengths_of_words(pairs[i][1], text, strlen(text));
        assert_true(json_equal(a, b));
        json_decref(a);
        json_decref(b);
    }
}

static void the_habits_that_come_with_a_name_are_its_own(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int whole_words, adds_bos;
    } habits[] = {{"tekken", 1, 1}, {"llama-v3", 1, 1}, {"smaug-bpe", 0, 0}, {"chatglm-bpe", 0, 0}, {"glm4", 1, 0}, {"glm5", 1, 0},
                  {"deepseek-llm", 0, 0}, {"qwen2", 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(habits); i++) {
        struct pretokenizer *p;
        struct text name = {habits[i].name, strlen(habits[i].name)};
        assert_int_equal(pretokenizer_create(name, &p, NULL), STATUS_OK);
        assert_int_equal(pretokenizer_whole_words(p), habits[i].whole_words);
        assert_int_equal(pretokenizer_adds_bos(p), habits[i].adds_bos);
        pretokenizer_destroy(p);
    }
}

/* Searches of more than one window must cut where one window would. */
static void long_texts_split_as_short_ones_do(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "default", "tekken", "deepseek-coder", "deepseek-llm"};
    enum { LEN = 300000 };
    char *text = malloc(LEN + 1), *want = malloc(2 * LEN + 8);
    memset(text, 'a', LEN);
    text[LEN] = 0;
    text[70000] = '7';
    text[200000] = '.';
    size_t n = 0;
    for (size_t i = 0; i < LEN; i++) {
        if (i == 70000 || i == 70001 || i == 200000 || i == 200001)
            want[n++] = '|';
        want[n++] = text[i];
    }
    memcpy(want + n, "|", 2);
    for (size_t i = 0; i < ARRAY_LEN(pres); i++) {
        struct pretokenizer *p;
        struct pretokenizer_scratch *s = pretokenizer_scratch_create();
        struct work work = {.deadline_ns = INT64_MAX, .left = WORK_UNITS};
        struct buf out;
        buf_init(&out, 1 << 20);
        assert_int_equal(pretokenizer_create((struct text){pres[i], strlen(pres[i])}, &p, NULL), STATUS_OK);
        assert_int_equal(pretokenizer_split(p, s, text, LEN, &work, join, &out), STATUS_OK);
        if (i == 2 || i == 3 || i == 5) { /* qwen2, llama-bpe and tekken take the sign with the letters behind it */
            char *sign = strstr(want, "|.|");
            assert_non_null(sign);
            assert_int_equal(out.len, n);
            assert_memory_equal(out.data, want, (size_t)(sign - want) + 2);
        } else {
            assert_string_equal(out.data, want);
        }
        buf_fini(&out);
        pretokenizer_scratch_destroy(s);
        pretokenizer_destroy(p);
    }
    free(text);
    free(want);
}

static enum status ignore(void *context, const char *word, size_t len)
{
    (void)context;
    (void)word;
    (void)len;
    return STATUS_OK;
}

static double seconds_for(const char *pre, const char *unit, const char *tail, size_t len)
{
    struct pretokenizer_scratch *s = pretokenizer_scratch_create();
    struct work work = {.deadline_ns = INT64_MAX, .left = WORK_UNITS};
    size_t n_unit = strlen(unit), n_tail = strlen(tail), n = len / n_unit * n_unit;
    char *text = malloc(n + n_tail);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % n_unit];
    memcpy(text + n, tail, n_tail);
    const struct pretokenizer *p = pretokenizer_of(pre);
    double start = cpu_seconds();
    assert_int_equal(pretokenizer_split(p, s, text, n + n_tail, &work, ignore, NULL), STATUS_OK);
    double seconds = cpu_seconds() - start;
    free(text);
    pretokenizer_scratch_destroy(s);
    return seconds;
}

/* Runs that a pattern may begin to match and then not, read anew from each of their places in a pattern with a flaw: a
 * megabyte would take hours. */
static void no_run_takes_more_than_time_in_proportion(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "deepseek-llm", "deepseek-coder", "default"};
    static const struct {
        const char *unit, *tail;
    } runs[] = {{" ", "5"}, {" ", "\xe4\xbd\xa0"}, {"\t ", "\xe0\xb8\x81"}, {"\r", "x"}, {" \n", "x"}, {"A", "1"}, {"Aa", "!"},
                {"\xe4\xbd\xa0", "A"}, {"\xe4\xbd\xa0" "A", "1"}, {"\xcc\x81", "A"}, {"A\xcc\x81", "."}, {"'", "s"}, {"/", "\n"},
                {"1", "a"}, {"\xe3\x80\x80", "\xe0\xb8\x81"}};
    for (size_t i = 0; i < ARRAY_LEN(pres); i++)
        for (size_t k = 0; k < ARRAY_LEN(runs); k++) {
            double seconds = seconds_for(pres[i], runs[k].unit, runs[k].tail, 96 << 10);
            if (seconds > 0.1 * SLOWER)
                fail_msg("%s: 96 KiB of \"%s\" take %.2f s", pres[i], runs[k].unit, seconds);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_splits_words_numbers_and_signs),
        cmocka_unit_test(smollm_splits_every_digit_first),
        cmocka_unit_test(qwen2_splits_single_digits_and_keeps_line_ends_with_signs),
        cmocka_unit_test(llama_bpe_takes_digits_by_three),
        cmocka_unit_test(default_cuts_signs_out_first_and_numbers_by_three),
        cmocka_unit_test(words_are_those_of_the_outside_reference),
        cmocka_unit_test(names_of_the_same_patterns_cut_alike),
        cmocka_unit_test(the_habits_that_come_with_a_name_are_its_own),
        cmocka_unit_test(long_texts_split_as_short_ones_do),
        cmocka_unit_test(no_run_takes_more_than_time_in_proportion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
