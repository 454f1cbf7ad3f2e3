/* One worker between ends that the test holds: neighbours that break frames, stop in the middle, or repeat an old epoch. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/wire/frame.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/pipeline.h"

enum { WAIT_MS = 5000, WIDTH = 16, N_ROWS = 3, BLOCK = 4, PAYLOAD = N_ROWS * (WIDTH + 1) * 4, PER_FRAME = FRAME_HEADER_BYTES + PAYLOAD };

static const uint32_t some_ids[8];

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    return fake_compute_create(&(struct fake_options){.stage = stage, .script_path = ctx}, out, err);
}

/* A pipeline of two whose stage `mine` is played by the test. */
struct fixture {
    struct pipeline *p;
    uint32_t mine;
    struct link_pair links;
};

static void join_epoch(struct fixture *f)
{
    struct error err = {0};
    link_destroy(f->links.in);
    link_destroy(f->links.out);
    f->links = (struct link_pair){0};
    if (pipeline_raise_epoch_as(f->p, f->mine, &f->links, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void open_fixture(struct fixture *f, uint32_t mine, enum pipeline_links links, uint32_t stuck_ms)
{
    struct error err = {0};
    const struct pipeline_options o = {.n_stages = 2, .links = links, .slots = 2, .context = 64, .max_rows = 8,
                                       .stuck_ms = stuck_ms, .absent = 1u << mine, .create = create_fake};
    *f = (struct fixture){.mine = mine};
    if (pipeline_open_bare(&o, &f->p, &err) != STATUS_OK || pipeline_assign(f->p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    join_epoch(f);
}

static void close_fixture(struct fixture *f)
{
    pipeline_close(f->p);
    link_destroy(f->links.in);
    link_destroy(f->links.out);
}

/* The plan of the epoch's next tick: a new sequence (first tick), or its next row from the tick before. */
static void post_plan(struct fixture *f, int first)
{
    struct plan *plan = pipeline_plan(f->p);
    const uint32_t block = BLOCK;
    struct plan_run run = {.seq = 1, .n = N_ROWS, .source = SOURCE_IDS, .sample = SAMPLE_LAST, .last_stage = 1,
                           .table_check = plan_table_digest(&block, 1)};
    if (first) {
        plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = 1, .n_blocks = 1, .sampler = pipeline_greedy}, &block);
    } else {
        run.n = 1;
        run.kv_index = N_ROWS;
        run.source = SOURCE_FROM_TICK;
        run.from_tick = plan->tick - 1;
    }
    assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
    assert_int_equal(pipeline_post_plan(f->p, -1, plan), STATUS_OK);
}

/* The epoch's first tick, of rows that end on stage 0. */
static void post_plan_below(struct fixture *f)
{
    struct plan *plan = pipeline_plan(f->p);
    const uint32_t block = BLOCK;
    const struct plan_run run = {.seq = 1, .n = N_ROWS, .source = SOURCE_IDS, .table_check = plan_table_digest(&block, 1)};
    plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = 1, .n_blocks = 1, .sampler = pipeline_greedy}, &block);
    assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
    assert_int_equal(pipeline_post_plan(f->p, -1, plan), STATUS_OK);
}

static enum status try_send_bytes(struct fixture *f, const void *bytes, size_t len)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    return link_write_all(f->links.out, &iov, 1, WAIT_MS, NULL, NULL, NULL, NULL);
}

static void send_bytes(struct fixture *f, const void *bytes, size_t len)
{
    assert_int_equal(try_send_bytes(f, bytes, len), STATUS_OK);
}

/* FAILED of the worker, with these words. */
static void await_failure(struct fixture *f, enum status status, const char *words)
{
    struct pipeline_message m;
    if (pipeline_await(f->p, (int)(1 - f->mine), FROM_STAGE_FAILED, WAIT_MS, &m) != STATUS_OK)
        fail_msg("no complaint; expected '%s'", words);
    if (!strstr(m.m.failed.message, words))
        fail_msg("'%s' says nothing of '%s'", m.m.failed.message, words);
    assert_int_equal(m.m.failed.status, status);
    assert_int_equal(m.m.failed.epoch, pipeline_epoch(f->p));
}

