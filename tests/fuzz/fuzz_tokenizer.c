/* tests/fuzz/fuzz_tokenizer.c - a hostile vocabulary, a text, and ids.
 *
 * Input      1 byte kind of vocabulary, pre-tokenizer and shape, 1 byte number of tokens (and whether a space is put in
 *            front), then for each: kind (and score), length, bytes; byte-level only: 1 byte number of merges, then for each:
 *            length, bytes; the rest is the text. Text that begins with 0xff, which none may, is a long one: 1 byte
 *            how long (255: longer than a word may be, else in steps of 64 bytes), 1 byte length, bytes that are repeated.
 *            The 256 byte symbols, or <unk>, U+2581 and the byte tokens, come first
 *            unless the shape says otherwise.
 * Must hold  A vocabulary is refused or works. A sound text becomes at most tokenizer_max_ids ids, or has a word that is too long. With all bytes, ids of a text
 *            give the text back. A marked text has no control token. Streamed pieces are UTF-8 and add up to what all ids
 *            give at once.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/text/chat_mark.h"
#include "common/text/detokenizer.h"
#include "common/text/pretokenizer.h"
#include "common/text/tokenizer_impl.h"
#include "common/base/utf8.h"
#include "tests/unit/text/vocabulary_maker.h"

enum { MAX_MORE = 64, MAX_MERGES = 64, MAX_TOKENS = 258 + MAX_MORE, MAX_TEXT = 4096, MAX_IDS = 5 * MAX_TEXT };

struct reader {
    const uint8_t *at, *end;
};

static unsigned take_byte(struct reader *r)
{
    return r->at < r->end ? *r->at++ : 0;
}

static struct text take_text(struct reader *r)
{
    size_t len = take_byte(r), left = (size_t)(r->end - r->at);
    if (len > left)
        len = left;
    struct text t = {(const char *)r->at, len};
    r->at += len;
    return t;
}

/* What tokens come before those of the input. */
static unsigned put_byte_symbols(struct text *tokens, int32_t *kinds, int half)
{
    unsigned n = half ? 128 : 256;
    vocabulary_maker_symbols(tokens);
    for (unsigned i = 0; i < n; i++)
        kinds[i] = 1;
    return n;
}

static unsigned put_byte_tokens(struct text *tokens, int32_t *kinds, int half)
{
    static char names[256][8];
    unsigned n_bytes = half ? 128 : 256;
    tokens[0] = (struct text){"<unk>", 5};
    kinds[0] = 2;
    tokens[1] = (struct text){"\xe2\x96\x81", 3};
    kinds[1] = half ? 5 : 1;
    for (unsigned i = 0; i < n_bytes; i++) {
        snprintf(names[i], sizeof names[i], "<0x%02X>", i);
        tokens[2 + i] = (struct text){names[i], 6};
        kinds[2 + i] = 6;
    }
    return 2 + n_bytes;
}

static void put_merges(struct vocabulary_maker *m, struct reader *r, unsigned shape)
{
    static const char *const pres[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "default", "other", "tekken", "deepseek-llm",
                                       "deepseek-coder", "dbrx"};
    struct text merges[MAX_MERGES];
    unsigned n = take_byte(r) % (MAX_MERGES + 1);
    for (unsigned i = 0; i < n; i++)
        merges[i] = take_text(r);
    vocabulary_maker_texts(m, "tokenizer.ggml.merges", merges, n);
    if ((shape & 0xf) < 15)
        vocabulary_maker_text(m, "tokenizer.ggml.pre", pres[(shape & 0xf) % ARRAY_LEN(pres)]);
}

struct shape {
    int sentencepiece, whole; /* whole: every byte can be said */
};

