/* The same tokens and bit-equal logits however the pipeline is cut, on a real model: smollm2, or the one that the first argument
 * names. Larger models get shorter prompts, that every tier may run them; `long` as the second argument gives them the long one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "kernels/ops.h"
#include "tests/lib/models.h"
#include "tests/lib/transcript.h"

enum { N_LONG = 520, N_MIDDLE = 80, N_SHORT = 20, N_DECODE = 10, CONTEXT = 576 };

struct variant {
    const char *name, *isa;
    uint32_t n_stages, piece, n_others, kv_block;
    int n_threads;
};

static const struct variant plain = {"plain", "auto", 1, 512, 0, 64, 2};

static const char *model_path;
static uint32_t n_prompt = N_MIDDLE, prompt[N_LONG];
static struct transcript want, want_short; /* by `plain` */

static struct transcript make(const struct variant *v, uint32_t n)
{
    const struct transcript_options o = {
        .chain = {.model_path = model_path, .isa = v->isa, .n_stages = v->n_stages, .kv_block = v->kv_block,
                  .n_threads = v->n_threads, .context = CONTEXT, .max_rows = 544},
        .prompt = prompt, .n_prompt = n, .n_decode = N_DECODE, .piece = v->piece, .sample_every = n_prompt / 13,
        .n_others = v->n_others,
    };
    return transcript_make(&o);
}

static void compare(const struct variant *variants, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct transcript got = make(&variants[i], n_prompt);
        transcript_compare(&want, &got, variants[i].name);
        transcript_free(&got);
    }
}

static void pieces_of_1_7_64_and_512_give_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"pieces of 1", "auto", 1, 1, 0, 64, 2},
        {"pieces of 7", "auto", 1, 7, 0, 64, 2},
        {"pieces of 64", "auto", 1, 64, 0, 64, 2},
    };
    compare(variants, ARRAY_LEN(variants));
}

static void two_and_three_stages_give_the_same_bits_as_one(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"two stages", "auto", 2, 512, 0, 64, 1},
        {"three stages, pieces of 64", "auto", 3, 64, 0, 64, 1},
    };
    compare(variants, ARRAY_LEN(variants));
}

static void a_sequence_beside_seven_others_gets_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"beside seven, pieces of 64", "auto", 1, 64, 7, 64, 2},
        {"beside seven, pieces of 7, two stages", "auto", 2, 7, 7, 64, 2},
    };
    compare(variants, ARRAY_LEN(variants));
}

static void one_two_and_three_threads_and_kv_blocks_of_16_give_the_same_bits(void **state)
{
    (void)state;
    static const struct variant variants[] = {
        {"one thread", "auto", 1, 512, 0, 64, 1},
        {"three threads, KV blocks of 16", "auto", 1, 512, 0, 16, 3},
        {"KV blocks of 128", "auto", 1, 512, 0, 128, 2},
    };
    compare(variants, ARRAY_LEN(variants));
}

static void every_instruction_set_of_this_host_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const sets[] = {"portable", "avx2", "avxvnni", "avx512", "amx"};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        const char *missing = ops_isa_missing(sets[i]);
        const struct variant v = {sets[i], sets[i], 1, 512, 0, 64, 2};
        if (missing) {
            printf("%s skipped: %s\n", sets[i], missing);
            continue;
        }
        struct transcript got = make(&v, N_SHORT);
        transcript_compare(&want_short, &got, sets[i]);
        transcript_free(&got);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_1_7_64_and_512_give_the_same_bits),
        cmocka_unit_test(two_and_three_stages_give_the_same_bits_as_one),
        cmocka_unit_test(a_sequence_beside_seven_others_gets_the_same_bits),
        cmocka_unit_test(one_two_and_three_threads_and_kv_blocks_of_16_give_the_same_bits),
        cmocka_unit_test(every_instruction_set_of_this_host_gives_the_same_bits),
    };
    const char *name = argc > 1 ? argv[1] : "smollm2";
    model_path = real_model_path(name);
    if (!model_path)
        return 77;
    if (strcmp(name, "smollm2") == 0 || (argc > 2 && strcmp(argv[2], "long") == 0))
        n_prompt = N_LONG;
    log_set_levels("warn", NULL);
    for (uint32_t i = 0; i < N_LONG; i++)
        prompt[i] = (uint32_t)(rand_at(2024, i) % 49152);
    want = make(&plain, n_prompt);
    want_short = make(&plain, N_SHORT);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    transcript_free(&want);
    transcript_free(&want_short);
    return failed;
}
