/* kernels/cpu/cpu.h - the tables of the CPU backend, one for each instruction set.
 *
 * Purpose    All share packing, activation layout and the matrix driver; they differ in the inner kernels.
 * Threading  As ops.h.
 */
#ifndef SLUICE_KERNELS_CPU_CPU_H
#define SLUICE_KERNELS_CPU_CPU_H

#include "kernels/ops.h"

extern const struct ops ops_cpu_portable;
#if defined(__x86_64__)
extern const struct ops ops_cpu_avx2, ops_cpu_avxvnni, ops_cpu_avx512, ops_cpu_amx;
#endif

#endif
