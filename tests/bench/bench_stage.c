/* One stage with the whole model, in process, without HTTP: what the model side can give.
 *
 * Prefill is one tick of 512 rows of one sequence, its last row sampled (llama-bench -p 512). Decode is 64 greedy ticks of B
 * sequences after prompts of 16 tokens (llama-batched-bench -npp 16 -ntg 64 -npl B). Medians over the repetitions.
 *
 * --limit on: the limit of a pipeline instead (stage_limit.h). Of B streams each of --stages stages has B/stages rows per tick, all
 * compute at the same time with --threads each, and the slowest one's ticks count; a prompt in pieces of --tick-rows. --split as
 * the service's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "tests/bench/stage_limit.h"
#include "tests/lib/chain.h"

enum { MAX_BATCH = 64, MAX_REPEATS = 99, MAX_PREFILL = 8192, CONTEXT = 8192 };

struct bench {
    const char *model, *backend, *isa, *batches, *split, *json;
    long threads, repeats, prefill, tokens, prompt, stages, tick_rows;
    int limit;
    struct chain *chain;
    struct stage_limit *pipeline;
    struct chain_row *rows;
    FILE *out;
    int n_results;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_stage: %s: %s\n", what, why);
    exit(EXIT_CONFIG);
}

static uint32_t some_id(const struct bench *b, uint32_t seq, uint32_t position)
{
    return (uint32_t)(rand_at(seq + 1, position) % chain_model(b->chain)->hp.n_vocab);
}

static void run(struct bench *b, uint32_t n)
{
    struct error err;
    if (chain_run(b->chain, b->rows, n, &err) != STATUS_OK)
        die("tick", err.message);
}

/* Seconds for `n` rows of a prompt in ticks of at most tick_rows. */
static double time_prefill(struct bench *b, uint32_t seq, uint32_t n)
{
    int64_t start = clock_now_ns();
    for (uint32_t at = 0; at < n; at += (uint32_t)b->tick_rows) {
        uint32_t piece = n - at < (uint32_t)b->tick_rows ? n - at : (uint32_t)b->tick_rows;
        for (uint32_t i = 0; i < piece; i++)
            b->rows[i] = (struct chain_row){.seq = seq, .position = at + i, .id = some_id(b, seq, at + i),
                                            .sampler = at + i + 1 == n ? &chain_greedy : NULL};
        run(b, piece);
    }
    return (double)(clock_now_ns() - start) * 1e-9;
}

