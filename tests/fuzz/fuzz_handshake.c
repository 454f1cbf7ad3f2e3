/* tests/fuzz/fuzz_handshake.c - the messages that open a link, from an end that knows the key and from one that does not.
 *
 * Input      HELLO 64, CHALLENGE 64 and PROOF 32 as they came, shorter ones filled with zeros; then what is changed in messages of
 *            an end that knows the key: 1 byte which, 1 byte where, 1 byte mask, repeated.
 * Must hold  A hello that is read is written the same again, but for its nonce. Without the key nothing is proven: bytes that came
 *            are no challenge and no proof (that they are would be a guess of 256 bits), and one changed byte of hello, challenge or
 *            proof, or the other role's code in its place, is refused with a reason; with none changed all is accepted. Answers
 *            are written only on success.
 */
#include <stdint.h>
#include <string.h>

#include "common/base/check.h"
#include "stage/handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HELLO = HANDSHAKE_HELLO_BYTES, CHALLENGE = HANDSHAKE_CHALLENGE_BYTES, PROOF = HANDSHAKE_PROOF_BYTES };

struct talk {
    uint8_t hello[HELLO], challenge[CHALLENGE], proof[PROOF];
};

static const uint8_t key[32] = {1, 2, 3, 4, 5, 6, 7, 8}, other_key[32] = {1, 2, 3, 4, 5, 6, 7, 9};

static int refused(enum status s, enum status want, const struct error *err)
{
    return s == want && err->status == want && err->message[0];
}

static void check_hello(const uint8_t *hello)
{
    struct handshake_edge e = {.session = 99};
    struct error err = {0};
    uint8_t again[HELLO];
    enum status s = handshake_read_hello(hello, &e, &err);
    if (s != STATUS_OK) {
        CHECK(refused(s, STATUS_PROTOCOL, &err) && e.session == 99);
        return;
    }
    CHECK(e.tls <= 1 && handshake_hello(&e, again, &err) == STATUS_OK);
    CHECK(memcmp(again, hello, 32) == 0); /* the rest is the nonce */
}

/* Nobody who made these bytes knew the key: both roles refuse them. */
static void check_strangers(const struct talk *t)
{
    struct error err = {0};
    uint8_t proof[PROOF] = {0};
    static const uint8_t untouched[PROOF];
    CHECK(refused(handshake_prove(key, t->hello, t->challenge, proof, &err), STATUS_UNAUTHENTICATED, &err));
    CHECK(memcmp(proof, untouched, sizeof proof) == 0);
    CHECK(refused(handshake_verify(key, t->hello, t->challenge, t->proof, &err), STATUS_UNAUTHENTICATED, &err));
}

/* A talk of two ends that know the key, about the edge of a hello as it came. */
static void hold(const uint8_t *hello, struct talk *t)
{
    struct error err;
    memcpy(t->hello, hello, HELLO);
    CHECK(handshake_challenge(key, t->hello, t->challenge, &err) == STATUS_OK);
    CHECK(handshake_prove(key, t->hello, t->challenge, t->proof, &err) == STATUS_OK);
    CHECK(handshake_verify(key, t->hello, t->challenge, t->proof, &err) == STATUS_OK);
    CHECK(refused(handshake_prove(other_key, t->hello, t->challenge, t->proof, &err), STATUS_UNAUTHENTICATED, &err));
    CHECK(refused(handshake_verify(other_key, t->hello, t->challenge, t->proof, &err), STATUS_UNAUTHENTICATED, &err));
    CHECK(memcmp(t->proof, t->challenge + 32, PROOF) != 0); /* a code sent back proves nothing */
    CHECK(refused(handshake_verify(key, t->hello, t->challenge, t->challenge + 32, &err), STATUS_UNAUTHENTICATED, &err));
}

/* The bytes as each end got them from the other: with a change underway one of the two must notice. */
static void check_changed(const struct talk *said, const uint8_t *changes, size_t n)
{
    struct talk t = *said;
    struct error err = {0};
    uint8_t *const part[] = {t.hello, t.challenge, t.proof};
    static const uint8_t len[] = {HELLO, CHALLENGE, PROOF};
    for (; n >= 3; changes += 3, n -= 3)
        part[changes[0] % 3][changes[1] % len[changes[0] % 3]] ^= changes[2];
    const int head_same = memcmp(t.hello, said->hello, HELLO) == 0 && memcmp(t.challenge, said->challenge, CHALLENGE) == 0;
    uint8_t proof[PROOF];
    enum status s = handshake_prove(key, t.hello, t.challenge, proof, &err);
    CHECK(head_same ? s == STATUS_OK && memcmp(proof, said->proof, PROOF) == 0 : refused(s, STATUS_UNAUTHENTICATED, &err));
    const int nonces_same = memcmp(t.hello, said->hello, HELLO) == 0 && memcmp(t.challenge, said->challenge, 32) == 0;
    s = handshake_verify(key, t.hello, t.challenge, t.proof, &err);
    if (nonces_same && memcmp(t.proof, said->proof, PROOF) == 0)
        CHECK(s == STATUS_OK);
    else
        CHECK(refused(s, STATUS_UNAUTHENTICATED, &err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct talk came = {0}, said;
    const size_t n = size < sizeof came ? size : sizeof came;
    if (n)
        memcpy(&came, data, n);
    check_hello(came.hello);
    check_strangers(&came);
    hold(came.hello, &said);
    check_changed(&said, data + n, size - n);
    return 0;
}
