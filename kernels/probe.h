/* kernels/probe.h - what this host can run, found out and not believed.
 *
 * Purpose    A CPU may report instructions that its host does not let run, and emulators get some wrong: an instruction set
 *            counts as present when the CPU reports it, the system saves its registers, and a small product, an attention
 *            and a norm computed with it equal the scalar reference to the bit.
 * Threading  probe_cpu: pure. probe_self_check: one thread at a time; it owns the SIGILL handler while it runs.
 */
#ifndef SLUICE_KERNELS_PROBE_H
#define SLUICE_KERNELS_PROBE_H

#include "kernels/ops.h"

enum probe_isa { PROBE_PORTABLE, PROBE_AVX2, PROBE_AVXVNNI, PROBE_AVX512, PROBE_AMX, PROBE_N_ISAS };

/* NULL, or why the CPU or the system does not offer the set. Asks the system for the AMX tile registers. */
const char *probe_cpu(enum probe_isa isa);
/* NULL, or why the table's results cannot be used. */
const char *probe_self_check(const struct ops *ops);

#endif
