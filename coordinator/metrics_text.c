#include "coordinator/metrics_text.h"

#include <stdio.h>
#include <string.h>

void metrics_text_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Whole numbers as such, others with the fewest digits that give the same double again. */
static void number(char out[32], double v)
{
    if (v >= 0 && v < 9007199254740992.0 && v == (double)(uint64_t)v) {
        snprintf(out, 32, "%llu", (unsigned long long)v);
        return;
    }
    double back = v;
    snprintf(out, 32, "%.15g", v);
    if (sscanf(out, "%lf", &back) != 1 || back != v)
        snprintf(out, 32, "%.17g", v);
}

void metrics_text_sample(struct buf *out, const char *name, const char *labels, double value)
{
    char text[32];
    number(text, value);
    if (labels[0])
        buf_printf(out, "%s{%s} %s\n", name, labels, text);
    else
        buf_printf(out, "%s %s\n", name, text);
}

void metrics_text_histogram(struct buf *out, const char *name, const char *labels, enum histogram_kind kind,
                            const struct histogram *h)
{
    const char *comma = labels[0] ? "," : "";
    char part[96];
    uint64_t n = 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += h->count[i];
        buf_printf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, histogram_bounds[kind][i],
                   (unsigned long long)n);
    }
    n += h->count[HISTOGRAM_BUCKETS];
    buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma, (unsigned long long)n);
    snprintf(part, sizeof part, "%s_sum", name);
    metrics_text_sample(out, part, labels, h->sum);
    snprintf(part, sizeof part, "%s_count", name);
    metrics_text_sample(out, part, labels, (double)n);
}

void metrics_text_label(char *out, size_t size, const char *name, const char *value)
{
    size_t at = (size_t)snprintf(out, size, "%s=\"", name);
    for (; *value && at + 4 < size; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            out[at++] = '\\';
        out[at++] = *value == '\n' ? 'n' : *value;
    }
    snprintf(out + at, size - at, "\"");
}
