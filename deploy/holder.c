#include "deploy/holder.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/hold.h"

enum { SPARE_DESCRIPTORS = 256 }; /* the launcher's own */

struct held {
    uint64_t id, value;
    int socket, journal; /* -1: it waits for a request */
};

struct holder {
    int own, gateway; /* the ends of the pair; both stay open, so that nothing is lost between two gateways */
    int listener;     /* or -1 */
    uint32_t n_held, n_descriptors, most_descriptors; /* the launcher must never lack one to start a process with */
    int giving;             /* a TAKE is being answered: */
    uint64_t taker;         /* whose */
    uint32_t next;          /* the next to give */
    int listener_given;
    struct held held[HOLD_MAX];
};

/* At most two descriptors for each; the usual soft limit of 1,024 is for programs that use select(). Returns how many there may be. */
static uint32_t raise_descriptor_limit(void)
{
    struct rlimit r;
    const rlim_t want = 2 * HOLD_MAX + SPARE_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return 0;
    if (r.rlim_cur < want) {
        rlim_t before = r.rlim_cur;
        r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0)
            r.rlim_cur = before;
    }
    rlim_t usable = r.rlim_cur < want ? r.rlim_cur : want;
    return usable > SPARE_DESCRIPTORS ? (uint32_t)usable - SPARE_DESCRIPTORS : 0;
}

enum status holder_create(struct holder **out, struct error *err)
{
    int pair[2];
    struct holder *h = calloc(1, sizeof *h);
    if (!h)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the holder of connections");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        free(h);
        return error_set(err, STATUS_IO, "no sockets for the holder of connections: %s", strerror(errno));
    }
    h->most_descriptors = raise_descriptor_limit();
    h->own = pair[0];
    h->gateway = pair[1];
    h->listener = -1;
    *out = h;
    return STATUS_OK;
}

static uint32_t descriptors_of(const struct held *e)
{
    return e->journal >= 0 ? 2 : 1;
}

static void let_go(const struct held *e)
{
    close(e->socket);
    if (e->journal >= 0)
        close(e->journal);
}

void holder_clear(struct holder *h)
{
    while (h->n_held)
        let_go(&h->held[--h->n_held]);
    h->n_descriptors = 0;
    if (h->listener >= 0)
        close(h->listener);
    h->listener = -1;
    h->giving = 0;
}

void holder_destroy(struct holder *h)
{
    holder_clear(h);
    close(h->own);
    close(h->gateway);
    free(h);
}

static void drop(struct holder *h, uint64_t id)
{
    for (uint32_t i = 0; i < h->n_held; i++)
        if (h->held[i].id == id) {
            h->n_descriptors -= descriptors_of(&h->held[i]);
            let_go(&h->held[i]);
            h->held[i] = h->held[--h->n_held];
            return;
        }
}

static void keep(struct holder *h, const struct hold_message *m, const int *fds)
{
    struct held e = {m->id, m->value, fds[0], m->verb == HOLD_KEEP ? fds[1] : -1};
    drop(h, m->id);
    if (h->n_held == HOLD_MAX || h->n_descriptors + descriptors_of(&e) > h->most_descriptors) {
        let_go(&e);
        return;
    }
    h->held[h->n_held++] = e;
    h->n_descriptors += descriptors_of(&e);
}

static void keep_listener(struct holder *h, int fd)
{
    if (h->listener >= 0)
        close(h->listener);
    h->listener = fd;
}

/* A gateway that takes has dropped nothing yet, so the order stays as it is until END. */
static void start_giving(struct holder *h, uint64_t taker)
{
    h->giving = 1;
    h->taker = taker;
    h->next = 0;
    h->listener_given = h->listener < 0;
}

static enum status give_next(struct holder *h)
{
    struct hold_message m = {.verb = HOLD_END, .id = h->taker, .about = h->taker};
    int fds[HOLD_MAX_FDS] = {h->listener, -1};
    if (!h->listener_given) {
        m.verb = HOLD_GIVEN_LISTENER;
    } else if (h->next < h->n_held) {
        const struct held *e = &h->held[h->next];
        m = (struct hold_message){.verb = e->journal >= 0 ? HOLD_GIVEN : HOLD_GIVEN_WAITING, .id = e->id, .about = h->taker, .value = e->value};
        fds[0] = e->socket;
        fds[1] = e->journal;
    }
    enum status s = hold_send(h->own, &m, fds);
    if (s == STATUS_OK && m.verb == HOLD_GIVEN_LISTENER)
        h->listener_given = 1;
    else if (s == STATUS_OK && m.verb != HOLD_END)
        h->next++;
    else if (s == STATUS_OK)
        h->giving = 0;
    return s;
}

static void on_message(struct holder *h, const struct hold_message *m, const int *fds)
{
    switch (m->verb) {
    case HOLD_KEEP:
    case HOLD_WAIT:
        keep(h, m, fds);
        break;
    case HOLD_DROP:
        drop(h, m->id);
        break;
    case HOLD_LISTENER:
        keep_listener(h, fds[0]);
        break;
    case HOLD_TAKE:
        start_giving(h, m->id);
        break;
    case HOLD_CLEAR:
        holder_clear(h);
        break;
    default: /* our own verbs, from the wrong side */
        for (int i = 0; i < hold_descriptors(m->verb); i++)
            close(fds[i]);
    }
}

void holder_serve(struct holder *h)
{
    enum { MOST = 4 * HOLD_MAX }; /* others wait for this thread too */
    struct hold_message m;
    int fds[HOLD_MAX_FDS];
    for (int i = 0; i < MOST; i++) {
        enum status s = hold_receive(h->own, &m, fds);
        if (s == STATUS_OK)
            on_message(h, &m, fds);
        else if (s != STATUS_PROTOCOL)
            break;
    }
    while (h->giving && give_next(h) == STATUS_OK)
        ;
}

int holder_gateway_fd(const struct holder *h)
{
    return h->gateway;
}

int holder_fd(const struct holder *h)
{
    return h->own;
}

short holder_events(const struct holder *h)
{
    return (short)(POLLIN | (h->giving ? POLLOUT : 0));
}

uint32_t holder_held(const struct holder *h)
{
    return h->n_held;
}
