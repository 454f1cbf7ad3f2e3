#include "rpc/gateway/server.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <netdb.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/queue.h"
#include "rpc/gateway/adopt.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/held.h"
#include "rpc/gateway/https.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/request_head.h"
#include "rpc/gateway/routes.h"

#define LOG_MODULE "http"
#include "common/base/log.h"

enum {
    CONNECTIONS_MAX = 4096,
    LISTEN_BACKLOG = 1024,
    /* A connection that has not sent a whole head is closed after the first, one that has may idle for the second. */
    HEAD_TIMEOUT_S = 9,
    IDLE_TIMEOUT_S = 75,
    TICK_MS = 50,
    WATCH_EVENTS = 64,
    LARGE_BODY_BYTES = 128 << 10, /* jansson reads about 100 MB/s: above this a parse would be felt by others */
    LARGE_BODIES_MAX = 256,
    DISCARD_MAX_BYTES = 1 << 20, /* a refused body up to this is read, so that the connection can be used again */
    BODIES_IN_MEMORY = 8,        /* times --max-body-mib */
};

struct server {
    struct gateway *gw;
    struct MHD_Daemon *daemon;
    char address[300];
    int epoll;
    pthread_t watcher, parser;
    struct queue *large; /* what is read or written by the parser: of struct exchange *, each with a reference */
    atomic_int stopping, ending;
    size_t body_max;

    pthread_mutex_t lock; /* guards what follows */
    struct list exchanges;
    uint32_t n_exchanges;
};

/* --- the list ----------------------------------------------------------------------------------------------------- */

static void list_add(struct server *s, struct exchange *x, int first)
{
    pthread_mutex_lock(&s->lock);
    if (first)
        list_push_front(&s->exchanges, &x->link);
    else
        list_push_back(&s->exchanges, &x->link);
    s->n_exchanges++;
    pthread_mutex_unlock(&s->lock);
}

uint32_t server_open_requests(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->n_exchanges;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void server_adopt(struct server *s, struct exchange *x, int first)
{
    list_add(s, x, first);
    pthread_mutex_lock(&x->lock);
    server_watch(s, x);
    pthread_mutex_unlock(&x->lock);
}

void server_forget(struct server *s, struct exchange *x)
{
    pthread_mutex_lock(&s->lock);
    list_remove(&x->link);
    s->n_exchanges--;
    pthread_mutex_unlock(&s->lock);
    exchange_release(x);
}

void server_take_connection(struct server *s, int fd)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0)
        MHD_add_connection(s->daemon, fd, (struct sockaddr *)&peer, len);
    else
        close(fd);
}

/* All exchanges, each with a reference; NULL without memory (the next tick tries again). */
static struct exchange **snapshot(struct server *s, uint32_t *n)
{
    pthread_mutex_lock(&s->lock);
    struct exchange **all = malloc((s->n_exchanges + 1) * sizeof(struct exchange *));
    *n = 0;
    if (all)
        LIST_EACH(it, &s->exchanges)
        {
            all[*n] = LIST_ENTRY(it, struct exchange, link);
            exchange_retain(all[(*n)++]);
        }
    pthread_mutex_unlock(&s->lock);
    return all;
}

/* --- watcher: clients that leave, clients that do not read, ticks ------------------------------------------------- */

void server_watch(struct server *s, struct exchange *x)
{
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR, .data.u64 = x->serial};
    x->watched = epoll_ctl(s->epoll, EPOLL_CTL_ADD, x->fd, &e) == 0;
}

void server_unwatch(struct server *s, struct exchange *x)
{
    if (x->watched)
        epoll_ctl(s->epoll, EPOLL_CTL_DEL, x->fd, NULL);
    x->watched = 0;
}

static void on_hangup(struct server *s, uint64_t serial)
{
    struct exchange *found = NULL;
    pthread_mutex_lock(&s->lock);
    LIST_EACH(it, &s->exchanges)
    {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);
        if (x->serial == serial) {
            found = x;
            exchange_retain(x);
            break;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (!found)
        return;
    pthread_mutex_lock(&found->lock);
    if (found->conn || found->adopted) {
        server_unwatch(s, found);
        LOG_DEBUG("req %s: the client left", found->request_id);
        exchange_leave(found);
    }
    pthread_mutex_unlock(&found->lock);
    exchange_release(found);
}

static void tick_one(struct server *s, struct exchange *x, int64_t now)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone && exchange_stalled(x, now, s->gw->config->write_stall_ms)) {
        atomic_fetch_add(&s->gw->write_stalled, 1);
        LOG_INFO("req %s: the client read nothing for %lld ms, dropped", x->request_id,
                 (long long)s->gw->config->write_stall_ms);
        exchange_leave(x);
    }
    if (!x->gone && x->ops && x->ops->tick)
        x->ops->tick(x, now);
    pthread_mutex_unlock(&x->lock);
}

