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

/* What is done with everything that is packed or decoded. */
struct visitor {
    void (*matrix)(struct weight *w, void *arg);
    void (*vector)(const struct gguf_tensor *t, const float **to, void *arg); /* NULL: vectors are passed over */
    void *arg;
};

static void each_of_layer(const struct weights *w, uint32_t layer, const struct visitor *v)
{
    struct layer_weights *lw = &w->layers[layer - w->first_layer];
    const struct gguf_tensor *tensors[N_LAYER_TENSORS];
    CHECK(model_layer(w->model, layer, tensors, NULL) == STATUS_OK); /* weights_plan has seen it */
    for (int t = 0; t < N_LAYER_TENSORS; t++) {
        if (lw->mat[t].k)
            v->matrix(&lw->mat[t], v->arg);
        else if (v->vector && tensors[t] && !layer_tensor_is_experts((enum layer_tensor)t))
            v->vector(tensors[t], &lw->vec[t], v->arg);
    }
    for (uint32_t e = 0; e < w->model->hp.n_experts; e++) {
        v->matrix(&lw->experts[e].gate, v->arg);
        v->matrix(&lw->experts[e].up, v->arg);
        v->matrix(&lw->experts[e].down, v->arg);
    }
}

/* In file order of the layers, then the head. */
static void each_part(struct weights *w, const struct visitor *v)
{
    for (uint32_t l = w->first_layer; l < w->end_layer; l++)
        each_of_layer(w, l, v);
    if (!w->has_head)
        return;
    const struct gguf_tensor *out_norm, *head;
    CHECK(model_head(w->model, &out_norm, &head, NULL) == STATUS_OK);
    if (v->vector)
        v->vector(out_norm, &w->out_norm, v->arg);
    v->matrix(&w->head, v->arg);
}

/* --- plan ------------------------------------------------------------------------------------------------------------- */

/* Matrix `index` of the tensor. */
static enum status prepare_matrix(const struct weights *w, const struct gguf_tensor *t, uint32_t index, struct weight *out,
                                  struct error *err)
{
    struct error why;
    error_clear(&why);
    uint64_t k = t->ne[0], n = t->ne[1];
    const uint8_t *rows = t->data + t->bytes / t->ne[2] * index;
    if (k > UINT32_MAX || n > UINT32_MAX)
        return error_set(err, STATUS_BAD_MODEL, "tensor %.*s: a side is larger than 2^32", (int)t->name.len, t->name.data);
    enum status s = weight_prepare(w->ops, t->type, (uint32_t)n, (uint32_t)k, rows, out, &why);
    if (s == STATUS_OK && w->ops->weight_bytes(t->type, (uint32_t)n, (uint32_t)k) == SIZE_MAX)
        s = error_set(&why, STATUS_BAD_MODEL, "type %s has no kernel", tensor_type_info(t->type)->name);
    if (s != STATUS_OK) /* what is not supported is the file's, not the configuration's */
        return error_set(err, STATUS_BAD_MODEL, "tensor %.*s: %s", (int)t->name.len, t->name.data, why.message);
    return STATUS_OK;
}

static enum status check_vector(const struct gguf_tensor *t, struct error *err)
{
    if (!quant_supported(t->type))
        return error_set(err, STATUS_BAD_MODEL, "tensor %.*s: type %s is not supported", (int)t->name.len, t->name.data,
                         tensor_type_info(t->type)->name);
    return STATUS_OK;
}

static enum status prepare_experts(struct weights *w, const struct gguf_tensor *const *tensors, struct layer_weights *lw,
                                   struct error *err)
{
    for (uint32_t e = 0; e < w->model->hp.n_experts; e++) {
        TRY(prepare_matrix(w, tensors[LAYER_FFN_GATE_EXPS], e, &lw->experts[e].gate, err));
        TRY(prepare_matrix(w, tensors[LAYER_FFN_UP_EXPS], e, &lw->experts[e].up, err));
        TRY(prepare_matrix(w, tensors[LAYER_FFN_DOWN_EXPS], e, &lw->experts[e].down, err));
    }
    return STATUS_OK;
}

