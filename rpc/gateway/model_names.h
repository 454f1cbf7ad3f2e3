/* rpc/gateway/model_names.h - the `model` field against the names that the coordinator answers to.
 * Purpose: one rule for every path. Ownership: copies. Threading: any. Invariants: none.
 * Errors: STATUS_NOT_FOUND (code model_not_found) that lists the names; STATUS_CLOSED while no name is known. */
#ifndef SLUICE_RPC_GATEWAY_MODEL_NAMES_H
#define SLUICE_RPC_GATEWAY_MODEL_NAMES_H

#include "rpc/gateway/backend.h"

/* "" gives the default. */
enum status model_names_choose(struct backend *b, struct bytes asked, char *out, size_t size, struct error *err);

#endif
