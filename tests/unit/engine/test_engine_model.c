/* The engine with stages that run a real (tiny) model: batching, pieces, stages, parks and lost processes change no token and no
 * bit of a logprob. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "stage/model_compute.h"
#include "tests/lib/engine_bed.h"

enum { N_REQUESTS = 8, N_OUT = 24, LONG_OUT = 200, WAIT_MS = 60000 };
#define MODEL SLUICE_VECTORS "/tiny/llama-q8_0.gguf"

static int n_threads = 2;

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    (void)stage;
    return model_compute_create(&(struct model_compute_options){.model_path = MODEL, .n_threads = n_threads, .kv_fd = -1}, out, err);
}

static struct engine_bed *open_with(uint32_t n_stages, const char *const *flags)
{
    const struct engine_bed_options o = {.model_path = MODEL, .n_stages = n_stages, .flags = flags, .create = create_model};
    struct engine_bed *b = engine_bed_open(&o);
    engine_bed_wait_ready(b);
    return b;
}

static struct engine_bed *open_bed(uint32_t n_stages)
{
    static const char *const flags[] = {"--slots", "4", NULL};
    return open_with(n_stages, flags);
}

static const struct logit_bias bias[] = {{5, 3}, {17, -100}, {200, 1.5f}};

/* Every sampler beside the plain ones. */
static void vary(struct bed_request *r, uint32_t i)
{
    static const struct sampler_params more[N_REQUESTS] = {
        {.n_top = 1},
        {.n_top = 21, .repeat_penalty = 1.3f},
        {.n_top = 4, .presence_penalty = 1.5f, .frequency_penalty = 0.25f},
        {.n_top = 2, .typical_p = 0.6f},
        {.n_top = 6, .repeat_penalty = 1.1f, .repeat_last_n = 40, .frequency_penalty = 0.5f},
        {.n_top = 1, .repeat_penalty = 2, .repeat_last_n = 7, .typical_p = 0.9f},
        {.n_top = 11, .presence_penalty = -1},
        {.n_top = 3, .repeat_penalty = 1.2f, .presence_penalty = 0.5f, .frequency_penalty = 0.1f},
    };
    const struct sampler_params *m = &more[i];
    r->sampler.n_top = m->n_top;
    r->sampler.repeat_penalty = m->repeat_penalty;
    r->sampler.repeat_last_n = m->repeat_last_n;
    r->sampler.presence_penalty = m->presence_penalty;
    r->sampler.frequency_penalty = m->frequency_penalty;
    r->sampler.typical_p = m->typical_p;
    r->bias = bias;
    r->n_bias = i % 3;
}

static struct bed_request *make(struct engine_bed *b, uint32_t i)
{
    static const uint32_t lengths[N_REQUESTS] = {1, 5, 17, 40, 80, 130, 200, 260};
    uint32_t prompt[260];
    for (uint32_t j = 0; j < lengths[i]; j++)
        prompt[j] = (uint32_t)(rand_at(i, j) % tokenizer_n_vocab(engine_bed_tokenizer(b)));
    struct bed_request *r = bed_request_new(b, prompt, lengths[i], N_OUT);
    if (i % 2) {
        r->sampler.temperature = 0.8f;
        r->sampler.top_k = 20;
        r->sampler.seed = 100 + i;
    }
    return r;
}

static void engine_gives_the_same_tokens_alone_and_beside_others_over_any_stages(void **state)
{
    (void)state;
    uint32_t want[N_REQUESTS][N_OUT], n_want[N_REQUESTS];
    struct engine_bed *alone = open_bed(1);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct bed_request *r = make(alone, i);
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OK);
        assert_true(r->n_ids > 0);
        n_want[i] = r->n_ids;
        memcpy(want[i], r->ids, r->n_ids * sizeof *r->ids);
        bed_request_free(r);
    }
    engine_bed_assert_quiet(alone);
    engine_bed_close(alone);
    for (uint32_t n_stages = 1; n_stages <= 3; n_stages++) {
        struct engine_bed *b = open_bed(n_stages);
        struct bed_request *r[N_REQUESTS];
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            r[i] = make(b, i);
            bed_submit(r[i]);
            usleep(1000 * (i % 3));
        }
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            bed_wait(r[i], WAIT_MS);
            assert_int_equal(r[i]->end.status, STATUS_OK);
            assert_int_equal(r[i]->n_ids, n_want[i]);
            assert_memory_equal(r[i]->ids, want[i], n_want[i] * sizeof **want);
            bed_request_free(r[i]);
        }
        engine_bed_assert_quiet(b);
        engine_bed_close(b);
    }
}

