/* common/text/work.h - a deadline that is looked at every so many steps.
 *
 * Purpose    Encoding asks work_step() once for each piece of work of at most about 200 ns a unit; the clock is read
 *            after WORK_UNITS of them, so at least every millisecond.
 * Ownership  In place.
 * Threading  One thread at a time.
 * Errors     STATUS_TIMEOUT.
 */
#ifndef SLUICE_COMMON_TEXT_WORK_H
#define SLUICE_COMMON_TEXT_WORK_H

#include "common/base/clock.h"
#include "common/base/error.h"

enum { WORK_UNITS = 2048 };

struct work {
    int64_t deadline_ns; /* INT64_MAX: none */
    size_t left;
    struct error *err;
};

static inline enum status work_step(struct work *w, size_t units)
{
    if (units < w->left) {
        w->left -= units;
        return STATUS_OK;
    }
    w->left = WORK_UNITS;
    if (w->deadline_ns == INT64_MAX || clock_now_ns() < w->deadline_ns)
        return STATUS_OK;
    return error_set(w->err, STATUS_TIMEOUT, "tokenizing the text took longer than its time limit");
}

#endif
