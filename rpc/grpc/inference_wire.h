/* rpc/grpc/inference_wire.h - requests and events of sluice.v1.Inference as protobuf bytes. Inside rpc/grpc and tests.
 *
 * Purpose    Packing, and unpacking with every check that needs no state: kinds, lengths, counts, UTF-8, finite numbers.
 * Ownership  What is unpacked points into the arena (reset by the next unpack).
 * Threading  Pure.
 * Errors     STATUS_BAD_REQUEST with the field's name.
 */
#ifndef SLUICE_RPC_GRPC_INFERENCE_WIRE_H
#define SLUICE_RPC_GRPC_INFERENCE_WIRE_H

#include <grpc/byte_buffer.h>

#include "common/base/arena.h"
#include "rpc/grpc/inference_api.h"

/* A client's name counts whole: what a coordinator keeps of it (coordinator/request.h) is as long. */
enum { MAX_REQUEST_ID = 128, MAX_CLIENT_BYTES = 70, MAX_REQUEST_IDS = 1 << 22 };

enum status inference_wire_pack_request(const struct generate_request *r, grpc_byte_buffer **out, struct error *err);
enum status inference_wire_unpack_request(const void *data, size_t len, struct arena *a, struct generate_request *out,
                                          struct error *err);
grpc_byte_buffer *inference_wire_pack_event(const struct generate_event *e);
enum status inference_wire_unpack_event(const void *data, size_t len, struct arena *a, struct generate_event *out,
                                        struct error *err);
grpc_byte_buffer *inference_wire_pack_model(const struct model_facts *m);
enum status inference_wire_unpack_model(const void *data, size_t len, struct arena *a, struct model_facts *out,
                                        struct error *err);
/* A text of a request: valid UTF-8, else STATUS_BAD_REQUEST that names it. */
enum status inference_wire_check_text(struct bytes text, const char *name, struct error *err);

#endif
