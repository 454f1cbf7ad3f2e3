#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/rand.h"
#include "coordinator/kv_groups.h"

enum { KV_BLOCK = 16 };

/* present as a text: '#' there, '.' not. */
static uint32_t usable(const struct kv_group *groups, uint32_t n_groups, const char *const *texts)
{
    unsigned char bytes[KV_GROUPS_MAX][64];
    const unsigned char *present[KV_GROUPS_MAX];
    uint32_t n = (uint32_t)strlen(texts[0]);
    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t i = 0; i < n; i++)
            bytes[g][i] = texts[g][i] == '#';
        present[g] = bytes[g];
    }
    return usable_prefix(groups, n_groups, KV_BLOCK, present, n);
}

static uint32_t one(struct kv_group group, const char *text)
{
    return usable(&group, 1, &text);
}

static void a_paged_group_wants_every_block(void **state)
{
    (void)state;
    const struct kv_group paged = {.kind = KV_PAGED};
    assert_int_equal(one(paged, ""), 0);
    assert_int_equal(one(paged, "...."), 0);
    assert_int_equal(one(paged, ".###"), 0);
    assert_int_equal(one(paged, "##.#"), 2);
    assert_int_equal(one(paged, "####"), 4);
}

static void a_window_group_wants_the_blocks_that_its_window_reaches(void **state)
{
    (void)state;
    const struct kv_group one_block = {KV_WINDOW, 16}, three = {KV_WINDOW, 33}, all = {KV_WINDOW, 1000};
    assert_int_equal(one(one_block, "...#"), 4);
    assert_int_equal(one(one_block, "#..."), 1);
    assert_int_equal(one((struct kv_group){KV_WINDOW, 1}, ".#.."), 2);
    assert_int_equal(one(three, "..###."), 5);
    assert_int_equal(one(three, "...##."), 0);
    assert_int_equal(one(three, "##...."), 2); /* nothing lies before the beginning */
    assert_int_equal(one(three, "##.###"), 6);
    assert_int_equal(one(all, "##.###"), 2);
}

static void a_state_group_wants_the_cell_at_the_end(void **state)
{
    (void)state;
    const struct kv_group cells = {.kind = KV_STATE};
    assert_int_equal(one(cells, "..#."), 3);
    assert_int_equal(one(cells, "...."), 0);
    assert_int_equal(one(cells, "#..#"), 4);
}

static void groups_of_one_model_agree_on_the_longest_end_for_all(void **state)
{
    (void)state;
    const struct kv_group groups[] = {{.kind = KV_PAGED}, {KV_WINDOW, 32}, {.kind = KV_STATE}};
    assert_int_equal(usable(groups, 3, (const char *const[]){"#####.", ".#####", "#.#.##"}), 5);
    assert_int_equal(usable(groups, 3, (const char *const[]){"####..", ".#####", "#.#.##"}), 3);
    assert_int_equal(usable(groups, 3, (const char *const[]){"####..", "..####", "#.#.##"}), 0); /* 1 lacks the window, 3 too */
    assert_int_equal(usable(groups, 2, (const char *const[]){"####..", "..####", ""}), 4);
}

/* Every end is tried position by position. */
static int allowed(const struct kv_group *g, const unsigned char *present, uint32_t end)
{
    if (g->kind == KV_STATE)
        return end == 0 || present[end - 1];
    for (uint32_t p = 0; p < end * KV_BLOCK; p++)
        if (!present[p / KV_BLOCK] && (g->kind == KV_PAGED || p + g->window >= end * KV_BLOCK))
            return 0;
    return 1;
}

static void random_groups_get_the_end_that_a_search_finds(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        struct kv_group groups[3];
        unsigned char bytes[3][12];
        const unsigned char *const present[] = {bytes[0], bytes[1], bytes[2]};
        uint32_t n_groups = 1 + (uint32_t)(rand_at(1, i) % 3), want = 0;
        for (uint32_t g = 0; g < 3; g++) {
            groups[g].kind = (enum kv_group_kind)(rand_at(2 + g, i) % 3);
            groups[g].window = 1 + (uint32_t)(rand_at(5 + g, i) % 80);
            for (uint32_t k = 0; k < 12; k++)
                bytes[g][k] = rand_at(8 + g, 12 * i + k) % 8 != 0;
        }
        for (uint32_t end = 1; end <= 12; end++) {
            int all = 1;
            for (uint32_t g = 0; g < n_groups; g++)
                all &= allowed(&groups[g], bytes[g], end);
            want = all ? end : want;
        }
        assert_int_equal(usable_prefix(groups, n_groups, KV_BLOCK, present, 12), want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_paged_group_wants_every_block),
        cmocka_unit_test(a_window_group_wants_the_blocks_that_its_window_reaches),
        cmocka_unit_test(a_state_group_wants_the_cell_at_the_end),
        cmocka_unit_test(groups_of_one_model_agree_on_the_longest_end_for_all),
        cmocka_unit_test(random_groups_get_the_end_that_a_search_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
