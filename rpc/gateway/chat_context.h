/* rpc/gateway/chat_context.h - messages of the API to the context of a chat template.
 *
 * Purpose    Checks `messages` and writes the JSON object that a template reads: messages with plain text content, tools,
 *            documents, add_generation_prompt, and what chat_template_kwargs adds.
 * Ownership  The tree stays the caller's, its messages are changed in place. The text lies in the arena.
 * Threading  One thread at a time.
 * Errors     STATUS_BAD_REQUEST naming the message (`messages[2].content[0].type`); STATUS_UNSUPPORTED for parts that are
 *            not text; STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_RPC_GATEWAY_CHAT_CONTEXT_H
#define SLUICE_RPC_GATEWAY_CHAT_CONTEXT_H

#include <jansson.h>

#include "common/base/arena.h"
#include "common/base/error.h"
#include "rpc/grpc/inference_api.h"

/* Checks the list and joins the text parts of each content with a line feed, as vLLM and llama.cpp do. */
enum status chat_context_check_messages(json_t *messages, struct error *err);

struct chat_context {
    json_t *messages, *tools, *documents, *kwargs; /* all but messages may be NULL */
    int add_generation_prompt;         /* -1: not said, so true unless kwargs say otherwise */
    const char *reasoning_effort;      /* NULL: not said; "none" also says enable_thinking false, unless kwargs say that */
};

enum status chat_context_write(const struct chat_context *c, struct arena *arena, struct bytes *out, struct error *err);

#endif
