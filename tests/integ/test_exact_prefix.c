/* A sequence that takes up a cached prefix gets the same tokens and bit-equal logits as one that reads its prompt whole: on
 * every tiny model (tests/lib/models.h), for 1, 2 and 3 stages and KV blocks of 16 to 128; or on the real model that the argument
 * names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "stage/model_compute.h"
#include "tests/lib/models.h"
#include "tests/lib/pipeline.h"

enum { N_PROMPTS = 4, MAX_PROMPT = 300, N_OUT = 6, CONTEXT = 384 };

static int n_arguments;
static char **arguments;

static struct {
    char path[512];
    uint32_t n_vocab, n_layers;
    struct compute *last; /* whose logits are seen */
    uint64_t base_seq;    /* the first sequence of the run has the next number */
} t;

/* What the requests of one run got. */
struct batch {
    uint32_t n;
    int32_t got[N_PROMPTS][N_OUT];
    uint64_t digest[N_PROMPTS][N_OUT]; /* of the logits that gave an id */
    struct pipeline_request r[N_PROMPTS];
};

/* The first is read by itself; the others begin as it does, for so many items, and then differ. */
static const uint32_t lengths[N_PROMPTS] = {150, 152, 140, MAX_PROMPT}, same_as_first[N_PROMPTS] = {150, 140, 70, 150};
static uint32_t prompt[N_PROMPTS][MAX_PROMPT];

static void make_prompts(void)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        for (uint32_t j = 0; j < lengths[i]; j++)
            prompt[i][j] = (uint32_t)(rand_at(j < same_as_first[i] ? 1 : 2 + i, j) % t.n_vocab);
}

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    (void)stage;
    const struct model_compute_options o = {.model_path = t.path, .n_threads = 1, .kv_fd = -1, .skip_calibration = 1};
    return model_compute_create(&o, out, err);
}

/* Workers make their computes on their own threads: only the last one's is kept here. */
static enum status create_seen(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    TRY(create_model(ctx, stage, out, err));
    if (stage + 1 == *(const uint32_t *)ctx)
        t.last = *out;
    return STATUS_OK;
}

/* On the compute thread of the last stage; the results come after it. */
static void see_logits(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct batch *b = ctx;
    uint64_t i = seq - t.base_seq - 1, h = 1469598103934665603ull;
    const uint8_t *bytes = (const uint8_t *)logits;
    if (i >= b->n)
        return;
    for (size_t k = 0; k < n_vocab * sizeof *logits; k++)
        h = (h ^ bytes[k]) * 1099511628211ull;
    b->digest[i][position + 1 - b->r[i].n_prompt] = h;
}

static struct pipeline *open_pipeline(uint32_t *n_stages, uint32_t kv_block, uint32_t slots)
{
    struct pipeline *p;
    struct error err = {0};
    const struct pipeline_options o = {.n_stages = *n_stages, .n_layers = t.n_layers, .slots = slots, .context = CONTEXT,
                                       .kv_block = kv_block, .max_rows = 96, .stuck_ms = 60000, .create = create_seen,
                                       .ctx = n_stages};
    if (pipeline_open(&o, &p, &err) != STATUS_OK)
        fail_msg("%u stages: %s", *n_stages, err.message);
    t.base_seq = 0;
    return p;
}

