#include "coordinator/metrics.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/metrics_text.h"

/* Seconds: from a token on a fast GPU to a long wait in a queue. Numbers: rows of a tick, tokens of a request. */
const double histogram_bounds[2][HISTOGRAM_BUCKETS] = {
    {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 30, 60, 120, 600},
    {0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6},
};

/* --- counting ----------------------------------------------------------------------------------------------------------------- */

static void add(struct histogram *h, enum histogram_kind kind, double value, uint64_t n)
{
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && value > histogram_bounds[kind][i])
        i++;
    h->count[i] += n;
    h->sum += value * (double)n;
}

/* A clock that the caller steps may stand: an interval is never negative, or a sum would fall. */
void histogram_add(struct histogram *h, double seconds, uint64_t n)
{
    add(h, HISTOGRAM_SECONDS, seconds > 0 ? seconds : 0, n);
}

void histogram_add_number(struct histogram *h, uint64_t number)
{
    add(h, HISTOGRAM_NUMBERS, (double)number, 1);
}

void metrics_count_tick(struct metrics *m, uint32_t n_decode, uint32_t n_prompt)
{
    m->ticks++;
    m->decode_rows += n_decode;
    m->prompt_rows += n_prompt;
    histogram_add_number(&m->tick_decode_rows, n_decode);
    histogram_add_number(&m->tick_prompt_rows, n_prompt);
    histogram_add_number(&m->tick_rows, (uint64_t)n_decode + n_prompt);
}

void metrics_count_done(struct metrics *m, const struct usage *usage, enum finish_reason reason)
{
    m->done++;
    if (reason == FINISH_LENGTH)
        m->done_length++;
    else
        m->done_stop++;
    histogram_add(&m->read, usage->prompt_ms / 1e3, 1);
    histogram_add(&m->decode, usage->decode_ms / 1e3, 1);
    histogram_add(&m->inference, (usage->prompt_ms + usage->decode_ms) / 1e3, 1);
    if (usage->completion_tokens > 1)
        histogram_add(&m->tpot, usage->decode_ms / 1e3 / (usage->completion_tokens - 1), 1);
    histogram_add_number(&m->request_prompt, usage->prompt_tokens);
    histogram_add_number(&m->request_generated, usage->completion_tokens);
}

/* --- the page ------------------------------------------------------------------------------------------------------------------ */

#define NAME "sluice_"

static void one(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    metrics_text_head(out, name, type, help);
    metrics_text_sample(out, name, "", value);
}

static void labelled(struct buf *out, const char *name, const char *label, const char *value, double v)
{
    char labels[64];
    metrics_text_label(labels, sizeof labels, label, value);
    metrics_text_sample(out, name, labels, v);
}

static void histogram_one(struct buf *out, const char *name, const char *help, enum histogram_kind kind,
                          const struct histogram *h)
{
    metrics_text_head(out, name, "histogram", help);
    metrics_text_histogram(out, name, "", kind, h);
}

