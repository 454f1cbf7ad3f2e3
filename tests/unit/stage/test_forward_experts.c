/* Which experts a row goes to, and that rows of other experts beside it change none of its bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "stage/forward_impl.h"
#include "tests/lib/chain.h"

enum { N_IDS = 70, MAX_VOCAB = 400 };

/* --- the choice --------------------------------------------------------------------------------------------------------- */

static void the_best_experts_come_first_and_of_equals_the_lower_index(void **state)
{
    (void)state;
    static const struct {
        float logits[6];
        uint32_t want[3];
    } cases[] = {
        {{0, 1, 2, 3, 4, 5}, {5, 4, 3}},
        {{5, 4, 3, 2, 1, 0}, {0, 1, 2}},
        {{1, 1, 1, 1, 1, 1}, {0, 1, 2}},
        {{0, 7, 0, 7, 0, 7}, {1, 3, 5}},
        {{-1, -3, -2, -2, -9, -3}, {0, 2, 3}},
        {{-INFINITY, -INFINITY, 0, -INFINITY, -INFINITY, 1}, {5, 2, 0}},
        {{1e30f, -1e30f, 1e30f, 0, 0, 0}, {0, 2, 3}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct route routes[3];
        experts_choose(cases[i].logits, 6, 3, 1, routes);
        for (int r = 0; r < 3; r++)
            assert_int_equal(routes[r].expert, cases[i].want[r]);
    }
}

static void weights_are_those_of_the_softmax_over_all_or_over_the_chosen(void **state)
{
    (void)state;
    enum { N = 8, USED = 3 };
    for (uint64_t k = 0; k < 200; k++) {
        float logits[N];
        double e[N], all = 0, used = 0;
        struct route plain[USED], normalised[USED];
        for (uint32_t i = 0; i < N; i++) {
            logits[i] = (float)(rand_at(k, i) % 20000) / 1000 - 10;
            all += e[i] = exp((double)logits[i]);
        }
        experts_choose(logits, N, USED, 0, plain);
        experts_choose(logits, N, USED, 1, normalised);
        for (int r = 0; r < USED; r++)
            used += e[plain[r].expert];
        for (int r = 0; r < USED; r++) {
            assert_true(fabs((double)plain[r].weight - e[plain[r].expert] / all) < 1e-6);
            assert_int_equal(normalised[r].expert, plain[r].expert);
            assert_true(fabs((double)normalised[r].weight - e[plain[r].expert] / used) < 1e-6);
            assert_true(r == 0 || logits[plain[r].expert] <= logits[plain[r - 1].expert]);
        }
    }
}

static void a_row_of_nan_still_goes_to_different_experts(void **state)
{
    (void)state;
    float logits[5] = {NAN, NAN, 1, NAN, 2};
    struct route routes[5];
    experts_choose(logits, 5, 5, 1, routes);
    unsigned seen = 0;
    for (int r = 0; r < 5; r++) {
        assert_true(routes[r].expert < 5);
        seen |= 1u << routes[r].expert;
    }
    assert_int_equal(seen, 31);
}

/* Of a file that wants all of the most experts there may be: some 10^7 steps, not 10^10. */
static void the_most_experts_are_ordered_in_no_time(void **state)
{
    (void)state;
    static float logits[MODEL_MAX_EXPERTS];
    static struct route routes[MODEL_MAX_EXPERTS];
    static uint8_t seen[MODEL_MAX_EXPERTS];
    for (uint32_t i = 0; i < MODEL_MAX_EXPERTS; i++)
        logits[i] = (float)(rand_at(1, i) % 1000) / 100;
    const clock_t before = clock();
    experts_choose(logits, MODEL_MAX_EXPERTS, MODEL_MAX_EXPERTS, 1, routes);
    assert_true(clock() - before < 2 * CLOCKS_PER_SEC);
    for (uint32_t i = 0; i < MODEL_MAX_EXPERTS; i++) {
        const struct route *r = &routes[i];
        assert_int_equal(seen[r->expert]++, 0);
        assert_true(i == 0 || logits[r->expert] < logits[r[-1].expert] ||
                    (logits[r->expert] == logits[r[-1].expert] && r->expert > r[-1].expert));
    }
}

/* --- whole models --------------------------------------------------------------------------------------------------------- */

struct capture {
    float logits[N_IDS][MAX_VOCAB]; /* of sequence 0 */
};

static void keep(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct capture *c = ctx;
    assert_true(n_vocab <= MAX_VOCAB);
    if (seq == 0)
        memcpy(c->logits[position], logits, n_vocab * sizeof *logits);
}

static uint32_t id_at(uint32_t seq, uint32_t position)
{
    return 3 + (uint32_t)(rand_at(seq, position) % 300);
}

/* Sequence 0 in pieces of `piece` rows, behind or before `beside` rows of another sequence in every tick. */
static struct capture *run(const char *name, int n_threads, uint32_t n_stages, uint32_t piece, uint32_t beside)
{
    char path[512];
    struct error err;
    struct chain *c;
    struct capture *capture = calloc(1, sizeof *capture);
    uint32_t others = 0;
    snprintf(path, sizeof path, "%s/tiny/%s.gguf", SLUICE_VECTORS, name);
    const struct chain_options o = {.model_path = path, .n_threads = n_threads, .n_stages = n_stages, .context = 512,
                                    .max_rows = 256};
    if (chain_open(&o, &c, &err) != STATUS_OK)
        fail_msg("%s: %s", name, err.message);
    chain_set_logits_sink(c, keep, capture);
    for (uint32_t at = 0; at < N_IDS; at += piece) {
        struct chain_row rows[256] = {0};
        uint32_t n = 0, own = N_IDS - at < piece ? N_IDS - at : piece;
        for (uint32_t i = 0; i < beside; i++, others++)
            rows[n++] = (struct chain_row){.seq = 1, .position = others, .id = id_at(1, others), .sampler = &chain_greedy};
        for (uint32_t i = 0; i < own; i++)
            rows[n++] = (struct chain_row){.seq = 0, .position = at + i, .id = id_at(0, at + i), .sampler = &chain_greedy};
        assert_int_equal(chain_run(c, rows, n, NULL), STATUS_OK);
    }
    chain_close(c);
    return capture;
}

static void a_row_has_the_same_bits_whatever_runs_beside_it(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral-f32", "qwen3moe-q8_0", "qwen3moe-q4_k", "gemma3-q8_0"};
    static const struct {
        int n_threads;
        uint32_t n_stages, piece, beside;
    } ways[] = {{2, 1, N_IDS, 0}, {3, 2, 1, 0}, {2, 1, 9, 11}, {1, 2, 33, 30}, {5, 1, 16, 1}};
    for (size_t m = 0; m < ARRAY_LEN(names); m++) {
        struct capture *want = run(names[m], 1, 1, N_IDS, 0);
        for (size_t w = 0; w < ARRAY_LEN(ways); w++) {
            struct capture *got = run(names[m], ways[w].n_threads, ways[w].n_stages, ways[w].piece, ways[w].beside);
            if (memcmp(want, got, sizeof *want) != 0)
                fail_msg("%s, way %zu: other bits", names[m], w);
            free(got);
        }
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_experts_come_first_and_of_equals_the_lower_index),
        cmocka_unit_test(weights_are_those_of_the_softmax_over_all_or_over_the_chosen),
        cmocka_unit_test(the_most_experts_are_ordered_in_no_time),
        cmocka_unit_test(a_row_of_nan_still_goes_to_different_experts),
        cmocka_unit_test(a_row_has_the_same_bits_whatever_runs_beside_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
