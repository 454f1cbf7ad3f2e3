#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/rand.h"
#include "pipeline_fake.h"

/* --- the way up ----------------------------------------------------------------------------------------------------------------------- */

static void stages_attach_load_and_link_to_one_running_epoch(void **state)
{
    (void)state;
    struct fakes f;
    struct to_stage m;
    fakes_init(&f, 2);
    for (uint32_t i = 0; i < 2; i++)
        fake_attach(&f.fake[i]);
    assert_int_equal(f.fake[1].inbox[0].assign.first_layer, 10);
    assert_int_equal(f.fake[1].inbox[0].assign.end_layer, 20);
    assert_int_equal(f.fake[1].inbox[0].assign.context, 1024);
    assert_string_equal(f.fake[1].inbox[0].assign.kv_type, "f16");
    fake_answer(&f.fake[1]);
    assert_int_equal(pipeline_state(f.p), PIPELINE_WAITING);
    fake_answer(&f.fake[0]);
    assert_int_equal(pipeline_state(f.p), PIPELINE_RAISING);
    fake_answer(&f.fake[0]);
    fake_answer(&f.fake[1]);
    assert_int_equal(pipeline_state(f.p), PIPELINE_LINKING);
    assert_string_equal(f.fake[0].inbox[0].links.next.tcp, "stage1:101");
    assert_string_equal(f.fake[1].inbox[0].links.next.tcp, "stage0:100");
    assert_memory_equal(f.fake[0].inbox[0].links.key, f.fake[1].inbox[0].links.key, 32);
    fake_answer(&f.fake[0]);
    fake_answer(&f.fake[1]);
    assert_int_equal(pipeline_state(f.p), PIPELINE_WARMING); /* an empty tick, before any of the engine's */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(f.fake[i].n_inbox, 1);
        assert_int_equal(f.fake[i].inbox[0].kind, TO_STAGE_PLAN);
        assert_int_equal(f.fake[i].inbox[0].plan->tick, 0);
        assert_int_equal(f.fake[i].inbox[0].plan->n_runs, 0);
        assert_int_equal(f.fake[i].inbox[0].plan->epoch, 1);
    }
    fake_answer(&f.fake[0]);
    assert_int_equal(fakes_send_plan(&f), STATUS_PIPELINE);
    assert_int_equal(f.n_ready, 0);
    fake_answer(&f.fake[1]);
    assert_true(pipeline_running(f.p));
    assert_int_equal(f.n_ready, 1);
    assert_int_equal(f.event.n_blocks, 100); /* the smallest pool */
    assert_int_equal(pipeline_epoch(f.p), 1);
    assert_int_equal(fake_next(&f.fake[0], &m), 0);
    fakes_fini(&f);
}

/* Every order in which three stages can do each step: 6^4, and some for the first tick. */
static void every_order_of_answers_leads_to_running(void **state)
{
    (void)state;
    static const uint8_t order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 6 * 6 * 6 * 6; k++) {
        struct fakes f;
        fakes_init(&f, 3);
        for (int i = 0; i < 3; i++)
            fake_attach(&f.fake[order[k % 6][i]]);
        for (int step = 0, rest = k / 6; step < 3; step++, rest /= 6)
            for (int i = 0; i < 3; i++)
                assert_int_equal(fake_answer(&f.fake[order[rest % 6][i]]), 1);
        for (int i = 0; i < 3; i++)
            assert_int_equal(fake_answer(&f.fake[order[k % 5][i]]), 1);
        assert_true(pipeline_running(f.p));
        assert_int_equal(f.n_ready, 1);
        fakes_fini(&f);
    }
}

static void the_epoch_is_above_all_that_stages_report(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    f.fake[1].highest_epoch = 41;
    fakes_settle(&f);
    assert_int_equal(pipeline_epoch(f.p), 42);
    fakes_fini(&f);
}

/* --- refusals ---------------------------------------------------------------------------------------------------------------------------- */

