/* The CPU backend without intrinsics: packed strips, 16 lanes in plain loops; row operations are the reference's. */
#include "kernels/block.h"
#include "kernels/cpu/acts.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mul.h"
#include "kernels/ref/ref.h"

/* --- activations ------------------------------------------------------------------------------------------------------- */

static void quantize_row(struct acts *a, uint32_t n_rows, uint32_t k, uint32_t row)
{
    uint32_t tile = row / SHARE_TILE, r = row % SHARE_TILE, R = act_tile_rows(n_rows, tile);
    uint8_t *block = a->int8 + act_tile_offset(k, tile);
    for (uint32_t b = 0; b < k / 32; b++, block += (size_t)R * ACT_BLOCK_BYTES) {
        struct ref_block q;
        ref_quantize_block(a->x + (size_t)row * k + 32 * b, &q);
        memcpy(block + 32 * r, q.q, 32);
        act_put_fields(block, R, r, q.d, q.sum[0], q.sum[1]);
    }
}

static void acts_rows(struct acts *a, const float *x, uint32_t n_rows, uint32_t k, int int8, int thread, int n_threads)
{
    ops_ref.acts_rows(a, x, n_rows, k, 0, thread, n_threads);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; int8 && r < s.end; r++)
        quantize_row(a, n_rows, k, r);
}

static void acts_norm(struct acts *a, float *x, const float *add, const float *w, float eps, uint32_t n_rows, uint32_t k,
                      int int8, int thread, int n_threads)
{
    ops_ref.acts_norm(a, x, add, w, eps, n_rows, k, 0, thread, n_threads);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; int8 && r < s.end; r++)
        quantize_row(a, n_rows, k, r);
}

static void acts_gate(struct acts *a, const float *gate, const float *up, int kind, uint32_t n_rows, uint32_t k, int int8,
                      int thread, int n_threads)
{
    ops_ref.acts_gate(a, gate, up, kind, n_rows, k, 0, thread, n_threads);
    struct share s = share_rows(n_rows, thread, n_threads);
    for (uint32_t r = s.begin; int8 && r < s.end; r++)
        quantize_row(a, n_rows, k, r);
}

/* --- products ------------------------------------------------------------------------------------------------------------ */

/* One block of 32 k of a strip: weights less their offset, scales. */
struct strip_block {
    int16_t w[32][STRIP];
    float s[2][STRIP], mn[STRIP];
};

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return math_from_f16(h);
}

static void strip_scales(enum tensor_type type, const struct strip_layout *l, const uint8_t *header, const uint8_t *cell,
                         uint32_t h, struct strip_block *out)
{
    for (uint32_t i = 0; i < STRIP; i++) {
        out->mn[i] = 0;
        if (type == TENSOR_Q6_K) {
            for (uint32_t u = 0; u < 2; u++)
                out->s[u][i] = load_f16(header + 2 * i) * (float)(int8_t)cell[32 * h + 16 * u + i];
        } else if (l->header) {
            out->s[0][i] = load_f16(header + 2 * i) * (float)cell[32 * h + i];
            out->mn[i] = -(load_f16(header + 32 + 2 * i) * (float)cell[32 * h + 16 + i]);
        } else {
            out->s[0][i] = load_f16(cell + 32 * h + 2 * i);
            if (l->has_min)
                out->mn[i] = load_f16(cell + l->mins + 32 * h + 2 * i);
        }
    }
}

static void strip_block_read(enum tensor_type type, const uint8_t *strip, uint32_t b, struct strip_block *out)
{
    const struct strip_layout l = strip_layout(type);
    const uint8_t *header = strip + (size_t)(b / 8) * (4 * l.cell + l.header);
    const uint8_t *cell = strip + (size_t)(b / 2) * l.cell + (size_t)(b / 8 + 1) * l.header;
    uint32_t h = b & 1;
    strip_scales(type, &l, header, cell, h, out);
    for (uint32_t k = 0; k < 32; k++)
        for (uint32_t lane = 0; lane < STRIP; lane++) {
            uint32_t v = k / 4, at = 4 * lane + k % 4, q;
            const uint8_t *payload = cell + l.payload + h * l.half;
            if (type == TENSOR_Q8_0)
                q = payload[64 * v + at];
            else
                q = payload[64 * (v % 4) + at] >> (v < 4 ? 0 : 4) & 15;
            if (type == TENSOR_Q6_K)
                q |= (cell[l.high + 128 * h + 64 * (v / 4) + at] >> (2 * (v % 4)) & 3u) << 4;
            else if (l.high)
                q |= (cell[l.high + 64 * h + at] >> v & 1u) << 4;
            out->w[k][lane] = (int16_t)((int)q - l.offset);
        }
}

