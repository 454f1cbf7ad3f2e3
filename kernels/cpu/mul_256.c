/* Quantized products with 256-bit vectors, built twice: AVX2 (maddubs) and, with -DAVXVNNI=1, AVX-VNNI (dpbusd).
 *
 * One row reads the cells directly; more rows run over a strip that is unpacked once into the first-level
 * cache. Without dpbusd, maddubs adds pairs in 16 bits, and nothing saturates: payload <= 15: 8 products fit (30480), <= 31: 4
 * (31496), <= 63: 2 (32004); Q8_0: |w| <= 128 times the sign-adjusted x: one pair is at most 32512, so its quads are made
 * signed when they are read. */
#include <immintrin.h>

#include "kernels/block.h"
#include "kernels/cpu/mul.h"

#ifndef AVXVNNI
#define AVXVNNI 0
#endif
#define INLINE static inline __attribute__((always_inline))
#ifndef UNROLL /* emulation (tests/kernels) keeps the loops */
#define UNROLL _Pragma("GCC unroll 8") /* arrays of vectors are registers only where every index is a constant */
#endif

enum {
    CHUNK = 32,      /* blocks of a strip unpacked at a time: 20 KiB */
    GROUP_ROWS = 4,  /* rows in registers */
    AHEAD = 2048,    /* bytes to fetch before they are needed */
};

INLINE __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const void *)p);
}

INLINE __m256i bcast32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256 bcast_f32(const void *p)
{
    float v;
    memcpy(&v, p, 4);
    return _mm256_set1_ps(v);
}

INLINE __m256 load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const void *)p));
}

INLINE __m256 load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)));
}

INLINE __m256 load_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

