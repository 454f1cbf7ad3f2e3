/* Every row of the table of architectures, and every key that would change the results and is not computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/hparams.h"
#include "tests/unit/model/gguf_maker.h"

enum { I32 = 5, F32 = 6, BOOL = 7, ARRAY = 9 };

static const char *const arch_names[] = {"llama", "qwen2", "qwen3", "gemma3", "qwen3moe"};

/* Eight layers: two whole patterns of six would be twelve, one and a part shows where the pattern goes on. */
static const struct maker_shape DENSE = {
    .n_layers = 8, .n_embd = 8, .n_heads = 2, .n_kv_heads = 1, .n_ff = 16, .n_vocab = 5, .type = TENSOR_F32};
static const struct maker_shape SPARSE = {.n_layers = 2,
                                          .n_embd = 8,
                                          .n_heads = 2,
                                          .n_kv_heads = 1,
                                          .n_ff = 16,
                                          .n_vocab = 5,
                                          .type = TENSOR_F32,
                                          .n_experts = 4,
                                          .n_experts_used = 2,
                                          .n_ff_expert = 12};

static struct maker *make(const char *arch, const struct maker_shape *shape)
{
    struct maker *m = maker_create();
    maker_model(m, arch, shape);
    return m;
}

static struct maker *make_any(const char *arch)
{
    return make(arch, strcmp(arch, "qwen3moe") == 0 ? &SPARSE : &DENSE);
}

struct made {
    struct model model;
    uint8_t *bytes;
    struct error err;
};

static enum status open_made(struct maker *m, struct made *out)
{
    struct gguf *g;
    size_t len;
    error_clear(&out->err);
    out->bytes = maker_write(m, &len);
    enum status s = gguf_open_memory(out->bytes, len, &g, &out->err);
    if (s != STATUS_OK)
        return s;
    s = model_from_gguf(g, "made.gguf", &out->model, &out->err);
    if (s != STATUS_OK)
        gguf_close(g);
    return s;
}

static struct made accepted(struct maker *m)
{
    struct made made;
    if (open_made(m, &made) != STATUS_OK)
        fail_msg("%s", made.err.message);
    return made;
}

static void close_made(struct made *m)
{
    model_close(&m->model);
    free(m->bytes);
}

static struct hparams accepted_hparams(struct maker *m)
{
    struct made made = accepted(m);
    struct hparams hp = made.model.hp;
    close_made(&made);
    return hp;
}

static void refused(struct maker *m, const char *why)
{
    struct made made;
    enum status s = open_made(m, &made);
    if (s != STATUS_BAD_MODEL)
        fail_msg("status %d instead of a refusal that says '%s' (%s)", (int)s, why, made.err.message);
    if (!strstr(made.err.message, why))
        fail_msg("'%s' does not say '%s'", made.err.message, why);
    free(made.bytes);
}

static uint32_t count_local(const struct model *m)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < m->hp.n_layers; l++)
        n += model_layer_window(m, l) != 0;
    return n;
}

/* --- files of another program ------------------------------------------------------------------------------------------ */

