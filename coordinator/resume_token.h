/* coordinator/resume_token.h - what lets a client go on with an answer whose coordinator is gone.
 *
 * Purpose    A token is the numerics profile that computed the answer, in clear, and a MAC over it and over all that decides the
 *            answer: request id, client, model, sampler and seed, limits, stops, the prompt's ids. A coordinator with the same
 *            secret makes the same token again, so it keeps nothing: who shows it was accepted once with this very request.
 *            Not in it: the ids of the answer, which the client may only get wrong for itself.
 * Ownership  Plain values.
 * Threading  Pure.
 * Invariants Two requests have the same token only if they are the same request.
 * Errors     STATUS_OUT_OF_MEMORY, STATUS_IO (no random key), STATUS_FORBIDDEN (a token of others, or of another request).
 */
#ifndef SLUICE_COORDINATOR_RESUME_TOKEN_H
#define SLUICE_COORDINATOR_RESUME_TOKEN_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

enum { RESUME_MAC_BYTES = 32, RESUME_PROFILE_BYTES = 63 };

struct request; /* coordinator/request.h */

struct resume_token {
    uint8_t mac[RESUME_MAC_BYTES];
    char profile[RESUME_PROFILE_BYTES + 1]; /* "": no stage had told one */
};

struct resume_key {
    uint8_t key[32], model_hash[32];
};

enum { RESUME_TOKEN_BYTES = 1 + RESUME_MAC_BYTES + RESUME_PROFILE_BYTES }; /* at most, on the wire */

/* secret "": a random key, whose tokens end with the process. */
enum status resume_key_init(struct resume_key *k, const char *secret, const uint8_t model_hash[32], struct error *err);
/* The prompt's ids are known. Out: *t, for the profile that it names already. */
enum status resume_token_make(const struct resume_key *k, const struct request *r, struct resume_token *t, struct error *err);
/* Whether the token that a request came with is its own. */
enum status resume_token_check(const struct resume_key *k, const struct request *r, const struct resume_token *t,
                               struct error *err);
uint32_t resume_token_write(const struct resume_token *t, uint8_t out[RESUME_TOKEN_BYTES]); /* bytes written */
int resume_token_read(const void *data, size_t len, struct resume_token *out);              /* 0: this is none */

#endif
