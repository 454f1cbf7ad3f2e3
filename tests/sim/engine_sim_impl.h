/* tests/sim/engine_sim_impl.h - inside of the simulation, for engine_sim.c (time, calls) and engine_sim_stages.c.
 *
 * Purpose    What both files need.
 * Ownership  engine_sim_open.
 * Threading  One thread.
 */
#ifndef SLUICE_TESTS_SIM_ENGINE_SIM_IMPL_H
#define SLUICE_TESTS_SIM_ENGINE_SIM_IMPL_H

#include "common/base/config.h"
#include "common/model/hparams.h"
#include "stage/sequences.h"
#include "tests/sim/engine_sim.h"

struct sim_stage {
    struct engine_sim *sim;
    uint32_t index;
    uint64_t attachment;            /* 0: not attached */
    uint64_t life;                  /* grows with every stream: answers of an old one are not sent */
    uint64_t incarnation, highest_epoch;
    struct msg_assign assign;
    struct msg_epoch epoch;
    int64_t last_finish_ns, busy_ns; /* busy: of all ticks that were begun, to their ends */
    struct from_stage timings;      /* being collected */
};

/* A tick on its way. Everything it waits for is known when it is sent, so its whole passage is. */
struct sim_flight {
    uint64_t tick;
    uint32_t n_runs, n_rows, n_prompt;
    struct result_run *runs;        /* [max_rows] */
    int64_t start_ns[MAX_STAGES], finish_ns[MAX_STAGES];
};

/* What ticks do with a block. */
struct sim_block {
    uint64_t write_tick;            /* newest tick that writes to it */
    uint64_t used_tick;             /* newest tick of a sequence that has closed since */
};

struct sim_timer {
    int64_t when_ns;
    uint64_t order;
    void (*fn)(struct engine_sim *s, void *ctx);
    void *ctx;
    uint64_t life, epoch;           /* of a stage's own timers */
    int kind;                       /* > 0: a stage answers with this message */
};

struct engine_sim {
    struct engine_sim_options o;
    struct config config;
    struct model model;
    struct split split;
    struct tokenizer *tokenizer;
    struct engine *engine;
    int64_t now_ns, wake_ns, next_beat_ns;
    int closing, posted, in_step;
    uint64_t draws, next_order, next_call;

    struct sim_timer *timers;       /* a heap by (when, order) */
    uint32_t n_timers, max_timers, n_client_timers;

    struct sim_stage stage[MAX_STAGES];
    struct sim_flight *flights;     /* [window + 1], a ring by tick */
    uint32_t window, max_rows;
    uint64_t sent_tick, retired_tick; /* of this epoch */
    uint64_t broken_tick;           /* from this one on nothing comes out: a stage was lost */
    uint64_t past_ticks;            /* retired or given up, over all epochs */
    struct sequences *sequences;
    struct sim_block *blocks;
    uint64_t *kv;                   /* [n_blocks][kv_block] */
    uint32_t n_blocks;
    uint64_t *plain;                /* [context] of the reference */
    uint32_t *usable, n_usable, end_id;
    uint64_t prompt_rows;

    void (*on_step)(struct engine_sim *s, void *ctx);
    void *on_step_ctx;
    struct engine_sim_counts counts;
    uint32_t n_calls;               /* made and not freed */
};

/* engine_sim.c */
void engine_sim__timer(struct engine_sim *s, const struct sim_timer *t);

/* engine_sim_stages.c */
void engine_sim__stages_init(struct engine_sim *s);
void engine_sim__stages_fini(struct engine_sim *s);
void engine_sim__answer(struct engine_sim *s, const struct sim_timer *t); /* a stage's timer is due */
int64_t engine_sim__next_result_ns(const struct engine_sim *s);           /* INT64_MAX: nothing is in flight */
void engine_sim__results(struct engine_sim *s);                           /* those that are due */
void engine_sim__beat(struct engine_sim *s);                              /* all stages' heartbeats */
/* The ids of an answer, computed with plain arrays; returns how many: fewer than n when one of them ends it. */
uint32_t engine_sim__reference(struct engine_sim *s, const uint32_t *prompt, uint32_t n_prompt, uint32_t *out, uint32_t n);

#endif
