/* Admission in virtual time: what clients are told comes true, nobody takes what is another's, nobody is starved. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "tests/sim/queue_sim.h"

static struct queue_sim_options server(uint32_t n_slots, uint32_t queue_requests)
{
    return (struct queue_sim_options){
        .limits = {.queue_requests = queue_requests, .queue_tokens = 1 << 24, .queue_wait_ns = 3600 * NS_PER_S, .n_slots = n_slots},
        .prompt_per_s = 2000, .answer_per_s = 50};
}

static double unit(uint64_t seed, uint64_t n)
{
    return (double)(rand_at(seed, n) >> 11) * 0x1p-53;
}

/* --- FC-03 -------------------------------------------------------------------------------------------------------------------- */

/* 1,000 prompt and 975 answer tokens: 20 s. */
static const struct queue_sim_request twenty_seconds = {.client = 1, .n_prompt = 1000, .n_answer = 975};

/* Four slots whose requests began 5 s apart, the queue kept full until a random moment; then nobody comes but `n` clients who
 * are refused, and return when they were told to. Returns how many were accepted; the longest time told goes to *most. */
static int refused_and_back(uint64_t trial, int64_t warm_s, int n, int *most)
{
    struct queue_sim_options o = server(4, 8);
    struct queue_sim *q = queue_sim_create(&o);
    struct queue_sim_request other = twenty_seconds;
    struct error err;
    for (int k = 0; k < 4; k++) {
        assert_int_equal(queue_sim_submit(q, &twenty_seconds, NULL), STATUS_OK);
        queue_sim_until(q, (k + 1) * 5 * NS_PER_S + NS_PER_S);
    }
    int64_t refused_ns = (15 + warm_s) * NS_PER_S + (int64_t)(unit(3, trial) * 5e9), back_ns[8];
    do {
        while (q->n_waiting[1] < 8)
            assert_int_equal(queue_sim_submit(q, &twenty_seconds, NULL), STATUS_OK);
        queue_sim_step(q);
    } while (q->now_ns < refused_ns || q->n_waiting[1] < 8);
    for (int k = 0; k < n; k++) {
        other.client = 100 + (uint64_t)k;
        assert_int_equal(queue_sim_submit(q, &other, &err), STATUS_QUEUE_FULL);
        back_ns[k] = q->now_ns + err.retry_after_s * NS_PER_S;
        *most = err.retry_after_s > *most ? err.retry_after_s : *most;
    }
    int accepted = 0;
    for (int k = 0; k < n; k++) {
        queue_sim_until(q, back_ns[k]);
        other.client = 100 + (uint64_t)k;
        accepted += queue_sim_submit(q, &other, &err) == STATUS_OK;
    }
    queue_sim_destroy(q);
    return accepted;
}

static void fc_03_who_returns_after_retry_after_is_accepted(void **state)
{
    (void)state;
    int accepted = 0, most = 0;
    for (uint64_t trial = 0; trial < 100; trial++)
        accepted += refused_and_back(trial, 60, 1, &most);
    assert_in_range(accepted, 95, 100);
    assert_in_range(most, 1, 10);
}

/* Nothing ended yet, so no departure was measured, and how long answers are is not known: too long may be told, too short not. */
static void fc_03_before_anything_ended_the_time_is_not_too_short(void **state)
{
    (void)state;
    int accepted = 0, most = 0;
    for (uint64_t trial = 0; trial < 100; trial++)
        accepted += refused_and_back(trial, 0, 1, &most);
    assert_in_range(accepted, 95, 100);
    assert_in_range(most, 1, 20);
}

static void several_refused_at_once_are_told_a_departure_each(void **state)
{
    (void)state;
    int accepted = 0, most = 0;
    for (uint64_t trial = 0; trial < 100; trial++)
        accepted += refused_and_back(trial, 60, 4, &most);
    assert_in_range(accepted, 380, 400);
    assert_in_range(most, 15, 25);
}

/* --- FC-08 -------------------------------------------------------------------------------------------------------------------- */

enum { QUEUE = 512, RUN_S = 1800 };

/* Tokens per second of 36 clients who send the next request when the last one has ended. */
static double closed_loop_capacity(void)
{
    struct queue_sim_options o = server(8, QUEUE);
    struct queue_sim *q = queue_sim_create(&o);
    uint64_t n = 0;
    int64_t from = q->now_ns;
    while (q->now_ns < from + 600 * NS_PER_S) {
        for (uint64_t c = 0; c < 36; c++)
            if (q->n_here[c] == 0) {
                struct queue_sim_request r = queue_sim_draw(c, 8, n++);
                assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
            }
        queue_sim_step(q);
    }
    double tokens_per_s = q->finished_tokens / 600;
    queue_sim_destroy(q);
    return tokens_per_s;
}

enum client_mix { ALL_NEW, ONE_CLIENT, CLIENTS_36 };

