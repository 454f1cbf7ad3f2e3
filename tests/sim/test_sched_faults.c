/* What disturbs the planner: cancelling, parking, a new epoch, at every event of a small scene; hosts that are late, limits that
 * rise, runs of which not every row counts. That each row is planned once, in order, is checked by the simulation itself. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "tests/sim/share.h"

enum { N_MIX = 6 };

/* One of each kind. */
static const struct sim_request MIX[N_MIX] = {
    {.n_prompt = 300, .n_answer = 12},
    {.n_prompt = 150, .n_answer = 10, .needs_host = 1},
    {.arrives_us = 5e3, .n_prompt = 200, .n_answer = 15, .run_rows = 4},
    {.arrives_us = 9e3, .n_prompt = 260, .n_answer = 8, .n_cached = 128, .cut = 48},
    {.arrives_us = 9e3, .n_prompt = 90, .n_answer = 6, .waits_us = 60e3},
    {.arrives_us = 30e3, .n_prompt = 1, .n_answer = 9},
};

static struct sim_options small_scene(uint32_t n_stages)
{
    struct sim_options o = pipeline_of(n_stages, 0.5);
    o.sched.n_slots = 4;
    o.sched.max_rows = 96;
    o.host_us = 4e3;
    return o;
}

static void check_all_came(const struct sim_result *out, const struct sim_request *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct sim_tokens *t = &out->tokens[i];
        if (!t->cancelled && t->n != r[i].n_answer)
            fail_msg("request %u: %u tokens of %u", i, t->n, r[i].n_answer);
        for (uint32_t k = 1; k < t->n; k++)
            assert_true(t->at_us[k] >= t->at_us[k - 1]);
    }
}

static void every_kind_of_request_is_served(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = small_scene(n_stages);
        struct sim_result out;
        sim_run(&o, MIX, N_MIX, &out);
        check_all_came(&out, MIX, N_MIX);
        sim_result_fini(&out);
    }
}

static void check_blow(uint32_t n_stages, enum sim_blow blow, uint32_t request)
{
    struct sim_options o = small_scene(n_stages);
    struct sim_result out;
    o.blow = blow;
    o.blow_request = request;
    uint32_t n_events = 1;
    for (o.blow_event = 1; o.blow_event <= n_events; o.blow_event++) {
        sim_run(&o, MIX, N_MIX, &out);
        check_all_came(&out, MIX, N_MIX);
        n_events = out.n_events; /* of the undisturbed part at least: the last ones come too late to matter */
        assert_true(out.tokens[request].n == MIX[request].n_answer || blow == SIM_CANCEL);
        sim_result_fini(&out);
    }
    assert_true(n_events > 20);
}

static void a_request_that_is_cancelled_at_any_event_leaves_the_others_alone(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++)
        for (uint32_t request = 0; request < N_MIX; request++)
            check_blow(n_stages, SIM_CANCEL, request);
}

static void a_request_that_is_parked_at_any_event_goes_on_where_it_was(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++)
        for (uint32_t request = 0; request < N_MIX; request++)
            check_blow(n_stages, SIM_PARK, request);
}

static void a_new_epoch_at_any_event_loses_no_token(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++)
        check_blow(n_stages, SIM_EPOCH, 0);
}

static void clients_that_come_and_leave_at_random_disturb_nobody(void **state)
{
    (void)state;
    enum { N = 300 };
    static struct sim_request r[N];
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct sim_options o = small_scene(1 + (uint32_t)seed);
        struct sim_result out;
        o.sched.n_slots = 12;
        o.learn = 1;
        o.noise_low = 0.7, o.noise_high = 1.3;
        for (uint32_t i = 0; i < N; i++) {
            uint64_t x = rand_at(seed, i);
            r[i] = MIX[x % N_MIX];
            r[i].arrives_us = 4e3 * i;
            r[i].waits_us = r[i].waits_us > 0 ? r[i].arrives_us + 50e3 : 0;
            r[i].n_answer = 1 + (x >> 20) % 30;
            r[i].leaves_us = (x >> 30) % 3 == 0 ? r[i].arrives_us + (double)((x >> 40) % 400) * 1e3 : 0;
        }
        sim_run(&o, r, N, &out);
        check_all_came(&out, r, N);
        sim_result_fini(&out);
    }
}

/* --- the host --------------------------------------------------------------------------------------------------------------- */

