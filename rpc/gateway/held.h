/* rpc/gateway/held.h - the gateway's end of the holder (common/base/hold.h).
 *
 * Purpose    Hands connections, and journals of answers, to the holder that the launcher passes in SLUICE_HOLD_FD, and takes back what a gateway before this one
 *            left there. Without a holder everything here does nothing.
 * Ownership  held_create/held_destroy. Descriptors stay the caller's, those of held_take become his.
 * Threading  held_take from the main thread, before others use it; the rest from any thread (a lock inside).
 * Invariants At most HOLD_MAX are kept, those whose drop has not been sent yet included; so a drop is never lost: what the socket does not take now
 *            is sent by held_tick.
 * Errors     None: what is not held is not held.
 */
#ifndef SLUICE_RPC_GATEWAY_HELD_H
#define SLUICE_RPC_GATEWAY_HELD_H

#include <stdint.h>

#include "common/base/hold.h"

struct held;

struct held_connection {
    uint64_t id, value;
    int socket, journal; /* journal -1: it waits for a request, as held_wait said */
};

/* NULL without memory or without a holder, which all of the following take. */
struct held *held_create(void);
void held_destroy(struct held *h);
/* What is held, at most HOLD_MAX of them. *listener: the listening socket, or -1. Waits for the holder, two seconds at most. */
uint32_t held_take(struct held *h, struct held_connection out[HOLD_MAX], int *listener);
void held_listener(struct held *h, int fd);
/* Returns an id for held_drop, or 0: it is not kept. */
uint64_t held_keep(struct held *h, int socket, int journal);
/* A connection that waits for its next request, when `value` bytes of it were read (keeper_consumed); id: 0, or of the same connection. */
uint64_t held_wait(struct held *h, uint64_t id, int socket, uint64_t value);
void held_drop(struct held *h, uint64_t id);
void held_tick(struct held *h);
/* This gateway ends as it should: nothing is kept. */
void held_clear(struct held *h);

#endif
