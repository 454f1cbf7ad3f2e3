/* Row operations for 8 and 16 lanes. Sums have 16 virtual lanes: two vectors of 8 or one of 16. A row's last k % 16 elements
 * go through a padded copy: the zeros beside them change no sum. */
#include "kernels/cpu/vec.h"

#include "common/model/hparams.h"
#include "kernels/cpu/acts.h"
#include "kernels/cpu/isa.h"
#include "kernels/kv.h"
#include "kernels/share.h"

enum { LANES = 16, N_VECS = LANES / VEC };

typedef struct {
    vec v[N_VECS];
} lanes;

INLINE lanes lanes_load(const float *p)
{
    lanes r;
    UNROLL
    for (int i = 0; i < N_VECS; i++)
        r.v[i] = vec_load(p + VEC * i);
    return r;
}

INLINE void lanes_store(float *p, lanes x)
{
    UNROLL
    for (int i = 0; i < N_VECS; i++)
        vec_store(p + VEC * i, x.v[i]);
}

INLINE lanes lanes_load_some(const float *p, uint32_t n)
{
    float pad[LANES] = {0};
    if (n >= LANES)
        return lanes_load(p);
    memcpy(pad, p, n * sizeof *p);
    return lanes_load(pad);
}

INLINE void lanes_store_some(float *p, lanes x, uint32_t n)
{
    if (n >= LANES) {
        lanes_store(p, x);
        return;
    }
    float pad[LANES];
    lanes_store(pad, x);
    memcpy(p, pad, n * sizeof *p);
}

/* i = 0, 16, ... below k; n: elements left, 16 and more where the vector is whole. */
#define FOR_LANES(i, n, k) for (uint32_t i = 0, n; i < (k) && (n = (k)-i, 1); i += LANES)

INLINE float tree(lanes x)
{
    float lane[LANES];
    lanes_store(lane, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* x += add when there is one; then 1/rms. */
INLINE float rms_scale(float *x, const float *add, float eps, uint32_t k)
{
    lanes sum;
    UNROLL
    for (int v = 0; v < N_VECS; v++)
        sum.v[v] = vec_zero();
    FOR_LANES(i, n, k) {
        lanes a = lanes_load_some(x + i, n);
        if (add) {
            lanes b = lanes_load_some(add + i, n);
            UNROLL
            for (int v = 0; v < N_VECS; v++)
                a.v[v] = vec_add(a.v[v], b.v[v]);
            lanes_store_some(x + i, a, n);
        }
        UNROLL
        for (int v = 0; v < N_VECS; v++)
            sum.v[v] = vec_fma(a.v[v], a.v[v], sum.v[v]);
    }
    return 1.f / sqrtf(tree(sum) / (float)k + eps);
}

/* y = x * scale * w */
INLINE void scale_row(const float *x, float scale, const float *w, float *y, uint32_t k)
{
    vec s = vec_set1(scale);
    FOR_LANES(i, n, k) {
        lanes a = lanes_load_some(x + i, n), b = lanes_load_some(w + i, n);
        UNROLL
        for (int v = 0; v < N_VECS; v++)
            a.v[v] = vec_mul(vec_mul(a.v[v], s), b.v[v]);
        lanes_store_some(y + i, a, n);
    }
}

/* --- quantization ----------------------------------------------------------------------------------------------------- */

#if VEC == 16
INLINE uint32_t max_bits(const float *x)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask), b = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
}

INLINE void to_int8(const float *x, float inverse, int8_t *q, int32_t sum[2])
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i v = _mm512_setzero_si512();
        if (inverse != 0)
            v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        _mm_storeu_si128((__m128i *)(void *)(q + 16 * h), _mm512_cvtepi32_epi8(v));
        sum[h] = _mm512_reduce_add_epi32(v);
    }
}
#else
INLINE uint32_t max_bits(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_loadu_si256((const void *)(x + 8 * i)), mask));
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

INLINE void to_int8(const float *x, float inverse, int8_t *q, int32_t sum[2])
{
    __m256i v[4], bytes = _mm256_setzero_si256();
    if (inverse != 0) {
        UNROLL
        for (int i = 0; i < 4; i++)
            v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
        bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    _mm256_storeu_si256((void *)q, bytes);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), s = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    s = _mm256_hadd_epi32(s, s);
    s = _mm256_hadd_epi32(s, s);
    sum[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(s));
    sum[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1));
}
#endif

