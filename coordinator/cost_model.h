/* coordinator/cost_model.h - how long a tick will take at each stage.
 *
 * Purpose    Predicts a tick from its shape, per stage: a table over rows that the stage measured before READY, plus
 *            attention over what is cached, plus sampling; then fitted to what ticks really take. The shape sits behind
 *            these functions and can be replaced.
 *
 *              base    = prompt_us[rows] + decode_us[sampled] - prompt_us[sampled]     from the table
 *                        + attention_us * (reads + spans)
 *              typical = rows part * factor(rows) + attention_us * (reads * reads_factor + spans * spans_factor)
 *              guarded = typical * guard                                              what 95 of 100 ticks stay within
 *
 *            A piece reads its prefix once more than its rows do (spans): what one row would, until timings say otherwise.
 *            factor: one for every power of two of rows, linear between them, decode ticks and ticks with prompt rows apart.
 *            The tables hold reads of a piece's own rows (measured at position 0), so `reads` counts the prefix only.
 *            Sums of time (share, bank) want the typical cost, a mean; a bound on one tick (stall) the guarded one.
 * Ownership  A plain struct, part of the scheduler's state: same bytes, same answers.
 * Threading  Pure.
 * Invariants Tables are positive, finite and do not fall with rows, whatever a stage has reported; factors stay within
 *            COST_FACTOR_MIN..COST_FACTOR_MAX, guards within 1..COST_GUARD_MAX.
 * Errors     None: figures that make no sense (0, NaN, falling) are replaced by the nearest that do, and a timing far from
 *            all others is ignored until several in a row say the same.
 */
#ifndef SLUICE_COORDINATOR_COST_MODEL_H
#define SLUICE_COORDINATOR_COST_MODEL_H

#include <stdint.h>

#include "common/model/split.h"
#include "common/wire/control.h"

enum {
    COST_RATIOS = 64,  /* kept per stage and kind */
    COST_BUCKETS = 14, /* rows 1, 2, 4 .. 8192 */
    COST_WIDE_ROWS = 64,
    COST_SETTLED = 64, /* timings */
};
#define COST_FACTOR_MIN 0.125
#define COST_FACTOR_MAX 16.0
#define COST_GUARD_MAX 4.0

struct cost_shape {
    uint32_t rows;      /* all rows of the tick */
    uint32_t sampled;   /* rows that give an id */
    uint32_t n_prompt;  /* prompt rows among rows */
    uint64_t reads;     /* sum over rows of cached positions before its run */
    uint64_t spans;     /* the same, once for each piece: what is read again because the prompt is cut there */
};

/* Ticks whose times scatter alike: a small tick's more than a large one's. */
enum cost_kind { COST_DECODE, COST_NARROW, COST_WIDE, COST_N_KINDS };

struct cost_point {
    double rows, prompt_us, sample_us;  /* sample_us: decode less prompt */
    double prompt_slope, sample_slope;  /* to the next point, per row */
};

/* Fitted to timings; [0] decode rows alone, [1] with prompt rows. */
struct cost_fit {
    double factor[COST_BUCKETS];
    uint32_t n_seen[COST_BUCKETS];
    double mean;                        /* over all rows: what buckets never seen are taken for */
    double reads_factor, spans_factor;
    uint32_t n_learned, n_strange;
};

struct cost_stage {
    uint32_t n_points;
    struct cost_point point[N_COST_POINTS];
    uint8_t start[32];                  /* of 2^k rows and more: the point where the search begins */
    double attention_us;                /* per row and position read */
    struct cost_fit fit[2];
    float ratio[COST_N_KINDS][COST_RATIOS]; /* actual / typical */
    uint32_t n_ratios[COST_N_KINDS], next_ratio[COST_N_KINDS];
    double guard[COST_N_KINDS];
};

struct cost_model {
    uint32_t n_stages;
    struct cost_stage stage[MAX_STAGES];
};

/* n_stages in 1..MAX_STAGES; every stage starts with a flat guess until cost_model_set_stage. */
void cost_model_init(struct cost_model *m, uint32_t n_stages);
/* Takes a stage's measured table over; what was learned of it is forgotten. */
void cost_model_set_stage(struct cost_model *m, uint32_t stage, const struct msg_loaded *l);

enum cost_kind cost_kind_of(const struct cost_shape *s);
double cost_base_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s);    /* by the table alone */
double cost_predict_us(const struct cost_model *m, uint32_t stage, const struct cost_shape *s); /* typical */
/* Over all stages: each of them (the slowest is returned), their sum, the slowest alone. */
double cost_predict_all_us(const struct cost_model *m, const struct cost_shape *s, double *us);
double cost_sum_us(const struct cost_model *m, const struct cost_shape *s, double *slowest_us);
double cost_slowest_us(const struct cost_model *m, const struct cost_shape *s);
/* The first stage whose typical cost is above tau_us or whose guarded cost is above guarded_us; n_stages: none. */
uint32_t cost_exceeds(const struct cost_model *m, const struct cost_shape *s, double tau_us, double guarded_us);
double cost_guard(const struct cost_model *m, uint32_t stage, enum cost_kind kind);
/* As fitted, per position before a piece: attention of each of its rows; what the piece costs because it is cut there. */
double cost_reads_us(const struct cost_model *m, uint32_t stage);
double cost_spans_us(const struct cost_model *m, uint32_t stage);

/* Costs of decode rows follow timings by now, or none ever came. */
int cost_settled(const struct cost_model *m);

/* What a tick of this shape really took (compute and send). */
void cost_model_learn(struct cost_model *m, uint32_t stage, const struct cost_shape *s, double actual_us);

#endif
