/* Links over sockets: TCP between hosts, abstract UNIX sockets between processes of one host and network namespace. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "stage/link_listener.h"

enum { BACKLOG = 32, RETRY_MS = 20 };

struct socket_link {
    struct link base;
    int fd;
    struct link_tls *tls; /* NULL: plain */
    atomic_int aborted;
    int64_t heard_ns; /* of socket_unheard_ms: the last look at which nothing waited, or the last word since */
};

static int left_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - clock_now_ns();
    return left <= 0 ? 0 : left > 1000 * NS_PER_S ? 1000000 : (int)((left + NS_PER_MS - 1) / NS_PER_MS);
}

static enum status broken(const struct socket_link *l, const char *what, int number, struct error *err)
{
    if (atomic_load(&l->aborted))
        return error_set(err, STATUS_CLOSED, "the link was aborted");
    if (number == 0)
        return error_set(err, STATUS_LINK, "the other end has closed the link");
    return error_set(err, STATUS_LINK, "%s: %s", what, strerror(number));
}

/* What is there now, without a wait; *events: what to wait for when nothing is. */
static enum status take_some(struct socket_link *l, void *buf, size_t len, size_t *got, short *events, struct error *err)
{
    *got = 0;
    *events = POLLIN;
    if (l->tls) {
        enum status s = link_tls_read(l->tls, buf, len, got, events, err);
        return s != STATUS_OK && atomic_load(&l->aborted) ? broken(l, "read", 0, err) : s;
    }
    for (;;) {
        ssize_t n = recv(l->fd, buf, len, MSG_DONTWAIT);
        if (n > 0)
            *got = (size_t)n;
        if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)))
            return STATUS_OK;
        if (n == 0 || errno != EINTR)
            return broken(l, "read", n == 0 ? 0 : errno, err);
    }
}

/* The same for what fits now. */
static enum status put_some(struct socket_link *l, const struct iovec *iov, int n_iov, size_t *put, short *events,
                            struct error *err)
{
    *put = 0;
    *events = POLLOUT;
    if (l->tls) {
        enum status s = link_tls_write(l->tls, iov, n_iov, put, events, err);
        return s != STATUS_OK && atomic_load(&l->aborted) ? broken(l, "write", 0, err) : s;
    }
    const struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n_iov};
    for (;;) {
        ssize_t n = sendmsg(l->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            *put = (size_t)n;
        if (n >= 0 || errno == EAGAIN || errno == EWOULDBLOCK)
            return STATUS_OK;
        if (errno != EINTR)
            return broken(l, "write", errno == EPIPE ? 0 : errno, err);
    }
}

static enum status socket_read(struct link *base, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err)
{
    struct socket_link *l = (struct socket_link *)base;
    for (;;) {
        short events;
        TRY(take_some(l, buf, len, got, &events, err));
        if (*got || deadline_ns == 0)
            return STATUS_OK;
        struct pollfd p = {.fd = l->fd, .events = events};
        if (poll(&p, 1, left_ms(deadline_ns)) == 0)
            return error_set(err, STATUS_TIMEOUT, "nothing came in time");
    }
}

static enum status socket_write(struct link *base, const struct iovec *iov, int n_iov, int64_t deadline_ns,
                                struct link *also, size_t *put, struct error *err)
{
    struct socket_link *l = (struct socket_link *)base;
    const struct socket_link *other = also && also->table == base->table ? (struct socket_link *)also : NULL;
    for (;;) {
        short events;
        TRY(put_some(l, iov, n_iov, put, &events, err));
        if (*put || (other && other->tls && link_tls_may_hold_bytes(other->tls)))
            return STATUS_OK;
        struct pollfd p[2] = {{.fd = l->fd, .events = events}, {.fd = other ? other->fd : -1, .events = POLLIN}};
        if (poll(p, 2, left_ms(deadline_ns)) == 0)
            return error_set(err, STATUS_TIMEOUT, "nothing was taken in time");
        if (p[1].revents && !p[0].revents)
            return STATUS_OK;
    }
}

static void socket_abort(struct link *base)
{
    struct socket_link *l = (struct socket_link *)base;
    atomic_store(&l->aborted, 1);
    shutdown(l->fd, SHUT_RDWR); /* wakes poll on every thread */
}