/* Blocks [b0, b1) of one row of a->x into the int8 form. */
INLINE void quantize(struct acts *a, uint32_t n_rows, uint32_t k, uint32_t row, uint32_t b0, uint32_t b1)
{
    uint32_t tile = row / SHARE_TILE, r = row % SHARE_TILE, R = act_tile_rows(n_rows, tile);
    uint8_t *block = a->int8 + act_tile_offset(k, tile) + (size_t)b0 * R * ACT_BLOCK_BYTES;
    const float *x = a->x + (size_t)row * k + 32 * b0;
    for (uint32_t b = b0; b < b1; b++, block += (size_t)R * ACT_BLOCK_BYTES, x += 32) {
        int32_t sum[2];
        float inverse, d = act_scale(max_bits(x), &inverse);
        to_int8(x, inverse, (int8_t *)block + 32 * r, sum);
        act_put_fields(block, R, r, d, sum[0], sum[1]);
    }
}

void ISA_NAME(acts_rows)(struct acts *a, const float *x, uint32_t n_rows, uint32_t k, int int8, int thread, int n_threads)
{
    acts_begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        memmove(a->x + (size_t)r * k, x + (size_t)r * k, k * sizeof *x);
        if (int8)
            quantize(a, n_rows, k, r, 0, k / 32);
    }
}

void ISA_NAME(acts_norm)(struct acts *a, float *x, const float *add, const float *w, float eps, uint32_t n_rows, uint32_t k,
                         int int8, int thread, int n_threads)
{
    acts_begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++) {
        float *row = x + (size_t)r * k;
        float scale = add ? rms_scale(row, add + (size_t)r * k, eps, k) : rms_scale(row, NULL, eps, k);
        scale_row(row, scale, w, a->x + (size_t)r * k, k);
        if (int8)
            quantize(a, n_rows, k, r, 0, k / 32);
    }
}

INLINE void gate_columns(float *y, const float *gate, const float *up, int kind, uint32_t k)
{
    FOR_LANES(i, n, k) {
        lanes g = lanes_load_some(gate + i, n), u = lanes_load_some(up + i, n);
        UNROLL
        for (int v = 0; v < N_VECS; v++)
            g.v[v] = vec_mul(kind == GATE_SILU ? vec_silu(g.v[v]) : vec_gelu_tanh(g.v[v]), u.v[v]);
        lanes_store_some(y + i, g, n);
    }
}

INLINE void gate_row(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k, int int8,
                     uint32_t row, uint32_t k0, uint32_t k1)
{
    size_t at = (size_t)row * k + k0;
    if (kind == GATE_SILU)
        gate_columns(a->x + at, gate + at, up + at, GATE_SILU, k1 - k0);
    else
        gate_columns(a->x + at, gate + at, up + at, GATE_GELU_TANH, k1 - k0);
    if (int8)
        quantize(a, n_rows, k, row, k0 / 32, k1 / 32);
}

/* Rows of one tile would leave all but one thread idle: there the columns are shared, by whole blocks. */
void ISA_NAME(acts_gate)(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k, int int8,
                         int thread, int n_threads)
{
    acts_begin(a, n_rows, k, thread);
    struct share s = share_rows(n_rows, thread, n_threads);
    if (n_rows <= SHARE_TILE && k % 32 == 0) {
        struct share c = share_of(k / 32, thread, n_threads);
        for (uint32_t r = 0; r < n_rows; r++)
            gate_row(a, gate, up, kind, n_rows, k, int8, r, 32 * c.begin, 32 * c.end);
        return;
    }
    for (uint32_t r = s.begin; r < s.end; r++)
        gate_row(a, gate, up, kind, n_rows, k, int8, r, 0, k);
}

/* --- rows ----------------------------------------------------------------------------------------------------------------- */

INLINE void add_row(float *x, const float *add, uint32_t k)
{
    FOR_LANES(i, n, k) {
        lanes a = lanes_load_some(x + i, n), b = lanes_load_some(add + i, n);
        UNROLL
        for (int v = 0; v < N_VECS; v++)
            a.v[v] = vec_add(a.v[v], b.v[v]);
        lanes_store_some(x + i, a, n);
    }
}

void ISA_NAME(rows_add)(float *x, const float *add, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        add_row(x + (size_t)r * k, add + (size_t)r * k, k);
}

void ISA_NAME(rows_add_bias)(float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        add_row(x + (size_t)r * k, bias, k);
}

void ISA_NAME(rows_head_norm)(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim,
                              int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (size_t h = (size_t)s.begin * n_heads; h < (size_t)s.end * n_heads; h++) {
        float *head = x + h * head_dim;
        scale_row(head, rms_scale(head, NULL, eps, head_dim), w, head, head_dim);
    }
}

