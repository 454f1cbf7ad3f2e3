/* Certificates: which files are taken, who may talk to whom, and what changes when the files do. */
#include "tests/unit/rpc/fixture.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "tests/lib/certificates.h"

static struct fixture f;
static struct certificates certs;

static int make_certificates(void **state)
{
    static const char here[] = "IP:127.0.0.1,DNS:localhost";
    (void)state;
    certificates_open(&certs);
    certificates_make(&certs, &(struct certificate_spec){"ca", .san = NULL});
    certificates_make(&certs, &(struct certificate_spec){"other-ca", .san = NULL});
    certificates_make(&certs, &(struct certificate_spec){"node", "ca", here});
    certificates_make(&certs, &(struct certificate_spec){"node2", "ca", here});
    certificates_make(&certs, &(struct certificate_spec){"nameless", "ca", NULL});
    certificates_make(&certs, &(struct certificate_spec){"elsewhere", "ca", "IP:10.1.2.3,DNS:other.example"});
    certificates_make(&certs, &(struct certificate_spec){"stranger", "other-ca", here});
    certificates_make(&certs, &(struct certificate_spec){"expired", "ca", here, -7200, -60});
    certificates_make(&certs, &(struct certificate_spec){"future", "ca", here, 3600, 7200});
    return 0;
}

static int remove_certificates(void **state)
{
    (void)state;
    certificates_close(&certs);
    return 0;
}

/* --- files ------------------------------------------------------------------------------------------------------------- */

static void expect_refused(struct rpc_tls_files files, const char *first, const char *second)
{
    struct error err = {0};
    struct rpc_tls *t = (struct rpc_tls *)1;
    assert_int_equal(rpc_tls_open(&files, &t, &err), STATUS_CONFIG);
    if (t || !strstr(err.message, first) || !strstr(err.message, second) || strchr(err.message, '\n'))
        fail_msg("'%s' should name '%s' and '%s'", err.message, first, second);
}

