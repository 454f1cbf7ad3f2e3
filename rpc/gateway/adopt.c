#include "rpc/gateway/adopt.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "rpc/gateway/completion.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/kept_answer.h"
#include "rpc/gateway/server.h"

#define LOG_MODULE "adopt"
#include "common/base/log.h"

enum {
    FRAMES_A_TURN = 16, /* of one client, before another is served */
    LINGER_MS = 2000,   /* a client that was told that the connection closes may still be reading */
    POLL_MS = 1000,
};

_Static_assert((int)KEPT_ANSWER_OUT == (int)EXCHANGE_OUT_MAX, "what was in one process's output is in the next one's");

/* One connection. x: until its answer is complete; then it only waits for the client to close. */
struct adopted {
    struct list link;
    struct exchange *x;
    atomic_int ready; /* there may be something to send */
    int fd, need_head, last_taken, blocked;
    nfds_t polled; /* its place in polls, 0: none */
    int64_t linger_until_ns;
    struct buf pending;
    size_t sent; /* of pending */
};

struct adopt {
    struct gateway *gw;
    int wake_fd;
    pthread_t thread;
    atomic_int stopping;
    int running;
    uint32_t n;
    struct list all; /* the thread's own */
    struct pollfd polls[HOLD_MAX + 1];
    uint32_t n_seen; /* adopt_begin's, like what follows */
    ino_t seen[HOLD_MAX];
};

/* --- the head --------------------------------------------------------------------------------------------------------- */

static void write_header(void *ctx, const char *name, const char *value)
{
    buf_printf(ctx, "%s: %s\r\n", name, value);
}

static void write_head(const struct exchange *x, struct buf *out)
{
    char date[64];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", x->http, MHD_get_reason_phrase_for((unsigned)x->http), date);
    if (x->close_after)
        buf_text(out, "Connection: close\r\n");
    exchange_headers(x, write_header, out);
    if (x->streaming)
        buf_text(out, "Transfer-Encoding: chunked\r\n\r\n");
    else
        buf_printf(out, "Content-Length: %zu\r\n\r\n", x->out.len);
}

/* Nothing of the response was sent by anybody; the journal learns of the head before the connection does. */
static void begin_response(struct adopted *a)
{
    struct exchange *x = a->x;
    write_head(x, &a->pending);
    a->need_head = 0;
    if (!x->keeper)
        return;
    struct keeper_state *s = keeper_state(x->keeper);
    keeper_record(x->keeper, KEEPER_HEAD, a->pending.data, a->pending.len);
    s->wire_body = s->wire_begin + a->pending.len;
    s->body_known = 1;
    exchange_publish(x);
}

/* --- sending ---------------------------------------------------------------------------------------------------------- */

enum step { STEP_MORE, STEP_WAIT, STEP_DONE, STEP_BROKEN };

/* Puts the next frame into pending. (with the exchange's lock) */
static enum step take_frame(struct adopted *a)
{
    struct exchange *x = a->x;
    char content[KEEPER_FRAME_MAX];
    if (x->gone)
        return STEP_BROKEN;
    if (a->need_head && !x->have_reply) {
        x->suspended = 1;
        return STEP_WAIT;
    }
    if (a->need_head) {
        begin_response(a);
        return STEP_MORE;
    }
    if (a->last_taken)
        return STEP_DONE;
    int streaming = x->streaming;
    long n = exchange_take(x, content, sizeof content);
    if (n == EXCHANGE_GONE)
        return STEP_BROKEN;
    if (n == 0)
        return STEP_WAIT;
    a->last_taken = n == EXCHANGE_END;
    if (streaming)
        keeper_frame_open(&a->pending, n > 0 ? (size_t)n : 0);
    if (n > 0)
        buf_append(&a->pending, content, (size_t)n);
    if (streaming)
        keeper_frame_close(&a->pending);
    return STEP_MORE;
}

/* STEP_MORE: all of pending is with the kernel. */
static enum step send_pending(struct adopted *a)
{
    while (a->sent < a->pending.len) {
        ssize_t n = send(a->fd, a->pending.data + a->sent, a->pending.len - a->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            a->blocked = 1;
            return STEP_WAIT;
        }
        if (n < 0)
            return STEP_BROKEN;
        a->sent += (size_t)n;
    }
    buf_clear(&a->pending);
    a->sent = 0;
    return STEP_MORE;
}

/* --- the end of a connection -------------------------------------------------------------------------------------------- */

static void let_go(struct adopt *all, struct adopted *a)
{
    list_remove(&a->link);
    all->n--;
    if (a->fd >= 0)
        close(a->fd);
    buf_fini(&a->pending);
    free(a);
}

