/* Log probabilities in the shapes of the OpenAI API; tokens that are no whole text; what is kept of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "rpc/gateway/json_out.h"
#include "rpc/gateway/logprobs.h"

/* 0 "he", 1 " w\"", 2 the first three bytes of U+1F600 behind a space, 3 its last byte, 4 a control token, 5 "he" again. */
static const char text[] = "he w\" \xf0\x9f\x98\x80<|end|>he";
static const uint32_t lengths[] = {2, 3, 4, 1, 7, 2}, hidden[] = {4, 99};

static struct pieces *vocabulary(void)
{
    struct pieces *p = pieces_create((struct bytes){text, strlen(text)}, lengths, 6, hidden, 2);
    assert_non_null(p);
    return p;
}

static json_t *parsed(const struct buf *b)
{
    json_error_t e;
    json_t *v = json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, &e);
    if (!v)
        fail_msg("%s in %s", e.text, b->data);
    return v;
}

static void pieces_are_those_of_the_ids(void **state)
{
    struct pieces *p = vocabulary();
    (void)state;
    assert_memory_equal(pieces_get(p, 1).data, " w\"", 3);
    assert_int_equal(pieces_get(p, 4).len, 7);
    assert_int_equal(pieces_get(p, 6).len, 0);
    assert_int_equal(pieces_chars(p, 1), 3);
    assert_int_equal(pieces_chars(p, 2), 2); /* the space, and a character that is begun */
    assert_int_equal(pieces_chars(p, 3), 0);
    assert_int_equal(pieces_chars(p, 4), 0); /* it shows nothing */
    assert_null(pieces_create((struct bytes){text, 3}, lengths, 6, hidden, 0));
    assert_null(pieces_create((struct bytes){text, strlen(text)}, lengths, 5, hidden, 0));
    pieces_release(p);
    pieces_release(NULL);
}

static const struct token_logprobs some[] = {
    {.id = 0, .logprob = -0.25f, .n_top = 2, .top_ids = {0, 1}, .top_logprobs = {-0.25f, -1.5f}},
    {.id = 2, .logprob = -3, .n_top = 2, .top_ids = {3, 4}, .top_logprobs = {-1, -2}},
    {.id = 3, .logprob = -0.1f, .n_top = 2, .top_ids = {0, 5}, .top_logprobs = {-1, -__builtin_inff()}},
};

static void chat_names_each_token_with_its_bytes(void **state)
{
    struct pieces *p = vocabulary();
    struct buf kept, b;
    (void)state;
    buf_init(&kept, 1 << 16);
    buf_init(&b, 1 << 16);
    logprobs_keep(&kept, some, 1);
    logprobs_keep(&kept, some + 1, 2);
    logprobs_write_chat(&b, (struct bytes){kept.data, kept.len}, p);
    json_t *v = parsed(&b), *content = json_object_get(v, "content"), *second = json_array_get(content, 1);
    assert_true(json_is_null(json_object_get(v, "refusal")));
    assert_int_equal(json_array_size(content), 3);
    assert_string_equal(json_string_value(json_object_get(second, "token")), " \\xf0\\x9f\\x98");
    json_t *bytes = json_object_get(second, "bytes");
    assert_int_equal(json_array_size(bytes), 4);
    assert_int_equal(json_integer_value(json_array_get(bytes, 1)), 0xf0);
    assert_true(json_number_value(json_object_get(second, "logprob")) == -3.0);
    json_t *top = json_array_get(json_object_get(second, "top_logprobs"), 1);
    assert_string_equal(json_string_value(json_object_get(top, "token")), "<|end|>");
    assert_int_equal(json_object_size(top), 3);
    json_t *third = json_array_get(content, 2);
    assert_true((float)json_number_value(json_object_get(third, "logprob")) == -0.1f); /* to the bit */
    top = json_array_get(json_object_get(third, "top_logprobs"), 1);
    assert_true(json_number_value(json_object_get(top, "logprob")) == -9999.0); /* JSON has no infinity */
    json_decref(v);
    buf_fini(&kept);
    buf_fini(&b);
    pieces_release(p);
}

static const char *nth(json_t *v, const char *list, size_t i)
{
    return json_string_value(json_array_get(json_object_get(v, list), i));
}

static void completions_have_four_lists_of_one_length(void **state)
{
    struct pieces *p = vocabulary();
    struct buf kept, b;
    (void)state;
    buf_init(&kept, 1 << 16);
    buf_init(&b, 1 << 16);
    logprobs_keep(&kept, some, 3);
    logprobs_write_completion(&b, (struct bytes){kept.data, kept.len}, p, 10);
    json_t *v = parsed(&b);
    assert_string_equal(nth(v, "tokens", 0), "he");
    assert_string_equal(nth(v, "tokens", 1), "bytes:\\x20\\xf0\\x9f\\x98");
    assert_string_equal(nth(v, "tokens", 2), "bytes:\\x80");
    static const int offsets[] = {10, 12, 14};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "text_offset"), i)), offsets[i]);
    json_t *tops = json_object_get(v, "top_logprobs");
    assert_int_equal(json_object_size(json_array_get(tops, 0)), 2);
    assert_int_equal(json_object_size(json_array_get(tops, 1)), 3); /* the token itself is always there */
    assert_true(json_number_value(json_object_get(json_array_get(tops, 1), "bytes:\\x20\\xf0\\x9f\\x98")) == -3.0);
    assert_int_equal(json_object_size(json_array_get(tops, 2)), 2); /* two ids share a name */
    assert_true(json_number_value(json_object_get(json_array_get(tops, 2), "he")) == -1.0);
    json_decref(v);
    buf_clear(&b);
    logprobs_write_completion(&b, (struct bytes){"", 0}, p, 0);
    assert_string_equal(b.data, "{\"tokens\":[],\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]}");
    buf_fini(&kept);
    buf_fini(&b);
    pieces_release(p);
}

static void what_is_kept_is_checked(void **state)
{
    struct buf kept;
    (void)state;
    buf_init(&kept, 1 << 16);
    logprobs_keep(&kept, some, 3);
    for (size_t n = 0; n < kept.len; n++) /* a token with two alternatives has seven words */
        assert_int_equal(logprobs_are_sane((struct bytes){kept.data, n}), n % 28 == 0);
    assert_true(logprobs_are_sane((struct bytes){kept.data, kept.len}));
    memset(kept.data + 8, 0xff, 4); /* a number of alternatives beyond any */
    assert_false(logprobs_are_sane((struct bytes){kept.data, kept.len}));
    buf_fini(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_those_of_the_ids),
        cmocka_unit_test(chat_names_each_token_with_its_bytes),
        cmocka_unit_test(completions_have_four_lists_of_one_length),
        cmocka_unit_test(what_is_kept_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
