/* What the pipeline says and does when stages die, sleep, wake or are replaced: virtual time, pretended stages. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "pipeline_fake.h"

/* Ticks that all stages compute. */
static void run_ticks(struct fakes *f, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(fakes_send_plan(f), STATUS_OK);
        fakes_pump(f);
        assert_int_equal(pipeline_in_flight(f->p), 0);
    }
}

/* All answer, another process in the place of one. */
static void pump_with(struct fakes *f, const struct fake *gone, struct fake *instead)
{
    for (int again = 1; again;) {
        again = fake_answer(instead);
        for (uint32_t i = 0; i < f->n; i++)
            if (&f->fake[i] != gone)
                again |= fake_answer(&f->fake[i]);
    }
}

/* --- what KV pools hold ---------------------------------------------------------------------------------------------------------- */

static void the_first_epoch_of_a_coordinator_has_no_kv_at_any_stage(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    for (int i = 0; i < 3; i++) /* of a session before, as a stage that outlived its coordinator says it */
        f.fake[i].kv.kv_session = 5, f.fake[i].kv.kv_epoch = 1, f.fake[i].kv.kv_tick = 100;
    fakes_settle(&f);
    assert_int_equal(f.event.kv_lost, 2);
    assert_int_equal(f.event.crash_signal, 0);
    assert_int_equal(f.event.crash_stage, STAGE_NONE);
    fakes_fini(&f);
}

static void stages_that_kept_their_pools_lose_nothing_with_an_epoch(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    fakes_settle(&f);
    for (int round = 0; round < 4; round++) {
        run_ticks(&f, round); /* also an epoch that retires nothing */
        if (round % 2)
            fake_close(&f.fake[1]); /* a restart that maps the pool again */
        else
            fake_fail(&f.fake[2], STATUS_LINK, "broken");
        fakes_settle(&f);
        assert_int_equal(f.event.kv_lost, STAGE_NONE);
    }
    fakes_fini(&f);
}

static void the_highest_stage_with_a_new_pool_is_told(void **state)
{
    (void)state;
    for (unsigned lost = 1; lost < 8; lost++) {
        struct fakes f;
        fakes_init(&f, 3);
        fakes_settle(&f);
        run_ticks(&f, 5);
        int highest = STAGE_NONE;
        for (int i = 0; i < 3; i++)
            if (lost >> i & 1) {
                fake_close(&f.fake[i]);
                fake_new_pool(&f.fake[i]);
                highest = i;
            }
        fakes_settle(&f);
        assert_int_equal(f.event.kv_lost, highest);
        run_ticks(&f, 1);
        fake_close(&f.fake[0]); /* what was new is now what counts */
        fakes_settle(&f);
        assert_int_equal(f.event.kv_lost, STAGE_NONE);
        fakes_fini(&f);
    }
}

static void a_pool_that_is_behind_what_was_retired_counts_as_lost(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 4; wrong++) {
        struct fakes f;
        fakes_init(&f, 3);
        fakes_settle(&f);
        run_ticks(&f, 5);
        assert_int_equal(f.fake[1].kv.kv_tick, 5);
        fake_fail(&f.fake[2], STATUS_LINK, "broken");
        f.fake[1].kv.kv_tick -= wrong == 1;
        f.fake[1].kv.kv_epoch -= wrong == 2;
        f.fake[1].kv.kv_session -= wrong == 3;
        f.fake[0].kv.kv_tick++; /* it has computed one that nobody saw retired */
        fakes_settle(&f);
        assert_int_equal(f.event.kv_lost, wrong ? 1 : STAGE_NONE);
        fakes_fini(&f);
    }
}

/* Epochs that were raised and came to nothing leave their own marks in the pools, or lose one. */
static void what_was_lost_or_kept_is_held_against_the_last_epoch_that_ran(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        struct fakes f;
        fakes_init(&f, 2);
        fakes_settle(&f);
        run_ticks(&f, 5);
        fake_close(&f.fake[1]);
        if (lost)
            fake_new_pool(&f.fake[1]);
        fake_attach(&f.fake[1]);
        while (pipeline_state(f.p) != PIPELINE_WARMING)
            assert_int_equal(fake_answer(&f.fake[0]) + fake_answer(&f.fake[1]) > 0, 1);
        fake_answer(&f.fake[0]); /* its watermark is now of this epoch's first tick */
        assert_int_equal(f.fake[0].kv.kv_tick, 0);
        fake_close(&f.fake[1]);
        fakes_settle(&f);
        assert_int_equal(f.event.kv_lost, lost ? 1 : STAGE_NONE);
        fakes_fini(&f);
    }
}

