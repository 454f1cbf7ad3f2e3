/* deploy/cli/bench_options.c - the flags of `sluice bench`. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/flags.h"

static const char usage[] =
    "usage: sluice bench [flags]         requests as many users would send them: latencies, throughput, goodput\n"
    "       sluice bench stall [flags]   steady streams, then a long prompt beside them: what the streams keep\n"
    "\n"
    "Against any OpenAI-style server (Sluice, vLLM, llama-server). Ctrl-C ends early and reports what there is.\n"
    "Exit code 1: a request failed, or a check was not met.\n"
    "\n"
    "  --url URL              http://127.0.0.1:8080   the server (else SLUICE_URL)\n"
    "  --key KEY              -                       API key (else SLUICE_API_KEY)\n"
    "  --model NAME           the server's first      model\n"
    "  --endpoint NAME        completions             completions or chat\n"
    "  --prompt-tokens SPEC   512 (stall: 6000)       N, A-B or lognormal:A-B\n"
    "  --max-tokens SPEC      128 (stall: 1)          length of answers (end of text is ignored)\n"
    "  --prompt-ids[=A-B]     words; 300-4299         prompts as arrays of token ids from A to B: exact lengths\n"
    "  --no-probe             -                       do not ask first how the server counts the words of a prompt\n"
    "  --temperature X        0                       0 is greedy\n"
    "  --seed N               drawn                   the same seed asks the same, so a second run finds it in a cache\n"
    "  --body JSON            -                       more fields for every request, e.g. '{\"priority\": \"batch\"}'\n"
    "  --timeout S            3600                    longest request\n"
    "  --json FILE            -                       everything as JSON too; - is standard output, without the table\n"
    "  --progress             on a terminal           a line a second on standard error\n"
    "\n"
    "load:\n"
    "  --rate R               -                       open loop: R requests a second, as a Poisson process\n"
    "  --concurrency N        8                       closed loop: N users, each asks again when its answer ends\n"
    "  --requests N           100                     so many requests\n"
    "  --duration S           -                       no new request after S seconds\n"
    "  --shared-prefix N      0                       tokens that all prompts begin with\n"
    "  --slo SPEC             -                       goodput: ttft:MS,itl:MS,tpot:MS,e2e:MS; itl bounds the longest gap\n"
    "  --retry                -                       a refused request comes again after its Retry-After\n"
    "\n"
    "stall:\n"
    "  --streams N            4                       steady streams\n"
    "  --stream-prompt SPEC   32                      their prompts\n"
    "  --stream-tokens SPEC   2000                    their answers; an answer that ends is followed by the next\n"
    "  --prompts K            1                       long prompts, at the same time\n"
    "  --before S, --after S  5, 3                    seconds measured before and after\n"
    "  --no-alone             -                       do not read the prompt on the idle server first\n"
    "  --check-share X        -                       fail when the streams together keep less than X of their speed\n"
    "  --check-gap-ms N       -                       fail when a stream is silent for longer\n"
    "  --check-ratio X        -                       fail when the prompt takes more than X times its time alone\n";

enum flag {
    FLAG_URL = 256, FLAG_KEY, FLAG_MODEL, FLAG_ENDPOINT, FLAG_PROMPT_TOKENS, FLAG_MAX_TOKENS, FLAG_PROMPT_IDS, FLAG_NO_PROBE,
    FLAG_TEMPERATURE, FLAG_SEED, FLAG_BODY, FLAG_TIMEOUT, FLAG_JSON, FLAG_PROGRESS, FLAG_RATE, FLAG_CONCURRENCY, FLAG_REQUESTS,
    FLAG_DURATION, FLAG_SHARED_PREFIX, FLAG_SLO, FLAG_RETRY, FLAG_STREAMS, FLAG_STREAM_PROMPT, FLAG_STREAM_TOKENS, FLAG_PROMPTS,
    FLAG_BEFORE, FLAG_AFTER, FLAG_NO_ALONE, FLAG_CHECK_SHARE, FLAG_CHECK_GAP, FLAG_CHECK_RATIO, FLAG_HELP, FLAG_VERSION,
};

static const struct option flags[] = {
    {"url", required_argument, NULL, FLAG_URL},
    {"key", required_argument, NULL, FLAG_KEY},
    {"model", required_argument, NULL, FLAG_MODEL},
    {"endpoint", required_argument, NULL, FLAG_ENDPOINT},
    {"prompt-tokens", required_argument, NULL, FLAG_PROMPT_TOKENS},
    {"max-tokens", required_argument, NULL, FLAG_MAX_TOKENS},
    {"prompt-ids", optional_argument, NULL, FLAG_PROMPT_IDS},
    {"no-probe", no_argument, NULL, FLAG_NO_PROBE},
    {"temperature", required_argument, NULL, FLAG_TEMPERATURE},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"body", required_argument, NULL, FLAG_BODY},
    {"timeout", required_argument, NULL, FLAG_TIMEOUT},
    {"json", required_argument, NULL, FLAG_JSON},
    {"progress", no_argument, NULL, FLAG_PROGRESS},
    {"rate", required_argument, NULL, FLAG_RATE},
    {"concurrency", required_argument, NULL, FLAG_CONCURRENCY},
    {"requests", required_argument, NULL, FLAG_REQUESTS},
    {"duration", required_argument, NULL, FLAG_DURATION},
    {"shared-prefix", required_argument, NULL, FLAG_SHARED_PREFIX},
    {"slo", required_argument, NULL, FLAG_SLO},
    {"retry", no_argument, NULL, FLAG_RETRY},
    {"streams", required_argument, NULL, FLAG_STREAMS},
    {"stream-prompt", required_argument, NULL, FLAG_STREAM_PROMPT},
    {"stream-tokens", required_argument, NULL, FLAG_STREAM_TOKENS},
    {"prompts", required_argument, NULL, FLAG_PROMPTS},
    {"before", required_argument, NULL, FLAG_BEFORE},
    {"after", required_argument, NULL, FLAG_AFTER},
    {"no-alone", no_argument, NULL, FLAG_NO_ALONE},
    {"check-share", required_argument, NULL, FLAG_CHECK_SHARE},
    {"check-gap-ms", required_argument, NULL, FLAG_CHECK_GAP},
    {"check-ratio", required_argument, NULL, FLAG_CHECK_RATIO},
    {"help", no_argument, NULL, FLAG_HELP},
    {"version", no_argument, NULL, FLAG_VERSION},
    {0},
};

static _Noreturn void refuse(const char *why)
{
    fprintf(stderr, "sluice bench: %s\n", why);
    exit(EXIT_CONFIG);
}

static uint64_t whole(const char *flag, const char *text, long long min, long long max)
{
    long long v;
    if (!flag_whole(text, min, max, &v)) {
        fprintf(stderr, "sluice bench: --%s: '%s' is not allowed; a whole number from %lld to %lld is\n", flag, text, min, max);
        exit(EXIT_CONFIG);
    }
    return (uint64_t)v;
}

static double real(const char *flag, const char *text, double min, double max)
{
    double v;
    if (!flag_real(text, min, max, &v)) {
        fprintf(stderr, "sluice bench: --%s: '%s' is not allowed; a number from %g to %g is\n", flag, text, min, max);
        exit(EXIT_CONFIG);
    }
    return v;
}

static struct length length(const char *flag, const char *text)
{
    struct length l;
    struct error err;
    if (length_parse(flag, text, &l, &err) != STATUS_OK)
        refuse(err.message);
    return l;
}

static void take_ids(struct plan_options *o, const char *text)
{
    struct length l = {LENGTH_UNIFORM, 300, 4299};
    char *end;
    if (text) {
        unsigned long long a = strtoull(text, &end, 10), b = a;
        if (end > text && *end == '-')
            b = strtoull(end + 1, &end, 10);
        if (end == text || *end || b < a || b > INT32_MAX)
            refuse("--prompt-ids: A-B is allowed, token ids from A to B");
        l.min = (uint32_t)a;
        l.max = (uint32_t)b;
    }
    o->has_ids = 1;
    o->first_id = l.min;
    o->last_id = l.max;
}

/* Flags that both scenarios know. */
static int take_common(int flag, struct bench_options *o)
{
    switch (flag) {
    case FLAG_URL:
        o->http.url = optarg;
        break;
    case FLAG_KEY:
        o->http.key = optarg;
        break;
    case FLAG_MODEL:
        o->plan.model = optarg;
        break;
    case FLAG_ENDPOINT:
        o->plan.is_chat = strcmp(optarg, "chat") == 0;
        if (!o->plan.is_chat && strcmp(optarg, "completions") != 0)
            refuse("--endpoint: completions or chat is allowed");
        break;
    case FLAG_PROMPT_TOKENS:
        o->prompt_tokens = length("prompt-tokens", optarg);
        break;
    case FLAG_MAX_TOKENS:
        o->max_tokens = length("max-tokens", optarg);
        break;
    case FLAG_PROMPT_IDS:
        take_ids(&o->plan, optarg);
        break;
    case FLAG_NO_PROBE:
        o->probe = 0;
        break;
    case FLAG_TEMPERATURE:
        o->plan.temperature = real("temperature", optarg, 0, 100);
        break;
    case FLAG_SEED:
        o->plan.seed = whole("seed", optarg, 0, INT64_MAX);
        break;
    case FLAG_BODY:
        o->plan.extra_json = optarg;
        break;
    case FLAG_TIMEOUT:
        o->timeout_s = real("timeout", optarg, 0.001, 1e6);
        break;
    case FLAG_JSON:
        o->json = optarg;
        break;
    case FLAG_PROGRESS:
        o->progress = 1;
        break;
    case FLAG_HELP:
        fputs(usage, stdout);
        exit(EXIT_ASKED);
    case FLAG_VERSION:
        puts(config_version());
        exit(EXIT_ASKED);
    default:
        return 0;
    }
    return 1;
}

