#include "rpc/gateway/request.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/chat_context.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/request_impl.h"

enum { GENERATES = ENDPOINT_CHAT | ENDPOINT_COMPLETION, TEMPLATES = ENDPOINT_CHAT | ENDPOINT_TEMPLATE };

enum field_kind {
    FIELD_BOOL,   /* int */
    FIELD_INT,    /* int64_t, min..max */
    FIELD_REAL,   /* double, in the range of the sampler's parameter */
    FIELD_TEXT,   /* struct bytes, at most max bytes */
    FIELD_CHOICE, /* const char * to one of choices */
    FIELD_SHAPE,  /* read() knows */
};

/* A field whose only built value is `neutral`: others of its range are refused with 501 by name. */
enum { ANY = 0, ONLY_NEUTRAL = 1 };

struct field {
    const char *name;
    unsigned endpoints;
    enum field_kind kind;
    double min, max;
    size_t offset; /* in struct reading */
    const char *as; /* FIELD_REAL: another name of this parameter */
    const char *choices;
    int only;
    double neutral;
    enum status (*read)(struct reading *g, const char *name, json_t *v);
    int required;
};

/* --- the table ---------------------------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct reading, member)
#define NEUTRAL(value) .only = ONLY_NEUTRAL, .neutral = (value)

/* clang-format off */
static const struct field fields[] = {
    {"messages", TEMPLATES, FIELD_SHAPE, .read = request__read_messages, .required = 1},
    {"prompt", ENDPOINT_COMPLETION, FIELD_SHAPE, .read = request__read_prompt, .required = 1},
    {"model", GENERATES | TEMPLATES | ENDPOINT_TOKENIZE | ENDPOINT_DETOKENIZE, FIELD_TEXT, 0, 512, AT(model)},
    {"stream", GENERATES, FIELD_BOOL, AT(stream)},
    {"stream_options", GENERATES, FIELD_SHAPE, .read = request__read_stream_options},
    {"max_tokens", GENERATES, FIELD_SHAPE, .read = request__read_answer_tokens},
    {"max_completion_tokens", GENERATES, FIELD_SHAPE, .read = request__read_answer_tokens},
    {"temperature", GENERATES, FIELD_REAL, AT(temperature)},
    {"top_p", GENERATES, FIELD_REAL, AT(top_p)},
    {"top_k", GENERATES, FIELD_INT, -1, MAX_TOP_K, AT(top_k)},
    {"min_p", GENERATES, FIELD_REAL, AT(min_p)},
    {"seed", GENERATES, FIELD_SHAPE, .read = request__read_seed},
    {"stop", GENERATES, FIELD_SHAPE, .read = request__read_stop},
    {"ignore_eos", GENERATES, FIELD_BOOL, AT(ignore_eos)},
    {"deadline_ms", GENERATES, FIELD_INT, 0, 2592000000.0, AT(deadline_ms)},
    {"priority", GENERATES, FIELD_CHOICE, AT(priority), .choices = "interactive|batch"},
    {"cache_prompt", GENERATES, FIELD_BOOL, AT(cache_prompt)},
    {"return_token_ids", GENERATES, FIELD_BOOL, AT(return_token_ids)},
    {"user", GENERATES, FIELD_TEXT, 0, 4096, AT(user)},
    {"chat_template_kwargs", TEMPLATES, FIELD_SHAPE, .read = request__read_kwargs},
    {"add_generation_prompt", TEMPLATES, FIELD_BOOL, AT(add_generation_prompt)},
    {"reasoning_effort", TEMPLATES, FIELD_CHOICE, AT(reasoning_effort), .choices = "none|minimal|low|medium|high|xhigh"},
    {"tools", TEMPLATES, FIELD_SHAPE, .read = request__read_tools},
    {"documents", TEMPLATES, FIELD_SHAPE, .read = request__read_documents},
    {"tool_choice", TEMPLATES, FIELD_SHAPE, .read = request__read_tool_choice},
    {"parallel_tool_calls", TEMPLATES, FIELD_BOOL, NEUTRAL(1)},
    {"response_format", GENERATES, FIELD_SHAPE, .read = request__read_response_format},
    {"modalities", ENDPOINT_CHAT, FIELD_SHAPE, .read = request__read_modalities},
    {"logprobs", GENERATES, FIELD_SHAPE, .read = request__read_logprobs},
    {"top_logprobs", ENDPOINT_CHAT, FIELD_INT, 0, MAX_TOP_LOGPROBS, AT(top_logprobs)},
    {"n", GENERATES, FIELD_INT, 1, REQUEST_MAX_CHOICES, AT(n)},
    {"best_of", GENERATES, FIELD_INT, 1, REQUEST_MAX_CHOICES, AT(best_of)},
    {"echo", GENERATES, FIELD_BOOL, NEUTRAL(0)},
    {"suffix", ENDPOINT_COMPLETION, FIELD_SHAPE, .read = request__read_suffix},
    {"frequency_penalty", GENERATES, FIELD_REAL, AT(frequency_penalty)},
    {"presence_penalty", GENERATES, FIELD_REAL, AT(presence_penalty)},
    {"repeat_penalty", GENERATES, FIELD_REAL, AT(repeat_penalty)},
    {"repetition_penalty", GENERATES, FIELD_REAL, AT(repetition_penalty), .as = "repeat_penalty"},
    {"repeat_last_n", GENERATES, FIELD_INT, -1, REQUEST_ID_MAX, AT(repeat_last_n)},
    {"typical_p", GENERATES, FIELD_REAL, AT(typical_p)},
    {"mirostat", GENERATES, FIELD_INT, 0, 2, NEUTRAL(0)},
    {"logit_bias", GENERATES, FIELD_SHAPE, .read = request__read_logit_bias},
    {"functions", ENDPOINT_CHAT, FIELD_SHAPE, .read = request__read_unbuilt},
    {"function_call", ENDPOINT_CHAT, FIELD_SHAPE, .read = request__read_unbuilt},
    {"audio", ENDPOINT_CHAT, FIELD_SHAPE, .read = request__read_unbuilt},
    {"web_search_options", ENDPOINT_CHAT, FIELD_SHAPE, .read = request__read_unbuilt},
    {"grammar", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"json_schema", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"structured_outputs", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"guided_json", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"guided_regex", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"guided_choice", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"guided_grammar", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    /* What vLLM and llama.cpp have, and would change the answer: at its neutral value it may stay, as their front ends send it always. */
    {"n_predict", GENERATES, FIELD_INT, -1, REQUEST_ID_MAX, NEUTRAL(-1)},
    {"min_tokens", GENERATES, FIELD_INT, 0, REQUEST_ID_MAX, NEUTRAL(0)},
    {"stop_token_ids", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt_list},
    {"bad_words", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt_list},
    {"allowed_token_ids", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"include_stop_str_in_output", GENERATES, FIELD_BOOL, NEUTRAL(0)},
    {"skip_special_tokens", GENERATES, FIELD_BOOL, NEUTRAL(1)},
    {"use_beam_search", GENERATES, FIELD_BOOL, NEUTRAL(0)},
    {"prompt_logprobs", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"truncate_prompt_tokens", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"chat_template", TEMPLATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"continue_final_message", TEMPLATES, FIELD_BOOL, NEUTRAL(0)},
    {"samplers", GENERATES, FIELD_SHAPE, .read = request__read_unbuilt},
    {"dry_multiplier", GENERATES, FIELD_REAL, 0, 100, NEUTRAL(0)},
    {"dynatemp_range", GENERATES, FIELD_REAL, 0, 100, NEUTRAL(0)},
    {"xtc_probability", GENERATES, FIELD_REAL, 0, 1, NEUTRAL(0)},
    {"content", ENDPOINT_TOKENIZE, FIELD_TEXT, 0, 1e10, AT(content)},
    {"prompt", ENDPOINT_TOKENIZE, FIELD_TEXT, 0, 1e10, AT(content)},
    {"add_special", ENDPOINT_TOKENIZE, FIELD_BOOL, AT(add_special)},
    {"add_special_tokens", ENDPOINT_TOKENIZE, FIELD_BOOL, AT(add_special)},
    {"parse_special", ENDPOINT_TOKENIZE, FIELD_BOOL, AT(parse_special)},
    {"with_pieces", ENDPOINT_TOKENIZE, FIELD_BOOL, NEUTRAL(0)},
    {"tokens", ENDPOINT_DETOKENIZE, FIELD_SHAPE, .read = request__read_ids, .required = 1},
    {"show_special", ENDPOINT_DETOKENIZE, FIELD_BOOL, AT(show_special)},
};
/* clang-format on */

static enum status check_neutral(struct reading *g, const struct field *f, double value)
{
    if (f->only == ANY || value == f->neutral)
        return STATUS_OK;
    return error_param(g->err, STATUS_UNSUPPORTED, f->name, "unsupported_field",
                       "%s: a value other than %g is not supported yet", f->name, f->neutral);
}

static struct sampler_range range_of(const struct field *f)
{
    if (f->kind != FIELD_REAL || f->only != ANY) /* no parameter of ours */
        return (struct sampler_range){f->name, f->min, f->max};
    const struct sampler_range *r = sampler_range(f->as ? f->as : f->name);
    CHECK(r);
    return *r;
}

static enum status read_number(struct reading *g, const struct field *f, const json_t *v)
{
    char *slot = f->only == ANY ? (char *)g + f->offset : NULL, text[40];
    const double value = json_number_value(v);
    const struct sampler_range range = range_of(f);
    if (f->kind == FIELD_INT ? !json_is_integer(v) : !json_is_number(v))
        return request__wrong_type(g, f->name, f->kind == FIELD_INT ? "a whole number" : "a number", v);
    if (json_is_integer(v))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    else
        snprintf(text, sizeof text, "%g", value);
    if (!(value >= range.min && value <= range.max))
        return error_param(g->err, STATUS_BAD_REQUEST, f->name, "invalid_value", "%s: %s is not allowed; %.10g to %.10g is",
                           f->name, text, range.min, range.max);
    if (slot && f->kind == FIELD_INT)
        *(int64_t *)(void *)slot = json_integer_value(v);
    else if (slot)
        *(double *)(void *)slot = value;
    return check_neutral(g, f, value);
}

static enum status read_choice(struct reading *g, const struct field *f, const json_t *v)
{
    if (!json_is_string(v))
        return request__wrong_type(g, f->name, "a string", v);
    const char *value = json_string_value(v);
    size_t n = strlen(value);
    for (const char *p = f->choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && n == json_string_length(v) && memcmp(p, value, n) == 0) {
            char *text = arena_text(&g->r->arena, value, n);
            *(const char **)(void *)((char *)g + f->offset) = text;
            return text ? STATUS_OK : request__no_memory(g);
        }
        p += len + (p[len] == '|');
    }
    return error_param(g->err, STATUS_BAD_REQUEST, f->name, "invalid_value", "%s: '%.40s' is not allowed; one of %s is",
                       f->name, value, f->choices);
}

