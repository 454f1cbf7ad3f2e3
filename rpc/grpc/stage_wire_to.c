/* ToStage: assignments, epochs, links, plans. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/sampler_wire.h"
#include "rpc/grpc/stage_wire.h"
#include "rpc/grpc/stage_wire_parts.h"

/* --- packing ----------------------------------------------------------------------------------------------------------- */

static void pack_op(const struct plan *p, const struct plan_op *op, Sluice__V1__PlanOp *m, Sluice__V1__Sampler *sampler)
{
    sluice__v1__plan_op__init(m);
    m->kind = (Sluice__V1__OpKind)op->kind;
    m->seq = op->seq;
    m->slot = op->slot;
    m->length = op->length;
    m->blocks = p->words + op->first_block;
    m->n_blocks = (size_t)op->n_blocks + op->n_window;
    m->n_window = op->n_window;
    if (op->kind == OP_OPEN) {
        const uint32_t *bias = p->words + op->first_bias;
        sampler_pack(&op->sampler, 1, bias, (const float *)(const void *)(bias + op->sampler.n_bias), sampler);
        m->sampler = sampler;
        m->ids = p->words + op->first_id;
        m->n_ids = op->n_ids;
    }
}

static void pack_run(const struct plan *p, const struct plan_run *r, Sluice__V1__PlanRun *m)
{
    sluice__v1__plan_run__init(m);
    m->seq = r->seq;
    m->n = r->n;
    m->kv_index = r->kv_index;
    m->source = (Sluice__V1__RunSource)r->source;
    m->sample = (Sluice__V1__RunSample)r->sample;
    if (r->source == SOURCE_IDS) {
        m->ids = p->words + r->first_id;
        m->n_ids = r->n;
    } else {
        m->from_tick = r->from_tick;
    }
    m->table_check = r->table_check;
    m->last_stage = r->last_stage;
}

/* The packer's memory holds pointers first, then messages. */
static enum status pack_plan(struct stage_packer *k, const struct plan *p, Sluice__V1__Plan *m)
{
    size_t n_pointers = (size_t)p->n_ops + p->n_runs;
    size_t bytes = n_pointers * sizeof(void *) + p->n_ops * (sizeof(Sluice__V1__PlanOp) + sizeof(Sluice__V1__Sampler)) +
                   p->n_runs * sizeof(Sluice__V1__PlanRun);
    TRY(stage_packer__reserve(k, bytes));
    void **pointers = k->memory;
    Sluice__V1__PlanOp *ops = (void *)(pointers + n_pointers);
    Sluice__V1__Sampler *samplers = (void *)(ops + p->n_ops);
    Sluice__V1__PlanRun *runs = (void *)(samplers + p->n_ops);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        pack_op(p, &p->ops[i], &ops[i], &samplers[i]);
        pointers[i] = &ops[i];
    }
    for (uint32_t i = 0; i < p->n_runs; i++) {
        pack_run(p, &p->runs[i], &runs[i]);
        pointers[p->n_ops + i] = &runs[i];
    }
    m->session = p->session;
    m->epoch = p->epoch;
    m->tick = p->tick;
    m->n_rows = p->n_rows;
    m->budget_us = p->budget_us;
    m->ops = (Sluice__V1__PlanOp **)pointers;
    m->n_ops = p->n_ops;
    m->runs = (Sluice__V1__PlanRun **)(pointers + p->n_ops);
    m->n_runs = p->n_runs;
    return STATUS_OK;
}

void stage_wire__pack_assign(const struct msg_assign *a, Sluice__V1__Assign *m)
{
    sluice__v1__assign__init(m);
    m->stage = a->stage;
    m->n_stages = a->n_stages;
    m->first_layer = a->first_layer;
    m->end_layer = a->end_layer;
    m->slots = a->slots;
    m->context = a->context;
    m->kv_block = a->kv_block;
    m->n_blocks = a->n_blocks;
    m->max_rows = a->max_rows;
    m->kv_bytes = a->kv_bytes;
    m->heartbeat_ms = a->heartbeat_ms;
    m->stuck_ms = a->stuck_ms;
    m->window = a->window;
    m->kv_type = PB_FIELD(a->kv_type);
}

/* All parts a message may point to. */
struct to_parts {
    Sluice__V1__ToStage message;
    Sluice__V1__LinkAddresses next;
    union {
        Sluice__V1__Assign assign;
        Sluice__V1__Epoch epoch;
        Sluice__V1__Links links;
        Sluice__V1__Plan plan;
        Sluice__V1__Exit exit;
    };
};

static void pack_links(const struct msg_links *l, struct to_parts *t)
{
    sluice__v1__links__init(&t->links);
    t->links.session = l->session;
    t->links.epoch = l->epoch;
    stage_wire__pack_addresses(&l->next, &t->next);
    t->links.next = &t->next;
    t->links.key = (ProtobufCBinaryData){.len = sizeof l->key, .data = (uint8_t *)(uintptr_t)l->key};
    t->message.links = &t->links;
    t->message.message_case = SLUICE__V1__TO_STAGE__MESSAGE_LINKS;
}

