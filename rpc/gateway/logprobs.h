/* rpc/gateway/logprobs.h - log probabilities of an answer: kept, and in the shapes of the OpenAI API.
 *
 * Purpose    What comes with each id is appended in few words (a whole answer is kept so until its end, in the journal too), read back and
 *            written as chat's `content` or completions' four lists.
 * Ownership  Everything is appended to the caller's buf; inputs are borrowed for the call.
 * Threading  Pure.
 * Invariants A token that is no whole text is told as OpenAI does: in chat what is no character as `\xHH`, in completions all of it behind
 *            `bytes:`. chat's `bytes` are always the token's own.
 * Errors     Those of buf, sticky. logprobs_are_sane: whether kept words can be read.
 */
#ifndef SLUICE_RPC_GATEWAY_LOGPROBS_H
#define SLUICE_RPC_GATEWAY_LOGPROBS_H

#include "common/base/buf.h"
#include "rpc/gateway/pieces.h"

void logprobs_keep(struct buf *to, const struct token_logprobs *from, size_t n);
int logprobs_are_sane(struct bytes kept);
/* {"content": [...], "refusal": null} */
void logprobs_write_chat(struct buf *b, struct bytes kept, const struct pieces *p);
/* {"tokens": [...], "token_logprobs": [...], "top_logprobs": [...], "text_offset": [...]}; offset: characters before the first token. */
void logprobs_write_completion(struct buf *b, struct bytes kept, const struct pieces *p, uint32_t offset);
/* Characters of the answer that these ids begin. */
uint32_t logprobs_chars(const uint32_t *ids, size_t n, const struct pieces *p);

#endif
