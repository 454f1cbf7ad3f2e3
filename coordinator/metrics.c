#include "coordinator/metrics.h"

#include <stdio.h>

/* Seconds. From a token on a fast GPU to a long wait in a queue. */
static const double HISTOGRAM_BOUNDS[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25,
                                                           0.5,   0.75,   1,     2.5,  5,     10,   30,    60,  120,  600};

void histogram_add(struct histogram *h, double seconds, uint64_t n)
{
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > HISTOGRAM_BOUNDS[i])
        i++;
    h->count[i] += n;
    h->sum += seconds * (double)n;
}

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\n", name, help, name, type);
}

static void one(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    buf_printf(out, "sluice_%s %.17g\n", name, value);
}

static void labelled(struct buf *out, const char *name, const char *label, const char *value, double v)
{
    buf_printf(out, "sluice_%s{%s=\"%s\"} %.17g\n", name, label, value, v);
}

static void histogram_rows(struct buf *out, const char *name, const char *labels, const struct histogram *h)
{
    const char *comma = labels[0] ? "," : "", *open = labels[0] ? "{" : "", *close = labels[0] ? "}" : "";
    uint64_t n = 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->count[i];
        buf_printf(out, "sluice_%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, HISTOGRAM_BOUNDS[i],
                   (unsigned long long)n);
    }
    n += h->count[HISTOGRAM_BUCKETS];
    buf_printf(out, "sluice_%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma, (unsigned long long)n);
    buf_printf(out, "sluice_%s_sum%s%s%s %.17g\n", name, open, labels, close, h->sum);
    buf_printf(out, "sluice_%s_count%s%s%s %llu\n", name, open, labels, close, (unsigned long long)n);
}

static void histogram_one(struct buf *out, const char *name, const char *help, const struct histogram *h)
{
    head(out, name, "histogram", help);
    histogram_rows(out, name, "", h);
}

static void write_requests(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    head(out, "requests", "gauge", "Requests by state.");
    labelled(out, "requests", "state", "queued", (double)s->queued);
    labelled(out, "requests", "state", "reading", (double)s->reading);
    labelled(out, "requests", "state", "decoding", (double)s->decoding);
    labelled(out, "requests", "state", "parked", (double)s->parked);
    head(out, "requests_total", "counter", "Ended requests by outcome.");
    labelled(out, "requests_total", "outcome", "done", (double)m->done);
    labelled(out, "requests_total", "outcome", "failed", (double)m->failed);
    labelled(out, "requests_total", "outcome", "cancelled", (double)m->cancelled);
    labelled(out, "requests_total", "outcome", "expired", (double)m->expired);
    static const char *const reasons[REJECT_N] = {"queue_full", "queue_wait", "client_limit", "draining", "not_ready"};
    head(out, "queue_rejected_total", "counter", "Requests that were told to come again, by reason.");
    for (int i = 0; i < REJECT_N; i++)
        labelled(out, "queue_rejected_total", "reason", reasons[i], (double)m->rejected[i]);
    one(out, "prompt_tokens_total", "counter", "Prompt tokens computed the first time.", (double)m->prompt_tokens);
    one(out, "cached_tokens_total", "counter", "Prompt tokens that came from the cache.", (double)m->cached_tokens);
    one(out, "generated_tokens_total", "counter", "Tokens generated.", (double)m->generated_tokens);
    one(out, "replayed_tokens_total", "counter", "Tokens computed again after a park or a recovery.",
        (double)m->replayed_tokens);
    one(out, "preemptions_total", "counter", "Requests parked for lack of blocks.", (double)m->preemptions);
    histogram_one(out, "ttft_seconds", "Arrival to first token.", &m->ttft);
    histogram_one(out, "itl_seconds", "Between two tokens of a stream.", &m->itl);
    histogram_one(out, "queue_seconds", "Arrival to slot.", &m->queue);
    histogram_one(out, "e2e_seconds", "Arrival to end.", &m->e2e);
}

static void write_tables(const struct service_status *s, struct buf *out)
{
    head(out, "blocks", "gauge", "KV blocks by state.");
    labelled(out, "blocks", "state", "free", s->blocks_free);
    labelled(out, "blocks", "state", "cached", s->blocks_cached);
    labelled(out, "blocks", "state", "live", s->blocks_live);
    labelled(out, "blocks", "state", "draining", s->blocks_draining);
    uint32_t n_free = s->concurrency_serving;
    for (uint32_t i = 0; i < s->n_slots; i++)
        n_free -= s->slots[i].request[0] != 0 && n_free > 0;
    head(out, "slots", "gauge", "Slots by state.");
    labelled(out, "slots", "state", "free", n_free);
    labelled(out, "slots", "state", "reading", (double)s->reading);
    labelled(out, "slots", "state", "decoding", (double)s->decoding);
}

