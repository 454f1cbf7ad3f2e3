/* stage/sequences.h - the open sequences of a stage: who holds which blocks, how long each is, what was sampled for it.
 *
 * Purpose    The stage's copy of what the coordinator decided. It applies the ops of plans in order and refuses whatever
 *            contradicts it; it decides nothing.
 * Ownership  create/destroy. Pointers from find live until the sequence is closed or the table cleared.
 * Threading  The compute thread.
 * Invariants 1. A block is held as often as open sequences have it in their tables, in each at most once. Several may hold
 *               it only as one of the first length / kv_block blocks that an OPEN named; nobody writes into it then.
 *               The same holds for the blocks of the WINDOW group, of which a sequence holds those from first_window on.
 *            2. length <= n_blocks * kv_block, and length <= context.
 *            3. An open sequence has a slot of its own; n_open is their number.
 * Errors     STATUS_PROTOCOL with both values. After one the table is to be cleared: a plan is applied whole or its epoch ends.
 */
#ifndef SLUICE_STAGE_SEQUENCES_H
#define SLUICE_STAGE_SEQUENCES_H

#include <stdint.h>

#include "common/model/kv_window.h"
#include "common/wire/plan.h"

/* What a SAMPLE_LAST run of a tick will give or has given. */
struct sample_note {
    uint64_t tick;
    uint32_t next_index; /* position that the id takes */
    int32_t id;          /* -1: the logits were bad */
    int known;
};

struct sequence {
    uint64_t seq;        /* 0: the entry is free */
    uint32_t slot, length, n_blocks;
    uint32_t n_shared;   /* of its first blocks: full when it opened, may be others' too */
    uint32_t digest;     /* plan_digest_add of all that its ops named */
    uint32_t *blocks;
    uint32_t first_window; /* place of the first WINDOW block that rows from its length on read */
    uint32_t *window_blocks; /* by place, from first_window on; NULL: no such group */
    struct sampler_params sampler;
    struct logit_bias *bias; /* [sampler.n_bias]; NULL where nothing is sampled */
    uint32_t *ids;       /* by position, those that the sampler's penalties look at; the same */
    uint32_t ids_from;   /* the first of them that is known */
    uint64_t run_tick;   /* of its newest run, which was run number last_run of that plan */
    uint32_t last_run;
    uint32_t n_notes;    /* ever made; note i lies at i % n_notes of the limits */
    struct sample_note *notes;
};

struct sequences;

struct sequences_limits {
    uint32_t slots, context, kv_block, n_blocks;
    struct kv_window window; /* zero: no WINDOW group */
    uint32_t n_window;       /* blocks of it */
    uint32_t n_notes;    /* newest samples of a sequence that FROM_TICK may name */
    int samples;         /* the last stage: keeps what samplers read, [slots][context] ids and [slots][MAX_BIASES] biases. They lie
                          * in pages that nobody touches before a sampler asks for it. A note is known before the next plan. */
};

/* Of one slot, once a sampler with penalties and biases was there. */
static inline uint64_t sequences_sampler_bytes(uint32_t context)
{
    return (uint64_t)context * sizeof(uint32_t) + MAX_BIASES * sizeof(struct logit_bias);
}

enum status sequences_create(const struct sequences_limits *l, struct sequences **out);
void sequences_destroy(struct sequences *s);
void sequences_clear(struct sequences *s);
uint32_t sequences_count(const struct sequences *s);

/* NULL: not open. */
struct sequence *sequences_find(const struct sequences *s, uint64_t seq);
enum status sequences_apply(struct sequences *s, const struct plan *p, const struct plan_op *op, struct error *err);
/* Checks run number `run` of a plan and grows its sequence by the run's rows; a sampled run gets its note. *from is the note that
 * a SOURCE_FROM_TICK run depends on, else NULL. */
enum status sequences_extend(struct sequences *s, const struct plan *p, uint32_t run, struct sequence **seq,
                             struct sample_note **from, struct error *err);
/* The note of a tick, or NULL when the sequence has none (any more). */
struct sample_note *sequence_note(const struct sequences *s, const struct sequence *q, uint64_t tick);

/* Walks the invariants; false and a reason on the first that does not hold. */
int sequences__check(const struct sequences *s, const char **why);

#endif
