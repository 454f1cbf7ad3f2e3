#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/bpe.h"
#include "common/text/pretokenizer.h"
#include "common/text/tokenizer_impl.h"
#include "common/text/utf8.h"
#include "common/text/vocab.h"

#define LOG_MODULE "tokenizer"
#include "common/base/log.h"

enum { MARK_BYTES = sizeof TOKENIZER_MARK - 1, UTF8_CHECK_BYTES = 64 << 10 };

struct tokenizer {
    struct vocab vocab;
    struct vocab_map map; /* bytes of what ordinary text may become */
    struct bpe bpe;
    struct special special;
    struct pretokenizer *pre;
};

/* --- create --- */

static enum status check_kind(const struct gguf *g, struct text *pre, struct error *err)
{
    struct text model;
    if (!gguf_text(g, "tokenizer.ggml.model", &model))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.model is absent: the file has no vocabulary");
    if (model.len != 4 || memcmp(model.data, "gpt2", 4) != 0)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.model \"%.*s\" is not supported (supported: gpt2)",
                         model.len > 60 ? 60 : (int)model.len, model.data);
    if (!gguf_text(g, "tokenizer.ggml.pre", pre))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.pre is absent: the pre-tokenizer would be a guess");
    return STATUS_OK;
}

static enum status build_map(struct tokenizer *t, struct error *err)
{
    if (vocab_map_init(&t->map, t->vocab.piece, t->vocab.n) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %u tokens", t->vocab.n);
    for (uint32_t i = 0; i < t->vocab.n; i++)
        if (t->vocab.reachable[i])
            vocab_map_add(&t->map, i);
    return STATUS_OK;
}

/* "left right" to the ids of both and of what they make; 0: one of them is no token (such a merge can never apply). */
static int merge_ids(const struct tokenizer *t, struct text merge, char *room, uint32_t *left, uint32_t *right,
                     uint32_t *id)
{
    const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
    if (!space)
        return 0;
    struct text a = {merge.data, (size_t)(space - merge.data)};
    struct text b = {space + 1, merge.len - a.len - 1};
    if (a.len > t->vocab.longest_raw || b.len > t->vocab.longest_raw)
        return 0;
    int whole_a, whole_b;
    size_t n_a = vocab_decode(a, room, &whole_a), n_b = vocab_decode(b, room + n_a, &whole_b);
    *left = vocab_map_find(&t->map, room, n_a);
    *right = vocab_map_find(&t->map, room + n_a, n_b);
    *id = vocab_map_find(&t->map, room, n_a + n_b);
    return whole_a && whole_b && *left != VOCAB_NO_ID && *right != VOCAB_NO_ID && *id != VOCAB_NO_ID;
}

static uint64_t add_merges(struct tokenizer *t, const struct text *merges, uint64_t n, char *room)
{
    uint64_t n_ignored = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t left, right, id;
        if (merge_ids(t, merges[i], room, &left, &right, &id))
            bpe_add(&t->bpe, left, right, (uint32_t)i, id);
        else
            n_ignored++;
    }
    return n_ignored;
}

static enum status build_merges(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    uint64_t n;
    if (!gguf_array_texts(g, "tokenizer.ggml.merges", &n))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.merges is absent or not an array of strings");
    if (n > VOCAB_MAX_TOKENS)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.merges has %llu entries (at most %d)",
                         (unsigned long long)n, VOCAB_MAX_TOKENS);
    struct text *merges = malloc((n ? n : 1) * sizeof *merges);
    char *room = malloc(2 * t->vocab.longest_raw + 1);
    enum status s = merges && room ? bpe_init(&t->bpe, n) : STATUS_OUT_OF_MEMORY;
    if (s == STATUS_OK)
        s = gguf_read_texts(g, "tokenizer.ggml.merges", merges, n);
    uint64_t n_ignored = s == STATUS_OK ? add_merges(t, merges, n, room) : 0;
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
static enum status build_bytes(struct tokenizer *t, struct error *err)
{
    unsigned n_absent = 0;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->bpe.byte_id[b] = vocab_map_find(&t->map, &byte, 1);
        n_absent += t->bpe.byte_id[b] == VOCAB_NO_ID;
    }
    if (n_absent == 256)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.tokens has no token for any single byte");
    if (n_absent)
        LOG_INFO("the vocabulary has no token for %u of 256 bytes; texts lose them", n_absent);
    return STATUS_OK;
}

