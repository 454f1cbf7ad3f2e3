/* deploy/cli/main.c - program sluice: what people type against a running service. */
#include <curl/curl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "deploy/cli/bench.h"
#include "deploy/cli/cli.h"
#include "deploy/cli/flags.h"
#include "deploy/cli/model.h"
#include "deploy/cli/status.h"

static const char usage[] =
    "usage: sluice chat [TEXT] [flags]   one answer to TEXT, or a conversation on standard input\n"
    "       sluice complete TEXT [flags] how TEXT goes on: for base models, which have no chat template\n"
    "       sluice status [--json]       what the service is doing\n"
    "       sluice bench [stall] [flags] load against it, measured (sluice bench --help)\n"
    "       sluice model FILE [flags]    what is in a model file, without a service (sluice model --help)\n"
    "\n"
    "  --url URL          http://127.0.0.1:8080   the service (else SLUICE_URL)\n"
    "  --key KEY          -                       API key (else SLUICE_API_KEY)\n"
    "  --ca FILE          the system's            CA of an https service (else SLUICE_CA)\n"
    "  --model NAME       the service's           chat, complete: model\n"
    "  --system TEXT      -                       chat: system message\n"
    "  --max-tokens N     to the context's end    chat, complete: longest answer\n"
    "  --temperature X    the service's           chat, complete: 0 is greedy\n"
    "  --seed N           drawn                   chat, complete: the same seed gives the same answer\n"
    "  --help, --version\n";

enum flag { FLAG_URL = 256, FLAG_KEY, FLAG_CA, FLAG_MODEL, FLAG_SYSTEM, FLAG_MAX_TOKENS, FLAG_TEMPERATURE, FLAG_SEED, FLAG_JSON,
            FLAG_HELP, FLAG_VERSION };

static const struct option flags[] = {
    {"url", required_argument, NULL, FLAG_URL},
    {"key", required_argument, NULL, FLAG_KEY},
    {"ca", required_argument, NULL, FLAG_CA},
    {"model", required_argument, NULL, FLAG_MODEL},
    {"system", required_argument, NULL, FLAG_SYSTEM},
    {"max-tokens", required_argument, NULL, FLAG_MAX_TOKENS},
    {"temperature", required_argument, NULL, FLAG_TEMPERATURE},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"json", no_argument, NULL, FLAG_JSON},
    {"help", no_argument, NULL, FLAG_HELP},
    {"version", no_argument, NULL, FLAG_VERSION},
    {0},
};

/* A whole number in a range, or exit 2 with one line. */
static long long whole(const char *flag, const char *text, long long min)
{
    long long v;
    if (!flag_whole(text, min, LLONG_MAX, &v)) {
        fprintf(stderr, "sluice: --%s: '%s' is not allowed; a whole number from %lld is\n", flag, text, min);
        exit(EXIT_CONFIG);
    }
    return v;
}

static double temperature(const char *text)
{
    double v;
    if (!flag_real(text, 0, 100, &v)) {
        fprintf(stderr, "sluice: --temperature: '%s' is not allowed; 0 to 100 is\n", text);
        exit(EXIT_CONFIG);
    }
    return v;
}

static void read_flags(int argc, char **argv, struct chat_options *o, int *json)
{
    int flag;
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1)
        switch (flag) {
        case FLAG_URL:
            o->http.url = optarg;
            break;
        case FLAG_CA:
            o->http.ca = optarg;
            break;
        case FLAG_KEY:
            o->http.key = optarg;
            break;
        case FLAG_MODEL:
            o->model = optarg;
            break;
        case FLAG_SYSTEM:
            o->system = optarg;
            break;
        case FLAG_MAX_TOKENS:
            o->max_tokens = whole("max-tokens", optarg, 1);
            break;
        case FLAG_TEMPERATURE:
            o->temperature = temperature(optarg);
            break;
        case FLAG_SEED:
            o->seed = whole("seed", optarg, 0);
            o->has_seed = 1;
            break;
        case FLAG_JSON:
            *json = 1;
            break;
        case FLAG_HELP:
            fputs(usage, stdout);
            exit(EXIT_ASKED);
        case FLAG_VERSION:
            puts(config_version());
            exit(EXIT_ASKED);
        default:
            fputs(usage, stderr);
            exit(EXIT_CONFIG);
        }
}

int main(int argc, char **argv)
{
    struct chat_options o = {.http = {getenv("SLUICE_URL"), getenv("SLUICE_API_KEY"), getenv("SLUICE_CA")}, .temperature = -1};
    struct error err = {0};
    int json = 0;
    if (!o.http.url)
        o.http.url = "http://127.0.0.1:8080";
    if (argc > 1 && strcmp(argv[1], "bench") == 0) { /* has flags of its own */
        curl_global_init(CURL_GLOBAL_DEFAULT);
        int code = bench_main(argc - 1, argv + 1, &o.http);
        curl_global_cleanup();
        return code;
    }
    if (argc > 1 && strcmp(argv[1], "model") == 0)
        return model_main(argc - 1, argv + 1);
    read_flags(argc, argv, &o, &json);
    const char *command = optind < argc ? argv[optind] : "";
    int n_words = argc - optind - 1;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    enum status s;
    if (strcmp(command, "chat") == 0 && n_words <= 1) {
        o.text = n_words ? argv[optind + 1] : NULL;
        s = chat_run(&o, &err);
    } else if (strcmp(command, "complete") == 0 && n_words == 1) {
        o.text = argv[optind + 1];
        s = complete_run(&o, &err);
    } else if (strcmp(command, "status") == 0 && n_words == 0) {
        s = status_run(&o.http, json, &err);
    } else {
        fputs(usage, stderr);
        if (*command)
            fprintf(stderr, "\nsluice: '%s' is no command, or this is not how it is called: see above\n", command);
        return EXIT_CONFIG;
    }
    curl_global_cleanup();
    if (s == STATUS_OK)
        return EXIT_ASKED;
    fprintf(stderr, "sluice: %s\n", err.message);
    return 1;
}
