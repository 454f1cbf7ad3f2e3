/* coordinator/output.h - sampled ids to the text that a client may see.
 *
 * Purpose    Detokenizes, finds stop strings over token edges and holds back what may become one. The stop that is complete
 *            first wins, ties by the earlier start; so the result does not depend on how bytes were cut into tokens.
 * Ownership  In place; the texts of stops are the caller's and must outlive it. Nothing is allocated: what is held back is
 *            shorter than the longest stop plus one token.
 * Threading  Engine thread.
 * Invariants What has been emitted is valid UTF-8 and never holds a byte of a stop string.
 * Errors     STATUS_OUT_OF_MEMORY when the emit buffer is at its bound.
 */
#ifndef SLUICE_COORDINATOR_OUTPUT_H
#define SLUICE_COORDINATOR_OUTPUT_H

#include "common/base/buf.h"
#include "common/text/detokenizer.h"
#include "rpc/grpc/inference_api.h" /* struct bytes, MAX_STOPS: plain data */

struct output {
    struct detokenizer detokenizer;
    const struct bytes *stops; /* [n_stops], each 1..MAX_STOP_BYTES bytes */
    uint32_t n_stops;
    uint32_t longest_stop;
    int stopped;               /* index + 1 of the stop that matched, 0: none */
    struct buf held;           /* text not yet given */
};

void output_init(struct output *o, const struct tokenizer *t, const struct bytes *stops, uint32_t n_stops);
void output_fini(struct output *o);
/* Appends to emit what the token makes safe to show. *stopped != 0: a stop string is complete, nothing follows. */
enum status output_push(struct output *o, uint32_t id, struct buf *emit, int *stopped);
/* End of the answer without a stop string: everything held is shown, an unfinished character as U+FFFD (which may complete
 * a stop string: *stopped as above). */
enum status output_finish(struct output *o, struct buf *emit, int *stopped);

#endif
