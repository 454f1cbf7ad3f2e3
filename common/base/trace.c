#include "common/base/trace.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"

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

void trace_dump(int fd, unsigned n_last)
{
    uint64_t end = atomic_load_explicit(&next, memory_order_relaxed), n = end < N_EVENTS ? end : N_EVENTS;
    if (n_last && n > n_last)
        n = n_last;
    for (uint64_t i = end - n; i < end; i++) {
        struct event *e = &ring[i % N_EVENTS];
        const char *name = LOAD(e->name);
        char line[256];
        size_t len = 0;
        memcpy(line, "trace ", 6);
        len = 6 + put_number(line + 6, LOAD(e->time_ns) / NS_PER_US);
        line[len++] = ' ';
        for (const char *p = name ? name : "?"; *p && len < 120; p++)
            line[len++] = *p;
        for (int k = 0; k < 4; k++) {
            line[len++] = ' ';
            len += put_number(line + len, LOAD(e->v[k]));
        }
        line[len++] = '\n';
        if (write(fd, line, len) < 0)
            return;
    }
}

static void on_crash(int sig)
{
    signal(sig, SIG_DFL);
    static const char head[] = "crash: the last events of this process follow\n";
    static const char bus[] = "crash: a file that this process has mapped became shorter, or could not be read (SIGBUS)\n";
    if (sig == SIGBUS && write(STDERR_FILENO, bus, sizeof bus - 1) < 0)
        raise(sig);
    if (write(STDERR_FILENO, head, sizeof head - 1) > 0)
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
