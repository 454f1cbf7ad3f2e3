/* tests/fuzz/fuzz_chat_template.c - the JSON of a request, marked.
 *
 * Input      JSON, or nearly.
 * Must hold  What a strict JSON reader takes is marked and read again with the same strings, but for marks. All strings
 *            put together, trimmed or not, hold no control token.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/chat_mark.h"
#include "common/text/tokenizer_impl.h"
#include "tests/unit/text/vocabulary_maker.h"

static struct vocabulary_maker maker;
static struct gguf *vocabulary;
static struct tokenizer *tokenizer;

static void open_vocabulary(void)
{
    static const char *const names[] = {"<|a|>", "<|ab|>", "|a|><", "[x]", "\uff5ce", "<u>"};
    struct text tokens[256 + ARRAY_LEN(names)];
    int32_t kinds[256 + ARRAY_LEN(names)];
    struct error err;
    size_t len;
    vocabulary_maker_symbols(tokens);
    for (size_t i = 0; i < 256 + ARRAY_LEN(names); i++)
        kinds[i] = i < 256 ? 1 : 3;
    kinds[256 + ARRAY_LEN(names) - 1] = 4;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tokens[256 + i] = (struct text){names[i], strlen(names[i])};
    vocabulary_maker_init(&maker);
    vocabulary_maker_text(&maker, "tokenizer.ggml.model", "gpt2");
    vocabulary_maker_text(&maker, "tokenizer.ggml.pre", "qwen2");
    vocabulary_maker_texts(&maker, "tokenizer.ggml.tokens", tokens, 256 + ARRAY_LEN(names));
    vocabulary_maker_ints(&maker, "tokenizer.ggml.token_type", kinds, 256 + ARRAY_LEN(names));
    vocabulary_maker_texts(&maker, "tokenizer.ggml.merges", tokens, 0);
    const void *bytes = vocabulary_maker_bytes(&maker, &len);
    CHECK(gguf_open_memory(bytes, len, &vocabulary, &err) == STATUS_OK);
    CHECK(tokenizer_create(vocabulary, &tokenizer, &err) == STATUS_OK);
}

/* Appends every string of v to out, ASCII blanks at both ends taken away when trim. */
static void collect(json_t *v, int trim, struct buf *out)
{
    json_t *value;
    const char *key;
    size_t i;
    json_object_foreach(v, key, value) {
        buf_text(out, key);
        collect(value, trim, out);
    }
    json_array_foreach(v, i, value)
        collect(value, trim, out);
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    while (text && trim && len && strchr(" \t\n\v\f\r", text[len - 1]) && text[len - 1])
        len--;
    while (text && trim && len && strchr(" \t\n\v\f\r", *text) && *text)
        text++, len--;
    if (text)
        buf_append(out, text, len);
}

static void check_no_control(json_t *v, int trim)
{
    struct buf all;
    struct error err;
    size_t n;
    buf_init(&all, 1 << 24);
    buf_text(&all, "");
    collect(v, trim, &all);
    uint32_t *ids = malloc((all.len + 1) * sizeof *ids);
    CHECK(ids && tokenizer_encode(tokenizer, all.data, all.len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, all.len + 1, &n,
                                  &err) == STATUS_OK);
    for (size_t i = 0; i < n; i++)
        CHECK(!tokenizer_is_control(tokenizer, ids[i]));
    free(ids);
    buf_fini(&all);
}

static void check_same_but_marks(json_t *before, json_t *after)
{
    struct buf a, b;
    buf_init(&a, 1 << 24);
    buf_init(&b, 1 << 24);
    buf_text(&a, "");
    buf_text(&b, "");
    collect(before, 0, &a);
    collect(after, 0, &b);
    a.len = chat_mark_remove(a.data, a.len);
    b.len = chat_mark_remove(b.data, b.len);
    CHECK(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    buf_fini(&a);
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizer)
        open_vocabulary();
    struct buf out;
    struct error err = {0};
    json_error_t e;
    buf_init(&out, 1 << 24);
    enum status s = chat_mark_json(tokenizer__special(tokenizer), (const char *)data, size, &out, &err);
    json_t *before = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, &e);
    if (before) {
        CHECK(s == STATUS_OK);
        json_t *after = json_loadb(out.data, out.len, 0, &e);
        CHECK(after);
        if (json_object_size(before) == json_object_size(after))
            check_same_but_marks(before, after);
        check_no_control(after, 0);
        check_no_control(after, 1);
        json_decref(after);
        json_decref(before);
    } else if (s != STATUS_OK) {
        CHECK(err.message[0]);
    }
    buf_fini(&out);
    return 0;
}
