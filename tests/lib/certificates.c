#include "tests/lib/certificates.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "common/base/check.h"

const char *certificates_path(const struct certificates *c, const char *file)
{
    static char paths[8][sizeof c->dir + 260];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", c->dir, file);
    return path;
}

static const char *path_of(const struct certificates *c, const char *name, const char *ending)
{
    char file[96];
    snprintf(file, sizeof file, "%s.%s", name, ending);
    return certificates_path(c, file);
}

void certificates_open(struct certificates *c)
{
    snprintf(c->dir, sizeof c->dir, "/tmp/sluice-certificates-XXXXXX");
    CHECK(mkdtemp(c->dir));
}

void certificates_close(struct certificates *c)
{
    DIR *d = opendir(c->dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlink(certificates_path(c, e->d_name));
    if (d)
        closedir(d);
    rmdir(c->dir);
}

static void add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    CHECK(e && X509_add_ext(x, e, -1));
    X509_EXTENSION_free(e);
}

static void write_pem(const char *path, X509 *x, EVP_PKEY *key)
{
    FILE *f = fopen(path, "w");
    CHECK(f && (x ? PEM_write_X509(f, x) : PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL)));
    fclose(f);
    chmod(path, 0600);
}

static void *read_pem(const char *path, int key)
{
    FILE *f = fopen(path, "r");
    CHECK(f);
    void *out = key ? (void *)PEM_read_PrivateKey(f, NULL, NULL, NULL) : (void *)PEM_read_X509(f, NULL, NULL, NULL);
    CHECK(out);
    fclose(f);
    return out;
}

void certificates_make(const struct certificates *c, const struct certificate_spec *s)
{
    static atomic_long serial = 1;
    const int64_t hour = 3600;
    int usual = !s->from_s && !s->until_s;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new(), *issuer = s->ca ? read_pem(path_of(c, s->ca, "pem"), 0) : x;
    EVP_PKEY *signer = s->ca ? read_pem(path_of(c, s->ca, "key"), 1) : key;
    CHECK(key && x);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), atomic_fetch_add(&serial, 1) + getpid() * 1000l);
    X509_gmtime_adj(X509_getm_notBefore(x), (long)(usual ? -hour : s->from_s));
    X509_gmtime_adj(X509_getm_notAfter(x), (long)(usual ? 30 * 24 * hour : s->until_s));
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)s->name, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(issuer));
    add_extension(x, issuer, NID_basic_constraints, s->ca ? "critical,CA:FALSE" : "critical,CA:TRUE");
    add_extension(x, issuer, NID_subject_key_identifier, "hash");
    if (s->ca)
        add_extension(x, issuer, NID_ext_key_usage, "serverAuth,clientAuth");
    if (s->san)
        add_extension(x, issuer, NID_subject_alt_name, s->san);
    CHECK(X509_sign(x, signer, EVP_sha256()));
    write_pem(path_of(c, s->name, "pem"), x, NULL);
    write_pem(path_of(c, s->name, "key"), NULL, key);
    if (s->ca) {
        X509_free(issuer);
        EVP_PKEY_free(signer);
    }
    X509_free(x);
    EVP_PKEY_free(key);
}

void certificates_write(const struct certificates *c, const char *file, const char *text)
{
    FILE *f = fopen(certificates_path(c, file), "w");
    CHECK(f && fputs(text, f) >= 0);
    fclose(f);
}

void certificates_replace(const struct certificates *c, const char *name, const char *with)
{
    for (int i = 0; i < 2; i++) {
        static char text[1 << 16];
        char file[96];
        FILE *f = fopen(path_of(c, with, i ? "key" : "pem"), "r");
        CHECK(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        snprintf(file, sizeof file, "%s.%s", name, i ? "key" : "pem");
        certificates_write(c, file, text);
    }
}

struct rpc_tls_files certificates_files(const struct certificates *c, const char *name, const char *ca)
{
    return (struct rpc_tls_files){path_of(c, name, "pem"), path_of(c, name, "key"), ca ? path_of(c, ca, "pem") : NULL};
}

struct rpc_tls *certificates_tls(const struct certificates *c, const char *name, const char *ca)
{
    struct rpc_tls_files files = certificates_files(c, name, ca);
    struct rpc_tls *t;
    struct error err;
    CHECK(rpc_tls_open(&files, &t, &err) == STATUS_OK);
    return t;
}
