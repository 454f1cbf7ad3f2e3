/* rpc/grpc/stage_stream.h - one end of an Attach stream. Inside rpc/grpc only.
 *
 * Purpose    The queue of packed messages that both ends have in front of the one send the core allows.
 * Ownership  Begins a struct that the module above allocates; the queue is emptied when the call closes.
 * Threading  base.lock guards queue and packer.
 * Errors     STATUS_FULL: MAX_WAITING messages wait. STATUS_CLOSED: the stream has ended or is ending.
 */
#ifndef SLUICE_RPC_GRPC_STAGE_STREAM_H
#define SLUICE_RPC_GRPC_STAGE_STREAM_H

#include "rpc/grpc/call.h"
#include "rpc/grpc/stage_wire.h"

enum { MAX_WAITING = 64 };

struct stage_stream {
    struct rpc_call base;
    struct stage_packer packer;
    grpc_byte_buffer *queue[MAX_WAITING];
    size_t head, n_waiting;
};

grpc_byte_buffer *stage_stream__pull(struct rpc_call *c);
enum status stage_stream__send_to(struct stage_stream *s, const struct to_stage *m);
enum status stage_stream__send_from(struct stage_stream *s, const struct from_stage *m);
void stage_stream__drop(struct stage_stream *s); /* on_closed */
void stage_stream__fini(struct stage_stream *s); /* destroy */

#endif