void ISA_NAME(rows_norm)(float *x, const float *w, float eps, uint32_t n_rows, uint32_t k, int thread, int n_threads)
{
    ISA_NAME(rows_head_norm)(x, w, eps, n_rows, 1, k, thread, n_threads);
}

void ISA_NAME(rows_softcap)(float *x, uint32_t n_rows, uint32_t k, float cap, int thread, int n_threads)
{
    struct share s = share_of((k + STRIP - 1) / STRIP, thread, n_threads);
    uint32_t begin = s.begin * STRIP, end = s.end * STRIP < k ? s.end * STRIP : k;
    vec c = vec_set1(cap);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = x + (size_t)r * k + begin;
        FOR_LANES(i, n, end - begin) {
            lanes a = lanes_load_some(row + i, n);
            UNROLL
            for (int v = 0; v < N_VECS; v++)
                a.v[v] = vec_mul(c, vec_tanh(vec_div(a.v[v], c)));
            lanes_store_some(row + i, a, n);
        }
    }
}

/* --- rope ----------------------------------------------------------------------------------------------------------------- */

/* cs: {cos, sin} of each pair. */
INLINE void rope_halves(float *head, const float *cs, uint32_t n_pairs)
{
    uint32_t i = 0;
    for (; i + 8 <= n_pairs; i += 8) {
        __m256 p0 = _mm256_loadu_ps(cs + 2 * i), p1 = _mm256_loadu_ps(cs + 2 * i + 8);
        __m256 lo = _mm256_permute2f128_ps(p0, p1, 0x20), hi = _mm256_permute2f128_ps(p0, p1, 0x31);
        __m256 c = _mm256_shuffle_ps(lo, hi, 0x88), s = _mm256_shuffle_ps(lo, hi, 0xdd);
        __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(head + n_pairs + i);
        _mm256_storeu_ps(head + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(head + n_pairs + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < n_pairs; i++) {
        float a = head[i], b = head[n_pairs + i], c = cs[2 * i], s = cs[2 * i + 1];
        head[i] = fmaf(a, c, -(b * s));
        head[n_pairs + i] = fmaf(b, c, a * s);
    }
}

INLINE void rope_adjacent(float *head, const float *cs, uint32_t n_pairs)
{
    uint32_t i = 0;
    for (; i + 4 <= n_pairs; i += 4) {
        __m256 p = _mm256_loadu_ps(cs + 2 * i), x = _mm256_loadu_ps(head + 2 * i);
        __m256 cross = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(p));
        _mm256_storeu_ps(head + 2 * i, _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(p), cross));
    }
    for (; i < n_pairs; i++) {
        float a = head[2 * i], b = head[2 * i + 1], c = cs[2 * i], s = cs[2 * i + 1];
        head[2 * i] = fmaf(a, c, -(b * s));
        head[2 * i + 1] = fmaf(b, c, a * s);
    }
}

void ISA_NAME(rows_rope)(float *x, const float *cs, uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot,
                         int pairing, int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t h = 0; h < n_heads; h++) {
            float *head = x + ((size_t)r * n_heads + h) * head_dim;
            if (pairing == ROPE_ADJACENT)
                rope_adjacent(head, cs + (size_t)r * n_rot, n_rot / 2);
            else
                rope_halves(head, cs + (size_t)r * n_rot, n_rot / 2);
        }
}

/* --- KV ----------------------------------------------------------------------------------------------------------------- */

INLINE void store_head(uint16_t *k_group, uint16_t *v_row, uint32_t slot, const float *k, const float *v, uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d += 8) {
        uint16_t h[8];
        _mm_storeu_si128((void *)h, _mm256_cvtps_ph(_mm256_loadu_ps(k + d), 0));
        for (uint32_t i = 0; i < 8; i++)
            k_group[(d + i) * KV_GROUP + slot] = h[i];
        _mm_storeu_si128((void *)(v_row + d), _mm256_cvtps_ph(_mm256_loadu_ps(v + d), 0));
    }
}

void ISA_NAME(kv_store)(const struct kv_view *kv, const struct kv_row *rows, const float *k, const float *v, uint32_t n_rows,
                        int thread, int n_threads)
{
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            uint32_t p = rows[r].position;
            size_t at = ((size_t)r * kv->n_kv_heads + h) * kv->head_dim;
            store_head(kv_k_group(kv, rows[r].blocks, h, p), kv_v_row(kv, rows[r].blocks, h, p), p % KV_GROUP, k + at, v + at,
                       kv->head_dim);
        }
}
