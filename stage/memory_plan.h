/* stage/memory_plan.h - what a stage will take, and what to change when that is too much.
 *
 * Purpose    From sizes that are known before anything big is allocated: how many KV blocks, whether all of it fits into what
 *            is free, and if not, which measures would make it fit, with their figures. Measures that would not help are not
 *            named. The stage asks before it loads, `sluice model` before there is a service.
 * Ownership  Structs of the caller's.
 * Threading  Pure.
 * Invariants 1. The sum of a plan that was made is at most `free`.
 *            2. Followed, a piece of advice makes a plan that can be made (the number of stages by the average of layers).
 * Errors     STATUS_OUT_OF_MEMORY with one line: the sum, what is free, the parts, and what to do.
 */
#ifndef SLUICE_STAGE_MEMORY_PLAN_H
#define SLUICE_STAGE_MEMORY_PLAN_H

#include <stdint.h>

#include "common/base/error.h"
#include "common/model/kv_window.h"

/* Besides what is planned: stacks, tables, links, the allocator. */
enum { MEMORY_PLAN_SLACK = 32 << 20 };

struct memory_needs {
    uint32_t n_stages;
    uint32_t n_layers, model_layers; /* of the stage, of the whole */
    uint64_t weights;                /* bytes as they lie packed */
    uint64_t head;                   /* of these what stays whole however the layers are cut */
    uint64_t buffers;                /* for ticks of max_rows */
    uint64_t sampler;                /* of one slot: what penalties and biases are kept in; 0 where nothing is sampled */
    uint64_t (*buffers_of)(const void *ctx, uint32_t max_rows); /* buffers of shorter ticks */
    const void *buffers_ctx;
    uint32_t max_rows, slots, context, kv_block;
    uint64_t block_bytes;            /* of one KV block over the stage's layers; 0: all of them have a window */
    struct kv_window window;         /* of layers that see a window, and have blocks of their own: as many as follow from the
                                      * number of the others. Zero: none */
    uint64_t window_block_bytes;     /* of one of these */
    uint64_t asked_blocks, asked_kv_bytes; /* --kv-blocks, --kv-mib; 0: a context for every slot, as far as there is room */
    uint64_t free;                   /* 0: not known, so everything fits */
    uint64_t most_kv;                /* of a pool whose size nobody has said; 0: half of free */
    uint64_t kept_blocks;            /* of a pool that lies there and would be taken up */
    uint64_t held_bytes;             /* that the pool's descriptor has in memory already: not free, and not needed again */
};

struct memory_plan {
    uint32_t n_blocks;
    uint64_t kv;    /* bytes */
    uint64_t total; /* of everything that is yet to be taken */
};

enum status memory_plan_make(const struct memory_needs *n, struct memory_plan *out, struct error *err);
/* Of what a stage takes all but KV. */
uint64_t memory_plan_fixed(const struct memory_needs *n);
/* Blocks of one sequence as long as the context. */
uint64_t memory_plan_per_slot(const struct memory_needs *n);
/* One line about a plan that was made: the parts, and for how many contexts the pool has room. */
struct memory_plan_text {
    char text[256];
};
struct memory_plan_text memory_plan_print(const struct memory_needs *n, const struct memory_plan *p);

#endif
