/* A pool that is too small, and whatever may happen at any moment: tests 7 and 8 of scheduling.md, FC-20,
 * FC-21 and FC-63 of failure-cases.md on the whole engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/check.h"
#include "coordinator/engine_impl.h"
#include "tests/sim/engine_sim.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void close_quiet(struct engine_sim *s)
{
    engine_sim_run_out(s, 4000 * NS_PER_S);
    engine_sim_assert_quiet(s);
    engine_sim_close(s);
}

/* --- more demand than blocks ------------------------------------------------------------------------------------------------- */

struct pool {
    uint32_t n_left, n_prompt, n_answer, n_done;
    uint32_t n_long;        /* > 0: the length of one answer in five */
    uint64_t ids;           /* that had come at ids_ns */
    int64_t ids_ns, longest_ns;
    uint64_t n_parks;
};

static void pool_ended(struct sim_call *c);

static void pool_submit(struct engine_sim *s, struct pool *p, const char *client)
{
    if (p->n_left == 0)
        return;
    p->n_left--;
    int is_long = p->n_long > 0 && engine_sim_unit(s) < 0.2;
    struct sim_call *c = sim_call_new(s, client, p->n_prompt, is_long ? p->n_long : p->n_answer);
    c->batch = engine_sim_unit(s) < 0.3;
    c->on_end = pool_ended;
    c->ctx = p;
    sim_call_submit(c);
}

static void pool_ended(struct sim_call *c)
{
    struct pool *p = c->ctx;
    char client[32];
    memcpy(client, c->client, sizeof client);
    assert_int_equal(c->finish, FINISH_LENGTH);
    p->n_done++;
    struct engine_sim *s = c->sim;
    sim_call_free(c);
    pool_submit(s, p, client);
}

/* The oldest of those that run is not the one that is parked. */
static void check_parks(struct pool *p, const struct engine *e)
{
    uint64_t oldest = UINT64_MAX, n_new = e->metrics.preemptions - p->n_parks;
    LIST_EACH(it, &e->running)
        if (LIST_ENTRY(it, struct request, link)->order < oldest)
            oldest = LIST_ENTRY(it, struct request, link)->order;
    for (struct list *it = e->parked.prev; n_new > 0 && it != &e->parked; it = it->prev, n_new--)
        assert_true(LIST_ENTRY(it, struct request, link)->order > oldest);
    p->n_parks = e->metrics.preemptions;
}

/* Somebody always gets on. */
static void watch(struct engine_sim *s, void *ctx)
{
    struct pool *p = ctx;
    struct engine_sim_counts n = engine_sim_counts(s);
    check_parks(p, engine_sim_engine(s));
    if (n.ids != p->ids || n.open == 0) {
        p->ids = n.ids;
        p->ids_ns = engine_sim_now_ns(s);
    } else if (engine_sim_now_ns(s) - p->ids_ns > p->longest_ns) {
        p->longest_ns = engine_sim_now_ns(s) - p->ids_ns;
    }
}

static struct metrics run_pool(struct pool *p, uint32_t n_stages, uint32_t n_slots, uint32_t n_blocks)
{
    char blocks[16];
    snprintf(blocks, sizeof blocks, "%u", n_blocks);
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
        .n_stages = n_stages, .n_slots = n_slots, .flags = FLAGS("--kv-blocks", blocks), .seed = n_stages + n_blocks});
    p->ids_ns = engine_sim_now_ns(s);
    engine_sim_on_step(s, watch, p);
    for (uint32_t i = 0; i < n_slots; i++) {
        char client[32];
        snprintf(client, sizeof client, "client-%u", i);
        pool_submit(s, p, client);
    }
    engine_sim_run_out(s, 4000 * NS_PER_S);
    engine_sim_on_step(s, NULL, NULL);
    struct metrics m = engine_sim_engine(s)->metrics;
    close_quiet(s);
    print_message("%u stages, %u blocks: %u calls, %llu parks, %llu prompt tokens, %llu cached, %llu read again, no id for %.2f s\n",
                  n_stages, n_blocks, p->n_done, (unsigned long long)m.preemptions, (unsigned long long)m.prompt_tokens,
                  (unsigned long long)m.cached_tokens, (unsigned long long)m.replayed_tokens, (double)p->longest_ns / 1e9);
    return m;
}

