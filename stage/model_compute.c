#include "stage/model_compute.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "stage/calibrate.h"
#include "stage/kv.h"
#include "stage/memory.h"
#include "stage/model_needs.h"

#define LOG_MODULE "model"
#include "common/base/log.h"

struct model_compute {
    struct compute base; /* first: struct compute * points here */
    struct model model;
    const struct ops *ops;
    struct team *team; /* made by the first load: its thread 0 is the compute thread */
    int n_threads, pinned, cores[TEAM_MAX_THREADS];
    int kv_fd, skip_calibration;
    uint32_t host_stages;
    uint64_t memory_bytes, share_bytes; /* as told; of what was free, divided by the stages of this host */
    int restarted;

    int loaded;
    struct msg_assign assign; /* of the last load */
    struct msg_loaded costs;  /* what was answered */
    struct weights weights;
    struct kv_pool pool;
    struct forward *forward;
};

static struct model_compute *model_compute(struct compute *c)
{
    return (struct model_compute *)c;
}

static void describe(struct compute *c, struct msg_hello *out)
{
    struct model_compute *m = model_compute(c);
    memcpy(out->model_hash, m->model.hash, sizeof out->model_hash);
    out->n_layers = m->model.hp.n_layers;
    strncpy(out->profile, ops_numerics_profile(), sizeof out->profile - 1);
    out->profile[sizeof out->profile - 1] = 0;
    out->memory_bytes = m->memory_bytes ? m->memory_bytes : m->share_bytes;
}

/* --- load ------------------------------------------------------------------------------------------------------------- */

static void unload(struct model_compute *m)
{
    forward_destroy(m->forward);
    m->forward = NULL;
    m->base.pool = NULL;
    kv_pool_close(&m->pool);
    weights_free(&m->weights);
    m->loaded = 0;
}

static enum status check_assignment(const struct model_compute *m, const struct msg_assign *a, struct error *err)
{
    if (a->first_layer >= a->end_layer || a->end_layer > m->model.hp.n_layers)
        return error_set(err, STATUS_PROTOCOL, "layers %u..%u assigned of a model that has %u", a->first_layer, a->end_layer,
                         m->model.hp.n_layers);
    if (a->n_stages == 0 || a->stage >= a->n_stages)
        return error_set(err, STATUS_PROTOCOL, "stage %u of %u assigned", a->stage, a->n_stages);
    if (a->kv_block != 16 && a->kv_block != 32 && a->kv_block != 64 && a->kv_block != 128)
        return error_set(err, STATUS_PROTOCOL, "KV blocks of %u positions assigned; 16, 32, 64 and 128 are built",
                         a->kv_block);
    if (a->max_rows == 0 || a->slots == 0 || a->context == 0)
        return error_set(err, STATUS_PROTOCOL, "%u rows, %u slots, context %u assigned: none may be 0", a->max_rows, a->slots,
                         a->context);
    if (memchr(a->kv_type, 0, sizeof a->kv_type) == NULL || (a->kv_type[0] && strcmp(a->kv_type, "f16") != 0))
        return error_set(err, STATUS_UNSUPPORTED, "KV type %.8s is not built yet, only f16", a->kv_type);
    return STATUS_OK;
}

/* What is decided before any of it is taken. */
struct load_plan {
    struct memory_plan memory;
    struct kv_meaning meaning;
    int kept; /* the pool that lies there is taken up */
};

static struct kv_meaning kv_meaning(const struct model_compute *m, const struct msg_assign *a)
{
    struct kv_meaning k;
    memset(&k, 0, sizeof k);
    memcpy(k.model_hash, m->model.hash, sizeof k.model_hash);
    snprintf(k.kv_type, sizeof k.kv_type, "f16");
    snprintf(k.profile, sizeof k.profile, "%s", ops_numerics_profile());
    k.first_layer = a->first_layer;
    k.end_layer = a->end_layer;
    k.shape = kv_shape_of(&m->model, a);
    return k;
}

