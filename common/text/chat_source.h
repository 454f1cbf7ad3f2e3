/* common/text/chat_source.h - which chat template serves a model.
 *
 * Purpose    Finds the Jinja text: what --chat-template says (the name of a built-in, @FILE, or the name of one of the model's
 *            own further templates), else the model's own tokenizer.chat_template. A model that brings a second one for tools
 *            (tokenizer.chat_template.tool_use) has it used for requests with tools. Compiles nothing: chat_template.h does.
 * Ownership  chat_source_find/chat_source_free; texts of the model's own are the gguf's, which must outlive it.
 * Threading  Pure.
 * Errors     STATUS_UNSUPPORTED: the model has none and none was chosen. STATUS_CONFIG: what was chosen is not there; the
 *            names that are allowed are told.
 */
#ifndef SLUICE_COMMON_TEXT_CHAT_SOURCE_H
#define SLUICE_COMMON_TEXT_CHAT_SOURCE_H

#include "common/base/error.h"
#include "common/model/gguf.h"

struct chat_source {
    struct text text;
    struct text tools; /* for a context with tools; len 0: the same */
    int is_own;        /* the model's, not one that somebody chose */
    char *owned;       /* a file's text */
};

/* choice NULL: the model's own. */
enum status chat_source_find(const struct gguf *g, const char *choice, struct chat_source *out, struct error *err);
void chat_source_free(struct chat_source *s); /* also of a zeroed one */

/* Jinja text of a built-in by name, or NULL. */
const char *chat_builtin(const char *name);
/* "chatml, deepseek, ..." */
const char *chat_builtin_names(void);

#endif
