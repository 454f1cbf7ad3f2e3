#include "stage/link_tls.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

/* Several records go out with one system call: each wakes the reader (docs/bench/2026-11-29-links.md). */
enum { KEY_BYTES = 32, RECORD_BYTES = 16384, N_RECORDS = 8, RECORD_EXTRA = 512, READ_BUFFER_BYTES = 128 << 10 };

static const unsigned char identity[] = "sluice link"; /* the key is chosen by HELLO, not by its name */
static const unsigned char cipher_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct link_tls_context {
    SSL_CTX *core;
    BIO_METHOD *sink; /* what the core writes goes to link_tls.out */
    uint32_t rekey_records;
};

struct link_tls {
    struct link_tls_context *context;
    SSL *core;
    int fd;
    uint8_t key[KEY_BYTES];
    uint32_t n_records;           /* under the present key */
    int stands;                   /* the handshake is over */
    int dry;                      /* the last read found no whole record */
    size_t taken;                 /* of the bytes of the write that is to be repeated: they are in out */
    size_t out_at, n_out;
    uint8_t record[RECORD_BYTES]; /* small pieces are joined: a record costs 22 bytes and its own call of the cipher */
    uint8_t out[N_RECORDS * (RECORD_BYTES + RECORD_EXTRA)];
};

/* --- what goes out ------------------------------------------------------------------------------------------------------------------- */

static int sink_write(BIO *b, const char *data, size_t len, size_t *written)
{
    struct link_tls *t = BIO_get_data(b);
    if (len > sizeof t->out - t->n_out)
        return 0;
    memcpy(t->out + t->n_out, data, len);
    t->n_out += len;
    *written = len;
    return 1;
}

static long sink_ctrl(BIO *b, int what, long number, void *arg)
{
    (void)b;
    (void)number;
    (void)arg;
    return what == BIO_CTRL_FLUSH;
}

/* *events POLLOUT: not all of it is in the socket yet. */
static enum status flush(struct link_tls *t, short *events, struct error *err)
{
    *events = 0;
    while (t->out_at < t->n_out) {
        ssize_t n = send(t->fd, t->out + t->out_at, t->n_out - t->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            t->out_at += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            *events = POLLOUT;
            return STATUS_OK;
        } else if (errno != EINTR) {
            return errno == EPIPE || errno == ECONNRESET ? error_set(err, STATUS_LINK, "the other end has closed the link")
                                                         : error_set(err, STATUS_LINK, "write: %s", strerror(errno));
        }
    }
    t->out_at = t->n_out = 0;
    return STATUS_OK;
}

/* --- errors ------------------------------------------------------------------------------------------------------------------------ */

/* The core's last error in words; its queue belongs to the thread and is emptied. */
static enum status failed(const struct link_tls *t, const char *what, int rc, struct error *err)
{
    int kind = SSL_get_error(t->core, rc), number = errno;
    unsigned long code = ERR_peek_last_error();
    const char *reason = ERR_reason_error_string(code);
    int left = kind == SSL_ERROR_ZERO_RETURN || (kind == SSL_ERROR_SYSCALL && (number == 0 || number == EPIPE || number == ECONNRESET)) ||
               (kind == SSL_ERROR_SSL && ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING);
    enum status s;
    if (left)
        s = error_set(err, STATUS_LINK, "the other end has closed the link");
    else if (kind == SSL_ERROR_SYSCALL)
        s = error_set(err, STATUS_LINK, "%s: %s", what, strerror(number));
    else if (!t->stands)
        s = error_set(err, STATUS_UNAUTHENTICATED, "the other end does not know the key of this epoch (%s)", reason ? reason : "TLS");
    else
        s = error_set(err, STATUS_LINK, "%s: %s", what, reason ? reason : "TLS failed");
    ERR_clear_error();
    return s;
}

/* 0: it failed for good. */
static short awaited(const struct link_tls *t, int rc)
{
    int kind = SSL_get_error(t->core, rc);
    return kind == SSL_ERROR_WANT_READ ? POLLIN : kind == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
}

/* --- the key ----------------------------------------------------------------------------------------------------------------------- */

