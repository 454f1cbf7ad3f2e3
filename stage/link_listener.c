#define LOG_MODULE "link"
#include "stage/link_listener.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

enum { ACCEPT_PAUSE_MS = 20, WARN_PAUSE_S = 10 };

enum pending_state {
    PENDING_NONE,
    PENDING_HELLO, /* its hello is not complete */
    PENDING_KEY,   /* a good hello, of an epoch that we do not know yet */
    PENDING_PROOF, /* challenged */
    PENDING_TLS,   /* in the handshake of TLS */
};

struct pending {
    enum pending_state state;
    int fd;
    short events;           /* to poll for */
    int is_tcp;
    struct link_tls *tls;
    int64_t deadline_ns;
    size_t n;
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES], proof[HANDSHAKE_PROOF_BYTES];
    struct handshake_edge edge;
};

struct link_listener {
    pthread_t thread;
    int listen_fd[2], wake_fd, abort_fd;
    struct link_tls_context *tls;
    struct pending pending[LISTENER_MAX_PENDING]; /* the thread's own, as is the next */
    int64_t warn_at_ns;

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t moved;
    uint64_t mark;        /* generations below are over */
    int expecting, stop;
    struct handshake_edge edge;
    uint8_t key[32];
    uint64_t highest_epoch;
    struct link_taken taken; /* fd -1: the edge is not here yet */
    struct link_socket_counters count;
};

static void wake(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    (void)n; /* a full counter is readable too */
}

static void drain(int fd)
{
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof n);
    (void)got;
}

/* --- the thread's side ------------------------------------------------------------------------------------------------------- */

static void drop(struct pending *p)
{
    link_tls_destroy(p->tls);
    close(p->fd);
    p->tls = NULL;
    p->state = PENDING_NONE;
}

static void refuse(struct link_listener *l, struct pending *p, const char *why)
{
    LOG_DEBUG("a connection was closed in the handshake: %s", why);
    pthread_mutex_lock(&l->lock);
    l->count.refused++;
    pthread_mutex_unlock(&l->lock);
    drop(p);
}

