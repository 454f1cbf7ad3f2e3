/* tests/lib/pipeline.h - several stage workers in one process, and a small coordinator for them.
 *
 * Purpose    Joins S workers (stage/worker.h) by in-process, UNIX, TCP or encrypted links, with any compute, and plays the coordinator:
 *            assigns, raises epochs, runs requests through ticks with the whole window in flight, or sends single messages and
 *            waits for the answers. Blocks are given out by coordinator/blocks. No gRPC, no scheduler.
 * Ownership  pipeline_open/pipeline_close.
 * Threading  One thread (the workers have their own).
 * Errors     What a stage reports; STATUS_TIMEOUT when an expected message does not come.
 */
#ifndef SLUICE_TESTS_LIB_PIPELINE_H
#define SLUICE_TESTS_LIB_PIPELINE_H

#include "stage/worker.h"

enum { PIPELINE_MAX_STAGES = 8 };
enum pipeline_links { PIPELINE_MEM, PIPELINE_UNIX, PIPELINE_TCP, PIPELINE_TLS };

/* Zero: a default (1 stage, in-process links, 8 layers cut evenly, 8 slots, context 1024, blocks of 16, 256 rows, 5000 ms). */
struct pipeline_options {
    uint32_t n_stages;
    enum pipeline_links links;
    uint32_t n_layers, first_layer[PIPELINE_MAX_STAGES]; /* first_layer[1] == 0: cut evenly */
    uint32_t slots, context, kv_block, n_blocks, max_rows, stuck_ms, window;
    size_t mem_capacity; /* of an in-process link; 0: what it asks for */
    uint32_t absent;     /* bit i: stage i has a port but no worker; the test plays it (pipeline_raise_epoch_as) */
    /* Makes the compute of a stage; may be called from the thread of its worker. */
    enum status (*create)(void *ctx, uint32_t stage, struct compute **out, struct error *err);
    void *ctx;
};

struct pipeline;

/* Makes the workers, assigns, waits for LOADED, and raises epoch 1. */
enum status pipeline_open(const struct pipeline_options *o, struct pipeline **out, struct error *err);
/* The same without an assignment. */
enum status pipeline_open_bare(const struct pipeline_options *o, struct pipeline **out, struct error *err);
void pipeline_close(struct pipeline *p); /* NULL is allowed */

/* --- whole requests --------------------------------------------------------------------------------------------------------- */

struct pipeline_request {
    const uint32_t *prompt;
    uint32_t n_prompt, n_out; /* n_out ids are asked for */
    uint32_t piece;           /* rows of a piece of the prompt; 0: as many as a tick holds */
    uint32_t start_tick;      /* joins with this tick of the run (0: at once) */
    struct sampler_params sampler;
    int cache;                /* takes up what an earlier one of this epoch has read, and leaves what it reads */
    uint64_t salt;            /* with cache: of its prefix */
    int32_t *out;             /* [n_out]; -1 from a bad draw on */
    uint32_t n_done;          /* out */
    uint32_t n_cached;        /* out: positions taken up */
};

/* Runs all of them together, as many as there are slots at a time. Ids come back to stage 0 by feedback only (FROM_TICK). */
enum status pipeline_generate(struct pipeline *p, struct pipeline_request *r, uint32_t n, struct error *err);
extern const struct sampler_params pipeline_greedy;

/* --- single messages ------------------------------------------------------------------------------------------------------------ */

/* A message of a stage; a result is a copy with room for max_rows runs. */
struct pipeline_message {
    uint32_t stage;
    struct from_stage m;
};

/* Not 0 while a worker's message is being copied on this thread: what is allocated then is ours, not the worker's. */
extern _Thread_local int pipeline_in_send;

uint32_t pipeline_n_stages(const struct pipeline *p);
struct worker *pipeline_worker(struct pipeline *p, uint32_t stage);
struct link_port *pipeline_port(struct pipeline *p, uint32_t stage);
uint64_t pipeline_session(const struct pipeline *p);
uint64_t pipeline_epoch(const struct pipeline *p);
const uint8_t *pipeline_key(const struct pipeline *p); /* of the links of this epoch */
const struct msg_assign *pipeline_assignment(struct pipeline *p, uint32_t stage);

enum status pipeline_assign(struct pipeline *p, struct error *err);
/* EPOCH to all, ACK of all, LINKS to all, READY of all; whatever else comes meanwhile is dropped. */
enum status pipeline_raise_epoch(struct pipeline *p, struct error *err);
void pipeline_post_epoch(struct pipeline *p); /* EPOCH only */
void pipeline_post_links(struct pipeline *p, uint32_t stage);
/* EPOCH, ACK and LINKS for the workers, the links of an absent stage for the test, READY of the workers. */
enum status pipeline_raise_epoch_as(struct pipeline *p, uint32_t stage, struct link_pair *links, struct error *err);
/* The next message of any stage within timeout_ms; release a result with pipeline_release. */
enum status pipeline_next(struct pipeline *p, uint32_t timeout_ms, struct pipeline_message *out);
/* The next message of this kind from this stage (-1: any); others are dropped. */
enum status pipeline_await(struct pipeline *p, int stage, enum from_stage_kind kind, uint32_t timeout_ms,
                           struct pipeline_message *out);
void pipeline_release(struct pipeline_message *m);
/* An empty plan of this epoch with the next tick, over all stages; owned by the pipeline, valid until the next call. */
struct plan *pipeline_plan(struct pipeline *p);
/* Copies it to one stage (or all: -1). STATUS_FULL: the stage takes no more plans. */
enum status pipeline_post_plan(struct pipeline *p, int stage, const struct plan *plan);

#endif
