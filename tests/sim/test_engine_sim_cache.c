/* The prefix cache on the whole engine: what is found again, what never is, and that texts stay right (FC-17, FC-18, FC-22,
 * FC-23 and FC-44 of failure-cases.md in virtual time). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "tests/sim/engine_sim.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { BLOCK = 16 };

static void free_call(struct sim_call *c)
{
    sim_call_free(c);
}

static void close_quiet(struct engine_sim *s)
{
    engine_sim_run_out(s, 4000 * NS_PER_S);
    engine_sim_assert_quiet(s);
    engine_sim_close(s);
}

static uint32_t whole_blocks(uint32_t n)
{
    return n / BLOCK * BLOCK;
}

/* --- conversations that grow ------------------------------------------------------------------------------------------------- */

struct chat {
    char client[32];
    uint32_t n_turns, grow, n_text;
    uint32_t *text;       /* of all turns: prompts and answers */
    uint32_t n_known;     /* of it, positions that were computed in the turn before */
};

static void next_turn(struct engine_sim *s, void *ctx);

static void turn_ended(struct sim_call *c)
{
    struct chat *h = c->ctx;
    assert_int_equal(c->finish, FINISH_LENGTH);
    /* All of the turn before but the last id, which was never fed back; one token is always computed. */
    assert_in_range(c->usage.cached_tokens, whole_blocks(h->n_known), c->n_prompt - 1);
    assert_int_equal(c->usage.cached_tokens % BLOCK, 0);
    if (h->n_turns == 5)
        assert_int_equal(c->usage.cached_tokens, 0);
    memcpy(h->text + c->n_prompt, c->ids, c->n_ids * sizeof *c->ids);
    h->n_text = c->n_prompt + c->n_ids;
    h->n_known = h->n_text - 1;
    h->n_turns--;
    struct engine_sim *s = c->sim;
    sim_call_free(c);
    if (h->n_turns > 0)
        engine_sim_at(s, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 1e9), next_turn, h);
}

static void next_turn(struct engine_sim *s, void *ctx)
{
    struct chat *h = ctx;
    struct sim_call *c = sim_call_new(s, h->client, h->n_text + h->grow, 64);
    memcpy(c->prompt, h->text, h->n_text * sizeof *h->text);
    memcpy(h->text, c->prompt, c->n_prompt * sizeof *c->prompt);
    c->on_end = turn_ended;
    c->ctx = h;
    sim_call_submit(c);
}

static void come_and_go(struct engine_sim *s, void *ctx)
{
    uint32_t *left = ctx;
    struct sim_call *c = sim_call_new(s, "goes", 4000, 64);
    c->on_end = free_call;
    sim_call_submit(c);
    sim_call_leave_at(c, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 5e8));
    if (--*left > 0)
        engine_sim_at(s, engine_sim_now_ns(s) + 200 * NS_PER_MS, come_and_go, ctx);
}

static void growing_conversations_read_only_what_is_new(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_stages = stages, .seed = stages});
        struct chat chat[4];
        uint32_t left = 200;
        for (uint32_t i = 0; i < 4; i++) {
            chat[i] = (struct chat){.n_turns = 5, .grow = 2000};
            snprintf(chat[i].client, sizeof chat[i].client, "chat-%u", i);
            assert_non_null(chat[i].text = calloc(5 * (2000 + 64), sizeof *chat[i].text));
            engine_sim_at(s, engine_sim_now_ns(s), next_turn, &chat[i]);
        }
        engine_sim_at(s, engine_sim_now_ns(s), come_and_go, &left);
        close_quiet(s);
        for (uint32_t i = 0; i < 4; i++)
            free(chat[i].text);
    }
}

/* --- who shares with whom ---------------------------------------------------------------------------------------------------- */

enum { TENANTS = 5, TEXTS = 6, MIXED = 1500 };

/* Every call that was ever sent, to say what a later one may find. */
struct mixed {
    struct history *h;
    uint32_t tenant, *prompt, n_prompt;
    int no_cache;
};

struct history {
    struct mixed call[MIXED];
    uint32_t n;
    uint64_t n_cached, n_hits;
};

