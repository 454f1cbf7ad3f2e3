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
    REFUSED(p->ops[0].sampler.repeat_penalty = __builtin_nanf(""));
    REFUSED(p->ops[0].sampler.repeat_penalty = -1);
    REFUSED(p->ops[0].sampler.repeat_penalty = 1e-3f);
    REFUSED(p->ops[0].sampler.presence_penalty = 2.1f);
    REFUSED(p->ops[0].sampler.frequency_penalty = -__builtin_inff());
    REFUSED(p->ops[0].sampler.typical_p = 1.1f);
    REFUSED(p->ops[0].sampler.n_top = MAX_TOP_LOGPROBS + 2);
    REFUSED((p->ops[0].sampler.n_bias = 1, p->ops[0].first_bias = p->n_words - 1));
    REFUSED(p->ops[0].sampler.n_bias = UINT32_MAX);
    REFUSED(p->ops[0].n_ids = 1);
    REFUSED((p->ops[0].length = 5, p->ops[0].sampler.repeat_penalty = 2));
    REFUSED((p->ops[0].length = p->ops[0].n_ids = 5, p->ops[0].first_id = UINT32_MAX, p->ops[0].sampler.repeat_penalty = 2));
    REFUSED(p->runs[0].n = 0);
    REFUSED(p->runs[0].n = UINT32_MAX);
    REFUSED(p->runs[0].source = (enum run_source)0);
    REFUSED(p->runs[0].sample = (enum run_sample)7);
    REFUSED(p->runs[0].first_id = 30);
    REFUSED(p->runs[1].from_tick = 9);
    REFUSED(p->runs[0].kv_index = UINT32_MAX);
    REFUSED(p->n_words = 33);
}

static void open_with_biases_and_ids_is_checked_and_copied(void **state)
{
    (void)state;
    struct plan *p, *q;
    struct error err;
    float values[2] = {1.5f, -100};
    uint32_t bits[2], bias_ids[2] = {4, 8}, ids[4] = {5, 6, 7, 8}, blocks[1] = {3};
    memcpy(bits, values, sizeof bits);
    struct plan_op op = {.kind = OP_OPEN, .seq = 7, .length = 4, .n_blocks = 1, .n_ids = 4,
                         .sampler = {.top_p = 1, .repeat_penalty = 1.5f, .n_bias = 2}};
    assert_int_equal(plan_create(1, 1, 9, &p), STATUS_OK);
    assert_int_equal(plan_create(1, 1, 9, &q), STATUS_OK);
    assert_int_equal(plan_add_open(p, &op, blocks, ids, bias_ids, bits), STATUS_OK);
    assert_int_equal(plan_check(p, &err), STATUS_OK);
    assert_int_equal(plan_copy(q, p), STATUS_OK);
    assert_memory_equal(q->words + q->ops[0].first_id, ids, sizeof ids);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(plan_bias(q, &q->ops[0], i).id == bias_ids[i] && plan_bias(q, &q->ops[0], i).bias == values[i]);
    const float much = 101;
    memcpy(&q->words[q->ops[0].first_bias + 3], &much, sizeof much);
    assert_int_equal(plan_check(q, &err), STATUS_PROTOCOL);
    plan_reset(p);
    p->max_words = 8;
    assert_int_equal(plan_add_open(p, &op, blocks, ids, bias_ids, bits), STATUS_FULL);
    assert_true(p->n_ops == 0 && p->n_words == 0);
    plan_destroy(p);
    plan_destroy(q);
}

static void history_is_what_the_penalties_look_at(void **state)
{
    (void)state;
    struct sampler_params s = {.n_prompt = 10, .repeat_last_n = 4};
    assert_int_equal(sampler_history(&s, 30), 0);
    s.presence_penalty = 1;
    assert_int_equal(sampler_history(&s, 30), 20);
    assert_int_equal(sampler_history(&s, 10), 0);
    assert_int_equal(sampler_history(&s, 3), 0);
    s.repeat_penalty = 1.1f;
    assert_int_equal(sampler_history(&s, 12), 4);
    assert_int_equal(sampler_history(&s, 2), 2);
    assert_int_equal(sampler_history(&s, 30), 20);
    s.repeat_last_n = 0;
    assert_int_equal(sampler_history(&s, 30), 30);
}

static void result_is_copied_with_its_alternatives(void **state)
{
    (void)state;
    struct result *a, *b;
    assert_int_equal(result_create(3, &a), STATUS_OK);
    assert_int_equal(result_create(2, &b), STATUS_OK);
    a->n_runs = 2;
    a->runs[1] = (struct result_run){.seq = 9, .id = 4, .has_logprob = 1, .logprob = -1.5f, .n_top = MAX_TOP_LOGPROBS};
    for (uint32_t i = 0; i < MAX_TOP_LOGPROBS; i++)
        result_tops(a, 1)[i] = (struct top_logprob){.id = i, .logprob = -(float)i};
    assert_int_equal(result_copy(b, a), STATUS_OK);
    assert_int_equal(b->max_runs, 2);
    assert_memory_equal(b->runs, a->runs, 2 * sizeof *a->runs);
    assert_memory_equal(result_tops(b, 1), result_tops(a, 1), MAX_TOP_LOGPROBS * sizeof *a->tops);
    a->n_runs = 3;
    assert_int_equal(result_copy(b, a), STATUS_FULL);
    assert_int_equal(b->n_runs, 2);
    result_destroy(a);
    result_destroy(b);
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
        cmocka_unit_test(open_with_biases_and_ids_is_checked_and_copied),
        cmocka_unit_test(history_is_what_the_penalties_look_at),
        cmocka_unit_test(result_is_copied_with_its_alternatives),
        cmocka_unit_test(plan_is_full_at_its_capacity),
        cmocka_unit_test(frame_header_survives_the_wire),
        cmocka_unit_test(frame_with_any_flipped_bit_is_refused), cmocka_unit_test(frame_of_another_epoch_is_stale_not_a_fault),
        cmocka_unit_test(crc32c_matches_the_published_check_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
