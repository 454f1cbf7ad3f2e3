/* common/wire/control.h - the other messages between coordinator and stage, as plain structs.
 *
 * Purpose    Attach, epoch change and supervision (wire.md, "Attach and epoch change"). rpc/grpc/stage_api carries them over
 *            the Attach stream; tests carry them in memory. The order of things:
 *
 *              stage -> coordinator                    coordinator -> stage
 *              HELLO                                   ASSIGN            (or EXIT: refused, by name)
 *              LOADED (assignment, pool, costs)        EPOCH session, e
 *              ACK session, e, its KV                  LINKS             (once every stage has acknowledged e)
 *              READY session, e                        PLAN ...
 *              RESULT (last stage), TIMINGS (others), HEARTBEAT, FAILED  EPOCH again, EXIT
 *
 *            LOADED says the assignment that was taken up. One that is not what the coordinator gave (it was changed on its way)
 *            ends that stage's stream: it is told to end, and the next process is assigned anew.
 *
 * Ownership  Fixed-size structs are copied. PLAN and RESULT carry a pointer that passes with the message.
 * Threading  Plain data.
 */
#ifndef SLUICE_COMMON_WIRE_CONTROL_H
#define SLUICE_COMMON_WIRE_CONTROL_H

#include <stdint.h>

#include "common/wire/plan.h"

#define STAGE_ANY UINT32_MAX /* HELLO: whichever stage is free */

/* A stage's links as others reach them. Empty text: not offered. */
struct link_addresses {
    char tcp[64];      /* "10.0.0.2:41234" */
    char unix_name[64]; /* abstract socket name, without the leading 0 */
    char boot_id[40];
    uint64_t net_namespace; /* inode of /proc/self/ns/net */
};

struct msg_hello {
    uint32_t wire_version;
    uint32_t stage;         /* or STAGE_ANY */
    char build[48], host[64], backend[32], profile[64];
    uint32_t pid;
    uint64_t incarnation;   /* random, new with every process */
    uint64_t highest_epoch; /* that this process has taken part in */
    uint64_t memory_bytes;  /* that it may use */
    uint8_t model_hash[32];
    uint32_t n_layers;      /* of the whole model, 0 for a fake stage */
    uint32_t last_signal;   /* that ended the process before this one, 0: unknown or none */
    struct link_addresses addresses;
};

struct msg_assign {
    uint32_t stage, n_stages;
    uint32_t first_layer, end_layer; /* half open */
    uint32_t slots, context, kv_block, n_blocks /* 0: as many as kv_bytes allow */, max_rows;
    uint64_t kv_bytes;               /* 0: auto */
    uint32_t heartbeat_ms;
    uint32_t stuck_ms;
    uint32_t window;                 /* ticks in flight */
    char kv_type[8];
};

/* The name of the first field in which they are not the same, NULL: they are. */
const char *assign_difference(const struct msg_assign *a, const struct msg_assign *b);

enum { N_COST_POINTS = 10 };

struct msg_loaded {
    uint32_t n_blocks;          /* of its pool */
    uint64_t weight_bytes, kv_bytes;
    /* Measured by warm ticks before READY: compute time of a tick of cost_rows[i] prompt rows at position 0, and of
     * decode rows (each sampled on the last stage); 0 rows ends the list. */
    uint32_t cost_rows[N_COST_POINTS], prompt_us[N_COST_POINTS], decode_us[N_COST_POINTS];
    double attention_ns;        /* per row and position read */
};

struct msg_epoch {
    uint64_t session, epoch;
};

/* The answer to EPOCH, with what the stage's KV pool holds. */
struct msg_ack {
    uint64_t session, epoch;
    /* Names the content: random, not 0, made anew whenever the pool is created or is not trusted, the same as long as what
     * earlier ticks wrote is still there (over epochs, and over a restart that mapped the same pool again). */
    uint64_t kv_id;
    uint64_t kv_session, kv_epoch, kv_tick; /* the last tick that was computed to its end into this pool; 0: none */
};

struct msg_links {
    uint64_t session, epoch;
    struct link_addresses next; /* of stage i+1; of stage 0 for the last */
    uint8_t key[32];            /* both ends of every link of this epoch prove that they know it */
};

/* Messages of another epoch that were dropped, since the process began. */
struct stale_counts {
    uint64_t plans, epochs, links, frames, feedback;
};

struct msg_heartbeat {
    uint64_t session, epoch, tick, layer_counter;
    uint32_t busy;  /* within a tick */
    struct stale_counts stale;
    uint32_t waits; /* busy, and waiting for a neighbour: its frame, its ids, or room for ours */
};

struct msg_failed {
    uint64_t session, epoch, tick;
    enum status status;
    char message[200];
    uint32_t fatal; /* the process ends after this */
};

struct msg_exit {
    enum status status; /* why: STATUS_OK asked, STATUS_CONFIG/STATUS_BAD_MODEL refused */
    char message[200];
};

enum from_stage_kind {
    FROM_STAGE_HELLO = 1, FROM_STAGE_LOADED, FROM_STAGE_ACK, FROM_STAGE_READY, FROM_STAGE_RESULT, FROM_STAGE_TIMINGS,
    FROM_STAGE_HEARTBEAT, FROM_STAGE_FAILED,
};

enum { MAX_TIMINGS = 8 };

struct from_stage {
    enum from_stage_kind kind;
    union {
        struct msg_hello hello;
        struct {
            struct msg_loaded loaded;
            struct msg_assign assigned; /* what it is the answer to, as the stage has it */
        };
        struct msg_ack ack;
        struct msg_epoch ready;
        struct result *result;
        struct {
            uint64_t session, epoch;
            uint32_t n;
            struct stage_timing timing[MAX_TIMINGS];
        } timings;
        struct msg_heartbeat heartbeat;
        struct msg_failed failed;
    };
};

enum to_stage_kind { TO_STAGE_ASSIGN = 1, TO_STAGE_EPOCH, TO_STAGE_LINKS, TO_STAGE_PLAN, TO_STAGE_EXIT };

struct to_stage {
    enum to_stage_kind kind;
    union {
        struct msg_assign assign;
        struct msg_epoch epoch;
        struct msg_links links;
        struct plan *plan;
        struct msg_exit exit;
    };
};

#endif
