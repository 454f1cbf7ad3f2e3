/* The reader of event streams: cut anywhere, and the events of the servers people run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "deploy/cli/event.h"
#include "deploy/cli/sse.h"
#include "deploy/cli/status.h"

static void collect(void *ctx, const char *data, size_t len)
{
    struct buf *b = ctx;
    buf_printf(b, "<%.*s>", (int)len, data);
}

static const char stream[] = ": queued 3\n\ndata: one\n\ndata:two\r\n\r\nevent: x\ndata:  three \n\ndata:\n\nid: 4\ndata: [DONE]\n\n";
static const char want[] = "<one><two>< three ><><[DONE]>";

static void a_stream_cut_anywhere_gives_the_same_lines(void **state)
{
    (void)state;
    size_t n = strlen(stream);
    for (size_t i = 0; i <= n; i++)
        for (size_t k = i; k <= n; k++) {
            struct sse s;
            struct buf got;
            sse_init(&s, 1000);
            buf_init(&got, 1000);
            assert_int_equal(sse_feed(&s, stream, i, collect, &got), STATUS_OK);
            assert_int_equal(sse_feed(&s, stream + i, k - i, collect, &got), STATUS_OK);
            assert_int_equal(sse_feed(&s, stream + k, n - k, collect, &got), STATUS_OK);
            assert_string_equal(got.data, want);
            sse_fini(&s);
            buf_fini(&got);
        }
}

static void a_line_over_the_limit_is_refused_for_good(void **state)
{
    (void)state;
    char line[201];
    struct sse s;
    struct buf got;
    memset(line, 'x', sizeof line);
    memcpy(line, "data: ", 6);
    line[200] = '\n';
    buf_init(&got, 1000);
    sse_init(&s, 100);
    assert_int_equal(sse_feed(&s, line, sizeof line, collect, &got), STATUS_OUT_OF_MEMORY); /* in one piece */
    assert_int_equal(sse_feed(&s, "data: y\n", 8, collect, &got), STATUS_OUT_OF_MEMORY);
    sse_fini(&s);
    sse_init(&s, 100);
    assert_int_equal(sse_feed(&s, line, 90, collect, &got), STATUS_OK);
    assert_int_equal(sse_feed(&s, line + 90, 90, collect, &got), STATUS_OUT_OF_MEMORY);
    assert_int_equal(got.len, 0);
    sse_fini(&s);
    buf_fini(&got);
}

/* --- events --- */

static const struct {
    const char *json;
    enum event_kind kind;
    const char *text, *finish;
} events[] = {
    /* Sluice and OpenAI: completions, chat */
    {"{\"choices\":[{\"index\":0,\"text\":\" the\",\"finish_reason\":null}]}", EVENT_TOKEN, " the", NULL},
    {"{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}", EVENT_OTHER, "", "length"},
    {"{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}", EVENT_OTHER, "", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}", EVENT_TOKEN, "Hi", NULL},
    {"{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}", EVENT_OTHER, NULL, "stop"},
    {"{\"choices\":[],\"usage\":{\"prompt_tokens\":5}}", EVENT_OTHER, NULL, NULL},
    /* vLLM: the last token comes with its reason; reasoning under two names */
    {"{\"choices\":[{\"text\":\" end\",\"finish_reason\":\"length\",\"stop_reason\":null}],\"usage\":null}", EVENT_TOKEN, " end", "length"},
    {"{\"choices\":[{\"delta\":{\"reasoning_content\":\"so\",\"content\":null}}]}", EVENT_TOKEN, NULL, NULL},
    {"{\"choices\":[{\"delta\":{\"reasoning\":\"so\"}}]}", EVENT_TOKEN, NULL, NULL},
    /* llama.cpp: a role beside null content; a token without text */
    {"{\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}]}", EVENT_OTHER, NULL, NULL},
    {"{\"choices\":[{\"text\":\"\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}]}", EVENT_TOKEN, "", NULL},
    {"{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}", EVENT_TOKEN, NULL, NULL},
    /* strange shapes are no tokens */
    {"{}", EVENT_OTHER, NULL, NULL},
    {"{\"choices\":7}", EVENT_OTHER, NULL, NULL},
    {"{\"choices\":[\"x\"]}", EVENT_OTHER, NULL, NULL},
    {"{\"choices\":[{\"text\":5}],\"usage\":\"x\"}", EVENT_OTHER, NULL, NULL},
    /* faults */
    {"{\"error\":{\"message\":\"lost\",\"code\":\"x\"}}", EVENT_ERROR, NULL, NULL},
    {"{\"error\":\"a sentence\"}", EVENT_ERROR, NULL, NULL},
    {"{\"choices\":", EVENT_BAD, NULL, NULL},
    {"[1]", EVENT_BAD, NULL, NULL},
    {"", EVENT_BAD, NULL, NULL},
    {"[DONE]", EVENT_DONE, NULL, NULL},
};

static void events_of_known_servers_are_told_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        struct stream_event e;
        struct error err = {0};
        event_parse(events[i].json, strlen(events[i].json), &e, &err);
        if (e.kind != events[i].kind)
            fail_msg("%s is %d", events[i].json, e.kind);
        assert_int_equal(e.text != NULL, events[i].text != NULL);
        if (e.text)
            assert_string_equal(e.text, events[i].text);
        assert_int_equal(e.finish != NULL, events[i].finish != NULL);
        if (e.finish)
            assert_string_equal(e.finish, events[i].finish);
        assert_int_equal(err.status != STATUS_OK, e.kind == EVENT_ERROR || e.kind == EVENT_BAD);
        event_release(&e);
    }
}

