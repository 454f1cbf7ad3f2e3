#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/check.h"
#include "common/text/pretokenizer.h"

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

/* Searches of more than one window must cut where one window would. */
static void long_texts_split_as_short_ones_do(void **state)
{
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "default"};
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
        if (i == 2 || i == 3) { /* qwen2 and llama-bpe take the sign with the letters behind it */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_splits_words_numbers_and_signs),
        cmocka_unit_test(smollm_splits_every_digit_first),
        cmocka_unit_test(qwen2_splits_single_digits_and_keeps_line_ends_with_signs),
        cmocka_unit_test(llama_bpe_takes_digits_by_three),
        cmocka_unit_test(default_cuts_signs_out_first_and_numbers_by_three),
        cmocka_unit_test(long_texts_split_as_short_ones_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
