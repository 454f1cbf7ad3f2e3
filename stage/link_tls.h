/* stage/link_tls.h - a link's bytes under TLS 1.3, with the key of the epoch and no certificate.
 *
 * Purpose    TLS over a connected socket that does not block. Both ends prove the 32-byte key of LINKS, which came over the
 *            coordinator's mutual TLS (docs/adr/0012): it is an external pre-shared key (RFC 8446, 2.2), always together with
 *            an ephemeral Diffie-Hellman exchange, so that a key that leaks later opens no recorded link. The 64 bytes of
 *            HELLO (handshake.h) that went before are mixed into the key.
 * Ownership  link_tls_destroy; the socket stays the caller's. A context outlives what is made of it.
 * Threading  A link_tls belongs to one thread at a time; nothing in here waits. A context may be used by several.
 * Invariants 1. *events is 0 when something was done, else what poll(2) is to wait for before the same call again; a write is
 *            repeated with the same bytes. 2. What a write took is in the socket, encrypted. 3. After the handshake a read or
 *            write allocates nothing but libssl's own blocks of 40 bytes, which it frees before it returns, and what a change
 *            of keys needs every LINK_TLS_REKEY_RECORDS records.
 * Errors     STATUS_UNAUTHENTICATED: the other end has another key. STATUS_LINK: it is gone, or sends what is no record of it.
 */
#ifndef SLUICE_STAGE_LINK_TLS_H
#define SLUICE_STAGE_LINK_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/error.h"
#include "stage/handshake.h"

/* AES-GCM wants a new key before 2^24.5 full records (RFC 8446, 5.5). */
enum { LINK_TLS_REKEY_RECORDS = 1 << 22 };

struct link_tls;
struct link_tls_context;

enum link_tls_end { LINK_TLS_CONNECT, LINK_TLS_ACCEPT };

/* rekey_records: LINK_TLS_REKEY_RECORDS; a test asks for less. */
enum status link_tls_context_create(uint32_t rekey_records, struct link_tls_context **out, struct error *err);
void link_tls_context_destroy(struct link_tls_context *c); /* NULL is nothing */

enum status link_tls_create(struct link_tls_context *c, enum link_tls_end end, int fd, const uint8_t key[32],
                            const uint8_t hello[HANDSHAKE_HELLO_BYTES], struct link_tls **out, struct error *err);
void link_tls_destroy(struct link_tls *t); /* NULL is nothing */

/* One step of the handshake; *events 0: it stands, and the other end has the key. */
enum status link_tls_shake(struct link_tls *t, short *events, struct error *err);
enum status link_tls_read(struct link_tls *t, void *buf, size_t len, size_t *got, short *events, struct error *err);
/* Takes from the front of iov what fits a few records. */
enum status link_tls_write(struct link_tls *t, const struct iovec *iov, int n_iov, size_t *put, short *events, struct error *err);
/* Bytes that poll(2) does not see may be here: read first. */
int link_tls_may_hold_bytes(const struct link_tls *t);

#endif
