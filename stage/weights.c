#include "stage/weights.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "kernels/quant.h"

#define LOG_MODULE "weights"
#include "common/base/log.h"

enum {
    ALIGN = 64,
    UNIT_ROWS = 256, /* rows that one thread packs at a time: some 100 KiB of most matrices */
};
static const int64_t PROGRESS_NS = 2 * NS_PER_S;

/* One walk over everything that has a place in the mapping serves twice: with base NULL it sums up the bytes, with the
 * mapping it hands out the places. */
struct layout {
    uint8_t *base;
    size_t used;
};

static void *take(struct layout *l, size_t bytes)
{
    size_t at = l->used;
    l->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return l->base ? l->base + at : NULL;
}

/* Every matrix that is packed, in file order of the layers, then the head. */
typedef void (*visit_matrix)(struct weight *w, void *arg);

static void each_matrix(struct weights *w, visit_matrix visit, void *arg)
{
    for (uint32_t l = 0; l < w->end_layer - w->first_layer; l++)
        for (int t = 0; t < N_LAYER_TENSORS; t++)
            if (w->layers[l].mat[t].k)
                visit(&w->layers[l].mat[t], arg);
    if (w->has_head)
        visit(&w->head, arg);
}

/* --- plan ------------------------------------------------------------------------------------------------------------- */

static enum status prepare_matrix(const struct weights *w, const struct gguf_tensor *t, struct weight *out, struct error *err)
{
    struct error why;
    error_clear(&why);
    uint64_t k = t->ne[0], n = t->n_dims > 1 ? t->ne[1] : 1;
    if (k > UINT32_MAX || n > UINT32_MAX)
        return error_set(err, STATUS_BAD_MODEL, "tensor %.*s: a side is larger than 2^32", (int)t->name.len, t->name.data);
    enum status s = weight_prepare(w->ops, t->type, (uint32_t)n, (uint32_t)k, t->data, out, &why);
    if (s == STATUS_OK && w->ops->weight_bytes(t->type, (uint32_t)n, (uint32_t)k) == SIZE_MAX)
        s = error_set(&why, STATUS_UNSUPPORTED, "type %s has no kernel", tensor_type_info(t->type)->name);
    if (s != STATUS_OK)
        return error_set(err, s, "tensor %.*s: %s", (int)t->name.len, t->name.data, why.message);
    return STATUS_OK;
}

static enum status check_vector(const struct gguf_tensor *t, struct error *err)
{
    if (!quant_supported(t->type))
        return error_set(err, STATUS_UNSUPPORTED, "tensor %.*s: type %s is not supported", (int)t->name.len, t->name.data,
                         tensor_type_info(t->type)->name);
    return STATUS_OK;
}

static enum status plan_layer(struct weights *w, uint32_t layer, struct error *err)
{
    const struct gguf_tensor *tensors[N_LAYER_TENSORS];
    struct layer_weights *lw = &w->layers[layer - w->first_layer];
    TRY(model_layer(w->model, layer, tensors, err));
    for (int i = 0; i < N_LAYER_TENSORS; i++) {
        if (!tensors[i])
            continue;
        w->file_bytes += tensors[i]->bytes;
        if (layer_tensor_is_matrix((enum layer_tensor)i))
            TRY(prepare_matrix(w, tensors[i], &lw->mat[i], err));
        else
            TRY(check_vector(tensors[i], err));
    }
    return STATUS_OK;
}

static enum status plan_ends(struct weights *w, struct error *err)
{
    const struct gguf_tensor *embedding, *out_norm, *head;
    if (w->has_embedding) {
        TRY(model_embedding(w->model, &embedding, err));
        TRY(prepare_matrix(w, embedding, &w->embedding, err));
        w->file_bytes += embedding->bytes;
    }
    if (w->has_head) {
        TRY(model_head(w->model, &out_norm, &head, err));
        TRY(check_vector(out_norm, err));
        TRY(prepare_matrix(w, head, &w->head, err));
        w->file_bytes += out_norm->bytes + head->bytes;
    }
    return STATUS_OK;
}

