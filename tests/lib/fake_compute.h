/* tests/lib/fake_compute.h - a stage's compute without a model: hash chains instead of attention.
 *
 * Purpose    Every layer keeps, for every position, a hash in its KV block (stage/kv.h); it is made from the hash of the position before as
 *            read back from its block, from what the layer below gave (layer 0: the row's id), and from the position. The
 *            residual carries the top hash to the next stage, the next token follows from it on the last one. So a wrong row,
 *            block, position or byte on a link changes the text. With penalties the ids that they look at are hashed into the
 *            draw, so that a wrong history changes it too; a bias of 100 makes its id the next one, other biases do nothing.
 *            Logprobs follow from the position: fake_logprob. A script (fake_script.h) dictates costs, tokens and faults.
 * Ownership  fake_compute_create; destroyed through compute->table->destroy.
 * Threading  As stage/compute.h.
 * Invariants The text does not depend on the number of stages, on the cut of the prompt, or on other sequences.
 * Errors     STATUS_CONFIG (script), STATUS_BAD_MODEL (--model), what the script says.
 */
#ifndef SLUICE_TESTS_LIB_FAKE_COMPUTE_H
#define SLUICE_TESTS_LIB_FAKE_COMPUTE_H

#include "stage/compute.h"

/* Ids as tests/lib/make_fake_model.py lays them out. */
enum { FAKE_END = 2, FAKE_FIRST_BYTE = 3, FAKE_VOCAB = 259 };

struct fake_options {
    const char *model_path; /* NULL: none; hash 0, 0 layers in HELLO, FAKE_VOCAB ids */
    const char *script_path;
    uint32_t stage;         /* whose lines of the script hold until an assignment says another */
    uint32_t life;          /* how often this stage was started before */
    const char *profile;    /* its numerics; NULL: "fake". Must outlive it */
    int kv_fd;              /* descriptor of the KV pool; 0 (nobody's) or -1: an own memfd */
};

enum status fake_compute_create(const struct fake_options *o, struct compute **out, struct error *err);

/* Of the id for `position` (rank 0), and of the alternative of that rank: -((7 * position) % 32) / 32 - rank. The alternatives are
 * the id itself, then the ids above it, from the last one of the vocabulary on to 0. */
float fake_logprob(uint32_t position, uint32_t rank);

/* The ids that a model of n_layers gives after a prompt, computed with plain arrays: no blocks, stages or ticks. */
void fake_reference(uint32_t n_layers, const struct sampler_params *sampler, const uint32_t *prompt, uint32_t n_prompt,
                    int32_t *out, uint32_t n_out);

#endif
