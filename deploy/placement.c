#include "deploy/placement.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

void placement_clear(void)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    long n = sysconf(_SC_NPROCESSORS_CONF);
    for (long i = 0; i < n && i < CPU_SETSIZE; i++)
        CPU_SET((size_t)i, &all);
    sched_setaffinity(0, sizeof all, &all); /* the cgroup's cpuset still bounds it */
}

/* Core numbers that this process may use, in the topology's order: first threads of all cores, then second ones. */
static int usable_cores(int cores[MAX_CORES])
{
    int n = 0;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    hwloc_topology_t topo;
    if (hwloc_topology_init(&topo) == 0 && hwloc_topology_load(topo) == 0) {
        int n_cores = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
        for (int smt = 0; smt < 8; smt++)
            for (int i = 0; i < n_cores; i++) {
                hwloc_obj_t core = hwloc_get_obj_by_type(topo, HWLOC_OBJ_CORE, (unsigned)i);
                int cpu = hwloc_bitmap_first(core->cpuset);
                for (int k = 0; k < smt && cpu >= 0; k++) /* after the last one next would begin again */
                    cpu = hwloc_bitmap_next(core->cpuset, cpu);
                if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, &allowed) && n < MAX_CORES)
                    cores[n++] = cpu;
            }
        hwloc_topology_destroy(topo);
    }
    for (int cpu = 0; n == 0 && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &allowed) && n < MAX_CORES)
            cores[n++] = cpu;
    return n;
}

int placement_cores(int local, int n_local, int n_threads, int cores[MAX_CORES], int *n_cores)
{
    static int all[MAX_CORES];
    int n = usable_cores(all), first = local * n / n_local, end = (local + 1) * n / n_local;
    if (end == first) { /* more stages than cores: they share */
        first = local % (n ? n : 1);
        end = n ? first + 1 : first;
    }
    int share = end - first, shared = n_local > n;
    int threads = n_threads > 0 ? n_threads : share > 0 ? share : 1;
    *n_cores = 0;
    if (threads <= share && !shared)
        for (int i = 0; i < threads; i++)
            cores[(*n_cores)++] = all[first + i];
    return threads;
}
