#include "common/text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/utf8.h"

#define KEY(name) "tokenizer.ggml." name

/* Tokens that end an answer by their name, where the file's keys do not say so. Some only as control tokens: "</s>" is an
 * HTML tag in some vocabularies (qwen2.5: normal, gemma3: user-defined). */
static const struct {
    const char *text;
    int only_control;
} end_names[] = {
    {"<|im_end|>", 0},    {"<|endoftext|>", 0}, {"<|end_of_text|>", 0}, {"<|eot_id|>", 0}, {"<|eom_id|>", 0},
    {"<end_of_turn>", 0}, {"</s>", 1},          {"<eos>", 1},           {"<|end|>", 1},    {"<EOT>", 1},
    {"<\xef\xbd\x9c" "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>", 1}, /* deepseek: fullwidth bars, U+2581 */
};

/* The byte that a character of a byte-level vocabulary stands for (Radford et al. 2019: printable Latin-1 for itself,
 * the other 68 bytes in order from U+0100), or -1. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp >= 256 && cp <= 288)
        return (int)cp - 256;
    if (cp >= 289 && cp <= 322)
        return (int)cp - 289 + 127;
    return cp == 323 ? 173 : -1;
}

size_t vocab_decode(struct text t, char *out, int *whole)
{
    size_t n = 0;
    *whole = 1;
    for (size_t at = 0; at < t.len;) {
        uint32_t cp;
        unsigned len = utf8_decode(t.data + at, t.len - at, &cp);
        int byte = len ? byte_of(cp) : -1;
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else { /* no stand-in: the character itself */
            *whole = 0;
            memcpy(out + n, t.data + at, len ? len : 1);
            n += len ? len : 1;
        }
        at += len ? len : 1;
    }
    return n;
}

int vocab_is_control(const struct vocab *v, uint32_t id)
{
    return v->kind[id] == TOKEN_CONTROL || v->kind[id] == TOKEN_UNKNOWN;
}

