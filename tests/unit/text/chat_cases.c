#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chat_cases.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/chat_template_impl.h"

struct chat_template *chat_open(const char *source, size_t len, const char *now, const struct tokenizer *tok)
{
    struct chat_template *t;
    struct error err = {0};
    if (chat_template_open(&(struct chat_source){.text = {source, len}}, PYTHON, tok, &t, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    if (now && chat_template__freeze(t, now, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return t;
}

void chat_case(struct chat_template *t, json_t *c)
{
    char *context = json_dumps(json_object_get(c, "context"), JSON_COMPACT);
    const char *kind = json_string_value(json_object_get(c, "error"));
    json_t *want = json_object_get(c, "output");
    struct buf out;
    struct error err = {0};
    buf_init(&out, 1 << 24);
    buf_text(&out, "");
    unquote_big_integers(context);
    enum status s = chat_template_render(t, context, strlen(context), 0, &out, &err);
    if (!kind) {
        if (s != STATUS_OK)
            fail_msg("%s gives %d: %s", context, s, err.message);
        if (out.len != json_string_length(want) || memcmp(out.data, json_string_value(want), out.len) != 0)
            fail_msg("%s gives\n%s\nwant\n%s", context, out.data, json_string_value(want));
    } else if (strcmp(kind, "raised") == 0) {
        assert_int_equal(s, STATUS_BAD_REQUEST);
        assert_string_equal(err.code, "chat_template_raised");
        assert_string_equal(err.message, json_string_value(json_object_get(c, "message")));
    } else if (s != STATUS_OK) {
        assert_int_equal(s, STATUS_BAD_REQUEST);
        assert_string_equal(err.code, "chat_template_error");
    }
    buf_fini(&out);
    free(context);
}

int chat_file(const char *file, const char *source, size_t len, const struct tokenizer *tok)
{
    json_t *v = vectors_json(file), *own = json_object_get(v, "template"), *cases = json_object_get(v, "cases");
    if (!source) {
        source = json_string_value(own);
        len = json_string_length(own);
    }
    struct chat_template *t = chat_open(source, len, json_string_value(json_object_get(v, "now")), tok);
    int n = (int)json_array_size(cases);
    for (int i = 0; i < n; i++)
        chat_case(t, json_array_get(cases, (size_t)i));
    chat_template_close(t);
    json_decref(v);
    return n;
}