static void refused(const struct msg_hello *wrong, enum status want, const char *word)
{
    struct fakes f;
    fakes_init(&f, 2);
    fake_attach(&f.fake[0]);
    struct fake stranger = {.all = &f, .stage = 1, .incarnation = 7};
    struct msg_hello h = fake_hello(&stranger);
    if (wrong->wire_version)
        h.wire_version = wrong->wire_version;
    if (wrong->stage)
        h.stage = wrong->stage;
    if (wrong->n_layers)
        h.n_layers = wrong->n_layers;
    if (wrong->model_hash[0])
        h.model_hash[0] = wrong->model_hash[0];
    if (wrong->profile[0])
        memcpy(h.profile, wrong->profile, sizeof h.profile);
    if (wrong->addresses.tcp[0])
        h.addresses = wrong->addresses;
    if (wrong->highest_epoch)
        h.highest_epoch = wrong->highest_epoch;
    fake_attach_with(&stranger, &h);
    assert_true(stranger.exited);
    assert_false(stranger.open);
    assert_int_equal(stranger.exit_status, want);
    assert_non_null(strstr(stranger.exit_message, word));
    assert_int_equal(pipeline_stats(f.p).refused, 1);
    fakes_settle(&f); /* the right one is welcome */
    fakes_fini(&f);
}

static void whoever_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    refused(&(struct msg_hello){.wire_version = WIRE_VERSION + 1}, STATUS_CONFIG, "wire version 5");
    refused(&(struct msg_hello){.stage = 5}, STATUS_CONFIG, "there are 2 stages");
    refused(&(struct msg_hello){.n_layers = 21}, STATUS_BAD_MODEL, "21 layers, the coordinator's 20");
    refused(&(struct msg_hello){.model_hash = {9}}, STATUS_BAD_MODEL, "another model file");
    refused(&(struct msg_hello){.profile = "p2"}, STATUS_CONFIG, "numerics profile 'p2'");
    refused(&(struct msg_hello){.highest_epoch = UINT64_MAX}, STATUS_CONFIG, "cannot be");
    refused(&(struct msg_hello){.addresses = {.tcp = "nowhere"}}, STATUS_CONFIG, "'nowhere' is no HOST:PORT");
}

static void a_second_process_for_a_stage_is_refused_while_the_first_lives(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    struct fake second = {.all = &f, .stage = 1, .incarnation = 9};
    struct msg_hello h = fake_hello(&second);
    fake_attach_with(&second, &h);
    assert_false(second.exited); /* the first one may be dead already, and the news on its way */
    fakes_sleep(&f, 400);
    assert_int_equal(second.exit_status, STATUS_CONFIG);
    assert_non_null(strstr(second.exit_message, "served by pid 1001"));
    assert_true(pipeline_running(f.p));
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->restarts, 0);
    fake_close(&f.fake[1]);
    fake_attach_with(&second, &h); /* now it is welcome */
    assert_int_equal(second.n_inbox, 1);
    assert_int_equal(second.inbox[0].kind, TO_STAGE_ASSIGN);
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->restarts, 1);
    fakes_fini(&f);
}

static void a_process_that_dials_again_replaces_its_own_old_stream(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    uint64_t old = f.fake[1].attachment;
    struct msg_hello h = fake_hello(&f.fake[1]);
    fake_attach_with(&f.fake[1], &h);
    f.fake[1].open = 1; /* the close was of the old stream */
    assert_int_equal(f.n_lost, 1);
    pipeline_closed(f.p, old, f.now_ns); /* comes late, and touches nobody */
    fakes_settle(&f);
    assert_int_equal(f.n_ready, 2);
    assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->restarts, 0);
    fakes_fini(&f);
}

static void a_stream_without_hello_is_closed(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    struct fake silent = {.all = &f, .stage = 0}, rude = {.all = &f, .stage = 0};
    fake_open(&silent);
    fake_open(&rude);
    fake_say(&rude, &(struct from_stage){.kind = FROM_STAGE_HEARTBEAT});
    assert_false(rude.open);
    assert_int_equal(pipeline_stats(f.p).protocol_errors, 1);
    fakes_sleep(&f, 4900);
    assert_true(silent.open);
    fakes_sleep(&f, 200);
    assert_false(silent.open);
    fakes_settle(&f);
    fakes_fini(&f);
}

