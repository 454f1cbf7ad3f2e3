/* Blocks of layers that see a window: what a sequence holds of them, what it leaves, and what can be taken up again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/blocks.h"

enum { B = 16, W = 32, SLOTS = 3, CONTEXT = 640, ROWS = 32, TICKS = 2 };

static struct blocks *create(uint32_t n_blocks, uint32_t slots)
{
    const struct blocks_options o = {.n_blocks = n_blocks, .n_slots = SLOTS, .context = CONTEXT, .kv_block = B,
                                     .window = {.window = W, .kv_block = B, .slots = slots, .context = CONTEXT, .max_rows = ROWS,
                                                .ticks = TICKS}};
    struct blocks *b;
    assert_int_equal(blocks_create(&o, &b), STATUS_OK);
    return b;
}

static uint64_t item(const void *ctx, uint32_t position)
{
    return *(const uint32_t *)ctx * 1000 + position;
}

static struct block_chain chain(const uint32_t *text, uint32_t n)
{
    return (struct block_chain){.item = item, .ctx = text, .n = n};
}

static void check(const struct blocks *b)
{
    const char *why;
    if (!blocks__check(b, &why))
        fail_msg("%s", why);
}

/* Positions [from, to) in ticks of ROWS, each retired before the next. */
static void read_on(struct blocks *b, struct slot_ref ref, const uint32_t *text, uint32_t from, uint32_t to)
{
    uint32_t n_new;
    for (uint32_t end = from; end < to;) {
        end = to - end < ROWS ? to : end + ROWS;
        assert_int_equal(blocks_grow(b, ref, end, &n_new), STATUS_OK);
        const struct block_chain c = chain(text, end);
        blocks_commit(b, ref, &c);
        check(b);
    }
}

static uint32_t take(struct blocks *b, struct slot_ref ref, const uint32_t *text, uint32_t n)
{
    uint32_t n_cached;
    const struct block_chain c = chain(text, n);
    assert_int_equal(blocks_open(b, ref, &c, blocks_needed(b, n), &n_cached), STATUS_OK);
    return n_cached;
}

static void a_sequence_holds_the_blocks_of_its_window_while_the_others_stay(void **state)
{
    (void)state;
    struct blocks *b = create(100, SLOTS);
    const uint32_t text = 1;
    struct slot_ref ref = {0, 1};
    uint32_t first, n;
    assert_int_equal(take(b, ref, &text, CONTEXT), 0);
    for (uint32_t end = 0; end < CONTEXT; end += ROWS) {
        read_on(b, ref, &text, end, end + ROWS);
        uint32_t live = blocks_window_counts(b).live;
        assert_true(live <= W / B + 1);
        blocks_table(b, ref, &n);
        assert_non_null(blocks_window_table(b, ref, &first));
        assert_int_equal(n - first, live);
        assert_int_equal(blocks_counts(b).live, n);
        assert_int_equal(first, end + ROWS > W ? (end + ROWS - W + 1) / B : 0);
    }
    assert_int_equal(blocks_close(b, ref, 0), STATUS_OK);
    assert_int_equal(blocks_window_counts(b).live, 0);
    blocks_destroy(b);
}

static void a_model_without_a_window_has_no_such_blocks(void **state)
{
    (void)state;
    const struct blocks_options o = {.n_blocks = 10, .n_slots = 1, .context = 160, .kv_block = B};
    struct blocks *b;
    uint32_t n_cached, n_new, first;
    assert_int_equal(blocks_create(&o, &b), STATUS_OK);
    assert_int_equal(blocks_open(b, (struct slot_ref){0, 1}, NULL, 4, &n_cached), STATUS_OK);
    assert_int_equal(blocks_grow(b, (struct slot_ref){0, 1}, 64, &n_new), STATUS_OK);
    assert_null(blocks_window_table(b, (struct slot_ref){0, 1}, &first));
    const struct blocks_count n = blocks_window_counts(b);
    assert_true(n.total == 0 && n.live == 0 && n.promised == 0);
    blocks_destroy(b);
}

/* The pool is so small that the last window of a second text pushes the first one's out, while the PAGED blocks of both stay. */
static void a_prefix_whose_window_is_gone_is_read_again_and_then_found_again(void **state)
{
    (void)state;
    struct blocks *b = create(100, 1);
    const uint32_t one = 1, other = 2;
    const uint32_t total = blocks_window_counts(b).total;
    assert_true(total < 20);
    assert_int_equal(take(b, (struct slot_ref){0, 1}, &one, 321), 0);
    read_on(b, (struct slot_ref){0, 1}, &one, 0, 321);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 0), STATUS_OK);
    const struct block_chain c = chain(&one, 321);
    assert_int_equal(blocks_match(b, &c), 20);
    assert_int_equal(take(b, (struct slot_ref){0, 2}, &other, 400), 0);
    read_on(b, (struct slot_ref){0, 2}, &other, 0, 400);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 2}, 0), STATUS_OK);
    assert_int_equal(blocks_counts(b).evicted, 0);
    assert_true(blocks_window_counts(b).evicted > 0);
    assert_int_equal(blocks_match(b, &c), 0);
    assert_int_equal(take(b, (struct slot_ref){0, 3}, &one, 321), 0);
    read_on(b, (struct slot_ref){0, 3}, &one, 0, 321);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 3}, 0), STATUS_OK);
    assert_int_equal(blocks_match(b, &c), 20);
    assert_int_equal(blocks_counts(b).cached, 20 + 25); /* one copy of each */
    check(b);
    blocks_destroy(b);
}

