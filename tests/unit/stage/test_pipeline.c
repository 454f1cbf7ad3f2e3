/* S workers in one process, all kinds of links, fake compute: the text is the reference's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/pipeline.h"

enum { N_LAYERS = 8, N_REQUESTS = 12, MAX_PROMPT = 150, N_OUT = 24 };

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    return fake_compute_create(&(struct fake_options){.stage = stage, .script_path = ctx}, out, err);
}

struct batch {
    uint32_t prompt[N_REQUESTS][MAX_PROMPT];
    int32_t got[N_REQUESTS][N_OUT], want[N_REQUESTS][N_OUT];
    struct pipeline_request r[N_REQUESTS];
};

static void fill_batch(struct batch *b, uint64_t seed)
{
    static const uint32_t pieces[] = {0, 1, 7, 64};
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t n = 1 + (uint32_t)(rand_at(seed, i) % MAX_PROMPT);
        for (uint32_t j = 0; j < n; j++)
            b->prompt[i][j] = (uint32_t)(rand_at(seed + i, j) % FAKE_VOCAB);
        b->r[i] = (struct pipeline_request){.prompt = b->prompt[i],
                                            .n_prompt = n,
                                            .n_out = 1 + (uint32_t)(rand_at(seed, 1000 + i) % N_OUT),
                                            .piece = pieces[i % 4],
                                            .start_tick = i,
                                            .sampler = pipeline_greedy,
                                            .out = b->got[i]};
        if (i % 3 == 0) {
            b->r[i].sampler.temperature = 1;
            b->r[i].sampler.seed = seed + i;
        }
        fake_reference(N_LAYERS, &b->r[i].sampler, b->prompt[i], n, b->want[i], b->r[i].n_out);
    }
}

static void check_batch(const struct batch *b)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(b->r[i].n_done, b->r[i].n_out);
        assert_memory_equal(b->got[i], b->want[i], b->r[i].n_out * sizeof(int32_t));
    }
}

static void run_all(enum pipeline_links links)
{
    struct batch *b = calloc(1, sizeof *b);
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++) {
        struct pipeline *p;
        struct error err = {0};
        const struct pipeline_options o = {
            .n_stages = n_stages, .links = links, .create = create_fake, .slots = 4, .max_rows = 96, .n_layers = N_LAYERS};
        if (pipeline_open(&o, &p, &err) != STATUS_OK)
            fail_msg("%u stages: %s", n_stages, err.message);
        for (uint64_t round = 0; round < 2; round++) {
            fill_batch(b, 100 * n_stages + round);
            if (pipeline_generate(p, b->r, N_REQUESTS, &err) != STATUS_OK)
                fail_msg("%u stages: %s", n_stages, err.message);
            check_batch(b);
        }
        pipeline_close(p);
    }
    free(b);
}

static void stages_joined_in_memory_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_MEM);
}

static void stages_joined_by_unix_sockets_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_UNIX);
}

static void stages_joined_by_tcp_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_TCP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_joined_in_memory_give_the_reference_text),
        cmocka_unit_test(stages_joined_by_unix_sockets_give_the_reference_text),
        cmocka_unit_test(stages_joined_by_tcp_give_the_reference_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
