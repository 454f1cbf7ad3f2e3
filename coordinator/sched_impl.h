/* coordinator/sched_impl.h - the scheduler's state, and what the parts of plan() say to each other.
 *
 * Purpose    One block of memory: struct sched, then the arrays, named by offset so that a byte copy is the same state.
 *            scheduler.c moves it; sched_plan.c and below read it: sched_budget.c (what a tick may cost), sched_rows.c (rows
 *            of streams), sched_pieces.c (rows of prompts), sched_bank.c (saved time and bursts).
 * Ownership  sched_create.
 * Threading  As scheduler.h.
 * Invariants As scheduler.h.
 * Errors     None.
 */
#ifndef SLUICE_COORDINATOR_SCHED_IMPL_H
#define SLUICE_COORDINATOR_SCHED_IMPL_H

#include "coordinator/scheduler.h"

enum { SCHED_PAST = 256 }; /* ticks whose shapes are kept for timings that come late; above any window */

struct sched_entry {
    uint64_t seq;         /* 0: empty */
    uint64_t order;
    uint64_t last_tick;   /* of its newest run, 0: none */
    uint32_t position;    /* of the next row to be planned, the highest it can be; below n_prompt: it reads */
    uint32_t n_prompt, end;
    uint32_t limit, cut;
    uint32_t run_rows;
    uint32_t in_flight;   /* runs */
    uint8_t paused, needs_host, host_ready, unused;
};

/* Whether what a tick costs the streams is counted against the bank. */
enum sched_ledger {
    LEDGER_OFF,   /* no streams, or no share to keep */
    LEDGER_CALM,  /* streams alone: they pay debts back, and save nothing */
    LEDGER_ON,
};

struct sched_flight {
    uint64_t before_tick; /* the newest that its rows were in before */
    uint32_t n_runs;
    uint32_t ledger;
    uint32_t follows;     /* a tick was in flight when it was sent: the time between their results is its own */
    uint32_t calm;        /* it and all that can touch it are decode rows alone */
    double expected_us;   /* time that it was expected to add */
    double alone_us;      /* the same beside nothing, without the pace */
};

struct sched_flight_run {
    struct slot_ref ref;
    uint32_t n, is_piece;
};

struct sched_past {
    uint64_t tick;
    struct cost_shape shape;
};

struct sched {
    struct sched_options opt;
    struct cost_model cost;
    size_t bytes, entries_at, flights_at, runs_at, past_at;
    uint64_t next_tick, ticks_sent;
    uint32_t window, in_flight;
    double now_us, retired_us; /* sched_clock; of the newest result */
    double bank_us;       /* time that the streams have saved for a burst, less what ticks in flight will take of it */
    double bank_bound_us; /* W */
    double waited_us;     /* since the last piece, while readers wait */
    double pace;          /* a revolution of decode rows alone takes this times what the stages' costs say */
    uint64_t narrow_tick; /* the newest with a piece that is not of a burst */
    uint32_t burst;       /* wide ticks are being sent */
    uint32_t calm;        /* ticks of decode rows alone that were sent in a row */
    double credit_us;     /* prompt time that the oldest reader is owed */
    uint64_t oldest_order; /* whose credit that is */
    double period_us, tau_us; /* of the newest tick, for status */
    uint32_t stall_unmet, unused;
};

/* What is there to do. */
struct sched_survey {
    uint32_t n_streams;   /* sequences whose rows come in every revolution */
    uint32_t n_rows;      /* that they have in one */
    uint32_t n_host;      /* of them, those that need the host */
    uint32_t n_blocked;   /* of them, those that wait for it now */
    uint32_t n_ending;    /* whose next run may have to wait for the result of the one before */
    uint32_t n_readers;   /* that can be read on */
    uint64_t reads;       /* cached positions that one revolution reads */
    int oldest;           /* reader's slot, -1: none */
    uint32_t slowest;     /* stage, for prompt rows */
    double row_us;        /* a prompt row there, without attention */
    double reads_us, spans_us; /* per position before a piece: each row's attention; the cut's own */
    double remains_us;    /* all that readers still need there */
    uint32_t deepest;     /* position of the reader that has read most */
};

struct sched_crowd {
    uint32_t n_streams, n_rows;
    uint64_t reads;
    uint32_t waits;       /* one of them may wait for a result before its next row is planned */
};

/* The two bounds of scheduling.md for a crowd of streams. */
struct sched_budget {
    uint32_t groups, per_tick, revolution; /* per_tick: streams */
    uint32_t round_ticks; /* ticks in which every stream has a row once */
    double decode_us;     /* decode-only tick at the slowest stage */
    double round_us;      /* a revolution by the stages' costs */
    double period_us;     /* the same by the pace: P0 */
    double share;         /* kept: the promise and a little */
    double share_us, stall_us; /* of a tick at a stage: typical; guarded */
    uint32_t stall_unmet;
};

static inline uint32_t sched__min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct sched_entry *sched__entries(const struct sched *s); /* [n_slots] */
uint64_t sched__retired_tick(const struct sched *s);       /* newest, 0: none */
uint64_t sched__before_tick(const struct sched *s, uint64_t tick); /* of a tick in flight */

/* --- sched_budget.c */
int sched__is_stream(const struct sched_entry *e);
int sched__is_reader(const struct sched_entry *e);
uint32_t sched__readable(const struct sched_entry *e); /* prompt rows that may be planned now */
double sched__remaining_us(const struct sched_survey *v, const struct sched_entry *e);
struct sched_survey sched__survey(const struct sched *s);
int sched__keeps_share(const struct sched *s); /* streams are promised a part of their speed */
struct sched_budget sched__budget(const struct sched *s, const struct sched_crowd *c);
double sched__cold_tau_us(const struct sched *s, const struct sched_survey *v);

/* --- sched_rows.c */
void sched__add_run(struct sched_plan *out, const struct sched_run *run, uint64_t reads);
/* Up to per_tick ready streams, those that waited longest first. early: they need not wait for their revolution. */
void sched__add_rows(const struct sched *s, const struct sched_budget *b, int early, struct sched_plan *out);

/* --- sched_pieces.c: pieces within out->tau_us (typical) and out->hard_us (guarded) at every stage */
void sched__add_pieces(const struct sched *s, const struct sched_survey *v, struct sched_budget *b, struct sched_plan *out);
/* What the tick costs at the slowest stage with the smallest piece of the reader that comes first, guarded. *typical_us: the same
 * without the guard; NULL: not wanted. */
double sched__least_us(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out, double *typical_us);
/* Prompt time of the reader that comes first. */
double sched__first_us(const struct sched *s, const struct sched_survey *v, const struct sched_plan *out);

/* --- sched_bank.c */
/* What a tick beside streams may cost now: a narrow one's tau, or a wide one's, if a burst goes on or may start (1). */
int sched__open_burst(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b,
                      struct sched_plan *out);
double sched__narrow_tau_us(const struct sched *s, const struct sched_budget *b);
/* Do the tick's pieces read as much for the time that they cost streams as a burst would? */
int sched__worth_it(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b,
                    const struct sched_plan *out);
/* What the finished tick does to the bank. */
void sched__account(const struct sched *s, const struct sched_survey *v, const struct sched_budget *b, struct sched_plan *out);
void sched__bank_commit(struct sched *s, const struct sched_plan *p, struct sched_flight *f);
void sched__bank_retire(struct sched *s, const struct sched_flight *f);

#endif
