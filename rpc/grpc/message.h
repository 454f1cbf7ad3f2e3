/* rpc/grpc/message.h - protobuf messages to and from gRPC's byte buffers. Inside rpc/grpc only.
 *
 * Purpose    Packing straight into a slice; unpacking into an arena, so that a hostile message can use only so much memory
 *            and there is nothing to free field by field.
 * Ownership  message_pack: the caller's buffer. message_unpack: what it returns lives in the arena until its next reset.
 * Threading  Pure.
 * Errors     STATUS_BAD_REQUEST: the bytes are no such message, or would need too much memory.
 */
#ifndef SLUICE_RPC_GRPC_MESSAGE_H
#define SLUICE_RPC_GRPC_MESSAGE_H

#include <google/protobuf-c/protobuf-c.h>
#include <grpc/byte_buffer.h>

#include "common/base/arena.h"
#include "common/base/error.h"
#include "rpc/grpc/inference_api.h"

grpc_byte_buffer *message_pack(const ProtobufCMessage *m);
/* As bytes; NULL: no memory. free(). */
uint8_t *message_pack_bytes(const ProtobufCMessage *m, size_t *len);
/* Resets the arena. NULL: message_why says why not. */
void *message_unpack(const ProtobufCMessageDescriptor *d, struct arena *a, const void *data, size_t len);
void *message_unpack_buffer(const ProtobufCMessageDescriptor *d, struct arena *a, grpc_byte_buffer *b);
/* After an unpacking that gave NULL: STATUS_BAD_REQUEST, or STATUS_OUT_OF_MEMORY, which is no fault of the sender's. */
enum status message_why(const struct arena *a);

static inline ProtobufCBinaryData pb_bytes(struct bytes b)
{
    return (ProtobufCBinaryData){.len = b.len, .data = (uint8_t *)(uintptr_t)b.data};
}

static inline struct bytes bytes_pb(ProtobufCBinaryData b)
{
    return (struct bytes){.data = (const char *)b.data, .len = b.len};
}

/* A field of fixed size, up to its 0 or its end, without a half character (the peer may check UTF-8). */
ProtobufCBinaryData pb_field(const char *text, size_t size);
#define PB_FIELD(array) pb_field(array, sizeof(array))
/* The reverse; what does not fit or holds a 0 is cut. */
void field_pb(char *out, size_t size, ProtobufCBinaryData b);
#define FIELD_PB(array, b) field_pb(array, sizeof(array), b)

#endif
