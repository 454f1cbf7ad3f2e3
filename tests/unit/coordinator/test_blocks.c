#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "coordinator/blocks.h"

static uint32_t n_cached;

static struct blocks *create(uint32_t n_blocks, uint32_t n_slots, uint32_t context, uint32_t kv_block)
{
    const struct blocks_options o = {.n_blocks = n_blocks, .n_slots = n_slots, .context = context, .kv_block = kv_block};
    struct blocks *b;
    assert_int_equal(blocks_create(&o, &b), STATUS_OK);
    return b;
}

static void check(const struct blocks *b, int step)
{
    const char *why;
    struct blocks_count n = blocks_counts(b);
    if (!blocks__check(b, &why))
        fail_msg("step %d: %s", step, why);
    assert_int_equal(n.free + n.cached + n.live + n.draining, n.total);
    assert_int_equal(blocks_available(b), n.free + n.cached - n.promised);
}

static void a_reservation_is_always_met_and_never_exceeded(void **state)
{
    (void)state;
    struct blocks *b;
    uint32_t n_new, n;
    struct slot_ref first = {0, 1}, second = {1, 2};
    b = create(10, 2, 160, 16);
    assert_int_equal(blocks_open(b, first, NULL, 6, &n_cached), STATUS_OK);
    assert_int_equal(blocks_open(b, second, NULL, 5, &n_cached), STATUS_BLOCKS_BUSY);
    assert_int_equal(blocks_open(b, second, NULL, 4, &n_cached), STATUS_OK);
    assert_int_equal(blocks_available(b), 0);
    assert_int_equal(blocks_grow(b, second, 64, &n_new), STATUS_OK);
    assert_int_equal(n_new, 4);
    assert_int_equal(blocks_grow(b, first, 17, &n_new), STATUS_OK);
    assert_int_equal(n_new, 2);
    assert_int_equal(blocks_grow(b, first, 32, &n_new), STATUS_OK);
    assert_int_equal(n_new, 0);
    assert_int_equal(blocks_grow(b, first, 97, &n_new), STATUS_BLOCKS_BUSY);
    assert_int_equal(blocks_grow(b, first, 96, &n_new), STATUS_OK);
    const uint32_t *table = blocks_table(b, first, &n);
    assert_int_equal(n, 6);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(table[i], table[j]);
    check(b, 0);
    blocks_destroy(b);
}

static void closed_blocks_drain_until_their_tick_is_retired(void **state)
{
    (void)state;
    struct blocks *b;
    uint32_t n_new;
    struct slot_ref ref = {0, 1}, next = {0, 2};
    b = create(4, 1, 64, 16);
    assert_int_equal(blocks_open(b, ref, NULL, 4, &n_cached), STATUS_OK);
    assert_int_equal(blocks_grow(b, ref, 33, &n_new), STATUS_OK);
    assert_int_equal(blocks_close(b, ref, 9), STATUS_OK);
    assert_int_equal(blocks_close(b, ref, 9), STATUS_SLOT_STALE);
    assert_int_equal(blocks_counts(b).draining, 3);
    assert_int_equal(blocks_available(b), 1); /* what was promised beyond is free at once */
    assert_int_equal(blocks_open(b, next, NULL, 4, &n_cached), STATUS_BLOCKS_BUSY);
    blocks_retire(b, 8);
    assert_int_equal(blocks_counts(b).draining, 3);
    blocks_retire(b, 9);
    assert_int_equal(blocks_available(b), 4);
    assert_int_equal(blocks_open(b, next, NULL, 4, &n_cached), STATUS_OK);
    assert_int_equal(blocks_grow(b, next, 64, &n_new), STATUS_OK);
    assert_int_equal(blocks_close(b, next, 9), STATUS_OK); /* retired already: free at once */
    assert_int_equal(blocks_counts(b).free, 4);
    blocks_destroy(b);
}