static void streams_beyond_the_bound_are_closed(void **state)
{
    (void)state;
    struct fakes f;
    static struct fake many[13];
    fakes_init(&f, 2);
    for (int i = 0; i < 13; i++) {
        many[i] = (struct fake){.all = &f};
        fake_open(&many[i]);
        assert_int_equal(many[i].open, i < 12);
    }
    fakes_fini(&f);
}

/* --- losses ------------------------------------------------------------------------------------------------------------------------------- */

enum loss { LOSS_CLOSED, LOSS_FAILED, LOSS_FATAL, LOSS_SILENT, LOSS_PORT, LOSS_ENGINE, N_LOSSES };

static void inflict(struct fakes *f, struct fake *k, enum loss loss)
{
    struct from_stage m = {.kind = FROM_STAGE_FAILED,
                           .failed = {k->epoch.session, k->epoch.epoch, 0, STATUS_LINK, "broken", loss == LOSS_FATAL}};
    struct error why;
    switch (loss) {
    case LOSS_CLOSED:
        fake_close(k);
        break;
    case LOSS_FAILED:
    case LOSS_FATAL:
        fake_say(k, &m);
        break;
    case LOSS_SILENT:
        k->mute = 1;
        fakes_sleep(f, 1400);
        break;
    case LOSS_PORT:
        k->refusing = 1; /* found out at the next message to it */
        break;
    case LOSS_ENGINE:
        error_set(&why, STATUS_PROTOCOL, "runs are not the plan's");
        pipeline_fail(f->p, (int)k->stage, &why, f->now_ns);
        fakes_events(f);
        break;
    default:
        fail();
    }
}

/* After every number of answers, every loss of every stage: the machine comes back, with a higher epoch if one was raised, and
 * the engine hears LOST exactly if it had heard READY. */
static void a_loss_at_any_step_ends_in_running_again(void **state)
{
    (void)state;
    for (int n_answers = 0; n_answers <= 15; n_answers++)
        for (int who = 0; who < 3; who++)
            for (int loss = 0; loss < N_LOSSES; loss++) {
                struct fakes f;
                fakes_init(&f, 3);
                for (int i = 0; i < 3; i++)
                    fake_attach(&f.fake[i]);
                for (int i = 0; i < n_answers && i < 12; i++)
                    assert_int_equal(fake_answer(&f.fake[i % 3]), 1);
                for (int i = 12; i < n_answers; i++)
                    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
                uint64_t epoch = pipeline_epoch(f.p);
                int was_running = pipeline_running(f.p);
                inflict(&f, &f.fake[who], (enum loss)loss);
                if (loss == LOSS_PORT && was_running)
                    (void)fakes_send_plan(&f);
                fakes_settle(&f);
                int survives = loss == LOSS_PORT && !was_running && f.n_lost == 0 && f.fake[who].open;
                if (!survives && was_running && pipeline_in_flight(f.p) == 0)
                    assert_int_equal(f.n_lost, 1);
                assert_int_equal(f.n_ready, f.n_lost + 1);
                assert_true(pipeline_epoch(f.p) >= epoch);
                if (was_running && f.n_lost)
                    assert_true(pipeline_epoch(f.p) > epoch);
                assert_int_equal(pipeline_stats(f.p).losses, f.n_lost);
                fakes_fini(&f);
            }
}

static void random_losses_never_leave_the_machine_stuck(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct fakes f;
        uint32_t n = 1 + seed % 5;
        fakes_init(&f, n);
        for (uint64_t step = 0; step < 400; step++) {
            uint64_t r = rand_at(seed, step);
            struct fake *k = &f.fake[r % n];
            if (!k->open)
                fake_attach(k);
            else if ((r >> 8) % 24 == 0)
                inflict(&f, k, (enum loss)((r >> 16) % N_LOSSES));
            else if ((r >> 8) % 24 == 1)
                fakes_sleep(&f, (int64_t)((r >> 16) % 7000));
            else if ((r >> 8) % 24 < 4 && pipeline_running(f.p) && k->tick < 1000)
                (void)fakes_send_plan(&f);
            else
                fake_answer(k);
            fakes_check(&f);
        }
        fakes_settle(&f);
        assert_int_equal(f.n_ready, f.n_lost + 1);
        fakes_fini(&f);
    }
}

