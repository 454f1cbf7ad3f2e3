/* What a stage packs: tables of rotary frequencies, each expert for itself, vectors; and the shapes that no kernel takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "stage/weights.h"
#include "tests/unit/model/gguf_maker.h"

static const struct maker_shape SHAPE = {.n_layers = 3, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2, .n_ff = 64,
                                         .n_vocab = 20, .type = TENSOR_F32, .n_experts = 0};

struct fixture {
    struct maker *maker;
    uint8_t *bytes;
    struct model model;
    struct team *team;
    const struct ops *ops;
    struct weights weights;
};

static void open_model(struct fixture *f, const char *arch, const struct maker_shape *shape)
{
    f->maker = maker_create();
    maker_model(f->maker, arch, shape);
    assert_int_equal(team_create(3, NULL, &f->team, NULL), STATUS_OK);
    assert_int_equal(ops_open("cpu", "auto", &f->ops, NULL), STATUS_OK);
}

/* Every f32 of a matrix gets a number of its own, so that a swap shows. */
static void number_values(struct fixture *f, const char *name)
{
    const struct maker_tensor *t = maker_tensor(f->maker, name);
    for (uint64_t i = 0; i < t->ne[0] * t->ne[1] * t->ne[2]; i++) {
        float v = (float)i;
        memcpy(f->bytes + t->at_data + 4 * i, &v, 4);
    }
}

