/* Parameters: file, environment, flags; the last one wins; every mistake is one clear line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "common/base/config.h"

static enum status read_flags(enum program p, struct config *c, struct error *err, ...)
{
    char *argv[32] = {(char *)"program"};
    int argc = 1;
    va_list ap;
    va_start(ap, err);
    for (char *a; (a = va_arg(ap, char *)) && argc < 31;)
        argv[argc++] = a;
    va_end(ap);
    enum config_action action;
    return config_read(p, argc, argv, c, &action, err);
}

static void config_defaults_are_those_of_the_interface(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(read_flags(PROGRAM_COORDINATOR, &c, NULL, NULL), STATUS_OK);
    assert_int_equal(c.slots, 8);
    assert_int_equal(c.kv_block, 64);
    assert_int_equal(c.kv_mib, -1);
    assert_string_equal(c.grpc, "127.0.0.1:7411");
    assert_true(c.decode_share == 0.5);
    assert_int_equal(c.queue_requests, 1024);
    assert_int_equal(c.max_stall_ms, 250);
    assert_null(c.model);
}

static void config_flags_win_over_environment_and_file(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-test-config-XXXXXX";
    int fd = mkstemp(path);
    const char text[] = "# a comment\nslots = 3\n kv-block = 32 \nheartbeat-ms=111\nhttp = 127.0.0.1:1\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    setenv("SLUICE_KV_BLOCK", "128", 1);
    setenv("SLUICE_HEARTBEAT_MS", "222", 1);
    struct config c;
    struct error err = {0};
    assert_int_equal(read_flags(PROGRAM_COORDINATOR, &c, &err, "--config", path, "--heartbeat-ms", "333", NULL), STATUS_OK);
    unsetenv("SLUICE_KV_BLOCK");
    unsetenv("SLUICE_HEARTBEAT_MS");
    unlink(path);
    assert_int_equal(c.slots, 3);
    assert_int_equal(c.kv_block, 128);
    assert_int_equal(c.heartbeat_ms, 333);
}

static void config_certificates_are_flags_of_every_program(void **state)
{
    (void)state;
    const enum program programs[] = {PROGRAM_COORDINATOR, PROGRAM_STAGE, PROGRAM_GATEWAY, PROGRAM_LAUNCH};
    struct config c;
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        assert_int_equal(read_flags(programs[i], &c, NULL, NULL), STATUS_OK);
        assert_true(!c.tls_cert && !c.tls_key && !c.tls_ca);
        assert_int_equal(read_flags(programs[i], &c, NULL, "--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c", NULL), STATUS_OK);
        assert_string_equal(c.tls_cert, "a");
        assert_string_equal(c.tls_key, "b");
        assert_string_equal(c.tls_ca, "c");
    }
    for (size_t i = 0; i < 3; i++) { /* the launcher hands them to each child */
        const char *flags[16];
        assert_int_equal(config_child_flags(&c, programs[i], flags, 16), 6);
        assert_string_equal(flags[0], "--tls-cert");
        assert_string_equal(flags[5], "c");
    }
}

static void config_mistakes_name_the_flag_and_what_is_allowed(void **state)
{
    (void)state;
    const struct {
        const char *flag, *value, *named, *allowed;
    } bad[] = {
        {"--slots", "0", "slots", "1 to 4096"},       {"--slots", "9x", "slots", "1 to 4096"},
        {"--slots", "", "slots", "1 to 4096"},        {"--slots", "99999999999999999999", "slots", "1 to 4096"},
        {"--kv-block", "17", "kv-block", "16, 32, 64 or 128"}, {"--decode-share", "0.95", "decode-share", "0 to 0.9"},
        {"--decode-share", "nan", "decode-share", "0 to 0.9"}, {"--kv-type", "q4", "kv-type", "f16|q8_0"},
        {"--exact", "maybe", "exact", "on or off"},   {"--no-such-flag", "1", "no-such-flag", "--help"},
        {"--http", "127.0.0.1:1", "http", "--help"}, /* the gateway's, not the coordinator's */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct config c;
        struct error err = {0};
        assert_int_equal(read_flags(PROGRAM_COORDINATOR, &c, &err, bad[i].flag, bad[i].value, NULL), STATUS_CONFIG);
        assert_non_null(strstr(err.message, bad[i].named));
        assert_non_null(strstr(err.message, bad[i].allowed));
        assert_null(strchr(err.message, '\n'));
    }
}

