/* stage/feedback.h - sampled ids that come back from the last stage to stage 0.
 *
 * Purpose    Reads feedback frames from a link without ever waiting for one that is not needed, checks each against what
 *            stage 0 sent, and writes the ids into the notes of the sequences. One frame for each tick, in order, also when
 *            nothing was sampled.
 * Ownership  create/destroy; borrows sequences and link.
 * Threading  The compute thread of stage 0. There is no reader thread: the frames of the window fit into the socket's buffers
 *            (SO_SNDBUF of the last stage) and are read when an id is awaited, when the table is full, and while a write to
 *            stage 1 waits; so no cycle of blocking writes exists and an id costs one wake-up, not two.
 * Invariants At most max_ticks ticks are out (sent by stage 0, feedback not read).
 * Errors     STATUS_PROTOCOL with both values; what the link gives.
 */
#ifndef SLUICE_STAGE_FEEDBACK_H
#define SLUICE_STAGE_FEEDBACK_H

#include <stdint.h>

#include "common/wire/frame.h"
#include "stage/link.h"
#include "stage/sequences.h"

struct feedback;

enum status feedback_create(uint32_t max_ticks, uint32_t max_records, struct feedback **out);
void feedback_destroy(struct feedback *f);
/* A new epoch. */
void feedback_start(struct feedback *f, uint64_t session, uint64_t epoch, uint16_t from, struct link *link,
                    struct sequences *seqs);
/* Stage 0 takes up this tick. STATUS_FULL: max_ticks are out. */
enum status feedback_expect(struct feedback *f, uint64_t tick, uint32_t n_samples);
/* The frame of this tick is still to come. */
int feedback_awaits(const struct feedback *f, uint64_t tick);
uint64_t feedback_stale(const struct feedback *f); /* frames of other epochs that were read away, ever */
/* Takes what is there. */
enum status feedback_drain(struct feedback *f, struct error *err);
/* Waits for the next frame. */
enum status feedback_wait(struct feedback *f, uint32_t silence_ms, struct error *err);

#endif
