/* tests/fuzz/fuzz_request_head.c - a request before its body: what is decided by path, method and headers, and the answer to what is refused. The
 * first byte says how the gateway stands (`enum stand`), then lines: method and URL, then headers. libmicrohttpd has cut the bytes of a
 * request into these already: its two questions are answered here (--wrap). */
#include <arpa/inet.h>
#include <ctype.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/request_head.h"
#include "rpc/gateway/routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *conn, enum MHD_ValueKind kind, const char *name);
const union MHD_ConnectionInfo *__wrap_MHD_get_connection_info(struct MHD_Connection *conn, enum MHD_ConnectionInfoType what, ...);

enum { MAX_HEADERS = 32, BODY_MAX = 4096 };
enum stand { STAND_KEYS = 1, STAND_DRAINING = 2, STAND_IPV6 = 4 };

/* What stands for struct MHD_Connection. */
struct connection {
    struct {
        const char *name, *value;
    } headers[MAX_HEADERS];
    int n_headers;
    struct sockaddr_storage peer;
    union MHD_ConnectionInfo info;
};

const char *__wrap_MHD_lookup_connection_value(struct MHD_Connection *conn, enum MHD_ValueKind kind, const char *name)
{
    const struct connection *c = (const void *)conn;
    CHECK(kind == MHD_HEADER_KIND);
    for (int i = 0; i < c->n_headers; i++)
        if (strcasecmp(c->headers[i].name, name) == 0)
            return c->headers[i].value;
    return NULL;
}

const union MHD_ConnectionInfo *__wrap_MHD_get_connection_info(struct MHD_Connection *conn, enum MHD_ConnectionInfoType what, ...)
{
    struct connection *c = (void *)conn;
    if (what == MHD_CONNECTION_INFO_CONNECTION_FD)
        c->info.connect_fd = -1;
    else
        c->info.client_addr = (struct sockaddr *)&c->peer;
    return &c->info;
}

static const char *given(struct connection *c, const char *name)
{
    return __wrap_MHD_lookup_connection_value((void *)c, MHD_HEADER_KIND, name);
}

/* --- what is known without asking the gateway --------------------------------------------------------------------------- */

static const char *const keys[][2] = {{"alice", "sk-alice"}, {"bob", "k"}};

static struct auth *make_auth(int with_keys)
{
    struct auth *a;
    struct error err;
    char path[64], line[256];
    int fd = memfd_create("keys", 0);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        unsigned char hash[EVP_MAX_MD_SIZE];
        unsigned n;
        EVP_Digest(keys[i][1], strlen(keys[i][1]), hash, &n, EVP_sha256(), NULL);
        int len = snprintf(line, sizeof line, "%s sha256:", keys[i][0]);
        for (unsigned k = 0; k < n; k++)
            len += snprintf(line + len, sizeof line - (size_t)len, "%02x", hash[k]);
        CHECK(write(fd, line, (size_t)len) == len && write(fd, "\n", 1) == 1);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(auth_create(with_keys ? path : NULL, &a, &err) == STATUS_OK);
    return a;
}

/* The key that a client shows: behind "Bearer ", or all of x-api-key. NULL: none. */
static const char *shown_key(struct connection *c)
{
    const char *a = given(c, "authorization"), *k = given(c, "x-api-key");
    if (a && strncasecmp(a, "bearer ", 7) != 0)
        return NULL;
    const char *key = a ? a + 7 : k && strlen(k) + strlen("Bearer ") < 4096 ? k : "";
    key += strspn(key, " ");
    return *key ? key : NULL;
}

static int is_known(const char *key)
{
    for (size_t i = 0; key && i < ARRAY_LEN(keys); i++)
        if (strcmp(key, keys[i][1]) == 0)
            return 1;
    return 0;
}

