/* The engine with fake stages: whatever comes and goes, each request gets one end, and its text is the reference's. */
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

/* What the engine publishes follows the event by a few milliseconds. */
static void wait_flag(int (*flag)(struct engine *e), struct engine *e, int want, const char *name)
{
    for (int64_t end_ns = clock_now_ns() + NS_PER_S; flag(e) != want; usleep(500))
        if (clock_now_ns() > end_ns)
            fail_msg("%s is not %d within a second", name, want);
}

/* --- tests --------------------------------------------------------------------------------------------------------------------------- */

static void engine_gives_reference_texts_to_all_when_many_come_and_leave(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        struct bed *t = bed_open(n_stages, "tick_us 100\n", FLAGS("--slots", "4", "--queue-requests", "200"));
        uint32_t n_cancelled = 0, n_good = 0;
        for (int i = 0; i < 60; i++) {
            struct bed_request *r = add(t, 1 + below(i % 5 ? 40 : 300), 1 + below(40));
            r->refuse_every = below(4) == 0 ? 2 + below(3) : 0;
            bed_submit(r);
            if (below(4) == 0)
                bed_cancel(t->r[below(t->n)]);
            usleep(below(3) * 700);
        }
        wait_all(t);
        for (uint32_t i = 0; i < t->n; i++) {
            enum status s = t->r[i]->end.status;
            if (s != STATUS_OK && s != STATUS_CANCELLED)
                fail_msg("request %u of %u stages: %s: %s", i, n_stages, status_name(s), t->r[i]->end.message);
            n_good += s == STATUS_OK;
            n_cancelled += s == STATUS_CANCELLED;
        }
        assert_true(n_good > 30 && n_cancelled > 0);
        engine_bed_assert_quiet(t->b);
        bed_close(t);
    }
}

