#include "tests/unit/stage/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "stage/sequences.h"

enum { SLOTS = 4, CONTEXT = 64, BLOCK = 16, BLOCKS = 12, NOTES = 4 };

struct fixture {
    struct sequences *s;
    struct plan *p;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct sequences_limits l = {
        .slots = SLOTS, .context = CONTEXT, .kv_block = BLOCK, .n_blocks = BLOCKS, .n_notes = NOTES};
    assert_int_equal(sequences_create(&l, &f->s), STATUS_OK);
    assert_int_equal(plan_create(64, 64, 1024, &f->p), STATUS_OK);
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

static enum status apply(struct fixture *f, const struct plan_op *op, const uint32_t *blocks, struct error *err)
{
    assert_int_equal(plan_add_op(f->p, op, blocks), STATUS_OK);
    return sequences_apply(f->s, f->p, &f->p->ops[f->p->n_ops - 1], err);
}

static enum status open_seq(struct fixture *f, uint64_t seq, uint32_t slot, uint32_t n, const uint32_t *blocks)
{
    return apply(f, &(struct plan_op){.kind = OP_OPEN, .seq = seq, .slot = slot, .n_blocks = n}, blocks, NULL);
}

static enum status close_seq(struct fixture *f, uint64_t seq)
{
    return apply(f, &(struct plan_op){.kind = OP_CLOSE, .seq = seq}, NULL, NULL);
}

static enum status append(struct fixture *f, uint64_t seq, uint32_t n, const uint32_t *blocks)
{
    return apply(f, &(struct plan_op){.kind = OP_APPEND, .seq = seq, .n_blocks = n}, blocks, NULL);
}

/* A run of n rows with the right digest. */
static enum status extend(struct fixture *f, struct plan_run run, struct sample_note **from, struct error *err)
{
    static const uint32_t ids[CONTEXT + 1];
    struct sequence *q = sequences_find(f->s, run.seq);
    struct sample_note *note;
    if (q && !run.table_check)
        run.table_check = plan_table_digest(q->blocks, q->n_blocks);
    if (!run.source)
        run.source = SOURCE_IDS;
    assert_int_equal(plan_add_run(f->p, &run, ids), STATUS_OK);
    return sequences_extend(f->s, f->p, f->p->n_runs - 1, &q, from ? from : &note, err);
}

static void next_tick(struct fixture *f)
{
    uint64_t tick = f->p->tick + 1;
    plan_reset(f->p);
    f->p->tick = tick;
}

static void check(struct fixture *f)
{
    const char *why;
    if (!sequences__check(f->s, &why))
        fail_msg("%s", why);
}

static void a_sequence_opens_grows_and_closes(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(open_seq(f, 7, 2, 1, (uint32_t[]){5}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 7, .n = 16}, NULL, NULL), STATUS_OK);
    next_tick(f);
    assert_int_equal(append(f, 7, 2, (uint32_t[]){1, 11}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 7, .n = 20, .kv_index = 16}, NULL, NULL), STATUS_OK);
    const struct sequence *q = sequences_find(f->s, 7);
    assert_int_equal(q->length, 36);
    assert_int_equal(q->digest, plan_table_digest((uint32_t[]){5, 1, 11}, 3));
    assert_int_equal(apply(f, &(struct plan_op){.kind = OP_TRUNCATE, .seq = 7, .length = 3}, NULL, NULL), STATUS_OK);
    assert_int_equal(q->length, 3);
    assert_int_equal(close_seq(f, 7), STATUS_OK);
    assert_null(sequences_find(f->s, 7));
    assert_int_equal(sequences_count(f->s), 0);
    /* blocks and slot are free again */
    assert_int_equal(open_seq(f, 8, 2, 3, (uint32_t[]){11, 5, 1}), STATUS_OK);
    check(f);
}

