/* Fields of a request that have a shape of their own; the table is in request.c. */
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/chat_context.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/request_impl.h"

enum { ANSWER_CLAMP = 0x7fffffff };

/* --- errors ------------------------------------------------------------------------------------------------------- */

enum status request__wrong_type(struct reading *g, const char *param, const char *want, const json_t *got)
{
    return error_param(g->err, STATUS_BAD_REQUEST, param, "invalid_type", "%s must be %s, not %s", param, want,
                       json_in_kind(got));
}

enum status request__unsupported(struct reading *g, const char *param, const char *what)
{
    return error_param(g->err, STATUS_UNSUPPORTED, param, "unsupported_field", "%s: %s is not supported yet", param,
                       what);
}

enum status request__no_memory(struct reading *g)
{
    return error_set(g->err, STATUS_OUT_OF_MEMORY, "no memory for the request");
}

enum status request__copy(struct reading *g, const json_t *v, struct bytes *out)
{
    size_t len = json_string_length(v);
    char *text = arena_text(&g->r->arena, json_string_value(v), len);
    if (!text)
        return request__no_memory(g);
    *out = (struct bytes){text, len};
    return STATUS_OK;
}

/* A JSON string may hold a zero, at which it is not cut. */
static int is_word(const json_t *v, const char *word)
{
    return json_is_string(v) && json_string_length(v) == strlen(word) && memcmp(json_string_value(v), word, strlen(word)) == 0;
}

/* --- fields with a shape of their own ----------------------------------------------------------------------------- */

enum status request__read_messages(struct reading *g, const char *name, json_t *v)
{
    (void)name;
    g->messages = v;
    return chat_context_check_messages(v, g->err);
}

enum status request__read_tools(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_array(v))
        return request__wrong_type(g, name, "an array of tools", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char param[32];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!json_is_object(json_array_get(v, i)))
            return request__wrong_type(g, param, "an object", json_array_get(v, i));
    }
    g->tools = json_array_size(v) ? v : NULL;
    return STATUS_OK;
}

/* What templates for retrieval quote; their form is between the client and the template. */
enum status request__read_documents(struct reading *g, const char *name, json_t *v)
{
    const json_t *document;
    size_t i;
    if (!json_is_array(v))
        return request__wrong_type(g, name, "an array of objects", v);
    json_array_foreach(v, i, document)
        if (!json_is_object(document)) {
            char param[64];
            snprintf(param, sizeof param, "%s[%zu]", name, i);
            return request__wrong_type(g, param, "an object", document);
        }
    g->documents = json_array_size(v) ? v : NULL;
    return STATUS_OK;
}

/* Tools may be shown to the model; that it must call one needs a grammar. */
enum status request__read_tool_choice(struct reading *g, const char *name, json_t *v)
{
    if (json_is_object(v))
        return request__unsupported(g, name, "a forced tool");
    if (!json_is_string(v))
        return request__wrong_type(g, name, "a string or an object", v);
    const char *choice = json_string_value(v);
    if (is_word(v, "required"))
        return request__unsupported(g, name, "a forced tool");
    if (!is_word(v, "auto") && !is_word(v, "none"))
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value",
                           "tool_choice: '%.40s' is not allowed; auto, none or required is", choice);
    g->tools_off = is_word(v, "none");
    return STATUS_OK;
}

enum status request__read_kwargs(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_object(v))
        return request__wrong_type(g, name, "an object", v);
    g->kwargs = v;
    return STATUS_OK;
}

enum status request__read_response_format(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_object(v))
        return request__wrong_type(g, name, "an object", v);
    const json_t *type = json_object_get(v, "type");
    if (is_word(type, "text"))
        return STATUS_OK;
    if (is_word(type, "json_object") || is_word(type, "json_schema"))
        return request__unsupported(g, name, "constrained output");
    return error_param(g->err, STATUS_BAD_REQUEST, "response_format.type", "invalid_value",
                       "response_format.type must be text, json_object or json_schema");
}

