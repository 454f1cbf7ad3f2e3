/* rpc/gateway/json_in.h - an HTTP body as JSON, strictly.
 *
 * Purpose    jansson with duplicates refused, nesting and memory bounded, and the byte offset of what is wrong in the error.
 * Ownership  The tree is the caller's: json_decref.
 * Threading  json_in_install once before threads start (it sets jansson's allocator and hash seed). json_in_parse from any
 *            thread; a tree is freed by the thread that parsed it, or later by any.
 * Errors     STATUS_BAD_REQUEST, code invalid_json: not JSON, not an object, deeper than JSON_IN_DEPTH. STATUS_BODY_TOO_LARGE:
 *            the tree would take more than JSON_IN_TREE_BYTES + 4 bytes for each of the body.
 */
#ifndef SLUICE_RPC_GATEWAY_JSON_IN_H
#define SLUICE_RPC_GATEWAY_JSON_IN_H

#include <jansson.h>
#include <stddef.h>

#include "common/base/error.h"

/* A tool's JSON schema nests about 20 deep; jansson recurses, so the depth is bounded before it starts. */
enum { JSON_IN_DEPTH = 128 };
/* `[1,1,...]` takes 24 bytes of tree for a byte of text; text takes up to 3, ids of four digits 10. */
#define JSON_IN_TREE_BYTES (256ull << 20)

void json_in_install(void);
/* The body's object. \u0000 in a string is kept: use json_string_length. */
enum status json_in_parse(const char *data, size_t len, json_t **out, struct error *err);
/* The same with another bound on the tree's memory; for tests. */
enum status json_in__parse(const char *data, size_t len, size_t tree_bytes, json_t **out, struct error *err);
/* "a string", "an object", ...: for messages about a wrong type. */
const char *json_in_kind(const json_t *v);

#endif
