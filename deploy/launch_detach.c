#include "deploy/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/check.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

/* From the supervisor to the process that mpirun waits for. */
struct word {
    int32_t code; /* STARTER_READY, or the exit code */
    char why[200];
};

/* --- files ---------------------------------------------------------------------------------------------------------------------- */

/* The lock goes with the process, however it ends, so a file that was left behind is no obstacle. */
static enum status hold_pid_file(struct launcher *l, const char *file, struct error *err)
{
    char holder[24] = "";
    if (l->rank)
        snprintf(l->pid_path, sizeof l->pid_path, "%.1000s.%d", file, l->rank);
    else
        snprintf(l->pid_path, sizeof l->pid_path, "%.1000s", file);
    l->pid_fd = open(l->pid_path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (l->pid_fd < 0)
        return error_set(err, STATUS_CONFIG, "--pid-file %.100s: %s", l->pid_path, strerror(errno));
    if (flock(l->pid_fd, LOCK_EX | LOCK_NB) == 0)
        return STATUS_OK;
    int e = errno;
    if (e == EWOULDBLOCK && pread(l->pid_fd, holder, sizeof holder - 1, 0) > 0)
        holder[strcspn(holder, "\n")] = 0;
    close(l->pid_fd);
    l->pid_fd = -1;
    if (e == EWOULDBLOCK)
        return error_set(err, STATUS_CONFIG, "--pid-file %.100s: held by the launcher with pid %s, which is running", l->pid_path, holder);
    return error_set(err, STATUS_CONFIG, "--pid-file %.100s cannot be locked: %s", l->pid_path, strerror(e));
}

enum status launch_open_files(struct launcher *l, struct error *err)
{
    const char *pid_file = l->config.pid_file;
    if (!pid_file && l->config.detach)
        pid_file = "sluice.pid";
    if (pid_file)
        TRY(hold_pid_file(l, pid_file, err));
    if (!l->config.detach)
        return STATUS_OK;
    l->log_fd = open(l->config.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (l->log_fd < 0)
        return error_set(err, STATUS_CONFIG, "--log-file %.100s: %s", l->config.log_file, strerror(errno));
    return STATUS_OK;
}

void launch_write_pid(const struct launcher *l)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    if (l->pid_fd >= 0 && (ftruncate(l->pid_fd, 0) != 0 || pwrite(l->pid_fd, text, (size_t)n, 0) != n))
        LOG_WARN("--pid-file %s: %s", l->pid_path, strerror(errno));
}

void launch_close_files(struct launcher *l)
{
    if (l->pid_fd >= 0)
        unlink(l->pid_path);
    if (l->pid_fd >= 0)
        close(l->pid_fd);
    if (l->log_fd >= 0)
        close(l->log_fd);
    l->pid_fd = l->log_fd = -1;
}

/* --- the process that mpirun waits for ------------------------------------------------------------------------------------------- */

/* The exit code of this process: that of a start that failed, or 0. */
static int report(const struct launcher *l, const struct word *w, pid_t supervisor)
{
    if (w->code != STARTER_READY) {
        if (w->why[0]) /* else another rank says it: the last line names the cause */
            LOG_ERROR("%s; more in %s", w->why, l->config.log_file);
        else if (l->rank == 0)
            LOG_INFO("the service has ended; more in %s", l->config.log_file);
        return w->code;
    }
    LOG_INFO("serving, detached: pid %d (%s), log %s%s", (int)supervisor, l->pid_path, l->config.log_file,
             l->rank == 0 ? "; SIGTERM to that pid drains and ends the whole service" : "");
    return EXIT_ASKED;
}

/* Until the service is ready it is this process's, and mpirun's: a signal to end is for the supervisor. */
static int wait_for_word(const struct launcher *l, int fd, int signals, pid_t supervisor)
{
    struct word w;
    struct pollfd fds[2] = {{fd, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        struct signalfd_siginfo si;
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return EXIT_BUG;
        while (read(signals, &si, sizeof si) == sizeof si)
            kill(supervisor, si.ssi_signo == SIGHUP ? SIGHUP : SIGTERM);
        if (!(fds[0].revents & (POLLIN | POLLHUP)))
            continue;
        if (read(fd, &w, sizeof w) == sizeof w) {
            w.why[sizeof w.why - 1] = 0;
            return report(l, &w, supervisor);
        }
        int state = 0;
        waitpid(supervisor, &state, 0);
        LOG_ERROR("rank %d: the supervisor (pid %d) ended without a word, by signal %d; more in %s", l->rank, (int)supervisor,
                  WIFSIGNALED(state) ? WTERMSIG(state) : 0, l->config.log_file);
        return EXIT_BUG;
    }
}

/* --- the supervisor -------------------------------------------------------------------------------------------------------------- */

static int is_ours(const struct launcher *l, int fd)
{
    int ours = fd <= STDERR_FILENO || fd == l->pid_fd || fd == l->log_fd || fd == l->starter_fd || fd == l->job.listener;
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        ours |= fd == l->job.lines[i].fd;
    return ours;
}

/* mpirun waits until nobody holds its pipes any more; what MPI has left open is not looked into. */
static void close_others(const struct launcher *l)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] != '.' && fd != dirfd(dir) && !is_ours(l, fd))
            close(fd);
    }
    closedir(dir);
}

static void redirect(const struct launcher *l)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dup2(l->log_fd, STDOUT_FILENO);
    dup2(l->log_fd, STDERR_FILENO);
    close_others(l);
}

enum status launch_detach(struct launcher *l, struct error *err)
{
    const int asked[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    int pair[2], signals = launch_signals_fd(asked, ARRAY_LEN(asked));
    if (signals < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return error_set(err, STATUS_IO, "--detach: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        return error_set(err, STATUS_IO, "--detach: %s", strerror(errno));
    if (pid > 0) {
        close(pair[1]);
        job_close(&l->job); /* the supervisor's now */
        exit(wait_for_word(l, pair[0], signals, pid));
    }
    setsid();
    l->starter_fd = pair[1];
    redirect(l);
    return STATUS_OK;
}

void launch_tell_starter(struct launcher *l, int code, const char *why)
{
    struct word w = {.code = code};
    if (l->starter_fd < 0)
        return;
    snprintf(w.why, sizeof w.why, "%s", why);
    if (send(l->starter_fd, &w, sizeof w, MSG_NOSIGNAL) != sizeof w)
        LOG_WARN("the process that mpirun started has gone");
    close(l->starter_fd);
    l->starter_fd = -1;
}
