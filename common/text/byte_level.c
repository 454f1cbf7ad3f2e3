#include "common/text/byte_level.h"

#include <stdlib.h>
#include <string.h>

#define LOG_MODULE "tokenizer"
#include "common/base/log.h"

/* --- building --- */

enum status byte_level_init(struct byte_level *b, const struct gguf *g, struct error *err)
{
    struct text pre = {"default", 7};
    *b = (struct byte_level){0};
    if (gguf_has(g, "tokenizer.ggml.pre") && !gguf_text(g, "tokenizer.ggml.pre", &pre))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.pre is no string");
    if (!gguf_has(g, "tokenizer.ggml.pre"))
        LOG_WARN("tokenizer.ggml.pre is absent: text is cut as \"default\" does, which the model may not be used to");
    return pretokenizer_create(pre, &b->pre, err);
}

static enum status build_map(struct byte_level *b, struct error *err)
{
    if (vocab_map_init(&b->map, b->vocab->piece, b->vocab->n) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %u tokens", b->vocab->n);
    for (uint32_t i = 0; i < b->vocab->n; i++)
        if (b->vocab->reachable[i])
            vocab_map_add(&b->map, i);
    return STATUS_OK;
}

/* "left right" to the ids of both and of what they make; 0: one of them is no token (such a merge can never apply). */
static int merge_ids(const struct byte_level *b, struct text merge, char *room, uint32_t *left, uint32_t *right,
                     uint32_t *id)
{
    const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
    if (!space)
        return 0;
    struct text first = {merge.data, (size_t)(space - merge.data)};
    struct text second = {space + 1, merge.len - first.len - 1};
    if (first.len > b->vocab->longest_raw || second.len > b->vocab->longest_raw)
        return 0;
    int whole_first, whole_second;
    size_t n_first = vocab_decode(first, room, &whole_first);
    size_t n_second = vocab_decode(second, room + n_first, &whole_second);
    *left = vocab_map_find(&b->map, room, n_first);
    *right = vocab_map_find(&b->map, room + n_first, n_second);
    *id = vocab_map_find(&b->map, room, n_first + n_second);
    return whole_first && whole_second && *left != VOCAB_NO_ID && *right != VOCAB_NO_ID && *id != VOCAB_NO_ID;
}

static uint64_t add_merges(struct byte_level *b, const struct text *merges, uint64_t n, char *room)
{
    uint64_t n_ignored = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t left, right, id;
        if (merge_ids(b, merges[i], room, &left, &right, &id))
            bpe_add(&b->bpe, left, right, (uint32_t)i, id);
        else
            n_ignored++;
    }
    return n_ignored;
}

static enum status build_merges(struct byte_level *b, const struct gguf *g, struct error *err)
{
    uint64_t n;
    if (!gguf_array_texts(g, "tokenizer.ggml.merges", &n))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.merges is absent or not an array of strings");
    if (n > VOCAB_MAX_TOKENS)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.merges has %llu entries (at most %d)",
                         (unsigned long long)n, VOCAB_MAX_TOKENS);
    struct text *merges = malloc((n ? n : 1) * sizeof *merges);
    char *room = malloc(2 * b->vocab->longest_raw + 1);
    enum status s = merges && room ? bpe_init(&b->bpe, n) : STATUS_OUT_OF_MEMORY;
    if (s == STATUS_OK)
        s = gguf_read_texts(g, "tokenizer.ggml.merges", merges, n);
    uint64_t n_ignored = s == STATUS_OK ? add_merges(b, merges, n, room) : 0;
    free(merges);
    free(room);
    if (s != STATUS_OK)
        return error_set(err, s, "tokenizer.ggml.merges: %s", status_text(s));
    if (n_ignored)
        LOG_WARN("%llu of %llu merges name no token and are ignored", (unsigned long long)n_ignored,
                 (unsigned long long)n);
    return STATUS_OK;
}

/* Some vocabularies (SmolLM2: 21 bytes, most of them never in UTF-8) lack tokens for bytes. Such bytes of a text are
 * left out, as the models' own tokenizers do. */
static enum status build_bytes(struct byte_level *b, struct error *err)
{
    unsigned n_absent = 0;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        b->bpe.byte_id[i] = vocab_map_find(&b->map, &byte, 1);
        n_absent += b->bpe.byte_id[i] == VOCAB_NO_ID;
    }
    if (n_absent == 256)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.tokens has no token for any single byte");
    if (n_absent)
        LOG_INFO("the vocabulary has no token for %u of 256 bytes; texts lose them", n_absent);
    return STATUS_OK;
}

enum status byte_level_build(struct byte_level *b, const struct vocab *v, const struct gguf *g, struct error *err)
{
    b->vocab = v;
    TRY(build_map(b, err));
    TRY(build_merges(b, g, err));
    return build_bytes(b, err);
}

void byte_level_fini(struct byte_level *b)
{
    bpe_fini(&b->bpe);
    vocab_map_fini(&b->map);
    pretokenizer_destroy(b->pre);
    *b = (struct byte_level){0};
}

/* --- encoding --- */

enum status byte_level_scratch_init(struct byte_level_scratch *c)
{
    bpe_scratch_init(&c->bpe);
    c->pre = pretokenizer_scratch_create();
    return c->pre ? STATUS_OK : STATUS_OUT_OF_MEMORY;
}

void byte_level_scratch_fini(struct byte_level_scratch *c)
{
    bpe_scratch_fini(&c->bpe);
    pretokenizer_scratch_destroy(c->pre);
    c->pre = NULL;
}

struct giver {
    const struct byte_level *b;
    struct byte_level_scratch *c;
    struct work *work;
    enum status (*emit)(void *context, uint32_t id);
    void *context;
};

static enum status encode_word(void *context, const char *word, size_t len)
{
    struct giver *g = context;
    if (pretokenizer_whole_words(g->b->pre) && len <= g->b->vocab->longest_piece) {
        uint32_t id = vocab_map_find(&g->b->map, word, len);
        if (id != VOCAB_NO_ID)
            return g->emit(g->context, id);
    }
    return bpe_encode(&g->b->bpe, &g->c->bpe, word, len, g->work, g->emit, g->context);
}

enum status byte_level_encode(const struct byte_level *b, struct byte_level_scratch *c, const char *text, size_t len,
                              struct work *work, enum status (*emit)(void *context, uint32_t id), void *context)
{
    struct giver g = {.b = b, .c = c, .work = work, .emit = emit, .context = context};
    return pretokenizer_split(b->pre, c->pre, text, len, work, encode_word, &g);
}
