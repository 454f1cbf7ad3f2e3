#include "rpc/grpc/admin_wire.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/grpc/message.h"
#include "rpc/proto/admin.pb-c.h"

/* Fields have the same names on both sides; each list is used to pack and to unpack. Flags are 0 or 1. */
#define STATUS_NUMBERS(X) \
    X(live) X(ready) X(draining) X(epoch) X(uptime_s) X(model_layers) X(model_context) \
    X(model_vocabulary) X(concurrency_requested) X(concurrency_serving) X(queued) X(reading) \
    X(decoding) X(parked) X(accepted) X(done) X(failed) X(cancelled) X(queue_requests) \
    X(queue_tokens) X(queue_oldest_ms) X(queue_limit_requests) X(queue_limit_tokens) X(block_size) \
    X(blocks_total) X(blocks_free) X(blocks_cached) X(blocks_live) X(blocks_draining) \
    X(ticks_sent) X(ticks_in_flight) X(blocks_promised) X(blocks_evicted) X(tick_window) \
    X(tick_streams) X(tick_readers) X(tick_period_us) X(tick_budget_us) X(bank_us) \
    X(bank_bound_us) X(stall_unmet) X(tick_starved) X(lost_ms)
#define STATUS_TEXTS(X) \
    X(version) X(model_id) X(architecture) X(profile) X(not_ready)
#define SLOT_NUMBERS(X) \
    X(slot) X(prompt_tokens) X(cached_tokens) X(read_tokens) X(generated_tokens) X(age_ms)
#define SLOT_TEXTS(X) \
    X(state) X(request)
#define STAGE_NUMBERS(X) \
    X(stage) X(pid) X(first_layer) X(end_layer) X(restarts) X(weight_bytes) X(kv_bytes) \
    X(tick_age_ms) X(busy_ratio) X(bubble_ratio) X(hop_us)
#define STAGE_TEXTS(X) \
    X(host) X(state) X(backend)

#define PACK_NUMBER(f) m->f = s->f;
#define PACK_TEXT(f) m->f = PB_FIELD(s->f);
#define UNPACK_NUMBER(f) s->f = m->f;
#define UNPACK_TEXT(f) FIELD_PB(s->f, m->f);

struct parts {
    Sluice__V1__StageStatus stages[STATUS_MAX_STAGES], *stage_pointers[STATUS_MAX_STAGES];
    Sluice__V1__ProcessStatus gateways[STATUS_MAX_GATEWAYS], *gateway_pointers[STATUS_MAX_GATEWAYS];
    Sluice__V1__ProcessStatus coordinator;
    Sluice__V1__SlotStatus slots[]; /* n_slots, and as many pointers behind them */
};

static void pack_slot(const struct slot_status *s, Sluice__V1__SlotStatus *m)
{
    sluice__v1__slot_status__init(m);
    SLOT_NUMBERS(PACK_NUMBER)
    SLOT_TEXTS(PACK_TEXT)
}

static void pack_stage(const struct stage_status *s, Sluice__V1__StageStatus *m)
{
    sluice__v1__stage_status__init(m);
    STAGE_NUMBERS(PACK_NUMBER)
    STAGE_TEXTS(PACK_TEXT)
}

static void pack_process(const struct process_status *s, Sluice__V1__ProcessStatus *m)
{
    sluice__v1__process_status__init(m);
    m->host = PB_FIELD(s->host);
    m->pid = s->pid;
}

static size_t at_most(size_t n, size_t max)
{
    return n < max ? n : max;
}

grpc_byte_buffer *admin_wire_pack(const struct service_status *s)
{
    Sluice__V1__ServiceStatus status = SLUICE__V1__SERVICE_STATUS__INIT, *m = &status;
    size_t n_slots = at_most(s->n_slots, STATUS_MAX_SLOTS);
    struct parts *p = malloc(sizeof *p + n_slots * (sizeof p->slots[0] + sizeof m->slots[0]));
    if (!p)
        return NULL;
    STATUS_NUMBERS(PACK_NUMBER)
    STATUS_TEXTS(PACK_TEXT)
    pack_process(&s->coordinator, &p->coordinator);
    m->coordinator = &p->coordinator;
    m->n_gateways = at_most(s->n_gateways, STATUS_MAX_GATEWAYS);
    m->gateways = p->gateway_pointers;
    for (size_t i = 0; i < m->n_gateways; i++)
        pack_process(&s->gateways[i], p->gateway_pointers[i] = &p->gateways[i]);
    m->n_slots = n_slots;
    m->slots = (Sluice__V1__SlotStatus **)(void *)(p->slots + n_slots);
    for (size_t i = 0; i < n_slots; i++)
        pack_slot(&s->slots[i], m->slots[i] = &p->slots[i]);
    m->n_stages = at_most(s->n_stages, STATUS_MAX_STAGES);
    m->stages = p->stage_pointers;
    for (size_t i = 0; i < m->n_stages; i++)
        pack_stage(&s->stages[i], p->stage_pointers[i] = &p->stages[i]);
    grpc_byte_buffer *b = message_pack(&m->base);
    free(p);
    return b;
}

static void unpack_slot(const Sluice__V1__SlotStatus *m, struct slot_status *s)
{
    memset(s, 0, sizeof *s);
    SLOT_NUMBERS(UNPACK_NUMBER)
    SLOT_TEXTS(UNPACK_TEXT)
}

static void unpack_stage(const Sluice__V1__StageStatus *m, struct stage_status *s)
{
    STAGE_NUMBERS(UNPACK_NUMBER)
    STAGE_TEXTS(UNPACK_TEXT)
}

static void unpack_process(const Sluice__V1__ProcessStatus *m, struct process_status *s)
{
    FIELD_PB(s->host, m->host);
    s->pid = m->pid;
}

enum status admin_wire_unpack(const void *data, size_t len, struct arena *a, struct service_status *s, struct error *err)
{
    Sluice__V1__ServiceStatus *m = message_unpack(&sluice__v1__service_status__descriptor, a, data, len);
    if (!m)
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no ServiceStatus", len);
    memset(s, 0, offsetof(struct service_status, slots));
    STATUS_NUMBERS(UNPACK_NUMBER)
    STATUS_TEXTS(UNPACK_TEXT)
    if (m->coordinator)
        unpack_process(m->coordinator, &s->coordinator);
    s->n_gateways = (uint32_t)at_most(m->n_gateways, STATUS_MAX_GATEWAYS);
    for (size_t i = 0; i < s->n_gateways; i++)
        unpack_process(m->gateways[i], &s->gateways[i]);
    s->n_slots = (uint32_t)at_most(m->n_slots, STATUS_MAX_SLOTS);
    for (size_t i = 0; i < s->n_slots; i++)
        unpack_slot(m->slots[i], &s->slots[i]);
    s->n_stages = (uint32_t)at_most(m->n_stages, STATUS_MAX_STAGES);
    for (size_t i = 0; i < s->n_stages; i++)
        unpack_stage(m->stages[i], &s->stages[i]);
    return STATUS_OK;
}
