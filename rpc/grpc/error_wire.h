/* rpc/grpc/error_wire.h - `struct error` as gRPC status, message and trailing metadata, and back. Inside rpc/grpc only.
 *
 * Purpose    A failure keeps its own status, param, code and retry_after_s over the wire (`sluice-error-bin`, a packed
 *            ErrorDetail); a status without it (a transport failure, a foreign server) is mapped to the nearest of ours.
 * Ownership  error_trailers_init/fini around the batch that sends it (the core copies during grpc_call_start_batch).
 * Threading  Pure.
 */
#ifndef SLUICE_RPC_GRPC_ERROR_WIRE_H
#define SLUICE_RPC_GRPC_ERROR_WIRE_H

#include <grpc/grpc.h>
#include <grpc/status.h>

#include "common/base/error.h"

struct error_trailers {
    grpc_status_code code;
    grpc_slice message;
    grpc_metadata md[3];
    size_t n_md;
};

void error_trailers_init(struct error_trailers *t, const struct error *err);
void error_trailers_fini(struct error_trailers *t);
void error_from_trailers(grpc_status_code code, grpc_slice message, const grpc_metadata_array *md, struct error *out);

#endif