static void write_requests(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    metrics_text_head(out, NAME "requests", "gauge", "Requests by state.");
    labelled(out, NAME "requests", "state", "queued", (double)s->queued);
    labelled(out, NAME "requests", "state", "reading", (double)s->reading);
    labelled(out, NAME "requests", "state", "decoding", (double)s->decoding);
    labelled(out, NAME "requests", "state", "parked", (double)s->parked);
    one(out, NAME "requests_accepted_total", "counter", "Requests that were taken.", (double)m->accepted);
    metrics_text_head(out, NAME "requests_total", "counter", "Ended requests by outcome.");
    labelled(out, NAME "requests_total", "outcome", "done", (double)m->done);
    labelled(out, NAME "requests_total", "outcome", "failed", (double)m->failed);
    labelled(out, NAME "requests_total", "outcome", "cancelled", (double)m->cancelled);
    labelled(out, NAME "requests_total", "outcome", "expired", (double)m->expired);
    metrics_text_head(out, NAME "requests_done_total", "counter", "Requests that ended well, by what ended the answer.");
    labelled(out, NAME "requests_done_total", "reason", "stop", (double)m->done_stop);
    labelled(out, NAME "requests_done_total", "reason", "length", (double)m->done_length);
    static const char *const reasons[REJECT_N] = {"queue_full", "queue_wait", "client_limit", "draining", "not_ready"};
    metrics_text_head(out, NAME "queue_rejected_total", "counter", "Requests that were told to come again, by reason.");
    for (int i = 0; i < REJECT_N; i++)
        labelled(out, NAME "queue_rejected_total", "reason", reasons[i], (double)m->rejected[i]);
    one(out, NAME "queue_tokens", "gauge", "Prompt tokens of waiting requests.", (double)s->queue_tokens);
    one(out, NAME "queue_oldest_seconds", "gauge", "How long the first in line has waited.", (double)s->queue_oldest_ms / 1e3);
}

static void write_tokens(const struct metrics *m, struct buf *out)
{
    one(out, NAME "prompt_tokens_total", "counter", "Prompt tokens computed the first time.", (double)m->prompt_tokens);
    one(out, NAME "cached_tokens_total", "counter", "Prompt tokens that came from the cache.", (double)m->cached_tokens);
    one(out, NAME "generated_tokens_total", "counter", "Tokens generated.", (double)m->generated_tokens);
    one(out, NAME "replayed_tokens_total", "counter", "Tokens computed again after a park or a recovery.",
        (double)m->replayed_tokens);
    one(out, NAME "preemptions_total", "counter", "Requests parked for lack of blocks.", (double)m->preemptions);
}

static void write_times(const struct metrics *m, struct buf *out)
{
    histogram_one(out, NAME "ttft_seconds", "Arrival to first token.", HISTOGRAM_SECONDS, &m->ttft);
    histogram_one(out, NAME "itl_seconds", "Between two tokens of a stream.", HISTOGRAM_SECONDS, &m->itl);
    histogram_one(out, NAME "queue_seconds", "Arrival to slot.", HISTOGRAM_SECONDS, &m->queue);
    histogram_one(out, NAME "e2e_seconds", "Arrival to end.", HISTOGRAM_SECONDS, &m->e2e);
    histogram_one(out, NAME "read_seconds", "Slot to first token.", HISTOGRAM_SECONDS, &m->read);
    histogram_one(out, NAME "decode_seconds", "First token to last.", HISTOGRAM_SECONDS, &m->decode);
    histogram_one(out, NAME "tpot_seconds", "Mean time between the tokens of one answer.", HISTOGRAM_SECONDS, &m->tpot);
    histogram_one(out, NAME "request_prompt_tokens", "Prompt tokens of a request that ended well.", HISTOGRAM_NUMBERS,
                  &m->request_prompt);
    histogram_one(out, NAME "request_generated_tokens", "Answer tokens of a request that ended well.", HISTOGRAM_NUMBERS,
                  &m->request_generated);
}

static uint32_t count_slots(const struct service_status *s, const char *state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_slots; i++)
        n += strcmp(s->slots[i].state, state) == 0;
    return n;
}

/* The blocks of layers that see a window are another size, and there are others of them: no sums. */
static void write_window(const struct metrics *m, struct buf *out)
{
    if (m->window_blocks.total == 0)
        return;
    metrics_text_head(out, NAME "window_blocks", "gauge", "KV blocks of layers that see the last positions only, by state.");
    labelled(out, NAME "window_blocks", "state", "free", m->window_blocks.free);
    labelled(out, NAME "window_blocks", "state", "cached", m->window_blocks.cached);
    labelled(out, NAME "window_blocks", "state", "live", m->window_blocks.live);
    labelled(out, NAME "window_blocks", "state", "draining", m->window_blocks.draining);
    one(out, NAME "window_evicted_blocks_total", "counter", "Cached ones given up.", (double)m->window_blocks.evicted);
}

