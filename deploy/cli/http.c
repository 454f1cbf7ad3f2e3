#include "deploy/cli/http.h"

#include <stdlib.h>
#include <string.h>

volatile sig_atomic_t http_interrupted;

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)arg, (void)a, (void)b, (void)c, (void)d;
    return http_interrupted != 0;
}

/* The transfer is the caller's to end, after a failure too. */
static enum status perform(struct transfer *t, const struct http *h, const char *path, const char *body,
                           void (*on_event)(void *ctx, const struct stream_event *e), void *ctx, struct error *err)
{
    CURL *c = curl_easy_init();
    enum status s = transfer_init(t, c, h, path, body, body ? strlen(body) : 0, on_event, ctx);
    if (!c || s != STATUS_OK) {
        curl_easy_cleanup(c);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    }
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    s = transfer_finish(t, c, curl_easy_perform(c), err);
    curl_easy_cleanup(c);
    return s;
}

enum status http_get(const struct http *h, const char *path, json_t **out, struct error *err)
{
    struct transfer t;
    enum status s = perform(&t, h, path, NULL, NULL, NULL, err);
    if (s == STATUS_OK) {
        json_t *body = json_loadb(t.body.data ? t.body.data : "", t.body.len, 0, NULL);
        if (body)
            *out = body;
        else
            s = error_set(err, STATUS_PROTOCOL, "%s did not answer with JSON", t.url);
    }
    transfer_fini(&t);
    return s;
}

enum status http_post_stream(const struct http *h, const char *path, const json_t *body,
                             void (*on_event)(void *ctx, const struct stream_event *e), void *ctx, struct error *err)
{
    struct transfer t;
    char *text = json_dumps(body, JSON_COMPACT);
    if (!text)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    enum status s = perform(&t, h, path, text, on_event, ctx, err);
    transfer_fini(&t);
    free(text);
    return s;
}
