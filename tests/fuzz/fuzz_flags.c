/* tests/fuzz/fuzz_flags.c - everything that a program is told at its start: words, environment, a file, the job's secret.
 *
 * Input      1 byte program, then texts with a 0 behind each: the secret (its zeros written as 0xff), the configuration file, and
 *            the words; SLUICE_NAME=VALUE among them is put into the environment. Any path names the same file.
 * Must hold  It is refused in words, or every parameter is in its range; only a word of its own asks for help. Read again from the
 *            flags that a child would get it is the same. What is read from a parameter that is a list (threads, log) is refused
 *            in words or is in its range. A secret is refused or whole.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/config.h"
#include "common/base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);

enum { MAX_SIZE = 8192, MAX_WORDS = 48, MAX_FLAGS = 160 };

/* --- the only files there are -------------------------------------------------------------------------------------------- */

static struct {
    int inside;                 /* the code under test runs */
    const char *file, *secret; /* empty: it cannot be opened */
    size_t n_secret;
    const char *names[MAX_WORDS]; /* in the environment */
    int n_names;
} world;

FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!world.inside)
        return __real_fopen(path, mode);
    const size_t n = strlen(world.file);
    return n ? fmemopen((void *)(uintptr_t)world.file, n, "r") : NULL;
}

int __wrap_open(const char *path, int flags, ...)
{
    if (!world.inside)
        return __real_open(path, flags, 0600);
    const int fd = world.n_secret ? memfd_create("secret", 0) : -1;
    CHECK(fd < 0 || pwrite(fd, world.secret, world.n_secret, 0) == (ssize_t)world.n_secret);
    return fd;
}

/* --- what is accepted ---------------------------------------------------------------------------------------------------- */

static int is_choice(const char *choices, const char *value)
{
    const size_t n = strlen(value);
    for (const char *at = choices; (at = strstr(at, value)); at++)
        if (n && (at == choices || at[-1] == '|') && (at[n] == 0 || at[n] == '|'))
            return 1;
    return 0;
}

/* One function for each kind, under the names that PARAM_MAP knows. */
static void range_INT(int64_t v, const char *def, double min, double max, const char *choices)
{
    (void)choices;
    CHECK((v == -1 && strcmp(def, "auto") == 0) || ((double)v >= min && (double)v <= max));
}

static void range_REAL(double v, const char *def, double min, double max, const char *choices)
{
    (void)def;
    (void)choices;
    CHECK(v >= min && v <= max);
}

static void range_TEXT(const char *v, const char *def, double min, double max, const char *choices)
{
    (void)min;
    (void)max;
    (void)choices;
    CHECK(v || !def);
}

static void range_CHOICE(const char *v, const char *def, double min, double max, const char *choices)
{
    (void)def;
    (void)min;
    (void)max;
    CHECK(is_choice(choices, v));
}

static void range_SWITCH(int v, const char *def, double min, double max, const char *choices)
{
    (void)def;
    (void)min;
    (void)max;
    (void)choices;
    CHECK(v == 0 || v == 1);
}

static void check_ranges(const struct config *c)
{
#define X(field, kind, flag, programs, def, min, max, choices, help) range_##kind(c->field, def, (double)(min), (double)(max), choices);
    PARAM_MAP(X)
#undef X
    CHECK(c->kv_block == 16 || c->kv_block == 32 || c->kv_block == 64 || c->kv_block == 128);
}

static int same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

#define SAME_INT(a, b) ((a) == (b))
#define SAME_REAL(a, b) ((a) == (b))
#define SAME_SWITCH(a, b) ((a) == (b))
#define SAME_TEXT(a, b) same_text(a, b)
#define SAME_CHOICE(a, b) same_text(a, b)

