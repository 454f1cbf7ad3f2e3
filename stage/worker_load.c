/* Assignments: what they ask for is checked, loaded, and allocated whole before LOADED. */
#define LOG_MODULE "worker"
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "stage/kv.h"
#include "stage/worker_impl.h"

static int same_assignment(const struct msg_assign *a, const struct msg_assign *b)
{
    return a->stage == b->stage && a->n_stages == b->n_stages && a->first_layer == b->first_layer &&
           a->end_layer == b->end_layer && a->slots == b->slots && a->context == b->context && a->kv_block == b->kv_block &&
           a->n_blocks == b->n_blocks && a->max_rows == b->max_rows && a->kv_bytes == b->kv_bytes &&
           a->window == b->window && strcmp(a->kv_type, b->kv_type) == 0;
}

static enum status check_assignment(const struct msg_assign *a, struct error *err)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } ranges[] = {
        {"n_stages", a->n_stages, 1, 64},
        {"stage", a->stage, 0, a->n_stages - 1},
        {"slots", a->slots, 1, WORKER_MAX_SLOTS},
        {"context", a->context, 1, 1 << 24},
        {"kv_block", a->kv_block, 1, 1024},
        {"max_rows", a->max_rows, 1, WORKER_MAX_ROWS},
        {"window", a->window, 1, WORKER_MAX_WINDOW},
        {"stuck_ms", a->stuck_ms, 1, 86400000},
        {"heartbeat_ms", a->heartbeat_ms, 0, WORKER_MAX_HEARTBEAT_MS},
        {"first_layer", a->first_layer, 0, a->end_layer},
    };
    for (unsigned i = 0; i < ARRAY_LEN(ranges); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return error_set(err, STATUS_PROTOCOL, "the assignment has %s %u, allowed are %u to %u", ranges[i].name,
                             ranges[i].value, ranges[i].min, ranges[i].max);
    return STATUS_OK;
}

static void free_plans(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_free; i++)
        plan_destroy(w->free_plans[i]);
    w->n_pool = w->n_free = 0; /* a plan that is out is no longer of the pool and freed when it comes back */
    pthread_mutex_unlock(&w->lock);
}

void worker__unload(struct worker *w)
{
    free_plans(w);
    sequences_destroy(w->seqs);
    feedback_destroy(w->feedback);
    result_destroy(w->result);
    free(w->in);
    free(w->out);
    free(w->records);
    free(w->rows);
    free(w->samples);
    free(w->run_seq);
    free(w->run_from);
    w->seqs = NULL;
    w->feedback = NULL;
    w->result = NULL;
    w->in = w->out = w->records = NULL;
    w->rows = NULL;
    w->samples = NULL;
    w->run_seq = NULL;
    w->run_from = NULL;
    pthread_mutex_lock(&w->lock);
    struct compute *c = w->compute;
    w->compute = NULL;
    pthread_mutex_unlock(&w->lock);
    if (c)
        c->table->destroy(c);
}

/* The numbers of blocks in one plan: every slot may open with its whole table, and blocks that tables share are named by each of them.
 * No more than a message has room for. Pages that no plan has filled are not taken. */
static uint32_t plan_blocks(const struct worker *w)
{
    enum { MIN_WORDS = 16 << 10, MAX_WORDS = 16 << 20 };
    const struct msg_assign *a = &w->assign;
    const uint64_t whole = ((uint64_t)a->context + a->kv_block - 1) / a->kv_block;
    const uint64_t table = whole < w->loaded.n_blocks ? whole : w->loaded.n_blocks;
    const uint64_t all = table * a->slots * (w->compute->pool->shape.window.window ? 2 : 1);
    return all < MIN_WORDS ? MIN_WORDS : all > MAX_WORDS ? MAX_WORDS : (uint32_t)all;
}

/* Plans for the window and one more. A plan's words hold the ids of its rows, what OPENs bring, and blocks. */
static enum status create_plans(struct worker *w)
{
    const struct msg_assign *a = &w->assign;
    const uint32_t n_words = a->max_rows + plan_blocks(w) + PLAN_OPEN_WORDS;
    for (uint32_t i = 0; i < a->window + 1; i++) {
        struct plan *p;
        TRY(plan_create(4 * a->slots + 16, a->max_rows, n_words, &p));
        pthread_mutex_lock(&w->lock);
        w->pool[w->n_pool++] = w->free_plans[w->n_free++] = p;
        pthread_mutex_unlock(&w->lock);
    }
    return STATUS_OK;
}

