#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "rpc/gateway/auth.h"

/* some hash, and half of one */
#define HASH_A "51471cd67cc44c4e4c12c18198fc7c5c5b4a36d1b24fd0ac1a1a80bdf8a0b8cf"
#define HASH_B "c5f3b5a0a3f02ab6e0a2f6bdd3e3e3b5"

static void a_keys_file_has_names_hashes_comments_and_blank_lines(void **state)
{
    static const char text[] = "# keys\n\n  alice\tsha256:" HASH_A "  \r\nbob sha256:" HASH_A;
    struct api_keys k;
    struct error err;
    (void)state;
    assert_int_equal(api_keys_parse(text, sizeof text - 1, &k, &err), STATUS_OK);
    assert_int_equal(k.n, 2);
    assert_string_equal(k.key[0].name, "alice");
    assert_int_equal(k.key[1].sha256[0], 0x51);
    api_keys_fini(&k);
}

static void a_bad_keys_file_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "no key"},
        {"# only\n", "no key"},
        {"\n\nalice\n", "line 3"},
        {"alice sha256:" HASH_B "\n", "line 1"},
        {"alice sha1:" HASH_A "\n", "line 1"},
        {"alice sha256:" HASH_A "00\n", "line 1"},
        {"alice sha256:" HASH_A "\nbob md5\n", "line 2"},
        {"alice sha256:" HASH_A "\nalice sha256:" HASH_A "\n", "twice"},
        {"a23456789a23456789a23456789a23456789a23456789a23456789a23456789a23456789 sha256:" HASH_A, "line 1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct api_keys k;
        struct error err = {0};
        assert_int_equal(api_keys_parse(rows[i].text, strlen(rows[i].text), &k, &err), STATUS_CONFIG);
        if (!strstr(err.message, rows[i].says))
            fail_msg("%s: %s", rows[i].text, err.message);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void keys_are_asked_for_and_a_bad_reload_keeps_the_old(void **state)
{
    char path[] = "/tmp/sluice-keys-XXXXXX", client[CLIENT_BYTES], other[CLIENT_BYTES];
    struct auth *a;
    struct error err;
    (void)state;
    close(mkstemp(path));
    /* printf secret | sha256sum */
    write_file(path, "alice sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n");
    assert_int_equal(auth_create(path, &a, &err), STATUS_OK);
    assert_int_equal(auth_check(a, "Bearer secret", "1.2.3.4", client, &err), STATUS_OK);
    assert_int_equal(strlen(client), 32);
    assert_int_equal(auth_check(a, "Bearer secret2", "1.2.3.4", other, &err), STATUS_UNAUTHENTICATED);
    assert_int_equal(auth_check(a, "Basic secret", "1.2.3.4", other, &err), STATUS_UNAUTHENTICATED);
    assert_int_equal(auth_check(a, NULL, "1.2.3.4", other, &err), STATUS_UNAUTHENTICATED);
    write_file(path, "nonsense\n");
    assert_int_equal(auth_reload(a, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "line 1"));
    assert_int_equal(auth_check(a, "bearer  secret", "1.2.3.4", other, &err), STATUS_OK);
    assert_string_equal(client, other);
    unlink(path);
    assert_int_equal(auth_reload(a, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(auth_check(a, "bearer secret", "1.2.3.4", other, &err), STATUS_OK);
    auth_destroy(a);
}

static void without_keys_a_bearer_or_the_address_names_the_client(void **state)
{
    char one[CLIENT_BYTES], two[CLIENT_BYTES];
    struct auth *a;
    struct error err;
    (void)state;
    assert_int_equal(auth_create(NULL, &a, &err), STATUS_OK);
    assert_int_equal(auth_check(a, NULL, "1.2.3.4", one, &err), STATUS_OK);
    assert_string_equal(one, "1.2.3.4");
    assert_int_equal(auth_check(a, "Bearer one", "1.2.3.4", one, &err), STATUS_OK);
    assert_int_equal(auth_check(a, "Bearer two", "1.2.3.4", two, &err), STATUS_OK);
    assert_string_not_equal(one, two);
    auth_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_keys_file_has_names_hashes_comments_and_blank_lines),
        cmocka_unit_test(a_bad_keys_file_is_refused_with_its_line),
        cmocka_unit_test(keys_are_asked_for_and_a_bad_reload_keeps_the_old),
        cmocka_unit_test(without_keys_a_bearer_or_the_address_names_the_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