/* Answers take more than is reserved for them: 110 % of the pool when all are at their ends. */
static void a_pool_at_110_percent_of_demand_has_no_livelock(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        struct pool p = {.n_left = 60, .n_prompt = 300, .n_answer = 900};
        uint32_t need = (p.n_prompt + p.n_answer + 15) / 16, n_calls = p.n_left;
        struct metrics m = run_pool(&p, stages, 8, 8 * need * 10 / 11);
        assert_int_equal(p.n_done, n_calls);
        assert_true(m.preemptions > 0);
        assert_true(m.replayed_tokens <= (uint64_t)n_calls * p.n_prompt);
        assert_true(p.longest_ns <= 2 * NS_PER_S);
    }
}

/* One answer in five is long, so that no mean tells what is needed. */
static void answers_of_lengths_that_nobody_can_guess_are_not_read_again_and_again(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        struct pool p = {.n_left = 300, .n_prompt = 300, .n_answer = 20, .n_long = 1500};
        uint32_t n_calls = p.n_left;
        struct metrics m = run_pool(&p, stages, 8, 300);
        assert_int_equal(p.n_done, n_calls);
        assert_true(m.preemptions > 5);
        assert_true(m.replayed_tokens <= 3ull * n_calls * p.n_prompt);
        assert_true(p.longest_ns <= 2 * NS_PER_S);
    }
}

/* FC-63 */
static void four_requests_that_fill_a_small_pool_have_their_texts(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        struct pool p = {.n_left = 4, .n_prompt = 1800, .n_answer = 600};
        struct metrics m = run_pool(&p, stages, 4, 4096 / 16);
        assert_int_equal(p.n_done, 4);
        assert_true(p.longest_ns <= 2 * NS_PER_S);
        assert_true(m.replayed_tokens <= 3 * 4 * 1800);
    }
}

/* Short ones without end, each of one block, and more slots than blocks: whoever runs and needs a block comes before them. */
static void who_runs_gets_its_blocks_before_who_comes(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        struct engine_sim *s = engine_sim_open(
            &(struct engine_sim_options){.n_stages = stages, .n_slots = 64, .flags = FLAGS("--kv-blocks", "60")});
        struct sim_call *old = sim_call_new(s, "old", 100, 400);
        struct pool p = {.n_left = 4000, .n_prompt = 8, .n_answer = 9};
        sim_call_submit(old);
        while (old->n_ids == 0)
            engine_sim_step(s);
        for (uint32_t i = 0; i < 80; i++)
            pool_submit(s, &p, "crowd");
        while (!sim_call_ended(old))
            engine_sim_step(s);
        assert_int_equal(old->finish, FINISH_LENGTH);
        assert_true(p.n_left > 0); /* they came all the time */
        assert_true(old->longest_gap_ns <= 100 * NS_PER_MS);
        sim_call_free(old);
        p.n_left = 0;
        close_quiet(s);
    }
}

/* One that has used up its blocks, and whose client does not read: once others have left there is room for all, and nobody is to
 * wait until it reads. */
