#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "chat_cases.h"
#include "common/text/chat_template_impl.h"

/* A template that the reference refuses may be refused at open already. */
static int refused_at_open(json_t *c, const struct tokenizer *tok)
{
    struct chat_template *t;
    struct error err = {0};
    json_t *text = json_object_get(c, "template");
    const struct chat_source source = {.text = {json_string_value(text), json_string_length(text)}};
    enum status s = chat_template_open(&source, PYTHON, tok, &t, &err);
    if (s == STATUS_OK)
        chat_template_close(t);
    else
        assert_int_equal(s, STATUS_BAD_MODEL);
    return s != STATUS_OK;
}

static void the_template_language_is_jinja(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open_tiny("llama-f32");
    json_t *file = vectors_json("chat/expressions.json"), *cases = json_object_get(file, "cases"), *c;
    size_t i, n_at_open = 0;
    json_array_foreach(cases, i, c) {
        json_t *source = json_object_get(c, "template");
        if (json_object_get(c, "error") && refused_at_open(c, v.tokenizer)) {
            n_at_open++;
            continue;
        }
        struct chat_template *t = chat_open(json_string_value(source), json_string_length(source),
                                            strstr(json_string_value(source), "strftime")
                                                ? json_string_value(json_object_get(file, "now"))
                                                : NULL,
                                            v.tokenizer);
        chat_case(t, c);
        chat_template_close(t);
    }
    assert_int_equal(i, 128);
    assert_int_equal(n_at_open, 5); /* three syntax errors, an unknown filter, an unknown test */
    json_decref(file);
    vocabulary_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_template_language_is_jinja)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