/* --- how processes ended -------------------------------------------------------------------------------------------------------- */

static void come_back(struct fake *k, uint32_t signal)
{
    fake_close(k);
    k->last_signal = signal;
    fake_attach(k);
    k->last_signal = 0;
}

static void a_crash_in_a_running_epoch_is_told_once_and_a_kill_is_not(void **state)
{
    (void)state;
    static const uint32_t crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}, others[] = {0, SIGKILL, SIGTERM, 99};
    struct fakes f;
    fakes_init(&f, 3);
    f.fake[1].last_signal = SIGSEGV; /* long ago, and of another coordinator's time */
    fakes_settle(&f);
    assert_int_equal(f.event.crash_signal, 0);
    f.fake[1].last_signal = 0;
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) {
        come_back(&f.fake[i % 3], crashes[i]);
        fakes_settle(&f);
        assert_int_equal(f.event.crash_signal, crashes[i]);
        assert_int_equal(f.event.crash_stage, i % 3);
        fake_fail(&f.fake[0], STATUS_LINK, "broken");
        fakes_settle(&f);
        assert_int_equal(f.event.crash_signal, 0);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        come_back(&f.fake[1], others[i]);
        fakes_settle(&f);
        assert_int_equal(f.event.crash_signal, 0);
        assert_int_equal(f.event.crash_stage, STAGE_NONE);
    }
    fakes_fini(&f);
}

static void a_crash_outside_of_ticks_blames_no_request(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    come_back(&f.fake[0], SIGKILL);
    fake_answer(&f.fake[0]); /* LOADED: the next epoch */
    fake_answer(&f.fake[0]);
    fake_answer(&f.fake[1]);
    assert_int_equal(pipeline_state(f.p), PIPELINE_LINKING);
    come_back(&f.fake[1], SIGSEGV); /* it had lived through the epoch in which requests ran */
    fakes_settle(&f);
    assert_int_equal(f.event.crash_signal, 0);
    /* The same process with a new stream says again how the one before it ended. */
    come_back(&f.fake[1], SIGABRT);
    fakes_settle(&f);
    assert_int_equal(f.event.crash_signal, SIGABRT);
    f.fake[1].last_signal = SIGABRT;
    fake_close(&f.fake[1]);
    struct msg_hello h = fake_hello(&f.fake[1]);
    fake_attach_with(&f.fake[1], &h);
    fakes_settle(&f);
    assert_int_equal(f.event.crash_signal, 0);
    fakes_fini(&f);
}

/* --- why there is no service ------------------------------------------------------------------------------------------------------ */

static void the_reason_stays_until_a_tick_is_retired(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    assert_null(pipeline_why(f.p));
    fakes_settle(&f);
    run_ticks(&f, 1);
    int64_t lost_ns = f.now_ns;
    fake_fail(&f.fake[1], STATUS_OUT_OF_MEMORY, "no room");
    const struct pipeline_cause *why = pipeline_why(f.p);
    assert_non_null(why);
    assert_int_equal(why->stage, 1);
    assert_int_equal(why->why.status, STATUS_OUT_OF_MEMORY);
    assert_non_null(strstr(why->why.message, "no room"));
    fakes_run(&f, 1000);
    assert_true(pipeline_running(f.p)); /* it is back, but whether it works nobody has seen */
    assert_ptr_equal(pipeline_why(f.p), why);
    assert_int_equal(why->since_ns, lost_ns);
    run_ticks(&f, 1);
    assert_null(pipeline_why(f.p));
    fakes_fini(&f);
}

static void a_stage_that_died_is_the_reason_although_its_neighbour_tells_first(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    fake_fail(&f.fake[0], STATUS_LINK, "link to stage 1: reset");
    assert_int_equal(pipeline_why(f.p)->stage, 0);
    fake_close(&f.fake[1]);
    assert_int_equal(pipeline_why(f.p)->stage, 1);
    assert_int_equal(pipeline_why(f.p)->why.status, STATUS_CLOSED);
    fakes_settle(&f);
    assert_int_equal(f.n_lost, 1);
    assert_true(f.fake[0].open && f.fake[2].open && !f.fake[0].exited && !f.fake[2].exited);
    fakes_fini(&f);
}