static void files_that_cannot_serve_are_named(void **state)
{
    struct rpc_tls_files none = {0}, files = certificates_files(&certs, "node", "ca");
    struct rpc_tls *t = (struct rpc_tls *)1;
    (void)state;
    assert_int_equal(rpc_tls_open(&none, &t, NULL), STATUS_OK);
    assert_null(t);
    assert_false(rpc_tls_is_mutual(t));
    expect_refused((struct rpc_tls_files){.cert = files.cert}, "--tls-key", "missing");
    expect_refused((struct rpc_tls_files){.key = files.key}, "--tls-cert", "missing");
    expect_refused((struct rpc_tls_files){.ca = files.ca}, "--tls-cert", "missing");
    expect_refused((struct rpc_tls_files){"/no/such/file", files.key, NULL}, "--tls-cert /no/such/file", "No such file");
    expect_refused((struct rpc_tls_files){files.cert, "/no/such/key", NULL}, "--tls-key /no/such/key", "No such file");
    expect_refused((struct rpc_tls_files){"/tmp", files.key, NULL}, "--tls-cert /tmp", "no file");
    expect_refused((struct rpc_tls_files){"/dev/zero", files.key, NULL}, "--tls-cert /dev/zero", "no file");
    expect_refused((struct rpc_tls_files){files.key, files.key, NULL}, "--tls-cert", "no PEM certificate");
    expect_refused((struct rpc_tls_files){files.cert, files.cert, NULL}, "--tls-key", "no PEM private key");
    expect_refused((struct rpc_tls_files){files.cert, files.key, files.key}, "--tls-ca", "no PEM certificate");
    expect_refused((struct rpc_tls_files){files.cert, certificates_path(&certs, "node2.key"), NULL}, "--tls-key", "not that of");
    expect_refused(certificates_files(&certs, "expired", "ca"), "--tls-cert", "expired on");
    expect_refused(certificates_files(&certs, "future", "ca"), "--tls-cert", "not valid before");
    expect_refused(certificates_files(&certs, "stranger", "ca"), "--tls-cert", "--tls-ca");
    certificates_write(&certs, "broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    expect_refused((struct rpc_tls_files){certificates_path(&certs, "broken.pem"), files.key, NULL}, "broken.pem", "no PEM");
    certificates_write(&certs, "empty.pem", "");
    expect_refused((struct rpc_tls_files){certificates_path(&certs, "empty.pem"), files.key, NULL}, "empty.pem", "no PEM");
}

static void a_bad_new_file_keeps_the_old_set(void **state)
{
    struct error err;
    (void)state;
    certificates_make(&certs, &(struct certificate_spec){"changing", "ca", "IP:127.0.0.1"});
    struct rpc_tls *t = certificates_tls(&certs, "changing", "ca");
    assert_int_equal(rpc_tls_version(t), 1);
    assert_int_equal(rpc_tls_reload(t, &err), STATUS_OK); /* nothing has changed */
    assert_int_equal(rpc_tls_version(t), 1);
    const struct rpc_tls_pem *first = rpc_tls_acquire(t);
    certificates_replace(&certs, "changing", "expired");
    assert_int_equal(rpc_tls_reload(t, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "expired on"));
    const struct rpc_tls_pem *kept = rpc_tls_acquire(t);
    assert_ptr_equal(kept->cert, first->cert);
    assert_int_equal(rpc_tls_version(t), 1);
    rpc_tls_release(kept);
    certificates_replace(&certs, "changing", "node2");
    assert_int_equal(rpc_tls_reload(t, &err), STATUS_OK);
    assert_int_equal(rpc_tls_version(t), 2);
    const struct rpc_tls_pem *second = rpc_tls_acquire(t);
    assert_string_not_equal(second->cert, first->cert);
    assert_int_equal(first->version, 1);
    assert_non_null(strstr(first->key, "PRIVATE KEY")); /* whole as long as it is held */
    rpc_tls_release(first);
    rpc_tls_release(second);
    rpc_tls_close(t);
}

/* --- who may talk to whom ---------------------------------------------------------------------------------------------- */

static struct {
    int n_done;
    enum status status;
} u;

static void on_tokens(void *ctx, const struct error *err, const uint32_t *ids, size_t n_ids)
{
    (void)ctx;
    (void)ids;
    (void)n_ids;
    pthread_mutex_lock(&f.lock);
    u.status = err->status;
    u.n_done++;
    pthread_cond_broadcast(&f.changed);
    pthread_mutex_unlock(&f.lock);
}

/* One unary call over f.channel. */
static enum status ask(void)
{
    u.n_done = 0;
    assert_int_equal(inference_tokenize(f.channel, text_bytes("ab"), 1, 1, 1500, on_tokens, NULL), STATUS_OK);
    fixture_wait(&f, &u.n_done, 1, 3000);
    return u.status;
}

static void expect_talk(const char *server, const char *client, int works)
{
    struct rpc_tls *s = server ? certificates_tls(&certs, server, "ca") : NULL;
    struct rpc_tls *c = client ? certificates_tls(&certs, client, strcmp(client, "stranger") ? "ca" : "other-ca") : NULL;
    fixture_start_tls(&f, NULL, s, NULL, c);
    enum status got = ask();
    fixture_stop(&f);
    rpc_tls_close(s);
    rpc_tls_close(c);
    if ((got == STATUS_OK) != works)
        fail_msg("server %s, client %s: %s", server ? server : "plain", client ? client : "plain", status_text(got));
}

static void both_ends_need_a_certificate_of_the_ca(void **state)
{
    (void)state;
    expect_talk("node", "node", 1);
    expect_talk("node", "node2", 1);
    expect_talk("node", "nameless", 1);  /* nobody dials a client */
    expect_talk("node", "elsewhere", 1);
    expect_talk("elsewhere", "node", 0); /* another host's certificate */
    expect_talk("nameless", "node", 0);
    expect_talk("node", NULL, 0);
    expect_talk(NULL, "node", 0);
    expect_talk("node", "stranger", 0);
}

/* A client of its own make: the server's port, CA and certificate as named; "" or NULL certificate: none. */
static int openssl_client_succeeds(const char *cert, const char *trust)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)rpc_server_port(f.server))};
    uint8_t hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", buf[256];
    char file[64];
    snprintf(file, sizeof file, "%s.pem", trust);
    assert_int_equal(SSL_CTX_load_verify_locations(ctx, certificates_path(&certs, file), NULL), 1);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    static const unsigned char h2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(ctx, h2, sizeof h2);
    if (cert) {
        struct rpc_tls_files files = certificates_files(&certs, cert, NULL);
        assert_int_equal(SSL_CTX_use_certificate_file(ctx, files.cert, SSL_FILETYPE_PEM), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, files.key, SSL_FILETYPE_PEM), 1);
    }
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval patience = {.tv_sec = 3};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    /* In TLS 1.3 a refused client learns of it with the first read. The server's settings frame is 9 bytes at least. */
    int ok = SSL_connect(ssl) == 1 && SSL_write(ssl, hello, sizeof hello - 1) > 0 && SSL_read(ssl, buf, sizeof buf) >= 9;
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    ERR_clear_error();
    return ok;
}

