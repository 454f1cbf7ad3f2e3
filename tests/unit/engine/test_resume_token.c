/* coordinator/resume_token: whose token it is, and everything that it must not be taken for. And what a request's beginning may be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/model/gguf.h"
#include "coordinator/request.h"

enum { CONTEXT = 512, ARENA = 1 << 20 };

static const uint8_t MODEL[32] = {1, 2, 3};
static const struct request_sink sink = {.ctx = NULL};
static uint32_t ids[3] = {7, 8, 9};

static struct generate_request asked(void)
{
    return (struct generate_request){.request_id = {"req-1", 5}, .prompt = PROMPT_IDS, .ids = ids, .n_ids = 3,
                                     .sampler = {.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .top_k = 5, .seed = 42},
                                     .has_seed = 1, .max_tokens = 20, .stop = {{"ab", 2}, {"c", 1}}, .n_stops = 2};
}

static struct request *make(const struct generate_request *g, const char *client)
{
    struct request *r = NULL;
    struct error err = {0};
    if (request_create(g, client, &sink, ARENA, &r, &err) != STATUS_OK ||
        request_set_prompt(r, r->prompt_ids, r->n_prompt, CONTEXT, UINT32_MAX, 320, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return r;
}

static struct resume_token token_of(const struct resume_key *k, const struct generate_request *g, const char *client)
{
    struct resume_token t = {.profile = "numerics"};
    struct request *r = make(g, client);
    assert_int_equal(resume_token_make(k, r, &t, NULL), STATUS_OK);
    request_release(r);
    return t;
}

static struct resume_key key_of(const char *secret, const uint8_t model[32])
{
    struct resume_key k;
    assert_int_equal(resume_key_init(&k, secret, model, NULL), STATUS_OK);
    return k;
}

static void same(const struct resume_key *k, const struct resume_token *t, const struct generate_request *g, const char *client, int want)
{
    struct request *r = make(g, client);
    struct error err = {0};
    enum status s = resume_token_check(k, r, t, &err);
    assert_int_equal(s, want ? STATUS_OK : STATUS_FORBIDDEN);
    if (!want)
        assert_string_equal(err.code, "resume_token");
    request_release(r);
}

/* --- tests ------------------------------------------------------------------------------------------------------------------------ */

static void token_is_that_of_the_same_request_at_any_process_with_the_secret(void **state)
{
    (void)state;
    struct generate_request g = asked();
    const struct resume_key k = key_of("secret", MODEL), again = key_of("secret", MODEL);
    const struct resume_token t = token_of(&k, &g, "alice");
    same(&again, &t, &g, "alice", 1);
    g.attempt = 7;
    g.batch_priority = 1;
    g.deadline_ms = 5;
    same(&again, &t, &g, "alice", 1); /* these do not decide the answer */
}

static void token_of_any_other_request_key_or_model_is_refused(void **state)
{
    (void)state;
    const struct generate_request g = asked();
    const struct resume_key k = key_of("secret", MODEL), other = key_of("secreT", MODEL), open = key_of("", MODEL),
                            open2 = key_of("", MODEL), model = key_of("secret", (const uint8_t[32]){1, 2, 4});
    const struct resume_token t = token_of(&k, &g, "alice"), u = token_of(&open, &g, "alice");
    same(&other, &t, &g, "alice", 0);
    same(&model, &t, &g, "alice", 0);
    same(&open, &t, &g, "alice", 0);
    same(&open, &u, &g, "alice", 1);
    same(&open2, &u, &g, "alice", 0);
    same(&k, &t, &g, "bob", 0);
    static const struct logit_bias bias[] = {{1, 2}, {2, 1}};
    for (int i = 0; i < 23; i++) {
        struct generate_request h = g;
        uint32_t changed[] = {7, 8, 10};
        switch (i) {
        case 0: h.request_id = (struct bytes){"req-2", 5}; break;
        case 1: h.ids = changed; break;
        case 2: h.n_ids = 2; break;
        case 3: h.sampler.temperature = 0; break;
        case 4: h.sampler.top_p = 1; break;
        case 5: h.sampler.min_p = 0; break;
        case 6: h.sampler.top_k = 4; break;
        case 7: h.sampler.seed = 43; break;
        case 8: h.max_tokens = 21; break;
        case 9: h.n_stops = 1; break;
        case 10: h.stop[0] = (struct bytes){"a", 1}, h.stop[1] = (struct bytes){"bc", 2}; break; /* the same bytes in a row */
        case 11: h.ignore_eos = 1; break;
        case 12: h.no_cache = 1; break;
        case 13: h.sampler.repeat_penalty = 1.5f; break;
        case 14: h.sampler.presence_penalty = 1.5f; break;
        case 15: h.sampler.frequency_penalty = 1.5f; break;
        case 16: h.sampler.typical_p = 0.5f; break;
        case 17: h.sampler.repeat_last_n = 5; break;
        case 18: h.sampler.n_top = 1; break;
        case 19: h.bias = bias, h.n_bias = 1; break;
        case 20: h.bias = bias + 1, h.n_bias = 1; break;
        case 21: h.bias = bias, h.n_bias = 2; break;
        default: h.stop[1] = (struct bytes){"d", 1}; break;
        }
        same(&k, &t, &h, "alice", 0);
    }
}

