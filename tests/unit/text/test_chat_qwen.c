#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "chat_cases.h"

static void qwens_own_template_renders_what_the_reference_renders(void **state)
{
    (void)state;
    struct vocabulary v = vocabulary_open(getenv("SLUICE_MODEL_QWEN"));
    struct text source;
    assert_true(gguf_text(v.gguf, "tokenizer.chat_template", &source));
    assert_int_equal(chat_file("chat/qwen2.5.json", source.data, source.len, v.tokenizer), 37);
    vocabulary_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwens_own_template_renders_what_the_reference_renders)};
    if (!getenv("SLUICE_MODEL_QWEN")) {
        printf("skipped: SLUICE_MODEL_QWEN does not name the Qwen2.5 GGUF\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
