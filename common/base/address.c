#include "common/base/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits alone: strtol would take a sign and white space too. -1: no port. */
static long read_port(const char *text)
{
    if (!*text || text[strspn(text, "0123456789")])
        return -1;
    const long port = strtol(text, NULL, 10);
    return port <= 65535 ? port : -1;
}

enum status address_parse(const char *text, int default_port, const char *flag, struct address *out, struct error *err)
{
    const int bracketed = text[0] == '[';
    const char *host = text + bracketed, *end = host + strcspn(host, bracketed ? "]" : ":");
    const char *rest = end + (bracketed && *end); /* ":PORT" or nothing */
    const size_t host_len = (size_t)(end - host);
    if (bracketed && *end != ']')
        return error_set(err, STATUS_CONFIG, "--%s: '%.80s' is no HOST:PORT", flag, text);
    if (!bracketed && *rest && strchr(rest + 1, ':'))
        return error_set(err, STATUS_CONFIG, "--%s: '%.80s' is no HOST:PORT (an IPv6 address is written in [])", flag, text);
    const long port = *rest == ':' ? read_port(rest + 1) : *rest ? -1 : default_port;
    struct address a = {0};
    if (host_len == 0 || host_len >= sizeof a.host || port < 0)
        return error_set(err, STATUS_CONFIG, "--%s: '%.80s' is no HOST:PORT (port 0 to 65535)", flag, text);
    memcpy(a.host, host, host_len);
    a.port = (uint16_t)port;
    *out = a;
    return STATUS_OK;
}

void address_print(const struct address *a, char out[ADDRESS_TEXT])
{
    snprintf(out, ADDRESS_TEXT, strchr(a->host, ':') ? "[%s]:%u" : "%s:%u", a->host, a->port);
}

enum status address_resolve(const struct address *a, struct sockaddr_storage *out, socklen_t *len, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", a->port);
    int rc = getaddrinfo(a->host, port, &hints, &found);
    if (rc != 0)
        return error_set(err, STATUS_CONFIG, "host '%.200s' cannot be resolved: %s", a->host, gai_strerror(rc));
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return STATUS_OK;
}

int address_is_loopback(const struct address *a)
{
    struct in_addr v4; /* as resolving reads it; a name may well begin with "127." */
    if (inet_aton(a->host, &v4))
        return ntohl(v4.s_addr) >> 24 == 127;
    return strcmp(a->host, "localhost") == 0 || strcmp(a->host, "::1") == 0;
}
