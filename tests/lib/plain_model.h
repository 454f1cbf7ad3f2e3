/* tests/lib/plain_model.h - a llama in doubles, written down as the textbook has it.
 *
 * Purpose    A second opinion on stage/forward that shares nothing with it but the reading of the file: one row at a time,
 *            no blocks, no packing, no threads. The two roundings that Sluice's definition has can be switched on: int8
 *            inputs of products with quantized weights (blocks of 32), and K and V as f16.
 * Ownership  The caller's logits; the model stays the caller's.
 * Threading  Pure.
 * Errors     None: small models only.
 */
#ifndef SLUICE_TESTS_LIB_PLAIN_MODEL_H
#define SLUICE_TESTS_LIB_PLAIN_MODEL_H

#include "common/model/hparams.h"

enum { PLAIN_INT8 = 1, PLAIN_KV_F16 = 2 };

/* logits [n][n_vocab] of every position. */
void plain_model_logits(const struct model *m, const uint32_t *ids, uint32_t n, unsigned roundings, float *logits);

#endif