static void who_needs_a_block_and_does_not_read_holds_nobody_up(void **state)
{
    (void)state;
    uint32_t n_starved = 0;
    for (uint32_t stall_at = 132; stall_at < 140; stall_at++) { /* 40 + 128 positions are reserved: 11 blocks */
        struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_slots = 3, .flags = FLAGS("--kv-blocks", "22")});
        struct sim_call *slow = sim_call_new(s, "slow", 40, 200), *other = sim_call_new(s, "other", 40, 200);
        slow->stall_at = stall_at;
        slow->stall_ns = 5 * NS_PER_S;
        sim_call_submit(slow);
        engine_sim_step(s);
        sim_call_submit(other);
        while (slow->n_ids < stall_at)
            engine_sim_step(s);
        engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S / 10);
        sim_call_cancel(other);
        struct sim_call *next = sim_call_new(s, "next", 20, 8);
        sim_call_submit(next);
        n_starved += engine_sim_engine(s)->n_starved;
        engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
        if (next->finish != FINISH_LENGTH)
            fail_msg("after %u ids of the slow one the next one has not begun", stall_at);
        engine_sim_run_out(s, 60 * NS_PER_S);
        assert_int_equal(slow->finish, FINISH_LENGTH);
        sim_call_free(slow);
        sim_call_free(other);
        sim_call_free(next);
        close_quiet(s);
    }
    assert_true(n_starved > 0);
}

/* One that was parked and whose client does not read, with more to come than there is room for now, is not the first in line. */
static void who_is_parked_and_does_not_read_holds_nobody_up(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        struct engine_sim *s = engine_sim_open(
            &(struct engine_sim_options){.n_stages = n_stages, .n_slots = 3, .flags = FLAGS("--kv-blocks", "22")});
        struct sim_call *slow = sim_call_new(s, "slow", 40, 200), *other = sim_call_new(s, "other", 40, 260);
        slow->stall_at = 20;
        slow->stall_ns = 9 * NS_PER_S;
        sim_call_submit(slow);
        engine_sim_step(s);
        sim_call_submit(other);
        while (engine_sim_engine(s)->n_parked == 0)
            engine_sim_step(s);
        assert_true(slow->request->preempted && slow->request->throttled);
        struct sim_call *next = sim_call_new(s, "next", 20, 8);
        sim_call_submit(next);
        while (!sim_call_ended(next) && !sim_call_ended(other))
            engine_sim_step(s);
        assert_int_equal(next->finish, FINISH_LENGTH);
        engine_sim_run_out(s, 60 * NS_PER_S);
        assert_int_equal(slow->finish, FINISH_LENGTH);
        assert_int_equal(other->finish, FINISH_LENGTH);
        sim_call_free(slow);
        sim_call_free(other);
        sim_call_free(next);
        close_quiet(s);
    }
}

/* Without a queue: whoever can start at once is taken, though one that lost its slot with an epoch waits for its client. */
static void a_free_slot_is_given_beside_one_that_is_parked_and_does_not_read(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_slots = 2, .flags = FLAGS("--queue-requests", "0")});
    struct sim_call *slow = sim_call_new(s, "slow", 40, 200), *next = sim_call_new(s, "next", 20, 8);
    slow->stall_at = 20;
    slow->stall_ns = 9 * NS_PER_S;
    sim_call_submit(slow);
    while (!slow->request->throttled)
        engine_sim_step(s);
    engine_sim_lose_stage(s, 0, NS_PER_S / 10);
    engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
    assert_int_equal(engine_sim_engine(s)->n_parked, 1);
    sim_call_submit(next);
    engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
    assert_int_equal(next->finish, FINISH_LENGTH);
    engine_sim_run_out(s, 60 * NS_PER_S);
    assert_int_equal(slow->finish, FINISH_LENGTH);
    sim_call_free(slow);
    sim_call_free(next);
    close_quiet(s);
}

/* An answer that is there and waits for its client to read its end needs no stage. */
static void a_whole_answer_outlives_the_recovery_timeout(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.flags = FLAGS("--recovery-timeout-ms", "300")});
    struct sim_call *whole = sim_call_new(s, "whole", 40, 30), *part = sim_call_new(s, "part", 40, 300);
    whole->stall_at = 29;
    whole->stall_ns = 5 * NS_PER_S;
    sim_call_submit(whole);
    sim_call_submit(part);
    while (!whole->request || !whole->request->ending)
        engine_sim_step(s);
    engine_sim_lose_stage(s, 1, 2 * NS_PER_S);
    engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
    assert_int_equal(part->end.status, STATUS_PIPELINE_LOST);
    assert_false(sim_call_ended(whole));
    struct sim_call *early = sim_call_new(s, "early", 20, 8);
    sim_call_submit(early);
    engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S / 10);
    assert_int_equal(early->end.status, STATUS_PIPELINE); /* as when nobody is left */
    engine_sim_run_out(s, 60 * NS_PER_S);
    assert_int_equal(whole->finish, FINISH_LENGTH);
    assert_int_equal(whole->n_ids, 30);
    sim_call_free(whole);
    sim_call_free(part);
    sim_call_free(early);
    close_quiet(s);
}

