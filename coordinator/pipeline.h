/* coordinator/pipeline.h - brings S stages to one running epoch and notices when it ends.
 *
 * Purpose    Attach and epoch change of wire.md: checks HELLO, assigns layers, raises epochs, forms links, supervises. It
 *            sends plans to all stages and checks that results come in order. It does not know requests or what a tick
 *            holds: the engine does, and asks pipeline_poll after every call whether something ended or became ready.
 * Ownership  pipeline_create/pipeline_destroy; messages are borrowed for the call, a result in one stays the engine's.
 * Threading  Engine thread only. Pure of clocks (now_ns is handed in) and of randomness (options.random).
 * Invariants 1. Plans go out in RUNNING only, at most `window` unretired; every stage gets every plan, in tick order.
 *            2. The epoch number grows with every raise and is above every number that a stage ever reported.
 *            3. Whatever carries another session or epoch changes nothing but a counter.
 *            4. RUNNING means: every stage is READY in this epoch, and a tick has passed all of them.
 *            5. Only who is to blame is told to end: stuck in a tick, late at several epoch steps, the end of several epochs in a
 *               row by protocol errors, or loaded as what it was not assigned. One that is only silent may wake, and is used
 *               again; a link that breaks costs an epoch, no process.
 * Errors     PIPELINE (not RUNNING), FULL (window).
 *
 *            all LOADED, back-off over       all ACK           all READY          its result
 *   WAITING -----------------------> RAISING -------> LINKING ---------> WARMING ----------> RUNNING
 *      ^        EPOCH to all            |   LINKS to all | empty tick to all |  event READY     |
 *      |                                |                |                   |                  |
 *      +---- a stage lost or silent, FAILED, refused, a deadline, a failed result --------------+  event LOST when it was RUNNING
 *
 *   WAITING   some stage is missing or loads, or the back-off after a failed attempt runs (none after the first)
 *   RAISING   EPOCH is out; stages abort links and forget sequences           } each has a deadline (the table in
 *   LINKING   LINKS is out; stages connect                                    } pipeline_machine.c)
 *   WARMING   an empty tick with number 0 is on its way through every stage   }
 *   RUNNING   ticks flow, from 1
 *
 * Spares     A process that says STAGE_ANY waits until a stage was missing for two seconds. One that asks for a stage by number
 *            gets it as soon as nobody serves it, and is refused by name when whoever does is heard of again.
 */
#ifndef SLUICE_COORDINATOR_PIPELINE_H
#define SLUICE_COORDINATOR_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include "coordinator/stage_table.h"

enum pipeline_state { PIPELINE_WAITING, PIPELINE_RAISING, PIPELINE_LINKING, PIPELINE_WARMING, PIPELINE_RUNNING, PIPELINE_N_STATES };

struct pipeline_options {
    const struct config *config;
    const struct split *split;      /* n_stages and layers */
    uint8_t model_hash[32];
    uint32_t n_layers;              /* of the whole model */
    uint32_t context, max_rows;     /* resolved: no auto */
    void (*random)(void *ctx, void *bytes, size_t n); /* NULL: getrandom */
    void *random_ctx;
};

/* What the engine has left to do with a message that it passed in. */
enum pipeline_take {
    PIPELINE_TAKEN,   /* nothing (handled, stale or refused; a result goes back to the engine's pool) */
    PIPELINE_RESULT,  /* m->result is of the oldest tick in flight, which is retired now; status OK. Check its runs. */
    PIPELINE_TIMINGS, /* m->timings are of this epoch: feed sched_timing. (A result's own timing: likewise, by the engine.) */
};

enum pipeline_event_kind {
    PIPELINE_EVENT_READY = 1, /* RUNNING: ticks begin at 1 again; blocks are n_blocks, costs are in the stage table */
    PIPELINE_EVENT_LOST,      /* was RUNNING: whatever was in flight is gone */
};

