#include "rpc/gateway/request_head.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "common/base/clock.h"
#include "common/base/rand.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/routes.h"

static const char *header(struct MHD_Connection *conn, const char *name)
{
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, name);
}

int request_id_is_sane(const char *text)
{
    size_t n = 0;
    for (; text[n]; n++)
        if (n == 128 || !(isalnum((unsigned char)text[n]) || strchr("._:-", text[n])))
            return 0;
    return n > 0;
}

const char *request_id_make(uint64_t serial, char out[REQUEST_ID_BYTES])
{
    uint64_t word[2];
    if (getrandom(word, sizeof word, GRND_NONBLOCK) != (ssize_t)sizeof word) {
        word[0] = rand_mix((uint64_t)clock_now_ns());
        word[1] = rand_mix(serial);
    }
    snprintf(out, REQUEST_ID_BYTES, "req-%016llx%08x", (unsigned long long)word[0], (unsigned)word[1]);
    return out;
}

static void take_request_id(struct exchange *x)
{
    const char *given = header(x->conn, "x-request-id");
    if (given && request_id_is_sane(given)) {
        snprintf(x->request_id, sizeof x->request_id, "%s", given);
        x->named_by_client = 1;
        return;
    }
    request_id_make(x->serial, x->request_id);
}

static void peer_address(struct MHD_Connection *conn, char out[INET6_ADDRSTRLEN])
{
    const struct sockaddr *sa = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    snprintf(out, INET6_ADDRSTRLEN, "unknown");
    if (sa->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, out, INET6_ADDRSTRLEN);
    else if (sa->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, out, INET6_ADDRSTRLEN);
}

static enum status check_key(struct exchange *x, struct error *err)
{
    char peer[INET6_ADDRSTRLEN], value[4096];
    const char *authorization = header(x->conn, "Authorization"), *key = header(x->conn, "x-api-key");
    peer_address(x->conn, peer);
    if (!authorization && key && snprintf(value, sizeof value, "Bearer %s", key) < (int)sizeof value)
        authorization = value; /* as Anthropic's clients send it */
    return auth_check(x->gw->auth, authorization, peer, x->client, err);
}

static uint64_t content_length(struct MHD_Connection *conn)
{
    const char *text = header(conn, "Content-Length");
    if (!text)
        return header(conn, "Transfer-Encoding") ? UINT64_MAX : 0;
    errno = 0;
    unsigned long long n = strtoull(text, NULL, 10);
    return errno ? UINT64_MAX - 1 : n;
}

/* Absent is taken for JSON; what is named must be it. */
static int is_json(const char *type)
{
    if (!type)
        return 1;
    size_t n = strcspn(type, "; \t");
    return (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
           (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

static enum status check_body(const struct exchange *x, uint64_t length, size_t body_max, struct error *err)
{
    const char *type = header(x->conn, "Content-Type");
    if (length != UINT64_MAX && length > body_max)
        return error_set(err, STATUS_BODY_TOO_LARGE, "the body has %llu bytes; the limit is %zu",
                         (unsigned long long)length, body_max);
    if (!is_json(type))
        return error_set(err, STATUS_BODY_TYPE, "the body is %.80s; application/json is expected", type);
    return STATUS_OK;
}

int request_head_expects_continue(struct MHD_Connection *conn)
{
    const char *expect = header(conn, "Expect");
    return expect && strncasecmp(expect, "100-continue", 12) == 0;
}

enum status request_head_read(struct exchange *x, const char *url, const char *method, size_t body_max,
                              struct request_head *out, struct error *err)
{
    out->content_length = content_length(x->conn);
    take_request_id(x);
    TRY(route_find(url, method, &x->route, &x->path_rest, &x->allow, err));
    if (x->route->flags & ROUTE_OPEN)
        return STATUS_OK;
    TRY(check_key(x, err));
    if (x->route->flags & ROUTE_BODY)
        TRY(check_body(x, out->content_length, body_max, err));
    if ((x->route->flags & ROUTE_GENERATES) && atomic_load(&x->gw->draining))
        return error_param(err, STATUS_DRAINING, NULL, "draining", "this gateway is ending; try again");
    return STATUS_OK;
}
