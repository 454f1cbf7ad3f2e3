/* common/wire/plan.h - what one tick does, and what came of it.
 *
 * Purpose    The plain form of the Plan and Result messages (wire.md). The coordinator fills a plan, rpc/grpc packs it, a
 *            stage checks and runs it; in tests both meet in one process without gRPC.
 * Ownership  plan_create/plan_destroy: fixed capacity, nothing allocates afterwards. Ids and block numbers of runs and
 *            ops lie in the plan's own words[] and are named by offset, so that a plan is copied with plan_copy.
 * Threading  One thread at a time; plans are handed over.
 * Invariants n_rows == sum of runs[].n; offsets + counts <= n_words.
 * Errors     STATUS_FULL: the capacity is used up, nothing was added.
 */
#ifndef SLUICE_COMMON_WIRE_PLAN_H
#define SLUICE_COMMON_WIRE_PLAN_H

#include <stdint.h>

#include "common/base/error.h"

enum { WIRE_VERSION = 2 };
enum { MAX_TOP_K = 1024 };

/* How the last stage draws the next id of a sequence. */
struct sampler_params {
    float temperature; /* 0: greedy (ties: the lowest id) */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;     /* the draw for position p depends on (seed, p) alone */
};

enum plan_op_kind {
    OP_OPEN = 1,     /* seq starts: slot, sampler, length = start position, its blocks */
    OP_APPEND = 2,   /* seq gets more blocks */
    OP_TRUNCATE = 3, /* seq's length becomes `length` */
    OP_CLOSE = 4,    /* seq ends; its blocks may be named by later plans */
};

struct plan_op {
    enum plan_op_kind kind;
    uint64_t seq;
    uint32_t slot;
    uint32_t length;
    uint32_t first_block, n_blocks; /* in words[] */
    struct sampler_params sampler;
};

enum run_source {
    SOURCE_IDS = 1,       /* ids in words[first_id..] */
    SOURCE_FROM_TICK = 2, /* the id sampled for seq in tick from_tick */
};

enum run_sample {
    SAMPLE_NONE = 0, /* a prompt piece that is not the last */
    SAMPLE_LAST = 1, /* the last row of the run gives an id */
};

struct plan_run {
    uint64_t seq;
    uint32_t n;           /* consecutive rows of seq */
    uint32_t kv_index;    /* position of the first */
    enum run_source source;
    enum run_sample sample;
    uint32_t first_id;    /* in words[], n of them (SOURCE_IDS) */
    uint32_t last_stage;  /* the last stage that computes these rows: n_stages - 1, or less where the stages above hold their KV
                           * already; then SAMPLE_NONE and SOURCE_IDS */
    uint64_t from_tick;   /* SOURCE_FROM_TICK, n == 1 */
    uint32_t table_check; /* plan_table_digest of seq's blocks after the ops */
};

struct plan {
    uint64_t session, epoch, tick;
    uint32_t n_rows, budget_us;
    uint32_t n_ops, n_runs, n_words;
    uint32_t max_ops, max_runs, max_words;
    struct plan_op *ops;
    struct plan_run *runs;
    uint32_t *words;
};

enum status plan_create(uint32_t max_ops, uint32_t max_runs, uint32_t max_words, struct plan **out);
void plan_destroy(struct plan *p);
void plan_reset(struct plan *p); /* empties it, keeps the memory */
enum status plan_copy(struct plan *to, const struct plan *from);
enum status plan_add_op(struct plan *p, const struct plan_op *op, const uint32_t *blocks);
enum status plan_add_run(struct plan *p, const struct plan_run *run, const uint32_t *ids);
uint32_t plan_table_digest(const uint32_t *blocks, uint32_t n_blocks); /* FNV-1a over the numbers */
/* Offsets, sums and enum values, against the message alone; a stage checks the rest against its state. */
enum status plan_check(const struct plan *p, struct error *err);

/* --- results ---------------------------------------------------------------------------------------------------------- */

struct result_run {
    uint64_t seq;
    uint32_t n_accepted;  /* rows that count; n today */
    int32_t id;           /* sampled id, or -1 (SAMPLE_NONE, or bad_logits) */
    uint32_t bad_logits;  /* the row's logits held a NaN or no finite value */
};

struct stage_timing {
    uint64_t tick;
    uint32_t stage, n_rows;
    uint32_t wait_plan_us, wait_data_us, compute_us, send_us;
    uint32_t sent_bytes;
};

struct result {
    uint64_t session, epoch, tick;
    enum status status; /* of the whole tick; not OK: no runs */
    char message[160];
    struct stage_timing timing;
    uint64_t layer_counter;
    uint32_t n_runs, max_runs;
    struct result_run *runs; /* those of the plan, in its order */
};

enum status result_create(uint32_t max_runs, struct result **out);
void result_destroy(struct result *r);

#endif
