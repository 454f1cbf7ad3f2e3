/* Waiting on the whole engine: FC-02, FC-03, FC-06, FC-08, FC-34 and FC-35 of failure-cases.md and test 10 of scheduling.md in
 * virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/engine_impl.h"
#include "tests/sim/engine_sim.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define DEFAULTS "--queue-requests", "32", "--decode-share", "0.5", "--max-stall-ms", "200"

enum { QUEUE = 32, SLOTS = 4 };

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

static void free_call(struct sim_call *c)
{
    sim_call_free(c);
}

static uint32_t n_waiting(struct engine_sim *s)
{
    return admission_stats(engine_sim_engine(s)->admission).n_waiting;
}

static void close_quiet(struct engine_sim *s)
{
    engine_sim_run_out(s, 2000 * NS_PER_S);
    engine_sim_assert_quiet(s);
    engine_sim_close(s);
}

/* --- FC-03 ---------------------------------------------------------------------------------------------------------------------- */

enum { LONG_PROMPT = 64, TRIALS = 100 };

static struct engine_sim *open_queue(void)
{
    return engine_sim_open(&(struct engine_sim_options){.n_slots = SLOTS, .flags = FLAGS(DEFAULTS), .check_every = 4096});
}

/* Answer tokens of a request that takes 20 s beside three others. */
static uint32_t tokens_of_20_s(void)
{
    struct engine_sim *s = open_queue();
    struct sim_call *c[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        c[i] = sim_call_new(s, "a", LONG_PROMPT, 500);
        sim_call_submit(c[i]);
    }
    engine_sim_run_out(s, 60 * NS_PER_S);
    double token_s = seconds(c[0]->last_ns - c[0]->first_ns) / 499;
    for (int i = 0; i < SLOTS; i++)
        sim_call_free(c[i]);
    engine_sim_close(s);
    return (uint32_t)(20 / token_s);
}

static void send_long(struct engine_sim *s, uint32_t n_answer)
{
    struct sim_call *c = sim_call_new(s, "others", LONG_PROMPT, n_answer);
    c->on_end = free_call;
    sim_call_submit(c);
}

static void keep_full(struct engine_sim *s, int64_t until_ns, uint32_t n_answer)
{
    do {
        engine_sim_step(s);
        for (uint32_t n = n_waiting(s); n < QUEUE; n++)
            send_long(s, n_answer);
    } while (engine_sim_now_ns(s) < until_ns);
    engine_sim_step(s);
    assert_int_equal(n_waiting(s), QUEUE);
}

static struct sim_call *attempt(struct engine_sim *s, uint32_t n_answer)
{
    struct sim_call *c = sim_call_new(s, "late", LONG_PROMPT, n_answer);
    sim_call_submit(c);
    engine_sim_step(s);
    return c;
}

static void who_returns_after_retry_after_is_taken(void **state)
{
    (void)state;
    uint32_t n_answer = tokens_of_20_s(), n_taken = 0;
    int longest = 0;
    struct engine_sim *s = open_queue();
    int64_t start_ns = engine_sim_now_ns(s);
    for (int i = 0; i < SLOTS; i++) {
        send_long(s, n_answer);
        engine_sim_run(s, start_ns + (i + 1) * 5 * NS_PER_S);
    }
    keep_full(s, engine_sim_now_ns(s) + 60 * NS_PER_S, n_answer);
    struct sim_call *calls[2 * TRIALS];
    uint32_t n_calls = 0;
    for (int i = 0; i < TRIALS; i++) {
        keep_full(s, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 20e9), n_answer);
        struct sim_call *refused = calls[n_calls++] = attempt(s, n_answer);
        assert_true(sim_call_ended(refused) && !refused->accepted_ns);
        assert_int_equal(refused->end.status, STATUS_QUEUE_FULL);
        assert_true(refused->end.retry_after_s >= 1);
        longest = refused->end.retry_after_s > longest ? refused->end.retry_after_s : longest;
        engine_sim_run(s, engine_sim_now_ns(s) + refused->end.retry_after_s * NS_PER_S);
        struct sim_call *again = calls[n_calls++] = attempt(s, n_answer);
        n_taken += again->accepted_ns > 0;
    }
    print_message("%u of %d were taken after at most %d s\n", n_taken, TRIALS, longest);
    for (uint32_t i = 0; i < n_calls; i++)
        sim_call_cancel(calls[i]);
    engine_sim_run_out(s, 2000 * NS_PER_S);
    for (uint32_t i = 0; i < n_calls; i++)
        sim_call_free(calls[i]);
    assert_true(n_taken >= 95);
    assert_true(longest <= 10);
    close_quiet(s);
}

