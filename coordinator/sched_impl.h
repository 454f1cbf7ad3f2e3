/* coordinator/sched_impl.h - the scheduler's state, for scheduler.c (moves it) and sched_plan.c (reads it).
 *
 * Purpose    One block of memory: this struct, then the arrays, named by offset so that a byte copy is the same state.
 * Ownership  sched_create.
 * Threading  As scheduler.h.
 * Invariants As scheduler.h.
 * Errors     None.
 */
#ifndef SLUICE_COORDINATOR_SCHED_IMPL_H
#define SLUICE_COORDINATOR_SCHED_IMPL_H

#include "coordinator/scheduler.h"

enum { SCHED_PAST = 256 }; /* ticks whose predictions are kept for timings that come late; above any window */

struct sched_entry {
    uint64_t seq;         /* 0: empty */
    uint64_t order;
    uint64_t last_tick, before_tick; /* of its newest run and of the one before, 0: none */
    uint32_t position;    /* of the next row to be planned; below n_prompt: it reads */
    uint32_t n_prompt, end;
    uint32_t in_flight;   /* runs */
    uint32_t paused, limit, cut, run_rows;
    uint32_t needs_host, host_ready, unused;
};

struct sched_flight {
    uint64_t n_runs;
};

struct sched_past {
    uint64_t tick;
    uint32_t kind, unused;
};

struct sched {
    struct sched_options opt;
    struct cost_model cost;
    size_t bytes, entries_at, flights_at, runs_at, past_at, costs_at;
    uint64_t next_tick, ticks_sent;
    uint32_t window, in_flight;
    double bank_us;       /* time that the streams have saved for a wide tick */
    double credit_us;     /* prompt time that the oldest reader is owed */
    uint64_t oldest_order; /* whose credit that is */
    double period_us, tau_us; /* of the newest tick, for status */
    uint32_t stall_unmet, unused;
    double now_us;
};

struct sched_entry *sched__entries(const struct sched *s); /* [n_slots] */

#endif
