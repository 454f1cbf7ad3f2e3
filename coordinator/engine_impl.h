/* coordinator/engine_impl.h - the engine's inside, for the engine_*.c files only.
 *
 * Purpose    engine.c runs the thread and the inbox, engine_requests.c moves requests through their states, engine_tokens.c
 *            gives their clients what was sampled, engine_memory.c gives them KV room, engine_ticks.c makes plans and takes results,
 *            engine_recovery.c takes requests over the end of an epoch, engine_status.c publishes what others may see.
 * Threading  Everything but the fields marked otherwise belongs to the engine's thread.
 */
#ifndef SLUICE_COORDINATOR_ENGINE_IMPL_H
#define SLUICE_COORDINATOR_ENGINE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/list.h"
#include "common/base/queue.h"
#include "coordinator/admission.h"
#include "coordinator/blocks.h"
#include "coordinator/engine.h"
#include "coordinator/metrics.h"
#include "coordinator/pipeline.h"
#include "coordinator/request.h"
#include "coordinator/scheduler.h"
#include "coordinator/slots.h"

/* Clients can fill three quarters of the inbox. The rest is the stages': a result that finds it full ends the epoch. */
enum {
    ENGINE_INBOX = 8192,
    ENGINE_INBOX_SUBMITS = ENGINE_INBOX / 2,
    ENGINE_INBOX_CANCELS = ENGINE_INBOX / 4,
    ENGINE_MAX_ATTACHMENTS = 2 * MAX_STAGES + 8,
    ENGINE_TOKEN_LISTS = 1024, /* a power of two */
    ENGINE_PROFILES = 16,
};

enum engine_message_kind {
    ENGINE_SUBMIT, ENGINE_CANCEL, ENGINE_DRAIN, ENGINE_ATTACHED, ENGINE_STAGE_MESSAGE, ENGINE_STAGE_CLOSED,
};

struct engine_message {
    enum engine_message_kind kind;
    union {
        struct request *request; /* counted */
        int on;
        struct {
            uint64_t attachment;
            union {
                struct stage_port port;
                struct from_stage message;
            };
        };
    };
};

/* The pipeline's view of a port: closes the real one exactly once, whoever ends the stream. */
struct engine_attachment {
    uint64_t id;       /* engine_stage_attached's; 0: free */
    uint64_t pipeline; /* pipeline_attached's */
    struct stage_port port;
    int closed;
};

/* What a tick in flight was made of, to check its result against and to know whose rows they are. */
struct flight {
    uint64_t tick;
    uint32_t n_runs;
    struct sched_run *runs; /* [max_rows] */
    uint32_t *again;        /* [max_rows] of a piece: rows that were computed before (a park lost them) */
};

/* What others may see: one moment of all tables. */
struct engine_snapshot {
    struct metrics metrics;
    struct service_status status; /* last: its rows beyond n_slots are not copied */
};

static inline double engine__seconds(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e9;
}

struct engine {
    struct engine_options o;
    uint32_t n_stages, n_slots, context, max_rows, window;
    uint64_t hash_key[2];          /* of names: random, for this process */
    uint64_t profile_salt;         /* of the epoch's numerics profile */
    pthread_t thread;
    int started;
    int64_t now_ns;                /* of the turn under way */

    struct queue *inbox;           /* any thread */
    struct queue *free_results;    /* any thread: struct result * */
    struct result **results;       /* all of them, for the end */
    uint32_t n_results;
    atomic_int stopping;           /* any thread */
    atomic_uint_least64_t n_turns; /* any thread */
    atomic_int overflowed;         /* a stage message found the inbox full */
    atomic_int cancel_overflowed;  /* a cancel found no place in it: the flags of all requests are to be read */
    atomic_int cancelling;         /* cancels that are in the inbox */
    atomic_uint_fast64_t next_attachment;
    atomic_uint_fast64_t refused[REJECT_N]; /* before submission; any thread */
    atomic_int submitting;         /* requests that are in the inbox or being looked at: not idle, though no count has them yet */