static enum status load(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    struct text pre;
    TRY(check_kind(g, &pre, err));
    TRY(pretokenizer_create(pre, &t->pre, err));
    TRY(vocab_init(&t->vocab, g, pretokenizer_adds_bos(t->pre), err));
    TRY(special_init(&t->special, &t->vocab, err));
    TRY(build_map(t, err));
    TRY(build_merges(t, g, err));
    return build_bytes(t, err);
}

enum status tokenizer_create(const struct gguf *g, struct tokenizer **out, struct error *err)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the tokenizer");
    enum status s = load(t, g, err);
    if (s != STATUS_OK) {
        tokenizer_destroy(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_fini(&t->bpe);
    vocab_map_fini(&t->map);
    special_fini(&t->special);
    vocab_fini(&t->vocab);
    pretokenizer_destroy(t->pre);
    free(t);
}

/* --- encode --- */

struct encoder {
    const struct tokenizer *t;
    struct pretokenizer_scratch *pre;
    struct bpe_scratch bpe;
    struct work work;
    uint32_t *ids;
    size_t n, max;
    int skip_bos; /* BOS was added: the text's own first one is dropped */
};

static enum status too_many(const struct encoder *e)
{
    return error_param(e->work.err, STATUS_BAD_REQUEST, NULL, "too_many_tokens", "the text has more than %zu tokens",
                       e->max);
}

static enum status emit(void *context, uint32_t id)
{
    struct encoder *e = context;
    if (e->skip_bos && e->n == 1 && id == e->ids[0]) {
        e->skip_bos = 0;
        return STATUS_OK;
    }
    if (e->n == e->max)
        return too_many(e);
    e->ids[e->n++] = id;
    return STATUS_OK;
}

static enum status encode_word(void *context, const char *word, size_t len)
{
    struct encoder *e = context;
    if (pretokenizer_whole_words(e->t->pre) && len <= e->t->vocab.longest_piece) {
        uint32_t id = vocab_map_find(&e->t->map, word, len);
        if (id != VOCAB_NO_ID)
            return emit(e, id);
    }
    return bpe_encode(&e->t->bpe, &e->bpe, word, len, &e->work, emit, e);
}

static enum status encode_segments(struct encoder *e, struct special_search *q)
{
    size_t from = 0, at;
    while (from < q->len) {
        uint32_t id = 0;
        TRY(special_find(&e->t->special, q, from, &e->work, &at, &id));
        TRY(pretokenizer_split(e->t->pre, e->pre, q->text + from, at - from, &e->work, encode_word, e));
        if (at == q->len)
            break;
        TRY(emit(e, id));
        from = at + e->t->vocab.raw[id].len;
    }
    return STATUS_OK;
}

static enum status encode_all(struct encoder *e, struct special_search *q, unsigned flags)
{
    const struct vocab *v = &e->t->vocab;
    if ((flags & TOKENIZE_ADD_SPECIAL) && v->add_bos) {
        TRY(emit(e, (uint32_t)v->bos));
        e->skip_bos = 1;
    }
    TRY(encode_segments(e, q));
    if ((flags & TOKENIZE_ADD_SPECIAL) && v->add_eos && (e->n == 0 || e->ids[e->n - 1] != (uint32_t)v->eos))
        TRY(emit(e, (uint32_t)v->eos));
    return STATUS_OK;
}

static enum status check_utf8(const char *text, size_t len, struct work *work)
{
    for (size_t from = 0; from < len;) {
        size_t end = len;
        if (len - from > UTF8_CHECK_BYTES)
            for (end = from + UTF8_CHECK_BYTES; ((unsigned char)text[end] & 0xc0) == 0x80 && end > from + 1;)
                end--;
        size_t good = from + utf8_valid_len(text + from, end - from);
        if (good != end)
            return error_param(work->err, STATUS_BAD_REQUEST, "text", "invalid_utf8",
                               "the text is not UTF-8 at byte %zu", good);
        TRY(work_step(work, (end - from) / 64 + 1));
        from = end;
    }
    return STATUS_OK;
}

/* What lies between marks, put together, and where the marks were: for text that has at least one. */
static enum status strip_marks(struct special_search *q, char **room, size_t **marks, struct error *err)
{
    const char *end = q->text + q->len, *mark;
    size_t n = 0, kept = 0;
    for (const char *p = q->text; (mark = memmem(p, (size_t)(end - p), TOKENIZER_MARK, MARK_BYTES)); p = mark + MARK_BYTES)
        n++;
    *room = malloc(q->len);
    *marks = malloc(n * sizeof **marks);
    if (!*room || !*marks)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory to tokenize %zu bytes", q->len);
    n = 0;
    for (const char *p = q->text; p < end; p = mark ? mark + MARK_BYTES : end) {
        mark = memmem(p, (size_t)(end - p), TOKENIZER_MARK, MARK_BYTES);
        size_t len = (size_t)((mark ? mark : end) - p);
        memcpy(*room + kept, p, len);
        kept += len;
        if (mark)
            (*marks)[n++] = kept;
    }
    q->text = *room;
    q->len = kept;
    q->marks = *marks;
    q->n_marks = n;
    return STATUS_OK;
}

static enum status encode_marked(struct encoder *e, struct special_search *q, unsigned flags)
{
    char *room = NULL;
    size_t *marks = NULL;
    enum status s = STATUS_OK;
    if (q->len >= MARK_BYTES && memmem(q->text, q->len, TOKENIZER_MARK, MARK_BYTES))
        s = strip_marks(q, &room, &marks, e->work.err);
    /* No token says more than longest_piece bytes: what can never fit costs neither time nor memory. */
    if (s == STATUS_OK && q->len / e->t->vocab.longest_piece > e->max)
        s = too_many(e);
    if (s == STATUS_OK)
        s = encode_all(e, q, flags);
    free(room);
    free(marks);
    return s;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags, int64_t deadline_ns,
                             uint32_t *ids, size_t max_ids, size_t *n_ids, struct error *err)
{
    struct encoder e = {.t = t, .ids = ids, .max = max_ids};
    e.work = (struct work){.deadline_ns = deadline_ns, .left = WORK_UNITS, .err = err};
    TRY(check_utf8(text, len, &e.work));
    e.pre = pretokenizer_scratch_create();
    if (!e.pre)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory to tokenize %zu bytes", len);
    bpe_scratch_init(&e.bpe);
    struct special_search q = {.text = text, .len = len, .control = (flags & TOKENIZE_PARSE_SPECIAL) != 0};
    enum status s = encode_marked(&e, &q, flags);
    bpe_scratch_fini(&e.bpe);
    pretokenizer_scratch_destroy(e.pre);
    if (s == STATUS_OK)
        *n_ids = e.n;
    return s;
}

/* --- the vocabulary, seen from outside --- */

const struct special *tokenizer__special(const struct tokenizer *t)
{
    return &t->special;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->vocab.n;
}

struct text tokenizer_piece(const struct tokenizer *t, uint32_t id, int show_special)
{
    if (id >= t->vocab.n || (!show_special && vocab_is_control(&t->vocab, id)))
        return (struct text){"", 0};
    return t->vocab.piece[id];
}

int tokenizer_is_control(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab.n && vocab_is_control(&t->vocab, id);
}

int tokenizer_is_end(const struct tokenizer *t, uint32_t id)
{
    return id < t->vocab.n && t->vocab.is_end[id];
}

int64_t tokenizer_bos(const struct tokenizer *t)
{
    return t->vocab.bos;
}

int64_t tokenizer_eos(const struct tokenizer *t)
{
    return t->vocab.eos;
}

uint32_t tokenizer_n_control(const struct tokenizer *t)
{
    return t->vocab.n_control;
}

struct text tokenizer_control_text(const struct tokenizer *t, uint32_t i)
{
    return i < t->vocab.n_control ? t->vocab.raw[t->vocab.control[i]] : (struct text){"", 0};
}
