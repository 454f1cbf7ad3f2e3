/* rpc/gateway/status_json.h - `GET /v1/status` as JSON, field by field as interface.md has it.
 * Purpose: one writer. Ownership: appends to the caller's buf. Threading: pure. Errors: those of buf. Invariants: none. */
#ifndef SLUICE_RPC_GATEWAY_STATUS_JSON_H
#define SLUICE_RPC_GATEWAY_STATUS_JSON_H

#include "common/base/buf.h"
#include "rpc/grpc/admin_api.h"

void status_json_write(struct buf *b, const struct service_status *s);

#endif
