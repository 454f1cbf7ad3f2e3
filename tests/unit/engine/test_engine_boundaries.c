/* A process ends at every boundary of the protocol in turn: before and after each message, frame and event that passes. Whatever
 * was under way, the answers are the reference's, no id comes twice or is missing, and everything is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/engine/ground.h"

enum { MAX_N = 400, N_ANSWERS = 2, PROMPT = 37, ANSWER = 12, NEAR = 12, STRIDE = 3 };

static const char *const flags[] = {"--slots", "2", "--context", "256", "--piece-max", "16", NULL};

struct cut {
    enum bed_point point;
    uint32_t stage;
    int after, from_start; /* from_start: counted from the first word of a new process */
};

/* Ends so far, and the runs that it took. */
static uint32_t n_ends, n_runs;

/* --- one end ---------------------------------------------------------------------------------------------------------------------- */

static int all_ended(struct answer *a)
{
    for (int i = 0; i < N_ANSWERS; i++)
        if (!bed_ended(answer_newest(&a[i])))
            return 0;
    return 1;
}

static void restart_engine(struct ground *g, struct answer *a)
{
    engine_bed_restart_engine(g->b);
    for (int i = 0; i < N_ANSWERS; i++)
        answer_go_on(&a[i]);
}

/* 0: everything was over before the n-th passage. */
static int end_once(struct ground *g, const struct cut *c, uint32_t n)
{
    struct answer a[N_ANSWERS];
    int of_stage = c->point < BED_ENGINE_SENDS, keep = n % 2;
    char what[64];
    snprintf(what, sizeof what, "point %d of stage %u, n %u, after %d", c->point, c->stage, n, c->after);
    if (c->from_start && of_stage)
        engine_bed_kill_stage(g->b, c->stage);
    if (!c->from_start)
        engine_bed_end_at(g->b, c->point, c->stage, n, c->after);
    for (int i = 0; i < N_ANSWERS; i++)
        answer_ask(g, &a[i], PROMPT, ANSWER);
    if (c->from_start)
        engine_bed_end_at(g->b, c->point, c->stage, n, c->after);
    if (c->from_start && of_stage)
        engine_bed_start_stage(g->b, c->stage);
    else if (c->from_start)
        restart_engine(g, a);
    int64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
    while (!engine_bed_has_ended(g->b) && !all_ended(a)) {
        if (clock_now_ns() > end_ns)
            fail_msg("%s: nothing ends", what);
        usleep(100);
    }
    engine_bed_end_nowhere(g->b);
    int ended = engine_bed_has_ended(g->b);
    if (ended && of_stage)
        ground_restart_stage(g, c->stage, keep);
    else if (ended)
        restart_engine(g, a);
    for (int i = 0; i < N_ANSWERS; i++) {
        bed_wait(answer_newest(&a[i]), WAIT_MS);
        answer_check(&a[i], what);
    }
    engine_bed_wait_ready(g->b);
    engine_bed_assert_quiet(g->b);
    for (int i = 0; i < N_ANSWERS; i++)
        answer_close(&a[i]);
    n_runs++;
    n_ends += ended != 0;
    return ended;
}

/* Each of the first ones, then every third: ticks in the middle are all alike. Where it ends on its way up it is asked twice: on a busy
 * machine the answers may all be there before the engine is started again. */
static void end_at_each(struct ground *g, const struct cut *c, uint32_t limit)
{
    uint32_t n = 1;
    for (int i = 0; i < 10 && !end_once(g, c, n); i++)
        ;
    while (n <= limit && (end_once(g, c, n) || (c->from_start && end_once(g, c, n))))
        n += n < NEAR ? 1 : STRIDE;
    if (n == 1)
        fail_msg("nothing passed point %d of stage %u", c->point, c->stage);
}

/* --- tests ------------------------------------------------------------------------------------------------------------------------ */

static void stages_end_at(uint32_t n_stages, uint32_t stage, int from_start, uint32_t limit)
{
    struct ground g;
    ground_open(&g, n_stages, NULL, flags);
    n_ends = n_runs = 0;
    for (int point = BED_STAGE_SENDS; point <= BED_STAGE_READS; point++)
        for (int after = 0; after < 2; after++) {
            if (n_stages == 1 && point >= BED_STAGE_WRITES)
                continue;
            end_at_each(&g, &(struct cut){(enum bed_point)point, stage, after, from_start}, limit);
        }
    print_message("stage %u of %u: %u ends in %u runs\n", stage, n_stages, n_ends, n_runs);
    assert_true(n_ends > 10);
    ground_close(&g);
}

/* HELLO, ASSIGN, LOADED, EPOCH, ACK, LINKS, READY, the first plans and frames. */
static void a_stage_may_end_at_every_step_of_its_way_up(void **state)
{
    (void)state;
    uint32_t fds = ground_count_fds();
    stages_end_at(1, 0, 1, 8);
    stages_end_at(3, 0, 1, 8);
    stages_end_at(3, 1, 1, 8);
    stages_end_at(3, 2, 1, 8);
    assert_int_equal(ground_count_fds(), fds);
}

static void a_stage_may_end_at_every_message_and_frame_while_requests_run(void **state)
{
    (void)state;
    uint32_t fds = ground_count_fds();
    stages_end_at(1, 0, 0, MAX_N);
    stages_end_at(2, 0, 0, MAX_N);
    stages_end_at(2, 1, 0, MAX_N);
    stages_end_at(3, 1, 0, MAX_N);
    assert_int_equal(ground_count_fds(), fds);
}

static void coordinator_ends_at(int from_start, uint32_t limit)
{
    uint32_t fds = ground_count_fds();
    struct ground g;
    ground_open(&g, 2, NULL, flags);
    n_ends = n_runs = 0;
    for (int point = BED_ENGINE_SENDS; point <= BED_ENGINE_TELLS; point++)
        for (int after = 0; after < 2; after++)
            end_at_each(&g, &(struct cut){(enum bed_point)point, 0, after, from_start}, limit);
    print_message("coordinator%s: %u ends in %u runs\n", from_start ? " on its way up" : "", n_ends, n_runs);
    assert_true(n_ends > 40);
    ground_close(&g);
    assert_int_equal(ground_count_fds(), fds);
}

static void the_coordinator_may_end_at_every_message(void **state)
{
    (void)state;
    coordinator_ends_at(0, MAX_N);
}

/* One after the other, while stages attach and requests come back. */
static void a_coordinator_may_end_at_every_step_of_its_way_up(void **state)
{
    (void)state;
    coordinator_ends_at(1, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_may_end_at_every_step_of_its_way_up),
        cmocka_unit_test(a_stage_may_end_at_every_message_and_frame_while_requests_run),
        cmocka_unit_test(the_coordinator_may_end_at_every_message),
        cmocka_unit_test(a_coordinator_may_end_at_every_step_of_its_way_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
