/* rpc/grpc/descriptor_set.h - the FileDescriptorSet of all our protos, embedded at build time (rpc/proto/embed.cmake).
 *
 * Purpose    What reflection serves. The bytes are protoc's own.
 * Ownership  Static.
 * Threading  Pure.
 */
#ifndef SLUICE_RPC_GRPC_DESCRIPTOR_SET_H
#define SLUICE_RPC_GRPC_DESCRIPTOR_SET_H

#include <stddef.h>

extern const unsigned char descriptor_set[];
extern const size_t descriptor_set_bytes;

#endif
