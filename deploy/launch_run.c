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
static const int64_t REJOIN_NS = 1 * NS_PER_S, MAX_REJOIN_NS = 5 * NS_PER_S;
enum { LOOK_MS = 250 }; /* how often the children's beats are heard */
static const int64_t ASKED_FOR_NS = 5 * NS_PER_S;   /* until a gateway has found the next coordinator: it tries every second */
enum { RELEASED_DELAY_MS = 1000 };

int launch_signals_fd(const int *signals, size_t n)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < n; i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

enum status launch_open_signals(struct launcher *l, struct error *err)
{
    const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};
    signal(SIGPIPE, SIG_IGN);
    l->signal_fd = launch_signals_fd(signals, ARRAY_LEN(signals));
    if (l->signal_fd < 0 || pipe2(l->ready_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, STATUS_IO, "signals: %s", strerror(errno));
    return STATUS_OK;
}

/* --- the end ---------------------------------------------------------------------------------------------------------------------- */

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

/* No process, and none to come. */
static int is_over(const struct child *c)
{
    return !c->pid && !c->start_at_ns;
}

/* Asks the process that c is now, once. One that has not spoken yet does not hold its signals and would die of this one. */
static void ask_to_drain(const struct child *c, pid_t *asked)
{
    if (!c->pid || c->pid == *asked || !c->beat_ns)
        return;
    *asked = c->pid;
    kill(c->pid, SIGTERM);
}

static void begin_drain(struct launcher *l)
{
    const int64_t now = clock_now_ns();
    if (!l->coordinator_child) { /* nothing to drain here: the streams are elsewhere, and wait for another stage */
        LOG_INFO("rank %d: asked to end; its stage ends, the service goes on without", l->rank);
        begin_end(l, EXIT_ASKED);
        return;
    }
    LOG_INFO("draining: running requests finish within %lld ms; once more ends at once", (long long)l->config.drain_ms);
    l->phase = PHASE_DRAIN;
    l->phase_until_ns = now + l->config.drain_ms * NS_PER_MS + DRAIN_SLACK_NS;
    l->gateway_returns = !is_over(l->gateway_child) && (!l->gateway_child->pid || !l->gateway_child->beat_ns);
    if (l->coordinator_child->incarnation == 1 || now - l->coordinator_child->started_ns > ASKED_FOR_NS)
        ask_to_drain(l->coordinator_child, &l->asked_coordinator); /* else as one that comes later */
    ask_to_drain(l->gateway_child, &l->asked_gateway);
}

/* What was started since then is asked too: a gateway at once, it has taken over the answers of the one before by the time that it
 * looks; a coordinator has none of them before the gateway asks again, and would end at once. */
static void go_on_draining(struct launcher *l, int64_t now)
{
    ask_to_drain(l->gateway_child, &l->asked_gateway);
    if (is_over(l->gateway_child))
        ask_to_drain(l->coordinator_child, &l->asked_coordinator);
    if (now >= l->phase_until_ns || (!l->coordinator_child->pid && is_over(l->gateway_child)))
        begin_end(l, EXIT_ASKED);
}

/* Ends this launcher with a code that is not 0. */
static void fail(struct launcher *l, int code, int rank, const char *what)
{
    snprintf(l->why, sizeof l->why, "rank %d: %.180s", rank, what);
    LOG_ERROR("%s", l->why);
    begin_end(l, code);
}

/* A child that cannot do its work ends the job with its code. */
static void fatal(struct launcher *l, int code, const char *what)
{
    if (l->rank != 0)
        job_report_exit(&l->job, code, what);
    fail(l, code, l->rank, what);
}

/* --- children that end ------------------------------------------------------------------------------------------------------------ */

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

