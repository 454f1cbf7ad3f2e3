#define LOG_MODULE "tls"
#include "rpc/grpc/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include "common/base/check.h"
#include "common/base/log.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_CERTIFICATES = 1024, SOON_S = 7 * 86400 };

struct pem_set {
    struct rpc_tls_pem pem; /* first: what is handed out */
    atomic_int refs;
    char until[64];         /* "Nov 29 21:46:00 2027 GMT" */
    int ends_soon;
};

struct rpc_tls {
    struct rpc_tls_files files;
    char *paths[3];
    pthread_mutex_t lock; /* guards what follows */
    struct pem_set *now;
    atomic_uint_fast64_t version;
};

/* --- files ------------------------------------------------------------------------------------------------------------- */

static void free_text(const char *text)
{
    if (text)
        OPENSSL_clear_free((char *)(uintptr_t)text, strlen(text) + 1);
}

static void release_set(struct pem_set *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    free_text(s->pem.cert);
    free_text(s->pem.key);
    free_text(s->pem.ca);
    free(s);
}

static enum status read_text(const char *flag, const char *path, const char **out, struct error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        error_set(err, STATUS_CONFIG, "--tls-%s %.150s: %s", flag, path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return STATUS_CONFIG;
    }
    size_t size = (size_t)st.st_size, n = 0;
    char *text = S_ISREG(st.st_mode) && st.st_size <= MAX_FILE_BYTES ? OPENSSL_zalloc(size + 1) : NULL;
    for (ssize_t got = 1; text && n < size && (got = read(fd, text + n, size - n)) > 0;)
        n += (size_t)got;
    close(fd);
    if (!text)
        return error_set(err, STATUS_CONFIG, "--tls-%s %.150s: no file of at most %d bytes", flag, path, MAX_FILE_BYTES);
    if (strcmp(flag, "key") == 0 && (st.st_mode & S_IRWXO))
        LOG_WARN("--tls-key %s can be read by everybody on this machine", path);
    *out = text;
    return STATUS_OK;
}

/* --- what is in them --------------------------------------------------------------------------------------------------- */

static void free_certificates(STACK_OF(X509) *all)
{
    sk_X509_pop_free(all, X509_free);
}

/* Every certificate of a text, at least one. */
static enum status parse_certificates(const char *flag, const char *path, const char *text, STACK_OF(X509) * *out,
                                      struct error *err)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    STACK_OF(X509) *all = sk_X509_new_null();
    X509 *one;
    ERR_clear_error();
    while (bio && all && sk_X509_num(all) < MAX_CERTIFICATES && (one = PEM_read_bio_X509(bio, NULL, NULL, NULL)))
        if (!sk_X509_push(all, one))
            X509_free(one);
    /* At its end the reader complains of a missing start line; anything else is a mistake in the file. */
    unsigned long why = ERR_peek_last_error();
    int good = all && sk_X509_num(all) > 0 && ERR_GET_REASON(why) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    BIO_free(bio);
    if (!good) {
        free_certificates(all);
        return error_set(err, STATUS_CONFIG, "--tls-%s %.150s: no PEM certificate can be read from it", flag, path);
    }
    *out = all;
    return STATUS_OK;
}

static void print_time(const ASN1_TIME *t, char *out, size_t size)
{
    BIO *bio = BIO_new(BIO_s_mem());
    int n = bio && ASN1_TIME_print(bio, t) ? BIO_read(bio, out, (int)size - 1) : 0;
    out[n > 0 ? n : 0] = 0;
    BIO_free(bio);
}

static enum status check_dates(const char *path, X509 *cert, struct pem_set *s, struct error *err)
{
    char at[64];
    time_t soon = time(NULL) + SOON_S;
    if (X509_cmp_current_time(X509_get0_notBefore(cert)) >= 0) {
        print_time(X509_get0_notBefore(cert), at, sizeof at);
        return error_set(err, STATUS_CONFIG, "--tls-cert %.150s: the certificate is not valid before %s", path, at);
    }
    print_time(X509_get0_notAfter(cert), s->until, sizeof s->until);
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) <= 0)
        return error_set(err, STATUS_CONFIG, "--tls-cert %.150s: the certificate expired on %s", path, s->until);
    s->ends_soon = X509_cmp_time(X509_get0_notAfter(cert), &soon) <= 0;
    return STATUS_OK;
}

static int no_passphrase(char *buf, int size, int writing, void *arg)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)arg;
    return -1; /* OpenSSL would ask the terminal */
}

static enum status check_key(const struct rpc_tls_files *f, const char *text, X509 *cert, struct error *err)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    int fits = key && X509_check_private_key(cert, key) == 1, read = key != NULL;
    EVP_PKEY_free(key);
    BIO_free(bio);
    ERR_clear_error();
    if (!read)
        return error_set(err, STATUS_CONFIG, "--tls-key %.150s: no PEM private key without a passphrase can be read from it", f->key);
    return fits ? STATUS_OK
                : error_set(err, STATUS_CONFIG, "--tls-key %.120s: the key is not that of --tls-cert %.120s", f->key, f->cert);
}

