/* rpc/grpc/sampler_wire.h - sampler_params as sluice.v1.Sampler. Inside rpc/grpc only.
 *
 * Purpose    Shared by Generate and by the plan's OPEN. Biases travel in the message as two arrays; who packs and unpacks brings
 *            or takes them, n_bias is their checked number.
 * Threading  Pure.
 * Errors     STATUS_BAD_REQUEST with the field's name; a NULL message is greedy.
 */
#ifndef SLUICE_RPC_GRPC_SAMPLER_WIRE_H
#define SLUICE_RPC_GRPC_SAMPLER_WIRE_H

#include "common/wire/plan.h"
#include "rpc/proto/types.pb-c.h"

/* bias_ids and bias: [s->n_bias], valid until the message is packed. */
void sampler_pack(const struct sampler_params *s, int has_seed, const uint32_t *bias_ids, const float *bias,
                  Sluice__V1__Sampler *out);
enum status sampler_unpack(const Sluice__V1__Sampler *m, struct sampler_params *out, int *has_seed, struct error *err);

#endif
