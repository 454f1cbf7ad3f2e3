/* The records of one generation: what was written is read, whatever order it came in; what cannot be is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "rpc/gateway/completion_kept.h"

static const uint32_t prompt[] = {5, 6, 7}, answer[] = {70, 71, 72, 73};
static const char body[] = "{\"prompt\":[5,6,7]}";

static struct kept_request request(void)
{
    struct kept_request r = {.endpoint = ENDPOINT_CHAT, .close_after = 1, .created_s = 1234, .started_ns = 99};
    snprintf(r.request_id, sizeof r.request_id, "mine-1");
    snprintf(r.client, sizeof r.client, "key-abc");
    snprintf(r.id, sizeof r.id, "req-00");
    snprintf(r.answer_id, sizeof r.answer_id, "chatcmpl-00");
    return r;
}

static struct keeper *journal(const struct kept_request *r)
{
    struct keeper *k;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    kept_write_request(k, r, body, strlen(body));
    return k;
}

static enum status read_back(struct keeper *k, struct completion_kept *out)
{
    struct kept kept;
    struct error err;
    keeper_publish(k);
    assert_false(keeper_failed(k));
    keeper_view(k, &kept);
    return completion_kept_read(&kept, out, &err);
}

static void what_was_asked_is_enough_to_begin_anew(void **state)
{
    struct kept_request r = request();
    struct keeper *k = journal(&r);
    struct completion_kept c;
    (void)state;
    keeper_state(k)->attempt = 2;
    assert_int_equal(read_back(k, &c), STATUS_OK);
    assert_memory_equal(&c.request, &r, sizeof r);
    assert_true(c.body.len == strlen(body) && memcmp(c.body.data, body, c.body.len) == 0);
    assert_true(!c.model[0] && !c.token.len && !c.n_prompt_ids && !c.ids.len && !c.text.len && !c.first.text_ns && !c.told);
    assert_int_equal(c.attempt, 2);
    completion_kept_fini(&c);
    keeper_close(k);
}

static void everything_said_so_far_is_one_piece(void **state)
{
    struct kept_request r = request();
    struct keeper *k = journal(&r);
    struct completion_kept c;
    struct kept_accepted a = {.seed = 7, .prompt_tokens = 3, .n_token = 4, .fingerprint = "fp_12"};
    struct kept_first first = {.usage = {.prompt_tokens = 3, .queue_ms = 1.5}, .text_ns = 55};
    (void)state;
    kept_write_model(k, "a model of \"ours\"");
    kept_write_accepted(k, &a, "\0tok", prompt, 3);
    kept_write_first(k, &first);
    kept_write_text(k, answer, 1, &(struct bytes){"he", 2});
    kept_write_text(k, answer + 1, 3, &(struct bytes){"llo", 3});
    kept_write_text(k, NULL, 0, &(struct bytes){"", 0});
    keeper_state(k)->user_flags = KEPT_TOLD;
    assert_int_equal(read_back(k, &c), STATUS_OK);
    assert_string_equal(c.model, "a model of \"ours\"");
    assert_true(c.token.len == 4 && memcmp(c.token.data, "\0tok", 4) == 0);
    assert_true(c.n_prompt_ids == 3 && memcmp(c.prompt_ids, prompt, sizeof prompt) == 0);
    assert_true(c.accepted.seed == 7 && strcmp(c.accepted.fingerprint, "fp_12") == 0);
    assert_true(c.ids.len == sizeof answer && memcmp(c.ids.data, answer, sizeof answer) == 0);
    assert_true(c.text.len == 5 && memcmp(c.text.data, "hello", 5) == 0);
    assert_true(c.first.text_ns == 55 && c.first.usage.queue_ms == 1.5 && c.told);
    completion_kept_fini(&c);
    a.n_token = 0; /* another coordinator does not know it: it begins anew */
    kept_write_accepted(k, &a, "", prompt, 3);
    assert_int_equal(read_back(k, &c), STATUS_OK);
    assert_int_equal(c.token.len, 0);
    completion_kept_fini(&c);
    keeper_close(k);
}

static void names_that_would_break_a_header_or_json_are_refused(void **state)
{
    static const char *const bad[] = {"a\r\nX: y", "a\"b", "a\\b", "a b", "a\x80"};
    struct completion_kept c;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int field = 0; field < 3; field++) {
            struct kept_request r = request();
            snprintf(field == 0 ? r.request_id : field == 1 ? r.id : r.answer_id, sizeof r.id, "%s", bad[i]);
            struct keeper *k = journal(&r);
            assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
            keeper_close(k);
        }
    struct kept_request r = request();
    memset(r.client, 'x', sizeof r.client); /* no end */
    struct keeper *k = journal(&r);
    assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
    keeper_close(k);
    r = request();
    r.endpoint = ENDPOINT_TOKENIZE;
    k = journal(&r);
    assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
    keeper_close(k);
}

static void records_that_are_cut_or_missing_are_refused(void **state)
{
    struct kept_request r = request();
    struct completion_kept c;
    struct keeper *k;
    (void)state;
    assert_int_equal(keeper_create(0, &k), STATUS_OK);
    assert_int_equal(read_back(k, &c), STATUS_PROTOCOL); /* nobody asked */
    keeper_close(k);
    struct kept_accepted a = {.n_token = 200, .prompt_tokens = 3}; /* a token longer than any */
    k = journal(&r);
    static const char long_token[200];
    kept_write_accepted(k, &a, long_token, prompt, 3);
    assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
    keeper_close(k);
    static const struct {
        uint32_t kind;
        size_t len;
    } cut[] = {{KEEPER_USER + 1, 10}, {KEEPER_USER + 3, 8}, {KEEPER_USER + 4, 4}, {KEEPER_USER + 9, 4}};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) { /* request, accepted, first, a kind of nobody's */
        k = journal(&r);
        keeper_record(k, cut[i].kind, long_token, cut[i].len);
        assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
        keeper_close(k);
    }
    k = journal(&r);
    keeper_append(k, answer, 6); /* half an id */
    assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
    keeper_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_asked_is_enough_to_begin_anew),
        cmocka_unit_test(everything_said_so_far_is_one_piece),
        cmocka_unit_test(names_that_would_break_a_header_or_json_are_refused),
        cmocka_unit_test(records_that_are_cut_or_missing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