static enum status read_field(struct reading *g, const struct field *f, json_t *v)
{
    char *slot = (char *)g + f->offset;
    switch (f->kind) {
    case FIELD_SHAPE:
        return f->read(g, f->name, v);
    case FIELD_INT:
    case FIELD_REAL:
        return read_number(g, f, v);
    case FIELD_CHOICE:
        return read_choice(g, f, v);
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return request__wrong_type(g, f->name, "true or false", v);
        if (f->only == ANY)
            *(int *)(void *)slot = json_is_true(v);
        return check_neutral(g, f, json_is_true(v));
    case FIELD_TEXT:
        if (!json_is_string(v))
            return request__wrong_type(g, f->name, "a string", v);
        if ((double)json_string_length(v) > f->max)
            return error_param(g->err, STATUS_BAD_REQUEST, f->name, "invalid_value",
                               "%s has %zu bytes; at most %.0f are allowed", f->name, json_string_length(v), f->max);
        return request__copy(g, v, (struct bytes *)(void *)slot);
    }
    return STATUS_INTERNAL;
}

static enum status read_fields(struct reading *g, json_t *root)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        if (!(f->endpoints & g->r->endpoint))
            continue;
        json_t *v = json_object_get(root, f->name);
        if (v && !json_is_null(v))
            TRY(read_field(g, f, v));
        else if (f->required)
            return error_param(g->err, STATUS_BAD_REQUEST, f->name, "missing_field", "%s is missing", f->name);
    }
    return STATUS_OK;
}

