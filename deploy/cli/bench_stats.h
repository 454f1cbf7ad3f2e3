/* deploy/cli/bench_stats.h - the arithmetic of measuring.
 *
 * Purpose    Samples and their percentiles, objectives and goodput, tokens and gaps of a stream within a window of time. TTFT, ITL,
 *            TPOT and E2E are those of vLLM's benchmark_serving; percentiles interpolate as numpy's default does.
 * Ownership  samples_fini and marks_fini free what was added.
 * Threading  Pure.
 * Errors     A sample that finds no memory is dropped and `n_lost` counts it. slo_parse: CONFIG.
 */
#ifndef SLUICE_DEPLOY_CLI_BENCH_STATS_H
#define SLUICE_DEPLOY_CLI_BENCH_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

struct samples {
    float *v;
    size_t n, size, n_lost;
};

void samples_add(struct samples *s, double value);
void samples_add_all(struct samples *s, const struct samples *more);
void samples_fini(struct samples *s);

struct summary {
    size_t n;
    double mean, min, median, p90, p99, max; /* all 0 without samples */
};

/* Sorts the samples. */
struct summary samples_summary(struct samples *s);
/* part in 0..1 of sorted samples; between two of them in proportion. 0 when there are none. */
double samples_percentile(const struct samples *sorted, double part);

/* Objectives of a request in ms; 0: none. itl bounds its longest gap, tpot the mean. */
struct slo {
    double ttft_ms, itl_ms, tpot_ms, e2e_ms;
};

/* "ttft:500,itl:100": names of struct slo, each once. */
enum status slo_parse(const char *text, struct slo *out, struct error *err);
int slo_any(const struct slo *o);
int slo_met(const struct slo *o, const struct slo *measured);

/* When the tokens of a stream came. `first`: the first of an answer, so what lies before it is no gap. */
struct mark {
    int64_t at_ns;
    int first;
};

struct marks {
    struct mark *v;
    size_t n, size, n_lost;
};

void marks_add(struct marks *m, int64_t at_ns, int first);
void marks_fini(struct marks *m);
/* Tokens in (from, to]. */
uint64_t marks_count(const struct marks *m, int64_t from_ns, int64_t to_ns);
/* Adds the gaps, in ms, that lie wholly within [from, to]. */
void marks_gaps_within(const struct marks *m, int64_t from_ns, int64_t to_ns, struct samples *out);
/* Adds those that share time with (from, to), at their whole length. open_until_ns > 0: the last token's answer still runs then, and
 * its silence so far is a gap too. */
void marks_gaps_across(const struct marks *m, int64_t from_ns, int64_t to_ns, int64_t open_until_ns, struct samples *out);

#endif
