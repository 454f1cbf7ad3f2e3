#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/model/hparams_impl.h"

#define BIT(name) (1u << LAYER_##name)

/* Every decoder that is built of RMS norms, grouped-query attention and a gated MLP has these. */
#define DENSE_MLP (BIT(FFN_GATE) | BIT(FFN_UP) | BIT(FFN_DOWN))
#define DECODER                                                                                                        \
    (BIT(ATTN_NORM) | BIT(ATTN_Q) | BIT(ATTN_K) | BIT(ATTN_V) | BIT(ATTN_OUT) | BIT(FFN_NORM) | DENSE_MLP)
#define EXPERTS (BIT(FFN_GATE_INP) | BIT(FFN_GATE_EXPS) | BIT(FFN_UP_EXPS) | BIT(FFN_DOWN_EXPS))
#define QKV_BIASES (BIT(ATTN_Q_BIAS) | BIT(ATTN_K_BIAS) | BIT(ATTN_V_BIAS))
#define HEAD_NORMS (BIT(ATTN_Q_NORM) | BIT(ATTN_K_NORM))
#define POST_NORMS (BIT(ATTN_POST_NORM) | BIT(FFN_POST_NORM))

static const struct arch archs[] = {
    {.name = "llama", .rope = ROPE_ADJACENT, .gate = GATE_SILU, .required = DECODER, .experts = EXPERTS_OPTIONAL},
    {.name = "qwen2", .rope = ROPE_HALVES, .gate = GATE_SILU, .required = DECODER | QKV_BIASES},
    {.name = "qwen3", .rope = ROPE_HALVES, .gate = GATE_SILU, .required = DECODER | HEAD_NORMS},
    {.name = "gemma3",
     .rope = ROPE_HALVES,
     .gate = GATE_GELU_TANH,
     .required = DECODER | HEAD_NORMS | POST_NORMS,
     .scale_embedding = 1,
     .window_pattern = 6,
     .softcaps = 1,
     .wide_scale_layers = 62},
    {.name = "qwen3moe",
     .rope = ROPE_HALVES,
     .gate = GATE_SILU,
     .required = DECODER | HEAD_NORMS,
     .experts = EXPERTS_ALWAYS},
};

enum {
    MAX_WIDTH = 1 << 24, /* any number of elements of a row: products of two fit 64 bits with room */
    MAX_NAME = 96,
};

uint32_t hparams_required(const struct hparams *hp)
{
    return hp->n_experts ? (hp->arch->required & ~DENSE_MLP) | EXPERTS : hp->arch->required;
}

/* --- reading keys ----------------------------------------------------------------------------------------------------- */

struct reader {
    const struct gguf *gguf;
    const struct arch *arch;
    struct error *err;
};

static void arch_key(char out[MAX_NAME], const struct arch *arch, const char *suffix)
{
    snprintf(out, MAX_NAME, "%s.%s", arch->name, suffix);
}

static int has_key(const struct reader *r, const char *suffix)
{
    char key[MAX_NAME];
    arch_key(key, r->arch, suffix);
    return gguf_has(r->gguf, key);
}

/* Absent: *out keeps its default. */
static enum status read_u32(const struct reader *r, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
    char key[MAX_NAME];
    uint64_t v;
    arch_key(key, r->arch, suffix);
    if (!gguf_has(r->gguf, key))
        return STATUS_OK;
    if (!gguf_u64(r->gguf, key, &v))
        return error_set(r->err, STATUS_BAD_MODEL, "%s is not one unsigned integer", key);
    if (v < min || v > max)
        return error_set(r->err, STATUS_BAD_MODEL, "%s is %" PRIu64 ", not in %u..%u", key, v, min, max);
    *out = (uint32_t)v;
    return STATUS_OK;
}