/* Seconds for `tokens` ticks of `batch` sequences; their prompts are read before the clock starts. */
static double time_decode(struct bench *b, uint32_t batch)
{
    uint32_t ids[MAX_BATCH];
    for (uint32_t s = 0; s < batch; s++) {
        time_prefill(b, s, (uint32_t)b->prompt);
        ids[s] = some_id(b, s, 0);
    }
    int64_t start = clock_now_ns();
    for (uint32_t t = 0; t < (uint32_t)b->tokens; t++) {
        for (uint32_t s = 0; s < batch; s++)
            b->rows[s] = (struct chain_row){.seq = s, .position = (uint32_t)b->prompt + t, .id = ids[s],
                                            .sampler = &chain_greedy};
        run(b, batch);
        for (uint32_t s = 0; s < batch; s++)
            ids[s] = (uint32_t)b->rows[s].sampled;
    }
    return (double)(clock_now_ns() - start) * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(struct bench *b, const char *name, uint32_t n, double *rates)
{
    size_t repeats = (size_t)b->repeats;
    qsort(rates, repeats, sizeof *rates, ascending);
    double median = repeats % 2 ? rates[repeats / 2] : (rates[repeats / 2 - 1] + rates[repeats / 2]) / 2;
    printf("%-8s %5u  %9.2f tok/s  (%.2f to %.2f)\n", name, n, median, rates[0], rates[repeats - 1]);
    fflush(stdout);
    if (b->out)
        fprintf(b->out, "%s\n    {\"test\": \"%s\", \"n\": %u, \"tokens_per_s\": %.3f, \"least\": %.3f, \"most\": %.3f}",
                b->n_results++ ? "," : "", name, n, median, rates[0], rates[repeats - 1]);
}

static void bench_prefill(struct bench *b)
{
    double rates[MAX_REPEATS];
    time_prefill(b, 0, 64);
    for (long r = 0; r < b->repeats; r++)
        rates[r] = (double)b->prefill / time_prefill(b, 0, (uint32_t)b->prefill);
    report(b, "prefill", (uint32_t)b->prefill, rates);
}

static void bench_decode(struct bench *b, uint32_t batch)
{
    double rates[MAX_REPEATS];
    for (long r = 0; r < b->repeats; r++)
        rates[r] = (double)(batch * (uint32_t)b->tokens) / time_decode(b, batch);
    report(b, "decode", batch, rates);
}

/* Tokens per second when each tick brings `per_tick` of them and the slowest stage sets the pace. */
static double limit_rate(struct bench *b, enum status s, const double tick_us[MAX_STAGES], double per_tick, const struct error *err)
{
    double slowest = 0;
    if (s != STATUS_OK)
        die("tick", err->message);
    for (long i = 0; i < b->stages; i++)
        slowest = tick_us[i] > slowest ? tick_us[i] : slowest;
    return per_tick / slowest * 1e6;
}

static void tell_ticks(const struct bench *b, uint32_t n_rows, const double tick_us[MAX_STAGES])
{
    const struct split *split = stage_limit_split(b->pipeline);
    for (long i = 0; i < b->stages; i++)
        printf("  stage %ld, layers %u to %u, %u rows: %.0f us per tick (last round)\n", i, split->first_layer[i],
               split->first_layer[i + 1], n_rows, tick_us[i]);
}

static void limit_decode(struct bench *b, uint32_t batch)
{
    double rates[MAX_REPEATS], tick_us[MAX_STAGES];
    const uint32_t n_rows = batch / (uint32_t)b->stages;
    struct error err;
    for (long r = 0; r < b->repeats; r++) {
        enum status s = stage_limit_decode(b->pipeline, n_rows, (uint32_t)b->prompt, (uint32_t)b->tokens, tick_us, &err);
        rates[r] = limit_rate(b, s, tick_us, n_rows, &err);
    }
    tell_ticks(b, n_rows, tick_us);
    report(b, "decode", batch, rates);
}

static void limit_prefill(struct bench *b)
{
    double rates[MAX_REPEATS], tick_us[MAX_STAGES];
    const uint32_t n_rows = (uint32_t)(b->tick_rows < b->prefill ? b->tick_rows : b->prefill);
    const double n_ticks = (double)((b->prefill + n_rows - 1) / n_rows);
    struct error err;
    if (stage_limit_prefill(b->pipeline, 1, 16, tick_us, &err) != STATUS_OK) /* weights and pages are touched */
        die("tick", err.message);
    for (long r = 0; r < b->repeats; r++) {
        enum status s = stage_limit_prefill(b->pipeline, n_rows, (uint32_t)b->prefill, tick_us, &err);
        rates[r] = limit_rate(b, s, tick_us, (double)b->prefill / n_ticks, &err);
    }
    tell_ticks(b, n_rows, tick_us);
    report(b, "prefill", (uint32_t)b->prefill, rates);
}

static void open_pipeline(struct bench *b, struct error *err)
{
    const long context = b->prompt + b->tokens > b->prefill ? b->prompt + b->tokens : b->prefill;
    const struct stage_limit_options o = {.model_path = b->model, .backend = b->backend, .isa = b->isa, .split = b->split,
                                          .n_stages = (uint32_t)b->stages, .n_threads = (int)b->threads, .n_seqs = 16,
                                          .max_rows = (uint32_t)b->tick_rows, .context = (uint32_t)context};
    if (stage_limit_open(&o, &b->pipeline, err) != STATUS_OK)
        die("load", err->message);
}

static void open_chain(struct bench *b, struct error *err)
{
    const struct chain_options o = {.model_path = b->model, .backend = b->backend, .isa = b->isa, .split = b->split,
                                    .n_threads = (int)b->threads, .n_seqs = 16,
                                    .context = (uint32_t)(b->prefill > 1024 ? b->prefill : 1024),
                                    .max_rows = (uint32_t)b->tick_rows, .n_stages = (uint32_t)b->stages};
    if (chain_open(&o, &b->chain, err) != STATUS_OK)
        die("load", err->message);
    b->rows = calloc((size_t)b->tick_rows, sizeof *b->rows);
    if (!b->rows)
        die("start", "no memory");
}

static void bench_batches(struct bench *b)
{
    for (const char *at = b->batches; *at; at += strcspn(at, ","), at += *at == ',') {
        long batch = strtol(at, NULL, 10);
        if (batch < 1 || batch > 16)
            die("--batches", "each from 1 to 16");
        if (b->limit && batch % b->stages)
            die("--batches", "with --limit multiples of --stages");
        if (b->limit)
            limit_decode(b, (uint32_t)batch);
        else
            bench_decode(b, (uint32_t)batch);
    }
}

static long number(const char *flag, const char *text, long least, long most)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < least || v > most)
        die(flag, "not a number in its range");
    return v;
}