static int is_hex(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

/* --- what comes out ------------------------------------------------------------------------------------------------------ */

/* A header of the answer is one line. */
static void check_header(void *ctx, const char *name, const char *value)
{
    (void)ctx;
    CHECK(name[0] && value[0]);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        CHECK(*p >= 0x20 && *p < 0x7f);
}

static void check_id(const struct exchange *x, const char *asked)
{
    CHECK(request_id_is_sane(x->request_id));
    CHECK(!x->named_by_client == !(asked && request_id_is_sane(asked)));
    if (x->named_by_client)
        CHECK(strcmp(x->request_id, asked) == 0);
    else
        CHECK(strncmp(x->request_id, "req-", 4) == 0 && is_hex(x->request_id + 4, 24));
}

static void check_accepted(struct connection *c, const struct exchange *x, const struct request_head *head, const char *method, int stand)
{
    const struct route *r = x->route;
    const char *type = given(c, "content-type");
    CHECK(r && r->start && (strcmp(r->method, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0)));
    CHECK(!x->allow == (strcmp(method, "OPTIONS") != 0));
    if (r->flags & ROUTE_OPEN)
        return;
    CHECK(!(stand & STAND_KEYS) || is_known(shown_key(c)));
    CHECK(!(r->flags & ROUTE_GENERATES) || !(stand & STAND_DRAINING));
    CHECK(!(r->flags & ROUTE_BODY) || ((!type || strcasestr(type, "json")) && (head->content_length <= BODY_MAX || head->content_length == UINT64_MAX)));
    if (shown_key(c))
        CHECK(is_hex(x->client, 32)); /* never the key itself */
    else
        CHECK(strcmp(x->client, stand & STAND_IPV6 ? "::1" : "127.0.0.1") == 0);
}

static void check_refused(struct connection *c, struct exchange *x, enum status s, const struct error *err, int stand)
{
    CHECK(s == err->status && err->message[0]);
    switch (s) {
    case STATUS_UNAUTHENTICATED:
        CHECK(stand & STAND_KEYS && !is_known(shown_key(c)));
        break;
    case STATUS_DRAINING:
        CHECK(stand & STAND_DRAINING);
        break;
    case STATUS_METHOD:
        CHECK(x->allow);
        break;
    default:
        CHECK(s == STATUS_NOT_FOUND || s == STATUS_BODY_TOO_LARGE || s == STATUS_BODY_TYPE);
    }
    pthread_mutex_lock(&x->lock);
    exchange_reply_error(x, err);
    pthread_mutex_unlock(&x->lock);
    json_t *body = json_loadb(x->out.data, x->out.len, JSON_REJECT_DUPLICATES, NULL);
    CHECK(json_string_length(json_object_get(json_object_get(body, "error"), "message")) > 0);
    json_decref(body);
    exchange_headers(x, check_header, NULL);
}

/* --- what goes in -------------------------------------------------------------------------------------------------------- */

/* Cuts text at the next end, which becomes 0; returns what is behind it. */
static char *cut(char *text, char end)
{
    char *at = strchr(text, end);
    if (!at)
        return text + strlen(text);
    *at = 0;
    return at + 1;
}

static void take_headers(struct connection *c, char *lines)
{
    while (*lines && c->n_headers < MAX_HEADERS) {
        char *line = lines, *value;
        lines = cut(line, '\n');
        value = cut(line, ':');
        value += strspn(value, " \t");
        c->headers[c->n_headers].name = line;
        c->headers[c->n_headers++].value = value;
    }
}

static void take_peer(struct connection *c, int stand)
{
    struct sockaddr_in *v4 = (void *)&c->peer;
    struct sockaddr_in6 *v6 = (void *)&c->peer;
    if (stand & STAND_IPV6)
        *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    else
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct auth *auths[2];
    static char text[8192];
    if (!auths[0]) {
        auths[0] = make_auth(0);
        auths[1] = make_auth(1);
    }
    if (size < 1 || size >= sizeof text)
        return 0;
    const int stand = data[0];
    struct gateway gw = {.auth = auths[(stand & STAND_KEYS) != 0], .draining = (stand & STAND_DRAINING) != 0};
    struct connection c = {0};
    struct request_head head;
    struct error err = {0};
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    char *url, *headers = cut(text, '\n');
    url = cut(text, ' ');
    take_headers(&c, headers);
    take_peer(&c, stand);
    struct exchange *x = exchange_create(&gw, (void *)&c);
    CHECK(x);
    enum status s = request_head_read(x, url, text, BODY_MAX, &head, &err);
    check_id(x, given(&c, "x-request-id"));
    if (s == STATUS_OK)
        check_accepted(&c, x, &head, text, stand);
    else
        check_refused(&c, x, s, &err, stand);
    request_head_expects_continue((void *)&c);
    exchange_release(x);
    CHECK(atomic_load(&gw.n_exchanges) == 0);
    return 0;
}
