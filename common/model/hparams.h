/* common/model/hparams.h - what a model is, as one table per architecture.
 *
 * Purpose    Reads the hyper-parameters of a GGUF and finds and checks the tensors of a layer range. What differs between
 *            architectures is data in `struct arch` (hparams.c; model.c has the tensors); stage/forward runs it and has no per-model code path.
 *            What is not supported yet is refused by name.
 * Ownership  model_open/model_close; the gguf belongs to the model.
 * Threading  Read-only after model_open.
 * Errors     STATUS_BAD_MODEL naming the key or tensor and both values.
 */
#ifndef SLUICE_COMMON_MODEL_HPARAMS_H
#define SLUICE_COMMON_MODEL_HPARAMS_H

#include <stdint.h>

#include "common/model/gguf.h"

enum rope_pairing { ROPE_ADJACENT /* (2i, 2i+1) */, ROPE_HALVES /* (i, i + n_rot/2) */ };
enum gate_kind { GATE_SILU, GATE_GELU_TANH };

/* The tensors of one layer, in the order of enum layer_tensor; which are there follows from the architecture. */
#define LAYER_TENSOR_MAP(X)                                                                                            \
    X(ATTN_NORM, "attn_norm.weight")                                                                                   \
    X(ATTN_Q, "attn_q.weight")                                                                                         \
    X(ATTN_K, "attn_k.weight")                                                                                         \
    X(ATTN_V, "attn_v.weight")                                                                                         \
    X(ATTN_Q_BIAS, "attn_q.bias")                                                                                      \
    X(ATTN_K_BIAS, "attn_k.bias")                                                                                      \
    X(ATTN_V_BIAS, "attn_v.bias")                                                                                      \
    X(ATTN_Q_NORM, "attn_q_norm.weight")                                                                               \
    X(ATTN_K_NORM, "attn_k_norm.weight")                                                                               \
    X(ATTN_OUT, "attn_output.weight")                                                                                  \
    X(ATTN_POST_NORM, "post_attention_norm.weight")                                                                    \
    X(FFN_NORM, "ffn_norm.weight")                                                                                     \
    X(FFN_GATE, "ffn_gate.weight")                                                                                     \
    X(FFN_UP, "ffn_up.weight")                                                                                         \
    X(FFN_DOWN, "ffn_down.weight")                                                                                     \
    X(FFN_POST_NORM, "post_ffw_norm.weight")                                                                           \
    X(FFN_GATE_INP, "ffn_gate_inp.weight")   /* the router */                                                          \
    X(FFN_GATE_EXPS, "ffn_gate_exps.weight") /* [n_experts] matrices, one behind the other */                          \
    X(FFN_UP_EXPS, "ffn_up_exps.weight")                                                                               \
    X(FFN_DOWN_EXPS, "ffn_down_exps.weight")

enum layer_tensor {
#define X(name, suffix) LAYER_##name,
    LAYER_TENSOR_MAP(X)
#undef X
    N_LAYER_TENSORS,
};

enum expert_use { EXPERTS_NONE, EXPERTS_OPTIONAL, EXPERTS_ALWAYS };

struct arch {
    const char *name;             /* general.architecture */
    enum rope_pairing rope;
    enum gate_kind gate;
    uint32_t required;            /* bit i: enum layer_tensor i; with experts, those of the dense MLP make room for theirs */
    int scale_embedding;          /* embeddings times sqrt(n_embd) */
    enum expert_use experts;
    uint32_t window_pattern;      /* of so many layers the last sees all positions, the others a window; 0: no windows */
    int softcaps;                 /* the file may cap scores and logits */
    uint32_t wide_scale_layers;   /* the size, by its layers, whose scores are divided by sqrt(n_embd / n_heads); 0: none */
};

enum { MODEL_ROPES = 2, MODEL_MAX_LAYERS = 1024, MODEL_MAX_EXPERTS = 4096 };

struct hparams {
    const struct arch *arch;
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_rot, n_ff, n_vocab, n_context;
    float rms_eps;
    float rope_theta;             /* base of the rotary frequencies, of layers without a window where there are windows */
    int tied_head;                /* no output.weight: the head is token_embd */
    float rope_theta_local;       /* of layers with a window */
    float rope_factor;            /* linear scaling: frequencies of table 0 are divided by it; 1: none */
    float attention_scale;        /* of scores */
    float attn_softcap, final_softcap; /* x becomes cap * tanh(x / cap); 0: off */
    uint32_t n_experts, n_experts_used, n_ff_expert; /* 0: a dense MLP of n_ff */
    int normalise_experts;        /* the weights of the experts that are used are divided by their sum */
    uint32_t window;              /* positions that a row of a local layer sees, its own among them; 0: no layer is local */
    uint32_t local_layers[MODEL_MAX_LAYERS / 32]; /* bit l % 32 of l / 32: layer l is local */
};

struct model {
    struct gguf *gguf;
    struct hparams hp;
    uint8_t hash[32];
    char name[64];                /* general.name, else the file's name without .gguf */
};

enum status model_open(const char *path, struct model *out, struct error *err);
/* Checks hparams without a file on disk (tests, fuzzing); takes the gguf over on success. */
enum status model_from_gguf(struct gguf *g, const char *path, struct model *out, struct error *err);
void model_close(struct model *m);
/* A name as it goes to clients in JSON: valid UTF-8, whole characters, '?' for controls and for bytes that are none; cut to size. */
void model_clean_name(struct text t, char *out, size_t size);

/* Positions that a row of this layer sees, its own among them; 0: all. */
static inline uint32_t model_layer_window(const struct model *m, uint32_t layer)
{
    return m->hp.local_layers[layer / 32] >> layer % 32 & 1 ? m->hp.window : 0;
}

/* Which of the MODEL_ROPES tables of rotary frequencies this layer uses. */
static inline uint32_t model_layer_rope(const struct model *m, uint32_t layer)
{
    return m->hp.local_layers[layer / 32] >> layer % 32 & 1;
}

/* Tensors of one layer; those that its architecture lacks are NULL. Shapes and types are checked. layer in 0..n_layers-1. */
enum status model_layer(const struct model *m, uint32_t layer, const struct gguf_tensor *out[N_LAYER_TENSORS],
                        struct error *err);
enum status model_embedding(const struct model *m, const struct gguf_tensor **embd, struct error *err);
/* out_norm [n_embd] and head [n_vocab][n_embd] (token_embd when tied); rope_freqs [n_rot/2] or NULL. */
enum status model_head(const struct model *m, const struct gguf_tensor **out_norm, const struct gguf_tensor **head,
                       struct error *err);
const struct gguf_tensor *model_rope_freqs(const struct model *m);

#endif
