/* A row's values depend on that row alone, whatever stands beside it; and what ref says is right in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "kernels/block.h"
#include "kernels/kv.h"
#include "kernels/math.h"
#include "kernels/quant.h"
#include "tests/kernels/op_table.h"

static struct team *team;

static const struct ops *open_ops(const char *backend, const char *isa)
{
    const struct ops *ops;
    struct error err;
    assert_int_equal(ops_open(backend, isa, &ops, &err), STATUS_OK);
    return ops;
}

/* The rows [first, first + n) of all alone give the rows of the whole. */
static void compare_cut(struct op *all, uint32_t first, uint32_t n)
{
    struct op_shape s = all->s;
    s.rows = n;
    size_t stride = s.n + 3;
    struct op *part = op_create(all->entry, all->ops, &s, all->seed, 2);
    all->ops->acts_rows(&part->acts, all->x + (size_t)first * s.k, n, s.k, weight_is_quantized(&all->w), 0, 1);
    op_run(part, team);
    for (uint32_t r = 0; r < n; r++)
        assert_memory_equal(part->y + r * stride, all->y + (first + r) * stride, s.n * sizeof(float));
    op_destroy(part);
}

static void products_do_not_depend_on_the_rows_beside(void **state)
{
    static const enum tensor_type types[] = {TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_Q6_K, TENSOR_F16};
    const struct ops *ops = open_ops("auto", "auto");
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct op *all = op_create(op_find("matmul"), ops, &(struct op_shape){.type = types[t], .rows = 200, .n = 40, .k = 768}, t, 2);
        op_run(all, team);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t n = 1 + (uint32_t)(rand_at(t, i) % 40);
            compare_cut(all, (uint32_t)(rand_at(t + 1, i) % (200 - n)), n);
        }
        op_destroy(all);
    }
}

static void attention_does_not_depend_on_how_rows_are_cut(void **state)
{
    const struct ops *ops = open_ops("auto", "auto");
    struct op_shape s = {.rows = 180, .n_heads = 6, .n_kv_heads = 2, .head_dim = 64, .block_positions = 32, .position = 37};
    (void)state;
    for (s.window = 0; s.window <= 70; s.window += 35) {
        struct op *op = op_create(op_find("attention"), ops, &s, 5, 2);
        size_t row = (size_t)s.n_heads * s.head_dim;
        op_run(op, team);
        float *whole = malloc(op->n_out * sizeof(float));
        memcpy(whole, op->y, op->n_out * sizeof(float));
        memset(op->y, 0xff, op->n_out * sizeof(float));
        for (uint32_t r = 0, n; r < s.rows; r += n) {
            n = 1 + (uint32_t)(rand_at(s.window, r) % (s.rows - r < 50 ? s.rows - r : 50));
            for (int t = 0; t < 2; t++)
                ops->attention(&op->kv, op->kv_rows + r, op->x + r * row, op->y + r * row, n, s.n_heads, 0.125f, s.window, 0, op->scratch, t, 2);
        }
        assert_memory_equal(whole, op->y, op->n_out * sizeof(float));
        free(whole);
        op_destroy(op);
    }
}

static void attention_does_not_depend_on_the_block_size(void **state)
{
    const struct ops *ops = open_ops("auto", "auto");
    float *first = NULL;
    (void)state;
    for (uint32_t block = 16; block <= 128; block *= 2) {
        struct op_shape s = {.rows = 70, .n_heads = 3, .n_kv_heads = 1, .head_dim = 64, .block_positions = block, .position = 90};
        struct op *op = op_create(op_find("attention"), ops, &s, 6, 2);
        op_run(op, team);
        if (first)
            assert_memory_equal(first, op->y, op->n_out * sizeof(float));
        else {
            first = malloc(op->n_out * sizeof(float));
            memcpy(first, op->y, op->n_out * sizeof(float));
        }
        op_destroy(op);
    }
    free(first);
}

