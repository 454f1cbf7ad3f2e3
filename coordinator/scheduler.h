/* coordinator/scheduler.h - what the next tick holds.
 *
 * Purpose    Chooses the rows of each tick: one row of every stream per revolution first, then prompt pieces, so that
 *            streams keep --decode-share of their speed and no planned gap exceeds --max-stall-ms (scheduling.md has the
 *            definition, the lemma and the two budgets; docs/adr/0005 what is done differently).
 *            It knows slots, positions and costs, not tokens, blocks or text: what the blocks allow is a limit per sequence.
 * Ownership  sched_create/sched_destroy; sched_plan_create/destroy for the answer. The state is one block of memory without
 *            pointers: copied byte by byte (sched_bytes) it gives the same plans.
 * Threading  Engine thread only. sched_plan is pure: no clock, no allocation, no I/O, the state is not written.
 * Invariants 1. At most window = n_stages + 1 ticks are in flight, retired in order; ids grow by 1 from 1 in each epoch.
 *            2. A sequence's rows are planned once each, in ascending position (with run_rows > 1: what was not accepted
 *               is planned again).
 *            3. A tick has at most max_rows rows and one run per sequence; no row is at or beyond a sequence's limit.
 *            4. An entry's runs in flight are the sum over the ticks in flight.
 * Errors     SLOTS_BUSY (slot taken), SLOT_STALE, STALE (a tick that is not the oldest in flight).
 *
 *   One turn of the engine:  while (sched_plan(s, plan)) { fill a struct plan from plan->runs; send it; sched_commit(s, plan); }
 *   On a result:             sched_clock, sched_retire(s, tick, accepted), then sched_remove for what ended.
 *   On a stage's timing:     sched_timing.
 *   On a lost pipeline:      sched_reset, then sched_set_stage for each stage, then sched_add again.
 *
 * A run's ids: SOURCE_IDS asks for the ids of positions kv_index .. kv_index+n-1 of prompt + answer so far (the prompt's for
 * a piece; the last id for a row whose previous result is retired). SOURCE_FROM_TICK: its previous row is still in flight.
 * A stop is seen late by at most the rows that are in flight; remove the sequence and drop their results.
 *
 * With run_rows > 1 (speculation) a run that follows one in flight stands at the highest position it can have: its true one
 * is that less what the runs before it lose; sched_progress tells the same way, exactly once nothing is in flight.
 */
#ifndef SLUICE_COORDINATOR_SCHEDULER_H
#define SLUICE_COORDINATOR_SCHEDULER_H

#include <stddef.h>
#include <stdint.h>

#include "common/wire/plan.h"
#include "coordinator/cost_model.h"
#include "coordinator/slots.h"

struct sched;

enum { SCHED_TILE_ROWS = 16, SCHED_MAX_ROWS_AUTO = 512 };

struct sched_options {
    uint32_t n_stages, n_slots;
    uint32_t max_rows;    /* rows of a tick; 0: SCHED_MAX_ROWS_AUTO */
    uint32_t piece_max;   /* rows of a piece; 0: max_rows (the time budgets cut it) */
    double decode_share;  /* 0..0.9; 0: no share rule */
    double max_stall_us, max_tick_us;
    double delta_us;      /* ids: last stage -> stage 0 */
    double lambda_us;     /* one-way control latency */
};

/* A reader: rows position..n_prompt-1 are to be read (those before are in its blocks already), then at most n_answer ids
 * come (n_answer >= 1: the last prompt row gives the first; so n_answer - 1 rows follow). */
struct sched_sequence {
    uint32_t position;    /* < n_prompt */
    uint32_t n_prompt, n_answer;
    uint64_t order;       /* smaller is older */
    uint32_t limit;       /* positions that its blocks cover; UINT32_MAX: all */
    uint32_t run_rows;    /* rows of a decode run: 1 (0 is taken as 1); more: speculation */
    uint32_t needs_host;  /* every id waits for sched_host_ready (grammar mask, forced call) */
};

struct sched_run {
    struct slot_ref ref;
    uint32_t n, kv_index;
    enum run_source source;
    enum run_sample sample;
    uint64_t from_tick;   /* SOURCE_FROM_TICK */
    uint32_t is_piece;    /* rows of the prompt */
};

