#include "common/base/check.h"

#include <stdlib.h>

#define LOG_MODULE "check"
#include "common/base/log.h"

void check_failed(const char *file, int line, const char *condition)
{
    LOG_ERROR("%s:%d: this must hold and does not: %s", file, line, condition);
    abort(); /* the crash handler dumps the trace ring */
}
