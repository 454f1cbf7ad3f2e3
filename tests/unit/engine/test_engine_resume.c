/* Answers that go on at another attempt: at every place the same ids, text, end and usage; who may go on, and who may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "tests/unit/engine/fake_bed.h"

enum { N_PROMPT = 20 };

/* Of a byte in the test model's vocabulary, which has GPT-2's order: first those that print. */
static uint32_t id_of(unsigned char byte)
{
    uint32_t n_printing = 0, n_others = 0, printing = 0;
    for (unsigned b = 0; b < 256; b++) {
        int prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        printing = b == byte ? (uint32_t)prints : printing;
        n_printing += prints && b < byte;
        n_others += !prints && b < byte;
    }
    return FAKE_FIRST_BYTE + (printing ? n_printing : 188 + n_others);
}

/* A bed whose answers are this text, a token for each byte. */
static struct bed *bed_that_says(const char *text)
{
    char script[4096];
    int at = snprintf(script, sizeof script, "answer_at %d\nids", N_PROMPT);
    for (const char *p = text; *p; p++)
        at += snprintf(script + at, sizeof script - (size_t)at, " %u", id_of((unsigned char)*p));
    snprintf(script + at, sizeof script - (size_t)at, "\n");
    return bed_open(2, script, FLAGS("--slots", "2"));
}

static void check_text(const struct bed_request *r, const char *want)
{
    if (r->text.len != strlen(want) || memcmp(r->text.data, want, r->text.len) != 0)
        fail_msg("'%.*s', want '%s'", (int)r->text.len, r->text.data, want);
}

static struct bed_request *plain(struct bed *t, int64_t max_tokens)
{
    struct bed_request *r = add(t, N_PROMPT, 1);
    r->max_tokens = max_tokens;
    r->sampler = (struct sampler_params){.top_p = 1};
    return r;
}

/* What the first attempt was asked for, and n of its ids. */
static struct bed_request *resume_of(struct bed *t, struct bed_request *first, uint32_t n_ids, uint32_t attempt)
{
    struct bed_request *r = bed_request_new(t->b, first->prompt, first->n_prompt, first->max_tokens);
    CHECK(t->n < MAX_REQUESTS);
    t->r[t->n++] = r;
    r->sampler = first->sampler;
    r->stop = first->stop;
    r->stop2 = first->stop2;
    r->ignore_eos = first->ignore_eos;
    r->client = first->client;
    r->resumes = first;
    r->n_resumed = n_ids;
    r->attempt = attempt;
    return r;
}

static void check_goes_on(const struct bed_request *first, const struct bed_request *r)
{
    uint32_t n = r->n_resumed;
    if (r->end.status != STATUS_OK)
        fail_msg("resumed at %u of %u: %s: %s", n, first->n_ids, status_name(r->end.status), r->end.message);
    assert_int_equal(r->n_ids, first->n_ids - n);
    assert_memory_equal(r->ids, first->ids + n, r->n_ids * sizeof *r->ids);
    assert_int_equal(r->text.len, first->text.len - first->text_at[n]);
    if (r->text.len)
        assert_memory_equal(r->text.data, first->text.data + first->text_at[n], r->text.len);
    assert_int_equal(r->n_done, 1);
    assert_int_equal(r->done.finish, first->done.finish);
    assert_int_equal(r->done.usage.prompt_tokens, first->done.usage.prompt_tokens);
    assert_int_equal(r->done.usage.completion_tokens, first->done.usage.completion_tokens);
    assert_int_equal(r->done.stop_text.len, first->done.stop_text.len);
}

/* One after the other, each in a bed of its own would be the same: nothing but ids and token goes over. */
static void check_every_place(struct bed *t, struct bed_request *first)
{
    bed_submit(first);
    bed_wait(first, WAIT_MS);
    assert_int_equal(first->end.status, STATUS_OK);
    assert_true(first->n_ids > 10);
    for (uint32_t n = 0; n <= first->n_ids; n++) {
        struct bed_request *r = resume_of(t, first, n, n + 1);
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        check_goes_on(first, r);
    }
    engine_bed_assert_quiet(t->b);
}

