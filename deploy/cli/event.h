/* deploy/cli/event.h - one event of a streamed answer, understood.
 *
 * Purpose    The JSON of a `data:` line of /v1/completions or /v1/chat/completions, as OpenAI, vLLM, llama.cpp and Sluice write it:
 *            is it a token, which text, does the answer end, what was used.
 * Ownership  event_parse/event_release; the event's texts live until then.
 * Threading  Pure.
 * Errors     kind EVENT_BAD (not a JSON object) or EVENT_ERROR (the server's error object), told in err: as one line without control
 *            characters, whatever the server said.
 */
#ifndef SLUICE_DEPLOY_CLI_EVENT_H
#define SLUICE_DEPLOY_CLI_EVENT_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/error.h"

enum event_kind {
    EVENT_OTHER, /* a role, a finish_reason, usage: no token in it */
    EVENT_TOKEN, /* text came: at least one token */
    EVENT_DONE,  /* [DONE] */
    EVENT_ERROR,
    EVENT_BAD,
};

struct stream_event {
    enum event_kind kind;
    int64_t at_ns;      /* when its bytes were read; the reader's to set */
    int has_choice;     /* an event of the answer itself, with or without text */
    const char *text;   /* of choice 0; NULL: none */
    uint32_t n_tokens;  /* of a token event: as many as token_ids names, where the server was asked for them, else 1 */
    const char *finish; /* finish_reason, or NULL */
    int has_usage;
    int64_t prompt_tokens, completion_tokens, cached_tokens; /* 0..INT32_MAX, whatever was claimed */
    double decode_ms;   /* the service's own timing; 0: not told */
    json_t *json;
};

/* err is written for EVENT_ERROR and EVENT_BAD only. */
void event_parse(const char *data, size_t len, struct stream_event *out, struct error *err);
void event_release(struct stream_event *e);
/* The server's {"error": {...}} in a body of that HTTP status (0: inside a stream). Returns its status, STATUS_OK if it is none. */
enum status event_take_error(const json_t *body, long http, struct error *err);

#endif
