#include "common/base/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/file.h"

#ifndef SLUICE_VERSION
#define SLUICE_VERSION "0.1.0"
#endif
#ifndef SLUICE_COMMIT
#define SLUICE_COMMIT "unknown"
#endif

enum kind { KIND_INT, KIND_REAL, KIND_TEXT, KIND_CHOICE, KIND_SWITCH };

struct param {
    const char *flag, *def, *choices, *help;
    enum kind kind;
    unsigned programs;
    double min, max;
    size_t offset;
};

static const struct param params[] = {
#define X(field, kind, flag, programs, def, min, max, choices, help)                                                   \
    {flag, def, choices, help, KIND_##kind, programs, min, max, offsetof(struct config, field)},
    PARAM_MAP(X)
#undef X
};

enum { N_PARAMS = ARRAY_LEN(params) };
_Static_assert(N_PARAMS <= 64, "config.given is 64 bits wide");

static const char *program_name(enum program p)
{
    return p == PROGRAM_COORDINATOR ? "sluice-coordinator"
           : p == PROGRAM_STAGE     ? "sluice-stage"
           : p == PROGRAM_GATEWAY   ? "sluice-gateway"
                                    : "sluice-launch";
}

static int takes(enum program program, const struct param *p)
{
    return (p->programs & program) != 0;
}

static const struct param *find(enum program program, const char *name, size_t len)
{
    for (int i = 0; i < N_PARAMS; i++)
        if (strlen(params[i].flag) == len && memcmp(params[i].flag, name, len) == 0 && takes(program, &params[i]))
            return &params[i];
    return NULL;
}

/* Strings of a configuration live as long as the process; the list keeps them reachable. */
static struct kept {
    struct kept *next;
    char text[];
} *all_kept;

static const char *keep(const char *text)
{
    size_t n = strlen(text) + 1;
    struct kept *k = malloc(sizeof *k + n);
    CHECK(k);
    memcpy(k->text, text, n);
    k->next = all_kept;
    all_kept = k;
    return k->text;
}

void config_forget(void)
{
    while (all_kept) {
        struct kept *k = all_kept;
        all_kept = k->next;
        free(k);
    }
}

static int choice_ok(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, value, n) == 0)
            return 1;
        p += len + (p[len] == '|');
    }
    return 0;
}

static enum status set(struct config *c, const struct param *p, const char *value, const char *from, struct error *err)
{
    void *field = (char *)c + p->offset;
    char *end;
    errno = 0;
    switch (p->kind) {
    case KIND_INT: {
        if (p->def && strcmp(p->def, "auto") == 0 && strcmp(value, "auto") == 0) {
            *(int64_t *)field = -1;
            break;
        }
        long long v = strtoll(value, &end, 10);
        if (!*value || *end || errno || (double)v < p->min || (double)v > p->max)
            return error_set(err, STATUS_CONFIG, "%s%s: '%.60s' is not allowed; a whole number from %.0f to %.0f is", from,
                             p->flag, value, p->min, p->max);
        *(int64_t *)field = v;
        break;
    }
    case KIND_REAL: {
        double v = strtod(value, &end);
        if (!*value || *end || errno || !(v >= p->min && v <= p->max))
            return error_set(err, STATUS_CONFIG, "%s%s: '%.60s' is not allowed; a number from %g to %g is", from, p->flag,
                             value, p->min, p->max);
        *(double *)field = v;
        break;
    }
    case KIND_CHOICE:
        if (!choice_ok(p->choices, value))
            return error_set(err, STATUS_CONFIG, "%s%s: '%.60s' is not allowed; one of %s is", from, p->flag, value,
                             p->choices);
        *(const char **)field = keep(value);
        break;
    case KIND_SWITCH:
        if (strcmp(value, "on") && strcmp(value, "off"))
            return error_set(err, STATUS_CONFIG, "%s%s: '%.60s' is not allowed; on or off is", from, p->flag, value);
        *(int *)field = strcmp(value, "on") == 0;
        break;
    case KIND_TEXT:
        *(const char **)field = keep(value);
        break;
    }
    c->given |= 1ull << (p - params);
    return STATUS_OK;
}

