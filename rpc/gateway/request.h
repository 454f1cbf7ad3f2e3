/* rpc/gateway/request.h - what a client asked for, checked.
 *
 * Purpose    Turns the body of a POST into a `struct request` by one table of fields (request.c): name, type, range, where
 *            it goes. It knows the shapes of the OpenAI API and our extensions; it does not know the model, so lengths,
 *            ids beyond the vocabulary and the model's name are somebody else's to check.
 * Ownership  request_init/request_fini in place. Everything the request points to lies in its arena; the body and the JSON
 *            tree are not needed afterwards.
 * Threading  One thread at a time.
 * Invariants Unknown fields are ignored. null is the same as absent. What is known and not built yet is STATUS_UNSUPPORTED.
 * Errors     STATUS_BAD_REQUEST and STATUS_UNSUPPORTED with the field's name in `param`; those of json_in_parse;
 *            STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_RPC_GATEWAY_REQUEST_H
#define SLUICE_RPC_GATEWAY_REQUEST_H

#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/error.h"
#include "rpc/grpc/inference_api.h"

enum endpoint {
    ENDPOINT_CHAT = 1,       /* /v1/chat/completions */
    ENDPOINT_COMPLETION = 2, /* /v1/completions */
    ENDPOINT_TOKENIZE = 4,
    ENDPOINT_DETOKENIZE = 8,
    ENDPOINT_TEMPLATE = 16, /* /apply-template */
};

enum { REQUEST_MAX_CHOICES = 128 };

struct request {
    enum endpoint endpoint;
    struct arena arena;
    uint32_t n; /* answers asked for, at least 1 */
    struct bytes model; /* "": the default one */
    int stream, include_usage, return_token_ids;
    int add_special, parse_special, show_special; /* tokenize, detokenize */
    struct bytes content;                         /* tokenize */
    /* chat, completion, detokenize (ids), template (chat_json); request_id and client are filled by the gateway */
    struct generate_request generate;
};

void request_init(struct request *r, enum endpoint endpoint, size_t body_len);
enum status request_parse(struct request *r, const char *body, size_t len, struct error *err);
void request_fini(struct request *r);

#endif
