/* Everything that can happen to processes, in an order that a seed decides, against eight answers at a time: each is the
 * reference's, and in the end nothing is left. The pauses are printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "tests/unit/engine/ground.h"

enum { N_ANSWERS = 8, N_EVENTS = 200, N_STAGES = 3 };

struct chaos {
    struct ground g;
    struct answer a[N_ANSWERS];
    uint32_t n_answers, seen[N_ANSWERS];
    int64_t since_ns[N_ANSWERS];   /* of the newest id, or of the question */
    int silent[N_STAGES], away[N_STAGES];
    double pauses_ms[100000];
    uint32_t n_pauses;
};

static void ask(struct chaos *c, int i)
{
    answer_ask(&c->g, &c->a[i], 1 + below(120), 4 + below(60));
    c->seen[i] = 0;
    c->since_ns[i] = clock_now_ns();
    c->n_answers++;
}

/* What came since the last look; those that have ended are judged and asked anew. */
static void look(struct chaos *c, int again)
{
    for (int i = 0; i < N_ANSWERS; i++) {
        struct answer *a = &c->a[i];
        if (!a->n_attempts)
            continue;
        uint32_t n = bed_n_ids(answer_newest(a));
        int64_t now = clock_now_ns();
        if (n != c->seen[i] && c->n_pauses < ARRAY_LEN(c->pauses_ms)) {
            c->pauses_ms[c->n_pauses++] = (double)(now - c->since_ns[i]) / 1e6;
            c->seen[i] = n;
            c->since_ns[i] = now;
        }
        if (!bed_ended(answer_newest(a)))
            continue;
        answer_check(a, "answer");
        answer_close(a);
        if (again)
            ask(c, i);
    }
}

static void live(struct chaos *c, uint32_t ms, int again)
{
    for (int64_t end_ns = clock_now_ns() + ms * NS_PER_MS; clock_now_ns() < end_ns; usleep(300))
        look(c, again);
}

static void start_engine_again(struct chaos *c)
{
    engine_bed_restart_engine(c->g.b);
    for (int i = 0; i < N_ANSWERS; i++) {
        uint32_t before = c->a[i].n_attempts;
        answer_go_on(&c->a[i]);
        if (c->a[i].n_attempts > before)
            c->seen[i] = 0;
    }
}

static void happen(struct chaos *c)
{
    uint32_t stage = below(N_STAGES);
    switch (below(8)) {
    case 0:
    case 1:
        if (!c->away[stage])
            ground_restart_stage(&c->g, stage, below(2));
        break;
    case 2: /* it stays away for a while */
        if (!c->away[stage]) {
            engine_bed_kill_stage(c->g.b, stage);
            c->away[stage] = 1;
        }
        break;
    case 3:
        engine_bed_break_stream(c->g.b, stage);
        break;
    case 4:
        engine_bed_silence(c->g.b, stage, c->silent[stage] = 1);
        break;
    case 5:
        start_engine_again(c);
        break;
    default: /* in the middle of something */
        if (c->away[stage])
            break;
        engine_bed_end_at(c->g.b, (enum bed_point)(BED_STAGE_SENDS + below(4)), stage, 1 + below(20), (int)below(2));
        live(c, 3 + below(10), 1);
        engine_bed_end_nowhere(c->g.b);
        if (engine_bed_has_ended(c->g.b))
            ground_restart_stage(&c->g, stage, below(2));
    }
}

static void come_back(struct chaos *c, int all)
{
    for (uint32_t i = 0; i < N_STAGES; i++) {
        if (c->silent[i] && (all || below(3) == 0))
            engine_bed_silence(c->g.b, i, c->silent[i] = 0);
        if (c->away[i] && (all || below(2) == 0)) {
            engine_bed_start_stage(c->g.b, i);
            c->away[i] = 0;
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_pauses(struct chaos *c)
{
    qsort(c->pauses_ms, c->n_pauses, sizeof *c->pauses_ms, by_size);
    print_message("%u answers over %d events; pauses of %u ids: p50 %.1f, p99 %.1f, p999 %.1f, longest %.1f ms\n", c->n_answers,
                  N_EVENTS, c->n_pauses, c->pauses_ms[c->n_pauses / 2], c->pauses_ms[c->n_pauses * 99ull / 100],
                  c->pauses_ms[c->n_pauses * 999ull / 1000], c->pauses_ms[c->n_pauses - 1]);
}

static void answers_go_on_whatever_happens_to_processes(void **state)
{
    (void)state;
    static struct chaos c;
    char script[FAKE_SCRIPT_PATH];
    uint32_t fds = ground_count_fds();
    fake_script_file("tick_us 300\n", script);
    ground_open(&c.g, N_STAGES, script, FLAGS("--slots", "8", "--context", "256", "--kv-blocks", "80"));
    for (int i = 0; i < N_ANSWERS; i++)
        ask(&c, i);
    for (int event = 0; event < N_EVENTS; event++) {
        happen(&c);
        live(&c, below(30), 1);
        come_back(&c, 0);
    }
    come_back(&c, 1);
    for (int i = 0; i < N_ANSWERS; i++)
        if (c.a[i].n_attempts)
            bed_wait(answer_newest(&c.a[i]), WAIT_MS);
    look(&c, 0);
    engine_bed_wait_ready(c.g.b);
    engine_bed_assert_quiet(c.g.b);
    print_pauses(&c);
    assert_true(c.n_answers > 50);
    ground_close(&c.g);
    unlink(script);
    assert_int_equal(ground_count_fds(), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_go_on_whatever_happens_to_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