static void token_with_another_profile_or_a_changed_bit_is_refused(void **state)
{
    (void)state;
    const struct generate_request g = asked();
    const struct resume_key k = key_of("secret", MODEL);
    struct resume_token t = token_of(&k, &g, "alice"), bad = t;
    strcpy(bad.profile, "numericS");
    same(&k, &bad, &g, "alice", 0);
    for (int bit = 0; bit < 8 * RESUME_MAC_BYTES; bit += 7) {
        bad = t;
        bad.mac[bit / 8] ^= (uint8_t)(1 << bit % 8);
        same(&k, &bad, &g, "alice", 0);
    }
}

static void token_is_read_as_it_was_written_and_nothing_else_is(void **state)
{
    (void)state;
    struct resume_token t = {.mac = {1, 2, 3}}, got;
    uint8_t wire[RESUME_TOKEN_BYTES + 1];
    memset(t.profile, 'p', RESUME_PROFILE_BYTES);
    assert_int_equal(resume_token_write(&t, wire), RESUME_TOKEN_BYTES);
    assert_true((size_t)RESUME_TOKEN_BYTES <= (size_t)MAX_RESUME_TOKEN);
    assert_true(resume_token_read(wire, RESUME_TOKEN_BYTES, &got));
    assert_memory_equal(&got, &t, sizeof t);
    assert_true(resume_token_read(wire, 1 + RESUME_MAC_BYTES, &got));
    assert_string_equal(got.profile, "");
    for (size_t n = 0; n < 1 + RESUME_MAC_BYTES; n++)
        assert_false(resume_token_read(wire, n, &got));
    assert_false(resume_token_read(wire, RESUME_TOKEN_BYTES + 1, &got));
    wire[RESUME_TOKEN_BYTES - 3] = 0;
    assert_false(resume_token_read(wire, RESUME_TOKEN_BYTES, &got)); /* a text ends at its end */
    wire[0]++;
    assert_false(resume_token_read(wire, 1 + RESUME_MAC_BYTES, &got));
}

static void ids_that_begin_no_answer_are_refused(void **state)
{
    (void)state;
    struct gguf *file;
    struct tokenizer *tok;
    struct error err = {0};
    static uint32_t said[32];
    const struct resume_key k = key_of("secret", MODEL);
    uint8_t wire[RESUME_TOKEN_BYTES];
    assert_int_equal(gguf_open(SLUICE_VECTORS "/tiny/llama-f32.gguf", &file, &err), STATUS_OK);
    assert_int_equal(tokenizer_create(file, &tok, &err), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        struct generate_request g = asked();
        const struct resume_token t = token_of(&k, &g, "alice");
        g.resume = (struct generate_resume){.token = {(char *)wire, resume_token_write(&t, wire)}, .ids = said, .n_ids = 5};
        for (uint32_t n = 0; n < 32; n++)
            said[n] = 40 + n;
        if (i == 0)
            g.resume.n_ids = 21; /* of 20 */
        else if (i == 1)
            said[4] = 320; /* of a vocabulary of 320 */
        else if (i == 2)
            said[3] = 2; /* the end token, and one more */
        struct request *r = make(&g, "alice");
        assert_int_equal(request_take_up(r, tok, &err), i < 3 ? STATUS_BAD_REQUEST : STATUS_OK);
        if (i == 3) {
            assert_int_equal(r->n_answer, 5);
            assert_int_equal(r->emit.len, 0);
            assert_int_equal(r->over, FINISH_NONE);
            assert_int_equal(request_open_answer(r, 4, &err), STATUS_OK);
            assert_memory_equal(r->answer_ids, said, 5 * sizeof *said);
            memset(r->answer_ids, 0xff, r->answer_limit * sizeof *said); /* there is room (ASan) */
        }
        request_release(r);
    }
    struct generate_request g = asked();
    struct request *r = NULL;
    g.resume = (struct generate_resume){.token = {"not a token", 11}};
    assert_int_equal(request_create(&g, "alice", &sink, ARENA, &r, &err), STATUS_FORBIDDEN);
    tokenizer_destroy(tok);
    gguf_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_is_that_of_the_same_request_at_any_process_with_the_secret),
        cmocka_unit_test(token_of_any_other_request_key_or_model_is_refused),
        cmocka_unit_test(token_with_another_profile_or_a_changed_bit_is_refused),
        cmocka_unit_test(token_is_read_as_it_was_written_and_nothing_else_is),
        cmocka_unit_test(ids_that_begin_no_answer_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
