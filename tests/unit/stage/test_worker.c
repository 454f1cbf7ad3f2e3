/* One or two workers and a coordinator that breaks the rules, changes its mind and goes away. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/fake_script.h"
#include "tests/lib/pipeline.h"

enum { WAIT_MS = 5000, N_LAYERS = 4, N_OUT = 6 };

static int n_created; /* computes made: a reload shows here */

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    n_created++;
    return fake_compute_create(&(struct fake_options){.stage = stage, .script_path = ctx}, out, err);
}

static uint32_t last_stage; /* of the pipeline that was opened last */

static struct pipeline *open_pipeline(uint32_t n_stages, enum pipeline_links links, const char *script)
{
    struct pipeline *p;
    struct error err = {0};
    const struct pipeline_options o = {.n_stages = n_stages,
                                       .links = links,
                                       .n_layers = N_LAYERS,
                                       .slots = 2,
                                       .context = 64,
                                       .max_rows = 40,
                                       .create = create_fake,
                                       .ctx = (void *)(uintptr_t)script};
    n_created = 0;
    last_stage = n_stages - 1;
    if (pipeline_open(&o, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return p;
}

/* The pipeline answers a prompt with the reference's ids. */
static void check_answers(struct pipeline *p)
{
    static const uint32_t prompt[] = {9, 8, 7, 6, 5, 4, 3};
    int32_t got[N_OUT], want[N_OUT];
    struct error err = {0};
    struct pipeline_request r = {
        .prompt = prompt, .n_prompt = 7, .n_out = N_OUT, .piece = 3, .sampler = pipeline_greedy, .out = got};
    if (pipeline_generate(p, &r, 1, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    fake_reference(N_LAYERS, &pipeline_greedy, prompt, 7, want, N_OUT);
    assert_memory_equal(got, want, sizeof want);
}

static void raise_epoch(struct pipeline *p)
{
    struct error err = {0};
    if (pipeline_raise_epoch(p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static uint32_t digest(uint32_t n, const uint32_t *blocks)
{
    return plan_table_digest(blocks, n);
}

static const uint32_t some_ids[64];

/* Opens sequence `seq` in `slot` with one block and reads n ids. */
static void add_first(struct plan *plan, uint64_t seq, uint32_t slot, uint32_t block, uint32_t n)
{
    assert_int_equal(plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = seq, .slot = slot, .n_blocks = 1,
                                                         .sampler = pipeline_greedy}, &block), STATUS_OK);
    const struct plan_run run = {
        .seq = seq, .n = n, .source = SOURCE_IDS, .sample = SAMPLE_LAST, .last_stage = last_stage, .table_check = digest(1, &block)};
    assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
}

static struct plan_run next_run(void)
{
    return (struct plan_run){.seq = 1, .n = 1, .kv_index = 3, .source = SOURCE_FROM_TICK, .from_tick = 1,
                             .sample = SAMPLE_LAST, .last_stage = last_stage, .table_check = digest(1, (uint32_t[]){4})};
}

/* --- every rule of a plan, broken -------------------------------------------------------------------------------------------- */

static void add_run(struct plan *plan, struct plan_run run)
{
    assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
}

static void breaks_tick(struct plan *plan)
{
    plan->tick += 1;
}

static void breaks_tick_back(struct plan *plan)
{
    plan->tick = 1;
}

static void breaks_n_rows(struct plan *plan)
{
    add_run(plan, next_run());
    plan->n_rows = 2;
}

static void breaks_max_rows(struct plan *plan)
{
    struct plan_run run = next_run();
    run.source = SOURCE_IDS;
    run.n = 41;
    add_run(plan, run);
}

static void breaks_open(struct plan *plan)
{
    struct plan_run run = next_run();
    run.seq = 77;
    add_run(plan, run);
}

static void breaks_block_number(struct plan *plan)
{
    plan_add_op(plan, &(struct plan_op){.kind = OP_APPEND, .seq = 1, .n_blocks = 1}, (uint32_t[]){100000});
}

static void breaks_block_owner(struct plan *plan)
{
    plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = 2, .slot = 1, .n_blocks = 1}, (uint32_t[]){4});
}

static void breaks_kv_index(struct plan *plan)
{
    struct plan_run run = next_run();
    run.kv_index = 2;
    add_run(plan, run);
}

static void breaks_digest(struct plan *plan)
{
    struct plan_run run = next_run();
    run.table_check++;
    add_run(plan, run);
}

static void breaks_last_stage(struct plan *plan)
{
    struct plan_run run = next_run();
    run.last_stage = 2;
    add_run(plan, run);
}

static void breaks_sampled_below(struct plan *plan)
{
    struct plan_run run = next_run();
    run.source = SOURCE_IDS;
    run.last_stage = 0;
    add_run(plan, run);
}

static void breaks_from_tick_below(struct plan *plan)
{
    struct plan_run run = next_run();
    run.sample = SAMPLE_NONE;
    run.last_stage = 0;
    add_run(plan, run);
}

static void breaks_from_tick(struct plan *plan)
{
    struct plan_run run = next_run();
    run.from_tick = 0;
    add_run(plan, run);
}

static void breaks_room(struct plan *plan)
{
    struct plan_run run = next_run();
    run.source = SOURCE_IDS;
    run.n = 14;
    add_run(plan, run);
}

static void breaks_slot(struct plan *plan)
{
    plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = 2, .slot = 2}, NULL);
}

static void breaks_offset(struct plan *plan)
{
    struct plan_run run = next_run();
    run.source = SOURCE_IDS;
    add_run(plan, run);
    plan->runs[0].first_id = 4000000;
}

static void breaks_enum(struct plan *plan)
{
    add_run(plan, next_run());
    plan->runs[0].sample = (enum run_sample)9;
}

static const struct {
    const char *name, *words;
    void (*how)(struct plan *);
} rules[] = {
    {"tick ahead", "tick 3, expected 2", breaks_tick},
    {"tick again", "tick 1, expected 2", breaks_tick_back},
    {"n_rows", "n_rows 2, the runs have 1", breaks_n_rows},
    {"max_rows", "41 rows, at most 40", breaks_max_rows},
    {"open", "sequence 77, which is not open", breaks_open},
    {"block number", "block 100000 of a pool of 8", breaks_block_number},
    {"block owner", "block 4 is held by others (1)", breaks_block_owner},
    {"kv_index", "kv_index 2, its length is 3", breaks_kv_index},
    {"digest", "block table digest", breaks_digest},
    {"last_stage", "last_stage 2 of 2 stages", breaks_last_stage},
    {"sampled below", "last_stage 0 of 2 stages, and it is sampled", breaks_sampled_below},
    {"sampled id below", "last_stage 0 of 2 stages, and it is sampled", breaks_from_tick_below},
    {"from_tick", "tick 0 sampled nothing", breaks_from_tick},
    {"room", "length 17, its 1 blocks hold 16", breaks_room},
    {"slot", "slot 2 of 2", breaks_slot},
    {"offset", "ids [4000000", breaks_offset},
    {"enum", "sample 9 is unknown", breaks_enum},
};

static void a_broken_rule_of_a_plan_is_reported_and_the_next_epoch_works(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(2, PIPELINE_MEM, NULL);
    for (unsigned i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct pipeline_message m;
        struct plan *plan = pipeline_plan(p);
        add_first(plan, 1, 0, 4, 3);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        assert_int_equal(pipeline_await(p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
        pipeline_release(&m);
        plan = pipeline_plan(p);
        rules[i].how(plan);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        for (int stage = 0; stage < 2; stage++) { /* each finds it by itself */
            if (pipeline_await(p, -1, FROM_STAGE_FAILED, WAIT_MS, &m) != STATUS_OK)
                fail_msg("%s: nobody complains", rules[i].name);
            assert_int_equal(m.m.failed.status, STATUS_PROTOCOL);
            assert_int_equal(m.m.failed.fatal, 0);
            assert_int_equal(m.m.failed.epoch, pipeline_epoch(p));
            if (!strstr(m.m.failed.message, rules[i].words))
                fail_msg("%s: '%s' says nothing of '%s'", rules[i].name, m.m.failed.message, rules[i].words);
        }
        raise_epoch(p);
        check_answers(p);
        raise_epoch(p);
    }
    assert_int_equal(n_created, 2);
    pipeline_close(p);
}

/* --- stale things --------------------------------------------------------------------------------------------------------------- */

static void messages_of_another_epoch_are_dropped_and_counted(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, NULL);
    struct worker *w = pipeline_worker(p, 0);
    struct worker_counters n;
    struct to_stage m = {.kind = TO_STAGE_EPOCH, .epoch = {.session = 99, .epoch = pipeline_epoch(p)}};
    worker_post(w, &m); /* not newer */
    m = (struct to_stage){.kind = TO_STAGE_LINKS, .links = {.session = 99, .epoch = pipeline_epoch(p)}};
    worker_post(w, &m);
    for (int i = 0; i < 2; i++) {
        struct plan *plan = pipeline_plan(p);
        plan->session += i == 0;
        plan->epoch -= i == 1;
        plan->tick = 1;
        assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK);
    }
    raise_epoch(p);
    check_answers(p);
    worker_counters(w, &n);
    assert_int_equal(n.stale.epochs, 1);
    assert_int_equal(n.stale.links, 1);
    assert_int_equal(n.stale.plans, 2);
    assert_int_equal(n.failures, 0);
    pipeline_close(p);
}

static void after_a_failure_the_rest_of_the_epoch_is_stale(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, NULL);
    struct worker_counters n;
    struct pipeline_message m;
    struct plan *plan = pipeline_plan(p);
    breaks_open(plan);
    assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK);
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    for (int i = 0; i < 5; i++) { /* more than the stage holds: they are given back */
        assert_int_equal(pipeline_post_plan(p, 0, pipeline_plan(p)), STATUS_OK);
        int64_t limit_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
        do
            worker_counters(pipeline_worker(p, 0), &n);
        while (n.stale.plans <= (uint64_t)i && clock_now_ns() < limit_ns);
        assert_int_equal(n.stale.plans, i + 1);
    }
    assert_int_equal(pipeline_next(p, 1, &m), STATUS_TIMEOUT);
    raise_epoch(p);
    check_answers(p);
    pipeline_close(p);
}

