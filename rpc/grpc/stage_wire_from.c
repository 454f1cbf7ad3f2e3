/* FromStage: hello, results, timings, heartbeats; and the parts that both directions share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/stage_wire_parts.h"

/* --- shared ------------------------------------------------------------------------------------------------------------ */

enum status stage_packer__reserve(struct stage_packer *p, size_t bytes)
{
    if (bytes <= p->bytes && p->memory)
        return STATUS_OK;
    bytes += 64; /* an empty plan has memory too */
    void *memory = realloc(p->memory, bytes + bytes / 2);
    if (!memory)
        return STATUS_OUT_OF_MEMORY;
    p->memory = memory;
    p->bytes = bytes + bytes / 2;
    return STATUS_OK;
}

void stage_packer_fini(struct stage_packer *p)
{
    free(p->memory);
    *p = (struct stage_packer){0};
}

void stage_wire__pack_addresses(const struct link_addresses *a, Sluice__V1__LinkAddresses *m)
{
    sluice__v1__link_addresses__init(m);
    m->tcp = PB_FIELD(a->tcp);
    m->unix_name = PB_FIELD(a->unix_name);
    m->boot_id = PB_FIELD(a->boot_id);
    m->net_namespace = a->net_namespace;
}

void stage_wire__unpack_addresses(const Sluice__V1__LinkAddresses *m, struct link_addresses *a)
{
    if (!m)
        return;
    FIELD_PB(a->tcp, m->tcp);
    FIELD_PB(a->unix_name, m->unix_name);
    FIELD_PB(a->boot_id, m->boot_id);
    a->net_namespace = m->net_namespace;
}

void stage_wire__pack_epoch(const struct msg_epoch *e, Sluice__V1__Epoch *m)
{
    sluice__v1__epoch__init(m);
    m->session = e->session;
    m->epoch = e->epoch;
}

/* --- packing ----------------------------------------------------------------------------------------------------------- */

struct from_parts {
    Sluice__V1__FromStage message;
    Sluice__V1__LinkAddresses addresses;
    Sluice__V1__Assign assigned;
    Sluice__V1__Timing timing[MAX_TIMINGS], *timings[MAX_TIMINGS];
    union {
        Sluice__V1__Hello hello;
        Sluice__V1__Loaded loaded;
        Sluice__V1__Ack ack;
        Sluice__V1__Epoch epoch;
        Sluice__V1__Result result;
        Sluice__V1__Timings batch;
        Sluice__V1__Heartbeat heartbeat;
        Sluice__V1__Failed failed;
    };
};

static void pack_hello(const struct msg_hello *h, struct from_parts *f)
{
    Sluice__V1__Hello *m = &f->hello;
    sluice__v1__hello__init(m);
    m->wire_version = h->wire_version;
    m->stage = h->stage;
    m->build = PB_FIELD(h->build);
    m->host = PB_FIELD(h->host);
    m->backend = PB_FIELD(h->backend);
    m->profile = PB_FIELD(h->profile);
    m->pid = h->pid;
    m->incarnation = h->incarnation;
    m->highest_epoch = h->highest_epoch;
    m->memory_bytes = h->memory_bytes;
    m->model_hash = (ProtobufCBinaryData){.len = sizeof h->model_hash, .data = (uint8_t *)(uintptr_t)h->model_hash};
    m->n_layers = h->n_layers;
    m->last_signal = h->last_signal;
    stage_wire__pack_addresses(&h->addresses, &f->addresses);
    m->addresses = &f->addresses;
    f->message.hello = m;
}

static void pack_loaded(const struct msg_loaded *l, const struct msg_assign *assigned, struct from_parts *f)
{
    Sluice__V1__Loaded *m = &f->loaded;
    size_t n = 0;
    sluice__v1__loaded__init(m);
    while (n < N_COST_POINTS && l->cost_rows[n])
        n++;
    m->n_blocks = l->n_blocks;
    m->weight_bytes = l->weight_bytes;
    m->kv_bytes = l->kv_bytes;
    m->n_cost_rows = m->n_prompt_us = m->n_decode_us = n;
    m->cost_rows = (uint32_t *)(uintptr_t)l->cost_rows;
    m->prompt_us = (uint32_t *)(uintptr_t)l->prompt_us;
    m->decode_us = (uint32_t *)(uintptr_t)l->decode_us;
    m->attention_ns = l->attention_ns;
    stage_wire__pack_assign(assigned, &f->assigned);
    m->assigned = &f->assigned;
    f->message.loaded = m;
}

