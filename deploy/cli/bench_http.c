#include "deploy/cli/bench_http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/list.h"

enum { EVENTS_AT_ONCE = 256, RESERVED_FDS = 32 };

struct bench_call {
    struct list link; /* in running or spare */
    CURL *curl;
    struct transfer transfer;
    char *body;
    void *ctx;
};

struct bench_http {
    struct http to;
    char path[64];
    long timeout_ms;
    struct bench_hooks hooks;
    CURLM *multi;
    int epoll, timer;
    int64_t curl_due_ns;  /* when libcurl wants to be called; 0: at no time */
    int64_t armed_ns;     /* what the timer is set to */
    struct list running, spare;
    uint32_t n_running, most;
};

/* --- what libcurl asks for -------------------------------------------------------------------------------------------------- */

static int on_socket(CURL *c, curl_socket_t fd, int what, void *arg, void *known)
{
    struct bench_http *b = arg;
    struct epoll_event e = {.data.fd = fd};
    (void)c;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(b->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (epoll_ctl(b->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) != 0)
        epoll_ctl(b->epoll, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
    if (!known)
        curl_multi_assign(b->multi, fd, b);
    return 0;
}

static int on_timer(CURLM *m, long timeout_ms, void *arg)
{
    struct bench_http *b = arg;
    (void)m;
    b->curl_due_ns = timeout_ms < 0 ? 0 : clock_now_ns() + timeout_ms * NS_PER_MS;
    return 0;
}

/* --- create and destroy ----------------------------------------------------------------------------------------------------- */

static uint32_t raise_fds(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return 1024 - RESERVED_FDS;
    if (r.rlim_cur < r.rlim_max) {
        struct rlimit more = {r.rlim_max, r.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &more) == 0)
            r = more;
    }
    return r.rlim_cur > 1 << 20 ? 1 << 20 : r.rlim_cur > RESERVED_FDS ? (uint32_t)r.rlim_cur - RESERVED_FDS : 1;
}

enum status bench_http_create(const struct http *h, const char *path, double timeout_s, const struct bench_hooks *hooks,
                              struct bench_http **out, struct error *err)
{
    struct bench_http *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the client");
    b->to = *h;
    snprintf(b->path, sizeof b->path, "%s", path);
    b->timeout_ms = (long)(timeout_s * 1000);
    b->hooks = *hooks;
    b->most = raise_fds();
    list_init(&b->running);
    list_init(&b->spare);
    b->multi = curl_multi_init();
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    b->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = b->timer};
    if (!b->multi || b->epoll < 0 || b->timer < 0 || epoll_ctl(b->epoll, EPOLL_CTL_ADD, b->timer, &e) != 0) {
        enum status s = error_set(err, STATUS_OUT_OF_MEMORY, "the client cannot be set up: %s", strerror(errno));
        bench_http_destroy(b);
        return s;
    }
    curl_multi_setopt(b->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(b->multi, CURLMOPT_SOCKETDATA, b);
    curl_multi_setopt(b->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(b->multi, CURLMOPT_TIMERDATA, b);
    curl_multi_setopt(b->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING); /* a stream has its own connection */
    curl_multi_setopt(b->multi, CURLMOPT_MAXCONNECTS, (long)b->most);
    *out = b;
    return STATUS_OK;
}

/* The call is out of libcurl's and the caller's hands. */
static void retire(struct bench_http *b, struct bench_call *c)
{
    curl_multi_remove_handle(b->multi, c->curl);
    transfer_fini(&c->transfer);
    free(c->body);
    c->body = NULL;
    list_remove(&c->link);
    list_push_front(&b->spare, &c->link);
    b->n_running--;
}

void bench_http_destroy(struct bench_http *b)
{
    if (!b)
        return;
    LIST_EACH(it, &b->running)
        retire(b, LIST_ENTRY(it, struct bench_call, link));
    LIST_EACH(it, &b->spare) {
        struct bench_call *c = LIST_ENTRY(it, struct bench_call, link);
        curl_easy_cleanup(c->curl);
        free(c);
    }
    curl_multi_cleanup(b->multi);
    if (b->epoll >= 0)
        close(b->epoll);
    if (b->timer >= 0)
        close(b->timer);
    free(b);
}

/* --- calls ------------------------------------------------------------------------------------------------------------------ */

static struct bench_call *take_spare(struct bench_http *b)
{
    if (!list_empty(&b->spare)) {
        struct bench_call *c = LIST_ENTRY(b->spare.next, struct bench_call, link);
        list_remove(&c->link);
        curl_easy_reset(c->curl);
        return c;
    }
    struct bench_call *c = calloc(1, sizeof *c);
    if (c && !(c->curl = curl_easy_init())) {
        free(c);
        c = NULL;
    }
    return c;
}

enum status bench_http_post(struct bench_http *b, char *body, size_t len, void *ctx, struct bench_call **out)
{
    struct bench_call *c = b->n_running < b->most ? take_spare(b) : NULL;
    if (!c) {
        free(body);
        return b->n_running < b->most ? STATUS_OUT_OF_MEMORY : STATUS_CONFIG;
    }
    c->body = body;
    c->ctx = ctx;
    list_push_back(&b->running, &c->link);
    b->n_running++;
    enum status s = transfer_init(&c->transfer, c->curl, &b->to, b->path, body, len, b->hooks.on_event, ctx);
    curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    curl_easy_setopt(c->curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, b->timeout_ms);
    if (s != STATUS_OK || curl_multi_add_handle(b->multi, c->curl) != CURLM_OK) {
        retire(b, c);
        return STATUS_OUT_OF_MEMORY;
    }
    *out = c;
    return STATUS_OK;
}

static void name_failure(const struct transfer *t, CURLcode rc, struct bench_end *end)
{
    if (t->error.status != STATUS_OK)
        snprintf(end->kind, sizeof end->kind, "event");
    else if (rc == CURLE_OPERATION_TIMEDOUT)
        snprintf(end->kind, sizeof end->kind, "timeout");
    else if (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST)
        snprintf(end->kind, sizeof end->kind, "connect");
    else if (rc == CURLE_OK && t->http != 200)
        snprintf(end->kind, sizeof end->kind, "%ld", t->http);
    else
        snprintf(end->kind, sizeof end->kind, "broken");
    end->is_refused = rc == CURLE_OK && (t->http == 503 || t->http == 429) && t->retry_after_s >= 0;
    end->retry_after_s = end->is_refused ? t->retry_after_s : 0;
}

static void end_call(struct bench_http *b, struct bench_call *c, CURLcode rc)
{
    struct error err = {0};
    struct bench_end end = {.at_ns = clock_now_ns()};
    end.status = transfer_finish(&c->transfer, c->curl, rc, &err);
    end.message = err.message;
    if (end.status != STATUS_OK)
        name_failure(&c->transfer, rc, &end);
    void *ctx = c->ctx;
    retire(b, c);
    b->hooks.on_end(ctx, &end);
}

static void take_ended(struct bench_http *b)
{
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(b->multi, &left)))
        if (m->msg == CURLMSG_DONE) {
            struct bench_call *c = NULL;
            CURLcode rc = m->data.result; /* m is dead once the handle is removed */
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
            end_call(b, c, rc);
        }
}