static enum status pack(struct stage_packer *k, const struct to_stage *m, struct to_parts *t)
{
    sluice__v1__to_stage__init(&t->message);
    switch (m->kind) {
    case TO_STAGE_ASSIGN:
        stage_wire__pack_assign(&m->assign, &t->assign);
        t->message.assign = &t->assign;
        t->message.message_case = SLUICE__V1__TO_STAGE__MESSAGE_ASSIGN;
        return STATUS_OK;
    case TO_STAGE_EPOCH:
        stage_wire__pack_epoch(&m->epoch, &t->epoch);
        t->message.epoch = &t->epoch;
        t->message.message_case = SLUICE__V1__TO_STAGE__MESSAGE_EPOCH;
        return STATUS_OK;
    case TO_STAGE_LINKS:
        pack_links(&m->links, t);
        return STATUS_OK;
    case TO_STAGE_PLAN:
        sluice__v1__plan__init(&t->plan);
        t->message.plan = &t->plan;
        t->message.message_case = SLUICE__V1__TO_STAGE__MESSAGE_PLAN;
        return pack_plan(k, m->plan, &t->plan);
    case TO_STAGE_EXIT:
        sluice__v1__exit__init(&t->exit);
        t->exit.status = m->exit.status;
        t->exit.message = PB_FIELD(m->exit.message);
        t->message.exit = &t->exit;
        t->message.message_case = SLUICE__V1__TO_STAGE__MESSAGE_EXIT;
        return STATUS_OK;
    }
    check_failed(__FILE__, __LINE__, "message kind");
}

enum status stage_wire__pack_to(struct stage_packer *k, const struct to_stage *m, grpc_byte_buffer **out)
{
    struct to_parts t;
    TRY(pack(k, m, &t));
    *out = message_pack(&t.message.base);
    return STATUS_OK;
}

enum status stage_wire_pack_to_stage(const struct to_stage *m, uint8_t **data, size_t *len)
{
    struct stage_packer k = {0};
    struct to_parts t;
    enum status st = pack(&k, m, &t);
    uint8_t *bytes = st == STATUS_OK ? message_pack_bytes(&t.message.base, len) : NULL;
    stage_packer_fini(&k);
    if (!bytes)
        return STATUS_OUT_OF_MEMORY;
    *data = bytes;
    return STATUS_OK;
}

/* --- unpacking --------------------------------------------------------------------------------------------------------- */

static enum status unpack_op(const Sluice__V1__PlanOp *m, uint32_t i, struct plan *p, struct error *err)
{
    struct plan_op op = {.kind = (enum plan_op_kind)m->kind, .seq = m->seq, .slot = m->slot, .length = m->length};
    int has_seed;
    if (m->n_blocks > p->max_words || m->n_ids > p->max_words)
        return error_set(err, STATUS_PROTOCOL, "op %u: %zu blocks and %zu ids, at most %u words", i, m->n_blocks, m->n_ids,
                         p->max_words);
    if (m->n_window > m->n_blocks)
        return error_set(err, STATUS_PROTOCOL, "op %u: %zu blocks, %u of them of the WINDOW group", i, m->n_blocks, m->n_window);
    op.n_window = m->n_window;
    op.n_blocks = (uint32_t)m->n_blocks - op.n_window;
    op.n_ids = (uint32_t)m->n_ids;
    if (op.kind != OP_OPEN && op.n_ids)
        return error_set(err, STATUS_PROTOCOL, "op %u: %u ids, and it opens nothing", i, op.n_ids);
    if (op.kind == OP_OPEN && sampler_unpack(m->sampler, &op.sampler, &has_seed, err) != STATUS_OK) {
        if (err)
            err->status = STATUS_PROTOCOL;
        return STATUS_PROTOCOL;
    }
    const Sluice__V1__Sampler *s = op.kind == OP_OPEN ? m->sampler : NULL;
    if (plan_add_open(p, &op, m->blocks, m->ids, s ? s->bias_ids : NULL, s ? (const uint32_t *)(const void *)s->bias : NULL) !=
        STATUS_OK)
        return error_set(err, STATUS_PROTOCOL, "op %u of a plan for %u ops and %u words", i, p->max_ops, p->max_words);
    return STATUS_OK;
}

static enum status unpack_run(const Sluice__V1__PlanRun *m, uint32_t i, struct plan *p, struct error *err)
{
    struct plan_run r = {.seq = m->seq,
                         .n = m->n,
                         .kv_index = m->kv_index,
                         .source = (enum run_source)m->source,
                         .sample = (enum run_sample)m->sample,
                         .last_stage = m->last_stage,
                         .from_tick = m->from_tick,
                         .table_check = m->table_check};
    size_t n_ids = r.source == SOURCE_IDS ? r.n : 0;
    if (m->n_ids != n_ids)
        return error_set(err, STATUS_PROTOCOL, "run %u: %zu ids for %zu rows", i, m->n_ids, n_ids);
    if (plan_add_run(p, &r, m->ids) != STATUS_OK)
        return error_set(err, STATUS_PROTOCOL, "run %u of a plan for %u runs and %u words", i, p->max_runs, p->max_words);
    return STATUS_OK;
}

