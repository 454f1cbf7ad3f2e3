/* rpc/gateway/https.h - the certificate that the gateway shows to its clients.
 *
 * Purpose    Options for libmicrohttpd: TLS 1.2 and 1.3, and the certificate and key that are current in rpc/grpc/tls.h, asked
 *            for with every connection. So new files need no new socket, and open connections keep what they have.
 * Ownership  The source is borrowed from https_use to the end of the daemon. GnuTLS hands the callback nothing of ours, so
 *            there is one source a process.
 * Threading  https_use before the daemon starts; the callback on its thread.
 * Errors     STATUS_CONFIG: GnuTLS does not take what OpenSSL took. Later such files fail each handshake and are logged.
 */
#ifndef SLUICE_RPC_GATEWAY_HTTPS_H
#define SLUICE_RPC_GATEWAY_HTTPS_H

#include <microhttpd.h>

#include "rpc/grpc/tls.h"

enum { HTTPS_MAX_OPTIONS = 3 };

/* tls NULL: no option, plain HTTP. Else *flags gains MHD_USE_TLS, and poll for epoll. out is for MHD_OPTION_ARRAY. */
enum status https_use(struct rpc_tls *tls, unsigned *flags, struct MHD_OptionItem out[HTTPS_MAX_OPTIONS], struct error *err);

#endif