static void a_client_that_sluice_would_not_start_is_refused_too(void **state)
{
    (void)state;
    struct rpc_tls *s = certificates_tls(&certs, "node", "ca");
    fixture_start_tls(&f, NULL, s, NULL, s);
    assert_true(openssl_client_succeeds("node2", "ca"));
    assert_false(openssl_client_succeeds(NULL, "ca"));
    assert_false(openssl_client_succeeds("expired", "ca"));
    assert_false(openssl_client_succeeds("future", "ca"));
    assert_false(openssl_client_succeeds("stranger", "ca"));
    assert_false(openssl_client_succeeds("other-ca", "ca"));
    assert_false(openssl_client_succeeds("node2", "other-ca")); /* it does not trust us */
    assert_int_equal(ask(), STATUS_OK);
    fixture_stop(&f);
    rpc_tls_close(s);
}

static void a_certificate_does_not_replace_the_secret(void **state)
{
    (void)state;
    struct rpc_tls *s = certificates_tls(&certs, "node", "ca");
    fixture_start_tls(&f, "sixteen-letters!", s, "sixteen-letters!", s);
    assert_int_equal(ask(), STATUS_OK);
    assert_int_equal(f.trusted, 0); /* no Generate yet */
    fixture_generate(&f, &(struct generate_request){.prompt = PROMPT_TEXT, .text = text_bytes("hi"), .sampler = {.top_p = 1}, .max_tokens = -1});
    fixture_wait(&f, &f.n_generate, 1, 2000);
    assert_int_equal(f.trusted, 1);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 2000);
    fixture_stop(&f);
    fixture_start_tls(&f, "sixteen-letters!", s, NULL, s);
    fixture_generate(&f, &(struct generate_request){.prompt = PROMPT_TEXT, .text = text_bytes("hi"), .sampler = {.top_p = 1}, .max_tokens = -1});
    fixture_wait(&f, &f.n_generate, 1, 2000);
    assert_int_equal(f.trusted, 0);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 2000);
    fixture_stop(&f);
    rpc_tls_close(s);
}

/* --- new files --------------------------------------------------------------------------------------------------------- */

