#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "rpc/gateway/json_out.h"
#include "rpc/gateway/openai.h"
#include "rpc/gateway/status_json.h"

static const struct usage some_usage = {.prompt_tokens = 12, .cached_tokens = 8, .completion_tokens = 3, .queue_ms = 1.5,
                                        .prompt_ms = 20.25, .decode_ms = 30};

static struct answer_head head_of(enum endpoint endpoint)
{
    struct answer_head h = {.endpoint = endpoint, .id = "chatcmpl-1", .created_s = 1700000000, .model = "m \"q\""};
    return h;
}

static json_t *object(const char *text, size_t len)
{
    json_error_t e;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!v)
        fail_msg("%s in %.*s", e.text, (int)len, text);
    return v;
}

/* Event i of an SSE text, as JSON. */
static json_t *event(const struct buf *b, int i)
{
    const char *p = b->data;
    for (; i; i--)
        p = strstr(p, "\n\n") + 2;
    assert_memory_equal(p, "data: ", 6);
    return object(p + 6, (size_t)(strstr(p, "\n\n") - p) - 6);
}

static void answer(struct buf *b, const struct answer_head *h, const struct answer_part *p)
{
    openai_answer_begin(b, h);
    openai_answer_choice(b, h, p);
    openai_answer_end(b, h, &some_usage);
}

static const char *text_at(json_t *v, const char *a, const char *b)
{
    json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    json_t *in = b ? json_object_get(choice, a) : choice;
    return json_string_value(json_object_get(in, b ? b : a));
}

static int is_null_at(json_t *v, const char *name)
{
    return json_is_null(json_object_get(json_array_get(json_object_get(v, "choices"), 0), name));
}

static void a_chat_stream_has_a_role_text_a_finish_and_done(void **state)
{
    struct buf b;
    struct answer_head h = head_of(ENDPOINT_CHAT);
    (void)state;
    buf_init(&b, 1 << 20);
    openai_first_chunk(&b, &h, 0);
    openai_text_chunk(&b, &h, &(struct answer_part){.text = (struct bytes){"a\n\"", 3}, .ids = NULL, .n_ids = 0});
    openai_finish_chunk(&b, &h, 0, FINISH_LENGTH, &some_usage);
    openai_end_of_stream(&b, &h, &some_usage);
    json_t *e[3] = {event(&b, 0), event(&b, 1), event(&b, 2)};
    assert_string_equal(text_at(e[0], "delta", "role"), "assistant");
    assert_string_equal(text_at(e[1], "delta", "content"), "a\n\"");
    assert_true(is_null_at(e[0], "finish_reason") && is_null_at(e[1], "finish_reason"));
    assert_string_equal(text_at(e[2], "finish_reason", NULL), "length");
    assert_string_equal(json_string_value(json_object_get(e[2], "object")), "chat.completion.chunk");
    assert_string_equal(json_string_value(json_object_get(e[2], "model")), "m \"q\"");
    assert_true(json_is_null(json_object_get(e[2], "system_fingerprint")));
    assert_null(json_object_get(e[1], "usage"));
    assert_string_equal(b.data + b.len - 14, "data: [DONE]\n\n");
    for (int i = 0; i < 3; i++)
        json_decref(e[i]);
    buf_fini(&b);
}

static void include_usage_adds_a_chunk_without_choices(void **state)
{
    struct buf b;
    struct answer_head h = head_of(ENDPOINT_COMPLETION);
    (void)state;
    h.include_usage = 1;
    buf_init(&b, 1 << 20);
    openai_first_chunk(&b, &h, 0);
    assert_int_equal(b.len, 0);
    openai_text_chunk(&b, &h, &(struct answer_part){.text = (struct bytes){"x", 1}, .ids = NULL, .n_ids = 0});
    openai_finish_chunk(&b, &h, 0, FINISH_STOP, &some_usage);
    openai_end_of_stream(&b, &h, &some_usage);
    json_t *text = event(&b, 0), *finish = event(&b, 1), *usage = event(&b, 2);
    assert_string_equal(text_at(text, "text", NULL), "x");
    assert_true(json_is_null(json_object_get(text, "usage")));
    assert_string_equal(text_at(finish, "finish_reason", NULL), "stop");
    assert_int_equal(json_array_size(json_object_get(usage, "choices")), 0);
    json_t *u = json_object_get(usage, "usage");
    assert_int_equal(json_integer_value(json_object_get(u, "total_tokens")), 15);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(u, "prompt_tokens_details"), "cached_tokens")), 8);
    assert_true(json_real_value(json_object_get(json_object_get(usage, "timings"), "prompt_ms")) == 20.25);
    json_decref(text);
    json_decref(finish);
    json_decref(usage);
    buf_fini(&b);
}

