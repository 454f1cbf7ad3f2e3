/* tests/lib/pipeline_impl.h - the inside of the test pipeline: pipeline.c joins workers, pipeline_run.c runs requests.
 *
 * Purpose    Not for others.
 * Ownership  As pipeline.h.
 * Threading  As pipeline.h; `inbox` is written by the workers' threads.
 */
#ifndef SLUICE_TESTS_LIB_PIPELINE_IMPL_H
#define SLUICE_TESTS_LIB_PIPELINE_IMPL_H

#include "common/base/queue.h"
#include "coordinator/blocks.h"
#include "tests/lib/pipeline.h"

enum { PIPELINE_INBOX = 4096, PIPELINE_WAIT_MS = 20000 };

struct pipeline_stage {
    struct pipeline *pipeline;
    uint32_t index;
    struct worker *worker;
    struct compute *compute; /* the worker's; read it after LOADED */
    struct link_port *port; /* the worker's */
    struct msg_assign assign;
};

struct pipeline {
    struct pipeline_options o;
    struct mem_hub *hub;
    struct queue *inbox; /* struct pipeline_message */
    struct pipeline_stage stage[PIPELINE_MAX_STAGES];
    uint64_t session, epoch, next_tick, next_seq;
    uint8_t key[32];
    struct plan *plan;
    uint32_t n_blocks;
    struct kv_window window; /* of the pools of the stages */
    struct blocks *blocks; /* of the epoch that blocks_epoch names; made by the first pipeline_generate */
    uint64_t blocks_epoch;
};

#endif