static void streams_that_wait_for_the_host_neither_stop_prompts_nor_the_others(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages *= 2)
        for (uint32_t n_host = 1; n_host <= 3; n_host++) {
            struct sim_options o = pipeline_of(n_stages, 0.5);
            struct sim_result out, alone;
            struct sim_request r[5];
            o.host_us = 30e3; /* three periods and more */
            for (uint32_t i = 0; i < 3; i++)
                r[i] = (struct sim_request){.n_prompt = 32, .n_answer = 250, .needs_host = i < n_host};
            r[3] = (struct sim_request){.arrives_us = 1e6, .n_prompt = 6000, .n_answer = 1};
            r[4] = (struct sim_request){.arrives_us = 1e6, .n_prompt = 6000, .n_answer = 1};
            o.until_us = 30e6;
            sim_run(&o, r, 3, &alone);
            sim_run(&o, r, 5, &out);
            assert_int_equal(out.tokens[3].n + out.tokens[4].n, 2);
            double read = fmax(out.tokens[3].at_us[0], out.tokens[4].at_us[0]) - 1e6, gap = longest_gap_us(&out, 0, 3);
            double least = 12000 * 300.0 / n_stages;
            /* a stall bounds what ticks add; the host's own time comes on top */
            if (read > 4 * least + 1e6 || gap > o.sched.max_stall_us + o.host_us)
                fail_msg("%u stages, %u with a host: read in %.2f s, gap %.0f ms", n_stages, n_host, read / 1e6, gap / 1e3);
            if (n_host < 3) {
                double kept = rate_between(&out.tokens[2], 1e6, 1e6 + read) / rate_between(&alone.tokens[2], 0.5e6, 3e6);
                if (kept < 0.97 * 0.5)
                    fail_msg("%u stages, %u with a host: another stream kept %.3f", n_stages, n_host, kept);
            }
            sim_result_fini(&alone);
            sim_result_fini(&out);
        }
}

/* --- runs of several rows --------------------------------------------------------------------------------------------------- */

static uint32_t n_runs_between(const struct sim_tokens *t, double from_us, double to_us)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i < t->n; i++)
        n += t->at_us[i] > t->at_us[i - 1] && t->at_us[i] > from_us && t->at_us[i] <= to_us;
    return n;
}

static void random_acceptance_keeps_the_bounds_per_run(void **state)
{
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++) {
        struct sim_options o = pipeline_of(n_stages, 0.5);
        struct sim_result out, alone;
        struct sim_request r[N_STREAMS + 4];
        uint32_t n = streams_and_prompts(r, 4, 10000);
        for (uint32_t i = 0; i < N_STREAMS; i++) {
            r[i].run_rows = 2 + i;
            r[i].n_answer = 4000;
        }
        o.until_us = 4e6;
        sim_run(&o, r, N_STREAMS, &alone);
        sim_run(&o, r, n, &out);
        for (uint32_t i = 0; i < N_STREAMS; i++) {
            double kept = (double)n_runs_between(&out.tokens[i], 0.4e6, 4e6) / n_runs_between(&alone.tokens[i], 0.4e6, 4e6);
            /* before the last prompt ends; streams that got on less have read less, and their rounds are shorter */
            if (kept < 0.9 * 0.5)
                fail_msg("%u stages, stream %u: kept %.3f of its runs", n_stages, i, kept);
        }
        assert_true(longest_gap_us(&out, 0, N_STREAMS) <= o.sched.max_stall_us);
        sim_result_fini(&out);
        sim_result_fini(&alone);
    }
}

/* --- anything ---------------------------------------------------------------------------------------------------------------- */

struct draws {
    uint64_t seed, n;
};

static uint64_t draw(struct draws *d)
{
    return rand_at(d->seed, d->n++);
}

static double between(struct draws *d, double least, double most)
{
    return least + (most - least) * (double)(draw(d) % 1000) / 999;
}

/* A pipeline and a crowd that nobody would think of. */
static uint32_t random_scene(uint64_t seed, struct sim_options *o, struct sim_request *r, uint32_t most)
{
    static const double shares[] = {0, 0.25, 0.5, 0.75, 0.9};
    struct draws d = {.seed = seed};
    *o = (struct sim_options){.noise_low = 0.8, .noise_high = 1, .seed = seed, .learn = draw(&d) % 2 != 0};
    uint32_t n_stages = 1 + draw(&d) % 10;
    o->sched.n_stages = n_stages;
    o->sched.n_slots = 1 + draw(&d) % 16;
    o->sched.max_rows = 64u << draw(&d) % 5;
    o->sched.piece_max = draw(&d) % 4 ? 0 : 48;
    o->sched.decode_share = shares[draw(&d) % 5];
    o->sched.max_stall_us = between(&d, 50e3, 500e3);
    o->sched.max_tick_us = between(&d, 5e3, 300e3);
    o->sched.delta_us = between(&d, 0, 2e3);
    o->sched.lambda_us = between(&d, 0, 1e3);
    for (uint32_t i = 0; i < n_stages; i++) {
        double base_us = between(&d, 100, 6000), row_us = between(&d, 10, 300), head_us = draw(&d) % 3 ? 0 : between(&d, 0, 500);
        o->stage[i] = sim_stage(base_us, row_us, head_us, between(&d, 0, 60));
    }
    o->host_us = between(&d, 0, 20e3);
    uint32_t n = 2 + draw(&d) % (most - 2);
    double at_us = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t x = draw(&d);
        at_us += x % 3 ? between(&d, 0, 40e3) : 0;
        r[i] = (struct sim_request){.arrives_us = at_us, .run_rows = (x >> 8) % 6 == 0 ? 2 + (x >> 12) % 4 : 1,
                                    .needs_host = (x >> 16) % 8 == 0, .cut = (x >> 20) % 5 == 0 ? 16 + (x >> 24) % 300 : 0};
        r[i].n_prompt = 1 + draw(&d) % (x % 5 ? 200 : 5000);
        r[i].n_answer = 1 + draw(&d) % 80;
        r[i].leaves_us = (x >> 40) % 6 == 0 ? at_us + between(&d, 0, 2e6) : 0;
    }
    return n;
}

