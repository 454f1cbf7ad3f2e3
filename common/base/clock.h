/* common/base/clock.h - the monotonic clock, in nanoseconds. Threading: any. */
#ifndef SLUICE_COMMON_BASE_CLOCK_H
#define SLUICE_COMMON_BASE_CLOCK_H

#include <stdint.h>

#define NS_PER_US 1000ll
#define NS_PER_MS 1000000ll
#define NS_PER_S 1000000000ll

int64_t clock_now_ns(void);       /* CLOCK_MONOTONIC */
int64_t clock_wall_s(void);       /* seconds since 1970, for timestamps that people and APIs see */

#endif
