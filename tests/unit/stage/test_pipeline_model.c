/* Models through whole pipelines: the same tokens and bit-equal logits for 1, 2 and 3 stages over every kind of link, for several
 * cuts of the prompt, alone and beside others. Without an argument one tiny model, with `tiny` all of them, else the real model
 * that the argument names. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rand.h"
#include "stage/model_compute.h"
#include "tests/lib/models.h"
#include "tests/lib/pipeline.h"

enum { N_REQUESTS = 4, MAX_PROMPT = 140, N_OUT = 6, MAX_STAGES = 3 };

static const char *chosen = "one";
static struct {
    char path[512];
    uint32_t n_vocab, n_layers, n_threads;
    int is_large; /* each link with one number of stages only */
    struct compute *compute[PIPELINE_MAX_STAGES];
    uint64_t base_seq;                         /* the first sequence of the run has the next number */
    uint64_t digest[N_REQUESTS][N_OUT];        /* of the logits that gave an id */
} t;

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    const struct model_compute_options o = {
        .model_path = t.path, .n_threads = (int)t.n_threads, .kv_fd = -1, .skip_calibration = 1};
    TRY(model_compute_create(&o, &t.compute[stage], err));
    *out = t.compute[stage];
    return STATUS_OK;
}

struct batch {
    uint32_t prompt[N_REQUESTS][MAX_PROMPT];
    int32_t got[N_REQUESTS][N_OUT];
    uint64_t digest[N_REQUESTS][N_OUT];
    struct pipeline_request r[N_REQUESTS];
};

static struct batch *filled_batch(uint32_t piece)
{
    static const uint32_t lengths[N_REQUESTS] = {1, 17, 64, MAX_PROMPT};
    struct batch *b = calloc(1, sizeof *b);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        for (uint32_t j = 0; j < lengths[i]; j++)
            b->prompt[i][j] = (uint32_t)(rand_at(i + 1, j) % t.n_vocab);
        b->r[i] = (struct pipeline_request){.prompt = b->prompt[i], .n_prompt = lengths[i], .n_out = N_OUT, .piece = piece,
                                            .sampler = pipeline_greedy, .out = b->got[i]};
    }
    b->r[1].sampler = (struct sampler_params){.temperature = 0.8f, .top_p = 0.9f, .top_k = 40, .seed = 7};
    return b;
}

/* On the compute thread of the last stage; the results come after it. */
static void see_logits(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct batch *b = ctx;
    uint64_t request = seq - t.base_seq - 1, h = 1469598103934665603ull;
    const uint8_t *bytes = (const uint8_t *)logits;
    if (request >= N_REQUESTS)
        return;
    for (size_t i = 0; i < n_vocab * sizeof *logits; i++)
        h = (h ^ bytes[i]) * 1099511628211ull;
    b->digest[request][position + 1 - b->r[request].n_prompt] = h;
}

static struct pipeline *open_pipeline(uint32_t n_stages, enum pipeline_links links, uint32_t slots)
{
    struct pipeline *p;
    struct error err = {0};
    const struct pipeline_options o = {.n_stages = n_stages, .links = links, .n_layers = t.n_layers, .slots = slots,
                                       .context = 256, .kv_block = 16, .max_rows = 96, .create = create_model};
    if (pipeline_open(&o, &p, &err) != STATUS_OK)
        fail_msg("%u stages: %s", n_stages, err.message);
    t.base_seq = 0;
    return p;
}

static struct batch *run(struct pipeline *p, uint32_t piece)
{
    struct batch *b = filled_batch(piece);
    struct error err = {0};
    model_compute_set_logits_sink(t.compute[pipeline_n_stages(p) - 1], see_logits, b);
    if (pipeline_generate(p, b->r, N_REQUESTS, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    t.base_seq += N_REQUESTS;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(b->r[i].n_done, N_OUT);
        for (uint32_t k = 0; k < N_OUT; k++)
            assert_true(b->digest[i][k] != 0 && b->got[i][k] >= 0);
    }
    return b;
}

static void check_same(const struct batch *want, struct batch *got, const char *what, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        for (uint32_t k = 0; k < N_OUT; k++)
            if (want->got[i][k] != got->got[i][k] || want->digest[i][k] != got->digest[i][k])
                fail_msg("%s %u %u: request %u id %u is %d, expected %d; logits %s", what, a, b, i, k, got->got[i][k],
                         want->got[i][k], want->digest[i][k] == got->digest[i][k] ? "equal" : "differ");
    free(got);
}

static void run_all_ways(void)
{
    const uint32_t most = t.n_layers < MAX_STAGES ? t.n_layers : MAX_STAGES;
    struct pipeline *p = open_pipeline(1, PIPELINE_MEM, 1); /* one after the other, whole prompts */
    struct batch *reference = run(p, 0);
    pipeline_close(p);
    for (uint32_t n_stages = 1; n_stages <= most; n_stages++)
        for (enum pipeline_links links = PIPELINE_MEM; links <= PIPELINE_TCP; links++) {
            if (t.is_large && links != n_stages - 1)
                continue;
            static const uint32_t pieces[] = {7, 64, 0};
            p = open_pipeline(n_stages, links, 4);
            check_same(reference, run(p, pieces[links]), "stages and link", n_stages, links);
            if (n_stages == 2 && links == PIPELINE_UNIX)
                check_same(reference, run(p, 1), "pieces of one row", n_stages, links);
            pipeline_close(p);
        }
    t.n_threads = 2;
    p = open_pipeline(most, PIPELINE_UNIX, 4);
    check_same(reference, run(p, 33), "two threads", most, 0);
    pipeline_close(p);
    t.n_threads = 1;
    free(reference);
}

static void open_model(const char *path)
{
    snprintf(t.path, sizeof t.path, "%s", path);
    models_read_sizes(t.path, &t.n_layers, &t.n_vocab);
}

static void stages_links_pieces_and_company_change_no_bit(void **state)
{
    (void)state;
    char path[512];
    if (strcmp(chosen, "tiny") != 0 && strcmp(chosen, "one") != 0) {
        open_model(real_model_path(chosen));
        t.is_large = strcmp(chosen, "smollm2") != 0;
        run_all_ways();
        return;
    }
    for (uint32_t i = 0; i < n_tiny_models; i++)
        if (strcmp(chosen, "tiny") == 0 || strcmp(tiny_models[i].name, "llama-q4_k") == 0) {
            tiny_path(tiny_models[i].name, path, sizeof path);
            open_model(path);
            run_all_ways();
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_links_pieces_and_company_change_no_bit),
    };
    if (argc > 1)
        chosen = argv[1];
    if (strcmp(chosen, "tiny") != 0 && strcmp(chosen, "one") != 0 && !real_model_path(chosen))
        return 77;
    t.n_threads = 1;
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
