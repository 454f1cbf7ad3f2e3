/* coordinator/metrics.h - counters and histograms, and their Prometheus text.
 *
 * Purpose    What only grows (counters, histograms) lives here and is written where the event happens; what is a state
 *            (gauges) is taken from the status snapshot when the page is written, so no number is kept twice.
 * Ownership  A plain struct inside the engine; a copy of it is published with the status snapshot.
 * Threading  Counting: the engine's thread only. Writing a page: pure, of copies.
 * Invariants 1. done == done_stop + done_length, and each histogram of such requests has as many entries (tpot: of two tokens or more).
 *            2. Each histogram of tick_rows has `ticks` entries.
 *            3. prompt_tokens, cached_tokens and replayed_tokens count different tokens: computed the first time, taken from
 *               the cache, computed again.
 * Errors     None; a page without memory is a failed buf.
 */
#ifndef SLUICE_COORDINATOR_METRICS_H
#define SLUICE_COORDINATOR_METRICS_H

#include <stdint.h>

#include "common/base/buf.h"
#include "coordinator/blocks.h" /* struct blocks_count: plain data */
#include "rpc/grpc/admin_api.h"
#include "rpc/grpc/inference_api.h" /* struct usage: plain data */

enum { HISTOGRAM_BUCKETS = 20 };

/* Of seconds or of numbers (rows, tokens): each kind has its own bounds, the last bucket is +Inf. */
struct histogram {
    uint64_t count[HISTOGRAM_BUCKETS + 1];
    double sum;
};

enum histogram_kind { HISTOGRAM_SECONDS, HISTOGRAM_NUMBERS };
extern const double histogram_bounds[2][HISTOGRAM_BUCKETS];

void histogram_add(struct histogram *h, double seconds, uint64_t n);
void histogram_add_number(struct histogram *h, uint64_t number);

struct stage_metrics {
    uint64_t restarts, hop_bytes, ticks;
    double busy_s, bubble_s;
    struct histogram tick_seconds, hop_seconds;
};

enum reject_reason { REJECT_QUEUE_FULL, REJECT_QUEUE_WAIT, REJECT_CLIENT_LIMIT, REJECT_DRAINING, REJECT_NOT_READY, REJECT_N };
/* Messages of another epoch, where they were dropped: by the coordinator, or by a stage as its heartbeats say. */
enum stale_kind { STALE_STAGE_MESSAGE, STALE_PLAN, STALE_EPOCH, STALE_LINK, STALE_FRAME, STALE_FEEDBACK, STALE_N };

struct metrics {
    uint64_t accepted, done, failed, cancelled, expired;
    uint64_t done_stop, done_length;
    uint64_t rejected[REJECT_N];
    uint64_t prompt_tokens, cached_tokens, generated_tokens, replayed_tokens, preemptions;
    uint64_t stale[STALE_N], protocol_errors, write_stalled;
    uint64_t ticks, decode_rows, prompt_rows;
    struct blocks_count window_blocks; /* of layers with a window; total 0: the model has none */
    struct histogram ttft, itl, queue, e2e;
    struct histogram read, decode, inference, tpot, request_prompt, request_generated; /* of requests that ended well */
    struct histogram tick_decode_rows, tick_prompt_rows, tick_rows;
    struct stage_metrics stage[STATUS_MAX_STAGES];
};

/* A tick was sent. Rows that are read again after a park are prompt rows. */
void metrics_count_tick(struct metrics *m, uint32_t n_decode, uint32_t n_prompt);
/* A request ended well; usage as its client was told. */
void metrics_count_done(struct metrics *m, const struct usage *usage, enum finish_reason reason);

/* Every name of interface.md, always, whatever the state: a gauge never vanishes. */
void metrics_write(const struct metrics *m, const struct service_status *s, struct buf *out);
/* The same facts under the names of vLLM's page, as its public dashboards ask for them. */
void metrics_write_vllm(const struct metrics *m, const struct service_status *s, const char *model_name, struct buf *out);

#endif