    struct engine_attachment attachments[ENGINE_MAX_ATTACHMENTS];
    struct slots *slots;
    struct blocks *blocks;
    struct admission *admission;
    struct sched *sched;
    struct sched_plan *sched_plan;
    struct pipeline *pipeline;
    struct plan *plan;
    struct flight *flights;        /* [window], a ring by tick */
    struct request **by_slot;      /* [n_slots], counted */
    struct list queued, running, parked; /* request.link */
    struct list living[ENGINE_TOKEN_LISTS]; /* request.by_token: all of them, by their token's first bits */
    uint64_t *closes;              /* [n_slots] sequences whose CLOSE goes into the next plan */
    uint32_t n_closes;
    uint32_t *scratch;             /* [max_rows or context, PLAN_OPEN_WORDS] ids of the run or OPEN being planned */
    uint32_t open_words;           /* of those that have a slot, and whose OPEN is not out: all may be in one plan */
    uint32_t *new_blocks;          /* [2 * blocks of the context] of the op being planned, where the model has two groups */
    uint32_t n_reading, n_decoding, n_queued, n_parked;
    uint32_t n_preempted;          /* of the parked ones: for want of blocks */
    uint32_t n_quarantined;        /* unfinished requests that are suspected of killing stages */
    uint32_t n_starved;            /* running ones that cannot go on: no block for their next row */
    uint64_t next_order;
    struct {                       /* the first in line, when there was no room for it */
        uint64_t order;            /* its item's; 0: nobody */
        uint32_t available;        /* blocks */
        int64_t until_ns;          /* it is looked at again then, or when more blocks are available */
    } no_room;
    int draining;
    int64_t lost_ns;               /* when the pipeline was lost and has not come back, 0: it runs or never ran */
    int epoch_retired;             /* a tick of the last epoch that was READY has retired, or there was none: so the next one is
                                      believed before it retires one */
    uint64_t bounded_tick;         /* of this epoch: the newest with runs that end below the last stage */
    int lost_stage;                /* hollow blocks: the highest stage that lost their content */
    int64_t last_turn_ns, patient_ns; /* after a stop of this process: clients' reading is not judged before */
    int64_t created_ns, next_periodic_ns, published_ns;
    int dirty;
    struct metrics metrics;

    struct engine_snapshot *spare; /* filled without the lock, then it changes places with the published one */
    pthread_mutex_t snapshot_lock; /* guards the published one, pointer and content; held for a copy or a swap only */
    struct engine_snapshot *snapshot;
    atomic_int ready, idle;        /* any thread */
    atomic_int_fast64_t alive_ns;  /* any thread: when the engine last published */
    char profile[ENGINE_PROFILES][64]; /* numerics that the stages have had; written once each */
    int n_profiles;
    _Atomic(const char *) profiled; /* any thread: the present one; NULL: none was told */
};

/* engine_requests.c */
uint64_t engine__hash_text(const struct engine *e, const char *text);
uint32_t engine__id_at(const struct request *r, uint32_t position); /* of prompt and answer */
enum reject_reason engine__reject_reason(enum status s);
void engine__submit(struct engine *e, struct request *r, int64_t now);
void engine__cancel(struct engine *e, struct request *r);
void engine__admit(struct engine *e, int64_t now);       /* queued ones into free slots */
void engine__expire(struct engine *e, int64_t now);      /* waits and deadlines that are over */
void engine__progress(struct engine *e, int64_t now);    /* queue positions and read counts to those who wait */
/* Every change of state: the counts of the states follow. */
void engine__set_state(struct engine *e, struct request *r, enum request_state to);
/* Ends a request whatever its state: err NULL is success (the DONE event is out already). */
void engine__end(struct engine *e, struct request *r, enum request_state state, const struct error *err);
void engine__fail_all(struct engine *e, struct list *requests, const struct error *why);
void engine__park(struct engine *e, struct request *r, int64_t now); /* loses slot and blocks, keeps its place before all others */
void engine__cancel_flagged(struct engine *e);

