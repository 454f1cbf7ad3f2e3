#include "tests/lib/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "stage/kv.h"
#include "tests/lib/pipeline_impl.h"

const struct sampler_params pipeline_greedy = {.top_p = 1};

_Thread_local int pipeline_in_send;

uint32_t pipeline_n_stages(const struct pipeline *p)
{
    return p->o.n_stages;
}

struct worker *pipeline_worker(struct pipeline *p, uint32_t stage)
{
    return p->stage[stage].worker;
}

struct link_port *pipeline_port(struct pipeline *p, uint32_t stage)
{
    return p->stage[stage].port;
}

uint64_t pipeline_session(const struct pipeline *p)
{
    return p->session;
}

uint64_t pipeline_epoch(const struct pipeline *p)
{
    return p->epoch;
}

const uint8_t *pipeline_key(const struct pipeline *p)
{
    return p->key;
}

const struct msg_assign *pipeline_assignment(struct pipeline *p, uint32_t stage)
{
    return &p->stage[stage].assign;
}

/* --- messages ------------------------------------------------------------------------------------------------------------------- */

static void on_send(void *ctx, const struct from_stage *m)
{
    struct pipeline_stage *s = ctx;
    struct pipeline_message copy = {.stage = s->index, .m = *m};
    pipeline_in_send = 1;
    if (m->kind == FROM_STAGE_RESULT) {
        struct result *r;
        CHECK(result_create(m->result->max_runs, &r) == STATUS_OK);
        CHECK(result_copy(r, m->result) == STATUS_OK);
        copy.m.result = r;
    }
    CHECK(queue_push(s->pipeline->inbox, &copy) == STATUS_OK);
    pipeline_in_send = 0;
}

void pipeline_release(struct pipeline_message *m)
{
    if (m->m.kind == FROM_STAGE_RESULT)
        result_destroy(m->m.result);
    m->m.result = NULL;
}

enum status pipeline_next(struct pipeline *p, uint32_t timeout_ms, struct pipeline_message *out)
{
    return queue_pop(p->inbox, out, clock_now_ns() + timeout_ms * NS_PER_MS);
}

enum status pipeline_await(struct pipeline *p, int stage, enum from_stage_kind kind, uint32_t timeout_ms,
                           struct pipeline_message *out)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    for (;;) {
        TRY(queue_pop(p->inbox, out, deadline_ns));
        if (out->m.kind == kind && (stage < 0 || (uint32_t)stage == out->stage))
            return STATUS_OK;
        pipeline_release(out);
    }
}

static int present(const struct pipeline *p, uint32_t stage)
{
    return !(p->o.absent >> stage & 1);
}

static void post(struct pipeline *p, uint32_t stage, const struct to_stage *m)
{
    if (present(p, stage))
        worker_post(p->stage[stage].worker, m);
}

/* One message of a kind from every stage; FAILED of anybody ends the wait with its words. */
static enum status await_all(struct pipeline *p, enum from_stage_kind kind, struct error *err)
{
    uint64_t seen = 0, all = ((1ull << p->o.n_stages) - 1) & ~(uint64_t)p->o.absent;
    struct pipeline_message m;
    while (seen != all) {
        if (pipeline_next(p, PIPELINE_WAIT_MS, &m) != STATUS_OK)
            return error_set(err, STATUS_TIMEOUT, "message %d came from stages %llx only", (int)kind,
                             (unsigned long long)seen);
        if (m.m.kind == FROM_STAGE_FAILED &&
            (kind == FROM_STAGE_LOADED || (m.m.failed.session == p->session && m.m.failed.epoch == p->epoch)))
            return error_set(err, m.m.failed.status, "%s", m.m.failed.message);
        int ours = kind == FROM_STAGE_LOADED ||
                   (m.m.kind == kind && m.m.ack.session == p->session && m.m.ack.epoch == p->epoch);
        if (m.m.kind == kind && ours) {
            seen |= 1ull << m.stage;
            if (kind == FROM_STAGE_LOADED && (!p->n_blocks || m.m.loaded.n_blocks < p->n_blocks))
                p->n_blocks = m.m.loaded.n_blocks;
            if (kind == FROM_STAGE_LOADED)
                p->window = p->stage[m.stage].compute->pool->shape.window;
        }
        pipeline_release(&m);
    }
    return STATUS_OK;
}

