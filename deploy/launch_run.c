#include "deploy/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

static const int64_t KILL_AFTER_NS = 1 * NS_PER_S;  /* SIGTERM to SIGKILL */
static const int64_t DRAIN_SLACK_NS = 2 * NS_PER_S; /* beyond --drain-ms, for the processes to end by themselves */

enum status launch_open_signals(struct launcher *l, struct error *err)
{
    sigset_t set;
    sigemptyset(&set);
    const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signal_fd < 0 || pipe2(l->ready_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, STATUS_IO, "signals: %s", strerror(errno));
    return STATUS_OK;
}

static void begin_end(struct launcher *l, int code)
{
    if (l->phase == PHASE_END)
        return;
    l->phase = PHASE_END;
    l->exit_code = code;
    l->sup.ending = 1;
    l->phase_until_ns = clock_now_ns() + KILL_AFTER_NS;
    if (l->rank == 0)
        job_tell_end(&l->job, code);
    supervisor_signal(&l->sup, SIGTERM);
    if (code) /* nothing to wait for: a second one means now. (Two SIGTERMs in a row would be one.) */
        supervisor_signal(&l->sup, SIGINT);
}

static void begin_drain(struct launcher *l)
{
    LOG_INFO("draining: running requests finish within %lld ms; once more ends at once", (long long)l->config.drain_ms);
    l->phase = PHASE_DRAIN;
    l->sup.ending = 1;
    l->phase_until_ns = clock_now_ns() + l->config.drain_ms * NS_PER_MS + DRAIN_SLACK_NS;
    if (l->coordinator_child->pid)
        kill(l->coordinator_child->pid, SIGTERM);
    if (l->gateway_child->pid)
        kill(l->gateway_child->pid, SIGTERM);
}

/* A child that cannot do its work ends the job with its code. */
static void fatal(struct launcher *l, int code, const char *what)
{
    LOG_ERROR("rank %d: %s", l->rank, what);
    if (l->rank != 0)
        job_report_exit(&l->job, code, what);
    begin_end(l, code);
}

/* The cause in words, for the last line that somebody reads; the details stand in the child's own line above. */
static const char *exit_meaning(int code)
{
    switch (code) {
    case EXIT_CONFIG:
        return " (bad configuration)";
    case EXIT_MODEL:
        return " (bad or missing model file)";
    case EXIT_ADDRESS:
        return " (address in use)";
    case EXIT_MEMORY:
        return " (out of memory at start)";
    default:
        return "";
    }
}

static void child_ended(struct launcher *l, const struct child_end *end, int64_t now)
{
    struct child *c = end->child;
    char how[80], what[160];
    if (end->signal)
        snprintf(how, sizeof how, "was ended by signal %d (%s)", end->signal, strsignal(end->signal));
    else
        snprintf(how, sizeof how, "exited with code %d%s", end->code, exit_meaning(end->code));
    if (l->phase == PHASE_END)
        return;
    if (l->phase == PHASE_DRAIN) {
        LOG_INFO("%s %s", c->name, how);
        return;
    }
    snprintf(what, sizeof what, "%s %s", c->name, how);
    if (!l->ready && !end->signal && end->code >= EXIT_CONFIG && end->code <= EXIT_MEMORY) {
        fatal(l, end->code, what);
        return;
    }
    if (!end->signal && end->code == EXIT_ASKED && (c == l->coordinator_child || c == l->gateway_child)) {
        LOG_INFO("%s ended as somebody asked it to; it is not started again", c->name);
        if (c == l->coordinator_child)
            begin_end(l, EXIT_ASKED);
        return;
    }
    if (supervisor_restart(&l->sup, c, now) == STATUS_OK) {
        LOG_WARN("%s; started again in %lld ms", what, (long long)l->config.restart_delay_ms);
        return;
    }
    snprintf(what, sizeof what, "%s %s, after %lld restarts in ten minutes: given up", c->name, how,
             (long long)l->config.restarts);
    fatal(l, end->signal ? EXIT_BUG : end->code ? end->code : EXIT_BUG, what);
}