static void usage_and_timings_are_read(void **state)
{
    (void)state;
    const char json[] = "{\"choices\":[],\"usage\":{\"prompt_tokens\":812,\"completion_tokens\":41,\"prompt_tokens_details\":"
                        "{\"cached_tokens\":768}},\"timings\":{\"decode_ms\":12.5}}";
    struct stream_event e;
    event_parse(json, sizeof json - 1, &e, NULL);
    assert_true(e.has_usage);
    assert_int_equal(e.prompt_tokens, 812);
    assert_int_equal(e.completion_tokens, 41);
    assert_int_equal(e.cached_tokens, 768);
    assert_float_equal(e.decode_ms, 12.5, 0);
    event_release(&e);
}

static void tokens_of_an_event_are_counted_by_their_ids(void **state)
{
    (void)state;
    const struct {
        const char *json;
        enum event_kind kind;
        uint32_t n;
    } all[] = {
        {"{\"choices\":[{\"text\":\"a b\",\"token_ids\":[5,6,7]}]}", EVENT_TOKEN, 3},
        {"{\"choices\":[{\"text\":\"\",\"token_ids\":[5]}]}", EVENT_TOKEN, 1}, /* half a character */
        {"{\"choices\":[{\"text\":\"a\",\"token_ids\":null}]}", EVENT_TOKEN, 1},
        {"{\"choices\":[{\"text\":\"\",\"prompt_token_ids\":[1,2],\"finish_reason\":null}]}", EVENT_OTHER, 0},
        {"{\"choices\":[{\"text\":\"a\",\"prompt_token_ids\":[1,2],\"token_ids\":[3]}]}", EVENT_TOKEN, 1}, /* vLLM */
        {"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":[3,4]}]}", EVENT_TOKEN, 2},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct stream_event e;
        event_parse(all[i].json, strlen(all[i].json), &e, NULL);
        assert_int_equal(e.kind, all[i].kind);
        assert_int_equal(e.n_tokens, all[i].n);
        event_release(&e);
    }
}

static void a_servers_error_keeps_its_words(void **state)
{
    (void)state;
    const char *json = "{\"error\":{\"message\":\"too long\",\"type\":\"invalid_request_error\",\"param\":\"prompt\",\"code\":\"length\"}}";
    json_t *v = json_loads(json, 0, NULL);
    struct error err = {0};
    assert_int_equal(event_take_error(v, 400, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.message, "too long");
    assert_string_equal(err.param, "prompt");
    assert_string_equal(err.code, "length");
    assert_int_equal(event_take_error(v, 401, NULL), STATUS_UNAUTHENTICATED);
    assert_int_equal(event_take_error(v, 429, NULL), STATUS_CLIENT_LIMIT);
    assert_int_equal(event_take_error(NULL, 500, NULL), STATUS_OK);
    json_decref(v);
}

/* A model, or somebody between, can say anything: it is shown on a terminal, and figures are calculated from it. */
static void what_a_server_claims_is_shown_plain_and_counted_in_bounds(void **state)
{
    static const char evil[] = "{\"error\":{\"message\":\"a\\u001b[2J\\nb\\u009bc\\u007f\"}}", mute[] = "{\"error\":{\"message\":\"\"}}";
    struct stream_event e;
    struct error err = {0};
    (void)state;
    event_parse(evil, strlen(evil), &e, &err);
    assert_int_equal(e.kind, EVENT_ERROR);
    assert_string_equal(err.message, "a?[2J?b??c?");
    event_release(&e);
    event_parse(mute, strlen(mute), &e, &err);
    assert_string_equal(err.message, "no reason was given");
    event_release(&e);
    event_parse("\033]0;x\a", 7, &e, &err);
    assert_int_equal(e.kind, EVENT_BAD);
    assert_null(strpbrk(err.message, "\033\a"));
    event_release(&e);
    static const char usage[] = "{\"usage\":{\"prompt_tokens\":1e300,\"completion_tokens\":-9223372036854775808,"
                                "\"prompt_tokens_details\":{\"cached_tokens\":9223372036854775807}}}";
    event_parse(usage, strlen(usage), &e, &err);
    assert_true(e.has_usage && e.prompt_tokens == INT32_MAX && e.completion_tokens == 0 && e.cached_tokens == INT32_MAX);
    event_release(&e);
}

/* The table says what is there, and whatever that is. */
static void a_status_that_is_none_is_a_table_of_nothing(void **state)
{
    static const struct {
        const char *json, *shows;
    } all[] = {
        {"[]", "-: NOT READY, epoch 0"},
        {"{\"model\":{\"id\":\"m\\u001b[1m\",\"layers\":1e300},\"ready\":true,\"epoch\":7}", "m?[1m: ready, epoch 7"},
        {"{\"stages\":[{\"layers\":[0,-9223372036854775808],\"weight_bytes\":2097152}]}", "2 MiB"},
        {"{\"stages\":[{\"layers\":[3,5]}]}", "3..4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        json_t *v = json_loads(all[i].json, 0, NULL);
        char *text = NULL;
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        status_print(v, f);
        fclose(f);
        assert_non_null(strstr(text, all[i].shows));
        assert_null(strchr(text, 27));
        free(text);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_cut_anywhere_gives_the_same_lines),
        cmocka_unit_test(a_line_over_the_limit_is_refused_for_good),
        cmocka_unit_test(events_of_known_servers_are_told_apart),
        cmocka_unit_test(usage_and_timings_are_read),
        cmocka_unit_test(tokens_of_an_event_are_counted_by_their_ids),
        cmocka_unit_test(a_servers_error_keeps_its_words),
        cmocka_unit_test(what_a_server_claims_is_shown_plain_and_counted_in_bounds),
        cmocka_unit_test(a_status_that_is_none_is_a_table_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