/* --- every place ---------------------------------------------------------------------------------------------------------------- */

static void answers_go_on_at_every_place_greedy_and_sampled(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 0\n", FLAGS("--slots", "2"));
    check_every_place(t, plain(t, 40));
    struct bed_request *sampled = plain(t, 40);
    sampled->sampler.temperature = 1;
    sampled->sampler.seed = 12345;
    check_every_place(t, sampled);
    bed_close(t);
}

static void answers_go_on_at_every_place_of_split_characters_and_stops(void **state)
{
    (void)state;
    /* Bytes are tokens: characters of two to four, a stop string that begins in vain and one that is complete. */
    struct bed *t = bed_that_says("a\xf0\x9f\x98\x80 abab \xe2\x82\xac""ab abcab\xc3\xa4 abcX unseen");
    struct bed_request *r = plain(t, 100);
    r->stop = "abcX";
    r->stop2 = "b\xc3\xa4 Y";
    check_every_place(t, r);
    check_text(r, "a\xf0\x9f\x98\x80 abab \xe2\x82\xac""ab abcab\xc3\xa4 ");
    assert_int_equal(r->done.finish, FINISH_STOP);
    bed_close(t);
}

static void answers_go_on_at_every_place_before_the_end_token(void **state)
{
    (void)state;
    struct bed *t = bed_that_says("held back: abc and");
    struct bed_request *r = plain(t, 100);
    r->stop = "and nothing";
    check_every_place(t, r);
    assert_int_equal(r->done.finish, FINISH_STOP);
    check_text(r, "held back: abc and");
    bed_close(t);
}

static void answers_go_on_at_every_place_to_a_limit_inside_a_character(void **state)
{
    (void)state;
    struct bed *t = bed_that_says("0123456789abc\xf0\x9f\x98\x80tail");
    struct bed_request *r = plain(t, 15);
    check_every_place(t, r);
    assert_int_equal(r->done.finish, FINISH_LENGTH);
    check_text(r, "0123456789abc\xef\xbf\xbd");
    bed_close(t);
}

/* --- usage ---------------------------------------------------------------------------------------------------------------------- */

static void usage_is_that_of_the_whole_answer(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\n", FLAGS("--slots", "2"));
    struct bed_request *first = plain(t, 30);
    bed_submit(first);
    bed_wait(first, WAIT_MS);
    first->first.cached_tokens = 7;
    first->first.queue_ms = 1000;
    first->first.prompt_ms = 2000;
    first->first.decode_ms = 3000;
    struct bed_request *r = resume_of(t, first, 10, 1);
    bed_submit(r);
    bed_wait(r, WAIT_MS);
    check_goes_on(first, r);
    assert_int_equal(r->done.usage.cached_tokens, 7);
    assert_true(r->done.usage.queue_ms > 999 && r->done.usage.queue_ms < 1001);
    assert_true(r->done.usage.prompt_ms > 1999 && r->done.usage.prompt_ms < 2001);
    assert_true(r->done.usage.decode_ms >= 3000 && r->done.usage.decode_ms < 8000);
    bed_close(t);
}

/* --- taking over ---------------------------------------------------------------------------------------------------------------- */

static void wait_text(struct bed_request *r, uint32_t n)
{
    wait_ids(r, n);
    if (bed_n_ids(r) < n)
        fail_msg("it ended before: %s", r->end.message);
}

