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

/* --- the cache ------------------------------------------------------------------------------------------------------------------ */

enum { B = 16 };

/* A text of which item p is p + 1 up to `same`, and then differs by `kind`. */
struct text {
    uint32_t same;
    uint64_t kind;
};

static uint64_t item(const void *ctx, uint32_t position)
{
    const struct text *t = ctx;
    return position < t->same ? position + 1 : t->kind << 32 | position;
}

static struct block_chain chain(const struct text *t, uint32_t n)
{
    return (struct block_chain){.salt = 1, .item = item, .ctx = t, .n = n};
}

/* Reads n positions of a text in slot `slot` and commits them. Returns its blocks from the cache. */
static uint32_t read_text(struct blocks *b, struct slot_ref ref, const struct text *t, uint32_t n)
{
    const struct block_chain c = chain(t, n);
    uint32_t hits, n_new;
    assert_int_equal(blocks_open(b, ref, &c, blocks_needed(b, n), &hits), STATUS_OK);
    assert_int_equal(blocks_grow(b, ref, n, &n_new), STATUS_OK);
    blocks_commit(b, ref, &c);
    return hits;
}

/* The same, and it ends; everything is retired. */
static uint32_t pass(struct blocks *b, uint64_t seq, const struct text *t, uint32_t n)
{
    uint32_t hits = read_text(b, (struct slot_ref){0, seq}, t, n);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, seq}, seq), STATUS_OK);
    blocks_retire(b, seq);
    check(b, (int)seq);
    return hits;
}

static uint32_t match(const struct blocks *b, const struct text *t, uint32_t n)
{
    const struct block_chain c = chain(t, n);
    return blocks_match(b, &c);
}

static void a_later_sequence_gets_the_full_blocks_of_an_earlier_one(void **state)
{
    (void)state;
    struct blocks *b = create(20, 2, 160, B);
    const struct text a = {.same = 1000}, fork = {.same = 40, .kind = 1};
    uint32_t n, n_new, first[3];
    read_text(b, (struct slot_ref){0, 1}, &a, 60);
    for (uint32_t i = 0; i < 3; i++)
        first[i] = blocks_table(b, (struct slot_ref){0, 1}, &n)[i];
    /* while the first still runs, with another end */
    assert_int_equal(read_text(b, (struct slot_ref){1, 2}, &fork, 100), 2);
    const uint32_t *table = blocks_table(b, (struct slot_ref){1, 2}, &n);
    assert_int_equal(n, 7);
    assert_memory_equal(table, first, 2 * sizeof *first);
    assert_int_not_equal(table[2], first[2]);
    assert_int_equal(blocks_counts(b).live, 4 + 7 - 2); /* a shared block is live once */
    check(b, 0);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 1), STATUS_OK);
    blocks_retire(b, 1);
    assert_int_equal(blocks_counts(b).live, 7);
    assert_int_equal(blocks_counts(b).cached, 1); /* its third; its fourth was not full */
    assert_int_equal(match(b, &a, 60), 3);
    /* and the next turn of the second finds prompt and answer */
    assert_int_equal(blocks_close(b, (struct slot_ref){1, 2}, 2), STATUS_OK);
    blocks_retire(b, 2);
    const struct block_chain next = chain(&fork, 130);
    assert_int_equal(blocks_open(b, (struct slot_ref){1, 3}, &next, 9, &n), STATUS_OK);
    assert_int_equal(n, 6);
    assert_int_equal(blocks_grow(b, (struct slot_ref){1, 3}, 130, &n_new), STATUS_OK);
    assert_int_equal(n_new, 3);
    check(b, 1);
    blocks_destroy(b);
}