static void random_scenes_end_and_keep_the_stall(void **state)
{
    (void)state;
    enum { MOST = 40 };
    struct sim_request r[MOST];
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct sim_options o;
        struct sim_result out;
        uint32_t n = random_scene(seed, &o, r, MOST);
        sim_run(&o, r, n, &out);
        check_all_came(&out, r, n);
        for (uint32_t i = 0; i < n && out.stall_unmet == 0; i++) {
            double gap = longest_gap_us(&out, i, i + 1) - (r[i].needs_host ? o.host_us + 2 * o.sched.lambda_us : 0);
            /* where costs are learned, one tick of twenty may take more than they say */
            if (gap > o.sched.max_stall_us * (o.learn ? 1.1 : 1))
                fail_msg("seed %d, request %u: a gap of %.1f ms, the stall is %.1f", (int)seed, i, gap / 1e3,
                         o.sched.max_stall_us / 1e3);
        }
        sim_result_fini(&out);
    }
}

/* A busy machine: ticks take up to three times as long, and one in ten has a slice of somebody else's time in it. The guards
 * grow until not even the smallest piece is sure to stay within the stall, and a wide tick's is not a narrow one's. */
static struct sim_options busy_machine(uint64_t seed)
{
    struct sim_options o = pipeline_of(2, 0.5);
    for (int i = 0; i < 2; i++)
        o.stage[i] = sim_stage(9000, 1900, 1500.0 * i, 600);
    o.learn = 1;
    o.seed = seed;
    o.noise_low = 0.8;
    o.noise_high = 3;
    o.spikes = 100;
    o.spike_us = 60e3;
    return o;
}

static void a_prompt_is_read_on_however_much_ticks_scatter(void **state)
{
    (void)state;
    struct sim_request r[4] = {[3] = {.arrives_us = 3e6, .n_prompt = 4000, .n_answer = 1}};
    for (int i = 0; i < 3; i++)
        r[i] = (struct sim_request){.n_prompt = 20, .n_answer = 5000};
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct sim_options o = busy_machine(seed);
        struct sim_result alone, out;
        sim_run(&o, &r[3], 1, &alone);
        double alone_took = alone.tokens[0].at_us[0] - r[3].arrives_us;
        o.until_us = r[3].arrives_us + 4 * alone_took;
        sim_run(&o, r, 4, &out);
        const struct sim_tokens *t = &out.tokens[3];
        if (t->n == 0 || t->at_us[0] - r[3].arrives_us > 2.5 * alone_took || t->piece_wait_us > 3e6)
            fail_msg("seed %d: read in %.1f s (0: not in four times what it takes alone, %.1f), %.1f s without a piece", (int)seed,
                     t->n ? (t->at_us[0] - r[3].arrives_us) / 1e6 : 0.0, alone_took / 1e6, t->piece_wait_us / 1e6);
        sim_result_fini(&out);
        sim_result_fini(&alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_request_is_served),
        cmocka_unit_test(a_request_that_is_cancelled_at_any_event_leaves_the_others_alone),
        cmocka_unit_test(a_request_that_is_parked_at_any_event_goes_on_where_it_was),
        cmocka_unit_test(a_new_epoch_at_any_event_loses_no_token),
        cmocka_unit_test(clients_that_come_and_leave_at_random_disturb_nobody),
        cmocka_unit_test(streams_that_wait_for_the_host_neither_stop_prompts_nor_the_others),
        cmocka_unit_test(random_acceptance_keeps_the_bounds_per_run),
        cmocka_unit_test(random_scenes_end_and_keep_the_stall),
        cmocka_unit_test(a_prompt_is_read_on_however_much_ticks_scatter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
