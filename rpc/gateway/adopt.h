/* rpc/gateway/adopt.h - connections and answers of a gateway before this one.
 *
 * Purpose    Takes the connections that the holder kept. Those that waited for a request, of which nothing was read, are libmicrohttpd's
 *            at once. Those with a journal become exchanges that go on where the client's connection stands, to the byte; a thread
 *            of this module writes what they bring to the socket, and a connection whose answer is complete is libmicrohttpd's
 *            again. Who makes the answer (completion.c) does not know that it is adopted, and the journal is continued: the next
 *            gateway can do the same.
 * Ownership  adopt_create/adopt_destroy. Descriptors pass to it; exchanges are the server's list's, which forgets them when they are
 *            done.
 * Threading  adopt_wake from any thread, with or without an exchange's lock. Its thread takes exchanges' locks one at a time.
 * Invariants 1. What is to be sent and not taken by the kernel is one frame and one head at most.
 *            2. A frame is asked for only when the one before it is with the kernel (keeper.h).
 * Errors     A connection whose journal does not fit is closed, with one line in the log.
 *
 *              HEAD --a reply is there--> BODY --all is sent--> libmicrohttpd, or closed after the client has read it
 *                \---------------------------\--client left, journal broken--> closed
 */
#ifndef SLUICE_RPC_GATEWAY_ADOPT_H
#define SLUICE_RPC_GATEWAY_ADOPT_H

#include "common/base/error.h"
#include "rpc/gateway/held.h"

struct adopt;
struct adopted;
struct gateway;

/* connections: what held_take gave. */
enum status adopt_create(struct gateway *gw, struct adopt **out, struct error *err);
/* The server is there: begins with the connections that held_take gave. They are closed one by one if they cannot be used. */
void adopt_begin(struct adopt *a, const struct held_connection *connections, uint32_t n);
/* When the server has ended its exchanges, and before it goes. NULL is allowed. */
void adopt_destroy(struct adopt *a);
/* The exchange of this connection has something new, or ended; with the exchange's lock. */
void adopt_wake(struct adopt *all, struct adopted *a);

#endif
