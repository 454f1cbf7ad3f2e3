#include <math.h>
#include <stdlib.h>

#include "common/base/check.h"
#include "stage/forward_impl.h"

enum {
    /* Rows that go through a layer together. One thread reads 64 to 256 alike and 512 slower (caches); of several, larger
     * chunks wait less at barriers: 512 rows in chunks of 256 are 20 % faster than in 64 on two busy cores. */
    CHUNK_ROWS_MIN = 64,
    CHUNK_ROWS_MAX = 256,
    CHUNK_BYTES = 6 << 20,      /* of q, k, v, gate and up between the two */
    CHUNK_TILES_PER_THREAD = 2, /* at least: else threads wait for the last tile */
    HEAD_ROWS = 64,             /* sampled rows that go through the head together */
    HEAD_BYTES_MAX = 64 << 20,  /* of their logits */
    LINE = 64,
    PAGE = 4096,
};

struct carving {
    uint8_t *base; /* NULL: only the sum is wanted */
    size_t used;
};

static void *carve(struct carving *c, size_t bytes, size_t align)
{
    c->used = (c->used + align - 1) / align * align;
    void *p = c->base ? c->base + c->used : NULL;
    c->used += bytes;
    return p;
}

static float *carve_rows(struct carving *c, uint32_t n_rows, uint32_t k)
{
    return carve(c, (size_t)n_rows * k * sizeof(float), LINE);
}

static void carve_acts(struct carving *c, const struct ops *ops, uint32_t max_rows, uint32_t max_k, struct acts *a)
{
    a->max_rows = max_rows;
    a->max_k = max_k;
    a->x = carve_rows(c, max_rows, max_k);
    a->int8 = carve(c, ops->acts_bytes(max_rows, max_k), LINE);
}

static int has_tensor(const struct forward *f, enum layer_tensor t)
{
    return f->hp.arch->required >> t & 1;
}

