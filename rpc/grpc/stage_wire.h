/* rpc/grpc/stage_wire.h - ToStage and FromStage as protobuf bytes. Inside rpc/grpc; stage_api.h shows it to tests.
 *
 * Purpose    Packs and unpacks without allocation but for the message itself: a packer's arrays grow to the largest plan
 *            and stay, what is unpacked lies in an arena until it is copied into the plain struct.
 * Ownership  stage_packer_init/fini in place. A plan or result is taken by acquire only when the message is known to be
 *            one; when filling it fails it stays in *spare and is used for the next.
 * Threading  A packer by one thread at a time.
 * Errors     STATUS_PROTOCOL with both values.
 */
#ifndef SLUICE_RPC_GRPC_STAGE_WIRE_H
#define SLUICE_RPC_GRPC_STAGE_WIRE_H

#include <google/protobuf-c/protobuf-c.h>
#include <grpc/byte_buffer.h>

#include "common/base/arena.h"
#include "common/wire/control.h"

struct stage_packer {
    void *memory;
    size_t bytes;
};

/* Where plans (of a ToStage) or results (of a FromStage) come from. */
struct stage_source {
    void *ctx;
    struct plan *(*plan)(void *ctx);
    struct result *(*result)(void *ctx);
    struct plan *spare_plan;
    struct result *spare_result;
};

void stage_packer_fini(struct stage_packer *p);
enum status stage_wire__pack_to(struct stage_packer *p, const struct to_stage *m, grpc_byte_buffer **out);
enum status stage_wire__pack_from(struct stage_packer *p, const struct from_stage *m, grpc_byte_buffer **out);
enum status stage_wire__unpack_to(const void *data, size_t len, struct arena *a, struct stage_source *from,
                                  struct to_stage *out, struct error *err);
enum status stage_wire__unpack_from(const void *data, size_t len, struct arena *a, struct stage_source *from,
                                    struct from_stage *out, struct error *err);

#endif