static void set_default(struct config *c, const struct param *p)
{
    void *field = (char *)c + p->offset;
    switch (p->kind) {
    case KIND_INT:
        *(int64_t *)field = strcmp(p->def, "auto") ? strtoll(p->def, NULL, 10) : -1;
        break;
    case KIND_REAL:
        *(double *)field = strtod(p->def, NULL);
        break;
    case KIND_SWITCH:
        *(int *)field = strcmp(p->def, "on") == 0;
        break;
    case KIND_TEXT:
    case KIND_CHOICE:
        *(const char **)field = p->def;
        break;
    }
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1]))
        s[--n] = 0;
    return s;
}

static enum status read_line(enum program program, char *line, const char *from, struct config *c, struct error *err)
{
    char *text = trim(line);
    if (!*text || *text == '#')
        return STATUS_OK;
    char *eq = strchr(text, '=');
    if (!eq)
        return error_set(err, STATUS_CONFIG, "%sa line is `name = value`", from);
    *eq = 0;
    const char *name = trim(text), *value = trim(eq + 1);
    const struct param *p = find(program, name, strlen(name));
    if (!p && !find(PROGRAM_ALL, name, strlen(name)))
        return error_set(err, STATUS_CONFIG, "%s'%.60s' is no parameter", from, name);
    return p ? set(c, p, value, from, err) : STATUS_OK; /* one file serves all programs: a name of another is no mistake */
}

static enum status read_file(enum program program, const char *path, struct config *c, struct error *err)
{
    enum { MAX_FILE = 64 << 10 };
    struct error why;
    char *text, from[512];
    size_t len;
    enum status s = file_read(path, MAX_FILE, &text, &len, &why);
    if (s != STATUS_OK)
        return error_set(err, s, "--config %.300s", why.message);
    char *line = text, *end = text + len;
    for (int n = 1; s == STATUS_OK && line < end; n++) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next : end;
        *next = 0; /* at the end of the text there is one already */
        snprintf(from, sizeof from, "%.150s:%d: ", path, n);
        if (strlen(line) != (size_t)(next - line))
            s = error_set(err, STATUS_CONFIG, "%sa byte of the line is 0", from);
        else
            s = read_line(program, line, from, c, err);
        line = next + 1;
    }
    free(text);
    return s;
}

