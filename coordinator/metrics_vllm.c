/* The page's facts under vLLM's names (docs.vllm.ai, "Production Metrics", and the dashboards of its repository), with its
 * labels. Where vLLM renamed something, dashboards of both ages find it. Its prompt counter has what the cache gave, too; its
 * running requests have a slot, its waiting ones none. Names without a fact here (LoRA, speculation, KV transfer) are left
 * out, as vLLM leaves out what is off. */
#include <stdio.h>

#include "coordinator/metrics_text.h"

#define NAME "vllm:"

struct page {
    struct buf *out;
    char labels[192];
};

static void one(const struct page *p, const char *name, const char *type, const char *help, double value)
{
    metrics_text_head(p->out, name, type, help);
    metrics_text_sample(p->out, name, p->labels, value);
}

static void histogram(const struct page *p, const char *name, const char *help, enum histogram_kind kind,
                      const struct histogram *h)
{
    metrics_text_head(p->out, name, "histogram", help);
    metrics_text_histogram(p->out, name, p->labels, kind, h);
}

static void write_states(const struct page *p, const struct service_status *s)
{
    uint64_t used = (uint64_t)s->blocks_live + s->blocks_draining; /* what is only cached is free in vLLM's sense */
    double usage = s->blocks_total ? (double)used / s->blocks_total : 0;
    one(p, NAME "num_requests_running", "gauge", "Requests with a slot.", (double)(s->reading + s->decoding));
    one(p, NAME "num_requests_waiting", "gauge", "Requests without one.", (double)(s->queued + s->parked));
    one(p, NAME "num_requests_swapped", "gauge", "Of the waiting ones, those that had begun.", (double)s->parked);
    one(p, NAME "kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.", usage);
    one(p, NAME "gpu_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1 (older name).", usage);
}

static void write_counters(const struct page *p, const struct metrics *m)
{
    double prompt = (double)m->prompt_tokens, cached = (double)m->cached_tokens;
    one(p, NAME "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", prompt + cached);
    one(p, NAME "prefix_cache_hits_total", "counter", "Prompt tokens found there.", cached);
    one(p, NAME "gpu_prefix_cache_queries_total", "counter", "Prompt tokens looked up (older name).", prompt + cached);
    one(p, NAME "gpu_prefix_cache_hits_total", "counter", "Prompt tokens found (older name).", cached);
    one(p, NAME "num_preemptions_total", "counter", "Requests that gave their blocks back and wait again.",
        (double)m->preemptions);
    one(p, NAME "prompt_tokens_total", "counter", "Prompt tokens, cached ones included.", prompt + cached);
    one(p, NAME "prompt_tokens_cached_total", "counter", "Prompt tokens from the cache.", cached);
    one(p, NAME "generation_tokens_total", "counter", "Tokens generated.", (double)m->generated_tokens);
}

static void write_ends(const struct page *p, const struct metrics *m)
{
    const struct {
        const char *reason;
        uint64_t n;
    } rows[] = {{"stop", m->done_stop}, {"length", m->done_length}, {"abort", m->cancelled}, {"error", m->failed + m->expired}};
    metrics_text_head(p->out, NAME "request_success_total", "counter", "Ended requests by reason.");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char labels[256], reason[40];
        metrics_text_label(reason, sizeof reason, "finished_reason", rows[i].reason);
        snprintf(labels, sizeof labels, "%s,%s", p->labels, reason);
        metrics_text_sample(p->out, NAME "request_success_total", labels, (double)rows[i].n);
    }
}

static void write_histograms(const struct page *p, const struct metrics *m)
{
    histogram(p, NAME "time_to_first_token_seconds", "Arrival to first token.", HISTOGRAM_SECONDS, &m->ttft);
    histogram(p, NAME "inter_token_latency_seconds", "Between two tokens of a stream.", HISTOGRAM_SECONDS, &m->itl);
    histogram(p, NAME "time_per_output_token_seconds", "Between two tokens of a stream (older name).", HISTOGRAM_SECONDS, &m->itl);
    histogram(p, NAME "request_time_per_output_token_seconds", "Mean time between the tokens of one answer.", HISTOGRAM_SECONDS,
              &m->tpot);
    histogram(p, NAME "e2e_request_latency_seconds", "Arrival to end.", HISTOGRAM_SECONDS, &m->e2e);
    histogram(p, NAME "request_queue_time_seconds", "Arrival to slot.", HISTOGRAM_SECONDS, &m->queue);
    histogram(p, NAME "request_prefill_time_seconds", "Slot to first token.", HISTOGRAM_SECONDS, &m->read);
    histogram(p, NAME "request_decode_time_seconds", "First token to last.", HISTOGRAM_SECONDS, &m->decode);
    histogram(p, NAME "request_inference_time_seconds", "Slot to last token.", HISTOGRAM_SECONDS, &m->inference);
    histogram(p, NAME "request_prompt_tokens", "Prompt tokens of a request.", HISTOGRAM_NUMBERS, &m->request_prompt);
    histogram(p, NAME "request_generation_tokens", "Answer tokens of a request.", HISTOGRAM_NUMBERS, &m->request_generated);
    histogram(p, NAME "iteration_tokens_total", "Rows of a tick.", HISTOGRAM_NUMBERS, &m->tick_rows);
}

void metrics_write_vllm(const struct metrics *m, const struct service_status *s, const char *model_name, struct buf *out)
{
    struct page p = {.out = out};
    char model[160];
    metrics_text_label(model, sizeof model, "model_name", model_name);
    snprintf(p.labels, sizeof p.labels, "%s,engine=\"0\"", model);
    write_states(&p, s);
    write_counters(&p, m);
    write_ends(&p, m);
    write_histograms(&p, m);
}