static void tick_all(struct server *s)
{
    uint32_t n;
    int64_t now = clock_now_ns();
    backend_tick(s->gw->backend, now);
    held_tick(s->gw->held);
    struct exchange **all = snapshot(s, &n);
    for (uint32_t i = 0; all && i < n; i++) {
        tick_one(s, all[i], now);
        exchange_release(all[i]);
    }
    free(all);
}

static void *watcher_main(void *arg)
{
    struct server *s = arg;
    struct epoll_event events[WATCH_EVENTS];
    int64_t next = 0;
    while (!atomic_load(&s->stopping)) {
        int n = epoll_wait(s->epoll, events, WATCH_EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            on_hangup(s, events[i].data.u64);
        if (clock_now_ns() >= next) {
            tick_all(s);
            next = clock_now_ns() + TICK_MS * NS_PER_MS;
        }
    }
    return NULL;
}

/* --- starting a request ------------------------------------------------------------------------------------------- */

static void drop_body(struct server *s, struct exchange *x)
{
    atomic_fetch_sub(&s->gw->body_bytes, x->body.len);
    buf_fini(&x->body);
}

static void start(struct server *s, struct exchange *x)
{
    x->route->start(x);
    pthread_mutex_lock(&x->lock);
    drop_body(s, x);
    pthread_mutex_unlock(&x->lock);
}

static void *parser_main(void *arg)
{
    struct server *s = arg;
    struct exchange *x;
    while (queue_pop(s->large, &x, INT64_MAX) == STATUS_OK) {
        if (x->ops) /* since start() */
            x->ops->build(x);
        else
            start(s, x);
        exchange_release(x);
    }
    return NULL;
}

enum status server_hand_over(struct server *s, struct exchange *x)
{
    exchange_retain(x);
    enum status st = queue_push(s->large, &x);
    if (st != STATUS_OK)
        exchange_release(x);
    return st;
}

static void start_later(struct server *s, struct exchange *x)
{
    struct error err;
    if (server_hand_over(s, x) == STATUS_OK)
        return;
    error_set(&err, STATUS_FULL, "too many large bodies wait to be read");
    exchange_reply_error(x, &err);
    drop_body(s, x); /* start() never will */
}

/* A request that is whole only when the last ones have been thrown out: nobody would wake its connection, and libmicrohttpd cannot stop
 * while one is suspended. */
static void turn_away(struct server *s, struct exchange *x)
{
    struct error err;
    error_param(&err, STATUS_DRAINING, NULL, "draining", "this gateway is ending; try again");
    exchange_reply_error(x, &err);
    drop_body(s, x);
}

static enum MHD_Result answer(struct server *s, struct exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->started && !x->have_reply) {
        x->started = 1;
        server_watch(s, x);
        if (atomic_load(&s->ending)) {
            turn_away(s, x);
        } else if (x->body.len > LARGE_BODY_BYTES) {
            start_later(s, x);
        } else {
            pthread_mutex_unlock(&x->lock);
            start(s, x);
            pthread_mutex_lock(&x->lock);
        }
    }
    int gone = x->gone, reply = x->have_reply;
    if (!gone && !reply) {
        x->suspended = 1;
        MHD_suspend_connection(x->conn);
    }
    pthread_mutex_unlock(&x->lock);
    return gone ? MHD_NO : reply ? exchange_queue(x) : MHD_YES;
}

/* --- callbacks of libmicrohttpd ----------------------------------------------------------------------------------- */

/* A body that nobody will read: a small one is taken from the socket first, so that the connection stays usable; for
 * others the answer goes out at once and the connection closes behind it. */
static enum MHD_Result refuse(struct exchange *x, uint64_t content_length, const struct error *err)
{
    pthread_mutex_lock(&x->lock);
    x->refused = 1;
    exchange_reply_error(x, err);
    pthread_mutex_unlock(&x->lock);
    int now = content_length > DISCARD_MAX_BYTES || request_head_expects_continue(x->conn);
    return now ? exchange_queue(x) : MHD_YES;
}

/* A process that dies takes the state of TLS with it; what HTTP/1.0 gets has no frames to find one's place in. */
static int can_hold(const struct server *s, const char *version)
{
    return !s->gw->tls && strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
}

static int wants_close(struct MHD_Connection *conn)
{
    const char *value = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Connection");
    return value && strcasestr(value, "close");
}

