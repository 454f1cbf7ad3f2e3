/* deploy/holder.h - what keeps the clients' connections while the gateway is dead.
 *
 * Purpose    Lives in the launcher. The gateway hands it a duplicate of each connection that waits for a request, of each on which an answer is being
 *            made, with the journal of that exchange, and of its listening socket (common/base/hold.h). The kernel closes a connection when its last descriptor goes: with these a
 *            killed gateway is a pause, and the one that is started next takes them over. It never reads or writes a connection or a journal.
 * Ownership  holder_create/holder_destroy. holder_gateway_fd is the gateway's end, to be inherited by each gateway in turn; it stays the holder's.
 * Threading  One thread; never waits. holder_fd fits a poll loop, with the events of holder_events.
 * Invariants At most HOLD_MAX ids and one listener are held; a further one is closed here, which the gateway does not feel.
 *            So is one that would leave the launcher fewer than 256 descriptors.
 * Errors     STATUS_IO at creation; later messages that make no sense are ignored.
 */
#ifndef SLUICE_DEPLOY_HOLDER_H
#define SLUICE_DEPLOY_HOLDER_H

#include <stdint.h>

#include "common/base/error.h"

struct holder;

enum status holder_create(struct holder **out, struct error *err);
void holder_destroy(struct holder *h);
int holder_gateway_fd(const struct holder *h);
int holder_fd(const struct holder *h);
short holder_events(const struct holder *h);
/* Does what the gateway has asked for so far. */
void holder_serve(struct holder *h);
/* No gateway will come: all of it is closed, and clients see that. */
void holder_clear(struct holder *h);
uint32_t holder_held(const struct holder *h);

#endif