/* The exchange is over; the connection may not be. */
static void complete(struct adopt *all, struct adopted *a, int well)
{
    struct exchange *x = a->x;
    a->x = NULL;
    pthread_mutex_lock(&x->lock);
    server_unwatch(all->gw->server, x);
    x->adopted = NULL;
    int close_after = x->close_after;
    if (well)
        exchange_unhold(x);
    else
        exchange_leave(x);
    pthread_mutex_unlock(&x->lock);
    LOG_DEBUG("req %s: %s", x->request_id, well ? "its adopted answer is complete" : "its adopted answer has ended");
    server_forget(all->gw->server, x);
    if (well && close_after) {
        shutdown(a->fd, SHUT_WR);
        a->linger_until_ns = clock_now_ns() + LINGER_MS * NS_PER_MS;
        return;
    }
    if (well) {
        server_take_connection(all->gw->server, a->fd);
        a->fd = -1;
    }
    let_go(all, a);
}

static void serve(struct adopt *all, struct adopted *a)
{
    enum step step = STEP_MORE;
    for (int i = 0; i < FRAMES_A_TURN && step == STEP_MORE; i++) {
        if ((step = send_pending(a)) != STEP_MORE)
            break;
        pthread_mutex_lock(&a->x->lock);
        step = take_frame(a);
        pthread_mutex_unlock(&a->x->lock);
    }
    if (step == STEP_DONE || step == STEP_BROKEN)
        complete(all, a, step == STEP_DONE);
    else if (step == STEP_MORE)
        adopt_wake(all, a); /* the others first */
}

/* Reads what the client still says, until it closes. */
static void linger(struct adopt *all, struct adopted *a)
{
    char nothing[4096];
    ssize_t n;
    while ((n = recv(a->fd, nothing, sizeof nothing, MSG_DONTWAIT)) > 0)
        ;
    if (n == 0 || (errno != EAGAIN && errno != EINTR) || clock_now_ns() > a->linger_until_ns)
        let_go(all, a);
}

/* --- the thread --------------------------------------------------------------------------------------------------------- */

static void wait_for_work(struct adopt *all)
{
    nfds_t n = 0;
    uint64_t times;
    all->polls[n++] = (struct pollfd){all->wake_fd, POLLIN, 0};
    LIST_EACH(it, &all->all)
    {
        struct adopted *a = LIST_ENTRY(it, struct adopted, link);
        a->polled = 0;
        if (!a->x || a->blocked) {
            a->polled = n;
            all->polls[n++] = (struct pollfd){a->fd, a->x ? POLLOUT : POLLIN, 0};
        }
    }
    poll(all->polls, n, POLL_MS);
    while (read(all->wake_fd, &times, sizeof times) > 0)
        ;
}

static void *thread_main(void *arg)
{
    struct adopt *all = arg;
    while (!atomic_load(&all->stopping)) {
        LIST_EACH(it, &all->all)
        {
            struct adopted *a = LIST_ENTRY(it, struct adopted, link);
            int ready = atomic_exchange(&a->ready, 0);
            if (!a->x) {
                linger(all, a);
            } else if (ready || (a->polled && all->polls[a->polled].revents)) {
                a->blocked = 0;
                serve(all, a);
            }
        }
        wait_for_work(all);
    }
    return NULL;
}

void adopt_wake(struct adopt *all, struct adopted *a)
{
    uint64_t one = 1;
    if (a)
        atomic_store(&a->ready, 1);
    if (write(all->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake */
}

/* --- taking over -------------------------------------------------------------------------------------------------------- */

/* Where the answer stands; the rest of it is the exchange's. */
static void take_answer(struct adopted *a, struct exchange *x, struct kept_answer *rest)
{
    struct keeper_state *s = keeper_state(x->keeper);
    a->need_head = rest->need_head;
    a->last_taken = rest->last_taken;
    a->pending = rest->pending;
    if (rest->framing == KEEPER_UNANSWERED) {
        buf_fini(&rest->out);
        return;
    }
    x->http = rest->http;
    x->retry_after_s = rest->retry_after_s;
    x->have_reply = 1;
    x->ended = rest->ended;
    x->streaming = rest->framing == KEEPER_CHUNKED;
    x->content_type = x->streaming ? "text/event-stream" : "application/json";
    buf_fini(&x->out);
    x->out = rest->out;
    if (x->streaming) {
        x->out_kept = x->out.len;
    } else {
        s->handed = rest->handed;
        s->frame_content = 0;
    }
}

/* From the journal and the connection. */
static enum status take_over(struct adopted *a, struct exchange *x, struct completion_kept *c, struct error *err)
{
    struct kept k;
    struct kept_answer rest;
    uint64_t position;
    keeper_view(x->keeper, &k);
    if (keeper_position(a->fd, &position) != STATUS_OK)
        return error_set(err, STATUS_CLOSED, "the connection is gone");
    TRY(kept_answer_read(&k, position, &rest, err));
    enum status s = completion_kept_read(&k, c, err);
    if (s != STATUS_OK) {
        kept_answer_fini(&rest);
        return s;
    }
    snprintf(x->request_id, sizeof x->request_id, "%s", c->request.request_id);
    snprintf(x->client, sizeof x->client, "%s", c->request.client);
    x->close_after = (int)c->request.close_after;
    x->started_ns = c->request.started_ns;
    take_answer(a, x, &rest);
    return STATUS_OK;
}

static void set_socket(int fd)
{
    int off = 0, on = 1, sndbuf = EXCHANGE_SNDBUF;
    setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off); /* as libmicrohttpd may have left it */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf);
}