static int take_load(int flag, struct bench_options *o)
{
    struct error err;
    switch (flag) {
    case FLAG_RATE:
        o->rate = real("rate", optarg, 1e-6, 1e6);
        break;
    case FLAG_CONCURRENCY:
        o->concurrency = (uint32_t)whole("concurrency", optarg, 1, 1 << 20);
        break;
    case FLAG_REQUESTS:
        o->n_requests = whole("requests", optarg, 1, 1ll << 40);
        break;
    case FLAG_DURATION:
        o->duration_s = real("duration", optarg, 1e-3, 1e7);
        break;
    case FLAG_SHARED_PREFIX:
        o->plan.shared_prefix = (uint32_t)whole("shared-prefix", optarg, 0, 16 << 20);
        break;
    case FLAG_SLO:
        if (slo_parse(optarg, &o->slo, &err) != STATUS_OK)
            refuse(err.message);
        break;
    case FLAG_RETRY:
        o->retry = 1;
        break;
    default:
        return 0;
    }
    return 1;
}

static int take_stall(int flag, struct bench_options *o)
{
    switch (flag) {
    case FLAG_STREAMS:
        o->n_streams = (uint32_t)whole("streams", optarg, 1, 1 << 20);
        break;
    case FLAG_STREAM_PROMPT:
        o->stream_prompt = length("stream-prompt", optarg);
        break;
    case FLAG_STREAM_TOKENS:
        o->stream_tokens = length("stream-tokens", optarg);
        break;
    case FLAG_PROMPTS:
        o->n_prompts = (uint32_t)whole("prompts", optarg, 1, 1 << 16);
        break;
    case FLAG_BEFORE:
        o->before_s = real("before", optarg, 0.1, 1e6);
        break;
    case FLAG_AFTER:
        o->after_s = real("after", optarg, 0, 1e6);
        break;
    case FLAG_NO_ALONE:
        o->alone = 0;
        break;
    case FLAG_CHECK_SHARE:
        o->check_share = real("check-share", optarg, 0, 100);
        break;
    case FLAG_CHECK_GAP:
        o->check_gap_ms = real("check-gap-ms", optarg, 0, 1e9);
        break;
    case FLAG_CHECK_RATIO:
        o->check_ratio = real("check-ratio", optarg, 0, 1e6);
        break;
    default:
        return 0;
    }
    return 1;
}

