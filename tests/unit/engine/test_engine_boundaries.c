/* A process ends at every boundary of the protocol in turn: before and after each message, frame and event that passes. Whatever
 * was under way, the answers are the reference's, no id comes twice or is missing, and everything is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/unit/engine/fake_bed.h"

enum { MAX_N = 400, N_ANSWERS = 2, PROMPT = 37, ANSWER = 12, NEAR = 12, STRIDE = 3 };

#define MODEL SLUICE_VECTORS "/tiny/llama-f32.gguf"

/* The bed, and for each stage the descriptor of its KV pool, as a launcher keeps it. */
struct ground {
    struct engine_bed *b;
    uint32_t n_stages;
    int kv_fd[BED_MAX_STAGES];
    uint32_t n_runs, n_ends;
    uint64_t prompt;
};

struct cut {
    enum bed_point point;
    uint32_t stage;
    int after, from_start; /* from_start: counted from the first word of a new process */
};

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    const struct ground *g = ctx;
    return fake_compute_create(&(struct fake_options){.stage = stage, .kv_fd = g->kv_fd[stage]}, out, err);
}

static void new_pool(struct ground *g, uint32_t stage)
{
    if (g->kv_fd[stage] > 0)
        close(g->kv_fd[stage]);
    g->kv_fd[stage] = memfd_create("kv", MFD_CLOEXEC);
    assert_true(g->kv_fd[stage] > 0);
}

