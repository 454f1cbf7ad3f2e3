/* Attention for 8 and 16 lanes: f16 KV, f32 fma chains (docs/numerics.md, Attention).
 *
 * Work is cut into items (chunk of rows of one sequence, query head), shared out by their cost; a thread takes the heads of
 * one KV head together, so that a tile is read and, for many queries, converted to f32 once for all of them. */
#include "kernels/cpu/vec.h"

#include "kernels/cpu/isa.h"
#include "kernels/kv.h"
#include "kernels/share.h"

enum {
    CHUNK_ROWS = 32,               /* rows of one sequence that pass a tile together */
    MAX_QUERIES = 128,             /* of one pass: rows x heads */
    SIDE = VEC == 16 ? 6 : 3,      /* queries in registers */
    STEP = 4,                      /* vectors of positions, or of dimensions, in registers */
    CONVERT = 2 * SIDE,            /* more queries than this: the tile is converted once */
    TILE_VECS = KV_TILE / VEC,
};

/* One tile of one KV head. Groups of 16 that no query sees point at one that some query does. */
struct tile {
    const uint16_t *k[4], *v[4];           /* [head_dim][16], [16][head_dim] */
    const uint16_t *next_k[4], *next_v[4]; /* of the tile after this, to be fetched; NULL */
    const float *kf, *vf;                  /* [4][head_dim][16], [64][head_dim]; NULL: read k and v */
    uint32_t head_dim;
    float cap; /* 0, or what bounds the scores */
};

/* A query's running state. */
struct query {
    float m;
    int lo, hi;    /* slots of the present tile that it sees */
    float *q, *o;  /* [head_dim] */
    float l[16];
};

INLINE vec load_k(const struct tile *t, int f32, int group, uint32_t d, int v)
{
    if (f32)
        return vec_load(t->kf + ((size_t)group * t->head_dim + d) * KV_GROUP + VEC * v);
    return vec_load_f16(t->k[group] + d * KV_GROUP + VEC * v);
}

INLINE vec load_v(const struct tile *t, int f32, int slot, uint32_t d)
{
    if (f32)
        return vec_load(t->vf + (size_t)slot * t->head_dim + d);
    return vec_load_f16(t->v[slot / KV_GROUP] + (size_t)(slot % KV_GROUP) * t->head_dim + d);
}

/* s[r][64] = q_r . k for n queries: one chain over d for each slot. */
INLINE void scores(const struct tile *t, int n, int f32, const struct query *qs, uint32_t head_dim, float (*s)[KV_TILE])
{
    enum { PER_GROUP = KV_GROUP / VEC };
    for (int v0 = 0; v0 < TILE_VECS; v0 += STEP) {
        vec acc[SIDE][STEP];
        UNROLL
        for (int r = 0; r < n; r++)
            UNROLL
            for (int i = 0; i < STEP; i++)
                acc[r][i] = vec_zero();
        for (uint32_t d = 0; d < head_dim; d++) {
            if (!f32 && t->next_k[0] && d % 2 == 0)
                for (int g = v0 / PER_GROUP; g < (v0 + STEP) / PER_GROUP; g++)
                    _mm_prefetch((const char *)(t->next_k[g] + d * KV_GROUP), _MM_HINT_T0);
            vec q[SIDE];
            UNROLL
            for (int r = 0; r < n; r++)
                q[r] = vec_set1(qs[r].q[d]);
            UNROLL
            for (int i = 0; i < STEP; i++) {
                vec k = load_k(t, f32, (v0 + i) / PER_GROUP, d, (v0 + i) % PER_GROUP);
                UNROLL
                for (int r = 0; r < n; r++)
                    acc[r][i] = vec_fma(q[r], k, acc[r][i]);
            }
        }
        UNROLL
        for (int r = 0; r < n; r++)
            UNROLL
            for (int i = 0; i < STEP; i++)
                vec_store(s[r] + (v0 + i) * VEC, acc[r][i]);
    }
}