/* engine_resume.c */
int engine__has_sibling(struct engine *e, const struct request *r); /* another answer to the same request is here */
/* That, or its own earlier attempt: who drains lets those finish. */
int engine__is_part_of_running(struct engine *e, const struct request *r);
void engine__known(struct engine *e, struct request *r);   /* accepted: a later attempt may take it over, until engine__end */
/* May a resumed request go on here? An earlier attempt that lives ends; a later one is in its way. */
enum status engine__take_over(struct engine *e, struct request *r, int64_t now, struct error *err);
void engine__take_up(struct engine *e, struct request *r, int64_t now); /* resumed and accepted: its times are those of the whole answer */
/* 1: a resumed request has ended, because its client has the whole answer already, or cannot get the rest of it here. Its limit
 * and the stages' numerics are known with the pool, so it is asked again when the request is to start. */
int engine__settle(struct engine *e, struct request *r);

/* engine_tokens.c */
/* The last event of its answer. */
struct generate_event engine__done(const struct request *r, enum finish_reason reason);
/* Streams whose client did not keep up: tried again, given up after --write-stall-ms without progress. */
void engine__retry_stalled(struct engine *e, int64_t now);
/* A sampled id of a running request. */
void engine__token(struct engine *e, struct request *r, const struct result_run *run, const struct top_logprob *tops, int64_t now);

/* engine_memory.c */
uint32_t engine__positions_needed(const struct request *r); /* at most */
uint32_t engine__input(const struct request *r);            /* positions whose ids are known: to be read before the next id */
int engine__has_room(const struct engine *e, const struct request *r);
uint32_t engine__take_room(struct engine *e, struct request *r);
uint32_t engine__limit(const struct engine *e, const struct request *r); /* positions of its reservation */
/* Its next row will be at position next: reserves one block more, or marks it starved. */
void engine__need_room(struct engine *e, struct request *r, uint32_t next);
void engine__not_starved(struct engine *e, struct request *r); /* it got room, or needs none any more */
int engine__is_short(const struct engine *e); /* somebody is starved who could go on: nobody starts */
void engine__committed(struct engine *e, struct request *r, uint32_t n_positions); /* so many are retired: full blocks become cache */
void engine__relieve(struct engine *e, int64_t now);        /* starved ones get room, by parking others */
struct request *engine__next_parked(const struct engine *e); /* NULL: none */

/* engine_recovery.c */
void engine__pipeline_events(struct engine *e, int64_t now); /* lost and ready epochs */
void engine__expire_lost(struct engine *e, int64_t now);     /* who waited for the pipeline for too long */
/* Why there is no service, with lost_ns set; text is returned. */
enum { LOST_TEXT = 256 };
const char *engine__why_lost(const struct engine *e, char text[LOST_TEXT]);
/* Positions below end are retired: a suspect that gets past the place where a stage died is none. */
void engine__got_past(struct engine *e, struct request *r, uint32_t end);
void engine__park_running(struct engine *e, int64_t now);
void engine__leave_quarantine(struct engine *e, struct request *r);
/* The suspect that runs, or is to run, while nobody else does; NULL: none. */
struct request *engine__alone(const struct engine *e);

/* engine_ticks.c */
void engine__opened(struct engine *e, struct request *r); /* or never to be: its OPEN's words are no longer waited for */
void engine__send_ticks(struct engine *e, int64_t now);
void engine__result(struct engine *e, const struct result *r, int64_t now);
void engine__timing(struct engine *e, const struct stage_timing *t);

/* engine_status.c */
void engine__publish(struct engine *e, int64_t now);
void engine__check(const struct engine *e);              /* sums over all tables; debug builds */

#endif