static enum MHD_Result begin(struct server *s, struct MHD_Connection *conn, const char *url, const char *method,
                             const char *version, void **con_cls)
{
    struct exchange *x = exchange_create(s->gw, conn);
    if (!x)
        return MHD_NO;
    *con_cls = x;
    x->can_hold = can_hold(s, version);
    x->close_after = wants_close(conn);
    list_add(s, x, 0);
    MHD_set_connection_option(conn, MHD_CONNECTION_OPTION_TIMEOUT,
                              (unsigned)(IDLE_TIMEOUT_S + s->gw->config->write_stall_ms / 1000));
    struct request_head head;
    struct error err;
    buf_init(&x->body, s->body_max);
    if (request_head_read(x, url, method, s->body_max, &head, &err) != STATUS_OK)
        return refuse(x, head.content_length, &err);
    return MHD_YES;
}

static void take_body(struct server *s, struct exchange *x, const char *data, size_t len)
{
    struct error err;
    pthread_mutex_lock(&x->lock);
    if (x->refused || !(x->route->flags & ROUTE_BODY)) { /* what takes none may come without a key */
        x->body_discarded += len;
    } else if (x->body.len + len > s->body_max) {
        error_set(&err, STATUS_BODY_TOO_LARGE, "the body is over the limit of %zu bytes", s->body_max);
        drop_body(s, x);
        x->refused = 1;
        exchange_reply_error(x, &err);
    } else if (atomic_fetch_add(&s->gw->body_bytes, len) + len > BODIES_IN_MEMORY * s->body_max ||
               buf_append(&x->body, data, len) != STATUS_OK) {
        atomic_fetch_sub(&s->gw->body_bytes, len);
        error_set(&err, STATUS_OUT_OF_MEMORY, "too many large bodies are being received");
        drop_body(s, x);
        x->refused = 1;
        exchange_reply_error(x, &err);
    }
    pthread_mutex_unlock(&x->lock);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **con_cls)
{
    struct server *s = cls;
    struct exchange *x = *con_cls;
    if (!x)
        return begin(s, conn, url, method, version, con_cls);
    if (*upload_size == 0)
        return answer(s, x);
    take_body(s, x, upload, *upload_size);
    *upload_size = 0;
    /* A chunked body has no length to refuse it by; one that goes on and on is cut off. */
    return x->body_discarded > s->body_max + DISCARD_MAX_BYTES ? MHD_NO : MHD_YES;
}

/* The connection waits for its next request; id is what it is held by, or 0. Returns that. (If libmicrohttpd has read the beginning of the
 * next one already, as it may with clients that do not wait for an answer, a gateway after this one waits for it in vain: HEAD_TIMEOUT_S.) */
