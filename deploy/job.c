#include "deploy/job.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

static const int64_t HELLO_LIMIT_NS = 2 * NS_PER_S;
enum { CONNECT_LIMIT_MS = 10000, RECONNECT_LIMIT_MS = 300, QUIET_S = 10, PROBE_S = 5, N_PROBES = 4 };

/* A host that vanished says nothing: only probes find out. Without them a rank would outlive its job for ever. */
static void watch_peer(int fd)
{
    const int on = 1, quiet = QUIET_S, probe = PROBE_S, n = N_PROBES;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &quiet, sizeof quiet);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof probe);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
}

static void prove(const struct job *j, int rank, const char *nonce, char out[65])
{
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    char text[128];
    int n = snprintf(text, sizeof text, "sluice-launch %d %s", rank, nonce);
    HMAC(EVP_sha256(), j->secret, (int)strlen(j->secret), (const unsigned char *)text, (size_t)n, mac, &len);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", mac[i]);
}

void job_init(struct job *j, int rank, int n_ranks)
{
    *j = (struct job){.rank = rank, .n_ranks = n_ranks, .listener = -1};
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        j->lines[i].fd = -1;
}

enum status job_listen(struct job *j, const char *host, uint16_t *port, struct error *err)
{
    struct address a = {.port = 0};
    struct sockaddr_storage sa;
    socklen_t len;
    snprintf(a.host, sizeof a.host, "%s", host);
    TRY(address_resolve(&a, &sa, &len, err));
    j->listener = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->listener < 0 || bind(j->listener, (struct sockaddr *)&sa, len) != 0 || listen(j->listener, JOB_MAX_RANKS) != 0 ||
        getsockname(j->listener, (struct sockaddr *)&sa, &len) != 0)
        return error_set(err, STATUS_IO, "the control socket on %s: %s", host, strerror(errno));
    const uint8_t *p = (const uint8_t *)&sa; /* the port lies at the same place for IPv4 and IPv6 */
    *port = (uint16_t)(p[2] << 8 | p[3]);
    return STATUS_OK;
}

static void drop(struct job_line *l)
{
    close(l->fd);
    *l = (struct job_line){.fd = -1};
}

/* Grows with every connection of this host: no reboot is between two of one job. */
static void make_nonce(char nonce[20])
{
    snprintf(nonce, 20, "%016llx", (unsigned long long)clock_now_ns());
}

static enum status connect_within(struct job *j, int limit_ms, struct error *err)
{
    struct address a = {.port = j->port};
    struct sockaddr_storage sa;
    socklen_t len;
    char nonce[20], mac[65], line[160];
    snprintf(a.host, sizeof a.host, "%s", j->host);
    TRY(address_resolve(&a, &sa, &len, err));
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval limit = {.tv_sec = limit_ms / 1000, .tv_usec = limit_ms % 1000 * 1000}; /* Linux: connect obeys it too */
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (struct sockaddr *)&sa, len) != 0) {
        enum status s = error_set(err, STATUS_IO, "rank 0's control socket %s:%u: %s", j->host, j->port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return s;
    }
    make_nonce(nonce);
    prove(j, j->rank, nonce, mac);
    int n = snprintf(line, sizeof line, "HELLO %d %s %s\n", j->rank, nonce, mac);
    j->lines[0] = (struct job_line){.fd = fd, .rank = 0};
    watch_peer(fd);
    if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
        return error_set(err, STATUS_IO, "rank 0's control socket: %s", strerror(errno));
    return STATUS_OK;
}

enum status job_connect(struct job *j, const char *host, uint16_t port, struct error *err)
{
    snprintf(j->host, sizeof j->host, "%s", host);
    j->port = port;
    return connect_within(j, CONNECT_LIMIT_MS, err);
}

enum status job_reconnect(struct job *j, struct error *err)
{
    if (j->lines[0].fd >= 0)
        drop(&j->lines[0]);
    return connect_within(j, RECONNECT_LIMIT_MS, err);
}

void job_close(struct job *j)
{
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        if (j->lines[i].fd >= 0)
            drop(&j->lines[i]);
    if (j->listener >= 0)
        close(j->listener);
    j->listener = -1;
}

int job_poll_fds(struct job *j, struct pollfd *fds, int max)
{
    int n = 0;
    if (j->listener >= 0)
        fds[n++] = (struct pollfd){j->listener, POLLIN, 0};
    for (int i = 0; i < 2 * JOB_MAX_RANKS && n < max; i++)
        if (j->lines[i].fd >= 0)
            fds[n++] = (struct pollfd){j->lines[i].fd, POLLIN, 0};
    return n;
}

