/* deploy/cli/model.c - `sluice model`: flags, table and JSON. */
#include "deploy/cli/model.h"

#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "deploy/cli/flags.h"
#include "stage/memory.h"

static const char usage[] =
    "usage: sluice model FILE [flags]     what is in a model file, how it splits, what each stage needs\n"
    "\n"
    "  --stages S         1                       split over so many stages\n"
    "  --context N        the model's             most positions of one sequence\n"
    "  --slots N          8                       sequences at the same time\n"
    "  --kv-block N       64                      positions in a KV block: 16, 32, 64 or 128\n"
    "  --json             -                       the same for programs\n"
    "Exit code 3: the service would refuse the file; each reason is a line. Weights are not read: infinite ones show at load.\n";

/* --- for people ------------------------------------------------------------------------------------------------------------- */

static void print_shape(const struct hparams *hp, FILE *f)
{
    fprintf(f, "layers      %u of %u: %u heads of %u, %u of keys and values, ", hp->n_layers, hp->n_embd, hp->n_heads, hp->head_dim,
            hp->n_kv_heads);
    if (hp->n_experts)
        fprintf(f, "%u of %u experts of %u", hp->n_experts_used, hp->n_experts, hp->n_ff_expert);
    else
        fprintf(f, "feed-forward %u", hp->n_ff);
    if (hp->window)
        fprintf(f, ", windows of %u", hp->window);
    fprintf(f, "\ncontext     %u\n", hp->n_context);
}

static void print_contents(const struct model_report *r, FILE *f)
{
    fprintf(f, "%s: %s, %.1f M parameters in %u tensors, %s\n", r->is_model ? r->model.name : gguf_printable(r->name).text,
            gguf_printable(r->architecture).text, (double)r->n_parameters / 1e6, gguf_n_tensors(r->gguf),
            memory_print(gguf_file_bytes(r->gguf)).text);
    if (r->is_model)
        print_shape(&r->model.hp, f);
    fprintf(f, "vocabulary  %" PRIu64 ", kind %s, pre-tokenizer %s\n", r->n_tokens,
            r->vocabulary.len ? gguf_printable(r->vocabulary).text : "none", r->pre.len ? gguf_printable(r->pre).text : "-");
    fprintf(f, "template    %s\n", r->chat_template);
    if (r->profile)
        fprintf(f, "numerics    %s on %s\n", r->profile, r->backend);
    fprintf(f, "\n%-8s %9s %12s  %s\n", "type", "tensors", "in the file", "computed");
    for (uint32_t i = 0; i < r->n_types; i++)
        fprintf(f, "%-8s %9u %12s  %s\n", r->types[i].name, r->types[i].n_tensors, memory_print(r->types[i].bytes).text,
                r->types[i].kernels);
}

static void print_stages(const struct model_report *r, const struct model_options *o, FILE *f)
{
    fprintf(f, "\n%u slots, context %u, KV blocks of %u; weights as they lie packed (rows of the embedding stay in the file):\n"
            "%-6s %-9s %11s %11s %11s %11s %11s %11s %11s\n", o->slots, r->context, o->kv_block,
            "stage", "layers", "in the file", "weights", "a context", "all slots", "buffers", "samplers", "together");
    for (uint32_t i = 0; i < r->split.n_stages; i++) {
        const struct model_stage_needs *s = &r->stages[i];
        char layers[24];
        snprintf(layers, sizeof layers, "%u..%u", r->split.first_layer[i], r->split.first_layer[i + 1] - 1);
        fprintf(f, "%-6u %-9s %11s %11s %11s %11s %11s %11s %11s\n", i, layers, memory_print(s->file_bytes).text,
                memory_print(s->needs.weights).text, memory_print(s->kv_context).text,
                memory_print(s->kv_context * o->slots).text, memory_print(s->needs.buffers).text,
                memory_print(s->needs.sampler * s->needs.slots).text,
                memory_print(memory_plan_fixed(&s->needs) + s->kv_context * o->slots).text);
    }
    if (!r->free)
        return;
    fprintf(f, "\nThis machine has %s free, %s for each stage if all run here:", memory_print(r->free).text,
            memory_print(r->free / r->split.n_stages).text);
    int all = 1;
    for (uint32_t i = 0; i < r->split.n_stages; i++) {
        if (!r->stages[i].fits[0])
            continue;
        all = 0;
        fprintf(f, "\nstage %-3u   %s", i, r->stages[i].fits);
    }
    fprintf(f, "%s\n", all ? " every slot has its context." : "");
}

void model_report_print(const struct model_report *r, const struct model_options *o, FILE *f)
{
    if (r->gguf)
        print_contents(r, f);
    if (!r->n_refusals)
        print_stages(r, o, f);
}

/* --- for programs ------------------------------------------------------------------------------------------------------------ */

static json_t *text_json(struct text t)
{
    return t.data ? json_string(gguf_printable(t).text) : json_null();
}

static json_t *types_json(const struct model_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n_types; i++)
        json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:s}", "type", r->types[i].name, "tensors",
                                              (int)r->types[i].n_tensors, "bytes", (json_int_t)r->types[i].bytes, "computed",
                                              r->types[i].kernels));
    return list;
}

