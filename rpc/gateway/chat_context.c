#include "rpc/gateway/chat_context.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "rpc/gateway/json_in.h"

/* A context with more text than MAX_ARGUMENTS is refused where it is rendered: opening what is beyond would only cost memory. */
enum { MAX_MESSAGES = 65536, PART_TEXT_MAX = 1 << 30, MAX_ARGUMENTS = 8 << 20 };

static enum status wrong(struct error *err, const char *at, const char *field, const char *want, const json_t *got)
{
    char param[96];
    snprintf(param, sizeof param, "%s%s", at, field);
    if (!got)
        return error_param(err, STATUS_BAD_REQUEST, param, "missing_field", "%s is missing; %s is expected", param,
                           want);
    return error_param(err, STATUS_BAD_REQUEST, param, "invalid_type", "%s must be %s, not %s", param, want,
                       json_in_kind(got));
}

/* One part of a content array: only its text is kept. */
static enum status append_part(const json_t *part, const char *at, struct buf *text, struct error *err)
{
    if (!json_is_object(part))
        return wrong(err, at, "", "an object", part);
    const json_t *type = json_object_get(part, "type");
    if (!json_is_string(type))
        return wrong(err, at, ".type", "a string", type);
    const char *name = json_string_value(type);
    if (strcmp(name, "text") != 0) {
        static const char *const later[] = {"image_url", "input_audio", "file",   "image",
                                            "video_url", "audio_url",   "refusal"};
        char param[96];
        snprintf(param, sizeof param, "%s.type", at);
        for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
            if (strcmp(name, later[i]) == 0)
                return error_param(err, STATUS_UNSUPPORTED, param, "unsupported_content",
                                   "%s: parts of type %s are not supported yet; text is", param, name);
        return error_param(err, STATUS_BAD_REQUEST, param, "invalid_value", "%s: '%.40s' is no type of a part; text is",
                           param, name);
    }
    const json_t *value = json_object_get(part, "text");
    if (!json_is_string(value))
        return wrong(err, at, ".text", "a string", value);
    if (text->len)
        buf_text(text, "\n");
    buf_append(text, json_string_value(value), json_string_length(value));
    return text->failed ? error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the messages") : STATUS_OK;
}

static enum status join_parts(json_t *message, const json_t *parts, const char *at, struct error *err)
{
    struct buf text;
    buf_init(&text, PART_TEXT_MAX);
    enum status s = STATUS_OK;
    for (size_t i = 0; i < json_array_size(parts) && s == STATUS_OK; i++) {
        char part_at[64];
        snprintf(part_at, sizeof part_at, "%s.content[%zu]", at, i);
        s = append_part(json_array_get(parts, i), part_at, &text, err);
    }
    if (s == STATUS_OK &&
        json_object_set_new(message, "content", json_stringn_nocheck(text.data ? text.data : "", text.len)))
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the messages");
    buf_fini(&text);
    return s;
}

/* Client libraries write fields that are not there as null or an empty list; templates ask "'tool_calls' in message". */
static void drop_what_says_nothing(json_t *message)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
        if (json_is_null(value) || (strcmp(key, "tool_calls") == 0 && json_is_array(value) && json_array_size(value) == 0))
            json_object_del(message, key);
}

/* The API has arguments as text that holds JSON, templates print them with `tojson`: as text it would be quoted twice. What
 * is no object (a model wrote it) stays text. Opened here, so that what it holds is marked like any text of the user's. */
static enum status open_arguments(json_t *function, size_t *left, struct error *err)
{
    const json_t *text = json_object_get(function, "arguments");
    json_t *opened = NULL;
    if (!json_is_string(text) || json_string_length(text) > *left)
        return STATUS_OK;
    *left -= json_string_length(text);
    struct error local = {0};
    enum status s = STATUS_OK;
    if (json_string_length(text) == 0)
        opened = json_object();
    else
        s = json_in_parse(json_string_value(text), json_string_length(text), &opened, &local);
    if (s == STATUS_BAD_REQUEST)
        return STATUS_OK;
    if (s == STATUS_OK && json_object_set_new(function, "arguments", opened))
        s = error_set(&local, STATUS_OUT_OF_MEMORY, "no memory for the messages");
    if (s != STATUS_OK && err)
        *err = local;
    return s;
}