static void socket_destroy(struct link *base)
{
    struct socket_link *l = (struct socket_link *)base;
    link_tls_destroy(l->tls);
    close(l->fd);
    free(l);
}

static uint32_t socket_unheard_ms(struct link *base)
{
    struct socket_link *l = (struct socket_link *)base;
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0; /* a UNIX socket: the other end is on this host */
    int64_t now_ns = clock_now_ns(), ack_ns = now_ns - info.tcpi_last_ack_recv * NS_PER_MS;
    if ((info.tcpi_unacked == 0 && info.tcpi_probes == 0) || l->heard_ns == 0)
        l->heard_ns = now_ns;
    else if (ack_ns > l->heard_ns)
        l->heard_ns = ack_ns;
    return (uint32_t)((now_ns - l->heard_ns) / NS_PER_MS);
}

static const struct link_table socket_table = {socket_read, socket_write, socket_abort, socket_destroy, socket_unheard_ms};

/* Refused on a UNIX socket, which does not need them. An idle link asks the other host every second whether it is there; who
 * looks at the answers is socket_unheard_ms. */
static void set_options(int fd)
{
    const int one = 1, many = 10;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &many, sizeof many);
}

enum status link_socket_create(int fd, struct link_tls *tls, struct link **out)
{
    struct socket_link *l = calloc(1, sizeof *l);
    if (!l) {
        link_tls_destroy(tls);
        close(fd);
        return STATUS_OUT_OF_MEMORY;
    }
    set_options(fd);
    l->base.table = &socket_table;
    l->fd = fd;
    l->tls = tls;
    *out = &l->base;
    return STATUS_OK;
}

/* --- the port ------------------------------------------------------------------------------------------------------------------ */

struct socket_port {
    struct link_port base;
    enum link_kind kind;
    struct link_addresses addresses;
    struct link_tls_context *tls; /* NULL: plain */
    struct link_listener *listener;
};

static void port_addresses(const struct link_port *base, struct link_addresses *out)
{
    *out = ((const struct socket_port *)base)->addresses;
}

static int use_unix(const struct socket_port *p, const struct link_addresses *next)
{
    if (p->kind == LINK_KIND_TCP || !next->unix_name[0])
        return 0;
    if (p->kind == LINK_KIND_UNIX)
        return 1;
    return next->boot_id[0] && strcmp(next->boot_id, p->addresses.boot_id) == 0 &&
           next->net_namespace == p->addresses.net_namespace;
}

