/* Requests over the end of an epoch: who was parked goes on, who makes stages die is found, what cannot be had back has an end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/engine/fake_bed.h"

/* Where all requests are to be in flight then: a tick takes several milliseconds, and the next one is sent by now. */
static void crash(struct bed *t, uint32_t stage, int signal)
{
    sleep_ms(1);
    engine_bed_crash_stage(t->b, stage, signal);
    engine_bed_start_stage(t->b, stage);
}

/* Until one more id of it has come: rows of it are in flight then, for as long as its answer goes on. */
static void wait_more(struct bed_request *r)
{
    wait_ids(r, bed_n_ids(r) + 1);
}

static struct service_status *status_of(struct bed *t)
{
    static struct service_status s;
    engine_status(engine_bed_engine(t->b), &s);
    return &s;
}

static void a_request_that_kills_stages_fails_at_the_third_death_and_the_others_go_on(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 5000\n", FLAGS("--slots", "4"));
    struct bed_request *poison = start(t, 40, 100);
    for (int i = 0; i < 3; i++)
        start(t, 20 + 30 * (uint32_t)i, 100);
    for (int death = 0; death < 3; death++) {
        wait_more(poison);
        crash(t, (uint32_t)death % 2, death % 2 ? SIGABRT : SIGSEGV);
    }
    bed_wait(poison, 5000);
    assert_int_equal(poison->end.status, STATUS_POISON);
    assert_false(status_retryable(poison->end.status)); /* three more stages */
    assert_non_null(strstr(poison->end.message, "stage 0 died of signal 11, the 3. time"));
    assert_int_equal(poison->n_finished, 1);
    wait_all(t);
    for (uint32_t i = 1; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void a_suspect_runs_alone_until_it_got_past_the_place_where_a_stage_died(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 5000\ntoken_us 300\n", FLAGS("--slots", "4"));
    for (int i = 0; i < 4; i++)
        start(t, 200, 100);
    for (int death = 0; death < 2; death++) {
        for (int i = 0; i < 4; i++)
            wait_more(t->r[i]);
        crash(t, 1, SIGBUS);
    }
    /* all four are suspects now: one after the other reads its prompt again, and nobody beside it */
    uint32_t seen = 0;
    for (int64_t end_ns = clock_now_ns() + 3 * NS_PER_S; clock_now_ns() < end_ns; usleep(200)) {
        const struct service_status *s = status_of(t);
        if (s->parked == 0 && seen == 0)
            continue; /* the loss is still to be seen */
        if (s->parked == 0)
            break;
        assert_true(s->reading + s->decoding <= 1);
        seen += s->reading + s->decoding == 1;
    }
    assert_true(seen > 10);
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void deaths_that_are_nobodys_fault_make_no_suspects(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 300\n", FLAGS("--slots", "3"));
    for (int i = 0; i < 3; i++)
        start(t, 30, 400);
    for (int death = 0; death < 8; death++) {
        wait_more(t->r[0]);
        if (death % 4 == 3)
            engine_bed_break_stream(t->b, 0);
        else
            crash(t, (uint32_t)death % 3, SIGKILL);
        engine_bed_wait_ready(t->b);
    }
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void a_stage_that_fails_every_tick_ends_its_requests_in_time_naming_stage_and_cause(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 300\n", FLAGS("--slots", "2", "--recovery-timeout-ms", "600"));
    struct bed_request *r = start(t, 30, 400), *queued[2];
    start(t, 30, 400);
    wait_ids(r, 2);
    for (int i = 0; i < 2; i++)
        queued[i] = start(t, 30, 10);
    int64_t since_ns = clock_now_ns();
    while (!bed_ended(r)) { /* each epoch ends before a tick of it retires */
        engine_bed_break_stream(t->b, 1);
        usleep(1000);
        assert_true(clock_now_ns() - since_ns < 3 * NS_PER_S);
    }
    assert_int_equal(r->end.status, STATUS_PIPELINE_LOST);
    assert_true(status_retryable(r->end.status));
    assert_non_null(strstr(r->end.message, "stage 1"));
    for (int i = 0; i < 2; i++) {
        bed_wait(queued[i], 1000);
        assert_int_equal(queued[i]->end.status, STATUS_PIPELINE);
    }
    check_answer(t, r);
    engine_bed_wait_ready(t->b);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void a_client_that_reads_nothing_and_one_whose_end_waits_survive_a_loss(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 200\n", FLAGS("--slots", "3"));
    struct bed_request *mute = add(t, 20, 200), *ending = add(t, 20, 6), *reader = start(t, 20, 300);
    bed_submit(mute);
    bed_submit(ending);
    wait_ids(mute, 3);
    wait_ids(ending, 1);
    atomic_store(&mute->mute, 1);
    atomic_store(&ending->mute, 1);
    wait_ids(reader, bed_n_ids(reader) + 30);
    crash(t, 1, SIGKILL);
    engine_bed_wait_ready(t->b);
    wait_more(reader);
    crash(t, 0, SIGKILL);
    atomic_store(&mute->mute, 0);
    atomic_store(&ending->mute, 0);
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static uint64_t replayed(struct bed *t)
{
    struct buf page;
    buf_init(&page, 1 << 20);
    usleep(100 * 1000); /* it is published after a while */
    engine_metrics(engine_bed_engine(t->b), METRIC_ALIASES_NONE, &page);
    buf_append(&page, "", 1);
    const char *at = strstr(page.data, "\nsluice_replayed_tokens_total ");
    assert_non_null(at);
    uint64_t n = strtoull(at + strlen("\nsluice_replayed_tokens_total "), NULL, 10);
    buf_fini(&page);
    return n;
}

/* A killed stage maps its pool again: of each stream no more is read again than what fills no block. */
static void a_pool_that_outlives_its_process_is_not_read_again(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 1000\n", FLAGS("--slots", "4"));
    bed_keep_kv(t);
    for (uint32_t i = 0; i < 3; i++) { /* whose pool is the bed's from here on */
        crash(t, i, SIGKILL);
        engine_bed_wait_ready(t->b);
    }
    for (int i = 0; i < 4; i++) {
        struct bed_request *r = add(t, 250, 240);
        r->no_cache = i == 2; /* finds its own blocks nevertheless */
        bed_submit(r);
    }
    for (int i = 0; i < 4; i++)
        wait_ids(t->r[i], 1);
    uint64_t before = replayed(t);
    for (uint32_t death = 0; death < 3; death++) {
        wait_more(t->r[0]);
        crash(t, death, SIGKILL);
        engine_bed_wait_ready(t->b);
        wait_more(t->r[0]);
    }
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    uint64_t again = replayed(t) - before;
    if (again > 3 * 4 * (16 + 4)) /* a block, and the rows in flight */
        fail_msg("%u positions were read again", (unsigned)again);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* Stage 0 loses its pool, the others have theirs: they take no part in the reading again. */
static void what_one_stage_lost_is_read_again_up_to_it_alone(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 300\ntoken_us 20\n", FLAGS("--slots", "4"));
    for (int i = 0; i < 4; i++)
        start(t, 250, 240);
    for (int i = 0; i < 4; i++)
        wait_ids(t->r[i], 1);
    for (uint32_t death = 0; death < 6; death++) {
        wait_more(t->r[death % 4]);
        crash(t, death % 3 == 2 ? 1 : 0, SIGKILL);
        engine_bed_wait_ready(t->b);
    }
    assert_true(replayed(t) > 250);
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* A pool so small that requests are parked for want of blocks as well. */
static void losses_of_every_kind_on_a_tight_pool_change_no_token(void **state)
{
    (void)state;
    struct bed *t = bed_open(3, "tick_us 150\n", FLAGS("--slots", "5", "--kv-blocks", "48"));
    int n_segv = 0; /* a third could find an innocent one alone */
    for (int round = 0; round < 24; round++) {
        for (int i = 0; i < 5; i++) {
            struct bed_request *r = add(t, 1 + below(200), 1 + below(150));
            r->no_cache = below(6) == 0;
            r->refuse_every = below(5) == 0 ? 2 + below(3) : 0;
            bed_submit(r);
        }
        usleep(below(15000));
        if (below(3) == 0)
            engine_bed_break_stream(t->b, below(3));
        else
            crash(t, below(3), n_segv < 2 && below(8) == 0 ? (n_segv++, SIGSEGV) : SIGKILL);
        bed_cancel(t->r[below(t->n)]);
        if (below(2))
            engine_bed_wait_ready(t->b);
        usleep(below(30000));
    }
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->r[i]->end.status != STATUS_OK && t->r[i]->end.status != STATUS_CANCELLED)
            fail_msg("request %u: %s: %s", i, status_name(t->r[i]->end.status), t->r[i]->end.message);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

/* Many begin alike and share blocks, of pools that outlive their process or go with it: what is whole is taken up by all, what is not
 * is read again by one. */
static void losses_on_shared_beginnings_with_pools_that_stay_or_go_change_no_token(void **state)
{
    (void)state;
    enum { N_TEXTS = 2, MOST_COMMON = 200 };
    static uint32_t texts[N_TEXTS][MOST_COMMON];
    struct bed *t = bed_open(3, "tick_us 150\n", FLAGS("--slots", "4", "--kv-blocks", "40", "--max-rows", "15"));
    bed_keep_kv(t);
    for (uint32_t i = 0; i < N_TEXTS * MOST_COMMON; i++)
        texts[i / MOST_COMMON][i % MOST_COMMON] = below(FAKE_VOCAB);
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 5; i++) {
            uint32_t common = below(2) ? below(MOST_COMMON) : 16 * below(MOST_COMMON / 16);
            struct bed_request *r = add(t, common + 1 + below(60), 1 + below(100));
            memcpy(r->prompt, texts[below(N_TEXTS)], common * sizeof *r->prompt);
            r->no_cache = below(8) == 0;
            bed_submit(r);
        }
        usleep(below(15000));
        uint32_t stage = below(3);
        engine_bed_crash_stage(t->b, stage, SIGKILL);
        if (below(2))
            assert_int_equal(ftruncate(t->kv_fd[stage], 0), 0);
        engine_bed_start_stage(t->b, stage);
        if (below(2))
            engine_bed_wait_ready(t->b);
        usleep(below(20000));
    }
    wait_all(t);
    for (uint32_t i = 0; i < t->n; i++)
        assert_int_equal(t->r[i]->end.status, STATUS_OK);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_that_kills_stages_fails_at_the_third_death_and_the_others_go_on),
        cmocka_unit_test(a_suspect_runs_alone_until_it_got_past_the_place_where_a_stage_died),
        cmocka_unit_test(deaths_that_are_nobodys_fault_make_no_suspects),
        cmocka_unit_test(a_stage_that_fails_every_tick_ends_its_requests_in_time_naming_stage_and_cause),
        cmocka_unit_test(a_client_that_reads_nothing_and_one_whose_end_waits_survive_a_loss),
        cmocka_unit_test(a_pool_that_outlives_its_process_is_not_read_again),
        cmocka_unit_test(what_one_stage_lost_is_read_again_up_to_it_alone),
        cmocka_unit_test(losses_of_every_kind_on_a_tight_pool_change_no_token),
        cmocka_unit_test(losses_on_shared_beginnings_with_pools_that_stay_or_go_change_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
