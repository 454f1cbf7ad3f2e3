/* kernels/team.h - the compute threads of one stage.
 *
 * Purpose    Runs one function on n threads (the caller is thread 0) and gives them a barrier. A waiter spins at most
 *            20 us, then sleeps on a futex; between runs the workers sleep the same way. Never used across processes.
 * Ownership  team_create/team_destroy.
 * Threading  One thread runs the team at a time.
 * Errors     STATUS_OUT_OF_MEMORY (threads could not be started), STATUS_CONFIG (a core that this process may not use).
 */
#ifndef SLUICE_KERNELS_TEAM_H
#define SLUICE_KERNELS_TEAM_H

#include "common/base/error.h"

enum { TEAM_MAX_THREADS = 128 };

struct team;

/* cores: n_threads core numbers to pin to (thread 0, the caller, too), or NULL: nothing is pinned. */
enum status team_create(int n_threads, const int *cores, struct team **out, struct error *err);
void team_destroy(struct team *t);
int team_size(const struct team *t);
/* fn(arg, thread, n_threads) on every thread; returns when all have returned. */
void team_run(struct team *t, void (*fn)(void *arg, int thread, int n_threads), void *arg);
/* Inside team_run: returns on every thread once all have called it. */
void team_barrier(struct team *t, int thread);

#endif