/* --- places ----------------------------------------------------------------------------------------------------------- */

struct placing {
    struct layout layout;
    const struct ops *ops;
};

static void place_matrix(struct weight *m, void *arg)
{
    struct placing *p = arg;
    size_t bytes = p->ops->weight_bytes(m->type, m->n, m->k);
    m->packed = bytes ? take(&p->layout, bytes) : NULL;
}

/* A vector as f32; its type was checked. */
static const float *place_vector(struct placing *p, const struct gguf_tensor *t)
{
    float *v = take(&p->layout, t->ne[0] * sizeof *v);
    if (v)
        CHECK(quant_decode_row(t->type, t->data, (uint32_t)t->ne[0], v));
    return v;
}

/* base^(-2i/n) rounded as transformers does in float32 (modeling_rope_utils.py): the exponent, the power and its inverse are
 * one f32 each. powl is the same code on every x86, which pow is not. */
static float inverse_frequency(float base, uint32_t i, uint32_t n_rot)
{
    float exponent = (float)(2 * i) / (float)n_rot;
    return 1.0f / (float)powl((long double)base, (long double)exponent);
}

static enum status place_rope(struct weights *w, struct placing *p, struct error *err)
{
    const struct hparams *hp = &w->model->hp;
    const struct gguf_tensor *factors = model_rope_freqs(w->model);
    uint32_t n = hp->n_rot / 2;
    if (factors)
        TRY(check_vector(factors, err));
    float *freq = take(&p->layout, n * sizeof *freq);
    const float *factor = factors ? place_vector(p, factors) : NULL;
    for (uint32_t i = 0; freq && i < n; i++) {
        freq[i] = inverse_frequency(hp->rope_theta, i, hp->n_rot);
        if (factor)
            freq[i] /= factor[i];
    }
    w->rope_freq = freq;
    return STATUS_OK;
}

/* With base NULL only the sum of bytes is of use. */
static enum status place_all(struct weights *w, uint8_t *base, size_t *bytes, struct error *err)
{
    struct placing p = {.layout.base = base, .ops = w->ops};
    for (uint32_t l = w->first_layer; l < w->end_layer; l++) {
        const struct gguf_tensor *tensors[N_LAYER_TENSORS];
        TRY(model_layer(w->model, l, tensors, err));
        for (int t = 0; t < N_LAYER_TENSORS; t++)
            if (tensors[t] && !layer_tensor_is_matrix((enum layer_tensor)t))
                w->layers[l - w->first_layer].vec[t] = place_vector(&p, tensors[t]);
    }
    if (w->has_head) {
        const struct gguf_tensor *out_norm, *head;
        TRY(model_head(w->model, &out_norm, &head, err));
        w->out_norm = place_vector(&p, out_norm);
    }
    TRY(place_rope(w, &p, err));
    each_matrix(w, place_matrix, &p);
    *bytes = p.layout.used;
    return STATUS_OK;
}