static enum status adopt_one(struct adopt *all, const struct held_connection *h, struct error *err)
{
    struct completion_kept c;
    struct keeper *keeper;
    enum status s = keeper_open(h->journal, &keeper, err);
    if (s != STATUS_OK) {
        close(h->socket);
        return s;
    }
    struct adopted *a = calloc(1, sizeof *a);
    struct exchange *x = a ? exchange_create_adopted(all->gw, h->socket) : NULL;
    if (!x) {
        free(a);
        keeper_close(keeper);
        close(h->socket);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for it");
    }
    x->keeper = keeper;
    x->started = 1;
    a->fd = h->socket;
    atomic_init(&a->ready, 1);
    set_socket(a->fd);
    if ((s = take_over(a, x, &c, err)) != STATUS_OK) {
        free(a);
        exchange_unhold(x);
        exchange_release(x);
        close(h->socket);
        return s;
    }
    a->x = x;
    x->held_id = h->id; /* until here adopt_begin drops it */
    x->adopted = a;
    list_push_back(&all->all, &a->link);
    all->n++;
    server_adopt(all->gw->server, x, c.choices[0].first.text_ns != 0); /* who has begun to read had a slot */
    pthread_mutex_lock(&x->lock);
    if (!x->ended && !x->gone)
        completion_adopt(x, &c);
    exchange_publish(x);
    pthread_mutex_unlock(&x->lock);
    completion_kept_fini(&c);
    return STATUS_OK;
}

enum status adopt_create(struct gateway *gw, struct adopt **out, struct error *err)
{
    struct adopt *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for adopted connections");
    a->gw = gw;
    list_init(&a->all);
    a->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->wake_fd < 0) {
        free(a);
        return error_set(err, STATUS_IO, "no eventfd: %s", strerror(errno));
    }
    *out = a;
    return STATUS_OK;
}

static void end_all(struct adopt *all)
{
    LIST_EACH(it, &all->all)
    {
        struct adopted *a = LIST_ENTRY(it, struct adopted, link);
        if (a->x)
            complete(all, a, 0);
        else
            let_go(all, a);
    }
}

/* A gateway that died between two words to the holder has told it of a connection twice: with its answer and as one that waits, or as two that
 * wait. It is taken once: libmicrohttpd would close the second one for its silence, and end what the first one is at. */
static int is_seen(struct adopt *a, int socket)
{
    struct stat st;
    if (fstat(socket, &st) != 0)
        return 0;
    for (uint32_t i = 0; i < a->n_seen; i++)
        if (a->seen[i] == st.st_ino)
            return 1;
    a->seen[a->n_seen++] = st.st_ino;
    return 0;
}

/* Between two requests; one of which something was read is lost, and the client is told by the connection's end. */
static void take_waiting(struct adopt *a, const struct held_connection *h)
{
    uint64_t consumed;
    if (keeper_consumed(h->socket, &consumed) == STATUS_OK && consumed == h->value && !is_seen(a, h->socket))
        server_take_connection(a->gw->server, h->socket);
    else
        close(h->socket);
    held_drop(a->gw->held, h->id);
}

void adopt_begin(struct adopt *a, const struct held_connection *connections, uint32_t n)
{
    struct error err;
    uint32_t well = 0, n_answers = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (connections[i].journal < 0)
            continue;
        n_answers++;
        is_seen(a, connections[i].socket);
        if (adopt_one(a, &connections[i], &err) == STATUS_OK) {
            well++;
            continue;
        }
        held_drop(a->gw->held, connections[i].id);
        LOG_WARN("a connection of the gateway before this one is closed: %s", err.message);
    }
    for (uint32_t i = 0; i < n; i++)
        if (connections[i].journal < 0)
            take_waiting(a, &connections[i]);
    if (n_answers)
        LOG_INFO("%u of %u answers that a gateway before this one began go on here", well, n_answers);
    a->running = well && pthread_create(&a->thread, NULL, thread_main, a) == 0;
    if (!a->running)
        end_all(a);
}

void adopt_destroy(struct adopt *a)
{
    if (!a)
        return;
    atomic_store(&a->stopping, 1);
    adopt_wake(a, NULL);
    if (a->running)
        pthread_join(a->thread, NULL);
    end_all(a);
    close(a->wake_fd);
    free(a);
}