/* Scores of one query to weights; returns the factor of what was before. */
INLINE float weights(struct query *q, float cap, float s[KV_TILE])
{
    vec x[TILE_VECS];
    UNROLL
    for (int i = 0; i < TILE_VECS; i++)
        x[i] = vec_load(s + VEC * i);
    if (cap != 0.f)
        UNROLL
        for (int i = 0; i < TILE_VECS; i++)
            x[i] = vec_mul(vec_set1(cap), vec_tanh(x[i]));
    if (q->lo > 0 || q->hi < KV_TILE)
        UNROLL
        for (int i = 0; i < TILE_VECS; i++)
            x[i] = vec_keep(x[i], vec_set1(-INFINITY), VEC * i, q->lo, q->hi);
    vec max = x[0];
    UNROLL
    for (int i = 1; i < TILE_VECS; i++)
        max = vec_max(max, x[i]);
    float here = vec_max_lane(max), m = here > q->m ? here : q->m, a = math_exp2_neg(q->m - m);
    q->m = m;
    vec l[KV_GROUP / VEC];
    UNROLL
    for (int i = 0; i < KV_GROUP / VEC; i++)
        l[i] = vec_mul(vec_load(q->l + VEC * i), vec_set1(a));
    UNROLL
    for (int i = 0; i < TILE_VECS; i++) {
        vec p = vec_exp2_neg(vec_sub(x[i], vec_set1(m)));
        l[i % (KV_GROUP / VEC)] = vec_add(l[i % (KV_GROUP / VEC)], p);
        vec_store(s + VEC * i, p);
    }
    UNROLL
    for (int i = 0; i < KV_GROUP / VEC; i++)
        vec_store(q->l + VEC * i, l[i]);
    return a;
}

/* o_r += p_r[slot] * v[slot] over the slots [lo, hi) in order, for the dimensions of n_vecs vectors from d. */
INLINE void values_span(const struct tile *t, int n, int f32, int n_vecs, uint32_t d, float (*p)[KV_TILE], int lo, int hi,
                        vec acc[SIDE][STEP])
{
    for (int slot = lo; slot < hi; slot++) {
        for (int line = 0; !f32 && t->next_v[0] && line < n_vecs * VEC; line += 32)
            _mm_prefetch((const char *)(t->next_v[slot / KV_GROUP] + (size_t)(slot % KV_GROUP) * t->head_dim + d + line),
                         _MM_HINT_T0);
        vec w[SIDE];
        UNROLL
        for (int r = 0; r < n; r++)
            w[r] = vec_set1(p[r][slot]);
        UNROLL
        for (int i = 0; i < n_vecs; i++) {
            vec v = load_v(t, f32, slot, d + (uint32_t)(VEC * i));
            UNROLL
            for (int r = 0; r < n; r++)
                acc[r][i] = vec_fma(w[r], v, acc[r][i]);
        }
    }
}

/* A query's slots are [lo, hi); those that all n share go together, its own before and after them alone. */
INLINE void values(const struct tile *t, int n, int f32, int n_vecs, uint32_t d, struct query *qs, float (*p)[KV_TILE],
                   const float *a)
{
    vec acc[SIDE][STEP];
    int lo = qs[0].lo, hi = qs[0].hi;
    UNROLL
    for (int r = 1; r < n; r++) {
        lo = qs[r].lo > lo ? qs[r].lo : lo;
        hi = qs[r].hi < hi ? qs[r].hi : hi;
    }
    hi = hi < lo ? lo : hi;
    UNROLL
    for (int r = 0; r < n; r++)
        UNROLL
        for (int i = 0; i < n_vecs; i++)
            acc[r][i] = vec_mul(vec_load(qs[r].o + d + VEC * i), vec_set1(a[r]));
    UNROLL
    for (int r = 0; r < n; r++)
        values_span(t, 1, f32, n_vecs, d, p + r, qs[r].lo, qs[r].hi < lo ? qs[r].hi : lo, acc + r);
    values_span(t, n, f32, n_vecs, d, p, lo, hi, acc);
    UNROLL
    for (int r = 0; r < n; r++)
        values_span(t, 1, f32, n_vecs, d, p + r, hi > qs[r].lo ? hi : qs[r].lo, qs[r].hi, acc + r);
    UNROLL
    for (int r = 0; r < n; r++)
        UNROLL
        for (int i = 0; i < n_vecs; i++)
            vec_store(qs[r].o + d + VEC * i, acc[r][i]);
}

