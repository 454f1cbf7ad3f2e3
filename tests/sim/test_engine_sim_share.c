/* Decode share and stalls on the whole engine: FC-09 to FC-14 of failure-cases.md in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/check.h"
#include "tests/sim/engine_sim.h"

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define DEFAULTS "--queue-requests", "32", "--decode-share", "0.5", "--max-stall-ms", "200"

enum { STALL_MS = 200 };

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

static struct engine_sim *open_with(uint32_t n_stages, uint32_t n_slots)
{
    return engine_sim_open(
        &(struct engine_sim_options){.n_stages = n_stages, .n_slots = n_slots, .flags = FLAGS(DEFAULTS), .check_every = 512});
}

static struct sim_call *submit(struct engine_sim *s, const char *client, uint32_t n_prompt, uint32_t n_answer)
{
    struct sim_call *c = sim_call_new(s, client, n_prompt, n_answer);
    sim_call_submit(c);
    return c;
}

static void run_until_ended(struct engine_sim *s, const struct sim_call *c)
{
    for (int64_t end_ns = engine_sim_now_ns(s) + 600 * NS_PER_S; !sim_call_ended(c);) {
        engine_sim_step(s);
        assert_true(engine_sim_now_ns(s) < end_ns);
    }
}

static void leave_all(struct engine_sim *s, struct sim_call **c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sim_call_cancel(c[i]);
    engine_sim_run_out(s, 60 * NS_PER_S);
    engine_sim_assert_quiet(s);
    for (uint32_t i = 0; i < n; i++)
        sim_call_free(c[i]);
    engine_sim_close(s);
}

static double time_alone(uint32_t n_stages, uint32_t n_prompt)
{
    struct engine_sim *s = open_with(n_stages, 4);
    struct sim_call *c = submit(s, "reader", n_prompt, 1);
    run_until_ended(s, c);
    assert_int_equal(c->finish, FINISH_LENGTH);
    double took_s = seconds(c->first_ns - c->submitted_ns);
    leave_all(s, &c, 1);
    return took_s;
}

/* FC-10 */
static void a_stream_keeps_its_share_beside_a_long_prompt_at_1_2_4_and_8_stages(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 8; stages *= 2) {
        struct engine_sim *s = open_with(stages, 4);
        struct sim_call *c[2] = {submit(s, "stream", 100, 8000)};
        engine_sim_run(s, engine_sim_now_ns(s) + 2 * NS_PER_S);
        uint32_t n = c[0]->n_ids;
        engine_sim_run(s, engine_sim_now_ns(s) + 2 * NS_PER_S);
        double before = (c[0]->n_ids - n) / 2.0;
        n = c[0]->n_ids;
        c[1] = submit(s, "reader", 16000, 1);
        run_until_ended(s, c[1]);
        assert_false(sim_call_ended(c[0]));
        double took_s = seconds(c[1]->first_ns - c[1]->submitted_ns), during = (c[0]->n_ids - n) / took_s;
        double alone_s = time_alone(stages, 16000);
        print_message("%u stages: %.1f tokens/s before, %.1f during, longest gap %.1f ms, read in %.2f s, alone %.2f s\n", stages,
                      before, during, seconds(c[0]->longest_gap_ns) * 1e3, took_s, alone_s);
        assert_true(during >= 0.5 * before);
        assert_true(c[0]->longest_gap_ns <= STALL_MS * NS_PER_MS);
        assert_true(took_s <= 2.2 * alone_s);
        leave_all(s, c, 2);
    }
}

/* FC-09 */
static void no_stream_stands_still_beside_long_prompts_at_any_share(void **state)
{
    (void)state;
    static const char *const shares[] = {"0", "0.5", "0.9"};
    for (uint32_t stages = 1; stages <= 4; stages *= 2)
        for (uint32_t i = 0; i < ARRAY_LEN(shares); i++) {
            struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
                .n_stages = stages, .flags = FLAGS("--decode-share", shares[i], "--max-stall-ms", "200"), .check_every = 512});
            struct sim_call *c[3] = {submit(s, "a", 6400, 1500), submit(s, "b", 21500, 20), submit(s, "c", 8200, 20)};
            engine_sim_run_out(s, 1000 * NS_PER_S);
            print_message("%u stages, share %s: longest gaps %.1f %.1f %.1f ms, first ids after %.1f %.1f %.1f s\n", stages,
                          shares[i], seconds(c[0]->longest_gap_ns) * 1e3, seconds(c[1]->longest_gap_ns) * 1e3,
                          seconds(c[2]->longest_gap_ns) * 1e3, seconds(c[0]->first_ns - c[0]->submitted_ns),
                          seconds(c[1]->first_ns - c[1]->submitted_ns), seconds(c[2]->first_ns - c[2]->submitted_ns));
            for (int k = 0; k < 3; k++) {
                assert_int_equal(c[k]->finish, FINISH_LENGTH);
                assert_true(c[k]->longest_gap_ns <= STALL_MS * NS_PER_MS);
            }
            leave_all(s, c, 3);
        }
}

/* FC-11 */
static void a_short_question_waits_little_for_a_long_read(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        double alone_s = time_alone(stages, 30000);
        struct engine_sim *s = open_with(stages, 4);
        struct sim_call *c[2] = {submit(s, "reader", 30000, 1)};
        engine_sim_run(s, engine_sim_now_ns(s) + NS_PER_S);
        c[1] = submit(s, "asks", 8, 20);
        run_until_ended(s, c[0]);
        run_until_ended(s, c[1]);
        double first_s = seconds(c[1]->first_ns - c[1]->submitted_ns), took_s = seconds(c[0]->first_ns - c[0]->submitted_ns);
        print_message("%u stages: first id after %.3f s; the read took %.2f s, alone %.2f s\n", stages, first_s, took_s, alone_s);
        assert_true(first_s <= 0.8);
        assert_true(took_s <= 1.1 * alone_s);
        leave_all(s, c, 2);
    }
}