enum status request__read_modalities(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_array(v))
        return request__wrong_type(g, name, "an array of strings", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *m = json_array_get(v, i);
        if (!json_is_string(m))
            return request__wrong_type(g, name, "an array of strings", m);
        if (!is_word(m, "text"))
            return request__unsupported(g, name, "output other than text");
    }
    return STATUS_OK;
}

/* A token id as a key: digits as they are written, so that no two keys mean the same id. */
static int id_of_key(const char *key, size_t len, uint32_t *out)
{
    uint64_t id = 0;
    if (len == 0 || len > 10 || (key[0] == '0' && len > 1))
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (key[i] < '0' || key[i] > '9')
            return 0;
        id = id * 10 + (uint64_t)(key[i] - '0');
    }
    *out = (uint32_t)id;
    return id <= REQUEST_ID_MAX;
}

static enum status read_bias(struct reading *g, const char *name, const char *key, const json_t *v, struct logit_bias *out)
{
    double bias = json_number_value(v);
    if (!id_of_key(key, strlen(key), &out->id))
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value", "%s: '%.20s' is no token id", name, key);
    if (!json_is_number(v))
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_type", "%s of token %u must be a number, not %s", name,
                           out->id, json_in_kind(v));
    if (!(bias >= -100 && bias <= 100))
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value", "%s of token %u: %g is not allowed; -100 to 100 is",
                           name, out->id, bias);
    out->bias = (float)bias;
    return STATUS_OK;
}

enum status request__read_logit_bias(struct reading *g, const char *name, json_t *v)
{
    struct generate_request *q = &g->r->generate;
    const char *key;
    json_t *bias;
    if (!json_is_object(v))
        return request__wrong_type(g, name, "an object", v);
    if (json_object_size(v) > MAX_BIASES)
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value", "%s holds %zu tokens; at most %d are allowed", name,
                           json_object_size(v), MAX_BIASES);
    struct logit_bias *all = arena_array(&g->r->arena, json_object_size(v) + 1, sizeof *all);
    if (!all)
        return request__no_memory(g);
    q->bias = all;
    json_object_foreach(v, key, bias)
        TRY(read_bias(g, name, key, bias, &all[q->n_bias++]));
    return STATUS_OK;
}

/* A field that only other servers have built: its presence with any value asks for something that would be a guess. */
enum status request__read_unbuilt(struct reading *g, const char *name, json_t *v)
{
    (void)v;
    return request__unsupported(g, name, "this field");
}

/* An empty list asks for nothing. */
enum status request__read_unbuilt_list(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_array(v))
        return request__wrong_type(g, name, "an array", v);
    return json_array_size(v) ? request__read_unbuilt(g, name, v) : STATUS_OK;
}

enum status request__read_suffix(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_string(v))
        return request__wrong_type(g, name, "a string", v);
    return json_string_length(v) ? request__unsupported(g, name, "text after the answer") : STATUS_OK;
}

enum status request__read_stream_options(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_object(v))
        return request__wrong_type(g, name, "an object", v);
    const json_t *usage = json_object_get(v, "include_usage");
    if (usage && !json_is_null(usage) && !json_is_boolean(usage))
        return request__wrong_type(g, "stream_options.include_usage", "true or false", usage);
    g->r->include_usage = json_is_true(usage);
    return STATUS_OK;
}

static enum status add_stop(struct reading *g, const char *param, const json_t *v)
{
    struct generate_request *q = &g->r->generate;
    if (!json_is_string(v))
        return request__wrong_type(g, param, "a string", v);
    size_t len = json_string_length(v);
    if (len == 0 || len > MAX_STOP_BYTES)
        return error_param(g->err, STATUS_BAD_REQUEST, param, "invalid_value",
                           "%s has %zu bytes; a stop string has 1 to %d", param, len, MAX_STOP_BYTES);
    return request__copy(g, v, &q->stop[q->n_stops++]);
}

enum status request__read_stop(struct reading *g, const char *name, json_t *v)
{
    if (json_is_string(v))
        return add_stop(g, name, v);
    if (!json_is_array(v))
        return request__wrong_type(g, name, "a string or an array of strings", v);
    if (json_array_size(v) > MAX_STOPS)
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value",
                           "stop holds %zu strings; at most %d are allowed", json_array_size(v), MAX_STOPS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char param[32];
        snprintf(param, sizeof param, "stop[%zu]", i);
        TRY(add_stop(g, param, json_array_get(v, i)));
    }
    return STATUS_OK;
}