/* --- from fields to a request ------------------------------------------------------------------------------------- */

static enum status join_limits(struct reading *g)
{
    struct generate_request *q = &g->r->generate;
    int64_t a = g->max_tokens, b = g->max_completion_tokens;
    if (a && b && a != b)
        return error_param(g->err, STATUS_BAD_REQUEST, "max_tokens", "invalid_value",
                           "max_tokens (%lld) and max_completion_tokens (%lld) differ; give one", (long long)a,
                           (long long)b);
    q->max_tokens = a ? a : b ? b : -1;
    return STATUS_OK;
}

/* n answers, of which all are given. */
static enum status join_choices(struct reading *g)
{
    int64_t best_of = g->best_of ? g->best_of : g->n;
    if (best_of < g->n)
        return error_param(g->err, STATUS_BAD_REQUEST, "best_of", "invalid_value", "best_of (%lld) is less than n (%lld)",
                           (long long)best_of, (long long)g->n);
    if (best_of > g->n)
        return request__unsupported(g, "best_of", "a choice among more answers than n");
    g->r->n = (uint32_t)g->n;
    return STATUS_OK;
}

static enum status join_logprobs(struct reading *g)
{
    if (g->top_logprobs && g->n_logprobs < 0)
        return error_param(g->err, STATUS_BAD_REQUEST, "top_logprobs", "invalid_value", "top_logprobs needs logprobs to be true");
    if (g->n_logprobs >= 0)
        g->r->generate.sampler.n_top = 1 + (uint32_t)(g->n_logprobs + g->top_logprobs);
    return STATUS_OK;
}

