/* The whole engine on virtual time: mixed work, whatever comes and goes, has the reference's text, one end each, and sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/check.h"
#include "coordinator/engine_impl.h"
#include "tests/sim/engine_sim_impl.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void free_call(struct sim_call *c)
{
    sim_call_free(c);
}

static void one_call_of_each_size_has_its_reference_text(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 8; stages *= 2) {
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_stages = stages, .check_every = 1});
        for (uint32_t n = 1; n <= 2000; n = n * 3 + 1) {
            struct sim_call *c = sim_call_new(s, "a", n, 40);
            sim_call_submit(c);
            engine_sim_run_out(s, 60 * NS_PER_S);
            assert_int_equal(c->finish, FINISH_LENGTH);
            sim_call_free(c);
        }
        engine_sim_assert_quiet(s);
        engine_sim_close(s);
    }
}

static void the_same_seed_gives_the_same_run(void **state)
{
    (void)state;
    struct engine_sim_counts n[2];
    int64_t end_ns[2];
    for (int i = 0; i < 2; i++) {
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.noise = 0.3, .end_odds = 50, .seed = 5});
        for (int k = 0; k < 30; k++) {
            struct sim_call *c = sim_call_new(s, "a", 1 + engine_sim_draw(s) % 500, 1 + engine_sim_draw(s) % 100);
            c->on_end = free_call;
            sim_call_submit(c);
        }
        engine_sim_run_out(s, 600 * NS_PER_S);
        n[i] = engine_sim_counts(s);
        end_ns[i] = engine_sim_now_ns(s);
        engine_sim_close(s);
    }
    assert_memory_equal(&n[0], &n[1], sizeof n[0]);
    assert_int_equal(end_ns[0], end_ns[1]);
}

/* --- a crowd --------------------------------------------------------------------------------------------------------------------- */

/* Clients that come at random, with all sizes, and some of which leave, read slowly or set a deadline. */
struct crowd {
    uint32_t n_left, most_prompt, most_answer;
    double gap_ns;                     /* mean between two arrivals */
    double cancel, stall, deadline;    /* parts of them */
};

static void arrive(struct engine_sim *s, void *ctx)
{
    struct crowd *w = ctx;
    char client[16];
    snprintf(client, sizeof client, "client-%u", (unsigned)(engine_sim_draw(s) % 7));
    struct sim_call *c = sim_call_new(s, client, 1 + (uint32_t)(engine_sim_draw(s) % w->most_prompt),
                                      1 + (uint32_t)(engine_sim_draw(s) % w->most_answer));
    c->on_end = free_call;
    c->batch = engine_sim_unit(s) < 0.3;
    if (engine_sim_unit(s) < w->stall) {
        c->stall_at = 1 + (uint32_t)(engine_sim_draw(s) % c->n_answer);
        c->stall_ns = (int64_t)(engine_sim_unit(s) * 15e9); /* --write-stall-ms is 10 s */
    }
    if (engine_sim_unit(s) < w->deadline)
        c->deadline_ms = 1 + (int64_t)(engine_sim_unit(s) * 5000);
    sim_call_submit(c);
    if (engine_sim_unit(s) < w->cancel)
        sim_call_leave_at(c, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 3e9));
    if (--w->n_left > 0)
        engine_sim_at(s, engine_sim_now_ns(s) + (int64_t)(2 * engine_sim_unit(s) * w->gap_ns), arrive, w);
}

static void crowd_of(const struct engine_sim_options *o, struct crowd w)
{
    struct engine_sim *s = engine_sim_open(o);
    uint32_t n = w.n_left;
    engine_sim_at(s, engine_sim_now_ns(s), arrive, &w);
    engine_sim_run_out(s, 20000 * NS_PER_S);
    engine_sim_assert_quiet(s);
    struct engine_sim_counts c = engine_sim_counts(s);
    assert_int_equal(c.accepted + c.refused, n);
    assert_int_equal(c.accepted, c.done + c.cancelled + c.failed);
    assert_true(c.done > n / 3);
    engine_sim_close(s);
}

static void a_crowd_of_all_kinds_of_clients_has_its_texts_and_ends(void **state)
{
    (void)state;
    static const uint32_t stages[] = {1, 2, 3, 8};
    for (uint32_t i = 0; i < ARRAY_LEN(stages); i++)
        crowd_of(&(struct engine_sim_options){.n_stages = stages[i], .n_slots = 6, .noise = 0.3, .end_odds = 60, .seed = 10 + i},
                 (struct crowd){.n_left = 400, .most_prompt = 700, .most_answer = 60, .gap_ns = 200e6, .cancel = 0.2,
                                .stall = 0.1, .deadline = 0.1});
}

