#include "tests/unit/cli/stream_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

enum { MAX_FDS = 8192, READ_BYTES = 16384, WAIT_MS = 1 };

struct peer {
    char in[READ_BYTES]; /* the head and the start of the body; a body is never kept whole */
    size_t n_in, body_left;
    int has_head;
    int64_t due_ns;      /* of the next token; 0: no request */
    uint32_t n_sent;
};

struct stream_server {
    struct stream_server_script script;
    int listener, epoll;
    pthread_t thread;
    atomic_int stop;
    uint64_t n_answers;
    struct peer *peers[MAX_FDS];
};

static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

static void put_chunk(char *out, size_t *n, const char *event)
{
    *n += (size_t)sprintf(out + *n, "%zx\r\n%s\r\n", strlen(event), event);
}

/* One token, with what belongs before and behind it. */
static void send_token(struct stream_server *s, int fd, struct peer *p)
{
    char out[2048], usage[256];
    size_t n = 0;
    if (p->n_sent == 0)
        n = (size_t)sprintf(out, "%s", head);
    put_chunk(out, &n, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"scripted\",\"choices\":[{\"index\":0,"
                       "\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    if (++p->n_sent == s->script.n_tokens) {
        put_chunk(out, &n, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
        snprintf(usage, sizeof usage,
                 "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%u,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n", s->script.n_tokens);
        put_chunk(out, &n, usage);
        put_chunk(out, &n, "data: [DONE]\n\n");
        n += (size_t)sprintf(out + n, "0\r\n\r\n");
        p->due_ns = 0;
        s->n_answers++;
    } else {
        p->due_ns += s->script.step_ms * NS_PER_MS;
    }
    if (send(fd, out, n, MSG_NOSIGNAL) != (ssize_t)n)
        p->due_ns = 0; /* the client left; its end is read later */
}

static void take_bytes(struct stream_server *s, struct peer *p, const char *bytes, size_t n)
{
    if (!p->has_head) {
        size_t take = n < sizeof p->in - 1 - p->n_in ? n : sizeof p->in - 1 - p->n_in;
        memcpy(p->in + p->n_in, bytes, take);
        p->n_in += take;
        p->in[p->n_in] = 0;
        char *end = strstr(p->in, "\r\n\r\n"), *length = strcasestr(p->in, "content-length:");
        if (!end)
            return;
        size_t n_head = (size_t)(end - p->in) + 4;
        p->has_head = 1;
        p->body_left = length ? strtoull(length + 15, NULL, 10) : 0;
        p->body_left -= p->n_in - n_head + (n - take);
    } else {
        p->body_left -= n;
    }
    if (p->body_left == 0) {
        p->has_head = 0;
        p->n_in = 0;
        p->n_sent = 0;
        p->due_ns = clock_now_ns() + s->script.first_ms * NS_PER_MS;
    }
}

static void close_peer(struct stream_server *s, int fd)
{
    free(s->peers[fd]);
    s->peers[fd] = NULL;
    close(fd);
}

static void read_peer(struct stream_server *s, int fd)
{
    char bytes[READ_BYTES];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0)
        take_bytes(s, s->peers[fd], bytes, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        close_peer(s, fd);
}

static void accept_peers(struct stream_server *s)
{
    int fd, on = 1;
    while ((fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        if (fd >= MAX_FDS || !(s->peers[fd] = calloc(1, sizeof *s->peers[fd]))) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

static void *serve(void *arg)
{
    struct stream_server *s = arg;
    struct epoll_event events[256];
    while (!atomic_load(&s->stop)) {
        int n = epoll_wait(s->epoll, events, 256, WAIT_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == s->listener)
                accept_peers(s);
            else if (s->peers[events[i].data.fd])
                read_peer(s, events[i].data.fd);
        }
        int64_t now = clock_now_ns();
        for (int fd = 0; fd < MAX_FDS; fd++)
            if (s->peers[fd] && s->peers[fd]->due_ns && s->peers[fd]->due_ns <= now)
                send_token(s, fd, s->peers[fd]);
    }
    return NULL;
}

struct stream_server *stream_server_start(const struct stream_server_script *script, uint16_t *port)
{
    struct stream_server *s = calloc(1, sizeof *s);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    if (!s)
        return NULL;
    s->script = *script;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = s->listener};
    if (bind(s->listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(s->listener, 4096) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &len) != 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &e) != 0 ||
        pthread_create(&s->thread, NULL, serve, s) != 0) {
        close(s->listener);
        close(s->epoll);
        free(s);
        return NULL;
    }
    *port = ntohs(a.sin_port);
    return s;
}

uint64_t stream_server_stop(struct stream_server *s)
{
    atomic_store(&s->stop, 1);
    pthread_join(s->thread, NULL);
    for (int fd = 0; fd < MAX_FDS; fd++)
        if (s->peers[fd])
            close_peer(s, fd);
    close(s->listener);
    close(s->epoll);
    uint64_t n = s->n_answers;
    free(s);
    return n;
}
