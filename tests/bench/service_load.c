/* A load client in C: N streams over HTTP, each on one keep-alive connection, the next request as soon as the last answer has
 * ended (closed loop). Counts tokens by the service's own usage. One line of JSON on stdout.
 *
 *   service_load --http 127.0.0.1:8080 --streams 8 --requests 2 --prompt 16 --tokens 256
 *
 * Prompts are token ids and differ from each other, so that no cache helps; answers do not end before their length. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "common/base/status.h"

enum { MAX_STREAMS = 1024, MAX_SAMPLES = 1 << 22, READ_BYTES = 64 << 10, SILENCE_MS = 60000 };

enum phase { PHASE_HEAD, PHASE_SIZE, PHASE_DATA, PHASE_DATA_END, PHASE_OVER };

struct stream {
    int fd;
    uint32_t index, n_asked;
    struct buf in;        /* bytes not yet understood */
    struct buf sse;       /* of the body: not yet a whole event */
    enum phase phase;
    size_t chunk_left;
    int64_t sent_ns, last_event_ns;
    uint64_t tokens;      /* of this answer, by its usage */
    int done;             /* [DONE] was seen */
};

struct load {
    struct sockaddr_storage to;
    socklen_t to_len;
    uint32_t n_streams, n_requests, n_prompt, n_tokens, first_id, n_ids;
    struct stream streams[MAX_STREAMS];
    uint64_t total_tokens, n_answers;
    float *ttft_ms, *itl_ms;
    size_t n_ttft, n_itl;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "service_load: %s: %s\n", what, why);
    exit(EXIT_CONFIG);
}

/* --- asking --------------------------------------------------------------------------------------------------------------------- */

static void write_all(struct stream *s, const char *data, size_t len)
{
    while (len) {
        ssize_t n = send(s->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            die("send", strerror(errno));
        data += n;
        len -= (size_t)n;
    }
}

static void ask(struct load *l, struct stream *s)
{
    struct buf body, head;
    uint64_t seed = (uint64_t)s->index << 32 | s->n_asked++;
    buf_init(&body, 1 << 24);
    buf_init(&head, 1 << 12);
    buf_text(&body, "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"temperature\":0,\"ignore_eos\":true,");
    buf_printf(&body, "\"max_tokens\":%u,\"prompt\":[", l->n_tokens);
    for (uint32_t i = 0; i < l->n_prompt; i++)
        buf_printf(&body, "%s%u", i ? "," : "", l->first_id + (uint32_t)(rand_at(seed, i) % l->n_ids));
    buf_text(&body, "]}");
    buf_printf(&head, "POST /v1/completions HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\nAuthorization: Bearer s%u\r\n"
                      "Content-Length: %zu\r\n\r\n", s->index, body.len);
    if (head.failed || body.failed)
        die("request", "no memory");
    s->phase = PHASE_HEAD;
    s->tokens = 0;
    s->done = 0;
    s->sent_ns = clock_now_ns();
    s->last_event_ns = 0;
    write_all(s, head.data, head.len);
    write_all(s, body.data, body.len);
    buf_fini(&body);
    buf_fini(&head);
}

static void open_stream(struct load *l, struct stream *s)
{
    int on = 1;
    s->fd = socket(l->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, (const struct sockaddr *)&l->to, l->to_len) != 0)
        die("connect", strerror(errno));
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    buf_init(&s->in, 1 << 24);
    buf_init(&s->sse, 1 << 24);
}

/* --- understanding the answer ----------------------------------------------------------------------------------------------------- */