/* FC-29: the pipeline comes back each time and fails with the first tick. */
static void a_stage_that_fails_every_tick_is_tried_at_intervals_and_named(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    run_ticks(&f, 20);
    f.fake[1].fail_with = STATUS_OUT_OF_MEMORY;
    int64_t start = f.now_ns;
    uint64_t epochs = pipeline_stats(f.p).epochs;
    while (f.now_ns - start < 5 * NS_PER_S) {
        if (pipeline_running(f.p) && pipeline_in_flight(f.p) == 0)
            assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        fakes_pump(&f);
        fakes_sleep(&f, 10);
    }
    epochs = pipeline_stats(f.p).epochs - epochs;
    assert_true(epochs >= 5 && epochs <= 10); /* at 0, 50, 100, ..., 1600 ms after the one before */
    assert_int_equal(pipeline_why(f.p)->stage, 1);
    assert_int_equal(pipeline_why(f.p)->why.status, STATUS_OUT_OF_MEMORY);
    assert_int_equal(pipeline_why(f.p)->since_ns, start);
    f.fake[1].fail_with = STATUS_OK;
    fakes_run(&f, 2000);
    run_ticks(&f, 1);
    assert_null(pipeline_why(f.p));
    fake_fail(&f.fake[0], STATUS_LINK, "broken"); /* that was long ago: at once again */
    fakes_pump(&f);
    assert_true(pipeline_running(f.p));
    fakes_fini(&f);
}

/* What it takes for a protocol error may be its own doing: another process of it may do better. */
static void a_stage_whose_protocol_errors_end_one_epoch_after_the_other_is_replaced(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    run_ticks(&f, 20);
    f.fake[1].fail_with = STATUS_PROTOCOL;
    const int64_t start = f.now_ns;
    uint64_t epochs = pipeline_stats(f.p).epochs;
    while (f.fake[1].open && f.now_ns - start < 5 * NS_PER_S) {
        if (pipeline_running(f.p) && pipeline_in_flight(f.p) == 0)
            assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        fakes_pump(&f);
        fakes_sleep(&f, 10);
    }
    assert_in_range(f.now_ns - start, 150 * NS_PER_MS, NS_PER_S); /* at 0, 50 and 100 ms after the one before */
    assert_int_equal(pipeline_stats(f.p).epochs - epochs, 3);
    assert_true(f.fake[1].exited && f.fake[0].open && !f.fake[0].exited);
    assert_int_equal(f.fake[1].exit_status, STATUS_PROTOCOL);
    f.fake[1].fail_with = STATUS_OK;
    fakes_settle(&f);
    run_ticks(&f, 1);
    for (int i = 0; i < 10; i++) { /* now and then, with ticks between: it stays */
        fake_fail(&f.fake[1], STATUS_PROTOCOL, "a frame that cannot be");
        fakes_settle(&f);
        run_ticks(&f, 1);
    }
    assert_false(f.fake[1].exited);
    fakes_fini(&f);
}

/* --- stages that are silent, and wake -------------------------------------------------------------------------------------------- */

/* FC-25. */
static void a_stopped_stage_is_noticed_within_two_seconds_and_used_again_when_it_wakes(void **state)
{
    (void)state;
    for (int who = 0; who < 3; who++)
        for (int asleep_ms = 1500; asleep_ms <= 61500; asleep_ms *= 6) {
            struct fakes f;
            fakes_init(&f, 3);
            fakes_settle(&f);
            run_ticks(&f, 2);
            uint64_t attachment = f.fake[who].attachment;
            int64_t stopped = f.now_ns;
            f.fake[who].mute = 1;
            while (pipeline_running(f.p))
                fakes_run(&f, 100);
            assert_true(f.now_ns - stopped <= 2 * NS_PER_S);
            assert_int_equal(pipeline_why(f.p)->stage, who);
            assert_string_equal(stage_state_name(stage_table_at(pipeline_stages(f.p), (uint32_t)who)->state), "lost");
            fakes_run(&f, asleep_ms - (f.now_ns - stopped) / NS_PER_MS);
            assert_false(pipeline_running(f.p));
            assert_true(f.fake[who].open && !f.fake[who].exited);
            int64_t woken = f.now_ns;
            f.fake[who].mute = 0;
            while (!pipeline_running(f.p))
                fakes_run(&f, 100);
            assert_true(f.now_ns - woken <= 200 * NS_PER_MS);
            assert_int_equal(f.fake[who].attachment, attachment);
            assert_int_equal(stage_table_at(pipeline_stages(f.p), (uint32_t)who)->restarts, 0);
            assert_int_equal(f.event.kv_lost, STAGE_NONE);
            for (int i = 0; i < 3; i++)
                assert_false(f.fake[i].exited);
            fakes_fini(&f);
        }
}

