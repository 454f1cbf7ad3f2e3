/* stage/weights.h - the tensors that one stage holds, packed for its kernels.
 *
 * Purpose    Finds the tensors of a layer range (and of embedding and head where the stage has them), says what they need,
 *            and packs them with all threads, each expert's matrices for themselves. Everything lies in one mapping. Pages
 *            of the file that are not read again are given back.
 * Ownership  weights_plan fills a struct of the caller's; weights_free. The model must outlive it: embedding rows are read
 *            from the file's mapping.
 * Threading  Read-only after weights_load.
 * Errors     STATUS_BAD_MODEL names the tensor or the size of heads, also where kernels lack something; STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_STAGE_WEIGHTS_H
#define SLUICE_STAGE_WEIGHTS_H

#include "common/model/hparams.h"
#include "kernels/ops.h"
#include "kernels/team.h"
#include "stage/memory.h"

struct expert_weights {
    struct weight gate, up, down;
};

/* Of one layer, by enum layer_tensor: matrices in mat (k == 0: absent), vectors as f32 in vec (NULL: absent). */
struct layer_weights {
    struct weight mat[N_LAYER_TENSORS];
    const float *vec[N_LAYER_TENSORS];
    struct expert_weights *experts; /* [n_experts]; NULL where the model has none */
};

struct weights {
    const struct model *model;
    const struct ops *ops;
    uint32_t first_layer, end_layer;
    int has_embedding, has_head;
    struct layer_weights *layers; /* [end_layer - first_layer] */
    struct expert_weights *experts; /* of all layers */
    struct weight embedding;      /* file rows only */
    struct weight head;
    const float *out_norm;        /* [n_embd] */
    /* [n_rot/2] radians per position, by model_layer_rope; [1] is NULL where the model has no windows. */
    const float *rope_freq[MODEL_ROPES];
    uint64_t file_bytes;          /* of the tensors, each once */
    size_t memory_bytes;          /* what weights_load will map */
    struct memory_region memory;
};

/* Looks up and checks everything; maps nothing. */
enum status weights_plan(const struct model *m, const struct ops *ops, uint32_t first_layer, uint32_t end_layer,
                         int has_embedding, int has_head, struct weights *out, struct error *err);
/* Packs, and refuses values that are infinite or NaN; logs its progress where it takes over two seconds. */
enum status weights_load(struct weights *w, struct team *team, struct error *err);
void weights_free(struct weights *w); /* also of a zeroed struct */

/* Ticks read rows of the file's mapping: those of the embedding, or all where the backend packs nothing. */
static inline int weights_read_file(const struct weights *w)
{
    return w->has_embedding || !w->layers[0].mat[LAYER_ATTN_Q].packed;
}

static inline int layer_tensor_is_experts(enum layer_tensor t)
{
    return t == LAYER_FFN_GATE_EXPS || t == LAYER_FFN_UP_EXPS || t == LAYER_FFN_DOWN_EXPS;
}

static inline int layer_tensor_is_matrix(enum layer_tensor t)
{
    return t == LAYER_ATTN_Q || t == LAYER_ATTN_K || t == LAYER_ATTN_V || t == LAYER_ATTN_OUT || t == LAYER_FFN_GATE ||
           t == LAYER_FFN_UP || t == LAYER_FFN_DOWN || t == LAYER_FFN_GATE_INP;
}

#endif
