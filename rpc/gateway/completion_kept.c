#include "rpc/gateway/completion_kept.h"

#include <stdlib.h>
#include <string.h>

#include "rpc/gateway/logprobs.h"

enum { RECORD_BODY = KEEPER_USER, RECORD_REQUEST, RECORD_MODEL, RECORD_ACCEPTED, RECORD_FIRST, RECORD_TEXT, RECORD_LOGPROBS, RECORD_DONE };

/* In front of ids in the appended sequence. */
struct ids_head {
    uint32_t choice, chars, n;
};

void kept_write_request(struct keeper *k, const struct kept_request *r, const void *body, size_t body_len)
{
    keeper_record(k, RECORD_REQUEST, r, sizeof *r);
    keeper_record(k, RECORD_BODY, body, body_len);
}

void kept_write_model(struct keeper *k, const char *model)
{
    keeper_record(k, RECORD_MODEL, model, strlen(model));
}

void kept_write_accepted(struct keeper *k, const struct kept_accepted *a, const char *token, const uint32_t *prompt_ids, size_t n_ids)
{
    const struct keeper_part parts[] = {{a, sizeof *a}, {token, a->n_token}, {prompt_ids, n_ids * sizeof *prompt_ids}};
    keeper_record_parts(k, RECORD_ACCEPTED, parts, 3);
}

void kept_write_first(struct keeper *k, const struct kept_first *f)
{
    keeper_record(k, RECORD_FIRST, f, sizeof *f);
}

void kept_write_ids(struct keeper *k, uint32_t choice, uint32_t chars, const uint32_t *ids, size_t n_ids)
{
    const struct ids_head head = {choice, chars, (uint32_t)n_ids};
    keeper_append(k, &head, sizeof head);
    keeper_append(k, ids, n_ids * sizeof *ids);
}

static void write_of(struct keeper *k, uint32_t kind, uint32_t choice, struct bytes what)
{
    const struct keeper_part parts[] = {{&choice, sizeof choice}, {what.data, what.len}};
    if (what.len)
        keeper_record_parts(k, kind, parts, 2);
}

void kept_write_text(struct keeper *k, uint32_t choice, struct bytes text, struct bytes logprobs)
{
    write_of(k, RECORD_TEXT, choice, text);
    write_of(k, RECORD_LOGPROBS, choice, logprobs);
}