/* "stage 1 (pid 4711) was ended by signal 9 (Killed) after 12.3 s" */
static void describe_end(const struct child_end *end, char *out, size_t size)
{
    char how[96];
    if (end->was_silent)
        snprintf(how, sizeof how, "gave no sign of life and was killed");
    else if (end->signal)
        snprintf(how, sizeof how, "was ended by signal %d (%s)", end->signal, strsignal(end->signal));
    else if (end->code == EXIT_ASKED || end->code == EXIT_AGAIN)
        snprintf(how, sizeof how, "ended as it was asked to (code %d)", end->code);
    else
        snprintf(how, sizeof how, "exited with code %d%s", end->code, exit_meaning(end->code));
    snprintf(out, size, "%s (pid %d) %s after %.1f s", end->child->name, end->pid, how, (double)end->lived_ns / NS_PER_S);
}

/* Such a code says that another try would end the same way: before the service was ready once; of a joined stage, always. */
static int is_hopeless(const struct launcher *l, const struct child_end *end)
{
    return (!l->ready || l->config.join) && !end->signal && end->code >= EXIT_CONFIG && end->code <= EXIT_MEMORY;
}

/* Whose end is the end of what it is part of; 1: it was handled. */
static int ended_for_good(struct launcher *l, const struct child_end *end, const char *what)
{
    const struct child *c = end->child;
    if (end->is_released && l->config.join) {
        LOG_INFO("%s: the coordinator needs it no more", what);
        begin_end(l, EXIT_ASKED);
        return 1;
    }
    if (end->signal || end->code != EXIT_ASKED || (c != l->coordinator_child && c != l->gateway_child))
        return 0;
    if (c == l->coordinator_child) {
        LOG_INFO("%s: so does the service", what);
        begin_end(l, EXIT_ASKED);
    } else {
        LOG_INFO("%s: it is not started again", what);
        holder_clear(l->holder);
    }
    return 1;
}

/* A stage that the coordinator sends home at its own end: word that the job has ended follows as a rule. Else, say because somebody
 * runs the coordinator by hand, the next one will want a stage. */
static void start_again_later(const struct child_end *end, const char *what, int64_t now)
{
    LOG_INFO("%s: the coordinator is ending; started again in %d ms if the job goes on", what, RELEASED_DELAY_MS);
    end->child->start_at_ns = now + RELEASED_DELAY_MS * NS_PER_MS;
}

static void start_again(struct launcher *l, const struct child_end *end, const char *what, int64_t now)
{
    static const char *const memory[] = {"; its KV is thrown away", "", "; its KV is kept"};
    struct restart r;
    if (l->config.join)
        launch_ask_again(end->child);
    if (supervisor_restart(&l->sup, end, now, &r) == STATUS_OK) {
        LOG_WARN("%s; started again in %lld ms (%lld of %lld restarts in ten minutes are left)%s", what, (long long)r.delay_ms,
                 (long long)r.left, (long long)l->config.restarts, memory[end->kept + 1]);
        return;
    }
    char last[200];
    snprintf(last, sizeof last, "%.130s: restarted %lld times in ten minutes, given up", what, (long long)l->config.restarts);
    fatal(l, end->signal ? EXIT_BUG : end->code ? end->code : EXIT_BUG, last);
}

/* A drain is for the answers that run: does one of them need what has ended? The coordinator forgets those of a gateway that dies,
 * and ends with its stages when it has no others; the next gateway asks for them. */
static int is_missed(struct launcher *l, const struct child_end *end)
{
    const struct child *c = end->child;
    const int well = !end->signal && end->code == EXIT_ASKED, is_gateway = c == l->gateway_child;
    const int is_done = end->is_released || (well && (is_gateway || c == l->coordinator_child));
    if (!l->ready)
        return 0;
    l->gateway_returns |= is_gateway && !is_done;
    return is_gateway ? !is_done : !is_over(l->gateway_child) && (!is_done || l->gateway_returns);
}

