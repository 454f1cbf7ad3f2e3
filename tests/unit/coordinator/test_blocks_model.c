/* Thousands of random services against the plain model: with whole hashes and with hashes of 4 bits, which collide all the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/coordinator/blocks_model.h"

enum { N_SEEDS = 120, N_STEPS = 600 };

static void play_all(uint32_t hash_bits)
{
    struct blocks_model_run sum = {0};
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        /* from pools that hold one sequence to such that hold all of them and a cache */
        struct blocks_model_run r = {.seed = seed, .hash_bits = hash_bits, .n_steps = N_STEPS, .n_blocks = 8 + seed % 50};
        const char *why = blocks_model_play(&r);
        if (why)
            fail_msg("seed %u, step %u: %s", (unsigned)seed, r.failed_step, why);
        sum.n_hits += r.n_hits;
        sum.n_draining_hits += r.n_draining_hits;
        sum.n_evictions += r.n_evictions;
        sum.n_busy += r.n_busy;
        sum.n_duplicates += r.n_duplicates;
        sum.n_resets += r.n_resets;
        sum.n_hollow += r.n_hollow;
    }
    print_message("%u hits, %u of them draining, %u evictions, %u refused, %u duplicates, %u resets, %u hollow\n", sum.n_hits,
                  sum.n_draining_hits, sum.n_evictions, sum.n_busy, sum.n_duplicates, sum.n_resets, sum.n_hollow);
    assert_true(sum.n_hits > 1000 && sum.n_draining_hits > 100 && sum.n_evictions > 1000);
    assert_true(sum.n_busy > 100 && sum.n_duplicates > 100 && sum.n_resets > 5 && sum.n_hollow > 100);
}

static void whole_hashes_give_what_the_plain_model_gives(void **state)
{
    (void)state;
    play_all(64);
}

/* Windows of less than a block, of whole blocks, and of some more; pools that have room for one sequence or for all. */
static void a_window_group_gives_what_the_plain_model_gives(void **state)
{
    (void)state;
    struct blocks_model_run sum = {0};
    for (uint64_t seed = 1; seed <= 2 * N_SEEDS; seed++) {
        struct blocks_model_run r = {.seed = seed, .hash_bits = seed % 2 ? 64 : 4, .n_steps = N_STEPS, .n_blocks = 8 + seed % 50,
                                     .window = 1 + seed % 11, .window_slots = 1 + seed % 4};
        const char *why = blocks_model_play(&r);
        if (why)
            fail_msg("seed %u, step %u: %s", (unsigned)seed, r.failed_step, why);
        sum.n_hits += r.n_hits;
        sum.n_busy += r.n_busy;
        sum.n_trimmed += r.n_trimmed;
        sum.n_window_hits += r.n_window_hits;
        sum.n_window_misses += r.n_window_misses;
        sum.n_window_evictions += r.n_window_evictions;
    }
    print_message("%u hits, %u of WINDOW blocks, %u prefixes without their window, %u blocks behind it, %u evicted, %u refused\n",
                  sum.n_hits, sum.n_window_hits, sum.n_window_misses, sum.n_trimmed, sum.n_window_evictions, sum.n_busy);
    assert_true(sum.n_hits > 1000 && sum.n_window_hits > 1000 && sum.n_window_misses > 1000);
    assert_true(sum.n_trimmed > 1000 && sum.n_window_evictions > 1000 && sum.n_busy > 100);
}

static void hashes_of_four_bits_give_what_the_plain_model_gives(void **state)
{
    (void)state;
    play_all(4);
}

static void a_block_is_never_handed_out_while_a_tick_that_may_touch_it_is_in_flight(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        uint32_t n;
        assert_int_equal(blocks_model_early(seed, 4000, &n), 0);
        assert_true(n > 500);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_hashes_give_what_the_plain_model_gives),
        cmocka_unit_test(a_window_group_gives_what_the_plain_model_gives),
        cmocka_unit_test(a_block_is_never_handed_out_while_a_tick_that_may_touch_it_is_in_flight),
        cmocka_unit_test(hashes_of_four_bits_give_what_the_plain_model_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
