/* rpc/gateway/openai.h - the shapes of the OpenAI API's answers.
 *
 * Purpose    Writes whole answers, the chunks of a stream (as SSE events) and errors, for chat and text completions. It
 *            knows shapes only; what is said and when is completion.c's.
 * Ownership  Everything is appended to the caller's buf; inputs are borrowed for the call.
 * Threading  Pure.
 * Invariants finish_reason is null in every chunk of a choice but the one of openai_finish_chunk.
 * Errors     Those of buf, sticky.
 */
#ifndef SLUICE_RPC_GATEWAY_OPENAI_H
#define SLUICE_RPC_GATEWAY_OPENAI_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "rpc/gateway/logprobs.h"
#include "rpc/gateway/request.h"

/* What is the same in everything that answers one request. */
struct answer_head {
    enum endpoint endpoint; /* ENDPOINT_CHAT or ENDPOINT_COMPLETION */
    char id[64];            /* chatcmpl-..., cmpl-... */
    int64_t created_s;
    char model[128];
    char fingerprint[24]; /* see openai_fingerprint; "": null */
    int include_usage, return_token_ids;
    const uint32_t *prompt_ids; /* with return_token_ids */
    size_t n_prompt_ids;
    const struct pieces *pieces; /* with logprobs */
};

/* "fp_" and 16 hex digits of a hash of the numerics profile: two answers with the same one may be compared token by token.
 * The profile itself is in /v1/status; it would be a quarter of every event. */
void openai_fingerprint(struct bytes profile, char out[24]);
/* Something said by one of the n answers. */
struct answer_part {
    uint32_t index;
    struct bytes text;
    const uint32_t *ids; /* with return_token_ids */
    size_t n_ids;
    struct bytes logprobs; /* as logprobs_keep has it; data NULL: they were not asked for */
    uint32_t text_offset;  /* characters of this answer before */
    enum finish_reason finish; /* whole answers */
};

/* First chunk: the role (chat), the prompt's ids if they were asked for. Nothing for a text completion without ids. */
void openai_first_chunk(struct buf *b, const struct answer_head *h, uint32_t index);
void openai_text_chunk(struct buf *b, const struct answer_head *h, const struct answer_part *p);
/* The finish_reason of one answer. */
void openai_finish_chunk(struct buf *b, const struct answer_head *h, uint32_t index, enum finish_reason finish, const struct usage *u);
/* With include_usage one more chunk without choices; then [DONE]. */
void openai_end_of_stream(struct buf *b, const struct answer_head *h, const struct usage *u);
/* A whole answer in pieces: begin, a choice for each of the n, end. */
void openai_answer_begin(struct buf *b, const struct answer_head *h);
void openai_answer_choice(struct buf *b, const struct answer_head *h, const struct answer_part *p);
void openai_answer_end(struct buf *b, const struct answer_head *h, const struct usage *u);

/* {"error": {message, type, param, code, retryable}} */
void openai_error(struct buf *b, const struct error *err);
void openai_error_event(struct buf *b, const struct error *err);
/* HTTP status of an error; and its Retry-After in whole seconds 1..60, or 0 where none belongs. */
int openai_http_status(const struct error *err);
int openai_retry_after(const struct error *err);

#endif