static enum status need_u32(const struct reader *r, const char *suffix, uint32_t min, uint32_t max, uint32_t *out)
{
    char key[MAX_NAME];
    arch_key(key, r->arch, suffix);
    if (!gguf_has(r->gguf, key))
        return error_set(r->err, STATUS_BAD_MODEL, "%s is missing", key);
    return read_u32(r, suffix, min, max, out);
}

/* Absent: *out keeps its default. */
static enum status read_f32(const struct reader *r, const char *suffix, double min, double max, float *out)
{
    char key[MAX_NAME];
    double v;
    arch_key(key, r->arch, suffix);
    if (!gguf_has(r->gguf, key))
        return STATUS_OK;
    if (!gguf_f64(r->gguf, key, &v))
        return error_set(r->err, STATUS_BAD_MODEL, "%s is not a float", key);
    if (!(v >= min && v <= max))
        return error_set(r->err, STATUS_BAD_MODEL, "%s is %g, not in %g..%g", key, v, min, max);
    *out = (float)v;
    return STATUS_OK;
}

/* --- what is not supported -------------------------------------------------------------------------------------------- */

static enum status find_arch(const struct gguf *g, const struct arch **out, struct error *err)
{
    struct text name;
    char supported[128] = "";
    if (!gguf_text(g, "general.architecture", &name))
        return error_set(err, STATUS_BAD_MODEL, "general.architecture is missing or not a text");
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        size_t n = strlen(supported);
        if (text_is(name, archs[i].name)) {
            *out = &archs[i];
            return STATUS_OK;
        }
        snprintf(supported + n, sizeof supported - n, "%s%s", n ? ", " : "", archs[i].name);
    }
    return error_set(err, STATUS_BAD_MODEL, "architecture '%s' is not supported yet; supported: %s",
                     gguf_printable(name).text, supported);
}

