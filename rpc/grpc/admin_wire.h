/* rpc/grpc/admin_wire.h - service_status as sluice.v1.ServiceStatus. Inside rpc/grpc and tests.
 *
 * Purpose    Packing and unpacking of the one large message of Admin.
 * Ownership  The caller's structs; admin_wire_unpack uses the arena only while it runs.
 * Threading  Pure.
 * Errors     NULL or STATUS_OUT_OF_MEMORY; STATUS_PROTOCOL: no such message. What is over a bound is cut.
 */
#ifndef SLUICE_RPC_GRPC_ADMIN_WIRE_H
#define SLUICE_RPC_GRPC_ADMIN_WIRE_H

#include <grpc/byte_buffer.h>

#include "common/base/arena.h"
#include "rpc/grpc/admin_api.h"

grpc_byte_buffer *admin_wire_pack(const struct service_status *s);
enum status admin_wire_unpack(const void *data, size_t len, struct arena *a, struct service_status *out, struct error *err);

#endif