static void a_plan_before_its_links_and_links_twice_break_the_protocol(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, NULL);
    struct pipeline_message m;
    pipeline_post_epoch(p);
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_ACK, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(pipeline_post_plan(p, 0, pipeline_plan(p)), STATUS_OK);
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.failed.status, STATUS_PROTOCOL);
    raise_epoch(p);
    pipeline_post_links(p, 0);
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.failed.status, STATUS_PROTOCOL);
    raise_epoch(p);
    check_answers(p);
    pipeline_close(p);
}

/* --- flow control ---------------------------------------------------------------------------------------------------------------- */

static void a_stage_holds_one_plan_more_than_the_window(void **state)
{
    (void)state;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("sleep_tick 1 200\n", script);
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, script);
    struct pipeline_message m;
    struct plan *plan = pipeline_plan(p);
    add_first(plan, 1, 0, 4, 3);
    assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK); /* runs */
    const uint32_t window = pipeline_assignment(p, 0)->window;
    for (uint32_t i = 0; i < window; i++)
        assert_int_equal(pipeline_post_plan(p, 0, pipeline_plan(p)), STATUS_OK);
    assert_null(worker_plan_acquire(pipeline_worker(p, 0)));
    for (uint32_t i = 0; i < window + 1; i++) {
        assert_int_equal(pipeline_await(p, 0, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
        assert_int_equal(m.m.result->tick, i + 1);
        pipeline_release(&m);
    }
    unlink(script);
    pipeline_close(p);
}

/* Streams with one long beginning hold the same blocks, and after an epoch's end all of them open again in one plan: it names each
 * block once for every stream, far more often than there are blocks. */
static void every_slot_opens_in_one_plan_with_a_whole_context_that_all_share(void **state)
{
    (void)state;
    enum { SLOTS = 320, CONTEXT = 16384, BLOCK = 16, TABLE = CONTEXT / BLOCK, N_BLOCKS = TABLE + SLOTS };
    const struct pipeline_options o = {.n_layers = N_LAYERS, .slots = SLOTS, .context = CONTEXT, .kv_block = BLOCK,
                                       .n_blocks = N_BLOCKS, .max_rows = SLOTS, .create = create_fake};
    struct pipeline *p;
    struct plan *plan;
    struct error err = {0};
    struct pipeline_message m;
    static uint32_t blocks[TABLE];
    assert_int_equal(pipeline_open(&o, &p, &err), STATUS_OK);
    assert_int_equal(plan_create(SLOTS, SLOTS, SLOTS * TABLE + SLOTS, &plan), STATUS_OK);
    plan->session = pipeline_session(p);
    plan->epoch = pipeline_epoch(p);
    plan->tick = 1;
    for (uint32_t i = 0; i < TABLE; i++)
        blocks[i] = i;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const uint32_t length = CONTEXT - BLOCK;
        blocks[TABLE - 1] = TABLE + slot; /* its own */
        const struct plan_op op = {.kind = OP_OPEN, .seq = slot + 1, .slot = slot, .length = length, .n_blocks = TABLE,
                                   .sampler = pipeline_greedy};
        const struct plan_run run = {.seq = slot + 1, .n = 1, .kv_index = length, .source = SOURCE_IDS, .sample = SAMPLE_LAST,
                                     .table_check = digest(TABLE, blocks)};
        assert_int_equal(plan_add_op(plan, &op, blocks), STATUS_OK);
        assert_int_equal(plan_add_run(plan, &run, some_ids), STATUS_OK);
    }
    struct plan *room = worker_plan_acquire(pipeline_worker(p, 0));
    assert_non_null(room);
    assert_int_equal(plan_copy(room, plan), STATUS_OK);
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = room});
    assert_int_equal(pipeline_next(p, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.kind, FROM_STAGE_RESULT);
    assert_int_equal(m.m.result->status, STATUS_OK);
    assert_int_equal(m.m.result->n_runs, SLOTS);
    pipeline_release(&m);
    plan_destroy(plan);
    pipeline_close(p);
}