static void what_contradicts_the_table_is_refused_with_both_values(void **state)
{
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(open_seq(f, 1, 0, 2, (uint32_t[]){0, 1}), STATUS_OK);
    const struct {
        struct plan_op op;
        uint32_t blocks[5];
        const char *words;
    } bad[] = {
        {{.kind = OP_OPEN, .seq = 2, .slot = SLOTS}, {0}, "slot 4 of 4"},
        {{.kind = OP_OPEN, .seq = 2, .slot = 0}, {0}, "slot 0 is taken by sequence 1"},
        {{.kind = OP_OPEN, .seq = 1, .slot = 1}, {0}, "open already, in slot 0"},
        {{.kind = OP_APPEND, .seq = 1, .n_blocks = 1}, {BLOCKS}, "block 12 of a pool of 12"},
        {{.kind = OP_APPEND, .seq = 1, .n_blocks = 1}, {1}, "block 1 stands in its table twice"},
        {{.kind = OP_APPEND, .seq = 1, .n_blocks = 3}, {2, 3, 4}, "2 + 3 blocks, at most 4"},
        {{.kind = OP_OPEN, .seq = 3, .slot = 1, .n_blocks = 1}, {0}, "block 0 is held by others (1), its length is 0"},
        {{.kind = OP_OPEN, .seq = 4, .slot = 2, .n_blocks = 1, .length = 17}, {5}, "length 17, its 1 blocks hold 16"},
        {{.kind = OP_OPEN, .seq = 5, .slot = 3, .n_blocks = 4, .length = 65}, {6, 7, 8, 9}, "length 65, the context is 64"},
        {{.kind = OP_APPEND, .seq = 9, .n_blocks = 1}, {10}, "sequence 9, which is not open"},
        {{.kind = OP_CLOSE, .seq = 9}, {0}, "sequence 9, which is not open"},
        {{.kind = OP_TRUNCATE, .seq = 1, .length = 1}, {0}, "truncated to 1, its length is 0"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(apply(f, &bad[i].op, bad[i].blocks, &err), STATUS_PROTOCOL);
        if (!strstr(err.message, bad[i].words))
            fail_msg("'%s' says nothing of '%s'", err.message, bad[i].words);
    }
}

static void a_run_that_contradicts_the_table_is_refused_with_both_values(void **state)
{
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(open_seq(f, 1, 0, 2, (uint32_t[]){0, 1}), STATUS_OK);
    assert_int_equal(open_seq(f, 2, 1, 1, (uint32_t[]){2}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 4, .sample = SAMPLE_LAST}, NULL, NULL), STATUS_OK);
    next_tick(f);
    const struct {
        struct plan_run run;
        const char *words;
    } bad[] = {
        {{.seq = 9, .n = 1}, "sequence 9, which is not open"},
        {{.seq = 1, .n = 1, .kv_index = 5}, "kv_index 5, its length is 4"},
        {{.seq = 1, .n = 29, .kv_index = 4}, "length 33, its 2 blocks hold 32"},
        {{.seq = 1, .n = 1, .kv_index = 4, .table_check = 77}, "digest 0000004d"},
        {{.seq = 2, .n = 1, .source = SOURCE_FROM_TICK, .from_tick = 1}, "tick 1 sampled nothing"},
        {{.seq = 1, .n = 1, .kv_index = 4, .source = SOURCE_FROM_TICK, .from_tick = 0}, "tick 0 sampled nothing"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(extend(f, bad[i].run, NULL, &err), STATUS_PROTOCOL);
        if (!strstr(err.message, bad[i].words))
            fail_msg("'%s' says nothing of '%s'", err.message, bad[i].words);
    }
    /* an id belongs where it was drawn for */
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 2, .kv_index = 4}, NULL, NULL), STATUS_OK);
    next_tick(f);
    const struct plan_run late = {.seq = 1, .n = 1, .kv_index = 6, .source = SOURCE_FROM_TICK, .from_tick = 1};
    assert_int_equal(extend(f, late, NULL, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "kv_index 6, the id of tick 1 belongs at 4"));
}

static void rows_of_a_sequence_stand_together_and_end_with_the_sample(void **state)
{
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(open_seq(f, 1, 0, 2, (uint32_t[]){0, 1}), STATUS_OK);
    assert_int_equal(open_seq(f, 2, 1, 1, (uint32_t[]){2}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 2}, NULL, NULL), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 2, .kv_index = 2}, NULL, NULL), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 2, .n = 1, .sample = SAMPLE_LAST}, NULL, NULL), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 1, .kv_index = 4}, NULL, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "runs 1 and 3"));
    assert_int_equal(extend(f, (struct plan_run){.seq = 2, .n = 1, .kv_index = 1}, NULL, &err), STATUS_PROTOCOL);
}

static void the_newest_samples_are_found_by_their_tick(void **state)
{
    struct fixture *f = *state;
    struct sample_note *from;
    assert_int_equal(open_seq(f, 1, 0, 4, (uint32_t[]){0, 1, 2, 3}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 3, .sample = SAMPLE_LAST}, NULL, NULL), STATUS_OK);
    for (uint32_t i = 0; i < 10; i++) {
        struct sequence *q = sequences_find(f->s, 1);
        struct sample_note *note = sequence_note(f->s, q, f->p->tick);
        assert_non_null(note);
        assert_int_equal(note->next_index, 3 + i);
        note->id = (int32_t)(100 + i);
        uint64_t tick = f->p->tick;
        next_tick(f);
        assert_int_equal(extend(f,
                                (struct plan_run){.seq = 1,
                                                  .n = 1,
                                                  .kv_index = 3 + i,
                                                  .source = SOURCE_FROM_TICK,
                                                  .from_tick = tick,
                                                  .sample = SAMPLE_LAST},
                                &from, NULL),
                         STATUS_OK);
        assert_ptr_equal(from, note);
        assert_int_equal(from->id, 100 + i);
    }
    assert_null(sequence_note(f->s, sequences_find(f->s, 1), f->p->tick - NOTES));
}

