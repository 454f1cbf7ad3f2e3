/* A stage's copy of tables with a WINDOW group: blocks of 16 positions, rows that see 32. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "stage/sequences.h"

enum { SLOTS = 3, CONTEXT = 160, BLOCK = 16, BLOCKS = 20, WINDOW_BLOCKS = 6 };

struct fixture {
    struct sequences *s;
    struct plan *p;
    uint32_t digest[8]; /* by sequence */
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct sequences_limits l = {
        .slots = SLOTS, .context = CONTEXT, .kv_block = BLOCK, .n_blocks = BLOCKS, .n_notes = 4, .n_window = WINDOW_BLOCKS,
        .window = {.window = 32, .kv_block = BLOCK, .slots = SLOTS, .context = CONTEXT, .max_rows = 32, .ticks = 2}};
    assert_int_equal(sequences_create(&l, &f->s), STATUS_OK);
    assert_int_equal(plan_create(64, 64, 2048, &f->p), STATUS_OK);
    f->p->tick = 1;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sequences_destroy(f->s);
    plan_destroy(f->p);
    free(f);
    return 0;
}

/* words: n blocks, then n_window of the other group. */
static enum status apply(struct fixture *f, struct plan_op op, uint32_t n, uint32_t n_window, const uint32_t *words, struct error *err)
{
    op.n_blocks = n;
    op.n_window = n_window;
    if (op.kind == OP_OPEN)
        f->digest[op.seq] = PLAN_DIGEST_START;
    f->digest[op.seq] = plan_digest_add(f->digest[op.seq], words, n + n_window);
    assert_int_equal(plan_add_op(f->p, &op, words), STATUS_OK);
    assert_int_equal(plan_check(f->p, err), STATUS_OK);
    return sequences_apply(f->s, f->p, &f->p->ops[f->p->n_ops - 1], err);
}

static enum status extend(struct fixture *f, uint64_t seq, uint32_t n, struct error *err)
{
    static const uint32_t ids[CONTEXT];
    struct sequence *q = sequences_find(f->s, seq);
    struct sample_note *note;
    const struct plan_run run = {.seq = seq, .n = n, .kv_index = q->length, .source = SOURCE_IDS, .table_check = f->digest[seq]};
    assert_int_equal(plan_add_run(f->p, &run, ids), STATUS_OK);
    return sequences_extend(f->s, f->p, f->p->n_runs - 1, &q, &note, err);
}

static void next_tick(struct fixture *f)
{
    uint64_t tick = f->p->tick + 1;
    const char *why;
    if (!sequences__check(f->s, &why))
        fail_msg("%s", why);
    plan_reset(f->p);
    f->p->tick = tick;
}

#define OK(call) assert_int_equal((call), STATUS_OK)

static void refused_as(enum status s, const struct error *err, const char *text)
{
    assert_int_equal(s, STATUS_PROTOCOL);
    if (!strstr(err->message, text))
        fail_msg("'%s' is not in '%s'", text, err->message);
}

static const struct plan_op open_1 = {.kind = OP_OPEN, .seq = 1, .slot = 0}, more_1 = {.kind = OP_APPEND, .seq = 1},
                            open_2 = {.kind = OP_OPEN, .seq = 2, .slot = 1}, close_1 = {.kind = OP_CLOSE, .seq = 1};

static void blocks_behind_the_window_are_others_in_the_next_plan(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    OK(apply(f, open_1, 2, 2, (uint32_t[]){10, 11, 0, 1}, &err));
    OK(extend(f, 1, 32, &err));
    next_tick(f);
    OK(apply(f, more_1, 2, 2, (uint32_t[]){12, 13, 2, 3}, &err));
    const struct sequence *q = sequences_find(f->s, 1);
    assert_int_equal(q->first_window, 0); /* a row at 32 reads from 1 on */
    OK(extend(f, 1, 32, &err));
    assert_int_equal(q->first_window, 2); /* one at 64 from 33 on */
    assert_true(q->window_blocks[0] == 0 && q->window_blocks[1] == 1); /* this tick still reads them there */
    next_tick(f);
    OK(apply(f, open_2, 2, 2, (uint32_t[]){5, 6, 1, 0}, &err));
    OK(apply(f, more_1, 1, 1, (uint32_t[]){14, 4}, &err));
    OK(extend(f, 2, 32, &err));
    OK(extend(f, 1, 16, &err));
    next_tick(f);
    OK(apply(f, close_1, 0, 0, NULL, &err));
    next_tick(f);
    assert_int_equal(sequences_count(f->s), 1);
}