struct pipeline_event {
    enum pipeline_event_kind kind;
    uint32_t n_blocks;        /* READY: of the smallest pool */
    /* READY: the highest stage whose KV pool does not hold all that the ticks retired up to the last LOST have written, STAGE_NONE:
     * every one does; n_stages - 1 for the first READY. Blocks are as they were in the stages above it. */
    int kv_lost;
    /* READY: the process that served crash_stage when the last epoch was lost ended by this signal, one of those that a
     * process brings on itself (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE). 0 and STAGE_NONE: none did. */
    int crash_signal, crash_stage;
    int stage;                /* LOST: who, or STAGE_NONE */
    struct error why;         /* LOST: STATUS_LINK, TIMEOUT, CLOSED, STAGE, PROTOCOL, ... */
};

/* Why there is no service. */
struct pipeline_cause {
    int stage;                /* that is to blame as far as is known by now, or STAGE_NONE */
    struct error why;
    int64_t since_ns;         /* when the first epoch was lost after one that had retired a tick */
};

struct pipeline_stats {
    uint64_t epochs;          /* raised */
    uint64_t losses;          /* RUNNING epochs that ended */
    uint64_t stale, protocol_errors, refused, clock_jumps;
};

struct pipeline;

enum status pipeline_create(const struct pipeline_options *o, struct pipeline **out);
void pipeline_destroy(struct pipeline *p); /* closes nothing: see pipeline_stop */

/* Inputs. attached: 0 when too many streams are attached (the port was closed). */
uint64_t pipeline_attached(struct pipeline *p, const struct stage_port *port, int64_t now_ns);
enum pipeline_take pipeline_message(struct pipeline *p, uint64_t attachment, const struct from_stage *m, int64_t now_ns);
void pipeline_closed(struct pipeline *p, uint64_t attachment, int64_t now_ns);
/* Deadlines. Call at least four times a second: a longer silence is taken for a stop of the coordinator itself and
 * skips deadlines once. Returns when to call next at the latest. */
int64_t pipeline_time(struct pipeline *p, int64_t now_ns);
/* The engine found something wrong with this epoch: it ends. PROTOCOL: with the newest result, whose runs do not match the plan, so
 * that its tick is not retired. stage may be STAGE_NONE. */
void pipeline_fail(struct pipeline *p, int stage, const struct error *why, int64_t now_ns);
/* EXIT (asked) to every attached stage and the end of their streams. */
void pipeline_stop(struct pipeline *p);

/* 1: *ev is what happened (LOST before READY), to be asked until 0 after every input and after pipeline_send. */
int pipeline_poll(struct pipeline *p, struct pipeline_event *ev);

/* Sends one plan to every stage. session and epoch are filled in here; plan->tick must be the
 * epoch's next (1, 2, ...). A port that fails ends the epoch: then PIPELINE and an event. */
enum status pipeline_send(struct pipeline *p, struct plan *plan, int64_t now_ns);

/* Of the last loss, until a tick is retired in RUNNING; NULL: there is none. A stage that fails every tick leaves the pipeline
 * RUNNING now and then, yet this stays and since_ns with it. */
const struct pipeline_cause *pipeline_why(const struct pipeline *p);
/* The message without "stage N: " in front, where it begins so: what a stage says of itself names it already. */
const char *pipeline_without_name(int stage, const char *message);
enum pipeline_state pipeline_state(const struct pipeline *p);
int pipeline_running(const struct pipeline *p);
uint64_t pipeline_session(const struct pipeline *p);
uint64_t pipeline_epoch(const struct pipeline *p);
uint32_t pipeline_in_flight(const struct pipeline *p);
const struct stage_table *pipeline_stages(const struct pipeline *p);
struct pipeline_stats pipeline_stats(const struct pipeline *p);
const char *pipeline_profile(const struct pipeline *p); /* numerics profile of the stages, "" before the first */
const char *pipeline_state_name(enum pipeline_state s);
int pipeline__check(const struct pipeline *p, const char **why);

#endif
