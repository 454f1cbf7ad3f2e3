/* Quantized products with AMX int8: tiles of 16 rows x 16 outputs x one block of 32 (Q6_K: 16), then the same f32 chain.
 *
 * While AMX is in use these CPUs run zmm multiply-class instructions (fma, mul, cvt, dpbusd) on one port only; add, sub and
 * logic keep both. K is cut in chunks that keep the unpacked strip in the first-level cache; y waits in memory. */
#include "kernels/cpu/strip_512.h"

#include "kernels/block.h"
#include "kernels/cpu/mul.h"

enum { CHUNK = 24 }; /* blocks */

/* The operand of ldtilecfg. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

struct amx_scratch {
    _Alignas(64) int8_t w[CHUNK][512];
    _Alignas(64) float s[CHUNK][2][16];
    _Alignas(64) int32_t sums[2][2][256]; /* [block & 1][half] */
};

/* tmm0-3: C, tmm4-5: A (rows x k), tmm6-7: B (k/4 x 16 outputs x 4). */
static void configure(int k)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i >= 6 ? k / 4 : 16);
        c.column_bytes[i] = (uint16_t)(i == 4 || i == 5 ? k : 64);
    }
    __asm__ volatile("" ::"m"(c) : "memory");
    _tile_loadconfig(&c);
}

/* n blocks from block b0, signed. */
INLINE void unpack(enum tensor_type type, const uint8_t *strip, uint32_t b0, uint32_t n, struct amx_scratch *u)
{
    const struct strip_layout l = strip_layout(type);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = b0 + i;
        int h = b & 1;
        const uint8_t *header = strip + (size_t)(b / 8) * (4 * l.cell + l.header);
        const uint8_t *cell = strip + (size_t)(b / 2) * l.cell + (size_t)(b / 8 + 1) * l.header;
        for (uint32_t p = 0; h == 0 && p < l.cell; p += 64)
            _mm_prefetch((const char *)cell + 2048 + p, _MM_HINT_T0);
        __m512i w[8];
        __m512 s, t;
        strip_unpack(type, cell, h, w);
        strip_scales(type, header, cell, h, &s, &t);
        UNROLL
        for (int k = 0; k < 8; k++)
            _mm512_store_si512(u->w[i] + 64 * k, l.offset ? _mm512_sub_epi8(w[k], _mm512_set1_epi8((char)l.offset)) : w[k]);
        _mm512_store_ps(u->s[i][0], s);
        _mm512_store_ps(u->s[i][1], t);
    }
}

/* The integer sums of one block: 16 rows x 16 outputs, twice where scales are per 16. */
INLINE void multiply(int two, const uint8_t *block, const int8_t *w, int32_t sums[2][256])
{
    _tile_zero(0);
    _tile_loadd(4, block, 32);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, sums[0], 64);
    if (two) {
        _tile_zero(1);
        _tile_loadd(5, block + 16, 32);
        _tile_loadd(7, w + 256, 64);
        _tile_dpbssd(1, 5, 7);
        _tile_stored(1, sums[1], 64);
    }
}

INLINE __m512 bcast_f32(const uint8_t *p)
{
    return _mm512_set1_ps(*(const float *)(const void *)p);
}

/* The f32 step of one block for 16 rows. */
INLINE void add_block(int two, int has_min, const uint8_t *block, float (*s)[16], int32_t sums[2][256], __m512 y[16])
{
    const __m512 s0 = _mm512_load_ps(s[0]), s1 = _mm512_load_ps(s[1]);
    UNROLL
    for (int r = 0; r < 16; r++) {
        __m512 d = bcast_f32(ACT_FIELD(block, 16, ACT_D) + 4 * r);
        y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[0] + 16 * r)), _mm512_mul_ps(s0, d), y[r]);
        if (two)
            y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[1] + 16 * r)), _mm512_mul_ps(s1, d), y[r]);
        else if (has_min)
            y[r] = _mm512_fmadd_ps(s1, bcast_f32(ACT_FIELD(block, 16, ACT_XS) + 4 * r), y[r]);
    }
}

/* One whole tile of 16 rows over n unpacked blocks from block b0. */
INLINE void tile_rows(enum tensor_type type, const struct mul *m, uint32_t tile, struct amx_scratch *u, uint32_t b0, uint32_t n,
                      uint32_t strip)
{
    const int two = strip_layout(type).n_scales == 2, has_min = strip_layout(type).has_min;
    const size_t block_bytes = 16 * ACT_BLOCK_BYTES;
    const uint8_t *block = m->acts + act_tile_offset(m->k, tile) + b0 * block_bytes;
    const uint32_t columns = strip_columns(m, strip);
    const __mmask16 mask = (__mmask16)((1u << columns) - 1);
    float *out = m->y + (size_t)tile * 16 * m->y_stride + (size_t)strip * STRIP;
    __m512 y[16];
    UNROLL
    for (int r = 0; r < 16; r++)
        y[r] = b0 ? _mm512_maskz_loadu_ps(mask, out + (size_t)r * m->y_stride) : _mm512_setzero_ps();
    for (uint32_t b = 0; b <= n; b++) { /* the tiles of block b, while the vector units finish block b-1 */
        if (b < n)
            multiply(two, block + b * block_bytes, u->w[b], u->sums[b & 1]);
        if (b)
            add_block(two, has_min, block + (b - 1) * block_bytes, u->s[b - 1], u->sums[(b - 1) & 1], y);
    }
    UNROLL
    for (int r = 0; r < 16; r++)
        _mm512_mask_storeu_ps(out + (size_t)r * m->y_stride, mask, y[r]);
}

INLINE void tiles(enum tensor_type type, const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t tile0, uint32_t tile1)
{
    struct amx_scratch u;
    configure(strip_layout(type).n_scales == 2 ? 16 : 32);
    for (uint32_t s = strip0; s < strip1; s++)
        for (uint32_t b = 0; b < m->k / 32; b += CHUNK) {
            uint32_t n = m->k / 32 - b < CHUNK ? m->k / 32 - b : CHUNK;
            unpack(type, m->packed + s * strip_bytes(type, m->k), b, n, &u);
            for (uint32_t t = tile0; t < tile1; t++)
                tile_rows(type, m, t, &u, b, n, s);
        }
    _tile_release();
}

/* Whole tiles of 16 rows here, the rest with VNNI. */
void mul_amx(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    uint32_t tile0 = row0 / SHARE_TILE, tile1 = row1 / SHARE_TILE;
    if (tile1 > tile0)
        switch ((int)m->type) {
#define X(name, offset, min, scales)                                                                                   \
    case TENSOR_##name:                                                                                                \
        tiles(TENSOR_##name, m, strip0, strip1, tile0, tile1);                                                         \
        break;
            BLOCK_QUANT_MAP(X)
#undef X
        default:
            break;
        }
    if (tile1 * SHARE_TILE < row1)
        mul_avx512(m, strip0, strip1, tile1 * SHARE_TILE, row1);
}