INLINE void step(const struct tile *t, int n, int f32, uint32_t head_dim, struct query *qs)
{
    _Alignas(64) float s[SIDE][KV_TILE];
    float a[SIDE];
    scores(t, n, f32, qs, head_dim, s);
    UNROLL
    for (int r = 0; r < n; r++)
        a[r] = weights(&qs[r], t->cap, s[r]);
    uint32_t d = 0;
    for (; d + STEP * VEC <= head_dim; d += STEP * VEC)
        values(t, n, f32, STEP, d, qs, s, a);
    for (; d < head_dim; d += VEC)
        values(t, n, f32, 1, d, qs, s, a);
}

#define STEP_FOR(suffix, f32, head_dim)                                                                                \
    static void step_##suffix(const struct tile *t, int n, struct query *qs)                                           \
    {                                                                                                                  \
        switch (n) {                                                                                                   \
        case 1:                                                                                                        \
            step(t, 1, f32, head_dim, qs);                                                                             \
            break;                                                                                                     \
        case 2:                                                                                                        \
            step(t, 2, f32, head_dim, qs);                                                                             \
            break;                                                                                                     \
        case 3:                                                                                                        \
            step(t, 3, f32, head_dim, qs);                                                                             \
            break;                                                                                                     \
            STEP_MORE(f32, head_dim)                                                                                   \
        default:                                                                                                       \
            break;                                                                                                     \
        }                                                                                                              \
    }
#if VEC == 16
#define STEP_MORE(f32, head_dim)                                                                                       \
    case 4:                                                                                                            \
        step(t, 4, f32, head_dim, qs);                                                                                 \
        break;                                                                                                         \
    case 5:                                                                                                            \
        step(t, 5, f32, head_dim, qs);                                                                                 \
        break;                                                                                                         \
    case 6:                                                                                                            \
        step(t, 6, f32, head_dim, qs);                                                                                 \
        break;
#else
#define STEP_MORE(f32, head_dim)
#endif
STEP_FOR(f16_64, 0, 64)
STEP_FOR(f16_128, 0, 128)
STEP_FOR(f16_any, 0, t->head_dim)
STEP_FOR(f32_64, 1, 64)
STEP_FOR(f32_128, 1, 128)
STEP_FOR(f32_any, 1, t->head_dim)

typedef void step_fn(const struct tile *t, int n, struct query *qs);

static step_fn *step_for(uint32_t head_dim, int f32)
{
    if (head_dim == 64)
        return f32 ? step_f32_64 : step_f16_64;
    if (head_dim == 128)
        return f32 ? step_f32_128 : step_f16_128;
    return f32 ? step_f32_any : step_f16_any;
}

/* --- tiles of a chunk --------------------------------------------------------------------------------------------------- */

/* Rows [row0, row0 + n_rows) of one sequence at consecutive positions, heads [head0, head0 + n_heads) of one KV head. */
struct chunk {
    const struct kv_view *kv;
    const uint32_t *blocks;
    uint32_t kv_head, position, n_rows, n_heads, window;
    float cap;
};

struct scratch {
    float *kf, *vf, *q, *o;
    struct query *queries;
};

enum { ALIGN = 64 };

static size_t scratch_queries(uint32_t n_heads)
{
    return n_heads > MAX_QUERIES ? n_heads : MAX_QUERIES;
}

static size_t scratch_bytes(uint32_t n_heads, uint32_t head_dim)
{
    size_t n = scratch_queries(n_heads);
    size_t bytes = 2 * KV_TILE * 4 * (size_t)head_dim + 2 * n * 4 * (size_t)head_dim + n * sizeof(struct query);
    return (bytes + 2 * ALIGN) / ALIGN * ALIGN;
}

static struct scratch scratch_of(uint8_t *p, uint32_t n_heads, uint32_t head_dim, int thread)
{
    struct scratch s;
    size_t n = scratch_queries(n_heads), tile = KV_TILE * (size_t)head_dim;
    uintptr_t at = (uintptr_t)(p + scratch_bytes(n_heads, head_dim) * (size_t)thread);
    at = (at + ALIGN - 1) / ALIGN * ALIGN;
    s.kf = (float *)at;
    s.vf = s.kf + tile;
    s.q = s.vf + tile;
    s.o = s.q + n * head_dim;
    s.queries = (struct query *)(void *)(s.o + n * head_dim);
    return s;
}

size_t ISA_NAME(attention_bytes)(uint32_t max_rows, uint32_t n_heads, uint32_t head_dim, int n_threads)
{
    (void)max_rows;
    return scratch_bytes(n_heads, head_dim) * (size_t)n_threads + ALIGN;
}