/* One row and head in double precision over the same f16 K and V. */
static void attention_in_double(const struct op *op, uint32_t r, uint32_t h, double *out)
{
    const struct op_shape *s = &op->s;
    const uint32_t *blocks = op->kv_rows[r].blocks, hd = s->head_dim, kvh = h / (s->n_heads / s->n_kv_heads);
    const float *q = op->x + ((size_t)r * s->n_heads + h) * hd;
    uint32_t position = op->kv_rows[r].position, first = kv_first(position, s->window);
    double sum = 0, max = -INFINITY, score[512];
    for (uint32_t p = first; p <= position; p++) {
        score[p] = 0;
        for (uint32_t d = 0; d < hd; d++)
            score[p] += (double)q[d] * math_from_f16(kv_k_group(&op->kv, blocks, kvh, p)[d * KV_GROUP + p % KV_GROUP]) / sqrt(hd);
        max = fmax(max, score[p]);
    }
    for (uint32_t p = first; p <= position; p++)
        sum += score[p] = exp(score[p] - max);
    for (uint32_t d = 0; d < hd; d++) {
        out[d] = 0;
        for (uint32_t p = first; p <= position; p++)
            out[d] += score[p] / sum * math_from_f16(kv_v_row(&op->kv, blocks, kvh, p)[d]);
    }
}

static void attention_is_close_to_double(void **state)
{
    static const char *const backends[] = {"ref", "auto"};
    (void)state;
    for (int b = 0; b < 2; b++)
        for (uint32_t window = 0; window < 60; window += 50) {
            struct op_shape s = {.rows = 20, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .block_positions = 16, .position = 200, .window = window};
            struct op *op = op_create(op_find("attention"), open_ops(backends[b], "auto"), &s, 9, 2);
            double error = 0, size = 0;
            op_run(op, team);
            for (uint32_t i = 0; i < s.rows * s.n_heads; i++) {
                double want[64];
                attention_in_double(op, i / s.n_heads, i % s.n_heads, want);
                for (uint32_t d = 0; d < 64; d++) {
                    error += pow(op->y[(size_t)i * 64 + d] - want[d], 2);
                    size += want[d] * want[d];
                }
            }
            assert_true(sqrt(error / size) < 1e-4); /* scores reach hundreds: an ulp of them is 3e-5 of a weight */
            op_destroy(op);
        }
}

/* Products of quantized weights against the same weights and activations in double: what remains is the int8 rounding. */
static void products_are_close_to_double(void **state)
{
    static const enum tensor_type types[] = {TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1, TENSOR_Q8_0,
                                             TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_F32,  TENSOR_BF16};
    enum { K = 512, N = 24, ROWS = 5 };
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct op *op = op_create(op_find("matmul"), open_ops("auto", "auto"), &(struct op_shape){.type = types[t], .rows = ROWS, .n = N, .k = K}, t, 2);
        double error = 0, size = 0, limit = weight_is_quantized(&op->w) ? 2e-2 : 1e-6;
        op_run(op, team);
        for (uint32_t n = 0; n < N; n++) {
            float w[K];
            quant_decode_row(types[t], op->file + n * block_row_bytes(types[t], K), K, w);
            for (uint32_t r = 0; r < ROWS; r++) {
                double want = 0;
                for (uint32_t k = 0; k < K; k++)
                    want += (double)w[k] * op->x[r * K + k];
                error += pow(op->y[r * (N + 3) + n] - want, 2);
                size += want * want;
            }
        }
        assert_true(sqrt(error / size) < limit);
        op_destroy(op);
    }
}

static int set_up(void **state)
{
    (void)state;
    return team_create(2, NULL, &team, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    team_destroy(team);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_do_not_depend_on_the_rows_beside),
        cmocka_unit_test(attention_does_not_depend_on_how_rows_are_cut),
        cmocka_unit_test(attention_does_not_depend_on_the_block_size),
        cmocka_unit_test(attention_is_close_to_double),
        cmocka_unit_test(products_are_close_to_double),
    };
    return cmocka_run_group_tests_name("rows", tests, set_up, tear_down);
}