/* Prompts first..last together. */
static void run(struct pipeline *p, struct batch *b, uint32_t first, uint32_t n, uint32_t piece, int cache)
{
    struct error err = {0};
    *b = (struct batch){.n = n};
    for (uint32_t i = 0; i < n; i++) {
        b->r[i] = (struct pipeline_request){.prompt = prompt[first + i], .n_prompt = lengths[first + i], .n_out = N_OUT,
                                            .piece = piece, .sampler = pipeline_greedy, .cache = cache, .out = b->got[i]};
        if (first + i == 1)
            b->r[i].sampler = (struct sampler_params){.temperature = 0.8f, .top_p = 0.9f, .top_k = 40, .seed = 7};
    }
    model_compute_set_logits_sink(t.last, see_logits, b);
    if (pipeline_generate(p, b->r, n, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    t.base_seq += n;
}

/* Of prompt i after the first one was read whole. */
static uint32_t expected_hits(uint32_t i, uint32_t kv_block)
{
    uint32_t same = same_as_first[i] < lengths[i] - 1 ? same_as_first[i] : lengths[i] - 1;
    return same / kv_block * kv_block;
}

static void check_same(const struct batch *want, const struct batch *got, uint32_t first, const char *what)
{
    for (uint32_t i = 0; i < got->n; i++)
        for (uint32_t k = 0; k < N_OUT; k++)
            if (want->got[first + i][k] != got->got[i][k] || want->digest[first + i][k] != got->digest[i][k])
                fail_msg("%s: prompt %u id %u is %d, expected %d; logits %s; %u of %u were cached", what, first + i, k,
                         got->got[i][k], want->got[first + i][k],
                         want->digest[first + i][k] == got->digest[i][k] ? "equal" : "differ", got->r[i].n_cached,
                         got->r[i].n_prompt);
}

/* One cut of the pipeline: the first prompt is read whole, the others take up its blocks; then all of them come again. */
static void take_up(const struct batch *want, uint32_t n_stages, uint32_t kv_block)
{
    struct batch b;
    char what[640];
    snprintf(what, sizeof what, "%s, %u stages, blocks of %u", strrchr(t.path, '/'), n_stages, kv_block);
    struct pipeline *p = open_pipeline(&n_stages, kv_block, N_PROMPTS);
    run(p, &b, 0, 1, 0, 1);
    assert_int_equal(b.r[0].n_cached, 0);
    check_same(want, &b, 0, what);
    run(p, &b, 1, N_PROMPTS - 1, 7, 1);
    for (uint32_t i = 0; i < b.n; i++)
        assert_int_equal(b.r[i].n_cached, expected_hits(i + 1, kv_block));
    check_same(want, &b, 1, what);
    run(p, &b, 0, N_PROMPTS, 33, 1);
    for (uint32_t i = 0; i < b.n; i++) /* now each of them was read to its end */
        assert_int_equal(b.r[i].n_cached, (lengths[i] - 1) / kv_block * kv_block);
    check_same(want, &b, 0, what);
    pipeline_close(p);
}

static void open_model(const char *path)
{
    snprintf(t.path, sizeof t.path, "%s", path);
    models_read_sizes(t.path, &t.n_layers, &t.n_vocab);
    make_prompts();
}

static void read_whole(struct batch *want)
{
    uint32_t one = 1;
    struct pipeline *p = open_pipeline(&one, 64, 1);
    run(p, want, 0, N_PROMPTS, 0, 0);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        for (uint32_t k = 0; k < i; k++) /* or nothing below could fail */
            assert_true(want->digest[i][0] && want->digest[i][0] != want->digest[k][0]);
    pipeline_close(p);
}

static void a_cached_prefix_gives_the_same_bits_on_every_model(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < n_tiny_models; m++) {
        struct batch want;
        char path[512];
        if (!tiny_is_chosen(&tiny_models[m], n_arguments, arguments))
            continue;
        tiny_path(tiny_models[m].name, path, sizeof path);
        open_model(path);
        read_whole(&want);
        for (uint32_t n_stages = 1; n_stages <= 3 && n_stages <= t.n_layers; n_stages++)
            for (uint32_t kv_block = 16, i = 0; kv_block <= 128; kv_block *= 2, i++)
                if (m % 5 == 0 || (m + n_stages) % 4 == i) /* every fifth model in all cuts, the others in three each */
                    take_up(&want, n_stages, kv_block);
    }
}

static void a_cached_prefix_gives_the_same_bits_on_a_real_model(void **state)
{
    (void)state;
    struct batch want;
    open_model(real_model_path(arguments[1]));
    read_whole(&want);
    take_up(&want, 1, 16);
    take_up(&want, 2, 64);
    take_up(&want, 3, 32);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tiny[] = {cmocka_unit_test(a_cached_prefix_gives_the_same_bits_on_every_model)};
    const struct CMUnitTest real[] = {cmocka_unit_test(a_cached_prefix_gives_the_same_bits_on_a_real_model)};
    log_set_levels("error", NULL);
    n_arguments = argc;
    arguments = argv;
    if (argc < 2 || strcmp(argv[1], "full") == 0)
        return cmocka_run_group_tests(tiny, NULL, NULL);
    if (!real_model_path(argv[1]))
        return 77;
    return cmocka_run_group_tests(real, NULL, NULL);
}
