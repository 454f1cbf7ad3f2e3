#include "common/model/gguf_impl.h"

uint32_t gguf__value_bytes(enum gguf_value_type type)
{
    static const uint8_t bytes[] = {
#define X(name, id, size) [id] = (size),
        GGUF_VALUE_MAP(X)
#undef X
    };
    return bytes[type];
}

/* The low `bytes` bytes, sign-extended for signed types. */
int gguf__integer(enum gguf_value_type type, const uint8_t *p, uint64_t *out, int *negative)
{
    uint32_t bytes = gguf__value_bytes(type);
    uint64_t v = 0;
    if (type == GGUF_F32 || type == GGUF_F64 || bytes == 0)
        return 0;
    for (uint32_t i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    int is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    *negative = is_signed && v >> (8 * bytes - 1);
    if (*negative && bytes < 8)
        v |= ~0ull << 8 * bytes;
    *out = v;
    return 1;
}

static double load_float(enum gguf_value_type type, const uint8_t *p)
{
    uint32_t low = gguf__load_u32(p);
    float f;
    double d;
    if (type == GGUF_F32) {
        memcpy(&f, &low, 4);
        return f;
    }
    uint64_t all = gguf__load_u64(p);
    memcpy(&d, &all, 8);
    return d;
}

static const struct gguf_key *find(const struct gguf *g, const char *key)
{
    return gguf__find_key(g, key, strlen(key));
}

static const struct gguf_key *find_of(const struct gguf *g, const char *key, enum gguf_value_type type)
{
    const struct gguf_key *k = find(g, key);
    return k && k->type == type ? k : NULL;
}

int gguf_has(const struct gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    const struct gguf_key *k = find(g, key);
    uint64_t v;
    int negative;
    if (!k || k->type == GGUF_BOOL || !gguf__integer(k->type, k->value, &v, &negative) || negative)
        return 0;
    *out = v;
    return 1;
}

int gguf_f64(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_key *k = find(g, key);
    if (!k || (k->type != GGUF_F32 && k->type != GGUF_F64))
        return 0;
    *out = load_float(k->type, k->value);
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, int *out)
{
    const struct gguf_key *k = find_of(g, key, GGUF_BOOL);
    if (!k)
        return 0;
    *out = *k->value;
    return 1;
}

int gguf_text(const struct gguf *g, const char *key, struct text *out)
{
    const struct gguf_key *k = find_of(g, key, GGUF_TEXT);
    if (!k)
        return 0;
    *out = (struct text){(const char *)k->value, k->n};
    return 1;
}

/* --- arrays
 * ------------------------------------------------------------------------------------------------------------- */

enum element_kind { KIND_TEXT, KIND_FLOAT, KIND_INT };

static int is_kind(enum gguf_value_type type, enum element_kind kind)
{
    switch (type) {
    case GGUF_TEXT:
        return kind == KIND_TEXT;
    case GGUF_F32:
    case GGUF_F64:
        return kind == KIND_FLOAT;
    default:
        return kind == KIND_INT;
    }
}

static const struct gguf_key *find_array(const struct gguf *g, const char *key, enum element_kind kind)
{
    const struct gguf_key *k = find_of(g, key, GGUF_ARRAY);
    return k && is_kind(k->element, kind) ? k : NULL;
}

static int array_length(const struct gguf_key *k, uint64_t *n)
{
    if (!k)
        return 0;
    *n = k->n;
    return 1;
}

int gguf_array_texts(const struct gguf *g, const char *key, uint64_t *n)
{
    return array_length(find_array(g, key, KIND_TEXT), n);
}

int gguf_array_f32(const struct gguf *g, const char *key, uint64_t *n)
{
    return array_length(find_array(g, key, KIND_FLOAT), n);
}

int gguf_array_ints(const struct gguf *g, const char *key, uint64_t *n)
{
    return array_length(find_array(g, key, KIND_INT), n);
}

/* The parser walked the array, so every length in it holds. */
enum status gguf_read_texts(const struct gguf *g, const char *key, struct text *out, uint64_t n)
{
    const struct gguf_key *k = find_array(g, key, KIND_TEXT);
    if (!k || n > k->n)
        return STATUS_BAD_MODEL;
    const uint8_t *p = k->value;
    for (uint64_t i = 0; i < n; i++) {
        out[i] = (struct text){(const char *)p + 8, gguf__load_u64(p)};
        p += 8 + out[i].len;
    }
    return STATUS_OK;
}

enum status gguf_read_f32(const struct gguf *g, const char *key, float *out, uint64_t n)
{
    const struct gguf_key *k = find_array(g, key, KIND_FLOAT);
    if (!k || n > k->n)
        return STATUS_BAD_MODEL;
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)load_float(k->element, k->value + i * gguf__value_bytes(k->element));
    return STATUS_OK;
}

enum status gguf_read_i64(const struct gguf *g, const char *key, int64_t *out, uint64_t n)
{
    const struct gguf_key *k = find_array(g, key, KIND_INT);
    if (!k || n > k->n)
        return STATUS_BAD_MODEL;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t v;
        int negative;
        gguf__integer(k->element, k->value + i * gguf__value_bytes(k->element), &v, &negative);
        if (!negative && v > INT64_MAX)
            return STATUS_BAD_MODEL;
        out[i] = (int64_t)v;
    }
    return STATUS_OK;
}
