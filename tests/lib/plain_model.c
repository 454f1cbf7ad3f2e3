#include "tests/lib/plain_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "kernels/quant.h"

struct plain {
    const struct model *m;
    const struct hparams *hp;
    unsigned roundings;
    uint32_t n;
    double *x;          /* [n][n_embd] */
    double *q, *k, *v, *att; /* [n][heads * head_dim] */
    double *a, *y;
    double *freq[MODEL_ROPES]; /* [n_rot/2] */
};

static int is_float(enum tensor_type t)
{
    return t == TENSOR_F32 || t == TENSOR_F16 || t == TENSOR_BF16;
}

static void decode_row(const struct gguf_tensor *t, uint64_t row, float *out)
{
    const struct tensor_type_info *info = tensor_type_info(t->type);
    CHECK(quant_decode_row(t->type, t->data + row * (t->ne[0] / info->block_elements * info->block_bytes),
                           (uint32_t)t->ne[0], out));
}

static void round_int8(double *x, uint64_t k)
{
    for (uint64_t b = 0; b < k; b += 32) {
        double max = 0;
        for (uint64_t i = b; i < b + 32; i++)
            max = fabs(x[i]) > max ? fabs(x[i]) : max;
        double scale = (double)(float)(max / 127);
        for (uint64_t i = b; i < b + 32; i++)
            x[i] = scale > 0 ? rint(x[i] / scale) * scale : 0;
    }
}

/* y [n][N] = x [n][K] W^T, W: the matrix `index` of the tensor. */
static void product(const struct plain *p, const struct gguf_tensor *w, uint32_t index, const double *x, uint32_t n, double *y)
{
    uint64_t k = w->ne[0], rows = w->ne[1];
    double *in = malloc(k * n * sizeof *in);
    float *row = malloc(k * sizeof *row);
    memcpy(in, x, k * n * sizeof *in);
    for (uint32_t r = 0; r < n && (p->roundings & PLAIN_INT8) && !is_float(w->type); r++)
        round_int8(in + r * k, k);
    for (uint64_t o = 0; o < rows; o++) {
        decode_row(w, index * rows + o, row);
        for (uint32_t r = 0; r < n; r++) {
            double sum = 0;
            for (uint64_t i = 0; i < k; i++)
                sum += (double)row[i] * in[r * k + i];
            y[r * rows + o] = sum;
        }
    }
    free(in);
    free(row);
}

static void multiply(const struct plain *p, const struct gguf_tensor *w, const double *x, double *y)
{
    product(p, w, 0, x, p->n, y);
}

/* n rows as long as the vector w; NULL: the architecture has no such norm. y may be x. */
static void norm_rows(const struct plain *p, const struct gguf_tensor *w, const double *x, size_t n, double *y)
{
    if (!w)
        return;
    uint64_t k = w->ne[0];
    float *scale = malloc(k * sizeof *scale);
    decode_row(w, 0, scale);
    for (size_t r = 0; r < n; r++) {
        double square = 0;
        for (uint64_t i = 0; i < k; i++)
            square += x[r * k + i] * x[r * k + i];
        double s = 1 / sqrt(square / (double)k + (double)p->hp->rms_eps);
        for (uint64_t i = 0; i < k; i++)
            y[r * k + i] = x[r * k + i] * s * (double)scale[i];
    }
    free(scale);
}

static void norm(const struct plain *p, const struct gguf_tensor *w, const double *x, double *y)
{
    norm_rows(p, w, x, p->n, y);
}

static void add_bias(const struct plain *p, const struct gguf_tensor *bias, double *x)
{
    if (!bias)
        return;
    uint64_t k = bias->ne[0];
    float *row = malloc(k * sizeof *row);
    decode_row(bias, 0, row);
    for (uint64_t i = 0; i < p->n * k; i++)
        x[i] += (double)row[i % k];
    free(row);
}

static double softcap(float cap, double x)
{
    return cap > 0 ? (double)cap * tanh(x / (double)cap) : x;
}

static void rotate(const struct plain *p, const double *freq, double *x, uint32_t n_heads)
{
    const struct hparams *hp = p->hp;
    for (uint32_t r = 0; r < p->n; r++)
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t i = 0; i < hp->n_rot / 2; i++) {
                double *head = x + ((size_t)r * n_heads + h) * hp->head_dim;
                int pairs = hp->arch->rope == ROPE_ADJACENT;
                double *a = head + (pairs ? 2 * i : i), *b = pairs ? a + 1 : a + hp->n_rot / 2;
                double angle = (double)((float)r * (float)freq[i]), c = cos(angle), s = sin(angle), a0 = *a, b0 = *b;
                *a = a0 * c - b0 * s;
                *b = b0 * c + a0 * s;
            }
}