/* --- clients that leave ------------------------------------------------------------------------------------------------------- */

static void free_call(struct sim_call *c)
{
    sim_call_free(c);
}

/* n requests at once, of which a part leaves within so long. */
static void submit_and_leave(struct engine_sim *s, uint32_t n, double part, int64_t within_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        char client[32];
        snprintf(client, sizeof client, "client-%u", i % 20);
        struct sim_call *c = sim_call_new(s, client, 300, 60);
        c->on_end = free_call;
        sim_call_submit(c);
        if (engine_sim_unit(s) < part)
            sim_call_leave_at(c, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * (double)within_ns));
    }
}

static struct blocks_count blocks_of(struct engine_sim *s)
{
    return blocks_counts(engine_sim_engine(s)->blocks);
}

/* FC-20 */
static void leaving_beside_a_full_cache_changes_nobodys_text(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_stages = 4, .flags = FLAGS("--kv-blocks", "400")});
    while (blocks_of(s).cached * 100 < blocks_of(s).total * 95) {
        submit_and_leave(s, 4, 0, 1);
        engine_sim_run_out(s, 60 * NS_PER_S);
    }
    uint64_t before = engine_sim_counts(s).done;
    submit_and_leave(s, 500, 0.3, 120 * NS_PER_S);
    engine_sim_run_out(s, 600 * NS_PER_S);
    struct engine_sim_counts n = engine_sim_counts(s);
    assert_int_equal(n.failed + n.refused, 0);
    assert_in_range(n.cancelled, 30, 160); /* who is served sooner than it leaves has its answer */
    assert_int_equal(n.done - before, 500 - n.cancelled);
    close_quiet(s);
}

/* FC-21: after each round all blocks can be had by one request. */
static void rounds_of_clients_that_all_leave_lose_no_block(void **state)
{
    (void)state;
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_stages = 3, .flags = FLAGS("--kv-blocks", "400")});
    for (int round = 0; round < 5; round++) {
        submit_and_leave(s, 400, 1, 2 * NS_PER_S);
        engine_sim_run_out(s, 60 * NS_PER_S);
        engine_sim_assert_quiet(s);
        struct sim_call *c = sim_call_new(s, "whole", 400 * 16 - 100, 101);
        sim_call_submit(c);
        engine_sim_run_out(s, 60 * NS_PER_S);
        assert_int_equal(c->finish, FINISH_LENGTH);
        sim_call_free(c);
    }
    close_quiet(s);
}

enum { CROWD = 12000 };

static void all_leave(struct engine_sim *s, void *crowd)
{
    (void)s;
    for (uint32_t i = 0; i < CROWD; i++)
        sim_call_cancel(((struct sim_call **)crowd)[i]);
}

static int64_t next_id_ns(struct engine_sim *s, const struct sim_call *c)
{
    for (uint32_t n = c->n_ids; c->n_ids == n;)
        engine_sim_step(s);
    return c->last_ns;
}

