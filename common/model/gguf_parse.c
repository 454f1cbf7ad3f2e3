#include <inttypes.h>
#include <stdlib.h>

#include "common/model/gguf_impl.h"

/* Walks the file once, front to back. Nothing is read before take has said that it is there. */
struct reader {
    struct gguf *g;
    uint64_t at;
    struct error *err;
};

static enum status bad(struct reader *r, const char *field, uint64_t at, const char *why)
{
    return error_set(r->err, STATUS_BAD_MODEL, "%s at byte %" PRIu64 ": %s", field, at, why);
}

static enum status bad_number(struct reader *r, const char *field, uint64_t at, uint64_t value, const char *why)
{
    return error_set(r->err, STATUS_BAD_MODEL, "%s at byte %" PRIu64 " is %" PRIu64 ": %s", field, at, value, why);
}

static uint64_t left(const struct reader *r)
{
    return r->g->len - r->at;
}

static enum status take(struct reader *r, uint64_t n, const char *field, const uint8_t **out)
{
    if (n > left(r))
        return error_set(r->err, STATUS_BAD_MODEL,
                         "%s at byte %" PRIu64 " needs %" PRIu64 " bytes, the file ends after %" PRIu64, field, r->at,
                         n, left(r));
    *out = r->g->data + r->at;
    r->at += n;
    return STATUS_OK;
}

static enum status take_u32(struct reader *r, const char *field, uint32_t *out)
{
    const uint8_t *p = NULL;
    TRY(take(r, 4, field, &p));
    *out = gguf__load_u32(p);
    return STATUS_OK;
}

static enum status take_u64(struct reader *r, const char *field, uint64_t *out)
{
    const uint8_t *p = NULL;
    TRY(take(r, 8, field, &p));
    *out = gguf__load_u64(p);
    return STATUS_OK;
}

static enum status take_text(struct reader *r, const char *field, struct text *out)
{
    uint64_t at = r->at, n = 0;
    const uint8_t *p = NULL;
    TRY(take_u64(r, field, &n));
    if (n > left(r))
        return bad_number(r, field, at, n, "longer than the rest of the file");
    TRY(take(r, n, field, &p));
    *out = (struct text){(const char *)p, n};
    return STATUS_OK;
}

/* A count that sizes a table: no larger than the bytes that are left could hold, so that a short file asks for little.
 */
static enum status take_count(struct reader *r, const char *field, uint64_t max, uint64_t min_entry_bytes,
                              uint32_t *out)
{
    uint64_t at = r->at, n = 0;
    TRY(take_u64(r, field, &n));
    if (n > max)
        return bad_number(r, field, at, n, "more than any model has");
    if (n > left(r) / min_entry_bytes)
        return bad_number(r, field, at, n, "more than the file has room for");
    *out = (uint32_t)n;
    return STATUS_OK;
}

