/* The compute threads: every thread runs, barriers hold, sleeping and waking work. Run it under ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "kernels/team.h"

enum { MAX_THREADS = 5, ROUNDS = 300 };

struct shared {
    struct team *team;
    int plain[MAX_THREADS]; /* no atomics: the barrier alone orders them */
    int wrong, n_threads;
    long pause_us;
};

static struct team *make(int n)
{
    struct team *t;
    struct error err;
    assert_int_equal(team_create(n, NULL, &t, &err), STATUS_OK);
    assert_int_equal(team_size(t), n);
    return t;
}

static void count(void *arg, int thread, int n_threads)
{
    struct shared *s = arg;
    s->plain[thread]++;
    if (thread == 0)
        s->n_threads = n_threads;
}

static void every_thread_runs_once_per_run(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++) {
        struct shared s = {.team = make(n)};
        for (int i = 1; i <= ROUNDS; i++) {
            team_run(s.team, count, &s);
            for (int t = 0; t < n; t++)
                assert_int_equal(s.plain[t], i);
        }
        assert_int_equal(s.n_threads, n);
        team_destroy(s.team);
    }
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Each thread writes its word; after the barrier reads its neighbour's; a second barrier before the next write. */
static void ring(void *arg, int thread, int n_threads)
{
    struct shared *s = arg;
    for (int i = 1; i <= ROUNDS; i++) {
        if (s->pause_us && i % 50 == thread)
            sleep_us(s->pause_us);
        s->plain[thread] = i;
        team_barrier(s->team, thread);
        if (s->plain[(thread + 1) % n_threads] != i)
            s->wrong = 1;
        team_barrier(s->team, thread);
    }
}

static void barriers_order_what_is_before_and_after(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_THREADS; n++) {
        struct shared s = {.team = make(n)};
        team_run(s.team, ring, &s);
        team_run(s.team, ring, &s);
        assert_int_equal(s.wrong, 0);
        team_destroy(s.team);
    }
}

static void waiters_that_sleep_are_woken(void **state)
{
    (void)state;
    struct shared s = {.team = make(3), .pause_us = 500};
    team_run(s.team, ring, &s);
    sleep_us(2000); /* the workers sleep between runs */
    team_run(s.team, ring, &s);
    assert_int_equal(s.wrong, 0);
    team_destroy(s.team);
}

static void idle_workers_use_no_cpu(void **state)
{
    (void)state;
    struct shared s = {.team = make(4)};
    struct timespec a, b;
    team_run(s.team, count, &s);
    sleep_us(5000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    sleep_us(100000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    int64_t used = (b.tv_sec - a.tv_sec) * NS_PER_S + b.tv_nsec - a.tv_nsec;
    assert_true(used < 5 * NS_PER_MS);
    team_destroy(s.team);
}

static void teams_that_never_ran_can_be_destroyed(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++)
        team_destroy(make(1 + i % MAX_THREADS));
    team_destroy(NULL);
}

static void a_core_that_is_not_there_is_refused(void **state)
{
    int cores[2] = {0, 1 << 20};
    struct team *t = NULL;
    struct error err;
    (void)state;
    assert_int_equal(team_create(2, cores, &t, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "core"));
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_per_run),
        cmocka_unit_test(barriers_order_what_is_before_and_after),
        cmocka_unit_test(waiters_that_sleep_are_woken),
        cmocka_unit_test(idle_workers_use_no_cpu),
        cmocka_unit_test(teams_that_never_ran_can_be_destroyed),
        cmocka_unit_test(a_core_that_is_not_there_is_refused),
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
