#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/request.h"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static enum status parse(enum endpoint endpoint, const char *body, struct request *r, struct error *err)
{
    request_init(r, endpoint, strlen(body));
    return request_parse(r, body, strlen(body), err);
}

static enum status chat_with(const char *fields, struct request *r, struct error *err)
{
    char body[4096];
    snprintf(body, sizeof body, "{" MESSAGES "%s%s}", fields[0] ? "," : "", fields);
    return parse(ENDPOINT_CHAT, body, r, err);
}

static int chat_json_is(const struct request *r, const char *text)
{
    const struct bytes *j = &r->generate.chat_json;
    return j->len == strlen(text) && memcmp(j->data, text, j->len) == 0;
}

static void a_small_chat_gets_the_defaults(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(chat_with("", &r, &err), STATUS_OK);
    assert_int_equal(r.generate.prompt, PROMPT_CHAT);
    assert_true(chat_json_is(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"add_generation_prompt\":true}"));
    assert_true(r.generate.sampler.temperature == 1.0f && r.generate.sampler.top_p == 1.0f);
    assert_int_equal(r.generate.sampler.top_k, 0);
    assert_int_equal(r.generate.max_tokens, -1);
    assert_false(r.generate.has_seed || r.stream || r.generate.no_cache || r.generate.ignore_eos);
    request_fini(&r);
}

static void every_field_goes_where_it_belongs(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(chat_with("\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":7,"
                               "\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.1,\"seed\":-5,\"stop\":[\"a\",\"bc\"],"
                               "\"ignore_eos\":true,\"deadline_ms\":99,\"priority\":\"batch\",\"cache_prompt\":false,"
                               "\"return_token_ids\":true,\"user\":\"u\",\"reasoning_effort\":\"low\","
                               "\"chat_template_kwargs\":{\"x\":1,\"messages\":[],\"documents\":1},\"tools\":[{\"type\":\"function\"}],"
                               "\"documents\":[{\"title\":\"t\",\"text\":\"d\"}]",
                               &r, &err),
                     STATUS_OK);
    const struct generate_request *q = &r.generate;
    assert_true(r.stream && r.include_usage && r.return_token_ids && q->ignore_eos && q->no_cache && q->batch_priority);
    assert_int_equal(q->max_tokens, 7);
    assert_true(q->sampler.temperature == 0 && q->sampler.top_p == 0.5f && q->sampler.min_p == 0.1f);
    assert_int_equal(q->sampler.top_k, 40);
    assert_true(q->has_seed && q->sampler.seed == (uint64_t)-5);
    assert_int_equal(q->n_stops, 2);
    assert_memory_equal(q->stop[1].data, "bc", 2);
    assert_int_equal(q->deadline_ms, 99);
    assert_memory_equal(r.model.data, "m", 2);
    assert_true(chat_json_is(&r, "{\"x\":1,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"documents\":[{\"title\":"
                                 "\"t\",\"text\":\"d\"}],\"tools\":[{\"type\":\"function\"}],\"add_generation_prompt\":true,"
                                 "\"reasoning_effort\":\"low\"}"));
    request_fini(&r);
}

static void no_effort_turns_thinking_off_unless_the_template_was_told_otherwise(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(chat_with("\"reasoning_effort\":\"none\"", &r, &err), STATUS_OK);
    assert_true(chat_json_is(&r, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"add_generation_prompt\":true,"
                                 "\"enable_thinking\":false,\"reasoning_effort\":\"none\"}"));
    request_fini(&r);
    assert_int_equal(chat_with("\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true}", &r, &err),
                     STATUS_OK);
    assert_true(chat_json_is(&r, "{\"enable_thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                 "\"add_generation_prompt\":true,\"reasoning_effort\":\"none\"}"));
    request_fini(&r);
}

struct row {
    const char *fields;
    enum status want;
    const char *param; /* of the error */
};

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct request r;
        struct error err = {0};
        enum status got = chat_with(rows[i].fields, &r, &err);
        if (got != rows[i].want || (got != STATUS_OK && strcmp(err.param, rows[i].param)))
            fail_msg("%s: %s, param '%s', message %s", rows[i].fields, status_name(got), err.param, err.message);
        request_fini(&r);
    }
}