/* --- failing ticks ------------------------------------------------------------------------------------------------------------------ */

static void a_failing_tick_names_its_cause_and_its_stage(void **state)
{
    (void)state;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("fail_tick 1 OUT_OF_MEMORY\n", script);
    for (uint32_t stage = 0; stage < 2; stage++) {
        char text[64];
        snprintf(text, sizeof text, "stage %u fail_tick 1 OUT_OF_MEMORY\n", stage);
        FILE *f = fopen(script, "w");
        fputs(text, f);
        fclose(f);
        struct pipeline *p = open_pipeline(2, PIPELINE_MEM, script);
        struct pipeline_message m;
        struct plan *plan = pipeline_plan(p);
        add_first(plan, 1, 0, 4, 3);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        if (stage == 0) {
            assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
            assert_int_equal(m.m.failed.status, STATUS_OUT_OF_MEMORY);
            assert_int_equal(m.m.failed.tick, 1);
            assert_non_null(strstr(m.m.failed.message, "stage 0: the script fails tick 1"));
        } else {
            assert_int_equal(pipeline_await(p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
            assert_int_equal(m.m.result->status, STATUS_OUT_OF_MEMORY);
            assert_int_equal(m.m.result->n_runs, 0);
            assert_non_null(strstr(m.m.result->message, "stage 1: the script fails tick 1"));
            pipeline_release(&m);
        }
        raise_epoch(p);
        check_answers(p);
        pipeline_close(p);
    }
    unlink(script);
}

/* A model file that was written to: the process is of no more use, and says so also where a result has told the failure. */
static void a_tick_that_fails_by_the_model_file_is_fatal(void **state)
{
    (void)state;
    for (int stage = 0; stage < 2; stage++) {
        char text[64], script[FAKE_SCRIPT_PATH];
        struct pipeline_message m;
        snprintf(text, sizeof text, "stage %d fail_tick 1 BAD_MODEL\n", stage);
        fake_script_file(text, script);
        struct pipeline *p = open_pipeline(2, PIPELINE_MEM, script);
        struct plan *plan = pipeline_plan(p);
        add_first(plan, 1, 0, 4, 3);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        assert_int_equal(pipeline_await(p, stage, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
        assert_int_equal(m.m.failed.status, STATUS_BAD_MODEL);
        assert_int_equal(m.m.failed.fatal, 1);
        assert_non_null(strstr(m.m.failed.message, "the script fails tick 1"));
        pipeline_close(p);
        unlink(script);
    }
}

/* What stage's ACK of a new epoch says. */
static struct msg_ack ask_pool(struct pipeline *p, int stage)
{
    struct pipeline_message m;
    pipeline_post_epoch(p);
    assert_int_equal(pipeline_await(p, stage, FROM_STAGE_ACK, WAIT_MS, &m), STATUS_OK);
    return m.m.ack;
}

/* Stage 0 computes tick 2, stage 1 runs out of memory in it and never sees tick 3. */
static void the_watermark_stands_at_the_last_tick_that_was_computed(void **state)
{
    (void)state;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("stage 1 fail_tick 2 OUT_OF_MEMORY\n", script);
    for (int stage = 0; stage < 2; stage++) {
        struct pipeline *p = open_pipeline(2, PIPELINE_MEM, script);
        struct pipeline_message m;
        struct plan *plan = pipeline_plan(p);
        const uint64_t epoch = pipeline_epoch(p);
        add_first(plan, 1, 0, 4, 3);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        plan = pipeline_plan(p);
        add_run(plan, next_run());
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        for (uint64_t tick = 1; tick <= 2; tick++) {
            assert_int_equal(pipeline_await(p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
            assert_int_equal(m.m.result->status, tick == 1 ? STATUS_OK : STATUS_OUT_OF_MEMORY);
            pipeline_release(&m);
        }
        const struct msg_ack a = ask_pool(p, stage);
        assert_true(a.kv_id != 0 && a.kv_session == pipeline_session(p) && a.kv_epoch == epoch);
        assert_int_equal(a.kv_tick, stage == 0 ? 2 : 1);
        assert_true(ask_pool(p, stage).kv_id == a.kv_id);
        pipeline_close(p);
    }
    unlink(script);
}

static void a_tick_of_rows_that_end_below_is_one_for_the_watermark_too(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(2, PIPELINE_MEM, NULL);
    struct pipeline_message m;
    struct plan *plan = pipeline_plan(p);
    add_first(plan, 1, 0, 4, 3);
    plan->runs[0].last_stage = 0;
    plan->runs[0].sample = SAMPLE_NONE;
    assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
    assert_int_equal(pipeline_await(p, 1, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.result->status, STATUS_OK);
    pipeline_release(&m);
    assert_int_equal(ask_pool(p, 1).kv_tick, 1);
    pipeline_close(p);
}

static void another_assignment_is_another_pool(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, NULL);
    struct pipeline_message m;
    struct msg_assign a = *pipeline_assignment(p, 0);
    const uint64_t id = ask_pool(p, 0).kv_id;
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_LOADED, WAIT_MS, &m), STATUS_OK);
    assert_null(assign_difference(&m.m.assigned, &a));
    assert_true(ask_pool(p, 0).kv_id == id);
    a.heartbeat_ms++; /* the same weights and pool; LOADED says it */
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_LOADED, WAIT_MS, &m), STATUS_OK);
    assert_null(assign_difference(&m.m.assigned, &a));
    assert_true(ask_pool(p, 0).kv_id == id);
    a.end_layer--;
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_LOADED, WAIT_MS, &m), STATUS_OK);
    assert_true(ask_pool(p, 0).kv_id != id);
    pipeline_close(p);
}

