/* tests/bench/stage_limit.h - what the stages of a pipeline can give at most: all of them compute at the same time, none waits.
 *
 * Purpose    The limit of a pipeline of S stages with n streams: n/S rows per tick (of one prompt: a piece), and a tick ends as often
 *            as the slowest stage ends one. Each stage has a thread and a core of its own, as its process has in the service, and runs its
 *            layers only; what it would get from the stage before it is made up. No links, no plans, no coordinator.
 * Ownership  stage_limit_open/close.
 * Threading  One caller; the stages' threads are inside.
 * Errors     open: what the computes say. run: what a tick says.
 */
#ifndef SLUICE_TESTS_BENCH_STAGE_LIMIT_H
#define SLUICE_TESTS_BENCH_STAGE_LIMIT_H

#include <stdint.h>

#include "common/model/split.h"

struct stage_limit_options {
    const char *model_path, *backend, *isa;
    const char *split;  /* NULL: auto */
    uint32_t n_stages;
    int n_threads;      /* of each stage */
    uint32_t max_rows;  /* of a tick */
    uint32_t n_seqs;    /* at most in a decode tick */
    uint32_t context;   /* positions of a sequence */
};

struct stage_limit;

enum status stage_limit_open(const struct stage_limit_options *o, struct stage_limit **out, struct error *err);
void stage_limit_close(struct stage_limit *l); /* NULL is allowed */
/* Decode: n_rows sequences with a row each from position `prompt` on, n_ticks of them. tick_us[i]: the mean tick of stage i,
 * while every other stage computes too. */
enum status stage_limit_decode(struct stage_limit *l, uint32_t n_rows, uint32_t prompt, uint32_t n_ticks,
                               double tick_us[MAX_STAGES], struct error *err);
/* Prefill: one sequence of n_tokens in ticks of n_rows (the last one holds what is left), its last row sampled. */
enum status stage_limit_prefill(struct stage_limit *l, uint32_t n_rows, uint32_t n_tokens, double tick_us[MAX_STAGES], struct error *err);
const char *stage_limit_backend(const struct stage_limit *l);
const struct split *stage_limit_split(const struct stage_limit *l);

#endif
