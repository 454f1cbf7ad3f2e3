/* deploy/launch.h - one rank's launcher. Inside deploy only.
 *
 * Purpose    What the files of sluice-launch share: launch_main.c starts (MPI, addresses, the secret), launch_detach.c leaves
 *            mpirun behind where --detach asks for it, launch_children.c says which processes a rank has and with which
 *            arguments, launch_run.c runs them until the job ends.
 * Ownership  One launcher a process; its strings live as long as it.
 * Threading  Main thread.
 * Errors     STATUS_CONFIG, STATUS_IO.
 */
#ifndef SLUICE_DEPLOY_LAUNCH_H
#define SLUICE_DEPLOY_LAUNCH_H

#include <stdint.h>

#include "common/base/address.h"
#include "common/base/config.h"
#include "deploy/holder.h"
#include "deploy/job.h"
#include "deploy/supervisor.h"

/* What every rank tells the others. */
struct rank_facts {
    char boot_id[40], address[64];
    int64_t host_key; /* ranks with the same one share a host (network namespace included) */
};

enum phase { PHASE_RUN, PHASE_DRAIN, PHASE_END };

struct launcher {
    struct config config;
    int rank, n_ranks, n_stages;
    int local, n_local; /* among the ranks of this host */
    int one_host;
    struct rank_facts facts[JOB_MAX_RANKS];
    char coordinator[ADDRESS_TEXT]; /* as the processes of this rank reach it */
    char listen[ADDRESS_TEXT];      /* --grpc of the coordinator */
    char bin[3072];        /* folder of the programs */
    int secret_fd, ready_pipe[2], signal_fd;
    struct job job;
    struct supervisor sup;
    struct child *coordinator_child, *gateway_child;
    struct holder *holder; /* rank 0: what clients hold on to while the gateway is restarted */
    enum phase phase;
    int ready, exit_code, kills;
    int64_t phase_until_ns;
    /* Of a drain: */
    pid_t asked_coordinator, asked_gateway; /* who has been asked; 0: none yet */
    int gateway_returns;   /* one has died: the next asks for its answers again */
    char why[200];         /* of an exit_code that is not 0: the last words */
    /* --detach and --pid-file */
    int starter_fd;        /* to the process that mpirun waits for; -1: none, or it has been told */
    int log_fd, pid_fd;
    char pid_path[1024];
    int64_t rejoin_ns;     /* rank 0 is out of reach: the next try; 0: it is not */
    int n_rejoins;
};

/* --- launch_children.c --- */

/* Folder of this program: the others lie beside it. */
void launch_find_programs(struct launcher *l);
/* The processes of this rank, not started yet. */
enum status launch_add_children(struct launcher *l, struct error *err);
/* The next process of a joined stage asks for the stage that the last one was: it need not wait as a spare again. */
void launch_ask_again(struct child *stage);

/* --- launch_detach.c --- */

/* Opens what --detach and --pid-file name, and holds the pid file: STATUS_CONFIG when another launcher does. */
enum status launch_open_files(struct launcher *l, struct error *err);
/* Writes this process's pid. */
void launch_write_pid(const struct launcher *l);
void launch_close_files(struct launcher *l);
/* Returns in a new process, in a session of its own, whose output goes to the log; the one that mpirun knows waits here until
 * launch_tell_starter, and exits. Only what this launcher has opened itself stays open. */
enum status launch_detach(struct launcher *l, struct error *err);
/* To that process, once: it serves (STARTER_READY), or has ended with a code and why. */
enum { STARTER_READY = -1 };
void launch_tell_starter(struct launcher *l, int code, const char *why);

/* --- launch_run.c --- */

/* These signals come by this descriptor from here on, in this thread and those that follow; -1: errno says why. */
int launch_signals_fd(const int *signals, size_t n);
/* All that a supervisor obeys: l->signal_fd, and the pipe that says ready. */
enum status launch_open_signals(struct launcher *l, struct error *err);
/* Runs the children until the job ends and none is left; l->exit_code says how. */
void launch_supervise(struct launcher *l);

#endif
