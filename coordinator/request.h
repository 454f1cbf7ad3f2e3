/* coordinator/request.h - one request, from its acceptance to its terminal event.
 *
 * Purpose    Holds what a client asked for, the prompt's ids, and where the run stands. The engine moves it through its
 *            states; the sink takes its events.
 * Ownership  Counted: the service holds one reference until the client's call has closed, text workers and the engine hold
 *            one while they have it. Everything a client sizes lies in the request's arenas and can fail this request only;
 *            its text only until it has become ids.
 * Threading  Fields up to `cancelled` are written before the request is handed over and read-only afterwards; the rest
 *            belongs to the engine's thread. request_retain/release from any thread.
 * Invariants Exactly one sink.finish for each accepted request.
 * Errors     STATUS_OUT_OF_MEMORY, STATUS_BAD_REQUEST, STATUS_FORBIDDEN (a resume token that cannot be one).
 *
 *            submit           slot + blocks         last piece retired
 *   (text) ----------> QUEUED -------------> READING ------------------> DECODING ----> DONE
 *                        |                    ^  |                          |
 *                        |      slot + blocks |  | out of blocks            |
 *                        |                    |  v                          |
 *                        |                   PARKED <-----------------------+
 *                        |                      |                           |
 *                        +----------------------+---------------------------+--------> FAILED | CANCELLED
 */
#ifndef SLUICE_COORDINATOR_REQUEST_H
#define SLUICE_COORDINATOR_REQUEST_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/list.h"
#include "coordinator/admission.h"
#include "coordinator/output.h"
#include "coordinator/resume_token.h"
#include "coordinator/slots.h"
#include "rpc/grpc/inference_api.h"

enum request_state {
    REQUEST_NEW,      /* being tokenized */
    REQUEST_QUEUED,   /* waits for a slot and blocks */
    REQUEST_READING,  /* its prompt is being read */
    REQUEST_DECODING, /* it has a row in every revolution */
    REQUEST_PARKED,   /* it ran and lost its slot and blocks; reads prompt and answer again when there is room */
    REQUEST_DONE,
    REQUEST_FAILED,
    REQUEST_CANCELLED,
    REQUEST_N_STATES,
};

/* Where the events of a request go: a gRPC call, or a test. Called on the engine's thread; must not block. */
struct request_sink {
    void *ctx;
    enum status (*send)(void *ctx, const struct generate_event *e); /* STATUS_FULL: the client reads too slowly */
    int64_t (*stalled_since_ns)(void *ctx);
    void (*finish)(void *ctx, const struct error *err); /* NULL: OK. Once. */
    void (*release)(void *ctx);                         /* with the request's last reference */
};

struct request {
    atomic_uint refs;
    struct arena arena, text_arena;
    struct request_sink sink;
    char id[136];
    char client[72];
    struct bytes text, chat_json; /* text_arena */
    enum prompt_kind prompt_kind;
    uint32_t *prompt_ids;         /* [n_prompt] arena */
    uint32_t n_prompt;
    struct sampler_params sampler;
    uint32_t *bias_ids, *bias_bits; /* [sampler.n_bias] arena: ids, and values as floats' bits */
    int64_t max_tokens;           /* as asked; -1: to the end of the context */
    uint32_t answer_limit;        /* resolved, > 0 */
    struct bytes stops[MAX_STOPS];
    uint32_t n_stops;
    int ignore_eos, batch_priority;
    int no_cache;                 /* neither takes blocks from the cache nor leaves any */
    uint32_t attempt;             /* of the client's to have this answer */
    struct resume_token token;    /* by which another attempt goes on with it */
    int resumed;                  /* it is one: answer_ids begins with what its client has */
    struct resume_token sibling;  /* of another answer to the same request; all 0: none was named */
    int goes_first;               /* resumed: as one that was parked, before all that have not begun */
    struct usage before;          /* resumed: what the answer took until its client lost it */
    enum finish_reason over;      /* resumed: what its client has is all of it, by the ids alone */
    int64_t deadline_ns;          /* 0: none */
    int64_t arrived_ns;
    atomic_int cancelled;         /* the client left: read when ticks are planned */

