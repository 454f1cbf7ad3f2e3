/* tests/sim/sim.h - the planner against pretended stages, in virtual time.
 *
 * Purpose    Runs coordinator/scheduler over S stages that are FIFOs with costs from a table, a feedback delay and a control
 *            latency, and records when every token of every request came. Nothing sleeps; a seed fixes everything.
 * Ownership  sim_run fills results that sim_result_fini frees.
 * Threading  Pure.
 * Invariants 1. A tick starts at a stage when its plan is there, the stage has finished the tick before, the stage before has
 *               finished it and, at stage 0, the ids that its rows wait for have come back.
 *            2. Every row of every request is planned once, in order, below its limit and never across its cut point; ids are
 *               asked for where they are: at the coordinator once their tick has retired, else of the tick that samples them.
 * Errors     None: a planner that breaks its contract fails a CHECK.
 */
#ifndef SLUICE_TESTS_SIM_SIM_H
#define SLUICE_TESTS_SIM_SIM_H

#include "coordinator/scheduler.h"

struct sim_request {
    double arrives_us;
    uint32_t n_prompt, n_answer;
    uint32_t n_cached;                   /* positions that need not be read */
    uint32_t run_rows;                   /* > 1: so many rows a run, of which 1..run_rows count at random */
    uint32_t needs_host;                 /* every id waits for the host, host_us after the id before */
    uint32_t cut;                        /* a cut point at each multiple, 0: none */
    double waits_us;                     /* its limit is its prompt's half until then; 0: none */
    double leaves_us;                    /* it is cancelled then; 0: never */
};

enum sim_blow { SIM_CANCEL, SIM_PARK, SIM_EPOCH, SIM_N_BLOWS };

struct sim_options {
    struct sched_options sched;
    struct msg_loaded stage[MAX_STAGES]; /* what the stages report */
    struct msg_loaded truth[MAX_STAGES]; /* what ticks cost; nothing set (n_blocks 0): as reported */
    double noise_low, noise_high;        /* factor of each tick and stage, uniform */
    double spikes, spike_us;             /* so many of a thousand take so much longer */
    int learn;                           /* timings are fed back */
    int blind;                           /* the planner is not told the time */
    double host_us;
    uint64_t seed;
    double until_us;                     /* 0: until everything is done */
    uint32_t blow_event;                 /* event at which it strikes, from 1; 0: never */
    enum sim_blow blow;                  /* cancel or park the request, or a new epoch: everything is parked */
    uint32_t blow_request;
};

struct sim_tokens {
    double started_us, first_piece_us;   /* slot taken; first piece planned */
    double last_piece_us, piece_wait_us; /* longest time between two pieces, first to last */
    uint32_t n, cancelled, n_host, row_max; /* rows of its largest piece */
    double *at_us;                       /* [n_answer] when each id was sampled */
};

struct sim_result {
    uint32_t n_requests, n_ticks, n_events, n_wide;
    uint64_t n_rows;
    struct sim_tokens *tokens;           /* [n_requests] */
    double end_us;
    double busy_us[MAX_STAGES];          /* compute time over all ticks */
    double reading_us, reading_busy_us;  /* time while a reader waits; of it, the busiest stage's compute */
    double most_tick_us;                 /* costliest tick at a stage */
    double bank_bound_us;                /* the largest W */
    double period_us;                    /* P0 of the newest tick with streams */
    uint32_t stall_unmet;                /* ticks that said so */
};

void sim_run(const struct sim_options *o, const struct sim_request *requests, uint32_t n, struct sim_result *out);
void sim_result_fini(struct sim_result *r);

/* A stage whose tick reads its weights (base) or computes its rows, whichever takes longer, plus head * sampled rows (last
 * stage), attention, and a tenth of base. */
struct msg_loaded sim_stage(double base_us, double row_us, double head_us, double attention_ns);
/* A stage whose tick takes tick + row a decode row + token a prompt row, straight. */
struct msg_loaded sim_straight_stage(double tick_us, double row_us, double token_us);
/* Every stage's times by a factor, e.g. for a truth that the planner does not know. */
struct msg_loaded sim_scaled_stage(const struct msg_loaded *l, double factor);

#endif