/* Groups of the tile at `base` that hold positions of [first, end); the others repeat the nearest. */
static void tile_groups(const struct chunk *c, uint32_t base, uint32_t first, uint32_t end, const uint16_t *k[4],
                        const uint16_t *v[4])
{
    for (uint32_t g = 0; g < 4; g++) {
        uint32_t pos = base + g * KV_GROUP, last = (end - 1) / KV_GROUP * KV_GROUP;
        pos = pos < first / KV_GROUP * KV_GROUP ? first / KV_GROUP * KV_GROUP : pos > last ? last : pos;
        k[g] = kv_k_group(c->kv, c->blocks, c->kv_head, pos);
        v[g] = kv_v_row(c->kv, c->blocks, c->kv_head, pos);
    }
}

/* All four K groups; of V only the slots [lo, hi): beyond a sequence's end there may be anything. */
static void tile_convert(struct tile *t, const struct scratch *s, int lo, int hi)
{
    uint32_t hd = t->head_dim;
    for (uint32_t g = 0; g < 4; g++)
        for (uint32_t i = 0; i < hd * KV_GROUP; i += VEC)
            vec_store(s->kf + g * hd * KV_GROUP + i, vec_load_f16(t->k[g] + i));
    for (uint32_t slot = (uint32_t)lo; slot < (uint32_t)hi; slot++)
        for (uint32_t d = 0; d < hd; d += VEC)
            vec_store(s->vf + slot * hd + d, vec_load_f16(t->v[slot / KV_GROUP] + (size_t)(slot % KV_GROUP) * hd + d));
    t->kf = s->kf;
    t->vf = s->vf;
}

/* Sets what each query sees of the tile; the queries [*begin, *end) see something (their rows ascend). */
static void tile_ranges(const struct chunk *c, struct query *qs, uint32_t base, uint32_t *begin, uint32_t *end)
{
    *begin = *end = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        uint32_t position = c->position + r, first = kv_first(position, c->window);
        if (position < base || first >= base + KV_TILE)
            continue;
        for (uint32_t h = 0; h < c->n_heads; h++) {
            struct query *q = &qs[r * c->n_heads + h];
            q->lo = first > base ? (int)(first - base) : 0;
            q->hi = position - base < KV_TILE ? (int)(position - base) + 1 : KV_TILE;
        }
        if (*end == 0)
            *begin = r * c->n_heads;
        *end = (r + 1) * c->n_heads;
    }
}

static void run_chunk(const struct chunk *c, const struct scratch *s)
{
    uint32_t last = c->position + c->n_rows - 1, first = kv_first(c->position, c->window);
    for (uint32_t base = first / KV_TILE * KV_TILE; base <= last; base += KV_TILE) {
        struct tile t = {.head_dim = c->kv->head_dim, .cap = c->cap};
        uint32_t begin, end, seen = base + KV_TILE <= last ? base + KV_TILE : last + 1;
        tile_groups(c, base, first, seen, t.k, t.v);
        tile_ranges(c, s->queries, base, &begin, &end);
        int f32 = end - begin > CONVERT;
        if (f32)
            tile_convert(&t, s, first > base ? (int)(first - base) : 0, (int)(seen - base));
        else if (base + KV_TILE <= last)
            tile_groups(c, base + KV_TILE, first, base + 2 * KV_TILE <= last ? base + 2 * KV_TILE : last + 1, t.next_k,
                        t.next_v);
        step_fn *fn = step_for(t.head_dim, f32);
        for (uint32_t i = begin; i < end; i += SIDE)
            fn(&t, end - i < SIDE ? (int)(end - i) : SIDE, s->queries + i);
    }
}

/* --- rows and heads to chunks, chunks to threads ------------------------------------------------------------------------ */

struct job {
    const struct kv_view *kv;
    const struct kv_row *rows;
    const float *q;
    float *out;
    uint32_t n_rows, n_heads, window;
    float q_scale, cap;
};

