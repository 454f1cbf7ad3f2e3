/* deploy/supervisor.h - the child processes of one rank: start, watch, restart, end.
 *
 * Purpose    Forks and execs programs with inherited descriptors and a parent-death signal, reaps them, restarts them with a
 *            delay and a limit, and kills those that fall silent (common/base/beat.h). Keeps the memory of a child that is
 *            to outlive its process. Knows nothing of what they do.
 * Ownership  supervisor_init/fini in place; argv and env strings are the caller's and live as long as the supervisor.
 * Threading  Main thread only.
 * Invariants 1. No child outlives the launcher: PR_SET_PDEATHSIG(SIGKILL), set between fork and exec. 2. A new process starts
 *            only after its predecessor was reaped, so what they share is never written by two.
 * Errors     STATUS_IO (fork failed), STATUS_FULL.
 */
#ifndef SLUICE_DEPLOY_SUPERVISOR_H
#define SLUICE_DEPLOY_SUPERVISOR_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum { MAX_CHILDREN = 66, MAX_CHILD_ARGS = 160, MAX_CHILD_ENV = 12, MAX_CHILD_FDS = 6 };
enum { MAX_RESTARTS_KEPT = 1024 }; /* of ten minutes: lives of a second, without a delay, are 600. A limit above it is none */

struct child {
    char name[24];                     /* "stage 1" */
    const char *argv[MAX_CHILD_ARGS];
    char *env[MAX_CHILD_ENV];          /* NAME=VALUE on top of the launcher's environment */
    int n_env;
    int pass_fds[MAX_CHILD_FDS];       /* descriptors that it inherits; the others only if they are passed too */
    char pass_env[MAX_CHILD_FDS][48];  /* their variables */
    int n_pass;
    char own_flag[16];                 /* a flag's value that changes with the process */
    int kept_fd;                       /* memory that outlives the process, -1: none */
    pid_t pid;                         /* 0: not running */
    int64_t start_at_ns;               /* when it is to be started; 0: not */
    int64_t started_ns;                /* the process that runs, or ran last */
    int64_t restarted_ns[MAX_RESTARTS_KEPT];
    int n_restarts, n_short;           /* n_short: lives in a row that were too short */
    int last_signal;                   /* that ended the process before, 0: none */
    uint32_t incarnation;
    /* Of the process that runs: */
    int beat_fd;                       /* read end; -1: closed */
    int64_t beat_ns;                   /* last heard; 0: it never spoke, and is not watched */
    int is_ending, is_released, was_silent;
    int serves;                        /* the stage that it says it is; -1: none */
};

/* What became of a child that ended. */
struct child_end {
    struct child *child;
    int code;         /* exit code, or 128 + signal */
    int signal;       /* 0: it exited */
    int pid;
    int was_silent;   /* supervisor_listen has killed it */
    int is_released;  /* the coordinator had told it to end */
    int kept;         /* 1: its kept memory stays, 0: it has none, -1: replaced, it is not to be trusted */
    int64_t lived_ns;
};

/* When a child starts again. */
struct restart {
    int64_t delay_ms, left; /* left: how many restarts it has within ten minutes after this one */
};

struct supervisor {
    struct child children[MAX_CHILDREN];
    int n_children;
    int64_t restart_delay_ms, restart_limit;
    int64_t silence_ns;            /* longest silence of a child that has spoken; 0: no limit */
    int64_t listened_ns;           /* when supervisor_listen was here last */
    int64_t excused_ns;            /* silence before this is the launcher's own: it was stopped */
    int ending;                    /* nothing is restarted any more */
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
/* Gives c memory (a memfd, SLUICE_<name>_FD) with the same content in every process that c will be, until one ends in a way
 * after which it cannot be trusted: by SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS or with
 * code 70. Then the next gets an empty one. */
enum status supervisor_keep_memory(struct child *c, const char *name, struct error *err);
/* Hears the beats and kills whoever has been silent for silence_ns. Call it every quarter of a second: a gap between two calls
 * says that this process was stopped itself, and nobody is judged by what was not heard then. */
void supervisor_listen(struct supervisor *s, int64_t now_ns);
/* Takes one ended child; 0 when there is none. */
int supervisor_reap(struct supervisor *s, int64_t now_ns, struct child_end *out);
/* Did it end because somebody asked it to, by a signal that it obeys or by name? */
int supervisor_was_asked(const struct child_end *end);
/* Schedules another start: after restart_delay_ms, and twice as late with every life in a row that was too short (10 s where it
 * failed by itself, 1 s where it was killed from outside), up to 5 s. STATUS_FULL when it was restarted restart_limit times
 * within ten minutes; an end that was asked for after a long life does not count. */
enum status supervisor_restart(struct supervisor *s, const struct child_end *end, int64_t now_ns, struct restart *out);
void supervisor_signal(struct supervisor *s, int sig);
int supervisor_running(const struct supervisor *s);

#endif