/* What a child takes of it comes to the child as it is. */
static void check_child(const struct config *c, enum program child)
{
    const char *flags[MAX_FLAGS];
    struct config got;
    struct error err = {0};
    enum config_action action;
    int n = config_child_flags(c, child, flags + 1, MAX_FLAGS - 1);
    CHECK(n % 2 == 0 && n + 1 < MAX_FLAGS && !flags[n + 1]);
    flags[0] = "child";
    CHECK(config_read(child, n + 1, (char **)(uintptr_t)flags, &got, &action, &err) == STATUS_OK && action == CONFIG_RUN);
    CHECK((got.given & ~c->given) == 0);
#define X(field, kind, flag, programs, def, min, max, choices, help) \
    CHECK(!((programs) & (unsigned)child) || SAME_##kind(got.field, c->field));
    PARAM_MAP(X)
#undef X
}

static void check_threads(const char *list)
{
    struct error err = {0};
    int64_t v[3], last = -1;
    for (int i = 0; i < 3; i++) {
        enum status s = config_threads(list, i, &v[i], &err);
        CHECK(s == STATUS_OK || (i == 0 && s == STATUS_CONFIG && err.message[0]));
        if (s != STATUS_OK)
            return;
        CHECK(v[i] == -1 ? !list || strcmp(list, "auto") == 0 : v[i] >= 1 && v[i] <= 1 << 20);
        CHECK(i == 0 || (last == -1) == (v[i] == -1));
        last = v[i];
    }
}

static void check_log(const char *spec)
{
    struct error err = {0};
    enum status s = log_set_levels(spec, &err);
    CHECK(s == STATUS_OK || (s == STATUS_CONFIG && strstr(err.message, "--log")));
    log_set_levels("error", NULL);
}

static void check_secret(const struct config *c)
{
    struct error err = {0};
    char secret[65];
    enum status s = config_secret(c, secret, &err);
    CHECK(s == STATUS_OK || (s == STATUS_CONFIG && err.message[0]));
    if (s != STATUS_OK)
        return;
    const size_t n = strlen(secret);
    CHECK(c->token_file ? n >= 16 && n <= 64 && n <= world.n_secret && memcmp(secret, world.secret, n) == 0 : n == 0);
    for (size_t i = n; c->token_file && i < world.n_secret; i++)
        CHECK(strchr(" \t\n\v\f\r", world.secret[i]) && world.secret[i]);
}

/* --- what the programs are told ------------------------------------------------------------------------------------------- */

static const char *next_text(char **at, const char *end)
{
    const char *text = *at;
    *at += *at < end ? strlen(*at) + 1 : 0;
    return text;
}

/* Help asked for by itself, not as the value of the word before. */
static int asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0)
            return 1;
    return 0;
}

static void say(char *name, char *eq)
{
    *eq = 0;
    setenv(name, eq + 1, 1);
    world.names[world.n_names++] = name;
}

static void read_all(enum program program, int argc, char **argv)
{
    struct config c;
    struct error err = {0};
    enum config_action action;
    enum status s = config_read(program, argc, argv, &c, &action, &err);
    CHECK(s == STATUS_OK || (s == STATUS_CONFIG && err.status == s && err.message[0] && action == CONFIG_EXIT));
    CHECK(s != STATUS_OK || action == CONFIG_RUN || asks_for_help(argc, argv));
    for (int i = 0; i < world.n_names; i++)
        unsetenv(world.names[i]);
    world.n_names = 0;
    if (s != STATUS_OK || action != CONFIG_RUN)
        return;
    check_ranges(&c);
    check_child(&c, program);
    if (program == PROGRAM_LAUNCH) {
        check_child(&c, PROGRAM_COORDINATOR);
        check_child(&c, PROGRAM_STAGE);
        check_child(&c, PROGRAM_GATEWAY);
    }
    check_threads(c.threads);
    check_log(c.log);
    check_secret(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum program programs[] = {PROGRAM_COORDINATOR, PROGRAM_STAGE, PROGRAM_GATEWAY, PROGRAM_LAUNCH};
    static FILE *nowhere;
    static char text[MAX_SIZE + 2], secret[MAX_SIZE];
    char *argv[MAX_WORDS + 1] = {(char *)"program"}, *at = text;
    int argc = 1;
    if (size < 1 || size > MAX_SIZE)
        return 0;
    if (!nowhere)
        nowhere = __real_fopen("/dev/null", "w");
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    const char *end = text + size - 1;
    const char *told = next_text(&at, end);
    world.n_secret = strlen(told);
    for (size_t i = 0; i < world.n_secret; i++)
        secret[i] = (uint8_t)told[i] == 0xff ? 0 : told[i];
    world.secret = secret;
    world.file = next_text(&at, end);
    while (at < end && argc < MAX_WORDS) {
        char *word = (char *)(uintptr_t)next_text(&at, end), *eq = strchr(word, '=');
        if (strncmp(word, "SLUICE_", 7) != 0 || !eq)
            argv[argc++] = word;
        else if (world.n_names < MAX_WORDS)
            say(word, eq);
    }
    FILE *out = stdout;
    stdout = nowhere; /* help */
    world.inside = 1;
    read_all(programs[data[0] % 4], argc, argv);
    world.inside = 0;
    stdout = out;
    config_forget();
    return 0;
}