__extension__ typedef _Float16 half;

static void round_f16(double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (double)(half)(float)x[i];
}

static void attend(const struct plain *p, uint32_t window)
{
    const struct hparams *hp = p->hp;
    uint32_t d = hp->head_dim, group = hp->n_heads / hp->n_kv_heads;
    double *w = malloc(p->n * sizeof *w);
    for (uint32_t r = 0; r < p->n; r++)
        for (uint32_t h = 0; h < hp->n_heads; h++) {
            const double *q = p->q + ((size_t)r * hp->n_heads + h) * d;
            double *out = p->att + ((size_t)r * hp->n_heads + h) * d, max = -INFINITY, sum = 0;
            uint32_t first = window && r >= window ? r - window + 1 : 0;
            for (uint32_t s = first; s <= r; s++) {
                const double *k = p->k + ((size_t)s * hp->n_kv_heads + h / group) * d;
                w[s] = 0;
                for (uint32_t i = 0; i < d; i++)
                    w[s] += q[i] * k[i];
                w[s] = softcap(hp->attn_softcap, w[s] * (double)hp->attention_scale);
                max = w[s] > max ? w[s] : max;
            }
            for (uint32_t s = first; s <= r; s++)
                sum += w[s] = exp(w[s] - max);
            memset(out, 0, d * sizeof *out);
            for (uint32_t s = first; s <= r; s++)
                for (uint32_t i = 0; i < d; i++)
                    out[i] += w[s] / sum * p->v[((size_t)s * hp->n_kv_heads + h / group) * d + i];
        }
    free(w);
}

static void add(const struct plain *p)
{
    for (size_t i = 0; i < (size_t)p->n * p->hp->n_embd; i++)
        p->x[i] += p->y[i];
}

static double gate_of(const struct hparams *hp, double x)
{
    if (hp->arch->gate == GATE_SILU)
        return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* y [n] = the gated MLP of x [n], by matrices `index`. */
static void mlp(const struct plain *p, const struct gguf_tensor *const t[3], uint32_t index, const double *x, uint32_t n,
                double *y)
{
    size_t n_ff = (size_t)n * t[0]->ne[1];
    double *gate = malloc(2 * n_ff * sizeof *gate), *up = gate + n_ff;
    product(p, t[0], index, x, n, gate);
    product(p, t[1], index, x, n, up);
    for (size_t i = 0; i < n_ff; i++)
        gate[i] = gate_of(p->hp, gate[i]) * up[i];
    product(p, t[2], index, gate, n, y);
    free(gate);
}

/* Of one row: the experts with the largest weights of the softmax over all. */
static void experts(const struct plain *p, const struct gguf_tensor *const *t, const double *x, double *y)
{
    const struct hparams *hp = p->hp;
    const struct gguf_tensor *const mats[3] = {t[LAYER_FFN_GATE_EXPS], t[LAYER_FFN_UP_EXPS], t[LAYER_FFN_DOWN_EXPS]};
    double *weight = malloc((hp->n_experts + hp->n_embd) * sizeof *weight), *part = weight + hp->n_experts, all = 0, used = 0;
    product(p, t[LAYER_FFN_GATE_INP], 0, x, 1, weight);
    for (uint32_t e = 0; e < hp->n_experts; e++)
        all += weight[e] = exp(weight[e]);
    memset(y, 0, hp->n_embd * sizeof *y);
    for (uint32_t u = 0; u < hp->n_experts_used; u++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < hp->n_experts; e++)
            best = weight[e] > weight[best] ? e : best;
        mlp(p, mats, best, x, 1, part);
        for (uint32_t i = 0; i < hp->n_embd; i++)
            y[i] += weight[best] * part[i];
        used += weight[best];
        weight[best] = 0;
    }
    for (uint32_t i = 0; i < hp->n_embd; i++)
        y[i] /= hp->normalise_experts ? used : all;
    free(weight);
}

static void feed_forward(const struct plain *p, const struct gguf_tensor *const *t)
{
    const struct gguf_tensor *const dense[3] = {t[LAYER_FFN_GATE], t[LAYER_FFN_UP], t[LAYER_FFN_DOWN]};
    if (!p->hp->n_experts)
        mlp(p, dense, 0, p->a, p->n, p->y);
    for (uint32_t r = 0; p->hp->n_experts && r < p->n; r++)
        experts(p, t, p->a + (size_t)r * p->hp->n_embd, p->y + (size_t)r * p->hp->n_embd);
}

