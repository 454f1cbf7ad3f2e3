/* FC-71 in process: 10,000 mutations of each message between coordinator and stage, through the wire's checks; what they let pass of a
 * stage's goes to the coordinator's state machine, which must never break its invariants and gets back to RUNNING with good stages. */
#include "pipeline_fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "rpc/grpc/stage_api.h"
#include "tests/lib/mutate.h"

enum { N_MUTATIONS = 10000, N_STAGES = 3, MAX_RUNS = 8 };

/* --- messages from a stage --------------------------------------------------------------------------------------------------------- */

/* What the changed bytes say, when they say something. */
static int changed(uint64_t seed, const struct from_stage *m, struct result *r, struct from_stage *out)
{
    static uint8_t bytes[MUTATE_MAX];
    uint8_t *data;
    size_t len;
    struct error err = {0};
    assert_int_equal(stage_wire_pack_from_stage(m, &data, &len), STATUS_OK);
    len = mutate_message(seed, data, len, bytes);
    free(data);
    enum status s = stage_wire_unpack_from_stage(bytes, len, r, out, &err);
    if (s == STATUS_OK)
        return 1;
    assert_int_equal(s, STATUS_PROTOCOL);
    assert_true(err.message[0] != 0);
    return 0;
}

/* All but k answer; k does until it has what this kind of message is the answer to. */
static void bring_to(struct fakes *f, struct fake *k, enum from_stage_kind kind)
{
    const enum to_stage_kind before = kind == FROM_STAGE_LOADED ? TO_STAGE_ASSIGN : kind == FROM_STAGE_ACK ? TO_STAGE_EPOCH : TO_STAGE_LINKS;
    fakes_settle(f);
    fake_close(k);
    fake_attach(k);
    for (int turn = 0; turn < 20; turn++) {
        for (uint32_t i = 0; i < f->n; i++)
            while (&f->fake[i] != k && fake_answer(&f->fake[i]))
                ;
        if (k->n_inbox && k->inbox[0].kind == before)
            break;
        fake_answer(k);
    }
    assert_true(k->n_inbox > 0 && k->inbox[0].kind == before);
    if (kind == FROM_STAGE_ACK)
        k->epoch = k->inbox[0].epoch;
}

/* A moment at which this kind of message is due: running for most, an epoch under way for the answers of its steps. Every eighth comes
 * at another one. */
static void prepare(struct fakes *f, struct fake *k, enum from_stage_kind kind, uint32_t i)
{
    if (kind >= FROM_STAGE_LOADED && kind <= FROM_STAGE_READY && i % 8)
        bring_to(f, k, kind);
    else if (i % 8)
        fakes_settle(f);
    if (pipeline_running(f->p) && pipeline_in_flight(f->p) < N_STAGES)
        fakes_send_plan(f);
}

static void a_mutated_message_of_a_stage_never_breaks_the_pipeline(void **state)
{
    (void)state;
    struct result *valid, *r;
    assert_int_equal(result_create(MAX_RUNS, &valid), STATUS_OK);
    assert_int_equal(result_create(MAX_RUNS, &r), STATUS_OK);
    for (enum from_stage_kind kind = FROM_STAGE_HELLO; kind <= FROM_STAGE_FAILED; kind++) {
        struct fakes f;
        uint32_t passed = 0;
        fakes_init(&f, N_STAGES);
        log_set_levels("error,pipeline=error", NULL);
        for (uint32_t i = 0; i < N_MUTATIONS; i++) {
            const uint64_t seed = (uint64_t)kind << 32 | i;
            struct fake *k = &f.fake[kind == FROM_STAGE_RESULT && i % 4 ? N_STAGES - 1 : rand_at(seed, 1) % N_STAGES];
            prepare(&f, k, kind, i);
            const struct from_stage m = fake_message(k, kind, valid);
            struct from_stage got;
            if (changed(seed, &m, r, &got)) {
                passed++;
                fake_say_any(&f, k, &got);
                if (i % 16 == 7)
                    fake_say_any(&f, k, &got); /* a replay */
            }
            fakes_sleep(&f, 100); /* deadlines pass, too */
        }
        fakes_settle(&f);
        assert_true(pipeline_running(f.p));
        print_message("          kind %d: %u of %d passed the wire's checks; %llu protocol errors, %llu stale, %llu refused\n", (int)kind, passed,
                      N_MUTATIONS, (unsigned long long)pipeline_stats(f.p).protocol_errors,
                      (unsigned long long)pipeline_stats(f.p).stale, (unsigned long long)pipeline_stats(f.p).refused);
        assert_in_range(passed, N_MUTATIONS / 10, N_MUTATIONS - N_MUTATIONS / 50);
        fakes_fini(&f);
    }
    result_destroy(valid);
    result_destroy(r);
}

/* --- messages to a stage ----------------------------------------------------------------------------------------------------------- */

