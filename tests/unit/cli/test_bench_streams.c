/* sluice bench's client with few and with thousands of streams, against a server whose token times are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <curl/curl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "common/base/clock.h"
#include "deploy/cli/bench.h"
#include "tests/unit/cli/stream_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLACK = 5 };
#else
enum { SLACK = 1 };
#endif

struct bed {
    struct stream_server *server;
    struct bench_options o;
    struct plan plan;
    struct load_result r;
    char url[64];
    double cpu_s; /* of the client alone: it is this thread */
};

static double thread_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / NS_PER_S;
}

static void run(struct bed *b, const struct stream_server_script *script)
{
    uint16_t port = 0;
    struct error err = {0};
    assert_non_null(b->server = stream_server_start(script, &port));
    snprintf(b->url, sizeof b->url, "http://127.0.0.1:%u", port);
    b->o.http.url = b->url;
    b->o.timeout_s = 100;
    b->o.prompt_tokens = b->o.max_tokens = (struct length){LENGTH_FIXED, 10, 10};
    assert_int_equal(plan_init(&b->plan, &b->o.plan, &err), STATUS_OK);
    b->cpu_s = thread_cpu_s();
    if (load_run(&b->o, &b->plan, &b->r, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    b->cpu_s = thread_cpu_s() - b->cpu_s;
    plan_fini(&b->plan);
}

static void all_were_answered(struct bed *b, uint64_t n, const struct stream_server_script *script)
{
    if (b->r.failures.n)
        fail_msg("%s: %s", b->r.failures.v[0].kind, b->r.failures.v[0].example);
    assert_int_equal(stream_server_stop(b->server), n);
    assert_int_equal(b->r.n_sent, n);
    assert_int_equal(b->r.n_done, n);
    assert_int_equal(b->r.n_cut, 0);
    assert_int_equal(b->r.ttft.n, n);
    assert_int_equal(b->r.n_events, n * script->n_tokens);
    assert_int_equal(b->r.itl.n, n * (script->n_tokens - 1));
    assert_int_equal(b->r.output_tokens, n * script->n_tokens);
    assert_int_equal(b->r.prompt_tokens, n * 7);
    assert_int_equal(b->r.cached_tokens, n * 3);
}

static void figures_are_those_of_the_servers_clock(void **state)
{
    (void)state;
    const struct stream_server_script script = {.n_tokens = 20, .first_ms = 150, .step_ms = 25};
    struct bed b = {.o = {.concurrency = 4, .n_requests = 8, .slo = {.ttft_ms = 149}}};
    run(&b, &script);
    struct summary ttft = samples_summary(&b.r.ttft), itl = samples_summary(&b.r.itl), tpot = samples_summary(&b.r.tpot),
                   e2e = samples_summary(&b.r.e2e);
    all_were_answered(&b, 8, &script);
    assert_int_equal(b.r.n_met, 0); /* no first token comes within 149 ms */
    assert_true(ttft.min >= 149 && ttft.median < 150 + 30 * SLACK);
    assert_true(itl.median > 25 - 3 * SLACK && itl.median < 25 + 3 * SLACK);
    assert_true(itl.mean > 24 && itl.mean < 25 + 1 * SLACK);
    assert_true(tpot.min > 25 - 3 * SLACK && tpot.median < 25 + 3 * SLACK);
    assert_true(e2e.min >= 150 + 19 * 25 - 2 && e2e.median < 150 + 19 * 25 + 40 * SLACK);
    assert_true(b.r.seconds > 2 * 0.62 && b.r.most_running == 4);
    load_result_fini(&b.r);
}

static void an_open_loop_sends_on_time_whatever_the_server_does(void **state)
{
    (void)state;
    const struct stream_server_script script = {.n_tokens = 2, .first_ms = 1500, .step_ms = 5};
    struct bed b = {.o = {.rate = 200, .n_requests = 200, .plan.seed = 4}};
    run(&b, &script);
    struct summary late = samples_summary(&b.r.late);
    all_were_answered(&b, 200, &script);
    assert_int_equal(late.n, 200);
    assert_true(late.median < 2 * SLACK);
    assert_true(b.r.most_running > 150); /* nobody waited for the first answer, which comes after 1.5 s */
    assert_true(b.r.seconds < 1.0 * 1.4 + 1.5 + 1.0 * SLACK);
    load_result_fini(&b.r);
}

static void a_duration_ends_a_closed_loop(void **state)
{
    (void)state;
    const struct stream_server_script script = {.n_tokens = 5, .first_ms = 20, .step_ms = 5};
    struct bed b = {.o = {.concurrency = 10, .duration_s = 0.5}};
    run(&b, &script);
    all_were_answered(&b, b.r.n_sent, &script);
    assert_true(b.r.n_sent >= 50 && b.r.seconds >= 0.5 && b.r.seconds < 0.5 + 0.3 * SLACK);
    load_result_fini(&b.r);
}

static void two_thousand_streams_run_at_the_same_time(void **state)
{
    (void)state;
    enum { N = 2000 };
    const struct stream_server_script script = {.n_tokens = 21, .first_ms = 1000, .step_ms = 250};
    struct bed b = {.o = {.concurrency = N, .n_requests = N}};
    run(&b, &script);
    struct summary itl = samples_summary(&b.r.itl);
    all_were_answered(&b, N, &script);
    double us = b.cpu_s * 1e6 / (double)b.r.n_events;
    print_message("%u streams, %llu events in %.2f s: client %.2f s CPU, %.1f us an event; ITL median %.1f p99 %.1f ms\n", N,
                  (unsigned long long)b.r.n_events, b.r.seconds, b.cpu_s, us, itl.median, itl.p99);
    assert_int_equal(b.r.most_running, N);
    assert_true(itl.mean > 230 && itl.mean < 250 * 1.5 * SLACK);
    assert_true(us < 200 * SLACK);
    load_result_fini(&b.r);
}

int main(void)
{
    struct rlimit r;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_max < 5000) {
        puts("skip: 2,000 streams need 5,000 file descriptors");
        return 77;
    }
    r.rlim_cur = r.rlim_max < 8192 ? r.rlim_max : 8192; /* both ends are in this process */
    setrlimit(RLIMIT_NOFILE, &r);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_servers_clock),
        cmocka_unit_test(an_open_loop_sends_on_time_whatever_the_server_does),
        cmocka_unit_test(a_duration_ends_a_closed_loop),
        cmocka_unit_test(two_thousand_streams_run_at_the_same_time),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    curl_global_cleanup();
    return failed;
}
