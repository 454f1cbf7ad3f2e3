/* Every instruction set gives the bits of the scalar reference, for every operation of the op table. Those that this host
 * lacks are skipped in test_ops, and run with emulated instructions in test_ops_emulated (this file with -DEMULATED=1). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "common/model/hparams.h"
#include "kernels/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/math.h"
#include "tests/kernels/op_table.h"

static const char *const isas[] = {"portable", "avx2", "avxvnni", "avx512", "amx"};
enum { N_ISAS = 5, MAX_THREADS = 3 };
static const struct ops *tables[N_ISAS], *ref; /* NULL: not on this host */
static struct team *teams[MAX_THREADS + 1];

static const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q8_0, TENSOR_Q4_K,
                                         TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_F32,  TENSOR_F16,  TENSOR_BF16};

/* Types without integer products: packed as F32. */
static const enum tensor_type plain[] = {TENSOR_Q2_K,   TENSOR_Q3_K,  TENSOR_TQ1_0,   TENSOR_TQ2_0, TENSOR_MXFP4,
                                         TENSOR_NVFP4,  TENSOR_IQ1_S, TENSOR_IQ1_M,   TENSOR_IQ2_S, TENSOR_IQ2_XXS,
                                         TENSOR_IQ2_XS, TENSOR_IQ3_S, TENSOR_IQ3_XXS, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

static int differs(const struct op_entry *e, float a, float b)
{
    if (math_bits(a) == math_bits(b) || (isnan(a) && isnan(b)))
        return 0;
    return !(e->tolerance > 0 && fabsf(a - b) <= e->tolerance * fabsf(a));
}

static void compare(const struct op_entry *e, const struct op *want, const struct op *got, const char *isa, int n_threads)
{
    const struct op_shape *s = &want->s;
    for (size_t i = 0; i < want->n_out; i++)
        if (differs(e, want->y[i], got->y[i]))
            fail_msg("%s on %s: value %zu of %zu is %a, not %a (type %d rows %u n %u k %u heads %u/%u x %u blocks of %u "
                     "position %u window %u kind %d, %d threads)",
                     e->name, isa, i, want->n_out, (double)got->y[i], (double)want->y[i], (int)s->type, s->rows, s->n, s->k,
                     s->n_heads, s->n_kv_heads, s->head_dim, s->block_positions, s->position, s->window, s->kind, n_threads);
}

/* The emulation is many times slower. */
#if EMULATED
enum { THIN = 3 };
#else
enum { THIN = 1 };
#endif

/* All instruction sets on one shape. The number of threads goes round; every THIN-th shape is taken. */
static void check(const char *name, const struct op_shape *s, uint64_t seed)
{
    static unsigned n_calls;
    const struct op_entry *e = op_find(name);
    const int t = (int)(n_calls++ / THIN % MAX_THREADS) + 1;
    assert_non_null(e);
    if (n_calls % THIN)
        return;
    struct op *want = op_create(e, ref, s, seed, MAX_THREADS);
    op_run(want, teams[1]);
    for (int i = 0; i < N_ISAS; i++) {
        if (!tables[i])
            continue;
        struct op *got = op_create(e, tables[i], s, seed, MAX_THREADS);
        op_run(got, teams[t]);
        compare(e, want, got, isas[i], t);
        op_destroy(got);
    }
    op_destroy(want);
}

static void products_equal_ref_for_1_to_40_rows(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (uint32_t rows = 1; rows <= 40; rows++)
            check("matmul", &(struct op_shape){.type = types[t], .rows = rows, .n = 16 + rows % 3 * 16, .k = 256, .special = 1},
                  rows);
}

static void products_equal_ref_for_any_number_of_outputs(void **state)
{
    static const uint32_t ns[] = {1, 7, 8, 9, 15, 17, 31, 33, 63, 81};
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; i < ARRAY_LEN(ns); i++)
            for (uint32_t rows = 1; rows <= 6; rows += 5)
                check("matmul", &(struct op_shape){.type = types[t], .rows = rows, .n = ns[i], .k = 256}, i);
}

static int is_k_quant(enum tensor_type t)
{
    return t == TENSOR_Q4_K || t == TENSOR_Q5_K || t == TENSOR_Q6_K;
}