static void a_pool_that_is_too_small_for_all_serves_all(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        crowd_of(&(struct engine_sim_options){.n_stages = 1 + i, .n_slots = 8, .end_odds = 60, .seed = 20 + i,
                                              .flags = FLAGS("--kv-blocks", "70", "--context", "1024")},
                 (struct crowd){.n_left = 300, .most_prompt = 600, .most_answer = 200, .gap_ns = 100e6, .cancel = 0.2});
}

/* --- stages that are lost ---------------------------------------------------------------------------------------------------- */

static void lose_one(struct engine_sim *s, void *ctx)
{
    uint32_t *left = ctx;
    engine_sim_lose_stage(s, (uint32_t)(engine_sim_draw(s) % 4), (int64_t)(engine_sim_unit(s) * 1e9));
    if (--*left > 0)
        engine_sim_at(s, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 4e9), lose_one, left);
}

static void a_stage_that_is_lost_at_any_time_leaves_no_call_without_end(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_stages = 4, .noise = 0.3, .check_every = 4});
    uint32_t losses = 60;
    struct crowd w = {.n_left = 500, .most_prompt = 700, .most_answer = 60, .gap_ns = 200e6, .cancel = 0.1};
    engine_sim_at(s, engine_sim_now_ns(s), arrive, &w);
    engine_sim_at(s, engine_sim_now_ns(s), lose_one, &losses);
    engine_sim_run_out(s, 2000 * NS_PER_S);
    engine_sim_assert_quiet(s);
    struct engine_sim_counts c = engine_sim_counts(s);
    assert_true(c.epochs > 30);
    assert_int_equal(c.accepted, c.done + c.cancelled + c.failed);
    assert_true(c.done > 100);
    engine_sim_close(s);
}

/* A long turn's time is older than a request that came during it. */
static void a_call_that_came_during_a_turn_is_not_older_than_the_world(void **state)
{
    (void)state;
    static struct service_status st;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){0});
    struct sim_call *c = sim_call_new(s, "a", 20, 8);
    sim_call_submit(c);
    c->request->arrived_ns += 5 * NS_PER_MS;
    engine_sim_step(s);
    engine__publish(engine_sim_engine(s), engine_sim_now_ns(s));
    engine_status(engine_sim_engine(s), &st);
    assert_true(st.slots[0].request[0] && st.slots[0].age_ms == 0);
    engine_sim_run_out(s, 60 * NS_PER_S);
    sim_call_free(c);
    engine_sim_close(s);
}

/* The coordinator was stopped; meanwhile a stage ended and calls came. */
static void what_was_lost_while_the_coordinator_stood_still_was_not_lost_in_the_future(void **state)
{
    (void)state;
    static struct service_status st;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){0});
    struct engine *e = engine_sim_engine(s);
    struct sim_call *c[2] = {sim_call_new(s, "a", 20, 200), sim_call_new(s, "b", 20, 8)};
    sim_call_submit(c[0]);
    while (c[0]->n_ids == 0)
        engine_sim_step(s);
    engine_sim_lose_stage(s, 1, 23 * NS_PER_S);
    sim_call_submit(c[1]);
    s->now_ns += 20 * NS_PER_S;
    engine_sim_step(s);
    assert_int_equal(e->lost_ns, s->now_ns);
    engine_sim_run(s, s->now_ns + NS_PER_S);
    engine_status(e, &st);
    assert_in_range(st.lost_ms, 900, 1100);
    assert_true(st.not_ready[0]);
    engine_sim_run_out(s, 60 * NS_PER_S);
    engine_sim_run(s, s->now_ns + NS_PER_S);
    engine_status(e, &st);
    assert_true(st.ready && st.lost_ms == 0 && !st.not_ready[0]); /* nothing of it stays */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c[i]->finish, FINISH_LENGTH);
        sim_call_free(c[i]);
    }
    engine_sim_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_call_of_each_size_has_its_reference_text),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(a_crowd_of_all_kinds_of_clients_has_its_texts_and_ends),
        cmocka_unit_test(a_pool_that_is_too_small_for_all_serves_all),
        cmocka_unit_test(a_stage_that_is_lost_at_any_time_leaves_no_call_without_end),
        cmocka_unit_test(a_call_that_came_during_a_turn_is_not_older_than_the_world),
        cmocka_unit_test(what_was_lost_while_the_coordinator_stood_still_was_not_lost_in_the_future),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