static enum status fill_plan(const Sluice__V1__Plan *m, struct plan *p, struct error *err)
{
    plan_reset(p);
    p->session = m->session;
    p->epoch = m->epoch;
    p->tick = m->tick;
    p->budget_us = m->budget_us;
    if (m->n_ops > p->max_ops || m->n_runs > p->max_runs)
        return error_set(err, STATUS_PROTOCOL, "a plan of %zu ops and %zu runs, at most %u and %u", m->n_ops, m->n_runs,
                         p->max_ops, p->max_runs);
    for (uint32_t i = 0; i < m->n_ops; i++)
        TRY(unpack_op(m->ops[i], i, p, err));
    for (uint32_t i = 0; i < m->n_runs; i++)
        TRY(unpack_run(m->runs[i], i, p, err));
    p->n_rows = m->n_rows;
    return plan_check(p, err);
}

static enum status unpack_plan(const Sluice__V1__Plan *m, struct stage_source *from, struct to_stage *out, struct error *err)
{
    struct plan *p = from->spare_plan ? from->spare_plan : from->plan(from->ctx);
    if (!p)
        return error_set(err, STATUS_PROTOCOL, "plan of tick %llu: more than the window is under way",
                         (unsigned long long)m->tick);
    from->spare_plan = p;
    TRY(fill_plan(m, p, err));
    from->spare_plan = NULL;
    out->plan = p;
    return STATUS_OK;
}

void stage_wire__unpack_assign(const Sluice__V1__Assign *m, struct msg_assign *a)
{
    if (!m)
        return;
    a->stage = m->stage;
    a->n_stages = m->n_stages;
    a->first_layer = m->first_layer;
    a->end_layer = m->end_layer;
    a->slots = m->slots;
    a->context = m->context;
    a->kv_block = m->kv_block;
    a->n_blocks = m->n_blocks;
    a->max_rows = m->max_rows;
    a->kv_bytes = m->kv_bytes;
    a->heartbeat_ms = m->heartbeat_ms;
    a->stuck_ms = m->stuck_ms;
    a->window = m->window;
    FIELD_PB(a->kv_type, m->kv_type);
}

static enum status unpack_links(const Sluice__V1__Links *m, struct msg_links *l, struct error *err)
{
    l->session = m->session;
    l->epoch = m->epoch;
    stage_wire__unpack_addresses(m->next, &l->next);
    if (m->key.len != sizeof l->key)
        return error_set(err, STATUS_PROTOCOL, "a link key of %zu bytes instead of %zu", m->key.len, sizeof l->key);
    memcpy(l->key, m->key.data, sizeof l->key);
    return STATUS_OK;
}

enum status stage_wire__unpack_to(const void *data, size_t len, struct arena *a, struct stage_source *from,
                                  struct to_stage *out, struct error *err)
{
    Sluice__V1__ToStage *m = message_unpack(&sluice__v1__to_stage__descriptor, a, data, len);
    if (!m)
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no ToStage", len);
    memset(out, 0, sizeof *out);
    switch (m->message_case) {
    case SLUICE__V1__TO_STAGE__MESSAGE_ASSIGN:
        out->kind = TO_STAGE_ASSIGN;
        stage_wire__unpack_assign(m->assign, &out->assign);
        return STATUS_OK;
    case SLUICE__V1__TO_STAGE__MESSAGE_EPOCH:
        out->kind = TO_STAGE_EPOCH;
        out->epoch = (struct msg_epoch){.session = m->epoch->session, .epoch = m->epoch->epoch};
        return STATUS_OK;
    case SLUICE__V1__TO_STAGE__MESSAGE_LINKS:
        out->kind = TO_STAGE_LINKS;
        return unpack_links(m->links, &out->links, err);
    case SLUICE__V1__TO_STAGE__MESSAGE_PLAN:
        out->kind = TO_STAGE_PLAN;
        return unpack_plan(m->plan, from, out, err);
    case SLUICE__V1__TO_STAGE__MESSAGE_EXIT:
        out->kind = TO_STAGE_EXIT;
        out->exit.status = status_from_int(m->exit->status);
        FIELD_PB(out->exit.message, m->exit->message);
        return STATUS_OK;
    default:
        return error_set(err, STATUS_PROTOCOL, "a ToStage of an unknown kind");
    }
}

static struct plan *given_plan(void *ctx)
{
    return ctx;
}

enum status stage_wire_unpack_to_stage(const void *data, size_t len, struct plan *plan, struct to_stage *out, struct error *err)
{
    struct arena a;
    struct stage_source from = {.ctx = plan, .plan = given_plan};
    arena_init(&a, 0);
    enum status st = stage_wire__unpack_to(data, len, &a, &from, out, err);
    arena_fini(&a);
    return st;
}
