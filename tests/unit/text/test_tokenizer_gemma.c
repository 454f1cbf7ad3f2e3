#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "real_cases.h"

static void ids_are(const struct tokenizer *t, const char *text, unsigned flags, const uint32_t *want, size_t n_want)
{
    size_t n;
    uint32_t *ids = encode(t, text, strlen(text), flags, &n);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    free(ids);
}

/* BOS is added and never doubled; a literal U+2581 is a space by itself, never part of a token for many spaces (there
 * sentencepiece and llama.cpp differ, and this is llama.cpp's answer); "</s>" is an HTML tag that text may hold. */
static void starts_ends_and_odd_characters(const struct tokenizer *t)
{
    unsigned both = TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL;
    ids_are(t, "", both, (uint32_t[]){2}, 1);
    ids_are(t, "<bos>", both, (uint32_t[]){2}, 1);
    ids_are(t, "<bos><bos>", both, (uint32_t[]){2, 2}, 2);
    ids_are(t, "  ", 0, (uint32_t[]){138}, 1);
    ids_are(t, "\xe2\x96\x81\xe2\x96\x81", 0, (uint32_t[]){236743, 236743}, 2);
    ids_are(t, "</s>", 0, (uint32_t[]){212}, 1);
    assert_int_equal(tokenizer_piece(t, 212, 0).len, 4);
    assert_int_equal(tokenizer_bos(t), 2);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_true(tokenizer_is_end(t, 1));
    assert_true(tokenizer_is_end(t, 106)); /* <end_of_turn> */
    assert_false(tokenizer_is_end(t, 105));
    assert_false(tokenizer_is_end(t, 212));
}

int main(void)
{
    static const struct real_model m = {"SLUICE_MODEL_GEMMA", "gemma3", 2562, 686, starts_ends_and_odd_characters};
    return real_cases_run(&m);
}