static void engine_loses_a_model_stage_and_gives_the_same_tokens_again(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2);
    uint32_t want[N_OUT], n_want = 0;
    for (int round = 0; round < 2; round++) {
        struct bed_request *r = make(b, 5);
        bed_submit(r);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->end.status, STATUS_OK);
        if (round == 0)
            memcpy(want, r->ids, (n_want = r->n_ids) * sizeof *want);
        assert_int_equal(r->n_ids, n_want);
        assert_memory_equal(r->ids, want, n_want * sizeof *want);
        bed_request_free(r);
        engine_bed_kill_stage(b, (uint32_t)round);
        engine_bed_start_stage(b, (uint32_t)round);
        engine_bed_wait_ready(b);
    }
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

/* --- samplers ----------------------------------------------------------------------------------------------------------------- */

struct expected {
    uint32_t n_ids, ids[LONG_OUT];
    struct token_logprobs logprobs[LONG_OUT];
};

static void keep(struct expected *want, const struct bed_request *r)
{
    assert_int_equal(r->end.status, STATUS_OK);
    assert_int_equal(r->n_logprobs, r->n_ids);
    want->n_ids = r->n_ids;
    memcpy(want->ids, r->ids, r->n_ids * sizeof *r->ids);
    memcpy(want->logprobs, r->logprobs, r->n_ids * sizeof *r->logprobs);
}

static struct bed_request *ask(struct engine_bed *b, uint32_t i)
{
    struct bed_request *r = make(b, i);
    vary(r, i);
    r->ignore_eos = 1;
    bed_submit(r);
    return r;
}

static void check(const struct expected *want, struct bed_request *r, uint32_t first, const char *what)
{
    bed_wait(r, WAIT_MS);
    if (r->end.status != STATUS_OK)
        fail_msg("%s: %s: %s", what, status_name(r->end.status), r->end.message);
    if (first + r->n_ids != want->n_ids || memcmp(r->ids, want->ids + first, r->n_ids * sizeof *r->ids) != 0)
        fail_msg("%s: a request of %u prompt tokens has other ids", what, r->n_prompt);
    if (r->n_logprobs != r->n_ids || memcmp(r->logprobs, want->logprobs + first, r->n_ids * sizeof *r->logprobs) != 0)
        fail_msg("%s: a request of %u prompt tokens has other logprobs", what, r->n_prompt);
}

static void check_all(const struct expected *want, struct engine_bed *b, struct bed_request **r, const char *what)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        check(&want[i], r[i], 0, what);
        bed_request_free(r[i]);
    }
    engine_bed_assert_quiet(b);
}

static void ask_all(struct engine_bed *b, struct bed_request **r)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        r[i] = ask(b, i);
}

/* Alone, on one stage of one thread. Logprobs are what they say: descending, the chosen one among them where it belongs. */
static void expect(struct expected *want)
{
    n_threads = 1;
    struct engine_bed *b = open_bed(1);
    n_threads = 2;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct bed_request *r = ask(b, i);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->n_ids, N_OUT);
        keep(&want[i], r);
        for (uint32_t k = 0; k < N_OUT; k++) {
            const struct token_logprobs *l = &r->logprobs[k];
            double sum = 0;
            assert_true(l->logprob < 0);
            for (uint32_t j = 0; j < l->n_top; j++) {
                sum += exp((double)l->top_logprobs[j]);
                assert_true(j == 0 || l->top_logprobs[j] <= l->top_logprobs[j - 1]);
                assert_true(l->top_ids[j] != l->id || l->top_logprobs[j] == l->logprob);
                assert_true(l->top_logprobs[j] <= l->logprob || l->top_ids[j] != l->id);
            }
            assert_true(sum < 1 + 1e-6 && l->top_logprobs[0] <= 0);
        }
        bed_request_free(r);
    }
    engine_bed_close(b);
}

static void penalties_change_tokens_and_logprobs_name_the_models_own_choice(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2);
    struct bed_request *plain = make(b, 2), *penalised = make(b, 2);
    plain->ignore_eos = penalised->ignore_eos = 1;
    plain->sampler.n_top = penalised->sampler.n_top = 2;
    penalised->sampler.repeat_penalty = 100;
    bed_submit(plain);
    bed_submit(penalised);
    bed_wait(plain, WAIT_MS);
    bed_wait(penalised, WAIT_MS);
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < N_OUT; i++) { /* greedy: the best alternative is the id; with the penalty it is not where it had been said */
        assert_int_equal(plain->logprobs[i].top_ids[0], plain->ids[i]);
        assert_true(plain->logprobs[i].top_logprobs[0] == plain->logprobs[i].logprob);
        n_other += penalised->logprobs[i].top_ids[0] != penalised->ids[i];
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(penalised->ids[i], penalised->ids[k]); /* whatever was said is 100 times less likely */
    }
    assert_true(n_other > 0);
    bed_request_free(plain);
    bed_request_free(penalised);
    engine_bed_close(b);
}

