/* rpc/gateway/pieces.h - the bytes of every token of the vocabulary.
 *
 * Purpose    Log probabilities name tokens by their texts; ids are all that comes with an answer. The coordinator tells the whole table once
 *            (backend.h), and an answer keeps the one it began with.
 * Ownership  Counted. A piece is valid while its table is.
 * Threading  A table does not change; any thread.
 * Errors     NULL: no memory, or lengths that do not fit the bytes.
 */
#ifndef SLUICE_RPC_GATEWAY_PIECES_H
#define SLUICE_RPC_GATEWAY_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include "rpc/grpc/inference_api.h"

struct pieces;

/* text: all pieces one after the other; hidden: ids that add nothing to an answer's text. */
struct pieces *pieces_create(struct bytes text, const uint32_t *lengths, size_t n, const uint32_t *hidden, size_t n_hidden);
struct pieces *pieces_acquire(struct pieces *p); /* NULL gives NULL */
void pieces_release(struct pieces *p);
/* Of an id that the vocabulary does not have: "". */
struct bytes pieces_get(const struct pieces *p, uint32_t id);
/* Characters that the id begins in an answer's text. */
uint32_t pieces_chars(const struct pieces *p, uint32_t id);

#endif
