/* Who is stuck and who only waits, deadlines, stops of the coordinator itself, and all that can happen in any order. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/rand.h"
#include "pipeline_fake.h"

/* --- stuck is not dead ------------------------------------------------------------------------------------------------------------- */

/* Stage `who` is within a tick for ms, without progress, and then answers. */
static void one_long_tick(struct fakes *f, uint32_t who, int64_t ms)
{
    assert_int_equal(fakes_send_plan(f), STATUS_OK);
    f->fake[who].busy = 1;
    f->fake[who].busy_tick = f->fake[who].tick;
    for (int64_t t = 0; t < ms && !f->n_lost; t += 100)
        fakes_run(f, 100);
    f->fake[who].busy = 0;
}

/* FC-26, with a longest tick of 10 s. */
static void a_tick_of_five_seconds_is_legal_and_one_of_fifteen_ends_the_epoch(void **state)
{
    (void)state;
    for (uint32_t who = 0; who < 2; who++) {
        struct fakes f;
        fakes_init(&f, 2);
        fakes_settle(&f);
        for (int ms = 5000; ms <= 9900; ms += 4900) {
            one_long_tick(&f, who, ms);
            assert_int_equal(f.n_lost, 0);
            f.fake[who].layer_counter++;
            fakes_pump(&f);
            assert_int_equal(pipeline_in_flight(f.p), 0);
        }
        int64_t start = f.now_ns;
        one_long_tick(&f, who, 15000);
        assert_int_equal(f.n_lost, 1);
        assert_true(f.now_ns - start > 10 * NS_PER_S && f.now_ns - start < 11 * NS_PER_S);
        assert_int_equal(f.event.stage, who);
        assert_true(f.fake[who].exited && !f.fake[1 - who].exited);
        fakes_settle(&f);
        fakes_fini(&f);
    }
}

static void who_has_waited_in_vain_tells_it_and_who_is_stuck_is_blamed(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    for (int i = 1; i < 3; i++) {
        f.fake[i].busy = 1; /* 1 computes, 2 waits for its frame */
        f.fake[i].waits = i == 2;
        f.fake[i].busy_tick = 1;
    }
    fakes_run(&f, 9900);
    assert_int_equal(f.n_lost, 0);
    fake_fail(&f.fake[2], STATUS_TIMEOUT, "link from stage 1: silent for 10000 ms");
    assert_int_equal(f.event.stage, 1);
    assert_true(f.fake[1].exited && !f.fake[2].exited && !f.fake[0].exited);
    fakes_settle(&f);
    /* A link that broke by itself: nobody has to go. */
    fake_fail(&f.fake[2], STATUS_TIMEOUT, "link from stage 1: silent for 10000 ms");
    assert_int_equal(f.event.stage, 2);
    fakes_settle(&f);
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 2)->restarts, 0);
    fakes_fini(&f);
}

/* A link that lets nothing through without breaking: all wait, and nobody is told to end. */
static void who_only_waits_is_not_stuck(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 3);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    for (int i = 0; i < 3; i += 2) {
        f.fake[i].busy = f.fake[i].waits = 1;
        f.fake[i].busy_tick = i ? 1 : 2;
    }
    fakes_run(&f, 11000);
    assert_int_equal(f.n_lost, 0);
    fakes_run(&f, 600);
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.event.stage, STAGE_NONE);
    fakes_settle(&f);
    /* After it has waited for long, a stage has as much time for its own part as any. */
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    f.fake[1].busy = f.fake[1].waits = 1;
    f.fake[0].busy = 1;
    fakes_run(&f, 9000);
    f.fake[0].busy = 0;
    f.fake[0].layer_counter++;
    f.fake[1].waits = 0;
    fakes_run(&f, 9000);
    assert_int_equal(f.n_lost, 1);
    for (int i = 0; i < 3; i++)
        assert_false(f.fake[i].exited);
    fakes_fini(&f);
}

/* Nobody is told to end for a link that is cut; one that does not even acknowledge an epoch is. */
static void a_link_that_is_cut_for_half_a_minute_costs_no_process(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    for (int i = 0; i < 2; i++)
        fake_attach(&f.fake[i]);
    struct to_stage m;
    int64_t start = f.now_ns;
    while (f.now_ns - start < 30 * NS_PER_S) {
        for (int i = 0; i < 2; i++)
            while (f.fake[i].n_inbox > 0) {
                if (f.fake[i].inbox[0].kind == TO_STAGE_LINKS)
                    fake_next(&f.fake[i], &m); /* no READY comes of it */
                else
                    fake_answer(&f.fake[i]);
            }
        fakes_sleep(&f, 100);
    }
    assert_true(pipeline_stats(f.p).epochs >= 4);
    assert_false(f.fake[0].exited || f.fake[1].exited);
    fakes_settle(&f);
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 0)->restarts + stage_table_at(pipeline_stages(f.p), 1)->restarts, 0);
    fakes_fini(&f);
}

