/* rpc/gateway/request_head.h - what is decided before a body is read.
 *
 * Purpose    Takes route, request id and client's identity from the request line and headers, and refuses what needs no
 *            body: unknown path, wrong method, missing key, too large, not JSON, draining.
 * Ownership  Fills fields of the exchange; nothing is kept.
 * Threading  libmicrohttpd's thread.
 * Errors     STATUS_NOT_FOUND, STATUS_METHOD (x->allow is set), STATUS_UNAUTHENTICATED, STATUS_BODY_TOO_LARGE,
 *            STATUS_BODY_TYPE, STATUS_DRAINING.
 */
#ifndef SLUICE_RPC_GATEWAY_REQUEST_HEAD_H
#define SLUICE_RPC_GATEWAY_REQUEST_HEAD_H

#include "rpc/gateway/exchange.h"

struct request_head {
    uint64_t content_length; /* UINT64_MAX: chunked */
};

enum status request_head_read(struct exchange *x, const char *url, const char *method, size_t body_max,
                              struct request_head *out, struct error *err);
int request_head_expects_continue(struct MHD_Connection *conn);
enum { REQUEST_ID_BYTES = 40 };
/* "req-" and 24 random hex digits. serial: makes it this exchange's own even without randomness. Returns out. */
const char *request_id_make(uint64_t serial, char out[REQUEST_ID_BYTES]);
/* Whether text may be a request's id: 1 to 128 of A-Z a-z 0-9 . _ : - */
int request_id_is_sane(const char *text);

#endif