static socklen_t unix_address(const char *name, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(name);
    if (n > sizeof out->sun_path - 1)
        n = sizeof out->sun_path - 1;
    memcpy(out->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* STATUS_CLOSED when the epoch is over; STATUS_TIMEOUT at the deadline. */
static enum status wait_for(struct socket_port *p, const struct link_form *f, int fd, short events, int64_t deadline_ns)
{
    struct pollfd set[2] = {{.fd = link_listener_abort_fd(p->listener), .events = POLLIN}, {.fd = fd, .events = events}};
    int n = poll(set, 2, left_ms(deadline_ns));
    if (link_listener_aborted(p->listener, f->generation))
        return STATUS_CLOSED;
    return n == 0 ? STATUS_TIMEOUT : STATUS_OK;
}

static enum status read_exactly(struct socket_port *p, const struct link_form *f, int fd, void *buf, size_t len,
                                int64_t deadline_ns)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = recv(fd, (char *)buf + at, len - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return STATUS_LINK;
        if (n > 0)
            at += (size_t)n;
        else
            TRY(wait_for(p, f, fd, POLLIN, deadline_ns));
    }
    return STATUS_OK;
}

static int write_exactly(int fd, const void *buf, size_t len)
{
    return send(fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/* In TLS, up to the byte that says that the acceptor has taken the link. */
static enum status shake_tls(struct socket_port *p, const struct link_form *f, struct link_tls *t, int fd, int64_t deadline_ns,
                             struct error *err)
{
    short events = POLLIN;
    for (size_t got = 0, stands = 0; got == 0;) {
        uint8_t yes;
        if (stands)
            TRY(link_tls_read(t, &yes, 1, &got, &events, err));
        else
            TRY(link_tls_shake(t, &events, err));
        if (!events) {
            stands = 1;
            continue;
        }
        enum status s = wait_for(p, f, fd, events, deadline_ns);
        if (s != STATUS_OK)
            return error_set(err, s, stands ? "the link was not accepted" : "no answer in the TLS handshake");
    }
    return STATUS_OK;
}

static enum status shake(struct socket_port *p, const struct link_form *f, struct link_taken *at, int use_tls,
                         int64_t deadline_ns, struct error *err)
{
    const struct handshake_edge edge = {.session = f->session, .epoch = f->epoch, .from = (uint16_t)f->stage,
                                        .to = (uint16_t)((f->stage + 1) % f->n_stages), .tls = (uint32_t)use_tls};
    uint8_t hello[HANDSHAKE_HELLO_BYTES], challenge[HANDSHAKE_CHALLENGE_BYTES], proof[HANDSHAKE_PROOF_BYTES], yes;
    const int fd = at->fd;
    TRY(handshake_hello(&edge, hello, err));
    if (!write_exactly(fd, hello, sizeof hello))
        return error_set(err, STATUS_LINK, "the handshake could not be sent");
    if (use_tls) {
        TRY(link_tls_create(p->tls, LINK_TLS_CONNECT, fd, f->key, hello, &at->tls, err));
        return shake_tls(p, f, at->tls, fd, deadline_ns, err);
    }
    enum status s = read_exactly(p, f, fd, challenge, sizeof challenge, deadline_ns);
    if (s != STATUS_OK)
        return error_set(err, s, "no challenge came");
    TRY(handshake_prove(f->key, hello, challenge, proof, err));
    if (!write_exactly(fd, proof, sizeof proof))
        return error_set(err, STATUS_LINK, "the proof could not be sent");
    s = read_exactly(p, f, fd, &yes, 1, deadline_ns);
    return s == STATUS_OK ? s : error_set(err, s, "the proof was not accepted");
}

/* The kernel counts its own overhead (ask for twice as much) and caps at wmem_max. TCP grows its buffer by itself, beyond
 * that cap, unless it is told a size: only what the feedback of a window needs at once is asked for. */
static void size_buffer(int fd, int is_unix, size_t bytes)
{
    const size_t tcp_largest = 192 << 10, unix_largest = 8 << 20;
    int now = 0;
    socklen_t len = sizeof now;
    if (!is_unix && bytes > tcp_largest)
        return;
    if (bytes > unix_largest)
        bytes = unix_largest;
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &now, &len) == 0 && (size_t)now < 2 * bytes)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){(int)(2 * bytes)}, sizeof(int));
}

static enum status connect_once(struct socket_port *p, const struct link_form *f, int64_t deadline_ns, struct link_taken *out,
                                struct error *err)
{
    struct sockaddr_storage to;
    struct sockaddr_un un;
    const struct sockaddr *sa = (const struct sockaddr *)&to;
    socklen_t len;
    int is_unix = use_unix(p, &f->next);
    if (is_unix) {
        len = unix_address(f->next.unix_name, &un);
        sa = (const struct sockaddr *)&un;
    } else {
        struct address a;
        TRY(address_parse(f->next.tcp, -1, "data", &a, err));
        TRY(address_resolve(&a, &to, &len, err));
    }
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, STATUS_LINK, "no socket: %s", strerror(errno));
    size_buffer(fd, is_unix, p->tls && !is_unix ? f->out_bytes + f->out_bytes / 2 : f->out_bytes); /* a record adds 22 bytes */
    enum status s = STATUS_OK;
    if (connect(fd, sa, len) != 0 && errno != EINPROGRESS)
        s = error_set(err, STATUS_LINK, "%s: %s", is_unix ? f->next.unix_name : f->next.tcp, strerror(errno));
    if (s == STATUS_OK && (s = wait_for(p, f, fd, POLLOUT, deadline_ns)) != STATUS_OK)
        error_set(err, s, "%s: no answer", is_unix ? f->next.unix_name : f->next.tcp);
    struct link_taken made = {.fd = fd};
    int problem = 0;
    socklen_t size = sizeof problem;
    if (s == STATUS_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem)
        s = error_set(err, STATUS_LINK, "%s: %s", is_unix ? f->next.unix_name : f->next.tcp, strerror(problem));
    if (s == STATUS_OK)
        s = shake(p, f, &made, p->tls && !is_unix, deadline_ns, err);
    if (s == STATUS_OK)
        *out = made;
    else
        link_taken_drop(&made);
    return s;
}

