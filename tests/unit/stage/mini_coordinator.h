/* tests/unit/stage/mini_coordinator.h - the server side of Attach for one stage, message by message.
 *
 * Purpose    Tests of the control line and of the stage programs.
 * Ownership  mini_open/mini_close. A result inside a message is the taker's until mini_release.
 * Threading  The test's thread.
 * Errors     Failed cmocka assertions.
 */
#ifndef SLUICE_TESTS_UNIT_STAGE_MINI_COORDINATOR_H
#define SLUICE_TESTS_UNIT_STAGE_MINI_COORDINATOR_H

#include "tests/unit/stage/cmocka_all.h"

#include "rpc/grpc/stage_api.h"

struct mini;

/* address: "127.0.0.1:0", or that of an earlier one. */
struct mini *mini_open(const char *address, const char *secret);
const char *mini_address(const struct mini *m);
void mini_close(struct mini *m);
/* The next message of this kind, others are dropped (heartbeats and all). */
void mini_await(struct mini *m, enum from_stage_kind kind, struct from_stage *out);
void mini_release(struct from_stage *m);
void mini_send(struct mini *m, const struct to_stage *message);
void mini_end_stream(struct mini *m);
/* ASSIGN of a single stage with `slots` slots and LOADED; epoch e and READY. */
void mini_assign(struct mini *m, uint32_t slots);
void mini_join(struct mini *m, uint64_t epoch);
/* The first tick of an epoch: sequence 1 reads n ids and samples. */
void mini_tick(struct mini *m, uint64_t epoch, const uint32_t *ids, uint32_t n);

enum { MINI_SESSION = 4711, MINI_LAYERS = 6 };

#endif