/* Opens a sequence at `length` on n blocks. */
static enum status open_at(struct fixture *f, uint64_t seq, uint32_t slot, uint32_t length, uint32_t n, const uint32_t *blocks,
                           struct error *err)
{
    const struct plan_op op = {.kind = OP_OPEN, .seq = seq, .slot = slot, .length = length, .n_blocks = n};
    return apply(f, &op, blocks, err);
}

/* Sequence 1 has 20 rows in blocks 5 and 6; sequence 2 opens behind the full one of them, with a block 8 of its own. */
static void open_two_on_block_5(struct fixture *f)
{
    assert_int_equal(open_seq(f, 1, 0, 2, (uint32_t[]){5, 6}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 20}, NULL, NULL), STATUS_OK);
    next_tick(f);
    assert_int_equal(open_at(f, 2, 1, 16, 2, (uint32_t[]){5, 8}, NULL), STATUS_OK);
}

static void a_sequence_opens_on_full_blocks_of_another_and_writes_behind_them(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(open_seq(f, 1, 0, 3, (uint32_t[]){5, 6, 7}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 40}, NULL, NULL), STATUS_OK);
    next_tick(f);
    assert_int_equal(open_at(f, 2, 1, 32, 3, (uint32_t[]){5, 6, 8}, NULL), STATUS_OK);
    check(f);
    const struct sequence *q = sequences_find(f->s, 2);
    assert_int_equal(q->length, 32);
    assert_int_equal(q->digest, plan_table_digest((uint32_t[]){5, 6, 8}, 3));
    assert_int_equal(extend(f, (struct plan_run){.seq = 2, .n = 3, .kv_index = 32}, NULL, NULL), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 1, .kv_index = 40}, NULL, NULL), STATUS_OK);
    check(f);
}

static void a_shared_block_stays_with_the_last_that_holds_it(void **state)
{
    struct fixture *f = *state;
    struct error err;
    open_two_on_block_5(f);
    assert_int_equal(open_at(f, 3, 2, 16, 2, (uint32_t[]){5, 9}, NULL), STATUS_OK);
    assert_int_equal(close_seq(f, 1), STATUS_OK);
    check(f);
    assert_int_equal(open_seq(f, 4, 0, 1, (uint32_t[]){6}), STATUS_OK); /* that one is free again */
    assert_int_equal(append(f, 4, 1, (uint32_t[]){5}), STATUS_PROTOCOL);
    assert_int_equal(close_seq(f, 3), STATUS_OK);
    assert_int_equal(apply(f, &(struct plan_op){.kind = OP_APPEND, .seq = 2, .n_blocks = 1}, (uint32_t[]){5}, &err), STATUS_PROTOCOL);
    assert_int_equal(close_seq(f, 2), STATUS_OK);
    check(f);
    assert_int_equal(append(f, 4, 1, (uint32_t[]){5}), STATUS_OK); /* nobody's now */
    check(f);
}

static void a_slot_taken_again_may_share_what_its_predecessor_shared(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(open_seq(f, 1, 0, 1, (uint32_t[]){5}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 16}, NULL, NULL), STATUS_OK);
    next_tick(f);
    assert_int_equal(open_at(f, 2, 1, 16, 1, (uint32_t[]){5}, NULL), STATUS_OK);
    assert_int_equal(close_seq(f, 2), STATUS_OK);
    assert_int_equal(open_at(f, 3, 1, 16, 1, (uint32_t[]){5}, NULL), STATUS_OK);
    assert_int_equal(close_seq(f, 1), STATUS_OK);
    assert_int_equal(open_at(f, 4, 0, 16, 1, (uint32_t[]){5}, NULL), STATUS_OK);
    check(f);
}