static void head_range(const struct job *j, uint32_t row, uint32_t n_rows, uint32_t head, uint32_t n, const struct scratch *s)
{
    uint32_t hd = j->kv->head_dim, per_kv = j->n_heads / j->kv->n_kv_heads;
    struct chunk c = {j->kv, j->rows[row].blocks, head / per_kv, j->rows[row].position, n_rows, n, j->window, j->cap};
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < n; h++) {
            uint32_t i = r * n + h;
            const float *q = j->q + ((size_t)(row + r) * j->n_heads + head + h) * hd;
            struct query *qs = &s->queries[i];
            *qs = (struct query){.m = -INFINITY, .q = s->q + (size_t)i * hd, .o = s->o + (size_t)i * hd};
            for (uint32_t d = 0; d < hd; d++)
                qs->q[d] = q[d] * j->q_scale;
            memset(qs->o, 0, hd * sizeof(float));
        }
    run_chunk(&c, s);
    for (uint32_t i = 0; i < n_rows * n; i++) {
        struct query *qs = &s->queries[i];
        for (int half = 8; half; half /= 2)
            for (int k = 0; k < half; k++)
                qs->l[k] += qs->l[k + half];
        float *out = j->out + ((size_t)(row + i / n) * j->n_heads + head + i % n) * hd;
        for (uint32_t d = 0; d < hd; d++)
            out[d] = qs->o[d] / qs->l[0];
    }
}

/* Rows from `row` that go together: one sequence, consecutive positions. */
static uint32_t chunk_rows(const struct job *j, uint32_t row)
{
    uint32_t per_kv = j->n_heads / j->kv->n_kv_heads, max = MAX_QUERIES / per_kv, n = 1;
    max = max > CHUNK_ROWS ? CHUNK_ROWS : max ? max : 1;
    while (n < max && row + n < j->n_rows && j->rows[row + n].blocks == j->rows[row].blocks &&
           j->rows[row + n].position == j->rows[row].position + n)
        n++;
    return n;
}

static uint64_t chunk_cost(const struct job *j, uint32_t row, uint32_t n_rows)
{
    uint32_t last = j->rows[row + n_rows - 1].position, first = kv_first(j->rows[row].position, j->window);
    return (uint64_t)n_rows * (last - first + 1 + KV_TILE);
}

/* This thread's heads [*begin, *end) of a chunk whose heads cost `cost` each and begin at `at` of `total`: a head belongs to
 * the thread in whose share its middle lies. */
static void heads_of_thread(uint64_t at, uint64_t cost, uint64_t total, uint32_t n_heads, int thread, int n_threads,
                            uint32_t *begin, uint32_t *end)
{
    uint64_t lo = total * (uint32_t)thread / (uint32_t)n_threads, hi = total * (uint32_t)(thread + 1) / (uint32_t)n_threads;
    *begin = *end = 0;
    for (uint32_t h = 0; h < n_heads; h++) {
        uint64_t middle = at + h * cost + cost / 2;
        if (middle >= lo && middle < hi) {
            if (*end == 0)
                *begin = h;
            *end = h + 1;
        }
    }
}

void ISA_NAME(attention)(const struct kv_view *kv, const struct kv_row *rows, const float *q, float *out, uint32_t n_rows,
                         uint32_t n_heads, float scale, uint32_t window, float softcap, uint8_t *scratch, int thread,
                         int n_threads)
{
#if VEC == 16
    if (kv->head_dim % VEC) { /* half a vector at the end: the narrower build gives the same bits */
        attention_avx2(kv, rows, q, out, n_rows, n_heads, scale, window, softcap, scratch, thread, n_threads);
        return;
    }
#endif
    float q_scale = softcap != 0.f ? scale / softcap : scale * LOG2E_F;
    struct job j = {kv, rows, q, out, n_rows, n_heads, window, q_scale, softcap * LOG2E_F};
    struct scratch s = scratch_of(scratch, n_heads, kv->head_dim, thread);
    uint32_t per_kv = n_heads / kv->n_kv_heads;
    uint64_t total = 0, at = 0;
    for (uint32_t r = 0, n; r < n_rows; r += n) {
        n = chunk_rows(&j, r);
        total += chunk_cost(&j, r, n) * n_heads;
    }
    for (uint32_t r = 0, n; r < n_rows; r += n) {
        n = chunk_rows(&j, r);
        uint64_t cost = chunk_cost(&j, r, n);
        uint32_t begin, end;
        heads_of_thread(at, cost, total, n_heads, thread, n_threads, &begin, &end);
        for (uint32_t h = begin; h < end;) {
            uint32_t stop = (h / per_kv + 1) * per_kv;
            stop = stop > end ? end : stop;
            head_range(&j, r, n, h, stop - h, &s);
            h = stop;
        }
        at += cost * n_heads;
    }
}
