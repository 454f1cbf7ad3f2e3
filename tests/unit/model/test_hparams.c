#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/model/hparams.h"
#include "tests/unit/model/gguf_maker.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9 };

static const struct maker_shape SMALL = {
    .n_layers = 2, .n_embd = 8, .n_heads = 2, .n_kv_heads = 1, .n_ff = 16, .n_vocab = 5, .type = 0, .tied = 0};

static struct maker *small_model(void)
{
    struct maker *m = maker_create();
    maker_llama(m, &SMALL);
    return m;
}

/* bytes must be freed after model_close. */
static enum status open_made(struct maker *m, struct model *out, uint8_t **bytes, struct error *err)
{
    struct gguf *g;
    size_t len;
    *bytes = maker_write(m, &len);
    enum status s = gguf_open_memory(*bytes, len, &g, err);
    if (s != STATUS_OK)
        return s;
    s = model_from_gguf(g, "dir/made.gguf", out, err);
    if (s != STATUS_OK)
        gguf_close(g);
    return s;
}

static void refused(struct maker *m, const char *why)
{
    struct model model;
    struct error err = {0};
    uint8_t *bytes;
    enum status s = open_made(m, &model, &bytes, &err);
    if (s != STATUS_BAD_MODEL)
        fail_msg("status %d instead of a refusal that says '%s' (%s)", (int)s, why, err.message);
    if (!strstr(err.message, why))
        fail_msg("'%s' does not say '%s'", err.message, why);
    free(bytes);
}