enum stage_field { FIELD_BUSY, FIELD_RESTARTS, FIELD_HOP_BYTES, FIELD_BUBBLE };

static void stage_rows(const struct metrics *m, const struct service_status *s, const char *name, enum stage_field field,
                       struct buf *out)
{
    for (uint32_t i = 0; i < s->n_stages; i++) {
        const struct stage_metrics *g = &m->stage[i];
        double v = field == FIELD_BUSY       ? s->stages[i].busy_ratio
                   : field == FIELD_RESTARTS ? (double)g->restarts
                   : field == FIELD_HOP_BYTES ? (double)g->hop_bytes
                                              : g->bubble_s;
        buf_printf(out, "sluice_%s{stage=\"%u\"} %.17g\n", name, i, v);
    }
}

static void write_stages(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    char label[32];
    head(out, "stage_busy_ratio", "gauge", "Share of the last second in which the stage computed.");
    stage_rows(m, s, "stage_busy_ratio", FIELD_BUSY, out);
    head(out, "stage_restarts_total", "counter", "New processes of a stage after the first.");
    stage_rows(m, s, "stage_restarts_total", FIELD_RESTARTS, out);
    head(out, "hop_bytes_total", "counter", "Bytes a stage sent to the next.");
    stage_rows(m, s, "hop_bytes_total", FIELD_HOP_BYTES, out);
    head(out, "bubble_seconds_total", "counter", "Time a stage waited for rows while it had a plan.");
    stage_rows(m, s, "bubble_seconds_total", FIELD_BUBBLE, out);
    head(out, "stage_tick_seconds", "histogram", "Compute time of a tick.");
    for (uint32_t i = 0; i < s->n_stages; i++) {
        snprintf(label, sizeof label, "stage=\"%u\"", i);
        histogram_rows(out, "stage_tick_seconds", label, &m->stage[i].tick_seconds);
    }
    head(out, "hop_seconds", "histogram", "Time to hand a tick to the next stage.");
    for (uint32_t i = 0; i < s->n_stages; i++) {
        snprintf(label, sizeof label, "stage=\"%u\"", i);
        histogram_rows(out, "hop_seconds", label, &m->stage[i].hop_seconds);
    }
}

void metrics_write(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    write_requests(m, s, out);
    write_tables(s, out);
    write_stages(m, s, out);
    static const char *const tiers[] = {"device", "host", "disk"};
    head(out, "cache_evicted_blocks_total", "counter", "Cached blocks given up, by tier.");
    for (int i = 0; i < 3; i++)
        labelled(out, "cache_evicted_blocks_total", "tier", tiers[i], 0);
    head(out, "cache_restored_blocks_total", "counter", "Blocks brought back, by tier.");
    for (int i = 1; i < 3; i++)
        labelled(out, "cache_restored_blocks_total", "tier", tiers[i], 0);
    one(out, "cache_damaged_total", "counter", "Stored blocks that failed their check.", 0);
    static const char *const kinds[STALE_N] = {"stage_message"};
    head(out, "stale_messages_total", "counter", "Messages of another epoch that were dropped.");
    for (int i = 0; i < STALE_N; i++)
        labelled(out, "stale_messages_total", "kind", kinds[i], (double)m->stale[i]);
    head(out, "protocol_errors_total", "counter", "Messages that broke the protocol.");
    labelled(out, "protocol_errors_total", "peer", "stage", (double)m->protocol_errors);
    one(out, "write_stalled_total", "counter", "Requests ended because their client read nothing.", (double)m->write_stalled);
    one(out, "ticks_total", "counter", "Ticks sent.", (double)m->ticks);
    head(out, "tick_rows", "counter", "Rows of all ticks, by kind.");
    labelled(out, "tick_rows", "kind", "decode", (double)m->decode_rows);
    labelled(out, "tick_rows", "kind", "prompt", (double)m->prompt_rows);
    one(out, "ticks_in_flight", "gauge", "Ticks sent and not retired.", s->ticks_in_flight);
    one(out, "epoch", "gauge", "Epoch of the pipeline.", (double)s->epoch);
    one(out, "ready", "gauge", "1 when the pipeline serves.", s->ready);
}