static void pack_ack(const struct msg_ack *a, struct from_parts *f)
{
    Sluice__V1__Ack *m = &f->ack;
    sluice__v1__ack__init(m);
    m->session = a->session;
    m->epoch = a->epoch;
    m->kv_id = a->kv_id;
    m->kv_session = a->kv_session;
    m->kv_epoch = a->kv_epoch;
    m->kv_tick = a->kv_tick;
    f->message.ack = m;
}

static void pack_timing(const struct stage_timing *t, Sluice__V1__Timing *m)
{
    sluice__v1__timing__init(m);
    m->tick = t->tick;
    m->stage = t->stage;
    m->n_rows = t->n_rows;
    m->wait_plan_us = t->wait_plan_us;
    m->wait_data_us = t->wait_data_us;
    m->compute_us = t->compute_us;
    m->send_us = t->send_us;
    m->sent_bytes = t->sent_bytes;
}

static size_t count_tops(const struct result *r)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_runs; i++)
        n += r->runs[i].n_top;
    return n;
}

/* Where the next run's alternatives go. */
struct tops_at {
    uint32_t *ids;
    float *logprobs;
};

static void pack_run(const struct result *r, uint32_t i, struct tops_at *at, Sluice__V1__ResultRun *m)
{
    const struct result_run *run = &r->runs[i];
    const struct top_logprob *tops = result_tops(r, i);
    sluice__v1__result_run__init(m);
    m->seq = run->seq;
    m->n_accepted = run->n_accepted;
    m->id = run->id;
    m->bad_logits = run->bad_logits != 0;
    if (!run->has_logprob)
        return;
    m->logprob_choice_case = SLUICE__V1__RESULT_RUN__LOGPROB_CHOICE_LOGPROB;
    m->logprob = run->logprob;
    m->top_ids = at->ids;
    m->top_logprobs = at->logprobs;
    m->n_top_ids = m->n_top_logprobs = run->n_top;
    for (uint32_t k = 0; k < run->n_top; k++) {
        *at->ids++ = tops[k].id;
        *at->logprobs++ = tops[k].logprob;
    }
}

static enum status pack_result(struct stage_packer *k, const struct result *r, struct from_parts *f)
{
    Sluice__V1__Result *m = &f->result;
    const size_t n_tops = count_tops(r);
    TRY(stage_packer__reserve(k, r->n_runs * (sizeof(void *) + sizeof(Sluice__V1__ResultRun)) + n_tops * 2 * sizeof(uint32_t)));
    Sluice__V1__ResultRun **pointers = k->memory, *runs = (void *)(pointers + r->n_runs);
    struct tops_at at = {.ids = (void *)(runs + r->n_runs), .logprobs = (void *)((uint32_t *)(void *)(runs + r->n_runs) + n_tops)};
    sluice__v1__result__init(m);
    for (uint32_t i = 0; i < r->n_runs; i++) {
        pack_run(r, i, &at, &runs[i]);
        pointers[i] = &runs[i];
    }
    m->session = r->session;
    m->epoch = r->epoch;
    m->tick = r->tick;
    m->status = r->status;
    m->message = PB_FIELD(r->message);
    pack_timing(&r->timing, &f->timing[0]);
    m->timing = &f->timing[0];
    m->layer_counter = r->layer_counter;
    m->runs = pointers;
    m->n_runs = r->n_runs;
    f->message.result = m;
    return STATUS_OK;
}

static void pack_timings(const struct from_stage *from, struct from_parts *f)
{
    Sluice__V1__Timings *m = &f->batch;
    sluice__v1__timings__init(m);
    m->session = from->timings.session;
    m->epoch = from->timings.epoch;
    m->n_timings = from->timings.n < MAX_TIMINGS ? from->timings.n : MAX_TIMINGS;
    for (size_t i = 0; i < m->n_timings; i++) {
        pack_timing(&from->timings.timing[i], &f->timing[i]);
        f->timings[i] = &f->timing[i];
    }
    m->timings = f->timings;
    f->message.timings = m;
}

