#include "common/text/chat_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/file.h"
#include "common/text/chat_builtins.inc"

enum { MAX_FILE = 1 << 20 };

const char *chat_builtin(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(chat_builtins); i++)
        if (strcmp(name, chat_builtins[i].name) == 0)
            return chat_builtins[i].source;
    return NULL;
}

const char *chat_builtin_names(void)
{
    return chat_builtin_list;
}

/* One of the further templates of a file: tokenizer.chat_template.NAME. */
static int named_template(const struct gguf *g, const char *name, struct text *out)
{
    char key[128];
    int n = snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
    return n > 0 && (size_t)n < sizeof key && gguf_text(g, key, out) && out->len > 0;
}

static enum status read_file(const char *path, struct chat_source *out, struct error *err)
{
    struct error why;
    char *text;
    size_t len;
    const enum status s = file_read(path, MAX_FILE, &text, &len, &why);
    if (s != STATUS_OK)
        return error_set(err, s, "--chat-template @%.280s", why.message);
    if (len == 0) {
        free(text);
        return error_set(err, STATUS_CONFIG, "--chat-template @%.200s: the file is empty", path);
    }
    *out = (struct chat_source){.text = {text, len}, .owned = text};
    return STATUS_OK;
}

static enum status find_chosen(const struct gguf *g, const char *choice, struct chat_source *out, struct error *err)
{
    const char *builtin = chat_builtin(choice);
    struct text named;
    if (choice[0] == '@')
        return read_file(choice + 1, out, err);
    if (builtin) {
        *out = (struct chat_source){.text = {builtin, strlen(builtin)}};
        return STATUS_OK;
    }
    if (named_template(g, choice, &named)) {
        *out = (struct chat_source){.text = named};
        return STATUS_OK;
    }
    return error_set(err, STATUS_CONFIG, "--chat-template: '%.100s' is no built-in template and none of the model's; %s are, and @FILE",
                     choice, chat_builtin_list);
}

enum status chat_source_find(const struct gguf *g, const char *choice, struct chat_source *out, struct error *err)
{
    if (choice)
        return find_chosen(g, choice, out, err);
    struct chat_source s = {.is_own = 1};
    struct text text;
    if (gguf_text(g, "tokenizer.chat_template", &text))
        s.text = text;
    if (named_template(g, "tool_use", &text))
        s.tools = text;
    if (s.text.len == 0 && !named_template(g, "default", &s.text)) {
        s.text = s.tools; /* the only one there is serves all */
        s.tools.len = 0;
    }
    if (s.text.len == 0)
        return error_set(err, STATUS_UNSUPPORTED, "the model has no chat template");
    *out = s;
    return STATUS_OK;
}

void chat_source_free(struct chat_source *s)
{
    free(s->owned);
    *s = (struct chat_source){0};
}