static void what_would_write_into_or_steal_a_shared_block_is_refused(void **state)
{
    struct fixture *f = *state;
    struct error err;
    assert_int_equal(open_seq(f, 1, 0, 3, (uint32_t[]){5, 6, 7}), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 36}, NULL, NULL), STATUS_OK);
    next_tick(f);
    const struct {
        uint32_t length, n, blocks[4];
        const char *words;
    } bad[] = {
        {32, 3, {5, 6, 7}, "block 7 is held by others (1), its length is 32"},    /* not full */
        {31, 2, {5, 6}, "block 6 is held by others (1), its length is 31"},       /* it would go on in it */
        {0, 1, {5}, "block 5 is held by others (1), its length is 0"},
        {32, 2, {5, 5}, "block 5 stands in its table twice"},
        {48, 2, {5, 6}, "length 48, its 2 blocks hold 32"},
        {16, 1, {BLOCKS}, "block 12 of a pool of 12"},
        {UINT32_MAX, 1, {5}, "length 4294967295, the context is 64"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(open_at(f, 2, 1, bad[i].length, bad[i].n, bad[i].blocks, &err), STATUS_PROTOCOL);
        if (!strstr(err.message, bad[i].words))
            fail_msg("'%s' says nothing of '%s'", err.message, bad[i].words);
        if (sequences_find(f->s, 2))
            assert_int_equal(close_seq(f, 2), STATUS_OK);
        check(f);
    }
}

static void nobody_writes_into_a_block_that_another_holds(void **state)
{
    struct fixture *f = *state;
    struct error err;
    open_two_on_block_5(f);
    const struct plan_op back = {.kind = OP_TRUNCATE, .seq = 1, .length = 10}, both = {.kind = OP_TRUNCATE, .seq = 2, .length = 3};
    assert_int_equal(apply(f, &back, NULL, NULL), STATUS_OK);
    assert_int_equal(apply(f, &both, NULL, NULL), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 1, .kv_index = 10}, NULL, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "rows at 10 are written to block 5, which others hold (1)"));
    assert_int_equal(extend(f, (struct plan_run){.seq = 2, .n = 20, .kv_index = 3}, NULL, &err), STATUS_PROTOCOL);
    assert_int_equal(close_seq(f, 2), STATUS_OK);
    assert_int_equal(extend(f, (struct plan_run){.seq = 1, .n = 1, .kv_index = 10}, NULL, NULL), STATUS_OK);
    check(f);
}

/* Openings on random mixtures of others' full blocks and free ones, as a coordinator's map would give them out. */
static void random_sharing_keeps_the_sums(void **state)
{
    struct fixture *f = *state;
    uint64_t open[SLOTS] = {0}, next = 1;
    for (uint64_t i = 0; i < 3000; i++) {
        uint32_t slot = (uint32_t)(rand_at(2, i) % SLOTS), blocks[4], n = 0;
        if (open[slot]) {
            assert_int_equal(close_seq(f, open[slot]), STATUS_OK);
            open[slot] = 0;
        } else {
            const struct sequence *other = sequences_find(f->s, open[rand_at(3, i) % SLOTS]);
            uint32_t shared = other && other->seq ? (uint32_t)(rand_at(4, i) % 3) : 0;
            for (; n < shared; n++)
                blocks[n] = other->blocks[n];
            blocks[n++] = 3 * slot + 2;
            if (n == 1)
                blocks[0] = 3 * slot, blocks[n++] = 3 * slot + 1, blocks[n++] = 3 * slot + 2;
            int others = 0;
            for (uint32_t s = 0; s < SLOTS; s++)
                for (uint32_t b = 0; open[s] && b < sequences_find(f->s, open[s])->n_blocks; b++)
                    others |= sequences_find(f->s, open[s])->blocks[b] / 3 == slot;
            if (others)
                continue; /* its own blocks are still with those who share them */
            open[slot] = next++;
            assert_int_equal(open_at(f, open[slot], slot, shared * BLOCK, n, blocks, NULL), STATUS_OK);
        }
        check(f);
        next_tick(f);
    }
}

