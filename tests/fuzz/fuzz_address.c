/* tests/fuzz/fuzz_address.c - HOST:PORT of a flag, or of the greeting of a stage.
 *
 * Input      The text, up to its first 0.
 * Must hold  It is refused with the text in the reason, or is made of nothing but its host and its port: written anew it is read as
 *            the same. With a default for the port no more is taken than without one, but for texts that have none. What counts as
 *            loopback is an address of it, or one of its two names.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/address.h"
#include "common/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int same(const struct address *a, const struct address *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

/* All of the text is host or port: only zeros in front of the port's digits may be lost. */
static void check_whole(const char *text, const struct address *a)
{
    const int bracketed = text[0] == '[';
    const size_t len = strlen(a->host);
    CHECK(len >= 1 && memcmp(text + bracketed, a->host, len) == 0);
    const char *rest = text + bracketed + len;
    if (bracketed)
        CHECK(*rest++ == ']');
    else
        CHECK(!strchr(a->host, ':'));
    if (!*rest)
        return;
    char digits[8];
    CHECK(*rest++ == ':' && *rest);
    while (rest[0] == '0' && rest[1])
        rest++;
    snprintf(digits, sizeof digits, "%u", a->port);
    CHECK(strcmp(rest, digits) == 0);
}

static void check_again(const struct address *a)
{
    char text[sizeof a->host + 16];
    struct address again;
    snprintf(text, sizeof text, strchr(a->host, ':') || a->host[0] == '[' ? "[%s]:%u" : "%s:%u", a->host, a->port);
    CHECK(address_parse(text, -1, "again", &again, NULL) == STATUS_OK && same(a, &again));
}

static void check_loopback(const struct address *a)
{
    struct in_addr v4;
    if (!address_is_loopback(a))
        return;
    CHECK(strcmp(a->host, "localhost") == 0 || strcmp(a->host, "::1") == 0 || (inet_aton(a->host, &v4) && (ntohl(v4.s_addr) >> 24) == 127));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { DEFAULT_PORT = 7411, MAX_TEXT = 1024 };
    char text[MAX_TEXT + 1];
    struct address bare, filled;
    struct error err = {0}, filled_err = {0};
    if (size > MAX_TEXT)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    const enum status s = address_parse(text, -1, "flag", &bare, &err);
    const enum status f = address_parse(text, DEFAULT_PORT, "flag", &filled, &filled_err);
    CHECK(s == STATUS_OK || (s == STATUS_CONFIG && err.status == s && strstr(err.message, "--flag: '")));
    CHECK(f == STATUS_OK || (f == STATUS_CONFIG && filled_err.status == f && strstr(filled_err.message, "--flag: '")));
    if (s == STATUS_OK) {
        CHECK(f == STATUS_OK && same(&bare, &filled));
        check_again(&bare);
    }
    if (f == STATUS_OK) {
        CHECK(s == STATUS_OK || (filled.port == DEFAULT_PORT && !strstr(text, text[0] == '[' ? "]:" : ":")));
        check_whole(text, &filled);
        check_loopback(&filled);
    }
    return 0;
}