/* The most that the tenant itself had before: the longest common prefix with one of its other calls. */
static uint32_t longest_common(const struct history *h, const struct mixed *c)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        const struct mixed *o = &h->call[i];
        if (o == c || o->tenant != c->tenant || o->no_cache)
            continue;
        uint32_t n = 0;
        while (n < c->n_prompt && n < o->n_prompt && c->prompt[n] == o->prompt[n])
            n++;
        most = n > most ? n : most;
    }
    return most;
}

static void mixed_ended(struct sim_call *c)
{
    struct mixed *m = c->ctx;
    if (c->finish != FINISH_NONE) {
        assert_true(c->usage.cached_tokens <= whole_blocks(longest_common(m->h, m)));
        assert_true(!m->no_cache || c->usage.cached_tokens == 0);
        m->h->n_cached += c->usage.cached_tokens;
        m->h->n_hits += c->usage.cached_tokens > 0;
    }
    sim_call_free(c);
}

/* All tenants send texts with the same beginnings. Some calls leave, some neither find nor leave anything in the cache. */
static void send_mixed(struct engine_sim *s, void *ctx)
{
    struct history *h = ctx;
    struct mixed *m = &h->call[h->n];
    char client[32];
    uint32_t common = BLOCK * (uint32_t)(engine_sim_draw(s) % 11), own = 1 + (uint32_t)(engine_sim_draw(s) % 60);
    *m = (struct mixed){.h = h, .tenant = (uint32_t)(engine_sim_draw(s) % TENANTS), .n_prompt = common + own};
    snprintf(client, sizeof client, "tenant-%u", m->tenant);
    struct sim_call *c = sim_call_new(s, client, common + own, 1 + (uint32_t)(engine_sim_draw(s) % 40));
    struct sim_call *text = sim_call_new(s, client, common + 1, 1);
    sim_call_write(text, 0, 1000 + engine_sim_draw(s) % TEXTS);
    memcpy(c->prompt, text->prompt, common * sizeof *c->prompt);
    sim_call_free(text);
    assert_non_null(m->prompt = malloc(c->n_prompt * sizeof *m->prompt));
    memcpy(m->prompt, c->prompt, c->n_prompt * sizeof *m->prompt);
    m->no_cache = c->no_cache = engine_sim_unit(s) < 0.1;
    c->on_end = mixed_ended;
    c->ctx = m;
    h->n++;
    sim_call_submit(c);
    if (engine_sim_unit(s) < 0.2)
        sim_call_leave_at(c, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 1e9));
    if (h->n < MIXED)
        engine_sim_at(s, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 1e8), send_mixed, h);
}

static struct history *mix(uint32_t hash_bits, const char *n_blocks)
{
    struct history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
        .n_stages = 3, .n_slots = 8, .hash_bits = hash_bits, .end_odds = 100, .seed = 5 + hash_bits,
        .flags = FLAGS("--kv-blocks", n_blocks, "--context", "512")});
    engine_sim_at(s, engine_sim_now_ns(s), send_mixed, h);
    close_quiet(s);
    for (uint32_t i = 0; i < h->n; i++)
        free(h->call[i].prompt);
    print_message("%u-bit hash, %s blocks: %llu of %u calls found %llu tokens\n", hash_bits ? hash_bits : 64, n_blocks,
                  (unsigned long long)h->n_hits, h->n, (unsigned long long)h->n_cached);
    return h;
}

static void nobody_finds_what_another_tenant_computed(void **state)
{
    (void)state;
    struct history *large = mix(0, "4000"), *small = mix(0, "150");
    assert_true(large->n_hits > MIXED / 3);
    assert_true(small->n_hits > 0 && small->n_hits < large->n_hits); /* what was given away is not found */
    free(large);
    free(small);
}

/* FC-17 */
static void a_hash_that_collides_finds_no_wrong_block(void **state)
{
    (void)state;
    struct history *h = mix(4, "4000");
    assert_true(h->n_hits > 0);
    free(h);
}

