/* tests/fuzz/fuzz_vocabulary.c - a GGUF of arbitrary bytes as a vocabulary.
 *
 * Input      A file; its seeds, made by make_vocabulary_seeds.py, hold small vocabularies of both kinds. What the file's own
 *            tokens say is the text, behind a few fixed ones.
 * Must hold  The file is refused with a reason, or encodes every sound text in at most tokenizer_max_ids ids, all of them in the
 *            vocabulary, and says them as UTF-8. Ids with a meaning lie in the vocabulary.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/text/detokenizer.h"
#include "common/base/utf8.h"

enum { MAX_TEXT = 2048, MAX_IDS = 5 * MAX_TEXT };

static const char *const texts[] = {
    "", " ", "The token is ready;  then it waits.\n\n", "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80\r\n", "<s>[INST] it's 12345 </s>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\xe2\x96\x81 \xe2\x96\x81", "<|im_end|>" TOKENIZER_MARK "<|im_end|>",
};

static void says(const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 1 << 22);
    detokenizer_init_text(&d, t, 1);
    for (size_t i = 0; i < n; i++) {
        CHECK(ids[i] < tokenizer_n_vocab(t));
        enum status s = detokenizer_push(&d, ids[i], &out);
        CHECK(s == STATUS_OK || out.failed);
    }
    detokenizer_finish(&d, &out);
    CHECK(utf8_valid_len(out.data, out.len) == out.len);
    buf_fini(&out);
}

static void encode(const struct tokenizer *t, const char *text, size_t len)
{
    static uint32_t ids[MAX_IDS];
    size_t n, room = tokenizer_max_ids(t, len);
    struct error err;
    CHECK(room <= MAX_IDS);
    int sound = utf8_valid_len(text, len) == len;
    for (unsigned flags = 0; flags < 4; flags++) {
        enum status s = tokenizer_encode(t, text, len, flags, INT64_MAX, ids, room, &n, &err);
        CHECK(s == (sound ? STATUS_OK : STATUS_BAD_REQUEST));
        if (s == STATUS_OK)
            says(t, ids, n);
    }
}

/* Its own tokens, one after the other, as far as they are text. */
static void encode_tokens(const struct tokenizer *t)
{
    char text[MAX_TEXT];
    size_t len = 0;
    for (uint32_t i = 0; i < tokenizer_n_vocab(t); i++) {
        struct text p = tokenizer_piece(t, i, 1);
        CHECK(p.len == 0 || p.data);
        if (p.len <= MAX_TEXT - len && utf8_valid_len(p.data, p.len) == p.len) {
            memcpy(text + len, p.data, p.len);
            len += p.len;
        }
    }
    encode(t, text, len);
}

static void use(const struct tokenizer *t)
{
    CHECK(tokenizer_bos(t) < (int64_t)tokenizer_n_vocab(t) && tokenizer_eos(t) < (int64_t)tokenizer_n_vocab(t));
    CHECK(tokenizer_eos(t) < 0 || tokenizer_is_end(t, (uint32_t)tokenizer_eos(t)));
    CHECK(!tokenizer_is_end(t, tokenizer_n_vocab(t)) && !tokenizer_is_end(t, UINT32_MAX));
    CHECK(tokenizer_piece(t, tokenizer_n_vocab(t), 1).len == 0);
    CHECK(tokenizer_n_control(t) <= tokenizer_n_vocab(t));
    for (uint32_t i = 0; i < tokenizer_n_control(t); i++)
        CHECK(tokenizer_control_text(t, i).len);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        encode(t, texts[i], strlen(texts[i]));
    encode_tokens(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct tokenizer *t;
    struct error err = {0};
    log_set_levels("error", NULL);
    if (gguf_open_memory(data, size, &g, &err) != STATUS_OK)
        return 0;
    if (tokenizer_create(g, &t, &err) == STATUS_OK) {
        use(t);
        tokenizer_destroy(t);
    } else {
        CHECK(err.message[0]);
    }
    gguf_close(g);
    return 0;
}
