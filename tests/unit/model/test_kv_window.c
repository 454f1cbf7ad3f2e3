#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "common/model/kv_window.h"

static void a_window_over_the_whole_context_is_no_group(void **state)
{
    (void)state;
    struct kv_window w = {.window = 512, .kv_block = 16, .slots = 4, .context = 512, .max_rows = 64, .ticks = 2};
    assert_int_equal(kv_window_of(&w).window, 0);
    assert_int_equal(kv_window_blocks(&(struct kv_window){0}, 100), 0);
    w.context = 513;
    assert_int_equal(kv_window_of(&w).window, 512);
    w.window = 0;
    assert_int_equal(kv_window_of(&w).slots, 0);
}

static void the_first_block_is_the_one_that_the_next_row_reads_first(void **state)
{
    (void)state;
    for (uint32_t window = 1; window < 70; window++)
        for (uint32_t block = 1; block < 40; block += 3) {
            const struct kv_window w = {.window = window, .kv_block = block, .context = 1000};
            for (uint32_t row = 0; row < 200; row++) {
                uint32_t first = row + 1 > window ? row + 1 - window : 0; /* position */
                assert_int_equal(kv_window_first(&w, row), first / block);
            }
            assert_int_equal(kv_window_reach(&w), window - 1);
        }
}

static void no_sequence_ever_needs_more_than_it_may_hold(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct kv_window w = {.window = 1 + (uint32_t)(rand_at(1, i) % 100), .kv_block = 1 + (uint32_t)(rand_at(2, i) % 20),
                              .slots = 1, .context = 101 + (uint32_t)(rand_at(3, i) % 300),
                              .max_rows = 1 + (uint32_t)(rand_at(4, i) % 50), .ticks = 1 + (uint32_t)(rand_at(5, i) % 4)};
        uint32_t committed = (uint32_t)(rand_at(6, i) % w.context), end = committed + w.ticks * w.max_rows;
        end = end < w.context ? end : w.context;
        uint32_t n = (end + w.kv_block - 1) / w.kv_block - kv_window_first(&w, committed);
        assert_true(n <= kv_window_hold(&w));
    }
}

static void the_pool_has_room_for_every_slot_and_grows_with_the_other_one(void **state)
{
    (void)state;
    /* Gemma 3 270m as served by default: a sixth of the layers have 4096 blocks, the others far fewer */
    const struct kv_window w = {.window = 512, .kv_block = 64, .slots = 8, .context = 32768, .max_rows = 512, .ticks = 2};
    assert_int_equal(kv_window_hold(&w), 25); /* 511 + 1024 positions */
    assert_int_equal(kv_window_blocks(&w, 4096), 8 * 25 + 512);
    assert_int_equal(kv_window_blocks(&w, 10), 10);
    uint32_t before = 0;
    for (uint32_t n = 0; n < 1000; n++) {
        uint32_t now = kv_window_blocks(&w, n);
        assert_true(now >= before && now <= n);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_over_the_whole_context_is_no_group),
        cmocka_unit_test(the_first_block_is_the_one_that_the_next_row_reads_first),
        cmocka_unit_test(no_sequence_ever_needs_more_than_it_may_hold),
        cmocka_unit_test(the_pool_has_room_for_every_slot_and_grows_with_the_other_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
