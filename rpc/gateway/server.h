/* rpc/gateway/server.h - libmicrohttpd, and what it does not do.
 *
 * Purpose    Listens, reads requests into exchanges, applies what holds for every path (route, method, key, size, type,
 *            drain), starts the route and hands its reply out. A second thread watches the connections for clients that
 *            leave or stop reading, and gives every exchange its tick; a third parses large bodies and writes large answers, so
 *            that health checks and streams never wait behind one.
 * Ownership  server_create/server_destroy. The listening socket passes to the server; the holder gets a duplicate.
 * Threading  server_create and server_destroy from the main thread; the rest from any thread. The lock guards the list of
 *            exchanges; an exchange's own lock is taken after it or without it, never before.
 * Errors     STATUS_ADDRESS_IN_USE, STATUS_CONFIG, STATUS_OUT_OF_MEMORY at start.
 */
#ifndef SLUICE_RPC_GATEWAY_SERVER_H
#define SLUICE_RPC_GATEWAY_SERVER_H

#include <stdint.h>

#include "common/base/error.h"

struct gateway;
struct exchange;
struct server;

/* listener: a socket that listens there already, which passes to the server; or -1. */
enum status server_create(struct gateway *gw, const char *host_port, int listener, struct server **out, struct error *err);
/* HOST:PORT it listens on, the real port where 0 was asked for. */
const char *server_address(const struct server *s);
/* Requests that are not answered to the end. */
uint32_t server_open_requests(struct server *s);
/* Ends what is open with `why`, waits until it is told (at most a second), stops. */
void server_destroy(struct server *s, const struct error *why);

/* Reports when the client of x leaves; x->lock is held. */
void server_watch(struct server *s, struct exchange *x);
void server_unwatch(struct server *s, struct exchange *x);

/* (locked) The thread that reads large bodies goes on with it, without the lock: starts it or, if it is started, calls x->ops->build.
 * STATUS_FULL: it does not. */
enum status server_hand_over(struct server *s, struct exchange *x);

/* An exchange whose connection another process began: listed, watched, ticked; and forgotten, with the list's reference. first: its
 * ticks come before those of the others, so it asks the coordinator for a slot before them. */
void server_adopt(struct server *s, struct exchange *x, int first);
void server_forget(struct server *s, struct exchange *x);
/* A connection on which the next request may come; it is closed when that fails. */
void server_take_connection(struct server *s, int fd);

#endif
