#include "deploy/cli/http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BODY_BYTES = 64 << 20 };

volatile sig_atomic_t http_interrupted;

struct transfer {
    struct buf data; /* the body, or the part of an event stream that is not cut into events yet */
    void (*on_event)(void *ctx, const json_t *event);
    void *ctx;
    int is_stream, done;
    long retry_after_s;
    struct error stream_error;
};

/* The service's {"error": {...}}. Returns its status, STATUS_OK if it is none. */
static enum status take_error(const json_t *body, long http, long retry_after_s, struct error *err)
{
    const json_t *e = json_object_get(body, "error");
    const char *message = json_string_value(json_object_get(e, "message")), *code = json_string_value(json_object_get(e, "code"));
    if (!json_is_object(e))
        return STATUS_OK;
    enum status s = http == 401 ? STATUS_UNAUTHENTICATED : http == 404 ? STATUS_NOT_FOUND
                    : http == 429                               ? STATUS_CLIENT_LIMIT
                    : json_is_true(json_object_get(e, "retryable")) ? STATUS_PIPELINE
                                                                    : STATUS_BAD_REQUEST;
    error_param(err, s, json_string_value(json_object_get(e, "param")), code, "%s", message ? message : "no reason was given");
    if (err)
        err->retry_after_s = (int)retry_after_s;
    return s;
}

static void take_event(struct transfer *t, char *line)
{
    if (strncmp(line, "data:", 5) != 0)
        return; /* a comment or an empty line */
    line += 5;
    while (*line == ' ')
        line++;
    if (strcmp(line, "[DONE]") == 0) {
        t->done = 1;
        return;
    }
    json_t *event = json_loads(line, 0, NULL);
    if (!event)
        return;
    if (take_error(event, 0, 0, &t->stream_error) == STATUS_OK)
        t->on_event(t->ctx, event);
    json_decref(event);
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    if (buf_append(&t->data, bytes, size * n) != STATUS_OK)
        return 0;
    char *end;
    while (t->is_stream && (end = memchr(t->data.data, '\n', t->data.len))) {
        size_t used = (size_t)(end - t->data.data) + 1;
        *end = 0;
        if (end > t->data.data && end[-1] == '\r')
            end[-1] = 0;
        take_event(t, t->data.data);
        buf_consume(&t->data, used);
    }
    return size * n;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    size_t len = size * n;
    if (len > 12 && strncasecmp(bytes, "retry-after:", 12) == 0)
        t->retry_after_s = strtol(bytes + 12, NULL, 10);
    if (len > 13 && strncasecmp(bytes, "content-type:", 13) == 0)
        t->is_stream = t->on_event && memmem(bytes, len, "text/event-stream", 17) != NULL;
    return len;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)arg, (void)a, (void)b, (void)c, (void)d;
    return http_interrupted != 0;
}

static enum status perform(const struct http *h, const char *path, const char *body, struct transfer *t, long *code,
                           struct error *err)
{
    char url[1024], auth[512], why[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    CURL *c = curl_easy_init();
    snprintf(url, sizeof url, "%s%s", h->url, path);
    if (h->key) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", h->key);
        headers = curl_slist_append(headers, auth);
    }
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, 5000L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    if (body)
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, code);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return error_set(err, STATUS_CANCELLED, "interrupted");
    if (rc != CURLE_OK)
        return error_set(err, STATUS_IO, "%s: %s", url, why[0] ? why : curl_easy_strerror(rc));
    return STATUS_OK;
}

static enum status answer_error(struct transfer *t, long code, struct error *err)
{
    json_t *body = json_loadb(t->data.data ? t->data.data : "", t->data.len, 0, NULL);
    enum status s = take_error(body, code, t->retry_after_s, err);
    json_decref(body);
    return s != STATUS_OK ? s : error_set(err, STATUS_IO, "the service answered HTTP %ld", code);
}

enum status http_get(const struct http *h, const char *path, json_t **out, struct error *err)
{
    struct transfer t = {0};
    long code = 0;
    buf_init(&t.data, MAX_BODY_BYTES);
    enum status s = perform(h, path, NULL, &t, &code, err);
    if (s == STATUS_OK && code != 200)
        s = answer_error(&t, code, err);
    if (s == STATUS_OK) {
        json_t *body = json_loadb(t.data.data ? t.data.data : "", t.data.len, 0, NULL);
        if (body)
            *out = body;
        else
            s = error_set(err, STATUS_IO, "%s%s did not answer with JSON", h->url, path);
    }
    buf_fini(&t.data);
    return s;
}

enum status http_post_stream(const struct http *h, const char *path, const json_t *body,
                             void (*on_event)(void *ctx, const json_t *event), void *ctx, struct error *err)
{
    struct transfer t = {.on_event = on_event, .ctx = ctx};
    long code = 0;
    char *text = json_dumps(body, JSON_COMPACT);
    if (!text)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    buf_init(&t.data, MAX_BODY_BYTES);
    enum status s = perform(h, path, text, &t, &code, err);
    if (s == STATUS_OK && code != 200)
        s = answer_error(&t, code, err);
    if (s == STATUS_OK && t.stream_error.status != STATUS_OK) {
        s = t.stream_error.status;
        if (err)
            *err = t.stream_error;
    }
    if (s == STATUS_OK && t.is_stream && !t.done)
        s = error_set(err, STATUS_IO, "the stream broke off");
    free(text);
    buf_fini(&t.data);
    return s;
}
