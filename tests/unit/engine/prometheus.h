/* tests/unit/engine/prometheus.h - a strict reader of Prometheus text (exposition format 0.0.4), for tests.
 *
 * Purpose    Refuses what promtool would refuse or warn about: samples without HELP and TYPE, families in pieces, names or
 *            labels out of their alphabet, doubled series, counters below 0, histograms whose buckets fall or lack +Inf.
 * Ownership  prometheus_read fills a plain struct; names point into the text.
 * Threading  Pure.
 * Errors     0 and a reason with the line number.
 */
#ifndef SLUICE_TESTS_UNIT_ENGINE_PROMETHEUS_H
#define SLUICE_TESTS_UNIT_ENGINE_PROMETHEUS_H

#include <stddef.h>

enum { PROMETHEUS_MAX_FAMILIES = 128, PROMETHEUS_MAX_SAMPLES = 4096 };

struct prometheus_family {
    char name[96], type[16];
    int n_samples;
};

struct prometheus_sample {
    char series[256]; /* name{labels} as written */
    char name[96];
    double value;
    int family;
};

struct prometheus {
    int n_families, n_samples;
    struct prometheus_family families[PROMETHEUS_MAX_FAMILIES];
    struct prometheus_sample samples[PROMETHEUS_MAX_SAMPLES];
};

int prometheus_read(const char *text, size_t len, struct prometheus *out, char why[200]);
/* Value of a series as written; a missing one gives NaN. */
double prometheus_value(const struct prometheus *p, const char *series);

#endif
