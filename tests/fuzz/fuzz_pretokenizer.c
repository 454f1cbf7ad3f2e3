/* tests/fuzz/fuzz_pretokenizer.c - words of a text that is looked at in small windows, against those of the whole text.
 *
 * Input      1 byte which rule, 1 byte after how many bytes a search comes up for air, 1 byte longest word; then the text: a byte
 *            0xff in front of N and L repeats the L bytes that follow N times, all else is itself. Only its well-formed UTF-8 counts.
 * Must hold  The words put together are the text, none is empty. Windows change nothing: either the words are the same, or a word is
 *            longer than is allowed and the text is refused for just that (a rule of several passes cuts smaller what an earlier pass has
 *            found: there it may be that which is longer).
 */
#include <stdint.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/pretokenizer_impl.h"
#include "common/base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 4096 };

static const char *const names[] = {"smollm", "gpt-2", "qwen2", "llama-bpe", "glm4", "tekken", "deepseek-llm", "deepseek-coder",
                                    "default", "falcon3", "command-r"};

struct words {
    const char *text;
    size_t end, longest;  /* of what was given so far */
    uint32_t n, ends[MAX_TEXT];
};

static size_t expand(const uint8_t *data, size_t size, char *out)
{
    size_t n = 0;
    for (const uint8_t *p = data, *end = data + size; p < end && n < MAX_TEXT;) {
        if (*p != 0xff || end - p < 3) {
            out[n++] = (char)*p++;
            continue;
        }
        const size_t left = (size_t)(end - p) - 3, len = p[2] < left ? p[2] : left;
        for (unsigned i = 0; i < p[1] && len <= MAX_TEXT - n; i++) {
            memcpy(out + n, p + 3, len);
            n += len;
        }
        p += 3 + len;
    }
    return utf8_valid_len(out, n);
}

static enum status note(void *context, const char *word, size_t len)
{
    struct words *w = context;
    CHECK(len > 0 && word == w->text + w->end && w->n < MAX_TEXT);
    w->end += len;
    w->ends[w->n++] = (uint32_t)w->end;
    w->longest = len > w->longest ? len : w->longest;
    return STATUS_OK;
}

static int has_passes(const char *rule)
{
    return strcmp(rule, "default") == 0 || strncmp(rule, "deepseek", strlen("deepseek")) == 0;
}

static void split(size_t rule, const struct pretokenizer *p, const char *text, size_t len, size_t search_bytes, size_t max_word)
{
    static struct words whole, parts;
    static struct pretokenizer_scratch *scratch;
    struct error err = {0};
    struct work work = {.deadline_ns = INT64_MAX, .left = WORK_UNITS, .err = &err};
    if (!scratch)
        CHECK((scratch = pretokenizer_scratch_create()) != NULL);
    whole = parts = (struct words){.text = text};
    CHECK(pretokenizer_split(p, scratch, text, len, &work, note, &whole) == STATUS_OK);
    CHECK(whole.end == len);
    enum status s = pretokenizer__split_within(p, scratch, text, len, search_bytes, max_word, &work, note, &parts);
    if (s == STATUS_OK) {
        CHECK(parts.n == whole.n && memcmp(parts.ends, whole.ends, whole.n * sizeof *whole.ends) == 0);
        CHECK(parts.longest <= max_word);
    } else {
        CHECK(s == STATUS_BAD_REQUEST && strcmp(err.code, "word_too_long") == 0);
        CHECK(whole.longest > max_word || (has_passes(names[rule]) && len > max_word));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct pretokenizer *made[ARRAY_LEN(names)];
    char text[MAX_TEXT];
    if (size < 3)
        return 0;
    const size_t rule = data[0] % ARRAY_LEN(names);
    if (!made[rule])
        CHECK(pretokenizer_create((struct text){names[rule], strlen(names[rule])}, &made[rule], NULL) == STATUS_OK);
    const size_t len = expand(data + 3, size - 3, text);
    split(rule, made[rule], text, len, 4 + data[1] % 64u, 1 + data[2]);
    return 0;
}