static void carve_own(struct forward *f, struct carving *c, struct own *own, uint32_t max_k)
{
    carve(c, 0, PAGE); /* threads share no page, so no line and no prefetch either */
    carve_acts(c, f->ops, OWN_ROWS, max_k, &own->acts);
    own->x = carve_rows(c, OWN_ROWS, f->hp.n_embd);
    own->head_x = carve_rows(c, OWN_ROWS, f->hp.n_embd);
    if (has_tensor(f, LAYER_ATTN_POST_NORM))
        own->out = carve_rows(c, OWN_ROWS, f->hp.n_embd);
    if (has_tensor(f, LAYER_FFN_POST_NORM))
        own->down = carve_rows(c, OWN_ROWS, f->hp.n_embd);
    if (f->w->has_head)
        own->sampler = carve(c, sampler_scratch_bytes(f->hp.n_vocab), LINE);
    carve(c, 0, PAGE);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void carve_experts(struct forward *f, struct carving *c)
{
    const struct hparams *hp = &f->hp;
    struct experts *e = &f->experts;
    uint32_t n_pairs = f->chunk_rows * hp->n_experts_used, max_k = max_u32(hp->n_embd, hp->n_ff_expert);
    if (hp->n_experts == 0)
        return;
    e->max_groups = n_pairs < hp->n_experts ? n_pairs : hp->n_experts;
    e->max_slots = (n_pairs / SHARE_TILE + e->max_groups) * SHARE_TILE; /* every group may leave most of a tile empty */
    e->tile_bytes = (f->ops->acts_bytes(SHARE_TILE, max_k) + LINE - 1) / LINE * LINE;
    e->router = carve_rows(c, f->chunk_rows, hp->n_experts);
    e->routes = carve(c, n_pairs * sizeof *e->routes, LINE);
    e->groups = carve(c, e->max_groups * sizeof *e->groups, LINE);
    e->group_of = carve(c, hp->n_experts * sizeof *e->group_of, LINE);
    e->row_of = carve(c, e->max_slots * sizeof *e->row_of, LINE);
    e->x = carve_rows(c, e->max_slots, hp->n_embd);
    e->gate = carve_rows(c, e->max_slots, hp->n_ff_expert);
    e->up = carve_rows(c, e->max_slots, hp->n_ff_expert);
    e->acts_x = carve_rows(c, e->max_slots, max_k);
    e->acts_int8 = carve(c, e->max_slots / SHARE_TILE * e->tile_bytes, LINE);
}

static void carve_all(struct forward *f, struct carving *c)
{
    const struct hparams *hp = &f->hp;
    uint32_t n_q = hp->n_heads * hp->head_dim, n_kv = hp->n_kv_heads * hp->head_dim, rows = f->max_rows;
    uint32_t chunk = f->chunk_rows, max_k = max_u32(max_u32(hp->n_embd, n_q), hp->n_ff);
    f->own = carve(c, (size_t)f->n_threads * sizeof *f->own, LINE);
    carve_acts(c, f->ops, max_u32(chunk, f->head_rows), max_k, &f->acts);
    f->x = carve_rows(c, rows, hp->n_embd);
    f->down = carve_rows(c, rows, hp->n_embd);
    f->out = carve_rows(c, chunk, hp->n_embd);
    f->q = carve_rows(c, chunk, n_q);
    f->k = carve_rows(c, chunk, n_kv);
    f->v = carve_rows(c, chunk, n_kv);
    f->att = carve_rows(c, chunk, n_q);
    f->gate = carve_rows(c, chunk, hp->n_ff);
    f->up = carve_rows(c, chunk, hp->n_ff);
    for (int t = 0; t < MODEL_ROPES; t++)
        if (f->w->rope_freq[t] || t == 0)
            f->angles[t] = carve_rows(c, rows, hp->n_rot);
    f->attention_scratch = carve(c, f->ops->attention_bytes(chunk, hp->n_heads, hp->head_dim, f->n_threads), LINE);
    f->kv_rows = carve(c, rows * sizeof *f->kv_rows, LINE);
    if (hp->window)
        f->window_rows = carve(c, rows * sizeof *f->window_rows, LINE);
    f->positions = carve(c, rows * sizeof *f->positions, LINE);
    f->ids = carve(c, rows * sizeof *f->ids, LINE);
    f->last_sampled = carve(c, rows / LAST_ROWS + 1, LINE);
    if (f->w->has_head) {
        f->head_x = carve_rows(c, f->head_rows, hp->n_embd);
        f->logits = carve_rows(c, f->head_rows, hp->n_vocab);
        f->peaks = carve(c, (size_t)f->head_rows * (size_t)f->n_threads * sizeof *f->peaks, LINE);
    }
    carve_experts(f, c);
    for (int t = 0; t < f->n_threads; t++) {
        struct own none;
        carve_own(f, c, c->base ? &f->own[t] : &none, max_k);
    }
}

static uint32_t choose_chunk(const struct hparams *hp, int n_threads, uint32_t max_rows)
{
    size_t experts = hp->n_experts_used * ((size_t)2 * hp->n_embd + 3 * (size_t)hp->n_ff_expert);
    size_t row_bytes =
        4 * (2 * ((size_t)hp->n_heads + hp->n_kv_heads) * hp->head_dim + hp->n_embd + 2 * (size_t)hp->n_ff + experts);
    uint32_t chunk = (uint32_t)(CHUNK_BYTES / row_bytes / SHARE_TILE * SHARE_TILE);
    chunk = chunk < CHUNK_ROWS_MAX ? max_u32(chunk, CHUNK_ROWS_MIN) : CHUNK_ROWS_MAX;
    chunk = max_u32(chunk, (uint32_t)n_threads * CHUNK_TILES_PER_THREAD * SHARE_TILE);
    return chunk < max_rows ? chunk : max_rows;
}

static void init(struct forward *f, const struct forward_options *o)
{
    const struct hparams *hp = &o->weights->model->hp;
    *f = (struct forward){.w = o->weights, .ops = o->weights->ops, .team = o->team, .hp = *hp,
                          .n_threads = team_size(o->team), .max_rows = o->max_rows};
    f->chunk_rows = choose_chunk(hp, f->n_threads, o->max_rows);
    uint32_t fit = (uint32_t)(HEAD_BYTES_MAX / ((size_t)hp->n_vocab * sizeof(float)));
    f->head_rows = fit < OWN_ROWS ? OWN_ROWS : fit < HEAD_ROWS ? fit : HEAD_ROWS;
    f->head_rows = f->head_rows < o->max_rows ? f->head_rows : o->max_rows;
    f->embedding_scale = hp->arch->scale_embedding ? (float)sqrt((double)hp->n_embd) : 1.0f;
}

size_t forward_bytes(const struct forward_options *o)
{
    struct forward f;
    struct carving c = {0};
    init(&f, o);
    carve_all(&f, &c);
    return c.used;
}

enum status forward_create(const struct forward_options *o, struct forward **out, struct error *err)
{
    ASSERT(o->max_rows > 0);
    struct forward *f = calloc(1, sizeof *f);
    if (!f)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a stage's buffers");
    init(f, o);
    enum status s = memory_map(forward_bytes(o), &f->memory, err);
    if (s != STATUS_OK) {
        free(f);
        return s;
    }
    struct carving c = {.base = f->memory.data};
    carve_all(f, &c);
    *out = f;
    return STATUS_OK;
}

void forward_destroy(struct forward *f)
{
    if (!f)
        return;
    memory_unmap(&f->memory);
    free(f);
}
