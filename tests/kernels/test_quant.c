/* Blocks decode to the bit as gguf-py decodes them (tests/vectors/quants: blocks, then their float32 values). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/base/check.h"
#include "kernels/block.h"
#include "kernels/ops.h"
#include "kernels/quant.h"

static uint8_t *read_file(const char *name, size_t *size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/quants/%s.bin", SLUICE_VECTORS, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is missing", path);
    enum { MAX = 1 << 20 };
    uint8_t *p = malloc(MAX);
    assert_non_null(p);
    *size = fread(p, 1, MAX, f);
    fclose(f);
    return p;
}

static void every_supported_type_decodes_as_gguf_py(void **state)
{
    static const struct {
        enum tensor_type type;
        const char *name;
    } types[] = {
#define T(name) {TENSOR_##name, #name},
        T(F16) T(BF16) T(Q4_0) T(Q4_1) T(Q5_0) T(Q5_1) T(Q8_0) T(Q2_K) T(Q3_K) T(Q4_K) T(Q5_K) T(Q6_K) T(TQ1_0) T(TQ2_0)
        T(MXFP4) T(NVFP4) T(IQ1_S) T(IQ1_M) T(IQ2_XXS) T(IQ2_XS) T(IQ2_S) T(IQ3_XXS) T(IQ3_S) T(IQ4_NL) T(IQ4_XS)
#undef T
    };
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        size_t size;
        uint32_t elements, bytes;
        uint8_t *file = read_file(types[t].name, &size);
        block_size(types[t].type, &elements, &bytes);
        size_t n_blocks = size / (bytes + 4 * (size_t)elements), n = n_blocks * elements;
        assert_int_equal(n_blocks * (bytes + 4 * elements), size);
        assert_true(n_blocks >= 64);
        float *got = malloc(n * sizeof *got);
        assert_int_equal(quant_decode_row(types[t].type, file, (uint32_t)n, got), 1);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&got[i], file + n_blocks * bytes + 4 * i, 4) != 0)
                fail_msg("%s: value %zu is %a", types[t].name, i, (double)got[i]);
        free(got);
        free(file);
    }
}

static void f32_rows_are_copied(void **state)
{
    const float in[3] = {1.5f, -0.f, 3e38f};
    float out[3];
    (void)state;
    assert_int_equal(quant_decode_row(TENSOR_F32, in, 3, out), 1);
    assert_memory_equal(in, out, sizeof in);
}

static void types_that_hold_no_weights_are_refused_by_name(void **state)
{
    static const enum tensor_type types[] = {TENSOR_I8, TENSOR_I16, TENSOR_I32, TENSOR_I64, TENSOR_F64};
    const struct ops *ops;
    struct error err;
    struct weight w;
    float out = 7;
    (void)state;
    assert_int_equal(ops_open("auto", "auto", &ops, &err), STATUS_OK);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        assert_false(quant_supported(types[i]));
        assert_int_equal(quant_decode_row(types[i], "", 1, &out), 0);
        assert_true(out == 7);
        assert_int_equal(weight_prepare(ops, types[i], 16, 256, "", &w, &err), STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.message, block_type_name(types[i])));
    }
    assert_int_equal(weight_prepare(ops, (enum tensor_type)99, 16, 256, "", &w, &err), STATUS_UNSUPPORTED);
}

static void types_without_products_of_their_own_are_packed_as_f32(void **state)
{
    static const enum tensor_type types[] = {TENSOR_Q2_K, TENSOR_IQ1_M, TENSOR_MXFP4};
    const struct ops *ops;
    struct error err;
    struct weight w;
    (void)state;
    assert_int_equal(ops_open("cpu", "portable", &ops, &err), STATUS_OK);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        assert_int_equal(weight_prepare(ops, types[i], 17, 512, "", &w, &err), STATUS_OK);
        assert_false(weight_is_quantized(&w));
        assert_int_equal(ops->weight_bytes(types[i], 17, 512), 32 * 512 * sizeof(float));
    }
    assert_int_equal(weight_prepare(ops, TENSOR_IQ1_M, 17, 128, "", &w, &err), STATUS_BAD_MODEL);
}

static void a_row_that_is_no_whole_number_of_blocks_is_refused(void **state)
{
    const struct ops *ops;
    struct error err;
    struct weight w;
    (void)state;
    assert_int_equal(ops_open("cpu", "portable", &ops, &err), STATUS_OK);
    assert_int_equal(weight_prepare(ops, TENSOR_Q4_1, 16, 48, "", &w, &err), STATUS_BAD_MODEL);
    assert_int_equal(weight_prepare(ops, TENSOR_Q6_K, 16, 128, "", &w, &err), STATUS_BAD_MODEL);
    assert_int_equal(weight_prepare(ops, TENSOR_F32, 0, 128, "", &w, &err), STATUS_BAD_MODEL);
    assert_int_equal(weight_prepare(ops, TENSOR_F32, 3, 0, "", &w, &err), STATUS_BAD_MODEL);
    assert_int_equal(weight_prepare(ops, TENSOR_Q4_1, 1, 96, "", &w, &err), STATUS_OK);
    assert_true(weight_is_quantized(&w));
}

static void unknown_backends_and_instruction_sets_are_refused(void **state)
{
    const struct ops *ops = NULL;
    struct error err;
    (void)state;
    assert_int_equal(ops_open("cuda", "auto", &ops, &err), STATUS_CONFIG);
    assert_int_equal(ops_open("gpu", "auto", &ops, &err), STATUS_CONFIG);
    assert_int_equal(ops_open("cpu", "sse9", &ops, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "sse9"));
    assert_null(ops);
    assert_non_null(ops_isa_missing("sse9"));
    assert_null(ops_isa_missing("portable"));
    if (ops_isa_missing("amx")) {
        assert_int_equal(ops_open("cpu", "amx", &ops, &err), STATUS_CONFIG);
        assert_non_null(strstr(err.message, ops_isa_missing("amx")));
    }
}

static int decodes_to_numbers(enum tensor_type type, const uint8_t *block, uint32_t elements)
{
    float value[BLOCK_ELEMENTS_MAX];
    int finite = 1;
    assert_int_equal(quant_decode_row(type, block, elements, value), 1);
    for (uint32_t i = 0; i < elements; i++)
        finite &= isfinite(value[i]) != 0;
    return finite;
}

/* Random blocks, and such whose halves are all of one pattern: zero, subnormal, largest, infinite, NaN. */
static void a_row_is_finite_where_every_value_that_it_decodes_to_is(void **state)
{
    static const uint16_t halves[] = {0x0000, 0x0001, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xffff};
    uint32_t seed = 12345, n_infinite = 0, n_finite = 0;
    (void)state;
    for (uint32_t type = 0; type < 64; type++) {
        uint8_t block[1024];
        uint32_t elements, bytes;
        block_size((enum tensor_type)type, &elements, &bytes);
        if (bytes == 0 || !quant_supported((enum tensor_type)type))
            continue;
        for (size_t i = 0; i < 200 + ARRAY_LEN(halves); i++) {
            for (uint32_t b = 0; b < bytes; b++) {
                seed = seed * 1664525 + 1013904223;
                block[b] = i < 200 ? (uint8_t)(seed >> 24) : (uint8_t)(halves[i - 200] >> 8 * (b & 1));
            }
            const int finite = decodes_to_numbers((enum tensor_type)type, block, elements);
            n_finite += finite != 0;
            n_infinite += !finite;
            if (quant_row_is_finite((enum tensor_type)type, block, elements) != finite)
                fail_msg("%s, block %zu: %d expected", block_type_name((enum tensor_type)type), i, finite);
        }
    }
    assert_true(n_finite > 1000 && n_infinite > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_supported_type_decodes_as_gguf_py),
        cmocka_unit_test(f32_rows_are_copied),
        cmocka_unit_test(a_row_is_finite_where_every_value_that_it_decodes_to_is),
        cmocka_unit_test(types_that_hold_no_weights_are_refused_by_name),
        cmocka_unit_test(types_without_products_of_their_own_are_packed_as_f32),
        cmocka_unit_test(a_row_that_is_no_whole_number_of_blocks_is_refused),
        cmocka_unit_test(unknown_backends_and_instruction_sets_are_refused),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