/* More cancels than the inbox holds come just before a result. The stages' messages must not be what is lost. */
static void a_crowd_that_leaves_at_once_ends_no_epoch(void **state)
{
    (void)state;
    static struct sim_call *crowd[CROWD];
    struct engine_sim *s = engine_sim_open(
        &(struct engine_sim_options){.n_slots = 1, .flags = FLAGS("--queue-requests", "20000"), .check_every = 4096});
    struct sim_call *old = sim_call_new(s, "old", 100, 400);
    sim_call_submit(old);
    next_id_ns(s, old);
    for (uint32_t i = 0; i < CROWD; i++) {
        crowd[i] = sim_call_new(s, "crowd", 8, 9);
        crowd[i]->on_end = free_call;
        sim_call_submit(crowd[i]);
        if (i % 4000 == 0)
            engine_sim_step(s);
    }
    int64_t before_ns = next_id_ns(s, old), now_ns = next_id_ns(s, old);
    engine_sim_at(s, now_ns + (now_ns - before_ns), all_leave, crowd); /* with the next id */
    engine_sim_run_out(s, 60 * NS_PER_S);
    assert_int_equal(engine_sim_counts(s).epochs, 1);
    assert_int_equal(engine_sim_counts(s).cancelled, CROWD);
    assert_int_equal(old->finish, FINISH_LENGTH);
    sim_call_free(old);
    close_quiet(s);
}

/* CPU time of so many refused submits and steps, while one waits whose prompt begins like that of one that runs, but for whom
 * there is no room. */
static double cpu_beside_one_that_waits(int no_cache, uint32_t n_submits, uint32_t n_steps)
{
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
        .check_every = 4096, .flags = FLAGS("--context", "32768", "--kv-blocks", "1690", "--queue-requests", "1")});
    struct sim_call *runs = sim_call_new(s, "a", 16000, 300), *waits = sim_call_new(s, "a", 26000, 300);
    sim_call_write(runs, 0, 7);
    sim_call_submit(runs);
    while (runs->n_ids == 0)
        engine_sim_step(s);
    sim_call_write(waits, 0, 7);
    sim_call_write(waits, 15000, 8);
    waits->no_cache = no_cache;
    sim_call_submit(waits);
    engine_sim_step(s);
    for (uint32_t i = 0; i < n_submits; i++) {
        struct sim_call *c = sim_call_new(s, "b", 8, 9);
        c->on_end = free_call;
        sim_call_submit(c);
    }
    struct timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (uint32_t i = 0; i < n_steps; i++)
        engine_sim_step(s);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    assert_int_equal(engine_sim_engine(s)->n_queued, 1);
    assert_true(runs->n_ids < 300);
    sim_call_cancel(waits);
    sim_call_cancel(runs);
    engine_sim_run_out(s, 60 * NS_PER_S);
    sim_call_free(waits);
    sim_call_free(runs);
    close_quiet(s);
    return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
}

/* Looking up its 15,000 tokens in every turn, or for every stranger, would be most of what the engine does. */
static void who_waits_with_a_long_prompt_costs_little(void **state)
{
    (void)state;
    static const uint32_t n_submits[] = {1000, 0}, n_steps[] = {1, 300};
    for (int i = 0; i < 2; i++) {
        double plain = cpu_beside_one_that_waits(1, n_submits[i], n_steps[i]);
        double with = cpu_beside_one_that_waits(0, n_submits[i], n_steps[i]);
        print_message("%u refusals, %u steps: %.1f ms of CPU, %.1f ms where nothing can be looked up\n", n_submits[i], n_steps[i],
                      with * 1e3, plain * 1e3);
        assert_true(with <= 4 * plain + 0.02);
    }
}

/* --- at every event ---------------------------------------------------------------------------------------------------------- */

enum what { CANCEL, PARK, LOSE, WHAT_N };
enum { CALLS = 4 };

struct moment {
    enum what what;
    uint32_t who;         /* call, or stage */
    uint64_t at;          /* steps from the start */
    uint64_t from;
};

static void do_it(struct engine_sim *s, void *ctx)
{
    struct moment *m = ctx;
    struct engine *e = engine_sim_engine(s);
    if (engine_sim_counts(s).steps - m->from != m->at)
        return;
    if (m->what == LOSE)
        engine_sim_lose_stage(s, m->who, 10 * NS_PER_MS);
    LIST_EACH(it, &e->running) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (m->what == PARK && r->client[0] == (char)('a' + m->who))
            engine__park(e, r, engine_sim_now_ns(s));
    }
}

