#include "tests/lib/mutate.h"

#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { MAX_DEPTH = 4 };

struct field {
    uint64_t number, value; /* value: of VARINT, 64 and 32 */
    enum wire wire;
    const uint8_t *at, *end; /* all of it, tag included */
    const uint8_t *bytes;    /* BYTES */
    size_t n;
};

struct draws {
    uint64_t seed, n;
};

static uint64_t draw(struct draws *d, uint64_t below)
{
    return rand_at(d->seed, d->n++) % below;
}

static int read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t b = *(*p)++;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128)
            return 1;
    }
    return 0;
}

/* 0: these bytes are no field. */
static int read_field(const uint8_t **p, const uint8_t *end, struct field *f)
{
    uint64_t tag;
    *f = (struct field){.at = *p};
    if (!read_varint(p, end, &tag) || tag >> 3 == 0)
        return 0;
    f->number = tag >> 3;
    f->wire = (enum wire)(tag & 7);
    size_t fixed = f->wire == WIRE_64 ? 8 : f->wire == WIRE_32 ? 4 : 0;
    if (f->wire == WIRE_VARINT) {
        if (!read_varint(p, end, &f->value))
            return 0;
    } else if (f->wire == WIRE_BYTES) {
        uint64_t n;
        if (!read_varint(p, end, &n) || n > (uint64_t)(end - *p))
            return 0;
        f->bytes = *p;
        f->n = (size_t)n;
        *p += n;
    } else if (fixed && (size_t)(end - *p) >= fixed) {
        memcpy(&f->value, *p, fixed);
        *p += fixed;
    } else {
        return 0;
    }
    f->end = *p;
    return 1;
}

/* Number of fields, 0: none, or no message. */
static size_t count_fields(const uint8_t *data, size_t len)
{
    const uint8_t *p = data, *end = data + len;
    struct field f;
    size_t n = 0;
    for (; p < end; n++)
        if (!read_field(&p, end, &f))
            return 0;
    return n;
}

static size_t put_varint(uint8_t *out, uint64_t v)
{
    size_t n = 0;
    for (; v > 127; v >>= 7)
        out[n++] = (uint8_t)(v | 128);
    out[n++] = (uint8_t)v;
    return n;
}

static size_t put_bytes(uint8_t *out, uint64_t number, const uint8_t *bytes, size_t n)
{
    size_t at = put_varint(out, number << 3 | WIRE_BYTES);
    at += put_varint(out + at, n);
    memmove(out + at, bytes, n);
    return at + n;
}

static size_t put_number(uint8_t *out, const struct field *f, uint64_t value)
{
    size_t at = put_varint(out, f->number << 3 | f->wire), n = f->wire == WIRE_64 ? 8 : 4;
    if (f->wire == WIRE_VARINT)
        return at + put_varint(out + at, value);
    memcpy(out + at, &value, n);
    return at + n;
}

static uint64_t extreme(struct draws *d, uint64_t value)
{
    const uint64_t values[] = {0,          1,          value + 1,  value - 1, INT32_MAX,  (uint64_t)INT32_MAX + 1,
                               UINT32_MAX, UINT32_MAX + 1ull, INT64_MAX,  UINT64_MAX - 1, UINT64_MAX, rand_at(d->seed, d->n++)};
    return values[draw(d, ARRAY_LEN(values))];
}

static size_t change(struct draws *d, const struct field *f, uint8_t *out, int depth);

static size_t change_one(struct draws *d, const uint8_t *data, size_t len, uint8_t *out, int depth)
{
    size_t n = count_fields(data, len), chosen = n ? draw(d, n) : 0, at = 0;
    const uint8_t *p = data, *end = data + len;
    struct field f;
    for (size_t i = 0; i < n; i++) {
        CHECK(read_field(&p, end, &f));
        size_t whole = (size_t)(f.end - f.at);
        if (i == chosen) {
            at += change(d, &f, out + at, depth);
        } else {
            memcpy(out + at, f.at, whole);
            at += whole;
        }
    }
    return at;
}

/* A text, packed numbers, or a message that shall be broken as bytes. */
static size_t change_bytes(struct draws *d, const struct field *f, uint8_t *out)
{
    static uint8_t twice[MUTATE_MAX];
    size_t n = f->n;
    memcpy(twice, f->bytes, n);
    switch (draw(d, 4)) {
    case 0:
        n = n ? draw(d, n) : 0;
        break;
    case 1:
        memcpy(twice + n, f->bytes, n);
        n *= 2;
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            twice[i] = (uint8_t)draw(d, 256);
        break;
    default:
        if (n)
            twice[draw(d, n)] ^= (uint8_t)(1u << draw(d, 8));
    }
    return put_bytes(out, f->number, twice, n);
}

static size_t change(struct draws *d, const struct field *f, uint8_t *out, int depth)
{
    static uint8_t inner[MAX_DEPTH + 1][MUTATE_MAX];
    size_t whole = (size_t)(f->end - f->at);
    /* The outermost field is the kind of the message: mostly what is in it is of interest. */
    int deeper = f->wire == WIRE_BYTES && depth < MAX_DEPTH && count_fields(f->bytes, f->n);
    if (deeper && draw(d, depth ? 3 : 20) != 0) {
        size_t n = change_one(d, f->bytes, f->n, inner[depth], depth + 1);
        return put_bytes(out, f->number, inner[depth], n);
    }
    switch (draw(d, 6)) {
    case 0:
        return 0;
    case 1:
        memcpy(out, f->at, whole);
        memcpy(out + whole, f->at, whole);
        return 2 * whole;
    case 2: {
        struct field other = *f;
        other.number = 1 + draw(d, 20);
        return f->wire == WIRE_BYTES ? put_bytes(out, other.number, f->bytes, f->n) : put_number(out, &other, f->value);
    }
    default:
        return f->wire == WIRE_BYTES ? change_bytes(d, f, out) : put_number(out, f, extreme(d, f->value));
    }
}

size_t mutate_message(uint64_t seed, const uint8_t *data, size_t len, uint8_t *out)
{
    struct draws d = {.seed = seed};
    CHECK(len <= MUTATE_MAX / 4);
    uint64_t how = draw(&d, 20);
    if (how > 1 && count_fields(data, len))
        return change_one(&d, data, len, out, 0);
    memcpy(out, data, len);
    if (how == 0 || len == 0)
        return len ? draw(&d, len) : 0; /* cut */
    for (uint64_t i = 1 + draw(&d, 3); i--;)
        out[draw(&d, len)] ^= (uint8_t)(1u << draw(&d, 8));
    return len;
}