static int send_all(int fd, const void *data, size_t len)
{
    /* A fresh connection's buffer takes these few bytes at once; one that does not is no stage. */
    return send(fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/* 1: complete, 0: not yet, -1: gone. */
static int fill(struct pending *p, uint8_t *into, size_t size)
{
    while (p->n < size) {
        ssize_t got = recv(p->fd, into + p->n, size - p->n, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (got <= 0)
            return -1;
        p->n += (size_t)got;
    }
    return 1;
}

enum verdict { VERDICT_WANTED, VERDICT_LATER, VERDICT_STALE };

static enum verdict judge(struct link_listener *l, const struct pending *p, uint8_t key[32])
{
    enum verdict v = VERDICT_STALE;
    pthread_mutex_lock(&l->lock);
    if (l->expecting && p->edge.session == l->edge.session && p->edge.epoch == l->edge.epoch &&
        p->edge.from == l->edge.from && p->edge.to == l->edge.to) {
        memcpy(key, l->key, 32);
        v = VERDICT_WANTED;
    } else if (p->edge.epoch > l->highest_epoch) {
        v = VERDICT_LATER;
    } else {
        l->count.stale++;
    }
    pthread_mutex_unlock(&l->lock);
    return v;
}

/* A stage with other flags than ours tries again and again: say so, now and then. */
static void refuse_mode(struct link_listener *l, struct pending *p)
{
    int64_t now = clock_now_ns();
    if (now >= l->warn_at_ns) {
        LOG_WARN("stage %u %s, this stage %s: its link is refused", p->edge.from, p->edge.tls ? "has --tls-ca" : "has no --tls-ca",
                 l->tls ? "has one" : "has none");
        l->warn_at_ns = now + WARN_PAUSE_S * NS_PER_S;
    }
    refuse(l, p, "one end uses TLS, the other does not");
}

/* The first word of a proof: our challenge, or our side of TLS. */
static void prove(struct link_listener *l, struct pending *p, const uint8_t key[32])
{
    struct error err;
    p->n = 0;
    p->events = POLLIN;
    if (p->edge.tls) {
        p->state = PENDING_TLS;
        if (link_tls_create(l->tls, LINK_TLS_ACCEPT, p->fd, key, p->hello, &p->tls, &err) != STATUS_OK)
            refuse(l, p, err.message);
        return;
    }
    p->state = PENDING_PROOF;
    if (handshake_challenge(key, p->hello, p->challenge, &err) != STATUS_OK)
        refuse(l, p, err.message);
    else if (!send_all(p->fd, p->challenge, sizeof p->challenge))
        refuse(l, p, "the challenge could not be sent");
}

/* A complete hello: begin the proof, keep it for later, or close it. */
static void consider(struct link_listener *l, struct pending *p)
{
    uint8_t key[32];
    if ((p->edge.tls != 0) != (p->is_tcp && l->tls)) {
        refuse_mode(l, p);
        return;
    }
    switch (judge(l, p, key)) {
    case VERDICT_LATER:
        p->state = PENDING_KEY;
        if (p->edge.tls) /* its side of TLS may be here already and stays in the socket */
            p->events = POLLRDHUP;
        return;
    case VERDICT_STALE:
        drop(p);
        return;
    case VERDICT_WANTED:
        prove(l, p, key);
    }
}

/* The byte that ends the handshake. A fresh connection's buffer takes it at once. */
static int send_yes(struct pending *p)
{
    uint8_t yes = 1;
    size_t put = 0;
    short events;
    if (!p->tls)
        return send_all(p->fd, &yes, 1);
    return link_tls_write(p->tls, &(struct iovec){&yes, 1}, 1, &put, &events, NULL) == STATUS_OK && put == 1;
}

/* The proof is right: the connection is the link, unless the epoch has gone meanwhile. */
static void hand_over(struct link_listener *l, struct pending *p)
{
    struct link_taken old = {p->fd, p->tls};
    pthread_mutex_lock(&l->lock);
    int wanted = l->expecting && p->edge.session == l->edge.session && p->edge.epoch == l->edge.epoch;
    if (wanted && send_yes(p)) {
        old = l->taken;
        l->taken = (struct link_taken){p->fd, p->tls};
        l->count.accepted++;
        pthread_cond_broadcast(&l->moved);
    }
    pthread_mutex_unlock(&l->lock);
    link_taken_drop(&old);
    p->tls = NULL;
    p->state = PENDING_NONE;
}

static void verify(struct link_listener *l, struct pending *p)
{
    uint8_t key[32];
    struct error err;
    switch (judge(l, p, key)) {
    case VERDICT_WANTED:
        if (handshake_verify(key, p->hello, p->challenge, p->proof, &err) == STATUS_OK)
            hand_over(l, p);
        else
            refuse(l, p, err.message);
        return;
    default:
        drop(p);
    }
}

static void shake(struct link_listener *l, struct pending *p)
{
    struct error err;
    uint8_t key[32];
    if (link_tls_shake(p->tls, &p->events, &err) != STATUS_OK)
        refuse(l, p, err.message);
    else if (!p->events && judge(l, p, key) == VERDICT_WANTED)
        hand_over(l, p);
    else if (!p->events)
        drop(p);
}

static void advance(struct link_listener *l, struct pending *p)
{
    struct error err;
    int rc;
    if (p->state == PENDING_HELLO) {
        rc = fill(p, p->hello, sizeof p->hello);
        if (memcmp(p->hello, "SLUILNK1", p->n < 8 ? p->n : 8) != 0)
            refuse(l, p, "not a stage's handshake"); /* at the first wrong byte: it need not send the rest */
        else if (rc < 0)
            refuse(l, p, "it left");
        else if (rc > 0 && handshake_read_hello(p->hello, &p->edge, &err) != STATUS_OK)
            refuse(l, p, err.message);
        else if (rc > 0)
            consider(l, p);
    } else if (p->state == PENDING_PROOF) {
        rc = fill(p, p->proof, sizeof p->proof);
        if (rc < 0)
            refuse(l, p, "it left");
        else if (rc > 0)
            verify(l, p);
    } else if (p->state == PENDING_TLS) {
        shake(l, p);
    } else if (p->state == PENDING_KEY) {
        uint8_t byte;
        ssize_t got = recv(p->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
        if (got > 0 && !p->edge.tls)
            refuse(l, p, "it spoke out of turn");
        else if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            refuse(l, p, "it left");
    }
}

/* A free place; the oldest mute connection gives up its own. */
static struct pending *place(struct link_listener *l)
{
    struct pending *oldest = NULL;
    for (int i = 0; i < LISTENER_MAX_PENDING; i++) {
        struct pending *p = &l->pending[i];
        if (p->state == PENDING_NONE)
            return p;
        if (!oldest || (p->state == PENDING_HELLO) > (oldest->state == PENDING_HELLO) ||
            ((p->state == PENDING_HELLO) == (oldest->state == PENDING_HELLO) && p->deadline_ns < oldest->deadline_ns))
            oldest = p;
    }
    refuse(l, oldest, "too many handshakes at once");
    return oldest;
}

static void take_connection(struct link_listener *l, int listen_fd)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        /* Out of descriptors the socket stays readable: do not spin on it. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            poll(NULL, 0, ACCEPT_PAUSE_MS);
        return;
    }
    struct pending *p = place(l);
    *p = (struct pending){
        .state = PENDING_HELLO, .fd = fd, .events = POLLIN, .is_tcp = listen_fd == l->listen_fd[0],
        .deadline_ns = clock_now_ns() + HANDSHAKE_DEADLINE_MS * NS_PER_MS};
    advance(l, p);
}

static int poll_set(struct link_listener *l, struct pollfd *set, struct pending **who, int64_t *deadline_ns)
{
    int n = 0;
    *deadline_ns = INT64_MAX;
    set[n++] = (struct pollfd){.fd = l->wake_fd, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        set[n++] = (struct pollfd){.fd = l->listen_fd[i], .events = POLLIN}; /* poll skips -1 */
    for (int i = 0; i < LISTENER_MAX_PENDING; i++) {
        struct pending *p = &l->pending[i];
        if (p->state == PENDING_NONE)
            continue;
        who[n] = p;
        set[n++] = (struct pollfd){.fd = p->fd, .events = p->events};
        *deadline_ns = p->deadline_ns < *deadline_ns ? p->deadline_ns : *deadline_ns;
    }
    pthread_mutex_lock(&l->lock);
    l->count.pending = (uint32_t)n - 3;
    pthread_mutex_unlock(&l->lock);
    return n;
}

static int until_ms(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return -1;
    int64_t left = deadline_ns - clock_now_ns();
    return left <= 0 ? 0 : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
}

static void *listener_run(void *arg)
{
    struct link_listener *l = arg;
    struct pollfd set[3 + LISTENER_MAX_PENDING];
    struct pending *who[3 + LISTENER_MAX_PENDING];
    int64_t deadline_ns;
    for (int stop = 0; !stop;) {
        int n = poll_set(l, set, who, &deadline_ns);
        poll(set, (nfds_t)n, until_ms(deadline_ns));
        if (set[0].revents) {
            drain(l->wake_fd);
            for (int i = 0; i < LISTENER_MAX_PENDING; i++)
                if (l->pending[i].state == PENDING_KEY)
                    consider(l, &l->pending[i]);
        }
        for (int i = 3; i < n; i++)
            if (set[i].revents && who[i]->state != PENDING_NONE)
                advance(l, who[i]);
        int64_t now = clock_now_ns();
        for (int i = 0; i < LISTENER_MAX_PENDING; i++)
            if (l->pending[i].state != PENDING_NONE && l->pending[i].deadline_ns <= now)
                refuse(l, &l->pending[i], "it took too long");
        for (int i = 0; i < 2; i++)
            if (set[1 + i].revents)
                take_connection(l, l->listen_fd[i]);
        pthread_mutex_lock(&l->lock);
        stop = l->stop;
        pthread_mutex_unlock(&l->lock);
    }
    for (int i = 0; i < LISTENER_MAX_PENDING; i++)
        if (l->pending[i].state != PENDING_NONE)
            drop(&l->pending[i]);
    return NULL;
}

/* --- everybody else's side ------------------------------------------------------------------------------------------------------ */

void link_taken_drop(struct link_taken *t)
{
    link_tls_destroy(t->tls);
    if (t->fd >= 0)
        close(t->fd);
    *t = (struct link_taken){.fd = -1};
}

static void close_all(struct link_listener *l)
{
    for (int i = 0; i < 2; i++)
        if (l->listen_fd[i] >= 0)
            close(l->listen_fd[i]);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->abort_fd >= 0)
        close(l->abort_fd);
    link_taken_drop(&l->taken);
}

enum status link_listener_create(int tcp_fd, int unix_fd, struct link_tls_context *tls, struct link_listener **out,
                                 struct error *err)
{
    struct link_listener *l = calloc(1, sizeof *l);
    if (!l) {
        if (tcp_fd >= 0)
            close(tcp_fd);
        if (unix_fd >= 0)
            close(unix_fd);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a listener");
    }
    *l = (struct link_listener){.listen_fd = {tcp_fd, unix_fd}, .tls = tls, .taken.fd = -1};
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, &attr);
    pthread_condattr_destroy(&attr);
    if (l->wake_fd < 0 || l->abort_fd < 0 || pthread_create(&l->thread, NULL, listener_run, l) != 0) {
        close_all(l);
        free(l);
        return error_set(err, STATUS_OUT_OF_MEMORY, "a listener's thread cannot be started: %s", strerror(errno));
    }
    *out = l;
    return STATUS_OK;
}

void link_listener_destroy(struct link_listener *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_mutex_unlock(&l->lock);
    wake(l->wake_fd);
    pthread_join(l->thread, NULL);
    close_all(l);
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

enum status link_listener_expect(struct link_listener *l, uint64_t generation, const struct handshake_edge *edge,
                                 const uint8_t key[32])
{
    pthread_mutex_lock(&l->lock);
    int over = generation < l->mark;
    if (!over) {
        drain(l->abort_fd); /* under the lock: an abort that comes later writes it again */
        l->expecting = 1;
        l->edge = *edge;
        memcpy(l->key, key, 32);
        if (edge->epoch > l->highest_epoch)
            l->highest_epoch = edge->epoch;
    }
    pthread_mutex_unlock(&l->lock);
    wake(l->wake_fd);
    return over ? STATUS_CLOSED : STATUS_OK;
}

enum status link_listener_take(struct link_listener *l, uint64_t generation, int64_t deadline_ns, struct link_taken *out)
{
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    enum status s = STATUS_OK;
    pthread_mutex_lock(&l->lock);
    while (s == STATUS_OK && l->taken.fd < 0) {
        if (generation < l->mark)
            s = STATUS_CLOSED;
        else if (pthread_cond_timedwait(&l->moved, &l->lock, &t) != 0 && l->taken.fd < 0)
            s = STATUS_TIMEOUT;
    }
    if (s == STATUS_OK) {
        *out = l->taken;
        l->taken = (struct link_taken){.fd = -1};
    }
    pthread_mutex_unlock(&l->lock);
    return s;
}

void link_listener_forget(struct link_listener *l)
{
    pthread_mutex_lock(&l->lock);
    struct link_taken left = l->taken;
    l->expecting = 0;
    l->taken = (struct link_taken){.fd = -1};
    memset(l->key, 0, sizeof l->key);
    pthread_mutex_unlock(&l->lock);
    link_taken_drop(&left);
}

void link_listener_abort(struct link_listener *l, uint64_t generation)
{
    pthread_mutex_lock(&l->lock);
    if (generation > l->mark)
        l->mark = generation;
    wake(l->abort_fd);
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->lock);
}

int link_listener_aborted(struct link_listener *l, uint64_t generation)
{
    pthread_mutex_lock(&l->lock);
    int over = generation < l->mark;
    pthread_mutex_unlock(&l->lock);
    return over;
}

int link_listener_abort_fd(const struct link_listener *l)
{
    return l->abort_fd;
}

void link_listener_counters(struct link_listener *l, struct link_socket_counters *out)
{
    pthread_mutex_lock(&l->lock);
    *out = l->count;
    pthread_mutex_unlock(&l->lock);
}
