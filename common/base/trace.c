#include "common/base/trace.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { N_EVENTS = 8192 };

/* Relaxed atomics: the writers never wait for each other, and a reader may see a half-written event. */
struct event {
    _Atomic(const char *) name;
    _Atomic int64_t time_ns, v[4];
};

static struct event ring[N_EVENTS];
static atomic_uint_fast64_t next;

#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)

void trace_event(const char *event, int64_t a, int64_t b, int64_t c, int64_t d)
{
    uint64_t i = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
    struct event *e = &ring[i % N_EVENTS];
    STORE(e->name, event);
    STORE(e->time_ns, clock_now_ns());
    STORE(e->v[0], a);
    STORE(e->v[1], b);
    STORE(e->v[2], c);
    STORE(e->v[3], d);
}

static size_t put_number(char *out, int64_t v)
{
    char digits[24];
    size_t n = 0, len = 0;
    uint64_t u = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    do {
        digits[n++] = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0)
        out[len++] = '-';
    while (n)
        out[len++] = digits[--n];
    return len;
}

/* At most `max` bytes of text. */
static size_t put_text(char *out, const char *text, size_t max)
{
    size_t len = 0;
    for (; text[len] && len < max; len++)
        out[len] = text[len];
    return len;
}

void trace_dump(int fd, unsigned n_last)
{
    uint64_t end = atomic_load_explicit(&next, memory_order_relaxed), n = end < N_EVENTS ? end : N_EVENTS;
    if (n_last && n > n_last)
        n = n_last;
    for (uint64_t i = end - n; i < end; i++) {
        struct event *e = &ring[i % N_EVENTS];
        const char *name = LOAD(e->name);
        char line[256];
        size_t len = put_text(line, "trace ", 6);
        len += put_text(line + len, log_program(), 31);
        len += put_text(line + len, ": ", 2);
        len += put_number(line + len, LOAD(e->time_ns) / NS_PER_US);
        line[len++] = ' ';
        len += put_text(line + len, name ? name : "?", 60);
        for (int k = 0; k < 4; k++) {
            line[len++] = ' ';
            len += put_number(line + len, LOAD(e->v[k]));
        }
        line[len++] = '\n';
        if (!log_has_room(fd) || write(fd, line, len) < 0)
            return;
    }
}

/* "crash: stage 1: signal 11: ..." */
static int say(int sig, const char *what)
{
    char line[160];
    size_t len = put_text(line, "crash: ", 7);
    len += put_text(line + len, log_program(), 31);
    len += put_text(line + len, ": signal ", 9);
    len += put_number(line + len, sig);
    len += put_text(line + len, ": ", 2);
    len += put_text(line + len, what, 90);
    line[len++] = '\n';
    return log_has_room(STDERR_FILENO) && write(STDERR_FILENO, line, len) > 0;
}

static void on_crash(int sig)
{
    signal(sig, SIG_DFL);
    if (sig == SIGBUS)
        say(sig, "a file that this process has mapped became shorter, or could not be read");
    if (say(sig, "its last events follow"))
        trace_dump(STDERR_FILENO, 200);
    raise(sig);
}

void trace_install_crash_handler(void)
{
    struct sigaction sa = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        sigaction(signals[i], &sa, NULL);
}
