#include "common/text/chat_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/text/chat_template_child.inc"

static void limit(int what, rlim_t most)
{
    struct rlimit r = {most, most};
    setrlimit(what, &r);
}

/* Runs in the borrowed memory of the parent between vfork and exec: system calls only, nothing that is not the child's own
 * is written but *failed. */
static void become_child(int socket, char *const argv[], char *const envp[], volatile int *failed)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, &dfl, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    int null = open("/dev/null", O_WRONLY);
    if (dup2(socket, 0) >= 0 && dup2(socket, 1) >= 0 && dup2(null, 2) >= 0 && close_range(3, ~0u, 0) == 0 &&
        chdir("/") == 0) {
        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_FSIZE, 0);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (unshare(CLONE_NEWNET) != 0)
            unshare(CLONE_NEWUSER | CLONE_NEWNET); /* may be forbidden: the child's own filter has no sockets either */
        execve(argv[0], argv, envp);
    }
    *failed = errno;
    _exit(127);
}

/* A socket pair whose ends are above the standard descriptors, so that dup2 in the child loses none. */
static int socket_pair(int fd[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        if (fd[i] > 2)
            continue;
        int up = fcntl(fd[i], F_DUPFD_CLOEXEC, 3);
        if (up < 0) {
            close(fd[0]);
            close(fd[1]);
            return -1;
        }
        close(fd[i]);
        fd[i] = up;
    }
    return fcntl(fd[0], F_SETFL, O_NONBLOCK);
}

enum status chat_child_start(struct chat_child *c, const char *python, unsigned memory_mib, struct error *err)
{
    char memory[32];
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)memory_mib << 20);
    char *source = (char *)(uintptr_t)chat_template_child_source;
    char *const argv[] = {(char *)(uintptr_t)python, "-I", "-B", "-c", source, memory, NULL};
    char *const envp[] = {"LC_ALL=C.UTF-8", NULL};
    int fd[2];
    volatile int failed = 0;
    sigset_t all, old;
    if (socket_pair(fd) != 0)
        return error_set(err, STATUS_IO, "chat template: socketpair: %s", strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pid_t pid = vfork();
    if (pid == 0)
        become_child(fd[1], argv, envp, &failed);
    int why = pid < 0 ? errno : failed;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(fd[1]);
    if (pid < 0 || failed) {
        if (pid > 0)
            waitpid(pid, NULL, 0);
        close(fd[0]);
        return error_set(err, STATUS_CONFIG, "chat template: cannot run %s: %s", python, strerror(why));
    }
    *c = (struct chat_child){.pid = pid, .fd = fd[0]};
    return STATUS_OK;
}

void chat_child_stop(struct chat_child *c)
{
    if (c->pid <= 0)
        return;
    close(c->fd);
    kill(c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *c = (struct chat_child){.fd = -1};
}

int chat_child_idle(const struct chat_child *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
}

static enum status wait_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left = deadline_ns - clock_now_ns();
        if (left <= 0)
            return STATUS_TIMEOUT;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, left / NS_PER_MS >= 60000 ? 60000 : (int)(left / NS_PER_MS) + 1);
        if (n > 0)
            return STATUS_OK;
        if (n < 0 && errno != EINTR)
            return STATUS_CLOSED;
    }
}

static enum status send_all(int fd, const char *bytes, size_t len, int64_t deadline_ns)
{
    while (len) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            TRY(wait_for(fd, POLLOUT, deadline_ns));
        } else if (n == 0 || errno != EINTR) {
            return STATUS_CLOSED;
        }
    }
    return STATUS_OK;
}

static enum status receive_all(int fd, char *bytes, size_t len, int64_t deadline_ns)
{
    while (len) {
        ssize_t n = recv(fd, bytes, len, 0);
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            TRY(wait_for(fd, POLLIN, deadline_ns));
        } else if (n == 0 || errno != EINTR) {
            return STATUS_CLOSED;
        }
    }
    return STATUS_OK;
}

enum status chat_child_send(struct chat_child *c, char kind, const char *payload, size_t len, int64_t deadline_ns)
{
    if (len > CHILD_MAX_FRAME)
        return STATUS_FULL;
    char head[5] = {(char)(len & 255), (char)(len >> 8 & 255), (char)(len >> 16 & 255), (char)(len >> 24 & 255), kind};
    TRY(send_all(c->fd, head, sizeof head, deadline_ns));
    return send_all(c->fd, payload, len, deadline_ns);
}

enum status chat_child_receive(struct chat_child *c, char *kind, struct buf *payload, int64_t deadline_ns)
{
    unsigned char head[5];
    char chunk[16 << 10];
    TRY(receive_all(c->fd, (char *)head, sizeof head, deadline_ns));
    size_t len = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (len > CHILD_MAX_FRAME)
        return STATUS_PROTOCOL;
    buf_clear(payload);
    TRY(buf_text(payload, ""));
    while (len) {
        size_t n = len < sizeof chunk ? len : sizeof chunk;
        TRY(receive_all(c->fd, chunk, n, deadline_ns));
        TRY(buf_append(payload, chunk, n));
        len -= n;
    }
    *kind = (char)head[4];
    return STATUS_OK;
}