static void read_frame(struct fixture *f, struct frame_header *h)
{
    uint8_t bytes[PER_FRAME];
    struct error err;
    assert_int_equal(link_read_all(f->links.in, bytes, FRAME_HEADER_BYTES, WAIT_MS, &err), STATUS_OK);
    assert_int_equal(frame_decode(bytes, h, &err), STATUS_OK);
    assert_true(h->payload_bytes <= PAYLOAD);
    assert_int_equal(link_read_all(f->links.in, bytes, h->payload_bytes, WAIT_MS, &err), STATUS_OK);
}

/* --- frames to stage 1 ----------------------------------------------------------------------------------------------------------- */

/* The frame that stage 0 would send for the first tick: rows whose hash is 0 and padding that does not fit it. */
static void good_frame(const struct fixture *f, uint8_t out[PER_FRAME])
{
    const struct frame_header h = {.session = pipeline_session(f->p), .epoch = pipeline_epoch(f->p), .tick = 1,
                                   .flags = FRAME_ROWS, .from = 0, .to = 1, .n_rows = N_ROWS, .width = WIDTH,
                                   .n_sections = 2, .payload_bytes = PAYLOAD};
    memset(out, 0, PER_FRAME);
    frame_encode(&h, out);
    for (uint32_t i = 0; i < N_ROWS; i++)
        out[FRAME_HEADER_BYTES + N_ROWS * WIDTH * 4 + 4 * i] = (uint8_t)i;
}

static void encode_again(uint8_t frame[PER_FRAME], void (*change)(struct frame_header *))
{
    struct frame_header h;
    assert_int_equal(frame_decode(frame, &h, NULL), STATUS_OK);
    change(&h);
    frame_encode(&h, frame);
}

static void change_flags(struct frame_header *h) { h->flags = FRAME_FEEDBACK; }
static void change_tick(struct frame_header *h) { h->tick = 2; }
static void change_from(struct frame_header *h) { h->from = 1; }
static void change_to(struct frame_header *h) { h->to = 0; }
static void change_n_rows(struct frame_header *h) { h->n_rows = 4; }
static void change_width(struct frame_header *h) { h->width = 17; }
static void change_dtype(struct frame_header *h) { h->dtype = 1; }
static void change_sections(struct frame_header *h) { h->n_sections = 3; }
static void change_payload(struct frame_header *h) { h->payload_bytes = 1ull << 60; }

static void a_header_that_does_not_fit_the_plan_is_refused_before_its_payload(void **state)
{
    (void)state;
    const struct {
        const char *words;
        void (*change)(struct frame_header *);
    } bad[] = {
        {"frame flags 2, the plan says 1", change_flags},         {"frame tick 2, the plan says 1", change_tick},
        {"frame from 1, the plan says 0", change_from},           {"frame to 0, the plan says 1", change_to},
        {"frame n_rows 4, the plan says 3", change_n_rows},       {"frame width 17, the plan says 16", change_width},
        {"frame dtype 1, the plan says 0", change_dtype},         {"frame n_sections 3, the plan says 2", change_sections},
        {"frame payload_bytes 1152921504606846976", change_payload},
    };
    struct fixture f;
    uint8_t frame[PER_FRAME];
    open_fixture(&f, 0, PIPELINE_UNIX, WAIT_MS);
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        good_frame(&f, frame);
        encode_again(frame, bad[i].change);
        post_plan(&f, 1);
        send_bytes(&f, frame, FRAME_HEADER_BYTES); /* the header alone is enough */
        await_failure(&f, STATUS_PROTOCOL, bad[i].words);
        join_epoch(&f);
    }
    /* damaged headers */
    for (unsigned at = 0; at < FRAME_HEADER_BYTES; at += 5) {
        good_frame(&f, frame);
        frame[at] ^= 0x10;
        post_plan(&f, 1);
        send_bytes(&f, frame, FRAME_HEADER_BYTES);
        await_failure(&f, STATUS_PROTOCOL, "frame");
        join_epoch(&f);
    }
    /* and a good one still passes: the result comes */
    struct pipeline_message m;
    good_frame(&f, frame);
    post_plan(&f, 1);
    send_bytes(&f, frame, sizeof frame);
    assert_int_equal(pipeline_await(f.p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.result->status, STATUS_OK);
    assert_int_equal(m.m.result->n_runs, 1);
    pipeline_release(&m);
    close_fixture(&f);
}

