#include "common/base/cores.h"

#include <sched.h>

int cores_usable(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
