/* rpc/gateway/unary.h - the paths that ask the coordinator one thing and answer with it.
 *
 * Purpose    /tokenize, /detokenize, /apply-template, /v1/status, /metrics.
 * Ownership  Each holds a reference to its exchange from the call to the reply.
 * Threading  As route->start; the replies come on the rpc loop's thread.
 * Errors     Told to the client. /v1/status and /metrics answer without the coordinator too, from what is known here.
 */
#ifndef SLUICE_RPC_GATEWAY_UNARY_H
#define SLUICE_RPC_GATEWAY_UNARY_H

#include "common/base/buf.h"

struct exchange;

void unary_start_text(struct exchange *x); /* tokenize, detokenize, template, by the route's endpoint */
void unary_start_status(struct exchange *x);
void unary_start_metrics(struct exchange *x);

/* The coordinator's page with the gateway's own counters; a family that both have is added up. */
void unary_join_metrics(struct buf *out, const char *text, size_t len, unsigned long long write_stalled);

#endif