/* A count of tokens of an answer: -1 is "to the end of the context", what is larger than any context is clamped. */
enum status request__read_answer_tokens(struct reading *g, const char *name, json_t *v)
{
    int64_t n = json_integer_value(v);
    if (!json_is_integer(v))
        return request__wrong_type(g, name, "a whole number", v);
    if (n < -1 || n == 0)
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value",
                           "%s: %lld is not allowed; 1 or more is, or -1 for the rest of the context", name,
                           (long long)n);
    int64_t *out = strcmp(name, "max_tokens") == 0 ? &g->max_tokens : &g->max_completion_tokens;
    *out = n > ANSWER_CLAMP ? ANSWER_CLAMP : n;
    return STATUS_OK;
}

/* Any 64-bit number; -1 asks for a new one, as llama.cpp's clients do. */
enum status request__read_seed(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_integer(v))
        return request__wrong_type(g, name, "a whole number", v);
    g->seed = json_integer_value(v);
    g->has_seed = g->seed != -1;
    return STATUS_OK;
}

/* completions: null or a count of alternatives (0 gives the chosen id's alone); chat: a switch. */
enum status request__read_logprobs(struct reading *g, const char *name, json_t *v)
{
    enum { MAX_OF_COMPLETIONS = 5 };
    if (g->r->endpoint == ENDPOINT_CHAT) {
        if (!json_is_boolean(v))
            return request__wrong_type(g, name, "true or false", v);
        g->n_logprobs = json_is_true(v) ? 0 : -1;
        return STATUS_OK;
    }
    if (!json_is_integer(v))
        return request__wrong_type(g, name, "a whole number", v);
    g->n_logprobs = json_integer_value(v);
    if (g->n_logprobs < 0 || g->n_logprobs > MAX_OF_COMPLETIONS)
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value", "%s: %lld is not allowed; 0 to %d is", name,
                           (long long)g->n_logprobs, MAX_OF_COMPLETIONS);
    return STATUS_OK;
}

enum status request__read_ids(struct reading *g, const char *name, json_t *v)
{
    if (!json_is_array(v))
        return request__wrong_type(g, name, "an array of token ids", v);
    size_t n = json_array_size(v);
    uint32_t *ids = arena_array(&g->r->arena, n ? n : 1, sizeof *ids);
    if (!ids)
        return request__no_memory(g);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        char param[40];
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        if (!json_is_integer(id))
            return request__wrong_type(g, param, "a token id", id);
        if (json_integer_value(id) < 0 || json_integer_value(id) > REQUEST_ID_MAX)
            return error_param(g->err, STATUS_BAD_REQUEST, param, "invalid_value", "%s: %lld is no token id", param,
                               (long long)json_integer_value(id));
        ids[i] = (uint32_t)json_integer_value(id);
    }
    g->r->generate.ids = ids;
    g->r->generate.n_ids = n;
    return STATUS_OK;
}

/* A string, an array of ids, or an array of exactly one of these. */
enum status request__read_prompt(struct reading *g, const char *name, json_t *v)
{
    struct generate_request *q = &g->r->generate;
    if (json_is_array(v) && (json_is_string(json_array_get(v, 0)) || json_is_array(json_array_get(v, 0)))) {
        if (json_array_size(v) > 1)
            return request__unsupported(g, name, "more than one prompt in a request");
        v = json_array_get(v, 0);
    }
    if (json_is_string(v)) {
        q->prompt = PROMPT_TEXT;
        return request__copy(g, v, &q->text);
    }
    if (!json_is_array(v))
        return request__wrong_type(g, name, "a string or an array of token ids", v);
    if (json_array_size(v) == 0)
        return error_param(g->err, STATUS_BAD_REQUEST, name, "invalid_value", "prompt is empty");
    q->prompt = PROMPT_IDS;
    return request__read_ids(g, name, v);
}
