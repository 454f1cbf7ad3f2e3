#include "common/base/status.h"

#include <stddef.h>

struct row {
    enum status status;
    int http, grpc, retry;
    const char *name, *type, *text;
};

static const struct row rows[] = {
#define X(name, code, http, grpc, retry, type, text) {STATUS_##name, http, grpc, retry, #name, type, text},
    STATUS_MAP(X)
#undef X
};

static const struct row *find(enum status s)
{
    const struct row *internal = &rows[0];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == s)
            return &rows[i];
        if (rows[i].status == STATUS_INTERNAL)
            internal = &rows[i];
    }
    return internal;
}

const char *status_text(enum status s)
{
    return find(s)->text;
}

const char *status_name(enum status s)
{
    return find(s)->name;
}

const char *status_error_type(enum status s)
{
    return find(s)->type;
}

int status_http(enum status s)
{
    return find(s)->http;
}

int status_grpc(enum status s)
{
    return find(s)->grpc;
}

int status_retryable(enum status s)
{
    return find(s)->retry;
}

enum status status_from_int(int code)
{
    return find((enum status)code)->status;
}

int status_exit_code(enum status s)
{
    switch (s) {
    case STATUS_OK:
        return EXIT_ASKED;
    case STATUS_BAD_MODEL:
        return EXIT_MODEL;
    case STATUS_ADDRESS_IN_USE:
        return EXIT_ADDRESS;
    case STATUS_OUT_OF_MEMORY:
        return EXIT_MEMORY;
    case STATUS_CONFIG:
        return EXIT_CONFIG;
    default:
        return EXIT_BUG;
    }
}
