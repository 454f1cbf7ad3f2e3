/* Links inside one process: a bounded ring of bytes for each edge. Ports meet in a hub, by session, epoch and edge. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "stage/link.h"

enum { MIN_CAPACITY = 64 << 10 };

/* One edge of one epoch; both ends hold a reference, and the hub's list while the ends look for each other. */
struct mem_pipe {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t moved;
    uint32_t n_refs;
    int closed;           /* an end is gone */
    size_t capacity, head, n;
    unsigned char data[];
};

struct mem_link {
    struct link base;
    struct mem_pipe *pipe;
    atomic_int aborted;
};

struct meeting {
    struct list entry;
    uint64_t session, epoch;
    uint32_t from, to;
    struct mem_pipe *pipe;
    int met;      /* the other end has come */
};

struct mem_hub {
    pthread_mutex_t lock; /* guards meetings and every port's mark */
    pthread_cond_t moved;
    struct list meetings;
};

struct mem_port {
    struct link_port base;
    struct mem_hub *hub;
    size_t capacity;
    uint64_t mark; /* forms of a smaller generation are over */
};

static void cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

/* False when the deadline has passed. */
static int wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t deadline_ns)
{
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    return pthread_cond_timedwait(c, lock, &t) == 0;
}

/* --- pipes and links -------------------------------------------------------------------------------------------------------- */

static struct mem_pipe *pipe_create(size_t capacity)
{
    struct mem_pipe *p = calloc(1, sizeof *p + capacity);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->moved);
    p->capacity = capacity;
    p->n_refs = 1;
    return p;
}

