/* deploy/cli/http.h - HTTP for the commands of `sluice`, over libcurl.
 *
 * Purpose    GET and POST of JSON against a running service, with server-sent events given one by one.
 * Ownership  Response bodies are the caller's bufs.
 * Threading  One thread; blocks.
 * Errors     STATUS_IO (no connection: says where it tried), or the status of the service's own error object, whose message,
 *            code and Retry-After come through.
 */
#ifndef SLUICE_DEPLOY_CLI_HTTP_H
#define SLUICE_DEPLOY_CLI_HTTP_H

#include <jansson.h>
#include <signal.h>

#include "common/base/buf.h"
#include "common/base/error.h"

struct http {
    const char *url; /* "http://127.0.0.1:8080" */
    const char *key; /* API key, or NULL */
};

/* Set by the caller's SIGINT handler: the transfer under way ends with STATUS_CANCELLED. */
extern volatile sig_atomic_t http_interrupted;

enum status http_get(const struct http *h, const char *path, json_t **out, struct error *err);
/* Calls on_event with each event's JSON; [DONE] is not given. */
enum status http_post_stream(const struct http *h, const char *path, const json_t *body,
                             void (*on_event)(void *ctx, const json_t *event), void *ctx, struct error *err);

#endif
