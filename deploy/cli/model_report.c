/* deploy/cli/model_report.c - gathers what `sluice model` says. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/cores.h"
#include "common/text/chat_template.h"
#include "deploy/cli/model.h"
#include "kernels/quant.h"
#include "stage/model_needs.h"

enum { ROWS = 512 }; /* of a tick, as the coordinator plans them unless it is told otherwise */
static const char PYTHON[] = "/usr/bin/python3"; /* default of --python */

/* A file's name and a template have any bytes, and messages are cut: JSON takes whole characters alone. */
static void tell(const char *text, char *out, size_t size)
{
    model_clean_name((struct text){text, strlen(text)}, out, size);
}

static void refuse(struct model_report *r, const char *why)
{
    if (r->n_refusals < MODEL_MAX_REFUSALS)
        tell(why, r->refusals[r->n_refusals++], sizeof r->refusals[0]);
}

/* --- contents ------------------------------------------------------------------------------------------------------------- */

static const char *kernels_of(const struct ops *ops, enum tensor_type type)
{
    const struct tensor_type_info *info = tensor_type_info(type);
    const uint32_t k = info->block_elements > 64 ? info->block_elements : 64;
    static const uint8_t no_rows[1];
    struct weight w;
    if (!quant_supported(type) || weight_prepare(ops, type, 16, k, no_rows, &w, NULL) != STATUS_OK ||
        ops->weight_bytes(type, 16, k) == SIZE_MAX)
        return "refused";
    if (weight_is_quantized(&w))
        return "int8";
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16 ? "as it is" : "as F32";
}

static struct model_type_use *type_row(struct model_report *r, const struct ops *ops, enum tensor_type type)
{
    const char *name = tensor_type_info(type)->name;
    for (uint32_t i = 0; i < r->n_types; i++)
        if (strcmp(r->types[i].name, name) == 0)
            return &r->types[i];
    if (r->n_types == MODEL_MAX_TYPES)
        return NULL;
    r->types[r->n_types] = (struct model_type_use){.name = name, .kernels = kernels_of(ops, type)};
    return &r->types[r->n_types++];
}