static void products_equal_ref_for_any_row_length(void **state)
{
    static const uint32_t ks[] = {32, 64, 96, 160, 544, 576, 896, 1504, 1536, 1568, 2048, 4864};
    static const uint32_t row_counts[] = {1, 3, 5, 17, 33};
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; i < ARRAY_LEN(ks); i++)
            for (size_t r = 0; r < ARRAY_LEN(row_counts); r++)
                if (!is_k_quant(types[t]) || ks[i] % 256 == 0)
                    check("matmul",
                          &(struct op_shape){.type = types[t], .rows = row_counts[r], .n = 19, .k = ks[i], .special = 1}, r);
}

static void products_equal_ref_for_shapes_that_no_tile_divides(void **state)
{
    static const uint32_t ns[] = {1, 17, 300}, ks[] = {32, 96, 160, 256, 320}, row_counts[] = {1, 2, 19};
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types) + ARRAY_LEN(plain); t++)
        for (size_t k = 0; k < ARRAY_LEN(ks); k++)
            for (size_t i = 0; i < 9; i++) {
                enum tensor_type type = t < ARRAY_LEN(types) ? types[t] : plain[t - ARRAY_LEN(types)];
                uint32_t elements, bytes;
                block_size(type, &elements, &bytes);
                if (ks[k] % elements == 0)
                    check("matmul", &(struct op_shape){.type = type, .rows = row_counts[i % 3], .n = ns[i / 3], .k = ks[k], .special = 1},
                          i);
            }
}

static void several_products_of_one_call_equal_ref(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        check("matmul3", &(struct op_shape){.type = types[t], .rows = 5, .n = 33, .k = 256}, t);
}

static void activations_equal_ref(void **state)
{
    static const char *const names[] = {"acts_rows", "acts_norm", "acts_gate"};
    static const uint32_t row_counts[] = {1, 2, 8, 15, 16, 17, 40};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        for (size_t r = 0; r < ARRAY_LEN(row_counts); r++)
            for (int kind = 0; kind < 2; kind++)
                check(names[i],
                      &(struct op_shape){.type = TENSOR_Q8_0, .rows = row_counts[r], .n = 24, .k = 352, .kind = kind, .special = 1},
                      r);
}

static void activations_of_odd_lengths_equal_ref(void **state)
{
    (void)state;
    for (uint32_t k = 1; k < 50; k += 3) {
        check("acts_norm", &(struct op_shape){.type = TENSOR_F32, .rows = 5, .k = k, .kind = 1}, k);
        check("acts_gate", &(struct op_shape){.type = TENSOR_F32, .rows = 5, .k = k, .kind = GATE_GELU_TANH}, k);
        check("norm", &(struct op_shape){.rows = 3, .k = k}, k);
        check("add", &(struct op_shape){.rows = 3, .k = k}, k);
    }
}

static void row_operations_equal_ref(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows < 40; rows += 9) {
        check("add", &(struct op_shape){.rows = rows, .k = 576, .special = 1}, rows);
        check("add_bias", &(struct op_shape){.rows = rows, .k = 192, .special = 1}, rows);
        check("norm", &(struct op_shape){.rows = rows, .k = 576, .special = 1}, rows);
        for (uint32_t hd = 8; hd <= 136; hd += 8)
            check("head_norm", &(struct op_shape){.rows = rows, .k = 3 * hd, .n_heads = 3, .head_dim = hd, .special = 1}, rows);
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            check("embed", &(struct op_shape){.type = types[t], .rows = rows, .n = 50, .k = 256}, rows);
        for (size_t t = 0; t < ARRAY_LEN(plain); t++)
            check("embed", &(struct op_shape){.type = plain[t], .rows = rows, .n = 50, .k = 256}, rows);
    }
}

static void rope_equals_ref_for_both_pairings(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t hd = 8; hd <= 128; hd += 24)
            for (uint32_t n_rot = 2; n_rot <= hd; n_rot += 6)
                check("rope",
                      &(struct op_shape){.rows = 19, .n = n_rot, .n_heads = 3, .head_dim = hd, .kind = kind, .position = 99990},
                      n_rot);
}

static void attention_equals_ref_for_every_block_size_and_head_size(void **state)
{
    static const uint32_t dims[] = {8, 16, 24, 32, 40, 64, 96, 128};
    (void)state;
    for (uint32_t block = 16; block <= 128; block *= 2)
        for (size_t d = 0; d < ARRAY_LEN(dims); d++)
            for (uint32_t position = 0; position < 200; position += 61)
                check("attention",
                      &(struct op_shape){.rows = 1 + position % 5 * 9, .n_heads = 6, .n_kv_heads = 2, .head_dim = dims[d],
                                         .block_positions = block, .position = position},
                      position);
}