/* A neighbour dies while a stage is within a long tick: it answers EPOCH after that tick. */
static void a_long_tick_is_finished_in_peace_after_the_epoch_has_ended(void **state)
{
    (void)state;
    for (int stuck = 0; stuck < 2; stuck++) {
        struct fakes f;
        fakes_init(&f, 2);
        fakes_settle(&f);
        assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        f.fake[0].busy = 1;
        fakes_run(&f, 2000);
        fake_close(&f.fake[1]);
        fake_attach(&f.fake[1]);
        fakes_run(&f, 9000);
        assert_int_equal(pipeline_state(f.p), PIPELINE_RAISING);
        assert_false(f.fake[0].exited);
        if (stuck) {
            fakes_run(&f, 2000);
            assert_true(f.fake[0].exited && !f.fake[1].exited);
            fakes_settle(&f);
        } else {
            f.fake[0].busy = 0;
            fakes_run(&f, 200);
            assert_true(pipeline_running(f.p));
            assert_int_equal(pipeline_stats(f.p).epochs, 2); /* the one that was raised while it was busy */
        }
        fakes_fini(&f);
    }
}

static void a_first_tick_that_does_not_come_out_is_tried_again(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct fakes f;
        struct to_stage m;
        fakes_init(&f, 2);
        for (int i = 0; i < 2; i++)
            fake_attach(&f.fake[i]);
        while (pipeline_state(f.p) != PIPELINE_WARMING)
            for (int i = 0; i < 2; i++)
                fake_answer(&f.fake[i]);
        fake_answer(&f.fake[0]);
        assert_int_equal(fake_next(&f.fake[1], &m), 1);
        if (how == 0) { /* it is lost: the deadline */
            fakes_sleep(&f, 5200);
        } else {
            f.result->session = pipeline_session(f.p), f.result->epoch = pipeline_epoch(f.p);
            f.result->tick = how == 1 ? 0 : 1;
            f.result->status = how == 1 ? STATUS_STAGE : STATUS_OK;
            fake_say(&f.fake[1], &(struct from_stage){.kind = FROM_STAGE_RESULT, .result = f.result});
        }
        assert_int_equal(pipeline_why(f.p)->stage, 1);
        assert_int_equal(f.n_ready + f.n_lost, 0);
        assert_int_equal(pipeline_stats(f.p).protocol_errors, how == 2);
        fakes_settle(&f);
        assert_true(pipeline_epoch(f.p) > 1);
        assert_int_equal(f.n_lost, 0);
        fakes_fini(&f);
    }
}

static void a_coordinator_that_was_stopped_changes_no_epoch_and_still_sees_who_died(void **state)
{
    (void)state;
    for (int dead = 0; dead < 2; dead++)
        for (int in_flight = 0; in_flight < 2; in_flight++) {
            struct fakes f;
            fakes_init(&f, 2);
            fakes_settle(&f);
            if (in_flight)
                assert_int_equal(fakes_send_plan(&f), STATUS_OK);
            f.now_ns += 5 * NS_PER_S; /* SIGSTOP, SIGCONT */
            f.fake[1].mute = dead;
            pipeline_time(f.p, f.now_ns); /* before the heartbeats that came meanwhile are read */
            fakes_events(&f);
            fakes_run(&f, 1100);
            assert_int_equal(f.n_lost, 0);
            fakes_run(&f, 400);
            assert_int_equal(f.n_lost, dead);
            fakes_run(&f, 20000);
            assert_int_equal(f.n_lost, dead);
            assert_false(f.fake[0].exited);
            fakes_settle(&f);
            assert_int_equal(pipeline_epoch(f.p), 1 + (uint64_t)dead);
            fakes_fini(&f);
        }
}

/* The same while an epoch is being formed, and with stages that wait. */
static void a_stop_of_the_coordinator_at_any_step_costs_no_epoch(void **state)
{
    (void)state;
    for (int n_answers = 0; n_answers < 9; n_answers++) {
        struct fakes f;
        fakes_init(&f, 2);
        for (int i = 0; i < 2; i++)
            fake_attach(&f.fake[i]);
        for (int i = 0; i < n_answers && i < 8; i++)
            assert_int_equal(fake_answer(&f.fake[i % 2]), 1);
        f.now_ns += 5 * NS_PER_S;
        pipeline_time(f.p, f.now_ns);
        fakes_events(&f);
        fakes_pump(&f);
        assert_true(pipeline_running(f.p));
        assert_int_equal(pipeline_epoch(f.p), 1);
        fakes_fini(&f);
    }
}

static void cold_pages_may_take_their_time(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fake_attach(&f.fake[0]);
    fake_attach(&f.fake[1]);
    fake_answer(&f.fake[0]);
    f.fake[1].busy = 1; /* it loads, and only its heartbeats say that it lives */
    fakes_sleep(&f, 300000);
    assert_true(f.fake[1].open && f.fake[0].open);
    f.fake[1].busy = 0;
    fakes_run(&f, 200);
    assert_true(pipeline_running(f.p));
    fakes_fini(&f);
}

