#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/hparams_impl.h"

enum { MAX_NAME = 96, MAX_VOCAB = 1 << 24 };

/* Files that are not one whole model. */
static enum status refuse_parts(const struct gguf *g, struct error *err)
{
    struct text type;
    uint64_t n;
    if (gguf_text(g, "general.type", &type) && !text_is(type, "model"))
        return error_set(err, STATUS_BAD_MODEL, "general.type is '%s', not 'model'", gguf_printable(type).text);
    if (gguf_u64(g, "split.count", &n) && n > 1)
        return error_set(err, STATUS_BAD_MODEL,
                         "split.count is %" PRIu64 ": a model in several files is not supported yet", n);
    return STATUS_OK;
}

/* --- tensors --------------------------------------------------------------------------------------------------------- */

/* Elements of a row, rows, matrices. */
struct shape {
    uint64_t k, n, count;
};

static enum status check_shape(const struct gguf_tensor *t, const char *name, struct shape s, struct error *err)
{
    if (t->ne[0] != s.k || t->ne[1] != s.n || t->ne[2] != s.count || t->ne[3] != 1)
        return error_set(err, STATUS_BAD_MODEL,
                         "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", not %" PRIu64
                         " x %" PRIu64 " x %" PRIu64,
                         name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], s.k, s.n, s.count);
    if (s.n == 1 && t->type != TENSOR_F32)
        return error_set(err, STATUS_BAD_MODEL, "tensor %s is a vector of type %s, not F32", name,
                         tensor_type_info(t->type)->name);
    return STATUS_OK;
}

static enum status need_tensor(const struct model *m, const char *name, struct shape s,
                               const struct gguf_tensor **out, struct error *err)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->gguf, name);
    if (!t)
        return error_set(err, STATUS_BAD_MODEL, "tensor %s is missing", name);
    TRY(check_shape(t, name, s, err));
    *out = t;
    return STATUS_OK;
}

static void layer_tensor_name(char out[MAX_NAME], uint32_t layer, uint32_t which)
{
    static const char *const suffixes[N_LAYER_TENSORS] = {
#define X(name, suffix) suffix,
        LAYER_TENSOR_MAP(X)
#undef X
    };
    snprintf(out, MAX_NAME, "blk.%u.%s", layer, suffixes[which]);
}

static struct shape layer_shape(const struct hparams *hp, uint32_t which)
{
    enum dim { ONE, EMBD, FF, HEAD, Q, KV, EXPERTS, FF_EXPERT };
    static const struct {
        uint8_t k, n, count; /* count 0: one matrix */
    } shapes[N_LAYER_TENSORS] = {
        [LAYER_ATTN_NORM] = {EMBD, ONE},     [LAYER_ATTN_Q] = {EMBD, Q},           [LAYER_ATTN_K] = {EMBD, KV},
        [LAYER_ATTN_V] = {EMBD, KV},         [LAYER_ATTN_Q_BIAS] = {Q, ONE},       [LAYER_ATTN_K_BIAS] = {KV, ONE},
        [LAYER_ATTN_V_BIAS] = {KV, ONE},     [LAYER_ATTN_Q_NORM] = {HEAD, ONE},    [LAYER_ATTN_K_NORM] = {HEAD, ONE},
        [LAYER_ATTN_OUT] = {Q, EMBD},        [LAYER_ATTN_POST_NORM] = {EMBD, ONE}, [LAYER_FFN_NORM] = {EMBD, ONE},
        [LAYER_FFN_GATE] = {EMBD, FF},       [LAYER_FFN_UP] = {EMBD, FF},          [LAYER_FFN_DOWN] = {FF, EMBD},
        [LAYER_FFN_POST_NORM] = {EMBD, ONE}, [LAYER_FFN_GATE_INP] = {EMBD, EXPERTS},
        [LAYER_FFN_GATE_EXPS] = {EMBD, FF_EXPERT, EXPERTS},
        [LAYER_FFN_UP_EXPS] = {EMBD, FF_EXPERT, EXPERTS},
        [LAYER_FFN_DOWN_EXPS] = {FF_EXPERT, EMBD, EXPERTS},
    };
    const uint64_t size[] = {
        [ONE] = 1,
        [EMBD] = hp->n_embd,
        [FF] = hp->n_ff,
        [HEAD] = hp->head_dim,
        [Q] = (uint64_t)hp->n_heads * hp->head_dim,
        [KV] = (uint64_t)hp->n_kv_heads * hp->head_dim,
        [EXPERTS] = hp->n_experts,
        [FF_EXPERT] = hp->n_ff_expert,
    };
    return (struct shape){size[shapes[which].k], size[shapes[which].n], size[shapes[which].count]};
}