struct sched_plan {
    uint64_t tick;
    uint32_t n_rows, n_runs;
    uint32_t budget_us;   /* for struct plan: the slowest stage's predicted cost */
    struct sched_run *runs;
    /* what commit needs, and tests read */
    struct cost_shape shape;
    double cost_us[MAX_STAGES];
    double tau_us, hard_us; /* what the tick may cost at a stage: typically; 95 times of 100 */
    double period_us;     /* P0 */
    uint32_t n_streams, groups, revolution, hot, stall_unmet;
    uint32_t wide;        /* of a burst */
    uint32_t starts;      /* the burst's first */
    uint32_t ledger;      /* enum sched_ledger */
    double bank_us, bank_bound_us, waited_us, credit_us;
    double expected_us, alone_us; /* time that it adds; that its rows would take beside nothing */
    uint64_t oldest_order;
    uint32_t *scratch;    /* [2 * n_slots] */
    uint32_t max_runs;
};

struct sched_stats {
    uint64_t ticks_sent;
    uint32_t in_flight, n_readers, n_streams;
    uint32_t n_starved;   /* sequences that stand at their limit */
    uint64_t oldest_tick; /* 0: none in flight */
    uint32_t stall_unmet; /* decode alone is slower than --max-stall-ms, or the smallest piece is */
    double period_us;     /* P0: between two tokens of a stream if nothing were read */
    double tau_us;        /* what a tick may cost at a stage */
    double bank_us;       /* time that streams have saved for a burst; below zero: owed to them */
    double bank_bound_us; /* W */
};

enum status sched_create(const struct sched_options *o, struct sched **out);
void sched_destroy(struct sched *s);
size_t sched_bytes(const struct sched *s);
enum status sched_plan_create(const struct sched *s, struct sched_plan **out);
void sched_plan_destroy(struct sched_plan *p);

/* Nothing is in flight or known afterwards but the cost model; the next tick is 1. */
void sched_reset(struct sched *s);
void sched_set_stage(struct sched *s, uint32_t stage, const struct msg_loaded *l); /* its measured costs */

enum status sched_add(struct sched *s, struct slot_ref ref, const struct sched_sequence *q);
/* No row at or beyond it is planned (in any direction: a limit may fall to what is planned already). */
enum status sched_set_limit(struct sched *s, struct slot_ref ref, uint32_t n_positions);
/* The next cut point: no piece crosses it; 0: none. One that is passed does nothing. */
enum status sched_set_cut(struct sched *s, struct slot_ref ref, uint32_t position);
/* The host has done its part for the next id of a sequence that needs it; the row that gives the id takes it. */
enum status sched_host_ready(struct sched *s, struct slot_ref ref);
/* Done, cancelled: no more rows; what is in flight is forgotten. */
enum status sched_remove(struct sched *s, struct slot_ref ref);
/* A client that does not read: no rows while on. */
enum status sched_pause(struct sched *s, struct slot_ref ref, int on);

/* 1: *out is the next tick. 0: nothing to do until a tick retires or a sequence comes. */
int sched_plan(const struct sched *s, struct sched_plan *out);
/* The plan was sent. It must be of the present state. */
void sched_commit(struct sched *s, const struct sched_plan *p);
/* The time of what is called next, from any clock that does not go back (sched_commit and sched_retire read it): the planner
 * measures with it what ticks cost the streams. Never called: what was predicted is taken for true. */
void sched_clock(struct sched *s, double now_us);
/* accepted: rows that count of each run of the plan, in its order (of a piece all do); NULL: all. */
enum status sched_retire(struct sched *s, uint64_t tick, const uint32_t *accepted);
/* Compute + send time of one stage for a tick, in any order, also after it retired; unknown ticks are ignored. */
void sched_timing(struct sched *s, uint32_t stage, uint64_t tick, double actual_us);

/* Newest tick that was committed in this epoch, 0: none (blocks_close wants it). */
uint64_t sched_last_tick(const struct sched *s);
/* Next position to be planned and runs in flight of a sequence; SLOT_STALE if gone. */
enum status sched_progress(const struct sched *s, struct slot_ref ref, uint32_t *position, uint32_t *in_flight);
struct sched_stats sched_stats(const struct sched *s);
int sched__check(const struct sched *s, const char **why);

#endif