static void a_bad_draw_spoils_what_depends_on_it_and_nothing_else(void **state)
{
    (void)state;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("bad_logits_tick 1\n", script);
    for (uint32_t n_stages = 1; n_stages <= 2; n_stages++) {
        struct pipeline *p = open_pipeline(n_stages, PIPELINE_UNIX, script);
        struct pipeline_message m;
        struct plan *plan = pipeline_plan(p);
        const int last = (int)n_stages - 1;
        add_first(plan, 1, 0, 4, 3);
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        plan = pipeline_plan(p);
        add_run(plan, next_run());   /* depends on tick 1 */
        add_first(plan, 2, 1, 5, 2); /* does not */
        assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
        assert_int_equal(pipeline_await(p, last, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
        assert_int_equal(m.m.result->runs[0].id, -1);
        assert_int_equal(m.m.result->runs[0].bad_logits, 1);
        pipeline_release(&m);
        assert_int_equal(pipeline_await(p, last, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
        assert_int_equal(m.m.result->status, STATUS_OK);
        assert_int_equal(m.m.result->n_runs, 2);
        assert_int_equal(m.m.result->runs[0].bad_logits, 1);
        assert_int_equal(m.m.result->runs[0].id, -1);
        int32_t want;
        fake_reference(N_LAYERS, &pipeline_greedy, some_ids, 2, &want, 1);
        assert_int_equal(m.m.result->runs[1].id, want);
        assert_int_equal(m.m.result->runs[1].bad_logits, 0);
        pipeline_release(&m);
        pipeline_close(p);
    }
    unlink(script);
}

/* --- epochs at any moment ------------------------------------------------------------------------------------------------------------- */

/* Posts EPOCH at step `at` of a small scenario on three stages; the next epoch must form and answer. */
static void interrupt_at(struct pipeline *p, int at)
{
    struct pipeline_message m;
    pipeline_post_epoch(p); /* step 0: while another is being acknowledged */
    if (at == 0)
        return;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pipeline_await(p, -1, FROM_STAGE_ACK, WAIT_MS, &m), STATUS_OK);
    if (at == 1)
        return;
    pipeline_post_links(p, 0); /* 2: stage 0 alone tries to form */
    if (at == 2)
        return;
    pipeline_post_links(p, 1);
    pipeline_post_links(p, 2);
    if (at == 3) /* while they form */
        return;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pipeline_await(p, -1, FROM_STAGE_READY, WAIT_MS, &m), STATUS_OK);
    struct plan *plan = pipeline_plan(p);
    add_first(plan, 1, 0, 4, 3);
    if (at == 4) {
        assert_int_equal(pipeline_post_plan(p, 1, plan), STATUS_OK); /* 4: stage 1 waits for a frame for ever */
        usleep(2000);
        return;
    }
    if (at == 5) {
        assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK); /* 5: stage 0 waits for feedback for ever */
        plan = pipeline_plan(p);
        add_run(plan, next_run());
        assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK);
        usleep(2000);
        return;
    }
    assert_int_equal(pipeline_post_plan(p, -1, plan), STATUS_OK);
    if (at == 6) /* a tick under way */
        return;
    assert_int_equal(pipeline_await(p, 2, FROM_STAGE_RESULT, WAIT_MS, &m), STATUS_OK);
    pipeline_release(&m);
}

