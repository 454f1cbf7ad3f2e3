/* coordinator/pipeline_impl.h - inside of the pipeline: pipeline.c (life, plans, events), pipeline_machine.c (states and
 * deadlines), pipeline_attach.c (streams, HELLO, spares), pipeline_messages.c (what attached stages say).
 *
 * Purpose    The machine's fields and the few functions that several files need.
 * Ownership  pipeline_create.
 * Threading  Engine thread only.
 * Invariants As pipeline.h.
 * Errors     As pipeline.h.
 */
#ifndef SLUICE_COORDINATOR_PIPELINE_IMPL_H
#define SLUICE_COORDINATOR_PIPELINE_IMPL_H

#include "coordinator/pipeline.h"

enum { PIPELINE_FIRST_TICK = 0 }; /* of every epoch: empty, before the engine's */
enum { HEARTBEATS_MISSED = 4 };   /* a stage is silent after so many */

/* What is known of a stage's KV pool, against what it held when the engine last used it. */
struct pipeline_pool {
    uint64_t used_id; /* kv_id in the last epoch that the engine heard to be READY; 0: there was none */
    uint64_t id;      /* as the ACK of this epoch said */
    int whole;        /* since then: an ACK has shown that nothing is missing in it */
};

struct pipeline {
    struct pipeline_options opt;
    enum pipeline_state state;
    uint32_t n_stages, window;
    int64_t heartbeat_ms, stuck_ms, look_ns;
    uint64_t session, epoch;
    uint64_t sent_tick, retired_tick; /* of this epoch; the first one does not count */
    int warmed;                       /* this epoch's first tick has passed all stages */
    int64_t last_ns;                  /* of the newest input */
    int64_t deadline_ns;              /* of the step; valid where the state has one */
    int64_t not_before_ns;            /* back-off, in WAITING */
    int64_t progress_ns;              /* a result came or a layer was done, or the first tick after idling went out */
    int64_t running_ns;               /* when it became RUNNING */
    uint32_t n_failed;                /* epochs that ended since the last one that did well, with their stages still here */
    int stopped;
    int lost_pending, ready_pending;
    struct pipeline_event lost;
    struct pipeline_cause cause;      /* since_ns 0: none */
    uint64_t used_epoch, used_tick;   /* the last one that the engine heard to be READY, what it had retired; 0: none */
    int crash_signal, crash_stage;    /* of a process that took part in used_epoch and in none since */
    struct pipeline_pool pool[MAX_STAGES];
    struct pipeline_stats stats;
    struct stage_table *stages;
    struct plan *first_plan;          /* empty */
    void (*random)(void *ctx, void *bytes, size_t n);
    void *random_ctx;
};

/* --- pipeline_machine.c ---------------------------------------------------------------------------------------------------- */

void pipeline__enter(struct pipeline *p, int64_t now_ns);   /* first thing of every input */
void pipeline__advance(struct pipeline *p, int64_t now_ns); /* last thing of every input */
void pipeline__look(struct pipeline *p, int64_t now_ns);    /* at every deadline */
int64_t pipeline__wake_at(const struct pipeline *p, int64_t now_ns);
void pipeline__fall(struct pipeline *p, int stage, const struct error *why, int64_t now_ns); /* the epoch ends */
/* The stage's stream is given up; tell: with EXIT. */
void pipeline__lose(struct pipeline *p, uint32_t stage, const struct error *why, int tell, int64_t now_ns);
enum status pipeline__send(struct pipeline *p, uint32_t stage, const struct to_stage *m, int64_t now_ns);
void pipeline__send_exit(const struct stage_port *port, const struct error *why);
/* Who stands still within a tick for longer than patience_ms, of several the one that keeps the others waiting; STAGE_NONE. */
int pipeline__stuck_stage(const struct pipeline *p, int64_t patience_ms, int64_t now_ns);
int pipeline__all_ready(const struct pipeline *p);

/* --- pipeline_attach.c ------------------------------------------------------------------------------------------------------ */

void pipeline__hello(struct pipeline *p, uint64_t attachment, const struct msg_hello *h, int64_t now_ns);
struct msg_assign pipeline__assignment(const struct pipeline *p, uint32_t stage); /* that it is given, each time the same */
void pipeline__refuse(struct pipeline *p, uint64_t attachment, const struct error *why, int64_t now_ns);
/* Those that wait take what is free, or are refused because who they ask for lives. */
void pipeline__seat(struct pipeline *p, int64_t now_ns);
void pipeline__look_at_strangers(struct pipeline *p, int64_t now_ns);

/* --- pipeline_messages.c ------------------------------------------------------------------------------------------------------- */

enum pipeline_take pipeline__take(struct pipeline *p, uint32_t stage, const struct from_stage *m, int64_t now_ns);

#endif
