#include "rpc/gateway/completion_kept.h"

#include <string.h>

enum { RECORD_BODY = KEEPER_USER, RECORD_REQUEST, RECORD_MODEL, RECORD_ACCEPTED, RECORD_FIRST, RECORD_TEXT };

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

void kept_write_text(struct keeper *k, const uint32_t *ids, size_t n_ids, const struct bytes *text)
{
    keeper_append(k, ids, n_ids * sizeof *ids);
    if (text && text->len)
        keeper_record(k, RECORD_TEXT, text->data, text->len);
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

static int take_request(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_request *q = &out->request;
    return take_fixed(r, q, sizeof *q) && (q->endpoint == ENDPOINT_CHAT || q->endpoint == ENDPOINT_COMPLETION) &&
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

static int take_accepted(const struct keeper_record *r, struct completion_kept *out)
{
    struct kept_accepted *a = &out->accepted;
    if (!take_fixed(r, a, sizeof *a) || a->n_token > MAX_RESUME_TOKEN || a->n_token > r->len - sizeof *a ||
        !is_name(a->fingerprint, sizeof a->fingerprint))
        return 0;
    size_t ids = r->len - sizeof *a - a->n_token;
    out->token = (struct bytes){r->data + sizeof *a, a->n_token};
    out->prompt_ids = r->data + sizeof *a + a->n_token;
    out->n_prompt_ids = ids / sizeof(uint32_t);
    return ids % sizeof(uint32_t) == 0;
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
        return take_fixed(r, &out->first, sizeof out->first);
    case RECORD_TEXT:
        buf_append(&out->text, r->data, r->len);
        return 1;
    default:
        return r->kind < KEEPER_USER; /* the exchange's */
    }
}

enum status completion_kept_read(const struct kept *k, struct completion_kept *out, struct error *err)
{
    struct keeper_record r;
    uint64_t at = 0;
    int sane = 1;
    memset(out, 0, sizeof *out);
    buf_init(&out->ids, KEEPER_FILE_BYTES);
    buf_init(&out->text, KEEPER_FILE_BYTES);
    while (sane && keeper_next(k, &at, &r))
        sane = take_record(&r, out);
    enum status s = STATUS_OK;
    keeper_appended(k, &out->ids);
    sane = sane && out->ids.len % sizeof(uint32_t) == 0;
    if (out->ids.failed || out->text.failed)
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for an answer that was begun");
    else if (!sane || !out->request.id[0] || !out->body.data)
        s = error_set(err, STATUS_PROTOCOL, "the journal's records contradict themselves");
    if (s != STATUS_OK)
        completion_kept_fini(out);
    out->attempt = k->state.attempt;
    out->told = (k->state.user_flags & KEPT_TOLD) != 0;
    return s;
}

void completion_kept_fini(struct completion_kept *c)
{
    buf_fini(&c->ids);
    buf_fini(&c->text);
}
