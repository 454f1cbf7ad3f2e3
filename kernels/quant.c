#include "kernels/quant.h"

#include <string.h>

#include "kernels/block.h"
#include "kernels/math.h"

enum {
#define X(name, id, elements, bytes) ELEMENTS_##name = (elements), BYTES_##name = (bytes),
    TENSOR_TYPE_MAP(X)
#undef X
};

const struct block_traits *block_traits(enum tensor_type type)
{
    switch ((int)type) {
#define X(name, off, min, scales)                                                                                      \
    case TENSOR_##name: {                                                                                              \
        static const struct block_traits t = {ELEMENTS_##name, BYTES_##name, off, min, scales};                        \
        return &t;                                                                                                     \
    }
        BLOCK_QUANT_MAP(X)
#undef X
    default:
        return NULL;
    }
}

const char *block_type_name(enum tensor_type type)
{
    switch ((int)type) {
#define X(name, id, elements, bytes)                                                                                   \
    case id:                                                                                                           \
        return #name;
        TENSOR_TYPE_MAP(X)
#undef X
    default:
        return "?";
    }
}

void block_size(enum tensor_type type, uint32_t *elements, uint32_t *bytes)
{
    *elements = *bytes = 0;
    switch ((int)type) {
#define X(name, id, e, b)                                                                                              \
    case id:                                                                                                           \
        *elements = (e);                                                                                               \
        *bytes = (b);                                                                                                  \
        break;
        TENSOR_TYPE_MAP(X)
#undef X
    default:
        break;
    }
}

size_t block_row_bytes(enum tensor_type type, uint32_t k)
{
    uint32_t elements, bytes;
    block_size(type, &elements, &bytes);
    return (size_t)(k / elements) * bytes;
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return math_from_f16(h);
}

void block_k4_scales(const uint8_t *block, uint32_t sub, uint8_t *scale, uint8_t *min)
{
    const uint8_t *p = block + 4;
    if (sub < 4) {
        *scale = p[sub] & 63;
        *min = p[sub + 4] & 63;
    } else {
        *scale = (uint8_t)((p[sub + 4] & 15) | (p[sub - 4] >> 6) << 4);
        *min = (uint8_t)(p[sub + 4] >> 4 | (p[sub] >> 6) << 4);
    }
}

/* Q4_0 Q4_1 Q5_0 Q5_1: d, [m], [32 high bits], 16 bytes with elements i (low nibble) and i+16. */
static void decode_legacy(const uint8_t *p, int has_min, int has_high, uint8_t q[32], float s[2], float *mn)
{
    s[0] = s[1] = load_f16(p);
    p += 2;
    if (has_min) {
        *mn = load_f16(p);
        p += 2;
    }
    uint32_t high = 0;
    if (has_high) {
        memcpy(&high, p, 4);
        p += 4;
    }
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)((i < 16 ? p[i] & 15 : p[i - 16] >> 4) | (high >> i & 1) << 4);
}

static void decode_q6_k(const uint8_t *p, uint32_t sub, uint8_t q[32], float s[2])
{
    const uint8_t *low = p + 64 * (sub / 4), *high = p + 128 + 32 * (sub / 4);
    uint32_t j = sub % 4;
    for (uint32_t i = 0; i < 32; i++)
        q[i] = (uint8_t)((low[i + 32 * (j & 1)] >> (j & 2 ? 4 : 0) & 15) | (high[i] >> (2 * j) & 3) << 4);
    for (uint32_t h = 0; h < 2; h++)
        s[h] = load_f16(p + 208) * (float)(int8_t)p[192 + 2 * sub + h];
}

static void decode_k4(const uint8_t *p, uint32_t sub, int has_high, uint8_t q[32], float s[2], float *mn)
{
    const uint8_t *low = p + (has_high ? 48 : 16) + 32 * (sub / 2), *high = p + 16;
    uint8_t scale, min;
    block_k4_scales(p, sub, &scale, &min);
    for (int i = 0; i < 32; i++) {
        q[i] = low[i] >> (sub & 1 ? 4 : 0) & 15;
        if (has_high)
            q[i] |= (uint8_t)((high[i] >> sub & 1) << 4);
    }
    s[0] = s[1] = load_f16(p) * (float)scale;
    *mn = -(load_f16(p + 2) * (float)min);
}