static void config_the_launcher_refuses_what_it_sets_for_its_children(void **state)
{
    (void)state;
    const char *const own[] = {"--stage", "--coordinator"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        struct config c;
        struct error err = {0};
        assert_int_equal(read_flags(PROGRAM_STAGE, &c, &err, own[i], "1", NULL), STATUS_OK);
        assert_int_equal(read_flags(PROGRAM_LAUNCH, &c, &err, own[i], "1", NULL), STATUS_CONFIG);
        assert_non_null(strstr(err.message, own[i]));
    }
}

/* A range is what may be typed: 16777216, not 1.67772e+07. */
static void config_help_prints_whole_ranges(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    config_help(PROGRAM_LAUNCH, f);
    fclose(f);
    assert_non_null(strstr(text, "[16..16777216]"));
    assert_non_null(strstr(text, "[0..0.9]"));
    assert_null(strstr(text, "e+"));
    assert_null(strstr(text, "--coordinator "));
    free(text);
}

/* Reads a file of these bytes. */
static enum status read_bytes(const char *bytes, size_t len, struct config *c, struct error *err)
{
    char path[32];
    int fd = memfd_create("config", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    enum status s = read_flags(PROGRAM_LAUNCH, c, err, "--config", path, NULL);
    close(fd);
    return s;
}

static void config_a_long_line_of_a_file_is_one_line(void **state)
{
    (void)state;
    struct config c;
    struct error err = {0};
    char text[9000];
    memset(text, 'x', sizeof text);
    text[0] = '#';
    memcpy(text + 4095, "slots = 9", 9); /* far inside a comment */
    memcpy(text + 8980, "\nslots = 3\n#", 12);
    assert_int_equal(read_bytes(text, sizeof text, &c, &err), STATUS_OK);
    assert_int_equal(c.slots, 3);
    memcpy(text + 8980, "\nslots = x\n#", 12);
    assert_int_equal(read_bytes(text, sizeof text, &c, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, ":2: slots"));
}

static void config_a_zero_byte_in_a_file_hides_nothing(void **state)
{
    (void)state;
    struct config c;
    struct error err = {0};
    const char after[] = "slots = 3\0 000\n", before[] = "\0slots = 3\n";
    assert_int_equal(read_bytes(after, sizeof after - 1, &c, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, ":1: "));
    assert_int_equal(read_bytes(before, sizeof before - 1, &c, &err), STATUS_CONFIG);
}

static void config_a_value_that_looks_like_a_flag_is_a_value(void **state)
{
    (void)state;
    struct config c;
    struct error err = {0};
    assert_int_equal(read_flags(PROGRAM_STAGE, &c, &err, "--model", "--help", "--log", "--config", "--threads", "2", NULL), STATUS_OK);
    assert_string_equal(c.model, "--help");
    assert_string_equal(c.log, "--config");
    assert_string_equal(c.threads, "2");
}

static void config_a_mistake_with_a_long_value_still_says_what_is_allowed(void **state)
{
    (void)state;
    struct config c;
    struct error err = {0};
    char value[1000];
    memset(value, '7', sizeof value - 1);
    value[sizeof value - 1] = 0;
    assert_int_equal(read_flags(PROGRAM_LAUNCH, &c, &err, "--slots", value, NULL), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "1 to 4096"));
}

static void config_a_flag_without_its_value_is_refused(void **state)
{
    (void)state;
    struct config c;
    struct error err = {0};
    assert_int_equal(read_flags(PROGRAM_STAGE, &c, &err, "--model", NULL), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "--model wants a value"));
    assert_int_equal(read_flags(PROGRAM_STAGE, &c, &err, "word", NULL), STATUS_CONFIG);
}

static void config_children_get_what_was_given_and_what_they_take(void **state)
{
    (void)state;
    struct config c;
    assert_int_equal(read_flags(PROGRAM_LAUNCH, &c, NULL, "--slots", "4", "--http=h:1", "--exact", "off", "--kv-mib", "auto",
                                "--decode-share", "0.25", NULL),
                     STATUS_OK);
    const char *argv[64];
    int n = config_child_flags(&c, PROGRAM_COORDINATOR, argv, 64);
    assert_int_equal(n, 8);
    assert_null(argv[n]);
    char all[256] = "";
    for (int i = 0; i < n; i++) {
        strcat(all, argv[i]);
        strcat(all, " ");
    }
    assert_string_equal(all, "--slots 4 --kv-mib auto --decode-share 0.25 --exact off ");
    n = config_child_flags(&c, PROGRAM_GATEWAY, argv, 64);
    assert_int_equal(n, 2);
    assert_string_equal(argv[1], "h:1");
}