static enum status parse_header(struct reader *r)
{
    const uint8_t *magic = NULL;
    uint32_t version = 0;
    TRY(take(r, 4, "magic", &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return bad(r, "magic", 0, "this is not a GGUF file");
    TRY(take_u32(r, "version", &version));
    if (version != 2 && version != 3)
        return bad_number(r, "version", 4, version,
                          version == 0 || version & 0xffff ? "only versions 2 and 3 are read"
                                                           : "big-endian files are not read");
    /* The least that an entry takes: name length, one letter, type, value; for a tensor n_dims, one dimension, offset.
     */
    TRY(take_count(r, "n_tensors", GGUF_MAX_TENSORS, 8 + 1 + 4 + 8 + 4 + 8, &r->g->n_tensors));
    TRY(take_count(r, "n_kv", GGUF_MAX_KEYS, 8 + 1 + 4 + 1, &r->g->n_keys));
    return STATUS_OK;
}

static enum status allocate_tables(struct reader *r)
{
    struct gguf *g = r->g;
    g->keys = calloc(g->n_keys ? g->n_keys : 1, sizeof *g->keys);
    g->key_order = calloc(g->n_keys ? g->n_keys : 1, sizeof *g->key_order);
    g->tensors = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *g->tensors);
    g->tensor_order = calloc(g->n_tensors ? g->n_tensors : 1, sizeof *g->tensor_order);
    if (!g->keys || !g->key_order || !g->tensors || !g->tensor_order)
        return error_set(r->err, STATUS_OUT_OF_MEMORY, "no memory for %u keys and %u tensors", g->n_keys, g->n_tensors);
    return STATUS_OK;
}

/* --- metadata
 * ----------------------------------------------------------------------------------------------------------- */

static enum status take_value_type(struct reader *r, const char *field, enum gguf_value_type *out)
{
    uint64_t at = r->at;
    uint32_t type = 0;
    TRY(take_u32(r, field, &type));
    if (type >= GGUF_N_VALUE_TYPES)
        return bad_number(r, field, at, type, "no such type");
    *out = (enum gguf_value_type)type;
    return STATUS_OK;
}

static enum status take_array(struct reader *r, struct gguf_key *k)
{
    uint64_t at = r->at, count_at;
    TRY(take_value_type(r, "array type", &k->element));
    if (k->element == GGUF_ARRAY)
        return bad(r, "array type", at, "arrays of arrays are not read");
    count_at = r->at;
    TRY(take_u64(r, "array length", &k->n));
    uint32_t bytes = gguf__value_bytes(k->element);
    if (k->n > left(r) / (bytes ? bytes : 8))
        return bad_number(r, "array length", count_at, k->n, "more than the file has room for");
    k->value = r->g->data + r->at;
    if (bytes) {
        r->at += k->n * bytes;
        return STATUS_OK;
    }
    for (uint64_t i = 0; i < k->n; i++) {
        struct text skipped;
        TRY(take_text(r, "array text", &skipped));
    }
    return STATUS_OK;
}

static enum status take_value(struct reader *r, struct gguf_key *k)
{
    uint64_t at;
    TRY(take_value_type(r, "value type", &k->type));
    at = r->at;
    if (k->type == GGUF_ARRAY)
        return take_array(r, k);
    if (k->type == GGUF_TEXT) {
        struct text t;
        TRY(take_text(r, "text value", &t));
        k->value = (const uint8_t *)t.data;
        k->n = t.len;
        return STATUS_OK;
    }
    k->n = 1;
    TRY(take(r, gguf__value_bytes(k->type), "value", &k->value));
    if (k->type == GGUF_BOOL && *k->value > 1)
        return bad_number(r, "bool value", at, *k->value, "neither 0 nor 1");
    return STATUS_OK;
}

static enum status take_name(struct reader *r, const char *field, struct text *out)
{
    uint64_t at = r->at;
    TRY(take_text(r, field, out));
    if (out->len == 0 || out->len > GGUF_MAX_NAME)
        return bad_number(r, field, at, out->len, "a name has 1 to 65535 bytes");
    return STATUS_OK;
}

static enum status parse_keys(struct reader *r)
{
    for (uint32_t i = 0; i < r->g->n_keys; i++) {
        struct gguf_key *k = &r->g->keys[i];
        TRY(take_name(r, "key name", &k->name));
        TRY(take_value(r, k));
    }
    return STATUS_OK;
}

static uint64_t offset_of(const struct gguf *g, struct text name)
{
    return (uint64_t)((const uint8_t *)name.data - g->data);
}

static enum status bad_duplicate(struct reader *r, const char *what, struct text a, struct text b)
{
    return error_set(r->err, STATUS_BAD_MODEL, "%s '%s' at byte %" PRIu64 " is there already, at byte %" PRIu64, what,
                     gguf_printable(a).text, offset_of(r->g, a), offset_of(r->g, b));
}

/* Sorted rather than hashed: no choice of names makes it slow. */
static int compare_keys(const void *a, const void *b, void *keys)
{
    const struct gguf_key *k = keys;
    return gguf__compare(k[*(const uint32_t *)a].name, k[*(const uint32_t *)b].name);
}

static enum status order_keys(struct reader *r)
{
    struct gguf *g = r->g;
    for (uint32_t i = 0; i < g->n_keys; i++)
        g->key_order[i] = i;
    qsort_r(g->key_order, g->n_keys, sizeof *g->key_order, compare_keys, g->keys);
    for (uint32_t i = 1; i < g->n_keys; i++) {
        struct text a = g->keys[g->key_order[i - 1]].name, b = g->keys[g->key_order[i]].name;
        if (gguf__compare(a, b) == 0)
            return a.data < b.data ? bad_duplicate(r, "key", b, a) : bad_duplicate(r, "key", a, b);
    }
    return STATUS_OK;
}

/* general.alignment, 32 when absent. */
static enum status read_alignment(struct reader *r, uint64_t *out)
{
    static const char name[] = "general.alignment";
    const struct gguf_key *k = gguf__find_key(r->g, name, sizeof name - 1);
    uint64_t a;
    int negative;
    if (!k) {
        *out = 32;
        return STATUS_OK;
    }
    uint64_t at = (uint64_t)(k->value - r->g->data);
    if (!gguf__integer(k->type, k->value, &a, &negative) || negative)
        return bad(r, name, at, "not an unsigned integer");
    if (a < 8 || a > 1u << 20 || (a & (a - 1)) != 0)
        return bad_number(r, name, at, a, "not a power of two in 8..1048576");
    *out = a;
    return STATUS_OK;
}

/* --- tensors
 * ------------------------------------------------------------------------------------------------------------ */

static enum status take_dims(struct reader *r, struct gguf_tensor *t, uint64_t *n_elements)
{
    uint64_t at = r->at;
    TRY(take_u32(r, "n_dims", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > 4)
        return bad_number(r, "n_dims", at, t->n_dims, "a tensor has 1 to 4 dimensions");
    *n_elements = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims)
            continue;
        at = r->at;
        TRY(take_u64(r, "dimension", &t->ne[d]));
        if (t->ne[d] == 0 || __builtin_mul_overflow(*n_elements, t->ne[d], n_elements) || *n_elements > INT64_MAX)
            return bad_number(r, "dimension", at, t->ne[d], "zero, or more elements than can be counted");
    }
    return STATUS_OK;
}