/* Stages that start together load one after the other or side by side: each may take its share of what was free before. */
static uint64_t free_bytes(const struct model_compute *m)
{
    const uint64_t now = memory_available(""), share = m->restarted || now < m->share_bytes ? now : m->share_bytes;
    return memory_within_limit(m->memory_bytes ? m->memory_bytes : share);
}

static enum status plan_memory(struct model_compute *m, const struct msg_assign *a, struct load_plan *p, struct error *err)
{
    *p = (struct load_plan){.meaning = kv_meaning(m, a)};
    const struct sized_stage sized = {&m->weights, m->team};
    struct memory_needs needs = model_needs(&sized, a, &p->meaning.shape);
    needs.asked_blocks = a->n_blocks;
    needs.asked_kv_bytes = a->kv_bytes;
    needs.free = free_bytes(m);
    needs.most_kv = m->memory_bytes ? 0 : m->share_bytes / 2;
    needs.kept_blocks = kv_pool_kept_blocks(m->kv_fd, &p->meaning);
    needs.held_bytes = kv_fd_resident(m->kv_fd);
    TRY(memory_plan_make(&needs, &p->memory, err));
    p->kept = needs.kept_blocks == p->memory.n_blocks;
    LOG_INFO("stage %u of %u, layers %u..%u: %s", a->stage, a->n_stages, a->first_layer, a->end_layer - 1,
             memory_plan_print(&needs, &p->memory).text);
    return STATUS_OK;
}

/* Warm ticks need no room behind a window: one table for all layers. */
static struct kv_shape without_window(const struct kv_shape *shape)
{
    return (struct kv_shape){.n_layers = shape->n_layers, .n_kv_heads = shape->n_kv_heads, .head_dim = shape->head_dim,
                             .block_positions = shape->block_positions};
}

/* Fills m->costs: as an earlier process measured them where it left its pool, else by warm ticks. */
static enum status find_costs(struct model_compute *m, const struct msg_assign *a, const struct kv_shape *shape,
                              struct kv_costs *c, struct error *err)
{
    const struct calibrate_options co = {.forward = m->forward, .weights = &m->weights, .kv = without_window(shape),
                                         .max_rows = a->max_rows, .slots = a->slots, .context = a->context};
    memset(c, 0, sizeof *c);
    c->max_rows = a->max_rows;
    c->slots = a->slots;
    c->context = a->context;
    c->n_threads = (uint32_t)m->n_threads;
    c->has_embedding = m->weights.has_embedding != 0;
    c->has_head = m->weights.has_head != 0;
    snprintf(c->backend, sizeof c->backend, "%s", m->ops->name);
    if (m->pool.data && kv_pool_costs(&m->pool, c)) {
        const struct msg_loaded now = m->costs;
        m->costs = c->measured;
        m->costs.n_blocks = now.n_blocks;
        m->costs.weight_bytes = now.weight_bytes;
        m->costs.kv_bytes = now.kv_bytes;
        return STATUS_OK;
    }
    LOG_INFO("stage %u of %u: measuring what ticks cost", a->stage, a->n_stages);
    TRY(calibrate_run(&co, &m->base.progress, &m->costs, err));
    c->measured = m->costs;
    return STATUS_OK;
}

/* The pool and what ticks cost. A new pool is taken after the warm ticks, which need memory for a while. */
static enum status open_pool(struct model_compute *m, const struct msg_assign *a, const struct load_plan *p, struct error *err)
{
    const struct kv_options ko = {.meaning = p->meaning, .n_blocks = p->memory.n_blocks, .fd = m->kv_fd};
    struct kv_costs costs;
    if (p->kept)
        TRY(kv_pool_open(&ko, &m->pool, err));
    if (!m->skip_calibration)
        TRY(find_costs(m, a, &p->meaning.shape, &costs, err));
    const int64_t start = clock_now_ns();
    if (!p->kept)
        TRY(kv_pool_open(&ko, &m->pool, err));
    LOG_INFO("stage %u of %u: KV pool of %s %s in %lld ms", a->stage, a->n_stages, memory_print(p->memory.kv).text,
             m->pool.kept ? "kept" : "taken", (long long)((clock_now_ns() - start) / NS_PER_MS));
    if (!m->skip_calibration)
        kv_pool_keep_costs(&m->pool, &costs);
    return STATUS_OK;
}

