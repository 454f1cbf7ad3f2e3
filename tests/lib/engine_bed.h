/* tests/lib/engine_bed.h - the real engine and real stage workers in one process, without gRPC.
 *
 * Purpose    Joins coordinator/engine and S stage workers (any compute, in-process links) by direct calls: what an Attach
 *            stream carries goes from port to worker_post and from the worker's send to engine_stage_message. A thread beats
 *            for all stages and attaches again what the engine dropped. Requests are made, watched and judged here.
 * Ownership  engine_bed_open/engine_bed_close. A bed_request belongs to the bed until bed_request_free.
 * Threading  The bed's functions: the test's thread. Sinks run on the engine's thread and write under the bed's lock.
 * Invariants Every request that was submitted gets exactly one finish and one release, also when the engine stops.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_LIB_ENGINE_BED_H
#define SLUICE_TESTS_LIB_ENGINE_BED_H

#include <stdatomic.h>

#include "coordinator/engine.h"
#include "coordinator/request.h"
#include "stage/worker.h"

enum { BED_MAX_STAGES = 4, BED_MAX_IDS = 4096 };

struct engine_bed_options {
    const char *model_path;
    uint32_t n_stages;
    const char *const *flags; /* of sluice-coordinator, NULL at the end: "--slots", "4", ... */
    enum status (*create)(void *ctx, uint32_t stage, struct compute **out, struct error *err);
    void *ctx;
    uint32_t hash_bits; /* of the prefix map; 0: all */
    uint32_t beat_ms;   /* how often stages beat, and attach again where they have no stream; 0: 40 */
};

struct engine_bed;

struct engine_bed *engine_bed_open(const struct engine_bed_options *o);
void engine_bed_close(struct engine_bed *b); /* stops what still runs */
struct engine *engine_bed_engine(struct engine_bed *b);
const struct resume_key *engine_bed_resume_key(const struct engine_bed *b);
const struct model *engine_bed_model(const struct engine_bed *b);
const struct tokenizer *engine_bed_tokenizer(const struct engine_bed *b);
void engine_bed_wait_ready(struct engine_bed *b);

/* The process of a stage is gone, from one moment to the next. It stays away until engine_bed_start_stage. */
void engine_bed_kill_stage(struct engine_bed *b, uint32_t stage);
void engine_bed_start_stage(struct engine_bed *b, uint32_t stage);
/* The same, and the process that comes next says that it ended by this signal. */
void engine_bed_crash_stage(struct engine_bed *b, uint32_t stage, int signal);
/* Its stream breaks and stands again; the process lives. */
void engine_bed_break_stream(struct engine_bed *b, uint32_t stage);
/* Nothing comes from this stage while on: what a frozen process does. */
void engine_bed_silence(struct engine_bed *b, uint32_t stage, int on);

/* Another engine in the place of this one, which ends as by SIGKILL: nothing that it says from now on is heard by stages or
 * clients. Its requests end for their clients with what engine_stop tells them. The stages live and attach to the new one. */
void engine_bed_restart_engine(struct engine_bed *b);

/* Whatever passes between processes; heartbeats do not count. */
enum bed_point {
    BED_STAGE_SENDS,  /* a message to the engine */
    BED_STAGE_GETS,   /* a message of the engine */
    BED_STAGE_WRITES, /* into a link: a frame, feedback, or a part of one */
    BED_STAGE_READS,  /* from a link */
    BED_ENGINE_SENDS, /* to any stage */
    BED_ENGINE_GETS,  /* from any stage */
    BED_ENGINE_TELLS, /* an event to a client */
    BED_N_POINTS,
};

/* The process (this stage, or the engine) ends at the n-th passage (1: the next one) from now on: before it, or after it. From
 * then on it neither says nor hears anything; its end becomes known with engine_bed_kill_stage or engine_bed_restart_engine. */
void engine_bed_end_at(struct engine_bed *b, enum bed_point point, uint32_t stage, uint32_t n, int after);
int engine_bed_has_ended(struct engine_bed *b); /* as told */
void engine_bed_end_nowhere(struct engine_bed *b);

struct bed_request {
    /* as asked */
    uint32_t *prompt;
    uint32_t n_prompt;
    struct sampler_params sampler;
    const struct logit_bias *bias; /* [n_bias], must outlive it */
    uint32_t n_bias;
    int64_t max_tokens;
    const char *stop;      /* NULL: none */
    const char *stop2;     /* the same */
    uint32_t refuse_every; /* > 0: the sink is full at every n-th event, as with a slow reader */
    uint32_t no_memory_at; /* > 0: the sink has no memory for the n-th event */
    int64_t deadline_ms;
    const char *client;    /* NULL: all of one */
    const char *name;      /* its request id; NULL: drawn */
    int ignore_eos;
    struct bed_request *resumes; /* NULL, or the attempt whose answer goes on: what is asked for is the same */
    uint32_t n_resumed;    /* so many of its ids were delivered */
    struct bed_request *sibling; /* NULL, or another answer to the same request, which was accepted */
    uint32_t attempt;
    int no_cache, batch;
    atomic_int mute;       /* its client reads nothing while set */
    /* what came; read it after bed_wait: sinks write under the bed's lock */
    struct engine_bed *bed;
    struct request *request;
    uint32_t ids[BED_MAX_IDS], n_ids, n_events, n_accepted, n_done, n_finished, n_released;
    struct token_logprobs *logprobs; /* [n_logprobs]: of all ids that came, where sampler.n_top asks for them */
    uint32_t n_logprobs;
    uint8_t token[MAX_RESUME_TOKEN];
    size_t n_token;
    char id[64];
    struct usage first;    /* of the first text */
    uint32_t text_at[BED_MAX_IDS + 1]; /* bytes of text that had come with so many ids, where an event ended */
    struct buf text;
    struct generate_event done;
    struct error end;      /* of finish: status OK when it ended well */
    int refused;           /* engine_submit took it not: no events follow */
    int64_t started_ns, ended_ns;
};

struct bed_request *bed_request_new(struct engine_bed *b, const uint32_t *prompt, uint32_t n_prompt, int64_t max_tokens);
/* Creates and hands it to the engine; limits are checked as the text workers do. */
void bed_submit(struct bed_request *r);
void bed_cancel(struct bed_request *r); /* as a client that leaves */
int bed_ended(struct bed_request *r);
uint32_t bed_n_ids(struct bed_request *r);
int bed_is_accepted(struct bed_request *r); /* its token is here */
/* Waits for the end; fails the test after ms. */
void bed_wait(struct bed_request *r, int ms);
void bed_request_free(struct bed_request *r);

/* Waits (at most a second) until nothing runs and every sum of the status says so. */
void engine_bed_assert_quiet(struct engine_bed *b);

#endif
