/* common/text/vocab.h - the tokens of a GGUF: bytes, kinds and the ids with a meaning.
 *
 * Purpose    Reads and checks tokenizer.ggml.*; turns the printable stand-ins of byte-level vocabularies back into bytes,
 *            and the U+2581 of SentencePiece ones into spaces. It neither cuts nor merges text.
 * Ownership  vocab_init/fini in place. Texts of control tokens point into the gguf.
 * Threading  Read-only after vocab_init.
 * Invariants 1. Every array has n entries; bos, eos and unknown are below n or -1.
 *            2. reachable[i] is 1 only for tokens that ordinary text may become: never a control token.
 * Errors     STATUS_BAD_MODEL naming the key, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_TEXT_VOCAB_H
#define SLUICE_COMMON_TEXT_VOCAB_H

#include "common/base/error.h"
#include "common/model/gguf.h"

enum token_kind { /* numbers of tokenizer.ggml.token_type */
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2, /* treated as control */
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

enum vocab_model {
    VOCAB_BYTE_LEVEL,    /* "gpt2": texts are printable stand-ins of bytes, merges are listed */
    VOCAB_SENTENCEPIECE, /* "llama": U+2581 stands for a space, tokens have scores */
};

struct vocab {
    enum vocab_model model;
    uint32_t n;
    struct text *raw;       /* [n] as in the file */
    struct text *piece;     /* [n] the bytes that a token stands for, control tokens too */
    unsigned char *kind;    /* [n] enum token_kind */
    unsigned char *is_end;  /* [n] */
    unsigned char *reachable; /* [n] byte-level: merges and whole words may make it */
    uint32_t *control;      /* [n_control] ids with a text, ascending */
    uint32_t n_control;
    char *blob;             /* what piece points into */
    size_t longest_raw, longest_piece;
    int64_t bos, eos, unknown;
    int add_bos, add_eos;
};

enum { VOCAB_MAX_TOKENS = 1 << 24 };

/* adds_bos: what holds when the file has no add_bos_token. */
enum status vocab_init(struct vocab *v, const struct gguf *g, enum vocab_model model, int adds_bos, struct error *err);
void vocab_fini(struct vocab *v);
/* Byte-level text to bytes; returns their number (never more than t.len). *whole: every character stood for a byte. */
size_t vocab_decode(struct text t, char *out, int *whole);
int vocab_is_control(const struct vocab *v, uint32_t id);

#endif
