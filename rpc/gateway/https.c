#define LOG_MODULE "http"
#include "rpc/gateway/https.h"

#include <string.h>

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include "common/base/log.h"

enum { MAX_CHAIN = 16 };

static struct rpc_tls *source;

struct shown {
    gnutls_pcert_st *chain;
    unsigned n;
    gnutls_privkey_t key;
};

static void drop(struct shown *s)
{
    for (unsigned i = 0; i < s->n; i++)
        gnutls_pcert_deinit(&s->chain[i]);
    gnutls_free(s->chain);
    gnutls_privkey_deinit(s->key);
}

/* From the current files; a GnuTLS error number. */
static int load(struct shown *out)
{
    const struct rpc_tls_pem *pem = rpc_tls_acquire(source);
    const gnutls_datum_t cert = {(unsigned char *)(uintptr_t)pem->cert, (unsigned)strlen(pem->cert)};
    const gnutls_datum_t key = {(unsigned char *)(uintptr_t)pem->key, (unsigned)strlen(pem->key)};
    struct shown s = {.chain = gnutls_calloc(MAX_CHAIN, sizeof *s.chain)};
    unsigned n = MAX_CHAIN;
    int rc = s.chain ? gnutls_privkey_init(&s.key) : GNUTLS_E_MEMORY_ERROR;
    if (rc >= 0)
        rc = gnutls_pcert_list_import_x509_raw(s.chain, &n, &cert, GNUTLS_X509_FMT_PEM, 0);
    if (rc >= 0) {
        s.n = n;
        rc = gnutls_privkey_import_x509_raw(s.key, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    }
    rpc_tls_release(pem);
    if (rc >= 0)
        *out = s;
    else
        drop(&s);
    return rc;
}

/* GnuTLS frees what it is given. */
static int on_certificate(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certs,
                          unsigned *n_certs, gnutls_ocsp_data_st **ocsp, unsigned *n_ocsp, gnutls_privkey_t *key,
                          unsigned *flags)
{
    struct shown s;
    (void)session;
    (void)info;
    int rc = load(&s);
    if (rc < 0) {
        LOG_ERROR("no certificate for a client: %s", gnutls_strerror(rc));
        return -1;
    }
    *certs = s.chain;
    *n_certs = s.n;
    *key = s.key;
    *ocsp = NULL;
    *n_ocsp = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return 0;
}

enum status https_use(struct rpc_tls *tls, unsigned *flags, struct MHD_OptionItem out[HTTPS_MAX_OPTIONS], struct error *err)
{
    static const char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    struct MHD_OptionItem *o = out;
    struct shown first;
    source = tls;
    if (tls) {
        int rc = load(&first);
        if (rc < 0)
            return error_set(err, STATUS_CONFIG, "--tls-cert, --tls-key: %s", gnutls_strerror(rc));
        drop(&first);
        /* With epoll libmicrohttpd 0.9.75 spins while a client's handshake is unfinished: it forgets no readiness that GnuTLS has
         * used up. poll is asked anew each time. */
        *flags = (*flags & ~(unsigned)MHD_USE_EPOLL) | MHD_USE_POLL | MHD_USE_TLS;
        *o++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities};
        *o++ = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, (void *)(intptr_t)on_certificate};
    }
    *o = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    return STATUS_OK;
}