/* repeat_last_n as llama.cpp has it: -1 is all, 0 switches the penalty off; absent: all, as vLLM has it. */
static enum status join_penalties(struct reading *g)
{
    struct sampler_params *s = &g->r->generate.sampler;
    double a = g->repeat_penalty, b = g->repetition_penalty;
    if (a != 0 && b != 0 && a != b)
        return error_param(g->err, STATUS_BAD_REQUEST, "repeat_penalty", "invalid_value",
                           "repeat_penalty (%g) and repetition_penalty (%g) differ; give one", a, b);
    s->repeat_penalty = (float)(g->repeat_last_n == 0 ? 1 : a != 0 ? a : b != 0 ? b : 1);
    s->repeat_last_n = g->repeat_last_n > 0 ? (uint32_t)g->repeat_last_n : 0;
    s->presence_penalty = (float)g->presence_penalty;
    s->frequency_penalty = (float)g->frequency_penalty;
    return STATUS_OK;
}

static enum status join_sampler(struct reading *g)
{
    struct sampler_params *s = &g->r->generate.sampler;
    *s = (struct sampler_params){.temperature = (float)g->temperature,
                                 .top_p = (float)g->top_p,
                                 .min_p = (float)g->min_p,
                                 .typical_p = (float)g->typical_p,
                                 .top_k = g->top_k > 0 ? (uint32_t)g->top_k : 0,
                                 .seed = g->has_seed ? (uint64_t)g->seed : 0};
    TRY(join_penalties(g));
    return join_logprobs(g);
}

static enum status finish(struct reading *g)
{
    struct request *r = g->r;
    struct generate_request *q = &r->generate;
    TRY(join_limits(g));
    TRY(join_choices(g));
    TRY(join_sampler(g));
    r->model = g->model;
    r->stream = g->stream;
    r->return_token_ids = g->return_token_ids;
    r->content = g->content;
    r->add_special = g->add_special;
    r->parse_special = g->parse_special;
    r->show_special = g->show_special;
    q->has_seed = g->has_seed;
    q->ignore_eos = g->ignore_eos;
    q->batch_priority = g->priority && strcmp(g->priority, "batch") == 0;
    q->deadline_ms = g->deadline_ms;
    q->no_cache = !g->cache_prompt;
    if (r->endpoint == ENDPOINT_TOKENIZE && !r->content.data)
        return error_param(g->err, STATUS_BAD_REQUEST, "content", "missing_field", "content is missing");
    if (!(r->endpoint & TEMPLATES))
        return STATUS_OK;
    q->prompt = PROMPT_CHAT;
    return chat_context_write(&(struct chat_context){.messages = g->messages,
                                                     .tools = g->tools_off ? NULL : g->tools,
                                                     .documents = g->documents,
                                                     .kwargs = g->kwargs,
                                                     .add_generation_prompt = g->add_generation_prompt,
                                                     .reasoning_effort = g->reasoning_effort},
                              &r->arena, &q->chat_json, g->err);
}

void request_init(struct request *r, enum endpoint endpoint, size_t body_len)
{
    *r = (struct request){.endpoint = endpoint};
    /* Ids take 4 bytes for at least 2 of text; chat_json is the body again, with escapes that the body may have had
     * raw. */
    arena_init(&r->arena, (1u << 20) + 8 * body_len);
}

enum status request_parse(struct request *r, const char *body, size_t len, struct error *err)
{
    json_t *root;
    TRY(json_in_parse(body, len, &root, err));
    struct reading g = {.r = r,
                        .err = err,
                        .temperature = 1,
                        .top_p = 1,
                        .typical_p = 1,
                        .n = 1,
                        .n_logprobs = -1,
                        .repeat_last_n = -1,
                        .cache_prompt = 1,
                        .add_generation_prompt = -1,
                        .parse_special = 1,
                        .show_special = 1};
    enum status s = read_fields(&g, root);
    if (s == STATUS_OK)
        s = finish(&g);
    json_decref(root);
    return s;
}

void request_fini(struct request *r)
{
    arena_fini(&r->arena);
}
