#include "rpc/gateway/json_in.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

/* What this thread's parse may still allocate; SIZE_MAX outside of a parse. */
static _Thread_local size_t budget_bytes = SIZE_MAX;
static _Thread_local int exhausted, no_memory;

static void *bounded_malloc(size_t size)
{
    if (budget_bytes != SIZE_MAX && size > budget_bytes) {
        exhausted = 1;
        return NULL;
    }
    void *p = malloc(size);
    no_memory |= !p;
    if (p && budget_bytes != SIZE_MAX) {
        size_t took = malloc_usable_size(p);
        budget_bytes = took < budget_bytes ? budget_bytes - took : 0;
    }
    return p;
}

static void bounded_free(void *p)
{
    if (p && budget_bytes != SIZE_MAX)
        budget_bytes += malloc_usable_size(p);
    free(p);
}

void json_in_install(void)
{
    json_set_alloc_funcs(bounded_malloc, bounded_free);
    json_object_seed(0); /* from the system's random source */
}

/* Offset of the first bracket that is too deep, or len. Strings are skipped; everything else is the parser's work. */
static size_t too_deep_at(const char *data, size_t len)
{
    int depth = 0, in_string = 0;
    for (size_t i = 0; i < len; i++) {
        char c = data[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_IN_DEPTH)
                return i;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return len;
}

enum status json_in_parse(const char *data, size_t len, json_t **out, struct error *err)
{
    return json_in__parse(data, len, JSON_IN_TREE_BYTES + 4 * len, out, err);
}

enum status json_in__parse(const char *data, size_t len, size_t tree_bytes, json_t **out, struct error *err)
{
    if (len == 0)
        return error_param(err, STATUS_BAD_REQUEST, NULL, "invalid_json",
                           "the body is empty; a JSON object is expected");
    size_t deep = too_deep_at(data, len);
    if (deep < len)
        return error_param(err, STATUS_BAD_REQUEST, NULL, "invalid_json",
                           "the body is nested deeper than %d levels at byte %zu", JSON_IN_DEPTH, deep);
    json_error_t e = {0};
    budget_bytes = tree_bytes;
    exhausted = no_memory = 0;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    budget_bytes = SIZE_MAX;
    /* Also when there is a tree: jansson's lexer drops a character that it has no memory to keep, and goes on. */
    if (exhausted || no_memory) {
        json_decref(root);
        return exhausted ? error_set(err, STATUS_BODY_TOO_LARGE, "the body holds more values than a request may have")
                         : error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the body");
    }
    if (!root)
        return error_param(err, STATUS_BAD_REQUEST, NULL, "invalid_json",
                           "the body is not valid JSON at byte %d: %.200s", e.position, e.text);
    if (!json_is_object(root)) {
        const char *kind = json_in_kind(root);
        json_decref(root);
        return error_param(err, STATUS_BAD_REQUEST, NULL, "invalid_json", "the body must be an object, not %s", kind);
    }
    *out = root;
    return STATUS_OK;
}

const char *json_in_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}