static void attempts_that_fail_in_a_row_are_spaced_out(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    for (int i = 0; i < 2; i++)
        fake_attach(&f.fake[i]);
    int64_t start = f.now_ns;
    for (int attempt = 0; attempt < 8; attempt++) {
        while (pipeline_state(f.p) != PIPELINE_RAISING) {
            fake_answer(&f.fake[0]);
            fake_answer(&f.fake[1]);
            if (pipeline_state(f.p) == PIPELINE_WAITING)
                fakes_sleep(&f, 10);
        }
        struct error why;
        error_set(&why, STATUS_LINK, "cannot connect");
        pipeline_fail(f.p, 1, &why, f.now_ns);
        f.fake[0].n_inbox = f.fake[1].n_inbox = 0;
    }
    assert_true(f.now_ns - start > 3 * NS_PER_S); /* 50 ms, doubling up to 1.6 s */
    fakes_fini(&f);
}

/* --- deadlines ------------------------------------------------------------------------------------------------------------------------------ */

static void a_step_that_is_not_answered_is_tried_again_and_its_stage_replaced(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    for (int i = 0; i < 2; i++)
        fake_attach(&f.fake[i]);
    fake_answer(&f.fake[0]);
    fake_answer(&f.fake[1]);
    assert_int_equal(pipeline_epoch(f.p), 1);
    for (int try = 0; try < 3; try++) { /* stage 1 lives, but acknowledges nothing */
        fake_answer(&f.fake[0]);
        fakes_sleep(&f, 5200);
    }
    assert_true(f.fake[1].exited);
    assert_false(f.fake[0].exited);
    assert_int_equal(f.n_lost, 0); /* it never ran */
    fakes_settle(&f);
    fakes_fini(&f);
}

static void loading_may_take_an_hour_while_heartbeats_live(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 1);
    fake_attach(&f.fake[0]);
    fakes_sleep(&f, 3590000);
    assert_true(f.fake[0].open);
    fakes_sleep(&f, 20000);
    assert_false(f.fake[0].open);
    assert_true(f.fake[0].exited);
    fakes_fini(&f);
}

static void a_stuck_stage_is_told_to_end_and_a_slow_one_is_not(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    for (int i = 0; i < 300; i++) { /* 30 s, one layer every 5 s */
        f.now_ns += 100 * NS_PER_MS;
        f.fake[0].layer_counter += i % 50 == 0;
        fake_heartbeat(&f.fake[0], 1);
        fake_heartbeat(&f.fake[1], 0);
        pipeline_time(f.p, f.now_ns);
        fakes_events(&f);
    }
    assert_int_equal(f.n_lost, 0);
    for (int i = 0; i < 110 && !f.n_lost; i++) { /* no layer any more, heartbeats go on */
        f.now_ns += 100 * NS_PER_MS;
        fake_heartbeat(&f.fake[0], 1);
        fake_heartbeat(&f.fake[1], 0);
        pipeline_time(f.p, f.now_ns);
        fakes_events(&f);
    }
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.event.stage, 0);
    assert_true(f.fake[0].exited);
    assert_false(f.fake[1].exited);
    fakes_settle(&f);
    fakes_fini(&f);
}

