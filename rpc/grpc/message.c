#include "rpc/grpc/message.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"

grpc_byte_buffer *message_pack(const ProtobufCMessage *m)
{
    grpc_slice s = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));
    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(s));
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&s, 1);
    grpc_slice_unref(s);
    return b;
}

uint8_t *message_pack_bytes(const ProtobufCMessage *m, size_t *len)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *data = malloc(n ? n : 1);
    if (data)
        *len = protobuf_c_message_pack(m, data);
    return data;
}

/* Past a failure nothing more is given, and the limit of 0 says so to message_why: what did not fit the limit is the message's
 * fault, what would have fitted is not. */
static void *alloc_in_arena(void *ctx, size_t n)
{
    enum { ROUNDING = 16 };
    struct arena *a = ctx;
    void *p = a->limit_bytes ? arena_alloc(a, n ? n : 1) : NULL;
    if (!p && n + ROUNDING <= a->limit_bytes - a->used_bytes)
        a->limit_bytes = a->used_bytes = 0;
    return p;
}

static void free_in_arena(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

/* Small fields unpack to structs and to protobuf-c's own notes of some 40 bytes each: a message of many tiny parts may use
 * 32 times its length while that is little, and 6 times beyond. */
static size_t memory_limit(size_t len)
{
    size_t many = 32 * len, few = ((size_t)4 << 20) + 6 * len;
    return ((size_t)256 << 10) + (many < few ? many : few);
}

void *message_unpack(const ProtobufCMessageDescriptor *d, struct arena *a, const void *data, size_t len)
{
    arena_reset(a);
    a->limit_bytes = memory_limit(len);
    ProtobufCAllocator in_arena = {.alloc = alloc_in_arena, .free = free_in_arena, .allocator_data = a};
    return protobuf_c_message_unpack(d, &in_arena, len, data);
}

void *message_unpack_buffer(const ProtobufCMessageDescriptor *d, struct arena *a, grpc_byte_buffer *b)
{
    grpc_byte_buffer_reader r;
    if (!grpc_byte_buffer_reader_init(&r, b))
        return NULL;
    grpc_slice s = grpc_byte_buffer_reader_readall(&r);
    grpc_byte_buffer_reader_destroy(&r);
    void *m = message_unpack(d, a, GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s));
    grpc_slice_unref(s);
    return m;
}

enum status message_why(const struct arena *a)
{
    return a->limit_bytes ? STATUS_BAD_REQUEST : STATUS_OUT_OF_MEMORY;
}

ProtobufCBinaryData pb_field(const char *text, size_t size)
{
    size_t len = utf8_valid_len(text, strnlen(text, size));
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)text};
}

void field_pb(char *out, size_t size, ProtobufCBinaryData b)
{
    size_t len = b.data ? strnlen((const char *)b.data, b.len) : 0;
    if (len >= size)
        len = size - 1;
    if (len)
        memcpy(out, b.data, len);
    out[len] = 0;
}