static void an_epoch_may_change_at_any_step_over(enum pipeline_links links)
{
    struct pipeline *p = open_pipeline(3, links, NULL);
    for (int at = 0; at < 8; at++) {
        interrupt_at(p, at);
        int64_t start_ns = clock_now_ns();
        raise_epoch(p);
        if (clock_now_ns() - start_ns > 2 * NS_PER_S)
            fail_msg("step %d: the next epoch came after %lld ms", at, (long long)((clock_now_ns() - start_ns) / NS_PER_MS));
        check_answers(p);
    }
    struct msg_heartbeat h;
    worker_heartbeat(pipeline_worker(p, 2), &h);
    assert_int_equal(h.epoch, pipeline_epoch(p));
    pipeline_close(p);
}

static void an_epoch_may_change_at_any_step_in_memory(void **state)
{
    (void)state;
    an_epoch_may_change_at_any_step_over(PIPELINE_MEM);
}

static void an_epoch_may_change_at_any_step_over_sockets(void **state)
{
    (void)state;
    an_epoch_may_change_at_any_step_over(PIPELINE_UNIX);
    an_epoch_may_change_at_any_step_over(PIPELINE_TCP);
    an_epoch_may_change_at_any_step_over(PIPELINE_TLS);
}

static void a_writer_that_nobody_reads_is_woken_by_the_next_epoch(void **state)
{
    (void)state;
    /* Four ticks of 40 rows of 64 KiB are more than a socket holds; stage 1 gets no plan and reads nothing. */
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("width 16384\n", script);
    for (enum pipeline_links links = PIPELINE_MEM; links <= PIPELINE_UNIX; links++) {
        struct pipeline *p;
        struct error err = {0};
        const struct pipeline_options o = {.n_stages = 2, .links = links, .n_layers = N_LAYERS, .slots = 2, .context = 64,
                                           .max_rows = 40, .mem_capacity = 100000, .create = create_fake, .ctx = script};
        if (pipeline_open(&o, &p, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        for (uint64_t seq = 1; seq <= 4; seq++) {
            const uint32_t blocks[] = {1, 2, 3};
            struct plan *plan = pipeline_plan(p);
            if (seq > 1)
                plan_add_op(plan, &(struct plan_op){.kind = OP_CLOSE, .seq = seq - 1}, NULL);
            plan_add_op(plan, &(struct plan_op){.kind = OP_OPEN, .seq = seq, .n_blocks = 3}, blocks);
            add_run(plan, (struct plan_run){.seq = seq, .n = 40, .source = SOURCE_IDS, .last_stage = 1,
                                             .table_check = digest(3, blocks)});
            assert_int_equal(pipeline_post_plan(p, 0, plan), STATUS_OK);
        }
        usleep(60000);
        struct msg_heartbeat h;
        worker_heartbeat(pipeline_worker(p, 0), &h);
        assert_int_equal(h.busy, 1);
        assert_int_equal(ask_pool(p, 0).kv_tick, h.tick + 1); /* computed, and not sent: the watermark is ahead of what others know */
        raise_epoch(p);
        check_answers(p);
        pipeline_close(p);
    }
    unlink(script);
}

static void an_epoch_during_a_long_load_is_taken_up_after_it(void **state)
{
    (void)state;
    char script[FAKE_SCRIPT_PATH];
    fake_script_file("load_ms 100\n", script);
    struct pipeline *p;
    struct error err = {0};
    struct pipeline_message m;
    const struct pipeline_options o = {.create = create_fake, .ctx = script, .n_layers = N_LAYERS};
    assert_int_equal(pipeline_open_bare(&o, &p, &err), STATUS_OK);
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = *pipeline_assignment(p, 0)});
    pipeline_post_epoch(p);
    pipeline_post_epoch(p);
    assert_int_equal(pipeline_next(p, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.kind, FROM_STAGE_LOADED);
    assert_int_equal(pipeline_next(p, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.kind, FROM_STAGE_ACK);
    assert_int_equal(m.m.ack.epoch, 2); /* the newest only */
    raise_epoch(p);
    unlink(script);
    pipeline_close(p);
}

/* --- coordinators come and go ----------------------------------------------------------------------------------------------------------- */

static void the_same_assignment_again_keeps_the_weights_and_another_one_reloads(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, NULL);
    struct worker *w = pipeline_worker(p, 0);
    struct error err = {0};
    struct pipeline_message m;
    struct msg_hello hello;
    assert_int_equal(n_created, 1);
    worker_detach(w);
    worker_describe(w, &hello);
    assert_int_equal(hello.highest_epoch, 1);
    assert_string_equal(hello.backend, "fake");
    assert_int_equal(pipeline_assign(p, &err), STATUS_OK);
    assert_int_equal(n_created, 1);
    raise_epoch(p);
    check_answers(p);
    struct msg_assign other = *pipeline_assignment(p, 0);
    other.n_blocks *= 2;
    worker_post(w, &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = other});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_LOADED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.loaded.n_blocks, other.n_blocks);
    assert_int_equal(n_created, 2);
    raise_epoch(p);
    check_answers(p);
    pipeline_close(p);
}