static enum status read_tokens(struct vocab *v, const struct gguf *g, struct error *err)
{
    uint64_t n;
    if (!gguf_array_texts(g, KEY("tokens"), &n))
        return error_set(err, STATUS_BAD_MODEL, KEY("tokens") " is absent or not an array of strings");
    if (n == 0 || n > VOCAB_MAX_TOKENS)
        return error_set(err, STATUS_BAD_MODEL, KEY("tokens") " has %llu entries (1 to %d are supported)",
                         (unsigned long long)n, VOCAB_MAX_TOKENS);
    v->n = (uint32_t)n;
    v->raw = calloc(n, sizeof *v->raw);
    v->piece = calloc(n, sizeof *v->piece);
    v->kind = calloc(n, 1);
    v->is_end = calloc(n, 1);
    v->reachable = calloc(n, 1);
    v->control = calloc(n, sizeof *v->control);
    if (!v->raw || !v->piece || !v->kind || !v->is_end || !v->reachable || !v->control)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %u tokens", v->n);
    if (gguf_read_texts(g, KEY("tokens"), v->raw, n) != STATUS_OK)
        return error_set(err, STATUS_BAD_MODEL, KEY("tokens") " cannot be read");
    return STATUS_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" of byte tokens. */
static int byte_token(struct text t)
{
    if (t.len != 6 || memcmp(t.data, "<0x", 3) != 0 || t.data[5] != '>')
        return -1;
    int high = hex_digit(t.data[3]), low = hex_digit(t.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static enum status read_kinds(struct vocab *v, const struct gguf *g, struct error *err)
{
    uint64_t n;
    if (!gguf_array_ints(g, KEY("token_type"), &n))
        return error_set(err, STATUS_BAD_MODEL, KEY("token_type") " is absent or not an array of integers");
    if (n != v->n)
        return error_set(err, STATUS_BAD_MODEL, KEY("token_type") " has %llu entries, " KEY("tokens") " has %u",
                         (unsigned long long)n, v->n);
    int64_t *kinds = malloc(n * sizeof *kinds);
    if (!kinds)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %u tokens", v->n);
    enum status s = gguf_read_i64(g, KEY("token_type"), kinds, n);
    if (s != STATUS_OK)
        error_set(err, s, KEY("token_type") " cannot be read");
    for (uint32_t i = 0; s == STATUS_OK && i < v->n; i++) {
        if (kinds[i] < TOKEN_NORMAL || kinds[i] > TOKEN_BYTE)
            s = error_set(err, STATUS_BAD_MODEL, KEY("token_type") "[%u] is %lld (1 to 6 are known)", i,
                          (long long)kinds[i]);
        else if (kinds[i] == TOKEN_BYTE && byte_token(v->raw[i]) < 0)
            s = error_set(err, STATUS_BAD_MODEL, KEY("tokens") "[%u] is \"%s\", a byte token's text is <0x00> to <0xFF>", i,
                          gguf_printable(v->raw[i]).text);
        else
            v->kind[i] = (unsigned char)kinds[i];
    }
    free(kinds);
    return s;
}

/* Writes the text of a SentencePiece token with spaces for U+2581; returns its length. */
static size_t unescape(struct text t, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < t.len;) {
        int space = t.len - at >= 3 && memcmp(t.data + at, "\xe2\x96\x81", 3) == 0;
        out[n++] = space ? ' ' : t.data[at];
        at += space ? 3 : 1;
    }
    return n;
}

/* What a normal or user-defined token stands for, and whether merges may make it; returns how much was written to blob. */
static size_t make_text(struct vocab *v, uint32_t i, char *blob)
{
    struct text raw = v->raw[i];
    int whole = 1;
    size_t len = v->model == VOCAB_SENTENCEPIECE ? unescape(raw, blob) : vocab_decode(raw, blob, &whole);
    v->piece[i] = (struct text){blob, len};
    v->reachable[i] = (unsigned char)whole;
    if (v->model == VOCAB_BYTE_LEVEL && v->kind[i] == TOKEN_USER_DEFINED) { /* its name is its text, not a stand-in */
        v->reachable[i] = whole && len == raw.len && memcmp(blob, raw.data, len) == 0;
        v->piece[i] = raw;
        return 0;
    }
    return len;
}

/* Fills piece[i] and reachable[i]; writes into blob and returns how much. */
static size_t make_piece(struct vocab *v, uint32_t i, char *blob)
{
    size_t len = 0;
    switch ((enum token_kind)v->kind[i]) {
    case TOKEN_BYTE: /* checked by read_kinds */
        blob[len++] = (char)byte_token(v->raw[i]);
        v->piece[i] = (struct text){blob, len};
        break;
    case TOKEN_CONTROL:
    case TOKEN_UNKNOWN:
        v->piece[i] = v->raw[i];
        break;
    case TOKEN_UNUSED:
        v->piece[i] = (struct text){blob, 0};
        break;
    case TOKEN_NORMAL:
    case TOKEN_USER_DEFINED:
        len = make_text(v, i, blob);
        break;
    }
    if (v->piece[i].len == 0)
        v->reachable[i] = 0;
    return len;
}

static enum status make_pieces(struct vocab *v, struct error *err)
{
    size_t total = 1, used = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        total += v->raw[i].len; /* all of them lie in one file: no overflow */
        if (v->raw[i].len > v->longest_raw)
            v->longest_raw = v->raw[i].len;
    }
    v->blob = malloc(total);
    if (!v->blob)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %zu bytes", total);
    for (uint32_t i = 0; i < v->n; i++) {
        used += make_piece(v, i, v->blob + used);
        if (v->piece[i].len > v->longest_piece)
            v->longest_piece = v->piece[i].len;
        if (vocab_is_control(v, i) && v->piece[i].len)
            v->control[v->n_control++] = i;
    }
    return STATUS_OK;
}

static enum status read_id(const struct vocab *v, const struct gguf *g, const char *key, int64_t *out, struct error *err)
{
    uint64_t id;
    *out = -1;
    if (!gguf_u64(g, key, &id))
        return STATUS_OK;
    if (id >= v->n)
        return error_set(err, STATUS_BAD_MODEL, "%s is %llu, the vocabulary has %u tokens", key, (unsigned long long)id,
                         v->n);
    *out = (int64_t)id;
    return STATUS_OK;
}

/* Files of this kind without the key mean sentencepiece's own ids: 1 for <s>, 2 for </s>. */
static void default_id(const struct vocab *v, const struct gguf *g, const char *key, uint32_t id, int64_t *out)
{
    if (v->model == VOCAB_SENTENCEPIECE && !gguf_has(g, key) && id < v->n && v->kind[id] == TOKEN_CONTROL)
        *out = id;
}

/* For characters that no token can say: by key, else the first token of that kind. */
static enum status read_unknown(struct vocab *v, const struct gguf *g, struct error *err)
{
    TRY(read_id(v, g, KEY("unknown_token_id"), &v->unknown, err));
    for (uint32_t i = 0; v->unknown < 0 && i < v->n; i++)
        if (v->kind[i] == TOKEN_UNKNOWN)
            v->unknown = i;
    return STATUS_OK;
}

static void mark_ends_by_name(struct vocab *v)
{
    for (uint32_t i = 0; i < v->n; i++) {
        if (!vocab_is_control(v, i) && v->kind[i] != TOKEN_USER_DEFINED)
            continue;
        for (size_t k = 0; k < ARRAY_LEN(end_names); k++) {
            const char *name = end_names[k].text;
            if (v->raw[i].len == strlen(name) && memcmp(v->raw[i].data, name, v->raw[i].len) == 0)
                v->is_end[i] = !end_names[k].only_control || vocab_is_control(v, i);
        }
    }
}

static enum status read_meanings(struct vocab *v, const struct gguf *g, int adds_bos, struct error *err)
{
    static const char *const end_keys[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    TRY(read_id(v, g, KEY("bos_token_id"), &v->bos, err));
    TRY(read_id(v, g, KEY("eos_token_id"), &v->eos, err));
    default_id(v, g, KEY("bos_token_id"), 1, &v->bos);
    default_id(v, g, KEY("eos_token_id"), 2, &v->eos);
    TRY(read_unknown(v, g, err));
    mark_ends_by_name(v);
    if (v->eos >= 0)
        v->is_end[v->eos] = 1;
    for (size_t k = 0; k < ARRAY_LEN(end_keys); k++) {
        int64_t id;
        TRY(read_id(v, g, end_keys[k], &id, err));
        if (id >= 0)
            v->is_end[id] = 1;
    }
    v->add_bos = adds_bos;
    gguf_bool(g, KEY("add_bos_token"), &v->add_bos);
    gguf_bool(g, KEY("add_eos_token"), &v->add_eos);
    v->add_bos = v->add_bos && v->bos >= 0;
    v->add_eos = v->add_eos && v->eos >= 0;
    return STATUS_OK;
}

static enum status load(struct vocab *v, const struct gguf *g, int adds_bos, struct error *err)
{
    TRY(read_tokens(v, g, err));
    TRY(read_kinds(v, g, err));
    TRY(make_pieces(v, err));
    return read_meanings(v, g, adds_bos, err);
}

enum status vocab_init(struct vocab *v, const struct gguf *g, enum vocab_model model, int adds_bos, struct error *err)
{
    *v = (struct vocab){.model = model, .bos = -1, .eos = -1, .unknown = -1};
    enum status s = load(v, g, adds_bos, err);
    if (s != STATUS_OK)
        vocab_fini(v);
    return s;
}

void vocab_fini(struct vocab *v)
{
    free(v->raw);
    free(v->piece);
    free(v->kind);
    free(v->is_end);
    free(v->reachable);
    free(v->control);
    free(v->blob);
    *v = (struct vocab){0};
}
