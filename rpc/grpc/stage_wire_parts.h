/* rpc/grpc/stage_wire_parts.h - what ToStage and FromStage share. Inside rpc/grpc only. Threading: pure. */
#ifndef SLUICE_RPC_GRPC_STAGE_WIRE_PARTS_H
#define SLUICE_RPC_GRPC_STAGE_WIRE_PARTS_H

#include "rpc/grpc/stage_api.h"
#include "rpc/grpc/stage_wire.h"
#include "rpc/proto/stage.pb-c.h"

enum status stage_packer__reserve(struct stage_packer *p, size_t bytes);
void stage_wire__pack_addresses(const struct link_addresses *a, Sluice__V1__LinkAddresses *m);
void stage_wire__unpack_addresses(const Sluice__V1__LinkAddresses *m, struct link_addresses *a); /* m may be NULL */
void stage_wire__pack_assign(const struct msg_assign *a, Sluice__V1__Assign *m);
void stage_wire__unpack_assign(const Sluice__V1__Assign *m, struct msg_assign *a); /* m may be NULL: a stays as it is */
void stage_wire__pack_epoch(const struct msg_epoch *e, Sluice__V1__Epoch *m);

#endif