static void an_impossible_assignment_is_refused_and_one_that_cannot_be_loaded_is_fatal(void **state)
{
    (void)state;
    struct pipeline *p;
    struct error err = {0};
    struct pipeline_message m;
    const struct pipeline_options o = {.create = create_fake, .n_layers = N_LAYERS};
    assert_int_equal(pipeline_open_bare(&o, &p, &err), STATUS_OK);
    struct msg_assign a = *pipeline_assignment(p, 0);
    a.max_rows = 0;
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.failed.status, STATUS_PROTOCOL);
    assert_int_equal(m.m.failed.fatal, 0);
    assert_non_null(strstr(m.m.failed.message, "max_rows 0, allowed are 1 to 4096"));
    a = *pipeline_assignment(p, 0);
    a.heartbeat_ms = 1u << 31; /* less than nothing, as an int */
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_non_null(strstr(m.m.failed.message, "heartbeat_ms 2147483648, allowed are 0 to 60000"));
    pipeline_post_epoch(p);
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_non_null(strstr(m.m.failed.message, "before an assignment"));
    a = *pipeline_assignment(p, 0);
    a.n_blocks = 1u << 31;
    worker_post(pipeline_worker(p, 0), &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = a});
    assert_int_equal(pipeline_await(p, 0, FROM_STAGE_FAILED, WAIT_MS, &m), STATUS_OK);
    assert_int_equal(m.m.failed.status, STATUS_OUT_OF_MEMORY);
    assert_int_equal(m.m.failed.fatal, 1);
    pipeline_close(p);
}

