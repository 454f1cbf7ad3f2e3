/* coordinator/pipeline_impl.h - inside of the pipeline, for pipeline.c (states, time, plans) and pipeline_attach.c (messages).
 *
 * Purpose    The machine's fields and the few functions that both files need.
 * Ownership  pipeline_create.
 * Threading  Engine thread only.
 * Invariants As pipeline.h.
 * Errors     As pipeline.h.
 */
#ifndef SLUICE_COORDINATOR_PIPELINE_IMPL_H
#define SLUICE_COORDINATOR_PIPELINE_IMPL_H

#include "coordinator/pipeline.h"

struct pipeline {
    struct pipeline_options opt;
    enum pipeline_state state;
    uint32_t n_stages, window;
    int64_t heartbeat_ms, stuck_ms;
    uint64_t session, epoch;
    uint64_t sent_tick, retired_tick; /* of this epoch */
    int64_t last_ns;                  /* of the newest input */
    int64_t deadline_ns;              /* of the step, in RAISING and LINKING */
    int64_t not_before_ns;            /* back-off, in WAITING */
    int64_t progress_ns;              /* a result came or a layer was done, or the first tick after idling went out */
    uint32_t n_failed;                /* epochs that ended since one last became RUNNING */
    int stopped;
    int lost_pending, ready_pending;
    struct pipeline_event lost;
    struct pipeline_cause cause;      /* since_ns 0: none */
    struct pipeline_stats stats;
    struct stage_table *stages;
    void (*random)(void *ctx, void *bytes, size_t n);
    void *random_ctx;
};

void pipeline__enter(struct pipeline *p, int64_t now_ns);   /* first thing of every input */
void pipeline__advance(struct pipeline *p, int64_t now_ns); /* last thing of every input */
void pipeline__fall(struct pipeline *p, int stage, const struct error *why, int64_t now_ns); /* the epoch ends */
/* The stage's stream is given up; tell: with EXIT. */
void pipeline__lose(struct pipeline *p, uint32_t stage, const struct error *why, int tell, int64_t now_ns);
enum status pipeline__send(struct pipeline *p, uint32_t stage, const struct to_stage *m, int64_t now_ns);
void pipeline__send_exit(const struct stage_port *port, const struct error *why);

#endif
