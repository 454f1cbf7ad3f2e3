#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/siphash.h"
#include "coordinator/prefix_map.h"

enum { KV_BLOCK = 4, N = 64 };

static uint64_t item(const void *ctx, uint32_t position)
{
    return ((const uint64_t *)ctx)[position];
}

static struct block_chain chain(const uint64_t *items, uint64_t salt)
{
    return (struct block_chain){.salt = salt, .item = item, .ctx = items, .n = N};
}

static void check(const struct prefix_map *m)
{
    const char *why;
    if (!prefix_map__check(m, &why))
        fail_msg("%s", why);
}

static struct prefix_map *create(uint32_t n, uint32_t hash_bits)
{
    struct prefix_map *m;
    assert_int_equal(prefix_map_create(KV_BLOCK, 99, hash_bits, &m), STATUS_OK);
    assert_int_equal(prefix_map_reset(m, n), STATUS_OK);
    return m;
}

/* hash() of bytes in Python 3.11 with PYTHONHASHSEED=0 is SipHash-1-3 with a key of zeros:
 *   struct.pack('<%dQ' % n, *[(i * 0x9e3779b97f4a7c15 + 1) % 2**64 for i in range(n)]) */
static void the_hash_is_that_of_python(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        uint64_t hash;
    } want[] = {{1, 0x1e9f734161d62dd9}, {2, 0x4dd94ab5bcd5ce85}, {3, 0x7244fb0aa201f820}, {16, 0xd19d98703dbc4408},
                {65, 0xed85752f7c02ff36}};
    for (unsigned i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct siphash h = siphash_start(0, 0);
        for (uint32_t k = 0; k < want[i].n; k++)
            siphash_add(&h, k * 0x9e3779b97f4a7c15ull + 1);
        assert_true(siphash_end(h) == want[i].hash);
    }
}

static void another_process_key_gives_other_keys(void **state)
{
    (void)state;
    static const uint64_t items[N] = {1, 2, 3};
    const struct block_chain c = chain(items, 0);
    struct prefix_map *a, *b;
    uint64_t ka, kb;
    assert_int_equal(prefix_map_create(KV_BLOCK, 1, 0, &a), STATUS_OK);
    assert_int_equal(prefix_map_create(KV_BLOCK, 2, 0, &b), STATUS_OK);
    prefix_map_find(a, NO_ENTRY, &c, 0, &ka);
    prefix_map_find(b, NO_ENTRY, &c, 0, &kb);
    assert_true(ka != kb);
    prefix_map_destroy(a);
    prefix_map_destroy(b);
}

/* A chain of one block, or of two with `first` before it. */
static void entries_that_differ_in_one_thing_only_are_told_apart(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 64; bits += 21) { /* 1 bit: almost everything collides */
        struct prefix_map *m = create(64, bits);
        uint64_t items[N] = {0}, key;
        uint32_t n = 0, root;
        struct block_chain c = chain(items, 7);
        assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), NO_ENTRY);
        root = prefix_map_enter(m, NO_ENTRY, &c, 0, key, n++);
        for (uint32_t i = 0; i < KV_BLOCK; i++) { /* every single item, also in the high half */
            items[i] = 1ull << 32;
            assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), NO_ENTRY);
            prefix_map_enter(m, NO_ENTRY, &c, 0, key, n++);
            items[i] = 0;
        }
        c.salt = 8;
        assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), NO_ENTRY);
        uint32_t salted = prefix_map_enter(m, NO_ENTRY, &c, 0, key, n++);
        c.salt = 7;
        /* the same items again: other blocks than the first ones, and each below its own parent */
        assert_int_equal(prefix_map_find(m, root, &c, 1, &key), NO_ENTRY);
        uint32_t second = prefix_map_enter(m, root, &c, 1, key, n++);
        assert_int_equal(prefix_map_find(m, salted, &c, 1, &key), NO_ENTRY);
        assert_int_equal(prefix_map_find(m, second, &c, 1, &key), NO_ENTRY);
        assert_int_equal(prefix_map_find(m, root, &c, 1, &key), second);
        assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), root);
        assert_int_equal(prefix_map_parent(m, second), root);
        assert_int_equal(prefix_map_count(m), n);
        check(m);
        prefix_map_destroy(m);
    }
}

static void an_entry_removed_is_not_found_and_its_neighbours_are(void **state)
{
    (void)state;
    struct prefix_map *m = create(32, 2);
    uint64_t items[32][N] = {{0}}, key;
    uint32_t entry[32];
    for (uint32_t i = 0; i < 32; i++) {
        items[i][2] = i;
        struct block_chain c = chain(items[i], 0);
        assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), NO_ENTRY);
        entry[i] = prefix_map_enter(m, NO_ENTRY, &c, 0, key, i);
    }
    for (uint32_t step = 0; step < 32; step++) {
        uint32_t out = step * 13 % 32;
        prefix_map_remove(m, entry[out]);
        entry[out] = NO_ENTRY;
        check(m);
        for (uint32_t i = 0; i < 32; i++) {
            struct block_chain c = chain(items[i], 0);
            assert_int_equal(prefix_map_find(m, NO_ENTRY, &c, 0, &key), entry[i]);
            assert_true(entry[i] == NO_ENTRY || prefix_map_block(m, entry[i]) == i);
        }
    }
    assert_int_equal(prefix_map_count(m), 0);
    prefix_map_destroy(m);
}

static void a_reset_empties_the_map_and_takes_more(void **state)
{
    (void)state;
    struct prefix_map *m = create(1, 0);
    static const uint64_t items[N];
    const struct block_chain c = chain(items, 0);
    uint64_t key;
    prefix_map_find(m, NO_ENTRY, &c, 0, &key);
    uint32_t e = prefix_map_enter(m, NO_ENTRY, &c, 0, key, 0);
    prefix_map_move(m, e, 5);
    assert_int_equal(prefix_map_block(m, e), 5);
    assert_true(prefix_map_key(m, e) == key);
    assert_int_equal(prefix_map_reset(m, 100), STATUS_OK);
    for (uint32_t i = 0, parent = NO_ENTRY; i < N / KV_BLOCK; i++) {
        assert_int_equal(prefix_map_find(m, parent, &c, i, &key), NO_ENTRY);
        parent = prefix_map_enter(m, parent, &c, i, key, i);
    }
    check(m);
    assert_int_equal(prefix_map_count(m), N / KV_BLOCK);
    prefix_map_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_that_of_python),
        cmocka_unit_test(another_process_key_gives_other_keys),
        cmocka_unit_test(entries_that_differ_in_one_thing_only_are_told_apart),
        cmocka_unit_test(an_entry_removed_is_not_found_and_its_neighbours_are),
        cmocka_unit_test(a_reset_empties_the_map_and_takes_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
