/* coordinator/stage_table.h - what is known of every stage and every attached stream.
 *
 * Purpose    The facts behind the pipeline's decisions and the status page: who serves which stage, what it said, when it
 *            was last heard. It decides nothing (pipeline does) and sends nothing.
 * Ownership  stage_table_create/destroy. Ports are copied; pointers into the table are read-only for others and valid until
 *            the next change.
 * Threading  Engine thread only.
 * Invariants 1. An attachment serves at most one stage, a stage is served by at most one attachment.
 *            2. State LOADING, LINKING, READY and SILENT have an attachment; ATTACHING and LOST have none.
 *            3. Attachment ids are never reused.
 *            4. A stream that waits for a stage serves none.
 * Errors     FULL (attach), OUT_OF_MEMORY (create).
 *
 *    ATTACHING --claim--> LOADING --loaded--> LINKING <--ready / unlink--> READY
 *        ^                  ^ |                ^ |                           |
 *      (start)      woken / | | silent         | | silent                    |
 *                           SILENT <-----------+-+                           |
 *                    all four --detach--> LOST --claim--> LOADING <----------+
 *
 *    SILENT: its stream stands, and nothing comes: a stopped process, a cut. It is used again when something comes.
 */
#ifndef SLUICE_COORDINATOR_STAGE_TABLE_H
#define SLUICE_COORDINATOR_STAGE_TABLE_H

#include <stdint.h>

#include "common/model/split.h"
#include "common/wire/control.h"
#include "coordinator/engine.h" /* struct stage_port */

enum stage_state { STAGE_ATTACHING, STAGE_LOADING, STAGE_LINKING, STAGE_READY, STAGE_LOST, STAGE_SILENT, STAGE_N_STATES };

enum { STAGE_NONE = -1 };

struct stage_entry {
    enum stage_state state;
    uint64_t attachment;       /* 0: none */
    struct msg_hello hello;    /* of the present or the last one; its stage is this one */
    int is_spare;              /* it had asked for any stage */
    struct msg_loaded loaded;  /* valid once is_loaded */
    int is_loaded;
    int64_t gone_ns;           /* ATTACHING, LOST, SILENT: since when nobody serves it */
    uint32_t restarts;         /* incarnations after the first */
    struct stale_counts stale, stale_before; /* as the present incarnation said; as all before it did (stage_table_stale) */
    int64_t assigned_ns;       /* when ASSIGN went out */
    int64_t heard_ns;          /* last message of any kind */
    int64_t progress_ns;       /* when layer_counter last grew, or the stage last computed nothing */
    uint64_t layer_counter;
    uint32_t busy, waits;      /* as its last heartbeat said: within a tick; and waiting for a neighbour */
    uint64_t tick;             /* the last one that it has done, as its last heartbeat said */
    uint64_t acked, linked;    /* epoch numbers it acknowledged and said READY for, 0: none */
    uint32_t missed;           /* deadlines of epoch steps in a row, by their weights */
    uint32_t wrong;            /* epochs that ended by a protocol error of its, since a tick was last retired */
    int64_t last_tick_ns;      /* when a timing of it last came, 0: never */
    struct stage_window {
        int64_t since_ns;      /* its start */
        uint64_t busy_us, bubble_us, hop_us, n_ticks; /* sums over the timings in it */
    } window;                  /* the present one; it ends with the first timing after a second */
    struct stage_load {
        double busy_ratio;     /* computing, 0..1 */
        double bubble_ratio;   /* waiting for rows with a plan in hand, 0..1 */
        uint64_t hop_us;       /* mean time of a send */
    } load;                    /* of the last full window; stage_table_load */
};

struct stage_attachment {
    uint64_t id;               /* 0: free place */
    struct stage_port port;
    int stage;                 /* STAGE_NONE: HELLO has not come, or it waits */
    int waits;                 /* HELLO came, and the stage that it asks for is served: a spare */
    struct msg_hello hello;    /* of one that waits */
    int64_t attached_ns;       /* of one that waits: when HELLO came */
};

struct stage_table;