static enum status take_tensor_type(struct reader *r, struct gguf_tensor *t, uint64_t n_elements)
{
    uint64_t at = r->at;
    uint32_t type = 0;
    TRY(take_u32(r, "tensor type", &type));
    const struct tensor_type_info *info = tensor_type_info(type);
    if (!info)
        return bad_number(r, "tensor type", at, type, "no such type");
    if (t->ne[0] % info->block_elements != 0)
        return error_set(r->err, STATUS_BAD_MODEL,
                         "tensor type %s at byte %" PRIu64 " has blocks of %u elements, '%s' has rows of %" PRIu64,
                         info->name, at, info->block_elements, gguf_printable(t->name).text, t->ne[0]);
    t->type = (enum tensor_type)type;
    if (__builtin_mul_overflow(n_elements / info->block_elements, (uint64_t)info->block_bytes, &t->bytes))
        return bad(r, "tensor type", at, "more bytes than can be counted");
    return STATUS_OK;
}

/* file_offset is still relative to the data section, whose start the end of the table gives. */
static enum status parse_tensors(struct reader *r)
{
    for (uint32_t i = 0; i < r->g->n_tensors; i++) {
        struct gguf_tensor *t = &r->g->tensors[i];
        uint64_t n_elements = 0;
        TRY(take_name(r, "tensor name", &t->name));
        TRY(take_dims(r, t, &n_elements));
        TRY(take_tensor_type(r, t, n_elements));
        TRY(take_u64(r, "tensor offset", &t->file_offset));
    }
    r->g->table_end = r->at;
    return STATUS_OK;
}

/* Where the offset of a tensor stands in the table: behind name, n_dims, dimensions and type. */
static uint64_t offset_field(const struct gguf *g, const struct gguf_tensor *t)
{
    return offset_of(g, t->name) + t->name.len + 4 + 8 * (uint64_t)t->n_dims + 4;
}

static enum status bad_offset(struct reader *r, const struct gguf_tensor *t, uint64_t offset, const char *why)
{
    return error_set(r->err, STATUS_BAD_MODEL, "offset of tensor '%s' at byte %" PRIu64 " is %" PRIu64 ": %s",
                     gguf_printable(t->name).text, offset_field(r->g, t), offset, why);
}

static uint64_t data_start(const struct gguf *g, uint64_t alignment)
{
    return (g->table_end + alignment - 1) & ~(alignment - 1); /* table_end <= len, alignment <= 1 MiB: no overflow */
}

