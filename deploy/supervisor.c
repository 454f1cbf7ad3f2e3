#include "deploy/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/beat.h"
#include "common/base/check.h"
#include "common/base/clock.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

extern char **environ;

static const int64_t RESTART_WINDOW_NS = 600 * NS_PER_S;
static const int64_t SHORT_LIFE_NS = 10 * NS_PER_S, SHORT_KILLED_LIFE_NS = 1 * NS_PER_S;
static const int64_t OWN_STOP_NS = 1 * NS_PER_S;    /* no busy machine keeps this loop waiting for so long */
static const int64_t ENDING_LIMIT_NS = 30 * NS_PER_S; /* a process that puts itself away */
enum { MAX_DELAY_MS = 5000, LEAST_BACK_OFF_MS = 50 };
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
    c->kept_fd = c->beat_fd = -1;
    return c;
}

void supervisor_pass(struct child *c, const char *name, int fd)
{
    CHECK(c->n_pass < MAX_CHILD_FDS && c->n_env < MAX_CHILD_ENV);
    char *text = c->pass_env[c->n_pass];
    snprintf(text, sizeof c->pass_env[0], "SLUICE_%.24s_FD=%d", name, fd);
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

/* The environment of the next process of c. */
static char **make_environment(const struct child *c, int beat_fd)
{
    static char *env[MAX_ENVIRONMENT];
    static char incarnation[40], last_signal[40], beat[40];
    int n = 0;
    for (char **e = environ; *e && n < MAX_ENVIRONMENT - MAX_CHILD_ENV - 4; e++)
        if (!belongs_to_mpi(*e) && !overridden(c, *e))
            env[n++] = *e;
    for (int i = 0; i < c->n_env; i++)
        env[n++] = c->env[i];
    snprintf(incarnation, sizeof incarnation, "SLUICE_INCARNATION=%u", c->incarnation);
    snprintf(last_signal, sizeof last_signal, "SLUICE_LAST_SIGNAL=%d", c->last_signal);
    snprintf(beat, sizeof beat, "SLUICE_BEAT_FD=%d", beat_fd);
    env[n++] = incarnation;
    env[n++] = last_signal;
    env[n++] = beat;
    env[n] = NULL;
    return env;
}

/* Between fork and exec. */
static void become(const struct supervisor *s, const struct child *c, int beat_fd, char **env)
{
    sigset_t none;
    sigemptyset(&none);
    /* A process that is told to read its files again, or to dump its trace, before it has got to that must not die of it. */
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->self) /* the launcher died in between */
        _exit(EXIT_BUG);
    for (int i = 0; i < c->n_pass; i++)
        fcntl(c->pass_fds[i], F_SETFD, 0);
    fcntl(beat_fd, F_SETFD, 0);
    setpgid(0, 0); /* the terminal's Ctrl-C reaches the launcher alone, which drains */
    execve(c->argv[0], (char *const *)c->argv, env);
    fprintf(stderr, "sluice-launch: %s cannot be started: %s\n", c->argv[0], strerror(errno));
    _exit(EXIT_CONFIG);
}