static void a_hit_leaves_one_item_to_be_read(void **state)
{
    (void)state;
    struct blocks *b = create(20, 2, 160, B);
    const struct text a = {.same = 1000};
    pass(b, 1, &a, 64);
    assert_int_equal(match(b, &a, 65), 4);
    assert_int_equal(match(b, &a, 64), 3);
    assert_int_equal(match(b, &a, 17), 1);
    assert_int_equal(match(b, &a, 16), 0);
    assert_int_equal(match(b, &a, 1), 0);
    assert_int_equal(match(b, &a, 0), 0);
    blocks_destroy(b);
}

static void another_salt_never_hits(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 4; bits += 4) {
        const struct blocks_options o = {.n_blocks = 20, .n_slots = 2, .context = 160, .kv_block = B, .hash_bits = bits};
        const struct text a = {.same = 1000};
        struct block_chain c = chain(&a, 100);
        struct blocks *b;
        uint32_t n;
        assert_int_equal(blocks_create(&o, &b), STATUS_OK);
        pass(b, 1, &a, 100);
        for (uint64_t salt = 2; salt < 300; salt++) {
            c.salt = salt;
            assert_int_equal(blocks_match(b, &c), 0);
        }
        assert_int_equal(blocks_open(b, (struct slot_ref){0, 9}, &c, 7, &n), STATUS_OK);
        assert_int_equal(n, 0);
        c.salt = 1;
        assert_int_equal(blocks_match(b, &c), 6);
        blocks_destroy(b);
    }
}

static void only_committed_blocks_are_found_and_only_while_the_pool_lives(void **state)
{
    (void)state;
    struct blocks *b = create(20, 2, 160, B);
    const struct text a = {.same = 1000};
    const struct slot_ref ref = {0, 1};
    struct block_chain c = chain(&a, 100);
    uint32_t n, n_new;
    assert_int_equal(blocks_open(b, ref, &c, 7, &n), STATUS_OK);
    assert_int_equal(blocks_grow(b, ref, 100, &n_new), STATUS_OK);
    assert_int_equal(match(b, &a, 101), 0); /* planned is not retired */
    c.n = 15;
    blocks_commit(b, ref, &c);
    assert_int_equal(match(b, &a, 101), 0);
    c.n = 33;
    blocks_commit(b, ref, &c);
    assert_int_equal(match(b, &a, 101), 2);
    blocks_commit(b, (struct slot_ref){0, 2}, &c); /* stale: nothing */
    assert_int_equal(blocks_reset(b, 20), STATUS_OK);
    assert_int_equal(match(b, &a, 101), 0);
    assert_int_equal(blocks_counts(b).free, 20);
    blocks_destroy(b);
}

static void a_block_of_the_map_can_be_hit_while_it_drains(void **state)
{
    (void)state;
    struct blocks *b = create(6, 2, 160, B);
    const struct text a = {.same = 1000};
    read_text(b, (struct slot_ref){0, 1}, &a, 60);
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 7), STATUS_OK);
    assert_int_equal(blocks_counts(b).draining, 4);
    assert_int_equal(read_text(b, (struct slot_ref){1, 2}, &a, 50), 3);
    assert_int_equal(blocks_counts(b).draining, 1);
    assert_int_equal(blocks_counts(b).live, 4);
    blocks_retire(b, 7);
    assert_int_equal(blocks_counts(b).free, 2);
    assert_int_equal(blocks_counts(b).live, 4);
    check(b, 0);
    blocks_destroy(b);
}

static void a_tail_is_evicted_before_its_head(void **state)
{
    (void)state;
    struct blocks *b = create(8, 2, 160, B);
    const struct text a = {.same = 1000};
    pass(b, 1, &a, 96);
    for (uint32_t want = 6; want > 0; want--) { /* a stranger of 3, 4, ... blocks takes the tail bit by bit */
        assert_int_equal(match(b, &a, 97), want);
        pass(b, 10 + want, &(struct text){.kind = want}, 15); /* one block that is never full */
        assert_int_equal(match(b, &a, 97), want);
        uint32_t n_new, n;
        struct slot_ref ref = {1, 100 + want};
        assert_int_equal(blocks_open(b, ref, NULL, 9 - want, &n), STATUS_OK);
        assert_int_equal(blocks_grow(b, ref, (9 - want) * B, &n_new), STATUS_OK);
        assert_int_equal(blocks_close(b, ref, 0), STATUS_OK);
        check(b, (int)want);
    }
    assert_int_equal(match(b, &a, 97), 0);
    assert_int_equal(blocks_counts(b).evicted, 6);
    blocks_destroy(b);
}