/* Stage 1 of 3 is stuck at tick 4; stage 0 waits at tick 5 for its ids, stage 2 at tick 4 for its frame. */
static void of_stages_that_wait_for_each_other_the_stuck_one_is_blamed(void **state)
{
    (void)state;
    static const uint64_t at[3] = {5, 4, 4};
    struct fakes f;
    fakes_init(&f, 3);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    for (int i = 0; i < 110 && !f.n_lost; i++) {
        f.now_ns += 100 * NS_PER_MS;
        for (int k = 0; k < 3; k++) {
            f.fake[k].tick = at[k];
            f.fake[k].waits = k != 1;
            fake_heartbeat(&f.fake[k], 1);
        }
        pipeline_time(f.p, f.now_ns);
        fakes_events(&f);
    }
    assert_int_equal(f.event.stage, 1);
    assert_true(!f.fake[0].exited && f.fake[1].exited && !f.fake[2].exited);
    fakes_settle(&f);
    fakes_fini(&f);
}

static void a_tick_without_any_progress_ends_the_epoch(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    fakes_sleep(&f, 60000); /* idling is no crime */
    assert_int_equal(f.n_lost, 0);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    fakes_sleep(&f, 11100); /* nobody says that it is busy */
    assert_int_equal(f.n_lost, 0);
    fakes_sleep(&f, 300);
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.event.why.status, STATUS_TIMEOUT);
    assert_true(f.fake[0].open && f.fake[1].open);
    fakes_settle(&f);
    fakes_fini(&f);
}

static void a_stop_of_the_coordinator_itself_blames_nobody(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    f.now_ns += 3600 * NS_PER_S;
    pipeline_time(f.p, f.now_ns);
    fakes_events(&f);
    assert_int_equal(f.n_lost, 0);
    assert_int_equal(pipeline_stats(f.p).clock_jumps, 1);
    f.fake[0].mute = 1;
    fakes_sleep(&f, 1400); /* and afterwards deadlines count again */
    assert_int_equal(f.n_lost, 1);
    fakes_fini(&f);
}

/* --- messages of the wrong time ------------------------------------------------------------------------------------------------------------- */

static void stale_messages_are_dropped_and_counted(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    uint64_t session = pipeline_session(f.p), epoch = pipeline_epoch(f.p);
    struct from_stage old[] = {
        {.kind = FROM_STAGE_ACK, .ack = {.session = session, .epoch = epoch - 1}},
        {.kind = FROM_STAGE_READY, .ready = {session + 1, epoch}},
        {.kind = FROM_STAGE_TIMINGS, .timings = {session, epoch + 1, 0, {{0}}}},
        {.kind = FROM_STAGE_FAILED, .failed = {session, epoch - 1, 0, STATUS_LINK, "", 0}},
        {.kind = FROM_STAGE_RESULT, .result = f.result},
    };
    f.result->session = session, f.result->epoch = epoch + 7, f.result->tick = 1;
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(fake_say(&f.fake[1], &old[i]), PIPELINE_TAKEN);
        assert_int_equal(pipeline_stats(f.p).stale, i + 1);
    }
    assert_true(pipeline_running(f.p));
    assert_int_equal(pipeline_stats(f.p).protocol_errors, 0);
    fakes_fini(&f);
}

static void messages_out_of_turn_change_nothing(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    struct msg_epoch now = {pipeline_session(f.p), pipeline_epoch(f.p)};
    struct from_stage wrong[] = {
        {.kind = FROM_STAGE_ACK, .ack = {.session = now.session, .epoch = now.epoch}},
        {.kind = FROM_STAGE_READY, .ready = now},
        {.kind = FROM_STAGE_LOADED, .loaded = {.n_blocks = 1}, .assigned = f.fake[0].assigned},
        {.kind = FROM_STAGE_HELLO, .hello = fake_hello(&f.fake[0])},
        {.kind = FROM_STAGE_TIMINGS, .timings = {now.session, now.epoch, MAX_TIMINGS + 1, {{0}}}},
        {.kind = FROM_STAGE_TIMINGS, .timings = {now.session, now.epoch, 1, {{.stage = 1}}}},
        {.kind = (enum from_stage_kind)99},
    };
    for (uint64_t i = 0; i < 7; i++) {
        assert_int_equal(fake_say(&f.fake[0], &wrong[i]), PIPELINE_TAKEN);
        assert_int_equal(pipeline_stats(f.p).protocol_errors, i + 1);
    }
    assert_true(pipeline_running(f.p));
    assert_int_equal(f.n_lost, 0);
    fakes_fini(&f);
}