static void run_layer(const struct plain *p, uint32_t layer)
{
    const struct gguf_tensor *t[N_LAYER_TENSORS];
    const struct hparams *hp = p->hp;
    const double *freq = p->freq[model_layer_rope(p->m, layer)];
    size_t n_kv = (size_t)p->n * hp->n_kv_heads * hp->head_dim;
    CHECK(model_layer(p->m, layer, t, NULL) == STATUS_OK);
    norm(p, t[LAYER_ATTN_NORM], p->x, p->a);
    multiply(p, t[LAYER_ATTN_Q], p->a, p->q);
    multiply(p, t[LAYER_ATTN_K], p->a, p->k);
    multiply(p, t[LAYER_ATTN_V], p->a, p->v);
    add_bias(p, t[LAYER_ATTN_Q_BIAS], p->q);
    add_bias(p, t[LAYER_ATTN_K_BIAS], p->k);
    add_bias(p, t[LAYER_ATTN_V_BIAS], p->v);
    norm_rows(p, t[LAYER_ATTN_Q_NORM], p->q, (size_t)p->n * hp->n_heads, p->q);
    norm_rows(p, t[LAYER_ATTN_K_NORM], p->k, (size_t)p->n * hp->n_kv_heads, p->k);
    rotate(p, freq, p->q, hp->n_heads);
    rotate(p, freq, p->k, hp->n_kv_heads);
    if (p->roundings & PLAIN_KV_F16) {
        round_f16(p->k, n_kv);
        round_f16(p->v, n_kv);
    }
    attend(p, model_layer_window(p->m, layer));
    multiply(p, t[LAYER_ATTN_OUT], p->att, p->y);
    norm(p, t[LAYER_ATTN_POST_NORM], p->y, p->y);
    add(p);
    norm(p, t[LAYER_FFN_NORM], p->x, p->a);
    feed_forward(p, t);
    norm(p, t[LAYER_FFN_POST_NORM], p->y, p->y);
    add(p);
}

static void fill_frequencies(const struct plain *p)
{
    const struct gguf_tensor *factors = model_rope_freqs(p->m);
    float *factor = calloc(p->hp->n_rot, sizeof *factor);
    if (factors)
        decode_row(factors, 0, factor);
    for (uint32_t i = 0; i < p->hp->n_rot / 2; i++) {
        p->freq[0][i] = pow((double)p->hp->rope_theta, -2.0 * i / p->hp->n_rot) / (double)p->hp->rope_factor;
        p->freq[1][i] = pow((double)p->hp->rope_theta_local, -2.0 * i / p->hp->n_rot);
        if (factors)
            p->freq[0][i] /= (double)factor[i];
    }
    free(factor);
}

void plain_model_logits(const struct model *m, const uint32_t *ids, uint32_t n, unsigned roundings, float *logits)
{
    const struct hparams *hp = &m->hp;
    const struct gguf_tensor *embedding, *out_norm, *head;
    size_t n_q = (size_t)n * hp->n_heads * hp->head_dim, n_x = (size_t)n * hp->n_embd;
    size_t n_out = (size_t)n * hp->n_vocab;
    double *memory = calloc(4 * n_q + 3 * n_x + n_out + hp->n_rot, sizeof *memory), *at = memory;
    struct plain p = {.m = m, .hp = hp, .roundings = roundings, .n = n};
    p.q = at, p.k = p.q + n_q, p.v = p.k + n_q, p.att = p.v + n_q;
    p.x = p.att + n_q, p.a = p.x + n_x, p.y = p.a + n_x;
    double *out = p.y + n_x;
    p.freq[0] = out + n_out, p.freq[1] = p.freq[0] + hp->n_rot / 2;
    CHECK(model_embedding(m, &embedding, NULL) == STATUS_OK && model_head(m, &out_norm, &head, NULL) == STATUS_OK);
    fill_frequencies(&p);
    double embedding_scale = hp->arch->scale_embedding ? sqrt((double)hp->n_embd) : 1;
    float *row = malloc(hp->n_embd * sizeof *row);
    for (uint32_t r = 0; r < n; r++) {
        decode_row(embedding, ids[r], row);
        for (uint32_t i = 0; i < hp->n_embd; i++)
            p.x[(size_t)r * hp->n_embd + i] = (double)row[i] * embedding_scale;
    }
    for (uint32_t l = 0; l < hp->n_layers; l++)
        run_layer(&p, l);
    norm(&p, out_norm, p.x, p.a);
    multiply(&p, head, p.a, out);
    for (size_t i = 0; i < n_out; i++)
        logits[i] = (float)softcap(hp->final_softcap, out[i]);
    free(row);
    free(memory);
}