static void the_least_recently_used_text_goes_first_and_a_hit_makes_it_recent(void **state)
{
    (void)state;
    struct blocks *b = create(12, 2, 160, B);
    const struct text x = {.kind = 1}, y = {.kind = 2}, z = {.kind = 3}, w = {.kind = 4};
    pass(b, 1, &x, 64);
    pass(b, 2, &y, 64);
    pass(b, 3, &z, 64);
    assert_int_equal(pass(b, 4, &x, 20), 1); /* used again: its first block only */
    pass(b, 5, &w, 64);
    assert_int_equal(match(b, &x, 65), 1);   /* the rest of x was the oldest, then the tail of y */
    assert_int_equal(match(b, &y, 65), 3);
    assert_int_equal(match(b, &z, 65), 4);
    assert_int_equal(match(b, &w, 65), 4);
    blocks_destroy(b);
}

/* Both read it before either had committed: the cache is to keep one copy, whoever ends first. */
static void two_that_read_the_same_side_by_side_leave_one_copy(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 2; first++) {
        struct blocks *b = create(20, 2, 160, B);
        const struct text a = {.same = 1000}, longer = {.same = 70, .kind = 3};
        const struct slot_ref refs[2] = {{0, 1}, {1, 2}};
        const struct block_chain ca = chain(&a, 70), cl = chain(&longer, 100);
        uint32_t n, n_new;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(blocks_open(b, refs[i], &ca, 7, &n), STATUS_OK);
            assert_int_equal(n, 0);
            assert_int_equal(blocks_grow(b, refs[i], i ? 100 : 70, &n_new), STATUS_OK);
        }
        blocks_commit(b, refs[0], &ca);
        blocks_commit(b, refs[1], &cl); /* goes on with an end of its own */
        assert_int_equal(match(b, &longer, 101), 6);
        check(b, 0);
        assert_int_equal(blocks_close(b, refs[first], 1), STATUS_OK);
        check(b, 1);
        assert_int_equal(match(b, &a, 71), 4);
        blocks_retire(b, 1);
        assert_int_equal(blocks_counts(b).cached, first ? 2 : 0); /* what the other does not hold */
        assert_int_equal(blocks_close(b, refs[1 - first], 2), STATUS_OK);
        blocks_retire(b, 2);
        assert_int_equal(blocks_counts(b).cached, 6);
        assert_int_equal(blocks_counts(b).free, 14);
        assert_int_equal(match(b, &longer, 101), 6);
        check(b, 2);
        blocks_destroy(b);
    }
}