/* --- FC-08 ---------------------------------------------------------------------------------------------------------------------- */

enum { SOME_PROMPT = 300, SOME_ANSWER = 60, MINUTES = 30 };

struct load {
    struct engine_sim *s;
    double gap_ns;        /* mean between two arrivals; 0: a closed loop */
    int64_t end_ns;       /* no arrivals from here on */
    uint64_t n_done, n_refused, n_made;
    int64_t longest_wait_ns;
};

static void load_arrive(struct engine_sim *s, void *ctx);

static void load_ended(struct sim_call *c)
{
    struct load *l = c->ctx;
    if (!c->accepted_ns)
        l->n_refused++;
    else if (engine_sim_now_ns(l->s) <= l->end_ns)
        l->n_done++;
    if (c->accepted_ns && c->request->admitted_ns - c->submitted_ns > l->longest_wait_ns)
        l->longest_wait_ns = c->request->admitted_ns - c->submitted_ns;
    sim_call_free(c);
    if (l->gap_ns == 0)
        load_arrive(l->s, l);
}

static void load_arrive(struct engine_sim *s, void *ctx)
{
    struct load *l = ctx;
    if (engine_sim_now_ns(s) >= l->end_ns)
        return;
    char client[32];
    snprintf(client, sizeof client, "client-%llu", (unsigned long long)l->n_made++);
    struct sim_call *c = sim_call_new(s, client, SOME_PROMPT, SOME_ANSWER);
    c->on_end = load_ended;
    c->ctx = l;
    sim_call_submit(c);
    if (l->gap_ns > 0)
        engine_sim_at(s, engine_sim_now_ns(s) - (int64_t)(log1p(-engine_sim_unit(s)) * l->gap_ns), load_arrive, l);
}

/* Requests a second that are finished. gap_ns 0: 36 clients in a closed loop. */
static struct load run_load(double gap_ns, uint32_t minutes)
{
    struct load l = {.s = open_queue(), .gap_ns = gap_ns};
    l.end_ns = engine_sim_now_ns(l.s) + minutes * 60 * NS_PER_S;
    for (int i = 0; i < (gap_ns > 0 ? 1 : QUEUE + SLOTS); i++)
        load_arrive(l.s, &l);
    engine_sim_run(l.s, l.end_ns);
    close_quiet(l.s);
    return l;
}

static void open_loop_overload_is_served_at_capacity_and_waits_are_bounded(void **state)
{
    (void)state;
    static const uint32_t percent[] = {50, 80, 100, 120};
    double capacity = (double)run_load(0, 10).n_done / 600;
    for (uint32_t i = 0; i < ARRAY_LEN(percent); i++) {
        double offered = capacity * percent[i] / 100;
        struct load l = run_load(1e9 / offered, MINUTES);
        double done = (double)l.n_done / (MINUTES * 60), bound_s = 1.1 * QUEUE / done;
        print_message("load %u %% of %.2f/s: %.2f/s done, %llu of %llu refused, longest wait %.1f s, bound %.1f s\n", percent[i],
                      capacity, done, (unsigned long long)l.n_refused, (unsigned long long)l.n_made,
                      seconds(l.longest_wait_ns), bound_s);
        assert_true(done >= 0.95 * fmin((double)l.n_made / (MINUTES * 60), capacity));
        if (percent[i] == 50)
            assert_int_equal(l.n_refused, 0);
        if (percent[i] == 120)
            assert_true(seconds(l.longest_wait_ns) <= bound_s);
    }
}

/* --- order, and leaving ------------------------------------------------------------------------------------------------------- */

struct order {
    uint32_t n_first;
    struct sim_call *first[QUEUE + SLOTS]; /* in the order of their first ids */
};

static void note_first(struct sim_call *c)
{
    struct order *o = c->ctx;
    if (c->n_ids == 1)
        o->first[o->n_first++] = c;
}