/* y += the block's part, for row r of a tile of R. */
static void strip_block_add(const struct strip_layout *l, const struct strip_block *s, const uint8_t *block, uint32_t R,
                            uint32_t r, float y[STRIP])
{
    const int8_t *x = (const int8_t *)block + 32 * r;
    float d, xs;
    memcpy(&d, ACT_FIELD(block, R, ACT_D) + 4 * r, 4);
    memcpy(&xs, ACT_FIELD(block, R, ACT_XS) + 4 * r, 4);
    int32_t sum[2][STRIP] = {{0}};
    for (uint32_t k = 0; k < 32; k++)
        for (uint32_t lane = 0; lane < STRIP; lane++)
            sum[k / 16][lane] += s->w[k][lane] * x[k];
    for (uint32_t lane = 0; lane < STRIP; lane++) {
        if (l->n_scales == 2) {
            y[lane] = fmaf((float)sum[0][lane], s->s[0][lane] * d, y[lane]);
            y[lane] = fmaf((float)sum[1][lane], s->s[1][lane] * d, y[lane]);
        } else {
            y[lane] = fmaf((float)(sum[0][lane] + sum[1][lane]), s->s[0][lane] * d, y[lane]);
        }
        if (l->has_min)
            y[lane] = fmaf(s->mn[lane], xs, y[lane]);
    }
}

void mul_portable(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    const struct strip_layout l = strip_layout(m->type);
    for (uint32_t s = strip0; s < strip1; s++) {
        uint32_t columns = strip_columns(m, s);
        for (uint32_t b = 0; b < m->k / 32; b++) {
            struct strip_block w;
            strip_block_read(m->type, m->packed + s * strip_bytes(m->type, m->k), b, &w);
            for (uint32_t row = row0; row < row1; row++) {
                uint32_t tile = row / SHARE_TILE, R = act_tile_rows(m->n_rows, tile);
                float y[STRIP] = {0}, *out = m->y + row * m->y_stride + (size_t)s * STRIP;
                if (b)
                    memcpy(y, out, columns * sizeof *y);
                strip_block_add(&l, &w, m->acts + act_tile_offset(m->k, tile) + (size_t)b * R * ACT_BLOCK_BYTES, R,
                                row % SHARE_TILE, y);
                memcpy(out, y, columns * sizeof *y);
            }
        }
    }
}

static float float_weight(enum tensor_type type, const uint8_t *p)
{
    float f;
    uint16_t h;
    if (type == TENSOR_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    return type == TENSOR_F16 ? math_from_f16(h) : math_from_bf16(h);
}

void mul_float_portable(const struct mul *m, uint32_t strip0, uint32_t strip1, uint32_t row0, uint32_t row1)
{
    uint32_t size = float_bytes(m->type);
    for (uint32_t s = strip0; s < strip1; s++)
        for (uint32_t row = row0; row < row1; row++) {
            const uint8_t *w = m->packed + s * strip_bytes(m->type, m->k);
            float y[STRIP] = {0};
            for (uint32_t k = 0; k < m->k; k++)
                for (uint32_t lane = 0; lane < STRIP; lane++)
                    y[lane] = fmaf(m->x[(size_t)row * m->k + k], float_weight(m->type, w + (k * STRIP + lane) * size), y[lane]);
            memcpy(m->y + row * m->y_stride + (size_t)s * STRIP, y, strip_columns(m, s) * sizeof *y);
        }
}

static void matmul(const struct matmul_job *jobs, int n_jobs, const struct acts *a, int thread, int n_threads)
{
    matmul_drive(mul_portable, mul_float_portable, jobs, n_jobs, a, thread, n_threads);
}

const struct ops ops_cpu_portable = {
    .name = "cpu/portable",
    .weight_bytes = pack_weight_bytes,
    .weight_pack = pack_weight,
    .acts_bytes = acts_int8_bytes,
    .acts_rows = acts_rows,
    .acts_norm = acts_norm,
    .acts_gate = acts_gate,
    .matmul = matmul,
    .embed = ref_embed,
    .add = ref_add,
    .add_bias = ref_add_bias,
    .head_norm = ref_head_norm,
    .norm = ref_norm,
    .softcap = ref_softcap,
    .rope_angles = ref_rope_angles,
    .rope = ref_rope,
    .kv_store = ref_kv_store,
    .attention = ref_attention,
    .attention_bytes = ref_attention_bytes,
};