static void the_tiny_files_of_every_architecture_are_read_as_their_makers_wrote_them(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arch;
        enum rope_pairing rope;
        uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_ff, n_experts, n_used, n_ff_expert, window, n_local;
        float theta;
        int tied, scale_embedding, gelu;
    } cases[] = {
        {"llama-f32", "llama", ROPE_ADJACENT, 3, 4, 2, 16, 128, 0, 0, 0, 0, 0, 1e4f, 0, 0, 0},
        {"mixtral-f32", "llama", ROPE_ADJACENT, 2, 4, 2, 16, 0, 4, 2, 64, 0, 0, 1e4f, 0, 0, 0},
        {"qwen2-f32", "qwen2", ROPE_HALVES, 3, 4, 1, 16, 128, 0, 0, 0, 0, 0, 1e6f, 1, 0, 0},
        {"qwen2-q4_k_m", "qwen2", ROPE_HALVES, 2, 8, 2, 32, 256, 0, 0, 0, 0, 0, 1e6f, 0, 0, 0},
        {"qwen3-f32", "qwen3", ROPE_HALVES, 3, 4, 2, 32, 128, 0, 0, 0, 0, 0, 1e6f, 0, 0, 0},
        {"qwen3-q4_0", "qwen3", ROPE_HALVES, 3, 4, 2, 32, 128, 0, 0, 0, 0, 0, 1e6f, 0, 0, 0},
        {"gemma3-f32", "gemma3", ROPE_HALVES, 8, 4, 1, 32, 128, 0, 0, 0, 32, 7, 1e6f, 1, 1, 1},
        {"gemma3-q8_0", "gemma3", ROPE_HALVES, 8, 4, 1, 32, 128, 0, 0, 0, 32, 7, 1e6f, 1, 1, 1},
        {"qwen3moe-f32", "qwen3moe", ROPE_HALVES, 3, 4, 2, 16, 0, 8, 2, 32, 0, 0, 1e6f, 0, 0, 0},
        {"qwen3moe-q8_0", "qwen3moe", ROPE_HALVES, 3, 4, 2, 16, 0, 8, 2, 32, 0, 0, 1e6f, 0, 0, 0},
        {"qwen3moe-q4_k", "qwen3moe", ROPE_HALVES, 2, 8, 2, 32, 0, 4, 2, 256, 0, 0, 1e6f, 0, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[512];
        struct model m;
        struct error err = {0};
        snprintf(path, sizeof path, "%s/tiny/%s.gguf", SLUICE_VECTORS, cases[i].name);
        if (model_open(path, &m, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        const struct hparams *hp = &m.hp;
        assert_string_equal(hp->arch->name, cases[i].arch);
        assert_true(hp->arch->rope == cases[i].rope && (hp->arch->gate == GATE_GELU_TANH) == cases[i].gelu);
        assert_true(hp->n_layers == cases[i].n_layers && hp->n_heads == cases[i].n_heads);
        assert_true(hp->n_kv_heads == cases[i].n_kv_heads && hp->head_dim == cases[i].head_dim && hp->n_ff == cases[i].n_ff);
        assert_true(hp->n_experts == cases[i].n_experts && hp->n_experts_used == cases[i].n_used);
        assert_true(hp->n_ff_expert == cases[i].n_ff_expert && hp->normalise_experts == (cases[i].n_experts > 0));
        assert_true(hp->window == cases[i].window && count_local(&m) == cases[i].n_local);
        assert_true(hp->rope_theta == cases[i].theta && hp->rope_theta_local == 1e4f && hp->rope_factor == 1);
        assert_true(hp->attention_scale == (float)(1 / sqrt(hp->head_dim)));
        assert_true(hp->attn_softcap == 0 && hp->final_softcap == 0);
        assert_true(hp->tied_head == cases[i].tied && hp->arch->scale_embedding == cases[i].scale_embedding);
        model_close(&m);
    }
}

static void architectures_that_are_not_built_are_refused_by_name(void **state)
{
    (void)state;
    struct model m;
    struct error err = {0};
    assert_int_equal(model_open(SLUICE_VECTORS "/tiny/qwen3next-q8_0.gguf", &m, &err), STATUS_BAD_MODEL);
    assert_non_null(strstr(err.message, "qwen3next-q8_0.gguf: architecture 'qwen3next' is not supported yet; supported: llama, "
                                        "qwen2, qwen3, gemma3, qwen3moe"));
    static const char *const names[] = {"gemma2", "gemma", "qwen2moe", "qwen35", "phi3", "mistral3", "llama4", "gpt-oss",
                                        "deepseek2", "LLAMA", "llama ", "qwen"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct maker *k = make("llama", &DENSE);
        char why[96];
        maker_text(k, "general.architecture", names[i]);
        snprintf(why, sizeof why, "architecture '%s' is not supported yet", names[i]);
        refused(k, why);
        maker_destroy(k);
    }
}

/* --- tensors ------------------------------------------------------------------------------------------------------------ */

/* What a layer of each architecture has; nothing else may be there. */
static void every_tensor_of_every_architecture_is_needed_and_no_other_is_taken(void **state)
{
    (void)state;
    for (size_t a = 0; a < ARRAY_LEN(arch_names); a++) {
        struct maker *m = make_any(arch_names[a]);
        struct made made = accepted(m);
        close_made(&made);
        for (uint32_t i = 0; i < m->n_tensors; i++) {
            char name[96], why[160];
            snprintf(name, sizeof name, "%s", m->tensors[i].name);
            if (strcmp(name, "output.weight") == 0) /* without it the head is tied */
                continue;
            snprintf(m->tensors[i].name, sizeof m->tensors[i].name, "%.80s2", name);
            snprintf(why, sizeof why, "tensor %s is missing", name);
            refused(m, why);
            snprintf(m->tensors[i].name, sizeof m->tensors[i].name, "%s", name);
        }
        maker_add_tensor(m, "blk.0.attn_output.bias", TENSOR_F32, 8, 1);
        refused(m, "tensor blk.0.attn_output.bias is not supported yet in architecture '");
        maker_destroy(m);
    }
}

static void tensors_of_another_shape_are_refused_with_both_shapes(void **state)
{
    (void)state;
    static const struct maker_shape experts = {.n_layers = 1, .n_embd = 8, .n_heads = 2, .n_kv_heads = 1, .n_ff = 16,
                                               .n_vocab = 5, .type = TENSOR_F32, .n_experts = 4, .n_experts_used = 2,
                                               .n_ff_expert = 12};
    struct maker *m = make("qwen3moe", &experts);
    for (uint32_t i = 0; i < m->n_tensors; i++)
        for (int d = 0; d < 4; d++) {
            struct maker_tensor right = m->tensors[i];
            char why[128];
            m->tensors[i].ne[d] *= 2;
            if (m->tensors[i].n_dims < (uint32_t)d + 1)
                m->tensors[i].n_dims = (uint32_t)d + 1;
            int vocabulary = strcmp(right.name, "token_embd.weight") == 0 && d == 1;
            snprintf(why, sizeof why, vocabulary ? "tensor %s 10 rows" : "tensor %s is ", right.name);
            refused(m, why);
            m->tensors[i] = right;
        }
    maker_tensor(m, "blk.0.ffn_down_exps.weight")->ne[2] = 3;
    refused(m, "tensor blk.0.ffn_down_exps.weight is 12 x 8 x 3 x 1, not 12 x 8 x 4");
    maker_destroy(m);
}

static void a_layer_with_experts_has_no_dense_mlp_and_the_other_way_round(void **state)
{
    (void)state;
    const struct gguf_tensor *t[N_LAYER_TENSORS];
    struct maker *m = make("llama", &SPARSE);
    struct made made = accepted(m);
    assert_int_equal(model_layer(&made.model, 1, t, NULL), STATUS_OK);
    assert_true(t[LAYER_FFN_GATE_EXPS] && t[LAYER_FFN_UP_EXPS] && t[LAYER_FFN_DOWN_EXPS] && t[LAYER_FFN_GATE_INP]);
    assert_true(!t[LAYER_FFN_GATE] && !t[LAYER_FFN_UP] && !t[LAYER_FFN_DOWN] && t[LAYER_FFN_NORM]);
    close_made(&made);
    maker_add_tensor(m, "blk.0.ffn_gate.weight", TENSOR_F32, 8, 16);
    refused(m, "tensor blk.0.ffn_gate.weight is not supported yet");
    maker_destroy(m);
    m = make("llama", &DENSE);
    maker_add_tensor(m, "blk.0.ffn_gate_inp.weight", TENSOR_F32, 8, 4);
    refused(m, "tensor blk.0.ffn_gate_inp.weight is not supported yet");
    maker_destroy(m);
}

/* --- experts ------------------------------------------------------------------------------------------------------------ */

static void experts_are_counted_sized_and_normalised_as_the_file_says(void **state)
{
    (void)state;
    struct maker *m = make("llama", &SPARSE);
    struct hparams hp = accepted_hparams(m);
    assert_true(hp.n_experts == 4 && hp.n_experts_used == 2 && hp.n_ff_expert == 12 && hp.normalise_experts && hp.n_ff == 0);
    maker_bool(m, "llama.expert_weights_norm", 0);
    assert_int_equal(accepted_hparams(m).normalise_experts, 0);
    maker_bool(m, "llama.expert_weights_norm", 1);
    assert_int_equal(accepted_hparams(m).normalise_experts, 1);
    maker_u32(m, "llama.expert_weights_norm", 1);
    refused(m, "llama.expert_weights_norm is not a truth value");
    maker_drop(m, "llama.expert_weights_norm");
    maker_drop(m, "llama.expert_feed_forward_length");
    refused(m, "tensor blk.0.ffn_gate_exps.weight is 8 x 12 x 4 x 1, not 8 x 16 x 4"); /* mixtral: feed_forward_length */
    maker_u32(m, "llama.feed_forward_length", 12);
    assert_int_equal(accepted_hparams(m).n_ff_expert, 12);
    maker_u32(m, "llama.expert_used_count", 5);
    refused(m, "llama.expert_used_count is 5, not in 1..4");
    maker_u32(m, "llama.expert_used_count", 0);
    refused(m, "llama.expert_used_count is 0, not in 1..4");
    maker_drop(m, "llama.expert_used_count");
    refused(m, "llama.expert_used_count is missing");
    maker_u32(m, "llama.expert_count", 1u << 20);
    refused(m, "llama.expert_count is 1048576, not in 0..4096");
    maker_destroy(m);
}

static void experts_are_for_the_architectures_that_have_them(void **state)
{
    (void)state;
    static const char *const dense[] = {"qwen2", "qwen3", "gemma3"};
    for (size_t i = 0; i < ARRAY_LEN(dense); i++) {
        struct maker *m = make(dense[i], &DENSE);
        char why[96];
        maker_arch_u32(m, "expert_count", 0);
        accepted_hparams(m);
        maker_arch_u32(m, "expert_count", 4);
        snprintf(why, sizeof why, "architecture '%s' with 4 experts is not supported yet", dense[i]);
        refused(m, why);
        maker_destroy(m);
    }
    struct maker *m = make("qwen3moe", &SPARSE);
    maker_drop(m, "qwen3moe.expert_feed_forward_length");
    refused(m, "qwen3moe.expert_feed_forward_length is missing");
    maker_u32(m, "qwen3moe.expert_count", 0);
    refused(m, "qwen3moe.expert_count is 0, not in 1..4096");
    maker_drop(m, "qwen3moe.expert_count");
    refused(m, "qwen3moe.expert_count is missing");
    maker_destroy(m);
}

/* --- windows, rope, scores ----------------------------------------------------------------------------------------------- */

static void of_six_layers_of_gemma3_the_last_sees_everything(void **state)
{
    (void)state;
    struct maker *m = make("gemma3", &DENSE);
    struct made made = accepted(m);
    for (uint32_t l = 0; l < 8; l++) {
        assert_int_equal(model_layer_window(&made.model, l), l == 5 ? 0 : 32);
        assert_int_equal(model_layer_rope(&made.model, l), l == 5 ? 0 : 1);
    }
    close_made(&made);
    maker_arch_u32(m, "attention.sliding_window_pattern", 2);
    made = accepted(m);
    for (uint32_t l = 0; l < 8; l++)
        assert_int_equal(model_layer_window(&made.model, l), l % 2 ? 0 : 32);
    close_made(&made);
    maker_arch_u32(m, "attention.sliding_window_pattern", 1);
    made = accepted(m);
    assert_int_equal(count_local(&made.model), 0);
    close_made(&made);
    maker_arch_u32(m, "attention.sliding_window_pattern", 0);
    refused(m, "gemma3.attention.sliding_window_pattern is 0, not in 1..1024");
    maker_arch_u32(m, "attention.sliding_window", 0);
    refused(m, "gemma3.attention.sliding_window is 0, not in 1..");
    maker_drop(m, "gemma3.attention.sliding_window");
    refused(m, "gemma3.attention.sliding_window is missing");
    maker_destroy(m);
}

static void local_layers_may_be_listed_one_by_one(void **state)
{
    (void)state;
    static const uint8_t list[] = {1, 1, 0, 1, 1, 1, 1, 0};
    uint8_t value[12 + sizeof list] = {BOOL};
    struct maker *m = make("gemma3", &DENSE);
    value[4] = sizeof list;
    memcpy(value + 12, list, sizeof list);
    maker_raw(m, "gemma3.attention.sliding_window_pattern", ARRAY, value, sizeof value);
    struct made made = accepted(m);
    for (uint32_t l = 0; l < sizeof list; l++) {
        assert_int_equal(model_layer_window(&made.model, l), list[l] ? 32 : 0);
        assert_int_equal(model_layer_rope(&made.model, l), list[l]);
    }
    close_made(&made);
    value[4] = 7;
    maker_raw(m, "gemma3.attention.sliding_window_pattern", ARRAY, value, sizeof value - 1);
    refused(m, "gemma3.attention.sliding_window_pattern has 7 entries for 8 layers");
    uint8_t ints[12 + 4 * sizeof list] = {I32};
    ints[4] = sizeof list;
    ints[12 + 4] = 2;
    maker_raw(m, "gemma3.attention.sliding_window_pattern", ARRAY, ints, sizeof ints);
    refused(m, "gemma3.attention.sliding_window_pattern: entry 1 is 2, not 0 or 1");
    maker_destroy(m);
}

static void a_window_where_the_architecture_has_none_is_refused_unless_it_holds_the_context(void **state)
{
    (void)state;
    static const char *const without[] = {"llama", "qwen2", "qwen3", "qwen3moe"};
    for (size_t i = 0; i < ARRAY_LEN(without); i++) {
        struct maker *m = make_any(without[i]);
        char why[96];
        maker_arch_u32(m, "attention.sliding_window", 511);
        snprintf(why, sizeof why, "%s.attention.sliding_window 511 is not supported yet", without[i]);
        refused(m, why);
        maker_arch_u32(m, "attention.sliding_window", 512);
        assert_int_equal(accepted_hparams(m).window, 0);
        maker_destroy(m);
    }
}

static void rope_bases_have_their_keys_and_defaults(void **state)
{
    (void)state;
    struct maker *m = make("gemma3", &DENSE);
    struct hparams hp = accepted_hparams(m);
    assert_true(hp.rope_theta == 1e4f && hp.rope_theta_local == 1e4f);
    maker_arch_f32(m, "rope.freq_base", 1e6f);
    hp = accepted_hparams(m);
    assert_true(hp.rope_theta == 1e6f && hp.rope_theta_local == 1e4f);
    maker_arch_f32(m, "rope.local.freq_base", 2e4f);
    assert_true(accepted_hparams(m).rope_theta_local == 2e4f);
    maker_arch_f32(m, "rope.freq_base_swa", 3e4f);
    assert_true(accepted_hparams(m).rope_theta_local == 3e4f);
    maker_arch_f32(m, "rope.freq_base_swa", 0.5f);
    refused(m, "gemma3.rope.freq_base_swa is 0.5, not in 1..");
    maker_destroy(m);
}

static void linear_rope_scaling_divides_by_its_factor(void **state)
{
    (void)state;
    struct maker *m = make("llama", &DENSE);
    maker_f32(m, "llama.rope.scale_linear", 2);
    assert_true(accepted_hparams(m).rope_factor == 2);
    maker_f32(m, "llama.rope.scaling.factor", 8); /* the newer name */
    assert_true(accepted_hparams(m).rope_factor == 8);
    maker_text(m, "llama.rope.scaling.type", "linear");
    assert_true(accepted_hparams(m).rope_factor == 8);
    maker_text(m, "llama.rope.scaling.type", "none");
    assert_true(accepted_hparams(m).rope_factor == 1);
    maker_text(m, "llama.rope.scaling.type", "yarn");
    refused(m, "llama.rope.scaling.type 'yarn' is not supported yet");
    maker_u32(m, "llama.rope.scaling.type", 1);
    refused(m, "llama.rope.scaling.type is not a text");
    maker_text(m, "llama.rope.scaling.type", "linear");
    maker_f32(m, "llama.rope.scaling.factor", 0.5f);
    refused(m, "llama.rope.scaling.factor is 0.5, not 1 or more");
    maker_f32(m, "llama.rope.scaling.factor", -1);
    refused(m, "llama.rope.scaling.factor is -1, not in 0..");
    maker_f32(m, "llama.rope.scaling.factor", 0); /* unset */
    maker_drop(m, "llama.rope.scale_linear");
    assert_true(accepted_hparams(m).rope_factor == 1);
    maker_destroy(m);
}

static void scores_are_scaled_by_head_size_key_or_the_size_of_the_model(void **state)
{
    (void)state;
    struct maker *m = make("qwen3", &DENSE);
    assert_true(accepted_hparams(m).attention_scale == 0.5f); /* 1/sqrt(4) */
    maker_arch_f32(m, "attention.scale", 0.125f);
    assert_true(accepted_hparams(m).attention_scale == 0.125f);
    maker_arch_f32(m, "attention.scale", -0.125f);
    refused(m, "qwen3.attention.scale is -0.125, not in 0..");
    maker_destroy(m);
    /* The 27B form: 62 layers, heads that are not n_embd / n_heads wide. */
    struct maker_shape large = DENSE;
    large.n_layers = 62;
    large.n_embd = 32;
    large.n_heads = 2;
    m = make("gemma3", &large);
    assert_true(accepted_hparams(m).attention_scale == 0.25f); /* 1/sqrt(32 / 2) */
    maker_destroy(m);
}

static void softcaps_are_taken_where_the_architecture_has_them(void **state)
{
    (void)state;
    static const char *const keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    struct maker *m = make("gemma3", &DENSE);
    maker_arch_f32(m, keys[0], 50);
    maker_arch_f32(m, keys[1], 30);
    struct hparams hp = accepted_hparams(m);
    assert_true(hp.attn_softcap == 50 && hp.final_softcap == 30);
    maker_arch_f32(m, keys[1], NAN);
    refused(m, "gemma3.final_logit_softcapping is nan");
    maker_destroy(m);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        char why[96];
        m = make("qwen2", &DENSE);
        maker_arch_f32(m, keys[i], 0);
        accepted_hparams(m);
        maker_arch_f32(m, keys[i], 50);
        snprintf(why, sizeof why, "qwen2.%s 50 is not supported yet", keys[i]);
        refused(m, why);
        maker_destroy(m);
    }
}

/* --- what else would change the results ---------------------------------------------------------------------------------- */

static void keys_that_would_change_the_results_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *suffix;
        float bad, good; /* good: means nothing */
    } cases[] = {
        {"attention.max_alibi_bias", 8, 0},      {"attention.clamp_kqv", 8, 0},
        {"attention.output_scale", 2, 1},        {"attention.temperature_scale", 0.1f, 0},
        {"embedding_scale", 12, 1},              {"expert_weights_scale", 2.5f, 1},
        {"logit_scale", 0.0625f, 1},             {"residual_scale", 0.22f, 0},
        {"attention.value_scale", 0.5f, 1},      {"rope.scaling.alpha", 1000, 1},
        {"rope.scaling.attn_factor", 1.19f, 1},  {"router_logit_softcapping", 30, 0},
    };
    static const struct {
        const char *suffix;
        uint32_t bad, good;
    } whole[] = {
        {"attention.shared_kv_layers", 2, 0},  {"expert_gating_func", 2, 1},       {"expert_group_count", 8, 1},
        {"expert_group_used_count", 4, 1},     {"expert_shared_count", 1, 0},      {"expert_shared_feed_forward_length", 64, 0},
        {"interleave_moe_layer_step", 2, 1},   {"leading_dense_block_count", 3, 0}, {"moe_every_n_layers", 2, 1},
        {"nextn_predict_layers", 1, 0},        {"attention.temperature_length", 8192, 0},
        {"expert_chunk_feed_forward_length", 64, 0}, {"full_attention_interval", 4, 1},
    };
    char why[128];
    for (size_t a = 0; a < ARRAY_LEN(arch_names); a++) {
        struct maker *m = make_any(arch_names[a]);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            maker_arch_f32(m, cases[i].suffix, cases[i].bad);
            snprintf(why, sizeof why, "%s.%s %g is not supported yet", arch_names[a], cases[i].suffix, (double)cases[i].bad);
            refused(m, why);
            maker_arch_f32(m, cases[i].suffix, cases[i].good);
            accepted_hparams(m);
        }
        for (size_t i = 0; i < ARRAY_LEN(whole); i++) {
            maker_arch_u32(m, whole[i].suffix, whole[i].bad);
            snprintf(why, sizeof why, "%s.%s %u is not supported yet", arch_names[a], whole[i].suffix, whole[i].bad);
            refused(m, why);
            maker_arch_u32(m, whole[i].suffix, whole[i].good);
            accepted_hparams(m);
        }
        maker_destroy(m);
    }
}