struct load {
    struct queue_sim *q;
    double offered_tokens, departures_per_s;
};

static void offer(struct load *l, const struct queue_sim_request *r)
{
    struct error err;
    l->offered_tokens += r->n_prompt + r->n_answer;
    if (queue_sim_submit(l->q, r, &err) == STATUS_OK)
        return;
    assert_int_equal(err.status, STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 1, 60);
}

static void poisson(struct load *l, double tokens_per_s, enum client_mix mix, uint64_t seed)
{
    struct queue_sim_options o = server(8, QUEUE);
    struct queue_sim *q = l->q = queue_sim_create(&o);
    int64_t from = q->now_ns, next_ns = from;
    double mean_tokens = 400 + 50;
    for (uint64_t n = 0; q->now_ns < from + RUN_S * NS_PER_S; queue_sim_step(q)) {
        for (; next_ns <= q->now_ns; n++) {
            uint64_t client = mix == ALL_NEW ? 1000 + n : mix == ONE_CLIENT ? 1 : rand_at(seed + 2, n) % 36;
            struct queue_sim_request r = queue_sim_draw(client, seed, n);
            offer(l, &r);
            next_ns += (int64_t)(-log1p(-unit(seed + 1, n)) * mean_tokens / tokens_per_s * 1e9);
        }
    }
    l->departures_per_s = (double)q->n_started / RUN_S;
}

static void fc_08_an_open_loop_overload_costs_no_work_and_bounds_every_wait(void **state)
{
    (void)state;
    const double part[] = {0.5, 0.8, 1.0, 1.2};
    double capacity = closed_loop_capacity();
    for (enum client_mix mix = ALL_NEW; mix <= CLIENTS_36; mix++)
        for (size_t k = 0; k < ARRAY_LEN(part); k++) {
            static struct load l;
            l = (struct load){0};
            poisson(&l, part[k] * capacity, mix, 100 * k);
            double could = l.offered_tokens < capacity * RUN_S ? l.offered_tokens : capacity * RUN_S;
            assert_true(l.q->finished_tokens >= 0.95 * could);
            assert_int_equal(l.q->n_expired, 0);
            if (k == 0)
                assert_int_equal(l.q->n_refused, 0);
            if (part[k] > 1) {
                assert_true(l.q->n_refused > 0);
                if (mix != CLIENTS_36) /* there a client that sends more waits longer, behind itself */
                    assert_true(l.q->longest_wait_s <= 1.1 * QUEUE / l.departures_per_s);
            }
            queue_sim_destroy(l.q);
        }
}

/* --- fairness ------------------------------------------------------------------------------------------------------------------ */

static void a_flooding_client_leaves_the_others_their_fair_service(void **state)
{
    (void)state;
    for (uint32_t n_slots = 1; n_slots <= 16; n_slots *= 2)
        for (uint64_t seed = 1; seed <= 3; seed++)
            assert_true(queue_sim_flood(n_slots, seed) <= 0);
}

/* It waits until a slot is free; with one slot also for one request of the flood, if its own last one was the larger. */
static void beside_a_flood_a_single_request_waits_for_a_slot_only(void **state)
{
    (void)state;
    const double largest_s = 600.0 / 2000 + 80.0 / 50;
    for (uint32_t n_slots = 1; n_slots <= 16; n_slots *= 4) {
        struct queue_sim_options o = server(n_slots, 200);
        struct queue_sim *q = queue_sim_create(&o);
        const uint32_t keep[] = {100};
        uint64_t n = 0, m = 0;
        while (q->now_ns < 600 * NS_PER_S) {
            queue_sim_keep(q, keep, 1, 5, &n);
            if (q->n_here[1] == 0 && unit(6, m++) < 0.01) { /* it asks, reads the answer, thinks */
                struct queue_sim_request r = queue_sim_draw(1, 7, m);
                assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
            }
            queue_sim_step(q);
        }
        assert_true(q->longest_wait_of[1] > 0);
        assert_true(q->longest_wait_of[1] <= (n_slots == 1 ? 2 : 1) * largest_s + 0.05);
        queue_sim_destroy(q);
    }
}

/* Five clients that always have something waiting, of very different sizes: what two of them get in any interval differs by at
 * most twice the largest request per slot (VTC, theorem 4.4: 2 * max(largest prompt, tokens in one batch)). */
