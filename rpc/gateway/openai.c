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

void openai_first_chunk(struct buf *b, const struct answer_head *h)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    if (!chat && !h->return_token_ids)
        return;
    buf_text(b, "data: ");
    head(b, h, chunk_object(h));
    buf_text(b, chat
                    ? ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null"
                    : ",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null");
    if (h->return_token_ids && !chat) { /* where vLLM has it */
        buf_text(b, ",\"prompt_token_ids\":");
        json_out_ids(b, h->prompt_ids, h->n_prompt_ids);
    }
    buf_text(b, ",\"finish_reason\":null}]");
    if (h->return_token_ids && chat) {
        buf_text(b, ",\"prompt_token_ids\":");
        json_out_ids(b, h->prompt_ids, h->n_prompt_ids);
    }
    end_chunk(b, h);
}

void openai_text_chunk(struct buf *b, const struct answer_head *h, struct bytes text, const uint32_t *ids, size_t n_ids)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    buf_text(b, "data: ");
    head(b, h, chunk_object(h));
    buf_text(b, chat ? ",\"choices\":[{\"index\":0,\"delta\":{\"content\":" : ",\"choices\":[{\"index\":0,\"text\":");
    json_out_string(b, text.data, text.len);
    buf_text(b, chat ? "},\"logprobs\":null" : ",\"logprobs\":null");
    if (h->return_token_ids) {
        buf_text(b, ",\"token_ids\":");
        json_out_ids(b, ids, n_ids);
    }
    buf_text(b, ",\"finish_reason\":null}]");
    end_chunk(b, h);
}

void openai_last_chunks(struct buf *b, const struct answer_head *h, enum finish_reason finish, const struct usage *u)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    buf_text(b, "data: ");
    head(b, h, chunk_object(h));
    buf_printf(b, ",\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":\"%s\"}]",
               chat ? "\"delta\":{}" : "\"text\":\"\"", finish_name(finish));
    timings(b, u);
    end_chunk(b, h);
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

void openai_answer(struct buf *b, const struct answer_head *h, struct bytes text, const uint32_t *ids, size_t n_ids,
                   enum finish_reason finish, const struct usage *u)
{
    int chat = h->endpoint == ENDPOINT_CHAT;
    head(b, h, chat ? "chat.completion" : "text_completion");
    buf_text(b, chat ? ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                     : ",\"choices\":[{\"index\":0,\"text\":");
    json_out_string(b, text.data, text.len);
    buf_text(b, chat ? ",\"refusal\":null},\"logprobs\":null" : ",\"logprobs\":null");
    if (h->return_token_ids) {
        buf_text(b, ",\"token_ids\":");
        json_out_ids(b, ids, n_ids);
        if (!chat) {
            buf_text(b, ",\"prompt_token_ids\":");
            json_out_ids(b, h->prompt_ids, h->n_prompt_ids);
        }
    }
    buf_printf(b, ",\"finish_reason\":\"%s\"}]", finish_name(finish));
    if (h->return_token_ids && chat) {
        buf_text(b, ",\"prompt_token_ids\":");
        json_out_ids(b, h->prompt_ids, h->n_prompt_ids);
    }
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
