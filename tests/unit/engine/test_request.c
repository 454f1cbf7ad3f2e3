/* coordinator/request: what is refused at once, with which words, and what an accepted request has room for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/request.h"

enum { CONTEXT = 8192, VOCAB = 49152, ARENA = 1 << 20 };

static int n_released;

static void on_release(void *ctx)
{
    ++*(int *)ctx;
}

static const struct request_sink sink = {.ctx = &n_released, .release = on_release};

static struct generate_request plain(void)
{
    return (struct generate_request){.prompt = PROMPT_IDS, .sampler = {.top_p = 1}, .max_tokens = -1};
}

static struct request *make(const struct generate_request *g)
{
    struct request *r = NULL;
    struct error err = {0};
    if (request_create(g, "client", &sink, ARENA, &r, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return r;
}

static void refused(const struct generate_request *g, const char *param, const char *word)
{
    struct request *r = NULL;
    struct error err = {0};
    n_released = 0;
    assert_int_equal(request_create(g, "client", &sink, ARENA, &r, &err), STATUS_BAD_REQUEST);
    assert_null(r);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, word));
    assert_int_equal(n_released, 0); /* the sink stays the caller's */
}

static enum status set_prompt(struct request *r, uint32_t n, uint32_t cap, struct error *err)
{
    uint32_t *ids = calloc(n + 1, sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i % VOCAB;
    enum status s = request_set_prompt(r, ids, n, CONTEXT, cap, VOCAB, err);
    if (s == STATUS_OK)
        s = request_open_answer(r, 4, err); /* as when it gets its slot */
    free(ids);
    return s;
}

static void request_of_a_full_context_is_refused_with_both_numbers(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {8191, 8192, 8193, 100000};
    for (int i = 0; i < 4; i++) {
        struct generate_request g = plain();
        struct request *r = make(&g);
        struct error err = {0};
        enum status s = set_prompt(r, lengths[i], UINT32_MAX, &err);
        if (lengths[i] < CONTEXT) {
            assert_int_equal(s, STATUS_OK);
            assert_int_equal(r->n_prompt, lengths[i]);
            assert_int_equal(r->answer_limit, 1);
        } else {
            char number[16];
            snprintf(number, sizeof number, "%u", lengths[i]);
            assert_int_equal(s, STATUS_BAD_REQUEST);
            assert_string_equal(err.code, "context_length_exceeded");
            assert_string_equal(err.param, "prompt");
            assert_non_null(strstr(err.message, number));
            assert_non_null(strstr(err.message, "8192"));
        }
        request_release(r);
    }
}

static void request_too_long_chat_names_messages(void **state)
{
    (void)state;
    struct generate_request g = plain();
    g.prompt = PROMPT_CHAT;
    struct request *r = make(&g);
    struct error err = {0};
    assert_int_equal(set_prompt(r, CONTEXT, UINT32_MAX, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "messages");
    request_release(r);
}

static void request_without_tokens_or_with_a_foreign_id_is_refused(void **state)
{
    (void)state;
    struct generate_request g = plain();
    struct request *r = make(&g);
    struct error err = {0};
    assert_int_equal(set_prompt(r, 0, UINT32_MAX, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.code, "empty");
    const uint32_t ids[] = {5, VOCAB, 7};
    assert_int_equal(request_set_prompt(r, ids, 3, CONTEXT, UINT32_MAX, VOCAB, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.code, "bad_token_id");
    assert_non_null(strstr(err.message, "49152"));
    request_release(r);
}

static void request_answer_limit_is_the_smallest_of_three(void **state)
{
    (void)state;
    static const struct {
        int64_t max_tokens;
        uint32_t n_prompt, cap, want;
    } cases[] = {
        {-1, 100, UINT32_MAX, CONTEXT - 100}, {7, 100, UINT32_MAX, 7},      {1ll << 31, 100, UINT32_MAX, CONTEXT - 100},
        {INT64_MAX, 8000, UINT32_MAX, 192},   {500, 100, 50, 50},           {-1, 1, 300, 300},
        {1, 8191, UINT32_MAX, 1},             {2, 8191, UINT32_MAX, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct generate_request g = plain();
        g.max_tokens = cases[i].max_tokens;
        struct request *r = make(&g);
        struct error err = {0};
        assert_int_equal(set_prompt(r, cases[i].n_prompt, cases[i].cap, &err), STATUS_OK);
        assert_int_equal(r->answer_limit, cases[i].want);
        memset(r->answer_ids, 0xff, r->answer_limit * sizeof *r->answer_ids); /* there is room (ASan) */
        request_release(r);
    }
}

static void request_values_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    struct generate_request g = plain();
    for (int i = 0; i < 3; i++) {
        g.max_tokens = (int64_t[]){0, -2, INT64_MIN}[i];
        refused(&g, "max_tokens", "at least 1");
    }
    g = plain();
    for (int i = 0; i < 3; i++) {
        g.sampler.temperature = (float[]){-1, NAN, 101}[i];
        refused(&g, "temperature", "0 to 100");
    }
    g = plain();
    for (int i = 0; i < 3; i++) {
        g.sampler.top_p = (float[]){-0.1f, NAN, 1.5f}[i];
        refused(&g, "top_p", "0 to 1");
    }
    g = plain();
    g.sampler.min_p = INFINITY;
    refused(&g, "min_p", "0 to 1");
    g = plain();
    g.sampler.repeat_penalty = NAN;
    refused(&g, "repeat_penalty", "0.01 to 100");
    g = plain();
    g.sampler.presence_penalty = -2.5f;
    refused(&g, "presence_penalty", "-2 to 2");
    g = plain();
    g.sampler.frequency_penalty = INFINITY;
    refused(&g, "frequency_penalty", "-2 to 2");
    g = plain();
    g.sampler.typical_p = 2;
    refused(&g, "typical_p", "0 to 1");
    g = plain();
    g.sampler.n_top = MAX_TOP_LOGPROBS + 2;
    refused(&g, "top_logprobs", "0 to 20");
    g = plain();
    g.n_bias = 1;
    g.bias = &(struct logit_bias){1, -100.5f};
    refused(&g, "logit_bias", "-100 to 100");
    g.n_bias = MAX_BIASES + 1;
    refused(&g, "logit_bias", "at most 1024");
}

static void request_penalties_and_biases_know_prompt_and_vocabulary(void **state)
{
    (void)state;
    struct error err = {0};
    struct generate_request g = plain();
    const struct logit_bias bias[] = {{VOCAB - 1, 2.5f}, {3, -100}}, foreign = {VOCAB, 1};
    float value;
    g.sampler.repeat_penalty = 1.5f;
    g.sampler.n_prompt = 12345; /* not the client's to say */
    g.sampler.n_bias = 77;
    g.bias = bias;
    g.n_bias = 2;
    struct request *r = make(&g);
    assert_int_equal(set_prompt(r, 100, UINT32_MAX, &err), STATUS_OK);
    assert_int_equal(r->sampler.n_prompt, 100);
    assert_int_equal(r->sampler.n_bias, 2);
    assert_true(r->bias_ids[0] == VOCAB - 1 && r->bias_ids[1] == 3);
    memcpy(&value, &r->bias_bits[0], sizeof value);
    assert_true(value == 2.5f);
    assert_int_equal(request_open_words(r, 60), 64);
    request_release(r);
    g.bias = &foreign;
    g.n_bias = 1;
    r = make(&g);
    assert_int_equal(set_prompt(r, 100, UINT32_MAX, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "logit_bias");
    request_release(r);
}

/* What one plan cannot bring is refused before it begins; a window makes it fit. */
static void request_whose_history_no_plan_holds_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    struct generate_request g = plain();
    uint32_t ids[3] = {1, 2, 3};
    g.sampler.repeat_penalty = 1.5f;
    struct request *r = make(&g);
    assert_int_equal(request_set_prompt(r, ids, 3, PLAN_OPEN_WORDS, UINT32_MAX, VOCAB, &err), STATUS_OK);
    assert_int_equal(request_set_prompt(r, ids, 3, PLAN_OPEN_WORDS + 1, UINT32_MAX, VOCAB, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "repeat_last_n");
    r->sampler.repeat_last_n = 1000;
    assert_int_equal(request_set_prompt(r, ids, 3, 8 * PLAN_OPEN_WORDS, UINT32_MAX, VOCAB, &err), STATUS_OK);
    r->sampler.presence_penalty = 1;
    assert_int_equal(request_set_prompt(r, ids, 3, 8 * PLAN_OPEN_WORDS, UINT32_MAX, VOCAB, &err), STATUS_BAD_REQUEST);
    request_release(r);
}

static void request_stops_are_copied_or_refused(void **state)
{
    (void)state;
    static char text[MAX_STOP_BYTES + 1];
    memset(text, 'a', sizeof text);
    struct generate_request g = plain();
    g.n_stops = 2;
    g.stop[0] = (struct bytes){text, MAX_STOP_BYTES};
    g.stop[1] = (struct bytes){"\n", 1};
    struct request *r = make(&g);
    text[0] = 'b';
    assert_int_equal(r->n_stops, 2);
    assert_int_equal(r->stops[0].data[0], 'a');
    assert_int_equal(r->stops[0].len, MAX_STOP_BYTES);
    request_release(r);
    g.stop[1].len = 0;
    refused(&g, "stop", "0 bytes");
    g.stop[1] = (struct bytes){text, MAX_STOP_BYTES + 1};
    refused(&g, "stop", "513 bytes");
    g.n_stops = MAX_STOPS + 1;
    refused(&g, "stop", "at most 16");
}

static void request_ids_that_cannot_stand_in_a_header_are_replaced(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a b", "x\n", "\x7f", "\xc3\xa9"};
    char longest[200];
    memset(longest, 'i', sizeof longest);
    struct generate_request g = plain();
    for (int i = 0; i < 6; i++) {
        g.request_id = i < 5 ? (struct bytes){bad[i], strlen(bad[i])} : (struct bytes){longest, sizeof longest};
        struct request *r = make(&g);
        assert_memory_equal(r->id, "req-", 4);
        assert_int_equal(strlen(r->id), 20);
        request_release(r);
    }
    g.request_id = (struct bytes){"mine-1", 6};
    struct request *r = make(&g);
    assert_string_equal(r->id, "mine-1");
    request_release(r);
}

static void request_seed_is_the_clients_or_a_new_one_of_63_bits(void **state)
{
    (void)state;
    struct generate_request g = plain();
    g.sampler.seed = 77;
    struct request *a = make(&g), *b = make(&g);
    assert_true(a->sampler.seed != b->sampler.seed);
    assert_true(a->sampler.seed >> 63 == 0 && b->sampler.seed >> 63 == 0);
    request_release(a);
    request_release(b);
    g.has_seed = 1;
    a = make(&g);
    assert_int_equal(a->sampler.seed, 77);
    request_release(a);
}

static void request_over_its_memory_bound_fails_alone(void **state)
{
    (void)state;
    struct generate_request g = plain();
    struct request *r = NULL;
    struct error err = {0};
    static char text[4096];
    g.prompt = PROMPT_TEXT;
    g.text = (struct bytes){text, sizeof text};
    assert_int_equal(request_create(&g, "client", &sink, 1024, &r, &err), STATUS_OUT_OF_MEMORY);
    assert_int_equal(status_retryable(err.status), 1);
    g.text.len = 100;
    assert_int_equal(request_create(&g, "client", &sink, 8192, &r, &err), STATUS_OK);
    assert_int_equal(set_prompt(r, 4000, UINT32_MAX, &err), STATUS_OUT_OF_MEMORY);
    request_release(r);
}

static void request_gives_its_text_back_once_it_has_ids(void **state)
{
    (void)state;
    struct generate_request g = plain();
    struct error err = {0};
    g.prompt = PROMPT_CHAT;
    g.chat_json = (struct bytes){"{\"messages\":[]}", 15};
    g.n_stops = 1;
    g.stop[0] = (struct bytes){"end", 3};
    struct request *r = make(&g);
    assert_int_equal(r->chat_json.len, 15);
    assert_int_equal(set_prompt(r, 10, UINT32_MAX, &err), STATUS_OK);
    request_drop_text(r);
    assert_int_equal(r->chat_json.len, 0);
    assert_int_equal(r->text_arena.used_bytes, 0);
    assert_memory_equal(r->stops[0].data, "end", 3); /* what the run needs is kept */
    assert_int_equal(r->prompt_ids[9], 9);
    request_release(r);
}

static void request_sink_is_released_with_the_last_reference(void **state)
{
    (void)state;
    struct generate_request g = plain();
    n_released = 0;
    struct request *r = make(&g);
    request_retain(r);
    request_release(r);
    assert_int_equal(n_released, 0);
    request_release(r);
    assert_int_equal(n_released, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_of_a_full_context_is_refused_with_both_numbers),
        cmocka_unit_test(request_too_long_chat_names_messages),
        cmocka_unit_test(request_without_tokens_or_with_a_foreign_id_is_refused),
        cmocka_unit_test(request_answer_limit_is_the_smallest_of_three),
        cmocka_unit_test(request_values_out_of_range_are_refused_by_name),
        cmocka_unit_test(request_penalties_and_biases_know_prompt_and_vocabulary),
        cmocka_unit_test(request_whose_history_no_plan_holds_is_refused),
        cmocka_unit_test(request_stops_are_copied_or_refused),
        cmocka_unit_test(request_ids_that_cannot_stand_in_a_header_are_replaced),
        cmocka_unit_test(request_seed_is_the_clients_or_a_new_one_of_63_bits),
        cmocka_unit_test(request_over_its_memory_bound_fails_alone),
        cmocka_unit_test(request_gives_its_text_back_once_it_has_ids),
        cmocka_unit_test(request_sink_is_released_with_the_last_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
