/* common/text/chat_template_impl.h - what tests may do to a template.
 *
 * Purpose    A clock that stands still, the child's process id, and the time limit.
 * Ownership  As chat_template.h.
 * Threading  Before the first render, or as chat_template.h.
 * Errors     None.
 */
#ifndef SLUICE_COMMON_TEXT_CHAT_TEMPLATE_IMPL_H
#define SLUICE_COMMON_TEXT_CHAT_TEMPLATE_IMPL_H

#include <sys/types.h>

#include "common/text/chat_template.h"

/* now: ISO 8601 without zone; the child is started again with it. */
enum status chat_template__freeze(struct chat_template *t, const char *now, struct error *err);
pid_t chat_template__pid(const struct chat_template *t); /* 0: none runs */

#endif