static void write_tables(const struct service_status *s, struct buf *out)
{
    static const char *const slot_states[] = {"free", "reading", "decoding"};
    metrics_text_head(out, NAME "blocks", "gauge", "KV blocks by state.");
    labelled(out, NAME "blocks", "state", "free", s->blocks_free);
    labelled(out, NAME "blocks", "state", "cached", s->blocks_cached);
    labelled(out, NAME "blocks", "state", "live", s->blocks_live);
    labelled(out, NAME "blocks", "state", "draining", s->blocks_draining);
    one(out, NAME "blocks_promised", "gauge", "KV blocks that running requests may still take.", s->blocks_promised);
    metrics_text_head(out, NAME "slots", "gauge", "Slots by state.");
    for (int i = 0; i < 3; i++)
        labelled(out, NAME "slots", "state", slot_states[i], count_slots(s, slot_states[i]));
}

enum stage_field { FIELD_BUSY, FIELD_BUBBLE_RATIO, FIELD_READY, FIELD_RESTARTS, FIELD_HOP_BYTES, FIELD_BUBBLE };

static double stage_value(const struct metrics *m, const struct service_status *s, enum stage_field field, uint32_t i)
{
    switch (field) {
    case FIELD_BUSY:
        return s->stages[i].busy_ratio;
    case FIELD_BUBBLE_RATIO:
        return s->stages[i].bubble_ratio;
    case FIELD_READY:
        return strcmp(s->stages[i].state, "ready") == 0;
    case FIELD_RESTARTS:
        return (double)m->stage[i].restarts;
    case FIELD_HOP_BYTES:
        return (double)m->stage[i].hop_bytes;
    case FIELD_BUBBLE:
        return m->stage[i].bubble_s;
    }
    return 0;
}

static void stage_label(char out[32], uint32_t stage)
{
    snprintf(out, 32, "stage=\"%u\"", stage);
}

static void write_stage_values(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    static const struct {
        const char *name, *type, *help;
        enum stage_field field;
    } rows[] = {
        {NAME "stage_busy_ratio", "gauge", "Share of its last second of work in which the stage computed.", FIELD_BUSY},
        {NAME "stage_bubble_ratio", "gauge", "Share of it in which the stage waited for rows with a plan in hand.",
         FIELD_BUBBLE_RATIO},
        {NAME "stage_ready", "gauge", "1 when the stage serves.", FIELD_READY},
        {NAME "stage_restarts_total", "counter", "New processes of a stage after the first.", FIELD_RESTARTS},
        {NAME "hop_bytes_total", "counter", "Bytes a stage sent to the next.", FIELD_HOP_BYTES},
        {NAME "bubble_seconds_total", "counter", "Time a stage waited for rows while it had a plan.", FIELD_BUBBLE},
    };
    char label[32];
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        metrics_text_head(out, rows[k].name, rows[k].type, rows[k].help);
        for (uint32_t i = 0; i < s->n_stages; i++) {
            stage_label(label, i);
            metrics_text_sample(out, rows[k].name, label, stage_value(m, s, rows[k].field, i));
        }
    }
}

static void write_stage_times(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    char label[32];
    metrics_text_head(out, NAME "stage_tick_seconds", "histogram", "Compute time of a tick.");
    for (uint32_t i = 0; i < s->n_stages; i++) {
        stage_label(label, i);
        metrics_text_histogram(out, NAME "stage_tick_seconds", label, HISTOGRAM_SECONDS, &m->stage[i].tick_seconds);
    }
    metrics_text_head(out, NAME "hop_seconds", "histogram", "Time to hand a tick to the next stage.");
    for (uint32_t i = 0; i < s->n_stages; i++) {
        stage_label(label, i);
        metrics_text_histogram(out, NAME "hop_seconds", label, HISTOGRAM_SECONDS, &m->stage[i].hop_seconds);
    }
}