static void attention_equals_ref_for_windows_and_many_sequences(void **state)
{
    static const uint32_t windows[] = {0, 1, 5, 32, 64, 100};
    (void)state;
    for (size_t w = 0; w < ARRAY_LEN(windows); w++)
        for (uint32_t heads = 1; heads <= 4; heads++)
            for (uint32_t seqs = 1; seqs <= 7; seqs += 3)
                check("attention",
                      &(struct op_shape){.rows = 40, .n_heads = heads, .n_kv_heads = heads == 4 ? 2 : 1, .head_dim = 16,
                                         .block_positions = 32, .position = 130, .window = windows[w], .n_sequences = seqs},
                      w);
}

static void attention_equals_ref_for_wide_heads_and_bounded_scores(void **state)
{
    static const uint32_t dims[] = {16, 32, 128, 256};
    static const float caps[] = {0.5f, 50};
    (void)state;
    for (size_t d = 0; d < ARRAY_LEN(dims); d++)
        for (size_t c = 0; c < ARRAY_LEN(caps); c++)
            for (uint32_t rows = 1; rows <= 40; rows += 13)
                for (uint32_t window = 0; window <= 32; window += 32)
                    check("attention",
                          &(struct op_shape){.rows = rows, .n_heads = 4, .n_kv_heads = 1, .head_dim = dims[d], .block_positions = 32,
                                             .position = 61, .window = window, .softcap = dims[d] == 256 ? 0 : caps[c]},
                          rows);
}

static void bounding_logits_equals_ref(void **state)
{
    static const uint32_t ks[] = {1, 15, 16, 33, 320, 1000};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ks); i++)
        for (uint32_t rows = 1; rows <= 17; rows += 8)
            for (float cap = 0.25f; cap < 50; cap *= 10)
                check("softcap", &(struct op_shape){.rows = rows, .k = ks[i], .softcap = cap, .special = 1}, i);
}

#if EMULATED
static void open_tables(struct error *err)
{
    if (ops_isa_missing("avx2")) {
        print_message("skipped: the emulation needs AVX2, and %s\n", ops_isa_missing("avx2"));
        exit(77);
    }
    (void)err;
    tables[2] = &ops_cpu_avxvnni;
    tables[3] = &ops_cpu_avx512;
    tables[4] = &ops_cpu_amx;
}
#else
static void open_tables(struct error *err)
{
    for (int i = 0; i < N_ISAS; i++) {
        const char *why = ops_isa_missing(isas[i]);
        if (why)
            print_message("%s is skipped: %s\n", isas[i], why);
        else
            assert_int_equal(ops_open("cpu", isas[i], &tables[i], err), STATUS_OK);
    }
}
#endif

static int set_up(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(ops_open("ref", "auto", &ref, &err), STATUS_OK);
    open_tables(&err);
    for (int t = 1; t <= MAX_THREADS; t++)
        assert_int_equal(team_create(t, NULL, &teams[t], &err), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int t = 1; t <= MAX_THREADS; t++)
        team_destroy(teams[t]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_ref_for_1_to_40_rows),
        cmocka_unit_test(products_equal_ref_for_any_number_of_outputs),
        cmocka_unit_test(products_equal_ref_for_any_row_length),
        cmocka_unit_test(products_equal_ref_for_shapes_that_no_tile_divides),
        cmocka_unit_test(several_products_of_one_call_equal_ref),
        cmocka_unit_test(activations_equal_ref),
        cmocka_unit_test(activations_of_odd_lengths_equal_ref),
        cmocka_unit_test(row_operations_equal_ref),
        cmocka_unit_test(rope_equals_ref_for_both_pairings),
        cmocka_unit_test(attention_equals_ref_for_every_block_size_and_head_size),
        cmocka_unit_test(attention_equals_ref_for_windows_and_many_sequences),
        cmocka_unit_test(attention_equals_ref_for_wide_heads_and_bounded_scores),
        cmocka_unit_test(bounding_logits_equals_ref),
    };
    return cmocka_run_group_tests_name("ops", tests, set_up, tear_down);
}
