/* deploy/cli/bench_http.h - thousands of streamed answers at the same time.
 *
 * Purpose    POSTs on one thread over libcurl's multi interface and epoll; each answer's events and end are given to the caller as
 *            they are read. Connections are kept and used again.
 * Ownership  bench_http_create/destroy. A body given to bench_http_post is freed by it, after a failure too. A call ends with
 *            on_end; its pointer is dead afterwards.
 * Threading  One thread. on_end may post; on_event may call nothing here.
 * Errors     CONFIG (more calls than file descriptors), OUT_OF_MEMORY; what befalls a call is told in its end.
 */
#ifndef SLUICE_DEPLOY_CLI_BENCH_HTTP_H
#define SLUICE_DEPLOY_CLI_BENCH_HTTP_H

#include "deploy/cli/transfer.h"

struct bench_http;
struct bench_call;

struct bench_end {
    enum status status;
    int is_refused;    /* 503 or 429 that says when to come again */
    int retry_after_s; /* of a refused call */
    char kind[32];     /* for counting: "503", "connect", "timeout", "broken", "event" (an error inside the stream) */
    const char *message;
    int64_t at_ns;
};

struct bench_hooks {
    void (*on_event)(void *ctx, const struct stream_event *e);
    void (*on_end)(void *ctx, const struct bench_end *end);
};

/* timeout_s: of one request, its stream included. Raises the process's limit of file descriptors to what is allowed. */
enum status bench_http_create(const struct http *h, const char *path, double timeout_s, const struct bench_hooks *hooks,
                              struct bench_http **out, struct error *err);
/* Calls that run are dropped without on_end. */
void bench_http_destroy(struct bench_http *b);
enum status bench_http_post(struct bench_http *b, char *body, size_t len, void *ctx, struct bench_call **out);
/* Waits until something happened, but not beyond until_ns, and gives what happened to the hooks. Signals end the wait. */
void bench_http_wait(struct bench_http *b, int64_t until_ns);
uint32_t bench_http_open(const struct bench_http *b); /* calls that run */
/* How many calls the file descriptors allow. */
uint32_t bench_http_most(const struct bench_http *b);

#endif
