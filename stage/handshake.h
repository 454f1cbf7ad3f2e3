/* stage/handshake.h - how two ends of a link prove that they belong to the same epoch.
 *
 * Purpose    Three messages and one byte on a fresh connection, before the first frame:
 *
 *              connector -> acceptor   HELLO 64: "SLUILNK1", session u64, epoch u64, from u16, to u16, tls u32, nonce 32
 *              acceptor -> connector   CHALLENGE 64: nonce 32, HMAC(key, "accept " HELLO nonce) 32
 *              connector -> acceptor   PROOF 32: HMAC(key, "connect" HELLO nonce)
 *              acceptor -> connector   1
 *
 *            With tls 1 a TLS 1.3 handshake (link_tls.h) follows HELLO in place of CHALLENGE and PROOF, and the last byte comes
 *            in it. HMAC is HMAC-SHA256 with the 32-byte key of LINKS. Both nonces, both stages, session and epoch are in both
 *            codes, so that nothing can be played again or reflected. All numbers are little-endian.
 * Ownership  Plain data.
 * Threading  Pure, but for the random numbers.
 * Errors     STATUS_PROTOCOL: no such message. STATUS_UNAUTHENTICATED: another key.
 */
#ifndef SLUICE_STAGE_HANDSHAKE_H
#define SLUICE_STAGE_HANDSHAKE_H

#include <stdint.h>

#include "common/base/error.h"

enum { HANDSHAKE_HELLO_BYTES = 64, HANDSHAKE_CHALLENGE_BYTES = 64, HANDSHAKE_PROOF_BYTES = 32, HANDSHAKE_DEADLINE_MS = 2000 };

struct handshake_edge {
    uint64_t session, epoch;
    uint16_t from, to;
    uint32_t tls; /* 1: the connection goes on in TLS */
};

/* The connector's side. */
enum status handshake_hello(const struct handshake_edge *e, uint8_t hello[HANDSHAKE_HELLO_BYTES], struct error *err);
enum status handshake_prove(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                            const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], uint8_t proof[HANDSHAKE_PROOF_BYTES],
                            struct error *err);
/* The acceptor's side. */
enum status handshake_read_hello(const uint8_t hello[HANDSHAKE_HELLO_BYTES], struct handshake_edge *out, struct error *err);
enum status handshake_challenge(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                                uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], struct error *err);
enum status handshake_verify(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                             const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES],
                             const uint8_t proof[HANDSHAKE_PROOF_BYTES], struct error *err);

#endif
