#include "common/base/clock.h"

#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_wall_s(void)
{
    return (int64_t)time(NULL);
}
