/* common/text/chat_template.h - chat templates by real Jinja2, in one supervised, sandboxed child process.
 *
 * Purpose    Renders a Jinja template (chat_source.h says which) exactly as transformers sets Jinja2 up: immutable sandbox,
 *            trim_blocks, lstrip_blocks, raise_exception, strftime_now, tojson without ASCII escapes, loop controls. The
 *            child (chat_template_child.py, embedded in the binary) runs with limits on address space, CPU and output, no
 *            network and no files; it is started again when it dies or is killed at a deadline.
 * Ownership  chat_template_open/close. The result is appended to the caller's buf.
 * Threading  Any thread; renders are done one after the other (a lock inside).
 * Errors     STATUS_BAD_REQUEST: the template itself refused (raise_exception: its message comes through) or tripped over
 *            its input. STATUS_TIMEOUT: over the time limit. STATUS_IO, STATUS_INTERNAL: its process cannot be started now,
 *            or ended each time. At open STATUS_CONFIG: no python with jinja2;
 *            STATUS_BAD_MODEL: the template does not compile (its line is named), or not within the limits.
 */
#ifndef SLUICE_COMMON_TEXT_CHAT_TEMPLATE_H
#define SLUICE_COMMON_TEXT_CHAT_TEMPLATE_H

#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/text/chat_source.h"
#include "common/text/tokenizer.h"

struct chat_template;

/* source is copied. python: an interpreter that has jinja2. tok: bos/eos texts and control tokens;
 * it must outlive the template. Waits for the child: 0.15 s on an idle machine. */
enum status chat_template_open(const struct chat_source *source, const char *python, const struct tokenizer *tok,
                               struct chat_template **out, struct error *err);
void chat_template_close(struct chat_template *t);

/* context_json: an object with messages, tools, add_generation_prompt and whatever else the template may read; `tools`
 * and `documents` are null where absent. mark != 0: texts of control tokens inside user strings get TOKENIZER_MARK in
 * front, so that they become ordinary text; chat_template_unmark removes the marks for people. */
enum status chat_template_render(struct chat_template *t, const char *context_json, size_t len, int mark,
                                 struct buf *out, struct error *err);
void chat_template_unmark(struct buf *text);

#endif