static struct shape write_vocabulary(struct vocabulary_maker *m, struct reader *r)
{
    struct text tokens[MAX_TOKENS];
    int32_t kinds[MAX_TOKENS];
    float scores[MAX_TOKENS] = {0};
    unsigned bits = take_byte(r), more = take_byte(r), n = (more & 0x7f) % (MAX_MORE + 1);
    struct shape shape = {.sentencepiece = (bits & 0x60) == 0x60, .whole = !(bits & 0x80)};
    unsigned n_first = (shape.sentencepiece ? put_byte_tokens : put_byte_symbols)(tokens, kinds, !shape.whole);
    for (unsigned i = n_first; i < n_first + n; i++) {
        unsigned kind = take_byte(r);
        kinds[i] = (int32_t)(kind % 8);
        scores[i] = (float)(kind / 8) - 16;
        tokens[i] = take_text(r);
    }
    vocabulary_maker_text(m, "tokenizer.ggml.model", shape.sentencepiece ? "llama" : "gpt2");
    vocabulary_maker_texts(m, "tokenizer.ggml.tokens", tokens, n_first + n);
    vocabulary_maker_ints(m, "tokenizer.ggml.token_type", kinds, n_first + n - (bits & 0x10 && n ? 1 : 0));
    if (shape.sentencepiece) {
        vocabulary_maker_floats(m, "tokenizer.ggml.scores", scores, n_first + n);
        vocabulary_maker_bool(m, "tokenizer.ggml.add_space_prefix", more & 0x80);
    } else {
        put_merges(m, r, bits);
    }
    if (bits & 0x20)
        vocabulary_maker_u32(m, "tokenizer.ggml.bos_token_id", n_first + n / 2);
    if (bits & 0x40)
        vocabulary_maker_u32(m, "tokenizer.ggml.eos_token_id", n_first);
    vocabulary_maker_bool(m, "tokenizer.ggml.add_eos_token", bits & 0x40);
    return shape;
}

static void stream(const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    struct detokenizer d, at_once;
    struct buf piece, sum, whole;
    buf_init(&piece, 1 << 22);
    buf_init(&sum, 1 << 22);
    buf_init(&whole, 1 << 22);
    detokenizer_init(&d, t, 1);
    detokenizer_init(&at_once, t, 1);
    for (size_t i = 0; i < n; i++) {
        buf_clear(&piece);
        enum status s = detokenizer_push(&d, ids[i], &piece);
        CHECK((s == STATUS_OK) == (ids[i] < tokenizer_n_vocab(t)));
        CHECK(utf8_valid_len(piece.data, piece.len) == piece.len);
        buf_append(&sum, piece.data, piece.len);
        detokenizer_push(&at_once, ids[i], &whole);
    }
    detokenizer_finish(&d, &sum);
    detokenizer_finish(&at_once, &whole);
    CHECK(!sum.failed && sum.len == whole.len && (sum.len == 0 || memcmp(sum.data, whole.data, sum.len) == 0));
    CHECK(utf8_valid_len(sum.data, sum.len) == sum.len);
    buf_fini(&piece);
    buf_fini(&sum);
    buf_fini(&whole);
}

/* A literal U+2581 is a space, in what went in and in what comes out. */
static size_t spaces(char *text, size_t len)
{
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        int space = len - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0;
        text[n] = space ? ' ' : text[at];
        at += space ? 3 : 1;
    }
    return n;
}

static void gives_back(const struct tokenizer *t, const uint32_t *ids, size_t n, const char *text, size_t len, struct shape shape)
{
    char want[MAX_TEXT];
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 1 << 22);
    buf_text(&out, "");
    detokenizer_init_text(&d, t, 1);
    for (size_t i = 0; i < n; i++)
        CHECK(detokenizer_push(&d, ids[i], &out) == STATUS_OK);
    CHECK(detokenizer_finish(&d, &out) == STATUS_OK);
    memcpy(want, text, len);
    if (shape.sentencepiece) {
        len = spaces(want, len);
        out.len = spaces(out.data, out.len);
    }
    CHECK(out.len == len && memcmp(out.data, want, len) == 0);
    buf_fini(&out);
}