static void take_event(struct load *l, struct stream *s, const char *event, int64_t now)
{
    if (strncmp(event, "data: ", 6) != 0)
        return; /* a comment */
    if (strcmp(event, "data: [DONE]") == 0) {
        s->done = 1;
        return;
    }
    if (strncmp(event, "data: {\"error\"", 14) == 0)
        die("the service", event);
    const char *usage = strstr(event, "\"completion_tokens\":");
    if (usage) {
        s->tokens = strtoull(usage + strlen("\"completion_tokens\":"), NULL, 10);
        return;
    }
    if (!s->last_event_ns && l->n_ttft < MAX_SAMPLES)
        l->ttft_ms[l->n_ttft++] = (float)(now - s->sent_ns) / 1e6f;
    else if (l->n_itl < MAX_SAMPLES)
        l->itl_ms[l->n_itl++] = (float)(now - s->last_event_ns) / 1e6f;
    s->last_event_ns = now;
}

static void take_events(struct load *l, struct stream *s)
{
    int64_t now = clock_now_ns();
    char *end;
    while (s->sse.len && (end = strstr(s->sse.data, "\n\n"))) {
        *end = 0;
        take_event(l, s, s->sse.data, now);
        buf_consume(&s->sse, (size_t)(end - s->sse.data) + 2);
    }
}

/* 1: the head is whole, and good. */
static int take_head(struct stream *s)
{
    char *end = s->in.len ? strstr(s->in.data, "\r\n\r\n") : NULL;
    if (!end)
        return 0;
    *end = 0;
    if (strncmp(s->in.data, "HTTP/1.1 200", 12) != 0)
        die("the service", s->in.data);
    if (!strcasestr(s->in.data, "transfer-encoding: chunked"))
        die("the service", "an answer that is not chunked");
    buf_consume(&s->in, (size_t)(end - s->in.data) + 4);
    s->phase = PHASE_SIZE;
    return 1;
}

static int take_size(struct stream *s)
{
    char *end = s->in.len ? strstr(s->in.data, "\r\n") : NULL;
    if (!end)
        return 0;
    s->chunk_left = strtoull(s->in.data, NULL, 16);
    s->phase = s->chunk_left ? PHASE_DATA : PHASE_OVER;
    buf_consume(&s->in, (size_t)(end - s->in.data) + 2);
    return 1;
}

static int take_data(struct load *l, struct stream *s)
{
    size_t n = s->in.len < s->chunk_left ? s->in.len : s->chunk_left;
    if (!n)
        return 0;
    if (buf_append(&s->sse, s->in.data, n) != STATUS_OK)
        die("event", "too long");
    buf_consume(&s->in, n);
    take_events(l, s);
    s->chunk_left -= n;
    if (!s->chunk_left)
        s->phase = PHASE_DATA_END;
    return 1;
}

static int take_line_end(struct stream *s)
{
    if (s->in.len < 2)
        return 0;
    buf_consume(&s->in, 2);
    return 1;
}

/* The last chunk's empty line: the answer is over. */
static int finish_answer(struct load *l, struct stream *s)
{
    if (!take_line_end(s))
        return 0;
    if (!s->done || !s->tokens)
        die("the service", "an answer without [DONE] or usage");
    l->total_tokens += s->tokens;
    l->n_answers++;
    if (s->n_asked < l->n_requests) {
        ask(l, s);
        return 1;
    }
    close(s->fd);
    s->fd = -1;
    return 0;
}

static void understand(struct load *l, struct stream *s)
{
    int more = 1;
    while (more) {
        switch (s->phase) {
        case PHASE_HEAD:
            more = take_head(s);
            break;
        case PHASE_SIZE:
            more = take_size(s);
            break;
        case PHASE_DATA:
            more = take_data(l, s);
            break;
        case PHASE_DATA_END:
            more = take_line_end(s);
            if (more)
                s->phase = PHASE_SIZE;
            break;
        case PHASE_OVER:
            more = finish_answer(l, s);
            break;
        }
    }
}

static void read_stream(struct load *l, struct stream *s)
{
    static char bytes[READ_BYTES];
    ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0)
        die("read", n ? strerror(errno) : "the service closed the connection");
    if (buf_append(&s->in, bytes, (size_t)n) != STATUS_OK)
        die("read", "no memory");
    understand(l, s);
}

/* --- the run ------------------------------------------------------------------------------------------------------------------------ */

