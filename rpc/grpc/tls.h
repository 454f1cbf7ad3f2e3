/* rpc/grpc/tls.h - this process's certificate, key and CA, as files that may be read again at any time.
 *
 * Purpose    Reads and judges the PEM files of --tls-cert, --tls-key and --tls-ca; hands out what is current to servers and
 *            channels (rpc.h) and to the gateway's HTTPS. With a CA both ends of every gRPC connection show a certificate of
 *            that CA (mutual TLS); without one the files are for HTTPS alone. A stage's links take their key from the
 *            connection that is protected so (stage/link_tls.h), and no certificate.
 * Ownership  rpc_tls_open/rpc_tls_close; close after servers and channels. A set from rpc_tls_acquire stays as it is until
 *            rpc_tls_release, whatever is read meanwhile. Keys are wiped with the last release.
 * Threading  Any thread; the lock inside guards the current set.
 * Invariants 1. A set that is handed out was accepted as a whole: the certificate is valid now, the key is its key, and with
 *               a CA the certificate is signed by it. 2. version grows with each set that differs; the first is 1.
 * Errors     STATUS_CONFIG in one line that names flag and file. A reload that fails keeps the old set.
 */
#ifndef SLUICE_RPC_GRPC_TLS_H
#define SLUICE_RPC_GRPC_TLS_H

#include <stdint.h>

#include "common/base/error.h"

struct rpc_tls;

struct rpc_tls_files {
    const char *cert, *key, *ca; /* paths; NULL: not given */
};

struct rpc_tls_pem {
    const char *cert, *key, *ca; /* texts; ca NULL: no mutual TLS */
    uint64_t version;
};

/* No file named at all: *out becomes NULL, which everything below takes for "no TLS". */
enum status rpc_tls_open(const struct rpc_tls_files *files, struct rpc_tls **out, struct error *err);
void rpc_tls_close(struct rpc_tls *t);
/* Reads the files again. What runs is not touched; the next connections have the new set. */
enum status rpc_tls_reload(struct rpc_tls *t, struct error *err);
/* The same for a signal's handler loop: logs in one line how it went. */
void rpc_tls_reload_logged(struct rpc_tls *t);

/* Is gRPC to use it? */
int rpc_tls_is_mutual(const struct rpc_tls *t);
uint64_t rpc_tls_version(const struct rpc_tls *t); /* of the current set */
const struct rpc_tls_pem *rpc_tls_acquire(struct rpc_tls *t);
void rpc_tls_release(const struct rpc_tls_pem *pem); /* NULL is nothing */

#endif
