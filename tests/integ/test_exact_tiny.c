/* The same tokens and bit-equal logits however the pipeline is cut, on every tiny model (tests/lib/models.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "kernels/ops.h"
#include "tests/lib/models.h"
#include "tests/lib/transcript.h"

enum { N_PROMPT = 150, N_LONG = 330, N_DECODE = 12, CONTEXT = 384 };

struct variant {
    const char *name, *backend, *isa;
    uint32_t n_stages, piece, n_others, kv_block;
    int n_threads;
};

static const struct variant plain = {"plain", "cpu", "auto", 1, N_PROMPT, 0, 64, 1};

static const struct tiny_model *models[64]; /* those of this run */
static uint32_t n_models;
static uint32_t prompt[N_LONG];

static struct transcript make_of(const char *path, const struct variant *v, uint32_t n_prompt)
{
    const struct transcript_options o = {
        .chain = {.model_path = path, .backend = v->backend, .isa = v->isa, .n_stages = v->n_stages, .kv_block = v->kv_block,
                  .n_threads = v->n_threads, .context = CONTEXT, .max_rows = v->piece + 32},
        .prompt = prompt, .n_prompt = n_prompt, .n_decode = N_DECODE, .piece = v->piece, .sample_every = 5,
        .n_others = v->n_others,
    };
    return transcript_make(&o);
}

static struct transcript make(const char *path, const struct variant *v)
{
    return make_of(path, v, N_PROMPT);
}

static uint32_t layers_of(const char *path)
{
    uint32_t n, n_vocab;
    models_read_sizes(path, &n, &n_vocab);
    return n;
}

/* Returns how many comparisons there were: a model is not cut into more stages than it has layers. */
static uint32_t compare_all(const struct variant *variants, size_t n)
{
    uint32_t n_compared = 0;
    for (uint32_t m = 0; m < n_models; m++) {
        char path[512], what[640];
        tiny_path(models[m]->name, path, sizeof path);
        uint32_t n_layers = layers_of(path);
        struct transcript want = make(path, &plain);
        for (size_t i = 0; i < n; i++) {
            if (variants[i].n_stages > n_layers)
                continue;
            snprintf(what, sizeof what, "%s, %s", models[m]->name, variants[i].name);
            struct transcript got = make(path, &variants[i]);
            transcript_compare(&want, &got, what);
            transcript_free(&got);
            n_compared++;
        }
        transcript_free(&want);
    }
    return n_compared;
}

static void pieces_of_any_size_give_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"pieces of 1", "cpu", "auto", 1, 1, 0, 64, 1},
        {"pieces of 7", "cpu", "auto", 1, 7, 0, 64, 1},
        {"pieces of 64", "cpu", "auto", 1, 64, 0, 64, 1},
        {"pieces of 65 beside seven others", "cpu", "auto", 1, 65, 7, 64, 1},
    };
    compare_all(variants, ARRAY_LEN(variants));
}

/* forward cuts ticks of more than 256 rows; the last layer is cut at 64. */
static void a_tick_of_several_chunks_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"one tick", "cpu", "auto", 1, N_LONG, 0, 64, 2},
        {"one tick beside seven", "cpu", "auto", 1, N_LONG, 7, 64, 1},
        {"two stages, ticks of 300", "cpu", "auto", 2, 300, 3, 16, 1},
    };
    const struct variant small = {"pieces of 16", "cpu", "auto", 1, 16, 0, 64, 1};
    for (uint32_t m = 0; m < n_models; m++) {
        char path[512];
        tiny_path(models[m]->name, path, sizeof path);
        struct transcript want = make_of(path, &small, N_LONG);
        for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
            struct transcript got = make_of(path, &variants[i], N_LONG);
            transcript_compare(&want, &got, models[m]->name);
            transcript_free(&got);
        }
        transcript_free(&want);
    }
}

static void two_stages_give_the_same_bits_as_one(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"two stages", "cpu", "auto", 2, N_PROMPT, 0, 64, 1},
        {"two stages, pieces of 1 beside three others", "cpu", "auto", 2, 1, 3, 64, 1},
    };
    compare_all(variants, ARRAY_LEN(variants));
}

static void three_stages_give_the_same_bits_as_one(void **state)
{
    (void)state;
    static const struct variant variants[] = {{"three stages", "cpu", "auto", 3, 64, 7, 16, 1}};
    assert_true(compare_all(variants, ARRAY_LEN(variants)) > 0);
}

static void a_sequence_beside_seven_others_gets_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"beside seven", "cpu", "auto", 1, N_PROMPT, 7, 64, 1},
        {"beside seven, pieces of 7", "cpu", "auto", 1, 7, 7, 64, 1},
    };
    compare_all(variants, ARRAY_LEN(variants));
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"two threads", "cpu", "auto", 1, N_PROMPT, 0, 64, 2},
        {"two threads, pieces of 7 beside seven", "cpu", "auto", 1, 7, 7, 64, 2},
        {"three threads, pieces of 64", "cpu", "auto", 1, 64, 0, 64, 3},
    };
    compare_all(variants, ARRAY_LEN(variants));
}

static void kv_blocks_of_any_size_give_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"KV blocks of 16", "cpu", "auto", 1, 64, 0, 16, 1},
        {"KV blocks of 32", "cpu", "auto", 1, 64, 0, 32, 1},
        {"KV blocks of 128", "cpu", "auto", 1, 64, 0, 128, 1},
    };
    compare_all(variants, ARRAY_LEN(variants));
}

static void every_instruction_set_of_this_host_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const sets[] = {"portable", "avx2", "avxvnni", "avx512", "amx"};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        const char *missing = ops_isa_missing(sets[i]);
        const struct variant variants[] = {{sets[i], "cpu", sets[i], 1, 64, 0, 64, 1}};
        if (missing)
            printf("%s skipped: %s\n", sets[i], missing);
        else
            compare_all(variants, ARRAY_LEN(variants));
    }
}

static void the_ref_backend_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {{"ref", "ref", "auto", 1, 64, 0, 64, 2}};
    compare_all(variants, ARRAY_LEN(variants));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_give_the_same_bits),
        cmocka_unit_test(a_tick_of_several_chunks_gives_the_same_bits),
        cmocka_unit_test(two_stages_give_the_same_bits_as_one),
        cmocka_unit_test(three_stages_give_the_same_bits_as_one),
        cmocka_unit_test(a_sequence_beside_seven_others_gets_the_same_bits),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(kv_blocks_of_any_size_give_the_same_bits),
        cmocka_unit_test(every_instruction_set_of_this_host_gives_the_same_bits),
        cmocka_unit_test(the_ref_backend_gives_the_same_bits),
    };
    log_set_levels("warn", NULL);
    for (uint32_t i = 0; i < n_tiny_models; i++)
        if (tiny_is_chosen(&tiny_models[i], argc, argv))
            models[n_models++] = &tiny_models[i];
    for (uint32_t i = 0; i < N_LONG; i++)
        prompt[i] = (uint32_t)(rand_at(2024, i) % 320);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
