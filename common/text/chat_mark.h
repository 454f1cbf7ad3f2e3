/* common/text/chat_mark.h - puts marks into the strings of a user's request.
 *
 * Purpose    Every string of the context, keys too, loses the marks that the user sent and gets one at each place where
 *            a control token could start: at each of its names, and where the string ends in the beginning of one, so
 *            that two strings which a template joins (trimmed or not) make none either. The API's own keys and roles stay
 *            as they are, whatever the vocabulary calls its control tokens.
 *            A limit that stays: a template that itself rewrites text (lower, replace, a cut inside a name) may still
 *            build a name, and one that asks whether content starts with a control token's name sees the mark first.
 * Ownership  The result is appended to the caller's buf.
 * Threading  Pure.
 * Errors     STATUS_BAD_REQUEST: a string that is no JSON string. STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_CHAT_MARK_H
#define SLUICE_COMMON_TEXT_CHAT_MARK_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/text/special.h"

/* One string. */
enum status chat_mark_text(const struct special *s, const char *text, size_t len, struct buf *out);
/* JSON, all strings in it; whether it is well-formed elsewhere is not looked at. */
enum status chat_mark_json(const struct special *s, const char *json, size_t len, struct buf *out, struct error *err);
/* Takes every mark out, in place; returns the new length. */
size_t chat_mark_remove(char *text, size_t len);

#endif
