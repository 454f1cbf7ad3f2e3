/* coordinator/metrics_text.h - lines of Prometheus text (exposition format 0.0.4). For the metrics_*.c files only.
 *
 * Purpose    A family is its head, then its samples, together. `labels` is what stands between the braces, "" for none; a
 *            label's value goes through metrics_text_label.
 * Ownership  Appends to the caller's buf.
 * Threading  Pure.
 * Errors     Those of buf.
 */
#ifndef SLUICE_COORDINATOR_METRICS_TEXT_H
#define SLUICE_COORDINATOR_METRICS_TEXT_H

#include "coordinator/metrics.h"

void metrics_text_head(struct buf *out, const char *name, const char *type, const char *help);
void metrics_text_sample(struct buf *out, const char *name, const char *labels, double value);
void metrics_text_histogram(struct buf *out, const char *name, const char *labels, enum histogram_kind kind,
                            const struct histogram *h);
/* name="value" with what must be escaped escaped; cut to the room. */
void metrics_text_label(char *out, size_t size, const char *name, const char *value);

#endif
