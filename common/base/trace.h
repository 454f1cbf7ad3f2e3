/* common/base/trace.h - the last 8,192 moves of all state machines.
 *
 * Purpose    A fixed ring that is written always and read after a crash or on SIGUSR2. An event is a static name and
 *            four numbers; what the numbers are is said where the event is written. A line of a dump is
 *            `trace PROGRAM: MICROSECONDS EVENT A B C D`, by the monotonic clock.
 * Ownership  The ring is static; `event` must be a string literal.
 * Threading  Any thread; one atomic add and a few stores. An event that is being overwritten may print torn numbers.
 * Errors     None. trace_dump is async-signal-safe.
 */
#ifndef SLUICE_COMMON_BASE_TRACE_H
#define SLUICE_COMMON_BASE_TRACE_H

#include <stdint.h>

void trace_event(const char *event, int64_t a, int64_t b, int64_t c, int64_t d);
/* The newest n_last events (0: all) to fd, oldest first, as far as somebody reads them. */
void trace_dump(int fd, unsigned n_last);
/* Dumps the newest 200 on SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, then dies of the same signal. */
void trace_install_crash_handler(void);

#endif
