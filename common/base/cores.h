/* common/base/cores.h - the CPU cores of this process.
 *
 * Purpose    How many threads are worth starting where nobody has said it.
 * Threading  Pure.
 * Errors     None: where the system does not tell, it is one.
 */
#ifndef SLUICE_COMMON_BASE_CORES_H
#define SLUICE_COMMON_BASE_CORES_H

/* Cores on which the calling thread may run. */
int cores_usable(void);

#endif