static void accept_all(struct job *j, int64_t now_ns)
{
    int fd;
    while ((fd = accept4(j->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        int i = 0;
        while (i < 2 * JOB_MAX_RANKS && j->lines[i].fd >= 0)
            i++;
        if (i == 2 * JOB_MAX_RANKS) {
            close(fd);
            continue;
        }
        j->lines[i] = (struct job_line){.fd = fd, .rank = -1, .since_ns = now_ns};
        watch_peer(fd);
    }
}

static void tell(struct job_line *l, const char *text)
{
    if (send(l->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        LOG_WARN("rank %d cannot be told '%.20s': %s", l->rank, text, strerror(errno));
}

static struct job_line *line_of(struct job *j, int rank)
{
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        if (j->lines[i].fd >= 0 && j->lines[i].rank == rank)
            return &j->lines[i];
    return NULL;
}

static void tell_code(struct job_line *l, int code)
{
    char line[32];
    snprintf(line, sizeof line, "END %d\n", code);
    tell(l, line);
}

static int hello(struct job *j, struct job_line *l, const char *line)
{
    int rank;
    char nonce[20], got[65], want[65];
    if (sscanf(line, "HELLO %d %16s %64s", &rank, nonce, got) != 3 || rank < 1 || rank >= j->n_ranks)
        return 0;
    prove(j, rank, nonce, want);
    if (strlen(got) != 64 || CRYPTO_memcmp(got, want, 64) != 0)
        return 0;
    uint64_t number = strtoull(nonce, NULL, 16);
    if (line_of(j, rank) || number <= j->last_nonce[rank]) /* somebody who listened repeats what it said */
        return 0;
    if (j->last_nonce[rank])
        LOG_INFO("the launcher of rank %d is back", rank);
    j->last_nonce[rank] = number;
    l->rank = rank;
    if (j->told_ready)
        tell(l, "READY\n");
    if (j->told_end)
        tell_code(l, j->end_code);
    return 1;
}

/* One line of a peer. 0: not understood, the connection is closed. */
static int take_line(struct job *j, struct job_line *l, const char *line, struct job_event *ev)
{
    if (j->rank == 0 && l->rank < 0)
        return hello(j, l, line);
    *ev = (struct job_event){.rank = l->rank};
    if (j->rank == 0 && sscanf(line, "EXIT %d %159[^\n]", &ev->code, ev->what) == 2) {
        ev->kind = JOB_EXIT;
        ev->code = ev->code > 0 && ev->code < 256 ? ev->code : EXIT_BUG; /* it becomes this process's own */
    }
    else if (j->rank != 0 && strcmp(line, "READY") == 0)
        ev->kind = JOB_READY;
    else if (j->rank != 0 && sscanf(line, "END %d", &ev->code) == 1)
        ev->kind = JOB_END;
    return ev->kind != JOB_NONE;
}

/* Reads once; 1: a whole line was taken or the line was lost. */
static int read_line(struct job *j, struct job_line *l, struct job_event *ev)
{
    char *end = memchr(l->data, '\n', l->len);
    if (!end && l->len < sizeof l->data - 1) {
        ssize_t n = recv(l->fd, l->data + l->len, sizeof l->data - 1 - l->len, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n <= 0) {
            *ev = (struct job_event){.kind = l->rank >= 0 ? JOB_LOST : JOB_NONE, .rank = l->rank};
            drop(l);
            return 1;
        }
        l->len += (size_t)n;
        end = memchr(l->data, '\n', l->len);
    }
    if (!end && l->len < sizeof l->data - 1)
        return 0;
    int understood = 0;
    if (end) {
        *end = 0;
        understood = take_line(j, l, l->data, ev);
        size_t used = (size_t)(end - l->data) + 1;
        memmove(l->data, l->data + used, l->len - used);
        l->len -= used;
    }
    if (!understood) {
        LOG_WARN("rank %d (-1: unknown): what it said does not belong on the control socket: closed", l->rank);
        *ev = (struct job_event){.kind = l->rank >= 0 ? JOB_LOST : JOB_NONE, .rank = l->rank};
        drop(l);
    }
    return 1;
}

int job_next(struct job *j, int64_t now_ns, struct job_event *ev)
{
    *ev = (struct job_event){0};
    if (j->listener >= 0)
        accept_all(j, now_ns);
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++) {
        struct job_line *l = &j->lines[i];
        if (l->fd >= 0 && j->rank == 0 && l->rank < 0 && now_ns - l->since_ns > HELLO_LIMIT_NS)
            drop(l);
        while (l->fd >= 0 && read_line(j, l, ev))
            if (ev->kind != JOB_NONE)
                return 1;
    }
    return 0;
}

void job_tell_ready(struct job *j)
{
    j->told_ready = 1;
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        if (j->lines[i].fd >= 0 && j->lines[i].rank > 0)
            tell(&j->lines[i], "READY\n");
}

void job_tell_end(struct job *j, int code)
{
    j->told_end = 1;
    j->end_code = code;
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        if (j->lines[i].fd >= 0 && j->lines[i].rank > 0)
            tell_code(&j->lines[i], code);
}

void job_settle(struct job *j, int ms)
{
    struct pollfd fds[JOB_MAX_FDS];
    struct job_event ev;
    for (int64_t end_ns = clock_now_ns() + ms * NS_PER_MS; clock_now_ns() < end_ns;) {
        int n_heard = 0;
        while (job_next(j, clock_now_ns(), &ev))
            ;
        for (int rank = 1; rank < j->n_ranks; rank++)
            n_heard += line_of(j, rank) != NULL;
        if (n_heard == j->n_ranks - 1)
            return;
        poll(fds, (nfds_t)job_poll_fds(j, fds, JOB_MAX_FDS), 20);
    }
}

void job_report_exit(struct job *j, int code, const char *what)
{
    char line[240];
    snprintf(line, sizeof line, "EXIT %d %.150s\n", code, what);
    if (j->lines[0].fd >= 0)
        tell(&j->lines[0], line);
}