static void config_lists_give_a_value_by_stage(void **state)
{
    (void)state;
    int64_t v;
    assert_int_equal(config_threads("2", 5, &v, NULL), STATUS_OK);
    assert_int_equal(v, 2);
    assert_int_equal(config_threads("1,3", 0, &v, NULL), STATUS_OK);
    assert_int_equal(v, 1);
    assert_int_equal(config_threads("1,3", 1, &v, NULL), STATUS_OK);
    assert_int_equal(v, 3);
    assert_int_equal(config_threads("auto", 1, &v, NULL), STATUS_OK);
    assert_int_equal(v, -1);
    const char *const bad[] = {"", "0", "1,", "a", "1,x", "-2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(config_threads(bad[i], 0, &v, NULL), STATUS_CONFIG);
}

static void config_secret_comes_from_a_file_or_an_inherited_descriptor(void **state)
{
    (void)state;
    char secret[65], path[] = "/tmp/sluice-test-secret-XXXXXX";
    struct config c = {0};
    struct error err = {0};
    unsetenv("SLUICE_SECRET_FD");
    assert_int_equal(config_secret(&c, secret, &err), STATUS_OK);
    assert_string_equal(secret, "");
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "0123456789abcdef0123\n", 21), 21);
    close(fd);
    c.token_file = path;
    assert_int_equal(config_secret(&c, secret, &err), STATUS_OK);
    assert_string_equal(secret, "0123456789abcdef0123");
    unlink(path);
    assert_int_equal(config_secret(&c, secret, &err), STATUS_CONFIG);
    c.token_file = NULL;
    int mem = memfd_create("s", 0);
    assert_int_equal(write(mem, "short", 5), 5);
    char text[16];
    snprintf(text, sizeof text, "%d", mem);
    setenv("SLUICE_SECRET_FD", text, 1);
    assert_int_equal(config_secret(&c, secret, &err), STATUS_CONFIG);
    assert_int_equal(pwrite(mem, "0123456789abcdef", 16, 0), 16);
    assert_int_equal(config_secret(&c, secret, &err), STATUS_OK);
    assert_string_equal(secret, "0123456789abcdef");
    assert_int_equal(config_secret(&c, secret, &err), STATUS_OK); /* a restarted child reads it again */
    assert_string_equal(secret, "0123456789abcdef");
}

static enum status secret_of(const char *bytes, size_t len, char secret[65])
{
    struct error err = {0};
    char path[32];
    int fd = memfd_create("s", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct config c = {.token_file = path};
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    enum status s = config_secret(&c, secret, &err);
    close(fd);
    assert_true(s == STATUS_OK || err.message[0]);
    return s;
}

static void config_a_secret_is_whole_or_refused(void **state)
{
    (void)state;
    char secret[65], text[100];
    memset(text, 'a', sizeof text);
    assert_int_equal(secret_of(text, 65, secret), STATUS_CONFIG); /* longer than what would be kept */
    text[64] = '\n';
    assert_int_equal(secret_of(text, 65, secret), STATUS_OK);
    assert_int_equal(strlen(secret), 64);
    for (size_t i = 0; i < 4; i++) {
        text[20] = "\0 \n\xc3"[i]; /* bytes of a random file: what is behind them counts too */
        assert_int_equal(secret_of(text, 65, secret), STATUS_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_defaults_are_those_of_the_interface),
        cmocka_unit_test(config_flags_win_over_environment_and_file),
        cmocka_unit_test(config_certificates_are_flags_of_every_program),
        cmocka_unit_test(config_mistakes_name_the_flag_and_what_is_allowed),
        cmocka_unit_test(config_the_launcher_refuses_what_it_sets_for_its_children),
        cmocka_unit_test(config_help_prints_whole_ranges),
        cmocka_unit_test(config_a_long_line_of_a_file_is_one_line),
        cmocka_unit_test(config_a_zero_byte_in_a_file_hides_nothing),
        cmocka_unit_test(config_a_value_that_looks_like_a_flag_is_a_value),
        cmocka_unit_test(config_a_mistake_with_a_long_value_still_says_what_is_allowed),
        cmocka_unit_test(config_a_flag_without_its_value_is_refused),
        cmocka_unit_test(config_a_secret_is_whole_or_refused),
        cmocka_unit_test(config_children_get_what_was_given_and_what_they_take),
        cmocka_unit_test(config_lists_give_a_value_by_stage),
        cmocka_unit_test(config_secret_comes_from_a_file_or_an_inherited_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
