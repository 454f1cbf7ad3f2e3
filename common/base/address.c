#include "common/base/address.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status address_parse(const char *text, int default_port, const char *flag, struct address *out, struct error *err)
{
    const char *colon = strrchr(text, ':'), *host = text;
    size_t host_len = colon ? (size_t)(colon - text) : strlen(text);
    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (!close)
            return error_set(err, STATUS_CONFIG, "--%s: '%.80s' is no HOST:PORT", flag, text);
        host = text + 1;
        host_len = (size_t)(close - host);
        colon = close[1] == ':' ? close + 1 : NULL;
    }
    struct address a = {0};
    long port = default_port;
    if (colon) {
        char *end;
        port = strtol(colon + 1, &end, 10);
        if (!colon[1] || *end)
            port = -1;
    }
    if (host_len == 0 || host_len >= sizeof a.host || port < 0 || port > 65535)
        return error_set(err, STATUS_CONFIG, "--%s: '%.80s' is no HOST:PORT (port 0 to 65535)", flag, text);
    memcpy(a.host, host, host_len);
    a.port = (uint16_t)port;
    *out = a;
    return STATUS_OK;
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
    return strncmp(a->host, "127.", 4) == 0 || strcmp(a->host, "localhost") == 0 || strcmp(a->host, "::1") == 0;
}