static void a_reload_serves_new_calls_and_leaves_the_open_ones(void **state)
{
    struct error err;
    (void)state;
    /* The server's old certificate and CA are replaced by ones that know nothing of each other. */
    certificates_make(&certs, &(struct certificate_spec){"s", "ca", "IP:127.0.0.1"});
    certificates_make(&certs, &(struct certificate_spec){"c", "ca", "IP:127.0.0.1"});
    certificates_replace(&certs, "current-ca", "ca");
    struct rpc_tls *s = certificates_tls(&certs, "s", "current-ca"), *c = certificates_tls(&certs, "c", "current-ca");
    fixture_start_tls(&f, NULL, s, NULL, c);
    fixture_generate(&f, &(struct generate_request){.prompt = PROMPT_TEXT, .text = text_bytes("hi"), .sampler = {.top_p = 1}, .max_tokens = -1});
    fixture_wait(&f, &f.n_generate, 1, 2000);
    fixture_send_text(&f, "before ", NULL, 0, STATUS_OK);
    certificates_replace(&certs, "current-ca", "other-ca");
    certificates_replace(&certs, "s", "stranger");
    assert_int_equal(rpc_tls_reload(s, &err), STATUS_OK);
    assert_int_equal(ask(), STATUS_OK); /* over the open connection: nothing was dropped */
    certificates_replace(&certs, "c", "stranger");
    assert_int_equal(rpc_tls_reload(c, &err), STATUS_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ask(), STATUS_OK); /* over a new one, which the old certificates could not have made */
    assert_false(openssl_client_succeeds("node", "ca"));
    assert_true(openssl_client_succeeds("stranger", "other-ca"));
    fixture_send_text(&f, "and after", NULL, 0, STATUS_OK);
    fixture_send_done(&f);
    fixture_wait(&f, &f.n_ended, 1, 2000);
    assert_int_equal(f.end.status, STATUS_OK);
    assert_memory_equal(f.text, "before and after", 16);
    fixture_stop(&f);
    rpc_tls_close(s);
    rpc_tls_close(c);
}

static void many_reloads_under_calls_lose_none(void **state)
{
    struct error err;
    (void)state;
    certificates_make(&certs, &(struct certificate_spec){"s", "ca", "IP:127.0.0.1"});
    struct rpc_tls *t = certificates_tls(&certs, "s", "ca");
    fixture_start_tls(&f, NULL, t, NULL, t);
    for (int i = 0; i < 20; i++) {
        certificates_replace(&certs, "s", i % 2 ? "node" : "node2");
        assert_int_equal(rpc_tls_reload(t, &err), STATUS_OK);
        assert_int_equal(ask(), STATUS_OK);
    }
    assert_int_equal(rpc_tls_version(t), 21);
    fixture_stop(&f);
    rpc_tls_close(t);
}

static void a_certificate_that_expires_ends_no_open_connection(void **state)
{
    (void)state;
    certificates_make(&certs, &(struct certificate_spec){"brief", "ca", "IP:127.0.0.1", -3600, 2});
    struct rpc_tls *t = certificates_tls(&certs, "brief", "ca");
    fixture_start_tls(&f, NULL, t, NULL, t);
    assert_int_equal(ask(), STATUS_OK);
    for (int i = 0; i < 60 && openssl_client_succeeds("node", "ca"); i++)
        sleep_ms(50);
    assert_int_equal(ask(), STATUS_OK);
    assert_false(openssl_client_succeeds("node", "ca")); /* but makes no new one */
    fixture_stop(&f);
    rpc_tls_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_cannot_serve_are_named),
        cmocka_unit_test(a_bad_new_file_keeps_the_old_set),
        cmocka_unit_test(both_ends_need_a_certificate_of_the_ca),
        cmocka_unit_test(a_client_that_sluice_would_not_start_is_refused_too),
        cmocka_unit_test(a_certificate_does_not_replace_the_secret),
        cmocka_unit_test(a_reload_serves_new_calls_and_leaves_the_open_ones),
        cmocka_unit_test(many_reloads_under_calls_lose_none),
        cmocka_unit_test(a_certificate_that_expires_ends_no_open_connection),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, make_certificates, remove_certificates);
}
