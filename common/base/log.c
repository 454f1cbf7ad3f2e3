#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"

enum { N_MODULES = 32, LINE_BYTES = 1024, PATIENCE_MS = 250 };

static struct {
    char program[32];
    enum log_level level;
    unsigned n_modules;
    struct {
        char name[24];
        enum log_level level;
    } module[N_MODULES];
} conf = {.program = "sluice", .level = LOG_LEVEL_INFO};

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void log_open(const char *program)
{
    snprintf(conf.program, sizeof conf.program, "%s", program);
}

const char *log_program(void)
{
    return conf.program;
}

static int level_of(const char *name, size_t len, enum log_level *out)
{
    for (unsigned i = 0; i < ARRAY_LEN(level_names); i++)
        if (strlen(level_names[i]) == len && memcmp(level_names[i], name, len) == 0) {
            *out = (enum log_level)i;
            return 1;
        }
    return 0;
}

enum status log_set_levels(const char *spec, struct error *err)
{
    conf.n_modules = 0;
    for (const char *p = spec; *p;) {
        size_t len = strcspn(p, ",");
        const char *eq = memchr(p, '=', len);
        enum log_level level;
        const char *value = eq ? eq + 1 : p;
        if (!level_of(value, (size_t)(p + len - value), &level))
            return error_set(err, STATUS_CONFIG, "--log: '%.*s' is no level; allowed are error, warn, info, debug, trace",
                             (int)len, p);
        if (!eq) {
            conf.level = level;
        } else {
            size_t name_len = (size_t)(eq - p);
            if (conf.n_modules == N_MODULES || name_len >= sizeof conf.module[0].name)
                return error_set(err, STATUS_CONFIG, "--log: at most %d modules, names under 24 characters", N_MODULES);
            memcpy(conf.module[conf.n_modules].name, p, name_len);
            conf.module[conf.n_modules].name[name_len] = 0;
            conf.module[conf.n_modules++].level = level;
        }
        p += len;
        if (*p == ',')
            p++;
    }
    return STATUS_OK;
}

int log_enabled(enum log_level level, const char *module)
{
    for (unsigned i = 0; i < conf.n_modules; i++)
        if (strcmp(conf.module[i].name, module) == 0)
            return level <= conf.module[i].level;
    return level <= conf.level;
}

int log_limit_take(struct log_limit *l, unsigned *left_out)
{
    long long second = clock_now_ns() / NS_PER_S + 1, seen = atomic_load(&l->second); /* + 1: never that of a new limit */
    *left_out = 0;
    if (second != seen && atomic_compare_exchange_strong(&l->second, &seen, second)) {
        atomic_store(&l->n, 0);
        *left_out = atomic_exchange(&l->n_left_out, 0);
    }
    if (atomic_fetch_add(&l->n, 1) < LOG_LIMIT_PER_S)
        return 1;
    atomic_fetch_add(&l->n_left_out, 1);
    return 0;
}

/* A pipe says so while a page of it is free, so what comes next is not waited for (unless two processes meet at the last one). */
int log_has_room(int fd)
{
    static atomic_int stalled; /* it is not waited for again before it moves */
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int n;
    while ((n = poll(&p, 1, atomic_load(&stalled) ? 0 : PATIENCE_MS)) < 0 && errno == EINTR)
        ;
    atomic_store(&stalled, n == 0);
    return n != 0;
}

/* line has room for one byte more. */
static void put(char *line, size_t len)
{
    static atomic_uint n_lost;
    line[len++] = '\n';
    int room = log_has_room(STDERR_FILENO);
    unsigned lost = room ? atomic_exchange(&n_lost, 0) : 0;
    if (lost) {
        log_write(LOG_LEVEL_WARN, "log", "%u lines were lost: nobody read them", lost);
        room = log_has_room(STDERR_FILENO);
    }
    if (!room) {
        atomic_fetch_add(&n_lost, 1);
        return;
    }
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}

void log_write(enum log_level level, const char *module, const char *fmt, ...)
{
    char line[LINE_BYTES];
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s %s %s: ", tm.tm_year + 1900, tm.tm_mon + 1,
                     tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, t.tv_nsec / 1000000, level_names[level], conf.program, module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    size_t len = (size_t)n + (m > 0 ? (size_t)m : 0);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    for (size_t i = 0; i < len; i++) /* what a client or a file sent never makes a second line */
        if ((unsigned char)line[i] < 32)
            line[i] = ' ';
    put(line, len);
}