/* --- everything at once ---------------------------------------------------------------------------------------------------------------- */

struct chaos {
    struct fakes f;
    uint64_t seed, step;
};

static uint64_t draw(struct chaos *c)
{
    return rand_at(c->seed, c->step++);
}

static void hurt(struct chaos *c, struct fake *k)
{
    struct to_stage m;
    switch (draw(c) % 10) {
    case 0:
        if (k->open)
            fake_close(k);
        if (draw(c) % 2)
            fake_new_pool(k);
        k->last_signal = draw(c) % 2 ? SIGSEGV : SIGKILL;
        break;
    case 1:
        k->mute = 1;
        break;
    case 2:
        k->busy = 1;
        k->busy_tick = k->tick;
        break;
    case 3:
        if (k->open)
            fake_fail(k, draw(c) % 2 ? STATUS_LINK : STATUS_TIMEOUT, "as it happens");
        break;
    case 4:
        k->refusing = 1;
        break;
    case 5: /* a message is lost; ASSIGN is not, its deadline is that of a load */
        if (k->open && k->n_inbox > 0 && k->inbox[0].kind != TO_STAGE_ASSIGN && k->inbox[0].kind != TO_STAGE_EXIT)
            fake_next(k, &m);
        break;
    case 6:
        c->f.now_ns += (int64_t)(draw(c) % 8000) * NS_PER_MS; /* the coordinator itself */
        break;
    case 7:
        if (!k->mute && k->open) { /* another process, before the end of this one is known */
            uint64_t old = k->attachment;
            fake_attach(k);
            pipeline_closed(c->f.p, old, c->f.now_ns);
            fakes_events(&c->f);
        }
        break;
    case 8:
        k->fail_with = k->fail_with ? STATUS_OK : STATUS_STAGE;
        break;
    default: {
        struct error why;
        error_set(&why, STATUS_PROTOCOL, "not the plan's runs");
        pipeline_fail(c->f.p, draw(c) % 2 ? (int)k->stage : STAGE_NONE, &why, c->f.now_ns);
        fakes_events(&c->f);
    }
    }
}

static void live(struct chaos *c, struct fake *k)
{
    if (!k->open && draw(c) % 4 == 0)
        fake_attach(k);
    else if (k->mute && draw(c) % 8 == 0)
        fake_wake(k);
    else if (k->busy && draw(c) % 8 == 0)
        k->busy = 0;
    else if (pipeline_running(c->f.p) && draw(c) % 4 == 0 && c->f.fake[0].tick < 100000)
        (void)fakes_send_plan(&c->f);
    else
        fake_answer(k);
}

static void stages_that_die_sleep_wake_and_fail_in_any_state_end_in_running(void **state)
{
    (void)state;
    uint64_t ready = 0, epochs = 0;
    for (uint64_t seed = 1; seed <= 80; seed++) {
        struct chaos c = {.seed = seed};
        uint32_t n = 1 + seed % 5;
        fakes_init(&c.f, n);
        for (int step = 0; step < 600; step++) {
            struct fake *k = &c.f.fake[draw(&c) % n];
            if (draw(&c) % 20 == 0)
                hurt(&c, k);
            else if (draw(&c) % 12 == 0)
                fakes_sleep(&c.f, (int64_t)(draw(&c) % 1500));
            else
                live(&c, k);
            fakes_check(&c.f);
        }
        for (uint32_t i = 0; i < n; i++)
            c.f.fake[i].fail_with = STATUS_OK;
        fakes_settle(&c.f);
        assert_int_equal(c.f.n_ready, c.f.n_lost + 1);
        for (int i = 0; i < 20; i++) {
            if (c.f.fake[0].tick >= 100000 || fakes_send_plan(&c.f) != STATUS_OK)
                break;
            fakes_run(&c.f, 100);
        }
        ready += c.f.n_ready;
        epochs += pipeline_stats(c.f.p).epochs;
        fakes_fini(&c.f);
    }
    print_message("%llu epochs, %llu of them ran\n", (unsigned long long)epochs, (unsigned long long)ready);
    assert_true(ready > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tick_of_five_seconds_is_legal_and_one_of_fifteen_ends_the_epoch),
        cmocka_unit_test(who_has_waited_in_vain_tells_it_and_who_is_stuck_is_blamed),
        cmocka_unit_test(who_only_waits_is_not_stuck),
        cmocka_unit_test(a_link_that_is_cut_for_half_a_minute_costs_no_process),
        cmocka_unit_test(a_long_tick_is_finished_in_peace_after_the_epoch_has_ended),
        cmocka_unit_test(a_first_tick_that_does_not_come_out_is_tried_again),
        cmocka_unit_test(a_coordinator_that_was_stopped_changes_no_epoch_and_still_sees_who_died),
        cmocka_unit_test(a_stop_of_the_coordinator_at_any_step_costs_no_epoch),
        cmocka_unit_test(cold_pages_may_take_their_time),
        cmocka_unit_test(stages_that_die_sleep_wake_and_fail_in_any_state_end_in_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
