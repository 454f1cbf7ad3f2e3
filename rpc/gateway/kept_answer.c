#include "rpc/gateway/kept_answer.h"

#include <string.h>

/* A whole reply. What the kernel did not take of it is taken again. */
static enum status take_reply(const struct kept *k, const struct keeper_rest *rest, struct kept_answer *out, struct error *err)
{
    struct keeper_record r;
    struct keeper_reply head;
    if (!keeper_find(k, KEEPER_REPLY, &r) || r.len < sizeof head || k->state.produced != r.len - sizeof head ||
        rest->content_at > k->state.produced)
        return error_set(err, STATUS_PROTOCOL, "the journal lacks the answer that it speaks of");
    memcpy(&head, r.data, sizeof head);
    if (head.http < 200 || head.http > 599)
        return error_set(err, STATUS_PROTOCOL, "the journal's answer has no HTTP status");
    out->http = (int)head.http;
    out->retry_after_s = (int)(head.retry_after_s > 60 ? 60 : head.retry_after_s);
    out->ended = 1;
    out->handed = rest->content_at;
    buf_init(&out->out, r.len); /* a reply has no bound but the journal's */
    return buf_append(&out->out, r.data + sizeof head + rest->content_at, r.len - sizeof head - rest->content_at);
}

static enum status take_stream(const struct kept *k, struct kept_answer *out, struct error *err)
{
    out->http = 200;
    out->ended = k->state.ended != 0;
    out->handed = k->state.handed;
    if (keeper_copy(k, k->state.handed, k->state.produced, &out->out) != STATUS_OK)
        return error_set(err, STATUS_PROTOCOL, "the journal lacks what the client has not got");
    return STATUS_OK;
}

/* The last bytes of what was under way when the process died. */
static enum status take_pending(const struct kept *k, const struct keeper_record *head, const struct keeper_rest *rest, struct kept_answer *out,
                                struct error *err)
{
    struct buf frame;
    enum status s = STATUS_OK;
    buf_init(&frame, KEEPER_FRAME_MAX + KEEPER_FRAME_EXTRA);
    if (rest->frame_left) {
        keeper_frame_open(&frame, k->state.frame_content);
        s = keeper_copy(k, k->state.handed - k->state.frame_content, k->state.handed, &frame);
        keeper_frame_close(&frame);
    }
    if (s != STATUS_OK || frame.failed || rest->frame_left > frame.len)
        s = error_set(err, STATUS_PROTOCOL, "the journal lacks the frame that is under way");
    else if (rest->head_left)
        s = buf_append(&out->pending, head->data + head->len - rest->head_left, rest->head_left);
    else if (rest->frame_left)
        s = buf_append(&out->pending, frame.data + frame.len - rest->frame_left, rest->frame_left);
    buf_fini(&frame);
    return s;
}

enum status kept_answer_read(const struct kept *k, uint64_t position, struct kept_answer *out, struct error *err)
{
    struct keeper_rest rest;
    struct keeper_record head = {0};
    keeper_find(k, KEEPER_HEAD, &head);
    if (keeper_rest(&k->state, head.len, position, &rest) != STATUS_OK)
        return error_set(err, STATUS_PROTOCOL, "the connection does not stand where the journal says (%llu bytes)",
                         (unsigned long long)position);
    struct kept_answer a = {.need_head = rest.whole, .last_taken = (int)k->state.last, .framing = (enum keeper_framing)k->state.framing};
    buf_init(&a.pending, KEPT_ANSWER_PENDING);
    buf_init(&a.out, KEPT_ANSWER_OUT);
    enum status s = take_pending(k, &head, &rest, &a, err);
    if (s == STATUS_OK && a.framing == KEEPER_CHUNKED)
        s = take_stream(k, &a, err);
    else if (s == STATUS_OK && a.framing == KEEPER_LENGTH)
        s = take_reply(k, &rest, &a, err);
    if (a.pending.failed || a.out.failed)
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the rest of an answer");
    if (s != STATUS_OK) {
        kept_answer_fini(&a);
        return s;
    }
    *out = a;
    return STATUS_OK;
}

void kept_answer_fini(struct kept_answer *a)
{
    buf_fini(&a->pending);
    buf_fini(&a->out);
}