void pipeline_post_epoch(struct pipeline *p)
{
    p->epoch++;
    p->next_tick = 1;
    for (int i = 0; i < 4; i++)
        memcpy(p->key + 8 * i, &(uint64_t){rand_at(p->session + p->epoch, (uint64_t)i)}, 8);
    const struct to_stage m = {.kind = TO_STAGE_EPOCH, .epoch = {.session = p->session, .epoch = p->epoch}};
    for (uint32_t i = 0; i < p->o.n_stages; i++)
        post(p, i, &m);
}

void pipeline_post_links(struct pipeline *p, uint32_t stage)
{
    struct to_stage m = {.kind = TO_STAGE_LINKS, .links = {.session = p->session, .epoch = p->epoch}};
    link_port_addresses(p->stage[(stage + 1) % p->o.n_stages].port, &m.links.next);
    memcpy(m.links.key, p->key, sizeof p->key);
    post(p, stage, &m);
}

enum status pipeline_raise_epoch(struct pipeline *p, struct error *err)
{
    pipeline_post_epoch(p);
    TRY(await_all(p, FROM_STAGE_ACK, err));
    for (uint32_t i = 0; i < p->o.n_stages; i++)
        pipeline_post_links(p, i);
    return await_all(p, FROM_STAGE_READY, err);
}

enum status pipeline_raise_epoch_as(struct pipeline *p, uint32_t stage, struct link_pair *links, struct error *err)
{
    struct link_form f = {.generation = p->epoch + 1, .session = p->session, .stage = stage, .n_stages = p->o.n_stages};
    pipeline_post_epoch(p);
    TRY(await_all(p, FROM_STAGE_ACK, err));
    for (uint32_t i = 0; i < p->o.n_stages; i++)
        pipeline_post_links(p, i);
    f.epoch = p->epoch;
    f.timeout_ms = PIPELINE_WAIT_MS;
    memcpy(f.key, p->key, sizeof f.key);
    link_port_addresses(p->stage[(stage + 1) % p->o.n_stages].port, &f.next);
    TRY(link_port_form(p->stage[stage].port, &f, links, err));
    return await_all(p, FROM_STAGE_READY, err);
}

enum status pipeline_assign(struct pipeline *p, struct error *err)
{
    p->n_blocks = 0;
    for (uint32_t i = 0; i < p->o.n_stages; i++)
        post(p, i, &(struct to_stage){.kind = TO_STAGE_ASSIGN, .assign = p->stage[i].assign});
    return await_all(p, FROM_STAGE_LOADED, err);
}

struct plan *pipeline_plan(struct pipeline *p)
{
    plan_reset(p->plan);
    p->plan->session = p->session;
    p->plan->epoch = p->epoch;
    p->plan->tick = p->next_tick++;
    return p->plan;
}

enum status pipeline_post_plan(struct pipeline *p, int stage, const struct plan *plan)
{
    for (uint32_t i = 0; i < p->o.n_stages; i++) {
        if ((stage >= 0 && (uint32_t)stage != i) || !present(p, i))
            continue;
        struct plan *copy = worker_plan_acquire(p->stage[i].worker);
        if (!copy)
            return STATUS_FULL;
        CHECK(plan_copy(copy, plan) == STATUS_OK);
        worker_post(p->stage[i].worker, &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = copy});
    }
    return STATUS_OK;
}

/* --- opening --------------------------------------------------------------------------------------------------------------------- */

static void set_default(uint32_t *field, uint32_t value)
{
    if (!*field)
        *field = value;
}

static void fill_options(struct pipeline_options *o)
{
    set_default(&o->n_stages, 1);
    set_default(&o->n_layers, 8);
    set_default(&o->slots, 8);
    set_default(&o->context, 1024);
    set_default(&o->kv_block, 16);
    set_default(&o->max_rows, 256);
    set_default(&o->stuck_ms, 5000);
    set_default(&o->window, o->n_stages + 1);
    for (uint32_t i = 1; i < o->n_stages; i++)
        set_default(&o->first_layer[i], o->n_layers * i / o->n_stages);
}