static void keys_of_another_kind_than_numbers_are_refused_by_name_too(void **state)
{
    (void)state;
    struct maker *m = make("llama", &DENSE);
    maker_bool(m, "llama.use_parallel_residual", 0);
    accepted_hparams(m);
    maker_bool(m, "llama.use_parallel_residual", 1);
    refused(m, "llama.use_parallel_residual 1 is not supported yet");
    maker_text(m, "llama.use_parallel_residual", "no");
    refused(m, "llama.use_parallel_residual is not a number");
    maker_drop(m, "llama.use_parallel_residual");
    maker_raw(m, "llama.rope.dimension_sections", ARRAY, "\5\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0", 16);
    refused(m, "llama.rope.dimension_sections is not supported yet");
    maker_drop(m, "llama.rope.dimension_sections");
    maker_f32(m, "llama.logit_scale", NAN);
    refused(m, "llama.logit_scale nan is not supported yet");
    maker_destroy(m);
}

static void sizes_of_their_own_for_layers_with_a_window_are_refused_with_both(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"};
    char why[128];
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        struct maker *m = make("gemma3", &DENSE);
        const uint32_t all = DENSE.n_embd / DENSE.n_heads;
        maker_arch_u32(m, suffixes[i], all);
        accepted_hparams(m);
        maker_arch_u32(m, suffixes[i], 2 * all);
        snprintf(why, sizeof why, "gemma3.%s %u is not supported yet: all layers have %u", suffixes[i], 2 * all, all);
        refused(m, why);
        maker_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tiny_files_of_every_architecture_are_read_as_their_makers_wrote_them),
        cmocka_unit_test(architectures_that_are_not_built_are_refused_by_name),
        cmocka_unit_test(every_tensor_of_every_architecture_is_needed_and_no_other_is_taken),
        cmocka_unit_test(tensors_of_another_shape_are_refused_with_both_shapes),
        cmocka_unit_test(a_layer_with_experts_has_no_dense_mlp_and_the_other_way_round),
        cmocka_unit_test(experts_are_counted_sized_and_normalised_as_the_file_says),
        cmocka_unit_test(experts_are_for_the_architectures_that_have_them),
        cmocka_unit_test(of_six_layers_of_gemma3_the_last_sees_everything),
        cmocka_unit_test(local_layers_may_be_listed_one_by_one),
        cmocka_unit_test(a_window_where_the_architecture_has_none_is_refused_unless_it_holds_the_context),
        cmocka_unit_test(rope_bases_have_their_keys_and_defaults),
        cmocka_unit_test(linear_rope_scaling_divides_by_its_factor),
        cmocka_unit_test(scores_are_scaled_by_head_size_key_or_the_size_of_the_model),
        cmocka_unit_test(softcaps_are_taken_where_the_architecture_has_them),
        cmocka_unit_test(keys_that_would_change_the_results_are_refused_by_name),
        cmocka_unit_test(keys_of_another_kind_than_numbers_are_refused_by_name_too),
        cmocka_unit_test(sizes_of_their_own_for_layers_with_a_window_are_refused_with_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
