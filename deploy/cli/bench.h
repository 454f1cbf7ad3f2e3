/* deploy/cli/bench.h - `sluice bench`: load against an OpenAI-style server, and what its users would have seen.
 *
 * Purpose    Options, results and the steps between them: bench_options.c reads flags, bench_load.c and bench_stall.c run the two
 *            scenarios over bench_http.h, bench_report.c tells the result to people and machines, bench.c puts them together.
 * Ownership  Option strings are argv's. load_result_fini and stall_result_fini free what a run filled in.
 * Threading  Main thread.
 * Errors     CONFIG (flags), the server's own before the run has begun; during a run failures are counted by kind in the result.
 */
#ifndef SLUICE_DEPLOY_CLI_BENCH_H
#define SLUICE_DEPLOY_CLI_BENCH_H

#include <stdint.h>
#include <stdio.h>

#include "deploy/cli/bench_http.h"
#include "deploy/cli/bench_plan.h"
#include "deploy/cli/bench_stats.h"
#include "deploy/cli/http.h"

enum { MAX_FAILURE_KINDS = 16 };

struct bench_options {
    struct http http;
    struct plan_options plan;
    int is_stall;
    struct length prompt_tokens, max_tokens;
    int probe;               /* ask the server first how it counts tokens */
    double timeout_s;
    int progress;
    const char *json;        /* file, "-" or NULL */
    /* load */
    double rate;             /* requests a second; 0: closed loop */
    uint32_t concurrency;    /* of the closed loop */
    uint64_t n_requests;     /* 0: no bound */
    double duration_s;       /* 0: no bound */
    int retry;               /* come again when a refusal says when */
    struct slo slo;
    /* stall */
    uint32_t n_streams, n_prompts;
    struct length stream_prompt, stream_tokens;
    double before_s, after_s;
    int alone;               /* measure the long prompt on the idle server first */
    double check_share, check_gap_ms, check_ratio; /* < 0: not checked */
};

/* Exits for --help and wrong flags, as every command here does. argv[0] is the command's name. */
void bench_read_flags(int argc, char **argv, struct bench_options *o);

struct failures {
    struct failure {
        char kind[32];
        uint64_t n;
        char example[200]; /* the first one's message */
    } v[MAX_FAILURE_KINDS]; /* the last one also takes what finds no place */
    uint32_t n_kinds;
    uint64_t n;
};

void failures_add(struct failures *f, const char *kind, const char *message);

struct load_result {
    uint64_t n_sent, n_done, n_refused, n_retries, n_cut; /* refused: 503 or 429 with Retry-After at last; cut: by the end of the run */
    uint64_t prompt_tokens, cached_tokens, output_tokens, n_events;
    struct samples ttft, itl, tpot, e2e; /* ms, of requests that were done */
    struct samples late;                 /* open loop: how much later than intended a request was sent */
    uint64_t n_met;                      /* of slo */
    uint32_t most_running;
    double seconds;                      /* first intended start to last end */
    int is_interrupted;
    struct failures failures;
};

enum status load_run(const struct bench_options *o, const struct plan *p, struct load_result *out, struct error *err);
void load_result_fini(struct load_result *r);

struct stall_stream {
    double before, during, after; /* tokens/s */
    uint32_t n_answers;           /* that ended, and were followed by another */
};

struct stall_result {
    uint32_t n_streams, n_prompts;
    struct stall_stream *streams; /* [n_streams] */
    struct stall_stream total;
    double share, min_share;      /* during/before: of all, and of the stream that kept least */
    struct samples gaps_before, gaps_during;
    struct samples ttft;          /* ms, of the long prompts beside the streams */
    double alone_ms;              /* TTFT on the idle server; 0: not measured */
    double ratio;                 /* last TTFT / (alone x prompts) */
    int64_t prompt_tokens, cached_tokens; /* of the long prompts, by the server's count; 0: it did not say */
    double during_s;
    uint64_t n_events;
    int is_whole;                 /* the run came to its end */
    struct failures failures;
};

enum status stall_run(const struct bench_options *o, const struct plan *p, struct stall_result *out, struct error *err);
void stall_result_fini(struct stall_result *r);

/* The client's own cost: it may share its cores with the server it measures. */
struct client_cost {
    double cpu_s, wall_s;
    uint64_t n_events;
};

/* Sort the samples. The whole result goes to stdout as a table, or to o->json as JSON. */
void load_report(FILE *f, const struct bench_options *o, const struct plan *p, struct load_result *r, const struct client_cost *c);
void stall_report(FILE *f, const struct bench_options *o, const struct plan *p, struct stall_result *r, const struct client_cost *c);
json_t *load_report_json(const struct bench_options *o, const struct plan *p, struct load_result *r, const struct client_cost *c);
json_t *stall_report_json(const struct bench_options *o, const struct plan *p, struct stall_result *r, const struct client_cost *c);

/* One line on stderr, in place of the last one on a terminal. */
void bench_progress(const struct bench_options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bench_progress_end(const struct bench_options *o);

/* `sluice bench`; argv[0] is "bench". Returns the exit code: 1 when a request failed or a check is not met. */
int bench_main(int argc, char **argv, const struct http *http);

#endif
