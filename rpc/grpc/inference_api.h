/* rpc/grpc/inference_api.h - service sluice.v1.Inference as plain structs.
 *
 * Purpose    Generate, Tokenize, Detokenize, ApplyTemplate, GetModel, GetPieces: server side for the coordinator, client side for the
 *            gateway.
 * Ownership  Request and event structs and what they point to are valid during the callback or call only; copy what must
 *            live longer. generate_call and generate_stream are counted: the callback gets a borrowed pointer, retain to keep.
 * Threading  Callbacks on the loop's thread. generate_call_* and generate_stream_* from any thread.
 * Errors     A failure travels as `struct error`: gRPC status, message, and trailing metadata sluice-error-bin (HTTP status,
 *            param, code, retry_after_s, retryable), so that the client side gets the same struct error back. A transport
 *            failure arrives as STATUS_CLOSED.
 */
#ifndef SLUICE_RPC_GRPC_INFERENCE_API_H
#define SLUICE_RPC_GRPC_INFERENCE_API_H

#include <stdint.h>

#include "common/wire/plan.h"
#include "rpc/grpc/rpc.h"

enum { MAX_STOPS = 16, MAX_STOP_BYTES = 512, MAX_RESUME_TOKEN = 128 };

enum prompt_kind {
    PROMPT_TEXT = 1, /* text: plain completion, special tokens parsed */
    PROMPT_IDS = 2,  /* ids */
    PROMPT_CHAT = 3, /* chat_json: the template's context: {"messages": [...], "tools": ..., ...} */
};

struct bytes {
    const char *data;
    size_t len;
};

struct usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    double queue_ms, prompt_ms, decode_ms;
};

/* A call was lost, the answer goes on: prompt, seed and limits are those of the first attempt, the prompt as ids. */
struct generate_resume {
    struct bytes token;           /* of ACCEPTED, at most MAX_RESUME_TOKEN bytes; "": this is no resumption */
    const uint32_t *ids;          /* of the answer, as far as they were delivered */
    size_t n_ids;
    struct usage usage;           /* of the first TEXT; decode_ms: since it came */
};

struct generate_request {
    struct bytes request_id;      /* "": the coordinator names it */
    uint32_t attempt;             /* 0 first; a resubmission has a higher one */
    enum prompt_kind prompt;
    struct bytes text, chat_json;
    const uint32_t *ids;
    size_t n_ids;
    struct sampler_params sampler; /* n_prompt and n_bias are the coordinator's to set */
    const struct logit_bias *bias; /* [n_bias], at most MAX_BIASES */
    size_t n_bias;
    int has_seed;                 /* else the coordinator draws one and tells it */
    int64_t max_tokens;           /* -1: to the end of the context */
    struct bytes stop[MAX_STOPS];
    uint32_t n_stops;
    int ignore_eos;
    int batch_priority;           /* 0 interactive, 1 batch */
    int64_t deadline_ms;          /* 0: none */
    struct bytes client;          /* server side: the claimed name from peers with the secret (or where none is set), else
                                   * "key-" and a hash of the bearer, else generate_call_peer: never to be checked again */
    struct generate_resume resume;
    struct bytes sibling;         /* token of ACCEPTED of another answer to the same request: while that one runs this one is
                                   * taken though the service is ending; "": there is none */
    int no_cache;                 /* cache_prompt: false */
};

/* What the model gave an id of the answer, and its best alternatives (sampler.n_top - 1 of them; the id may be among them). */
struct token_logprobs {
    uint32_t id;
    float logprob; /* natural; of the model's own distribution: before bias, penalties and temperature */
    uint32_t n_top;
    uint32_t top_ids[MAX_TOP_LOGPROBS]; /* by logit, ties by the lower id */
    float top_logprobs[MAX_TOP_LOGPROBS];
};

enum finish_reason { FINISH_NONE = 0, FINISH_STOP = 1, FINISH_LENGTH = 2 };

enum generate_event_kind {
    GENERATE_ACCEPTED = 1, /* request_id, seed, model, prompt ids; first event of every accepted request */
    GENERATE_PROGRESS = 2, /* queued position, or read/total */
    GENERATE_TEXT = 3,     /* text (whole characters) and the ids that made it */
    GENERATE_DONE = 4,     /* finish reason, usage, timings; last event, then status OK */
};

struct generate_event {
    enum generate_event_kind kind;
    struct bytes request_id, model, profile; /* ACCEPTED */
    struct bytes resume_token;               /* ACCEPTED */
    uint64_t seed;
    uint32_t queue_position;                 /* PROGRESS: > 0 while it waits (1 = next) */
    uint32_t read_tokens, prompt_tokens;     /* PROGRESS while reading; ACCEPTED: prompt_tokens */
    struct bytes text;
    const uint32_t *ids;                     /* TEXT: answer ids; ACCEPTED: the prompt's */
    size_t n_ids;
    const struct token_logprobs *logprobs;   /* TEXT: of the ids, in their order, where sampler.n_top asked for them */
    size_t n_logprobs;                       /* n_ids, or 0 */
    enum finish_reason finish;
    struct bytes stop_text;                  /* DONE: the stop string that matched, or "" */
    int has_usage;                           /* TEXT: the first of an answer, with what it took until then */
    struct usage usage;                      /* DONE, and TEXT that has it */
};

