/* deploy/cli/http.h - HTTP for the commands of `sluice` that do one thing at a time, over libcurl.
 *
 * Purpose    GET and POST of JSON against a running service, with the events of a stream given one by one.
 * Ownership  Bodies returned are the caller's.
 * Threading  One thread; blocks.
 * Errors     As transfer.h.
 */
#ifndef SLUICE_DEPLOY_CLI_HTTP_H
#define SLUICE_DEPLOY_CLI_HTTP_H

#include <jansson.h>
#include <signal.h>

#include "deploy/cli/transfer.h"

/* Set by the caller's SIGINT handler: the transfer under way ends with STATUS_CANCELLED. */
extern volatile sig_atomic_t http_interrupted;

enum status http_get(const struct http *h, const char *path, json_t **out, struct error *err);
/* Calls on_event with each event but [DONE] and errors. */
enum status http_post_stream(const struct http *h, const char *path, const json_t *body,
                             void (*on_event)(void *ctx, const struct stream_event *e), void *ctx, struct error *err);

#endif
