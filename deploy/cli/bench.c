/* deploy/cli/bench.c - `sluice bench`: what runs in which order, and the exit code. */
#include "deploy/cli/bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "deploy/cli/said.h"

/* Two prompts of these many words tell how a server counts: their difference what a word costs, the rest what lies around it. */
enum { PROBE_WORDS_1 = 16, PROBE_WORDS_2 = 144, PROBE_TRIES = 10 };

/* --- shared by the scenarios ------------------------------------------------------------------------------------------------ */

void failures_add(struct failures *f, const char *kind, const char *message)
{
    uint32_t i = 0;
    f->n++;
    while (i < f->n_kinds && strcmp(f->v[i].kind, kind) != 0)
        i++;
    if (i == MAX_FAILURE_KINDS) {
        i--;
    } else if (i == f->n_kinds) {
        f->n_kinds++;
        snprintf(f->v[i].kind, sizeof f->v[i].kind, "%s", kind);
        snprintf(f->v[i].example, sizeof f->v[i].example, "%s", message ? message : "");
        said_make_plain(f->v[i].example); /* it may have been cut within a character, which JSON does not take */
    }
    f->v[i].n++;
}

void bench_progress(const struct bench_options *o, const char *fmt, ...)
{
    va_list ap;
    if (!o->progress)
        return;
    int tty = isatty(STDERR_FILENO);
    if (tty)
        fputs("\r\033[K", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (!tty)
        fputc('\n', stderr);
    fflush(stderr);
}

void bench_progress_end(const struct bench_options *o)
{
    if (o->progress && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* --- before the run --------------------------------------------------------------------------------------------------------- */

/* The server's first model, or NULL: not every server lists them. A server that cannot be reached is told here. */
static enum status find_model(const struct http *h, json_t **models, const char **out, struct error *err)
{
    enum status s = http_get(h, "/v1/models", models, err);
    if (s == STATUS_OK)
        *out = json_string_value(json_object_get(json_array_get(json_object_get(*models, "data"), 0), "id"));
    return s == STATUS_IO || s == STATUS_TIMEOUT || s == STATUS_CANCELLED ? s : STATUS_OK;
}

static void probe_event(void *ctx, const struct stream_event *e)
{
    if (e->has_usage)
        *(int64_t *)ctx = e->prompt_tokens;
}

static enum status probe(const struct bench_options *o, const struct plan *p, uint32_t n_words, int64_t *out, struct error *err)
{
    size_t len;
    char *text = plan_body(p, UINT64_MAX - n_words, n_words, 1, PLAN_OWN_PREFIX, &len);
    json_t *body = text ? json_loadb(text, len, 0, NULL) : NULL;
    free(text);
    if (!body)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    enum status s;
    for (int tries = 0; (s = http_post_stream(&o->http, plan_path(p), body, probe_event, out, err)) != STATUS_OK; tries++) {
        if (tries == PROBE_TRIES || err->retry_after_s == 0 || http_interrupted)
            break;
        bench_progress(o, "%s; trying again in %d s", err->message, err->retry_after_s);
        sleep((unsigned)err->retry_after_s);
    }
    json_decref(body);
    return s;
}

static enum status calibrate(const struct bench_options *o, struct plan *p, struct error *err)
{
    int64_t n1 = 0, n2 = 0;
    if (!o->probe)
        return STATUS_OK;
    TRY(probe(o, p, PROBE_WORDS_1, &n1, err));
    TRY(probe(o, p, PROBE_WORDS_2, &n2, err));
    plan_calibrate(p, PROBE_WORDS_1, n1, PROBE_WORDS_2, n2);
    return STATUS_OK;
}

/* --- after it --------------------------------------------------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / NS_PER_S;
}

static enum status write_json(const char *path, const json_t *v, struct error *err)
{
    int to_stdout = strcmp(path, "-") == 0;
    FILE *f = to_stdout ? stdout : fopen(path, "w");
    if (!f)
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    int bad = json_dumpf(v, f, JSON_INDENT(2)) != 0 || fputc('\n', f) == EOF;
    bad |= to_stdout ? fflush(f) != 0 : fclose(f) != 0;
    return bad ? error_set(err, STATUS_IO, "%s: %s", path, strerror(errno)) : STATUS_OK;
}

static int is_missed(const char *what, double value, double bound, int is_least)
{
    if (bound < 0 || (is_least ? value >= bound : value <= bound))
        return 0;
    fprintf(stderr, "sluice bench: %s is %.3f, which is %s than %.3f\n", what, value, is_least ? "less" : "more", bound);
    return 1;
}

static int is_stall_bad(const struct bench_options *o, const struct stall_result *r)
{
    int bad = r->failures.n > 0;
    if (!r->is_whole)
        return 1;
    double gap = r->gaps_during.n ? r->gaps_during.v[r->gaps_during.n - 1] : 0; /* the report has sorted them */
    bad |= is_missed("the share kept", r->share, o->check_share, 1);
    bad |= is_missed("the longest gap in ms", gap, o->check_gap_ms, 0);
    bad |= is_missed("the prompt's time over its time alone", r->ratio, o->check_ratio, 0);
    return bad;
}

static enum status run_stall(const struct bench_options *o, const struct plan *p, int *is_bad, struct error *err)
{
    struct stall_result r;
    struct client_cost cost = {.cpu_s = cpu_s(), .wall_s = (double)clock_now_ns() / NS_PER_S};
    enum status s = stall_run(o, p, &r, err);
    cost = (struct client_cost){cpu_s() - cost.cpu_s, (double)clock_now_ns() / NS_PER_S - cost.wall_s, r.n_events};
    if (s == STATUS_OK) {
        json_t *v = stall_report_json(o, p, &r, &cost);
        if (!o->json || strcmp(o->json, "-") != 0)
            stall_report(stdout, o, p, &r, &cost);
        if (o->json)
            s = write_json(o->json, v, err);
        json_decref(v);
        *is_bad = is_stall_bad(o, &r);
    }
    stall_result_fini(&r);
    return s;
}

static enum status run_load(const struct bench_options *o, const struct plan *p, int *is_bad, struct error *err)
{
    struct load_result r;
    struct client_cost cost = {.cpu_s = cpu_s(), .wall_s = (double)clock_now_ns() / NS_PER_S};
    enum status s = load_run(o, p, &r, err);
    cost = (struct client_cost){cpu_s() - cost.cpu_s, (double)clock_now_ns() / NS_PER_S - cost.wall_s, r.n_events};
    if (s == STATUS_OK) {
        json_t *v = load_report_json(o, p, &r, &cost);
        if (!o->json || strcmp(o->json, "-") != 0)
            load_report(stdout, o, p, &r, &cost);
        if (o->json)
            s = write_json(o->json, v, err);
        json_decref(v);
        *is_bad = r.failures.n > 0;
    }
    load_result_fini(&r);
    return s;
}

static void on_interrupt(int sig)
{
    (void)sig;
    http_interrupted = 1;
}

static enum status run(struct bench_options *o, int *is_bad, struct error *err)
{
    json_t *models = NULL;
    struct plan p = {0};
    enum status s = o->plan.model ? STATUS_OK : find_model(&o->http, &models, &o->plan.model, err);
    if (s == STATUS_OK)
        s = plan_init(&p, &o->plan, err);
    if (s == STATUS_OK)
        s = calibrate(o, &p, err);
    if (s == STATUS_OK)
        s = o->is_stall ? run_stall(o, &p, is_bad, err) : run_load(o, &p, is_bad, err);
    plan_fini(&p);
    json_decref(models);
    return s;
}

int bench_main(int argc, char **argv, const struct http *http)
{
    struct bench_options o = {.http = *http, .probe = 1, .timeout_s = 3600, .progress = isatty(STDERR_FILENO), .n_streams = 4,
                              .n_prompts = 1, .stream_prompt = {LENGTH_FIXED, 32, 32}, .stream_tokens = {LENGTH_FIXED, 2000, 2000},
                              .before_s = 5, .after_s = 3, .alone = 1, .check_share = -1, .check_gap_ms = -1, .check_ratio = -1};
    struct error err = {0};
    int is_bad = 0;
    if (getrandom(&o.plan.seed, sizeof o.plan.seed, 0) != sizeof o.plan.seed)
        o.plan.seed = (uint64_t)clock_now_ns();
    o.plan.seed &= INT64_MAX >> 11; /* it is told as a number in JSON */
    bench_read_flags(argc, argv, &o);
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* a second Ctrl-C ends at once */
    sigaction(SIGINT, &sa, NULL);
    enum status s = run(&o, &is_bad, &err);
    if (s != STATUS_OK)
        fprintf(stderr, "sluice: %s\n", err.message);
    return s == STATUS_CONFIG ? EXIT_CONFIG : s != STATUS_OK || is_bad ? 1 : EXIT_ASKED;
}