static void no_rows(struct frame_header *h) { h->n_rows = 0, h->payload_bytes = 0; }

static void rows_that_end_below_are_in_no_frame(void **state)
{
    (void)state;
    struct fixture f;
    struct pipeline_message m;
    uint8_t frame[PER_FRAME];
    open_fixture(&f, 0, PIPELINE_UNIX, WAIT_MS); /* to stage 1: a frame with rows is refused, one without is right */
    good_frame(&f, frame);
    post_plan_below(&f);
    send_bytes(&f, frame, FRAME_HEADER_BYTES);
    await_failure(&f, STATUS_PROTOCOL, "frame n_rows 3, the plan says 0");
    join_epoch(&f);
    good_frame(&f, frame);
    encode_again(frame, no_rows);
    post_plan_below(&f);
    send_bytes(&f, frame, FRAME_HEADER_BYTES);
    assert_int_equal(pipeline_await(f.p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.result->status, STATUS_OK);
    assert_int_equal(m.m.result->n_runs, 1);
    assert_int_equal(m.m.result->runs[0].id, -1);
    assert_int_equal(m.m.result->timing.n_rows, 0);
    pipeline_release(&m);
    close_fixture(&f);
    open_fixture(&f, 1, PIPELINE_UNIX, WAIT_MS); /* from stage 0 */
    struct frame_header h;
    post_plan_below(&f);
    read_frame(&f, &h);
    assert_true(h.n_rows == 0 && h.payload_bytes == 0 && h.tick == 1);
    close_fixture(&f);
}

static void a_row_of_another_position_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    uint8_t frame[PER_FRAME];
    open_fixture(&f, 0, PIPELINE_TCP, WAIT_MS);
    good_frame(&f, frame);
    frame[FRAME_HEADER_BYTES + N_ROWS * WIDTH * 4 + 4] = 9;
    post_plan(&f, 1);
    send_bytes(&f, frame, sizeof frame);
    await_failure(&f, STATUS_PROTOCOL, "frame row 1 is position 9, the plan says 1");
    close_fixture(&f);
}

static void make_stale(struct frame_header *h) { h->epoch--; }