    /* engine */
    enum request_state state;
    struct list link;             /* in the engine's list of running requests */
    struct list by_token;         /* in the engine's map of those that live */
    struct admission_item item;   /* its place in the queue, then in the client's count */
    struct output output;
    struct buf emit;              /* text of the event being built */
    struct slot_ref ref;          /* READING and DECODING */
    int opened;                   /* OPEN went out in a plan, so CLOSE must follow */
    uint32_t open_words;          /* of biases and ids that its OPEN may have, counted until it is out */
    uint32_t table_digest;        /* of its block table as the stages know it */
    uint64_t order;               /* of its first slot: smaller is older */
    uint32_t n_reserved;          /* blocks */
    uint32_t n_cached;            /* prompt positions that the cache gave at its first start */
    uint32_t n_planned;           /* positions that were ever planned: below it a row is computed again */
    uint32_t n_parks;             /* for want of blocks */
    int preempted;                /* PARKED for want of blocks, not because the pipeline was lost */
    uint32_t hollow_end;          /* positions below it that are not cached: only the lower stages read them again */
    int in_flight_lost;           /* it had rows in flight when the epoch was lost */
    uint32_t n_crashes;           /* stages that died of a signal of their own while it was in flight, since it was found innocent */
    uint32_t n_deaths;            /* all of them */
    uint32_t crash_end;           /* positions that were planned at the last of them */
    int starved;                  /* no block for its next row */
    uint32_t n_read;              /* positions from the cache or with retired ticks */
    uint32_t n_answer, n_sent;    /* ids generated; ids that went out in events */
    uint32_t *answer_ids;         /* [answer_room] arena: room for answer_limit from its slot on */
    struct token_logprobs *logprobs; /* [logprob_room] arena: of ids n_sent .. n_answer, where they were asked for */
    uint32_t logprob_room;
    uint32_t answer_room;
    int64_t admitted_ns, first_token_ns, last_token_ns, last_progress_ns;
    int throttled;                /* its client reads too slowly: not scheduled */
    enum finish_reason ending;    /* all ids are here, the end has not gone out: the client reads too slowly */
};

/* Copies what the client sent. client: the identity that counts. limit_bytes bounds each arena. */
enum status request_create(const struct generate_request *r, const char *client, const struct request_sink *sink,
                           size_t limit_bytes, struct request **out, struct error *err);
/* The text has become ids, or never will: text and chat_json are empty afterwards. Before the request is handed over. */
void request_drop_text(struct request *r);
void request_retain(struct request *r);
void request_release(struct request *r);
/* The prompt's ids are known: checks lengths against the context, resolves answer_limit. */
enum status request_set_prompt(struct request *r, const uint32_t *ids, size_t n_ids, uint32_t context, uint32_t answer_cap,
                               uint32_t n_vocab, struct error *err);
/* What an id of its answer adds to r->emit. *end: the id is one that ends answers. *stopped: a stop string is complete. */
enum status request_show(struct request *r, const struct tokenizer *t, uint32_t id, int *end, int *stopped);
/* A resumed request, before it is handed over: goes over the ids that its client has, so that what was held back is held back
 * again and what was shown is not shown again. BAD_REQUEST: they are no beginning of an answer. */
enum status request_take_up(struct request *r, const struct tokenizer *t, struct error *err);
/* Room for answer_limit ids and the logprobs of n_unsent: when the request gets its slot, so that those who wait hold none. */
enum status request_open_answer(struct request *r, uint32_t n_unsent, struct error *err);
/* Words of its OPEN's biases and ids, when n_known positions of it may be in the cache. */
uint32_t request_open_words(const struct request *r, uint32_t n_known);
const char *request_state_name(enum request_state s);

#endif