static void token_ids_are_told_when_asked_for(void **state)
{
    static const uint32_t prompt[] = {1, 4294967295u}, ids[] = {0, 77};
    struct buf b;
    struct answer_head h = head_of(ENDPOINT_CHAT);
    (void)state;
    h.return_token_ids = 1;
    h.prompt_ids = prompt;
    h.n_prompt_ids = 2;
    buf_init(&b, 1 << 20);
    answer(&b, &h, &(struct answer_part){.text = (struct bytes){"hi", 2}, .ids = ids, .n_ids = 2, .finish = FINISH_STOP});
    json_t *a = object(b.data, b.len);
    json_t *choice = json_array_get(json_object_get(a, "choices"), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(choice, "token_ids"), 1)), 77);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(a, "prompt_token_ids"), 1)), 4294967295u);
    assert_string_equal(json_string_value(json_object_get(json_object_get(choice, "message"), "content")), "hi");
    json_decref(a);
    buf_fini(&b);
}

static void a_fingerprint_tells_profiles_apart(void **state)
{
    char one[24], two[24], none[24];
    (void)state;
    openai_fingerprint((struct bytes){"a", 1}, one);
    openai_fingerprint((struct bytes){"b", 1}, two);
    openai_fingerprint((struct bytes){NULL, 0}, none);
    assert_string_equal(one, "fp_af63dc4c8601ec8c"); /* FNV-1a's published value for "a" */
    assert_string_not_equal(one, two);
    assert_string_equal(none, "");
}

static void an_error_has_all_its_fields(void **state)
{
    struct buf b;
    struct error err;
    (void)state;
    buf_init(&b, 4096);
    error_param(&err, STATUS_QUEUE_FULL, NULL, NULL, "full \"up\"");
    openai_error_event(&b, &err);
    json_t *e = event(&b, 0), *in = json_object_get(e, "error");
    assert_string_equal(json_string_value(json_object_get(in, "message")), "full \"up\"");
    assert_string_equal(json_string_value(json_object_get(in, "type")), "overloaded_error");
    assert_true(json_is_null(json_object_get(in, "param")) && json_is_null(json_object_get(in, "code")));
    assert_true(json_is_true(json_object_get(in, "retryable")));
    json_decref(e);
    buf_fini(&b);
}

static void retry_after_is_whole_seconds_from_1_to_60_where_it_belongs(void **state)
{
    struct error err = {.status = STATUS_QUEUE_FULL};
    (void)state;
    assert_int_equal(openai_retry_after(&err), 1);
    err.retry_after_s = 7;
    assert_int_equal(openai_retry_after(&err), 7);
    err.retry_after_s = 100;
    assert_int_equal(openai_retry_after(&err), 60);
    err.status = STATUS_BAD_REQUEST;
    assert_int_equal(openai_retry_after(&err), 0);
}

static void text_that_is_not_utf8_still_gives_valid_json(void **state)
{
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } rows[] = {
        {"a\0b\x01\x7f", 5, "a\\u0000b\\u0001\\u007f"},
        {"\xff\xc3", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xc0\x80", 2, "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xf0\x9f\x98\x80\"\\", 6, "\xf0\x9f\x98\x80\\\"\\\\"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b;
        buf_init(&b, 4096);
        json_out_escaped(&b, rows[i].in, rows[i].len);
        assert_string_equal(b.data, rows[i].out);
        buf_fini(&b);
    }
}

static void the_status_has_every_field_of_the_interface(void **state)
{
    static const char *const names[] = {"service", "version", "live",   "ready",  "epoch",  "uptime_s",    "model",    "concurrency",
                                        "requests", "slots",  "queue",  "blocks", "stages", "coordinator", "gateways", "ticks",
                                        "age_ms"};
    struct service_status *s = calloc(1, sizeof *s);
    struct buf b;
    (void)state;
    assert_non_null(s);
    s->n_slots = s->n_stages = s->n_gateways = 2;
    s->stages[1] = (struct stage_status){.stage = 1, .first_layer = 15, .end_layer = 30, .host = "n\"1", .state = "ready"};
    s->bank_us = -7;
    buf_init(&b, 1 << 20);
    status_json_write(&b, s);
    json_t *v = object(b.data, b.len);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!json_object_get(v, names[i]))
            fail_msg("%s is missing", names[i]);
    json_t *stage = json_array_get(json_object_get(v, "stages"), 1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(stage, "layers"), 1)), 30);
    json_t *ticks = json_object_get(v, "ticks");
    static const char *const of_ticks[] = {"sent", "in_flight", "window", "streams", "readers", "starved",
                                           "period_us", "budget_us", "bank_us", "bank_bound_us", "stall_unmet"};
    for (size_t i = 0; i < sizeof of_ticks / sizeof of_ticks[0]; i++)
        if (!json_object_get(ticks, of_ticks[i]))
            fail_msg("ticks.%s is missing", of_ticks[i]);
    assert_int_equal(json_integer_value(json_object_get(ticks, "bank_us")), -7);
    json_decref(v);
    buf_fini(&b);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_stream_has_a_role_text_a_finish_and_done),
        cmocka_unit_test(include_usage_adds_a_chunk_without_choices),
        cmocka_unit_test(token_ids_are_told_when_asked_for),
        cmocka_unit_test(a_fingerprint_tells_profiles_apart),
        cmocka_unit_test(an_error_has_all_its_fields),
        cmocka_unit_test(retry_after_is_whole_seconds_from_1_to_60_where_it_belongs),
        cmocka_unit_test(text_that_is_not_utf8_still_gives_valid_json),
        cmocka_unit_test(the_status_has_every_field_of_the_interface),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