static void what_a_woken_stage_says_of_its_old_epoch_is_stale(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    f.fake[1].mute = 1;
    fakes_sleep(&f, 3000);
    assert_int_equal(f.n_lost, 1);
    uint64_t stale = pipeline_stats(f.p).stale;
    f.fake[1].mute = 0;
    fake_answer(&f.fake[1]); /* the result of the tick that it was in */
    assert_int_equal(pipeline_stats(f.p).stale, stale + 1);
    assert_int_equal(pipeline_stats(f.p).protocol_errors, 0);
    fakes_pump(&f);
    assert_true(pipeline_running(f.p)); /* and its stream carried on */
    fakes_fini(&f);
}

/* The time that it slept is no time without progress. */
static void a_stage_that_was_stopped_within_a_tick_is_not_stuck_when_it_wakes(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    f.fake[0].busy = 1;
    fakes_run(&f, 500);
    f.fake[0].mute = 1;
    fakes_run(&f, 30000);
    fake_wake(&f.fake[0]);
    fakes_run(&f, 1000);
    assert_false(f.fake[0].exited);
    f.fake[0].busy = 0;
    fakes_run(&f, 200);
    assert_true(pipeline_running(f.p));
    fakes_fini(&f);
}

static void a_stage_that_sleeps_at_any_step_comes_back(void **state)
{
    (void)state;
    for (int n_answers = 0; n_answers < 12; n_answers++)
        for (int who = 0; who < 3; who++) {
            struct fakes f;
            fakes_init(&f, 3);
            for (int i = 0; i < 3; i++)
                fake_attach(&f.fake[i]);
            for (int i = 0; i < n_answers; i++)
                assert_int_equal(fake_answer(&f.fake[i % 3]), 1);
            f.fake[who].mute = 1;
            fakes_run(&f, 10000);
            assert_false(pipeline_running(f.p));
            fake_wake(&f.fake[who]);
            fakes_run(&f, 200);
            assert_true(pipeline_running(f.p));
            for (int i = 0; i < 3; i++)
                assert_true(f.fake[i].open && !f.fake[i].exited);
            fakes_fini(&f);
        }
}

static void a_silent_stage_is_replaced_by_another_process_of_its_number_at_once(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    f.fake[1].mute = 1;
    fakes_sleep(&f, 1500);
    struct fake second = {.all = &f, .stage = 1};
    fake_attach(&second);
    assert_true(f.fake[1].exited);
    pump_with(&f, &f.fake[1], &second);
    assert_true(pipeline_running(f.p));
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->restarts, 1);
    uint64_t stale = pipeline_stats(f.p).stale;
    fake_wake(&f.fake[1]); /* the old one, and it is nobody */
    assert_int_equal(pipeline_stats(f.p).stale, stale + 1);
    assert_true(pipeline_running(f.p));
    fakes_fini(&f);
}

/* The news of its end may come after its successor. */
static void a_successor_that_is_faster_than_the_end_of_the_stream_is_not_refused(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    uint64_t old = f.fake[1].attachment;
    fake_attach(&f.fake[1]);
    assert_int_equal(f.n_lost, 0);
    pipeline_closed(f.p, old, f.now_ns);
    fakes_events(&f);
    fakes_pump(&f);
    assert_true(pipeline_running(f.p));
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(pipeline_stats(f.p).refused, 0);
    fakes_fini(&f);
}

/* --- spares ----------------------------------------------------------------------------------------------------------------------- */

static void a_spare_takes_a_stage_that_stays_away_for_two_seconds(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct fakes f;
        fakes_init(&f, 3);
        fakes_settle(&f);
        struct fake spare = {.all = &f, .any = 1, .stage = 99, .kv = {.kv_id = 1000}};
        fake_attach(&spare);
        for (int i = 0; i < 10; i++) { /* it waits as long as it must */
            fakes_sleep(&f, 1000);
            fake_heartbeat(&spare, 0);
        }
        assert_true(spare.open && spare.n_inbox == 0 && pipeline_running(f.p));
        if (how == 0)
            fake_close(&f.fake[1]);
        else
            f.fake[1].mute = 1; /* a node behind a cut */
        fakes_sleep(&f, how == 0 ? 1900 : 3100);
        assert_int_equal(spare.n_inbox, 0);
        fakes_sleep(&f, 400);
        assert_int_equal(spare.n_inbox, 1);
        fake_answer(&spare);
        assert_int_equal(spare.stage, 1);
        pump_with(&f, &f.fake[1], &spare);
        assert_true(pipeline_running(f.p));
        assert_int_equal(f.event.kv_lost, 1);
        assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->hello.incarnation, spare.incarnation);
        fakes_fini(&f);
    }
}