static void on_signal(struct launcher *l, int sig)
{
    switch (sig) {
    case SIGCHLD:
        break;
    case SIGUSR2:
        supervisor_signal(&l->sup, SIGUSR2);
        break;
    case SIGHUP:
        if (l->gateway_child && l->gateway_child->pid)
            kill(l->gateway_child->pid, SIGHUP);
        break;
    case SIGUSR1:
        if (l->rank == 0 && l->phase == PHASE_RUN)
            begin_drain(l); /* mpirun tells every rank; the others end when rank 0 says so */
        break;
    default: /* SIGTERM, SIGINT */
        if (l->phase == PHASE_RUN && l->rank == 0)
            begin_drain(l);
        else if (l->phase == PHASE_DRAIN || ++l->kills > 1)
            begin_end(l, EXIT_ASKED);
    }
}

static void read_signals(struct launcher *l, int64_t now)
{
    struct signalfd_siginfo si;
    struct child_end end;
    while (read(l->signal_fd, &si, sizeof si) == sizeof si)
        on_signal(l, (int)si.ssi_signo);
    while (supervisor_reap(&l->sup, &end))
        child_ended(l, &end, now);
}

static void read_ready(struct launcher *l)
{
    char byte;
    while (read(l->ready_pipe[0], &byte, 1) == 1) {
        if (!l->ready)
            LOG_INFO("ready: http://%s", l->config.http);
        l->ready = 1;
        job_tell_ready(&l->job);
    }
}

static void read_job(struct launcher *l, int64_t now)
{
    struct job_event ev;
    while (l->n_ranks > 1 && job_next(&l->job, now, &ev)) {
        if (ev.kind == JOB_READY)
            l->ready = 1;
        else if (ev.kind == JOB_END)
            begin_end(l, ev.code);
        else if (ev.kind == JOB_EXIT) {
            LOG_ERROR("rank %d: %s", ev.rank, ev.what);
            begin_end(l, ev.code);
        } else if (ev.kind == JOB_LOST && l->rank != 0 && l->phase != PHASE_END) {
            LOG_ERROR("rank %d: rank 0 is gone", l->rank);
            begin_end(l, EXIT_BUG);
        } else if (ev.kind == JOB_LOST && l->rank == 0 && l->phase == PHASE_RUN) {
            LOG_WARN("the launcher of rank %d is gone: its stage is not started again", ev.rank);
        }
    }
}

static int64_t next_time(const struct launcher *l)
{
    int64_t at = supervisor_next_start(&l->sup);
    return l->phase != PHASE_RUN && l->phase_until_ns < at ? l->phase_until_ns : at;
}

static void wait_events(struct launcher *l)
{
    struct pollfd fds[JOB_MAX_FDS + 2];
    int n = 0;
    fds[n++] = (struct pollfd){l->signal_fd, POLLIN, 0};
    if (l->rank == 0)
        fds[n++] = (struct pollfd){l->ready_pipe[0], POLLIN, 0};
    if (l->n_ranks > 1)
        n += job_poll_fds(&l->job, fds + n, JOB_MAX_FDS);
    int64_t now = clock_now_ns(), at = next_time(l), wait = at == INT64_MAX ? 1000 : (at - now) / NS_PER_MS + 1;
    poll(fds, (nfds_t)n, wait < 0 ? 0 : wait > 1000 ? 1000 : (int)wait);
}

void launch_supervise(struct launcher *l)
{
    for (;;) {
        int64_t now = clock_now_ns();
        supervisor_start_due(&l->sup, now);
        wait_events(l);
        now = clock_now_ns();
        read_signals(l, now);
        if (l->rank == 0)
            read_ready(l);
        read_job(l, now);
        if (l->phase == PHASE_DRAIN && (now >= l->phase_until_ns || (!l->coordinator_child->pid && !l->gateway_child->pid)))
            begin_end(l, EXIT_ASKED);
        if (l->phase == PHASE_END && now >= l->phase_until_ns) {
            supervisor_signal(&l->sup, SIGKILL);
            l->phase_until_ns = now + KILL_AFTER_NS;
        }
        if (l->phase == PHASE_END && supervisor_running(&l->sup) == 0)
            return;
    }
}