static void fill_plan(struct plan *p)
{
    const uint32_t ids[] = {5, 6, 7}, blocks[] = {3, 4};
    plan_reset(p);
    p->session = 11;
    p->epoch = 2;
    p->tick = 9;
    p->budget_us = 1000;
    const struct plan_op open = {.kind = OP_OPEN, .seq = 1, .slot = 2, .length = 16, .n_blocks = 2, .sampler = {.temperature = 0.5f, .top_p = 1}};
    const struct plan_op end = {.kind = OP_CLOSE, .seq = 2};
    const struct plan_run read = {.seq = 1, .n = 3, .kv_index = 16, .source = SOURCE_IDS, .sample = SAMPLE_LAST, .last_stage = 2,
                                  .table_check = plan_table_digest(blocks, 2)};
    const struct plan_run decode = {.seq = 3, .n = 1, .kv_index = 40, .source = SOURCE_FROM_TICK, .sample = SAMPLE_LAST, .from_tick = 8,
                                    .last_stage = 2};
    assert_int_equal(plan_add_op(p, &open, blocks), STATUS_OK);
    assert_int_equal(plan_add_op(p, &end, NULL), STATUS_OK);
    assert_int_equal(plan_add_run(p, &read, ids), STATUS_OK);
    assert_int_equal(plan_add_run(p, &decode, NULL), STATUS_OK);
}

static struct to_stage message_to(enum to_stage_kind kind, struct plan *p)
{
    struct to_stage m = {.kind = kind};
    switch (kind) {
    case TO_STAGE_ASSIGN:
        m.assign = (struct msg_assign){.stage = 1, .n_stages = 3, .first_layer = 10, .end_layer = 20, .slots = 4, .context = 1024,
                                       .kv_block = 16, .max_rows = 256, .heartbeat_ms = 300, .stuck_ms = 10000, .window = 4, .kv_type = "f16"};
        break;
    case TO_STAGE_EPOCH:
        m.epoch = (struct msg_epoch){11, 2};
        break;
    case TO_STAGE_LINKS:
        m.links = (struct msg_links){.session = 11, .epoch = 2, .next = {.tcp = "10.0.0.3:4000"}, .key = {1}};
        break;
    case TO_STAGE_PLAN:
        fill_plan(p);
        m.plan = p;
        break;
    case TO_STAGE_EXIT:
        m.exit = (struct msg_exit){.status = STATUS_CONFIG, .message = "not here"};
        break;
    }
    return m;
}

/* Texts end, numbers are in their ranges, and a plan adds up. */
static void check_to(const struct to_stage *m)
{
    struct error err;
    switch (m->kind) {
    case TO_STAGE_ASSIGN:
        assert_non_null(memchr(m->assign.kv_type, 0, sizeof m->assign.kv_type));
        break;
    case TO_STAGE_EPOCH:
        break;
    case TO_STAGE_LINKS:
        assert_non_null(memchr(m->links.next.tcp, 0, sizeof m->links.next.tcp));
        assert_non_null(memchr(m->links.next.unix_name, 0, sizeof m->links.next.unix_name));
        break;
    case TO_STAGE_PLAN:
        assert_int_equal(plan_check(m->plan, &err), STATUS_OK);
        break;
    case TO_STAGE_EXIT:
        assert_non_null(memchr(m->exit.message, 0, sizeof m->exit.message));
        break;
    }
}

static void a_mutated_message_to_a_stage_is_refused_or_adds_up(void **state)
{
    (void)state;
    static uint8_t bytes[MUTATE_MAX];
    struct plan *valid, *p;
    assert_int_equal(plan_create(8, 8, 64, &valid), STATUS_OK);
    assert_int_equal(plan_create(8, 8, 64, &p), STATUS_OK);
    for (enum to_stage_kind kind = TO_STAGE_ASSIGN; kind <= TO_STAGE_EXIT; kind++) {
        const struct to_stage m = message_to(kind, valid);
        uint32_t passed = 0;
        uint8_t *data;
        size_t len;
        assert_int_equal(stage_wire_pack_to_stage(&m, &data, &len), STATUS_OK);
        for (uint32_t i = 0; i < N_MUTATIONS; i++) {
            struct to_stage got;
            struct error err = {0};
            size_t n = mutate_message((uint64_t)(kind + 100) << 32 | i, data, len, bytes);
            enum status s = stage_wire_unpack_to_stage(bytes, n, p, &got, &err);
            if (s == STATUS_OK) {
                passed++;
                check_to(&got);
            } else {
                assert_int_equal(s, STATUS_PROTOCOL);
                assert_true(err.message[0] != 0);
            }
        }
        free(data);
        print_message("          kind %d: %u of %d passed the wire's checks\n", (int)kind, passed, N_MUTATIONS);
        assert_in_range(passed, N_MUTATIONS / 20, N_MUTATIONS - N_MUTATIONS / 50);
    }
    plan_destroy(valid);
    plan_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mutated_message_of_a_stage_never_breaks_the_pipeline),
        cmocka_unit_test(a_mutated_message_to_a_stage_is_refused_or_adds_up),
    };
    log_open("test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