static void hits_and_promises_share_the_pool_without_breaking_a_promise(void **state)
{
    (void)state;
    struct blocks *b = create(8, 3, 160, B);
    const struct text a = {.same = 1000};
    const struct block_chain c = chain(&a, 65);
    uint32_t n, n_new;
    pass(b, 1, &a, 64); /* 4 cached, 4 free */
    assert_int_equal(blocks_open(b, (struct slot_ref){1, 2}, NULL, 5, &n), STATUS_OK); /* one of the cached is promised */
    assert_false(blocks_can_open(b, &c, 5)); /* 4 hits and a new block would leave 4 of 5 */
    assert_int_equal(blocks_open(b, (struct slot_ref){2, 3}, &c, 5, &n), STATUS_BLOCKS_BUSY);
    assert_true(blocks_can_open(b, &c, 3)); /* it may take fewer */
    assert_int_equal(blocks_open(b, (struct slot_ref){2, 3}, &c, 3, &n), STATUS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(blocks_available(b), 0);
    assert_int_equal(blocks_grow(b, (struct slot_ref){1, 2}, 80, &n_new), STATUS_OK);
    assert_int_equal(blocks_counts(b).evicted, 1);
    check(b, 0);
    blocks_destroy(b);
}

static void a_hit_on_what_others_hold_costs_nothing(void **state)
{
    (void)state;
    struct blocks *b = create(6, 3, 160, B);
    const struct text a = {.same = 1000};
    const struct block_chain c = chain(&a, 70);
    uint32_t n;
    read_text(b, (struct slot_ref){0, 1}, &a, 70); /* 5 live, 1 free */
    assert_false(blocks_can_open(b, NULL, 5));
    assert_true(blocks_can_open(b, &c, 5));
    assert_int_equal(blocks_open(b, (struct slot_ref){1, 2}, &c, 5, &n), STATUS_OK);
    assert_int_equal(n, 4);
    assert_int_equal(blocks_available(b), 0);
    check(b, 0);
    blocks_destroy(b);
}

static void a_reservation_is_raised_whole_or_not_at_all(void **state)
{
    (void)state;
    struct blocks *b = create(10, 2, 128, B); /* a table holds 8 */
    const struct slot_ref ref = {0, 1};
    uint32_t n, n_new;
    assert_int_equal(blocks_open(b, ref, NULL, 2, &n), STATUS_OK);
    assert_int_equal(blocks_open(b, (struct slot_ref){1, 2}, NULL, 5, &n), STATUS_OK);
    assert_int_equal(blocks_reserve(b, ref, 6), STATUS_BLOCKS_BUSY);
    assert_int_equal(blocks_available(b), 3);
    assert_int_equal(blocks_reserve(b, ref, 5), STATUS_OK);
    assert_int_equal(blocks_reserve(b, ref, 1), STATUS_OK); /* never lowered */
    assert_int_equal(blocks_available(b), 0);
    assert_int_equal(blocks_grow(b, ref, 80, &n_new), STATUS_OK);
    assert_int_equal(n_new, 5);
    assert_int_equal(blocks_close(b, (struct slot_ref){1, 2}, 0), STATUS_OK);
    assert_int_equal(blocks_reserve(b, ref, 9), STATUS_BLOCKS_BUSY);
    assert_int_equal(blocks_reserve(b, ref, 8), STATUS_OK);
    assert_int_equal(blocks_reserve(b, (struct slot_ref){0, 9}, 9), STATUS_SLOT_STALE);
    check(b, 0);
    blocks_destroy(b);
}

static uint32_t told[8], n_told;
static uint64_t told_keys[8];

static void on_evict(void *ctx, uint32_t block, uint64_t key)
{
    assert_ptr_equal(ctx, told);
    told_keys[n_told] = key;
    told[n_told++] = block;
}

static void a_lower_tier_is_told_of_every_evicted_block_before_it_is_used_again(void **state)
{
    (void)state;
    const struct blocks_options o = {.n_blocks = 6, .n_slots = 2, .context = 160, .kv_block = B, .on_evict = on_evict,
                                     .evict_ctx = told};
    const struct text a = {.same = 1000};
    struct blocks *b;
    uint32_t n, first[3];
    n_told = 0;
    assert_int_equal(blocks_create(&o, &b), STATUS_OK);
    read_text(b, (struct slot_ref){0, 1}, &a, 48);
    for (uint32_t i = 0; i < 3; i++)
        first[i] = blocks_table(b, (struct slot_ref){0, 1}, &n)[i];
    assert_int_equal(blocks_close(b, (struct slot_ref){0, 1}, 0), STATUS_OK);
    pass(b, 2, &(struct text){.kind = 9}, 80);
    assert_int_equal(n_told, 2);
    assert_int_equal(told[0], first[2]);
    assert_int_equal(told[1], first[1]);
    assert_true(told_keys[0] != told_keys[1]);
    assert_int_equal(blocks_counts(b).evicted, 2);
    blocks_destroy(b);
}

/* Open again it is found; ended, it leaves nothing, but for what others hold too. */
static void what_is_forgotten_leaves_the_map_as_far_as_nobody_else_holds_it(void **state)
{
    (void)state;
    const struct text a = {.same = 1000};
    struct blocks *b = create(20, 2, 160, B);
    struct slot_ref first = {0, 1}, second = {1, 2};
    read_text(b, first, &a, 4 * B);
    const struct block_chain two = chain(&a, 2 * B + 1);
    assert_int_equal(blocks_open(b, second, &two, 3, &n_cached), STATUS_OK);
    assert_int_equal(n_cached, 2);
    blocks_forget(b, first);
    assert_int_equal(blocks_match(b, &(struct block_chain){two.salt, two.item, two.ctx, 100}), 2);
    check(b, 0);
    assert_int_equal(blocks_close(b, first, 5), STATUS_OK);
    assert_int_equal(blocks_counts(b).draining, 2);
    blocks_retire(b, 5);
    assert_int_equal(blocks_counts(b).free, 18);
    blocks_forget(b, second);
    assert_int_equal(blocks_close(b, second, 5), STATUS_OK);
    assert_int_equal(blocks_counts(b).free, 20);
    blocks_forget(b, second); /* stale: nothing */
    check(b, 1);
    blocks_destroy(b);
}

/* 200 prompts that share 0 to 10 blocks, under a hash of 4 bits: never more is found than is the same. */
static void colliding_hashes_never_find_more_than_the_common_blocks(void **state)
{
    (void)state;
    enum { N = 200 };
    const struct blocks_options o = {.n_blocks = 4000, .n_slots = 2, .context = 512, .kv_block = B, .hash_bits = 4};
    static struct text texts[N];
    struct blocks *b;
    uint32_t sum = 0;
    assert_int_equal(blocks_create(&o, &b), STATUS_OK);
    for (uint32_t i = 0; i < N; i++) {
        texts[i] = (struct text){.same = (uint32_t)(rand_at(17, i) % (10 * B + 8)), .kind = i + 1};
        uint32_t n = 200 + i, common = 0;
        for (uint32_t k = 0; k < i; k++) {
            uint32_t same = texts[i].same < texts[k].same ? texts[i].same : texts[k].same;
            common = same > common ? same : common;
        }
        assert_int_equal(pass(b, 1 + i, &texts[i], n), common / B);
        sum += common / B;
    }
    assert_true(sum > 500);
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
        cmocka_unit_test(a_later_sequence_gets_the_full_blocks_of_an_earlier_one),
        cmocka_unit_test(a_hit_leaves_one_item_to_be_read),
        cmocka_unit_test(another_salt_never_hits),
        cmocka_unit_test(only_committed_blocks_are_found_and_only_while_the_pool_lives),
        cmocka_unit_test(a_block_of_the_map_can_be_hit_while_it_drains),
        cmocka_unit_test(a_tail_is_evicted_before_its_head),
        cmocka_unit_test(the_least_recently_used_text_goes_first_and_a_hit_makes_it_recent),
        cmocka_unit_test(two_that_read_the_same_side_by_side_leave_one_copy),
        cmocka_unit_test(hits_and_promises_share_the_pool_without_breaking_a_promise),
        cmocka_unit_test(a_hit_on_what_others_hold_costs_nothing),
        cmocka_unit_test(a_reservation_is_raised_whole_or_not_at_all),
        cmocka_unit_test(a_lower_tier_is_told_of_every_evicted_block_before_it_is_used_again),
        cmocka_unit_test(what_is_forgotten_leaves_the_map_as_far_as_nobody_else_holds_it),
        cmocka_unit_test(colliding_hashes_never_find_more_than_the_common_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