/* Keys that mean nothing at two values (0 often stands for "unset") and another computation at all others. */
static const struct {
    const char *suffix;
    double neutral, neutral_too;
} inert_keys[] = {
    {"attention.max_alibi_bias", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.output_scale", 0, 1},
    {"attention.temperature_length", 0, 0},
    {"attention.temperature_scale", 0, 0},
    {"attention.value_scale", 0, 1},
    {"attention.shared_kv_layers", 0, 0},
    {"embedding_scale", 0, 1},
    {"expert_chunk_feed_forward_length", 0, 0},
    {"expert_gating_func", 0, 1}, /* 1: softmax */
    {"expert_group_count", 0, 1},
    {"expert_group_used_count", 0, 1},
    {"expert_shared_count", 0, 0},
    {"expert_shared_feed_forward_length", 0, 0},
    {"expert_weights_scale", 0, 1},
    {"full_attention_interval", 0, 1},
    {"interleave_moe_layer_step", 0, 1},
    {"leading_dense_block_count", 0, 0},
    {"logit_scale", 0, 1},
    {"moe_every_n_layers", 0, 1},
    {"nextn_predict_layers", 0, 0},
    {"residual_scale", 0, 1},
    {"rope.scaling.alpha", 0, 1},
    {"rope.scaling.attn_factor", 0, 1},
    {"router_logit_softcapping", 0, 0},
    {"use_parallel_residual", 0, 0},
};

static enum status refuse_keys(const struct reader *r)
{
    for (size_t i = 0; i < ARRAY_LEN(inert_keys); i++) {
        char key[MAX_NAME];
        uint64_t whole;
        double v;
        int yes;
        arch_key(key, r->arch, inert_keys[i].suffix);
        if (!gguf_has(r->gguf, key))
            continue;
        if (gguf_u64(r->gguf, key, &whole))
            v = (double)whole;
        else if (gguf_bool(r->gguf, key, &yes))
            v = yes;
        else if (!gguf_f64(r->gguf, key, &v))
            return error_set(r->err, STATUS_BAD_MODEL, "%s is not a number", key);
        if (v != inert_keys[i].neutral && v != inert_keys[i].neutral_too)
            return error_set(r->err, STATUS_BAD_MODEL, "%s %g is not supported yet", key, v);
    }
    return STATUS_OK;
}

/* What would change the results and is not computed. */
static enum status refuse_features(const struct reader *r)
{
    char key[MAX_NAME];
    int causal;
    arch_key(key, r->arch, "attention.causal");
    if (gguf_bool(r->gguf, key, &causal) && !causal)
        return error_set(r->err, STATUS_BAD_MODEL, "%s false: this is not a model that generates", key);
    if (has_key(r, "rope.dimension_sections"))
        return error_set(r->err, STATUS_BAD_MODEL, "%s.rope.dimension_sections is not supported yet", r->arch->name);
    return refuse_keys(r);
}

/* --- attention -------------------------------------------------------------------------------------------------------- */

/* Sizes of their own for layers with a window: here all layers are alike. */
static enum status read_same(const struct reader *r, const char *suffix, uint32_t all)
{
    uint32_t local = all;
    TRY(read_u32(r, suffix, 0, UINT32_MAX, &local));
    if (local != all)
        return error_set(r->err, STATUS_BAD_MODEL, "%s.%s %u is not supported yet: all layers have %u", r->arch->name, suffix,
                         local, all);
    return STATUS_OK;
}

static enum status read_heads(const struct reader *r, struct hparams *hp)
{
    uint32_t value_length;
    TRY(need_u32(r, "attention.head_count", 1, 65536, &hp->n_heads));
    hp->n_kv_heads = hp->n_heads;
    TRY(read_u32(r, "attention.head_count_kv", 1, 65536, &hp->n_kv_heads));
    if (hp->n_heads % hp->n_kv_heads != 0)
        return error_set(r->err, STATUS_BAD_MODEL, "%s.attention.head_count %u is no multiple of head_count_kv %u",
                         r->arch->name, hp->n_heads, hp->n_kv_heads);
    hp->head_dim = hp->n_embd / hp->n_heads;
    TRY(read_u32(r, "attention.key_length", 1, 65536, &hp->head_dim));
    if (hp->head_dim < 2 || hp->head_dim % 2 != 0)
        return error_set(r->err, STATUS_BAD_MODEL,
                         "a head has %u elements (embedding_length %u, head_count %u): rotation needs an even number",
                         hp->head_dim, hp->n_embd, hp->n_heads);
    value_length = hp->head_dim;
    TRY(read_u32(r, "attention.value_length", 1, 65536, &value_length));
    if (value_length != hp->head_dim)
        return error_set(r->err, STATUS_BAD_MODEL, "%s.attention.value_length %u is not key_length %u", r->arch->name,
                         value_length, hp->head_dim);
    TRY(read_same(r, "attention.key_length_swa", hp->head_dim));
    TRY(read_same(r, "attention.value_length_swa", hp->head_dim));
    if ((uint64_t)hp->n_heads * hp->head_dim > MAX_WIDTH)
        return error_set(r->err, STATUS_BAD_MODEL, "%u heads of %u elements are more than any model has", hp->n_heads,
                         hp->head_dim);
    return STATUS_OK;
}

static enum status read_softcap(const struct reader *r, const char *suffix, float *out)
{
    TRY(read_f32(r, suffix, 0, 1e9, out));
    if (*out > 0 && !r->arch->softcaps)
        return error_set(r->err, STATUS_BAD_MODEL, "%s.%s %g is not supported yet", r->arch->name, suffix, (double)*out);
    return STATUS_OK;
}

/* Scores are multiplied by 1/sqrt(head_dim) but where the file or, in one size, the architecture says otherwise. */
static enum status read_scores(const struct reader *r, struct hparams *hp)
{
    int wide = r->arch->wide_scale_layers && hp->n_layers == r->arch->wide_scale_layers;
    double width = wide ? hp->n_embd / hp->n_heads : hp->head_dim;
    float scale = 0;
    TRY(read_softcap(r, "attn_logit_softcapping", &hp->attn_softcap));
    TRY(read_softcap(r, "final_logit_softcapping", &hp->final_softcap));
    TRY(read_f32(r, "attention.scale", 0, 1e6, &scale));
    hp->attention_scale = scale > 0 ? scale : (float)(1.0 / sqrt(width));
    return STATUS_OK;
}

/* Linear scaling, the only one: positions are divided by a factor, which is the same as the frequencies. */
static enum status read_rope_scaling(const struct reader *r, struct hparams *hp)
{
    static const double MAX_FACTOR = 1e6;
    char key[MAX_NAME];
    struct text type;
    float factor = 0;
    hp->rope_factor = 1;
    arch_key(key, r->arch, "rope.scaling.type");
    if (gguf_text(r->gguf, key, &type)) {
        if (text_is(type, "none"))
            return STATUS_OK;
        if (!text_is(type, "linear"))
            return error_set(r->err, STATUS_BAD_MODEL, "%s '%s' is not supported yet", key, gguf_printable(type).text);
    } else if (gguf_has(r->gguf, key)) {
        return error_set(r->err, STATUS_BAD_MODEL, "%s is not a text", key);
    }
    TRY(read_f32(r, "rope.scale_linear", 0, MAX_FACTOR, &factor));
    TRY(read_f32(r, "rope.scaling.factor", 0, MAX_FACTOR, &factor));
    if (factor > 0) /* 0: unset */
        hp->rope_factor = factor;
    if (!(hp->rope_factor >= 1))
        return error_set(r->err, STATUS_BAD_MODEL, "%s.rope.scaling.factor is %g, not 1 or more", r->arch->name,
                         (double)factor);
    return STATUS_OK;
}

static enum status read_rope(const struct reader *r, struct hparams *hp)
{
    enum { LOCAL_THETA = 10000 };
    hp->n_rot = hp->head_dim;
    TRY(read_u32(r, "rope.dimension_count", 2, hp->head_dim, &hp->n_rot));
    if (hp->n_rot % 2 != 0)
        return error_set(r->err, STATUS_BAD_MODEL, "%s.rope.dimension_count %u is odd", r->arch->name, hp->n_rot);
    TRY(read_same(r, "rope.dimension_count_swa", hp->n_rot));
    hp->rope_theta = 10000.0f;
    TRY(read_f32(r, "rope.freq_base", 1, 1e30, &hp->rope_theta));
    hp->rope_theta_local = LOCAL_THETA;
    TRY(read_f32(r, "rope.local.freq_base", 1, 1e30, &hp->rope_theta_local));
    TRY(read_f32(r, "rope.freq_base_swa", 1, 1e30, &hp->rope_theta_local));
    return read_rope_scaling(r, hp);
}

/* --- windows ---------------------------------------------------------------------------------------------------------- */

static void set_local(struct hparams *hp, uint32_t layer)
{
    hp->local_layers[layer / 32] |= 1u << layer % 32;
}

/* One truth value a layer, as newer files have it. */
static enum status read_local_layers(const struct reader *r, const char *key, uint64_t n, struct hparams *hp)
{
    int64_t local[MODEL_MAX_LAYERS];
    if (n != hp->n_layers)
        return error_set(r->err, STATUS_BAD_MODEL, "%s has %" PRIu64 " entries for %u layers", key, n, hp->n_layers);
    TRY(gguf_read_i64(r->gguf, key, local, n));
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        if (local[l] != 0 && local[l] != 1)
            return error_set(r->err, STATUS_BAD_MODEL, "%s: entry %u is %" PRId64 ", not 0 or 1", key, l, local[l]);
        if (local[l])
            set_local(hp, l);
    }
    return STATUS_OK;
}