void kept_write_done(struct keeper *k, const struct kept_done *d)
{
    keeper_record(k, RECORD_DONE, d, sizeof *d);
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

/* A fixed text with its end, of characters that may stand in a header and in JSON as they are. */
static int is_name(const char *text, size_t size)
{
    const char *end = memchr(text, 0, size);
    for (const char *p = text; end && p < end; p++)
        if (*p < 0x21 || *p > 0x7e || *p == '"' || *p == '\\')
            return 0;
    return end != NULL;
}

static int take_fixed(const struct keeper_record *r, void *to, size_t size)
{
    if (r->len < size)
        return 0;
    memcpy(to, r->data, size);
    return 1;
}

/* The first record of a journal that is sane; there is one. */
static int take_request(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_request *q = &out->request;
    if (out->choices || !take_fixed(r, q, sizeof *q))
        return 0;
    if (q->n < 1 || q->n > REQUEST_MAX_CHOICES) {
        q->n = 0;
        return 0;
    }
    out->choices = calloc(q->n, sizeof *out->choices);
    for (uint32_t i = 0; out->choices && i < q->n; i++) {
        buf_init(&out->choices[i].ids, KEEPER_FILE_BYTES);
        buf_init(&out->choices[i].text, KEEPER_FILE_BYTES);
        buf_init(&out->choices[i].logprobs, KEEPER_FILE_BYTES);
    }
    return (q->endpoint == ENDPOINT_CHAT || q->endpoint == ENDPOINT_COMPLETION) &&
           is_name(q->request_id, sizeof q->request_id) && is_name(q->id, sizeof q->id) && q->id[0] &&
           is_name(q->answer_id, sizeof q->answer_id) && memchr(q->client, 0, sizeof q->client);
}

static int take_model(const struct keeper_record *r, struct completion_kept *out)
{
    if (r->len >= sizeof out->model || memchr(r->data, 0, r->len))
        return 0;
    memcpy(out->model, r->data, r->len);
    out->model[r->len] = 0;
    return 1;
}

/* The choice that a record begins with; NULL: there is none such. */
static struct kept_choice *choice_of(const struct keeper_record *r, struct completion_kept *out)
{
    uint32_t i;
    return out->choices && take_fixed(r, &i, sizeof i) && i < out->request.n ? &out->choices[i] : NULL;
}

static int take_accepted(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_choice *h = choice_of(r, out);
    struct kept_accepted a;
    if (!h || !take_fixed(r, &a, sizeof a) || a.n_token > MAX_RESUME_TOKEN || a.n_token > r->len - sizeof a ||
        !is_name(a.fingerprint, sizeof a.fingerprint))
        return 0;
    size_t ids = r->len - sizeof a - a.n_token;
    h->accepted = a;
    h->token = (struct bytes){r->data + sizeof a, a.n_token};
    if (a.choice == 0) {
        out->prompt_ids = r->data + sizeof a + a.n_token;
        out->n_prompt_ids = ids / sizeof(uint32_t);
    }
    return ids % sizeof(uint32_t) == 0 && (a.choice == 0 || ids == 0);
}

static int take_first(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_choice *h = choice_of(r, out);
    return h && take_fixed(r, &h->first, sizeof h->first);
}

static int take_done(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_choice *h = choice_of(r, out);
    if (!h || h->is_done || !take_fixed(r, &h->done, sizeof h->done))
        return 0;
    h->is_done = 1;
    return h->done.finish == FINISH_STOP || h->done.finish == FINISH_LENGTH;
}

static int take_text(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_choice *h = choice_of(r, out);
    if (!h)
        return 0;
    const char *data = r->data + sizeof(uint32_t);
    size_t len = r->len - sizeof(uint32_t);
    buf_append(r->kind == RECORD_TEXT ? &h->text : &h->logprobs, data, len);
    return r->kind == RECORD_TEXT || logprobs_are_sane((struct bytes){data, len});
}

static int take_record(const struct keeper_record *r, struct completion_kept *out)
{
    switch (r->kind) {
    case RECORD_REQUEST:
        return take_request(r, out);
    case RECORD_BODY:
        out->body = (struct bytes){r->data, r->len};
        return 1;
    case RECORD_MODEL:
        return take_model(r, out);
    case RECORD_ACCEPTED:
        return take_accepted(r, out);
    case RECORD_FIRST:
        return take_first(r, out);
    case RECORD_TEXT:
    case RECORD_LOGPROBS:
        return take_text(r, out);
    case RECORD_DONE:
        return take_done(r, out);
    default:
        return r->kind < KEEPER_USER; /* the exchange's */
    }
}

/* The sequence of ids, each run behind its head. */
static int take_ids(const struct buf *all, struct completion_kept *out)
{
    struct ids_head head;
    for (size_t at = 0; at < all->len;) {
        if (all->len - at < sizeof head)
            return 0;
        memcpy(&head, all->data + at, sizeof head);
        at += sizeof head;
        if (head.choice >= out->request.n || head.n > (all->len - at) / sizeof(uint32_t))
            return 0;
        struct kept_choice *h = &out->choices[head.choice];
        buf_append(&h->ids, all->data + at, head.n * sizeof(uint32_t));
        h->chars = head.chars;
        at += head.n * sizeof(uint32_t);
    }
    return 1;
}

static int is_out_of_memory(const struct completion_kept *c)
{
    int failed = c->request.n && !c->choices;
    for (uint32_t i = 0; c->choices && i < c->request.n; i++)
        failed |= c->choices[i].ids.failed || c->choices[i].text.failed || c->choices[i].logprobs.failed;
    return failed;
}

enum status completion_kept_read(const struct kept *k, struct completion_kept *out, struct error *err)
{
    struct keeper_record r;
    struct buf ids;
    uint64_t at = 0;
    int sane = 1;
    memset(out, 0, sizeof *out);
    buf_init(&ids, KEEPER_FILE_BYTES);
    while (sane && keeper_next(k, &at, &r))
        sane = take_record(&r, out);
    enum status s = STATUS_OK;
    keeper_appended(k, &ids);
    sane = sane && out->choices && out->body.data && out->request.id[0] && take_ids(&ids, out);
    if (ids.failed || is_out_of_memory(out))
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for an answer that was begun");
    else if (!sane)
        s = error_set(err, STATUS_PROTOCOL, "the journal's records contradict themselves");
    buf_fini(&ids);
    if (s != STATUS_OK) {
        completion_kept_fini(out);
        return s;
    }
    out->attempt = k->state.attempt;
    out->told = (k->state.user_flags & KEPT_TOLD) != 0;
    return STATUS_OK;
}

void completion_kept_fini(struct completion_kept *c)
{
    for (uint32_t i = 0; c->choices && i < c->request.n; i++) {
        buf_fini(&c->choices[i].ids);
        buf_fini(&c->choices[i].text);
        buf_fini(&c->choices[i].logprobs);
    }
    free(c->choices);
    c->choices = NULL;
}