/* FC-49 */
static void odd_answer_lengths_are_clamped_or_refused(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"\"max_tokens\":null", STATUS_OK, ""},
        {"\"max_tokens\":-1", STATUS_OK, ""},
        {"\"max_tokens\":2147483648", STATUS_OK, ""},
        {"\"max_tokens\":9223372036854775807", STATUS_OK, ""},
        {"\"max_tokens\":0", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":-2", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":1.5", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":\"5\"", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":9223372036854775808", STATUS_BAD_REQUEST, ""},
        {"\"max_completion_tokens\":0", STATUS_BAD_REQUEST, "max_completion_tokens"},
        {"\"max_tokens\":5,\"max_completion_tokens\":5", STATUS_OK, ""},
        {"\"max_tokens\":5,\"max_completion_tokens\":6", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":-1,\"max_completion_tokens\":6", STATUS_BAD_REQUEST, "max_tokens"},
        {"\"max_tokens\":null,\"max_completion_tokens\":6", STATUS_OK, ""},
    };
    check_rows(rows, ARRAY_LEN(rows));
    struct request r;
    struct error err;
    assert_int_equal(chat_with("\"max_tokens\":2147483648", &r, &err), STATUS_OK);
    assert_int_equal(r.generate.max_tokens, 0x7fffffff);
    request_fini(&r);
}

