/* stage/forward_impl.h - what the parts of forward share.
 *
 * Purpose    forward.c runs a tick's rows through the layers, forward_experts.c is the feed-forward step of layers with
 *            experts, forward_buffers.c owns the memory. Threading and invariants: stage/forward.h.
 */
#ifndef SLUICE_STAGE_FORWARD_IMPL_H
#define SLUICE_STAGE_FORWARD_IMPL_H

#include "kernels/share.h"
#include "stage/forward.h"
#include "stage/sampler.h"

enum {
    LAST_ROWS = 64,        /* chunks of the model's last layer: most of them end early */
    OWN_ROWS = SHARE_TILE, /* up to here every thread does the row work for itself */
};

/* What one thread has for itself. */
struct own {
    struct acts acts; /* OWN_ROWS rows */
    float *x;         /* [OWN_ROWS][n_embd] residual */
    float *head_x;    /* [OWN_ROWS][n_embd] of sampled rows */
    float *out, *down; /* [OWN_ROWS][n_embd] what the two blocks add to it behind their post norms, where there are some */
    void *sampler;
};

/* One of the experts of a row, best first. */
struct route {
    uint32_t expert, slot; /* slot: its row among those of all experts */
    float weight;
};

/* The rows of one expert: slots slot0, slot0 + 1, ... */
struct expert_group {
    uint32_t expert, slot0, n;
    struct acts acts; /* a part of the experts' buffers */
};

/* Rows of a chunk sorted by expert. The rows of each begin at a multiple of 16, so that threads share no tile. */
struct experts {
    uint32_t max_groups, max_slots, n_groups;
    float *router;               /* [chunk_rows][n_experts] */
    struct route *routes;        /* [chunk_rows][n_experts_used] */
    struct expert_group *groups; /* [max_groups] */
    uint32_t *group_of;          /* [n_experts] scratch */
    uint32_t *row_of;            /* [max_slots] the chunk's row that lies in a slot */
    float *x;                    /* [max_slots][n_embd] gathered rows, later what the experts make of them */
    float *gate, *up;            /* [max_slots][n_ff_expert] */
    float *acts_x;               /* [max_slots][max(n_embd, n_ff_expert)] */
    uint8_t *acts_int8;
    size_t tile_bytes;           /* of acts_int8, for 16 rows */
};

struct forward {
    const struct weights *w;
    const struct ops *ops;
    struct team *team;
    const struct kv_pool *pool;
    struct hparams hp;
    int n_threads;
    uint32_t max_rows, chunk_rows, head_rows;
    uint32_t step; /* rows of a chunk of the tick that runs */
    float embedding_scale;
    forward_logits_fn sink;
    void *sink_ctx;

    struct memory_region memory;
    struct acts acts;        /* of a chunk, shared */
    float *x;                /* [max_rows][n_embd] residual */
    float *down;             /* [max_rows][n_embd] what the last block of the layer adds to it, not added yet */
    float *out;              /* [chunk_rows][n_embd] of the attention block */
    float *q, *k, *v, *att;  /* [chunk_rows][heads * head_dim] */
    float *gate, *up;        /* [chunk_rows][n_ff] */
    float *angles[MODEL_ROPES]; /* [max_rows][n_rot] cos and sin; [1] only where layers have windows */
    float *head_x;           /* [head_rows][n_embd] sampled rows */
    float *logits;           /* [head_rows][n_vocab] */
    struct logit_peak *peaks; /* [head_rows][n_threads] */
    uint8_t *attention_scratch;
    struct kv_row *kv_rows;  /* [max_rows] */
    struct kv_row *window_rows; /* [max_rows] the same by the tables of layers with a window; only where there are such */
    uint32_t *positions, *ids; /* [max_rows] */
    uint8_t *last_sampled;   /* [max_rows / LAST_ROWS + 1] does this chunk of the last layer hold a sampled row */
    struct own *own;         /* [n_threads] */
    struct experts experts;  /* of a chunk; empty where the model has none */
};

/* One thread's way through a tick. */
struct pass {
    struct forward *f;
    struct tick *tick;
    atomic_uint_fast64_t *progress;
    int thread, n_threads; /* shares of columns and heads */
    /* Shares of rows: (0, 1) and the thread's own buffers, or (thread, n_threads) and the shared ones. */
    int replicated, row_thread, row_threads;
    struct acts *acts;
    float *x;          /* [n_rows][n_embd] of the tick */
    const float *down; /* [n_rows][n_embd] what the last block of the layer adds to it */
    const struct kv_row *kv_rows; /* [n_rows] of the layer's group */
};

/* The rows that follow each other in one step of a layer. */
struct chunk {
    uint32_t row0, n;
};

static inline void barrier(const struct pass *p)
{
    team_barrier(p->f->team, p->thread);
}

/* After row work: others read it only where it was shared. */
static inline void barrier_if_shared(const struct pass *p)
{
    if (!p->replicated)
        barrier(p);
}

static inline int wants_int8(const struct weight *w)
{
    return w->k && weight_is_quantized(w);
}

/* acts = norm(x + add) * w of a chunk; int8: a quantized weight reads them. Ends with a barrier where rows were shared. */
void forward_norm_acts(struct pass *p, struct chunk c, const float *add, const float *w, int int8);

/* p->f->down of the chunk = what the experts of each row make of norm(x + add); ends with a barrier. */
void experts_feed_forward(struct pass *p, const struct layer_weights *lw, struct chunk c, const float *add);
/* Chooses and weighs the experts of one row by its router logits; ties by the lower index. */
void experts_choose(const float *logits, uint32_t n_experts, uint32_t n_used, int normalise, struct route *out);

#endif
