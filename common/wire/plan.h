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

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

enum { WIRE_VERSION = 4 };
enum { MAX_TOP_K = 1024, MAX_BIASES = 1024, MAX_TOP_LOGPROBS = 20 };
/* Words of biases and ids that the OPENs of one plan have in all, at most. */
enum { PLAN_OPEN_WORDS = 256 << 10 };

/* How the last stage draws the next id of a sequence. All zero is greedy with nothing else on, but for top_p. */
struct sampler_params {
    float temperature;       /* 0: greedy (ties: the lowest id) */
    float top_p;             /* 1: off */
    float min_p;             /* 0: off */
    uint32_t top_k;          /* 0: off */
    uint64_t seed;           /* the draw for position p depends on (seed, p) and, with penalties, on the ids before it */
    float repeat_penalty;    /* 1 or 0: off; of ids in the prompt and in the answer */
    float presence_penalty;  /* 0: off; of ids in the answer */
    float frequency_penalty; /* 0: off; the same, times their number */
    float typical_p;         /* 1 or 0: off */
    uint32_t repeat_last_n;  /* repeat_penalty looks at so many ids, the newest; 0: at all */
    uint32_t n_prompt;       /* position of the answer's first id */
    uint32_t n_bias;         /* at most MAX_BIASES */
    uint32_t n_top;          /* 0: no logprobs; else 1 + the number of alternatives */
};

struct logit_bias {
    uint32_t id;
    float bias; /* added to the logit */
};

/* Of the model's own distribution: what bias, penalties and temperature make of it has no part in it. */
struct top_logprob {
    uint32_t id;
    float logprob;
};

/* What every door lets in, from `min` to `max`; a NaN is in no range. */
struct sampler_range {
    const char *name; /* of the field in a request */
    double min, max;
};

/* NULL: a name that is no parameter with a range. */
const struct sampler_range *sampler_range(const char *name);

/* A parameter whose value is not allowed. */
struct sampler_fault {
    const char *name;
    double value, min, max;
};

/* 1, and *out: the first that is out of its range. Penalties that are 0 are off. */
int sampler_has_fault(const struct sampler_params *s, struct sampler_fault *out);
int sampler_bias_is_allowed(float bias); /* -100 to 100 */
int sampler_repeats(const struct sampler_params *s);      /* repeat_penalty is on */
int sampler_counts_answer(const struct sampler_params *s); /* presence_penalty or frequency_penalty is on */
/* So many of the ids before position `length`, the newest, the draws from there on depend on. Grows with length. */
uint32_t sampler_history(const struct sampler_params *s, uint32_t length);

enum plan_op_kind {
    OP_OPEN = 1,     /* seq starts: slot, sampler with its biases, length = start position, its blocks; the newest
                      * sampler_history(length) ids before it */
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
    uint32_t n_window;              /* blocks of the WINDOW group, behind the others: of the last places of the table */
    uint32_t first_id, n_ids;       /* the same; OPEN */
    uint32_t first_bias;            /* the same; sampler.n_bias ids, then as many floats by their bits */
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
    uint32_t table_check; /* plan_digest_add of all blocks that seq's ops named */
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
/* An op without ids and biases. */
enum status plan_add_op(struct plan *p, const struct plan_op *op, const uint32_t *blocks);
/* An OPEN with op->n_ids ids and op->sampler.n_bias biases: their ids and their values by bits. */
enum status plan_add_open(struct plan *p, const struct plan_op *op, const uint32_t *blocks, const uint32_t *ids,
                          const uint32_t *bias_ids, const uint32_t *bias_bits);
struct logit_bias plan_bias(const struct plan *p, const struct plan_op *op, uint32_t i);
enum status plan_add_run(struct plan *p, const struct plan_run *run, const uint32_t *ids);
#define PLAN_DIGEST_START 2166136261u /* of an empty table */
/* FNV-1a over the numbers; a table's check goes over all that its ops named, in their order. */
uint32_t plan_digest_add(uint32_t digest, const uint32_t *blocks, uint32_t n_blocks);
uint32_t plan_table_digest(const uint32_t *blocks, uint32_t n_blocks); /* of a table that one op named */
/* Offsets, sums and enum values, against the message alone; a stage checks the rest against its state. */
enum status plan_check(const struct plan *p, struct error *err);

/* --- results ---------------------------------------------------------------------------------------------------------- */

struct result_run {
    uint64_t seq;
    uint32_t n_accepted;  /* rows that count; n today */
    int32_t id;           /* sampled id, or -1 (SAMPLE_NONE, or bad_logits) */
    uint32_t bad_logits;  /* the row's logits held a NaN or no finite value */
    int has_logprob;      /* the sampler has n_top > 0 and there is an id */
    float logprob;        /* of the id */
    uint32_t n_top;       /* in tops[]: the best ids, ties by the lower id */
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
    struct top_logprob *tops; /* [max_runs * MAX_TOP_LOGPROBS]: those of run i from i * MAX_TOP_LOGPROBS on */
};

/* The alternatives of a run: runs[run].n_top of them. */
static inline struct top_logprob *result_tops(const struct result *r, uint32_t run)
{
    return r->tops + (size_t)run * MAX_TOP_LOGPROBS;
}

enum status result_create(uint32_t max_runs, struct result **out);
void result_destroy(struct result *r);
enum status result_copy(struct result *to, const struct result *from); /* STATUS_FULL: more runs than there is room for */

#endif
