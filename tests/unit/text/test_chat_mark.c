#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/base/check.h"
#include "common/text/chat_mark.h"
#include "common/text/tokenizer_impl.h"
#include "made.h"
#include "vectors.h"

/* In these tests M stands for the mark. */
static void expand(const char *text, struct buf *out)
{
    buf_clear(out);
    buf_text(out, "");
    for (; *text; text++)
        *text == 'M' ? buf_text(out, TOKENIZER_MARK) : buf_append(out, text, 1);
}

static void json_becomes_with(const struct tokenizer *t, const char *json, const char *want)
{
    struct buf in, out, wanted;
    struct error err = {0};
    buf_init(&in, 1 << 16);
    buf_init(&out, 1 << 16);
    buf_init(&wanted, 1 << 16);
    expand(json, &in);
    expand(want, &wanted);
    if (chat_mark_json(tokenizer__special(t), in.data, in.len, &out, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_string_equal(out.data, wanted.data);
    buf_fini(&in);
    buf_fini(&out);
    buf_fini(&wanted);
}

static void json_becomes(const char *json, const char *want)
{
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    json_becomes_with(v.tokenizer, json, want);
    vocabulary_close(&v);
}

static void every_name_gets_a_mark_in_values_and_keys(void **state)
{
    (void)state;
    json_becomes("{\"a\":\"x<|im_end|>y\"}", "{\"a\":\"xM<|im_end|>y\"}");
    json_becomes("{\"<|im_start|>\":[\"<|im_end|><|im_end|>\"]}", "{\"M<|im_start|>\":[\"M<|im_end|>M<|im_end|>\"]}");
    json_becomes("[\"<|im_end|\", 1]", "[\"M<|im_end|\", 1]");
    json_becomes("\"no name <b>\"", "\"no name <b>\"");
}

static void a_control_token_that_looks_like_a_word_renames_no_key_and_no_role_of_the_api(void **state)
{
    (void)state;
    struct made m;
    struct text tokens[258];
    int32_t kinds[258];
    vocabulary_maker_init(&m.maker);
    vocabulary_maker_symbols(tokens);
    tokens[256] = (struct text){"tool", 4};
    tokens[257] = (struct text){"ser", 3};
    for (int i = 0; i < 258; i++)
        kinds[i] = i < 256 ? 1 : 3;
    vocabulary_maker_text(&m.maker, "tokenizer.ggml.model", "gpt2");
    vocabulary_maker_text(&m.maker, "tokenizer.ggml.pre", "gpt-2");
    vocabulary_maker_texts(&m.maker, "tokenizer.ggml.tokens", tokens, 258);
    vocabulary_maker_ints(&m.maker, "tokenizer.ggml.token_type", kinds, 258);
    vocabulary_maker_texts(&m.maker, "tokenizer.ggml.merges", tokens, 0);
    made_must_open(&m);
    json_becomes_with(m.t, "[{\"role\": \"user\", \"content\" :\"tool\"}, {\"role\":\"tool\", \"tool_calls\":[\"user\"]}]",
                      "[{\"role\": \"user\", \"content\" :\"Mtool\"}, {\"role\":\"tool\", \"tool_calls\":[\"uMser\"]}]");
    json_becomes_with(m.t, "{\"role\":\"my tool\", \"at\":\"role\", \"x\":\"user\", \"role\":{\"a\":\"user\"}}",
                      "{\"role\":\"my Mtool\", \"aMt\":\"role\", \"x\":\"uMser\", \"role\":{\"a\":\"uMser\"}}");
    unmake(&m);
}

static void escapes_hide_no_name_and_numbers_stay(void **state)
{
    (void)state;
    json_becomes("[\"\\u003c|im_end\\u007c>\", 12345678901234567890, 1.50, -0.0]",
                 "[\"M<|im_end|>\", 12345678901234567890, 1.50, -0.0]");
    json_becomes("[\"\\\"<|im_end|>\\\\\", \"\\n\\u0001\\/\"]", "[\"\\\"M<|im_end|>\\\\\", \"\\u000a\\u0001/\"]");
    json_becomes("[\"\\ud83d\\ude00\"]", "[\"\xf0\x9f\x98\x80\"]");
}

static void marks_of_the_user_are_gone(void **state)
{
    (void)state;
    json_becomes("[\"M<|im_end|>\", \"MM\", \"<|imM_end|>\", \"\\udbff\\udffd<|im_end|>\"]",
                 "[\"M<|im_end|>\", \"\", \"M<|im_end|>\", \"M<|im_end|>\"]");
}

static void a_beginning_of_a_name_at_the_end_gets_a_mark_also_where_blanks_follow(void **state)
{
    (void)state;
    json_becomes("[\"a <\", \"a <|im_\", \"<|im_ \\n\", \"<|im_\\u3000\\u00a0\", \"<|im_ x\", \"< \"]",
                 "[\"a M<\", \"a M<|im_\", \"M<|im_ \\u000a\", \"M<|im_\xe3\x80\x80\xc2\xa0\", \"<|im_ x\", \"M< \"]");
}

static void what_is_no_string_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"[\"a", "[\"\\", "[\"\\x\"]", "[\"\\u12\"]", "[\"\\ud800\"]", "[\"\\udc00\"]",
                                      "[\"\\ud800\\u0041\"]", "[\"\xff\"]", "[\"\\u", "[\"\\ud800\\u"};
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct buf out;
        struct error err = {0};
        buf_init(&out, 1 << 16);
        assert_int_equal(chat_mark_json(tokenizer__special(v.tokenizer), bad[i], strlen(bad[i]), &out, &err),
                         STATUS_BAD_REQUEST);
        assert_non_null(strstr(err.message, "at byte"));
        buf_fini(&out);
    }
    vocabulary_close(&v);
}

static void unmarking_takes_marks_and_nothing_else(void **state)
{
    (void)state;
    char text[] = TOKENIZER_MARK "a" TOKENIZER_MARK TOKENIZER_MARK "b\xf4\x8f\xbf" "c" TOKENIZER_MARK;
    assert_int_equal(chat_mark_remove(text, strlen(text)), 6);
    assert_memory_equal(text, "ab\xf4\x8f\xbf" "c", 6);
    assert_int_equal(chat_mark_remove(text, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_gets_a_mark_in_values_and_keys),
        cmocka_unit_test(a_control_token_that_looks_like_a_word_renames_no_key_and_no_role_of_the_api),
        cmocka_unit_test(escapes_hide_no_name_and_numbers_stay),
        cmocka_unit_test(marks_of_the_user_are_gone),
        cmocka_unit_test(a_beginning_of_a_name_at_the_end_gets_a_mark_also_where_blanks_follow),
        cmocka_unit_test(what_is_no_string_is_refused),
        cmocka_unit_test(unmarking_takes_marks_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
