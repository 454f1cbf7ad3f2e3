/* coordinator/text_workers.h - templates and tokenizing, off the engine's thread.
 *
 * Purpose    A few threads that turn a request's text or chat into ids and hand it to the engine, and that answer Tokenize,
 *            Detokenize and ApplyTemplate. A long text delays other texts at most by its own time limit, never a tick.
 * Ownership  text_workers_create/destroy. A job is a callback with its argument; the argument is the caller's.
 * Threading  text_workers_submit from any thread; jobs run on one of the workers. stop and destroy: the owner's thread.
 * Errors     STATUS_QUEUE_FULL when max_jobs jobs wait, STATUS_DRAINING after text_workers_stop.
 */
#ifndef SLUICE_COORDINATOR_TEXT_WORKERS_H
#define SLUICE_COORDINATOR_TEXT_WORKERS_H

#include "common/base/error.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "coordinator/request.h"

struct text_workers;

enum { TEXT_MAX_BYTES = 128 << 20 }; /* of a rendered template, of a text made of ids */

enum status text_workers_create(unsigned n_threads, uint32_t max_jobs, struct text_workers **out);
/* Runs what is queued, then joins the threads. Submitting stays allowed and is refused, so that the gRPC side, whose jobs
 * these are, can be taken down between stop and destroy. */
void text_workers_stop(struct text_workers *w);
void text_workers_destroy(struct text_workers *w); /* stops first if need be */
enum status text_workers_submit(struct text_workers *w, void (*job)(void *arg), void *arg);

/* --- what jobs do ------------------------------------------------------------------------------------------------------- */

struct text_context {
    const struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: there is none, and why: */
    const char *no_template;
    uint32_t context, answer_cap;
};

/* chat_template_render, or BAD_REQUEST no_chat_template that says what to do instead. */
enum status text_render(const struct text_context *t, struct bytes chat_json, int mark, struct buf *out, struct error *err);
/* Renders and tokenizes as the request's prompt kind says, then request_set_prompt. */
enum status text_prepare(const struct text_context *t, struct request *r, struct error *err);
/* Ids of a text: *ids is malloc'd. At most max_ids, else BAD_REQUEST. */
enum status text_tokenize(const struct text_context *t, const char *text, size_t len, unsigned flags, const char *param,
                          size_t max_ids, uint32_t **ids, size_t *n_ids, struct error *err);

#endif