static void run(struct load *l)
{
    struct pollfd fds[MAX_STREAMS];
    for (uint32_t i = 0; i < l->n_streams; i++)
        ask(l, &l->streams[i]);
    for (;;) {
        uint32_t n = 0, of[MAX_STREAMS];
        for (uint32_t i = 0; i < l->n_streams; i++)
            if (l->streams[i].fd >= 0) {
                of[n] = i;
                fds[n++] = (struct pollfd){l->streams[i].fd, POLLIN, 0};
            }
        if (!n)
            return;
        int got = poll(fds, n, SILENCE_MS);
        if (got == 0)
            die("poll", "the service has said nothing for a minute");
        for (uint32_t i = 0; got > 0 && i < n; i++)
            if (fds[i].revents)
                read_stream(l, &l->streams[of[i]]);
    }
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double percentile(float *v, size_t n, double p)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, ascending);
    return v[(size_t)((double)(n - 1) * p)];
}

static uint32_t number(const char *flag, const char *text, long least, long most)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < least || v > most)
        die(flag, "not a number in its range");
    return (uint32_t)v;
}

static void parse(struct load *l, int argc, char **argv)
{
    const char *http = "127.0.0.1:8080";
    for (int i = 1; i < argc; i += 2) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(flag, "--http") == 0)
            http = value;
        else if (strcmp(flag, "--streams") == 0)
            l->n_streams = number(flag, value, 1, MAX_STREAMS);
        else if (strcmp(flag, "--requests") == 0)
            l->n_requests = number(flag, value, 1, 1000000);
        else if (strcmp(flag, "--prompt") == 0)
            l->n_prompt = number(flag, value, 1, 1000000);
        else if (strcmp(flag, "--tokens") == 0)
            l->n_tokens = number(flag, value, 1, 1000000);
        else
            die(flag, "unknown; --http H:P --streams N --requests N --prompt N --tokens N");
    }
    struct address a;
    struct error err;
    if (address_parse(http, -1, "http", &a, &err) != STATUS_OK || address_resolve(&a, &l->to, &l->to_len, &err) != STATUS_OK)
        die("--http", err.message);
}

int main(int argc, char **argv)
{
    static struct load l = {.n_streams = 8, .n_requests = 2, .n_prompt = 16, .n_tokens = 256, .first_id = 300, .n_ids = 4000};
    parse(&l, argc, argv);
    l.ttft_ms = malloc(MAX_SAMPLES * sizeof *l.ttft_ms);
    l.itl_ms = malloc(MAX_SAMPLES * sizeof *l.itl_ms);
    if (!l.ttft_ms || !l.itl_ms)
        die("start", "no memory");
    for (uint32_t i = 0; i < l.n_streams; i++) {
        l.streams[i].index = i;
        open_stream(&l, &l.streams[i]);
    }
    int64_t start = clock_now_ns();
    run(&l);
    double seconds = (double)(clock_now_ns() - start) / 1e9;
    printf("{\"streams\": %u, \"answers\": %llu, \"prompt\": %u, \"tokens\": %llu, \"seconds\": %.3f, \"tokens_per_s\": %.2f, "
           "\"ttft_ms_p50\": %.1f, \"ttft_ms_p99\": %.1f, \"itl_ms_p50\": %.2f, \"itl_ms_p99\": %.2f}\n",
           l.n_streams, (unsigned long long)l.n_answers, l.n_prompt, (unsigned long long)l.total_tokens, seconds,
           (double)l.total_tokens / seconds, percentile(l.ttft_ms, l.n_ttft, 0.5), percentile(l.ttft_ms, l.n_ttft, 0.99),
           percentile(l.itl_ms, l.n_itl, 0.5), percentile(l.itl_ms, l.n_itl, 0.99));
    for (uint32_t i = 0; i < l.n_streams; i++) {
        buf_fini(&l.streams[i].in);
        buf_fini(&l.streams[i].sse);
    }
    free(l.ttft_ms);
    free(l.itl_ms);
    return 0;
}
