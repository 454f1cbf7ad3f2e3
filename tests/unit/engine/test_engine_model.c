/* The engine with stages that run a real (tiny) model: batching, pieces and stages change no token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/rand.h"
#include "stage/model_compute.h"
#include "tests/lib/engine_bed.h"

enum { N_REQUESTS = 8, N_OUT = 24, WAIT_MS = 60000 };
#define MODEL SLUICE_VECTORS "/tiny/llama-q8_0.gguf"

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    (void)stage;
    return model_compute_create(&(struct model_compute_options){.model_path = MODEL, .n_threads = 2, .kv_fd = -1}, out, err);
}

static struct engine_bed *open_bed(uint32_t n_stages)
{
    static const char *const flags[] = {"--slots", "4", NULL};
    const struct engine_bed_options o = {.model_path = MODEL, .n_stages = n_stages, .flags = flags, .create = create_model};
    struct engine_bed *b = engine_bed_open(&o);
    engine_bed_wait_ready(b);
    return b;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_gives_the_same_tokens_alone_and_beside_others_over_any_stages),
        cmocka_unit_test(engine_loses_a_model_stage_and_gives_the_same_tokens_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