static void parse(struct fixture *f)
{
    struct gguf *g;
    struct error err;
    size_t len;
    f->bytes = maker_write(f->maker, &len);
    if (gguf_open_memory(f->bytes, len, &g, &err) != STATUS_OK || model_from_gguf(g, "made", &f->model, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void load(struct fixture *f, uint32_t first, uint32_t end)
{
    struct error err;
    if (weights_plan(&f->model, f->ops, first, end, first == 0, end == f->model.hp.n_layers, &f->weights, &err) != STATUS_OK ||
        weights_load(&f->weights, f->team, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void close_all(struct fixture *f)
{
    weights_free(&f->weights);
    model_close(&f->model);
    team_destroy(f->team);
    free(f->bytes);
    maker_destroy(f->maker);
}

static void assert_near(float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 * want))
        fail_msg("%.9g is not %.9g", (double)got, want);
}

static void a_model_with_windows_has_two_tables_of_frequencies_and_scales_the_global_one(void **state)
{
    (void)state;
    struct fixture f = {0};
    open_model(&f, "gemma3", &SHAPE);
    maker_arch_f32(f.maker, "rope.freq_base", 1e6f);
    maker_arch_f32(f.maker, "rope.freq_base_swa", 2e4f);
    maker_arch_f32(f.maker, "rope.scaling.factor", 8);
    parse(&f);
    load(&f, 0, 3);
    for (uint32_t i = 0; i < 8; i++) {
        assert_near(f.weights.rope_freq[0][i], pow(1e6, -2.0 * i / 16) / 8);
        assert_near(f.weights.rope_freq[1][i], pow(2e4, -2.0 * i / 16));
    }
    close_all(&f);
}

static void a_model_without_windows_has_one_table_divided_by_its_factors(void **state)
{
    (void)state;
    struct fixture f = {0};
    open_model(&f, "llama", &SHAPE);
    maker_add_tensor(f.maker, "rope_freqs.weight", TENSOR_F32, 8, 1);
    parse(&f);
    number_values(&f, "rope_freqs.weight");
    float one = 1; /* the first factor: 0 divides nothing */
    memcpy(f.bytes + maker_tensor(f.maker, "rope_freqs.weight")->at_data, &one, 4);
    load(&f, 1, 2);
    assert_null(f.weights.rope_freq[1]);
    for (uint32_t i = 0; i < 8; i++)
        assert_near(f.weights.rope_freq[0][i], pow(1e4, -2.0 * i / 16) / (i ? i : 1));
    close_all(&f);
}

static void each_expert_is_packed_for_itself(void **state)
{
    (void)state;
    static const char *const names[] = {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"};
    enum { N = 5, FF = 24, EMBD = 64 };
    struct maker_shape shape = SHAPE;
    struct fixture f = {0};
    shape.n_experts = N;
    shape.n_experts_used = 2;
    shape.n_ff_expert = FF;
    open_model(&f, "qwen3moe", &shape);
    parse(&f);
    for (int i = 0; i < 3; i++)
        number_values(&f, names[i]);
    load(&f, 1, 3);
    const struct layer_weights *lw = &f.weights.layers[0];
    assert_ptr_equal(f.weights.layers[1].experts, lw->experts + N);
    float x[EMBD] = {0}, y[FF];
    struct acts acts = {.max_rows = 1, .max_k = EMBD, .x = aligned_alloc(64, 4 * EMBD),
                        .int8 = aligned_alloc(64, f.ops->acts_bytes(1, EMBD))};
    x[3] = 1; /* picks column 3 of each row: numbers e * n * k + row * k + 3 */
    f.ops->acts_rows(&acts, x, 1, EMBD, 0, 0, 1);
    for (uint32_t e = 0; e < N; e++) {
        const struct matmul_job job = {.w = &lw->experts[e].up, .y = y, .y_stride = FF};
        f.ops->matmul(&job, 1, &acts, 0, 1);
        for (uint32_t r = 0; r < FF; r++)
            assert_true(y[r] == (float)(e * FF * EMBD + r * EMBD + 3));
        assert_true(lw->experts[e].down.n == EMBD && lw->experts[e].down.k == FF && lw->experts[e].gate.n == FF);
    }
    free(acts.x);
    free(acts.int8);
    close_all(&f);
}

static void vectors_are_those_of_the_file_and_only_of_the_layers_that_are_held(void **state)
{
    (void)state;
    struct fixture f = {0};
    open_model(&f, "qwen2", &SHAPE);
    parse(&f);
    number_values(&f, "blk.2.attn_q.bias");
    number_values(&f, "output_norm.weight");
    load(&f, 2, 3);
    for (uint32_t i = 0; i < 64; i++) {
        assert_true(f.weights.layers[0].vec[LAYER_ATTN_Q_BIAS][i] == (float)i);
        assert_true(f.weights.out_norm[i] == (float)i);
        assert_true(f.weights.layers[0].vec[LAYER_FFN_NORM][i] == 1);
    }
    assert_null(f.weights.layers[0].vec[LAYER_ATTN_Q_NORM]);
    assert_null(f.weights.layers[0].experts);
    close_all(&f);
}

static void heads_that_no_kernel_takes_are_refused_with_their_size(void **state)
{
    (void)state;
    struct maker_shape shape = SHAPE;
    struct error err;
    struct fixture f = {0};
    shape.n_heads = 16; /* of 4 elements */
    open_model(&f, "llama", &shape);
    parse(&f);
    assert_int_equal(weights_plan(&f.model, f.ops, 0, 3, 1, 1, &f.weights, &err), STATUS_BAD_MODEL);
    assert_non_null(strstr(err.message, "heads of 4 elements are not supported"));
    close_all(&f);
}

/* A half or a float at a byte of a tensor's data. */
struct spoilt {
    const char *tensor;
    uint64_t byte;
    uint32_t type, bits, bytes; /* of the matrices; what is written there */
    const char *says;           /* NULL: loaded */
};

static void a_value_that_is_no_number_is_refused_with_tensor_row_and_byte(void **state)
{
    (void)state;
    enum { ROW_Q8_0 = 2 * 34, ROW_F16 = 2 * 64, ROW_F32 = 4 * 64 };
    static const struct spoilt cases[] = {
        {"blk.1.ffn_up.weight", 0, TENSOR_Q8_0, 0x7bff, 2, NULL}, /* the largest half */
        {"blk.1.ffn_up.weight", 3 * ROW_Q8_0 + 34, TENSOR_Q8_0, 0x7c00, 2, "tensor blk.1.ffn_up.weight (Q8_0): row 3, at byte "},
        {"blk.2.attn_v.weight", 31 * ROW_F16 + 126, TENSOR_F16, 0xfe01, 2, "tensor blk.2.attn_v.weight (F16): row 31, at byte "},
        {"blk.0.ffn_norm.weight", 4 * 63, TENSOR_F32, 0x7f800000, 4, "tensor blk.0.ffn_norm.weight (F32): row 0, at byte "},
        {"output_norm.weight", 0, TENSOR_F32, 0xff800001, 4, "tensor output_norm.weight (F32): row 0, at byte "},
        {"token_embd.weight", 19 * ROW_F32 + 8, TENSOR_F32, 0x7fc00000, 4, "tensor token_embd.weight (F32): row 19, at byte "},
        {"output.weight", 2 * ROW_F32, TENSOR_F32, 0x7fc00000, 4, "tensor output.weight (F32): row 2, at byte "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct spoilt *c = &cases[i];
        struct maker_shape shape = SHAPE;
        struct fixture f = {0};
        struct error err;
        shape.type = c->type;
        open_model(&f, "llama", &shape);
        parse(&f);
        memcpy(f.bytes + maker_tensor(f.maker, c->tensor)->at_data + c->byte, &c->bits, c->bytes);
        assert_int_equal(weights_plan(&f.model, f.ops, 0, 3, 1, 1, &f.weights, &err), STATUS_OK);
        enum status s = weights_load(&f.weights, f.team, &err);
        if (!c->says)
            assert_int_equal(s, STATUS_OK);
        else if (s != STATUS_BAD_MODEL || strncmp(err.message, c->says, strlen(c->says)) != 0)
            fail_msg("%s: %d, %s", c->says, s, err.message);
        close_all(&f);
    }
}

static uint64_t planned_file_bytes(struct fixture *f, uint32_t first, uint32_t end)
{
    struct weights w;
    assert_int_equal(weights_plan(&f->model, f->ops, first, end, first == 0, end == 3, &w, NULL), STATUS_OK);
    const uint64_t bytes = w.file_bytes;
    weights_free(&w);
    return bytes;
}

/* One stage has every tensor once; of two each has the table of factors, and where the head is the embedding, both that. */
static void the_bytes_of_the_stages_are_those_of_the_tensors(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        const int tied = which & 1, experts = which & 2;
        struct maker_shape shape = SHAPE;
        struct fixture f = {0};
        const struct gguf_tensor *embedding;
        uint64_t all = 0;
        shape.tied = tied;
        if (experts)
            shape.n_experts = 4, shape.n_experts_used = 2, shape.n_ff_expert = 64;
        open_model(&f, "llama", &shape);
        maker_add_tensor(f.maker, "rope_freqs.weight", TENSOR_F32, 8, 1);
        parse(&f);
        for (uint32_t i = 0; i < gguf_n_tensors(f.model.gguf); i++)
            all += gguf_tensor(f.model.gguf, i)->bytes;
        assert_int_equal(model_embedding(&f.model, &embedding, NULL), STATUS_OK);
        assert_int_equal(planned_file_bytes(&f, 0, 3), all);
        assert_int_equal(planned_file_bytes(&f, 0, 1) + planned_file_bytes(&f, 1, 3), all + 8 * 4 + (tied ? embedding->bytes : 0));
        close_all(&f);
    }
}

int main(void)
{
    log_set_levels("warn", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_with_windows_has_two_tables_of_frequencies_and_scales_the_global_one),
        cmocka_unit_test(a_model_without_windows_has_one_table_divided_by_its_factors),
        cmocka_unit_test(each_expert_is_packed_for_itself),
        cmocka_unit_test(vectors_are_those_of_the_file_and_only_of_the_layers_that_are_held),
        cmocka_unit_test(the_bytes_of_the_stages_are_those_of_the_tensors),
        cmocka_unit_test(heads_that_no_kernel_takes_are_refused_with_their_size),
        cmocka_unit_test(a_value_that_is_no_number_is_refused_with_tensor_row_and_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