static enum status read_environment(enum program program, struct config *c, struct error *err)
{
    for (int i = 0; i < N_PARAMS; i++) {
        char name[64] = "SLUICE_";
        size_t n = strlen(name);
        for (const char *p = params[i].flag; *p; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = 0;
        const char *value = takes(program, &params[i]) ? getenv(name) : NULL;
        if (value)
            TRY(set(c, &params[i], value, "SLUICE_ environment, ", err));
    }
    return STATUS_OK;
}

/* How many words the flag at argv[i] takes. A value is no flag, whatever it looks like. */
static int words_at(enum program program, int argc, char **argv, int i)
{
    const char *name = argv[i] + 2;
    if (i + 1 == argc || strncmp(argv[i], "--", 2) != 0 || strchr(name, '='))
        return 1;
    const struct param *p = find(program, name, strlen(name));
    if (p && p->kind == KIND_SWITCH)
        return strncmp(argv[i + 1], "--", 2) == 0 ? 1 : 2;
    return p || strcmp(name, "config") == 0 ? 2 : 1;
}

static enum status read_flags(enum program program, int argc, char **argv, struct config *c, struct error *err)
{
    for (int i = 1, n; i < argc; i += n) {
        const char *a = argv[i];
        n = words_at(program, argc, argv, i);
        if (strncmp(a, "--", 2) != 0 || !a[2])
            return error_set(err, STATUS_CONFIG, "'%.80s' is no flag; --help lists them", a);
        const char *name = a + 2, *eq = strchr(name, '=');
        size_t len = eq ? (size_t)(eq - name) : strlen(name);
        int is_config = len == 6 && memcmp(name, "config", 6) == 0;
        const struct param *p = is_config ? NULL : find(program, name, len);
        if (!p && !is_config)
            return error_set(err, STATUS_CONFIG, "--%.*s is no flag of %s; --help lists them", (int)(len < 80 ? len : 80), name,
                             program_name(program));
        const char *value = eq ? eq + 1 : n == 2 ? argv[i + 1] : NULL;
        if (!value && p && p->kind == KIND_SWITCH)
            value = "on";
        if (!value)
            return error_set(err, STATUS_CONFIG, "--%.*s wants a value", (int)len, name);
        if (p)
            TRY(set(c, p, value, "--", err));
    }
    return STATUS_OK;
}

static const char *config_path(enum program program, int argc, char **argv)
{
    const char *path = getenv("SLUICE_CONFIG");
    for (int i = 1, n; i < argc; i += n) {
        n = words_at(program, argc, argv, i);
        if (n == 2 && strcmp(argv[i], "--config") == 0)
            path = argv[i + 1];
        else if (strncmp(argv[i], "--config=", 9) == 0)
            path = argv[i] + 9;
    }
    return path;
}

enum status config_read(enum program program, int argc, char **argv, struct config *out, enum config_action *action,
                        struct error *err)
{
    struct config c = {0};
    *action = CONFIG_EXIT;
    for (int i = 1; i < argc; i += words_at(program, argc, argv, i)) {
        if (strcmp(argv[i], "--help") == 0) {
            config_help(program, stdout);
            return STATUS_OK;
        }
        if (strcmp(argv[i], "--version") == 0) {
            puts(config_version());
            return STATUS_OK;
        }
    }
    for (int i = 0; i < N_PARAMS; i++)
        set_default(&c, &params[i]);
    const char *path = config_path(program, argc, argv);
    if (path)
        TRY(read_file(program, path, &c, err));
    TRY(read_environment(program, &c, err));
    TRY(read_flags(program, argc, argv, &c, err));
    if (c.kv_block != 16 && c.kv_block != 32 && c.kv_block != 64 && c.kv_block != 128)
        return error_set(err, STATUS_CONFIG, "--kv-block: %lld is not allowed; 16, 32, 64 or 128 is", (long long)c.kv_block);
    *out = c;
    *action = CONFIG_RUN;
    return STATUS_OK;
}

int config_child_flags(const struct config *c, enum program child, const char **out, int max)
{
    int n = 0;
    for (int i = 0; i < N_PARAMS && n + 3 <= max; i++) {
        const struct param *p = &params[i];
        if (!(c->given >> i & 1) || !(p->programs & child))
            continue;
        const void *field = (const char *)c + p->offset;
        char flag[64], value[64];
        const char *text = value;
        snprintf(flag, sizeof flag, "--%s", p->flag);
        switch (p->kind) {
        case KIND_INT:
            if (*(const int64_t *)field == -1)
                text = "auto";
            else
                snprintf(value, sizeof value, "%lld", (long long)*(const int64_t *)field);
            break;
        case KIND_REAL:
            snprintf(value, sizeof value, "%.17g", *(const double *)field);
            break;
        case KIND_SWITCH:
            text = *(const int *)field ? "on" : "off";
            break;
        case KIND_TEXT:
        case KIND_CHOICE:
            text = *(const char *const *)field;
            break;
        }
        out[n++] = keep(flag);
        out[n++] = keep(text);
    }
    out[n] = NULL;
    return n;
}

void config_help(enum program program, FILE *out)
{
    fprintf(out, "usage: %s [--flag value]...\n\n  %-24s %-16s %s\n", program_name(program), "flag", "default", "meaning");
    for (int i = 0; i < N_PARAMS; i++) {
        const struct param *p = &params[i];
        if (!takes(program, p))
            continue;
        char flag[64], range[96] = "";
        snprintf(flag, sizeof flag, "--%s", p->flag);
        if (p->kind == KIND_INT)
            snprintf(range, sizeof range, " [%.0f..%.0f]", p->min, p->max);
        else if (p->kind == KIND_REAL)
            snprintf(range, sizeof range, " [%g..%g]", p->min, p->max);
        else if (p->choices)
            snprintf(range, sizeof range, " [%s]", p->choices);
        else if (p->kind == KIND_SWITCH)
            snprintf(range, sizeof range, " [on|off]");
        fprintf(out, "  %-24s %-16s %s%s\n", flag, p->def ? p->def : "-", p->help, range);
    }
    fputs("  --config FILE            -                `name = value` lines; then SLUICE_NAME, then flags; the last wins\n"
          "  --help, --version\n",
          out);
}

const char *config_version(void)
{
    return "sluice " SLUICE_VERSION " (" SLUICE_COMMIT ") backends: ref cpu";
}

const char *config_inherited(const char *name)
{
    char var[64];
    snprintf(var, sizeof var, "SLUICE_%s", name);
    return getenv(var);
}

int config_inherited_fd(const char *name)
{
    char var[64];
    snprintf(var, sizeof var, "SLUICE_%s_FD", name);
    const char *text = getenv(var);
    int fd = text ? atoi(text) : -1;
    return fd >= 0 && fcntl(fd, F_GETFD) >= 0 ? fd : -1;
}

/* A bearer in a header: printable, and all of it, or two programs would know different secrets. */
static enum status take_secret(char *text, size_t len, char secret[65], struct error *err)
{
    enum { LEAST = 16, MOST = 64 };
    while (len && isspace((unsigned char)text[len - 1]))
        len--;
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return error_set(err, STATUS_CONFIG, "the secret's byte %zu is no printable ASCII character", i);
    if (len < LEAST || len > MOST)
        return error_set(err, STATUS_CONFIG, "the secret must have at least %d characters and at most %d", LEAST, MOST);
    memcpy(secret, text, len);
    secret[len] = 0;
    return STATUS_OK;
}

enum status config_secret(const struct config *c, char secret[65], struct error *err)
{
    char text[256];
    secret[0] = 0;
    int inherited = config_inherited_fd("SECRET"), fd = inherited;
    if (c->token_file && (fd = open(c->token_file, O_RDONLY | O_CLOEXEC)) < 0)
        return error_set(err, STATUS_CONFIG, "--token-file %.200s: %s", c->token_file, strerror(errno));
    if (fd < 0)
        return STATUS_OK;
    /* The launcher's descriptor is a sealed memfd shared by all its children: read it by position. */
    ssize_t n = pread(fd, text, sizeof text, 0);
    const int why = errno;
    if (fd != inherited)
        close(fd);
    if (n < 0)
        return error_set(err, STATUS_CONFIG, "the secret cannot be read: %s", strerror(why));
    return take_secret(text, (size_t)n, secret, err);
}

enum status config_threads(const char *list, int index, int64_t *out, struct error *err)
{
    if (!list || strcmp(list, "auto") == 0) {
        *out = -1;
        return STATUS_OK;
    }
    int64_t v = -1;
    const char *p = list;
    for (int i = 0;; i++) {
        char *end;
        long long x = strtoll(p, &end, 10);
        if (end == p || x < 1 || x > 1 << 20 || (*end && *end != ','))
            return error_set(err, STATUS_CONFIG, "--threads: '%.60s' is no list of positive numbers", list);
        if (i <= index)
            v = x; /* a list that is too short repeats its last value, so "2" serves every stage */
        if (!*end)
            break;
        p = end + 1;
    }
    *out = v;
    return STATUS_OK;
}
