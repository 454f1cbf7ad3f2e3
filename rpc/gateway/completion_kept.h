/* rpc/gateway/completion_kept.h - one generation in the journal of its exchange.
 *
 * Purpose    The records by which another gateway goes on with an answer: what was asked and by whom, what the coordinator told when it accepted, what it
 *            has said so far. Written while it happens, read once at the start of the next process.
 * Ownership  Written records are copies. What a completion_kept points to lies in the journal (or in its two buffers): valid until the journal is written
 *            to, or until completion_kept_fini.
 * Threading  That of the journal; reading is pure.
 * Errors     STATUS_PROTOCOL for records that contradict themselves, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_RPC_GATEWAY_COMPLETION_KEPT_H
#define SLUICE_RPC_GATEWAY_COMPLETION_KEPT_H

#include "rpc/gateway/auth.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/request.h"

/* Known when the request is there. Text ends with 0. */
struct kept_request {
    uint32_t endpoint;    /* ENDPOINT_CHAT or ENDPOINT_COMPLETION */
    uint32_t close_after; /* the client wants the connection closed behind the answer */
    uint32_t n, zero;     /* answers */
    int64_t created_s, started_ns;
    char request_id[132], client[CLIENT_BYTES];
    char id[40], answer_id[64]; /* at the coordinator; in the answer */
};

/* Known when an answer is accepted; its resume token follows, and the first one's has the prompt's ids. */
struct kept_accepted {
    uint32_t choice, zero;
    uint64_t seed;
    uint32_t prompt_tokens, n_token;
    char fingerprint[24];
};

/* Known with an answer's first text. */
struct kept_first {
    uint32_t choice;
    struct usage usage;
    int64_t text_ns;
};

/* An answer is complete. */
struct kept_done {
    uint32_t choice, finish;
    struct usage usage;
};

enum { KEPT_TOLD = 1 }; /* user_flags of the journal: the first chunk is in the content */

void kept_write_request(struct keeper *k, const struct kept_request *r, const void *body, size_t body_len);
void kept_write_model(struct keeper *k, const char *model);
/* n_token 0: what was accepted holds no more. */
void kept_write_accepted(struct keeper *k, const struct kept_accepted *a, const char *token, const uint32_t *prompt_ids, size_t n_ids);
void kept_write_first(struct keeper *k, const struct kept_first *f);
/* Ids of an answer, in front of which its text had so many characters. */
void kept_write_ids(struct keeper *k, uint32_t choice, uint32_t chars, const uint32_t *ids, size_t n_ids);
/* What is not content of a stream: text and log probabilities (logprobs.h). */
void kept_write_text(struct keeper *k, uint32_t choice, struct bytes text, struct bytes logprobs);
void kept_write_done(struct keeper *k, const struct kept_done *d);

struct kept_choice {
    struct kept_accepted accepted;
    struct bytes token; /* "": it was not accepted */
    struct kept_first first;
    int is_done;
    struct kept_done done;
    struct buf ids, text, logprobs;
    uint32_t chars; /* with the last ids */
};

struct completion_kept {
    struct kept_request request;
    struct bytes body;
    char model[128]; /* "": not chosen yet */
    const char *prompt_ids;
    size_t n_prompt_ids;
    struct kept_choice *choices; /* [request.n] */
    uint32_t attempt; /* the highest of any answer */
    int told;
};

/* On success out is freed with completion_kept_fini. */
enum status completion_kept_read(const struct kept *k, struct completion_kept *out, struct error *err);
void completion_kept_fini(struct completion_kept *c);

#endif