static void later_attempt_takes_a_run_over_and_others_are_refused(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 500\n", FLAGS("--slots", "1"));
    struct bed_request *first = plain(t, 300), *waits = plain(t, 5);
    bed_submit(first);
    wait_text(first, 50);
    bed_submit(waits);
    struct bed_request *same = resume_of(t, first, 40, 0);
    bed_submit(same);
    bed_wait(same, WAIT_MS);
    assert_int_equal(same->end.status, STATUS_CONFLICT);
    assert_false(bed_ended(first));
    struct bed_request *later = resume_of(t, first, 40, 2);
    bed_submit(later);
    bed_wait(first, WAIT_MS);
    assert_int_equal(first->end.status, STATUS_CANCELLED);
    assert_string_equal(first->end.code, "taken_over");
    struct bed_request *between = resume_of(t, first, 40, 1);
    bed_submit(between);
    bed_wait(between, WAIT_MS);
    assert_int_equal(between->end.status, STATUS_CONFLICT);
    bed_wait(later, WAIT_MS);
    assert_int_equal(later->end.status, STATUS_OK);
    assert_int_equal(later->n_ids, 260);
    assert_memory_equal(later->ids, first->ids + 40, (first->n_ids - 40) * sizeof *first->ids);
    bed_wait(waits, WAIT_MS);
    assert_int_equal(waits->end.status, STATUS_OK);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void waiting_attempt_is_taken_over_too(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 500\n", FLAGS("--slots", "1", "--queue-requests", "1"));
    struct bed_request *runs = plain(t, 200), *waits = plain(t, 20);
    bed_submit(runs);
    wait_text(runs, 2);
    bed_submit(waits);
    for (int i = 0; i < 5000 && !bed_is_accepted(waits); i++) /* the queue is full now */
        sleep_ms(1);
    struct bed_request *later = resume_of(t, waits, 0, 1);
    bed_submit(later);
    bed_wait(waits, WAIT_MS);
    assert_int_equal(waits->end.status, STATUS_CANCELLED);
    bed_wait(later, WAIT_MS);
    assert_int_equal(later->end.status, STATUS_OK);
    assert_int_equal(later->n_ids, 20);
    bed_wait(runs, WAIT_MS);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* What runs may finish, by whichever call; what has ended here is a new request. */
static void engine_that_drains_lets_a_later_attempt_take_over_what_runs(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 500\n", FLAGS("--slots", "2"));
    struct bed_request *first = plain(t, 300), *gone = plain(t, 300);
    bed_submit(first);
    bed_submit(gone);
    wait_text(first, 20);
    wait_text(gone, 20);
    bed_cancel(gone);
    bed_wait(gone, WAIT_MS);
    engine_drain(engine_bed_engine(t->b), 1);
    struct bed_request *later = resume_of(t, first, 10, 1), *refused = resume_of(t, gone, 10, 1);
    bed_submit(later);
    bed_submit(refused);
    bed_wait(refused, WAIT_MS);
    assert_int_equal(refused->end.status, STATUS_DRAINING);
    bed_wait(later, WAIT_MS);
    assert_int_equal(later->end.status, STATUS_OK);
    assert_int_equal(later->n_ids, 290);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void resumed_ones_pass_the_cap_of_the_queue_and_others_do_not(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 500\n", FLAGS("--slots", "1", "--queue-requests", "1"));
    struct bed_request *before[3], *again[3];
    for (int i = 0; i < 3; i++) {
        bed_submit(before[i] = plain(t, 30));
        bed_wait(before[i], WAIT_MS);
    }
    struct bed_request *runs = plain(t, 200), *waits = plain(t, 5), *late = plain(t, 5);
    bed_submit(runs);
    wait_text(runs, 2);
    bed_submit(waits);
    for (int i = 0; i < 3; i++)
        bed_submit(again[i] = resume_of(t, before[i], 10, 1));
    bed_submit(late);
    bed_wait(late, WAIT_MS);
    assert_int_equal(late->end.status, STATUS_QUEUE_FULL);
    for (int i = 0; i < 3; i++) {
        bed_wait(again[i], WAIT_MS);
        check_goes_on(before[i], again[i]);
    }
    bed_wait(waits, WAIT_MS);
    assert_int_equal(waits->end.status, STATUS_OK);
    bed_wait(runs, WAIT_MS);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* --- refusals -------------------------------------------------------------------------------------------------------------------- */

static void answer_of_other_numerics_does_not_go_on(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\n", FLAGS("--slots", "1"));
    struct bed_request *first = plain(t, 30);
    struct resume_token other = {.profile = "numerics of another day"};
    struct error err;
    bed_submit(first);
    bed_wait(first, WAIT_MS);
    assert_int_equal(resume_token_make(engine_bed_resume_key(t->b), first->request, &other, &err), STATUS_OK);
    first->n_token = resume_token_write(&other, first->token);
    struct bed_request *r = resume_of(t, first, 5, 1);
    bed_submit(r);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->end.status, STATUS_PIPELINE_LOST);
    assert_string_equal(r->end.code, "profile");
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* A stage that comes back on another machine, say: what begins with it goes on with it. */
static void answers_that_began_with_new_numerics_go_on(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\n", FLAGS("--slots", "1"));
    canary(t);
    t->profile = "other numerics";
    engine_bed_kill_stage(t->b, 0);
    engine_bed_start_stage(t->b, 0);
    canary(t); /* the new one serves */
    assert_string_equal(engine_profile(engine_bed_engine(t->b)), t->profile);
    struct bed_request *first = plain(t, 30);
    bed_submit(first);
    bed_wait(first, WAIT_MS);
    struct bed_request *r = resume_of(t, first, 5, 1);
    bed_submit(r);
    bed_wait(r, WAIT_MS);
    check_goes_on(first, r);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* Nothing was lost in this process's life, but there was one before. */
static void answers_whose_stages_never_come_end_after_the_recovery_timeout(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\n", FLAGS("--slots", "1", "--recovery-timeout-ms", "300"));
    struct bed_request *first = plain(t, 30);
    bed_submit(first);
    bed_wait(first, WAIT_MS);
    engine_bed_kill_stage(t->b, 0);
    engine_bed_restart_engine(t->b);
    struct bed_request *began = resume_of(t, first, 5, 1), *waited = resume_of(t, first, 0, 1);
    waited->max_tokens = first->max_tokens;
    int64_t start_ns = clock_now_ns();
    bed_submit(began);
    bed_wait(began, WAIT_MS);
    assert_int_equal(began->end.status, STATUS_PIPELINE_LOST);
    assert_in_range(clock_now_ns() - start_ns, 250 * NS_PER_MS, 2 * NS_PER_S);
    bed_submit(waited);
    bed_wait(waited, WAIT_MS);
    assert_int_equal(waited->end.status, STATUS_PIPELINE);
    engine_bed_start_stage(t->b, 0);
    engine_bed_wait_ready(t->b);
    struct bed_request *late = resume_of(t, first, 5, 2);
    bed_submit(late);
    bed_wait(late, WAIT_MS);
    check_goes_on(first, late);
    bed_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_go_on_at_every_place_greedy_and_sampled),
        cmocka_unit_test(answers_go_on_at_every_place_of_split_characters_and_stops),
        cmocka_unit_test(answers_go_on_at_every_place_before_the_end_token),
        cmocka_unit_test(answers_go_on_at_every_place_to_a_limit_inside_a_character),
        cmocka_unit_test(usage_is_that_of_the_whole_answer),
        cmocka_unit_test(later_attempt_takes_a_run_over_and_others_are_refused),
        cmocka_unit_test(waiting_attempt_is_taken_over_too),
        cmocka_unit_test(engine_that_drains_lets_a_later_attempt_take_over_what_runs),
        cmocka_unit_test(resumed_ones_pass_the_cap_of_the_queue_and_others_do_not),
        cmocka_unit_test(answer_of_other_numerics_does_not_go_on),
        cmocka_unit_test(answers_that_began_with_new_numerics_go_on),
        cmocka_unit_test(answers_whose_stages_never_come_end_after_the_recovery_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
