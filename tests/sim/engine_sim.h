/* tests/sim/engine_sim.h - the real engine on virtual time, with stages that only count and hash.
 *
 * Purpose    The same coordinator/engine as in service, stepped by hand (engine_options.manual): S ports that speak the
 *            control protocol in memory, ticks that take tick_us + row_us a decode row + token_us a prompt token at every
 *            stage (scheduling.md's recurrence), and clients that submit, leave, read slowly. Nothing sleeps, nothing depends
 *            on the machine: the same seed gives the same run.
 *            Every position keeps a hash in its KV block, made from the position before and from one far before, both as
 *            read back from their blocks through the table that OPEN and APPEND told; the next id follows from it. One
 *            computation stands for all stages, as all would do the same. So wrong rows, tables, blocks that were given away
 *            too early, or a prefix taken from wrong blocks change the answer. Each id is compared with a reference made with
 *            plain arrays when it comes.
 * Ownership  engine_sim_open/engine_sim_close. A call is its maker's until sim_call_free, which may stand in on_end.
 * Threading  One thread.
 * Invariants Checked all along, a breach fails the test:
 *            1. A call that was accepted gets ACCEPTED first and exactly one end; nothing follows the end.
 *            2. The stages' own checks (stage/sequences.h) find no fault in any plan.
 *            3. A plan gives a sequence no block to write that a tick in flight writes or reads for another, and none to share
 *               that a tick in flight writes.
 *            4. engine__check every check_every steps; free + cached + live + draining = total.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_SIM_ENGINE_SIM_H
#define SLUICE_TESTS_SIM_ENGINE_SIM_H

#include "common/base/clock.h"
#include "coordinator/engine.h"
#include "coordinator/request.h"

struct engine_sim;

/* Zero: a default. */
struct engine_sim_options {
    uint32_t n_stages;                 /* 2 */
    uint32_t n_slots;                  /* 4; may be more than --slots takes */
    const char *const *flags;          /* of sluice-coordinator, NULL at the end */
    double tick_us, row_us, token_us;  /* 4000, 100, 250 */
    double noise;                      /* a tick at a stage costs up to so much more, as a part of it */
    uint32_t end_odds;                 /* an id in so many ends the answer; 0: none does */
    uint32_t hash_bits;                /* of the prefix map */
    uint32_t check_every;              /* steps; 32 */
    uint64_t seed;                     /* 1 */
};

struct sim_call {
    struct engine_sim *sim;
    /* as asked: changed before sim_call_submit only */
    char client[32];
    uint32_t *prompt, n_prompt, n_answer; /* prompt: random ids of its own, unless written over */
    int batch, no_cache;
    int64_t deadline_ms;
    uint32_t stall_at;                 /* > 0: after so many ids ... */
    int64_t stall_ns;                  /* ... it reads nothing for so long */
    void (*on_id)(struct sim_call *c); /* each id, or several that came at once: n_ids has grown */
    void (*on_end)(struct sim_call *c);
    void *ctx;
    /* what came */
    struct request *request;           /* NULL: not submitted */
    int64_t submitted_ns, accepted_ns, first_ns, last_ns, ended_ns; /* 0: not yet */
    int64_t longest_gap_ns;            /* between two events with ids */
    uint32_t n_ids, position;          /* position: the last one told while it waited */
    uint32_t read_tokens;              /* the last count told while it read */
    uint32_t *ids;
    struct usage usage;
    enum finish_reason finish;         /* FINISH_NONE: it did not end well */
    struct error end;
    /* the simulation's own */
    uint32_t *expect, n_expect;
    uint32_t n_finished, n_held, freed; /* held: by its maker, the request and timers */
    int64_t stalled_ns;
};

struct engine_sim_counts {
    uint64_t steps, ticks, epochs;
    uint64_t submitted, accepted, refused, done, failed, cancelled; /* calls; of the accepted ones */
    uint64_t ids;
    uint32_t open;                     /* accepted or on their way, not ended */
    uint32_t live;                     /* blocks */
};

struct engine_sim *engine_sim_open(const struct engine_sim_options *o); /* ready: an epoch runs */
void engine_sim_close(struct engine_sim *s);
struct engine *engine_sim_engine(struct engine_sim *s);
const struct config *engine_sim_config(const struct engine_sim *s);
struct engine_sim_counts engine_sim_counts(const struct engine_sim *s);
int64_t engine_sim_now_ns(const struct engine_sim *s);
uint64_t engine_sim_draw(struct engine_sim *s); /* the next of the seed's random numbers */
double engine_sim_unit(struct engine_sim *s);   /* in [0, 1) */

/* Calls fn at a virtual time (not before now). */
void engine_sim_at(struct engine_sim *s, int64_t when_ns, void (*fn)(struct engine_sim *s, void *ctx), void *ctx);
/* After each step from now on: one step handles what came at one point in time. NULL: no more. */
void engine_sim_on_step(struct engine_sim *s, void (*fn)(struct engine_sim *s, void *ctx), void *ctx);
void engine_sim_step(struct engine_sim *s);
void engine_sim_run(struct engine_sim *s, int64_t until_ns);
/* Until no call is open and no timer is set; fails the test when that takes longer than limit_ns of virtual time. */
void engine_sim_run_out(struct engine_sim *s, int64_t limit_ns);
/* Nothing runs, and every sum says so: live = draining = 0, free + cached = total. A second of virtual time is given. */
void engine_sim_assert_quiet(struct engine_sim *s);

/* Time that a stage has spent computing up to now. */
int64_t engine_sim_busy_ns(const struct engine_sim *s, uint32_t stage);
/* What was computed of prompts and of answers up to now, in rows. */
uint64_t engine_sim_prompt_rows(const struct engine_sim *s);
/* The stage's process is gone with all that it had in hand; a new one comes after back_ns. */
void engine_sim_lose_stage(struct engine_sim *s, uint32_t stage, int64_t back_ns);

struct sim_call *sim_call_new(struct engine_sim *s, const char *client, uint32_t n_prompt, uint32_t n_answer);
/* Ids from..n_prompt-1 of the prompt become those of a text named by the seed: the same in every call. */
void sim_call_write(struct sim_call *c, uint32_t from, uint64_t text_seed);
void sim_call_submit(struct sim_call *c);
void sim_call_cancel(struct sim_call *c); /* as a client that leaves; nothing when it has ended */
void sim_call_leave_at(struct sim_call *c, int64_t when_ns); /* the same, later; it may be ended and freed by then */
int sim_call_ended(const struct sim_call *c);
void sim_call_free(struct sim_call *c);

#endif
