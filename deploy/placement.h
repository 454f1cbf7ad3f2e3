/* deploy/placement.h - which cores a stage of this host gets.
 *
 * Purpose    mpirun may bind a rank to one core: the launcher clears the affinity and shares the host's cores out to the
 *            stages of this host by local rank, whole physical cores first (hwloc), neighbours together.
 * Threading  Main thread.
 * Errors     STATUS_CONFIG.
 */
#ifndef SLUICE_DEPLOY_PLACEMENT_H
#define SLUICE_DEPLOY_PLACEMENT_H

#include "common/base/error.h"

enum { MAX_CORES = 1024 };

/* Allows this process all cores of the host again. */
void placement_clear(void);
/* Cores of stage `local` of n_local on this host; n_threads -1: as many as its share. *n_cores 0: more threads than cores of
 * the share, nothing is pinned. Returns the number of threads. */
int placement_cores(int local, int n_local, int n_threads, int cores[MAX_CORES], int *n_cores);

#endif