/* Only blocks in device memory are kept: the lower tiers evict and restore nothing. */
static void write_cache(const struct service_status *s, struct buf *out)
{
    static const char *const tiers[] = {"device", "host", "disk"};
    metrics_text_head(out, NAME "cache_evicted_blocks_total", "counter", "Cached blocks given up, by tier.");
    for (int i = 0; i < 3; i++)
        labelled(out, NAME "cache_evicted_blocks_total", "tier", tiers[i], i == 0 ? (double)s->blocks_evicted : 0);
    metrics_text_head(out, NAME "cache_restored_blocks_total", "counter", "Blocks brought back, by tier.");
    for (int i = 1; i < 3; i++)
        labelled(out, NAME "cache_restored_blocks_total", "tier", tiers[i], 0);
    one(out, NAME "cache_damaged_total", "counter", "Stored blocks that failed their check.", 0);
}

static void write_faults(const struct metrics *m, struct buf *out)
{
    static const char *const kinds[STALE_N] = {"stage_message", "plan", "epoch", "link", "frame", "feedback"};
    metrics_text_head(out, NAME "stale_messages_total", "counter", "Messages of another epoch that were dropped.");
    for (int i = 0; i < STALE_N; i++)
        labelled(out, NAME "stale_messages_total", "kind", kinds[i], (double)m->stale[i]);
    metrics_text_head(out, NAME "protocol_errors_total", "counter", "Messages that broke the protocol.");
    labelled(out, NAME "protocol_errors_total", "peer", "stage", (double)m->protocol_errors);
    one(out, NAME "write_stalled_total", "counter", "Requests ended because their client read nothing.",
        (double)m->write_stalled);
}

static void write_ticks(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    one(out, NAME "ticks_total", "counter", "Ticks sent.", (double)m->ticks);
    metrics_text_head(out, NAME "tick_rows", "histogram", "Rows of a tick, by kind.");
    metrics_text_histogram(out, NAME "tick_rows", "kind=\"decode\"", HISTOGRAM_NUMBERS, &m->tick_decode_rows);
    metrics_text_histogram(out, NAME "tick_rows", "kind=\"prompt\"", HISTOGRAM_NUMBERS, &m->tick_prompt_rows);
    one(out, NAME "ticks_in_flight", "gauge", "Ticks sent and not retired.", s->ticks_in_flight);
    one(out, NAME "tick_window", "gauge", "Most ticks that may be in flight.", s->tick_window);
    one(out, NAME "starved_sequences", "gauge", "Sequences that stand still for want of blocks.", s->tick_starved);
    one(out, NAME "tick_budget_seconds", "gauge", "What the last tick was allowed to take on a stage.", s->tick_budget_us / 1e6);
    one(out, NAME "decode_period_seconds", "gauge", "Time between two rows of a stream without prompts beside it.",
        s->tick_period_us / 1e6);
    one(out, NAME "bank_seconds", "gauge", "Time saved up for a burst of prompt rows; below zero: owed to the streams.", s->bank_us / 1e6);
    one(out, NAME "bank_bound_seconds", "gauge", "Most that may be saved up.", s->bank_bound_us / 1e6);
    one(out, NAME "stall_unmet", "gauge", "1 when decoding alone is slower than --max-stall-ms.", s->stall_unmet);
}

void metrics_write(const struct metrics *m, const struct service_status *s, struct buf *out)
{
    write_requests(m, s, out);
    write_tokens(m, out);
    write_times(m, out);
    write_tables(s, out);
    write_window(m, out);
    write_stage_values(m, s, out);
    write_stage_times(m, s, out);
    write_cache(s, out);
    write_faults(m, out);
    write_ticks(m, s, out);
    one(out, NAME "epoch", "gauge", "Epoch of the pipeline.", (double)s->epoch);
    one(out, NAME "ready", "gauge", "1 when the pipeline serves.", s->ready);
}
