/* File rows to strips (kernels/cpu/layout.h). */
#include <string.h>

#include "kernels/block.h"
#include "kernels/cpu/mul.h"
#include "kernels/quant.h"

size_t pack_weight_bytes(enum tensor_type type, uint32_t n, uint32_t k)
{
    return quant_supported(type) ? (size_t)((n + STRIP - 1) / STRIP) * strip_bytes(type, k) : SIZE_MAX;
}

static void pack_float_row(const struct weight *w, const uint8_t *src, uint8_t *strip, uint32_t lane)
{
    uint32_t size = float_bytes(w->type);
    for (uint32_t i = 0; i < w->k; i++)
        memcpy(strip + (size_t)(i * STRIP + lane) * size, src + (size_t)i * size, size);
}

/* Block by block: nothing is allocated for a row. */
static void pack_plain_row(const struct weight *w, const uint8_t *src, uint8_t *strip, uint32_t lane)
{
    uint32_t elements, bytes;
    float value[BLOCK_ELEMENTS_MAX];
    block_size(w->type, &elements, &bytes);
    for (uint32_t k = 0; k < w->k; k += elements, src += bytes) {
        block_plain(w->type)(src, value);
        for (uint32_t i = 0; i < elements; i++)
            memcpy(strip + ((size_t)(k + i) * STRIP + lane) * sizeof(float), &value[i], sizeof(float));
    }
}

/* Scales of the half `h` of a cell, as the file has them. */
static void pack_scales(enum tensor_type type, const struct strip_layout *l, const uint8_t *block, uint32_t sub,
                        uint8_t *header, uint8_t *cell, uint32_t lane)
{
    uint32_t h = sub & 1; /* of a K-quant; for the others `cell` points at the half's scales already */
    if (!l->header) {
        memcpy(cell + 2 * lane, block, 2);
        if (l->has_min)
            memcpy(cell + l->mins + 2 * lane, block + 2, 2);
    } else if (type == TENSOR_Q6_K) {
        memcpy(header + 2 * lane, block + 208, 2);
        cell[32 * h + lane] = block[192 + 2 * sub];
        cell[32 * h + 16 + lane] = block[193 + 2 * sub];
    } else {
        memcpy(header + 2 * lane, block, 2);
        memcpy(header + 32 + 2 * lane, block + 2, 2);
        block_k4_scales(block, sub, &cell[32 * h + lane], &cell[32 * h + 16 + lane]);
    }
}

/* The 32 weights of half `h` of a cell; the strip was zeroed. */
static void pack_payload(enum tensor_type type, const struct strip_layout *l, const uint8_t q[32], uint8_t *cell, uint32_t h,
                         uint32_t lane)
{
    uint8_t *payload = cell + l->payload + h * l->half;
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t v = i / 4, at = 4 * lane + i % 4; /* vector of 8, byte of 64 */
        if (type == TENSOR_Q8_0) {
            payload[64 * v + at] = q[i];
            continue;
        }
        payload[64 * (v % 4) + at] |= (uint8_t)((q[i] & 15) << (v < 4 ? 0 : 4));
        if (type == TENSOR_Q6_K)
            cell[l->high + 128 * h + 64 * (v / 4) + at] |= (uint8_t)(q[i] >> 4 << (2 * (v % 4)));
        else if (l->high)
            cell[l->high + 64 * h + at] |= (uint8_t)(q[i] >> 4 << v);
    }
}

static void pack_quantized_row(const struct weight *w, const uint8_t *src, uint8_t *strip, uint32_t lane)
{
    const struct block_traits *t = block_traits(w->type);
    const struct strip_layout l = strip_layout(w->type);
    uint32_t per = t->elements / 32;
    for (uint32_t b = 0; b < w->k / 32; b++) {
        const uint8_t *block = src + (size_t)(b / per) * t->bytes;
        uint8_t q[32], *header = strip + (size_t)(b / 8) * (4 * l.cell + l.header);
        uint8_t *cell = strip + (size_t)(b / 2) * l.cell + (l.header ? (size_t)(b / 8 + 1) * l.header : 0);
        float s[2], mn;
        block_decode(w->type, block, b % per, q, s, &mn);
        pack_scales(w->type, &l, block, b % per, header, l.header ? cell : cell + 32 * (b & 1), lane);
        pack_payload(w->type, &l, q, cell, b & 1, lane);
    }
}

void pack_weight(struct weight *w, uint32_t row0, uint32_t row1)
{
    size_t bytes = strip_bytes(w->type, w->k), row_bytes = block_row_bytes(w->type, w->k);
    for (uint32_t n = row0; n < row1 && n < w->n; n++) {
        const uint8_t *src = w->file_rows + n * row_bytes;
        uint8_t *strip = w->packed + n / STRIP * bytes;
        if (block_traits(w->type))
            pack_quantized_row(w, src, strip, n % STRIP);
        else if (block_plain(w->type))
            pack_plain_row(w, src, strip, n % STRIP);
        else
            pack_float_row(w, src, strip, n % STRIP);
    }
}