static enum status plan_layer(struct weights *w, uint32_t layer, struct error *err)
{
    const struct gguf_tensor *tensors[N_LAYER_TENSORS];
    uint32_t index = layer - w->first_layer;
    struct layer_weights *lw = &w->layers[index];
    TRY(model_layer(w->model, layer, tensors, err));
    for (int i = 0; i < N_LAYER_TENSORS; i++) {
        if (!tensors[i])
            continue;
        w->file_bytes += tensors[i]->bytes;
        if (layer_tensor_is_matrix((enum layer_tensor)i))
            TRY(prepare_matrix(w, tensors[i], 0, &lw->mat[i], err));
        else if (!layer_tensor_is_experts((enum layer_tensor)i))
            TRY(check_vector(tensors[i], err));
    }
    if (w->experts)
        lw->experts = w->experts + (size_t)index * w->model->hp.n_experts;
    return prepare_experts(w, tensors, lw, err);
}

static enum status plan_ends(struct weights *w, struct error *err)
{
    const struct gguf_tensor *embedding = NULL, *out_norm, *head, *factors = model_rope_freqs(w->model);
    if (w->has_embedding) {
        TRY(model_embedding(w->model, &embedding, err));
        TRY(prepare_matrix(w, embedding, 0, &w->embedding, err));
        w->file_bytes += embedding->bytes;
    }
    if (w->has_head) {
        TRY(model_head(w->model, &out_norm, &head, err));
        TRY(check_vector(out_norm, err));
        TRY(prepare_matrix(w, head, 0, &w->head, err));
        w->file_bytes += out_norm->bytes + (head == embedding ? 0 : head->bytes);
    }
    if (!factors)
        return STATUS_OK;
    w->file_bytes += factors->bytes;
    return check_vector(factors, err);
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

static void place_vector(const struct gguf_tensor *t, const float **to, void *arg)
{
    struct placing *p = arg;
    *to = take(&p->layout, t->ne[0] * sizeof **to);
}

/* base^(-2i/n) rounded as transformers does in float32 (modeling_rope_utils.py): the exponent, the power and its inverse are
 * one f32 each. powl is the same code on every x86, which pow is not. */
static float inverse_frequency(float base, uint32_t i, uint32_t n_rot)
{
    float exponent = (float)(2 * i) / (float)n_rot;
    return 1.0f / (float)powl((long double)base, (long double)exponent);
}

/* Written at once: the few numbers are no work. Scaling is for layers that see everything, so for table 0. */
static void place_rope(struct weights *w, struct placing *p)
{
    const struct hparams *hp = &w->model->hp;
    const struct gguf_tensor *factors = model_rope_freqs(w->model);
    uint32_t n = hp->n_rot / 2, n_tables = hp->window ? MODEL_ROPES : 1;
    float *factor = factors ? take(&p->layout, n * sizeof *factor) : NULL;
    if (factor)
        CHECK(quant_decode_row(factors->type, factors->data, n, factor)); /* plan_ends has checked the type */
    for (uint32_t t = 0; t < n_tables; t++) {
        float *freq = take(&p->layout, n * sizeof *freq);
        for (uint32_t i = 0; freq && i < n; i++) {
            freq[i] = inverse_frequency(t ? hp->rope_theta_local : hp->rope_theta, i, hp->n_rot);
            if (t == 0 && factor)
                freq[i] /= factor[i];
            if (t == 0)
                freq[i] /= hp->rope_factor;
        }
        w->rope_freq[t] = freq;
    }
}

/* With base NULL only the sum of bytes is of use. */
static size_t place_all(struct weights *w, uint8_t *base)
{
    struct placing p = {.layout.base = base, .ops = w->ops};
    const struct visitor v = {place_matrix, place_vector, &p};
    place_rope(w, &p);
    each_part(w, &v);
    return p.layout.used;
}

/* Tables without any content, of the size of the layer range. */
static enum status make_tables(struct weights *w, struct error *err)
{
    uint32_t n_layers = w->end_layer - w->first_layer, n_experts = w->model->hp.n_experts;
    w->layers = calloc(n_layers, sizeof *w->layers);
    if (n_experts)
        w->experts = calloc((size_t)n_layers * n_experts, sizeof *w->experts);
    if (!w->layers || (n_experts && !w->experts))
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the table of %u layers", n_layers);
    return STATUS_OK;
}

/* What an operation of ops.h asks of the model's shape beyond what the file has to hold. */
static enum status check_shape(const struct hparams *hp, struct error *err)
{
    enum { HEAD_STEP = 8 };
    if (hp->head_dim % HEAD_STEP)
        return error_set(err, STATUS_BAD_MODEL, "heads of %u elements are not supported: a multiple of %d is", hp->head_dim,
                         HEAD_STEP);
    return STATUS_OK;
}

enum status weights_plan(const struct model *m, const struct ops *ops, uint32_t first_layer, uint32_t end_layer,
                         int has_embedding, int has_head, struct weights *out, struct error *err)
{
    ASSERT(first_layer < end_layer && end_layer <= m->hp.n_layers);
    struct weights w = {.model = m, .ops = ops, .first_layer = first_layer, .end_layer = end_layer,
                        .has_embedding = has_embedding, .has_head = has_head};
    TRY(check_shape(&m->hp, err));
    enum status s = make_tables(&w, err);
    for (uint32_t l = first_layer; l < end_layer && s == STATUS_OK; l++)
        s = plan_layer(&w, l, err);
    if (s == STATUS_OK)
        s = plan_ends(&w, err);
    if (s != STATUS_OK) {
        weights_free(&w);
        return s;
    }
    w.memory_bytes = place_all(&w, NULL);
    *out = w;
    return STATUS_OK;
}

/* --- packing ---------------------------------------------------------------------------------------------------------- */

/* Rows of a matrix to check and, where its kernels want that, to pack; or a vector to decode. */
struct pack_unit {
    struct weight *w; /* NULL: a vector */
    uint32_t row0, row1;
    const struct gguf_tensor *vector;
    float *to;
};

struct packing {
    const struct ops *ops;
    struct pack_unit *units;
    uint32_t n_units, max_units;
    atomic_uint next, bad; /* bad: the first unit that holds something else than numbers; UINT32_MAX: none */
    uint64_t all_bytes;
    int64_t start_ns, next_line_ns; /* thread 0 */
};

static void count_matrix(struct weight *m, void *arg)
{
    struct packing *p = arg;
    p->max_units += (m->n + UNIT_ROWS - 1) / UNIT_ROWS;
}

static void count_vector(const struct gguf_tensor *t, const float **to, void *arg)
{
    struct packing *p = arg;
    (void)t;
    (void)to;
    p->max_units++;
}

static void add_matrix(struct weight *m, void *arg)
{
    struct packing *p = arg;
    for (uint32_t row = 0; row < m->n; row += UNIT_ROWS)
        p->units[p->n_units++] =
            (struct pack_unit){.w = m, .row0 = row, .row1 = m->n - row < UNIT_ROWS ? m->n : row + UNIT_ROWS};
}

static void add_vector(const struct gguf_tensor *t, const float **to, void *arg)
{
    struct packing *p = arg;
    p->units[p->n_units++] = (struct pack_unit){.vector = t, .to = (float *)(uintptr_t)*to};
}

static size_t file_row_bytes(const struct weight *w)
{
    const struct tensor_type_info *info = tensor_type_info(w->type);
    return (size_t)(w->k / info->block_elements) * info->block_bytes;
}

/* UINT32_MAX: all of the unit's rows hold numbers only. */
static uint32_t first_bad_row(const struct pack_unit *u)
{
    if (!u->w)
        return quant_row_is_finite(u->vector->type, u->vector->data, (uint32_t)u->vector->ne[0]) ? UINT32_MAX : 0;
    for (uint32_t row = u->row0; row < u->row1; row++)
        if (!quant_row_is_finite(u->w->type, u->w->file_rows + row * file_row_bytes(u->w), u->w->k))
            return row;
    return UINT32_MAX;
}

static void pack_one(struct packing *p, unsigned i)
{
    const struct pack_unit *u = &p->units[i];
    if (u->w && u->w->packed)
        p->ops->weight_pack(u->w, u->row0, u->row1);
    else if (!u->w)
        CHECK(quant_decode_row(u->vector->type, u->vector->data, (uint32_t)u->vector->ne[0], u->to)); /* type: check_vector */
    if (first_bad_row(u) == UINT32_MAX)
        return;
    unsigned before = atomic_load(&p->bad);
    while (i < before && !atomic_compare_exchange_weak(&p->bad, &before, i))
        ;
}

static void pack_thread(void *arg, int thread, int n_threads)
{
    struct packing *p = arg;
    (void)n_threads;
    for (;;) {
        unsigned i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_units || i > atomic_load_explicit(&p->bad, memory_order_relaxed))
            return;
        pack_one(p, i);
        int64_t now = thread == 0 ? clock_now_ns() : 0;
        if (thread == 0 && now >= p->next_line_ns) {
            p->next_line_ns = now + PROGRESS_NS;
            const double share = (double)(i + 1) / p->n_units;
            LOG_INFO("packing weights: %.0f %% of %s, %.2f GiB/s", 100 * share, memory_print(p->all_bytes).text,
                     share * (double)p->all_bytes / (1 << 30) / ((double)(now - p->start_ns) / NS_PER_S));
        }
    }
}