static void pack_heartbeat(const struct msg_heartbeat *h, struct from_parts *f)
{
    Sluice__V1__Heartbeat *m = &f->heartbeat;
    sluice__v1__heartbeat__init(m);
    m->session = h->session;
    m->epoch = h->epoch;
    m->tick = h->tick;
    m->layer_counter = h->layer_counter;
    m->busy = h->busy != 0;
    m->waits = h->waits != 0;
    m->stale_plans = h->stale.plans;
    m->stale_epochs = h->stale.epochs;
    m->stale_links = h->stale.links;
    m->stale_frames = h->stale.frames;
    m->stale_feedback = h->stale.feedback;
    f->message.heartbeat = m;
}

static void pack_failed(const struct msg_failed *e, struct from_parts *f)
{
    Sluice__V1__Failed *m = &f->failed;
    sluice__v1__failed__init(m);
    m->session = e->session;
    m->epoch = e->epoch;
    m->tick = e->tick;
    m->status = e->status;
    m->message = PB_FIELD(e->message);
    m->fatal = e->fatal != 0;
    f->message.failed = m;
}

static enum status pack(struct stage_packer *k, const struct from_stage *m, struct from_parts *f)
{
    sluice__v1__from_stage__init(&f->message);
    /* Kinds are numbered as the fields of the oneof. */
    f->message.message_case = (Sluice__V1__FromStage__MessageCase)m->kind;
    switch (m->kind) {
    case FROM_STAGE_HELLO:
        pack_hello(&m->hello, f);
        return STATUS_OK;
    case FROM_STAGE_LOADED:
        pack_loaded(&m->loaded, &m->assigned, f);
        return STATUS_OK;
    case FROM_STAGE_ACK:
        pack_ack(&m->ack, f);
        return STATUS_OK;
    case FROM_STAGE_READY:
        stage_wire__pack_epoch(&m->ready, &f->epoch);
        f->message.ready = &f->epoch;
        return STATUS_OK;
    case FROM_STAGE_RESULT:
        return pack_result(k, m->result, f);
    case FROM_STAGE_TIMINGS:
        pack_timings(m, f);
        return STATUS_OK;
    case FROM_STAGE_HEARTBEAT:
        pack_heartbeat(&m->heartbeat, f);
        return STATUS_OK;
    case FROM_STAGE_FAILED:
        pack_failed(&m->failed, f);
        return STATUS_OK;
    }
    check_failed(__FILE__, __LINE__, "message kind");
}

enum status stage_wire__pack_from(struct stage_packer *k, const struct from_stage *m, grpc_byte_buffer **out)
{
    struct from_parts f;
    TRY(pack(k, m, &f));
    *out = message_pack(&f.message.base);
    return STATUS_OK;
}

enum status stage_wire_pack_from_stage(const struct from_stage *m, uint8_t **data, size_t *len)
{
    struct stage_packer k = {0};
    struct from_parts f;
    enum status st = pack(&k, m, &f);
    uint8_t *bytes = st == STATUS_OK ? message_pack_bytes(&f.message.base, len) : NULL;
    stage_packer_fini(&k);
    if (!bytes)
        return STATUS_OUT_OF_MEMORY;
    *data = bytes;
    return STATUS_OK;
}

/* --- unpacking --------------------------------------------------------------------------------------------------------- */

static enum status unpack_hello(const Sluice__V1__Hello *m, struct msg_hello *h, struct error *err)
{
    h->wire_version = m->wire_version;
    h->stage = m->stage;
    FIELD_PB(h->build, m->build);
    FIELD_PB(h->host, m->host);
    FIELD_PB(h->backend, m->backend);
    FIELD_PB(h->profile, m->profile);
    h->pid = m->pid;
    h->incarnation = m->incarnation;
    h->highest_epoch = m->highest_epoch;
    h->memory_bytes = m->memory_bytes;
    h->n_layers = m->n_layers;
    h->last_signal = m->last_signal;
    stage_wire__unpack_addresses(m->addresses, &h->addresses);
    if (m->model_hash.len != sizeof h->model_hash)
        return error_set(err, STATUS_PROTOCOL, "a model hash of %zu bytes instead of %zu", m->model_hash.len,
                         sizeof h->model_hash);
    memcpy(h->model_hash, m->model_hash.data, sizeof h->model_hash);
    return STATUS_OK;
}