enum status stage_table_create(uint32_t n_stages, struct stage_table **out);
void stage_table_destroy(struct stage_table *t);
void stage_table_begin(struct stage_table *t, int64_t now_ns); /* once: stages are missing since now */
const struct stage_entry *stage_table_at(const struct stage_table *t, uint32_t stage);

/* *id > 0. FULL: more streams than twice the stages and eight. */
enum status stage_table_attach(struct stage_table *t, const struct stage_port *port, int64_t now_ns, uint64_t *id);
/* NULL: detached. */
const struct stage_attachment *stage_table_attachment(const struct stage_table *t, uint64_t id);
/* Iterates: the attachment with the smallest id > after, NULL: none. */
const struct stage_attachment *stage_table_next(const struct stage_table *t, uint64_t after);
/* The attachment is gone; the stage that it served becomes LOST. Returns that stage or STAGE_NONE. */
int stage_table_detach(struct stage_table *t, uint64_t id, int64_t now_ns);

/* Said HELLO and waits until a stage is free. */
void stage_table_wait(struct stage_table *t, uint64_t id, const struct msg_hello *hello, int64_t now_ns);
uint32_t stage_table_n_waiting(const struct stage_table *t);
/* Attachment id serves this stage from now on: LOADING. The stage must have no attachment. */
void stage_table_claim(struct stage_table *t, uint64_t id, uint32_t stage, const struct msg_hello *hello, int64_t now_ns);
void stage_table_loaded(struct stage_table *t, uint32_t stage, const struct msg_loaded *l);  /* -> LINKING */
void stage_table_acked(struct stage_table *t, uint32_t stage, uint64_t epoch);
void stage_table_ready(struct stage_table *t, uint32_t stage, uint64_t epoch);               /* -> READY */
void stage_table_unlink(struct stage_table *t); /* the epoch ended: every READY -> LINKING */
void stage_table_forgive(struct stage_table *t, int64_t now_ns); /* nobody is blamed for what was up to now */
void stage_table_missed(struct stage_table *t, uint32_t stage, uint32_t weight);

void stage_table_wrong(struct stage_table *t, uint32_t stage);
void stage_table_sound(struct stage_table *t); /* a tick was retired: no stage is wrong */

void stage_table_silent(struct stage_table *t, uint32_t stage, int64_t now_ns); /* LOADING, LINKING -> SILENT */
void stage_table_heard(struct stage_table *t, uint32_t stage, int64_t now_ns);  /* SILENT -> where it was */
void stage_table_heartbeat(struct stage_table *t, uint32_t stage, const struct msg_heartbeat *h, int64_t now_ns);
void stage_table_progress(struct stage_table *t, uint32_t stage, uint64_t layer_counter, int64_t now_ns);
void stage_table_timing(struct stage_table *t, const struct stage_timing *timing, int64_t now_ns);
/* The coordinator itself stood still: every stage's times move on by gap_ns, so that no deadline passes for it. */
void stage_table_skip(struct stage_table *t, int64_t gap_ns);

uint32_t stage_table_count(const struct stage_table *t, enum stage_state state);
uint64_t stage_table_highest_epoch(const struct stage_table *t); /* over what the present stages reported */
uint32_t stage_table_smallest_pool(const struct stage_table *t); /* blocks, over LINKING and READY stages */
/* "attaching", "loading", "linking", "ready", "lost" (also of a silent one) */
const char *stage_state_name(enum stage_state s);
/* What it did in the last second or so; while nothing comes the present window grows, and the load falls. */
struct stage_load stage_table_load(const struct stage_table *t, uint32_t stage, int64_t now_ns);
/* Messages that the stage's processes dropped as stale, all of them together: never falls. */
struct stale_counts stage_table_stale(const struct stage_table *t, uint32_t stage);
/* Milliseconds since its last timing; 0 when it never had one. */
uint64_t stage_table_tick_age_ms(const struct stage_table *t, uint32_t stage, int64_t now_ns);

int stage_table__check(const struct stage_table *t, const char **why);

#endif