static struct hparams accepted(struct maker *m)
{
    struct model model;
    struct error err = {0};
    uint8_t *bytes;
    if (open_made(m, &model, &bytes, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    struct hparams hp = model.hp;
    model_close(&model);
    free(bytes);
    return hp;
}

/* --- files of another program
 * ------------------------------------------------------------------------------------------- */

static void hparams_of_the_tiny_llama_files_are_those_of_their_makers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct hparams hp;
    } cases[] = {
        {"llama-f32", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-tied-f32", {NULL, 2, 64, 4, 4, 16, 16, 128, 320, 512, 1e-5f, 100000, 1}},
        {"llama-rope3-f32", {NULL, 2, 64, 4, 2, 32, 32, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-f16", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-bf16", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q8_0", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q4_0", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q4_1", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q5_0", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q5_1", {NULL, 3, 64, 4, 2, 16, 16, 128, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q4_k", {NULL, 2, 256, 8, 2, 32, 32, 256, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q5_k", {NULL, 2, 256, 8, 2, 32, 32, 256, 320, 512, 1e-5f, 10000, 0}},
        {"llama-q6_k", {NULL, 2, 256, 8, 2, 32, 32, 256, 320, 512, 1e-5f, 10000, 0}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[512];
        struct model m;
        struct error err = {0};
        snprintf(path, sizeof path, "%s/tiny/%s.gguf", SLUICE_VECTORS, cases[i].name);
        if (model_open(path, &m, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        struct hparams want = cases[i].hp, *hp = &m.hp;
        assert_string_equal(hp->arch->name, "llama");
        assert_int_equal(hp->arch->rope, ROPE_ADJACENT);
        assert_string_equal(m.name, cases[i].name);
        assert_true(hp->n_layers == want.n_layers && hp->n_embd == want.n_embd && hp->n_heads == want.n_heads);
        assert_true(hp->n_kv_heads == want.n_kv_heads && hp->head_dim == want.head_dim && hp->n_rot == want.n_rot);
        assert_true(hp->n_ff == want.n_ff && hp->n_vocab == want.n_vocab && hp->n_context == want.n_context);
        assert_true(hp->rms_eps == want.rms_eps && hp->rope_theta == want.rope_theta);
        assert_int_equal(hp->tied_head, want.tied_head);
        assert_int_equal(model_rope_freqs(&m) != NULL, strcmp(cases[i].name, "llama-rope3-f32") == 0);
        model_close(&m);
    }
}

/* --- defaults
 * ----------------------------------------------------------------------------------------------------------- */

static void hparams_that_are_absent_have_the_defaults_of_the_format(void **state)
{
    (void)state;
    struct maker *m = maker_create();
    struct maker_shape shape = SMALL;
    shape.n_kv_heads = shape.n_heads;
    maker_llama(m, &shape);
    struct hparams hp = accepted(m);
    assert_int_equal(hp.n_kv_heads, 2);
    assert_int_equal(hp.head_dim, 4);
    assert_int_equal(hp.n_rot, 4);
    assert_true(hp.rope_theta == 10000.0f);
    assert_int_equal(hp.tied_head, 0);
    maker_drop_tensor(m, "output.weight");
    maker_drop(m, "tokenizer.ggml.tokens");
    hp = accepted(m);
    assert_int_equal(hp.tied_head, 1);
    assert_int_equal(hp.n_vocab, 5);
    maker_destroy(m);
}

static void hparams_that_are_there_override_the_defaults(void **state)
{
    (void)state;
    struct maker *m = small_model();
    maker_u32(m, "llama.rope.dimension_count", 2);
    maker_f32(m, "llama.rope.freq_base", 500000);
    maker_u32(m, "llama.expert_count", 0);
    maker_u32(m, "llama.attention.sliding_window", 0);
    maker_text(m, "llama.rope.scaling.type", "none");
    maker_text(m, "general.type", "model");
    maker_u32(m, "split.count", 1);
    struct hparams hp = accepted(m);
    assert_int_equal(hp.n_kv_heads, 1);
    assert_int_equal(hp.n_rot, 2);
    assert_true(hp.rope_theta == 500000.0f);
    maker_destroy(m);
}

/* --- refusals
 * ----------------------------------------------------------------------------------------------------------- */

static void hparams_that_must_be_there_are_missed_by_name(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct maker *m = small_model();
        char why[96];
        maker_drop(m, keys[i]);
        snprintf(why, sizeof why, "%s is missing", keys[i]);
        refused(m, why);
        maker_destroy(m);
    }
}

static void hparams_out_of_range_are_refused_with_both_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t v;
        const char *why;
    } cases[] = {
        {"llama.block_count", 0, "llama.block_count is 0, not in 1..1024"},
        {"llama.block_count", 1025, "llama.block_count is 1025, not in"},
        {"llama.block_count", 3, "tensor blk.2.attn_norm.weight is missing"},
        {"llama.block_count", 1, "tensor blk.1.attn_norm.weight is not supported yet"},
        {"llama.embedding_length", 0, "llama.embedding_length is 0"},
        {"llama.embedding_length", UINT32_MAX, "llama.embedding_length is 4294967295"},
        {"llama.embedding_length", 16, "tensor token_embd.weight is 8 x 5 x 1 x 1, not 16 x 5"},
        {"llama.feed_forward_length", 0, "llama.feed_forward_length is 0"},
        {"llama.feed_forward_length", 17, "tensor blk.0.ffn_gate.weight is 8 x 16 x 1 x 1, not 8 x 17"},
        {"llama.context_length", 0, "llama.context_length is 0"},
        {"llama.context_length", 1u << 31, "llama.context_length is 2147483648"},
        {"llama.attention.head_count", 0, "llama.attention.head_count is 0"},
        {"llama.attention.head_count", 1u << 31, "llama.attention.head_count is 2147483648"},
        {"llama.attention.head_count", 8, "a head has 1 elements (embedding_length 8, head_count 8)"},
        {"llama.attention.head_count", 16, "a head has 0 elements"},
        {"llama.attention.head_count", 3, "tensor blk.0.attn_q.weight is 8 x 8 x 1 x 1, not 8 x 6"},
        {"llama.attention.head_count_kv", 0, "llama.attention.head_count_kv is 0"},
        {"llama.attention.head_count_kv", 3, "head_count 2 is no multiple of head_count_kv 3"},
        {"llama.attention.head_count_kv", 2, "tensor blk.0.attn_k.weight is 8 x 4 x 1 x 1, not 8 x 8"},
        {"llama.attention.key_length", 5, "a head has 5 elements"},
        {"llama.attention.key_length", 6, "tensor blk.0.attn_q.weight is 8 x 8 x 1 x 1, not 8 x 12"},
        {"llama.attention.key_length", 65536, "tensor blk.0.attn_q.weight is 8 x 8 x 1 x 1, not 8 x 131072"},
        {"llama.attention.key_length", 65537, "llama.attention.key_length is 65537"},
        {"llama.attention.value_length", 8, "llama.attention.value_length 8 is not key_length 4"},
        {"llama.rope.dimension_count", 0, "llama.rope.dimension_count is 0, not in 2..4"},
        {"llama.rope.dimension_count", 3, "llama.rope.dimension_count 3 is odd"},
        {"llama.rope.dimension_count", 6, "llama.rope.dimension_count is 6, not in 2..4"},
        {"llama.rope.freq_base", 10000, "llama.rope.freq_base is not a float"},
        {"llama.attention.sliding_window", 511, "llama.attention.sliding_window 511 is not supported yet"},
        {"split.count", 3, "split.count is 3"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker *m = small_model();
        maker_u32(m, cases[i].key, cases[i].v);
        refused(m, cases[i].why);
        maker_destroy(m);
    }
}

static void hparams_of_another_type_are_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    maker_raw(m, "llama.attention.head_count_kv", ARRAY, "\5\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0", 20);
    refused(m, "llama.attention.head_count_kv is not one unsigned integer"); /* one a layer: not supported */
    maker_destroy(m);
    m = small_model();
    maker_raw(m, "llama.block_count", I32, "\xff\xff\xff\xff", 4);
    refused(m, "llama.block_count is not one unsigned integer");
    maker_f32(m, "llama.block_count", 2);
    refused(m, "llama.block_count is not one unsigned integer");
    maker_destroy(m);
    m = small_model();
    maker_u32(m, "general.architecture", 1);
    refused(m, "general.architecture is missing or not a text");
    maker_destroy(m);
}

static void hparams_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *bits, *why;
    } cases[] = {
        {"llama.attention.layer_norm_rms_epsilon", "\0\0\xc0\x7f", "layer_norm_rms_epsilon is nan"},
        {"llama.attention.layer_norm_rms_epsilon", "\0\0\x80\x7f", "layer_norm_rms_epsilon is inf"},
        {"llama.attention.layer_norm_rms_epsilon", "\0\0\x80\xbf", "layer_norm_rms_epsilon is -1"},
        {"llama.rope.freq_base", "\0\0\xc0\x7f", "rope.freq_base is nan"},
        {"llama.rope.freq_base", "\0\0\0\0", "rope.freq_base is 0"},
        {"llama.rope.freq_base", "\0\0\x80\x7f", "rope.freq_base is inf"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker *m = small_model();
        maker_raw(m, cases[i].key, F32, cases[i].bits, 4);
        refused(m, cases[i].why);
        maker_destroy(m);
    }
}

static void hparams_of_what_is_not_built_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *key, *v, *why;
    } cases[] = {
        {"general.architecture", "qwen3next", "architecture 'qwen3next' is not supported yet; supported: llama, qwen2, qwen3, gemma3, qwen3moe"},
        {"general.architecture", "llama2\n", "architecture 'llama2?' is not supported yet"},
        {"general.architecture", "", "architecture '' is not supported yet"},
        {"general.type", "adapter", "general.type is 'adapter', not 'model'"},
        {"llama.rope.scaling.type", "yarn", "llama.rope.scaling.type 'yarn' is not supported yet"},
        {"llama.rope.scaling.type", "longrope", "llama.rope.scaling.type 'longrope' is not supported yet"},
        {"llama.rope.scaling.type", "Linear", "llama.rope.scaling.type 'Linear' is not supported yet"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker *m = small_model();
        maker_text(m, cases[i].key, cases[i].v);
        refused(m, cases[i].why);
        maker_destroy(m);
    }
    struct maker *m = small_model();
    maker_bool(m, "llama.attention.causal", 0);
    refused(m, "llama.attention.causal false");
    maker_destroy(m);
}

static void hparams_vocabulary_must_agree_with_the_embedding(void **state)
{
    (void)state;
    struct maker *m = small_model();
    maker_texts(m, "tokenizer.ggml.tokens", 6);
    refused(m, "tokenizer.ggml.tokens has 6 entries, tensor token_embd.weight 5 rows");
    maker_destroy(m);
}

/* --- tensors
 * ------------------------------------------------------------------------------------------------------------ */

static void model_tensors_that_are_missing_are_named(void **state)
{
    (void)state;
    static const char *const names[] = {
        "token_embd.weight",     "output_norm.weight",  "blk.0.attn_norm.weight",   "blk.0.attn_q.weight",
        "blk.1.attn_k.weight",   "blk.1.attn_v.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct maker *m = small_model();
        char why[96];
        maker_drop_tensor(m, names[i]);
        snprintf(why, sizeof why, "tensor %s is missing", names[i]);
        refused(m, why);
        maker_destroy(m);
    }
}

static void model_tensors_of_another_shape_are_refused_with_both_shapes(void **state)
{
    (void)state;
    struct maker *m = small_model();
    uint32_t n = m->n_tensors;
    for (uint32_t i = 0; i < n; i++)
        for (int d = 0; d < 4; d++) {
            struct maker_tensor right = m->tensors[i];
            char why[128];
            m->tensors[i].ne[d] *= 2;
            if (m->tensors[i].n_dims < (uint32_t)d + 1)
                m->tensors[i].n_dims = (uint32_t)d + 1;
            /* More rows of the embedding are more tokens: the list disagrees. */
            if (strcmp(right.name, "token_embd.weight") == 0 && d == 1)
                snprintf(why, sizeof why, "tensor token_embd.weight 10 rows");
            else
                snprintf(why, sizeof why, "tensor %s is ", right.name);
            refused(m, why);
            m->tensors[i] = right;
        }
    accepted(m);
    maker_destroy(m);
}

static void model_vectors_must_be_f32(void **state)
{
    (void)state;
    static const char *const names[] = {"output_norm.weight", "blk.0.attn_norm.weight", "blk.1.ffn_norm.weight"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct maker *m = small_model();
        char why[96];
        maker_tensor(m, names[i])->type = TENSOR_F16;
        snprintf(why, sizeof why, "tensor %s is a vector of type F16, not F32", names[i]);
        refused(m, why);
        maker_destroy(m);
    }
}

static void model_tensors_that_nobody_would_use_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "blk.0.attn_q.bias",
        "blk.0.attn_q_norm.weight",
        "blk.0.post_attention_norm.weight",
        "blk.0.ffn_gate.0.weight",
        "blk.2.attn_q.weight",
        "blk.00.attn_q.weight",
        "blk.0.attn_q.weight2",
        "blk.4294967296.attn_q.weight",
        "blk.-1.attn_q.weight",
        "output.bias",
        "position_embd.weight",
        "blk",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct maker *m = small_model();
        char why[128];
        maker_add_tensor(m, names[i], TENSOR_F32, 8, 1);
        snprintf(why, sizeof why, "tensor %s is not supported yet in architecture 'llama'", names[i]);
        refused(m, why);
        maker_destroy(m);
    }
    struct maker *m = small_model();
    maker_add_tensor(m, "blk.1.attn_rot_embd.weight", TENSOR_F32, 2, 1);
    accepted(m);
    maker_destroy(m);
}