/* The k-quad `j` (0..7) of half `h` of a cell for the lanes 8g..8g+7: unsigned bytes (AVX2's Q8_0: signed). */
INLINE __m256i quad(enum tensor_type type, const uint8_t *cell, int h, int g, int j)
{
    const struct strip_layout l = strip_layout(type);
    if (type == TENSOR_Q8_0) {
        __m256i v = load(cell + l.payload + 512 * h + 64 * j + 32 * g);
        return AVXVNNI ? v : _mm256_xor_si256(v, _mm256_set1_epi8(-128));
    }
    __m256i v = load(cell + l.payload + 256 * h + 64 * (j % 4) + 32 * g);
    v = _mm256_and_si256(j < 4 ? v : _mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
    if (type == TENSOR_Q5_0 || type == TENSOR_Q5_1 || type == TENSOR_Q5_K) {
        __m256i high = load(cell + l.high + 64 * h + 32 * g);
        high = j < 4 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j - 4);
        v = _mm256_or_si256(v, _mm256_and_si256(high, _mm256_set1_epi8(16)));
    } else if (type == TENSOR_Q6_K) {
        __m256i high = load(cell + l.high + 128 * h + 64 * (j / 4) + 32 * g);
        int i = j % 4;
        high = i < 2 ? _mm256_slli_epi16(high, 4 - 2 * i) : _mm256_srli_epi16(high, 2 * i - 4);
        v = _mm256_or_si256(v, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
    return v;
}

/* Scales of one block for 8 lanes: s, and either the second scale or the minimum. */
struct scales {
    __m256 s, t;
};

INLINE struct scales scales(enum tensor_type type, const uint8_t *header, const uint8_t *cell, int h, int g)
{
    const struct strip_layout l = strip_layout(type);
    struct scales r = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    if (type == TENSOR_Q6_K) {
        __m256 d = load_f16(header + 16 * g);
        r.s = _mm256_mul_ps(d, load_i8(cell + 32 * h + 8 * g));
        r.t = _mm256_mul_ps(d, load_i8(cell + 32 * h + 16 + 8 * g));
    } else if (l.header) {
        r.s = _mm256_mul_ps(load_f16(header + 16 * g), load_u8(cell + 32 * h + 8 * g));
        __m256 m = _mm256_mul_ps(load_f16(header + 32 + 16 * g), load_u8(cell + 32 * h + 16 + 8 * g));
        r.t = _mm256_xor_ps(_mm256_set1_ps(-0.f), m);
    } else {
        r.s = load_f16(cell + 32 * h + 16 * g);
        if (l.has_min)
            r.t = load_f16(cell + l.mins + 32 * h + 16 * g);
    }
    return r;
}

/* Quads whose maddubs fit together into 16 bits (head of this file). */
INLINE int quads_fit(enum tensor_type type)
{
    if (type == TENSOR_Q8_0)
        return 1;
    return type == TENSOR_Q6_K ? 2 : type == TENSOR_Q5_0 || type == TENSOR_Q5_1 || type == TENSOR_Q5_K ? 4 : 8;
}

/* acc plus the products of the quads [first, first + n) with x (at its own quad 0 of the block). */
INLINE __m256i dot(enum tensor_type type, const __m256i *w, int first, int n, const uint8_t *x, __m256i acc)
{
#if AVXVNNI
    (void)type;
    UNROLL
    for (int j = first; j < first + n; j++)
        acc = _mm256_dpbusd_avx_epi32(acc, w[j], bcast32(x + 4 * j));
#else
    const __m256i one = _mm256_set1_epi16(1);
    if (type == TENSOR_Q8_0) {
        UNROLL
        for (int j = first; j < first + n; j++) {
            __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(bcast32(x + 4 * j), w[j]));
            acc = _mm256_add_epi32(acc, _mm256_madd_epi16(p, one));
        }
        return acc;
    }
    const int fit = quads_fit(type);
    __m256i s = _mm256_setzero_si256();
    UNROLL
    for (int j = 0; j < n; j++) {
        __m256i p = _mm256_maddubs_epi16(w[first + j], bcast32(x + 4 * (first + j)));
        s = j % fit ? _mm256_add_epi16(s, p) : p;
        if (j % fit == fit - 1 || j == n - 1)
            acc = _mm256_add_epi32(acc, _mm256_madd_epi16(s, one));
    }
#endif
    return acc;
}

/* Where a group of rows stands in a block: x of row i at x + 32*i, field f of row i at field + f*pitch + 4*i. */
struct at {
    const uint8_t *x, *field;
    size_t pitch, block_bytes;
};

INLINE struct at at_block(const uint8_t *block, uint32_t R, uint32_t r)
{
    return (struct at){block + 32 * r, block + 32 * R + 4 * r, 4 * R, (size_t)R * ACT_BLOCK_BYTES};
}

INLINE struct at at_next(struct at a)
{
    return (struct at){a.x + a.block_bytes, a.field + a.block_bytes, a.pitch, a.block_bytes};
}

/* The start value that takes the offset out. AVX2's Q8_0 has signed weights already. */
INLINE __m256i start(enum tensor_type type, struct at a, int i, int upper)
{
    if (type == TENSOR_Q4_0)
        return bcast32(a.field + ACT_N8 * a.pitch + 4 * i);
    if (type == TENSOR_Q5_0)
        return bcast32(a.field + ACT_N16 * a.pitch + 4 * i);
    if (type == TENSOR_Q6_K)
        return bcast32(a.field + (upper ? ACT_N32_HI : ACT_N32_LO) * a.pitch + 4 * i);
    if (AVXVNNI && type == TENSOR_Q8_0)
        return bcast32(a.field + ACT_N128 * a.pitch + 4 * i);
    return _mm256_setzero_si256();
}

/* One block of 8 lanes for row i of a group: the f32 step of the definition. */
INLINE __m256 step(enum tensor_type type, const __m256i w[8], struct scales s, struct at a, int i, __m256 y)
{
    const uint8_t *x = a.x + 32 * i;
    __m256 d = bcast_f32(a.field + 4 * i);
    if (type == TENSOR_Q6_K) {
        __m256i lo = dot(type, w, 0, 4, x, start(type, a, i, 0));
        __m256i hi = dot(type, w, 4, 4, x, start(type, a, i, 1));
        y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(lo), _mm256_mul_ps(s.s, d), y);
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(hi), _mm256_mul_ps(s.t, d), y);
    }
    __m256i sum = dot(type, w, 0, 8, x, start(type, a, i, 0));
    y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(s.s, d), y);
    if (strip_layout(type).has_min)
        y = _mm256_fmadd_ps(s.t, bcast_f32(a.field + ACT_XS * a.pitch + 4 * i), y);
    return y;
}

