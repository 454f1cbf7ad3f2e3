/* rpc/gateway/request_impl.h - the inside of request_parse, for request.c and request_fields.c only.
 *
 * Purpose    request.c has the table of fields and joins what they say, request_fields.c reads those that have a shape of their own.
 * Ownership  Texts are copied to the request's arena; JSON values are borrowed from the tree.
 * Threading  As request.h.
 * Errors     Those of request.h, in reading.err.
 */
#ifndef SLUICE_RPC_GATEWAY_REQUEST_IMPL_H
#define SLUICE_RPC_GATEWAY_REQUEST_IMPL_H

#include <jansson.h>

#include "rpc/gateway/request.h"

enum { REQUEST_ID_MAX = 0x7fffffff };

/* What the table writes into before it becomes a struct request. */
struct reading {
    struct request *r;
    struct error *err;
    int stream, ignore_eos, return_token_ids, cache_prompt, add_generation_prompt;
    int add_special, parse_special, show_special;
    int64_t seed, top_k, deadline_ms, max_tokens, max_completion_tokens;
    int64_t n, best_of, top_logprobs, n_logprobs, repeat_last_n;
    double temperature, top_p, min_p, typical_p, presence_penalty, frequency_penalty, repeat_penalty, repetition_penalty;
    struct bytes model, user, content;
    const char *priority, *reasoning_effort;
    json_t *messages, *tools, *documents, *kwargs;
    int has_seed, tools_off;
};

enum status request__wrong_type(struct reading *g, const char *param, const char *want, const json_t *got);
enum status request__unsupported(struct reading *g, const char *param, const char *what);
enum status request__no_memory(struct reading *g);
enum status request__copy(struct reading *g, const json_t *v, struct bytes *out);

/* A field: v is not null. */
enum status request__read_messages(struct reading *g, const char *name, json_t *v);
enum status request__read_tools(struct reading *g, const char *name, json_t *v);
enum status request__read_documents(struct reading *g, const char *name, json_t *v);
enum status request__read_tool_choice(struct reading *g, const char *name, json_t *v);
enum status request__read_kwargs(struct reading *g, const char *name, json_t *v);
enum status request__read_response_format(struct reading *g, const char *name, json_t *v);
enum status request__read_modalities(struct reading *g, const char *name, json_t *v);
enum status request__read_logit_bias(struct reading *g, const char *name, json_t *v);
enum status request__read_unbuilt(struct reading *g, const char *name, json_t *v);
enum status request__read_unbuilt_list(struct reading *g, const char *name, json_t *v);
enum status request__read_suffix(struct reading *g, const char *name, json_t *v);
enum status request__read_stream_options(struct reading *g, const char *name, json_t *v);
enum status request__read_stop(struct reading *g, const char *name, json_t *v);
enum status request__read_answer_tokens(struct reading *g, const char *name, json_t *v);
enum status request__read_seed(struct reading *g, const char *name, json_t *v);
enum status request__read_logprobs(struct reading *g, const char *name, json_t *v);
enum status request__read_ids(struct reading *g, const char *name, json_t *v);
enum status request__read_prompt(struct reading *g, const char *name, json_t *v);

#endif
