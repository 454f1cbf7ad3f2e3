#include "deploy/cli/transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"

enum { MAX_BODY_BYTES = 64 << 20, MAX_LINE_BYTES = 16 << 20, CONNECT_TIMEOUT_MS = 5000 };

struct reading {
    struct transfer *t;
    int64_t at_ns; /* one time for all events of one read */
};

static void take_data(void *ctx, const char *data, size_t len)
{
    struct reading *r = ctx;
    struct transfer *t = r->t;
    struct stream_event e;
    struct error err = {0};
    event_parse(data, len, &e, &err);
    e.at_ns = r->at_ns;
    if (e.kind == EVENT_DONE) {
        t->is_done = 1;
    } else if (e.kind == EVENT_ERROR || e.kind == EVENT_BAD) {
        if (t->error.status == STATUS_OK)
            t->error = err;
    } else {
        t->on_event(t->ctx, &e);
    }
    event_release(&e);
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    struct reading r = {t, 0};
    if (!t->is_stream)
        return buf_append(&t->body, bytes, size * n) == STATUS_OK ? size * n : 0;
    r.at_ns = clock_now_ns();
    return sse_feed(&t->sse, bytes, size * n, take_data, &r) == STATUS_OK ? size * n : 0;
}

static int header_is(const char *bytes, size_t len, const char *name)
{
    size_t n = strlen(name);
    return len > n && strncasecmp(bytes, name, n) == 0;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    size_t len = size * n;
    char value[16];
    if (header_is(bytes, len, "retry-after:")) {
        snprintf(value, sizeof value, "%.*s", (int)(len - 12), bytes + 12);
        long s = strtol(value, NULL, 10);
        t->retry_after_s = s < 0 ? 0 : s > 3600 ? 3600 : (int)s;
    }
    if (header_is(bytes, len, "content-type:"))
        t->is_stream = t->on_event && memmem(bytes, len, "text/event-stream", 17) != NULL;
    return len;
}

enum status transfer_init(struct transfer *t, CURL *c, const struct http *h, const char *path, const char *body, size_t body_len,
                          void (*on_event)(void *ctx, const struct stream_event *e), void *ctx)
{
    char auth[512];
    int url_len = (int)strlen(h->url);
    while (url_len && h->url[url_len - 1] == '/') /* as browsers give it; paths begin with one */
        url_len--;
    *t = (struct transfer){.on_event = on_event, .ctx = ctx, .retry_after_s = -1};
    buf_init(&t->body, MAX_BODY_BYTES);
    sse_init(&t->sse, MAX_LINE_BYTES);
    snprintf(t->url, sizeof t->url, "%.*s%s", url_len, h->url, path);
    t->headers = curl_slist_append(t->headers, "Content-Type: application/json");
    t->headers = curl_slist_append(t->headers, "Expect:"); /* a long prompt does not wait for a 100 */
    if (h->key) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", h->key);
        t->headers = curl_slist_append(t->headers, auth);
    }
    if (!t->headers)
        return STATUS_OUT_OF_MEMORY;
    curl_easy_setopt(c, CURLOPT_URL, t->url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    if (h->ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, h->ca);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    if (body) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_len);
    }
    return STATUS_OK;
}

void transfer_fini(struct transfer *t)
{
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    buf_fini(&t->body);
    sse_fini(&t->sse);
}

static enum status answer_error(struct transfer *t, struct error *err)
{
    json_t *body = json_loadb(t->body.data ? t->body.data : "", t->body.len, 0, NULL);
    enum status s = event_take_error(body, t->http, err);
    json_decref(body);
    if (s == STATUS_OK)
        s = error_set(err, t->http == 503 ? STATUS_PIPELINE : STATUS_PROTOCOL, "the server answered HTTP %ld", t->http);
    if (err)
        err->retry_after_s = t->retry_after_s > 0 ? t->retry_after_s : 0;
    return s;
}

enum status transfer_finish(struct transfer *t, CURL *c, CURLcode rc, struct error *err)
{
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &t->http);
    if (t->error.status != STATUS_OK) { /* an error event, whatever the connection did after it */
        if (err)
            *err = t->error;
        return t->error.status;
    }
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return error_set(err, STATUS_CANCELLED, "interrupted");
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return error_set(err, STATUS_TIMEOUT, "%s: %s", t->url, t->why[0] ? t->why : curl_easy_strerror(rc));
    if (rc != CURLE_OK)
        return error_set(err, STATUS_IO, "%s: %s", t->url, t->why[0] ? t->why : curl_easy_strerror(rc));
    if (t->http != 200)
        return answer_error(t, err);
    if (t->on_event && !t->is_stream)
        return error_set(err, STATUS_PROTOCOL, "%s did not answer with a stream of events", t->url);
    if (t->is_stream && !t->is_done)
        return error_set(err, STATUS_IO, "the stream broke off");
    return STATUS_OK;
}