INLINE void store_lanes(float *y, __m256 v, int columns) /* the first `columns` of 8; none for <= 0 */
{
    if (columns >= 8) {
        _mm256_storeu_ps(y, v);
        return;
    }
    float lane[8];
    _mm256_storeu_ps(lane, v);
    for (int i = 0; i < columns; i++)
        y[i] = lane[i];
}

/* --- one row: straight from the cells ------------------------------------------------------------------------------- */

INLINE __m256 step_cell(enum tensor_type type, const uint8_t *header, const uint8_t *cell, int h, int g, struct at a, __m256 y)
{
    __m256i w[8];
    UNROLL
    for (int j = 0; j < 8; j++)
        w[j] = quad(type, cell, h, g, j);
    return step(type, w, scales(type, header, cell, h, g), a, 0, y);
}

/* All 16 lanes of a strip at once: every cache line is used when it arrives. */
INLINE void strip_row(enum tensor_type type, const struct mul *m, uint32_t strip, uint32_t row)
{
    const struct strip_layout l = strip_layout(type);
    const uint32_t tile = row / SHARE_TILE, R = act_tile_rows(m->n_rows, tile), n_blocks = m->k / 32;
    const uint8_t *cell = m->packed + strip * strip_bytes(type, m->k), *header = cell;
    struct at a = at_block(m->acts + act_tile_offset(m->k, tile), R, row % SHARE_TILE);
    __m256 y0 = _mm256_setzero_ps(), y1 = y0;
    for (uint32_t b = 0; b < n_blocks; b += 2, cell += l.cell) {
        if (l.header && b % 8 == 0) {
            header = cell;
            cell += l.header;
        }
        UNROLL
        for (uint32_t i = 0; i < l.cell; i += 64)
            _mm_prefetch((const char *)cell + AHEAD + i, _MM_HINT_T0);
        y0 = step_cell(type, header, cell, 0, 0, a, y0);
        y1 = step_cell(type, header, cell, 0, 1, a, y1);
        a = at_next(a);
        if (b + 1 == n_blocks)
            break;
        y0 = step_cell(type, header, cell, 1, 0, a, y0);
        y1 = step_cell(type, header, cell, 1, 1, a, y1);
        a = at_next(a);
    }
    int columns = (int)strip_columns(m, strip);
    float *out = m->y + row * m->y_stride + (size_t)strip * STRIP;
    store_lanes(out, y0, columns);
    store_lanes(out + 8, y1, columns - 8);
}

/* --- more rows: over an unpacked strip ------------------------------------------------------------------------------ */

struct unpacked {
    _Alignas(64) uint8_t w[CHUNK][8][2][32]; /* [quad][lanes 0-7, 8-15] */
    _Alignas(64) float s[CHUNK][2][2][8];    /* [scale, second or minimum][lanes] */
};

INLINE void unpack(enum tensor_type type, const uint8_t *strip, uint32_t b0, uint32_t n, size_t ahead, struct unpacked *u)
{
    const struct strip_layout l = strip_layout(type);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = b0 + i;
        int h = b & 1;
        const uint8_t *header = strip + (size_t)(b / 8) * (4 * l.cell + l.header);
        const uint8_t *cell = strip + (size_t)(b / 2) * l.cell + (size_t)(b / 8 + 1) * l.header;
        if (h == 0)
            for (uint32_t p = 0; p < l.cell; p += 64)
                _mm_prefetch((const char *)cell + ahead + p, _MM_HINT_T1);
        UNROLL
        for (int g = 0; g < 2; g++) {
            UNROLL
            for (int j = 0; j < 8; j++)
                _mm256_store_si256((void *)u->w[i][j][g], quad(type, cell, h, g, j));
            struct scales s = scales(type, header, cell, h, g);
            _mm256_store_ps(u->s[i][0][g], s.s);
            _mm256_store_ps(u->s[i][1][g], s.t);
        }
    }
}