/* null and absent: a template would print "None", so it becomes "". Where the message lives by its tool calls it stays absent:
 * the template's process knows whether this one wants "" or none. */
static enum status check_content(json_t *message, const char *at, struct error *err)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content))
        return STATUS_OK;
    if (json_is_array(content))
        return join_parts(message, content, at, err);
    if (content)
        return wrong(err, at, ".content", "a string, null or an array of text parts", content);
    if (json_array_size(json_object_get(message, "tool_calls")) > 0)
        return STATUS_OK;
    if (json_object_set_new(message, "content", json_string("")))
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the messages");
    return STATUS_OK;
}

static enum status check_message(json_t *message, const char *at, size_t *arguments_left, struct error *err)
{
    if (!json_is_object(message))
        return wrong(err, at, "", "an object", message);
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role))
        return wrong(err, at, ".role", "a string", role);
    if (json_string_length(role) == 0)
        return error_param(err, STATUS_BAD_REQUEST, at, "invalid_value", "%s.role is empty", at);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return wrong(err, at, ".tool_calls", "an array", calls);
    static const char *const texts[] = {"name", "tool_call_id", "reasoning_content"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const json_t *v = json_object_get(message, texts[i]);
        char field[32];
        snprintf(field, sizeof field, ".%s", texts[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return wrong(err, at, field, "a string", v);
    }
    drop_what_says_nothing(message);
    for (size_t i = 0; i < json_array_size(json_object_get(message, "tool_calls")); i++)
        TRY(open_arguments(json_object_get(json_array_get(json_object_get(message, "tool_calls"), i), "function"), arguments_left, err));
    return check_content(message, at, err);
}

enum status chat_context_check_messages(json_t *messages, struct error *err)
{
    size_t n = json_array_size(messages);
    if (!json_is_array(messages))
        return wrong(err, "messages", "", "an array of messages", messages);
    size_t arguments_left = MAX_ARGUMENTS;
    if (n == 0)
        return error_param(err, STATUS_BAD_REQUEST, "messages", "invalid_value",
                           "messages is empty; at least one is needed");
    if (n > MAX_MESSAGES)
        return error_param(err, STATUS_BAD_REQUEST, "messages", "invalid_value",
                           "messages holds %zu; at most %d are allowed", n, MAX_MESSAGES);
    for (size_t i = 0; i < n; i++) {
        char at[32];
        snprintf(at, sizeof at, "messages[%zu]", i);
        TRY(check_message(json_array_get(messages, i), at, &arguments_left, err));
    }
    return STATUS_OK;
}

/* kwargs first, so that they can add and never replace what the request itself says. */
static int fill(const struct chat_context *c, json_t *context)
{
    int bad = c->kwargs ? json_object_update(context, c->kwargs) : 0;
    bad |= json_object_set(context, "messages", c->messages);
    if (c->tools)
        bad |= json_object_set(context, "tools", c->tools);
    if (c->documents)
        bad |= json_object_set(context, "documents", c->documents);
    if (c->add_generation_prompt >= 0 || !json_is_boolean(json_object_get(context, "add_generation_prompt")))
        bad |= json_object_set_new(context, "add_generation_prompt", json_boolean(c->add_generation_prompt != 0));
    /* Templates that know no effort know this switch. */
    if (c->reasoning_effort && strcmp(c->reasoning_effort, "none") == 0 && !json_object_get(context, "enable_thinking"))
        bad |= json_object_set_new(context, "enable_thinking", json_false());
    if (c->reasoning_effort)
        bad |= json_object_set_new(context, "reasoning_effort", json_string(c->reasoning_effort));
    return bad;
}

enum status chat_context_write(const struct chat_context *c, struct arena *arena, struct bytes *out, struct error *err)
{
    enum status s = STATUS_OUT_OF_MEMORY;
    json_t *context = json_object();
    if (context && fill(c, context) == 0) {
        size_t len = json_dumpb(context, NULL, 0, JSON_COMPACT);
        char *text = len ? arena_alloc(arena, len + 1) : NULL;
        if (text && json_dumpb(context, text, len, JSON_COMPACT) == len) {
            *out = (struct bytes){text, len};
            s = STATUS_OK;
        }
    }
    json_decref(context);
    return s == STATUS_OK ? s : error_set(err, s, "no memory for the messages");
}
