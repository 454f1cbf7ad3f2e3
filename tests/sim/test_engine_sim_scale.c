/* Many stages, many streams: the engine keeps the slowest stage busy while work waits, and is quick enough to be run so. The
 * size of the issue (64 stages, 4,096 streams, 100,000 requests) with the argument "full". */
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

enum { N_PROMPT = 200, N_ANSWER = 20 };

struct scale {
    uint32_t n_stages, n_slots, n_requests;
};

static struct scale size = {.n_stages = 16, .n_slots = 256, .n_requests = 5000};

/* Clients of a closed loop, an eighth more than there are slots, so that work waits until the last ones have come. */
struct crowd {
    struct engine_sim *s;
    uint32_t n_made, n_ended, n_total;
    int64_t full_ns, full_busy_ns;   /* the pipeline was filled: from here on it is measured */
    int64_t empty_ns, empty_busy_ns; /* the last one that waited was begun */
};

static int64_t busiest_ns(const struct engine_sim *s)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < size.n_stages; i++)
        most = engine_sim_busy_ns(s, i) > most ? engine_sim_busy_ns(s, i) : most;
    return most;
}

static void submit_next(struct crowd *w, const char *client);

static void on_end(struct sim_call *c)
{
    struct crowd *w = c->ctx;
    char client[32];
    memcpy(client, c->client, sizeof client);
    assert_int_equal(c->finish, FINISH_LENGTH);
    if (++w->n_ended == size.n_slots) {
        w->full_ns = engine_sim_now_ns(w->s);
        w->full_busy_ns = busiest_ns(w->s);
    }
    sim_call_free(c);
    submit_next(w, client);
}

static void submit_next(struct crowd *w, const char *client)
{
    if (w->n_made == w->n_total)
        return;
    struct sim_call *c = sim_call_new(w->s, client, N_PROMPT, N_ANSWER);
    c->on_end = on_end;
    c->ctx = w;
    sim_call_submit(c);
    if (++w->n_made == w->n_total) {
        w->empty_ns = engine_sim_now_ns(w->s);
        w->empty_busy_ns = busiest_ns(w->s);
    }
}

/* A tenth of the usual costs: the engine looks after itself every few milliseconds whatever ticks take, and virtual time is what
 * that costs in real time. With 64 stages of 10 ms ticks no stall of 250 ms can be kept: the bounds are wide here. */
static void the_bottleneck_stays_busy_while_work_waits(void **state)
{
    (void)state;
    struct crowd w = {.n_total = size.n_requests};
    w.s = engine_sim_open(&(struct engine_sim_options){
        .n_stages = size.n_stages, .n_slots = size.n_slots, .tick_us = 400, .row_us = 10, .token_us = 25, .check_every = 4096,
        .flags = FLAGS("--context", "256", "--decode-share", "0.1", "--max-stall-ms", "1000")});
    int64_t start_ns = engine_sim_now_ns(w.s), real_ns = clock_now_ns();
    for (uint32_t i = 0; i < size.n_slots + size.n_slots / 8; i++) {
        char client[32];
        snprintf(client, sizeof client, "client-%u", i);
        submit_next(&w, client);
    }
    engine_sim_run_out(w.s, 100000 * NS_PER_S);
    double virtual_s = (double)(engine_sim_now_ns(w.s) - start_ns) / 1e9;
    double busy = (double)(w.empty_busy_ns - w.full_busy_ns) / (double)(w.empty_ns - w.full_ns);
    struct engine_sim_counts n = engine_sim_counts(w.s);
    print_message("%u stages, %u streams, %u requests: %.0f s of service in %.1f s, %llu ticks, %llu steps, busiest stage %.1f %%, "
                  "%.1f requests/s\n",
                  size.n_stages, size.n_slots, size.n_requests, virtual_s, (double)(clock_now_ns() - real_ns) / 1e9,
                  (unsigned long long)n.ticks, (unsigned long long)n.steps, 100 * busy, size.n_requests / virtual_s);
    assert_int_equal(n.done, size.n_requests);
    assert_true(busy >= 0.95);
    engine_sim_assert_quiet(w.s);
    engine_sim_close(w.s);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "full") == 0)
        size = (struct scale){.n_stages = 64, .n_slots = 4096, .n_requests = 100000};
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bottleneck_stays_busy_while_work_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