static uint64_t wait_held(struct server *s, uint64_t id, int fd)
{
    uint64_t consumed;
    if (!s->gw->held || s->gw->tls || keeper_consumed(fd, &consumed) != STATUS_OK)
        return id;
    return held_wait(s->gw->held, id, fd, consumed);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *context = (void *)(uintptr_t)wait_held(s, 0, MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else
        held_drop(s->gw->held, (uintptr_t)*context);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls, enum MHD_RequestTerminationCode why)
{
    struct server *s = cls;
    struct exchange *x = *con_cls;
    if (!x)
        return;
    *con_cls = NULL;
    uint64_t id = (uintptr_t)MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (id && why == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        wait_held(s, id, x->fd);
    pthread_mutex_lock(&x->lock);
    server_unwatch(s, x);
    exchange_unhold(x);
    x->conn = NULL;
    if (!x->started) /* else start() does, which may be reading it at this moment */
        drop_body(s, x);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        exchange_leave(x);
    pthread_mutex_unlock(&x->lock);
    server_forget(s, x);
}

static void on_mhd_log(void *cls, const char *fmt, va_list ap)
{
    char line[256];
    (void)cls;
    int n = vsnprintf(line, sizeof line, fmt, ap);
    while (n > 0 && (n >= (int)sizeof line || line[n - 1] == '\n'))
        n = n >= (int)sizeof line ? (int)sizeof line - 1 : n - 1;
    if (n > 0)
        LOG_DEBUG("libmicrohttpd: %.*s", n, line);
}

/* --- start and end ------------------------------------------------------------------------------------------------ */

/* libmicrohttpd reports no errno, so the socket is ours. */
static enum status listen_on(const char *host_port, int *out, struct error *err)
{
    struct address a;
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    int on = 1;
    TRY(address_parse(host_port, -1, "http", &a, err));
    TRY(address_resolve(&a, &sa, &len, err));
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, STATUS_IO, "no socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&sa, len) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        enum status st = errno == EADDRINUSE ? STATUS_ADDRESS_IN_USE : STATUS_CONFIG;
        error_set(err, st, "--http %.200s: %s", host_port,
                  st == STATUS_CONFIG ? strerror(errno) : "the address is in use");
        close(fd);
        return st;
    }
    *out = fd;
    return STATUS_OK;
}

static void name_address(struct server *s, int fd)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    char host[256], port[16];
    getsockname(fd, (struct sockaddr *)&sa, &len);
    getnameinfo((struct sockaddr *)&sa, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(s->address, sizeof s->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* As many connections as descriptors allow, some kept for everything else. */
static unsigned connection_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return 512;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    rlim_t usable = r.rlim_cur > 128 ? r.rlim_cur - 64 : 64;
    return usable < CONNECTIONS_MAX ? (unsigned)usable : CONNECTIONS_MAX;
}

static enum status start_daemon(struct server *s, int fd, struct error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem https[HTTPS_MAX_OPTIONS];
    enum status st = https_use(s->gw->tls, &flags, https, err);
    if (st != STATUS_OK) {
        close(fd);
        return st;
    }
    s->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL,
                         on_request, s, MHD_OPTION_ARRAY, https, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT, connection_limit(),
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HEAD_TIMEOUT_S, MHD_OPTION_END);
    if (s->daemon)
        return STATUS_OK;
    close(fd);
    return error_set(err, STATUS_OUT_OF_MEMORY, "libmicrohttpd could not be started");
}

static enum status start_threads(struct server *s, struct error *err)
{
    if (pthread_create(&s->watcher, NULL, watcher_main, s) != 0)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no thread to watch connections");
    if (pthread_create(&s->parser, NULL, parser_main, s) == 0)
        return STATUS_OK;
    atomic_store(&s->stopping, 1);
    pthread_join(s->watcher, NULL);
    return error_set(err, STATUS_OUT_OF_MEMORY, "no thread to read large bodies");
}

static void stop_threads(struct server *s)
{
    atomic_store(&s->stopping, 1);
    pthread_join(s->watcher, NULL);
    queue_close(s->large);
    pthread_join(s->parser, NULL);
}

enum status server_create(struct gateway *gw, const char *host_port, int listener, struct server **out, struct error *err)
{
    int fd = listener;
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        close(fd);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the server");
    }
    s->gw = gw;
    s->body_max = (size_t)gw->config->max_body_mib << 20;
    pthread_mutex_init(&s->lock, NULL);
    list_init(&s->exchanges);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    enum status st = s->epoll < 0 ? error_set(err, STATUS_IO, "no epoll: %s", strerror(errno))
                                  : queue_create(LARGE_BODIES_MAX, sizeof(struct exchange *), &s->large);
    if (st != STATUS_OK)
        goto free_server;
    if (fd < 0 && (st = listen_on(host_port, &fd, err)) != STATUS_OK)
        goto free_queue;
    if (fd != listener)
        held_listener(gw->held, fd);
    name_address(s, fd);
    if ((st = start_threads(s, err)) != STATUS_OK)
        goto free_queue;
    gw->server = s;
    st = start_daemon(s, fd, err);
    fd = -1; /* passed on */
    if (st != STATUS_OK)
        goto end_threads;
    *out = s;
    return STATUS_OK;
end_threads:
    stop_threads(s);
free_queue:
    queue_destroy(s->large);
free_server:
    if (fd >= 0)
        close(fd);
    if (s->epoll >= 0)
        close(s->epoll);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return st;
}

const char *server_address(const struct server *s)
{
    return s->address;
}

static void wait_empty(struct server *s, int64_t most_ms)
{
    int64_t until = clock_now_ns() + most_ms * NS_PER_MS;
    while (server_open_requests(s) && clock_now_ns() < until)
        nanosleep(&(struct timespec){.tv_nsec = 5 * NS_PER_MS}, NULL);
}

/* why NULL: throws everybody out. */
static void end_all(struct server *s, const struct error *why)
{
    uint32_t n;
    struct exchange **all = snapshot(s, &n);
    for (uint32_t i = 0; all && i < n; i++) {
        pthread_mutex_lock(&all[i]->lock);
        if (!why)
            exchange_leave(all[i]);
        else if (all[i]->ops && all[i]->ops->expire)
            all[i]->ops->expire(all[i], why);
        pthread_mutex_unlock(&all[i]->lock);
        exchange_release(all[i]);
    }
    free(all);
}

void server_destroy(struct server *s, const struct error *why)
{
    enum { TOLD_MS = 400, GONE_MS = 500 };
    end_all(s, why);
    wait_empty(s, TOLD_MS);
    atomic_store(&s->ending, 1);
    end_all(s, NULL); /* libmicrohttpd cannot stop while a connection is suspended */
    wait_empty(s, GONE_MS);
    adopt_destroy(s->gw->adopt);
    s->gw->adopt = NULL;
    stop_threads(s);
    MHD_stop_daemon(s->daemon);
    queue_destroy(s->large);
    close(s->epoll);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
