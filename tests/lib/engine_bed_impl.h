/* tests/lib/engine_bed_impl.h - inside of the bed: engine_bed.c (processes and streams), engine_bed_requests.c (clients).
 *
 * Purpose    Its fields, and what both files need.
 * Ownership  As engine_bed.h.
 * Threading  As engine_bed.h; fields say their lock.
 * Errors     As engine_bed.h.
 */
#ifndef SLUICE_TESTS_LIB_ENGINE_BED_IMPL_H
#define SLUICE_TESTS_LIB_ENGINE_BED_IMPL_H

#include <pthread.h>

#include "tests/lib/engine_bed.h"

struct bed_stage;

/* One attached stream. The engine may use it until it has called close, so it lives as long as the bed. */
struct bed_conn {
    struct bed_conn *next;
    struct bed_stage *stage;
    uint64_t attachment;
    int open; /* bed lock */
};

struct bed_stage {
    struct engine_bed *bed;
    uint32_t index;
    int away, silent; /* bed lock */
    int dead;         /* bed lock: it has ended as engine_bed_end_at said, and nobody knows yet */
    uint32_t last_signal; /* of the process before this one */
    uint64_t incarnation;
    struct worker *worker; /* bed lock; NULL: killed */
    struct bed_conn *conn; /* bed lock; NULL: not attached */
};

struct engine_bed {
    struct engine_bed_options o;
    struct config config;
    struct model model;
    struct split split;
    struct tokenizer *tokenizer;
    struct engine *engine;        /* engine lock: from other threads than the test's */
    pthread_rwlock_t engine_lock;
    int engine_dead;              /* bed lock */
    struct {
        int armed, fired, after;
        enum bed_point point;
        uint32_t stage, n;
    } end;                        /* bed lock */
    struct mem_hub *hub;
    struct bed_stage stages[BED_MAX_STAGES];
    struct bed_conn *conns;
    uint64_t next_incarnation;
    struct resume_key resume;
    pthread_t beater;
    int ending; /* bed lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

void bed__lock(struct engine_bed *b);
void bed__unlock(struct engine_bed *b);
/* The engine's thread or a worker's is at a point. 0: its process is gone. Under the bed's lock. */
int bed__may_pass(struct engine_bed *b, enum bed_point point, uint32_t stage, int after);

#endif
