/* tests/fuzz/fuzz_http_answer.c - a server's answer as the commands of `sluice` read it: libcurl's pieces of it, its headers, its error object or
 * its events, then the tables that are printed from it. The first byte says what was asked for, the rest is what comes on the connection.
 * The size of libcurl's buffer must change nothing of a whole answer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/check.h"
#include "deploy/cli/said.h"
#include "deploy/cli/status.h"
#include "deploy/cli/transfer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 32 << 10, SMALL_BUFFER = 1024, LARGE_BUFFER = 64 << 10 };

struct connection {
    const uint8_t *bytes;
    size_t len;
    int listener, server; /* -1: not there */
};

/* What was understood of an answer. */
struct outcome {
    enum status status;
    struct error err;
    uint64_t n_events, n_tokens, text;
    int64_t n_used;
};

/* Where libcurl finds the server: a socket of the kernel's own choice of name. */
static int listener(char name[16])
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t len = sizeof a;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a.sun_family) == 0 && listen(fd, 4) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0 && len < sizeof a.sun_family + 16u);
    snprintf(name, 16, "%.*s", (int)(len - sizeof a.sun_family) - 1, a.sun_path + 1);
    return fd;
}

/* It is connected, and about to ask: the whole answer lies there already, and nothing follows. */
static int on_connection(void *arg, char *a, char *b, int c, int d)
{
    struct connection *conn = arg;
    (void)a, (void)b, (void)c, (void)d;
    conn->server = accept(conn->listener, NULL, NULL);
    CHECK(conn->server >= 0);
    CHECK(send(conn->server, conn->bytes, conn->len, MSG_NOSIGNAL) == (ssize_t)conn->len && shutdown(conn->server, SHUT_WR) == 0);
    return CURL_PREREQFUNC_OK;
}

static void take_event(void *ctx, const struct stream_event *e)
{
    struct outcome *o = ctx;
    CHECK(e->kind == EVENT_TOKEN || e->kind == EVENT_OTHER);
    CHECK(e->at_ns > 0 && json_is_object(e->json));
    CHECK(e->prompt_tokens >= 0 && e->completion_tokens >= 0 && e->cached_tokens >= 0);
    o->n_events++;
    o->n_tokens += e->n_tokens;
    o->n_used += e->completion_tokens;
    for (const char *p = e->text ? e->text : ""; *p; p++)
        o->text = o->text * 31 + (uint8_t)*p;
}

/* For a terminal: lines without control characters. */
static void check_table(const json_t *body)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    CHECK(f);
    status_print(body, f);
    fclose(f);
    CHECK(len > 0 && strlen(text) == len && text[len - 1] == '\n');
    char *plain = strdup(text);
    CHECK(plain);
    said_make_plain(plain);
    for (size_t i = 0; i < len; i++)
        CHECK(text[i] == plain[i] || text[i] == '\n');
    free(plain);
    free(text);
}

static void check_outcome(const struct transfer *t, const struct outcome *o, int wants_stream)
{
    if (o->status == STATUS_OK) {
        CHECK(t->http == 200 && t->is_stream == wants_stream && (!t->is_stream || (t->is_done && t->error.status == STATUS_OK)));
        return;
    }
    CHECK(o->err.status == o->status && o->err.message[0]);
    CHECK(o->status != STATUS_OUT_OF_MEMORY && o->status != STATUS_TIMEOUT && o->status != STATUS_CANCELLED);
    CHECK(o->err.retry_after_s >= 0 && o->err.retry_after_s <= 3600);
    CHECK(!o->err.retry_after_s || t->http != 200);
    char plain[sizeof o->err.message];
    snprintf(plain, sizeof plain, "%s", o->err.message);
    said_make_plain(plain);
    CHECK(strcmp(plain, o->err.message) == 0);
}

static void ask(const uint8_t *bytes, size_t len, int flags, long buffer, struct outcome *o)
{
    static const struct http to = {"http://127.0.0.1:1", NULL, NULL};
    static const char question[] = "{\"stream\":true}";
    const int wants_stream = flags & 1, posts = flags & 2;
    static char name[16];
    static int listening = -1;
    if (listening < 0)
        listening = listener(name);
    struct connection conn = {bytes, len, listening, -1};
    struct transfer t;
    CURL *c = curl_easy_init();
    *o = (struct outcome){0};
    CHECK(transfer_init(&t, c, &to, "/v1/x", posts ? question : NULL, posts ? sizeof question - 1 : 0, wants_stream ? take_event : NULL, o) ==
          STATUS_OK);
    curl_easy_setopt(c, CURLOPT_ABSTRACT_UNIX_SOCKET, name);
    curl_easy_setopt(c, CURLOPT_PREREQFUNCTION, on_connection);
    curl_easy_setopt(c, CURLOPT_PREREQDATA, &conn);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, buffer);
    curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 600L); /* a busy machine is no finding */
    o->status = transfer_finish(&t, c, curl_easy_perform(c), &o->err);
    check_outcome(&t, o, wants_stream);
    json_t *body = o->status == STATUS_OK && !wants_stream ? json_loadb(t.body.data ? t.body.data : "", t.body.len, 0, NULL) : NULL;
    if (body)
        check_table(body);
    json_decref(body);
    curl_easy_cleanup(c);
    transfer_fini(&t);
    if (conn.server >= 0)
        close(conn.server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int is_ready;
    struct outcome a, b;
    if (!is_ready)
        CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    is_ready = 1;
    if (size < 1 || size > MOST_BYTES)
        return 0;
    ask(data + 1, size - 1, data[0], LARGE_BUFFER, &a);
    ask(data + 1, size - 1, data[0], SMALL_BUFFER, &b);
    if (a.status != STATUS_OK || b.status != STATUS_OK) /* what libcurl finds broken, and when, goes by its pieces */
        return 0;
    CHECK(a.n_events == b.n_events && a.n_tokens == b.n_tokens && a.n_used == b.n_used && a.text == b.text);
    return 0;
}