enum status model_layer(const struct model *m, uint32_t layer, const struct gguf_tensor *out[N_LAYER_TENSORS],
                        struct error *err)
{
    const struct gguf_tensor *found[N_LAYER_TENSORS] = {0};
    uint32_t required = hparams_required(&m->hp);
    CHECK(layer < m->hp.n_layers);
    for (uint32_t i = 0; i < N_LAYER_TENSORS; i++) {
        char name[MAX_NAME];
        if (!(required >> i & 1))
            continue;
        layer_tensor_name(name, layer, i);
        TRY(need_tensor(m, name, layer_shape(&m->hp, i), &found[i], err));
    }
    memcpy(out, found, sizeof found);
    return STATUS_OK;
}

enum status model_embedding(const struct model *m, const struct gguf_tensor **embd, struct error *err)
{
    return need_tensor(m, "token_embd.weight", (struct shape){m->hp.n_embd, m->hp.n_vocab, 1}, embd, err);
}

enum status model_head(const struct model *m, const struct gguf_tensor **out_norm, const struct gguf_tensor **head,
                       struct error *err)
{
    const struct gguf_tensor *norm = NULL;
    const char *name = m->hp.tied_head ? "token_embd.weight" : "output.weight";
    TRY(need_tensor(m, "output_norm.weight", (struct shape){m->hp.n_embd, 1, 1}, &norm, err));
    TRY(need_tensor(m, name, (struct shape){m->hp.n_embd, m->hp.n_vocab, 1}, head, err));
    *out_norm = norm;
    return STATUS_OK;
}

const struct gguf_tensor *model_rope_freqs(const struct model *m)
{
    return gguf_find_tensor(m->gguf, "rope_freqs.weight");
}

/* Divisors of the rotary frequencies. Few, and read by every stage: so their values are checked here too. Frequencies are at most
 * 1 without them; a small divisor would make angles of which there is no sine (kernels/math.h: up to 1e8), that is, at position 2^24
 * a divisor under 0.17. Those of models are 1 and more. */
static enum status check_rope_freqs(const struct model *m, struct error *err)
{
    static const float LEAST = 0.25f;
    const struct gguf_tensor *t = model_rope_freqs(m);
    if (!t)
        return STATUS_OK;
    TRY(check_shape(t, "rope_freqs.weight", (struct shape){m->hp.n_rot / 2, 1, 1}, err));
    for (uint32_t i = 0; i < m->hp.n_rot / 2; i++) {
        float f;
        memcpy(&f, t->data + 4 * (size_t)i, 4);
        if (!(f >= LEAST) || !isfinite(f))
            return error_set(err, STATUS_BAD_MODEL, "rope_freqs.weight at byte %" PRIu64 " is %g: a divisor is at least %g",
                             t->file_offset + 4 * (uint64_t)i, (double)f, (double)LEAST);
    }
    return STATUS_OK;
}

static int is_part(const struct model *m, struct text name)
{
    char layer_name[MAX_NAME], copy[MAX_NAME];
    unsigned layer;
    if (text_is(name, "token_embd.weight") || text_is(name, "output_norm.weight") || text_is(name, "output.weight") ||
        text_is(name, "rope_freqs.weight"))
        return 1;
    if (name.len >= sizeof copy || memchr(name.data, 0, name.len)) /* a name with a 0 in it is another than what is before it */
        return 0;
    memcpy(copy, name.data, name.len);
    copy[name.len] = 0;
    if (sscanf(copy, "blk.%6u.", &layer) != 1 || layer >= m->hp.n_layers)
        return 0;
    for (uint32_t i = 0; i < N_LAYER_TENSORS; i++) {
        layer_tensor_name(layer_name, layer, i);
        if ((hparams_required(&m->hp) >> i & 1) && strcmp(copy, layer_name) == 0)
            return 1;
    }
    /* Old converters stored the rotary frequencies, which follow from freq_base, in every layer. */
    snprintf(layer_name, sizeof layer_name, "blk.%u.attn_rot_embd.weight", layer);
    return strcmp(copy, layer_name) == 0;
}

