/* tests/fuzz/fuzz_chat_source.c - `--chat-template`, and what a model says of its templates.
 *
 * Input      1 byte which keys the model has and whether something was chosen, then texts with a 0 behind each: what was chosen, the
 *            model's template, that for tools, a third one's name; the rest is the file that any @FILE names.
 * Must hold  It is refused in words that name what may be chosen, or there is a template, and it is the one that was meant: the
 *            file's bytes, a built-in's, or the model's own of that name. Nothing that was chosen is quietly another.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/chat_source.h"
#include "tests/unit/text/vocabulary_maker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

enum { MAX_SIZE = 4096, HAS_OWN = 1, HAS_TOOLS = 2, HAS_DEFAULT = 4, HAS_THIRD = 8, OWN_IS_A_NUMBER = 16, CHOSEN = 32, FILE_IS_LARGE = 64 };

static struct {
    int inside;
    const char *data;
    size_t len;
} file;

FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!file.inside)
        return __real_fopen(path, mode);
    return file.len ? fmemopen((void *)(uintptr_t)file.data, file.len, "r") : __real_fopen("/dev/null", "r");
}

struct told {
    unsigned bits;
    const char *choice, *own, *tools, *third;
};

static struct gguf *make(const struct told *t, struct vocabulary_maker *m)
{
    char key[200];
    struct gguf *g;
    size_t len;
    vocabulary_maker_init(m);
    if (t->bits & OWN_IS_A_NUMBER)
        vocabulary_maker_u32(m, "tokenizer.chat_template", 7);
    else if (t->bits & HAS_OWN)
        vocabulary_maker_text(m, "tokenizer.chat_template", t->own);
    if (t->bits & HAS_TOOLS)
        vocabulary_maker_text(m, "tokenizer.chat_template.tool_use", t->tools);
    if (t->bits & HAS_DEFAULT)
        vocabulary_maker_text(m, "tokenizer.chat_template.default", t->own);
    snprintf(key, sizeof key, "tokenizer.chat_template.%.100s", t->third);
    if (t->bits & HAS_THIRD && strcmp(t->third, "tool_use") != 0 && strcmp(t->third, "default") != 0)
        vocabulary_maker_text(m, key, "third");
    const void *bytes = vocabulary_maker_bytes(m, &len);
    return gguf_open_memory(bytes, len, &g, NULL) == STATUS_OK ? g : NULL;
}

static int is(struct text t, const char *text)
{
    return t.len == strlen(text) && memcmp(t.data, text, t.len) == 0;
}

static void check_own(const struct told *t, const struct chat_source *s)
{
    const int has_own = (t->bits & HAS_OWN) && !(t->bits & OWN_IS_A_NUMBER) && t->own[0], has_tools = (t->bits & HAS_TOOLS) && t->tools[0];
    const int has_default = (t->bits & HAS_DEFAULT) && t->own[0];
    CHECK(s->is_own && !s->owned);
    CHECK(is(s->text, has_own || has_default ? t->own : t->tools));
    CHECK(has_tools && (has_own || has_default) ? is(s->tools, t->tools) : s->tools.len == 0);
}

static void check_chosen(const struct told *t, const struct gguf *g, const struct chat_source *s)
{
    const char *builtin = chat_builtin(t->choice);
    CHECK(!s->is_own && s->tools.len == 0 && !s->owned == (t->choice[0] != '@'));
    if (t->choice[0] == '@') {
        CHECK(s->text.len == file.len && memcmp(s->text.data, file.data, file.len) == 0);
    } else if (builtin) {
        CHECK(is(s->text, builtin));
    } else {
        char key[200];
        struct text own;
        CHECK((size_t)snprintf(key, sizeof key, "tokenizer.chat_template.%s", t->choice) < sizeof key);
        CHECK(gguf_text(g, key, &own) && own.data == s->text.data && own.len == s->text.len);
    }
}

static void find(const struct told *t)
{
    struct vocabulary_maker m;
    struct chat_source s = {0};
    struct error err = {0};
    struct gguf *g = make(t, &m);
    if (g) {
        const int chosen = (t->bits & CHOSEN) != 0;
        file.inside = 1;
        enum status st = chat_source_find(g, chosen ? t->choice : NULL, &s, &err);
        file.inside = 0;
        CHECK(st == STATUS_OK || (err.status == st && err.message[0]));
        if (st == STATUS_OK && chosen)
            check_chosen(t, g, &s);
        else if (st == STATUS_OK)
            check_own(t, &s);
        else
            CHECK(chosen ? st == STATUS_CONFIG && strstr(err.message, "--chat-template") : st == STATUS_UNSUPPORTED);
        CHECK(st != STATUS_OK || s.text.len > 0);
        CHECK(st == STATUS_OK || !chosen || t->choice[0] == '@' || strstr(err.message, "chatml"));
        chat_source_free(&s);
    }
    gguf_close(g);
    vocabulary_maker_fini(&m);
}

static const char *next_text(const char **at, const char *end)
{
    const char *text = *at;
    *at += *at < end ? strlen(*at) + 1 : 0;
    *at = *at < end ? *at : end;
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MAX_SIZE + 1], large[(1 << 20) + 1];
    if (size < 1 || size > MAX_SIZE)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    const char *at = text, *end = text + size - 1;
    struct told t = {.bits = data[0]};
    t.choice = next_text(&at, end);
    t.own = next_text(&at, end);
    t.tools = next_text(&at, end);
    t.third = next_text(&at, end);
    file.data = at;
    file.len = (size_t)(end - at);
    if (t.bits & FILE_IS_LARGE) {
        file.data = large;
        file.len = sizeof large - (file.len & 1);
    }
    find(&t);
    return 0;
}
