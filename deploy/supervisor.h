/* deploy/supervisor.h - the child processes of one rank: start, watch, restart, end.
 *
 * Purpose    Forks and execs programs with inherited descriptors and a parent-death signal, reaps them, restarts them with a
 *            delay and a limit. Knows nothing of what they do.
 * Ownership  supervisor_init/fini in place; argv and env strings are the caller's and live as long as the supervisor.
 * Threading  Main thread only.
 * Invariants No child outlives the launcher: PR_SET_PDEATHSIG(SIGKILL), set between fork and exec.
 * Errors     STATUS_IO (fork failed), STATUS_FULL.
 */
#ifndef SLUICE_DEPLOY_SUPERVISOR_H
#define SLUICE_DEPLOY_SUPERVISOR_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum { MAX_CHILDREN = 66, MAX_CHILD_ARGS = 160, MAX_CHILD_ENV = 12, MAX_CHILD_FDS = 6, MAX_RESTARTS_KEPT = 64 };

struct child {
    char name[24];                     /* "stage 1" */
    const char *argv[MAX_CHILD_ARGS];
    char *env[MAX_CHILD_ENV];          /* NAME=VALUE on top of the launcher's environment */
    int n_env;
    int pass_fds[MAX_CHILD_FDS];       /* descriptors that only this child inherits */
    int n_pass;
    pid_t pid;                         /* 0: not running */
    int64_t start_at_ns;               /* when it is to be started; 0: not */
    int64_t restarted_ns[MAX_RESTARTS_KEPT];
    int n_restarts;
    uint32_t incarnation;
};

/* What became of a child that ended. */
struct child_end {
    struct child *child;
    int code;   /* exit code, or 128 + signal */
    int signal; /* 0: it exited */
};

struct supervisor {
    struct child children[MAX_CHILDREN];
    int n_children;
    int64_t restart_delay_ms, restart_limit;
    int ending; /* nothing is restarted any more */
    pid_t self;
};

/* Did mpirun (or srun) start this process? */
int supervisor_started_by_mpi(void);
void supervisor_init(struct supervisor *s, int64_t restart_delay_ms, int64_t restart_limit);
struct child *supervisor_add(struct supervisor *s, const char *name);
/* This child inherits fd (which is close-on-exec for the others) and knows it as SLUICE_<name>_FD. */
void supervisor_pass(struct child *c, const char *name, int fd);
/* Starts what is due. */
void supervisor_start_due(struct supervisor *s, int64_t now_ns);
/* Time of the next start, or INT64_MAX. */
int64_t supervisor_next_start(const struct supervisor *s);
/* Takes one ended child; 0 when there is none. */
int supervisor_reap(struct supervisor *s, struct child_end *out);
/* Schedules another start; STATUS_FULL when it was restarted restart_limit times within ten minutes. */
enum status supervisor_restart(struct supervisor *s, struct child *c, int64_t now_ns);
void supervisor_signal(struct supervisor *s, int sig);
int supervisor_running(const struct supervisor *s);

#endif