/* FC-47: which of null, true, [], {}, "x", -1 a field takes; '5': it takes it as something not built. */
static void every_field_takes_the_types_it_has_and_names_itself_for_others(void **state)
{
    (void)state;
    static const char *const values[] = {"null", "true", "[]", "{}", "\"x\"", "-1"};
    static const struct {
        const char *name, *takes; /* y, n or 5 for each value */
    } rows[] = {
        {"model", "ynnnyn"},           {"stream", "yynnnn"},        {"stream_options", "ynnynn"},
        {"max_tokens", "ynnnny"},      {"max_completion_tokens", "ynnnny"},
        {"temperature", "ynnnnn"},     {"top_p", "ynnnnn"},         {"top_k", "ynnnny"},
        {"min_p", "ynnnnn"},           {"seed", "ynnnny"},          {"stop", "ynynyn"},
        {"ignore_eos", "yynnnn"},      {"deadline_ms", "ynnnnn"},   {"priority", "ynnnnn"},
        {"cache_prompt", "yynnnn"},    {"return_token_ids", "yynnnn"},
        {"user", "ynnnyn"},            {"chat_template_kwargs", "ynnynn"},
        {"reasoning_effort", "ynnnnn"},{"tools", "ynynnn"},         {"documents", "ynynnn"},
        {"tool_choice", "ynn5nn"},
        {"parallel_tool_calls", "yynnnn"},
        {"response_format", "ynnnnn"}, {"modalities", "ynynnn"},    {"logprobs", "yynnnn"},
        {"top_logprobs", "ynnnnn"},    {"n", "ynnnnn"},             {"frequency_penalty", "ynnnny"},
        {"presence_penalty", "ynnnny"},{"repeat_penalty", "ynnnnn"},{"logit_bias", "ynnynn"},
        {"repetition_penalty", "ynnnnn"}, {"repeat_last_n", "ynnnny"}, {"typical_p", "ynnnnn"}, {"mirostat", "ynnnnn"},
        {"functions", "y55555"},       {"grammar", "y55555"},       {"something_new", "yyyyyy"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t j = 0; j < ARRAY_LEN(values); j++) {
            char fields[128];
            struct request r;
            struct error err = {0};
            snprintf(fields, sizeof fields, "\"%s\":%s", rows[i].name, values[j]);
            enum status got = chat_with(fields, &r, &err);
            char how = got == STATUS_OK ? 'y' : got == STATUS_BAD_REQUEST ? 'n' : got == STATUS_UNSUPPORTED ? '5' : '?';
            if (how != rows[i].takes[j])
                fail_msg("%s: %c, want %c (%s)", fields, how, rows[i].takes[j], err.message);
            if (got != STATUS_OK && strncmp(err.param, rows[i].name, strlen(rows[i].name)))
                fail_msg("%s: param is '%s'", fields, err.param);
            request_fini(&r);
        }
}

/* FC-51 */
static void extreme_integers_are_refused_by_name_or_clamped(void **state)
{
    (void)state;
    static const char *const names[] = {"max_tokens", "max_completion_tokens", "top_k", "deadline_ms", "n", "top_logprobs", "repeat_last_n", "seed"};
    static const char *const values[] = {"-9223372036854775808", "9223372036854775807"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        for (size_t j = 0; j < ARRAY_LEN(values); j++) {
            char fields[128];
            struct request r;
            struct error err = {0};
            int clamped = (j == 1 && i < 2) || i == 7;
            snprintf(fields, sizeof fields, "\"%s\":%s", names[i], values[j]);
            assert_int_equal(chat_with(fields, &r, &err), clamped ? STATUS_OK : STATUS_BAD_REQUEST);
            if (!clamped)
                assert_string_equal(err.param, names[i]);
            request_fini(&r);
        }
}

static void what_is_not_built_is_refused_by_name_unless_neutral(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"\"mirostat\":0", STATUS_OK, ""},
        {"\"mirostat\":2", STATUS_UNSUPPORTED, "mirostat"},
        {"\"mirostat\":3", STATUS_BAD_REQUEST, "mirostat"},
        {"\"response_format\":{\"type\":\"text\"}", STATUS_OK, ""},
        {"\"response_format\":{\"type\":\"json_schema\"}", STATUS_UNSUPPORTED, "response_format"},
        {"\"tools\":[{}],\"tool_choice\":\"auto\"", STATUS_OK, ""},
        {"\"tool_choice\":\"required\"", STATUS_UNSUPPORTED, "tool_choice"},
        {"\"modalities\":[\"text\",\"audio\"]", STATUS_UNSUPPORTED, "modalities"},
        {"\"tool_choice\":\"auto\\u0000x\"", STATUS_BAD_REQUEST, "tool_choice"},
        {"\"response_format\":{\"type\":\"text\\u0000x\"}", STATUS_BAD_REQUEST, "response_format.type"},
        {"\"modalities\":[\"text\\u0000x\"]", STATUS_UNSUPPORTED, "modalities"},
        {"\"n_predict\":-1,\"min_tokens\":0,\"stop_token_ids\":[],\"bad_words\":[],\"include_stop_str_in_output\":false,"
         "\"skip_special_tokens\":true,\"use_beam_search\":false,\"continue_final_message\":false,\"dry_multiplier\":0,"
         "\"dynatemp_range\":0.0,\"xtc_probability\":0,\"prompt_logprobs\":null",
         STATUS_OK, ""},
        {"\"n_predict\":5", STATUS_UNSUPPORTED, "n_predict"},
        {"\"best_of\":2,\"n\":2,\"echo\":false", STATUS_OK, ""},
        {"\"best_of\":2", STATUS_UNSUPPORTED, "best_of"},
        {"\"echo\":true", STATUS_UNSUPPORTED, "echo"},
        {"\"min_tokens\":5", STATUS_UNSUPPORTED, "min_tokens"},
        {"\"min_tokens\":\"5\"", STATUS_BAD_REQUEST, "min_tokens"},
        {"\"stop_token_ids\":[2]", STATUS_UNSUPPORTED, "stop_token_ids"},
        {"\"stop_token_ids\":2", STATUS_BAD_REQUEST, "stop_token_ids"},
        {"\"bad_words\":[\"a\"]", STATUS_UNSUPPORTED, "bad_words"},
        {"\"allowed_token_ids\":[2]", STATUS_UNSUPPORTED, "allowed_token_ids"},
        {"\"include_stop_str_in_output\":true", STATUS_UNSUPPORTED, "include_stop_str_in_output"},
        {"\"skip_special_tokens\":false", STATUS_UNSUPPORTED, "skip_special_tokens"},
        {"\"use_beam_search\":true", STATUS_UNSUPPORTED, "use_beam_search"},
        {"\"prompt_logprobs\":0", STATUS_UNSUPPORTED, "prompt_logprobs"},
        {"\"truncate_prompt_tokens\":100", STATUS_UNSUPPORTED, "truncate_prompt_tokens"},
        {"\"chat_template\":\"{{ messages }}\"", STATUS_UNSUPPORTED, "chat_template"},
        {"\"continue_final_message\":true", STATUS_UNSUPPORTED, "continue_final_message"},
        {"\"samplers\":[\"top_k\"]", STATUS_UNSUPPORTED, "samplers"},
        {"\"dry_multiplier\":0.8", STATUS_UNSUPPORTED, "dry_multiplier"},
        {"\"dynatemp_range\":0.5", STATUS_UNSUPPORTED, "dynatemp_range"},
        {"\"xtc_probability\":0.5", STATUS_UNSUPPORTED, "xtc_probability"},
        {"\"stop\":\"\"", STATUS_BAD_REQUEST, "stop"},
        {"\"stop\":[\"a\",5]", STATUS_BAD_REQUEST, "stop[1]"},
        {"\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", STATUS_BAD_REQUEST, "stop"},
        {"\"stream_options\":{\"include_usage\":1}", STATUS_BAD_REQUEST, "stream_options.include_usage"},
        {"\"temperature\":1e400", STATUS_BAD_REQUEST, ""},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void samplers_have_their_ranges(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"\"n\":1", STATUS_OK, ""},
        {"\"n\":128", STATUS_OK, ""},
        {"\"n\":129", STATUS_BAD_REQUEST, "n"},
        {"\"n\":0", STATUS_BAD_REQUEST, "n"},
        {"\"temperature\":100,\"top_p\":1,\"min_p\":0", STATUS_OK, ""},
        {"\"temperature\":100.5", STATUS_BAD_REQUEST, "temperature"},
        {"\"temperature\":-1", STATUS_BAD_REQUEST, "temperature"},
        {"\"top_p\":1.01", STATUS_BAD_REQUEST, "top_p"},
        {"\"min_p\":-0.01", STATUS_BAD_REQUEST, "min_p"},
        {"\"repeat_penalty\":0.01,\"repetition_penalty\":0.01", STATUS_OK, ""},
        {"\"repetition_penalty\":100.5", STATUS_BAD_REQUEST, "repetition_penalty"},
        {"\"frequency_penalty\":-2,\"presence_penalty\":2", STATUS_OK, ""},
        {"\"frequency_penalty\":2.1", STATUS_BAD_REQUEST, "frequency_penalty"},
        {"\"presence_penalty\":-2.1", STATUS_BAD_REQUEST, "presence_penalty"},
        {"\"repeat_penalty\":1.1,\"repetition_penalty\":1.1", STATUS_OK, ""},
        {"\"repeat_penalty\":1.1,\"repetition_penalty\":1.2", STATUS_BAD_REQUEST, "repeat_penalty"},
        {"\"repeat_penalty\":0", STATUS_BAD_REQUEST, "repeat_penalty"},
        {"\"repetition_penalty\":-1", STATUS_BAD_REQUEST, "repetition_penalty"},
        {"\"repeat_last_n\":-2", STATUS_BAD_REQUEST, "repeat_last_n"},
        {"\"typical_p\":1.5", STATUS_BAD_REQUEST, "typical_p"},
        {"\"logit_bias\":{}", STATUS_OK, ""},
        {"\"logit_bias\":{\"5\":100,\"0\":-100,\"2147483647\":0.5}", STATUS_OK, ""},
        {"\"logit_bias\":{\"5\":101}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"5\":\"1\"}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"05\":1}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"\":1}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"2147483648\":1}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", STATUS_BAD_REQUEST, "logit_bias"},
        {"\"logprobs\":false,\"top_logprobs\":0", STATUS_OK, ""},
        {"\"logprobs\":true,\"top_logprobs\":20", STATUS_OK, ""},
        {"\"logprobs\":true,\"top_logprobs\":21", STATUS_BAD_REQUEST, "top_logprobs"},
        {"\"top_logprobs\":3", STATUS_BAD_REQUEST, "top_logprobs"},
    };
    check_rows(rows, ARRAY_LEN(rows));
}

