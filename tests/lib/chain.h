/* tests/lib/chain.h - the stages of a pipeline as computes in one process: what one gives, the next takes.
 *
 * Purpose    Tests and benchmarks of the model side alone: no worker, no links, no plans. Sequences have block tables whose
 *            numbers are scattered over the pool, so that nothing works by being in order.
 * Ownership  chain_open/chain_close.
 * Threading  One thread.
 * Errors     chain_open passes on what the computes say.
 */
#ifndef SLUICE_TESTS_LIB_CHAIN_H
#define SLUICE_TESTS_LIB_CHAIN_H

#include "stage/model_compute.h"

enum { CHAIN_MAX_STAGES = 8 };

/* Zero: a default (1 stage, auto, 1 thread, blocks of 64, 512 rows, 8 sequences, context 1024, even split). */
struct chain_options {
    const char *model_path, *backend, *isa, *split;
    uint32_t n_stages, kv_block, max_rows, n_seqs, context;
    int n_threads;
    int calibrate;
};

struct chain_row {
    uint32_t seq, position, id;
    const struct sampler_params *sampler; /* NULL: not sampled */
    int32_t sampled;                      /* out */
    uint32_t bad_logits;                  /* out */
};

struct chain;

enum status chain_open(const struct chain_options *o, struct chain **out, struct error *err);
void chain_close(struct chain *c); /* NULL is allowed */
/* Rows of one tick: runs of one sequence together, positions ascending. */
enum status chain_run(struct chain *c, struct chain_row *rows, uint32_t n_rows, struct error *err);
void chain_set_logits_sink(struct chain *c, forward_logits_fn fn, void *ctx);
const struct model *chain_model(const struct chain *c);
const struct msg_loaded *chain_loaded(const struct chain *c, uint32_t stage);
const char *chain_backend(const struct chain *c);
struct compute *chain_compute(struct chain *c, uint32_t stage);

extern const struct sampler_params chain_greedy;

#endif