static void the_own_process_of_a_stage_comes_before_a_spare(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    struct fake spare = {.all = &f, .any = 1};
    fake_attach(&spare);
    fake_close(&f.fake[0]);
    fakes_sleep(&f, 1500);
    fake_attach(&f.fake[0]);
    fakes_run(&f, 5000);
    assert_true(pipeline_running(f.p));
    assert_int_equal(spare.n_inbox, 0);
    assert_true(spare.open);
    fakes_fini(&f);
}

static void the_own_process_that_comes_too_late_waits_as_a_spare_of_its_stage(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    fake_close(&f.fake[1]);
    struct fake own = {.all = &f, .stage = 1};
    f.fake[1].any = 1;
    fakes_sleep(&f, 3000);
    fake_attach(&f.fake[1]); /* a spare */
    fakes_pump(&f);
    assert_true(pipeline_running(f.p));
    fake_attach(&own);
    fakes_run(&f, 10000);
    assert_true(own.open && !own.exited && own.n_inbox == 0);
    fake_close(&f.fake[1]);
    assert_int_equal(own.n_inbox, 1); /* at once */
    assert_int_equal(own.inbox[0].kind, TO_STAGE_ASSIGN);
    fakes_fini(&f);
}

static void a_whole_job_of_stages_without_numbers_comes_up(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    for (int i = 0; i < 3; i++)
        f.fake[i].any = 1;
    for (int i = 2; i >= 0; i--)
        fake_attach(&f.fake[i]);
    fakes_run(&f, 3000);
    assert_true(pipeline_running(f.p));
    assert_int_equal(f.fake[2].stage, 0); /* who came first */
    assert_int_equal(f.fake[0].stage, 2);
    fakes_fini(&f);
}

static void more_spares_than_stages_are_refused_and_those_that_misbehave_too(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    static struct fake spare[3];
    for (int i = 0; i < 3; i++) {
        spare[i] = (struct fake){.all = &f, .any = 1};
        fake_attach(&spare[i]);
        assert_int_equal(spare[i].open, i < 2);
    }
    assert_int_equal(spare[2].exit_status, STATUS_FULL);
    struct from_stage m = {.kind = FROM_STAGE_READY};
    fake_say(&spare[0], &m);
    assert_false(spare[0].open);
    assert_int_equal(spare[0].exit_status, STATUS_PROTOCOL);
    fake_close(&spare[1]);
    fake_attach(&spare[2]); /* there is room again */
    assert_true(spare[2].open);
    assert_true(pipeline_running(f.p));
    fakes_fini(&f);
}

/* Whoever serves a stage, or is to, is no spare, however many of those wait. */
static void a_stages_own_process_comes_back_beside_as_many_spares_as_may_wait(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct fakes f;
        fakes_init(&f, n);
        static struct fake spare[3];
        for (uint32_t i = 0; i < n; i++) { /* before all others, as when a coordinator has come back */
            spare[i] = (struct fake){.all = &f, .any = 1};
            fake_attach(&spare[i]);
        }
        fakes_settle(&f);
        struct fake *k = &f.fake[n - 1];
        fake_close(k); /* it ends, and is started again */
        fakes_sleep(&f, 500);
        fake_attach(k);
        fakes_run(&f, 1000);
        assert_true(k->open && !k->exited && pipeline_running(f.p));
        struct fake again = *k; /* it dials once more, before the end of its stream is known */
        struct msg_hello h = fake_hello(k);
        fake_attach_with(&again, &h);
        assert_true(again.open && again.n_inbox == 1 && again.inbox[0].kind == TO_STAGE_ASSIGN);
        for (uint32_t i = 0; i < n; i++)
            assert_true(spare[i].open && spare[i].n_inbox == 0);
        fakes_fini(&f);
    }
}