static uint32_t count_fds(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void open_ground(struct ground *g, uint32_t n_stages)
{
    memset(g, 0, sizeof *g);
    g->n_stages = n_stages;
    for (uint32_t i = 0; i < n_stages; i++)
        new_pool(g, i);
    const struct engine_bed_options o = {.model_path = MODEL, .n_stages = n_stages, .create = create_fake, .ctx = g, .beat_ms = 3,
                                         .flags = FLAGS("--slots", "2", "--context", "256", "--piece-max", "16")};
    log_set_levels("error", NULL);
    g->b = engine_bed_open(&o);
    engine_bed_wait_ready(g->b);
}

static void close_ground(struct ground *g)
{
    engine_bed_close(g->b);
    for (uint32_t i = 0; i < g->n_stages; i++)
        close(g->kv_fd[i]);
}

/* --- answers ------------------------------------------------------------------------------------------------------------------ */

/* An answer, over as many attempts as it takes. root: the first that was accepted; it gathers what the others bring. */
struct answer {
    struct ground *g;
    struct bed_request *attempt[4], *root;
    uint32_t n_attempts;
};

static struct bed_request *newest(struct answer *a)
{
    return a->attempt[a->n_attempts - 1];
}

static void gather(struct answer *a)
{
    struct bed_request *r = newest(a);
    if (!a->root) {
        a->root = r->n_accepted ? r : NULL;
        return;
    }
    CHECK(a->root->n_ids + r->n_ids <= ANSWER);
    if (a->root->n_ids == 0)
        a->root->first = r->first;
    memcpy(a->root->ids + a->root->n_ids, r->ids, r->n_ids * sizeof *r->ids);
    a->root->n_ids += r->n_ids;
}

static void try_again(struct answer *a)
{
    struct bed_request *before = newest(a);
    CHECK(a->n_attempts < ARRAY_LEN(a->attempt));
    gather(a);
    struct bed_request *r = bed_request_new(a->g->b, before->prompt, before->n_prompt, ANSWER);
    r->sampler = before->sampler;
    r->attempt = a->n_attempts;
    if (a->root) {
        r->resumes = a->root;
        r->n_resumed = a->root->n_ids;
    }
    a->attempt[a->n_attempts++] = r;
    bed_submit(r);
}

static void ask(struct ground *g, struct answer *a, int i)
{
    uint32_t prompt[PROMPT];
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = below(FAKE_VOCAB);
    memset(a, 0, sizeof *a);
    a->g = g;
    struct bed_request *r = bed_request_new(g->b, prompt, PROMPT, ANSWER);
    if (i % 2) {
        r->sampler.temperature = 1;
        r->sampler.seed = below(1u << 30);
    }
    a->attempt[a->n_attempts++] = r;
    bed_submit(r);
}

static void check(struct answer *a, const struct cut *c, uint32_t n)
{
    struct bed_request *r = newest(a);
    int32_t want[ANSWER];
    if (r->end.status != STATUS_OK)
        fail_msg("point %d of stage %u, n %u, after %d: %s: %s", c->point, c->stage, n, c->after, status_name(r->end.status),
                 r->end.message);
    gather(a);
    assert_int_equal(a->root->n_ids, ANSWER);
    fake_reference(engine_bed_model(a->g->b)->hp.n_layers, &r->sampler, r->prompt, PROMPT, want, ANSWER);
    assert_memory_equal(a->root->ids, want, sizeof want);
    assert_int_equal(r->done.finish, FINISH_LENGTH);
    assert_int_equal(r->done.usage.prompt_tokens, PROMPT);
    assert_int_equal(r->done.usage.completion_tokens, ANSWER);
}

/* --- one end ---------------------------------------------------------------------------------------------------------------------- */

static int all_ended(struct answer *a)
{
    for (int i = 0; i < N_ANSWERS; i++)
        if (!bed_ended(newest(&a[i])))
            return 0;
    return 1;
}

static void restart_stage(struct ground *g, uint32_t stage, int keep)
{
    engine_bed_kill_stage(g->b, stage);
    if (!keep)
        new_pool(g, stage);
    engine_bed_start_stage(g->b, stage);
}

/* It went as far as its attempts were told; what the engine does to end is not heard. */
static void restart_engine(struct ground *g, struct answer *a)
{
    engine_bed_restart_engine(g->b);
    for (int i = 0; i < N_ANSWERS; i++)
        if (newest(&a[i])->end.status != STATUS_OK || newest(&a[i])->n_done == 0)
            try_again(&a[i]);
}

/* 0: everything was over before the n-th passage. */
static int end_once(struct ground *g, const struct cut *c, uint32_t n)
{
    struct answer a[N_ANSWERS];
    int of_stage = c->point < BED_ENGINE_SENDS, keep = n % 2;
    for (int i = 0; i < N_ANSWERS; i++)
        ask(g, &a[i], i);
    if (c->from_start && of_stage)
        engine_bed_kill_stage(g->b, c->stage);
    engine_bed_end_at(g->b, c->point, c->stage, n, c->after);
    if (c->from_start && of_stage)
        engine_bed_start_stage(g->b, c->stage);
    else if (c->from_start)
        restart_engine(g, a);
    int64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
    while (!engine_bed_has_ended(g->b) && !all_ended(a)) {
        if (clock_now_ns() > end_ns)
            fail_msg("point %d of stage %u, n %u, after %d: nothing ends", c->point, c->stage, n, c->after);
        usleep(100);
    }
    engine_bed_end_nowhere(g->b);
    int ended = engine_bed_has_ended(g->b);
    if (ended && of_stage)
        restart_stage(g, c->stage, keep);
    else if (ended)
        restart_engine(g, a);
    for (int i = 0; i < N_ANSWERS; i++) {
        bed_wait(newest(&a[i]), WAIT_MS);
        check(&a[i], c, n);
    }
    engine_bed_wait_ready(g->b);
    engine_bed_assert_quiet(g->b);
    for (int i = 0; i < N_ANSWERS; i++)
        for (uint32_t k = 0; k < a[i].n_attempts; k++)
            bed_request_free(a[i].attempt[k]);
    g->n_runs++;
    g->n_ends += ended != 0;
    return ended;
}

/* Each of the first ones, then every third: ticks in the middle are all alike. */
static void end_at_each(struct ground *g, const struct cut *c, uint32_t limit)
{
    uint32_t n = 1;
    while (n <= limit && end_once(g, c, n))
        n += n < NEAR ? 1 : STRIDE;
    if (n == 1)
        fail_msg("nothing passed point %d of stage %u", c->point, c->stage);
}

/* --- tests ------------------------------------------------------------------------------------------------------------------------ */

static void stages_end_at(uint32_t n_stages, uint32_t stage, int from_start, uint32_t limit)
{
    struct ground g;
    open_ground(&g, n_stages);
    for (int point = BED_STAGE_SENDS; point <= BED_STAGE_READS; point++)
        for (int after = 0; after < 2; after++) {
            if (n_stages == 1 && point >= BED_STAGE_WRITES)
                continue;
            end_at_each(&g, &(struct cut){(enum bed_point)point, stage, after, from_start}, limit);
        }
    print_message("stage %u of %u: %u ends in %u runs\n", stage, n_stages, g.n_ends, g.n_runs);
    assert_true(g.n_ends > 10);
    close_ground(&g);
}

/* HELLO, ASSIGN, LOADED, EPOCH, ACK, LINKS, READY, the first plans and frames. */
static void a_stage_may_end_at_every_step_of_its_way_up(void **state)
{
    (void)state;
    uint32_t fds = count_fds();
    stages_end_at(1, 0, 1, 8);
    stages_end_at(3, 0, 1, 8);
    stages_end_at(3, 1, 1, 8);
    stages_end_at(3, 2, 1, 8);
    assert_int_equal(count_fds(), fds);
}

static void a_stage_may_end_at_every_message_and_frame_while_requests_run(void **state)
{
    (void)state;
    uint32_t fds = count_fds();
    stages_end_at(1, 0, 0, MAX_N);
    stages_end_at(2, 0, 0, MAX_N);
    stages_end_at(2, 1, 0, MAX_N);
    stages_end_at(3, 1, 0, MAX_N);
    assert_int_equal(count_fds(), fds);
}

static void the_coordinator_may_end_at_every_message(void **state)
{
    (void)state;
    uint32_t fds = count_fds();
    struct ground g;
    open_ground(&g, 2);
    for (int point = BED_ENGINE_SENDS; point <= BED_ENGINE_TELLS; point++)
        for (int after = 0; after < 2; after++)
            end_at_each(&g, &(struct cut){(enum bed_point)point, 0, after, 0}, MAX_N);
    print_message("coordinator: %u ends in %u runs\n", g.n_ends, g.n_runs);
    assert_true(g.n_ends > 40);
    close_ground(&g);
    assert_int_equal(count_fds(), fds);
}

/* One after the other, while stages attach and requests come back. */
static void a_coordinator_may_end_at_every_step_of_its_way_up(void **state)
{
    (void)state;
    uint32_t fds = count_fds();
    struct ground g;
    open_ground(&g, 2);
    for (int point = BED_ENGINE_SENDS; point <= BED_ENGINE_TELLS; point++)
        for (int after = 0; after < 2; after++)
            end_at_each(&g, &(struct cut){(enum bed_point)point, 0, after, 1}, 12);
    print_message("coordinator on its way up: %u ends in %u runs\n", g.n_ends, g.n_runs);
    assert_true(g.n_ends > 40);
    close_ground(&g);
    assert_int_equal(count_fds(), fds);
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