/* Sizes that make three run while one waits; two of them have a beginning in common. */
static uint64_t run_moment(struct moment m)
{
    static const uint32_t n_prompt[CALLS] = {90, 40, 90, 20}, n_answer[CALLS] = {6, 12, 8, 9};
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
        .n_slots = 3, .check_every = 1, .flags = FLAGS("--kv-blocks", "40", "--context", "256", "--piece-max", "32")});
    struct sim_call *c[CALLS];
    engine_sim_on_step(s, do_it, &m);
    m.from = engine_sim_counts(s).steps;
    for (uint32_t i = 0; i < CALLS; i++) {
        c[i] = sim_call_new(s, (const char[]){(char)('a' + i), '\0'}, n_prompt[i], n_answer[i]);
        if (i % 2 == 0)
            sim_call_write(c[i], 0, 5);
        sim_call_submit(c[i]);
        if (m.what == CANCEL && i == m.who)
            c[i]->ctx = &m;
    }
    while (engine_sim_counts(s).open > 0) {
        engine_sim_step(s);
        if (m.what == CANCEL && engine_sim_counts(s).steps - m.from == m.at)
            sim_call_cancel(c[m.who]);
    }
    uint64_t steps = engine_sim_counts(s).steps - m.from;
    for (uint32_t i = 0; i < CALLS; i++) { /* the ids of all were compared when they came */
        if (m.what == CANCEL && i == m.who)
            assert_true(c[i]->finish == FINISH_LENGTH || c[i]->end.status == STATUS_CANCELLED);
        else if (m.what == LOSE)
            assert_true(c[i]->finish == FINISH_LENGTH || status_retryable(c[i]->end.status));
        else
            assert_int_equal(c[i]->finish, FINISH_LENGTH);
        assert_true(m.at > 0 || c[i]->finish == FINISH_LENGTH);
    }
    engine_sim_assert_quiet(s);
    for (uint32_t i = 0; i < CALLS; i++)
        sim_call_free(c[i]);
    engine_sim_close(s);
    return steps;
}

static void whatever_happens_at_any_event_leaves_texts_and_sums_right(void **state)
{
    (void)state;
    uint64_t steps = run_moment((struct moment){.at = 0});
    uint32_t n = 0;
    assert_in_range(steps, 30, 1000);
    for (int what = CANCEL; what < WHAT_N; what++)
        for (uint32_t who = 0; who < (what == LOSE ? 2 : CALLS); who++)
            for (uint64_t at = 1; at <= steps; at++, n++)
                run_moment((struct moment){.what = (enum what)what, .who = who, .at = at});
    print_message("%u runs of %llu events\n", n, (unsigned long long)steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_at_110_percent_of_demand_has_no_livelock),
        cmocka_unit_test(answers_of_lengths_that_nobody_can_guess_are_not_read_again_and_again),
        cmocka_unit_test(four_requests_that_fill_a_small_pool_have_their_texts),
        cmocka_unit_test(who_runs_gets_its_blocks_before_who_comes),
        cmocka_unit_test(who_needs_a_block_and_does_not_read_holds_nobody_up),
        cmocka_unit_test(who_is_parked_and_does_not_read_holds_nobody_up),
        cmocka_unit_test(a_free_slot_is_given_beside_one_that_is_parked_and_does_not_read),
        cmocka_unit_test(a_whole_answer_outlives_the_recovery_timeout),
        cmocka_unit_test(leaving_beside_a_full_cache_changes_nobodys_text),
        cmocka_unit_test(rounds_of_clients_that_all_leave_lose_no_block),
        cmocka_unit_test(a_crowd_that_leaves_at_once_ends_no_epoch),
        cmocka_unit_test(who_waits_with_a_long_prompt_costs_little),
        cmocka_unit_test(whatever_happens_at_any_event_leaves_texts_and_sums_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