/* The neighbour may not listen, or not know the epoch, yet: try until the deadline. */
static enum status connect_next(struct socket_port *p, const struct link_form *f, int64_t deadline_ns,
                                struct link_taken *out, struct error *err)
{
    for (;;) {
        int64_t once_ns = clock_now_ns() + HANDSHAKE_DEADLINE_MS * NS_PER_MS;
        enum status s = connect_once(p, f, once_ns < deadline_ns ? once_ns : deadline_ns, out, err);
        if (s == STATUS_OK || s == STATUS_CLOSED || s == STATUS_UNAUTHENTICATED || s == STATUS_CONFIG)
            return s;
        if (clock_now_ns() >= deadline_ns)
            return s;
        int64_t pause_ns = clock_now_ns() + RETRY_MS * NS_PER_MS;
        if (wait_for(p, f, -1, 0, pause_ns) == STATUS_CLOSED)
            return error_set(err, STATUS_CLOSED, "the epoch was left");
    }
}

static enum status port_form(struct link_port *base, const struct link_form *f, struct link_pair *out, struct error *err)
{
    struct socket_port *p = (struct socket_port *)base;
    const uint32_t prev = (f->stage + f->n_stages - 1) % f->n_stages;
    const struct handshake_edge in_edge = {
        .session = f->session, .epoch = f->epoch, .from = (uint16_t)prev, .to = (uint16_t)f->stage};
    const int64_t deadline_ns = clock_now_ns() + f->timeout_ms * NS_PER_MS;
    struct link_pair pair = {0};
    struct link_taken to = {.fd = -1}, from = {.fd = -1};
    enum status s = link_listener_expect(p->listener, f->generation, &in_edge, f->key);
    if (s != STATUS_OK)
        return error_set(err, s, "the epoch was left");
    s = connect_next(p, f, deadline_ns, &to, err);
    if (s == STATUS_OK && (s = link_listener_take(p->listener, f->generation, deadline_ns, &from)) != STATUS_OK)
        error_set(err, s, s == STATUS_CLOSED ? "the epoch was left" : "stage %u did not connect in time", prev);
    link_listener_forget(p->listener);
    if (s == STATUS_OK)
        s = link_socket_create(to.fd, to.tls, &pair.out);
    else
        link_taken_drop(&to);
    if (s == STATUS_OK)
        s = link_socket_create(from.fd, from.tls, &pair.in);
    else
        link_taken_drop(&from);
    if (s == STATUS_OK)
        *out = pair;
    else
        link_destroy(pair.out);
    return s;
}

static void port_abort(struct link_port *base, uint64_t generation)
{
    link_listener_abort(((struct socket_port *)base)->listener, generation);
}

static void port_destroy(struct link_port *base)
{
    struct socket_port *p = (struct socket_port *)base;
    link_listener_destroy(p->listener);
    link_tls_context_destroy(p->tls);
    free(p);
}

static const struct link_port_table port_table = {port_addresses, port_form, port_abort, port_destroy};

/* --- making a port --------------------------------------------------------------------------------------------------------------- */

static void read_identity(struct link_addresses *a)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, a->boot_id, sizeof a->boot_id - 1) : 0;
    a->boot_id[n > 0 ? n : 0] = 0;
    a->boot_id[strcspn(a->boot_id, "\n")] = 0;
    if (fd >= 0)
        close(fd);
    struct stat st;
    if (stat("/proc/self/ns/net", &st) == 0)
        a->net_namespace = st.st_ino;
}

