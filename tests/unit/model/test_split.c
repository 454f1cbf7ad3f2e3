#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "common/model/split.h"
#include "tests/unit/model/gguf_maker.h"

/* SmolLM2-135M, Q4_1. */
static const struct maker_shape SMOLLM2 = {.n_layers = 30,
                                           .n_embd = 576,
                                           .n_heads = 9,
                                           .n_kv_heads = 3,
                                           .n_ff = 1536,
                                           .n_vocab = 49152,
                                           .type = TENSOR_Q4_1,
                                           .tied = 1};
static const struct maker_shape SMALL = {
    .n_layers = 8, .n_embd = 32, .n_heads = 2, .n_kv_heads = 1, .n_ff = 64, .n_vocab = 40, .type = TENSOR_F32};

struct fixture {
    struct maker *maker;
    uint8_t *bytes;
    struct model model;
};

static void open_made(struct fixture *f)
{
    struct gguf *g;
    struct error err = {0};
    size_t len;
    f->bytes = maker_write(f->maker, &len);
    if (gguf_open_memory(f->bytes, len, &g, &err) != STATUS_OK ||
        model_from_gguf(g, "made", &f->model, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static struct fixture open_shape(const struct maker_shape *shape)
{
    struct fixture f = {.maker = maker_create()};
    maker_llama(f.maker, shape);
    open_made(&f);
    return f;
}

static void close_fixture(struct fixture *f)
{
    model_close(&f->model);
    free(f->bytes);
    maker_destroy(f->maker);
}

static void assert_cut(const struct split *s, const uint32_t *first, uint32_t n)
{
    assert_int_equal(s->n_stages, n);
    for (uint32_t i = 0; i <= n; i++)
        if (s->first_layer[i] != first[i])
            fail_msg("stage %u starts at layer %u, not %u", i, s->first_layer[i], first[i]);
}

static void refused(const struct model *m, uint32_t n_stages, const char *spec, const char *why)
{
    struct split s = {.n_stages = 77};
    struct error err = {0};
    assert_int_equal(split_plan(m, n_stages, spec, &s, &err), STATUS_CONFIG);
    assert_int_equal(s.n_stages, 77);
    if (!strstr(err.message, why))
        fail_msg("'%s' does not say '%s'", err.message, why);
}

/* --- the cost of a cut, computed apart from split.c
 * ------------------------------------------------------------------------ */

/* Half of the share of bytes read, half of the share of multiply-adds. */
static double stage_cost(const struct maker *m, const uint32_t *first, uint32_t n_stages, uint32_t stage)
{
    double bytes = 0, macs = 0, all_bytes = 0, all_macs = 0;
    int tied = 1;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        tied = tied && strcmp(m->tensors[i].name, "output.weight") != 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct maker_tensor *t = &m->tensors[i];
        const struct tensor_type_info *info = tensor_type_info(t->type);
        double size = (double)t->ne[0] * (double)t->ne[1] / info->block_elements * info->block_bytes, here = 0;
        double work = t->n_dims == 2 ? (double)t->ne[0] * (double)t->ne[1] : 0;
        unsigned layer;
        int last = stage + 1 == n_stages;
        if (sscanf(t->name, "blk.%u.", &layer) == 1) {
            here = layer >= first[stage] && layer < first[stage + 1];
        } else if (strcmp(t->name, "token_embd.weight") == 0) {
            double row = size / (double)t->ne[1];
            bytes += (stage == 0 ? row : 0) + (tied && last ? size : 0);
            all_bytes += row + (tied ? size : 0);
            continue;
        } else {
            here = last;
            work = 0;
        }
        bytes += here * size;
        macs += here * work;
        all_bytes += size;
        all_macs += work;
    }
    return 0.25 * bytes / all_bytes + 0.75 * macs / all_macs;
}

static double largest_stage(const struct maker *m, const uint32_t *first, uint32_t n_stages)
{
    double most = 0;
    for (uint32_t s = 0; s < n_stages; s++) {
        double c = stage_cost(m, first, n_stages, s);
        most = c > most ? c : most;
    }
    return most;
}

/* Tries every cut. */
static double best_by_search(const struct maker *m, uint32_t *first, uint32_t stage, uint32_t n_stages)
{
    double best = 1e9;
    if (stage == n_stages)
        return largest_stage(m, first, n_stages);
    for (uint32_t at = first[stage - 1] + 1; at + (n_stages - stage) <= first[n_stages]; at++) {
        first[stage] = at;
        double c = best_by_search(m, first, stage + 1, n_stages);
        best = c < best ? c : best;
    }
    return best;
}

static void assert_is_best(struct fixture *f, uint32_t n_stages)
{
    uint32_t first[MAX_STAGES + 1] = {0}, n_layers = f->model.hp.n_layers;
    struct split s;
    assert_int_equal(split_plan(&f->model, n_stages, "auto", &s, NULL), STATUS_OK);
    assert_int_equal(s.n_stages, n_stages);
    assert_int_equal(s.first_layer[0], 0);
    assert_int_equal(s.first_layer[n_stages], n_layers);
    for (uint32_t i = 0; i < n_stages; i++)
        assert_true(s.first_layer[i] < s.first_layer[i + 1]);
    first[n_stages] = n_layers;
    double best = best_by_search(f->maker, first, 1, n_stages), got = largest_stage(f->maker, s.first_layer, n_stages);
    if (got > best + 1e-9)
        fail_msg("%u stages: the slowest has %.6f, possible is %.6f", n_stages, got, best);
}

/* --- auto
 * --------------------------------------------------------------------------------------------------------------- */

/* By hand: a layer reads 2.2 MB, the head 17.7 MB, as much as 8 layers; so a layer is 0.25/38 + 0.75/30 = 0.0316 of all
 * and the head 0.25 * 8/38 = 0.053: half of all is reached within the 16th layer. */
static void split_auto_counts_the_head_of_a_small_model(void **state)
{
    (void)state;
    struct fixture f = open_shape(&SMOLLM2);
    struct split s;
    assert_int_equal(split_plan(&f.model, 2, "auto", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 16, 30}, 2);
    assert_int_equal(split_plan(&f.model, 2, NULL, &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 16, 30}, 2);
    assert_int_equal(split_plan(&f.model, 1, "auto", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 30}, 1);
    assert_int_equal(split_plan(&f.model, 30, "auto", &s, NULL), STATUS_OK);
    for (uint32_t i = 0; i <= 30; i++)
        assert_int_equal(s.first_layer[i], i);
    close_fixture(&f);
}

static void split_auto_of_equal_layers_without_a_heavy_head_is_even(void **state)
{
    (void)state;
    struct maker_shape shape = SMALL;
    shape.n_vocab = 1;
    shape.n_layers = 12;
    struct fixture f = open_shape(&shape);
    struct split s;
    assert_int_equal(split_plan(&f.model, 4, "auto", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 3, 6, 9, 12}, 4);
    close_fixture(&f);
}

/* The head outweighs all layers: the last stage has one layer, and the others, which no longer matter for the slowest
 * stage, are even all the same. */
static void split_auto_keeps_the_other_stages_even_when_the_head_decides(void **state)
{
    (void)state;
    struct maker_shape shape = SMALL;
    shape.n_vocab = 20000;
    shape.n_layers = 7;
    struct fixture f = open_shape(&shape);
    struct split s;
    assert_int_equal(split_plan(&f.model, 3, "auto", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 3, 6, 7}, 3);
    close_fixture(&f);
}

static void split_auto_is_the_best_of_all_cuts(void **state)
{
    (void)state;
    enum { MODELS = 12 };
    static const uint32_t types[] = {TENSOR_F32, TENSOR_F16, TENSOR_Q8_0, TENSOR_Q4_0};
    for (uint32_t k = 0; k < MODELS; k++) {
        struct maker_shape shape = SMALL;
        struct fixture f = {.maker = maker_create()};
        shape.n_layers = 5 + k % 4;
        shape.n_vocab = 10 + (uint32_t)(rand_at(k, 0) % 500);
        shape.tied = k % 2;
        maker_llama(f.maker, &shape);
        /* Mixed files: every matrix its own type, so that layers weigh differently. */
        for (uint32_t i = 0; i < f.maker->n_tensors; i++)
            if (f.maker->tensors[i].n_dims == 2)
                f.maker->tensors[i].type = types[rand_at(k, i + 1) % ARRAY_LEN(types)];
        open_made(&f);
        for (uint32_t n = 1; n <= 4; n++)
            assert_is_best(&f, n);
        close_fixture(&f);
    }
}

static void split_auto_of_the_deepest_model_takes_less_than_a_second(void **state)
{
    (void)state;
    struct maker_shape shape = SMALL;
    shape.n_layers = 1024;
    struct fixture f = open_shape(&shape);
    struct split s;
    clock_t start = clock(); /* of this process alone: the host may be busy */
    assert_int_equal(split_plan(&f.model, MAX_STAGES, "auto", &s, NULL), STATUS_OK);
    assert_true(clock() - start < CLOCKS_PER_SEC);
    assert_int_equal(s.first_layer[MAX_STAGES], 1024);
    close_fixture(&f);
}

/* --- lists
 * -------------------------------------------------------------------------------------------------------------- */

static void split_list_is_taken_as_it_stands(void **state)
{
    (void)state;
    struct fixture f = open_shape(&SMALL);
    struct split s;
    assert_int_equal(split_plan(&f.model, 2, "3", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 3, 8}, 2);
    assert_int_equal(split_plan(&f.model, 4, "1,2,7", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 1, 2, 7, 8}, 4);
    assert_int_equal(split_plan(&f.model, 8, "1,2,3,4,5,6,7", &s, NULL), STATUS_OK);
    assert_cut(&s, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, 8);
    close_fixture(&f);
}

static void split_list_that_does_not_fit_is_refused_with_both_numbers(void **state)
{
    (void)state;
    struct fixture f = open_shape(&SMALL);
    const struct model *m = &f.model;
    refused(m, 0, "auto", "0 stages, not in 1..64");
    refused(m, 65, "auto", "65 stages, not in 1..64");
    refused(m, 9, "auto", "9 stages, but the model has only 8 layers");
    refused(m, 9, "1,2,3,4,5,6,7,8", "9 stages, but the model has only 8 layers");
    refused(m, 3, "2", "names 1 layers; 3 stages need 2");
    refused(m, 3, "2,4,6", "names more than 2 layers; 3 stages need 2");
    refused(m, 1, "2", "names more than 0 layers; 1 stages need 0");
    refused(m, 3, "0,4", "stage 1 starts at layer 0, not in 1..7");
    refused(m, 3, "4,4", "stage 2 starts at layer 4, not in 5..7");
    refused(m, 3, "4,3", "stage 2 starts at layer 3, not in 5..7");
    refused(m, 3, "4,8", "stage 2 starts at layer 8, not in 5..7");
    refused(m, 2, "4294967297", "not 'auto' or layers");
    refused(m, 2, "18446744073709551617", "not 'auto' or layers");
    static const char *const nonsense[] = {"-1",   "4,",  ",4",  "4,,5",  "4 ",   " 4",
                                           "four", "0x4", "4.5", "autos", "AUTO", "+4"};
    for (size_t i = 0; i < ARRAY_LEN(nonsense); i++)
        refused(m, 3, nonsense[i], "not 'auto' or layers with commas");
    close_fixture(&f);
}

/* Two of eight experts: the cut weighs a layer as one of a quarter of its experts' size, so as one whose MLP is dense and as
 * large as two. */
static void split_counts_the_experts_that_a_token_meets(void **state)
{
    (void)state;
    struct maker_shape dense = SMALL, shape = SMALL;
    shape.n_experts = 8;
    shape.n_experts_used = 2;
    shape.n_ff_expert = 64;
    dense.n_ff = 128;
    shape.n_vocab = dense.n_vocab = 2000;
    struct fixture f = open_shape(&shape), g = open_shape(&dense);
    struct split s, want;
    for (uint32_t n = 2; n <= 4; n++) {
        assert_int_equal(split_plan(&f.model, n, "auto", &s, NULL), STATUS_OK);
        assert_int_equal(split_plan(&g.model, n, "auto", &want, NULL), STATUS_OK);
        assert_cut(&s, want.first_layer, n);
    }
    close_fixture(&f);
    close_fixture(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_auto_counts_the_head_of_a_small_model),
        cmocka_unit_test(split_auto_of_equal_layers_without_a_heavy_head_is_even),
        cmocka_unit_test(split_auto_keeps_the_other_stages_even_when_the_head_decides),
        cmocka_unit_test(split_auto_is_the_best_of_all_cuts),
        cmocka_unit_test(split_auto_of_the_deepest_model_takes_less_than_a_second),
        cmocka_unit_test(split_list_is_taken_as_it_stands),
        cmocka_unit_test(split_list_that_does_not_fit_is_refused_with_both_numbers),
        cmocka_unit_test(split_counts_the_experts_that_a_token_meets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
