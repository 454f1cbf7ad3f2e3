#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "real_cases.h"

static void bos_is_not_added_where_the_model_does_not_want_it(const struct tokenizer *t)
{
    size_t n;
    uint32_t *ids = encode(t, "a", 1, TOKENIZE_ADD_SPECIAL, &n);
    assert_int_equal(n, 1);
    free(ids);
}

int main(void)
{
    static const struct real_model m = {"SLUICE_MODEL_SMOLLM2", "smollm2", 2013, 610, bos_is_not_added_where_the_model_does_not_want_it};
    return real_cases_run(&m);
}