static void samplers_go_where_they_belong(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(chat_with("\"n\":3,\"frequency_penalty\":0.5,\"presence_penalty\":-0.5,\"repetition_penalty\":1.5,\"typical_p\":0.75,"
                               "\"logprobs\":true,\"top_logprobs\":2,\"repeat_last_n\":9,\"logit_bias\":{\"7\":1.5,\"3\":-100}",
                               &r, &err),
                     STATUS_OK);
    const struct sampler_params *s = &r.generate.sampler;
    assert_int_equal(r.n, 3);
    assert_true(s->frequency_penalty == 0.5f && s->presence_penalty == -0.5f && s->repeat_penalty == 1.5f && s->typical_p == 0.75f);
    assert_true(s->n_top == 3 && s->repeat_last_n == 9 && r.generate.n_bias == 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(r.generate.bias[i].bias == (r.generate.bias[i].id == 7 ? 1.5f : -100.0f));
    request_fini(&r);
    assert_int_equal(chat_with("\"repeat_penalty\":1.5,\"repeat_last_n\":0", &r, &err), STATUS_OK);
    assert_true(r.generate.sampler.repeat_penalty == 1 && r.generate.sampler.n_top == 0 && r.n == 1);
    request_fini(&r);
    assert_int_equal(chat_with("\"logprobs\":true,\"repeat_last_n\":-1", &r, &err), STATUS_OK);
    assert_true(r.generate.sampler.n_top == 1 && r.generate.sampler.repeat_last_n == 0);
    request_fini(&r);
    static const struct {
        const char *fields;
        enum status want;
        const char *param;
        uint32_t n_top, n;
    } rows[] = {
        {"\"logprobs\":0", STATUS_OK, "", 1, 1},      {"\"logprobs\":5,\"n\":2,\"best_of\":2", STATUS_OK, "", 6, 2},
        {"\"logprobs\":6", STATUS_BAD_REQUEST, "logprobs", 0, 0}, {"\"logprobs\":true", STATUS_BAD_REQUEST, "logprobs", 0, 0},
        {"\"n\":2,\"best_of\":1", STATUS_BAD_REQUEST, "best_of", 0, 0}, {"\"best_of\":2", STATUS_UNSUPPORTED, "best_of", 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char body[128];
        struct error told = {0};
        snprintf(body, sizeof body, "{\"prompt\":[1],%s}", rows[i].fields);
        enum status got = parse(ENDPOINT_COMPLETION, body, &r, &told);
        if (got != rows[i].want || (got != STATUS_OK && strcmp(told.param, rows[i].param)))
            fail_msg("%s: %s, param '%s'", body, status_name(got), told.param);
        if (got == STATUS_OK)
            assert_true(r.generate.sampler.n_top == rows[i].n_top && r.n == rows[i].n);
        request_fini(&r);
    }
}

static void too_many_biases_are_refused(void **state)
{
    (void)state;
    for (int n = MAX_BIASES; n <= MAX_BIASES + 1; n++) {
        char *body = malloc(64 + 16 * (size_t)n);
        struct request r;
        struct error err = {0};
        assert_non_null(body);
        size_t len = (size_t)sprintf(body, "{" MESSAGES ",\"logit_bias\":{\"0\":1");
        for (int i = 1; i < n; i++)
            len += (size_t)sprintf(body + len, ",\"%d\":1", i);
        strcpy(body + len, "}}");
        assert_int_equal(parse(ENDPOINT_CHAT, body, &r, &err), n == MAX_BIASES ? STATUS_OK : STATUS_BAD_REQUEST);
        request_fini(&r);
        free(body);
    }
}

static void tool_choice_none_hides_the_tools(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(chat_with("\"tools\":[{}],\"tool_choice\":\"none\"", &r, &err), STATUS_OK);
    assert_null(strstr(r.generate.chat_json.data, "tools"));
    request_fini(&r);
}

static void message_content_may_be_text_null_or_text_parts(void **state)
{
    (void)state;
    static const struct {
        const char *messages;
        enum status want;
        const char *param, *json; /* of the first message, in the context */
    } rows[] = {
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]", STATUS_OK, "",
         "\"content\":\"a\\nb\""},
        {"[{\"role\":\"assistant\",\"content\":null}]", STATUS_OK, "", "\"content\":\"\""},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]}]", STATUS_OK, "",
         "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":null,\"refusal\":null}]", STATUS_OK, "",
         "[{\"role\":\"assistant\",\"content\":\"a\"}]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[]}]", STATUS_OK, "", "[{\"role\":\"assistant\",\"content\":\"\"}]"},
        {"[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", STATUS_OK, "", "\"content\":\"a\\u0000b\""},
        {"[]", STATUS_BAD_REQUEST, "messages", ""},
        {"[7]", STATUS_BAD_REQUEST, "messages[0]", ""},
        {"[{\"content\":\"a\"}]", STATUS_BAD_REQUEST, "messages[0].role", ""},
        {"[{\"role\":1,\"content\":\"a\"}]", STATUS_BAD_REQUEST, "messages[0].role", ""},
        {"[{\"role\":\"user\",\"content\":5}]", STATUS_BAD_REQUEST, "messages[0].content", ""},
        {"[{\"role\":\"user\",\"content\":[5]}]", STATUS_BAD_REQUEST, "messages[0].content[0]", ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", STATUS_UNSUPPORTED, "messages[0].content[0].type", ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"tex\"}]}]", STATUS_BAD_REQUEST, "messages[0].content[0].type", ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]", STATUS_BAD_REQUEST, "messages[0].content[0].text", ""},
        {"[{\"role\":\"user\",\"content\":\"a\",\"name\":1}]", STATUS_BAD_REQUEST, "messages[0].name", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char body[512];
        struct request r;
        struct error err = {0};
        snprintf(body, sizeof body, "{\"messages\":%s}", rows[i].messages);
        enum status got = parse(ENDPOINT_TEMPLATE, body, &r, &err);
        if (got != rows[i].want || (got != STATUS_OK && strcmp(err.param, rows[i].param)))
            fail_msg("%s: %s, param '%s'", body, status_name(got), err.param);
        if (got == STATUS_OK && !strstr(r.generate.chat_json.data, rows[i].json))
            fail_msg("%s: %s", body, r.generate.chat_json.data);
        request_fini(&r);
    }
}