static enum status allocate(struct worker *w)
{
    const struct msg_assign *a = &w->assign;
    /* So many ticks may be out without feedback. A tick notes its samples before it waits for the oldest of them to come back:
     * one note more than ticks. */
    const uint32_t notes = a->window + 2;
    const size_t payload = (size_t)a->max_rows * (w->width + 1) * sizeof(float);
    const int several = a->n_stages > 1;
    const struct sequences_limits limits = {.slots = a->slots,
                                            .context = a->context,
                                            .kv_block = a->kv_block,
                                            .n_blocks = w->loaded.n_blocks,
                                            .window = w->compute->pool->shape.window,
                                            .n_window = w->compute->pool->n_window,
                                            .n_notes = notes + 1,
                                            .samples = worker__is_last(w)};
    TRY(sequences_create(&limits, &w->seqs));
    w->feedback_counted = 0;
    if (several && a->stage == 0)
        TRY(feedback_create(notes, a->max_rows, &w->feedback));
    if (several && a->stage > 0 && !(w->in = aligned_alloc(64, (payload + 63) / 64 * 64)))
        return STATUS_OUT_OF_MEMORY;
    if (!worker__is_last(w) && !(w->out = aligned_alloc(64, (payload + 63) / 64 * 64)))
        return STATUS_OUT_OF_MEMORY;
    if (several && worker__is_last(w) && !(w->records = malloc((size_t)a->max_rows * FEEDBACK_RECORD_BYTES)))
        return STATUS_OUT_OF_MEMORY;
    w->rows = calloc(a->max_rows, sizeof *w->rows);
    w->samples = calloc(a->max_rows, sizeof *w->samples);
    w->run_seq = calloc(a->max_rows, sizeof *w->run_seq);
    w->run_from = calloc(a->max_rows, sizeof *w->run_from);
    if (!w->rows || !w->samples || !w->run_seq || !w->run_from)
        return STATUS_OUT_OF_MEMORY;
    TRY(result_create(a->max_rows, &w->result));
    return create_plans(w);
}

static enum status load(struct worker *w, struct error *err)
{
    struct compute *c = w->compute;
    if (!c) {
        TRY(w->options.create_compute(w->options.compute_ctx, &c, err));
        pthread_mutex_lock(&w->lock);
        w->compute = c;
        pthread_mutex_unlock(&w->lock);
    }
    w->loaded = (struct msg_loaded){0};
    TRY(c->table->load(c, &w->assign, &w->loaded, err));
    CHECK(c->pool);
    w->width = c->table->width(c);
    if (w->loaded.n_blocks == 0 || w->width == 0)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%u blocks of KV in a pool of %llu bytes", w->loaded.n_blocks,
                         (unsigned long long)w->loaded.kv_bytes);
    if (allocate(w) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for ticks of %u rows", w->assign.max_rows);
    return STATUS_OK;
}

void worker__take_assignment(struct worker *w, const struct msg_assign *a)
{
    struct error err = {0};
    worker__leave(w);
    if (w->state == WORKER_LOADED && same_assignment(a, &w->assign)) {
        w->assign = *a; /* times may differ */
    } else {
        if (check_assignment(a, &err) != STATUS_OK) {
            worker__fail(w, 0, &err, 0);
            return;
        }
        int used = w->state != WORKER_EMPTY;
        if (used) {
            LOG_INFO("another assignment: stage %u of %u, layers %u..%u", a->stage, a->n_stages, a->first_layer,
                     a->end_layer - 1);
            worker__unload(w);
            worker__move(w, WORKER_EMPTY);
        }
        w->assign = *a;
        const enum status s = load(w, &err);
        if (s != STATUS_OK) {
            err.status = s;
            if (!err.message[0])
                error_set(&err, s, "%s", status_text(s));
            worker__unload(w);
            worker__fail(w, 0, &err, 1);
            return;
        }
        worker__move(w, WORKER_LOADED);
        LOG_INFO("stage %u of %u, layers %u..%u: %u blocks of %u, ticks of %u rows", a->stage, a->n_stages, a->first_layer,
                 a->end_layer - 1, w->loaded.n_blocks, a->kv_block, a->max_rows);
    }
    const struct from_stage m = {.kind = FROM_STAGE_LOADED, .loaded = w->loaded, .assigned = w->assign};
    pthread_mutex_lock(&w->lock);
    int asked = w->n_detached == w->assign_detached; /* a new coordinator has not assigned anything yet */
    pthread_mutex_unlock(&w->lock);
    if (asked)
        worker__send(w, &m);
}