/* The maker's names end at a 0, so it is written over the last letter. */
static void a_tensor_whose_name_goes_on_behind_a_zero_is_refused(void **state)
{
    (void)state;
    struct maker *m = small_model();
    struct gguf *g;
    struct model model;
    struct error err;
    size_t len;
    maker_add_tensor(m, "blk.0.attn_q.weight*", TENSOR_F32, 8, 1);
    uint8_t *bytes = maker_write(m, &len);
    bytes[maker_tensor(m, "blk.0.attn_q.weight*")->at + 8 + sizeof "blk.0.attn_q.weight" - 1] = 0;
    assert_int_equal(gguf_open_memory(bytes, len, &g, &err), STATUS_OK);
    assert_int_equal(model_from_gguf(g, "made", &model, &err), STATUS_BAD_MODEL);
    assert_non_null(strstr(err.message, "tensor blk.0.attn_q.weight? is not supported yet"));
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

static void model_rope_factors_are_checked_by_value(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        int is_good;
    } cases[] = {{0x3f800000, 1}, {0x41000000, 1}, {0, 0},         {0x80000000, 0},
                 {0xbf800000, 0}, {0x7f800000, 0}, {0x7fc00000, 0}, {0x3e800000, 1},
                 {0x3e7fffff, 0}, {1, 0} /* 1e-45: the frequency would be infinite */};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker *m = small_model();
        struct model model;
        struct error err = {0};
        struct gguf *g;
        size_t len;
        maker_add_tensor(m, "rope_freqs.weight", TENSOR_F32, 2, 1);
        uint8_t *bytes = maker_write(m, &len);
        put_u32(bytes + maker_tensor(m, "rope_freqs.weight")->at_data + 4, cases[i].bits);
        assert_int_equal(gguf_open_memory(bytes, len, &g, NULL), STATUS_OK);
        enum status s = model_from_gguf(g, "x", &model, &err);
        assert_int_equal(s, cases[i].is_good ? STATUS_OK : STATUS_BAD_MODEL);
        if (cases[i].is_good) {
            assert_ptr_equal(model_rope_freqs(&model), gguf_find_tensor(g, "rope_freqs.weight"));
            model_close(&model);
        } else {
            assert_non_null(strstr(err.message, "rope_freqs.weight at byte"));
            gguf_close(g);
        }
        free(bytes);
        maker_destroy(m);
    }
    struct maker *m = small_model();
    maker_add_tensor(m, "rope_freqs.weight", TENSOR_F32, 4, 1);
    refused(m, "tensor rope_freqs.weight is 4 x 1 x 1 x 1, not 2 x 1");
    maker_destroy(m);
}