static void pipe_release(struct mem_pipe *p)
{
    pthread_mutex_lock(&p->lock);
    uint32_t left = --p->n_refs;
    p->closed = 1;
    pthread_cond_broadcast(&p->moved);
    pthread_mutex_unlock(&p->lock);
    if (left)
        return;
    pthread_cond_destroy(&p->moved);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static enum status over(const struct mem_link *l, struct error *err)
{
    if (atomic_load(&l->aborted))
        return error_set(err, STATUS_CLOSED, "the link was aborted");
    return error_set(err, STATUS_LINK, "the other end has closed the link");
}

static size_t take(struct mem_pipe *p, unsigned char *buf, size_t len)
{
    size_t n = len < p->n ? len : p->n, first = n < p->capacity - p->head ? n : p->capacity - p->head;
    memcpy(buf, p->data + p->head, first);
    memcpy(buf + first, p->data, n - first);
    p->head = (p->head + n) % p->capacity;
    p->n -= n;
    return n;
}

static size_t give(struct mem_pipe *p, const unsigned char *buf, size_t len)
{
    size_t room = p->capacity - p->n, n = len < room ? len : room, at = (p->head + p->n) % p->capacity;
    size_t first = n < p->capacity - at ? n : p->capacity - at;
    memcpy(p->data + at, buf, first);
    memcpy(p->data, buf + first, n - first);
    p->n += n;
    return n;
}

static enum status mem_read(struct link *base, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err)
{
    struct mem_link *l = (struct mem_link *)base;
    struct mem_pipe *p = l->pipe;
    enum status s = STATUS_OK;
    *got = 0;
    pthread_mutex_lock(&p->lock);
    while (s == STATUS_OK && !(*got = take(p, buf, len))) {
        if (p->closed || atomic_load(&l->aborted))
            s = over(l, err);
        else if (deadline_ns == 0)
            break;
        else if (!wait_until(&p->moved, &p->lock, deadline_ns) && p->n == 0)
            s = error_set(err, STATUS_TIMEOUT, "nothing came in time");
    }
    if (*got)
        pthread_cond_broadcast(&p->moved);
    pthread_mutex_unlock(&p->lock);
    return s;
}

/* `also` is not watched: the capacity holds the feedback of the whole window, so its writer never waits. */
static enum status mem_write(struct link *base, const struct iovec *iov, int n_iov, int64_t deadline_ns, struct link *also,
                             size_t *put, struct error *err)
{
    struct mem_link *l = (struct mem_link *)base;
    struct mem_pipe *p = l->pipe;
    enum status s = STATUS_OK;
    (void)also;
    *put = 0;
    pthread_mutex_lock(&p->lock);
    while (s == STATUS_OK && p->n == p->capacity && !p->closed && !atomic_load(&l->aborted))
        if (!wait_until(&p->moved, &p->lock, deadline_ns) && p->n == p->capacity)
            s = error_set(err, STATUS_TIMEOUT, "nothing was taken in time");
    if (s == STATUS_OK && (p->closed || atomic_load(&l->aborted)))
        s = over(l, err);
    for (int i = 0; i < n_iov && s == STATUS_OK && p->n < p->capacity; i++)
        *put += give(p, iov[i].iov_base, iov[i].iov_len);
    pthread_cond_broadcast(&p->moved);
    pthread_mutex_unlock(&p->lock);
    return s;
}

static void mem_abort(struct link *base)
{
    struct mem_link *l = (struct mem_link *)base;
    pthread_mutex_lock(&l->pipe->lock);
    atomic_store(&l->aborted, 1);
    pthread_cond_broadcast(&l->pipe->moved);
    pthread_mutex_unlock(&l->pipe->lock);
}

static void mem_destroy(struct link *base)
{
    struct mem_link *l = (struct mem_link *)base;
    pipe_release(l->pipe);
    free(l);
}

static const struct link_table mem_table = {mem_read, mem_write, mem_abort, mem_destroy, NULL};

static struct link *link_of(struct mem_pipe *p)
{
    struct mem_link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->base.table = &mem_table;
    l->pipe = p;
    return &l->base;
}

/* --- ports -------------------------------------------------------------------------------------------------------------------- */

enum status mem_hub_create(struct mem_hub **out)
{
    struct mem_hub *h = calloc(1, sizeof *h);
    if (!h)
        return STATUS_OUT_OF_MEMORY;
    pthread_mutex_init(&h->lock, NULL);
    cond_init(&h->moved);
    list_init(&h->meetings);
    *out = h;
    return STATUS_OK;
}

void mem_hub_destroy(struct mem_hub *h)
{
    if (!h)
        return;
    pthread_cond_destroy(&h->moved);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Finds who waits on this edge, or waits for him. The pipe that comes out carries a reference for the caller. */
static enum status meet(struct mem_port *port, const struct link_form *f, uint32_t from, uint32_t to, struct meeting *mine,
                        struct mem_pipe **out)
{
    struct mem_hub *h = port->hub;
    LIST_EACH (e, &h->meetings) {
        struct meeting *m = LIST_ENTRY(e, struct meeting, entry);
        if (m->session != f->session || m->epoch != f->epoch || m->from != from || m->to != to)
            continue;
        m->met = 1;
        pthread_mutex_lock(&m->pipe->lock);
        m->pipe->n_refs++;
        pthread_mutex_unlock(&m->pipe->lock);
        *out = m->pipe;
        list_remove(e);
        pthread_cond_broadcast(&h->moved);
        return STATUS_OK;
    }
    size_t capacity = port->capacity ? port->capacity : f->out_bytes < MIN_CAPACITY ? MIN_CAPACITY : f->out_bytes;
    *mine = (struct meeting){
        .session = f->session, .epoch = f->epoch, .from = from, .to = to, .pipe = pipe_create(capacity)};
    if (!mine->pipe)
        return STATUS_OUT_OF_MEMORY;
    list_push_back(&h->meetings, &mine->entry);
    *out = mine->pipe;
    return STATUS_OK;
}

static enum status await(struct mem_port *port, const struct link_form *f, struct meeting *m, int64_t deadline_ns,
                         struct error *err)
{
    struct mem_hub *h = port->hub;
    while (m->pipe && !m->met) {
        if (f->generation < port->mark)
            return error_set(err, STATUS_CLOSED, "the epoch was left");
        if (!wait_until(&h->moved, &h->lock, deadline_ns) && !m->met)
            return error_set(err, STATUS_TIMEOUT, "the other end of %u -> %u did not come in time", m->from, m->to);
    }
    return f->generation < port->mark ? error_set(err, STATUS_CLOSED, "the epoch was left") : STATUS_OK;
}

static enum status port_form(struct link_port *base, const struct link_form *f, struct link_pair *out, struct error *err)
{
    struct mem_port *port = (struct mem_port *)base;
    struct mem_hub *h = port->hub;
    uint32_t next = (f->stage + 1) % f->n_stages, prev = (f->stage + f->n_stages - 1) % f->n_stages;
    int64_t deadline_ns = clock_now_ns() + f->timeout_ms * NS_PER_MS;
    struct meeting with_next = {0}, with_prev = {0};
    struct mem_pipe *pipe_out = NULL, *pipe_in = NULL;
    pthread_mutex_lock(&h->lock);
    enum status s = meet(port, f, f->stage, next, &with_next, &pipe_out);
    if (s == STATUS_OK)
        s = meet(port, f, prev, f->stage, &with_prev, &pipe_in);
    if (s == STATUS_OK)
        s = await(port, f, &with_next, deadline_ns, err);
    if (s == STATUS_OK)
        s = await(port, f, &with_prev, deadline_ns, err);
    if (list_linked(&with_next.entry))
        list_remove(&with_next.entry);
    if (list_linked(&with_prev.entry))
        list_remove(&with_prev.entry);
    pthread_mutex_unlock(&h->lock);
    struct link *l_out = s == STATUS_OK ? link_of(pipe_out) : NULL, *l_in = s == STATUS_OK ? link_of(pipe_in) : NULL;
    if (l_out && l_in) {
        *out = (struct link_pair){.in = l_in, .out = l_out};
        return STATUS_OK;
    }
    free(l_out);
    free(l_in);
    if (pipe_out)
        pipe_release(pipe_out);
    if (pipe_in)
        pipe_release(pipe_in);
    return s == STATUS_OK ? STATUS_OUT_OF_MEMORY : s;
}

static void port_addresses(const struct link_port *base, struct link_addresses *out)
{
    (void)base;
    *out = (struct link_addresses){.unix_name = "in this process"};
}

static void port_abort(struct link_port *base, uint64_t generation)
{
    struct mem_port *port = (struct mem_port *)base;
    pthread_mutex_lock(&port->hub->lock);
    port->mark = generation;
    pthread_cond_broadcast(&port->hub->moved);
    pthread_mutex_unlock(&port->hub->lock);
}

static void port_destroy(struct link_port *base)
{
    free(base);
}

static const struct link_port_table port_table = {port_addresses, port_form, port_abort, port_destroy};

enum status link_mem_port_create(struct mem_hub *h, size_t capacity, struct link_port **out)
{
    struct mem_port *port = calloc(1, sizeof *port);
    if (!port)
        return STATUS_OUT_OF_MEMORY;
    port->base.table = &port_table;
    port->hub = h;
    port->capacity = capacity;
    *out = &port->base;
    return STATUS_OK;
}
