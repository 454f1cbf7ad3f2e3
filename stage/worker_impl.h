/* stage/worker_impl.h - the inside of a worker, shared by worker.c (life, inbox, epochs), worker_load.c (assignments) and
 *            worker_tick.c (one tick).
 *
 * Purpose    Not for others.
 * Ownership  As worker.h.
 * Threading  What is under `lock` is so marked; the rest is the compute thread's own.
 */
#ifndef SLUICE_STAGE_WORKER_IMPL_H
#define SLUICE_STAGE_WORKER_IMPL_H

#include <pthread.h>

#include "stage/feedback.h"
#include "stage/sequences.h"
#include "stage/worker.h"

enum worker_busy { WORKER_IDLE, WORKER_COMPUTES, WORKER_WAITS /* within a tick, for a neighbour */ };

enum worker_state {
    WORKER_EMPTY,  /* no assignment */
    WORKER_LOADED, /* weights are here; in no epoch */
    WORKER_JOINED, /* acknowledged an epoch, no links yet */
    WORKER_READY,  /* takes plans */
    WORKER_N_STATES,
};

enum { WORKER_MAX_PLANS = WORKER_MAX_WINDOW + 1, TIMINGS_AGE_MS = 50 };

/* What waits for the compute thread: at most one of each kind, the newest, and the window's plans. */
struct worker_inbox {
    int stop, detach, has_assign, has_epoch, has_links;
    struct msg_assign assign;
    struct msg_epoch epoch;
    struct msg_links links;
    struct plan *plans[WORKER_MAX_PLANS];
    uint32_t head, n_plans;
    struct msg_epoch current;    /* newest epoch that was posted; plans and links of others are stale */
};

struct worker {
    struct worker_options options;
    pthread_t thread;

    pthread_mutex_t lock;        /* guards the following */
    pthread_cond_t filled;
    struct worker_inbox inbox;
    struct plan *pool[WORKER_MAX_PLANS], *free_plans[WORKER_MAX_PLANS];
    uint32_t n_pool, n_free;
    struct compute *compute;     /* written by the compute thread only */
    struct link_pair links;      /* the same */
    struct msg_hello facts;
    struct worker_counters count;
    struct msg_epoch joined;     /* for heartbeats */
    uint64_t tick, n_detached;
    struct msg_epoch silent;     /* in which the link was found to be silent */

    atomic_uint_fast64_t generation; /* grows with every EPOCH, detach and stop; changed under lock */
    atomic_int busy;             /* WORKER_IDLE, ... */

    /* the compute thread's own */
    enum worker_state state;
    struct msg_assign assign;
    struct msg_loaded loaded;
    struct msg_epoch epoch;
    uint64_t epoch_generation;   /* of the epoch we are in */
    uint64_t assign_detached;    /* n_detached when the assignment was taken up */
    uint32_t width;
    int has_tick;                /* a tick of this epoch has been taken */
    uint64_t last_tick;
    struct sequences *seqs;
    struct feedback *feedback;   /* stage 0 of several */
    uint64_t feedback_counted;   /* its stale frames that are in count.stale */
    uint8_t *in, *out;           /* payloads: [max_rows][width] f32, then [max_rows] u32 */
    uint8_t *records;            /* last stage of several: feedback records of a tick */
    struct tick_row *rows;       /* [max_rows] */
    struct tick_sample *samples; /* [max_rows] */
    struct sequence **run_seq;   /* [max_rows] sequence of each run */
    struct sample_note **run_from; /* [max_rows] note that a run depends on */
    struct result *result;
    struct from_stage timings;
    int64_t timings_since_ns, idle_since_ns;
};

/* worker.c */
void worker__move(struct worker *w, enum worker_state to); /* the only place where a worker changes state */
int worker__superseded(const struct worker *w);
void worker__send(struct worker *w, const struct from_stage *m);
/* Reports err (unless the epoch is over anyway) and leaves the epoch. */
void worker__fail(struct worker *w, uint64_t tick, const struct error *err, int fatal);
void worker__leave(struct worker *w);
void worker__flush_timings(struct worker *w);
int worker__is_last(const struct worker *w);

/* worker_load.c: a failure has been reported when it returns. */
void worker__take_assignment(struct worker *w, const struct msg_assign *a);
void worker__unload(struct worker *w); /* on the thread that loaded */

/* worker_tick.c: checks and runs a plan of this epoch; a failure has been reported when it returns. */
void worker__run_plan(struct worker *w, const struct plan *p, int64_t taken_ns);

#endif