static void model_layer_gives_the_tensors_of_that_layer_and_null_for_the_rest(void **state)
{
    (void)state;
    struct model m;
    const struct gguf_tensor *t[N_LAYER_TENSORS], *norm, *head, *embd;
    assert_int_equal(model_open(SLUICE_VECTORS "/tiny/llama-f32.gguf", &m, NULL), STATUS_OK);
    assert_int_equal(model_layer(&m, 2, t, NULL), STATUS_OK);
    assert_ptr_equal(t[LAYER_ATTN_Q], gguf_find_tensor(m.gguf, "blk.2.attn_q.weight"));
    assert_ptr_equal(t[LAYER_FFN_DOWN], gguf_find_tensor(m.gguf, "blk.2.ffn_down.weight"));
    assert_true(t[LAYER_ATTN_K]->ne[0] == 64 && t[LAYER_ATTN_K]->ne[1] == 32);
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_LAYER_TENSORS; i++) {
        n += t[i] != NULL;
        assert_int_equal(t[i] != NULL, m.hp.arch->required >> i & 1);
    }
    assert_int_equal(n, 9);
    assert_int_equal(model_head(&m, &norm, &head, NULL), STATUS_OK);
    assert_int_equal(model_embedding(&m, &embd, NULL), STATUS_OK);
    assert_ptr_not_equal(head, embd);
    model_close(&m);
    assert_int_equal(model_open(SLUICE_VECTORS "/tiny/llama-tied-f32.gguf", &m, NULL), STATUS_OK);
    assert_int_equal(model_head(&m, &norm, &head, NULL), STATUS_OK);
    assert_int_equal(model_embedding(&m, &embd, NULL), STATUS_OK);
    assert_ptr_equal(head, embd);
    model_close(&m);
}