static enum status take_all(struct model_compute *m, const struct msg_assign *a, struct error *err)
{
    struct load_plan plan;
    TRY(weights_plan(&m->model, m->ops, a->first_layer, a->end_layer, a->stage == 0, a->stage + 1 == a->n_stages, &m->weights,
                     err));
    TRY(plan_memory(m, a, &plan, err));
    TRY(weights_load(&m->weights, m->team, err));
    TRY(gguf_check_unchanged(m->model.gguf, err));
    const struct forward_options fo = {.weights = &m->weights, .team = m->team, .max_rows = a->max_rows};
    TRY(forward_create(&fo, &m->forward, err));
    m->costs = (struct msg_loaded){.n_blocks = plan.memory.n_blocks, .weight_bytes = m->weights.memory_bytes,
                                   .kv_bytes = plan.memory.kv};
    TRY(open_pool(m, a, &plan, err));
    forward_set_pool(m->forward, &m->pool);
    m->base.pool = &m->pool;
    if (m->pool.n_window)
        LOG_INFO("layers that see %u positions have %u KV blocks of their own, in a pool of %u",
                 m->pool.shape.window.window, m->pool.n_window, m->pool.n_blocks);
    return STATUS_OK;
}

static int same_assignment(const struct msg_assign *a, const struct msg_assign *b)
{
    return a->stage == b->stage && a->n_stages == b->n_stages && a->first_layer == b->first_layer &&
           a->end_layer == b->end_layer && a->slots == b->slots && a->context == b->context && a->kv_block == b->kv_block &&
           a->n_blocks == b->n_blocks && a->max_rows == b->max_rows && a->kv_bytes == b->kv_bytes && a->window == b->window;
}

static enum status load(struct compute *c, const struct msg_assign *a, struct msg_loaded *out, struct error *err)
{
    struct model_compute *m = model_compute(c);
    TRY(check_assignment(m, a, err));
    if (!m->team)
        TRY(team_create(m->n_threads, m->pinned ? m->cores : NULL, &m->team, err));
    if (!m->loaded || !same_assignment(&m->assign, a)) {
        unload(m);
        enum status s = take_all(m, a, err);
        if (s != STATUS_OK) {
            unload(m);
            return s;
        }
        m->assign = *a;
        m->loaded = 1;
    }
    *out = m->costs;
    return STATUS_OK;
}

/* --- run -------------------------------------------------------------------------------------------------------------- */

static uint32_t width(const struct compute *c)
{
    return ((const struct model_compute *)c)->model.hp.n_embd;
}

static enum status check_sample(const struct tick_sample *s, const struct tick_row *row, struct error *err)
{
    const struct sampler_params *p = s->sampler;
    if ((p->n_bias > 0 && !s->bias) || (p->n_top > 1 && !s->tops) || p->n_top > 1 + MAX_TOP_LOGPROBS ||
        (!s->ids && sampler_history(p, row->position + 1) > 0))
        return error_set(err, STATUS_STAGE, "sample of sequence %llu without what its sampler reads and writes",
                         (unsigned long long)row->seq);
    return STATUS_OK;
}

