#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "real_cases.h"

static void bos_is_not_added_where_the_model_does_not_want_it(const struct tokenizer *t)
{
    size_t n;
    uint32_t *ids = encode(t, "a", 1, TOKENIZE_ADD_SPECIAL, &n);
    assert_int_equal(n, 1);
    free(ids);
}

/* "</s>" is an HTML tag here (token 128247), no end. */
static void ends_are_the_turn_and_the_text(const struct tokenizer *t)
{
    bos_is_not_added_where_the_model_does_not_want_it(t);
    assert_int_equal(tokenizer_eos(t), 151645);
    assert_true(tokenizer_is_end(t, 151645)); /* <|im_end|> */
    assert_true(tokenizer_is_end(t, 151643)); /* <|endoftext|> */
    assert_false(tokenizer_is_end(t, 151644));
    assert_false(tokenizer_is_end(t, 128247));
    struct text tag = tokenizer_piece(t, 128247, 0);
    assert_int_equal(tag.len, 4);
    assert_memory_equal(tag.data, "</s>", 4);
}

int main(void)
{
    static const struct real_model m = {"SLUICE_MODEL_QWEN", "qwen2.5", 1999, 606, ends_are_the_turn_and_the_text};
    return real_cases_run(&m);
}