static void what_two_backlogged_clients_get_differs_by_a_bounded_amount(void **state)
{
    (void)state;
    enum { CLIENTS = 5 };
    for (uint32_t n_slots = 1; n_slots <= 16; n_slots *= 4) {
        struct queue_sim_options o = server(n_slots, 200);
        struct queue_sim *q = queue_sim_create(&o);
        double least[CLIENTS][CLIENTS] = {{0}}, most[CLIENTS][CLIENTS] = {{0}};
        uint64_t n = 0;
        while (q->now_ns < 900 * NS_PER_S) {
            for (uint64_t c = 0; c < CLIENTS; c++)
                while (q->n_waiting[c] < 1 + 10 * c) {
                    struct queue_sim_request r = queue_sim_draw(c, 9, n++);
                    r.n_prompt = c == 4 ? 600 : 1 + r.n_prompt / (1u << (2 * c));
                    assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
                }
            queue_sim_step(q);
            for (int f = 0; f < CLIENTS; f++)
                for (int g = 0; g < f; g++) {
                    double d = q->served[f] - q->served[g];
                    least[f][g] = d < least[f][g] ? d : least[f][g];
                    most[f][g] = d > most[f][g] ? d : most[f][g];
                }
        }
        for (int f = 0; f < CLIENTS; f++)
            for (int g = 0; g < f; g++)
                assert_true(most[f][g] - least[f][g] <= 2.0 * QUEUE_SIM_LARGEST * n_slots);
        queue_sim_destroy(q);
    }
}

/* Clients 0 and 1 always have something waiting; client 2 comes with as much, leaves when it has got some, and comes back.
 * Returns by how much it got more than client 1. */
static double gain_by_leaving(double stay_tokens, double away_s, uint32_t n_slots)
{
    struct queue_sim_options o = server(n_slots, 200);
    struct queue_sim *q = queue_sim_create(&o);
    int64_t back_ns = 0;
    double before = 0;
    uint64_t n = 0;
    while (q->now_ns < 1200 * NS_PER_S) {
        const uint32_t keep[] = {20, 20, q->now_ns >= back_ns ? 1 : 0};
        queue_sim_keep(q, keep, 3, 13, &n);
        queue_sim_step(q);
        if (q->granted[2] - before >= stay_tokens) {
            before = q->granted[2];
            back_ns = q->now_ns + (int64_t)(away_s * 1e9);
        }
    }
    double gain = q->granted[2] - q->granted[1];
    assert_true(q->granted[2] > 0);
    queue_sim_destroy(q);
    return gain;
}

static void leaving_and_coming_back_wins_nothing(void **state)
{
    (void)state;
    const double away_s[] = {0.02, 0.2, 1, 5, 50}, stay[] = {1, 3000};
    for (uint32_t n_slots = 1; n_slots <= 16; n_slots *= 4)
        for (size_t k = 0; k < ARRAY_LEN(away_s); k++)
            for (size_t m = 0; m < ARRAY_LEN(stay); m++)
                assert_true(gain_by_leaving(stay[m], away_s[k], n_slots) <= QUEUE_SIM_LARGEST);
}

static void batch_work_is_never_starved_and_never_in_the_way(void **state)
{
    (void)state;
    struct queue_sim_options o = server(4, 200);
    struct queue_sim *q = queue_sim_create(&o);
    const uint32_t keep[] = {20, 20, 20};
    uint64_t n = 0;
    while (q->now_ns < 1800 * NS_PER_S) {
        queue_sim_keep(q, keep, 3, 21, &n);
        while (q->n_waiting[3] < 10) {
            struct queue_sim_request r = queue_sim_draw(3, 22, n++);
            r.batch = 1;
            assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
        }
        queue_sim_step(q);
    }
    double share = q->served_class[1] / (q->served_class[0] + q->served_class[1]);
    assert_true(fabs(share - 1.0 / 9) < 0.01);
    queue_sim_destroy(q);

    q = queue_sim_create(&o); /* now interactive work only now and then: batch fills the rest, and is not in its way */
    for (n = 0; q->now_ns < 1800 * NS_PER_S; queue_sim_step(q)) {
        struct queue_sim_request r = queue_sim_draw(3, 23, n++);
        r.batch = 1;
        while (q->n_waiting[3] < 10)
            assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
        r = queue_sim_draw(n % 3, 24, n);
        if (q->n_here[0] + q->n_here[1] + q->n_here[2] == 0 && unit(25, n) < 0.05)
            assert_int_equal(queue_sim_submit(q, &r, NULL), STATUS_OK);
    }
    assert_true(q->longest_wait_class[0] <= 600.0 / 2000 + 80.0 / 50 + 0.05); /* one slot's request, never a second */
    queue_sim_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fc_03_who_returns_after_retry_after_is_accepted),
        cmocka_unit_test(fc_03_before_anything_ended_the_time_is_not_too_short),
        cmocka_unit_test(several_refused_at_once_are_told_a_departure_each),
        cmocka_unit_test(fc_08_an_open_loop_overload_costs_no_work_and_bounds_every_wait),
        cmocka_unit_test(a_flooding_client_leaves_the_others_their_fair_service),
        cmocka_unit_test(beside_a_flood_a_single_request_waits_for_a_slot_only),
        cmocka_unit_test(what_two_backlogged_clients_get_differs_by_a_bounded_amount),
        cmocka_unit_test(leaving_and_coming_back_wins_nothing),
        cmocka_unit_test(batch_work_is_never_starved_and_never_in_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