/* --- ticks -------------------------------------------------------------------------------------------------------------------------------- */

static struct result *result_of(struct fakes *f, uint64_t tick)
{
    f->result->session = pipeline_session(f->p);
    f->result->epoch = pipeline_epoch(f->p);
    f->result->tick = tick;
    f->result->status = STATUS_OK;
    return f->result;
}

static void plans_reach_every_stage_within_the_window_and_results_retire_them(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    assert_int_equal(fakes_send_plan(&f), STATUS_PIPELINE);
    fakes_settle(&f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fakes_send_plan(&f), STATUS_OK);
    assert_int_equal(f.plan->epoch, pipeline_epoch(f.p));
    assert_int_equal(fakes_send_plan(&f), STATUS_FULL);
    assert_int_equal(f.fake[0].n_inbox, 3);
    assert_int_equal(f.fake[1].n_inbox, 3);
    for (uint64_t t = 1; t <= 3; t++) {
        struct from_stage m = {.kind = FROM_STAGE_RESULT, .result = result_of(&f, t)};
        assert_int_equal(fake_say(&f.fake[1], &m), PIPELINE_RESULT);
        assert_int_equal(pipeline_in_flight(f.p), 3 - t);
    }
    struct from_stage timings = {.kind = FROM_STAGE_TIMINGS,
                                 .timings = {pipeline_session(f.p), pipeline_epoch(f.p), 1, {{.tick = 1, .compute_us = 5}}}};
    assert_int_equal(fake_say(&f.fake[0], &timings), PIPELINE_TIMINGS);
    fakes_fini(&f);
}

static void a_result_that_is_not_of_the_oldest_tick_ends_the_epoch(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 4; wrong++) {
        struct fakes f;
        fakes_init(&f, 2);
        fakes_settle(&f);
        if (wrong != 3) {
            assert_int_equal(fakes_send_plan(&f), STATUS_OK);
            assert_int_equal(fakes_send_plan(&f), STATUS_OK);
        }
        struct from_stage m = {.kind = FROM_STAGE_RESULT, .result = result_of(&f, wrong == 0 ? 2 : 1)};
        if (wrong == 1)
            f.result->status = STATUS_OUT_OF_MEMORY;
        assert_int_equal(fake_say(&f.fake[wrong == 2 ? 0 : 1], &m), PIPELINE_TAKEN);
        assert_int_equal(f.n_lost, 1);
        assert_int_equal(f.event.why.status, wrong == 1 ? STATUS_OUT_OF_MEMORY : STATUS_PROTOCOL);
        assert_int_equal(pipeline_stats(f.p).protocol_errors, wrong != 1);
        assert_true(f.fake[0].open && f.fake[1].open); /* the weights stay */
        fakes_settle(&f);
        fakes_fini(&f);
    }
}

static void a_stage_without_room_for_a_block_is_refused(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 1);
    fake_attach(&f.fake[0]);
    fake_say(&f.fake[0], &(struct from_stage){.kind = FROM_STAGE_LOADED, .assigned = f.fake[0].inbox[0].assign});
    assert_int_equal(f.fake[0].exit_status, STATUS_OUT_OF_MEMORY);
    fakes_fini(&f);
}

/* What stage 1 of 2 has when one field was changed on its way. */
static struct msg_assign changed(struct msg_assign a, int field)
{
    uint32_t *const numbers[] = {&a.stage, &a.n_stages, &a.first_layer, &a.end_layer, &a.slots, &a.context, &a.kv_block,
                                 &a.n_blocks, &a.max_rows, &a.heartbeat_ms, &a.stuck_ms, &a.window};
    if (field < 12)
        *numbers[field] -= 1;
    else if (field == 12)
        a.kv_bytes = 1ull << 32;
    else if (field == 13)
        strcpy(a.kv_type, "f1");
    else
        a = (struct msg_assign){0}; /* it says nothing */
    return a;
}

