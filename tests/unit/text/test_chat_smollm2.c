#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chat_cases.h"

static void smollm2s_own_template_renders_what_the_reference_renders(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open(real_model_path());
    struct text source;
    assert_true(gguf_text(v.gguf, "tokenizer.chat_template", &source));
    assert_int_equal(chat_file("chat/smollm2.json", source.data, source.len, v.tokenizer), 37);
    vocabulary_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(smollm2s_own_template_renders_what_the_reference_renders)};
    real_model_path(); /* skips */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