static enum status place_tensors(struct reader *r, uint64_t alignment)
{
    struct gguf *g = r->g;
    uint64_t start = data_start(g, alignment);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t offset = t->file_offset;
        if (offset % alignment != 0)
            return bad_offset(r, t, offset, "not a multiple of the alignment");
        if (start > g->len || offset > g->len - start || t->bytes > g->len - start - offset)
            return error_set(r->err, STATUS_BAD_MODEL,
                             "offset of tensor '%s' at byte %" PRIu64 " is %" PRIu64 ": with %" PRIu64
                             " bytes it ends behind the file (%" PRIu64 " bytes, data from %" PRIu64 ")",
                             gguf_printable(t->name).text, offset_field(g, t), offset, t->bytes, g->len, start);
        t->file_offset = start + offset;
        t->data = g->data + t->file_offset;
    }
    return STATUS_OK;
}

static int compare_offsets(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *t = tensors;
    uint64_t x = t[*(const uint32_t *)a].file_offset, y = t[*(const uint32_t *)b].file_offset;
    return (x > y) - (x < y);
}

/* before NULL: t is the first in the data section. */
static enum status check_neighbours(struct reader *r, const struct gguf_tensor *before, const struct gguf_tensor *t,
                                    uint64_t end, uint64_t alignment)
{
    if (t->file_offset < end)
        return error_set(r->err, STATUS_BAD_MODEL,
                         "offset of tensor '%s' at byte %" PRIu64 " puts it inside tensor '%s'",
                         gguf_printable(t->name).text, offset_field(r->g, t), gguf_printable(before->name).text);
    if (t->file_offset - end >= alignment)
        return error_set(r->err, STATUS_BAD_MODEL,
                         "offset of tensor '%s' at byte %" PRIu64 " leaves %" PRIu64 " bytes before it to no tensor",
                         gguf_printable(t->name).text, offset_field(r->g, t), t->file_offset - end);
    return STATUS_OK;
}

/* No overlap; and no more than padding between tensors and behind them, since more means that a count, type or
 * dimension is not what the file was written with. Uses tensor_order for a moment; order_tensors sorts it anew. */
static enum status check_places(struct reader *r, uint64_t alignment)
{
    struct gguf *g = r->g;
    const struct gguf_tensor *before = NULL;
    uint64_t end = data_start(g, alignment);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->tensor_order[i] = i;
    qsort_r(g->tensor_order, g->n_tensors, sizeof *g->tensor_order, compare_offsets, g->tensors);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[g->tensor_order[i]];
        TRY(check_neighbours(r, before, t, end, alignment));
        before = t;
        end = t->file_offset + t->bytes;
    }
    if (g->len > end && g->len - end >= alignment)
        return error_set(r->err, STATUS_BAD_MODEL,
                         "n_tensors at byte 8 is %u: the tensors end at byte %" PRIu64 ", the file has %" PRIu64
                         " bytes",
                         g->n_tensors, end, g->len);
    return STATUS_OK;
}

static int compare_tensors(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *t = tensors;
    return gguf__compare(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static enum status order_tensors(struct reader *r)
{
    struct gguf *g = r->g;
    qsort_r(g->tensor_order, g->n_tensors, sizeof *g->tensor_order, compare_tensors, g->tensors);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        struct text a = g->tensors[g->tensor_order[i - 1]].name, b = g->tensors[g->tensor_order[i]].name;
        if (gguf__compare(a, b) == 0)
            return a.data < b.data ? bad_duplicate(r, "tensor", b, a) : bad_duplicate(r, "tensor", a, b);
    }
    return STATUS_OK;
}

enum status gguf__parse(struct gguf *g, struct error *err)
{
    struct reader r = {.g = g, .err = err};
    uint64_t alignment = 0;
    TRY(parse_header(&r));
    TRY(allocate_tables(&r));
    TRY(parse_keys(&r));
    TRY(order_keys(&r));
    TRY(read_alignment(&r, &alignment));
    TRY(parse_tensors(&r));
    TRY(place_tensors(&r, alignment));
    TRY(check_places(&r, alignment));
    return order_tensors(&r);
}