static enum status start(struct supervisor *s, struct child *c, int64_t now_ns)
{
    int beat[2];
    if (pipe2(beat, O_CLOEXEC | O_NONBLOCK) != 0)
        return STATUS_IO;
    char **env = make_environment(c, beat[1]);
    pid_t pid = fork();
    if (pid == 0)
        become(s, c, beat[1], env);
    close(beat[1]);
    if (pid < 0) {
        close(beat[0]);
        return STATUS_IO;
    }
    c->pid = pid;
    c->start_at_ns = 0;
    c->started_ns = now_ns;
    c->beat_fd = beat[0];
    c->beat_ns = 0;
    c->is_ending = c->is_released = c->was_silent = 0;
    c->serves = -1;
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
        if (start(s, c, now_ns) != STATUS_OK) {
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

/* --- memory that outlives a process --------------------------------------------------------------------------------------- */

static int make_memory(void)
{
    return memfd_create("sluice-kept", MFD_CLOEXEC);
}

enum status supervisor_keep_memory(struct child *c, const char *name, struct error *err)
{
    int fd = make_memory();
    if (fd < 0)
        return error_set(err, STATUS_IO, "%s: memory that outlives its process cannot be made: %s", c->name, strerror(errno));
    c->kept_fd = fd;
    supervisor_pass(c, name, fd);
    return STATUS_OK;
}

/* What a process that went wrong has written is not trusted; one that was killed, or left by itself, wrote what it meant to. */
static int went_wrong(const struct child_end *end)
{
    switch (end->signal) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGTRAP:
    case SIGSYS:
        return 1;
    default:
        return end->signal == 0 && end->code == EXIT_BUG;
    }
}

/* Under the number that the child's environment names. */
static void replace_memory(struct child *c)
{
    int fd = make_memory();
    if (fd < 0 || dup3(fd, c->kept_fd, O_CLOEXEC) < 0)
        CHECK(ftruncate(c->kept_fd, 0) == 0); /* no descriptor is free: the old one, emptied */
    if (fd >= 0)
        close(fd);
}

/* --- beats ---------------------------------------------------------------------------------------------------------------------- */

static void hear(struct child *c, int64_t now_ns)
{
    unsigned char bytes[256];
    ssize_t n;
    while (c->beat_fd >= 0 && (n = read(c->beat_fd, bytes, sizeof bytes)) > 0) {
        c->beat_ns = now_ns;
        c->is_ending |= memchr(bytes, BEAT_ENDING, (size_t)n) != NULL;
        c->is_released |= memchr(bytes, BEAT_RELEASED, (size_t)n) != NULL;
        for (ssize_t i = 0; i < n; i++)
            if (bytes[i] >= BEAT_SERVES)
                c->serves = bytes[i] - BEAT_SERVES;
    }
}

void supervisor_listen(struct supervisor *s, int64_t now_ns)
{
    if (s->listened_ns && now_ns - s->listened_ns > OWN_STOP_NS) {
        LOG_WARN("this launcher stood still for %lld ms: nobody is judged by the silence", (long long)((now_ns - s->listened_ns) / NS_PER_MS));
        s->excused_ns = now_ns;
    }
    s->listened_ns = now_ns;
    for (int i = 0; i < s->n_children; i++) {
        struct child *c = &s->children[i];
        if (!c->pid)
            continue;
        hear(c, now_ns);
        int64_t from_ns = c->beat_ns > s->excused_ns ? c->beat_ns : s->excused_ns;
        int64_t limit_ns = c->is_ending ? ENDING_LIMIT_NS : s->silence_ns;
        if (!c->beat_ns || !limit_ns || s->ending || c->was_silent || now_ns - from_ns <= limit_ns)
            continue;
        LOG_ERROR("%s (pid %d): no sign of life for %lld ms (at most %lld are allowed): killed", c->name, (int)c->pid,
                  (long long)((now_ns - c->beat_ns) / NS_PER_MS), (long long)(limit_ns / NS_PER_MS));
        c->was_silent = 1;
        kill(c->pid, SIGKILL);
    }
}

/* --- ends and restarts ---------------------------------------------------------------------------------------------------------- */

static struct child_end note_end(struct child *c, int state, int64_t now_ns)
{
    hear(c, now_ns); /* its last words */
    struct child_end end = {.child = c,
                            .signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0,
                            .code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state),
                            .pid = (int)c->pid,
                            .was_silent = c->was_silent,
                            .is_released = c->is_released,
                            .lived_ns = now_ns - c->started_ns};
    c->pid = 0;
    c->last_signal = end.signal;
    close(c->beat_fd);
    c->beat_fd = -1;
    if (c->kept_fd >= 0) {
        end.kept = went_wrong(&end) ? -1 : 1;
        if (end.kept < 0)
            replace_memory(c);
    }
    return end;
}

int supervisor_reap(struct supervisor *s, int64_t now_ns, struct child_end *out)
{
    int state;
    pid_t pid;
    while ((pid = waitpid(-1, &state, WNOHANG)) > 0)
        for (int i = 0; i < s->n_children; i++)
            if (s->children[i].pid == pid) {
                *out = note_end(&s->children[i], state, now_ns);
                return 1;
            }
    return 0;
}

int supervisor_was_asked(const struct child_end *end)
{
    if (end->signal)
        return end->signal == SIGTERM || end->signal == SIGINT;
    return end->code == EXIT_ASKED || end->code == EXIT_AGAIN;
}

/* Doubles while lives are short. A process that somebody kills is not at fault: it comes back at once. */
static int64_t back_off_ms(const struct supervisor *s, struct child *c, const struct child_end *end)
{
    const int from_outside = supervisor_was_asked(end) || (end->signal == SIGKILL && !end->was_silent);
    const int is_short = end->lived_ns < (from_outside ? SHORT_KILLED_LIFE_NS : SHORT_LIFE_NS);
    int64_t delay = s->restart_delay_ms, most = delay > MAX_DELAY_MS ? delay : MAX_DELAY_MS;
    c->n_short = is_short ? c->n_short + 1 : 0;
    for (int i = 1; i < c->n_short && delay < most; i++)
        delay = delay ? 2 * delay : LEAST_BACK_OFF_MS;
    return delay < most ? delay : most;
}

enum status supervisor_restart(struct supervisor *s, const struct child_end *end, int64_t now_ns, struct restart *out)
{
    struct child *c = end->child;
    const int counts = !supervisor_was_asked(end) || end->lived_ns < SHORT_LIFE_NS;
    int kept = 0;
    for (int i = 0; i < c->n_restarts; i++)
        if (now_ns - c->restarted_ns[i] < RESTART_WINDOW_NS)
            c->restarted_ns[kept++] = c->restarted_ns[i];
    c->n_restarts = kept;
    if (counts && kept >= s->restart_limit)
        return STATUS_FULL;
    if (counts && kept < MAX_RESTARTS_KEPT)
        c->restarted_ns[c->n_restarts++] = now_ns;
    *out = (struct restart){.delay_ms = back_off_ms(s, c, end), .left = s->restart_limit - c->n_restarts};
    c->start_at_ns = now_ns + out->delay_ms * NS_PER_MS;
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