/* --- server ------------------------------------------------------------------------------------------------------------ */

struct generate_call; /* one Generate in progress */
struct unary_call;    /* one of the others; answered exactly once */

struct model_facts {
    struct bytes ids[16];  /* names it answers to */
    uint32_t n_ids;
    struct bytes architecture, profile;
    uint32_t n_layers, context, n_vocab;
    int has_chat_template;
    int64_t created_s;
};

/* The bytes of every token, one after the other; hidden: ids that add nothing to an answer's text. */
struct vocabulary_pieces {
    struct bytes text;
    const uint32_t *lengths, *hidden;
    size_t n, n_hidden;
};

struct inference_service {
    void *ctx;
    void (*generate)(void *ctx, struct generate_call *call, const struct generate_request *r);
    /* The client left or the connection broke; once for every call whose generate was called, also after finish. */
    void (*generate_closed)(void *ctx, struct generate_call *call);
    void (*tokenize)(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special);
    void (*detokenize)(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n_ids, int show_special);
    void (*apply_template)(void *ctx, struct unary_call *call, struct bytes chat_json);
    void (*get_model)(void *ctx, struct unary_call *call);
    void (*get_pieces)(void *ctx, struct unary_call *call); /* NULL: not served */
};

enum status inference_service_add(struct rpc_server *s, const struct inference_service *svc);

void generate_call_retain(struct generate_call *c);
void generate_call_release(struct generate_call *c);
void generate_call_set_data(struct generate_call *c, void *data); /* the service's own pointer */
void *generate_call_data(const struct generate_call *c);
int generate_call_trusted(const struct generate_call *c);          /* the peer showed the secret */
const char *generate_call_peer(const struct generate_call *c);     /* "ipv4:127.0.0.1" without the port */
/* Queues an event. While a send is under way TEXT events join into one. STATUS_FULL: over 256 KiB (of text and logprobs) or 4,096 ids are unsent
 * (nothing was queued). STATUS_CLOSED: the client is gone. */
enum status generate_call_send(struct generate_call *c, const struct generate_event *e);
size_t generate_call_unsent_bytes(const struct generate_call *c);
int64_t generate_call_stalled_since_ns(const struct generate_call *c); /* 0: the peer reads; else start of the wait */
/* err NULL: OK. After what is queued has been sent, within 30 s; STATUS_WRITE_STALLED: the call is broken off at once, since
 * a status behind the queue would never leave. Once; later calls are ignored. */
void generate_call_finish(struct generate_call *c, const struct error *err);

void unary_call_fail(struct unary_call *c, const struct error *err);
void unary_call_tokens(struct unary_call *c, const uint32_t *ids, size_t n_ids);
void unary_call_text(struct unary_call *c, struct bytes text);       /* detokenize, apply_template */
void unary_call_model(struct unary_call *c, const struct model_facts *m);
void unary_call_pieces(struct unary_call *c, const struct vocabulary_pieces *p);

/* --- client ------------------------------------------------------------------------------------------------------------ */

struct generate_stream;

struct generate_events {
    /* One event; the next is read after generate_stream_next. */
    void (*on_event)(void *ctx, struct generate_stream *s, const struct generate_event *e);
    /* Last callback. err->status OK, or why it ended. */
    void (*on_end)(void *ctx, struct generate_stream *s, const struct error *err);
};

/* Starts the call and the first read. The stream is released by generate_stream_release, after which no callback comes
 * that has not begun. */
enum status inference_generate(struct rpc_channel *c, const struct generate_request *r, const struct generate_events *ev,
                               void *ctx, struct generate_stream **out, struct error *err);
void generate_stream_next(struct generate_stream *s);
void generate_stream_cancel(struct generate_stream *s);
void generate_stream_release(struct generate_stream *s);

/* Unary calls: done(ctx, err, ...) once on the loop's thread; err->status OK: the result is valid during the callback. */
typedef void tokens_done(void *ctx, const struct error *err, const uint32_t *ids, size_t n_ids);
typedef void text_done(void *ctx, const struct error *err, struct bytes text);
typedef void model_done(void *ctx, const struct error *err, const struct model_facts *m);
enum status inference_tokenize(struct rpc_channel *c, struct bytes text, int add_special, int parse_special, int timeout_ms,
                               tokens_done *done, void *ctx);
enum status inference_detokenize(struct rpc_channel *c, const uint32_t *ids, size_t n_ids, int show_special, int timeout_ms,
                                 text_done *done, void *ctx);
enum status inference_apply_template(struct rpc_channel *c, struct bytes chat_json, int timeout_ms, text_done *done, void *ctx);
enum status inference_get_model(struct rpc_channel *c, int timeout_ms, model_done *done, void *ctx);
typedef void pieces_done(void *ctx, const struct error *err, const struct vocabulary_pieces *p);
enum status inference_get_pieces(struct rpc_channel *c, int timeout_ms, pieces_done *done, void *ctx);

#endif