static void a_stale_reference_reaches_nothing(void **state)
{
    (void)state;
    struct blocks *b;
    uint32_t n = 7;
    struct slot_ref ref = {0, 1};
    b = create(4, 1, 64, 16);
    assert_int_equal(blocks_open(b, ref, NULL, 1, &n_cached), STATUS_OK);
    assert_int_equal(blocks_grow(b, (struct slot_ref){0, 2}, 1, &n), STATUS_SLOT_STALE);
    assert_int_equal(blocks_close(b, (struct slot_ref){5, 1}, 1), STATUS_SLOT_STALE);
    assert_int_equal(blocks_open(b, (struct slot_ref){0, 3}, NULL, 1, &n_cached), STATUS_SLOT_STALE);
    assert_null(blocks_table(b, (struct slot_ref){0, 2}, &n));
    assert_int_equal(n, 0);
    blocks_destroy(b);
}

static void a_reset_takes_a_larger_and_a_smaller_pool(void **state)
{
    (void)state;
    struct blocks *b;
    uint32_t n_new;
    b = create(0, 2, 4096, 16);
    assert_false(blocks_ever_fit(b, 1));
    assert_int_equal(blocks_reset(b, 300), STATUS_OK);
    assert_true(blocks_ever_fit(b, 256));
    assert_false(blocks_ever_fit(b, 257)); /* a table has room for the context */
    assert_int_equal(blocks_open(b, (struct slot_ref){0, 1}, NULL, 200, &n_cached), STATUS_OK);
    assert_int_equal(blocks_grow(b, (struct slot_ref){0, 1}, 3200, &n_new), STATUS_OK);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 5), STATUS_OK);
    assert_int_equal(blocks_reset(b, 20), STATUS_OK);
    assert_int_equal(blocks_counts(b).free, 20);
    assert_int_equal(blocks_needed(b, 0), 0);
    assert_int_equal(blocks_needed(b, UINT32_MAX), 1u << 28);
    check(b, 0);
    blocks_destroy(b);
}

static void sums_hold_over_random_runs(void **state)
{
    (void)state;
    enum { SLOTS = 6, BLOCKS = 40, STEPS = 20000 };
    struct blocks *b;
    struct slot_ref held[SLOTS] = {{0}};
    uint32_t reserved[SLOTS] = {0}, n_new;
    uint64_t seq = 1, tick = 1, retired = 0;
    b = create(BLOCKS, SLOTS, 320, 16);
    for (int i = 0; i < STEPS; i++) {
        uint64_t r = rand_at(3, (uint64_t)i);
        uint32_t s = r % SLOTS, n = 1 + (r >> 8) % 20;
        if (held[s].seq == 0) {
            struct slot_ref ref = {s, seq++};
            uint32_t before = blocks_available(b);
            enum status st = blocks_open(b, ref, NULL, n, &n_cached);
            assert_int_equal(st, n <= before ? STATUS_OK : STATUS_BLOCKS_BUSY);
            if (st == STATUS_OK)
                held[s] = ref, reserved[s] = n;
        } else if (r >> 32 & 1) {
            uint32_t positions = 1 + (uint32_t)(r >> 16) % (reserved[s] * 16);
            assert_int_equal(blocks_grow(b, held[s], positions, &n_new), STATUS_OK); /* invariant 2 */
        } else if (r >> 33 & 1) {
            assert_int_equal(blocks_close(b, held[s], tick), STATUS_OK);
            held[s].seq = 0;
        }
        if (r >> 34 & 1)
            tick++;
        if (r >> 35 & 1 && retired < tick)
            blocks_retire(b, ++retired);
        check(b, i);
    }
    blocks_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reservation_is_always_met_and_never_exceeded),
        cmocka_unit_test(closed_blocks_drain_until_their_tick_is_retired),
        cmocka_unit_test(a_stale_reference_reaches_nothing),
        cmocka_unit_test(a_reset_takes_a_larger_and_a_smaller_pool),
        cmocka_unit_test(sums_hold_over_random_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