/* Both have the same blocks; the first goes on and leaves them, the second still reads them. */
static void what_is_behind_one_ones_window_stays_for_another(void **state)
{
    (void)state;
    struct blocks *b = create(100, SLOTS);
    const uint32_t text = 1;
    struct slot_ref first = {0, 1}, second = {1, 2};
    uint32_t from, n_window = blocks_window_counts(b).total;
    take(b, first, &text, 400);
    read_on(b, first, &text, 0, 96);
    assert_int_equal(take(b, second, &text, 97), 6);
    const uint32_t *table = blocks_window_table(b, second, &from), held = table[5];
    assert_int_equal(from, 4);
    read_on(b, first, &text, 96, 320);
    assert_int_equal(table[5], held);
    assert_int_equal(blocks_close(b, first, 7), STATUS_OK);
    assert_int_equal(blocks_window_counts(b).draining, 2); /* of the first one's window */
    assert_true(blocks_window_counts(b).live == 2);
    blocks_retire(b, 7);
    assert_int_equal(blocks_close(b, second, 7), STATUS_OK);
    assert_int_equal(blocks_window_counts(b).free + blocks_window_counts(b).cached, n_window);
    check(b);
    blocks_destroy(b);
}

static void a_window_pool_that_is_promised_to_others_lets_nobody_in(void **state)
{
    (void)state;
    struct blocks *b = create(100, 1); /* made for one slot and an eighth of the others' number */
    const uint32_t text[] = {1, 2, 3};
    uint32_t n_open = 0, n_cached, hold = blocks_window_counts(b).total;
    for (uint32_t s = 0; s < SLOTS; s++) {
        const struct block_chain c = chain(&text[s], 480);
        int may = blocks_can_open(b, &c, 30);
        assert_int_equal(blocks_open(b, (struct slot_ref){s, s + 1}, &c, 30, &n_cached), may ? STATUS_OK : STATUS_BLOCKS_BUSY);
        n_open += may != 0;
    }
    assert_true(n_open >= 1 && n_open < SLOTS);
    assert_int_equal(blocks_available(b), 100 - 30 * n_open);
    assert_true(blocks_window_counts(b).promised <= hold);
    read_on(b, (struct slot_ref){0, 1}, &text[0], 0, 480); /* who is in can go on to its end */
    check(b);
    blocks_destroy(b);
}

static void what_is_forgotten_leaves_neither_kind(void **state)
{
    (void)state;
    struct blocks *b = create(100, SLOTS);
    const uint32_t text = 1;
    struct slot_ref ref = {0, 1};
    take(b, ref, &text, 200);
    read_on(b, ref, &text, 0, 200);
    assert_true(blocks_window_counts(b).cached > 0);
    blocks_forget(b, ref);
    assert_int_equal(blocks_close(b, ref, 0), STATUS_OK);
    assert_int_equal(blocks_window_counts(b).free, blocks_window_counts(b).total);
    assert_int_equal(blocks_counts(b).free, 100);
    check(b);
    blocks_destroy(b);
}

static void a_lost_pool_is_forgotten_in_both_groups(void **state)
{
    (void)state;
    struct blocks *b = create(100, SLOTS);
    const uint32_t text = 1;
    take(b, (struct slot_ref){0, 1}, &text, 200);
    read_on(b, (struct slot_ref){0, 1}, &text, 0, 200);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 5), STATUS_OK);
    blocks_new_epoch(b);
    const struct block_chain c = chain(&text, 200);
    assert_int_equal(blocks_match(b, &c), 12);
    blocks_lose(b);
    assert_int_equal(blocks_match(b, &c), 0);
    assert_int_equal(blocks_counts(b).hollow, 0);
    assert_int_equal(blocks_counts(b).free, 100);
    assert_int_equal(blocks_window_counts(b).free, blocks_window_counts(b).total);
    assert_int_equal(blocks_reset(b, 300), STATUS_OK);
    assert_true(blocks_window_counts(b).total > 40);
    check(b);
    blocks_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_holds_the_blocks_of_its_window_while_the_others_stay),
        cmocka_unit_test(a_model_without_a_window_has_no_such_blocks),
        cmocka_unit_test(a_prefix_whose_window_is_gone_is_read_again_and_then_found_again),
        cmocka_unit_test(what_is_behind_one_ones_window_stays_for_another),
        cmocka_unit_test(a_window_pool_that_is_promised_to_others_lets_nobody_in),
        cmocka_unit_test(what_is_forgotten_leaves_neither_kind),
        cmocka_unit_test(a_lost_pool_is_forgotten_in_both_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
