/* rpc/gateway/completion.h - /v1/chat/completions and /v1/completions.
 *
 * Purpose    Carries a request for n answers to the last byte: submits each as a generation of its own, turns events into
 *            chunks or one answer, and tells failures. Where the coordinator is lost it waits for it and asks for the rest of
 *            an answer by the ids that it has (docs/adr/0010), up to --recovery-timeout-ms. The first answer begins alone; the others follow
 *            its first text, so that they find the prompt in the cache, and have its ids.
 * Ownership  completion_start makes the operation of the exchange; it is freed with the exchange's last reference.
 * Threading  Events come on the rpc loop's thread, ticks on the watcher's, room on libmicrohttpd's; the exchange's lock
 *            guards everything. Calls are opened from other threads than the loop's.
 * Invariants 1. gs is not NULL exactly while a call is open; the exchange is retained until no choice has one. 2. Nothing is sent to the client before its first text, its end,
 *            or 5 s; until then a failure keeps its HTTP status. 3. The text that was passed on is that of the ids that are
 *            kept: an event brings both. 4. What ends one answer early ends all.
 * Errors     Told to the client.
 *
 *   each choice (the others than the first: IDLE before WAITING):
 *
 *              submit                first text              done, failed, left
 *   WAITING <----------> CALLING ----------------> TALKING --------------------> CLOSING --on_end--> ENDED
 *    ^ |     lost          \-------------------------|---------------------------^                    ^
 *    | \----------------- gave up, left -------------|-----------------------------------------------/
 *    \----------------------------------- lost ------/
 */
#ifndef SLUICE_RPC_GATEWAY_COMPLETION_H
#define SLUICE_RPC_GATEWAY_COMPLETION_H

struct completion_kept;
struct exchange;

void completion_start(struct exchange *x);
/* (locked) Goes on with an answer that another process began; x is as its journal says. */
void completion_adopt(struct exchange *x, struct completion_kept *k);

#endif