/* --- waiting ---------------------------------------------------------------------------------------------------------------- */

/* A timer of nanoseconds: epoll's own milliseconds would send an open loop's requests late. */
static void arm(struct bench_http *b, int64_t due_ns)
{
    if (due_ns == b->armed_ns)
        return;
    struct itimerspec t = {.it_value = {due_ns / NS_PER_S, due_ns % NS_PER_S}};
    timerfd_settime(b->timer, TFD_TIMER_ABSTIME, &t, NULL);
    b->armed_ns = due_ns;
}

void bench_http_wait(struct bench_http *b, int64_t until_ns)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int running;
    int64_t due = b->curl_due_ns && b->curl_due_ns < until_ns ? b->curl_due_ns : until_ns;
    int is_late = due <= clock_now_ns();
    if (!is_late)
        arm(b, due);
    int n = epoll_wait(b->epoll, events, EVENTS_AT_ONCE, is_late ? 0 : -1);
    for (int i = 0; i < n; i++) {
        int fd = events[i].data.fd;
        if (fd == b->timer) {
            uint64_t times;
            if (read(b->timer, &times, sizeof times) > 0)
                b->armed_ns = 0;
            continue;
        }
        int what = (events[i].events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
                   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) | (events[i].events & EPOLLERR ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(b->multi, fd, what, &running);
    }
    if (b->curl_due_ns && b->curl_due_ns <= clock_now_ns()) {
        b->curl_due_ns = 0;
        curl_multi_socket_action(b->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    take_ended(b);
}

uint32_t bench_http_open(const struct bench_http *b)
{
    return b->n_running;
}

uint32_t bench_http_most(const struct bench_http *b)
{
    return b->most;
}