static void engine_with_a_full_queue_says_when_to_come_again(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 300\n", FLAGS("--slots", "2", "--queue-requests", "5"));
    uint32_t n_ok = 0, n_full = 0;
    for (int i = 0; i < 40; i++)
        start(t, 10, 20);
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct error *e = &t->r[i]->end;
        if (e->status == STATUS_QUEUE_FULL) {
            n_full++;
            assert_in_range(e->retry_after_s, 1, 60);
            assert_int_equal(t->r[i]->n_events, 0);
        } else {
            assert_int_equal(e->status, STATUS_OK);
            n_ok++;
        }
    }
    if (n_ok < 7 || n_full == 0)
        fail_msg("%u served, %u refused", n_ok, n_full);
    canary(t); /* a refused client's next turn */
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_frees_a_slot_whatever_tick_its_client_leaves_at(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 400\n", FLAGS("--slots", "2"));
    struct bed_request *beside = start(t, 30, 400);
    for (int offset = 0; offset <= 24; offset++) {
        struct bed_request *r = start(t, 1 + below(60), 200);
        usleep((useconds_t)offset * 200);
        bed_cancel(r);
        int64_t left_ns = clock_now_ns();
        bed_wait(r, 1000);
        assert_int_equal(r->end.status, STATUS_CANCELLED);
        assert_true(clock_now_ns() - left_ns < NS_PER_S);
    }
    bed_wait(beside, WAIT_MS);
    assert_int_equal(beside->end.status, STATUS_OK);
    check_answer(t, beside);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_starts_waiting_requests_in_their_order(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 200\n", FLAGS("--slots", "1"));
    for (int i = 0; i < 12; i++)
        start(t, 1 + below(100), 4);
    wait_all(t);
    for (uint32_t i = 1; i < t->n; i++)
        assert_true(t->r[i]->ended_ns > t->r[i - 1]->ended_ns);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

enum loss { LOSS_KILL, LOSS_STREAM, LOSS_SILENCE, LOSS_KINDS };

/* All of them pause, and end with their reference once the stage is back. */
static void lose(struct bed *t, uint32_t stage, enum loss kind)
{
    struct bed_request *running[2], *queued[3];
    for (int i = 0; i < 2; i++)
        running[i] = start(t, 20 + 100 * (uint32_t)i, 350);
    wait_ids(running[0], 3);
    wait_ids(running[1], 1);
    for (int i = 0; i < 3; i++)
        queued[i] = start(t, 10, 10);
    sleep_ms(5);
    if (kind == LOSS_KILL)
        engine_bed_kill_stage(t->b, stage);
    else if (kind == LOSS_STREAM)
        engine_bed_break_stream(t->b, stage);
    else
        engine_bed_silence(t->b, stage, 1);
    if (kind == LOSS_KILL) {
        wait_flag(engine_ready, engine_bed_engine(t->b), 0, "ready");
        for (int i = 0; i < 3; i++)
            assert_false(bed_ended(queued[i]) || (i < 2 && bed_ended(running[i])));
        engine_bed_start_stage(t->b, stage);
    } else if (kind == LOSS_SILENCE) {
        wait_flag(engine_ready, engine_bed_engine(t->b), 0, "ready");
        engine_bed_silence(t->b, stage, 0);
    }
    for (int i = 0; i < 2; i++) {
        bed_wait(running[i], WAIT_MS);
        if (running[i]->end.status != STATUS_OK)
            fail_msg("stage %u, loss %d: %s: %s", stage, (int)kind, status_name(running[i]->end.status), running[i]->end.message);
        check_answer(t, running[i]);
    }
    for (int i = 0; i < 3; i++) {
        bed_wait(queued[i], WAIT_MS);
        assert_int_equal(queued[i]->end.status, STATUS_OK);
        check_answer(t, queued[i]);
    }
}

static void engine_survives_the_loss_of_each_stage(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 1000\n", FLAGS("--slots", "2"));
    for (int kind = 0; kind < LOSS_KINDS; kind++)
        for (uint32_t stage = 0; stage < (kind == LOSS_SILENCE ? 1 : 3); stage++)
            lose(t, stage, kind);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_survives_stages_that_come_and_go_at_random(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 200\n", FLAGS("--slots", "3"));
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 6; i++)
            start(t, 1 + below(60), 1 + below(60));
        usleep(below(8000));
        uint32_t stage = below(2);
        if (below(2)) {
            engine_bed_kill_stage(t->b, stage);
            usleep(below(4000));
            engine_bed_start_stage(t->b, stage);
        } else {
            engine_bed_break_stream(t->b, stage);
        }
        bed_cancel(t->r[below(t->n)]);
        usleep(below(20000));
    }
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++) {
        enum status s = t->r[i]->end.status;
        assert_true(s == STATUS_OK || s == STATUS_CANCELLED);
    }
    engine_bed_wait_ready(t->b);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_without_a_stage_refuses_after_the_recovery_time(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 500\n", FLAGS("--slots", "1", "--recovery-timeout-ms", "300"));
    struct bed_request *running = start(t, 10, 300), *queued = start(t, 10, 10);
    wait_ids(running, 2);
    int64_t killed_ns = clock_now_ns();
    engine_bed_kill_stage(t->b, 1);
    bed_wait(queued, 3000);
    assert_int_equal(running->end.status, STATUS_PIPELINE_LOST);
    assert_int_equal(queued->end.status, STATUS_PIPELINE);
    assert_true(queued->end.retry_after_s >= 1);
    assert_true(running->ended_ns - killed_ns > 250 * NS_PER_MS && running->ended_ns - killed_ns < 600 * NS_PER_MS);
    assert_non_null(strstr(running->end.message, "stage 1"));
    struct bed_request *late = start(t, 10, 10);
    bed_wait(late, 1000);
    assert_int_equal(late->end.status, STATUS_PIPELINE);
    struct buf page;
    buf_init(&page, 1 << 20);
    engine_count_refused(engine_bed_engine(t->b), STATUS_DRAINING); /* what never came so far */
    engine_count_refused(engine_bed_engine(t->b), STATUS_BAD_REQUEST);
    usleep(100 * 1000);
    engine_metrics(engine_bed_engine(t->b), METRIC_ALIASES_NONE, &page);
    assert_non_null(strstr(page.data, "sluice_queue_rejected_total{reason=\"draining\"} 1\n"));
    assert_non_null(strstr(page.data, "sluice_queue_rejected_total{reason=\"not_ready\"} 1\n"));
    assert_non_null(strstr(page.data, "sluice_queue_rejected_total{reason=\"queue_full\"} 0\n"));
    buf_fini(&page);
    engine_bed_start_stage(t->b, 1);
    engine_bed_wait_ready(t->b);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_repeats_a_failed_tick_and_goes_on(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 300\nstage 1 fail_tick 40 OUT_OF_MEMORY\n", FLAGS("--slots", "2"));
    struct bed_request *r = start(t, 10, 300);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->end.status, STATUS_OK);
    check_answer(t, r);
    engine_bed_wait_ready(t->b);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_ends_one_request_for_bad_logits(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 300\nbad_logits_tick 30\n", FLAGS("--slots", "2"));
    struct bed_request *r = start(t, 10, 300);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->end.status, STATUS_BAD_LOGITS);
    assert_true(status_retryable(r->end.status));
    check_answer(t, r);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* An answer that is complete and waits for its client ends well, whatever a row behind its end gives. */
static void a_row_behind_the_end_of_an_answer_cannot_spoil_it(void **state)
{
    (void)state;
    uint32_t n_whole = 0;
    for (int tick = 2; tick < 12; tick++) { /* one of them is the row behind the end */
        char script[160];
        uint32_t a = FAKE_FIRST_BYTE + 'a' - '!';
        snprintf(script, sizeof script, "tick_us 500\nbad_logits_tick %d\nanswer_at 10\nids %u %u %u %u %u %u\n", tick, a, a + 1, a + 2,
                 a + 3, a + 4, a + 5);
        struct bed *t = bed_open(2, script, FLAGS("--slots", "2"));
        struct bed_request *r = add(t, 10, 100);
        r->sampler = (struct sampler_params){.top_p = 1};
        r->stop = "d";
        r->refuse_every = 5; /* the client has not read when the stop comes: the accepted event is the first */
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        if (r->end.status == STATUS_OK) {
            assert_int_equal(r->n_ids, 4);
            assert_int_equal(r->done.finish, FINISH_STOP);
            n_whole++;
        } else {
            assert_int_equal(r->end.status, STATUS_BAD_LOGITS);
            assert_true(r->request->n_answer < 4);
        }
        bed_close(t);
    }
    assert_true(n_whole > 0 && n_whole < 10);
}

/* on: what goes to stderr is kept from now on. Off: it goes there again; the number of lines kept. */
static uint32_t count_lines(int on)
{
    static FILE *file;
    static int saved;
    uint32_t n = 0;
    if (on) {
        assert_non_null(file = tmpfile());
        saved = dup(STDERR_FILENO);
        assert_true(saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
        return 0;
    }
    assert_true(dup2(saved, STDERR_FILENO) >= 0 && close(saved) == 0);
    rewind(file);
    for (int c; (c = getc(file)) != EOF;)
        n += c == '\n';
    fclose(file);
    return n;
}

static void clients_that_leave_or_wait_in_vain_write_no_line(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 300\n", FLAGS("--slots", "1", "--queue-wait-ms", "100"));
    count_lines(1);
    for (int i = 0; i < 20; i++)
        start(t, 10, 400);
    sleep_ms(10);
    for (uint32_t i = 0; i < t->n; i += 2)
        bed_cancel(t->r[i]);
    for (uint32_t i = 0; i < t->n; i++)
        bed_wait(t->r[i], WAIT_MS);
    uint32_t n = count_lines(0);
    assert_int_equal(t->r[0]->end.status, STATUS_CANCELLED);
    assert_int_equal(t->r[3]->end.status, STATUS_QUEUE_WAIT);
    assert_int_equal(n, 0);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_refuses_what_the_pool_can_never_hold_and_makes_the_rest_wait(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "4", "--kv-blocks", "6"));
    struct bed_request *never = start(t, 90, 8);
    bed_wait(never, 1000);
    assert_int_equal(never->end.status, STATUS_BAD_REQUEST);
    assert_string_equal(never->end.code, "kv_pool_exceeded");
    for (int i = 0; i < 10; i++)
        start(t, 20 + below(60), 1 + below(16));
    for (uint32_t i = 1; i < t->n; i++) {
        bed_wait(t->r[i], WAIT_MS);
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
        check_answer(t, t->r[i]);
    }
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_ends_an_answer_of_no_named_length_where_the_pool_ends(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "4", "--kv-blocks", "6")); /* 96 positions */
    const uint32_t prompt[60] = {1, 2, 3};
    for (int i = 0; i < 2; i++) { /* no length; a length that no context holds */
        struct bed_request *r = t->r[t->n++] = bed_request_new(t->b, prompt, 60, i ? 1ll << 31 : -1);
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OK);
        assert_int_equal(r->done.finish, FINISH_LENGTH);
        assert_int_equal(r->n_ids, 96 - 60 + 1); /* the last id needs no room */
    }
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_ends_a_stream_rather_than_leave_a_gap_in_it(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "2"));
    for (uint32_t at = 2; at < 6; at++) {
        struct bed_request *r = add(t, 20, 40);
        r->no_memory_at = at;
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OUT_OF_MEMORY);
        assert_true(r->n_ids < 40);
        check_answer(t, r); /* what came is the beginning of the reference */
    }
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_with_a_request_in_hand_is_not_idle(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 50\n", FLAGS("--slots", "2"));
    struct engine *e = engine_bed_engine(t->b);
    for (int i = 0; i < 100; i++) {
        wait_flag(engine_idle, e, 1, "idle");
        struct bed_request *r = start(t, 2, 1);
        for (int idle = 0; !idle; usleep(50)) {
            idle = engine_idle(e);
            if (idle && !bed_ended(r))
                fail_msg("idle beside request %d", i);
        }
    }
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_ends_waits_and_runs_at_their_time(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 1000\n", FLAGS("--slots", "1", "--queue-wait-ms", "150"));
    struct bed_request *first = start(t, 10, 450), *waits = start(t, 10, 10);
    bed_wait(waits, 2000);
    assert_int_equal(waits->end.status, STATUS_QUEUE_WAIT);
    assert_in_range(waits->end.retry_after_s, 1, 60);
    assert_true(waits->ended_ns - waits->started_ns >= 150 * NS_PER_MS);
    bed_cancel(first);
    struct bed_request *r = add(t, 10, 450);
    r->deadline_ms = 100;
    bed_submit(r);
    bed_wait(r, 2000);
    assert_int_equal(r->end.status, STATUS_TIMEOUT);
    assert_true(r->n_ids > 0);
    check_answer(t, r);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_drains_and_takes_requests_again(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 300\n", FLAGS("--slots", "2"));
    struct engine *e = engine_bed_engine(t->b);
    for (int i = 0; i < 4; i++)
        start(t, 10, 30);
    engine_drain(e, 1);
    struct bed_request *late = start(t, 10, 10);
    bed_wait(late, 2000);
    assert_int_equal(late->end.status, STATUS_DRAINING);
    for (uint32_t i = 0; i < 4; i++) {
        bed_wait(t->r[i], WAIT_MS);
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
        check_answer(t, t->r[i]);
    }
    engine_bed_assert_quiet(t->b);
    wait_flag(engine_idle, e, 1, "idle");
    wait_flag(engine_ready, e, 0, "ready");
    engine_drain(e, 0);
    canary(t);
    bed_close(t);
}

static struct bed_request *sibling_of(struct bed *t, struct bed_request *other)
{
    struct bed_request *r = add(t, 12, 20);
    r->sibling = other;
    bed_submit(r);
    return r;
}

/* The other answers to a request come after its first token: those of one that runs are no new request. */
static void engine_that_drains_takes_the_siblings_of_what_runs(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 300\n", FLAGS("--slots", "2"));
    struct engine *e = engine_bed_engine(t->b);
    struct bed_request *ended = start(t, 10, 5), *first = start(t, 10, 300);
    bed_wait(ended, WAIT_MS);
    wait_ids(first, 1);
    engine_drain(e, 1);
    struct bed_request *late = sibling_of(t, ended), *a = sibling_of(t, first), *b = sibling_of(t, first);
    bed_wait(late, 2000);
    assert_int_equal(late->end.status, STATUS_DRAINING);
    bed_wait(a, WAIT_MS);
    bed_wait(b, WAIT_MS);
    bed_wait(first, WAIT_MS);
    assert_int_equal(a->end.status, STATUS_OK);
    assert_int_equal(b->end.status, STATUS_OK);
    check_answer(t, a);
    check_answer(t, b);
    check_answer(t, first);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_that_stops_ends_everything_once(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 500\n", FLAGS("--slots", "2"));
    for (int i = 0; i < 6; i++)
        start(t, 1 + below(200), 300);
    wait_ids(t->r[0], 1);
    engine_stop(engine_bed_engine(t->b));
    for (uint32_t i = 0; i < t->n; i++) {
        bed_wait(t->r[i], 10);
        assert_int_equal(t->r[i]->end.status, STATUS_DRAINING);
        check_answer(t, t->r[i]);
    }
    struct bed_request *late = start(t, 10, 10);
    assert_int_equal(late->refused, 1);
    assert_int_equal(late->end.status, STATUS_DRAINING);
    bed_close(t);
}

static void engine_stops_at_a_stop_string_and_gives_the_text_before_it(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "2"));
    struct bed_request *whole = start(t, 12, 60);
    bed_wait(whole, WAIT_MS);
    const char *text = whole->text.data;
    size_t at = 3;
    while (at + 3 < whole->text.len && (signed char)text[at] <= 0) /* from a letter on, so that no character is cut before it */
        at++;
    assert_true(at + 3 < whole->text.len);
    char stop[4] = {text[at], text[at + 1], text[at + 2], 0};
    assert_int_equal(strlen(stop), 3);
    size_t want = (size_t)((const char *)memmem(text, whole->text.len, stop, 3) - text);
    struct bed_request *r = bed_request_new(t->b, whole->prompt, whole->n_prompt, 60);
    t->r[t->n++] = r;
    r->sampler = whole->sampler;
    r->stop = stop;
    bed_submit(r);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->done.finish, FINISH_STOP);
    assert_int_equal(r->text.len, want);
    assert_memory_equal(r->text.data ? r->text.data : "", text, want);
    check_answer(t, r);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void engine_forgets_no_request_that_comes_as_an_epoch_begins(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 20\n", FLAGS("--slots", "4"));
    enum { N = 600 };
    const uint32_t prompt[2] = {1, 2};
    for (int round = 0; round < 10; round++) {
        struct bed_request *r[N];
        engine_bed_break_stream(t->b, (uint32_t)round % 2);
        for (int i = 0; i < N; i++, usleep(20)) /* they come until after the new epoch has begun */
            bed_submit(r[i] = bed_request_new(t->b, prompt, 2, 1));
        for (int i = 0; i < N; i++) {
            bed_wait(r[i], 3000);
            assert_true(r[i]->end.status == STATUS_OK || status_retryable(r[i]->end.status));
            bed_request_free(r[i]);
        }
    }
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_gives_reference_texts_to_all_when_many_come_and_leave),
        cmocka_unit_test(engine_with_a_full_queue_says_when_to_come_again),
        cmocka_unit_test(engine_frees_a_slot_whatever_tick_its_client_leaves_at),
        cmocka_unit_test(engine_starts_waiting_requests_in_their_order),
        cmocka_unit_test(engine_survives_the_loss_of_each_stage),
        cmocka_unit_test(engine_survives_stages_that_come_and_go_at_random),
        cmocka_unit_test(engine_without_a_stage_refuses_after_the_recovery_time),
        cmocka_unit_test(engine_repeats_a_failed_tick_and_goes_on),
        cmocka_unit_test(engine_ends_one_request_for_bad_logits),
        cmocka_unit_test(a_row_behind_the_end_of_an_answer_cannot_spoil_it),
        cmocka_unit_test(clients_that_leave_or_wait_in_vain_write_no_line),
        cmocka_unit_test(engine_refuses_what_the_pool_can_never_hold_and_makes_the_rest_wait),
        cmocka_unit_test(engine_ends_waits_and_runs_at_their_time),
        cmocka_unit_test(engine_drains_and_takes_requests_again),
        cmocka_unit_test(engine_that_drains_takes_the_siblings_of_what_runs),
        cmocka_unit_test(engine_that_stops_ends_everything_once),
        cmocka_unit_test(engine_stops_at_a_stop_string_and_gives_the_text_before_it),
        cmocka_unit_test(engine_ends_an_answer_of_no_named_length_where_the_pool_ends),
        cmocka_unit_test(engine_ends_a_stream_rather_than_leave_a_gap_in_it),
        cmocka_unit_test(engine_with_a_request_in_hand_is_not_idle),
        cmocka_unit_test(engine_forgets_no_request_that_comes_as_an_epoch_begins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