static void a_stage_that_loaded_what_it_was_not_assigned_is_told_to_end_and_the_next_process_serves(void **state)
{
    (void)state;
    for (int field = 0; field < 15; field++) {
        struct fakes f;
        fakes_init(&f, 2);
        fake_attach(&f.fake[1]);
        const struct msg_assign a = changed(f.fake[1].inbox[0].assign, field);
        fake_say(&f.fake[1], &(struct from_stage){.kind = FROM_STAGE_LOADED, .loaded = {.n_blocks = 9}, .assigned = a});
        assert_true(f.fake[1].exited && !f.fake[1].open);
        assert_int_equal(f.fake[1].exit_status, STATUS_PROTOCOL);
        assert_non_null(strstr(f.fake[1].exit_message, "stage 1: its "));
        assert_int_equal(pipeline_stats(f.p).protocol_errors, 1);
        fakes_settle(&f);
        assert_int_equal(stage_table_at(pipeline_stages(f.p), 1)->restarts, 1);
        fakes_fini(&f);
    }
}

static void an_assignment_of_another_stage_that_is_taken_up_in_an_epoch_ends_it_and_that_stage(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    fake_say(&f.fake[1], &(struct from_stage){.kind = FROM_STAGE_LOADED, .loaded = {.n_blocks = 9}, .assigned = f.fake[0].assigned});
    assert_int_equal(f.n_lost, 1);
    assert_int_equal(f.event.stage, 1);
    assert_int_equal(f.event.why.status, STATUS_PROTOCOL);
    assert_true(f.fake[1].exited && f.fake[0].open && !f.fake[0].exited);
    fakes_settle(&f);
    fakes_fini(&f);
}

static void a_stop_tells_every_stage_to_end(void **state)
{
    (void)state;
    struct fakes f;
    fakes_init(&f, 2);
    fakes_settle(&f);
    pipeline_stop(f.p);
    for (int i = 0; i < 2; i++) {
        assert_true(f.fake[i].exited);
        assert_int_equal(f.fake[i].exit_status, STATUS_OK);
    }
    assert_int_equal(fakes_send_plan(&f), STATUS_PIPELINE);
    fakes_fini(&f);
}

/* --- what the table says of a stage ---------------------------------------------------------------------------------------------------- */

static enum status deaf_send(void *ctx, const struct to_stage *m)
{
    (void)ctx;
    (void)m;
    return STATUS_OK;
}

static void deaf_close(void *ctx, const struct error *why)
{
    (void)ctx;
    (void)why;
}

static void claim(struct stage_table *t, uint64_t incarnation, int64_t now_ns)
{
    uint64_t id;
    const struct stage_port port = {NULL, deaf_send, deaf_close};
    const struct msg_hello hello = {.incarnation = incarnation};
    if (stage_table_at(t, 0)->attachment)
        stage_table_detach(t, stage_table_at(t, 0)->attachment, now_ns);
    assert_int_equal(stage_table_attach(t, &port, now_ns, &id), STATUS_OK);
    stage_table_claim(t, id, 0, &hello, now_ns);
}

static uint64_t stale_plans_after(struct stage_table *t, uint64_t said)
{
    stage_table_heartbeat(t, 0, &(struct msg_heartbeat){.stale = {.plans = said, .feedback = 1}}, NS_PER_S);
    assert_true(stage_table_stale(t, 0).feedback >= 1);
    return stage_table_stale(t, 0).plans;
}

static void stale_counts_of_a_stage_add_up_over_its_processes_and_streams(void **state)
{
    (void)state;
    struct stage_table *t;
    assert_int_equal(stage_table_create(1, &t), STATUS_OK);
    claim(t, 11, NS_PER_S);
    assert_int_equal(stale_plans_after(t, 3), 3);
    claim(t, 11, NS_PER_S); /* the same process dials again: it goes on counting */
    assert_int_equal(stage_table_stale(t, 0).plans, 3);
    assert_int_equal(stale_plans_after(t, 4), 4);
    claim(t, 12, NS_PER_S); /* another one begins at 0 */
    assert_int_equal(stage_table_stale(t, 0).plans, 4);
    assert_int_equal(stale_plans_after(t, 0), 4);
    assert_int_equal(stale_plans_after(t, 9), 13);
    assert_int_equal(stage_table_stale(t, 0).feedback, 2);
    stage_table_destroy(t);
}

