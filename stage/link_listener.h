/* stage/link_listener.h - takes connections from the stage before, and from nobody else.
 *
 * Purpose    A thread that accepts on the stage's sockets, shakes hands (handshake.h) with several peers at once and keeps the
 *            one connection that proves to be the expected edge. Whatever says nothing, nonsense or the wrong key is closed
 *            within HANDSHAKE_DEADLINE_MS; at most 16 handshakes are pending, the oldest mute one makes room.
 * Ownership  create/destroy; the sockets pass to it. What was taken is the taker's.
 * Threading  Any thread; the lock inside guards what is shared with the listener's thread.
 * Invariants A connection of an epoch that is not expected yet waits for its key until the deadline; one of an older epoch is
 *            closed and counted as stale.
 * Errors     STATUS_TIMEOUT, STATUS_CLOSED (aborted).
 */
#ifndef SLUICE_STAGE_LINK_LISTENER_H
#define SLUICE_STAGE_LINK_LISTENER_H

#include "stage/handshake.h"
#include "stage/link.h"
#include "stage/link_tls.h"

enum { LISTENER_MAX_PENDING = 16 };

struct link_listener;

/* tls: what TCP connections must speak; NULL: plain, as UNIX sockets always are. Borrowed. */
enum status link_listener_create(int tcp_fd, int unix_fd, struct link_tls_context *tls, struct link_listener **out,
                                 struct error *err);
void link_listener_destroy(struct link_listener *l);
/* From now on this edge is wanted. STATUS_CLOSED: generation is over already. */
enum status link_listener_expect(struct link_listener *l, uint64_t generation, const struct handshake_edge *edge,
                                 const uint8_t key[32]);
/* A connection that has proved itself. */
struct link_taken {
    int fd;
    struct link_tls *tls; /* NULL: plain */
};
/* Closes it; fd -1 is nothing. */
void link_taken_drop(struct link_taken *t);

/* Waits for the expected edge. */
enum status link_listener_take(struct link_listener *l, uint64_t generation, int64_t deadline_ns, struct link_taken *out);
/* Nothing is wanted any more. */
void link_listener_forget(struct link_listener *l);
/* Every generation before this one is over: wakes take, and abort_fd becomes readable. */
void link_listener_abort(struct link_listener *l, uint64_t generation);
int link_listener_aborted(struct link_listener *l, uint64_t generation);
/* For poll(2) beside other descriptors; readable once something was aborted since the last expect. */
int link_listener_abort_fd(const struct link_listener *l);
void link_listener_counters(struct link_listener *l, struct link_socket_counters *out);

#endif