/* sum[i][g] += the quads [first, first + n) of block b for rows i and both lane halves: a quad of x is read once for 16 lanes, a
 * quad of weights once for all rows. */
INLINE void dot_rows(enum tensor_type type, int n_rows, const struct unpacked *u, uint32_t b, int first, int n, struct at a,
                     __m256i sum[GROUP_ROWS][2])
{
#if AVXVNNI
    (void)type;
    UNROLL
    for (int j = first; j < first + n; j++)
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            __m256i x = bcast32(a.x + 32 * i + 4 * j);
            UNROLL
            for (int g = 0; g < 2; g++)
                sum[i][g] = _mm256_dpbusd_avx_epi32(sum[i][g], load(u->w[b][j][g]), x);
        }
#else
    const __m256i one = _mm256_set1_epi16(1);
    const int fit = quads_fit(type);
    __m256i s[GROUP_ROWS][2];
    UNROLL
    for (int j = 0; j < n; j++) {
        __m256i w[2] = {load(u->w[b][first + j][0]), load(u->w[b][first + j][1])};
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            __m256i x = bcast32(a.x + 32 * i + 4 * (first + j));
            UNROLL
            for (int g = 0; g < 2; g++) {
                __m256i p = type == TENSOR_Q8_0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(x, w[g]))
                                                : _mm256_maddubs_epi16(w[g], x);
                s[i][g] = j % fit ? _mm256_add_epi16(s[i][g], p) : p;
                if (j % fit == fit - 1 || j == n - 1)
                    sum[i][g] = _mm256_add_epi32(sum[i][g], _mm256_madd_epi16(s[i][g], one));
            }
        }
    }
#endif
}

/* y += (f32)sum * (scale * d) for every row and lane half. */
INLINE void add_scaled(int n_rows, const struct unpacked *u, uint32_t b, int which, struct at a, __m256i sum[GROUP_ROWS][2],
                       __m256 y[GROUP_ROWS][2])
{
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        __m256 d = bcast_f32(a.field + 4 * i);
        UNROLL
        for (int g = 0; g < 2; g++)
            y[i][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i][g]), _mm256_mul_ps(_mm256_load_ps(u->s[b][which][g]), d),
                                      y[i][g]);
    }
}

INLINE void step_rows(enum tensor_type type, int n_rows, const struct unpacked *u, uint32_t b, struct at a,
                      __m256 y[GROUP_ROWS][2])
{
    const int parts = type == TENSOR_Q6_K ? 2 : 1;
    UNROLL
    for (int part = 0; part < parts; part++) {
        __m256i sum[GROUP_ROWS][2];
        UNROLL
        for (int i = 0; i < n_rows; i++)
            sum[i][0] = sum[i][1] = start(type, a, i, part);
        dot_rows(type, n_rows, u, b, part * 4, 8 / parts, a, sum);
        add_scaled(n_rows, u, b, part, a, sum, y);
    }
    if (!strip_layout(type).has_min)
        return;
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        __m256 xs = bcast_f32(a.field + ACT_XS * a.pitch + 4 * i);
        UNROLL
        for (int g = 0; g < 2; g++)
            y[i][g] = _mm256_fmadd_ps(_mm256_load_ps(u->s[b][1][g]), xs, y[i][g]);
    }
}

INLINE __m256 load_lanes(const float *y, int columns) /* the first `columns` of 8, zeros beside; none for <= 0 */
{
    float lane[8] = {0};
    if (columns >= 8)
        return _mm256_loadu_ps(y);
    for (int i = 0; i < columns; i++)
        lane[i] = y[i];
    return _mm256_loadu_ps(lane);
}