static void arguments_of_tool_calls_that_are_an_object_in_text_reach_the_template_as_an_object(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"\"{\\\"b\\\": [1.5, null], \\\"a\\\": \\\"\\\\u003c|x|>\\\"}\"", "{\"b\":[1.5,null],\"a\":\"<|x|>\"}"},
        {"\"\"", "{}"},
        {"{\"a\":1}", "{\"a\":1}"},
        {"\"{\\\"a\\\": 1\"", "\"{\\\"a\\\": 1\""},
        {"\"[1]\"", "\"[1]\""},
        {"\"north\"", "\"north\""},
        {"7", "7"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char body[512], want[256];
        struct request r;
        struct error err = {0};
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[7,{\"function\":1},{\"function\":{\"arguments\":%s}}]}]}",
                 rows[i][0]);
        snprintf(want, sizeof want, "[7,{\"function\":1},{\"function\":{\"arguments\":%s}}]", rows[i][1]);
        assert_int_equal(parse(ENDPOINT_TEMPLATE, body, &r, &err), STATUS_OK);
        if (!strstr(r.generate.chat_json.data, want))
            fail_msg("%s: %s", body, r.generate.chat_json.data);
        request_fini(&r);
    }
}

static void a_completion_prompt_is_text_ids_or_one_of_them(void **state)
{
    (void)state;
    static const struct {
        const char *prompt;
        enum status want;
        int kind, n;
        const char *param;
    } rows[] = {
        {"\"abc\"", STATUS_OK, PROMPT_TEXT, 3, ""},        {"[\"abc\"]", STATUS_OK, PROMPT_TEXT, 3, ""},
        {"[1,2,3]", STATUS_OK, PROMPT_IDS, 3, ""},         {"[[1,2]]", STATUS_OK, PROMPT_IDS, 2, ""},
        {"[]", STATUS_BAD_REQUEST, 0, 0, "prompt"},        {"[\"a\",\"b\"]", STATUS_UNSUPPORTED, 0, 0, "prompt"},
        {"[1,\"a\"]", STATUS_BAD_REQUEST, 0, 0, "prompt[1]"}, {"[-1]", STATUS_BAD_REQUEST, 0, 0, "prompt[0]"},
        {"[2147483648]", STATUS_BAD_REQUEST, 0, 0, "prompt[0]"}, {"[1.5]", STATUS_BAD_REQUEST, 0, 0, "prompt[0]"},
        {"null", STATUS_BAD_REQUEST, 0, 0, "prompt"},      {"{}", STATUS_BAD_REQUEST, 0, 0, "prompt"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char body[128];
        struct request r;
        struct error err = {0};
        snprintf(body, sizeof body, "{\"prompt\":%s}", rows[i].prompt);
        enum status got = parse(ENDPOINT_COMPLETION, body, &r, &err);
        if (got != rows[i].want || (got != STATUS_OK && strcmp(err.param, rows[i].param)))
            fail_msg("%s: %s, param '%s'", body, status_name(got), err.param);
        if (got == STATUS_OK) {
            assert_int_equal(r.generate.prompt, rows[i].kind);
            assert_int_equal(r.generate.n_ids + r.generate.text.len, rows[i].n);
        }
        request_fini(&r);
    }
}

/* FC-50 */
static void what_is_not_strict_json_is_refused_with_its_offset(void **state)
{
    (void)state;
    static const struct {
        const char *body, *offset;
    } rows[] = {
        {"", "empty"},
        {"{\"a\":1,\"a\":2}", "byte"},
        {"\xef\xbb\xbf{}", "byte"},
        {"{} x", "byte 4"},
        {"{\"a\":\"\\ud800\"}", "byte"},
        {"{\"a\":1e400}", "byte 10"},
        {"{\"a\":18446744073709551616}", "byte"},
        {"{\"a\":\"\xff\"}", "byte"},
        {"{\"a\\u0000b\":1}", "byte"},
        {"[]", "an array"},
        {"{\"a\":NaN}", "byte"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error err = {0};
        json_t *root;
        assert_int_equal(json_in_parse(rows[i].body, strlen(rows[i].body), &root, &err), STATUS_BAD_REQUEST);
        if (!strstr(err.message, rows[i].offset))
            fail_msg("%s: %s", rows[i].body, err.message);
        assert_string_equal(err.code, "invalid_json");
    }
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    enum { N = 100000 };
    static char body[N + 8];
    struct error err;
    json_t *root;
    (void)state;
    memcpy(body, "{\"[\":", 5); /* a bracket in a string does not count */
    memset(body + 5, '[', N);
    assert_int_equal(json_in_parse(body, N + 5, &root, &err), STATUS_BAD_REQUEST);
    assert_non_null(strstr(err.message, "byte 132"));
}

static void a_body_of_many_small_values_is_bounded_in_memory(void **state)
{
    enum { N = 1 << 20, TREE_BYTES = 4 << 20 };
    struct error err;
    json_t *root;
    (void)state;
    char *body = malloc(N);
    assert_non_null(body);
    for (size_t i = 0; i < N; i += 2)
        memcpy(body + i, "1,", 2);
    memcpy(body, "{\"a\":[", 6);
    memcpy(body + N - 4, "11]}", 4);
    assert_int_equal(json_in__parse(body, N, TREE_BYTES, &root, &err), STATUS_BODY_TOO_LARGE);
    assert_int_equal(json_in_parse(body, N, &root, &err), STATUS_OK); /* the bound is of one parse only */
    json_decref(root);
    free(body);
}

static void tokenize_and_detokenize_read_their_fields(void **state)
{
    struct request r;
    struct error err;
    (void)state;
    assert_int_equal(parse(ENDPOINT_TOKENIZE, "{\"content\":\"hi\",\"add_special\":true}", &r, &err), STATUS_OK);
    assert_true(r.add_special && r.parse_special && r.content.len == 2);
    request_fini(&r);
    assert_int_equal(parse(ENDPOINT_TOKENIZE, "{\"prompt\":\"\"}", &r, &err), STATUS_OK);
    request_fini(&r);
    assert_int_equal(parse(ENDPOINT_TOKENIZE, "{}", &r, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "content");
    request_fini(&r);
    assert_int_equal(parse(ENDPOINT_DETOKENIZE, "{\"tokens\":[1,2]}", &r, &err), STATUS_OK);
    assert_int_equal(r.generate.n_ids, 2);
    request_fini(&r);
    assert_int_equal(parse(ENDPOINT_DETOKENIZE, "{\"tokens\":[1,[]]}", &r, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "tokens[1]");
    request_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_chat_gets_the_defaults),
        cmocka_unit_test(every_field_goes_where_it_belongs),
        cmocka_unit_test(no_effort_turns_thinking_off_unless_the_template_was_told_otherwise),
        cmocka_unit_test(odd_answer_lengths_are_clamped_or_refused),
        cmocka_unit_test(every_field_takes_the_types_it_has_and_names_itself_for_others),
        cmocka_unit_test(extreme_integers_are_refused_by_name_or_clamped),
        cmocka_unit_test(what_is_not_built_is_refused_by_name_unless_neutral),
        cmocka_unit_test(samplers_have_their_ranges),
        cmocka_unit_test(samplers_go_where_they_belong),
        cmocka_unit_test(too_many_biases_are_refused),
        cmocka_unit_test(tool_choice_none_hides_the_tools),
        cmocka_unit_test(message_content_may_be_text_null_or_text_parts),
        cmocka_unit_test(arguments_of_tool_calls_that_are_an_object_in_text_reach_the_template_as_an_object),
        cmocka_unit_test(a_completion_prompt_is_text_ids_or_one_of_them),
        cmocka_unit_test(what_is_not_strict_json_is_refused_with_its_offset),
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(a_body_of_many_small_values_is_bounded_in_memory),
        cmocka_unit_test(tokenize_and_detokenize_read_their_fields),
    };
    json_in_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
