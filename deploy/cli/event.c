#include "deploy/cli/event.h"

#include <string.h>

#include "deploy/cli/said.h"

/* The last thing that is written to err: it goes to a terminal, as one line. */
static enum status plain(enum status s, struct error *err)
{
    if (err)
        said_make_plain(err->message);
    return s;
}

enum status event_take_error(const json_t *body, long http, struct error *err)
{
    const json_t *e = json_object_get(body, "error");
    const char *message = json_string_value(json_object_get(json_is_object(e) ? e : body, "message")),
               *code = json_string_value(json_object_get(e, "code"));
    if (json_is_string(e)) /* some servers give only a sentence */
        message = json_string_value(e);
    else if (!json_is_object(e) && !(http >= 400 && message))
        return STATUS_OK;
    enum status s = http == 401 ? STATUS_UNAUTHENTICATED : http == 404 ? STATUS_NOT_FOUND
                    : http == 429                                               ? STATUS_CLIENT_LIMIT
                    : http == 503 || json_is_true(json_object_get(e, "retryable")) ? STATUS_PIPELINE
                                                                                   : STATUS_BAD_REQUEST;
    error_param(err, s, json_string_value(json_object_get(e, "param")), code, "%s",
                message && *message ? message : "no reason was given");
    return plain(s, err);
}

/* Text of a choice: /v1/completions, or what a chat delta brings (its content, its reasoning). A delta that only names the role is
 * no token, nor is what only repeats the prompt's ids; text that is empty without an end is one (a special token, or half a
 * character). */
static void take_choice(const json_t *choice, struct stream_event *out)
{
    const json_t *delta = json_object_get(choice, "delta"), *text = json_object_get(choice, "text");
    if (delta)
        text = json_object_get(delta, "content");
    const json_t *reasoning = json_object_get(delta, "reasoning_content");
    if (!json_is_string(reasoning))
        reasoning = json_object_get(delta, "reasoning");
    out->has_choice = json_is_object(choice);
    out->text = json_string_value(text);
    out->finish = json_string_value(json_object_get(choice, "finish_reason"));
    int is_said = json_string_length(text) > 0 || json_string_length(reasoning) > 0 ||
                  json_array_size(json_object_get(delta, "tool_calls")) > 0;
    int is_empty_token = json_is_string(text) && !out->finish && !json_object_get(delta, "role") &&
                         !json_object_get(choice, "prompt_token_ids");
    size_t n_ids = json_array_size(json_object_get(choice, "token_ids"));
    if (is_said || is_empty_token || n_ids) {
        out->kind = EVENT_TOKEN;
        out->n_tokens = n_ids ? (uint32_t)n_ids : 1;
    }
}

/* Tokens: what a server claims beyond any prompt is no count to calculate with. */
static int64_t count(const json_t *o, const char *key)
{
    return said_whole(json_object_get(o, key), 0, INT32_MAX);
}

static void take_usage(const json_t *usage, struct stream_event *out)
{
    if (!json_is_object(usage))
        return;
    out->has_usage = 1;
    out->prompt_tokens = count(usage, "prompt_tokens");
    out->completion_tokens = count(usage, "completion_tokens");
    out->cached_tokens = count(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

void event_parse(const char *data, size_t len, struct stream_event *out, struct error *err)
{
    *out = (struct stream_event){.kind = EVENT_OTHER};
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        out->kind = EVENT_DONE;
        return;
    }
    out->json = json_loadb(data, len, 0, NULL);
    if (!json_is_object(out->json)) {
        out->kind = EVENT_BAD;
        plain(error_set(err, STATUS_PROTOCOL, "an event that is no JSON object: %.*s", (int)(len < 80 ? len : 80), data), err);
        return;
    }
    if (event_take_error(out->json, 0, err) != STATUS_OK) {
        out->kind = EVENT_ERROR;
        return;
    }
    take_choice(json_array_get(json_object_get(out->json, "choices"), 0), out);
    take_usage(json_object_get(out->json, "usage"), out);
    out->decode_ms = json_number_value(json_object_get(json_object_get(out->json, "timings"), "decode_ms"));
}

void event_release(struct stream_event *e)
{
    json_decref(e->json);
    e->json = NULL;
}
