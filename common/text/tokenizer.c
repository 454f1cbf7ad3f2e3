#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/byte_level.h"
#include "common/text/spm.h"
#include "common/text/tokenizer_impl.h"
#include "common/base/utf8.h"
#include "common/text/vocab.h"

enum { MARK_BYTES = sizeof TOKENIZER_MARK - 1, UTF8_CHECK_BYTES = 64 << 10 };

struct tokenizer {
    struct vocab vocab;
    struct special special;
    struct byte_level bytes; /* one of the two, by vocab.model */
    struct spm spm;
};

/* --- create --- */

static enum status read_model(const struct gguf *g, enum vocab_model *model, struct error *err)
{
    struct text name;
    if (!gguf_text(g, "tokenizer.ggml.model", &name))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.model is absent: the file has no vocabulary");
    if (name.len == 4 && memcmp(name.data, "gpt2", 4) == 0)
        *model = VOCAB_BYTE_LEVEL;
    else if (name.len == 5 && memcmp(name.data, "llama", 5) == 0)
        *model = VOCAB_SENTENCEPIECE;
    else
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.model \"%s\" is not supported (supported: gpt2, llama)",
                         gguf_printable(name).text);
    return STATUS_OK;
}

static enum status load(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    enum vocab_model model = VOCAB_BYTE_LEVEL;
    int adds_bos = 1;
    TRY(read_model(g, &model, err));
    if (model == VOCAB_BYTE_LEVEL) {
        TRY(byte_level_init(&t->bytes, g, err));
        adds_bos = pretokenizer_adds_bos(t->bytes.pre);
    }
    TRY(vocab_init(&t->vocab, g, model, adds_bos, err));
    TRY(special_init(&t->special, &t->vocab, err));
    return model == VOCAB_BYTE_LEVEL ? byte_level_build(&t->bytes, &t->vocab, g, err)
                                     : spm_init(&t->spm, &t->vocab, g, err);
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
    byte_level_fini(&t->bytes);
    spm_fini(&t->spm);
    special_fini(&t->special);
    vocab_fini(&t->vocab);
    free(t);
}

/* --- encode --- */

struct encoder {
    const struct tokenizer *t;
    struct byte_level_scratch bytes;
    struct spm_scratch spm;
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

/* What lies between two special tokens. */
static enum status encode_text(struct encoder *e, const char *text, size_t len)
{
    if (e->t->vocab.model == VOCAB_SENTENCEPIECE)
        return spm_encode(&e->t->spm, &e->spm, text, len, &e->work, emit, e);
    return byte_level_encode(&e->t->bytes, &e->bytes, text, len, &e->work, emit, e);
}

static enum status encode_segments(struct encoder *e, struct special_search *q)
{
    size_t from = 0, at;
    while (from < q->len) {
        uint32_t id = 0;
        TRY(special_find(&e->t->special, q, from, &e->work, &at, &id));
        TRY(encode_text(e, q->text + from, at - from));
        if (at == q->len)
            break;
        TRY(emit(e, id));
        from = at + e->t->vocab.piece[id].len;
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

/* No token says more than longest_piece bytes: what can never fit costs neither time nor memory. A SentencePiece vocabulary
 * without all bytes may say any text in one unknown token. */
static size_t least_tokens(const struct tokenizer *t, size_t len)
{
    return t->vocab.model == VOCAB_SENTENCEPIECE && !t->spm.all_bytes ? 0 : len / t->vocab.longest_piece;
}

static enum status encode_marked(struct encoder *e, struct special_search *q, unsigned flags)
{
    char *room = NULL;
    size_t *marks = NULL;
    enum status s = STATUS_OK;
    if (q->len >= MARK_BYTES && memmem(q->text, q->len, TOKENIZER_MARK, MARK_BYTES))
        s = strip_marks(q, &room, &marks, e->work.err);
    if (s == STATUS_OK && least_tokens(e->t, q->len) > e->max)
        s = too_many(e);
    if (s == STATUS_OK)
        s = encode_all(e, q, flags);
    free(room);
    free(marks);
    return s;
}

size_t tokenizer_max_ids(const struct tokenizer *t, size_t len)
{
    if (t->vocab.model == VOCAB_BYTE_LEVEL)
        return len + 2;
    /* Every byte may be a space, and every second one a special token with a space put behind it. */
    size_t n_spaces = len + (t->spm.space_prefix ? len / 2 + 1 : 0);
    return t->spm.space_ids * n_spaces + 2;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags, int64_t deadline_ns,
                             uint32_t *ids, size_t max_ids, size_t *n_ids, struct error *err)
{
    struct encoder e = {.t = t, .ids = ids, .max = max_ids};
    e.work = (struct work){.deadline_ns = deadline_ns, .left = WORK_UNITS, .err = err};
    TRY(check_utf8(text, len, &e.work));
    struct special_search q = {.text = text, .len = len, .control = (flags & TOKENIZE_PARSE_SPECIAL) != 0};
    spm_scratch_init(&e.spm);
    enum status s = t->vocab.model == VOCAB_BYTE_LEVEL ? byte_level_scratch_init(&e.bytes) : STATUS_OK;
    if (s != STATUS_OK)
        error_set(err, s, "no memory to tokenize %zu bytes", len);
    else
        s = encode_marked(&e, &q, flags);
    byte_level_scratch_fini(&e.bytes);
    spm_scratch_fini(&e.spm);
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

int tokenizer__starts_text(const struct tokenizer *t, uint32_t id)
{
    return t->vocab.model == VOCAB_SENTENCEPIECE && t->spm.space_prefix &&
           (vocab_is_control(&t->vocab, id) || t->vocab.kind[id] == TOKEN_USER_DEFINED);
}

int tokenizer__space_prefix(const struct tokenizer *t)
{
    return t->vocab.model == VOCAB_SENTENCEPIECE && t->spm.space_prefix;
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
    return i < t->vocab.n_control ? t->vocab.piece[t->vocab.control[i]] : (struct text){"", 0};
}