static enum status unpack_loaded(const Sluice__V1__Loaded *m, struct msg_loaded *l, struct error *err)
{
    if (m->n_cost_rows > N_COST_POINTS || m->n_prompt_us != m->n_cost_rows || m->n_decode_us != m->n_cost_rows)
        return error_set(err, STATUS_PROTOCOL, "costs of %zu, %zu and %zu points, at most %d", m->n_cost_rows, m->n_prompt_us,
                         m->n_decode_us, N_COST_POINTS);
    if (!isfinite(m->attention_ns) || m->attention_ns < 0)
        return error_set(err, STATUS_PROTOCOL, "attention_ns %g", m->attention_ns);
    l->n_blocks = m->n_blocks;
    l->weight_bytes = m->weight_bytes;
    l->kv_bytes = m->kv_bytes;
    for (size_t i = 0; i < m->n_cost_rows; i++) {
        l->cost_rows[i] = m->cost_rows[i];
        l->prompt_us[i] = m->prompt_us[i];
        l->decode_us[i] = m->decode_us[i];
    }
    l->attention_ns = m->attention_ns;
    return STATUS_OK;
}

static void unpack_timing(const Sluice__V1__Timing *m, struct stage_timing *t)
{
    *t = (struct stage_timing){.tick = m->tick,
                               .stage = m->stage,
                               .n_rows = m->n_rows,
                               .wait_plan_us = m->wait_plan_us,
                               .wait_data_us = m->wait_data_us,
                               .compute_us = m->compute_us,
                               .send_us = m->send_us,
                               .sent_bytes = m->sent_bytes};
}

static enum status fill_run(const Sluice__V1__ResultRun *m, uint32_t i, struct result *r, struct error *err)
{
    struct result_run *run = &r->runs[i];
    *run = (struct result_run){.seq = m->seq, .n_accepted = m->n_accepted, .id = m->id, .bad_logits = m->bad_logits != 0,
                               .has_logprob = m->logprob_choice_case == SLUICE__V1__RESULT_RUN__LOGPROB_CHOICE_LOGPROB,
                               .logprob = m->logprob, .n_top = (uint32_t)m->n_top_ids};
    if (run->seq == 0 || run->id < -1)
        return error_set(err, STATUS_PROTOCOL, "run %u of a result: sequence %llu, id %d", i, (unsigned long long)run->seq,
                         run->id);
    if (m->n_top_ids != m->n_top_logprobs || m->n_top_ids > (run->has_logprob ? MAX_TOP_LOGPROBS : 0))
        return error_set(err, STATUS_PROTOCOL, "run %u of a result: %zu alternatives with %zu logprobs", i, m->n_top_ids,
                         m->n_top_logprobs);
    for (uint32_t k = 0; k < run->n_top; k++)
        result_tops(r, i)[k] = (struct top_logprob){.id = m->top_ids[k], .logprob = m->top_logprobs[k]};
    return STATUS_OK;
}

static enum status fill_result(const Sluice__V1__Result *m, struct result *r, struct error *err)
{
    if (m->n_runs > r->max_runs)
        return error_set(err, STATUS_PROTOCOL, "a result of %zu runs, at most %u", m->n_runs, r->max_runs);
    r->session = m->session;
    r->epoch = m->epoch;
    r->tick = m->tick;
    r->status = status_from_int(m->status);
    if (r->status != STATUS_OK && m->n_runs)
        return error_set(err, STATUS_PROTOCOL, "a failed result (%s) with %zu runs", status_name(r->status), m->n_runs);
    FIELD_PB(r->message, m->message);
    r->timing = (struct stage_timing){0};
    if (m->timing)
        unpack_timing(m->timing, &r->timing);
    r->layer_counter = m->layer_counter;
    r->n_runs = (uint32_t)m->n_runs;
    for (uint32_t i = 0; i < r->n_runs; i++)
        TRY(fill_run(m->runs[i], i, r, err));
    return STATUS_OK;
}

