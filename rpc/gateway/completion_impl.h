/* rpc/gateway/completion_impl.h - the inside of a completion, for the completion*.c files only.
 *
 * Purpose    completion_start.c makes one of a request or a journal, completion.c turns events into what the client gets,
 *            completion_calls.c opens calls, waits for a coordinator that is away and asks for the rest of an answer.
 * Ownership  As completion.h.
 * Threading  With the exchange's lock.
 * Errors     Told to the client.
 */
#ifndef SLUICE_RPC_GATEWAY_COMPLETION_IMPL_H
#define SLUICE_RPC_GATEWAY_COMPLETION_IMPL_H

#include "rpc/gateway/completion.h"
#include "rpc/gateway/exchange.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/openai.h"

enum completion_state {
    COMPLETION_WAITING, /* no call is open, before the answer or amid it; the tick submits at retry_ns */
    COMPLETION_IDLE,    /* another choice comes first */
    COMPLETION_CALLING, /* a call is open, no text has come */
    COMPLETION_TALKING, /* text has come */
    COMPLETION_CLOSING, /* the client has this answer, or left; the call is not ended yet */
    COMPLETION_ENDED,
};

/* One of the n answers: a Generate of its own. */
struct choice {
    struct completion *c;
    uint32_t index;
    enum completion_state state;
    struct generate_stream *gs;
    uint32_t attempt;
    int64_t lost_ns, retry_ns; /* lost: since when no coordinator answers, 0: it does */
    int told_to_end;           /* lost because the coordinator was told to end */
    uint32_t n_in_vain;
    uint32_t queue_position, read_tokens;
    int paused, done;          /* done: the answer is there, with finish and its usage */
    enum finish_reason finish;
    struct buf text, logprobs; /* not streaming: the answer so far */
    uint32_t chars;            /* of its text so far; with logprobs */
    /* What another attempt goes on with: token "": no attempt was accepted, so it is the request as it came. */
    char token[MAX_RESUME_TOKEN];
    size_t n_token;
    uint64_t seed;
    struct buf ids;
    struct usage usage; /* of the first text; once it is done, of the whole */
    int64_t text_ns;    /* when it came, 0: it has not */
};

struct completion {
    struct exchange *x;
    struct request request;
    struct answer_head head;
    char id[40]; /* of the request at the coordinator: never the client's own, which others could use too */
    int64_t output_ns;
    uint32_t prompt_tokens;
    uint32_t n, n_done, n_open; /* choices: all, answered, and not ENDED */
    int over;                   /* the client has everything, or an error */
    int first_sent;
    int adopted;           /* by this process: the one before has seen a coordinator */
    struct buf prompt_ids; /* the first choice's, and so everybody's */
    struct pieces *pieces; /* with logprobs */
    struct choice choices[];
};

enum { COMPLETION_NAME = 200 };

/* completion.c */
const char *completion__name(const struct completion *c, char name[COMPLETION_NAME]); /* for the log */
extern const struct generate_events completion__events;
extern const struct exchange_ops completion__ops;
void completion__set_state(struct choice *h, enum completion_state to);
void completion__fail(struct completion *c, const struct error *err); /* the client is told, what is left of the calls ended */
void completion__close(struct choice *h, int cancel);                 /* this answer is complete or will not be: its call ends */
void completion__close_all(struct completion *c);
void completion__wake_others(struct completion *c);                   /* the first answer is known: the others may be asked for */
void completion__keep_accepted(struct choice *h);                     /* into the journal */

/* completion_calls.c */
void completion__submit(struct choice *h);
void completion__retry(struct choice *h, int64_t now_ns);           /* WAITING: is it time? */
void completion__broken(struct choice *h, const struct error *err); /* the call ended before the answer did */

#endif