/* FC-18: another tenant's first token comes no sooner because somebody has read the same text. */
static void the_time_of_a_first_token_tells_nothing_about_other_tenants(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){0});
    int64_t cold_ns = 0;
    for (uint32_t i = 0; i < 22; i++) {
        char client[32];
        snprintf(client, sizeof client, "key-%u", i % 21); /* the last one is the first again */
        struct sim_call *c = sim_call_new(s, client, 4000, 4);
        sim_call_write(c, 0, 42);
        sim_call_submit(c);
        engine_sim_run_out(s, 60 * NS_PER_S);
        int64_t took_ns = c->first_ns - c->submitted_ns;
        cold_ns = i == 0 ? took_ns : cold_ns;
        if (i < 21) {
            assert_int_equal(c->usage.cached_tokens, 0);
            assert_in_range(took_ns, cold_ns - cold_ns / 10, cold_ns + cold_ns / 10);
        } else {
            assert_int_equal(c->usage.cached_tokens, 3984); /* one token is always computed */
            assert_true(took_ns < cold_ns / 10);
        }
        sim_call_free(c);
    }
    close_quiet(s);
}

/* --- one prefix of many ------------------------------------------------------------------------------------------------------ */

enum { PREFIX = 2000, OWN = 40, MANY = 64 };

struct shared {
    uint32_t n_found, n_ended;
};

static void shared_ended(struct sim_call *c)
{
    struct shared *w = c->ctx;
    w->n_ended++;
    w->n_found += c->finish == FINISH_LENGTH && c->usage.cached_tokens == PREFIX;
    sim_call_free(c);
}

static struct sim_call *with_prefix(struct engine_sim *s, uint32_t n_own, struct shared *w)
{
    struct sim_call *text = sim_call_new(s, "one", PREFIX, 1), *c = sim_call_new(s, "one", PREFIX + n_own, 16);
    sim_call_write(text, 0, 7);
    memcpy(c->prompt, text->prompt, PREFIX * sizeof *c->prompt);
    sim_call_free(text);
    c->on_end = shared_ended;
    c->ctx = w;
    sim_call_submit(c);
    return c;
}

static void look_at_live(struct engine_sim *s, void *ctx)
{
    uint32_t *most = ctx;
    if (engine_sim_counts(s).live > *most)
        *most = engine_sim_counts(s).live;
}

/* FC-23 */
static void a_prefix_is_held_once_for_all_that_share_it(void **state)
{
    (void)state;
    for (uint32_t n_leave = 0; n_leave <= 20; n_leave += 20) {
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_slots = 8, .flags = FLAGS("--context", "4096")});
        struct shared w = {0};
        uint32_t most_live = 0;
        with_prefix(s, 1, &w);
        engine_sim_run_out(s, 60 * NS_PER_S);
        engine_sim_on_step(s, look_at_live, &most_live);
        for (uint32_t i = 0; i < MANY; i++) {
            struct sim_call *c = with_prefix(s, OWN, &w);
            if (i % 3 == 0 && i / 3 < n_leave)
                sim_call_leave_at(c, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 3e9));
        }
        engine_sim_run_out(s, 600 * NS_PER_S);
        assert_int_equal(w.n_ended, MANY + 1);
        assert_in_range(w.n_found, MANY - n_leave, MANY);
        assert_true(most_live <= PREFIX / BLOCK + 8 * 4);
        close_quiet(s);
    }
}

/* FC-44 */
static void the_same_prompt_again_reads_its_last_tokens_only(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, cached[3];
    } cases[] = {{2005, {0, 2000, 2000}}, {2000, {0, 1984, 1984}}};
    for (uint32_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.seed = 3});
        for (uint32_t i = 0; i < 3; i++) {
            struct sim_call *c = sim_call_new(s, "one", cases[k].n_prompt, 8);
            sim_call_write(c, 0, 9);
            uint64_t before = engine_sim_prompt_rows(s);
            sim_call_submit(c);
            engine_sim_run_out(s, 60 * NS_PER_S);
            assert_int_equal(c->usage.cached_tokens, cases[k].cached[i]);
            assert_int_equal(engine_sim_prompt_rows(s) - before, cases[k].n_prompt - cases[k].cached[i]);
            sim_call_free(c);
        }
        close_quiet(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growing_conversations_read_only_what_is_new),
        cmocka_unit_test(nobody_finds_what_another_tenant_computed),
        cmocka_unit_test(a_hash_that_collides_finds_no_wrong_block),
        cmocka_unit_test(the_time_of_a_first_token_tells_nothing_about_other_tenants),
        cmocka_unit_test(a_prefix_is_held_once_for_all_that_share_it),
        cmocka_unit_test(the_same_prompt_again_reads_its_last_tokens_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
