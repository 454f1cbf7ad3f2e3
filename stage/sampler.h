/* stage/sampler.h - from a row of logits to the next id.
 *
 * Purpose    Draws as sampler_params say. The order is that of vLLM's sampler (and of transformers' processors and warpers):
 *            on the raw logits biases are added, then the repeat penalty divides what is above 0 and multiplies what is
 *            below, then the frequency penalty is taken off times the id's number, then the presence penalty. Then the
 *            temperature, top-k, top-p over what top-k left (renormalised), min-p against the best token, and typical_p
 *            (locally typical sampling, Meister et al. 2022) over what these left. Temperature 0: the largest logit after
 *            biases and penalties. (llama.cpp applies its temperature last; with temperature 1 both agree.) Tokens are ordered by
 *            logit, ties by the lower id, and each rule keeps a prefix of that order with at least one token; typical_p orders
 *            by the distance of a token's surprise from the entropy.
 *            The repeat penalty looks at ids of prompt and answer, the other two at the answer's.
 *            Logprobs are those of the raw row, as vLLM's default.
 * Ownership  Scratch is the caller's, one a thread, sampler_scratch_bytes each.
 * Threading  Pure. A row may be scanned in parts by several threads (sampler_scan, sampler_merge), then drawn by one.
 * Invariants 1. A draw depends on the row's logits, the parameters, the ids before it and the position alone: its uniform number is a function of
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

/* Biases or penalties are on: the row to draw from is another than the model's. */
int sampler_adjusts(const struct sampler_params *p);
/* That row, in scratch, until the next call with it; the draw from it may use the same scratch. bias: [p->n_bias]. ids: by
 * position, those below `position` that sampler_history counts. Ids beyond the vocabulary are passed over. */
const float *sampler_adjust(const struct sampler_params *p, const struct logit_bias *bias, const uint32_t *ids, uint32_t position,
                            const float *logits, uint32_t n_vocab, void *scratch);
/* *logprob: of id in the raw row, whose peak is not bad. tops: the n_top best ids with theirs; returns their number, which is less
 * for a smaller vocabulary. -INFINITY for a logit of -INFINITY. */
uint32_t sampler_logprobs(const float *logits, uint32_t n_vocab, const struct logit_peak *peak, uint32_t id, uint32_t n_top,
                          float *logprob, struct top_logprob *tops);

size_t sampler_scratch_bytes(uint32_t n_vocab);
/* The id for `position`. peak: of the whole row, not bad. scratch: 64-byte aligned. */
uint32_t sampler_draw(const struct sampler_params *p, const float *logits, uint32_t n_vocab, const struct logit_peak *peak,
                      uint32_t position, void *scratch);

#endif