/* n_rows rows from row r of a tile, n blocks; y goes on where the chunk before left it. */
INLINE void group(enum tensor_type type, int n_rows, const struct unpacked *u, uint32_t n, const uint8_t *block, uint32_t R,
                  uint32_t r, float *out, size_t y_stride, int columns, int first)
{
    __m256 y[GROUP_ROWS][2];
    struct at a = at_block(block, R, r);
    UNROLL
    for (int i = 0; i < n_rows; i++)
        UNROLL
        for (int g = 0; g < 2; g++)
            y[i][g] = first ? _mm256_setzero_ps() : load_lanes(out + (size_t)i * y_stride + 8 * g, columns - 8 * g);
    for (uint32_t b = 0; b < n; b++, a = at_next(a))
        step_rows(type, n_rows, u, b, a, y);
    UNROLL
    for (int i = 0; i < n_rows; i++)
        UNROLL
        for (int g = 0; g < 2; g++)
            store_lanes(out + (size_t)i * y_stride + 8 * g, y[i][g], columns - 8 * g);
}

INLINE void tile_rows(enum tensor_type type, const struct mul *m, const struct unpacked *u, uint32_t b0, uint32_t n,
                      uint32_t row0, uint32_t row1, uint32_t column, int columns)
{
    for (uint32_t row = row0; row < row1;) {
        uint32_t tile = row / SHARE_TILE, R = act_tile_rows(m->n_rows, tile), r = row % SHARE_TILE;
        uint32_t left = row1 - row < SHARE_TILE - r ? row1 - row : SHARE_TILE - r;
        const uint8_t *block = m->acts + act_tile_offset(m->k, tile) + (size_t)b0 * R * ACT_BLOCK_BYTES;
        float *out = m->y + row * m->y_stride + column;
        switch (left) {
        case 1:
            group(type, 1, u, n, block, R, r, out, m->y_stride, columns, b0 == 0);
            break;
        case 2:
            group(type, 2, u, n, block, R, r, out, m->y_stride, columns, b0 == 0);
            break;
        case 3:
            group(type, 3, u, n, block, R, r, out, m->y_stride, columns, b0 == 0);
            break;
        default:
            group(type, 4, u, n, block, R, r, out, m->y_stride, columns, b0 == 0);
            break;
        }
        row += left < GROUP_ROWS ? left : GROUP_ROWS;
    }
}

INLINE void many_rows(enum tensor_type type, const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    struct unpacked u;
    const size_t bytes = strip_bytes(type, m->k);
    for (uint32_t s = strip0; s < strip1; s++)
        for (uint32_t b = 0; b < m->k / 32; b += CHUNK) {
            uint32_t n = m->k / 32 - b < CHUNK ? m->k / 32 - b : CHUNK;
            unpack(type, m->packed + s * bytes, b, n, bytes, &u);
            tile_rows(type, m, &u, b, n, row0, row1, s * STRIP, (int)strip_columns(m, s));
        }
}

/* --- by type and number of rows ----------------------------------------------------------------------------------------- */

#if AVXVNNI
#define MUL mul_avxvnni
#else
#define MUL mul_avx2
#endif

#define X(name, offset, min, scales)                                                                                   \
    static void mul_##name(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)        \
    {                                                                                                                  \
        if (row1 - row0 > 1)                                                                                           \
            many_rows(TENSOR_##name, m, strip0, strip1, row0, row1);                                                   \
        else                                                                                                           \
            for (uint32_t s = strip0; s < strip1; s++)                                                                 \
                strip_row(TENSOR_##name, m, s, row0);                                                                  \
    }
BLOCK_QUANT_MAP(X)
#undef X

void MUL(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    switch ((int)m->type) {
#define X(name, offset, min, scales)                                                                                   \
    case TENSOR_##name:                                                                                                \
        mul_##name(m, strip0, strip1, row0, row1);                                                                     \
        break;
        BLOCK_QUANT_MAP(X)
#undef X
    default:
        break;
    }
}