static void watch_queue(struct engine_sim *s, void *ctx)
{
    (void)ctx;
    assert_true(n_waiting(s) <= QUEUE);
}

/* FC-02 */
static void a_flood_of_one_client_is_bounded_and_served_in_order(void **state)
{
    (void)state;
    enum { N = 360 };
    struct engine_sim *s = open_queue();
    struct sim_call *c[N];
    uint32_t n_done = 0;
    engine_sim_on_step(s, watch_queue, NULL);
    for (int i = 0; i < N; i++) {
        c[i] = sim_call_new(s, "one", 64, 32);
        sim_call_submit(c[i]);
    }
    engine_sim_run_out(s, 600 * NS_PER_S);
    int64_t started_ns = 0;
    for (int i = 0; i < N; i++) {
        if (c[i]->accepted_ns) {
            assert_true(c[i]->request->admitted_ns >= started_ns);
            started_ns = c[i]->request->admitted_ns;
            n_done += c[i]->finish == FINISH_LENGTH;
        } else {
            assert_int_equal(c[i]->end.status, STATUS_QUEUE_FULL);
            assert_true(c[i]->end.retry_after_s >= 1 && c[i]->ended_ns == c[i]->submitted_ns);
        }
        sim_call_free(c[i]);
    }
    assert_int_equal(n_done, QUEUE + SLOTS);
    engine_sim_on_step(s, NULL, NULL);
    close_quiet(s);
}

/* FC-06 */
static void first_tokens_come_in_the_order_of_arrival(void **state)
{
    (void)state;
    enum { N = 20 };
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){.n_slots = 1, .flags = FLAGS(DEFAULTS)});
    struct sim_call *c[N];
    struct order o = {0};
    for (int i = 0; i < N; i++) {
        char client[32];
        snprintf(client, sizeof client, "new-%d", i);
        c[i] = sim_call_new(s, client, 512, 32);
        c[i]->on_id = note_first;
        c[i]->ctx = &o;
        sim_call_submit(c[i]);
        engine_sim_run(s, engine_sim_now_ns(s) + 50 * NS_PER_MS);
    }
    engine_sim_run_out(s, 600 * NS_PER_S);
    assert_int_equal(o.n_first, N);
    for (int i = 0; i < N; i++) {
        assert_ptr_equal(o.first[i], c[i]);
        sim_call_free(c[i]);
    }
    close_quiet(s);
}

/* FC-34 and FC-35 */
static void who_leaves_the_queue_costs_nothing_and_ends_nobody_else(void **state)
{
    (void)state;
    enum { N = 20 };
    struct engine_sim *s = open_queue();
    struct sim_call *streams[SLOTS], *waiting[N];
    for (int i = 0; i < SLOTS; i++) {
        streams[i] = sim_call_new(s, "streams", 64, 2000);
        sim_call_submit(streams[i]);
    }
    engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
    uint64_t prompt_rows = engine_sim_prompt_rows(s);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            waiting[i] = sim_call_new(s, i % 2 ? "streams" : "leaves", 500, 20);
            sim_call_submit(waiting[i]);
        }
        engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
        assert_int_equal(n_waiting(s), N);
        for (int i = 0; i < N; i++)
            sim_call_cancel(waiting[i]);
        engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_MS);
        assert_int_equal(n_waiting(s), 0);
        for (int i = 0; i < N; i++) {
            assert_int_equal(waiting[i]->end.status, STATUS_CANCELLED);
            sim_call_free(waiting[i]);
        }
    }
    assert_int_equal(engine_sim_prompt_rows(s), prompt_rows);
    engine_sim_run_out(s, 600 * NS_PER_S);
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(streams[i]->finish, FINISH_LENGTH);
        sim_call_free(streams[i]);
    }
    close_quiet(s);
}

/* --- a flooding client -------------------------------------------------------------------------------------------------------- */

enum { MODEST = 3, FLOOD = 24, WINDOW = 4 };

struct user {
    char name[16];
    uint32_t most_prompt, most_answer;
    uint64_t served;                /* by calls that have ended */
    struct sim_call *call[FLOOD];   /* open ones */
};