static json_t *stages_json(const struct model_report *r)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->split.n_stages; i++) {
        const struct model_stage_needs *s = &r->stages[i];
        json_array_append_new(
            list, json_pack("{s:i, s:[i,i], s:I, s:I, s:I, s:I, s:I, s:s}", "stage", (int)i, "layers",
                            (int)r->split.first_layer[i], (int)r->split.first_layer[i + 1], "file_bytes", (json_int_t)s->file_bytes, "weight_bytes",
                            (json_int_t)s->needs.weights, "kv_context_bytes", (json_int_t)s->kv_context, "buffer_bytes",
                            (json_int_t)s->needs.buffers, "sampler_bytes", (json_int_t)(s->needs.sampler * s->needs.slots),
                            "does_not_fit_here", s->fits));
    }
    return list;
}

void model_report_json(const struct model_report *r, const struct model_options *o, FILE *f)
{
    json_t *v = json_object(), *refusals = json_array();
    for (uint32_t i = 0; i < r->n_refusals; i++)
        json_array_append_new(refusals, json_string(r->refusals[i]));
    json_object_set_new(v, "refused", refusals);
    if (r->gguf) {
        json_object_update_new(v, json_pack("{s:o, s:o, s:I, s:I, s:i, s:o, s:{s:o, s:o, s:I}, s:s}", "name", text_json(r->name),
                                            "architecture", text_json(r->architecture), "file_bytes",
                                            (json_int_t)gguf_file_bytes(r->gguf), "parameters", (json_int_t)r->n_parameters,
                                            "tensors", (int)gguf_n_tensors(r->gguf), "types", types_json(r), "vocabulary", "kind",
                                            text_json(r->vocabulary), "pre", text_json(r->pre), "tokens", (json_int_t)r->n_tokens,
                                            "chat_template", r->chat_template));
    }
    if (r->gguf && !r->n_refusals)
        json_object_update_new(v, json_pack("{s:i, s:I, s:i, s:i, s:i, s:s, s:s, s:I, s:o}", "layers", (int)r->model.hp.n_layers,
                                            "context_of_the_model", (json_int_t)r->model.hp.n_context, "context", (int)r->context,
                                            "slots", (int)o->slots, "kv_block", (int)o->kv_block, "numerics", r->profile, "backend",
                                            r->backend, "free_bytes", (json_int_t)r->free, "stages", stages_json(r)));
    json_dumpf(v, f, JSON_INDENT(2));
    fputc('\n', f);
    json_decref(v);
}

/* --- the command ------------------------------------------------------------------------------------------------------------- */

static uint32_t whole(const char *flag, const char *text, long long min, long long max)
{
    long long v;
    if (flag_whole(text, min, max, &v))
        return (uint32_t)v;
    fprintf(stderr, "sluice: --%s: '%s' is not allowed; %lld to %lld is\n", flag, text, min, max);
    exit(EXIT_CONFIG);
}

static void read_flags(int argc, char **argv, struct model_options *o)
{
    enum flag { FLAG_STAGES = 256, FLAG_CONTEXT, FLAG_SLOTS, FLAG_KV_BLOCK, FLAG_JSON, FLAG_HELP };
    static const struct option flags[] = {{"stages", required_argument, NULL, FLAG_STAGES},
                                          {"context", required_argument, NULL, FLAG_CONTEXT},
                                          {"slots", required_argument, NULL, FLAG_SLOTS},
                                          {"kv-block", required_argument, NULL, FLAG_KV_BLOCK},
                                          {"json", no_argument, NULL, FLAG_JSON},
                                          {"help", no_argument, NULL, FLAG_HELP},
                                          {0}};
    int flag;
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1)
        switch (flag) {
        case FLAG_STAGES:
            o->stages = whole("stages", optarg, 1, MAX_STAGES);
            break;
        case FLAG_CONTEXT:
            o->context = whole("context", optarg, 16, 16777216);
            break;
        case FLAG_SLOTS:
            o->slots = whole("slots", optarg, 1, 4096);
            break;
        case FLAG_KV_BLOCK:
            o->kv_block = whole("kv-block", optarg, 16, 128);
            break;
        case FLAG_JSON:
            o->json = 1;
            break;
        case FLAG_HELP:
            fputs(usage, stdout);
            exit(EXIT_ASKED);
        default:
            fputs(usage, stderr);
            exit(EXIT_CONFIG);
        }
    if (o->kv_block & (o->kv_block - 1)) {
        fprintf(stderr, "sluice: --kv-block: %u is not allowed; 16, 32, 64 and 128 are\n", o->kv_block);
        exit(EXIT_CONFIG);
    }
    if (optind + 1 != argc) {
        fputs(usage, stderr);
        exit(EXIT_CONFIG);
    }
    o->path = argv[optind];
}

int model_main(int argc, char **argv)
{
    struct model_options o = {.stages = 1, .slots = 8, .kv_block = 64};
    struct error err = {0};
    log_set_levels("error", NULL);
    read_flags(argc, argv, &o);
    struct model_report *r = calloc(1, sizeof *r);
    enum status s = r ? model_report_open(&o, r, &err) : error_set(&err, STATUS_OUT_OF_MEMORY, "no memory");
    if (s == STATUS_OK && o.json)
        model_report_json(r, &o, stdout);
    else if (s == STATUS_OK)
        model_report_print(r, &o, stdout);
    fflush(stdout);
    if (s != STATUS_OK)
        fprintf(stderr, "sluice: %s\n", err.message);
    for (uint32_t i = 0; s == STATUS_OK && i < r->n_refusals; i++)
        fprintf(stderr, "sluice: refused: %s\n", r->refusals[i]);
    const int refused = s == STATUS_OK && r->n_refusals;
    if (r)
        model_report_close(r);
    free(r);
    return refused ? status_exit_code(STATUS_BAD_MODEL) : s == STATUS_OK ? EXIT_ASKED : status_exit_code(s);
}