static const char *flag_name(int flag)
{
    for (const struct option *f = flags; f->name; f++)
        if (f->val == flag)
            return f->name;
    return "?";
}

static void set_defaults(struct bench_options *o)
{
    if (!o->prompt_tokens.min)
        o->prompt_tokens = (struct length){LENGTH_FIXED, o->is_stall ? 6000 : 512, 0};
    if (!o->max_tokens.min)
        o->max_tokens = (struct length){LENGTH_FIXED, o->is_stall ? 1 : 128, 0};
    if (o->prompt_tokens.kind == LENGTH_FIXED)
        o->prompt_tokens.max = o->prompt_tokens.min;
    if (o->max_tokens.kind == LENGTH_FIXED)
        o->max_tokens.max = o->max_tokens.min;
    if (o->rate > 0 && o->concurrency)
        refuse("--rate and --concurrency: an open loop never waits for answers; give one of the two");
    if (o->rate == 0 && !o->concurrency)
        o->concurrency = 8;
    if (!o->n_requests && o->duration_s == 0)
        o->n_requests = 100;
    if (o->plan.has_ids && o->plan.is_chat)
        refuse("--prompt-ids: only /v1/completions takes token ids");
    if (o->plan.has_ids)
        o->probe = 0;
}

void bench_read_flags(int argc, char **argv, struct bench_options *o)
{
    int flag, load_flag = 0, stall_flag = 0;
    optind = 0; /* starts again: main has read no flag of ours, but getopt keeps its place */
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (take_common(flag, o))
            continue;
        if (take_load(flag, o)) {
            load_flag = flag;
        } else if (take_stall(flag, o)) {
            stall_flag = flag;
        } else {
            fputs(usage, stderr);
            exit(EXIT_CONFIG);
        }
    }
    const char *scenario = optind < argc ? argv[optind] : "load";
    o->is_stall = strcmp(scenario, "stall") == 0;
    if (argc - optind > 1 || (!o->is_stall && strcmp(scenario, "load") != 0)) {
        fputs(usage, stderr);
        exit(EXIT_CONFIG);
    }
    int wrong = o->is_stall ? load_flag : stall_flag;
    if (wrong) {
        fprintf(stderr, "sluice bench: --%s is a flag of `sluice bench%s`\n", flag_name(wrong), o->is_stall ? "" : " stall");
        exit(EXIT_CONFIG);
    }
    set_defaults(o);
}
