/* rpc/gateway/routes.h - paths and what serves them.
 *
 * Purpose    The one table of paths, methods and aliases.
 * Ownership  Static.
 * Threading  route_find is pure. start is called without the exchange's lock, on the server's thread or the parser's; it
 *            replies, or sets x->ops and holds a reference until it has.
 * Errors     STATUS_NOT_FOUND; STATUS_METHOD with the list for the Allow header.
 */
#ifndef SLUICE_RPC_GATEWAY_ROUTES_H
#define SLUICE_RPC_GATEWAY_ROUTES_H

#include "common/base/error.h"
#include "rpc/gateway/request.h"

struct exchange;

enum {
    ROUTE_BODY = 1,      /* takes JSON */
    ROUTE_OPEN = 2,      /* no key asked for: load balancers and preflights have none */
    ROUTE_GENERATES = 4, /* refused while draining */
    ROUTE_PREFIX = 8,    /* path is followed by something, see x->path_rest */
};

struct route {
    const char *path;
    const char *method;
    unsigned flags;
    void (*start)(struct exchange *x);
    enum endpoint endpoint;
};

/* HEAD is served as GET. rest points into url. */
enum status route_find(const char *url, const char *method, const struct route **out, const char **rest, const char **allow,
                       struct error *err);

#endif
