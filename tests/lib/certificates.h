/* tests/lib/certificates.h - certificates and keys that live as long as a test.
 *
 * Purpose    CAs and what they sign, as PEM files in a folder of the test's own: NAME.pem and NAME.key. Good ones, expired
 *            ones, ones of another CA; EC keys of P-256, so that a test does not wait for a key.
 * Ownership  certificates_open makes the folder, certificates_close removes it with all files in it.
 * Threading  Pure but for the files.
 * Errors     A failed CHECK: a test cannot go on without them.
 */
#ifndef SLUICE_TESTS_LIB_CERTIFICATES_H
#define SLUICE_TESTS_LIB_CERTIFICATES_H

#include <stdint.h>

#include "rpc/grpc/tls.h"

struct certificates {
    char dir[64];
};

struct certificate_spec {
    const char *name; /* of the files, and the common name */
    const char *ca;   /* name of the CA's files; NULL: signs itself, and may sign others */
    const char *san;  /* "IP:127.0.0.1,DNS:localhost"; NULL: none */
    int64_t from_s, until_s; /* seconds from now; both 0: an hour back to thirty days ahead */
};

void certificates_open(struct certificates *c);
void certificates_close(struct certificates *c);
void certificates_make(const struct certificates *c, const struct certificate_spec *s);
/* Overwrites NAME.pem and NAME.key with those of another name, as an operator would. */
void certificates_replace(const struct certificates *c, const char *name, const char *with);
void certificates_write(const struct certificates *c, const char *file, const char *text);
/* Path of a file in the folder; one of eight buffers in turn. */
const char *certificates_path(const struct certificates *c, const char *file);
/* NAME's files; ca: name of the CA, NULL: none. */
struct rpc_tls_files certificates_files(const struct certificates *c, const char *name, const char *ca);
/* rpc_tls_open of them. */
struct rpc_tls *certificates_tls(const struct certificates *c, const char *name, const char *ca);

#endif
