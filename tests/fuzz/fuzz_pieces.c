/* tests/fuzz/fuzz_pieces.c - the vocabulary that a coordinator tells, which is a model file's, and the log probabilities that name its tokens: the
 * answer is JSON whatever bytes a token has, and a reader finds exactly these bytes in it. The input: number of tokens, of hidden ones, of
 * chosen ones, whether the lengths fit; then lengths, hidden ids, chosen ids, and the text. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/json_out.h"
#include "rpc/gateway/logprobs.h"
#include "rpc/gateway/pieces.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TOKENS = 64, MOST_HIDDEN = 8, MOST_CHOSEN = 16, MOST_TEXT = 4096, N_TOPS = 2 };

struct vocabulary {
    char text[MOST_TEXT];
    size_t len;
    uint32_t lengths[MOST_TOKENS], hidden[MOST_HIDDEN], chosen[MOST_CHOSEN];
    size_t n, n_hidden, n_chosen;
};

static const uint8_t *take_ids(const uint8_t *p, const uint8_t *end, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = p < end ? *p++ : 0;
    return p;
}

/* fits: the text is cut to what the lengths say, as far as there is one. */
static void take(struct vocabulary *v, const uint8_t *data, size_t size)
{
    const uint8_t *p = data + 4, *end = data + size;
    const int fits = data[3] & 1;
    size_t sum = 0;
    v->n = data[0] % (MOST_TOKENS + 1);
    v->n_hidden = data[1] % (MOST_HIDDEN + 1);
    v->n_chosen = data[2] % (MOST_CHOSEN + 1);
    p = take_ids(p, end, v->lengths, v->n);
    p = take_ids(p, end, v->hidden, v->n_hidden);
    p = take_ids(p, end, v->chosen, v->n_chosen);
    v->len = (size_t)(end - p) < MOST_TEXT ? (size_t)(end - p) : MOST_TEXT;
    for (size_t i = 0; i < v->len; i++)
        v->text[i] = (char)(p[i] ? p[i] : 'a'); /* jansson takes no key with a 0 */
    for (size_t i = 0; fits && i < v->n; i++) {
        if (v->lengths[i] > v->len - sum)
            v->lengths[i] = (uint32_t)(v->len - sum);
        sum += v->lengths[i];
    }
    if (fits)
        v->len = sum;
}

static void check_pieces(const struct vocabulary *v, const struct pieces *p)
{
    size_t at = 0;
    for (size_t i = 0; i < v->n; i++) {
        struct bytes b = pieces_get(p, (uint32_t)i);
        CHECK(b.len == v->lengths[i] && memcmp(b.data, v->text + at, b.len) == 0);
        CHECK(pieces_chars(p, (uint32_t)i) <= b.len);
        at += b.len;
    }
    for (size_t i = 0; i < v->n_hidden; i++)
        CHECK(pieces_chars(p, v->hidden[i]) == 0);
    CHECK(pieces_get(p, (uint32_t)v->n).len == 0 && pieces_chars(p, UINT32_MAX) == 0);
}

static json_t *parse(struct buf *b)
{
    CHECK(!b->failed);
    json_t *v = json_loadb(b->data, b->len, JSON_ALLOW_NUL, NULL);
    CHECK(json_is_object(v));
    buf_fini(b);
    return v;
}

/* A text is shown as it is. */
static void check_shown(const json_t *shown, struct bytes piece)
{
    CHECK(json_is_string(shown));
    if (json_out_is_text(piece.data, piece.len))
        CHECK(json_string_length(shown) == piece.len && memcmp(json_string_value(shown), piece.data, piece.len) == 0);
}

static void check_chat(const struct vocabulary *v, const struct pieces *p, struct bytes kept)
{
    struct buf b;
    buf_init(&b, 16 << 20);
    logprobs_write_chat(&b, kept, p);
    json_t *all = parse(&b), *content = json_object_get(all, "content");
    CHECK(json_array_size(content) == v->n_chosen);
    for (size_t i = 0; i < v->n_chosen; i++) {
        const json_t *t = json_array_get(content, i), *bytes = json_object_get(t, "bytes");
        struct bytes piece = pieces_get(p, v->chosen[i]);
        CHECK(json_array_size(bytes) == piece.len && json_array_size(json_object_get(t, "top_logprobs")) == N_TOPS);
        for (size_t k = 0; k < piece.len; k++)
            CHECK(json_integer_value(json_array_get(bytes, k)) == (uint8_t)piece.data[k]);
        check_shown(json_object_get(t, "token"), piece);
    }
    json_decref(all);
}

static void check_completion(const struct vocabulary *v, const struct pieces *p, struct bytes kept)
{
    struct buf b;
    uint32_t offset = 7;
    buf_init(&b, 16 << 20);
    logprobs_write_completion(&b, kept, p, offset);
    json_t *all = parse(&b), *tokens = json_object_get(all, "tokens"), *offsets = json_object_get(all, "text_offset");
    CHECK(json_array_size(tokens) == v->n_chosen && json_array_size(offsets) == v->n_chosen);
    CHECK(json_array_size(json_object_get(all, "token_logprobs")) == v->n_chosen);
    for (size_t i = 0; i < v->n_chosen; i++) {
        const json_t *tops = json_array_get(json_object_get(all, "top_logprobs"), i);
        check_shown(json_array_get(tokens, i), pieces_get(p, v->chosen[i]));
        CHECK(json_integer_value(json_array_get(offsets, i)) == offset);
        CHECK(json_object_size(tops) >= 1 && json_object_size(tops) <= N_TOPS + 1);
        CHECK(json_object_get(tops, json_string_value(json_array_get(tokens, i)))); /* the token itself is among them */
        offset += pieces_chars(p, v->chosen[i]);
    }
    CHECK(offset == 7 + logprobs_chars(v->chosen, v->n_chosen, p));
    json_decref(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vocabulary v;
    struct buf kept;
    size_t sum = 0;
    int fits = 1;
    if (size < 4)
        return 0;
    take(&v, data, size);
    for (size_t i = 0; i < v.n; i++)
        sum += v.lengths[i];
    fits = sum == v.len;
    struct pieces *p = pieces_create((struct bytes){v.text, v.len}, v.lengths, v.n, v.hidden, v.n_hidden);
    CHECK(!p == !fits);
    if (!p)
        return 0;
    check_pieces(&v, p);
    buf_init(&kept, 1 << 20);
    for (size_t i = 0; i < v.n_chosen; i++) {
        const struct token_logprobs t = {.id = v.chosen[i], .logprob = -1.5f, .n_top = N_TOPS, .top_ids = {v.chosen[0], v.chosen[i / 2]}};
        logprobs_keep(&kept, &t, 1);
    }
    struct bytes words = {kept.data ? kept.data : "", kept.len};
    CHECK(logprobs_are_sane(words));
    check_chat(&v, p, words);
    check_completion(&v, p, words);
    buf_fini(&kept);
    pieces_release(p);
    return 0;
}