/* Others judge us by the same CA: what they would refuse, we refuse at start. */
static enum status check_chain(const struct rpc_tls_files *f, STACK_OF(X509) * chain, STACK_OF(X509) * roots,
                               struct error *err)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    int ok = store && ctx, code = X509_V_ERR_OUT_OF_MEM;
    for (int i = 0; ok && i < sk_X509_num(roots); i++)
        X509_STORE_add_cert(store, sk_X509_value(roots, i)); /* one that is there twice is no mistake */
    if (ok && X509_STORE_CTX_init(ctx, store, sk_X509_value(chain, 0), chain)) {
        ok = X509_verify_cert(ctx) == 1;
        code = X509_STORE_CTX_get_error(ctx);
    }
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    ERR_clear_error();
    return ok ? STATUS_OK
              : error_set(err, STATUS_CONFIG, "--tls-cert %.100s does not stand up to --tls-ca %.100s: %.80s", f->cert, f->ca,
                          X509_verify_cert_error_string(code));
}

static enum status judge(const struct rpc_tls_files *f, struct pem_set *s, struct error *err)
{
    STACK_OF(X509) *chain = NULL, *roots = NULL;
    enum status st = parse_certificates("cert", f->cert, s->pem.cert, &chain, err);
    if (st == STATUS_OK)
        st = check_dates(f->cert, sk_X509_value(chain, 0), s, err);
    if (st == STATUS_OK)
        st = check_key(f, s->pem.key, sk_X509_value(chain, 0), err);
    if (st == STATUS_OK && f->ca)
        st = parse_certificates("ca", f->ca, s->pem.ca, &roots, err);
    if (st == STATUS_OK && f->ca)
        st = check_chain(f, chain, roots, err);
    free_certificates(chain);
    free_certificates(roots);
    return st;
}

static enum status read_set(const struct rpc_tls_files *f, struct pem_set **out, struct error *err)
{
    struct pem_set *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for certificates");
    atomic_init(&s->refs, 1);
    enum status st = read_text("cert", f->cert, &s->pem.cert, err);
    if (st == STATUS_OK)
        st = read_text("key", f->key, &s->pem.key, err);
    if (st == STATUS_OK && f->ca)
        st = read_text("ca", f->ca, &s->pem.ca, err);
    if (st == STATUS_OK)
        st = judge(f, s, err);
    if (st != STATUS_OK) {
        release_set(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

/* --- the current set --------------------------------------------------------------------------------------------------- */

static void tell(const struct rpc_tls *t, const struct pem_set *s, const char *how)
{
    if (s->ends_soon)
        LOG_WARN("%s %s, valid until %s only", t->files.cert, how, s->until);
    else
        LOG_INFO("%s %s, valid until %s%s", t->files.cert, how, s->until,
                 s->pem.ca ? "; gRPC and links need the CA's certificates" : "");
}

static const char *copy_path(struct rpc_tls *t, int i, const char *path)
{
    return path ? (t->paths[i] = strdup(path)) : NULL;
}

enum status rpc_tls_open(const struct rpc_tls_files *f, struct rpc_tls **out, struct error *err)
{
    *out = NULL;
    if (!f->cert && !f->key && !f->ca)
        return STATUS_OK;
    if (!f->cert || !f->key)
        return error_set(err, STATUS_CONFIG, "--tls-%s is missing: %s", f->cert ? "key" : "cert",
                         f->ca ? "--tls-ca needs a certificate and its key" : "a certificate and its key belong together");
    struct rpc_tls *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for certificates");
    pthread_mutex_init(&t->lock, NULL);
    t->files = (struct rpc_tls_files){copy_path(t, 0, f->cert), copy_path(t, 1, f->key), copy_path(t, 2, f->ca)};
    enum status s = t->files.cert && t->files.key && !t->files.ca == !f->ca
                        ? read_set(&t->files, &t->now, err)
                        : error_set(err, STATUS_OUT_OF_MEMORY, "no memory for certificates");
    if (s != STATUS_OK) {
        rpc_tls_close(t);
        return s;
    }
    t->now->pem.version = 1;
    atomic_init(&t->version, 1);
    tell(t, t->now, "read");
    *out = t;
    return STATUS_OK;
}

void rpc_tls_close(struct rpc_tls *t)
{
    if (!t)
        return;
    release_set(t->now);
    for (int i = 0; i < 3; i++)
        free(t->paths[i]);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

enum status rpc_tls_reload(struct rpc_tls *t, struct error *err)
{
    struct pem_set *s;
    TRY(read_set(&t->files, &s, err));
    pthread_mutex_lock(&t->lock);
    struct pem_set *old = t->now;
    int same = same_text(old->pem.cert, s->pem.cert) && same_text(old->pem.key, s->pem.key) && same_text(old->pem.ca, s->pem.ca);
    s->pem.version = old->pem.version + !same;
    t->now = s;
    atomic_store(&t->version, s->pem.version);
    tell(t, s, same ? "read again, as it was" : "read again");
    pthread_mutex_unlock(&t->lock);
    release_set(old);
    return STATUS_OK;
}

void rpc_tls_reload_logged(struct rpc_tls *t)
{
    struct error err;
    if (t && rpc_tls_reload(t, &err) != STATUS_OK)
        LOG_ERROR("certificates stay as they were: %s", err.message);
}

int rpc_tls_is_mutual(const struct rpc_tls *t)
{
    return t && t->files.ca;
}

uint64_t rpc_tls_version(const struct rpc_tls *t)
{
    return atomic_load(&t->version);
}

const struct rpc_tls_pem *rpc_tls_acquire(struct rpc_tls *t)
{
    pthread_mutex_lock(&t->lock);
    struct pem_set *s = t->now;
    atomic_fetch_add(&s->refs, 1);
    pthread_mutex_unlock(&t->lock);
    return &s->pem;
}

void rpc_tls_release(const struct rpc_tls_pem *pem)
{
    release_set((struct pem_set *)(uintptr_t)pem);
}
