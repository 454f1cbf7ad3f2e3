/* tests/fuzz/fuzz_resume_token.c - the token that a client shows to go on with an answer.
 *
 * Input      1 byte where and 1 byte mask of a change to a right token, then the token as it came.
 * Must hold  What is read is written the same again; what is not leaves the caller's alone. A token that came is nobody's: it is
 *            refused whatever it says. The right token of the profile that came passes over the wire, and with any change, or for
 *            another request or key, is refused.
 */
#include <stdint.h>
#include <string.h>

#include "common/base/check.h"
#include "coordinator/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct resume_key key, other_key;
static uint32_t ids[3] = {7, 8, 9};
static struct request request, other_request;

static void make_requests(void)
{
    static const uint8_t model[32] = {1, 2, 3};
    CHECK(resume_key_init(&key, "a secret", model, NULL) == STATUS_OK);
    CHECK(resume_key_init(&other_key, "another secret", model, NULL) == STATUS_OK);
    request = (struct request){.id = "req-1", .client = "alice", .prompt_ids = ids, .n_prompt = 3, .max_tokens = 20};
    other_request = request;
    other_request.n_prompt = 2;
}

static void check_refused(const struct resume_key *k, const struct request *r, const struct resume_token *t)
{
    struct error err = {0};
    CHECK(resume_token_check(k, r, t, &err) == STATUS_FORBIDDEN && err.message[0] && strcmp(err.code, "resume_token") == 0);
}

/* A right token, as a coordinator would have given it out. */
static void check_own(const char *profile, uint8_t where, uint8_t mask)
{
    struct resume_token own = {.profile = ""}, came;
    struct error err;
    uint8_t bytes[RESUME_TOKEN_BYTES];
    memcpy(own.profile, profile, strlen(profile));
    CHECK(resume_token_make(&key, &request, &own, &err) == STATUS_OK);
    const uint32_t len = resume_token_write(&own, bytes);
    CHECK(len <= RESUME_TOKEN_BYTES && resume_token_read(bytes, len, &came));
    CHECK(memcmp(&came, &own, sizeof own) == 0 && resume_token_check(&key, &request, &came, &err) == STATUS_OK);
    check_refused(&other_key, &request, &came);
    check_refused(&key, &other_request, &came);
    bytes[where % len] ^= mask;
    if (mask && resume_token_read(bytes, len, &came))
        check_refused(&key, &request, &came);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct resume_token t, before;
    uint8_t again[RESUME_TOKEN_BYTES];
    if (!request.n_prompt)
        make_requests();
    if (size < 2)
        return 0;
    const uint8_t *token = data + 2;
    const size_t len = size - 2;
    memset(&before, 0xa5, sizeof before);
    t = before;
    if (!resume_token_read(token, len, &t)) {
        CHECK(memcmp(&t, &before, sizeof t) == 0);
        check_own("", data[0], data[1]);
        return 0;
    }
    CHECK(len <= RESUME_TOKEN_BYTES && strnlen(t.profile, sizeof t.profile) == len - 1 - RESUME_MAC_BYTES);
    CHECK(resume_token_write(&t, again) == len && memcmp(again, token, len) == 0);
    check_refused(&key, &request, &t);
    check_own(t.profile, data[0], data[1]);
    return 0;
}