static void random_opens_and_closes_keep_the_sums(void **state)
{
    struct fixture *f = *state;
    uint64_t open[SLOTS] = {0}, next = 1;
    for (uint64_t i = 0; i < 3000; i++) {
        uint32_t slot = (uint32_t)(rand_at(1, i) % SLOTS);
        if (open[slot]) {
            assert_int_equal(close_seq(f, open[slot]), STATUS_OK);
            open[slot] = 0;
        } else {
            /* ids far apart and close together, so that probes collide */
            open[slot] = i % 3 ? next++ : next++ << 40;
            assert_int_equal(open_seq(f, open[slot], slot, 3, (uint32_t[]){3 * slot, 3 * slot + 1, 3 * slot + 2}), STATUS_OK);
        }
        for (uint32_t s = 0; s < SLOTS; s++)
            if (open[s])
                assert_int_equal(sequences_find(f->s, open[s])->slot, s);
        check(f);
        next_tick(f);
    }
    sequences_clear(f->s);
    assert_int_equal(sequences_count(f->s), 0);
    check(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* The ids of a cached prefix come with OPEN, those of prompts with their runs, and those that were sampled are its own. */
static void a_stage_that_samples_knows_the_ids_that_penalties_look_at(void **state)
{
    (void)state;
    struct fixture f = {0};
    const struct sequences_limits l = {
        .slots = SLOTS, .context = CONTEXT, .kv_block = BLOCK, .n_blocks = BLOCKS, .n_notes = NOTES, .samples = 1};
    assert_int_equal(sequences_create(&l, &f.s), STATUS_OK);
    assert_int_equal(plan_create(64, 64, 1024, &f.p), STATUS_OK);
    f.p->tick = 1;
    const float value = -2.5f;
    uint32_t bits, bias_id = 9, prefix[3] = {101, 102, 103}, ids[2] = {104, 105}, blocks[2] = {0, 1};
    memcpy(&bits, &value, sizeof bits);
    struct plan_op op = {.kind = OP_OPEN, .seq = 7, .slot = 1, .length = 16, .n_blocks = 2, .n_ids = 3,
                         .sampler = {.top_p = 1, .repeat_penalty = 2, .repeat_last_n = 3, .n_bias = 1}};
    struct error err;
    assert_int_equal(plan_add_open(f.p, &op, blocks, prefix, &bias_id, &bits), STATUS_OK);
    assert_int_equal(plan_check(f.p, &err), STATUS_OK);
    assert_int_equal(sequences_apply(f.s, f.p, &f.p->ops[0], &err), STATUS_OK);
    struct sequence *q = sequences_find(f.s, 7);
    assert_true(q->bias[0].id == 9 && q->bias[0].bias == value);
    assert_memory_equal(q->ids + 13, prefix, sizeof prefix);

    struct sample_note *from;
    struct plan_run run = {.seq = 7, .n = 2, .kv_index = 16, .source = SOURCE_IDS, .sample = SAMPLE_LAST, .table_check = q->digest};
    assert_int_equal(plan_add_run(f.p, &run, ids), STATUS_OK);
    assert_int_equal(sequences_extend(f.s, f.p, 0, &q, &from, &err), STATUS_OK);
    assert_memory_equal(q->ids + 16, ids, sizeof ids);
    for (uint32_t i = 0; i < 2; i++) { /* the second sample went wrong: no id is kept for it */
        struct sample_note *note = sequence_note(f.s, q, f.p->tick);
        note->id = i ? -1 : 106;
        note->known = 1;
        next_tick(&f);
        run = (struct plan_run){.seq = 7, .n = 1, .kv_index = 18 + i, .source = SOURCE_FROM_TICK, .sample = SAMPLE_LAST,
                                .from_tick = f.p->tick - 1, .table_check = q->digest};
        assert_int_equal(plan_add_run(f.p, &run, NULL), STATUS_OK);
        assert_int_equal(sequences_extend(f.s, f.p, 0, &q, &from, &err), STATUS_OK);
    }
    assert_int_equal(q->ids[18], 106);
    assert_int_equal(q->ids[19], UINT32_MAX);
    /* A window of three ids before 15 would begin before the first that is known. */
    assert_int_equal(apply(&f, &(struct plan_op){.kind = OP_TRUNCATE, .seq = 7, .length = 16}, NULL, &err), STATUS_OK);
    assert_int_equal(apply(&f, &(struct plan_op){.kind = OP_TRUNCATE, .seq = 7, .length = 15}, NULL, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "known from 13"));
    sequences_destroy(f.s);
    plan_destroy(f.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_that_samples_knows_the_ids_that_penalties_look_at),
        TEST(a_sequence_opens_grows_and_closes),
        TEST(what_contradicts_the_table_is_refused_with_both_values),
        TEST(a_run_that_contradicts_the_table_is_refused_with_both_values),
        TEST(rows_of_a_sequence_stand_together_and_end_with_the_sample),
        TEST(the_newest_samples_are_found_by_their_tick),
        TEST(random_opens_and_closes_keep_the_sums),
        TEST(a_sequence_opens_on_full_blocks_of_another_and_writes_behind_them),
        TEST(a_shared_block_stays_with_the_last_that_holds_it),
        TEST(a_slot_taken_again_may_share_what_its_predecessor_shared),
        TEST(what_would_write_into_or_steal_a_shared_block_is_refused),
        TEST(nobody_writes_into_a_block_that_another_holds),
        TEST(random_sharing_keeps_the_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
