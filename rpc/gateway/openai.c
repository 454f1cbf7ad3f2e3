#include "rpc/gateway/openai.h"

#include <stdio.h>

#include "rpc/gateway/json_out.h"

static const char *finish_name(enum finish_reason finish)
{
    return finish == FINISH_LENGTH ? "length" : "stop";
}

static void head(struct buf *b, const struct answer_head *h, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id, object,
               (long long)h->created_s);
    json_out_text(b, h->model);
    buf_text(b, ",\"system_fingerprint\":");
    json_out_text_or_null(b, h->fingerprint);
}

static const char *chunk_object(const struct answer_head *h)
{
    return h->endpoint == ENDPOINT_CHAT ? "chat.completion.chunk" : "text_completion";
}

static void usage(struct buf *b, const struct usage *u)
{
    buf_printf(b,
               ",\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               u->prompt_tokens, u->completion_tokens, (unsigned long long)u->prompt_tokens + u->completion_tokens,
               u->cached_tokens);
}

static void timings(struct buf *b, const struct usage *u)
{
    buf_text(b, ",\"timings\":{\"queue_ms\":");
    json_out_real(b, u->queue_ms);
    buf_text(b, ",\"prompt_ms\":");
    json_out_real(b, u->prompt_ms);
    buf_text(b, ",\"decode_ms\":");
    json_out_real(b, u->decode_ms);
    buf_text(b, "}");
}

/* Asked for with include_usage, every chunk has the field, and only the last one a value. */
static void end_chunk(struct buf *b, const struct answer_head *h)
{
    buf_text(b, h->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void openai_fingerprint(struct bytes profile, char out[24])
{
    unsigned long long h = 0xcbf29ce484222325ull; /* FNV-1a */
    for (size_t i = 0; i < profile.len; i++)
        h = (h ^ (unsigned char)profile.data[i]) * 0x100000001b3ull;
    if (profile.len)
        snprintf(out, 24, "fp_%016llx", h);
    else
        out[0] = 0;
}

static void prompt_ids(struct buf *b, const struct answer_head *h)
{
    buf_text(b, ",\"prompt_token_ids\":");
    json_out_ids(b, h->prompt_ids, h->n_prompt_ids);
}

static void logprobs(struct buf *b, const struct answer_head *h, const struct answer_part *p)
{
    buf_text(b, ",\"logprobs\":");
    if (!p->logprobs.data)
        buf_text(b, "null");
    else if (h->endpoint == ENDPOINT_CHAT)
        logprobs_write_chat(b, p->logprobs, h->pieces);
    else
        logprobs_write_completion(b, p->logprobs, h->pieces, p->text_offset);
}

static void begin_chunk(struct buf *b, const struct answer_head *h, uint32_t index)
{
    buf_text(b, "data: ");
    head(b, h, chunk_object(h));
    buf_printf(b, ",\"choices\":[{\"index\":%u,", index);
}

void openai_first_chunk(struct buf *b, const struct answer_head *h, uint32_t index)
{
    int chat = h->endpoint == ENDPOINT_CHAT, with_ids = h->return_token_ids && index == 0;
    if (!chat && !with_ids)
        return;
    begin_chunk(b, h, index);
    buf_text(b, chat ? "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null" : "\"text\":\"\",\"logprobs\":null");
    if (with_ids && !chat) /* where vLLM has it */
        prompt_ids(b, h);
    buf_text(b, ",\"finish_reason\":null}]");
    if (with_ids && chat)
        prompt_ids(b, h);
    end_chunk(b, h);
}

void openai_text_chunk(struct buf *b, const struct answer_head *h, const struct answer_part *p)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    begin_chunk(b, h, p->index);
    buf_text(b, chat ? "\"delta\":{\"content\":" : "\"text\":");
    json_out_string(b, p->text.data, p->text.len);
    buf_text(b, chat ? "}" : "");
    logprobs(b, h, p);
    if (h->return_token_ids) {
        buf_text(b, ",\"token_ids\":");
        json_out_ids(b, p->ids, p->n_ids);
    }
    buf_text(b, ",\"finish_reason\":null}]");
    end_chunk(b, h);
}

void openai_finish_chunk(struct buf *b, const struct answer_head *h, uint32_t index, enum finish_reason finish, const struct usage *u)
{
    begin_chunk(b, h, index);
    buf_printf(b, "%s,\"logprobs\":null,\"finish_reason\":\"%s\"}]", h->endpoint == ENDPOINT_CHAT ? "\"delta\":{}" : "\"text\":\"\"",
               finish_name(finish));
    timings(b, u);
    end_chunk(b, h);
}

void openai_end_of_stream(struct buf *b, const struct answer_head *h, const struct usage *u)
{
    if (h->include_usage) {
        buf_text(b, "data: ");
        head(b, h, chunk_object(h));
        buf_text(b, ",\"choices\":[]");
        usage(b, u);
        timings(b, u);
        buf_text(b, "}\n\n");
    }
    buf_text(b, "data: [DONE]\n\n");
}

void openai_answer_begin(struct buf *b, const struct answer_head *h)
{
    head(b, h, h->endpoint == ENDPOINT_CHAT ? "chat.completion" : "text_completion");
    buf_text(b, ",\"choices\":[");
}

void openai_answer_choice(struct buf *b, const struct answer_head *h, const struct answer_part *p)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    buf_printf(b, "%s{\"index\":%u,", p->index ? "," : "", p->index);
    buf_text(b, chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    json_out_string(b, p->text.data, p->text.len);
    buf_text(b, chat ? ",\"refusal\":null}" : "");
    logprobs(b, h, p);
    if (h->return_token_ids) {
        buf_text(b, ",\"token_ids\":");
        json_out_ids(b, p->ids, p->n_ids);
        if (!chat)
            prompt_ids(b, h);
    }
    buf_printf(b, ",\"finish_reason\":\"%s\"}", finish_name(p->finish));
}

void openai_answer_end(struct buf *b, const struct answer_head *h, const struct usage *u)
{
    buf_text(b, "]");
    if (h->return_token_ids && h->endpoint == ENDPOINT_CHAT)
        prompt_ids(b, h);
    usage(b, u);
    timings(b, u);
    buf_text(b, "}");
}

void openai_error(struct buf *b, const struct error *err)
{
    buf_text(b, "{\"error\":{\"message\":");
    json_out_text(b, err->message[0] ? err->message : status_text(err->status));
    buf_text(b, ",\"type\":");
    json_out_text(b, status_error_type(err->status));
    buf_text(b, ",\"param\":");
    json_out_text_or_null(b, err->param);
    buf_text(b, ",\"code\":");
    json_out_text_or_null(b, err->code);
    buf_printf(b, ",\"retryable\":%s}}", status_retryable(err->status) ? "true" : "false");
}

void openai_error_event(struct buf *b, const struct error *err)
{
    buf_text(b, "data: ");
    openai_error(b, err);
    buf_text(b, "\n\n");
}

int openai_http_status(const struct error *err)
{
    return status_http(err->status);
}

int openai_retry_after(const struct error *err)
{
    int http = openai_http_status(err), s = err->retry_after_s;
    if (http != 503 && http != 429)
        return 0;
    return s < 1 ? 1 : s > 60 ? 60 : s;
}
