/* stage/model_compute.h - the compute of a stage that runs a real model.
 *
 * Purpose    Implements stage/compute.h with weights, KV pool, forward and sampler: plans memory before it takes any, loads the
 *            assigned layers, measures what ticks cost, then runs ticks.
 * Ownership  model_compute_create; destroyed through compute->table->destroy. Opens the model file itself.
 * Threading  As stage/compute.h. load, run and destroy on one thread, which is thread 0 of the team.
 * Invariants A second load with the same assignment keeps everything; with another one it starts anew.
 * Errors     create: STATUS_CONFIG, STATUS_BAD_MODEL, STATUS_IO, STATUS_OUT_OF_MEMORY. load: STATUS_UNSUPPORTED by name (KV
 *            type, tensor type), STATUS_OUT_OF_MEMORY with both figures, STATUS_PROTOCOL: an assignment that cannot be.
 */
#ifndef SLUICE_STAGE_MODEL_COMPUTE_H
#define SLUICE_STAGE_MODEL_COMPUTE_H

#include "common/model/hparams.h"
#include "stage/compute.h"
#include "stage/forward.h"

struct model_compute_options {
    const char *model_path;
    const char *backend, *isa; /* NULL: "auto" */
    int n_threads;             /* 0: one */
    const int *cores;          /* [n_threads] to pin to, or NULL */
    int kv_fd;                 /* descriptor of the KV pool, or -1: an own memfd */
    uint32_t host_stages;      /* stages that share this host's memory; 0: one */
    uint64_t memory_bytes;     /* that it may use; 0: its share of what is free when it is created */
    int restarted;             /* the other stages of this host hold what they need already: what is free is for this one */
    int skip_calibration;      /* costs stay 0 (tests that load often) */
};

enum status model_compute_create(const struct model_compute_options *o, struct compute **out, struct error *err);

/* After load: sees the logits of every sampled row (tests). fn NULL: off. */
void model_compute_set_logits_sink(struct compute *c, forward_logits_fn fn, void *ctx);
const struct model *model_compute_model(const struct compute *c);

#endif