static void frames_of_an_old_epoch_are_read_away_and_counted(void **state)
{
    (void)state;
    struct fixture f;
    uint8_t frame[PER_FRAME];
    struct pipeline_message m;
    struct worker_counters n;
    open_fixture(&f, 0, PIPELINE_MEM, WAIT_MS);
    post_plan(&f, 1);
    for (int i = 0; i < 3; i++) {
        good_frame(&f, frame);
        encode_again(frame, make_stale);
        send_bytes(&f, frame, sizeof frame);
    }
    good_frame(&f, frame);
    send_bytes(&f, frame, sizeof frame);
    assert_int_equal(pipeline_await(f.p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.result->tick, 1);
    pipeline_release(&m);
    worker_counters(pipeline_worker(f.p, 1), &n);
    assert_int_equal(n.stale.frames, 3);
    assert_int_equal(n.failures, 0);
    close_fixture(&f);
}

static void a_link_that_ends_in_the_middle_of_a_frame_is_reported_and_replaced(void **state)
{
    (void)state;
    for (enum pipeline_links links = PIPELINE_MEM; links <= PIPELINE_TLS; links++) {
        struct fixture f;
        uint8_t frame[PER_FRAME];
        struct pipeline_message m;
        open_fixture(&f, 0, links, WAIT_MS);
        const size_t cuts[] = {0, 10, FRAME_HEADER_BYTES, FRAME_HEADER_BYTES + 50, PER_FRAME - 1};
        for (unsigned i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            good_frame(&f, frame);
            post_plan(&f, 1);
            send_bytes(&f, frame, cuts[i]);
            link_destroy(f.links.out);
            f.links.out = NULL;
            await_failure(&f, STATUS_LINK, "link from stage 0: the other end has closed the link");
            join_epoch(&f);
        }
        good_frame(&f, frame);
        post_plan(&f, 1);
        send_bytes(&f, frame, sizeof frame);
        assert_int_equal(pipeline_await(f.p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
        pipeline_release(&m);
        close_fixture(&f);
    }
}

static void silence_is_a_failure_only_while_a_frame_is_expected(void **state)
{
    (void)state;
    struct fixture f;
    uint8_t frame[PER_FRAME];
    struct pipeline_message m;
    open_fixture(&f, 0, PIPELINE_UNIX, 60);
    assert_int_equal(pipeline_next(f.p, 150, &m), STATUS_TIMEOUT); /* idle: nothing is wrong */
    good_frame(&f, frame);
    post_plan(&f, 1);
    send_bytes(&f, frame, FRAME_HEADER_BYTES + 8);
    int64_t start_ns = clock_now_ns();
    await_failure(&f, STATUS_TIMEOUT, "link from stage 0: silent for 60 ms");
    assert_true(clock_now_ns() - start_ns > 30 * NS_PER_MS);
    close_fixture(&f);
}

static void a_new_epoch_wakes_a_reader_whose_neighbour_stays(void **state)
{
    (void)state;
    for (enum pipeline_links links = PIPELINE_MEM; links <= PIPELINE_TLS; links++)
        for (uint32_t mine = 0; mine < 2; mine++) {
            struct fixture f;
            struct pipeline_message m;
            open_fixture(&f, mine, links, WAIT_MS);
            post_plan(&f, 1);
            if (mine == 1)
                post_plan(&f, 0); /* stage 0 waits for the id of its first tick */
            usleep(5000);
            pipeline_post_epoch(f.p);
            assert_int_equal(pipeline_await(f.p, (int)(1 - mine), FROM_STAGE_ACK, WAIT_MS / 2, &m), STATUS_OK);
            assert_int_equal(m.m.ack.epoch, 2);
            close_fixture(&f);
        }
}

/* --- feedback to stage 0 ------------------------------------------------------------------------------------------------------------ */

static size_t feedback(const struct fixture *f, uint64_t tick, uint32_t n, const struct feedback_record *r,
                       uint8_t out[FRAME_HEADER_BYTES + 4 * FEEDBACK_RECORD_BYTES])
{
    const struct frame_header h = {.session = pipeline_session(f->p), .epoch = pipeline_epoch(f->p), .tick = tick,
                                   .flags = FRAME_FEEDBACK, .from = 1, .to = 0, .n_rows = n, .n_sections = 1,
                                   .payload_bytes = n * FEEDBACK_RECORD_BYTES};
    frame_encode(&h, out);
    for (uint32_t i = 0; i < n; i++)
        feedback_encode(&r[i], out + FRAME_HEADER_BYTES + i * FEEDBACK_RECORD_BYTES);
    return FRAME_HEADER_BYTES + n * FEEDBACK_RECORD_BYTES;
}

static void feedback_resolves_the_next_row_and_is_checked(void **state)
{
    (void)state;
    const struct {
        uint64_t tick;
        uint32_t n;
        struct feedback_record r[2];
        const char *words; /* NULL: good */
    } cases[] = {
        {1, 1, {{.seq = 1, .next_index = N_ROWS, .n_accepted = 1, .id = 77}}, NULL},
        {1, 1, {{.seq = 1, .next_index = N_ROWS, .n_accepted = 1, .id = -1}}, NULL},
        {2, 1, {{.seq = 1, .next_index = N_ROWS, .id = 77}}, "frame tick 2, the plan says 1"},
        {1, 2, {{.seq = 1, .next_index = N_ROWS, .id = 77}, {.seq = 1}}, "frame n_rows 2, the plan says 1"},
        {1, 0, {{0}}, "frame n_rows 0, the plan says 1"},
        {1, 1, {{.seq = 1, .next_index = N_ROWS + 1, .id = 77}}, "at 4, expected at 3"},
        {1, 1, {{.seq = 1, .next_index = N_ROWS, .id = -2}}, "id -2"},
        {1, 1, {{.seq = 2, .next_index = N_ROWS, .id = 77}}, "tick 1 gave no id for it"},
        {1, 1, {{.seq = 1, .next_index = N_ROWS, .id = 1000000}}, "id 1000000 of a vocabulary of 259"},
    };
    struct fixture f;
    uint8_t bytes[FRAME_HEADER_BYTES + 4 * FEEDBACK_RECORD_BYTES];
    open_fixture(&f, 1, PIPELINE_UNIX, WAIT_MS);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct frame_header h;
        post_plan(&f, 1);
        read_frame(&f, &h);
        post_plan(&f, 0);
        size_t len = feedback(&f, cases[i].tick, cases[i].n, cases[i].r, bytes);
        enum status sent = STATUS_OK;
        for (size_t at = 0; at < len && sent == STATUS_OK; at += 7) /* in crumbs */
            sent = try_send_bytes(&f, bytes + at, len - at < 7 ? len - at : 7);
        /* A bad header may end the link before its records are out. */
        assert_true(sent == STATUS_OK || (cases[i].words && sent == STATUS_LINK));
        if (cases[i].words) {
            const int is_compute = strstr(cases[i].words, "vocabulary") != NULL;
            await_failure(&f, is_compute ? STATUS_STAGE : STATUS_PROTOCOL, cases[i].words);
        } else {
            read_frame(&f, &h);
            assert_int_equal(h.tick, 2);
            assert_int_equal(h.n_rows, 1);
        }
        join_epoch(&f);
    }
    close_fixture(&f);
}

static void feedback_that_nobody_asked_for_breaks_the_protocol(void **state)
{
    (void)state;
    struct fixture f;
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 4 * FEEDBACK_RECORD_BYTES];
    const struct feedback_record r = {.seq = 1, .next_index = N_ROWS, .n_accepted = 1, .id = 5};
    open_fixture(&f, 1, PIPELINE_UNIX, WAIT_MS);
    post_plan(&f, 1);
    read_frame(&f, &h);
    size_t len = feedback(&f, 1, 1, &r, bytes);
    send_bytes(&f, bytes, len);
    send_bytes(&f, bytes, len); /* again */
    post_plan(&f, 0);
    read_frame(&f, &h);         /* the first was right */
    struct plan *plan = pipeline_plan(f.p);
    const uint32_t block = BLOCK;
    const struct plan_run run = {.seq = 1, .n = 1, .kv_index = N_ROWS + 1, .source = SOURCE_FROM_TICK, .from_tick = 2, .last_stage = 1,
                                 .table_check = plan_table_digest(&block, 1)};
    assert_int_equal(plan_add_run(plan, &run, NULL), STATUS_OK);
    assert_int_equal(pipeline_post_plan(f.p, 0, plan), STATUS_OK);
    await_failure(&f, STATUS_PROTOCOL, "frame tick 1, the plan says 2");
    close_fixture(&f);
}

static void stage_0_waits_for_feedback_before_more_than_a_window_is_out(void **state)
{
    (void)state;
    struct fixture f;
    struct frame_header h;
    struct pipeline_message m;
    uint8_t bytes[FRAME_HEADER_BYTES + 4 * FEEDBACK_RECORD_BYTES];
    open_fixture(&f, 1, PIPELINE_UNIX, 100);
    const uint32_t held = pipeline_assignment(f.p, 0)->window + 2;
    for (uint32_t i = 0; i < held; i++) {
        assert_int_equal(pipeline_post_plan(f.p, 0, pipeline_plan(f.p)), STATUS_OK);
        read_frame(&f, &h);
        assert_int_equal(h.tick, i + 1);
    }
    assert_int_equal(pipeline_post_plan(f.p, 0, pipeline_plan(f.p)), STATUS_OK);
    size_t len = feedback(&f, 1, 0, NULL, bytes);
    send_bytes(&f, bytes, len);
    read_frame(&f, &h); /* goes on with the first one back */
    assert_int_equal(h.tick, held + 1);
    assert_int_equal(pipeline_post_plan(f.p, 0, pipeline_plan(f.p)), STATUS_OK);
    assert_int_equal(pipeline_await(f.p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.failed.status, STATUS_TIMEOUT);
    assert_non_null(strstr(m.m.failed.message, "feedback from stage 1: silent"));
    close_fixture(&f);
}

/* Results reach the coordinator before feedback is read here: it names the ids itself, and nothing makes stage 0 wait. */
static void feedback_of_a_sequence_whose_ids_came_with_the_plans_may_be_late(void **state)
{
    (void)state;
    struct fixture f;
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 4 * FEEDBACK_RECORD_BYTES];
    const uint32_t block = BLOCK;
    open_fixture(&f, 1, PIPELINE_UNIX, WAIT_MS);
    const uint32_t held = pipeline_assignment(f.p, 0)->window + 2;
    post_plan(&f, 1);
    read_frame(&f, &h);
    for (uint32_t tick = 2; tick <= held + 3; tick++) {
        struct plan *plan = pipeline_plan(f.p);
        const struct plan_run run = {.seq = 1, .n = 1, .kv_index = N_ROWS + tick - 2, .source = SOURCE_IDS,
                                     .sample = SAMPLE_LAST, .last_stage = 1,
                                     .table_check = plan_table_digest(&block, 1)};
        assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
        assert_int_equal(pipeline_post_plan(f.p, 0, plan), STATUS_OK);
        if (tick > held) { /* it waits for the oldest one */
            const struct feedback_record r = {.seq = 1, .next_index = N_ROWS + (tick - held) - 1, .n_accepted = 1, .id = 5};
            send_bytes(&f, bytes, feedback(&f, tick - held, 1, &r, bytes));
        }
        read_frame(&f, &h);
        assert_int_equal(h.tick, tick);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_that_does_not_fit_the_plan_is_refused_before_its_payload),
        cmocka_unit_test(rows_that_end_below_are_in_no_frame),
        cmocka_unit_test(a_row_of_another_position_is_refused),
        cmocka_unit_test(frames_of_an_old_epoch_are_read_away_and_counted),
        cmocka_unit_test(a_link_that_ends_in_the_middle_of_a_frame_is_reported_and_replaced),
        cmocka_unit_test(silence_is_a_failure_only_while_a_frame_is_expected),
        cmocka_unit_test(a_new_epoch_wakes_a_reader_whose_neighbour_stays),
        cmocka_unit_test(feedback_resolves_the_next_row_and_is_checked),
        cmocka_unit_test(feedback_that_nobody_asked_for_breaks_the_protocol),
        cmocka_unit_test(stage_0_waits_for_feedback_before_more_than_a_window_is_out),
        cmocka_unit_test(feedback_of_a_sequence_whose_ids_came_with_the_plans_may_be_late),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
