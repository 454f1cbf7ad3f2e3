/* tests/sim/sim.h - the planner against pretended stages, in virtual time.
 *
 * Purpose    Runs coordinator/scheduler over S stages that are FIFOs with costs from a table, a feedback delay and a control
 *            latency, and records when every token of every request came. Nothing sleeps; a seed fixes everything.
 * Ownership  sim_run fills results that sim_result_fini frees.
 * Threading  Pure.
 * Invariants A tick starts at a stage when its plan is there, the stage has finished the tick before, the stage before has
 *            finished it and, at stage 0, the ids that its rows wait for have come back.
 * Errors     None: a planner that breaks its contract fails a CHECK.
 */
#ifndef SLUICE_TESTS_SIM_SIM_H
#define SLUICE_TESTS_SIM_SIM_H

#include "coordinator/scheduler.h"

enum { SIM_MAX_REQUESTS = 512 };

struct sim_request {
    double arrives_us;
    uint32_t n_prompt, n_answer;
};

struct sim_options {
    struct sched_options sched;
    struct msg_loaded stage[MAX_STAGES]; /* what the stages report and, times the noise, what ticks cost */
    double noise_low, noise_high;        /* factor of each tick and stage, uniform */
    int learn;                           /* timings are fed back */
    uint64_t seed;
    double until_us;                     /* 0: until everything is done */
};

struct sim_tokens {
    double started_us, first_piece_us;   /* slot taken; first piece planned */
    uint32_t n;
    double *at_us;                       /* [n_answer] when each id was sampled */
};

struct sim_result {
    uint32_t n_requests, n_ticks;
    struct sim_tokens tokens[SIM_MAX_REQUESTS];
    double end_us;
    double busy_us[MAX_STAGES];          /* compute time over all ticks */
    double reading_us, reading_busy_us;  /* time while a reader waits; of it, the busiest stage's compute */
    double most_tick_us;                 /* costliest tick at a stage */
};

void sim_run(const struct sim_options *o, const struct sim_request *requests, uint32_t n, struct sim_result *out);
void sim_result_fini(struct sim_result *r);

/* A stage whose tick reads its weights (base) or computes its rows, whichever takes longer, plus head * sampled rows (last
 * stage), attention, and a tenth of base. */
struct msg_loaded sim_stage(double base_us, double row_us, double head_us, double attention_ns);

#endif