/* A refused type is told once, with the first tensor that has it. */
static void count_tensors(struct model_report *r, const struct ops *ops)
{
    for (uint32_t i = 0; i < gguf_n_tensors(r->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor(r->gguf, i);
        struct model_type_use *row = type_row(r, ops, t->type);
        r->n_parameters += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        if (!row)
            continue;
        row->bytes += t->bytes;
        if (row->n_tensors++ == 0 && strcmp(row->kernels, "refused") == 0) {
            char why[200];
            snprintf(why, sizeof why, "type %s is not supported (tensor %s)", row->name, gguf_printable(t->name).text);
            refuse(r, why);
        }
    }
}

static void read_texts(struct model_report *r)
{
    gguf_text(r->gguf, "general.name", &r->name);
    gguf_text(r->gguf, "general.architecture", &r->architecture);
    gguf_text(r->gguf, "tokenizer.ggml.model", &r->vocabulary);
    gguf_text(r->gguf, "tokenizer.ggml.pre", &r->pre);
    gguf_array_texts(r->gguf, "tokenizer.ggml.tokens", &r->n_tokens);
}

/* Compiled, where there is a tokenizer: a template that does not compile takes chats from a service, nothing else. */
static void read_template(struct model_report *r)
{
    struct chat_source source = {0};
    struct chat_template *t = NULL;
    struct error err = {0};
    enum status s = chat_source_find(r->gguf, NULL, &source, &err);
    if (s == STATUS_OK && r->tokenizer)
        s = chat_template_open(&source, PYTHON, r->tokenizer, &t, &err);
    const char *also = source.tools.len ? ", and one for tools" : "";
    char why[sizeof err.message];
    tell(err.message, why, sizeof why);
    if (s == STATUS_OK)
        snprintf(r->chat_template, sizeof r->chat_template, "its own%s%s", also, r->tokenizer ? "" : "; not compiled");
    else if (s == STATUS_UNSUPPORTED)
        snprintf(r->chat_template, sizeof r->chat_template,
                 "none: it completes plain text (/v1/completions); --chat-template gives it one");
    else
        snprintf(r->chat_template, sizeof r->chat_template, "its own%s, which cannot be used: %s", also, why);
    chat_template_close(t);
    chat_source_free(&source);
}

static void read_contents(struct model_report *r, const struct model_options *o, const struct ops *ops)
{
    struct error err = {0};
    read_texts(r);
    count_tensors(r, ops);
    if (model_from_gguf(r->gguf, o->path, &r->model, &err) == STATUS_OK)
        r->is_model = 1;
    else
        refuse(r, err.message);
    if (tokenizer_create(r->gguf, &r->tokenizer, &err) != STATUS_OK)
        refuse(r, err.message);
    read_template(r);
}

/* --- stages ----------------------------------------------------------------------------------------------------------------- */

static void size_stage(struct model_report *r, const struct model_options *o, const struct sized_stage *s, uint32_t stage)
{
    const struct weights *w = s->weights;
    struct model_stage_needs *n = &r->stages[stage];
    const struct msg_assign a = {.stage = stage, .n_stages = o->stages, .first_layer = w->first_layer, .end_layer = w->end_layer,
                                 .slots = o->slots, .context = r->context, .kv_block = o->kv_block,
                                 .max_rows = o->slots > ROWS ? o->slots : ROWS, .window = o->stages + 1};
    const struct kv_shape shape = kv_shape_of(&r->model, &a);
    n->file_bytes = w->file_bytes;
    n->needs = model_needs(s, &a, &shape);
    n->needs.free = memory_within_limit(r->free / o->stages);
    n->kv_context = kv_pool_bytes(&shape, o->slots * memory_plan_per_slot(&n->needs)) / o->slots;
    struct memory_plan plan;
    struct error err = {0};
    if (memory_plan_make(&n->needs, &plan, &err) != STATUS_OK)
        snprintf(n->fits, sizeof n->fits, "%s", err.message);
    else if (plan.n_blocks / memory_plan_per_slot(&n->needs) < o->slots)
        snprintf(n->fits, sizeof n->fits, "%s", memory_plan_print(&n->needs, &plan).text);
    n->needs.buffers_of = NULL;
    n->needs.buffers_ctx = NULL;
}

/* What weights_plan refuses (a shape that no kernel takes) is a refusal like the others. */
static enum status size_stages(struct model_report *r, const struct model_options *o, const struct ops *ops, struct error *err)
{
    struct weights weights;
    struct sized_stage s = {.weights = &weights};
    const int cores = cores_usable() / (int)o->stages;
    r->threads = cores < 1 ? 1 : cores > TEAM_MAX_THREADS ? TEAM_MAX_THREADS : (uint32_t)cores;
    r->context = o->context ? o->context : r->model.hp.n_context;
    r->free = memory_available("");
    r->profile = ops_numerics_profile();
    r->backend = ops->name;
    if (r->context > r->model.hp.n_context)
        return error_set(err, STATUS_CONFIG, "--context: %u is not allowed; the model was made for %u", r->context,
                         r->model.hp.n_context);
    TRY(split_plan(&r->model, o->stages, NULL, &r->split, err));
    TRY(team_create((int)r->threads, NULL, &s.team, err));
    for (uint32_t i = 0; i < o->stages; i++) {
        struct error why = {0};
        if (weights_plan(&r->model, ops, r->split.first_layer[i], r->split.first_layer[i + 1], i == 0, i + 1 == o->stages,
                         &weights, &why) != STATUS_OK) {
            refuse(r, why.message);
            break;
        }
        size_stage(r, o, &s, i);
        weights_free(&weights);
    }
    team_destroy(s.team);
    return STATUS_OK;
}

enum status model_report_open(const struct model_options *o, struct model_report *r, struct error *err)
{
    const struct ops *ops;
    struct error why = {0};
    *r = (struct model_report){.gguf = NULL};
    if (gguf_open(o->path, &r->gguf, &why) != STATUS_OK) {
        refuse(r, why.message);
        return STATUS_OK;
    }
    TRY(ops_open("auto", "auto", &ops, err));
    read_contents(r, o, ops);
    return r->n_refusals ? STATUS_OK : size_stages(r, o, ops, err);
}

void model_report_close(struct model_report *r)
{
    if (r->tokenizer)
        tokenizer_destroy(r->tokenizer);
    if (r->is_model)
        model_close(&r->model);
    else if (r->gguf)
        gguf_close(r->gguf);
}
