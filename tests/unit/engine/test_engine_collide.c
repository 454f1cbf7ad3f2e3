/* FC-17: a prefix map whose hash has four bits. Every block collides with many others, of the same and of other texts and
 * tenants; what is found is still exactly what was read before, and answers are their reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tests/unit/engine/fake_bed.h"

enum { BLOCK = 16, N_PROMPTS = 200, N_TEXTS = 5, MOST_COMMON = 10, AT_ONCE = 6, HASH_BITS = 4 };

static const char *const clients[] = {"a", "b", "c"};

/* Ids of request r at a position: its prompt, then what it was answered. */
static uint32_t id_at(const struct bed_request *r, uint32_t i)
{
    return i < r->n_prompt ? r->prompt[i] : r->ids[i - r->n_prompt];
}

/* Full blocks, in positions, that r may find of what `before` had: the last id of an answer was never fed. */
static uint32_t common(const struct bed_request *r, const struct bed_request *before)
{
    uint32_t n = 0, known = before->n_prompt + (before->n_ids ? before->n_ids - 1 : 0);
    if (strcmp(r->client, before->client) != 0 || before->no_cache || r->no_cache)
        return 0;
    while (n < r->n_prompt - 1 && n < known && r->prompt[n] == id_at(before, n))
        n++;
    /* A block counts when all of it is common; of a prompt, one token is always computed. */
    return n / BLOCK * BLOCK;
}

static uint32_t most_common(struct bed *t, const struct bed_request *r)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t n = t->r[i] == r ? 0 : common(r, t->r[i]);
        most = n > most ? n : most;
    }
    return most;
}

/* Zero to ten blocks of one of five texts, then ids of its own. The texts are one another's but for one id in the first block, as
 * near as a prompt can be to another without being it. */
static struct bed_request *similar(struct bed *t, int no_cache)
{
    static uint32_t text[MOST_COMMON * BLOCK];
    uint32_t n_common = BLOCK * below(MOST_COMMON + 1), n_own = 1 + below(40), which = below(N_TEXTS);
    if (t->n == 0)
        for (uint32_t i = 0; i < MOST_COMMON * BLOCK; i++)
            text[i] = below(FAKE_VOCAB);
    struct bed_request *r = add(t, n_common + n_own, 1 + below(40));
    memcpy(r->prompt, text, n_common * sizeof *text);
    if (n_common)
        r->prompt[which] = (text[which] + which) % FAKE_VOCAB;
    r->client = clients[below(3)];
    r->no_cache = no_cache && below(10) == 0;
    return r;
}

static struct bed *open_small_hash(uint32_t n_stages, const char *n_blocks)
{
    return bed_open_hash(n_stages, "tick_us 50\n", FLAGS("--slots", "4", "--kv-blocks", n_blocks), HASH_BITS);
}

static void close_quiet(struct bed *t)
{
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void one_after_another_finds_all_that_was_read_and_nothing_else(void **state)
{
    (void)state;
    struct bed *t = open_small_hash(2, "4000"); /* nothing is evicted */
    uint32_t hits = 0;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct bed_request *r = similar(t, 1);
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OK);
        check_answer(t, r);
        assert_int_equal(r->done.usage.cached_tokens, most_common(t, r));
        hits += r->done.usage.cached_tokens > 0;
    }
    assert_in_range(hits, N_PROMPTS / 4, N_PROMPTS);
    close_quiet(t);
}

static void beside_one_another_and_evicted_none_finds_a_wrong_block(void **state)
{
    (void)state;
    static const char *const pools[] = {"4000", "70"};
    for (uint32_t k = 0; k < 2; k++) {
        struct bed *t = open_small_hash(1 + 2 * k, pools[k]);
        uint32_t hits = 0;
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            struct bed_request *r = similar(t, 1);
            bed_submit(r);
            if (i >= AT_ONCE && below(8) == 0)
                bed_cancel(t->r[i - below(AT_ONCE)]);
            if (i >= AT_ONCE)
                bed_wait(t->r[i - AT_ONCE], WAIT_MS);
        }
        for (uint32_t i = 0; i < t->n; i++) {
            bed_wait(t->r[i], WAIT_MS);
            check_answer(t, t->r[i]);
        }
        for (uint32_t i = 0; i < t->n; i++) {
            if (t->r[i]->n_done == 0)
                continue; /* it left */
            assert_true(t->r[i]->done.usage.cached_tokens <= most_common(t, t->r[i]));
            hits += t->r[i]->done.usage.cached_tokens > 0;
        }
        assert_true(hits > 10);
        close_quiet(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_after_another_finds_all_that_was_read_and_nothing_else),
        cmocka_unit_test(beside_one_another_and_evicted_none_finds_a_wrong_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