/* --- FC-12 ---------------------------------------------------------------------------------------------------------------------- */

static void free_call(struct sim_call *c)
{
    sim_call_free(c);
}

static void send_short(struct engine_sim *s, void *ctx)
{
    const struct sim_call *reader = ctx;
    if (sim_call_ended(reader))
        return;
    struct sim_call *c = submit(s, "others", 200, 8);
    c->on_end = free_call;
    engine_sim_at(s, engine_sim_now_ns(s) + 100 * NS_PER_MS, send_short, ctx);
}

static void a_long_read_goes_on_beside_a_flood_of_short_ones(void **state)
{
    (void)state;
    struct engine_sim *s = open_with(2, 4);
    struct sim_call *c = submit(s, "reader", 30000, 1);
    int64_t advanced_ns = c->submitted_ns, longest_ns = 0;
    engine_sim_at(s, engine_sim_now_ns(s) + 100 * NS_PER_MS, send_short, c);
    for (uint32_t read = 0; !sim_call_ended(c);) {
        engine_sim_step(s);
        int64_t now_ns = engine_sim_now_ns(s);
        if (now_ns - advanced_ns > longest_ns)
            longest_ns = now_ns - advanced_ns;
        if (c->request->n_read > read)
            advanced_ns = now_ns;
        read = c->request->n_read;
        assert_true(longest_ns <= 2 * NS_PER_S);
    }
    double took_s = seconds(c->first_ns - c->submitted_ns);
    print_message("30,000 tokens in %.1f s beside %llu short requests; it stood still for at most %.2f s\n", took_s,
                  (unsigned long long)engine_sim_counts(s).done - 1, seconds(longest_ns));
    assert_true(took_s <= 75);
    assert_true(engine_sim_counts(s).done > 200);
    leave_all(s, &c, 1);
}

/* --- FC-13 ---------------------------------------------------------------------------------------------------------------------- */

static double rate_alone(void)
{
    struct engine_sim *s = open_with(2, 8);
    struct sim_call *c = submit(s, "a", 50, 4000);
    engine_sim_run(s, engine_sim_now_ns(s) + 4 * NS_PER_S);
    uint32_t n = c->n_ids;
    engine_sim_run(s, engine_sim_now_ns(s) + 5 * NS_PER_S);
    double rate = (c->n_ids - n) / 5.0;
    leave_all(s, &c, 1);
    return rate;
}

/* Streams number `one` and `two` of eight stay, the others leave. */
static double rate_of_two(uint32_t one, uint32_t two)
{
    enum { N = 8 };
    struct engine_sim *s = engine_sim_open(&(struct engine_sim_options){
        .n_slots = N, .flags = FLAGS(DEFAULTS), .check_every = 512, .seed = 1 + one * N + two});
    struct sim_call *c[N];
    int64_t start_ns = engine_sim_now_ns(s);
    for (uint32_t i = 0; i < N; i++) {
        c[i] = submit(s, "a", 20 + (uint32_t)(engine_sim_draw(s) % 100), 4000);
        if (i != one && i != two)
            sim_call_leave_at(c[i], start_ns + NS_PER_S + (int64_t)(engine_sim_unit(s) * 3e9));
        engine_sim_run(s, engine_sim_now_ns(s) + (int64_t)(engine_sim_unit(s) * 50e6));
    }
    engine_sim_run(s, start_ns + 5 * NS_PER_S);
    uint32_t n = c[one]->n_ids + c[two]->n_ids;
    engine_sim_run(s, engine_sim_now_ns(s) + 5 * NS_PER_S);
    assert_false(sim_call_ended(c[one]) || sim_call_ended(c[two]));
    double rate = (c[one]->n_ids + c[two]->n_ids - n) / 5.0;
    leave_all(s, c, N);
    return rate;
}

static void two_streams_use_both_stages_in_whatever_order_they_came(void **state)
{
    (void)state;
    double one = rate_alone(), worst = 1e9;
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t k = i + 1; k < 8; k++) {
            double two = rate_of_two(i, k);
            worst = two < worst ? two : worst;
        }
    print_message("one stream alone %.1f tokens/s, two together at least %.1f\n", one, worst);
    assert_true(worst >= 1.8 * one);
}

/* FC-14 */
static void the_pieces_of_a_lone_prompt_fill_all_stages(void **state)
{
    (void)state;
    double took_s = time_alone(4, 16000);
    print_message("16,000 tokens on 4 stages in %.2f s, a stage needs 4 s for them\n", took_s);
    assert_true(took_s <= 1.3 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_keeps_its_share_beside_a_long_prompt_at_1_2_4_and_8_stages),
        cmocka_unit_test(no_stream_stands_still_beside_long_prompts_at_any_share),
        cmocka_unit_test(a_short_question_waits_little_for_a_long_read),
        cmocka_unit_test(a_long_read_goes_on_beside_a_flood_of_short_ones),
        cmocka_unit_test(two_streams_use_both_stages_in_whatever_order_they_came),
        cmocka_unit_test(the_pieces_of_a_lone_prompt_fill_all_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
