#include "common/text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/text/utf8.h"

#define KEY(name) "tokenizer.ggml." name

/* Tokens that end an answer by their name, where the file's keys do not say so. "</s>" only as a control token: in some
 * vocabularies it is an HTML tag (qwen2.5: normal, gemma3: user-defined). */
static const char *const end_names[] = {
    "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "</s>",
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
        else
            v->kind[i] = (unsigned char)kinds[i];
    }
    free(kinds);
    return s;
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

/* Fills piece[i] and reachable[i]; writes into blob and returns how much. */
static size_t make_piece(struct vocab *v, uint32_t i, char *blob)
{
    struct text raw = v->raw[i];
    int whole, byte = v->kind[i] == TOKEN_BYTE ? byte_token(raw) : -1;
    size_t len = 0;
    if (byte >= 0) {
        blob[len++] = (char)byte;
        v->piece[i] = (struct text){blob, len};
    } else if (vocab_is_control(v, i) || v->kind[i] == TOKEN_USER_DEFINED) {
        v->piece[i] = raw;
        size_t n = vocab_decode(raw, blob, &whole);
        v->reachable[i] = v->kind[i] == TOKEN_USER_DEFINED && whole && n == raw.len && memcmp(blob, raw.data, n) == 0;
    } else if (v->kind[i] == TOKEN_UNUSED) {
        v->piece[i] = (struct text){blob, 0};
    } else {
        len = vocab_decode(raw, blob, &whole);
        v->piece[i] = (struct text){blob, len};
        v->reachable[i] = (unsigned char)whole;
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

static void mark_ends_by_name(struct vocab *v)
{
    for (uint32_t i = 0; i < v->n; i++) {
        if (!vocab_is_control(v, i) && v->kind[i] != TOKEN_USER_DEFINED)
            continue;
        for (size_t k = 0; k < ARRAY_LEN(end_names); k++) {
            const char *name = end_names[k];
            if (v->raw[i].len != strlen(name) || memcmp(v->raw[i].data, name, v->raw[i].len) != 0)
                continue;
            v->is_end[i] = strcmp(name, "</s>") != 0 || vocab_is_control(v, i);
        }
    }
}

static enum status read_meanings(struct vocab *v, const struct gguf *g, int adds_bos, struct error *err)
{
    static const char *const end_keys[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
    TRY(read_id(v, g, KEY("bos_token_id"), &v->bos, err));
    TRY(read_id(v, g, KEY("eos_token_id"), &v->eos, err));
    mark_ends_by_name(v);
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

enum status vocab_init(struct vocab *v, const struct gguf *g, int adds_bos, struct error *err)
{
    *v = (struct vocab){.bos = -1, .eos = -1};
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