/* A tensor that nobody would use means another model than the one that would run. */
static enum status refuse_strangers(const struct model *m, struct error *err)
{
    for (uint32_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor(m->gguf, i);
        if (!is_part(m, t->name))
            return error_set(err, STATUS_BAD_MODEL,
                             "tensor %s is not supported yet in architecture '%s' with %u layers",
                             gguf_printable(t->name).text, m->hp.arch->name, m->hp.n_layers);
    }
    return STATUS_OK;
}

static enum status check_tensors(const struct model *m, struct error *err)
{
    const struct gguf_tensor *layer[N_LAYER_TENSORS], *embd, *norm, *head;
    TRY(model_embedding(m, &embd, err));
    TRY(model_head(m, &norm, &head, err));
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        TRY(model_layer(m, i, layer, err));
    TRY(check_rope_freqs(m, err));
    return refuse_strangers(m, err);
}

/* --- opening --------------------------------------------------------------------------------------------------------- */

void model_clean_name(struct text t, char *out, size_t size)
{
    size_t at = 0, n = 0;
    while (at < t.len) {
        uint32_t c;
        size_t len = utf8_decode(t.data + at, t.len - at, &c);
        if (len && utf8_is_control(c))
            len = 0;
        if (n + (len ? len : 1) >= size)
            break;
        if (len)
            memcpy(out + n, t.data + at, len);
        else
            out[n] = '?';
        at += len ? len : 1;
        n += len ? len : 1;
    }
    out[n] = 0;
}

static void set_name(struct model *m, const char *path)
{
    static const char suffix[] = ".gguf";
    const char *file = strrchr(path, '/');
    struct text t;
    if (!gguf_text(m->gguf, "general.name", &t) || t.len == 0) {
        t.data = file ? file + 1 : path;
        t.len = strlen(t.data);
        if (t.len > sizeof suffix - 1 && strcmp(t.data + t.len - (sizeof suffix - 1), suffix) == 0)
            t.len -= sizeof suffix - 1;
    }
    model_clean_name(t, m->name, sizeof m->name);
}

/* The vocabulary is as large as the embedding; the list of tokens, where the file has one, must agree. */
static enum status read_vocab(const struct gguf *g, struct hparams *hp, struct error *err)
{
    const struct gguf_tensor *embd = gguf_find_tensor(g, "token_embd.weight");
    uint64_t n_tokens;
    if (!embd)
        return error_set(err, STATUS_BAD_MODEL, "tensor token_embd.weight is missing");
    if (embd->ne[1] > MAX_VOCAB)
        return error_set(err, STATUS_BAD_MODEL, "tensor token_embd.weight has %" PRIu64 " rows", embd->ne[1]);
    hp->n_vocab = (uint32_t)embd->ne[1];
    if (gguf_array_texts(g, "tokenizer.ggml.tokens", &n_tokens) && n_tokens != hp->n_vocab)
        return error_set(err, STATUS_BAD_MODEL,
                         "tokenizer.ggml.tokens has %" PRIu64 " entries, tensor token_embd.weight %u rows", n_tokens,
                         hp->n_vocab);
    hp->tied_head = !gguf_find_tensor(g, "output.weight");
    return STATUS_OK;
}

enum status model_from_gguf(struct gguf *g, const char *path, struct model *out, struct error *err)
{
    struct model m = {.gguf = g};
    TRY(refuse_parts(g, err));
    TRY(hparams_read(g, &m.hp, err));
    TRY(read_vocab(g, &m.hp, err));
    TRY(check_tensors(&m, err));
    set_name(&m, path);
    gguf_hash(g, m.hash);
    *out = m;
    return STATUS_OK;
}

enum status model_open(const char *path, struct model *out, struct error *err)
{
    struct gguf *g = NULL;
    TRY(gguf_open(path, &g, err));
    enum status s = model_from_gguf(g, path, out, err);
    if (s == STATUS_OK)
        return s;
    gguf_close(g);
    if (err) {
        char said[sizeof err->message];
        snprintf(said, sizeof said, "%s", err->message);
        error_set(err, s, "%.100s: %s", path, said);
    }
    return s;
}

void model_close(struct model *m)
{
    gguf_close(m->gguf);
    memset(m, 0, sizeof *m);
}
