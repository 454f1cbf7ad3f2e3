#include "rpc/gateway/held.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/rand.h"

#define LOG_MODULE "held"
#include "common/base/log.h"

enum { TAKE_MS = 2000 };

struct held {
    int fd;
    pthread_mutex_t lock; /* guards what follows */
    uint64_t next_id;
    uint32_t n_kept; /* and not dropped, or the drop was not sent */
    uint32_t n_late;
    uint64_t late[HOLD_MAX]; /* drops that the socket did not take */
};

static uint64_t random_word(void)
{
    uint64_t word;
    if (getrandom(&word, sizeof word, GRND_NONBLOCK) != (ssize_t)sizeof word)
        word = rand_mix((uint64_t)clock_now_ns() ^ (uint64_t)getpid());
    return word;
}

struct held *held_create(void)
{
    int fd = config_inherited_fd("HOLD");
    struct held *h = fd < 0 ? NULL : calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->fd = fd;
    h->next_id = random_word() | 1; /* not those of the gateways before */
    pthread_mutex_init(&h->lock, NULL);
    return h;
}

void held_destroy(struct held *h)
{
    if (!h)
        return;
    pthread_mutex_destroy(&h->lock);
    close(h->fd);
    free(h);
}

/* One answer to our TAKE; those to a gateway that died while it took are thrown away. */
static enum status take_next(struct held *h, uint64_t me, struct hold_message *m, int fds[HOLD_MAX_FDS], int64_t until_ns)
{
    for (;;) {
        enum status s = hold_receive(h->fd, m, fds);
        int64_t left = until_ns - clock_now_ns();
        if (s == STATUS_OK && m->about == me)
            return STATUS_OK;
        for (int i = 0; s == STATUS_OK && i < hold_descriptors(m->verb); i++)
            close(fds[i]);
        if (s == STATUS_CLOSED || left <= 0)
            return STATUS_CLOSED;
        if (s == STATUS_TIMEOUT)
            poll(&(struct pollfd){h->fd, POLLIN, 0}, 1, (int)(left / NS_PER_MS) + 1);
    }
}

uint32_t held_take(struct held *h, struct held_connection out[HOLD_MAX], int *listener)
{
    struct hold_message m = {.verb = HOLD_TAKE, .id = random_word()};
    const uint64_t me = m.id;
    int64_t until = clock_now_ns() + TAKE_MS * NS_PER_MS;
    int fds[HOLD_MAX_FDS];
    uint32_t n = 0;
    *listener = -1;
    if (!h || hold_send(h->fd, &m, NULL) != STATUS_OK)
        return 0;
    while (take_next(h, me, &m, fds, until) == STATUS_OK && m.verb != HOLD_END) {
        if (m.verb == HOLD_GIVEN_LISTENER && *listener < 0)
            *listener = fds[0];
        else if ((m.verb == HOLD_GIVEN || m.verb == HOLD_GIVEN_WAITING) && n < HOLD_MAX)
            out[n++] = (struct held_connection){m.id, m.value, fds[0], m.verb == HOLD_GIVEN ? fds[1] : -1};
        else
            for (int i = 0; i < hold_descriptors(m.verb); i++)
                close(fds[i]);
    }
    h->n_kept = n;
    return n;
}

void held_listener(struct held *h, int fd)
{
    struct hold_message m = {.verb = HOLD_LISTENER};
    if (h && hold_send(h->fd, &m, &fd) != STATUS_OK)
        LOG_WARN("the listening socket is not held: while the gateway restarts, new connections are refused");
}

/* With the lock. */
static void send_late(struct held *h)
{
    while (h->n_late) {
        struct hold_message m = {.verb = HOLD_DROP, .id = h->late[h->n_late - 1]};
        if (hold_send(h->fd, &m, NULL) == STATUS_FULL)
            return;
        h->n_late--;
        h->n_kept--;
    }
}

/* m->id 0: a new one. Returns the id. */
static uint64_t hand_over(struct held *h, struct hold_message *m, const int *fds)
{
    const int is_new = !m->id;
    uint64_t id = 0;
    pthread_mutex_lock(&h->lock);
    send_late(h);
    if (is_new)
        m->id = h->next_id;
    if ((!is_new || h->n_kept < HOLD_MAX) && hold_send(h->fd, m, fds) == STATUS_OK)
        id = m->id;
    if (is_new && id) {
        h->n_kept++;
        h->next_id += 2; /* odd, never 0 */
    }
    pthread_mutex_unlock(&h->lock);
    return id;
}

uint64_t held_keep(struct held *h, int socket, int journal)
{
    struct hold_message m = {.verb = HOLD_KEEP};
    return h ? hand_over(h, &m, (const int[HOLD_MAX_FDS]){socket, journal}) : 0;
}

uint64_t held_wait(struct held *h, uint64_t id, int socket, uint64_t value)
{
    struct hold_message m = {.verb = HOLD_WAIT, .id = id, .value = value};
    if (!h)
        return 0;
    /* What the holder does not learn leaves the old value there: the connection counts as one that is being read. */
    return hand_over(h, &m, &socket) || id ? m.id : 0;
}

void held_drop(struct held *h, uint64_t id)
{
    if (!h || !id)
        return;
    pthread_mutex_lock(&h->lock);
    if (h->n_late < HOLD_MAX) /* there is a place for each that is kept */
        h->late[h->n_late++] = id;
    send_late(h);
    pthread_mutex_unlock(&h->lock);
}

void held_tick(struct held *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    send_late(h);
    pthread_mutex_unlock(&h->lock);
}

void held_clear(struct held *h)
{
    struct hold_message m = {.verb = HOLD_CLEAR};
    if (h)
        hold_send(h->fd, &m, NULL);
}
