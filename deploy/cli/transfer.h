/* deploy/cli/transfer.h - one HTTP answer while it is read.
 *
 * Purpose    What a libcurl handle needs to ask an OpenAI-style server and to understand its answer: a JSON body, an error with its
 *            Retry-After, or a stream of events. Both ways of driving libcurl (http.h one at a time, bench_http.h thousands) use it.
 * Ownership  transfer_init/transfer_fini in place; it must not move while the handle is in use. The request body is the caller's,
 *            until the transfer ends.
 * Threading  One thread at a time.
 * Errors     transfer_finish: IO (no connection, broke off; says where), TIMEOUT, CANCELLED, PROTOCOL (not what was expected), or
 *            the status of the server's own error object, whose message, code and Retry-After come through.
 */
#ifndef SLUICE_DEPLOY_CLI_TRANSFER_H
#define SLUICE_DEPLOY_CLI_TRANSFER_H

#include <curl/curl.h>

#include "deploy/cli/event.h"
#include "deploy/cli/sse.h"

struct http {
    const char *url; /* "http://127.0.0.1:8080" */
    const char *key; /* API key, or NULL */
    const char *ca;  /* PEM file of the CA of an https URL; NULL: the system's */
};

struct transfer {
    struct buf body; /* of an answer that is no stream */
    struct sse sse;
    void (*on_event)(void *ctx, const struct stream_event *e); /* NULL: no stream is expected */
    void *ctx;
    int is_stream, is_done;
    long http;
    int retry_after_s; /* -1: the server did not say */
    struct error error; /* of an event; status OK: none */
    char why[CURL_ERROR_SIZE], url[1024];
    struct curl_slist *headers;
};

/* on_event is given every event but [DONE] and errors, in order, with the time at which its bytes were read. */
enum status transfer_init(struct transfer *t, CURL *c, const struct http *h, const char *path, const char *body, size_t body_len,
                          void (*on_event)(void *ctx, const struct stream_event *e), void *ctx);
void transfer_fini(struct transfer *t);
/* The handle's transfer ended with rc: was it good? Then a stream was whole, or body is JSON text. */
enum status transfer_finish(struct transfer *t, CURL *c, CURLcode rc, struct error *err);

#endif
