/* tests/fuzz/fuzz_tokenizer.c - a hostile vocabulary, a text, and ids.
 *
 * Input      1 byte pre-tokenizer and shape, 1 byte number of tokens, then for each: kind, length, bytes; 1 byte number
 *            of merges, then for each: length, bytes; the rest is the text. The 256 byte symbols come first unless
 *            the shape says otherwise.
 * Must hold  A vocabulary is refused or works. With all byte symbols, ids of a text give the text back. A marked text
 *            has no control token. Streamed pieces are UTF-8 and add up to what all ids give at once.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/text/chat_mark.h"
#include "common/text/detokenizer.h"
#include "common/text/tokenizer_impl.h"
#include "common/text/utf8.h"
#include "tests/unit/text/vocabulary_maker.h"

enum { MAX_MORE = 64, MAX_MERGES = 64, MAX_TEXT = 4096, ANY_PRE = 5 };

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

/* Returns 1 when every byte has a symbol. */
static int write_vocabulary(struct vocabulary_maker *m, struct reader *r)
{
    static const char *const pres[] = {"gpt-2", "smollm", "qwen2", "llama-bpe", "default", "other"};
    struct text tokens[256 + MAX_MORE], merges[MAX_MERGES];
    int32_t kinds[256 + MAX_MORE];
    unsigned shape = take_byte(r), n_symbols = shape & 0x80 ? 128 : 256, n = take_byte(r) % (MAX_MORE + 1);
    vocabulary_maker_symbols(tokens);
    for (unsigned i = 0; i < n_symbols; i++)
        kinds[i] = 1;
    for (unsigned i = 0; i < n; i++) {
        kinds[n_symbols + i] = (int32_t)(take_byte(r) % 8);
        tokens[n_symbols + i] = take_text(r);
    }
    unsigned n_merges = take_byte(r) % (MAX_MERGES + 1);
    for (unsigned i = 0; i < n_merges; i++)
        merges[i] = take_text(r);
    vocabulary_maker_text(m, "tokenizer.ggml.model", shape & 0x40 && shape & 0x20 ? "llama" : "gpt2");
    vocabulary_maker_text(m, "tokenizer.ggml.pre", pres[(shape & 0xf) % (ANY_PRE + 1)]);
    vocabulary_maker_texts(m, "tokenizer.ggml.tokens", tokens, n_symbols + n);
    vocabulary_maker_ints(m, "tokenizer.ggml.token_type", kinds, n_symbols + n - (shape & 0x10 && n ? 1 : 0));
    vocabulary_maker_texts(m, "tokenizer.ggml.merges", merges, n_merges);
    if (shape & 0x20)
        vocabulary_maker_u32(m, "tokenizer.ggml.bos_token_id", n_symbols + n / 2);
    if (shape & 0x40)
        vocabulary_maker_u32(m, "tokenizer.ggml.eos_token_id", n_symbols);
    vocabulary_maker_bool(m, "tokenizer.ggml.add_eos_token", shape & 0x40);
    return n_symbols == 256;
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

static void gives_back(const struct tokenizer *t, const uint32_t *ids, size_t n, const char *text, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        struct text p = tokenizer_piece(t, ids[i], 1);
        CHECK(p.len <= len - at && memcmp(text + at, p.data, p.len) == 0);
        at += p.len;
    }
    CHECK(at == len);
}

static void encode_text(const struct tokenizer *t, const char *text, size_t len, int whole)
{
    static uint32_t ids[2 * MAX_TEXT];
    char clean[MAX_TEXT];
    struct buf marked;
    struct error err;
    size_t n;
    if (tokenizer_encode(t, text, len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, 2 * MAX_TEXT, &n, &err) != STATUS_OK)
        return;
    stream(t, ids, n);
    memcpy(clean, text, len);
    size_t clean_len = chat_mark_remove(clean, len);
    if (whole)
        gives_back(t, ids, n, clean, clean_len);
    buf_init(&marked, 1 << 20);
    CHECK(chat_mark_text(tokenizer__special(t), text, len, &marked) == STATUS_OK);
    CHECK(tokenizer_encode(t, marked.data, marked.len, TOKENIZE_PARSE_SPECIAL, INT64_MAX, ids, 2 * MAX_TEXT, &n, &err) ==
          STATUS_OK);
    for (size_t i = 0; i < n; i++)
        CHECK(!tokenizer_is_control(t, ids[i]));
    if (whole)
        gives_back(t, ids, n, clean, clean_len);
    buf_fini(&marked);
    tokenizer_encode(t, text, len, TOKENIZE_ADD_SPECIAL, INT64_MAX, ids, len / 2, &n, &err);
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
    int whole = write_vocabulary(&m, &r);
    const void *bytes = vocabulary_maker_bytes(&m, &len);
    CHECK(gguf_open_memory(bytes, len, &g, &err) == STATUS_OK);
    if (tokenizer_create(g, &t, &err) == STATUS_OK) {
        size_t left = (size_t)(r.end - r.at), n_text = left < MAX_TEXT ? left : MAX_TEXT;
        uint32_t ids[256];
        encode_text(t, (const char *)r.at, n_text, whole);
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
