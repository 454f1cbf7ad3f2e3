/* What fits is planned; what does not is refused with measures that help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "stage/memory_plan.h"

static const uint64_t MIB = 1 << 20;

/* A quarter of a MiB for a row. */
static uint64_t buffers_of(const void *ctx, uint32_t max_rows)
{
    (void)ctx;
    return max_rows * MIB / 4;
}

/* 1,000 MiB of weights in 10 layers and 100 in the head; a context of 1,000 positions takes 16 blocks of 5 MiB. */
static const struct memory_needs whole = {.n_stages = 1, .n_layers = 10, .model_layers = 10, .weights = 1100 * 1048576ull,
                                          .head = 100 * 1048576ull, .buffers = 128 * 1048576ull, .buffers_of = buffers_of,
                                          .max_rows = 512, .slots = 8, .context = 1000, .kv_block = 64,
                                          .block_bytes = 5 * 1048576ull};

static struct memory_plan plan(struct memory_needs n, uint64_t free_mib)
{
    struct memory_plan p;
    struct error err;
    n.free = free_mib * MIB;
    if (memory_plan_make(&n, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_true(!n.free || p.total <= n.free);
    return p;
}

static struct error refusal(struct memory_needs n, uint64_t free_mib)
{
    struct memory_plan p;
    struct error err;
    n.free = free_mib * MIB;
    assert_int_equal(memory_plan_make(&n, &p, &err), STATUS_OUT_OF_MEMORY);
    print_message("%s\n", err.message);
    return err;
}

static void says(struct error err, const char *words)
{
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void every_slot_gets_a_context_where_there_is_room(void **state)
{
    (void)state;
    struct memory_plan p = plan(whole, 0);
    assert_int_equal(p.n_blocks, 8 * 16);
    assert_int_equal(p.kv, 640 * MIB);
    assert_int_equal(p.total, (1100 + 128 + 32 + 640) * MIB);
    assert_int_equal(plan(whole, 1900).n_blocks, 128);
}

static void less_room_gives_fewer_contexts_and_never_more_than_half(void **state)
{
    (void)state;
    assert_int_equal(plan(whole, 1899).n_blocks, 127);
    assert_int_equal(plan(whole, 1340).n_blocks, 16);
    struct memory_needs small = whole;
    small.weights = 100 * MIB;
    small.head = 0;
    assert_int_equal(plan(small, 1000).n_blocks, 100); /* half of it, though more is left */
    assert_non_null(strstr(memory_plan_print(&small, &(struct memory_plan){.n_blocks = 100, .kv = 500 * MIB}).text,
                           "6 of 8 contexts of 1000"));
}

static void a_context_that_does_not_fit_is_refused_with_one_that_does(void **state)
{
    (void)state;
    struct error err = refusal(whole, 1330);
    says(err, "needs 1340.0 of 1330.0 MiB: --context 896 or less, --max-rows 256 or fewer or 2 stages instead of 1");
    struct memory_needs n = whole;
    n.context = 896;
    assert_int_equal(plan(n, 1330).n_blocks, 14);
    n = whole;
    n.max_rows = 256;
    n.buffers = buffers_of(NULL, 256);
    assert_int_equal(plan(n, 1330).n_blocks, 26);
}

static void what_was_asked_for_is_refused_by_its_own_flag(void **state)
{
    (void)state;
    struct memory_needs n = whole;
    n.asked_blocks = 200;
    says(refusal(n, 2000), ": --kv-blocks 148 or fewer or 2 stages");
    n.asked_blocks = 148;
    assert_int_equal(plan(n, 2000).n_blocks, 148);
    n = whole;
    n.asked_kv_bytes = 1000 * MIB;
    says(refusal(n, 2000), ": --kv-mib 740 or less or 2 stages");
    n.asked_kv_bytes = 740 * MIB;
    assert_int_equal(plan(n, 2000).n_blocks, 148);
    n.asked_kv_bytes = 4 * MIB;
    says(refusal(n, 2000), "0 blocks");
    says(refusal(n, 2000), "--kv-mib 5 at least");
}

/* Neither a shorter context nor a smaller pool can help then. */
static void weights_that_do_not_fit_want_more_stages(void **state)
{
    (void)state;
    struct error err = refusal(whole, 600);
    says(err, ": 4 stages instead of 1, the further ones on other machines (weights 1.1 GiB");
    assert_null(strstr(err.message, "--context"));
    assert_null(strstr(err.message, "--max-rows"));
    struct memory_needs third = whole;
    third.n_stages = 3;
    third.n_layers = 4;
    third.weights = 500 * MIB;
    third.block_bytes = 2 * MIB;
    says(refusal(third, 600), "4 stages instead of 3"); /* a stage of three then has four layers, one of four three */
}

static void what_nothing_helps_says_so(void **state)
{
    (void)state;
    struct memory_needs one = whole;
    one.n_stages = one.n_layers = one.model_layers = 1;
    says(refusal(one, 100), "it takes more memory");
    one.buffers_of = NULL;
    says(refusal(one, 100), "it takes more memory");
}

/* After a restart the pool itself is what is no longer free. */
static void a_kept_pool_is_not_needed_twice(void **state)
{
    (void)state;
    struct memory_needs n = whole;
    n.kept_blocks = 64;
    n.held_bytes = 320 * MIB;
    struct memory_plan p = plan(n, 1260);
    assert_int_equal(p.n_blocks, 64);
    assert_int_equal(p.total, 1260 * MIB);
    n.kept_blocks = 5; /* less than one context: made anew */
    assert_int_equal(plan(n, 1900).n_blocks, 128);
}

/* A stage that was killed comes back beside others that hold their memory: all that is free is for it, but its pool is no larger
 * than at the first start. */
static void an_automatic_pool_has_a_bound_of_its_own_where_one_is_told(void **state)
{
    (void)state;
    struct memory_needs n = whole;
    n.most_kv = 400 * MIB;
    assert_int_equal(plan(n, 4000).n_blocks, 80);
    n.asked_blocks = 100;
    assert_int_equal(plan(n, 4000).n_blocks, 100);
    n.asked_blocks = 0;
    n.most_kv = 79 * MIB;
    says(refusal(n, 4000), "--context 960 or less");
}

static void sizes_without_end_are_refused_not_wrapped(void **state)
{
    (void)state;
    struct memory_needs n = whole;
    n.block_bytes = 1ull << 43;
    n.asked_blocks = 1u << 30;
    says(refusal(n, 4096), "needs ");
    n.asked_blocks = UINT32_MAX;
    says(refusal(n, 4096), "cannot be");
    n.asked_blocks = 0;
    n.slots = 4096;
    n.context = 1 << 24;
    n.kv_block = 16;
    refusal(n, 4096);
}

/* Fifteen sixteenths of the KV are of layers that see a block of positions: bytes are no longer in proportion to blocks, and what is named as fitting fits. */
static void layers_with_a_window_take_less_and_what_is_named_fits(void **state)
{
    (void)state;
    struct memory_needs n = whole, w = whole;
    w.block_bytes = n.block_bytes / 16;
    w.window_block_bytes = n.block_bytes - w.block_bytes;
    w.window = (struct kv_window){.window = n.kv_block, .kv_block = n.kv_block, .slots = n.slots, .context = n.context,
                                  .max_rows = n.kv_block, .ticks = 2};
    const uint64_t all = n.slots * memory_plan_per_slot(&n);
    const struct memory_plan plain = plan(n, 1 << 20), window = plan(w, 1 << 20);
    assert_true(plain.n_blocks == all && window.n_blocks == all);
    assert_int_equal(window.kv, all * w.block_bytes + kv_window_blocks(&w.window, (uint32_t)all) * w.window_block_bytes);
    assert_true(window.kv < plain.kv);
    w.asked_kv_bytes = window.kv;
    assert_int_equal(plan(w, 1 << 20).n_blocks, all);
    w.asked_kv_bytes = window.kv - 1;
    assert_int_equal(plan(w, 1 << 20).n_blocks, all - 1);
    w.block_bytes = 0; /* a stage all of whose layers have one */
    w.asked_kv_bytes = 0;
    assert_int_equal(plan(w, 1 << 20).n_blocks, all);
}

/* The last stage keeps what penalties look at: a context of ids for every slot. */
static void what_samplers_keep_is_counted_and_fewer_slots_are_named(void **state)
{
    (void)state;
    struct memory_needs n = whole;
    n.sampler = 10 * MIB;
    assert_int_equal(plan(n, 0).total, (1100 + 128 + 32 + 640 + 80) * MIB);
    assert_int_equal(plan(n, 1980).n_blocks, 128);
    assert_int_equal(plan(n, 1979).n_blocks, 127);
    struct error err = refusal(n, 1410);
    says(err, "needs 1420.0 of 1410.0 MiB: ");
    says(err, "--slots 4 or fewer");
    says(err, "buffers 128.0 MiB, samplers 80.0 MiB, 32.0 MiB besides");
    n.slots = 4;
    assert_true(plan(n, 1410).n_blocks >= 16);
    assert_non_null(strstr(memory_plan_print(&n, &(struct memory_plan){.n_blocks = 64}).text, "samplers 40.0 MiB: "));
    assert_null(strstr(memory_plan_print(&whole, &(struct memory_plan){.n_blocks = 64}).text, "samplers"));
    n.slots = 8;
    says(refusal(n, 600), "KV "); /* no number of slots helps */
    assert_null(strstr(refusal(n, 600).message, "--slots"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_with_a_window_take_less_and_what_is_named_fits),
        cmocka_unit_test(what_samplers_keep_is_counted_and_fewer_slots_are_named),
        cmocka_unit_test(every_slot_gets_a_context_where_there_is_room),
        cmocka_unit_test(less_room_gives_fewer_contexts_and_never_more_than_half),
        cmocka_unit_test(a_context_that_does_not_fit_is_refused_with_one_that_does),
        cmocka_unit_test(what_was_asked_for_is_refused_by_its_own_flag),
        cmocka_unit_test(weights_that_do_not_fit_want_more_stages),
        cmocka_unit_test(what_nothing_helps_says_so),
        cmocka_unit_test(a_kept_pool_is_not_needed_twice),
        cmocka_unit_test(an_automatic_pool_has_a_bound_of_its_own_where_one_is_told),
        cmocka_unit_test(sizes_without_end_are_refused_not_wrapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