/* Whoever comes first: one pipeline has one numerics profile. */
static void a_spare_with_other_numerics_serves_no_stage(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    struct fake spare = {.all = &f, .any = 1, .stage = 99};
    spare.incarnation = 7;
    struct msg_hello h = fake_hello(&spare);
    snprintf(h.profile, sizeof h.profile, "p2");
    fake_attach_with(&spare, &h); /* before all others, as when a coordinator has come back */
    assert_true(spare.open);
    fakes_settle(&f);
    fake_close(&f.fake[1]);
    fakes_sleep(&f, 5000);
    if (spare.n_inbox)
        assert_int_equal(spare.inbox[0].kind, TO_STAGE_EXIT);
    assert_true(spare.exited && !spare.open);
    assert_int_equal(spare.exit_status, STATUS_CONFIG);
    assert_non_null(strstr(spare.exit_message, "numerics profile 'p2'"));
    fakes_settle(&f);
    fakes_fini(&f);
}

/* Its results come in order, but are not what was planned: the engine says so, after each epoch's first. */
static void a_stage_whose_results_are_wrong_is_told_to_end(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    struct error why;
    uint32_t n = 0;
    error_set(&why, STATUS_PROTOCOL, "another sequence than was planned");
    for (; n < 10 && !f.fake[1].exited; n++) {
        assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        fakes_pump(&f);
        assert_int_equal(pipeline_in_flight(f.p), 0);
        pipeline_fail(f.p, 1, &why, f.now_ns);
        fakes_events(&f);
        for (int i = 0; i < 40 && !pipeline_running(f.p) && !f.fake[1].exited; i++)
            fakes_run(&f, 100);
    }
    assert_true(f.fake[1].exited && f.fake[1].exit_status == STATUS_PROTOCOL);
    assert_int_equal(n, 4);
    fakes_settle(&f); /* the next process is another matter */
    for (int tick = 0; tick < 3; tick++) {
        assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        fakes_pump(&f);
    }
    assert_true(pipeline_running(f.p) && pipeline_in_flight(f.p) == 0);
    fakes_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_epoch_of_a_coordinator_has_no_kv_at_any_stage),
        cmocka_unit_test(stages_that_kept_their_pools_lose_nothing_with_an_epoch),
        cmocka_unit_test(the_highest_stage_with_a_new_pool_is_told),
        cmocka_unit_test(a_pool_that_is_behind_what_was_retired_counts_as_lost),
        cmocka_unit_test(what_was_lost_or_kept_is_held_against_the_last_epoch_that_ran),
        cmocka_unit_test(a_crash_in_a_running_epoch_is_told_once_and_a_kill_is_not),
        cmocka_unit_test(a_crash_outside_of_ticks_blames_no_request),
        cmocka_unit_test(the_reason_stays_until_a_tick_is_retired),
        cmocka_unit_test(a_stage_that_died_is_the_reason_although_its_neighbour_tells_first),
        cmocka_unit_test(a_stage_that_fails_every_tick_is_tried_at_intervals_and_named),
        cmocka_unit_test(a_stage_whose_protocol_errors_end_one_epoch_after_the_other_is_replaced),
        cmocka_unit_test(a_stopped_stage_is_noticed_within_two_seconds_and_used_again_when_it_wakes),
        cmocka_unit_test(what_a_woken_stage_says_of_its_old_epoch_is_stale),
        cmocka_unit_test(a_stage_that_was_stopped_within_a_tick_is_not_stuck_when_it_wakes),
        cmocka_unit_test(a_stage_that_sleeps_at_any_step_comes_back),
        cmocka_unit_test(a_silent_stage_is_replaced_by_another_process_of_its_number_at_once),
        cmocka_unit_test(a_successor_that_is_faster_than_the_end_of_the_stream_is_not_refused),
        cmocka_unit_test(a_spare_takes_a_stage_that_stays_away_for_two_seconds),
        cmocka_unit_test(the_own_process_of_a_stage_comes_before_a_spare),
        cmocka_unit_test(the_own_process_that_comes_too_late_waits_as_a_spare_of_its_stage),
        cmocka_unit_test(a_whole_job_of_stages_without_numbers_comes_up),
        cmocka_unit_test(more_spares_than_stages_are_refused_and_those_that_misbehave_too),
        cmocka_unit_test(a_stages_own_process_comes_back_beside_as_many_spares_as_may_wait),
        cmocka_unit_test(a_spare_with_other_numerics_serves_no_stage),
        cmocka_unit_test(a_stage_whose_results_are_wrong_is_told_to_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