static void the_load_of_a_stage_is_that_of_its_last_second_and_falls_when_nothing_comes(void **state)
{
    (void)state;
    struct stage_table *t;
    const struct stage_timing tick = {.compute_us = 60000, .wait_data_us = 10000, .send_us = 500};
    assert_int_equal(stage_table_create(1, &t), STATUS_OK);
    claim(t, 11, 0);
    int64_t now = 0;
    for (int i = 0; i < 10; i++)
        stage_table_timing(t, &tick, now += 100 * NS_PER_MS);
    struct stage_load l = stage_table_load(t, 0, now);
    assert_true(l.busy_ratio > 0.59 && l.busy_ratio < 0.61);
    assert_true(l.bubble_ratio > 0.09 && l.bubble_ratio < 0.11);
    assert_int_equal(l.hop_us, 500);
    l = stage_table_load(t, 0, now + NS_PER_S / 2); /* the window is young: the last full one counts */
    assert_true(l.busy_ratio > 0.59);
    stage_table_timing(t, &tick, now + NS_PER_S / 2);
    l = stage_table_load(t, 0, now + 60 * NS_PER_S);
    assert_true(l.busy_ratio < 0.002); /* 60 ms of a minute */
    l = stage_table_load(t, 0, now); /* a clock that stands */
    assert_true(l.busy_ratio >= 0 && l.busy_ratio <= 1);
    stage_table_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_attach_load_and_link_to_one_running_epoch),
        cmocka_unit_test(every_order_of_answers_leads_to_running),
        cmocka_unit_test(the_epoch_is_above_all_that_stages_report),
        cmocka_unit_test(whoever_does_not_fit_is_refused_by_name),
        cmocka_unit_test(a_second_process_for_a_stage_is_refused_while_the_first_lives),
        cmocka_unit_test(a_process_that_dials_again_replaces_its_own_old_stream),
        cmocka_unit_test(a_stream_without_hello_is_closed),
        cmocka_unit_test(streams_beyond_the_bound_are_closed),
        cmocka_unit_test(a_loss_at_any_step_ends_in_running_again),
        cmocka_unit_test(random_losses_never_leave_the_machine_stuck),
        cmocka_unit_test(attempts_that_fail_in_a_row_are_spaced_out),
        cmocka_unit_test(a_step_that_is_not_answered_is_tried_again_and_its_stage_replaced),
        cmocka_unit_test(loading_may_take_an_hour_while_heartbeats_live),
        cmocka_unit_test(a_stuck_stage_is_told_to_end_and_a_slow_one_is_not),
        cmocka_unit_test(of_stages_that_wait_for_each_other_the_stuck_one_is_blamed),
        cmocka_unit_test(a_tick_without_any_progress_ends_the_epoch),
        cmocka_unit_test(a_stop_of_the_coordinator_itself_blames_nobody),
        cmocka_unit_test(stale_messages_are_dropped_and_counted),
        cmocka_unit_test(messages_out_of_turn_change_nothing),
        cmocka_unit_test(plans_reach_every_stage_within_the_window_and_results_retire_them),
        cmocka_unit_test(a_result_that_is_not_of_the_oldest_tick_ends_the_epoch),
        cmocka_unit_test(a_stage_without_room_for_a_block_is_refused),
        cmocka_unit_test(a_stage_that_loaded_what_it_was_not_assigned_is_told_to_end_and_the_next_process_serves),
        cmocka_unit_test(an_assignment_of_another_stage_that_is_taken_up_in_an_epoch_ends_it_and_that_stage),
        cmocka_unit_test(a_stop_tells_every_stage_to_end),
        cmocka_unit_test(stale_counts_of_a_stage_add_up_over_its_processes_and_streams),
        cmocka_unit_test(the_load_of_a_stage_is_that_of_its_last_second_and_falls_when_nothing_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