static enum status read_windows(const struct reader *r, struct hparams *hp)
{
    uint32_t pattern = r->arch->window_pattern;
    uint64_t n;
    char key[MAX_NAME];
    if (!pattern) {
        TRY(read_u32(r, "attention.sliding_window", 0, UINT32_MAX, &hp->window));
        if (hp->window && hp->window < hp->n_context)
            return error_set(r->err, STATUS_BAD_MODEL, "%s.attention.sliding_window %u is not supported yet",
                             r->arch->name, hp->window);
        hp->window = 0; /* the whole context: none */
        return STATUS_OK;
    }
    TRY(need_u32(r, "attention.sliding_window", 1, INT32_MAX, &hp->window));
    arch_key(key, r->arch, "attention.sliding_window_pattern");
    if (gguf_array_ints(r->gguf, key, &n))
        return read_local_layers(r, key, n, hp);
    TRY(read_u32(r, "attention.sliding_window_pattern", 1, MODEL_MAX_LAYERS, &pattern));
    for (uint32_t l = 0; l < hp->n_layers; l++)
        if ((l + 1) % pattern != 0)
            set_local(hp, l);
    return STATUS_OK;
}

/* --- the MLP ---------------------------------------------------------------------------------------------------------- */

static enum status read_experts(const struct reader *r, struct hparams *hp)
{
    char key[MAX_NAME];
    if (r->arch->experts == EXPERTS_ALWAYS)
        TRY(need_u32(r, "expert_count", 1, MODEL_MAX_EXPERTS, &hp->n_experts));
    TRY(read_u32(r, "expert_count", 0, MODEL_MAX_EXPERTS, &hp->n_experts));
    if (hp->n_experts == 0)
        return need_u32(r, "feed_forward_length", 1, MAX_WIDTH, &hp->n_ff);
    if (r->arch->experts == EXPERTS_NONE)
        return error_set(r->err, STATUS_BAD_MODEL, "architecture '%s' with %u experts is not supported yet",
                         r->arch->name, hp->n_experts);
    TRY(need_u32(r, "expert_used_count", 1, hp->n_experts, &hp->n_experts_used));
    if (r->arch->experts == EXPERTS_ALWAYS || has_key(r, "expert_feed_forward_length"))
        TRY(need_u32(r, "expert_feed_forward_length", 1, MAX_WIDTH, &hp->n_ff_expert));
    else
        TRY(need_u32(r, "feed_forward_length", 1, MAX_WIDTH, &hp->n_ff_expert));
    hp->normalise_experts = 1;
    arch_key(key, r->arch, "expert_weights_norm");
    if (gguf_has(r->gguf, key) && !gguf_bool(r->gguf, key, &hp->normalise_experts))
        return error_set(r->err, STATUS_BAD_MODEL, "%s is not a truth value", key);
    return STATUS_OK;
}

enum status hparams_read(const struct gguf *g, struct hparams *out, struct error *err)
{
    struct reader r = {.gguf = g, .err = err};
    struct hparams hp = {.rms_eps = -1};
    TRY(find_arch(g, &r.arch, err));
    hp.arch = r.arch;
    TRY(refuse_features(&r));
    TRY(need_u32(&r, "block_count", 1, MODEL_MAX_LAYERS, &hp.n_layers));
    TRY(need_u32(&r, "embedding_length", 1, MAX_WIDTH, &hp.n_embd));
    TRY(need_u32(&r, "context_length", 1, INT32_MAX, &hp.n_context));
    TRY(read_experts(&r, &hp));
    TRY(read_heads(&r, &hp));
    TRY(read_scores(&r, &hp));
    TRY(read_rope(&r, &hp));
    TRY(read_windows(&r, &hp));
    TRY(read_f32(&r, "attention.layer_norm_rms_epsilon", 0, 1, &hp.rms_eps));
    if (hp.rms_eps < 0)
        return error_set(err, STATUS_BAD_MODEL, "%s.attention.layer_norm_rms_epsilon is missing", r.arch->name);
    *out = hp;
    return STATUS_OK;
}