static enum status unpack_result(const Sluice__V1__Result *m, struct stage_source *from, struct from_stage *out,
                                 struct error *err)
{
    struct result *r = from->spare_result ? from->spare_result : from->result(from->ctx);
    if (!r)
        return error_set(err, STATUS_PROTOCOL, "result of tick %llu: more than the window is under way",
                         (unsigned long long)m->tick);
    from->spare_result = r;
    TRY(fill_result(m, r, err));
    from->spare_result = NULL;
    out->result = r;
    return STATUS_OK;
}

static enum status unpack_timings(const Sluice__V1__Timings *m, struct from_stage *out, struct error *err)
{
    if (m->n_timings > MAX_TIMINGS)
        return error_set(err, STATUS_PROTOCOL, "%zu timings, at most %d", m->n_timings, MAX_TIMINGS);
    out->timings.session = m->session;
    out->timings.epoch = m->epoch;
    out->timings.n = (uint32_t)m->n_timings;
    for (size_t i = 0; i < m->n_timings; i++)
        unpack_timing(m->timings[i], &out->timings.timing[i]);
    return STATUS_OK;
}

static void unpack_failed(const Sluice__V1__Failed *m, struct msg_failed *f)
{
    f->session = m->session;
    f->epoch = m->epoch;
    f->tick = m->tick;
    f->status = status_from_int(m->status);
    FIELD_PB(f->message, m->message);
    f->fatal = m->fatal != 0;
}

static enum status unpack(const Sluice__V1__FromStage *m, struct stage_source *from, struct from_stage *out, struct error *err)
{
    out->kind = (enum from_stage_kind)m->message_case;
    switch (out->kind) {
    case FROM_STAGE_HELLO:
        return unpack_hello(m->hello, &out->hello, err);
    case FROM_STAGE_LOADED:
        stage_wire__unpack_assign(m->loaded->assigned, &out->assigned);
        return unpack_loaded(m->loaded, &out->loaded, err);
    case FROM_STAGE_ACK:
        out->ack = (struct msg_ack){.session = m->ack->session,
                                    .epoch = m->ack->epoch,
                                    .kv_id = m->ack->kv_id,
                                    .kv_session = m->ack->kv_session,
                                    .kv_epoch = m->ack->kv_epoch,
                                    .kv_tick = m->ack->kv_tick};
        return STATUS_OK;
    case FROM_STAGE_READY:
        out->ready = (struct msg_epoch){.session = m->ready->session, .epoch = m->ready->epoch};
        return STATUS_OK;
    case FROM_STAGE_RESULT:
        return unpack_result(m->result, from, out, err);
    case FROM_STAGE_TIMINGS:
        return unpack_timings(m->timings, out, err);
    case FROM_STAGE_HEARTBEAT:
        out->heartbeat = (struct msg_heartbeat){.session = m->heartbeat->session,
                                                .epoch = m->heartbeat->epoch,
                                                .tick = m->heartbeat->tick,
                                                .layer_counter = m->heartbeat->layer_counter,
                                                .busy = m->heartbeat->busy != 0,
                                                .waits = m->heartbeat->waits != 0,
                                                .stale = {.plans = m->heartbeat->stale_plans,
                                                          .epochs = m->heartbeat->stale_epochs,
                                                          .links = m->heartbeat->stale_links,
                                                          .frames = m->heartbeat->stale_frames,
                                                          .feedback = m->heartbeat->stale_feedback}};
        return STATUS_OK;
    case FROM_STAGE_FAILED:
        unpack_failed(m->failed, &out->failed);
        return STATUS_OK;
    }
    return error_set(err, STATUS_PROTOCOL, "a FromStage of an unknown kind");
}

enum status stage_wire__unpack_from(const void *data, size_t len, struct arena *a, struct stage_source *from,
                                    struct from_stage *out, struct error *err)
{
    Sluice__V1__FromStage *m = message_unpack(&sluice__v1__from_stage__descriptor, a, data, len);
    if (!m)
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no FromStage", len);
    memset(out, 0, sizeof *out);
    return unpack(m, from, out, err);
}

static struct result *given_result(void *ctx)
{
    return ctx;
}

enum status stage_wire_unpack_from_stage(const void *data, size_t len, struct result *result, struct from_stage *out,
                                         struct error *err)
{
    struct arena a;
    struct stage_source from = {.ctx = result, .result = given_result};
    arena_init(&a, 0);
    enum status st = stage_wire__unpack_from(data, len, &a, &from, out, err);
    arena_fini(&a);
    return st;
}