static void a_block_that_a_window_still_reaches_is_nobody_elses(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    OK(apply(f, open_1, 3, 3, (uint32_t[]){10, 11, 12, 0, 1, 2}, &err));
    OK(extend(f, 1, 47, &err)); /* a row at 47 reads from 16 on */
    next_tick(f);
    refused_as(apply(f, open_2, 1, 1, (uint32_t[]){5, 1}, &err), &err, "block 1 is held by others (1)");
}

static void the_blocks_of_a_taken_up_prefix_are_those_of_its_window(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    OK(apply(f, open_1, 5, 5, (uint32_t[]){10, 11, 12, 13, 14, 0, 1, 2, 3, 4}, &err));
    OK(extend(f, 1, 66, &err));
    next_tick(f);
    struct plan_op op = open_2;
    op.length = 64; /* its first row reads from 33 on, as do those of the other */
    OK(apply(f, op, 5, 3, (uint32_t[]){10, 11, 12, 13, 5, 2, 3, 5}, &err));
    const struct sequence *q = sequences_find(f->s, 2);
    assert_int_equal(q->first_window, 2);
    assert_true(q->window_blocks[2] == 2 && q->window_blocks[4] == 5);
    OK(extend(f, 2, 16, &err));
    next_tick(f);
    OK(apply(f, close_1, 0, 0, NULL, &err));
    next_tick(f);
}

static void ops_with_another_number_of_window_blocks_are_refused(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    refused_as(apply(f, open_1, 2, 1, (uint32_t[]){10, 11, 0}, &err), &err, "1 WINDOW blocks with 2 others, expected 2");
    sequences_clear(f->s);
    OK(apply(f, open_1, 2, 2, (uint32_t[]){10, 11, 0, 1}, &err));
    refused_as(apply(f, more_1, 1, 0, (uint32_t[]){12}, &err), &err, "0 WINDOW blocks with 1 others, expected 1");
    sequences_clear(f->s);
    refused_as(apply(f, open_1, 1, 1, (uint32_t[]){10, WINDOW_BLOCKS}, &err), &err, "block 6 of a pool of 6");
    sequences_clear(f->s);
    refused_as(apply(f, open_1, 2, 2, (uint32_t[]){10, 11, 3, 3}, &err), &err, "block 3 stands in its table twice");
}

static void a_truncation_below_what_is_there_is_refused(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    OK(apply(f, open_1, 5, 5, (uint32_t[]){10, 11, 12, 13, 14, 0, 1, 2, 3, 4}, &err));
    OK(extend(f, 1, 80, &err));
    OK(apply(f, (struct plan_op){.kind = OP_TRUNCATE, .seq = 1, .length = 79}, 0, 0, NULL, &err));
    refused_as(apply(f, (struct plan_op){.kind = OP_TRUNCATE, .seq = 1, .length = 40}, 0, 0, NULL, &err), &err,
               "its window from block 3 on is there");
}

static void a_wrong_window_table_does_not_pass_the_check(void **state)
{
    struct fixture *f = *state;
    struct error err = {0};
    OK(apply(f, open_1, 2, 2, (uint32_t[]){10, 11, 0, 1}, &err));
    f->digest[1] = plan_table_digest((uint32_t[]){10, 11, 1, 0}, 4);
    refused_as(extend(f, 1, 16, &err), &err, "block table digest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(blocks_behind_the_window_are_others_in_the_next_plan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_block_that_a_window_still_reaches_is_nobody_elses, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_blocks_of_a_taken_up_prefix_are_those_of_its_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ops_with_another_number_of_window_blocks_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_truncation_below_what_is_there_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_window_table_does_not_pass_the_check, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
