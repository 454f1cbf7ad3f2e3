/* What a link costs: bytes a second one way, and the time of a frame there and back, over UNIX sockets, TCP and encrypted TCP.
 *
 *   bench_links [seconds of each measurement]
 *
 * Two ends in two threads of this process, over loopback; CPU seconds are those of both ends together. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "stage/link.h"

enum { SILENCE_MS = 5000, MAX_FRAMES = 1 << 20 };

struct end {
    struct link_port *port;
    struct link_form form;
    struct link_pair pair;
    size_t frame;
    atomic_int *stop;
    uint64_t n_bytes;
};

static const struct way {
    const char *name;
    enum link_kind kind;
    int tls;
} ways[] = {{"unix", LINK_KIND_UNIX, 0}, {"tcp", LINK_KIND_TCP, 0}, {"tcp+tls", LINK_KIND_TCP, 1}};

static enum status no_drain(void *ctx, struct error *err)
{
    (void)ctx;
    (void)err;
    return STATUS_OK;
}

static void *form(void *arg)
{
    struct end *e = arg;
    struct error err;
    if (link_port_form(e->port, &e->form, &e->pair, &err) != STATUS_OK) {
        fprintf(stderr, "bench_links: %s\n", err.message);
        exit(1);
    }
    return NULL;
}

static double form_both(struct end e[2])
{
    pthread_t t;
    int64_t began = clock_now_ns();
    CHECK(pthread_create(&t, NULL, form, &e[1]) == 0);
    form(&e[0]);
    pthread_join(t, NULL);
    return (double)(clock_now_ns() - began) / 1e3;
}

static void open_ends(const struct way *w, struct end e[2])
{
    struct error err;
    memset(e, 0, 2 * sizeof *e);
    for (int i = 0; i < 2; i++)
        CHECK(link_socket_port_create(&(struct link_socket_options){.kind = w->kind, .tls = w->tls}, &e[i].port, &err) == STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        e[i].form = (struct link_form){.generation = 1, .session = 1, .epoch = 1, .stage = i, .n_stages = 2, .key = {1}, .timeout_ms = SILENCE_MS};
        link_port_addresses(e[1 - i].port, &e[i].form.next);
    }
}

static void close_ends(struct end e[2])
{
    for (int i = 0; i < 2; i++) {
        link_destroy(e[i].pair.in);
        link_destroy(e[i].pair.out);
        link_port_destroy(e[i].port);
    }
}

/* Frames go out until told to stop; a reader takes them to the end. */
static void *flood(void *arg)
{
    struct end *e = arg;
    char *bytes = calloc(1, e->frame);
    while (!atomic_load(e->stop)) {
        struct iovec iov[2] = {{bytes, 64}, {bytes + 64, e->frame - 64}}; /* head and rows, as the worker writes them */
        if (link_write_all(e->pair.out, iov, 2, SILENCE_MS, NULL, no_drain, NULL, NULL) != STATUS_OK)
            break;
        e->n_bytes += e->frame;
    }
    free(bytes);
    link_destroy(e->pair.out);
    e->pair.out = NULL;
    return NULL;
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void measure_flow(const struct way *w, size_t frame, double seconds)
{
    struct end e[2];
    atomic_int stop = 0;
    pthread_t t;
    open_ends(w, e);
    double form_us = form_both(e), cpu = cpu_s();
    e[0].frame = frame;
    e[0].stop = &stop;
    char *into = malloc(frame);
    int64_t began = clock_now_ns();
    CHECK(pthread_create(&t, NULL, flood, &e[0]) == 0);
    uint64_t n = 0;
    while (link_read_all(e[1].pair.in, into, frame, SILENCE_MS, NULL) == STATUS_OK) {
        n += frame;
        if ((double)(clock_now_ns() - began) / 1e9 > seconds)
            atomic_store(&stop, 1);
    }
    double took = (double)(clock_now_ns() - began) / 1e9;
    pthread_join(t, NULL);
    printf("%-8s flow  %7zu B frames  %8.0f MB/s  %6.2f CPU s a GB  formed in %5.0f us\n", w->name, frame,
           (double)n / took / 1e6, (cpu_s() - cpu) / ((double)n / 1e9), form_us);
    free(into);
    close_ends(e);
}

static void *echo(void *arg)
{
    struct end *e = arg;
    char *bytes = malloc(e->frame);
    while (link_read_all(e->pair.in, bytes, e->frame, SILENCE_MS, NULL) == STATUS_OK) {
        struct iovec iov = {bytes, e->frame};
        if (link_write_all(e->pair.out, &iov, 1, SILENCE_MS, NULL, no_drain, NULL, NULL) != STATUS_OK)
            break;
    }
    free(bytes);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_turns(const struct way *w, size_t frame, double seconds)
{
    static double us[MAX_FRAMES];
    struct end e[2];
    pthread_t t;
    size_t n = 0;
    open_ends(w, e);
    form_both(e);
    e[1].frame = frame;
    CHECK(pthread_create(&t, NULL, echo, &e[1]) == 0);
    char *bytes = calloc(1, frame);
    double cpu = cpu_s();
    for (int64_t began = clock_now_ns(), now = began; n < MAX_FRAMES && (double)(now - began) / 1e9 < seconds; n++) {
        struct iovec iov[2] = {{bytes, 64}, {bytes + 64, frame - 64}};
        CHECK(link_write_all(e[0].pair.out, iov, 2, SILENCE_MS, NULL, no_drain, NULL, NULL) == STATUS_OK);
        CHECK(link_read_all(e[0].pair.in, bytes, frame, SILENCE_MS, NULL) == STATUS_OK);
        int64_t then = now;
        now = clock_now_ns();
        us[n] = (double)(now - then) / 1e3;
    }
    cpu = cpu_s() - cpu;
    link_destroy(e[0].pair.out);
    e[0].pair.out = NULL;
    pthread_join(t, NULL);
    qsort(us, n, sizeof *us, by_size);
    printf("%-8s turn  %7zu B frames  median %6.1f us  p99 %7.1f us  %6.1f CPU us a frame\n", w->name, frame, us[n / 2],
           us[n * 99 / 100], cpu * 1e6 / (double)n / 2);
    free(bytes);
    close_ends(e);
}

int main(int argc, char **argv)
{
    static const size_t flows[] = {4096, 65536, 1 << 20}, turns[] = {1216, 9280, 65536, 1 << 20};
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    signal(SIGPIPE, SIG_IGN);
    for (size_t k = 0; k < sizeof flows / sizeof *flows; k++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            measure_flow(&ways[i], flows[k], seconds);
    for (size_t k = 0; k < sizeof turns / sizeof *turns; k++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            measure_turns(&ways[i], turns[k], seconds);
    return 0;
}