/* --- the model itself
 * --------------------------------------------------------------------------------------------------- */

static void model_name_is_printable_utf8_that_fits(void **state)
{
    (void)state;
    static const struct {
        const char *given, *want;
    } cases[] = {
        {"", "made"}, /* the file's name without .gguf */
        {"Fine 1.5", "Fine 1.5"},
        {"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x90\x8d", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x90\x8d"},
        {"a\nb\x7f\x1b[0m", "a?b??[0m"},
        {"\xc3(\x80\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80", "?(?????"
                                                          "?????"},
        {"\xe4\xb8", "??"},
        {"a\xc2\x9b[0m\xc2\xa0", "a??[0m\xc2\xa0"}, /* ESC [ in one character */
        {"0123456789012345678901234567890123456789012345678901234567890123456789",
         "012345678901234567890123456789012345678901234567890123456789012"},
        {"01234567890123456789012345678901234567890123456789012345678901\xc3\xa9",
         "01234567890123456789012345678901234567890123456789012345678901"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct maker *m = small_model();
        struct model model;
        uint8_t *bytes;
        maker_text(m, "general.name", cases[i].given);
        assert_int_equal(open_made(m, &model, &bytes, NULL), STATUS_OK);
        assert_string_equal(model.name, cases[i].want);
        model_close(&model);
        free(bytes);
        maker_destroy(m);
    }
}

static void model_that_is_refused_leaves_the_argument_and_the_gguf(void **state)
{
    (void)state;
    struct maker *m = small_model();
    struct model model, before;
    struct gguf *g;
    size_t len;
    memset(&model, 0x5a, sizeof model);
    before = model;
    maker_u32(m, "llama.block_count", 3);
    uint8_t *bytes = maker_write(m, &len);
    assert_int_equal(gguf_open_memory(bytes, len, &g, NULL), STATUS_OK);
    assert_int_equal(model_from_gguf(g, "x", &model, NULL), STATUS_BAD_MODEL);
    assert_memory_equal(&model, &before, sizeof model);
    assert_true(gguf_has(g, "llama.block_count"));
    gguf_close(g);
    free(bytes);
    maker_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hparams_of_the_tiny_llama_files_are_those_of_their_makers),
        cmocka_unit_test(hparams_that_are_absent_have_the_defaults_of_the_format),
        cmocka_unit_test(hparams_that_are_there_override_the_defaults),
        cmocka_unit_test(hparams_that_must_be_there_are_missed_by_name),
        cmocka_unit_test(hparams_out_of_range_are_refused_with_both_numbers),
        cmocka_unit_test(hparams_of_another_type_are_refused),
        cmocka_unit_test(hparams_that_are_not_finite_are_refused),
        cmocka_unit_test(hparams_of_what_is_not_built_are_refused_by_name),
        cmocka_unit_test(hparams_vocabulary_must_agree_with_the_embedding),
        cmocka_unit_test(model_tensors_that_are_missing_are_named),
        cmocka_unit_test(model_tensors_of_another_shape_are_refused_with_both_shapes),
        cmocka_unit_test(model_vectors_must_be_f32),
        cmocka_unit_test(model_tensors_that_nobody_would_use_are_refused),
        cmocka_unit_test(a_tensor_whose_name_goes_on_behind_a_zero_is_refused),
        cmocka_unit_test(model_rope_factors_are_checked_by_value),
        cmocka_unit_test(model_layer_gives_the_tensors_of_that_layer_and_null_for_the_rest),
        cmocka_unit_test(model_name_is_printable_utf8_that_fits),
        cmocka_unit_test(model_that_is_refused_leaves_the_argument_and_the_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