struct fair {
    struct engine_sim *s;
    struct user user[MODEST + 1];   /* the last one floods */
    uint32_t largest;
    double worst;                   /* tokens by which a modest one was furthest behind its share */
    int64_t end_ns;
};

static void user_ended(struct sim_call *c);

static void user_submit(struct fair *f, struct user *u, uint32_t i)
{
    if (engine_sim_now_ns(f->s) >= f->end_ns)
        return;
    struct sim_call *c = sim_call_new(f->s, u->name, 1 + (uint32_t)(engine_sim_draw(f->s) % u->most_prompt),
                                      1 + (uint32_t)(engine_sim_draw(f->s) % u->most_answer));
    c->on_end = user_ended;
    c->ctx = f;
    u->call[i] = c;
    sim_call_submit(c);
}

static struct user *user_of(struct fair *f, const char *name)
{
    for (uint32_t i = 0; i <= MODEST; i++)
        if (strcmp(f->user[i].name, name) == 0)
            return &f->user[i];
    fail_msg("%s is nobody", name);
    return NULL;
}

static void user_ended(struct sim_call *c)
{
    struct fair *f = c->ctx;
    struct user *u = user_of(f, c->client);
    assert_int_equal(c->finish, FINISH_LENGTH);
    u->served += c->n_prompt + c->n_ids;
    for (uint32_t i = 0; i < FLOOD; i++)
        if (u->call[i] == c) {
            u->call[i] = NULL;
            sim_call_free(c);
            user_submit(f, u, i);
            return;
        }
}

/* Prompt tokens count when they are read, answer tokens when they come. */
static uint64_t served(const struct user *u)
{
    uint64_t n = u->served;
    for (uint32_t i = 0; i < FLOOD; i++)
        if (u->call[i])
            n += u->call[i]->n_ids + u->call[i]->request->n_read;
    return n;
}

static void compare(struct engine_sim *s, void *ctx)
{
    struct fair *f = ctx;
    uint64_t sum = 0;
    if (engine_sim_now_ns(s) >= f->end_ns)
        return;
    for (uint32_t i = 0; i <= MODEST; i++)
        sum += served(&f->user[i]);
    for (uint32_t i = 0; i < MODEST; i++)
        f->worst = fmax(f->worst, (double)sum / (MODEST + 1) - (double)served(&f->user[i]));
}

/* All ask for more than their share, one for far more and in larger requests. */
static void a_client_that_floods_takes_nothing_of_the_others_share(void **state)
{
    (void)state;
    struct fair f = {.largest = 1200 + 200};
    f.s = engine_sim_open(&(struct engine_sim_options){.n_slots = SLOTS, .flags = FLAGS("--queue-requests", "100")});
    f.end_ns = engine_sim_now_ns(f.s) + 600 * NS_PER_S;
    for (uint32_t i = 0; i <= MODEST; i++) {
        struct user *u = &f.user[i];
        *u = (struct user){.most_prompt = i == MODEST ? 1200 : 300, .most_answer = i == MODEST ? 200 : 60};
        snprintf(u->name, sizeof u->name, "user-%u", i);
        for (uint32_t k = 0; k < (i == MODEST ? FLOOD : WINDOW); k++)
            user_submit(&f, u, k);
    }
    engine_sim_on_step(f.s, compare, &f);
    engine_sim_run(f.s, f.end_ns);
    print_message("served %llu %llu %llu and %llu tokens; a modest client was behind its share by at most %.0f, the largest "
                  "request has %u\n",
                  (unsigned long long)served(&f.user[0]), (unsigned long long)served(&f.user[1]),
                  (unsigned long long)served(&f.user[2]), (unsigned long long)served(&f.user[3]), f.worst, f.largest);
    assert_true(f.worst <= f.largest);
    close_quiet(f.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_returns_after_retry_after_is_taken),
        cmocka_unit_test(a_flood_of_one_client_is_bounded_and_served_in_order),
        cmocka_unit_test(first_tokens_come_in_the_order_of_arrival),
        cmocka_unit_test(who_leaves_the_queue_costs_nothing_and_ends_nobody_else),
        cmocka_unit_test(a_client_that_floods_takes_nothing_of_the_others_share),
        cmocka_unit_test(open_loop_overload_is_served_at_capacity_and_waits_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
