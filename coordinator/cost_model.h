/* coordinator/cost_model.h - how long a tick will take at each stage.
 *
 * Purpose    Predicts a tick from its shape, per stage: a table over rows that the stage measured before READY, plus
 *            attention over what is cached, plus sampling, times the running 95th percentile of actual/predicted.
 *            The shape sits behind these functions and can be replaced.
 *
 *              base(stage, shape) = prompt_us[rows] + max(0, decode_us[sampled] - prompt_us[sampled])
 *                                   + attention_ns * reads / 1000
 *              cost = base * factor(stage, kind)        kind: decode rows alone, or with prompt rows
 *
 *            The tables hold reads of a piece's own rows (measured at position 0), so `reads` counts the prefix only.
 * Ownership  A plain struct, part of the scheduler's state: same bytes, same answers.
 * Threading  Pure.
 * Invariants Tables are positive, finite and do not fall with rows, whatever a stage has reported; factors stay within
 *            COST_FACTOR_MIN..COST_FACTOR_MAX.
 * Errors     None: figures that make no sense (0, NaN, falling) are replaced by the nearest that do.
 */
#ifndef SLUICE_COORDINATOR_COST_MODEL_H
#define SLUICE_COORDINATOR_COST_MODEL_H

#include <stdint.h>

#include "common/model/split.h"
#include "common/wire/control.h"

enum { COST_RATIOS = 64 }; /* kept per stage and kind */
#define COST_FACTOR_MIN 0.25
#define COST_FACTOR_MAX 8.0

struct cost_shape {
    uint32_t rows;      /* all rows of the tick */
    uint32_t sampled;   /* rows that give an id */
    uint32_t n_prompt;  /* prompt rows among rows */
    uint64_t reads;     /* sum over rows of cached positions before its run */
};

enum cost_kind { COST_DECODE, COST_MIXED, COST_N_KINDS };

struct cost_point {
    double rows, prompt_us, sample_us;  /* sample_us: decode beyond prompt */
    double prompt_slope, sample_slope;  /* to the next point, per row */
};

struct cost_stage {
    uint32_t n_points;
    struct cost_point point[N_COST_POINTS];
    uint8_t start[32];                  /* of 2^k rows and more: the point where the search begins */
    double attention_us;                                                            /* per row and position read */
    float ratio[COST_N_KINDS][COST_RATIOS];
    uint32_t n_ratios[COST_N_KINDS], next_ratio[COST_N_KINDS];
    double factor[COST_N_KINDS];
};

struct cost_model {
    uint32_t n_stages;
    struct cost_stage stage[MAX_STAGES];
};

/* n_stages in 1..MAX_STAGES; every stage starts with a flat guess until cost_model_set_stage. */
void cost_model_init(struct cost_model *m, uint32_t n_stages);
/* Takes a stage's measured table over; its ratios start anew. */
void cost_model_set_stage(struct cost_model *m, uint32_t stage, const struct msg_loaded *l);

enum cost_kind cost_kind_of(const struct cost_shape *s);
double cost_base_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s); /* without the factor */
double cost_predict_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s);
double cost_slowest_us(const struct cost_model *m, const struct cost_shape *s); /* the most over the stages */

/* What a tick of this base prediction really took (compute and send). */
void cost_model_learn(struct cost_model *m, uint32_t stage, enum cost_kind kind, double base_us, double actual_us);

#endif
