/* The records of one generation: what was written is read, whatever order it came in; what cannot be is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/logprobs.h"

static const uint32_t prompt[] = {5, 6, 7}, answer[] = {70, 71, 72, 73};
static const char body[] = "{\"prompt\":[5,6,7]}";

static struct kept_request request(void)
{
    struct kept_request r = {.endpoint = ENDPOINT_CHAT, .close_after = 1, .n = 2, .created_s = 1234, .started_ns = 99};
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
    const struct kept_choice *h = &c.choices[1];
    assert_true(!c.model[0] && !h->token.len && !c.n_prompt_ids && !h->ids.len && !h->text.len && !h->first.text_ns && !c.told);
    assert_int_equal(c.attempt, 2);
    completion_kept_fini(&c);
    keeper_close(k);
}

static void everything_said_so_far_is_one_piece(void **state)
{
    struct kept_request r = request();
    struct keeper *k = journal(&r);
    struct completion_kept c;
    struct kept_accepted a = {.seed = 7, .prompt_tokens = 3, .n_token = 4, .fingerprint = "fp_12"}, b = a;
    struct kept_first first = {.usage = {.prompt_tokens = 3, .queue_ms = 1.5}, .text_ns = 55};
    struct token_logprobs lp[] = {{.id = 70, .logprob = -1.5f, .n_top = 2, .top_ids = {70, 9}}, {.id = 71}};
    const struct bytes none = {"", 0};
    struct buf words;
    (void)state;
    buf_init(&words, 4096);
    logprobs_keep(&words, lp, 2);
    kept_write_model(k, "a model of \"ours\"");
    kept_write_accepted(k, &a, "\0tok", prompt, 3);
    kept_write_first(k, &first);
    kept_write_ids(k, 0, 0, answer, 1);
    kept_write_text(k, 0, (struct bytes){"he", 2}, (struct bytes){words.data, words.len});
    b.choice = 1;
    b.seed = 8;
    kept_write_accepted(k, &b, "tok2", NULL, 0);
    kept_write_ids(k, 1, 0, answer + 2, 2);
    kept_write_text(k, 1, (struct bytes){"other", 5}, none);
    kept_write_ids(k, 0, 2, answer + 1, 3);
    kept_write_text(k, 0, (struct bytes){"llo", 3}, (struct bytes){words.data, words.len});
    kept_write_text(k, 0, none, none);
    kept_write_done(k, &(struct kept_done){.choice = 1, .finish = FINISH_LENGTH, .usage = {.completion_tokens = 2}});
    keeper_state(k)->user_flags = KEPT_TOLD;
    assert_int_equal(read_back(k, &c), STATUS_OK);
    const struct kept_choice *h = &c.choices[0], *other = &c.choices[1];
    assert_string_equal(c.model, "a model of \"ours\"");
    assert_true(h->token.len == 4 && memcmp(h->token.data, "\0tok", 4) == 0);
    assert_true(c.n_prompt_ids == 3 && memcmp(c.prompt_ids, prompt, sizeof prompt) == 0);
    assert_true(h->accepted.seed == 7 && strcmp(h->accepted.fingerprint, "fp_12") == 0);
    assert_true(h->ids.len == sizeof answer && memcmp(h->ids.data, answer, sizeof answer) == 0);
    assert_true(h->text.len == 5 && memcmp(h->text.data, "hello", 5) == 0 && h->chars == 2 && !h->is_done);
    assert_true(h->logprobs.len == 2 * words.len && memcmp(h->logprobs.data + words.len, words.data, words.len) == 0);
    assert_true(h->first.text_ns == 55 && h->first.usage.queue_ms == 1.5 && c.told);
    assert_true(other->accepted.seed == 8 && memcmp(other->token.data, "tok2", 4) == 0 && other->ids.len == 8);
    assert_true(memcmp(other->text.data, "other", 5) == 0 && other->is_done && other->done.usage.completion_tokens == 2);
    completion_kept_fini(&c);
    a.n_token = 0; /* another coordinator does not know it: it begins anew */
    kept_write_accepted(k, &a, "", prompt, 3);
    assert_int_equal(read_back(k, &c), STATUS_OK);
    assert_int_equal(c.choices[0].token.len, 0);
    assert_int_equal(c.choices[1].token.len, 4);
    completion_kept_fini(&c);
    keeper_close(k);
    buf_fini(&words);
}

/* What a record says of an answer that nobody asked for, or that ended before. */
static void answers_that_do_not_exist_are_refused(void **state)
{
    struct kept_request r = request();
    struct completion_kept c;
    (void)state;
    for (int i = 0; i < 7; i++) {
        struct keeper *k = journal(&r);
        const struct kept_done done = {.choice = i == 4, .finish = i == 5 ? 7 : FINISH_STOP};
        if (i == 0)
            kept_write_accepted(k, &(struct kept_accepted){.choice = 2}, "", NULL, 0);
        if (i == 1)
            kept_write_accepted(k, &(struct kept_accepted){.choice = 1}, "", prompt, 3); /* the first one's to say */
        if (i == 2)
            kept_write_ids(k, 2, 0, answer, 1);
        if (i == 3)
            kept_write_text(k, 2, (struct bytes){"x", 1}, (struct bytes){"", 0});
        if (i == 4)
            kept_write_done(k, &done);
        if (i == 4 || i == 5)
            kept_write_done(k, &done);
        if (i == 6)
            kept_write_text(k, 0, (struct bytes){"", 0}, (struct bytes){"half", 4});
        assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
        keeper_close(k);
    }
    for (uint32_t n = 0; n <= 129; n += 129) {
        r.n = n;
        struct keeper *k = journal(&r);
        assert_int_equal(read_back(k, &c), STATUS_PROTOCOL);
        keeper_close(k);
    }
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
        cmocka_unit_test(answers_that_do_not_exist_are_refused),
        cmocka_unit_test(names_that_would_break_a_header_or_json_are_refused),
        cmocka_unit_test(records_that_are_cut_or_missing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