enum status weights_plan(const struct model *m, const struct ops *ops, uint32_t first_layer, uint32_t end_layer,
                         int has_embedding, int has_head, struct weights *out, struct error *err)
{
    ASSERT(first_layer < end_layer && end_layer <= m->hp.n_layers);
    struct weights w = {.model = m, .ops = ops, .first_layer = first_layer, .end_layer = end_layer,
                        .has_embedding = has_embedding, .has_head = has_head};
    w.layers = calloc(end_layer - first_layer, sizeof *w.layers);
    if (!w.layers)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the table of %u layers", end_layer - first_layer);
    enum status s = STATUS_OK;
    for (uint32_t l = first_layer; l < end_layer && s == STATUS_OK; l++)
        s = plan_layer(&w, l, err);
    if (s == STATUS_OK)
        s = plan_ends(&w, err);
    if (s == STATUS_OK)
        s = place_all(&w, NULL, &w.memory_bytes, err);
    if (s != STATUS_OK) {
        free(w.layers);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

/* --- packing ---------------------------------------------------------------------------------------------------------- */

struct pack_unit {
    struct weight *w;
    uint32_t row0, row1;
};

struct packing {
    const struct ops *ops;
    struct pack_unit *units;
    uint32_t n_units, max_units;
    atomic_uint next;
    uint64_t all_bytes;
    int64_t next_line_ns; /* thread 0 */
};

static void count_units(struct weight *m, void *arg)
{
    struct packing *p = arg;
    if (m->packed)
        p->max_units += (m->n + UNIT_ROWS - 1) / UNIT_ROWS;
}

static void add_units(struct weight *m, void *arg)
{
    struct packing *p = arg;
    for (uint32_t row = 0; m->packed && row < m->n; row += UNIT_ROWS)
        p->units[p->n_units++] =
            (struct pack_unit){.w = m, .row0 = row, .row1 = m->n - row < UNIT_ROWS ? m->n : row + UNIT_ROWS};
}

static void pack_thread(void *arg, int thread, int n_threads)
{
    struct packing *p = arg;
    (void)n_threads;
    for (;;) {
        unsigned i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_units)
            return;
        struct pack_unit *u = &p->units[i];
        p->ops->weight_pack(u->w, u->row0, u->row1);
        int64_t now = thread == 0 ? clock_now_ns() : 0;
        if (thread == 0 && now >= p->next_line_ns) {
            p->next_line_ns = now + PROGRESS_NS;
            LOG_INFO("packing weights: %u %% of %s", 100 * (i + 1) / p->n_units, memory_print(p->all_bytes).text);
        }
    }
}

/* Gives whole pages of the file's mapping back; the page cache keeps them while nobody needs the room. */
static void drop_pages(struct weight *m, void *arg)
{
    const uint8_t *keep = arg;
    const struct tensor_type_info *info = tensor_type_info(m->type);
    if (!m->packed || m->file_rows == keep)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)m->file_rows;
    uintptr_t end = at + (uintptr_t)m->k / info->block_elements * info->block_bytes * m->n;
    at = (at + page - 1) / page * page;
    end = end / page * page;
    if (end > at)
        madvise((void *)at, end - at, MADV_DONTNEED); /* a mapping of memory (tests) may refuse: nothing is lost */
}

enum status weights_load(struct weights *w, struct team *team, struct error *err)
{
    struct packing p = {.ops = w->ops, .next_line_ns = clock_now_ns() + PROGRESS_NS};
    size_t bytes;
    TRY(memory_map(w->memory_bytes, &w->memory, err));
    TRY(place_all(w, w->memory.data, &bytes, err));
    CHECK(bytes == w->memory_bytes);
    each_matrix(w, count_units, &p);
    p.all_bytes = bytes;
    if (p.max_units == 0)
        return STATUS_OK;
    p.units = calloc(p.max_units, sizeof *p.units);
    if (!p.units)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a list of %u pieces of weights", p.max_units);
    each_matrix(w, add_units, &p);
    int64_t start = clock_now_ns();
    team_run(team, pack_thread, &p);
    free(p.units);
    each_matrix(w, drop_pages, (void *)(uintptr_t)w->embedding.file_rows);
    LOG_INFO("layers %u..%u%s%s: %s packed in %lld ms", w->first_layer, w->end_layer - 1,
             w->has_embedding ? ", embedding" : "", w->has_head ? ", head" : "", memory_print(bytes).text,
             (long long)((clock_now_ns() - start) / NS_PER_MS));
    return STATUS_OK;
}

void weights_free(struct weights *w)
{
    memory_unmap(&w->memory);
    free(w->layers);
    *w = (struct weights){0};
}
