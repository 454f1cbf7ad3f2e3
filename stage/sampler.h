/* stage/sampler.h - from a row of logits to the next id.
 *
 * Purpose    Draws as sampler_params say. The order is that of transformers' and vLLM's processors: temperature first, then
 *            top-k, then top-p over what top-k left (renormalised), then min-p against the best token. (llama.cpp applies
 *            its temperature last; with temperature 1 both agree.) Tokens are ordered by logit, ties by the lower id, and
 *            each rule keeps a prefix of that order with at least one token.
 * Ownership  Scratch is the caller's, one a thread, sampler_scratch_bytes each.
 * Threading  Pure. A row may be scanned in parts by several threads (sampler_scan, sampler_merge), then drawn by one.
 * Invariants 1. A draw depends on the row's logits, the parameters and the position alone: its uniform number is a function of
 *               (seed, position), sums run in one fixed order, exp2 is the chain of kernels/math.h on every CPU.
 *            2. Nothing is sorted but the candidates that share a histogram bin with a limit: O(n_vocab).
 * Errors     A row with a NaN, or whose largest logit is not finite, is bad: no draw.
 */
#ifndef SLUICE_STAGE_SAMPLER_H
#define SLUICE_STAGE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "common/wire/plan.h"

/* The largest logit of a range and the lowest id that has it. */
struct logit_peak {
    float max;
    uint32_t id;
    int nan; /* the range holds one: max and id say nothing */
};

/* logits[first, end) of a row; an empty range gives a peak that any other beats. */
struct logit_peak sampler_scan(const float *logits, uint32_t first, uint32_t end);
struct logit_peak sampler_merge(struct logit_peak a, struct logit_peak b);
int sampler_peak_is_bad(const struct logit_peak *p);

size_t sampler_scratch_bytes(uint32_t n_vocab);
/* The id for `position`. peak: of the whole row, not bad. scratch: 64-byte aligned. */
uint32_t sampler_draw(const struct sampler_params *p, const float *logits, uint32_t n_vocab, const struct logit_peak *peak,
                      uint32_t position, void *scratch);

#endif