/* Everything that forward takes for granted. Blocks of a sequence were checked when they were given to it. */
static enum status check_tick(const struct model_compute *m, const struct tick *t, struct error *err)
{
    const struct weights *w = &m->weights;
    if (!m->loaded)
        return error_set(err, STATUS_STAGE, "tick %llu before a model was loaded", (unsigned long long)t->tick);
    if (t->n_rows == 0 || t->n_rows > m->assign.max_rows)
        return error_set(err, STATUS_STAGE, "tick of %u rows; 1 to %u are allowed", t->n_rows, m->assign.max_rows);
    if ((!w->has_embedding && !t->in) || (!w->has_head && (!t->out || t->n_samples)))
        return error_set(err, STATUS_STAGE, "tick without the rows that stage %u of %u takes and gives", m->assign.stage,
                         m->assign.n_stages);
    if (t->n_samples > t->n_rows)
        return error_set(err, STATUS_STAGE, "%u samples of %u rows", t->n_samples, t->n_rows);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        if (w->has_embedding && t->rows[r].id >= m->model.hp.n_vocab)
            return error_set(err, STATUS_STAGE, "token %u in a vocabulary of %u", t->rows[r].id, m->model.hp.n_vocab);
        if (t->rows[r].position >= m->assign.context)
            return error_set(err, STATUS_STAGE, "position %u in a context of %u", t->rows[r].position, m->assign.context);
    }
    for (uint32_t s = 0; s < t->n_samples; s++)
        if (t->samples[s].row >= t->n_rows || !t->samples[s].sampler)
            return error_set(err, STATUS_STAGE, "sample of row %u of %u", t->samples[s].row, t->n_rows);
    for (uint32_t s = 0; s < t->n_samples; s++)
        TRY(check_sample(&t->samples[s], &t->rows[t->samples[s].row], err));
    return STATUS_OK;
}

static enum status run(struct compute *c, struct tick *t, struct error *err)
{
    struct model_compute *m = model_compute(c);
    TRY(check_tick(m, t, err));
    forward_run(m->forward, t, &m->base.progress);
    return weights_read_file(&m->weights) ? gguf_check_unchanged(m->model.gguf, err) : STATUS_OK;
}

/* --- life ------------------------------------------------------------------------------------------------------------- */

static void destroy(struct compute *c)
{
    struct model_compute *m = model_compute(c);
    unload(m);
    if (m->team)
        team_destroy(m->team);
    model_close(&m->model);
    free((void *)(uintptr_t)m->base.table);
    free(m);
}

/* The backend's name is known only once ops are open, so each compute has a table of its own. */
static struct compute_table *make_table(const struct ops *ops)
{
    struct compute_table *t = malloc(sizeof *t);
    if (t)
        *t = (struct compute_table){.backend = ops->name, .describe = describe, .load = load, .width = width, .run = run,
                                    .destroy = destroy};
    return t;
}

enum status model_compute_create(const struct model_compute_options *o, struct compute **out, struct error *err)
{
    const struct ops *ops;
    int n_threads = o->n_threads > 0 ? o->n_threads : 1;
    if (n_threads > TEAM_MAX_THREADS)
        return error_set(err, STATUS_CONFIG, "%d threads; at most %d are built", n_threads, TEAM_MAX_THREADS);
    TRY(ops_open(o->backend ? o->backend : "auto", o->isa ? o->isa : "auto", &ops, err));
    struct model_compute *m = calloc(1, sizeof *m);
    struct compute_table *table = make_table(ops);
    enum status s = STATUS_OK;
    if (!m || !table) {
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a stage");
        goto free_both;
    }
    s = model_open(o->model_path, &m->model, err);
    if (s != STATUS_OK)
        goto free_both;
    m->base.table = table;
    atomic_init(&m->base.progress, 0);
    m->ops = ops;
    m->n_threads = n_threads;
    m->pinned = o->cores != NULL;
    if (o->cores)
        memcpy(m->cores, o->cores, (size_t)n_threads * sizeof *o->cores);
    m->kv_fd = o->kv_fd;
    m->skip_calibration = o->skip_calibration;
    m->host_stages = o->host_stages ? o->host_stages : 1;
    m->memory_bytes = o->memory_bytes;
    m->share_bytes = memory_available("") / m->host_stages;
    m->restarted = o->restarted;
    *out = &m->base;
    return STATUS_OK;

free_both:
    free(table);
    free(m);
    return s;
}

void model_compute_set_logits_sink(struct compute *c, forward_logits_fn fn, void *ctx)
{
    struct model_compute *m = model_compute(c);
    CHECK(m->loaded);
    forward_set_logits_sink(m->forward, fn, ctx);
}

const struct model *model_compute_model(const struct compute *c)
{
    return &((const struct model_compute *)c)->model;
}
