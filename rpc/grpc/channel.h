/* rpc/grpc/channel.h - a channel and its open calls. Inside rpc/grpc only.
 *
 * Purpose    Starts calls with the channel's metadata (bearer, gateway), and ends those that are open when it is destroyed.
 * Ownership  A call in the list has the core's reference.
 * Threading  Any thread; rpc_channel__remove on the loop's.
 */
#ifndef SLUICE_RPC_GRPC_CHANNEL_H
#define SLUICE_RPC_GRPC_CHANNEL_H

#include "rpc/grpc/call.h"

struct rpc_loop *rpc_channel__loop(struct rpc_channel *c);
/* c was made by rpc_call_init. path is static text. STATUS_CLOSED: the channel is being destroyed (first is freed). */
enum status rpc_channel__open(struct rpc_channel *ch, struct rpc_call *c, const char *path, int timeout_ms,
                              int wait_for_ready, grpc_byte_buffer *first, struct error *err);
void rpc_channel__remove(struct rpc_channel *ch, struct rpc_call *c);
void rpc_channel__set_gateway(struct rpc_channel *ch, const char *text);

#endif