static void stages_before_the_last_send_their_timings_in_batches(void **state)
{
    (void)state;
    struct pipeline *p = open_pipeline(2, PIPELINE_UNIX, NULL);
    struct pipeline_message m;
    uint64_t next = 1;
    uint32_t n_batches = 0;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(pipeline_post_plan(p, -1, pipeline_plan(p)), STATUS_OK);
        for (int done = 0; !done;) {
            assert_int_equal(pipeline_next(p, WAIT_MS, &m), STATUS_OK);
            done = m.m.kind == FROM_STAGE_RESULT;
            assert_int_equal(done ? m.m.result->timing.stage : 0, m.stage);
            for (uint32_t t = 0; !done && t < m.m.timings.n; t++)
                assert_int_equal(m.m.timings.timing[t].tick, next++);
            n_batches += !done;
            pipeline_release(&m);
        }
    }
    while (next <= 20) { /* the rest comes by age */
        assert_int_equal(pipeline_await(p, 0, FROM_STAGE_TIMINGS, 1000, &m), STATUS_OK);
        next += m.m.timings.n;
        n_batches++;
    }
    assert_int_equal(next, 21);
    assert_true(n_batches < 20);
    pipeline_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_rule_of_a_plan_is_reported_and_the_next_epoch_works),
        cmocka_unit_test(messages_of_another_epoch_are_dropped_and_counted),
        cmocka_unit_test(after_a_failure_the_rest_of_the_epoch_is_stale),
        cmocka_unit_test(a_plan_before_its_links_and_links_twice_break_the_protocol),
        cmocka_unit_test(a_stage_holds_one_plan_more_than_the_window),
        cmocka_unit_test(every_slot_opens_in_one_plan_with_a_whole_context_that_all_share),
        cmocka_unit_test(a_failing_tick_names_its_cause_and_its_stage),
        cmocka_unit_test(a_tick_that_fails_by_the_model_file_is_fatal),
        cmocka_unit_test(the_watermark_stands_at_the_last_tick_that_was_computed),
        cmocka_unit_test(a_tick_of_rows_that_end_below_is_one_for_the_watermark_too),
        cmocka_unit_test(another_assignment_is_another_pool),
        cmocka_unit_test(a_bad_draw_spoils_what_depends_on_it_and_nothing_else),
        cmocka_unit_test(an_epoch_may_change_at_any_step_in_memory),
        cmocka_unit_test(an_epoch_may_change_at_any_step_over_sockets),
        cmocka_unit_test(a_writer_that_nobody_reads_is_woken_by_the_next_epoch),
        cmocka_unit_test(an_epoch_during_a_long_load_is_taken_up_after_it),
        cmocka_unit_test(the_same_assignment_again_keeps_the_weights_and_another_one_reloads),
        cmocka_unit_test(an_impossible_assignment_is_refused_and_one_that_cannot_be_loaded_is_fatal),
        cmocka_unit_test(stages_before_the_last_send_their_timings_in_batches),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
