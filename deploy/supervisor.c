#include "deploy/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

extern char **environ;

static const int64_t RESTART_WINDOW_NS = 600 * NS_PER_S;
enum { MAX_ENVIRONMENT = 4096 };

void supervisor_init(struct supervisor *s, int64_t restart_delay_ms, int64_t restart_limit)
{
    *s = (struct supervisor){.restart_delay_ms = restart_delay_ms, .restart_limit = restart_limit, .self = getpid()};
}

struct child *supervisor_add(struct supervisor *s, const char *name)
{
    CHECK(s->n_children < MAX_CHILDREN);
    struct child *c = &s->children[s->n_children++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->start_at_ns = 1;
    return c;
}

void supervisor_pass(struct child *c, const char *name, int fd)
{
    char *text = NULL;
    CHECK(c->n_pass < MAX_CHILD_FDS && c->n_env < MAX_CHILD_ENV);
    CHECK(asprintf(&text, "SLUICE_%s_FD=%d", name, fd) > 0);
    c->pass_fds[c->n_pass++] = fd;
    c->env[c->n_env++] = text;
}

/* A worker that still carried the variables of MPI would be half a member of the job. */
static int belongs_to_mpi(const char *variable)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "ORTE_", "PMI_", "OPAL_"};
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return 1;
    return 0;
}

int supervisor_started_by_mpi(void)
{
    static const char *const names[] = {"PMIX_RANK=", "PMI_RANK=", "OMPI_COMM_WORLD_RANK="};
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            if (strncmp(*e, names[i], strlen(names[i])) == 0)
                return 1;
    return 0;
}

static int overridden(const struct child *c, const char *variable)
{
    size_t len = strcspn(variable, "=") + 1;
    for (int i = 0; i < c->n_env; i++)
        if (strncmp(c->env[i], variable, len) == 0)
            return 1;
    return 0;
}

static enum status start(struct supervisor *s, struct child *c)
{
    static char *env[MAX_ENVIRONMENT];
    static char incarnation[40];
    int n = 0;
    for (char **e = environ; *e && n < MAX_ENVIRONMENT - 16; e++)
        if (!belongs_to_mpi(*e) && !overridden(c, *e))
            env[n++] = *e;
    for (int i = 0; i < c->n_env; i++)
        env[n++] = c->env[i];
    snprintf(incarnation, sizeof incarnation, "SLUICE_INCARNATION=%u", c->incarnation);
    env[n++] = incarnation;
    env[n] = NULL;
    pid_t pid = fork();
    if (pid < 0)
        return STATUS_IO;
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != s->self) /* the launcher died in between */
            _exit(EXIT_BUG);
        for (int i = 0; i < c->n_pass; i++)
            fcntl(c->pass_fds[i], F_SETFD, 0);
        setpgid(0, 0); /* the terminal's Ctrl-C reaches the launcher alone, which drains */
        execve(c->argv[0], (char *const *)c->argv, env);
        fprintf(stderr, "sluice-launch: %s cannot be started: %s\n", c->argv[0], strerror(errno));
        _exit(EXIT_CONFIG);
    }
    c->pid = pid;
    c->start_at_ns = 0;
    c->incarnation++;
    LOG_INFO("%s: started, pid %d", c->name, (int)pid);
    return STATUS_OK;
}

void supervisor_start_due(struct supervisor *s, int64_t now_ns)
{
    for (int i = 0; i < s->n_children && !s->ending; i++) {
        struct child *c = &s->children[i];
        if (c->pid || !c->start_at_ns || c->start_at_ns > now_ns)
            continue;
        if (start(s, c) != STATUS_OK) {
            LOG_ERROR("%s: cannot be started: %s; next try in a second", c->name, strerror(errno));
            c->start_at_ns = now_ns + NS_PER_S;
        }
    }
}

int64_t supervisor_next_start(const struct supervisor *s)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < s->n_children && !s->ending; i++)
        if (!s->children[i].pid && s->children[i].start_at_ns && s->children[i].start_at_ns < next)
            next = s->children[i].start_at_ns;
    return next;
}

int supervisor_reap(struct supervisor *s, struct child_end *out)
{
    int state;
    pid_t pid;
    while ((pid = waitpid(-1, &state, WNOHANG)) > 0)
        for (int i = 0; i < s->n_children; i++) {
            struct child *c = &s->children[i];
            if (c->pid != pid)
                continue;
            c->pid = 0;
            *out = WIFSIGNALED(state) ? (struct child_end){c, 128 + WTERMSIG(state), WTERMSIG(state)}
                                      : (struct child_end){c, WEXITSTATUS(state), 0};
            return 1;
        }
    return 0;
}

enum status supervisor_restart(struct supervisor *s, struct child *c, int64_t now_ns)
{
    int kept = 0;
    for (int i = 0; i < c->n_restarts; i++)
        if (now_ns - c->restarted_ns[i] < RESTART_WINDOW_NS)
            c->restarted_ns[kept++] = c->restarted_ns[i];
    c->n_restarts = kept;
    if (kept >= s->restart_limit || (kept == MAX_RESTARTS_KEPT && s->restart_limit <= MAX_RESTARTS_KEPT))
        return STATUS_FULL;
    if (kept < MAX_RESTARTS_KEPT)
        c->restarted_ns[c->n_restarts++] = now_ns;
    c->start_at_ns = now_ns + s->restart_delay_ms * NS_PER_MS;
    return STATUS_OK;
}

void supervisor_signal(struct supervisor *s, int sig)
{
    for (int i = 0; i < s->n_children; i++)
        if (s->children[i].pid)
            kill(s->children[i].pid, sig);
}

int supervisor_running(const struct supervisor *s)
{
    int n = 0;
    for (int i = 0; i < s->n_children; i++)
        n += s->children[i].pid != 0;
    return n;
}
