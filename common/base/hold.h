/* common/base/hold.h - messages between a gateway and the holder that keeps its connections.
 *
 * Purpose    One message of a SEQPACKET socket pair: a verb, an id and up to two descriptors. A holder (deploy/holder.h) keeps duplicates of
 *            sockets and journals while the gateway that works with them may die; the next one takes them over.
 *
 *              gateway -> holder    KEEP id + socket, journal    an answer is being made; held until DROP of the same id, or CLEAR
 *                                   WAIT id value + socket       a connection that waits for its next request; the same id again: a new value
 *                                   DROP id
 *                                   LISTENER + socket            the listening socket; a second one takes the first's place
 *                                   TAKE id                      what is held? id: any number, told again in the answers
 *                                   CLEAR                        nothing is to be kept any more, the listener neither
 *              holder -> gateway    GIVEN id + socket, journal   to TAKE: one for each that is held, which stays held
 *                                   GIVEN_WAITING id value + socket
 *                                   GIVEN_LISTENER + socket
 *                                   END id                       that was all
 *              (in the answers, `about` is the TAKE's id)
 *
 * Ownership  hold_send duplicates descriptors, they stay the caller's. hold_receive gives descriptors (close-on-exec) to the caller; with any status
 *            but OK there are none.
 * Threading  Pure but for the socket; one packet is one message, so several threads may send.
 * Errors     STATUS_FULL: the socket takes no more now. STATUS_TIMEOUT: nothing to read now. STATUS_CLOSED: the other side is gone.
 *            STATUS_PROTOCOL: what came is none of these messages; the next one may be read.
 */
#ifndef SLUICE_COMMON_BASE_HOLD_H
#define SLUICE_COMMON_BASE_HOLD_H

#include <stdint.h>

#include "common/base/status.h"

enum hold_verb {
    HOLD_KEEP = 1,
    HOLD_DROP,
    HOLD_LISTENER,
    HOLD_TAKE,
    HOLD_CLEAR,
    HOLD_GIVEN,
    HOLD_GIVEN_LISTENER,
    HOLD_END,
    HOLD_WAIT,
    HOLD_GIVEN_WAITING,
};

enum { HOLD_MAX = 4096, HOLD_MAX_FDS = 2 }; /* ids that a holder keeps; one more is simply not held */

struct hold_message {
    uint32_t verb, zero;
    uint64_t id, about, value;
};

/* How many descriptors come with a verb, or -1 when it is none. */
int hold_descriptors(uint32_t verb);
enum status hold_send(int socket, const struct hold_message *m, const int *fds);
enum status hold_receive(int socket, struct hold_message *m, int fds[HOLD_MAX_FDS]);

#endif
