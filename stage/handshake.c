#include "stage/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/le.h"

static const char magic[8] = {'S', 'L', 'U', 'I', 'L', 'N', 'K', '1'};

enum { LABEL_BYTES = 7, NONCE_BYTES = 32, MAC_BYTES = 32, NONCE_AT = 32 };

static enum status nonce(uint8_t out[NONCE_BYTES], struct error *err)
{
    if (getrandom(out, NONCE_BYTES, 0) != NONCE_BYTES)
        return error_set(err, STATUS_IO, "no random numbers for a link's handshake");
    return STATUS_OK;
}

static enum status mac(const uint8_t key[32], const char label[LABEL_BYTES + 1], const uint8_t *hello,
                       const uint8_t *acceptor_nonce, uint8_t out[MAC_BYTES], struct error *err)
{
    uint8_t text[LABEL_BYTES + HANDSHAKE_HELLO_BYTES + NONCE_BYTES], code[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    memcpy(text, label, LABEL_BYTES);
    memcpy(text + LABEL_BYTES, hello, HANDSHAKE_HELLO_BYTES);
    memcpy(text + LABEL_BYTES + HANDSHAKE_HELLO_BYTES, acceptor_nonce, NONCE_BYTES);
    if (!HMAC(EVP_sha256(), key, 32, text, sizeof text, code, &n) || n != MAC_BYTES)
        return error_set(err, STATUS_INTERNAL, "HMAC-SHA256 failed");
    memcpy(out, code, MAC_BYTES);
    return STATUS_OK;
}

enum status handshake_hello(const struct handshake_edge *e, uint8_t hello[HANDSHAKE_HELLO_BYTES], struct error *err)
{
    memset(hello, 0, HANDSHAKE_HELLO_BYTES);
    memcpy(hello, magic, sizeof magic);
    le_put(hello + 8, e->session, 8);
    le_put(hello + 16, e->epoch, 8);
    le_put(hello + 24, e->from, 2);
    le_put(hello + 26, e->to, 2);
    le_put(hello + 28, e->tls, 4);
    return nonce(hello + NONCE_AT, err);
}

enum status handshake_read_hello(const uint8_t hello[HANDSHAKE_HELLO_BYTES], struct handshake_edge *out, struct error *err)
{
    if (memcmp(hello, magic, sizeof magic) != 0 || le_get(hello + 28, 4) > 1)
        return error_set(err, STATUS_PROTOCOL, "not a stage's handshake");
    *out = (struct handshake_edge){
        .session = le_get(hello + 8, 8),
        .epoch = le_get(hello + 16, 8),
        .from = (uint16_t)le_get(hello + 24, 2),
        .to = (uint16_t)le_get(hello + 26, 2),
        .tls = (uint32_t)le_get(hello + 28, 4),
    };
    return STATUS_OK;
}

enum status handshake_challenge(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                                uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], struct error *err)
{
    TRY(nonce(challenge, err));
    return mac(key, "accept ", hello, challenge, challenge + NONCE_BYTES, err);
}

enum status handshake_prove(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                            const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES], uint8_t proof[HANDSHAKE_PROOF_BYTES],
                            struct error *err)
{
    uint8_t want[MAC_BYTES];
    TRY(mac(key, "accept ", hello, challenge, want, err));
    if (CRYPTO_memcmp(want, challenge + NONCE_BYTES, MAC_BYTES) != 0)
        return error_set(err, STATUS_UNAUTHENTICATED, "the other end does not know the key of this epoch");
    return mac(key, "connect", hello, challenge, proof, err);
}

enum status handshake_verify(const uint8_t key[32], const uint8_t hello[HANDSHAKE_HELLO_BYTES],
                             const uint8_t challenge[HANDSHAKE_CHALLENGE_BYTES],
                             const uint8_t proof[HANDSHAKE_PROOF_BYTES], struct error *err)
{
    uint8_t want[MAC_BYTES];
    TRY(mac(key, "connect", hello, challenge, want, err));
    if (CRYPTO_memcmp(want, proof, MAC_BYTES) != 0)
        return error_set(err, STATUS_UNAUTHENTICATED, "the other end does not know the key of this epoch");
    return STATUS_OK;
}