static void encode_text(const struct tokenizer *t, const char *text, size_t len, struct shape shape)
{
    static uint32_t ids[MAX_IDS];
    char clean[MAX_TEXT];
    struct buf marked;
    struct error err;
    size_t n, room = tokenizer_max_ids(t, len);
    CHECK(room <= MAX_IDS);
    enum status s = tokenizer_encode(t, text, len, TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL, INT64_MAX, ids, room, &n, &err);
    CHECK(s == (utf8_valid_len(text, len) == len ? STATUS_OK : STATUS_BAD_REQUEST));
    if (s != STATUS_OK)
        return;
    CHECK(tokenizer_encode(t, text, len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, room, &n, &err) == STATUS_OK);
    stream(t, ids, n);
    memcpy(clean, text, len);
    size_t clean_len = chat_mark_remove(clean, len);
    if (shape.whole)
        gives_back(t, ids, n, clean, clean_len, shape);
    buf_init(&marked, 1 << 20);
    CHECK(chat_mark_text(tokenizer__special(t), text, len, &marked) == STATUS_OK);
    CHECK(tokenizer_encode(t, marked.data, marked.len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, MAX_IDS, &n, &err) == STATUS_OK);
    for (size_t i = 0; i < n; i++) /* where bytes lack a token, text becomes the unknown one */
        CHECK(!tokenizer_is_control(t, ids[i]) || (shape.sentencepiece && !shape.whole && ids[i] == 0));
    if (shape.whole)
        gives_back(t, ids, n, clean, clean_len, shape);
    buf_fini(&marked);
    tokenizer_encode(t, text, len, TOKENIZE_ADD_SPECIAL, INT64_MAX, ids, len / 2, &n, &err);
}

/* Of a long text ids are counted and said again, no more: it is there for the windows that such a text is looked at in. */
static void encode_long(const struct tokenizer *t, const uint8_t *data, size_t size, struct shape shape)
{
    enum { STEP = 64, LONGEST = PRETOKENIZER_MAX_WORD + (64 << 10) + 100 };
    static char text[LONGEST];
    static uint32_t ids[5 * LONGEST];
    const size_t piece = data[1] < size - 2 ? data[1] : size - 2, want = data[0] == 255 ? LONGEST : data[0] * (size_t)STEP;
    size_t len = 0, n;
    struct error err = {0};
    struct buf said;
    for (; piece && len + piece <= want; len += piece)
        memcpy(text + len, data + 2, piece);
    const int sound = utf8_valid_len(text, len) == len;
    CHECK(tokenizer_max_ids(t, len) <= ARRAY_LEN(ids));
    const int64_t deadline_ns = clock_now_ns() + 1000 * NS_PER_MS; /* megabytes of pieces are not what this is about */
    enum status s = tokenizer_encode(t, text, len, 0, deadline_ns, ids, tokenizer_max_ids(t, len), &n, &err);
    if (s == STATUS_TIMEOUT) {
        CHECK(sound && err.message[0]);
        return;
    }
    if (s != STATUS_OK) {
        CHECK(s == STATUS_BAD_REQUEST && err.message[0]);
        CHECK(sound ? len > PRETOKENIZER_MAX_WORD && strcmp(err.code, "word_too_long") == 0 : strcmp(err.code, "invalid_utf8") == 0);
        return;
    }
    CHECK(sound);
    if (shape.sentencepiece || !shape.whole)
        return;
    buf_init(&said, 1 << 24);
    for (size_t i = 0; i < n && !said.failed; i++) {
        const struct text p = tokenizer_piece(t, ids[i], 1);
        CHECK(buf_append(&said, p.data, p.len) == STATUS_OK);
    }
    len = chat_mark_remove(text, len);
    CHECK(said.len == len && (len == 0 || memcmp(said.data, text, len) == 0));
    buf_fini(&said);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reader r = {data, data + size};
    struct vocabulary_maker m;
    struct gguf *g;
    struct tokenizer *t;
    struct error err;
    size_t len;
    log_set_levels("error", NULL);
    vocabulary_maker_init(&m);
    struct shape shape = write_vocabulary(&m, &r);
    const void *bytes = vocabulary_maker_bytes(&m, &len);
    CHECK(gguf_open_memory(bytes, len, &g, &err) == STATUS_OK);
    if (tokenizer_create(g, &t, &err) == STATUS_OK) {
        size_t left = (size_t)(r.end - r.at), n_text = left < MAX_TEXT ? left : MAX_TEXT;
        uint32_t ids[256];
        if (left >= 3 && r.at[0] == 0xff)
            encode_long(t, r.at + 1, left - 1, shape);
        encode_text(t, (const char *)r.at, n_text, shape);
        for (size_t i = 0; i < 256 && i < left; i++)
            ids[i] = r.at[i] + (uint32_t)(i % 3 ? 0 : 70);
        stream(t, ids, left < 256 ? left : 256);
        tokenizer_destroy(t);
    } else {
        CHECK(err.message[0]);
    }
    gguf_close(g);
    vocabulary_maker_fini(&m);
    return 0;
}
