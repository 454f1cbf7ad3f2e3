/* stage/stage_main.h - what every stage program does, whatever it computes with.
 *
 * Purpose    Configuration, signals, links, control line; the compute comes from the program. sluice-stage and the tests'
 *            sluice-stage-fake differ in nothing else.
 * Ownership  The setup lives as long as the process.
 * Threading  stage_main runs on the main thread and returns the exit code, unless the process ends inside it.
 * Errors     Exit codes of interface.md; one line on stderr says why.
 */
#ifndef SLUICE_STAGE_STAGE_MAIN_H
#define SLUICE_STAGE_STAGE_MAIN_H

#include "common/base/config.h"
#include "stage/compute.h"

enum { STAGE_MAX_CORES = 128 };

struct stage_setup {
    const struct config *config;
    uint32_t stage;              /* of --stage, or STAGE_ANY */
    int n_threads;               /* --threads, else the cores that were given, else those this process may use */
    int n_cores;                 /* 0: nothing is to be pinned; else at least n_threads */
    int cores[STAGE_MAX_CORES];
    int kv_fd;                   /* of the launcher, or -1 */
    uint32_t host_stages;        /* stages on this host, 1 when nobody said */
    uint32_t life;               /* how often the launcher has started this stage before */
};

/* May be called again, from the compute thread, when another assignment replaces the first. */
typedef enum status stage_create_compute(const struct stage_setup *setup, struct compute **out, struct error *err);

int stage_main(int argc, char **argv, stage_create_compute *create);

#endif
