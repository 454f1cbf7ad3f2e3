/* coordinator/slots.h - who may be in ticks.
 *
 * Purpose    Hands out the N slots of the pipeline and knows what each one does. It does not queue (admission), own KV
 *            blocks (blocks) or decide what a tick holds (scheduler).
 * Ownership  slots_create/slots_destroy. Nothing returned points into the table.
 * Threading  Engine thread only.
 * Invariants 1. n_free + n_reading + n_decoding == n_slots.
 *            2. A sequence id is given out once in the life of the table; 0 is never one.
 *            3. A free slot has sequence id 0, every other slot a different one.
 * Errors     SLOTS_BUSY, SLOT_STALE, OUT_OF_MEMORY (create only).
 *
 *                 acquire              begin_decoding
 *         FREE -----------> READING ------------------> DECODING
 *          ^                   |                            |
 *          +-------------------+-------- release -----------+
 */
#ifndef SLUICE_COORDINATOR_SLOTS_H
#define SLUICE_COORDINATOR_SLOTS_H

#include <stdint.h>

#include "common/base/status.h"

enum { SLOTS_MAX = 4096 };

enum slot_state {
    SLOT_FREE,     /* in nobody's hands */
    SLOT_READING,  /* its prompt is not read to the end */
    SLOT_DECODING, /* it has a row in every revolution */
    SLOT_N_STATES,
};

/* Names one use of one slot. A ref whose use has ended is stale for ever: nothing done through it reaches the next user. */
struct slot_ref {
    uint32_t slot; /* 0 .. n_slots-1 */
    uint64_t seq;  /* sequence id, > 0 */
};

struct slots;

/* n_slots in 1..SLOTS_MAX. */
enum status slots_create(uint32_t n_slots, struct slots **out);
void slots_destroy(struct slots *s);

/* Lowest free slot -> READING. SLOTS_BUSY leaves *ref alone. */
enum status slots_acquire(struct slots *s, struct slot_ref *ref);
/* READING -> DECODING. SLOT_STALE if ref's use has ended or it decodes already. */
enum status slots_begin_decoding(struct slots *s, struct slot_ref ref);
/* -> FREE. SLOT_STALE, and no change, if ref's use has ended: a late release never frees its successor's slot. */
enum status slots_release(struct slots *s, struct slot_ref ref);

uint32_t slots_count(const struct slots *s, enum slot_state state);
/* State of one slot and, where it is not free, its sequence id in *seq (else 0). slot in 0..n_slots-1. */
enum slot_state slots_at(const struct slots *s, uint32_t slot, uint64_t *seq);
/* "free", "reading", "decoding": the words of the status page. */
const char *slot_state_name(enum slot_state state);

/* Walks the invariants; false and a reason on the first that does not hold. Debug builds call it after each change. */
int slots__check(const struct slots *s, const char **why);

#endif
