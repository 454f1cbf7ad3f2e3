/* common/model/split.h - which layers each stage runs.
 *
 * Purpose    `--split auto|K1,K2,...`. auto balances an explicit mix of decode work (bytes of weights read) and prefill
 *            work (multiply-adds), with the embedding on stage 0 and the head on the last stage counted: in a small model
 *            the head weighs as much as a dozen layers in decode and nothing in prefill. Of experts the work counts those that
 *            a token is sent to. The cut is for speed: whether a stage has the memory for its part, it says itself
 *            when the part is assigned to it.
 * Threading  Pure.
 * Errors     STATUS_CONFIG: not S-1 ascending layers in 1..n_layers-1, or fewer layers than stages; both numbers named.
 */
#ifndef SLUICE_COMMON_MODEL_SPLIT_H
#define SLUICE_COMMON_MODEL_SPLIT_H

#include "common/model/hparams.h"

enum { MAX_STAGES = 64 };

struct split {
    uint32_t n_stages;
    uint32_t first_layer[MAX_STAGES + 1]; /* stage i runs [first_layer[i], first_layer[i+1]) */
};

/* spec NULL or "auto": balanced. */
enum status split_plan(const struct model *m, uint32_t n_stages, const char *spec, struct split *out, struct error *err);

#endif