void block_decode(enum tensor_type type, const uint8_t *block, uint32_t sub, uint8_t q[32], float s[2], float *mn)
{
    *mn = 0;
    switch ((int)type) {
    case TENSOR_Q4_0:
    case TENSOR_Q4_1:
        decode_legacy(block, type == TENSOR_Q4_1, 0, q, s, mn);
        break;
    case TENSOR_Q5_0:
    case TENSOR_Q5_1:
        decode_legacy(block, type == TENSOR_Q5_1, 1, q, s, mn);
        break;
    case TENSOR_Q8_0:
        s[0] = s[1] = load_f16(block);
        for (int i = 0; i < 32; i++)
            q[i] = block[2 + i] ^ 0x80;
        break;
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
        decode_k4(block, sub, type == TENSOR_Q5_K, q, s, mn);
        break;
    case TENSOR_Q6_K:
        decode_q6_k(block, sub, q, s);
        break;
    default: /* callers ask block_traits first */
        memset(q, 0, 32);
        s[0] = s[1] = 0;
        break;
    }
}

int quant_supported(enum tensor_type type)
{
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16 || block_traits(type) || block_plain(type);
}

enum tensor_type block_float_type(enum tensor_type type)
{
    return type == TENSOR_F16 || type == TENSOR_BF16 ? type : TENSOR_F32;
}

static void decode_quantized(enum tensor_type type, const struct block_traits *t, const uint8_t *src, uint32_t k, float *dst)
{
    uint32_t per = t->elements / 32;
    for (uint32_t b = 0; b < k / 32; b++) {
        uint8_t q[32];
        float s[2], mn;
        block_decode(type, src + (size_t)(b / per) * t->bytes, b % per, q, s, &mn);
        for (int i = 0; i < 32; i++) {
            float v = s[i / 16] * (float)(q[i] - t->offset);
            dst[32 * b + (uint32_t)i] = t->has_min ? v + mn : v;
        }
    }
}

static void decode_plain(enum tensor_type type, block_decode_fn *decode, const uint8_t *src, uint32_t k, float *dst)
{
    uint32_t elements, bytes;
    block_size(type, &elements, &bytes);
    for (uint32_t b = 0; b < k / elements; b++)
        decode(src + (size_t)b * bytes, dst + (size_t)b * elements);
}

int quant_decode_row(enum tensor_type type, const void *src, uint32_t k, float *dst)
{
    const struct block_traits *t = block_traits(type);
    const uint8_t *p = src;
    if (t) {
        decode_quantized(type, t, p, k, dst);
    } else if (block_plain(type)) {
        decode_plain(type, block_plain(type), p, k, dst);
    } else if (type == TENSOR_F32) {
        memcpy(dst, p, 4 * (size_t)k);
    } else if (type == TENSOR_F16 || type == TENSOR_BF16) {
        for (uint32_t i = 0; i < k; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * (size_t)i, 2);
            dst[i] = type == TENSOR_F16 ? math_from_f16(h) : math_from_bf16(h);
        }
    } else {
        return 0;
    }
    return 1;
}

/* --- numbers only ----------------------------------------------------------------------------------------------------- */

enum { EXPONENT_F16 = 0x7c00, EXPONENT_BF16 = 0x7f80, EXPONENT_F32 = 0x7f800000 };

/* All bits of the exponent set: infinite or NaN. */
static int halves_are_finite(const uint8_t *p, size_t n, uint32_t exponent)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        bad |= (h & exponent) == exponent;
    }
    return !bad;
}

static int floats_are_finite(const uint8_t *p, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + 4 * i, 4);
        bad |= (bits & EXPONENT_F32) == EXPONENT_F32;
    }
    return !bad;
}

/* The halves of a block are its scale and its minimum; all else in it is whole numbers, too small to overflow a product. */
static int scales_are_finite(enum tensor_type type, const struct block_traits *t, const uint8_t *src, uint32_t k)
{
    enum { Q6_K_SCALE = 208 };
    for (uint32_t b = 0; b < k / t->elements; b++) {
        const uint8_t *scale = src + (size_t)b * t->bytes + (type == TENSOR_Q6_K ? Q6_K_SCALE : 0);
        if (!halves_are_finite(scale, t->has_min ? 2 : 1, EXPONENT_F16))
            return 0;
    }
    return 1;
}

static int values_are_finite(enum tensor_type type, block_decode_fn *decode, const uint8_t *src, uint32_t k)
{
    float value[BLOCK_ELEMENTS_MAX];
    uint32_t elements, bytes;
    block_size(type, &elements, &bytes);
    for (uint32_t b = 0; b < k / elements; b++) {
        decode(src + (size_t)b * bytes, value);
        if (!floats_are_finite((const uint8_t *)value, elements))
            return 0;
    }
    return 1;
}

int quant_row_is_finite(enum tensor_type type, const void *src, uint32_t k)
{
    const struct block_traits *t = block_traits(type);
    if (t)
        return scales_are_finite(type, t, src, k);
    if (block_plain(type))
        return values_are_finite(type, block_plain(type), src, k);
    if (type == TENSOR_F32)
        return floats_are_finite(src, k);
    return halves_are_finite(src, k, type == TENSOR_F16 ? EXPONENT_F16 : EXPONENT_BF16);
}
