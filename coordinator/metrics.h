/* coordinator/metrics.h - counters and histograms, and their Prometheus text.
 *
 * Purpose    What only grows (counters, histograms) lives here and is written where the event happens; what is a state
 *            (gauges) is taken from the status snapshot when the page is written, so no number is kept twice.
 * Ownership  A plain struct inside the engine; a copy of it is published with the status snapshot.
 * Threading  Written by the engine's thread only.
 * Errors     None.
 */
#ifndef SLUICE_COORDINATOR_METRICS_H
#define SLUICE_COORDINATOR_METRICS_H

#include <stdint.h>

#include "common/base/buf.h"
#include "rpc/grpc/admin_api.h"

enum { HISTOGRAM_BUCKETS = 20 };

/* Seconds; bounds are HISTOGRAM_BOUNDS of metrics.c, the last bucket is +Inf. */
struct histogram {
    uint64_t count[HISTOGRAM_BUCKETS + 1];
    double sum;
};

void histogram_add(struct histogram *h, double seconds, uint64_t n);

struct stage_metrics {
    uint64_t restarts, hop_bytes, ticks;
    double busy_s, hop_s, bubble_s;
    struct histogram tick_seconds, hop_seconds;
};

enum reject_reason { REJECT_QUEUE_FULL, REJECT_QUEUE_WAIT, REJECT_CLIENT_LIMIT, REJECT_DRAINING, REJECT_NOT_READY, REJECT_N };
enum stale_kind { STALE_STAGE_MESSAGE, STALE_N };

struct metrics {
    uint64_t accepted, done, failed, cancelled, expired;
    uint64_t rejected[REJECT_N];
    uint64_t prompt_tokens, cached_tokens, generated_tokens, replayed_tokens, preemptions;
    uint64_t stale[STALE_N], protocol_errors, write_stalled;
    uint64_t ticks, decode_rows, prompt_rows;
    struct histogram ttft, itl, queue, e2e;
    struct stage_metrics stage[STATUS_MAX_STAGES];
};

/* Every name of interface.md, always, whatever the state: a gauge never vanishes. */
void metrics_write(const struct metrics *m, const struct service_status *s, struct buf *out);

#endif
