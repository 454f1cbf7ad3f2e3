#include "rpc/gateway/logprobs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rpc/gateway/json_out.h"

/* Words of one token: id, logprob, number of alternatives, their ids, their logprobs. */
enum { FIXED_WORDS = 3, WORD = sizeof(uint32_t) };

void logprobs_keep(struct buf *to, const struct token_logprobs *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct token_logprobs *t = &from[i];
        buf_append(to, &t->id, WORD);
        buf_append(to, &t->logprob, WORD);
        buf_append(to, &t->n_top, WORD);
        buf_append(to, t->top_ids, t->n_top * sizeof t->top_ids[0]);
        buf_append(to, t->top_logprobs, t->n_top * sizeof t->top_logprobs[0]);
    }
}

/* The next token of what is kept; 0: there is none. */
static int next(struct bytes *kept, struct token_logprobs *out)
{
    uint32_t fixed[FIXED_WORDS];
    if (kept->len < sizeof fixed)
        return 0;
    memcpy(fixed, kept->data, sizeof fixed);
    size_t tops = fixed[2] * (size_t)WORD;
    if (fixed[2] > MAX_TOP_LOGPROBS || kept->len - sizeof fixed < 2 * tops)
        return 0;
    *out = (struct token_logprobs){.id = fixed[0], .n_top = fixed[2]};
    memcpy(&out->logprob, &fixed[1], WORD);
    memcpy(out->top_ids, kept->data + sizeof fixed, tops);
    memcpy(out->top_logprobs, kept->data + sizeof fixed + tops, tops);
    kept->data += sizeof fixed + 2 * tops;
    kept->len -= sizeof fixed + 2 * tops;
    return 1;
}

int logprobs_are_sane(struct bytes kept)
{
    struct token_logprobs t;
    while (next(&kept, &t))
        ;
    return kept.len == 0;
}

/* Nine digits give a float back to the bit. JSON has no infinity, and OpenAI tells that number instead. */
static void write_number(struct buf *b, float logprob)
{
    char text[32]; /* buf_printf would work it out twice */
    int n = snprintf(text, sizeof text, "%.9g", isfinite(logprob) ? (double)logprob : -9999.0);
    buf_append(b, text, (size_t)n);
}

/* By hand: with 20 alternatives a token has a hundred of these. */
static void write_bytes(struct buf *b, struct bytes piece)
{
    char text[1024];
    size_t n = 0;
    for (size_t i = 0; i < piece.len; i++) {
        const unsigned c = (unsigned char)piece.data[i];
        if (n > sizeof text - 4) {
            buf_append(b, text, n);
            n = 0;
        }
        if (i)
            text[n++] = ',';
        if (c >= 100)
            text[n++] = (char)('0' + c / 100);
        if (c >= 10)
            text[n++] = (char)('0' + c / 10 % 10);
        text[n++] = (char)('0' + c % 10);
    }
    buf_append(b, text, n);
}

/* --- chat --------------------------------------------------------------------------------------------------------------- */

static void write_token(struct buf *b, uint32_t id, float logprob, const struct pieces *p)
{
    struct bytes piece = pieces_get(p, id);
    buf_text(b, "{\"token\":\"");
    json_out_token(b, piece.data, piece.len);
    buf_text(b, "\",\"logprob\":");
    write_number(b, logprob);
    buf_text(b, ",\"bytes\":[");
    write_bytes(b, piece);
    buf_text(b, "]");
}

void logprobs_write_chat(struct buf *b, struct bytes kept, const struct pieces *p)
{
    struct token_logprobs t;
    buf_text(b, "{\"content\":[");
    for (int first = 1; next(&kept, &t); first = 0) {
        buf_text(b, first ? "" : ",");
        write_token(b, t.id, t.logprob, p);
        buf_text(b, ",\"top_logprobs\":[");
        for (uint32_t i = 0; i < t.n_top; i++) {
            buf_text(b, i ? "," : "");
            write_token(b, t.top_ids[i], t.top_logprobs[i], p);
            buf_text(b, "}");
        }
        buf_text(b, "]}");
    }
    buf_text(b, "],\"refusal\":null}");
}

/* --- completions -------------------------------------------------------------------------------------------------------- */

/* A token as a JSON string. */
static void write_name(struct buf *b, uint32_t id, const struct pieces *p)
{
    struct bytes piece = pieces_get(p, id);
    if (json_out_is_text(piece.data, piece.len)) {
        json_out_string(b, piece.data, piece.len);
        return;
    }
    buf_text(b, "\"bytes:");
    for (size_t i = 0; i < piece.len; i++)
        buf_printf(b, "\\\\x%02x", (unsigned)(unsigned char)piece.data[i]);
    buf_text(b, "\"");
}

static int is_named(const struct token_logprobs *t, uint32_t n, uint32_t id, const struct pieces *p)
{
    struct bytes name = pieces_get(p, id);
    for (uint32_t i = 0; i < n; i++) {
        struct bytes other = pieces_get(p, t->top_ids[i]);
        if (other.len == name.len && memcmp(other.data, name.data, name.len) == 0)
            return 1;
    }
    return 0;
}

/* An object, so what two ids share as a name is there once: with the better one. The token itself is always there. */
static void write_tops(struct buf *b, const struct token_logprobs *t, const struct pieces *p)
{
    int first = 1;
    buf_text(b, "{");
    for (uint32_t i = 0; i <= t->n_top; i++) {
        uint32_t id = i < t->n_top ? t->top_ids[i] : t->id;
        if (is_named(t, i, id, p))
            continue;
        buf_text(b, first ? "" : ",");
        write_name(b, id, p);
        buf_text(b, ":");
        write_number(b, i < t->n_top ? t->top_logprobs[i] : t->logprob);
        first = 0;
    }
    buf_text(b, "}");
}

void logprobs_write_completion(struct buf *b, struct bytes kept, const struct pieces *p, uint32_t offset)
{
    static const char *const lists[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[", "],\"text_offset\":["};
    for (int list = 0; list < 4; list++) {
        struct bytes left = kept;
        struct token_logprobs t;
        buf_text(b, lists[list]);
        for (int first = 1; next(&left, &t); first = 0) {
            buf_text(b, first ? "" : ",");
            if (list == 0)
                write_name(b, t.id, p);
            else if (list == 1)
                write_number(b, t.logprob);
            else if (list == 2)
                write_tops(b, &t, p);
            else
                buf_printf(b, "%u", offset);
            offset += list == 3 ? pieces_chars(p, t.id) : 0;
        }
    }
    buf_text(b, "]}");
}

uint32_t logprobs_chars(const uint32_t *ids, size_t n, const struct pieces *p)
{
    uint32_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += pieces_chars(p, ids[i]);
    return chars;
}
