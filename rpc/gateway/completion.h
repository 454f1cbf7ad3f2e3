/* rpc/gateway/completion.h - /v1/chat/completions and /v1/completions.
 *
 * Purpose    Carries one generation from the parsed request to the last byte of its answer: submits it, waits for a
 *            coordinator that pauses, turns events into chunks or one answer, and tells failures.
 * Ownership  completion_start makes the operation of the exchange; it is freed with the exchange's last reference.
 * Threading  Events come on the rpc loop's thread, ticks on the watcher's, room on libmicrohttpd's; the exchange's lock
 *            guards everything. Calls are opened from other threads than the loop's.
 * Invariants 1. gs is not NULL exactly while a call is open. 2. Nothing is sent to the client before its first text, its end,
 *            or 5 s; until then a failure keeps its HTTP status.
 * Errors     Told to the client.
 *
 *              submit                first text              done, failed, left
 *   WAITING <----------> CALLING ----------------> TALKING --------------------> CLOSING --on_end--> ENDED
 *      |     lost          \-----------------------------------------------------^                    ^
 *      \----------------- gave up, left --------------------------------------------------------------/
 */
#ifndef SLUICE_RPC_GATEWAY_COMPLETION_H
#define SLUICE_RPC_GATEWAY_COMPLETION_H

struct exchange;

void completion_start(struct exchange *x);

#endif
