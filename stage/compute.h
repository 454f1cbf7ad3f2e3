/* stage/compute.h - what turns the rows of a tick into residuals or sampled ids.
 *
 * Purpose    The seam between the worker (plans, sequences, links, epochs) and the model. stage/forward implements it with
 *            kernels; tests/lib's fake stage implements it with scripted costs and hash-chain tokens.
 * Ownership  create by the implementation, destroy through the table. Everything that the assignment sizes is allocated in
 *            load; run allocates nothing.
 * Threading  load and run on the compute thread. progress may be read by any thread.
 * Invariants Rows of a tick: runs of one sequence stand together, positions ascending. A row may read KV of its own
 *            sequence at positions below its own, written by earlier ticks or by earlier rows of this one.
 * Errors     load: STATUS_BAD_MODEL, STATUS_OUT_OF_MEMORY, STATUS_UNSUPPORTED. run: STATUS_STAGE, STATUS_OUT_OF_MEMORY: the
 *            whole tick failed; STATUS_BAD_MODEL: so will every other of this process.
 */
#ifndef SLUICE_STAGE_COMPUTE_H
#define SLUICE_STAGE_COMPUTE_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/wire/control.h"

struct tick_row {
    const uint32_t *blocks; /* the sequence's block table */
    const uint32_t *window_blocks; /* the same of the WINDOW group, by place: those that a row reads; NULL: no such group */
    uint32_t position;
    uint32_t id;            /* stage 0 only: token */
    uint64_t seq;
};

struct tick_sample {
    uint32_t row;                         /* index into rows */
    const struct sampler_params *sampler; /* the draw is for position rows[row].position + 1 */
    const struct logit_bias *bias;        /* [sampler->n_bias] */
    const uint32_t *ids;                  /* by position: the sampler_history ids up to the row's own, for penalties */
    struct top_logprob *tops;             /* out: [sampler->n_top - 1], where n_top > 0; n_tops of them are filled */
    uint32_t n_tops;                      /* out */
    float logprob;                        /* out: of id, where n_top > 0 */
    int32_t id;                           /* out: sampled id, -1 when bad_logits */
    uint32_t bad_logits;                  /* out */
};

struct tick {
    uint64_t tick;
    uint32_t n_rows, n_samples;
    const struct tick_row *rows;
    struct tick_sample *samples;          /* last stage only */
    const float *in;                      /* [n_rows][width], NULL on stage 0 */
    float *out;                           /* [n_rows][width], NULL on the last stage */
};

struct kv_pool; /* stage/kv.h */

struct compute {
    const struct compute_table *table;
    struct kv_pool *pool;                 /* after load: where its KV lies */
    atomic_uint_fast64_t progress;        /* grows with every layer done: the "layer counter" of heartbeats */
};

struct compute_table {
    const char *backend;                  /* for HELLO: "cpu/avx2", "fake" */
    /* Fills model_hash, n_layers, profile, memory_bytes of HELLO. Before load. */
    void (*describe)(struct compute *c, struct msg_hello *out);
    enum status (*load)(struct compute *c, const struct msg_assign *a, struct msg_loaded *out, struct error *err);
    uint32_t (*width)(const struct compute *c); /* floats of one row on the link; after load */
    enum status (*run)(struct compute *c, struct tick *t, struct error *err);
    void (*destroy)(struct compute *c);
};

#endif
