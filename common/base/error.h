/* common/base/error.h - what went wrong, in words, beside a status.
 *
 * Purpose    A caller-owned `struct error *err` comes last in a function that can fail for a reason worth telling. The
 *            first function that knows writes it; who owns the request or the link logs or sends it, once.
 * Ownership  The caller's; no pointers inside, so it may be copied.
 * Threading  Pure.
 * Errors     err may be NULL everywhere: then only the status is returned.
 */
#ifndef SLUICE_COMMON_BASE_ERROR_H
#define SLUICE_COMMON_BASE_ERROR_H

#include "common/base/status.h"

struct error {
    enum status status;
    int retry_after_s;  /* 0: none known */
    char message[320];  /* one line, for people */
    char param[64];     /* the request's field, or "" */
    char code[48];      /* machine-readable reason, e.g. "context_length_exceeded", or "" */
};

/* Writes err (param and code emptied) and returns s, so that `return error_set(err, STATUS_X, "...")` reads well. */
enum status error_set(struct error *err, enum status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same with the name of the request's field and a code ("" or NULL: none). */
enum status error_param(struct error *err, enum status s, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void error_clear(struct error *err);

/* Returns the status of a failed call to the caller. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        enum status try_status_ = (call);                                                                              \
        if (try_status_ != STATUS_OK)                                                                                  \
            return try_status_;                                                                                        \
    } while (0)

#endif