/* The address of the interface that leads to the coordinator: the kernel tells it without a packet. */
static enum status route_to(const char *coordinator, struct sockaddr_storage *out, socklen_t *len, struct error *err)
{
    struct address a = {.host = "127.0.0.1", .port = 9};
    if (coordinator && strncmp(coordinator, "unix:", 5) != 0)
        TRY(address_parse(coordinator, -1, "coordinator", &a, err));
    if (a.port == 0)
        a.port = 9;
    struct sockaddr_storage to;
    socklen_t to_len;
    TRY(address_resolve(&a, &to, &to_len, err));
    int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *len = sizeof *out;
    int ok = fd >= 0 && connect(fd, (struct sockaddr *)&to, to_len) == 0 &&
             getsockname(fd, (struct sockaddr *)out, len) == 0;
    int why = errno;
    if (fd >= 0)
        close(fd);
    return ok ? STATUS_OK : error_set(err, STATUS_CONFIG, "no route to the coordinator %s: %s", a.host, strerror(why));
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons(port);
}

static uint16_t port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                          : ((const struct sockaddr_in *)a)->sin_port);
}

static int is_any(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
}

static void print_address(const struct sockaddr_storage *a, char out[64])
{
    char host[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        snprintf(out, 64, "[%s]:%u", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, 64, "%s:%u", host, ntohs(in->sin_port));
    }
}

static enum status listen_tcp(const struct link_socket_options *o, struct link_addresses *a, int *out, struct error *err)
{
    struct sockaddr_storage at = {0};
    socklen_t len;
    if (!o->data || strcmp(o->data, "auto") == 0) {
        TRY(route_to(o->coordinator, &at, &len, err));
        set_port(&at, 0);
    } else {
        struct address parsed;
        TRY(address_parse(o->data, 0, "data", &parsed, err));
        TRY(address_resolve(&parsed, &at, &len, err));
    }
    int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, STATUS_IO, "no socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, BACKLOG) != 0) {
        char text[64];
        print_address(&at, text);
        enum status s = errno == EADDRINUSE ? STATUS_ADDRESS_IN_USE : STATUS_CONFIG;
        error_set(err, s, "--data: %s: %s", text, strerror(errno));
        close(fd);
        return s;
    }
    len = sizeof at;
    getsockname(fd, (struct sockaddr *)&at, &len);
    if (is_any(&at)) { /* 0.0.0.0 is no address that others can reach */
        struct sockaddr_storage route;
        if (route_to(o->coordinator, &route, &len, err) != STATUS_OK) {
            close(fd);
            return STATUS_CONFIG;
        }
        set_port(&route, port_of(&at));
        at = route;
    }
    print_address(&at, a->tcp);
    *out = fd;
    return STATUS_OK;
}

static enum status listen_unix(struct link_addresses *a, int *out, struct error *err)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return error_set(err, STATUS_IO, "no random numbers for a socket's name");
    snprintf(a->unix_name, sizeof a->unix_name, "sluice-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    struct sockaddr_un at;
    socklen_t len = unix_address(a->unix_name, &at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, BACKLOG) != 0) {
        error_set(err, STATUS_IO, "UNIX socket %s: %s", a->unix_name, strerror(errno));
        if (fd >= 0)
            close(fd);
        return STATUS_IO;
    }
    *out = fd;
    return STATUS_OK;
}

enum status link_socket_port_create(const struct link_socket_options *o, struct link_port **out, struct error *err)
{
    int tcp_fd = -1, unix_fd = -1;
    struct socket_port *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a stage's sockets");
    p->base.table = &port_table;
    p->kind = o->kind;
    read_identity(&p->addresses);
    enum status s = o->tls ? link_tls_context_create(LINK_TLS_REKEY_RECORDS, &p->tls, err) : STATUS_OK;
    if (s == STATUS_OK && o->kind != LINK_KIND_UNIX)
        s = listen_tcp(o, &p->addresses, &tcp_fd, err);
    if (s == STATUS_OK && o->kind != LINK_KIND_TCP)
        s = listen_unix(&p->addresses, &unix_fd, err);
    if (s == STATUS_OK)
        s = link_listener_create(tcp_fd, unix_fd, p->tls, &p->listener, err); /* takes the sockets, also when it fails */
    else if (tcp_fd >= 0)
        close(tcp_fd);
    if (s == STATUS_OK) {
        *out = &p->base;
    } else {
        link_tls_context_destroy(p->tls);
        free(p);
    }
    return s;
}

void link_socket_port_counters(struct link_port *base, struct link_socket_counters *out)
{
    link_listener_counters(((struct socket_port *)base)->listener, out);
}
