/* common/model/gguf_impl.h - what the three files of the GGUF reader share.
 *
 * Purpose    The struct behind gguf.h and the steps between its files: gguf.c (files, look-up, hash), gguf_parse.c (from
 *            bytes to checked tables), gguf_value.c (metadata values). Nobody else includes it.
 * Ownership  struct gguf owns its tables; the bytes are the mapping's or the caller's.
 * Threading  As gguf.h.
 * Errors     STATUS_BAD_MODEL, STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_COMMON_MODEL_GGUF_IMPL_H
#define SLUICE_COMMON_MODEL_GGUF_IMPL_H

#include <string.h>
#include <time.h>

#include "common/model/gguf.h"

/* X(name, id in the file, bytes of a value, or 0 where the value says its own length) */
#define GGUF_VALUE_MAP(X)                                                                                              \
    X(U8, 0, 1)                                                                                                        \
    X(I8, 1, 1)                                                                                                        \
    X(U16, 2, 2)                                                                                                       \
    X(I16, 3, 2)                                                                                                       \
    X(U32, 4, 4)                                                                                                       \
    X(I32, 5, 4)                                                                                                       \
    X(F32, 6, 4)                                                                                                       \
    X(BOOL, 7, 1)                                                                                                      \
    X(TEXT, 8, 0)                                                                                                      \
    X(ARRAY, 9, 0)                                                                                                     \
    X(U64, 10, 8)                                                                                                      \
    X(I64, 11, 8)                                                                                                      \
    X(F64, 12, 8)

enum gguf_value_type {
#define X(name, id, bytes) GGUF_##name = (id),
    GGUF_VALUE_MAP(X)
#undef X
    GGUF_N_VALUE_TYPES,
};

/* More than any model has; with them the tables stay under 9 MiB whatever a file holds. */
enum { GGUF_MAX_KEYS = 65536, GGUF_MAX_TENSORS = 65536, GGUF_MAX_NAME = 65535 };

struct gguf_key {
    struct text name;
    enum gguf_value_type type;
    enum gguf_value_type element; /* of an array */
    uint64_t n;                   /* elements of an array, bytes of a text, else 1 */
    const uint8_t *value;         /* the first element, byte or the value; all of it lies in the file */
};

struct gguf {
    const uint8_t *data;
    uint64_t len;
    int mapped;         /* data is ours to unmap, fd to close */
    int fd;
    struct timespec written; /* of the file when it was opened */
    uint64_t table_end; /* bytes before: header, metadata and tensor table */
    uint32_t n_keys, n_tensors;
    struct gguf_key *keys;         /* in the file's order */
    struct gguf_tensor *tensors;   /* the same */
    uint32_t *key_order;           /* indices by name, for look-up and to find duplicates */
    uint32_t *tensor_order;
};

/* Fills the tables of g from g->data[0, g->len). What a failure leaves is freed by gguf_close. */
enum status gguf__parse(struct gguf *g, struct error *err);
/* NULL: absent. */
const struct gguf_key *gguf__find_key(const struct gguf *g, const char *name, size_t len);
/* Bytes of one value; 0 for texts and arrays. */
uint32_t gguf__value_bytes(enum gguf_value_type type);
/* 1 and *out if the bytes at p hold an integer (or bool) of this type. *negative: *out is a two's complement. */
int gguf__integer(enum gguf_value_type type, const uint8_t *p, uint64_t *out, int *negative);

static inline int gguf__compare(struct text a, struct text b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.data, b.data, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static inline uint32_t gguf__load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t gguf__load_u64(const uint8_t *p)
{
    return gguf__load_u32(p) | (uint64_t)gguf__load_u32(p + 4) << 32;
}

#endif