static void child_ended(struct launcher *l, const struct child_end *end, int64_t now)
{
    char what[200];
    describe_end(end, what, sizeof what);
    if (l->phase == PHASE_END)
        return;
    if (l->phase == PHASE_DRAIN && !is_missed(l, end))
        LOG_INFO("%s", what);
    else if (is_hopeless(l, end))
        fatal(l, end->code, what);
    else if (l->phase == PHASE_RUN && ended_for_good(l, end, what))
        return;
    else if (end->is_released)
        start_again_later(end, what, now);
    else
        start_again(l, end, what, now);
}

/* --- signals -------------------------------------------------------------------------------------------------------------------- */

static void on_signal(struct launcher *l, int sig)
{
    switch (sig) {
    case SIGCHLD:
        break;
    case SIGUSR2:
        supervisor_signal(&l->sup, SIGUSR2);
        break;
    case SIGHUP:
        supervisor_signal(&l->sup, SIGHUP); /* keys and certificates are read again */
        break;
    case SIGUSR1:
        if (l->rank == 0 && l->phase == PHASE_RUN)
            begin_drain(l); /* mpirun tells every rank; the others end when rank 0 says so */
        break;
    default: /* SIGTERM, SIGINT */
        if (l->phase == PHASE_RUN && (l->rank == 0 || l->config.detach))
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
    while (supervisor_reap(&l->sup, now, &end))
        child_ended(l, &end, now);
}

/* --- the other ranks ------------------------------------------------------------------------------------------------------------ */

static void now_ready(struct launcher *l)
{
    l->ready = 1;
    l->n_rejoins = 0;
    launch_tell_starter(l, STARTER_READY, "");
}

static void read_ready(struct launcher *l)
{
    char byte;
    while (read(l->ready_pipe[0], &byte, 1) == 1) {
        if (!l->ready)
            LOG_INFO("ready: %s://%s", l->config.tls_cert ? "https" : "http", l->config.http);
        now_ready(l);
        job_tell_ready(&l->job);
    }
}

static const char *how_to_join(const struct launcher *l)
{
    static char text[400];
    if (l->config.token_file)
        snprintf(text, sizeof text, "`sluice-launch --join %s --token-file F --model F` on any machine replaces its stage", l->coordinator);
    else
        snprintf(text, sizeof text, "with --token-file another machine could join instead");
    return text;
}

static void rank_is_lost(struct launcher *l, int rank, int64_t now)
{
    if (l->phase == PHASE_END)
        return;
    if (l->rank == 0) {
        if (l->phase == PHASE_RUN)
            LOG_WARN("the launcher of rank %d is gone, its stage is not started again; %s", rank, how_to_join(l));
    } else if (l->config.detach && l->ready) {
        int64_t wait_ns = REJOIN_NS << (l->n_rejoins < 3 ? l->n_rejoins : 3);
        if (l->n_rejoins++ == 0)
            LOG_WARN("rank %d: rank 0's launcher (%s:%u) is out of reach; the stage waits for its coordinator, and this launcher for rank 0; "
                     "SIGTERM to pid %d ends them", l->rank, l->job.host, l->job.port, (int)getpid());
        l->rejoin_ns = now + (wait_ns < MAX_REJOIN_NS ? wait_ns : MAX_REJOIN_NS);
    } else {
        fail(l, EXIT_BUG, l->rank, "rank 0 is gone");
    }
}

/* What another rank could not go on with. A detached service outlives one node: it waits for a replacement. */
static void rank_has_failed(struct launcher *l, const struct job_event *ev)
{
    if (l->config.detach && l->ready)
        LOG_ERROR("rank %d: %s; the service goes on when its stage is replaced; %s", ev->rank, ev->what, how_to_join(l));
    else
        fail(l, ev->code, ev->rank, ev->what);
}

static void read_job(struct launcher *l, int64_t now)
{
    struct job_event ev;
    while (l->n_ranks > 1 && job_next(&l->job, now, &ev)) {
        if (ev.kind == JOB_READY) {
            if (l->n_rejoins)
                LOG_INFO("rank %d: rank 0's launcher is back", l->rank);
            now_ready(l);
        } else if (ev.kind == JOB_END) {
            begin_end(l, ev.code);
        } else if (ev.kind == JOB_EXIT) {
            rank_has_failed(l, &ev);
        } else if (ev.kind == JOB_LOST) {
            rank_is_lost(l, ev.rank, now);
        }
    }
}

static void rejoin(struct launcher *l, int64_t now)
{
    struct error err = {0};
    if (!l->rejoin_ns || now < l->rejoin_ns || l->phase == PHASE_END)
        return;
    l->rejoin_ns = 0;
    if (job_reconnect(&l->job, &err) != STATUS_OK) {
        LOG_DEBUG("%s", err.message);
        rank_is_lost(l, 0, now);
    }
}

/* The process that mpirun started went without a word (mpirun was killed): before the first ready that is the end, and rank 0
 * says so to all; afterwards nobody waits for it. */
static void look_at_starter(struct launcher *l)
{
    struct pollfd fd = {l->starter_fd, POLLIN, 0};
    if (l->starter_fd < 0 || poll(&fd, 1, 0) <= 0 || !(fd.revents & (POLLHUP | POLLERR)))
        return;
    close(l->starter_fd);
    l->starter_fd = -1;
    if (l->rank == 0)
        fail(l, EXIT_BUG, 0, "mpirun was ended before the service was ready");
}

/* --- the loop ------------------------------------------------------------------------------------------------------------------- */

static int64_t next_time(const struct launcher *l)
{
    int64_t at = supervisor_next_start(&l->sup);
    if (l->rejoin_ns && l->rejoin_ns < at)
        at = l->rejoin_ns;
    return l->phase != PHASE_RUN && l->phase_until_ns < at ? l->phase_until_ns : at;
}

static void wait_events(struct launcher *l)
{
    struct pollfd fds[JOB_MAX_FDS + 4];
    int n = 0;
    fds[n++] = (struct pollfd){l->signal_fd, POLLIN, 0};
    if (l->rank == 0)
        fds[n++] = (struct pollfd){l->ready_pipe[0], POLLIN, 0};
    if (l->holder)
        fds[n++] = (struct pollfd){holder_fd(l->holder), holder_events(l->holder), 0};
    if (l->starter_fd >= 0)
        fds[n++] = (struct pollfd){l->starter_fd, POLLIN, 0};
    if (l->n_ranks > 1)
        n += job_poll_fds(&l->job, fds + n, JOB_MAX_FDS);
    int64_t now = clock_now_ns(), at = next_time(l), wait = at == INT64_MAX ? LOOK_MS : (at - now) / NS_PER_MS + 1;
    poll(fds, (nfds_t)n, wait < 0 ? 0 : wait > LOOK_MS ? LOOK_MS : (int)wait);
}

void launch_supervise(struct launcher *l)
{
    for (;;) {
        int64_t now = clock_now_ns();
        supervisor_start_due(&l->sup, now);
        wait_events(l);
        now = clock_now_ns();
        supervisor_listen(&l->sup, now);
        if (l->holder)
            holder_serve(l->holder); /* before the gateway's end is looked at: its last words first */
        read_signals(l, now);
        if (l->rank == 0)
            read_ready(l);
        if (l->config.join && !l->ready && l->sup.children[0].beat_ns) {
            LOG_INFO("a stage for the coordinator at %s runs: it takes a lost one's place, or waits for one", l->coordinator);
            now_ready(l);
        }
        read_job(l, now);
        rejoin(l, now);
        look_at_starter(l);
        if (l->phase == PHASE_DRAIN)
            go_on_draining(l, now);
        if (l->phase == PHASE_END && now >= l->phase_until_ns) {
            supervisor_signal(&l->sup, SIGKILL);
            l->phase_until_ns = now + KILL_AFTER_NS;
        }
        if (l->phase == PHASE_END && supervisor_running(&l->sup) == 0)
            return;
    }
}