static void parse(struct bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(flag, "--model") == 0)
            b->model = value;
        else if (strcmp(flag, "--backend") == 0)
            b->backend = value;
        else if (strcmp(flag, "--isa") == 0)
            b->isa = value;
        else if (strcmp(flag, "--batches") == 0)
            b->batches = value;
        else if (strcmp(flag, "--split") == 0)
            b->split = value;
        else if (strcmp(flag, "--limit") == 0)
            b->limit = strcmp(value, "on") == 0;
        else if (strcmp(flag, "--json") == 0)
            b->json = value;
        else if (strcmp(flag, "--threads") == 0)
            b->threads = number(flag, value, 1, TEAM_MAX_THREADS);
        else if (strcmp(flag, "--stages") == 0)
            b->stages = number(flag, value, 1, CHAIN_MAX_STAGES);
        else if (strcmp(flag, "--repeats") == 0)
            b->repeats = number(flag, value, 1, MAX_REPEATS);
        else if (strcmp(flag, "--prefill") == 0) /* 0: none */
            b->prefill = number(flag, value, 0, MAX_PREFILL);
        else if (strcmp(flag, "--tick-rows") == 0)
            b->tick_rows = number(flag, value, MAX_BATCH, 2048);
        else if (strcmp(flag, "--tokens") == 0)
            b->tokens = number(flag, value, 1, CONTEXT / 2);
        else if (strcmp(flag, "--prompt") == 0)
            b->prompt = number(flag, value, 1, CONTEXT / 2);
        else
            die(flag, "unknown; --model F --threads N --backend B --isa I --batches 1,2,4 --prefill N --tick-rows N "
                      "--tokens N --prompt N --repeats N --stages N --split K1,K2 --limit on --json FILE");
    }
    if (!b->model)
        die("--model", "which GGUF file?");
}

int main(int argc, char **argv)
{
    struct bench b = {.batches = "1,2,4,8,16", .threads = 2, .repeats = 3, .prefill = 512, .tokens = 64, .prompt = 16,
                      .stages = 1, .tick_rows = 512};
    struct error err;
    log_open("bench");
    log_set_levels("warn", NULL);
    parse(&b, argc, argv);
    if (b.limit)
        open_pipeline(&b, &err);
    else
        open_chain(&b, &err);
    const char *backend = b.limit ? stage_limit_backend(b.pipeline) : chain_backend(b.chain);
    printf("%s, %ld threads, %ld stages\n", backend, b.threads, b.stages);
    b.out = b.json ? fopen(b.json, "w") : NULL;
    if (b.out)
        fprintf(b.out, "{\"backend\": \"%s\", \"threads\": %ld, \"stages\": %ld, \"results\": [", backend, b.threads, b.stages);
    if (b.prefill && b.limit)
        limit_prefill(&b);
    else if (b.prefill)
        bench_prefill(&b);
    bench_batches(&b);
    if (b.out) {
        fprintf(b.out, "\n]}\n");
        fclose(b.out);
    }
    free(b.rows);
    chain_close(b.chain);
    stage_limit_close(b.pipeline);
    return 0;
}