static void fill_assignment(const struct pipeline_options *o, uint32_t stage, struct msg_assign *a)
{
    *a = (struct msg_assign){
        .stage = stage,
        .n_stages = o->n_stages,
        .first_layer = o->first_layer[stage],
        .end_layer = stage + 1 < o->n_stages ? o->first_layer[stage + 1] : o->n_layers,
        .slots = o->slots,
        .context = o->context,
        .kv_block = o->kv_block,
        .n_blocks = o->n_blocks ? o->n_blocks : o->slots * ((o->context + o->kv_block - 1) / o->kv_block),
        .max_rows = o->max_rows,
        .heartbeat_ms = 300,
        .stuck_ms = o->stuck_ms,
        .window = o->window,
        .kv_type = "f16",
    };
}

static enum status create_compute(void *ctx, struct compute **out, struct error *err)
{
    struct pipeline_stage *s = ctx;
    TRY(s->pipeline->o.create(s->pipeline->o.ctx, s->index, out, err));
    s->compute = *out;
    return STATUS_OK;
}

static enum status open_stage(struct pipeline *p, uint32_t i, struct error *err)
{
    struct pipeline_stage *s = &p->stage[i];
    const struct link_socket_options sockets = {.kind = p->o.links == PIPELINE_UNIX ? LINK_KIND_UNIX : LINK_KIND_TCP,
                                                .tls = p->o.links == PIPELINE_TLS};
    s->pipeline = p;
    s->index = i;
    fill_assignment(&p->o, i, &s->assign);
    if (p->o.links == PIPELINE_MEM)
        TRY(link_mem_port_create(p->hub, p->o.mem_capacity, &s->port));
    else
        TRY(link_socket_port_create(&sockets, &s->port, err));
    if (!present(p, i))
        return STATUS_OK;
    const struct worker_options w = {
        .create_compute = create_compute, .compute_ctx = s, .port = s->port, .send = on_send, .send_ctx = s};
    return worker_create(&w, &s->worker, err);
}

enum status pipeline_open_bare(const struct pipeline_options *o, struct pipeline **out, struct error *err)
{
    struct pipeline *p = calloc(1, sizeof *p);
    CHECK(p);
    p->o = *o;
    fill_options(&p->o);
    p->session = rand_mix((uint64_t)clock_now_ns()) | 1;
    p->next_seq = 1;
    CHECK(mem_hub_create(&p->hub) == STATUS_OK);
    CHECK(queue_create(PIPELINE_INBOX, sizeof(struct pipeline_message), &p->inbox) == STATUS_OK);
    CHECK(plan_create(4 * p->o.slots + 16, p->o.max_rows, p->o.max_rows + (16 << 10), &p->plan) == STATUS_OK);
    for (uint32_t i = 0; i < p->o.n_stages; i++) {
        enum status s = open_stage(p, i, err);
        if (s != STATUS_OK) {
            pipeline_close(p);
            return s;
        }
    }
    *out = p;
    return STATUS_OK;
}

enum status pipeline_open(const struct pipeline_options *o, struct pipeline **out, struct error *err)
{
    struct pipeline *p;
    TRY(pipeline_open_bare(o, &p, err));
    enum status s = pipeline_assign(p, err);
    if (s == STATUS_OK)
        s = pipeline_raise_epoch(p, err);
    if (s == STATUS_OK)
        *out = p;
    else
        pipeline_close(p);
    return s;
}

void pipeline_close(struct pipeline *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->o.n_stages; i++) {
        if (present(p, i))
            worker_destroy(p->stage[i].worker);
        else
            link_port_destroy(p->stage[i].port);
    }
    struct pipeline_message m;
    while (queue_pop(p->inbox, &m, 0) == STATUS_OK)
        pipeline_release(&m);
    queue_destroy(p->inbox);
    mem_hub_destroy(p->hub);
    blocks_destroy(p->blocks);
    plan_destroy(p->plan);
    free(p);
}