static SSL_SESSION *make_session(SSL *core)
{
    const struct link_tls *t = SSL_get_app_data(core);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(core, cipher_id);
    SSL_SESSION *s = SSL_SESSION_new();
    if (s && cipher && SSL_SESSION_set1_master_key(s, t->key, KEY_BYTES) && SSL_SESSION_set_cipher(s, cipher) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int on_use(SSL *core, const EVP_MD *md, const unsigned char **id, size_t *id_len, SSL_SESSION **out)
{
    (void)md;
    *id = identity;
    *id_len = sizeof identity - 1;
    *out = make_session(core);
    return *out != NULL;
}

static int on_find(SSL *core, const unsigned char *id, size_t id_len, SSL_SESSION **out)
{
    int ours = id_len == sizeof identity - 1 && memcmp(id, identity, id_len) == 0;
    *out = ours ? make_session(core) : NULL; /* NULL: no such key, and without a certificate that is the end */
    return !ours || *out;
}

enum status link_tls_context_create(uint32_t rekey_records, struct link_tls_context **out, struct error *err)
{
    struct link_tls_context *c = calloc(1, sizeof *c);
    if (!c || !(c->core = SSL_CTX_new(TLS_method())) || !(c->sink = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "link"))) {
        link_tls_context_destroy(c);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for TLS on links");
    }
    c->rekey_records = rekey_records;
    BIO_meth_set_write_ex(c->sink, sink_write);
    BIO_meth_set_ctrl(c->sink, sink_ctrl);
    int ok = SSL_CTX_set_min_proto_version(c->core, TLS1_3_VERSION) && SSL_CTX_set_max_proto_version(c->core, TLS1_3_VERSION) &&
             SSL_CTX_set_ciphersuites(c->core, "TLS_AES_128_GCM_SHA256") && SSL_CTX_set1_groups_list(c->core, "X25519:P-256") &&
             SSL_CTX_set_num_tickets(c->core, 0); /* a ticket would wait in the socket of a link that nobody reads */
    SSL_CTX_set_session_cache_mode(c->core, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(c->core, 1);
    SSL_CTX_set_default_read_buffer_len(c->core, READ_BUFFER_BYTES);
    SSL_CTX_set_psk_use_session_callback(c->core, on_use);
    SSL_CTX_set_psk_find_session_callback(c->core, on_find);
    if (!ok) {
        link_tls_context_destroy(c);
        ERR_clear_error();
        return error_set(err, STATUS_CONFIG, "this OpenSSL does not do TLS 1.3 with a pre-shared key");
    }
    *out = c;
    return STATUS_OK;
}

void link_tls_context_destroy(struct link_tls_context *c)
{
    if (!c)
        return;
    SSL_CTX_free(c->core);
    BIO_meth_free(c->sink);
    free(c);
}

/* --- one connection ------------------------------------------------------------------------------------------------------------------ */

static int derive(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES], uint8_t out[KEY_BYTES])
{
    static const char label[] = "sluice link tls ";
    uint8_t text[sizeof label - 1 + HANDSHAKE_HELLO_BYTES];
    unsigned n = 0;
    memcpy(text, label, sizeof label - 1);
    memcpy(text + sizeof label - 1, hello, HANDSHAKE_HELLO_BYTES);
    return HMAC(EVP_sha256(), key, 32, text, sizeof text, out, &n) && n == KEY_BYTES;
}

enum status link_tls_create(struct link_tls_context *c, enum link_tls_end end, int fd, const uint8_t key[32],
                            const uint8_t hello[HANDSHAKE_HELLO_BYTES], struct link_tls **out, struct error *err)
{
    struct link_tls *t = calloc(1, sizeof *t);
    BIO *sink = BIO_new(c->sink);
    if (t)
        t->core = SSL_new(c->core);
    if (!t || !sink || !t->core || !derive(key, hello, t->key) || !SSL_set_rfd(t->core, fd) || !SSL_set_app_data(t->core, t)) {
        BIO_free(sink);
        link_tls_destroy(t);
        ERR_clear_error();
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for TLS on a link");
    }
    BIO_set_data(sink, t);
    BIO_set_init(sink, 1);
    SSL_set0_wbio(t->core, sink);
    t->context = c;
    t->fd = fd;
    if (end == LINK_TLS_ACCEPT) {
        SSL_set_accept_state(t->core);
    } else {
        SSL_set_connect_state(t->core);
        SSL_set_verify(t->core, SSL_VERIFY_PEER, NULL); /* no CA is known: a certificate in place of the key is refused */
    }
    *out = t;
    return STATUS_OK;
}

void link_tls_destroy(struct link_tls *t)
{
    if (!t)
        return;
    SSL_free(t->core);
    OPENSSL_cleanse(t->key, sizeof t->key);
    free(t);
}

enum status link_tls_shake(struct link_tls *t, short *events, struct error *err)
{
    errno = 0;
    ERR_clear_error();
    int rc = t->stands ? 1 : SSL_do_handshake(t->core);
    short wanted = rc == 1 ? 0 : awaited(t, rc);
    enum status s = rc != 1 && !wanted ? failed(t, "handshake", rc, err) : STATUS_OK;
    if (s == STATUS_OK && rc == 1 && !SSL_session_reused(t->core)) /* that is how the core says that the key was used */
        s = error_set(err, STATUS_UNAUTHENTICATED, "the other end did not use the key of this epoch");
    t->stands = s == STATUS_OK && rc == 1;
    /* A failure's last word, an alert, tells the other end what it was. */
    enum status sent = flush(t, events, s == STATUS_OK ? err : NULL);
    if (!*events)
        *events = wanted;
    return s == STATUS_OK ? sent : s;
}

enum status link_tls_read(struct link_tls *t, void *buf, size_t len, size_t *got, short *events, struct error *err)
{
    *got = 0;
    *events = 0;
    errno = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(t->core, buf, len, got);
    t->dry = rc != 1;
    if (rc == 1)
        return STATUS_OK;
    *got = 0;
    *events = awaited(t, rc);
    return *events ? STATUS_OK : failed(t, "read", rc, err);
}

/* What the next record is to hold, from `skip` bytes on: a long piece as it lies, else several joined. */
static const void *gather(struct link_tls *t, const struct iovec *iov, int n_iov, size_t skip, size_t *len)
{
    *len = 0;
    while (n_iov && iov->iov_len == skip) {
        iov++;
        n_iov--;
        skip = 0;
    }
    if (n_iov && (n_iov == 1 || iov->iov_len - skip >= RECORD_BYTES)) {
        size_t left = iov->iov_len - skip;
        *len = left < RECORD_BYTES ? left : RECORD_BYTES;
        return (const char *)iov->iov_base + skip;
    }
    for (int i = 0; i < n_iov && *len < RECORD_BYTES; i++, skip = 0) {
        size_t left = iov[i].iov_len - skip, n = left < RECORD_BYTES - *len ? left : RECORD_BYTES - *len;
        memcpy(t->record + *len, (const char *)iov[i].iov_base + skip, n);
        *len += n;
    }
    return t->record;
}

/* Up to N_RECORDS records into out. Returns how many bytes of iov are in them. */
static enum status encrypt(struct link_tls *t, const struct iovec *iov, int n_iov, size_t *taken, struct error *err)
{
    size_t skip = 0; /* of iov[0] */
    *taken = 0;
    for (int i = 0; i < N_RECORDS - 1; i++) { /* one place is for a change of keys */
        size_t len, put = 0;
        const void *data = gather(t, iov, n_iov, skip, &len);
        if (len == 0)
            break;
        if (t->n_records >= t->context->rekey_records) {
            if (!SSL_key_update(t->core, SSL_KEY_UPDATE_NOT_REQUESTED))
                return failed(t, "change of keys", 0, err);
            t->n_records = 0;
        }
        int rc = SSL_write_ex(t->core, data, len, &put);
        if (rc != 1)
            return failed(t, "write", rc, err);
        t->n_records++;
        *taken += put;
        for (skip += put; n_iov && skip >= iov->iov_len; iov++, n_iov--)
            skip -= iov->iov_len;
    }
    return STATUS_OK;
}

enum status link_tls_write(struct link_tls *t, const struct iovec *iov, int n_iov, size_t *put, short *events, struct error *err)
{
    *put = 0;
    *events = 0;
    errno = 0;
    ERR_clear_error();
    if (t->taken == 0)
        TRY(encrypt(t, iov, n_iov, &t->taken, err));
    TRY(flush(t, events, err));
    if (*events == 0) {
        *put = t->taken;
        t->taken = 0;
    }
    return STATUS_OK;
}

int link_tls_may_hold_bytes(const struct link_tls *t)
{
    return !t->dry;
}
