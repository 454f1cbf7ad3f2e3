#include "common/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void error_clear(struct error *err)
{
    if (err)
        memset(err, 0, sizeof *err);
}

enum status error_set(struct error *err, enum status s, const char *fmt, ...)
{
    if (!err)
        return s;
    error_clear(err);
    err->status = s;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    return s;
}

enum status error_param(struct error *err, enum status s, const char *param, const char *code, const char *fmt, ...)
{
    if (!err)
        return s;
    error_clear(err);
    err->status = s;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    snprintf(err->code, sizeof err->code, "%s", code ? code : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    return s;
}