static void stages_pieces_and_neighbours_change_no_sampler(void **state)
{
    (void)state;
    static struct expected want[N_REQUESTS];
    static const struct {
        uint32_t n_stages;
        const char *flags[8];
        const char *what;
    } ways[] = {
        {1, {"--slots", "8"}, "one stage, all at once"},
        {2, {"--slots", "8", "--max-rows", "16"}, "two stages, small pieces"},
        {3, {"--slots", "3"}, "three stages, few slots"},
    };
    expect(want);
    for (size_t w = 0; w < ARRAY_LEN(ways); w++) {
        struct engine_bed *b = open_with(ways[w].n_stages, ways[w].flags);
        struct bed_request *r[N_REQUESTS];
        for (int round = 0; round < 2; round++) { /* the second time behind cached prefixes */
            ask_all(b, r);
            check_all(want, b, r, ways[w].what);
        }
        engine_bed_close(b);
    }
}

static struct bed_request *ask_long(struct engine_bed *b, uint32_t i)
{
    struct bed_request *r = make(b, 3);
    vary(r, i);
    r->max_tokens = LONG_OUT;
    r->ignore_eos = 1;
    r->sampler.seed = i;
    bed_submit(r);
    return r;
}

static uint64_t preemptions(struct engine_bed *b)
{
    struct buf page;
    buf_init(&page, 8 << 20);
    engine_bed_assert_quiet(b); /* from here on the page is newer than the events */
    engine_metrics(engine_bed_engine(b), METRIC_ALIASES_NONE, &page);
    assert_int_equal(buf_append(&page, "", 1), STATUS_OK);
    const char *line = strstr(page.data, "\nsluice_preemptions_total ");
    assert_non_null(line);
    uint64_t n = strtoull(line + strlen("\nsluice_preemptions_total "), NULL, 10);
    buf_fini(&page);
    return n;
}

/* Who is parked reads prompt and answer again, and goes on with penalties for all of it. */
static void parks_change_no_sampler(void **state)
{
    (void)state;
    static struct expected want[N_REQUESTS];
    struct engine_bed *b = open_bed(1);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct bed_request *r = ask_long(b, i);
        bed_wait(r, WAIT_MS);
        assert_int_equal(r->n_ids, LONG_OUT);
        keep(&want[i], r);
        bed_request_free(r);
    }
    engine_bed_close(b);
    struct bed_request *r[N_REQUESTS];
    b = open_with(2, (const char *const[]){"--slots", "4", "--kv-block", "16", "--kv-blocks", "34", NULL});
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        r[i] = ask_long(b, i);
    check_all(want, b, r, "parked for want of blocks");
    assert_true(preemptions(b) > 0);
    engine_bed_close(b);
}

static void lost_stages_and_coordinators_change_no_sampler(void **state)
{
    (void)state;
    static struct expected want[N_REQUESTS];
    expect(want);
    struct engine_bed *b = open_bed(2);
    struct bed_request *r[N_REQUESTS], *rest[N_REQUESTS] = {0};
    for (uint32_t stage = 0; stage < 2; stage++) {
        ask_all(b, r);
        while (bed_n_ids(r[2]) < 3)
            usleep(200);
        engine_bed_kill_stage(b, stage);
        engine_bed_start_stage(b, stage);
        check_all(want, b, r, "a stage died");
    }
    ask_all(b, r);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        while (!bed_is_accepted(r[i]))
            usleep(200);
    while (bed_n_ids(r[3]) < 5)
        usleep(200);
    engine_bed_restart_engine(b);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        bed_wait(r[i], WAIT_MS);
        if (r[i]->end.status == STATUS_OK)
            continue;
        rest[i] = make(b, i);
        vary(rest[i], i);
        rest[i]->ignore_eos = rest[i]->attempt = 1;
        rest[i]->resumes = r[i];
        rest[i]->n_resumed = r[i]->n_ids;
        bed_submit(rest[i]);
    }
    assert_non_null(rest[N_REQUESTS - 1]); /* four slots: the last ones had not ended */
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        if (!rest[i])
            check(&want[i], r[i], 0, "before the coordinator died");
        else
            check(&want[i], rest[i], r[i]->n_ids, "the coordinator died");
        if (rest[i])
            bed_request_free(rest[i]);
        bed_request_free(r[i]);
    }
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_gives_the_same_tokens_alone_and_beside_others_over_any_stages),
        cmocka_unit_test(engine_loses_a_model_stage_and_gives_the_same_tokens_again),
        cmocka_unit_test(penalties_change_tokens_and_logprobs_name_the_models_own_choice),
        cmocka_unit_test(stages_pieces_and_neighbours_change_no_sampler),
        cmocka_unit_test(parks_change_no_sampler),
        cmocka_unit_test(lost_stages_and_coordinators_change_no_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
