#include "kernels/team.h"

#include <errno.h>
#include <fenv.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"

enum {
    SPIN_NS = 20000,         /* longer regions of one thread are rare; a futex wake-up costs 25 us and more */
    PAUSES_PER_CLOCK = 64,   /* the clock is read once in so many pauses */
};

/* A word that only grows; who waits for it to move may sleep on it. Alone on its cache lines. */
struct signal_word {
    _Alignas(128) atomic_uint value;
    atomic_uint n_sleepers;
};

struct worker {
    struct team *team;
    int index;
    pthread_t thread;
};

struct team {
    int n_threads, n_started;
    atomic_int stopping;
    void (*fn)(void *arg, int thread, int n_threads);
    void *arg;
    struct signal_word run;      /* moves when fn is to be run */
    struct signal_word barrier;  /* moves when all have arrived */
    struct signal_word done;     /* counts workers that have returned */
    _Alignas(128) atomic_uint n_arrived;
    struct worker workers[];
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex(atomic_uint *word, int op, unsigned value)
{
    syscall(SYS_futex, word, op, value, NULL, NULL, 0); /* every answer means: look again */
}

/* Returns once the word is no longer `seen`. */
static void signal_wait(struct signal_word *w, unsigned seen)
{
    int64_t end = 0;
    for (unsigned i = 0; atomic_load_explicit(&w->value, memory_order_acquire) == seen; i++) {
        cpu_pause();
        if ((i + 1) % PAUSES_PER_CLOCK)
            continue;
        int64_t now = clock_now_ns();
        if (end == 0)
            end = now + SPIN_NS;
        if (now >= end)
            break;
    }
    /* The sleeper counts itself before it looks again and the other side moves the word before it looks at the count (both
     * sequentially consistent), so one of them sees the other; the kernel compares the word once more. */
    while (atomic_load(&w->value) == seen) {
        atomic_fetch_add(&w->n_sleepers, 1);
        futex(&w->value, FUTEX_WAIT_PRIVATE, seen);
        atomic_fetch_sub(&w->n_sleepers, 1);
    }
}

static void signal_add(struct signal_word *w)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->n_sleepers))
        futex(&w->value, FUTEX_WAKE_PRIVATE, (unsigned)TEAM_MAX_THREADS);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct team *t = w->team;
    fesetenv(FE_DFL_ENV); /* results rest on the default rounding, without flushing of denormals */
    for (unsigned seen = 0;; seen++) {
        signal_wait(&t->run, seen);
        if (atomic_load_explicit(&t->stopping, memory_order_relaxed))
            return NULL;
        t->fn(t->arg, w->index, t->n_threads);
        signal_add(&t->done);
    }
}

static int pin(pthread_t thread, int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (core < 0 || core >= CPU_SETSIZE)
        return EINVAL;
    CPU_SET((unsigned)core, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set);
}

static enum status pin_all(struct team *t, const int *cores, struct error *err)
{
    for (int i = 0; i < t->n_threads; i++) {
        int e = pin(i ? t->workers[i].thread : pthread_self(), cores[i]);
        if (e)
            return error_set(err, STATUS_CONFIG, "cannot pin compute thread %d to core %d: %s", i, cores[i], strerror(e));
    }
    return STATUS_OK;
}

enum status team_create(int n_threads, const int *cores, struct team **out, struct error *err)
{
    CHECK(n_threads >= 1 && n_threads <= TEAM_MAX_THREADS);
    size_t size = sizeof(struct team) + (size_t)n_threads * sizeof(struct worker);
    struct team *t = aligned_alloc(_Alignof(struct team), (size + 127) / 128 * 128);
    if (!t)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %d compute threads", n_threads);
    memset(t, 0, size);
    t->n_threads = n_threads;
    t->n_started = 1;
    fesetenv(FE_DFL_ENV);
    for (int i = 1; i < n_threads; i++) {
        t->workers[i] = (struct worker){.team = t, .index = i};
        int e = pthread_create(&t->workers[i].thread, NULL, worker_main, &t->workers[i]);
        if (e) {
            team_destroy(t);
            return error_set(err, STATUS_OUT_OF_MEMORY, "compute thread %d of %d does not start: %s", i, n_threads,
                             strerror(e));
        }
        t->n_started++;
    }
    enum status s = cores ? pin_all(t, cores, err) : STATUS_OK;
    if (s != STATUS_OK) {
        team_destroy(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

void team_destroy(struct team *t)
{
    if (!t)
        return;
    atomic_store(&t->stopping, 1);
    signal_add(&t->run);
    for (int i = 1; i < t->n_started; i++)
        pthread_join(t->workers[i].thread, NULL);
    free(t);
}

int team_size(const struct team *t)
{
    return t->n_threads;
}

void team_run(struct team *t, void (*fn)(void *arg, int thread, int n_threads), void *arg)
{
    if (t->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    unsigned goal = atomic_load_explicit(&t->done.value, memory_order_relaxed) + (unsigned)t->n_threads - 1;
    t->fn = fn;
    t->arg = arg;
    signal_add(&t->run);
    fn(arg, 0, t->n_threads);
    for (unsigned seen; (seen = atomic_load(&t->done.value)) != goal;)
        signal_wait(&t->done, seen);
}

void team_barrier(struct team *t, int thread)
{
    (void)thread;
    if (t->n_threads == 1)
        return;
    unsigned seen = atomic_load_explicit(&t->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add(&t->n_arrived, 1) + 1 == (unsigned)t->n_threads) {
        atomic_store_explicit(&t->n_arrived, 0, memory_order_relaxed); /* published by the word's move */
        signal_add(&t->barrier);
    } else {
        signal_wait(&t->barrier, seen);
    }
}
