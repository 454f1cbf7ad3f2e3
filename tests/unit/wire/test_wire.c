/* Plans and frames: what does not add up is refused with both values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/wire/frame.h"
#include "common/wire/plan.h"

static struct plan *valid_plan(void)
{
    struct plan *p;
    const uint32_t blocks[2] = {3, 4}, ids[5] = {1, 2, 3, 4, 5};
    assert_int_equal(plan_create(4, 4, 32, &p), STATUS_OK);
    p->tick = 9;
    assert_int_equal(plan_add_op(p, &(struct plan_op){.kind = OP_OPEN, .seq = 7, .n_blocks = 2, .sampler = {.top_p = 1}}, blocks),
                     STATUS_OK);
    assert_int_equal(plan_add_run(p, &(struct plan_run){.seq = 7, .n = 5, .source = SOURCE_IDS}, ids), STATUS_OK);
    assert_int_equal(plan_add_run(p, &(struct plan_run){.seq = 8, .n = 1, .kv_index = 4, .source = SOURCE_FROM_TICK,
                                                        .from_tick = 8, .sample = SAMPLE_LAST}, NULL), STATUS_OK);
    assert_int_equal(p->n_rows, 6);
    return p;
}

static void plan_that_adds_up_passes_and_copies(void **state)
{
    (void)state;
    struct plan *p = valid_plan(), *q, *small;
    struct error err = {0};
    assert_int_equal(plan_check(p, &err), STATUS_OK);
    assert_int_equal(plan_create(4, 4, 32, &q), STATUS_OK);
    assert_int_equal(plan_copy(q, p), STATUS_OK);
    assert_int_equal(plan_check(q, &err), STATUS_OK);
    assert_memory_equal(q->words, p->words, p->n_words * sizeof *p->words);
    assert_int_equal(plan_create(4, 1, 32, &small), STATUS_OK);
    assert_int_equal(plan_copy(small, p), STATUS_FULL);
    plan_destroy(small);
    plan_destroy(q);
    plan_destroy(p);
}

#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        struct plan *p = valid_plan();                                                                                 \
        struct error err = {0};                                                                                        \
        change;                                                                                                        \
        assert_int_equal(plan_check(p, &err), STATUS_PROTOCOL);                                                        \
        assert_true(err.message[0] != 0);                                                                              \
        plan_destroy(p);                                                                                               \
    } while (0)

static void plan_with_one_wrong_field_is_refused(void **state)
{
    (void)state;
    REFUSED(p->n_rows = 7);
    REFUSED(p->ops[0].kind = (enum plan_op_kind)9);
    REFUSED(p->ops[0].seq = 0);
    REFUSED(p->ops[0].first_block = 31);
    REFUSED(p->ops[0].n_blocks = UINT32_MAX);
    REFUSED(p->ops[0].sampler.temperature = -1);
    REFUSED(p->ops[0].sampler.top_p = __builtin_nanf(""));
    REFUSED(p->runs[0].n = 0);
    REFUSED(p->runs[0].n = UINT32_MAX);
    REFUSED(p->runs[0].source = (enum run_source)0);
    REFUSED(p->runs[0].sample = (enum run_sample)7);
    REFUSED(p->runs[0].first_id = 30);
    REFUSED(p->runs[1].from_tick = 9);
    REFUSED(p->runs[0].kv_index = UINT32_MAX);
    REFUSED(p->n_words = 33);
}

static void plan_is_full_at_its_capacity(void **state)
{
    (void)state;
    struct plan *p;
    const uint32_t ids[3] = {0};
    assert_int_equal(plan_create(0, 2, 3, &p), STATUS_OK);
    assert_int_equal(plan_add_op(p, &(struct plan_op){.kind = OP_CLOSE, .seq = 1}, NULL), STATUS_FULL);
    assert_int_equal(plan_add_run(p, &(struct plan_run){.seq = 1, .n = 3, .source = SOURCE_IDS}, ids), STATUS_OK);
    assert_int_equal(plan_add_run(p, &(struct plan_run){.seq = 2, .n = 1, .source = SOURCE_IDS}, ids), STATUS_FULL);
    assert_int_equal(p->n_rows, 3);
    plan_destroy(p);
}

static const struct frame_header sample_frame = {.session = 1, .epoch = 2, .tick = 3, .payload_bytes = 4096, .n_rows = 4,
                                                 .width = 256, .flags = FRAME_ROWS, .from = 0, .to = 1, .n_sections = 2};

static void frame_header_survives_the_wire(void **state)
{
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame_header back;
    struct error err = {0};
    frame_encode(&sample_frame, bytes);
    assert_int_equal(frame_decode(bytes, &back, &err), STATUS_OK);
    assert_int_equal(frame_expect(&back, &sample_frame, &err), STATUS_OK);
}

static void frame_with_any_flipped_bit_is_refused(void **state)
{
    (void)state;
    for (int bit = 0; bit < FRAME_HEADER_BYTES * 8; bit++) {
        uint8_t bytes[FRAME_HEADER_BYTES];
        struct frame_header back;
        struct error err = {0};
        frame_encode(&sample_frame, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(frame_decode(bytes, &back, &err), STATUS_PROTOCOL);
    }
}

static void frame_of_another_epoch_is_stale_not_a_fault(void **state)
{
    (void)state;
    struct frame_header other = sample_frame;
    struct error err = {0};
    other.epoch = 9;
    assert_int_equal(frame_expect(&other, &sample_frame, &err), STATUS_STALE);
    other = sample_frame;
    other.n_rows = 5;
    assert_int_equal(frame_expect(&other, &sample_frame, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "5"));
    assert_non_null(strstr(err.message, "4"));
}

static void crc32c_matches_the_published_check_value(void **state)
{
    (void)state;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_that_adds_up_passes_and_copies), cmocka_unit_test(plan_with_one_wrong_field_is_refused),
        cmocka_unit_test(plan_is_full_at_its_capacity),        cmocka_unit_test(frame_header_survives_the_wire),
        cmocka_unit_test(frame_with_any_flipped_bit_is_refused), cmocka_unit_test(frame_of_another_epoch_is_stale_not_a_fault),
        cmocka_unit_test(crc32c_matches_the_published_check_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
