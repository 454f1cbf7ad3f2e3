#include "rpc/gateway/status_json.h"

#include "rpc/gateway/json_out.h"

typedef unsigned long long u64;

static const char *yes(int v)
{
    return v ? "true" : "false";
}

static void write_slots(struct buf *b, const struct service_status *s)
{
    buf_text(b, ",\"slots\":[");
    for (uint32_t i = 0; i < s->n_slots && i < STATUS_MAX_SLOTS; i++) {
        const struct slot_status *t = &s->slots[i];
        buf_printf(b, "%s{\"slot\":%u,\"state\":", i ? "," : "", t->slot);
        json_out_text(b, t->state);
        buf_text(b, ",\"request\":");
        json_out_text_or_null(b, t->request);
        buf_printf(
            b, ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"read_tokens\":%u,\"generated_tokens\":%u,\"age_ms\":%llu}",
            t->prompt_tokens, t->cached_tokens, t->read_tokens, t->generated_tokens, (u64)t->age_ms);
    }
    buf_text(b, "]");
}

static void write_process(struct buf *b, const struct process_status *p)
{
    buf_text(b, "{\"host\":");
    json_out_text(b, p->host);
    buf_printf(b, ",\"pid\":%u}", p->pid);
}

static void write_stages(struct buf *b, const struct service_status *s)
{
    buf_text(b, ",\"stages\":[");
    for (uint32_t i = 0; i < s->n_stages && i < STATUS_MAX_STAGES; i++) {
        const struct stage_status *t = &s->stages[i];
        buf_printf(b, "%s{\"stage\":%u,\"host\":", i ? "," : "", t->stage);
        json_out_text(b, t->host);
        buf_printf(b, ",\"pid\":%u,\"state\":", t->pid);
        json_out_text(b, t->state);
        buf_printf(b, ",\"layers\":[%u,%u],\"backend\":", t->first_layer, t->end_layer);
        json_out_text(b, t->backend);
        buf_printf(b, ",\"weight_bytes\":%llu,\"kv_bytes\":%llu,\"restarts\":%u,\"busy_ratio\":", (u64)t->weight_bytes,
                   (u64)t->kv_bytes, t->restarts);
        json_out_real(b, t->busy_ratio);
        buf_text(b, ",\"bubble_ratio\":");
        json_out_real(b, t->bubble_ratio);
        buf_printf(b, ",\"hop_us\":%llu,\"tick_age_ms\":%llu}", (u64)t->hop_us, (u64)t->tick_age_ms);
    }
    buf_text(b, "]");
}

static void write_head(struct buf *b, const struct service_status *s)
{
    buf_text(b, "{\"service\":\"sluice\",\"version\":");
    json_out_text(b, s->version);
    buf_printf(b, ",\"live\":%s,\"ready\":%s,\"draining\":%s,\"epoch\":%llu,\"uptime_s\":", yes(s->live), yes(s->ready),
               yes(s->draining), (u64)s->epoch);
    json_out_real(b, s->uptime_s);
    if (!s->ready) {
        buf_printf(b, ",\"lost_ms\":%llu,\"not_ready\":", (u64)s->lost_ms);
        json_out_text(b, s->not_ready);
    }
    buf_text(b, ",\"model\":{\"id\":");
    json_out_text(b, s->model_id);
    buf_text(b, ",\"architecture\":");
    json_out_text(b, s->architecture);
    buf_text(b, ",\"profile\":");
    json_out_text(b, s->profile);
    buf_printf(b, ",\"layers\":%u,\"context\":%u,\"vocabulary\":%u}", s->model_layers, s->model_context,
               s->model_vocabulary);
}

static void write_ticks(struct buf *b, const struct service_status *s)
{
    buf_printf(b,
               ",\"ticks\":{\"sent\":%llu,\"in_flight\":%u,\"window\":%u,\"streams\":%u,\"readers\":%u,\"starved\":%u,"
               "\"period_us\":%u,\"budget_us\":%u,\"bank_us\":%d,\"bank_bound_us\":%u,\"stall_unmet\":%s}",
               (u64)s->ticks_sent, s->ticks_in_flight, s->tick_window, s->tick_streams, s->tick_readers, s->tick_starved,
               s->tick_period_us, s->tick_budget_us, s->bank_us, s->bank_bound_us, yes((int)s->stall_unmet));
}

void status_json_write(struct buf *b, const struct service_status *s)
{
    write_head(b, s);
    buf_printf(b, ",\"concurrency\":{\"requested\":%u,\"serving\":%u}", s->concurrency_requested,
               s->concurrency_serving);
    buf_printf(b,
               ",\"requests\":{\"queued\":%llu,\"reading\":%llu,\"decoding\":%llu,\"parked\":%llu,\"accepted\":%llu,"
               "\"done\":%llu,\"failed\":%llu,\"cancelled\":%llu}",
               (u64)s->queued, (u64)s->reading, (u64)s->decoding, (u64)s->parked, (u64)s->accepted, (u64)s->done,
               (u64)s->failed, (u64)s->cancelled);
    write_slots(b, s);
    buf_printf(b,
               ",\"queue\":{\"requests\":%llu,\"tokens\":%llu,\"oldest_ms\":%llu,\"limit_requests\":%llu,\"limit_"
               "tokens\":%llu}",
               (u64)s->queue_requests, (u64)s->queue_tokens, (u64)s->queue_oldest_ms, (u64)s->queue_limit_requests,
               (u64)s->queue_limit_tokens);
    buf_printf(b,
               ",\"blocks\":{\"size\":%u,\"total\":%u,\"free\":%u,\"cached\":%u,\"live\":%u,\"draining\":%u,"
               "\"promised\":%u,\"evicted\":%llu}",
               s->block_size, s->blocks_total, s->blocks_free, s->blocks_cached, s->blocks_live, s->blocks_draining,
               s->blocks_promised, (u64)s->blocks_evicted);
    buf_text(b, ",\"coordinator\":");
    write_process(b, &s->coordinator);
    buf_text(b, ",\"gateways\":[");
    for (uint32_t i = 0; i < s->n_gateways && i < STATUS_MAX_GATEWAYS; i++) {
        buf_text(b, i ? "," : "");
        write_process(b, &s->gateways[i]);
    }
    buf_text(b, "]");
    write_stages(b, s);
    write_ticks(b, s);
    buf_printf(b, ",\"age_ms\":%llu}", (u64)s->age_ms);
}