/* Gives whole pages of the file's mapping back; the page cache keeps them while nobody needs the room. */
static void drop_rows(const struct weight *m)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)m->file_rows;
    uintptr_t end = (at + file_row_bytes(m) * m->n) / page * page;
    at = (at + page - 1) / page * page;
    if (end > at)
        madvise((void *)at, end - at, MADV_DONTNEED); /* a mapping of memory (tests) may refuse: nothing is lost */
}

static void drop_packed(struct weight *m, void *arg)
{
    const uint8_t *keep = arg;
    if (m->packed && m->file_rows != keep)
        drop_rows(m);
}

/* A value that is infinite or NaN spoils every answer that meets it: better no service than one that fails now and then. */
static enum status refuse_bad(const struct weights *w, const struct pack_unit *u, struct error *err)
{
    const uint32_t row = first_bad_row(u);
    const uint8_t *at = u->w ? u->w->file_rows + row * file_row_bytes(u->w) : u->vector->data;
    for (uint32_t i = 0; i < gguf_n_tensors(w->model->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor(w->model->gguf, i);
        if (at >= t->data && at < t->data + t->bytes)
            return error_set(err, STATUS_BAD_MODEL,
                             "tensor %s (%s): row %llu, at byte %llu, holds a value that is infinite or not a number",
                             gguf_printable(t->name).text, tensor_type_info(t->type)->name,
                             (unsigned long long)((uint64_t)(at - t->data) / (t->bytes / (t->ne[1] * t->ne[2]))),
                             (unsigned long long)(t->file_offset + (uint64_t)(at - t->data)));
    }
    return error_set(err, STATUS_BAD_MODEL, "a tensor holds a value that is infinite or not a number");
}

/* Rows of the embedding are read from the file while ticks run; as a tied head they are checked with the others. */
static int embedding_is_apart(const struct weights *w)
{
    return w->has_embedding && !(w->has_head && w->head.file_rows == w->embedding.file_rows);
}

static enum status pack_all(struct weights *w, struct packing *p, struct team *team, struct error *err)
{
    const struct visitor count = {count_matrix, count_vector, p}, add = {add_matrix, add_vector, p};
    each_part(w, &count);
    if (embedding_is_apart(w))
        count_matrix(&w->embedding, p);
    p->units = calloc(p->max_units, sizeof *p->units);
    if (!p->units)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a list of %u pieces of weights", p->max_units);
    if (embedding_is_apart(w))
        add_matrix(&w->embedding, p);
    each_part(w, &add);
    team_run(team, pack_thread, p);
    const unsigned bad = atomic_load(&p->bad);
    enum status s = bad == UINT32_MAX ? STATUS_OK : refuse_bad(w, &p->units[bad], err);
    free(p->units);
    return s;
}

enum status weights_load(struct weights *w, struct team *team, struct error *err)
{
    const int64_t start = clock_now_ns();
    struct packing p = {.ops = w->ops, .all_bytes = w->memory_bytes, .start_ns = start, .bad = UINT32_MAX,
                        .next_line_ns = start + PROGRESS_NS};
    const struct visitor drop = {drop_packed, NULL, (void *)(uintptr_t)w->embedding.file_rows};
    TRY(memory_map(w->memory_bytes, &w->memory, err));
    CHECK(place_all(w, w->memory.data) == w->memory_bytes);
    TRY(pack_all(w, &p, team, err));
    each_part(w, &drop);
    if (embedding_is_apart(w))
        drop_rows(&w->embedding);
    LOG_INFO("layers %u..%u%s%s: %s packed in %lld ms", w->first_layer, w->end_layer - 1,
             w->has_embedding ? ", embedding" : "", w->has_head ? ", head" : "", memory_print(p.all_bytes).text,
             (long long)((clock_now_ns() - start) / NS_PER_MS));
    return STATUS_OK;
}

void weights_free(struct weights *w)
{
    memory_unmap(&w->memory);
    free(w->layers);
    free(w->experts);
    *w = (struct weights){0};
}
