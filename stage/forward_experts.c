/* The feed-forward step of a layer with experts: rows are sorted by expert, each expert's rows go through its matrices by the
 * ordinary operations, and the results are added per row in the order of that row's ranks. So what a row gets depends on
 * no other row. */
#include <string.h>

#include "kernels/math.h"
#include "stage/forward_impl.h"

/* --- choice ----------------------------------------------------------------------------------------------------------- */

/* The best one whose bit in `taken` is not set. A NaN is never the better one, but some expert is always found. */
static uint32_t best_left(const float *logits, uint32_t n_experts, const uint64_t *taken)
{
    uint32_t best = n_experts;
    for (uint32_t e = 0; e < n_experts; e++)
        if ((best == n_experts || logits[e] > logits[best]) && !(taken[e / 64] >> e % 64 & 1))
            best = e;
    return best;
}

void experts_choose(const float *logits, uint32_t n_experts, uint32_t n_used, int normalise, struct route *out)
{
    uint64_t taken[MODEL_MAX_EXPERTS / 64] = {0};
    float max = logits[0], sum = 0, used = 0;
    for (uint32_t e = 1; e < n_experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < n_experts; e++)
        sum += math_exp_neg(logits[e] - max);
    for (uint32_t i = 0; i < n_used; i++) {
        uint32_t e = best_left(logits, n_experts, taken);
        taken[e / 64] |= 1ull << e % 64;
        out[i] = (struct route){.expert = e, .weight = math_exp_neg(logits[e] - max) / sum};
        used += out[i].weight;
    }
    for (uint32_t i = 0; i < n_used && normalise; i++)
        out[i].weight /= used;
}

static void choose_rows(struct pass *p, uint32_t n_rows)
{
    const struct hparams *hp = &p->f->hp;
    const struct experts *e = &p->f->experts;
    for (uint32_t r = (uint32_t)p->thread; r < n_rows; r += (uint32_t)p->n_threads)
        experts_choose(e->router + (size_t)r * hp->n_experts, hp->n_experts, hp->n_experts_used, hp->normalise_experts,
                       e->routes + (size_t)r * hp->n_experts_used);
}

/* --- sorting ---------------------------------------------------------------------------------------------------------- */

static void make_groups(struct forward *f, uint32_t n_pairs)
{
    struct experts *e = &f->experts;
    uint32_t *count = e->group_of, slot = 0, max_k = f->hp.n_embd > f->hp.n_ff_expert ? f->hp.n_embd : f->hp.n_ff_expert;
    memset(count, 0, f->hp.n_experts * sizeof *count);
    for (uint32_t i = 0; i < n_pairs; i++)
        count[e->routes[i].expert]++;
    e->n_groups = 0;
    for (uint32_t x = 0; x < f->hp.n_experts; x++) {
        uint32_t n = count[x];
        if (n == 0)
            continue;
        e->groups[e->n_groups] = (struct expert_group){
            .expert = x,
            .slot0 = slot,
            .acts = {.max_rows = (n + SHARE_TILE - 1) / SHARE_TILE * SHARE_TILE,
                     .max_k = max_k,
                     .x = e->acts_x + (size_t)slot * max_k,
                     .int8 = e->acts_int8 + slot / SHARE_TILE * e->tile_bytes},
        };
        e->group_of[x] = e->n_groups;
        slot += e->groups[e->n_groups++].acts.max_rows;
    }
}

/* Gives every pair of a row and an expert its slot: by expert, and of one expert in the order of rows. */
static void sort_rows(struct forward *f, uint32_t n_rows)
{
    struct experts *e = &f->experts;
    uint32_t n_used = f->hp.n_experts_used;
    make_groups(f, n_rows * n_used);
    for (uint32_t i = 0; i < n_rows * n_used; i++) {
        struct expert_group *g = &e->groups[e->group_of[e->routes[i].expert]];
        e->routes[i].slot = g->slot0 + g->n++;
        e->row_of[e->routes[i].slot] = i / n_used;
    }
}

/* --- the experts ------------------------------------------------------------------------------------------------------ */

/* Row work goes round by whole groups. */
#define EACH_OWN_GROUP(p, g)                                                                                           \
    for (struct expert_group *g = (p)->f->experts.groups + (p)->thread,                                                \
                             *g##_end = (p)->f->experts.groups + (p)->f->experts.n_groups;                             \
         g < g##_end; g += (p)->n_threads)

static void gather(struct pass *p, const struct layer_weights *lw, const float *rows)
{
    struct forward *f = p->f;
    uint32_t n_embd = f->hp.n_embd;
    EACH_OWN_GROUP(p, g) {
        const struct expert_weights *w = &lw->experts[g->expert];
        float *x = f->experts.x + (size_t)g->slot0 * n_embd;
        for (uint32_t i = 0; i < g->n; i++)
            memcpy(x + (size_t)i * n_embd, rows + (size_t)f->experts.row_of[g->slot0 + i] * n_embd, n_embd * sizeof *x);
        f->ops->acts_rows(&g->acts, x, g->n, n_embd, wants_int8(&w->gate) || wants_int8(&w->up), 0, 1);
    }
}

static void multiply_gate_up(struct pass *p, const struct layer_weights *lw)
{
    const struct experts *e = &p->f->experts;
    uint32_t n_ff = p->f->hp.n_ff_expert;
    for (uint32_t i = 0; i < e->n_groups; i++) {
        const struct expert_group *g = &e->groups[i];
        const struct expert_weights *w = &lw->experts[g->expert];
        const struct matmul_job jobs[] = {{.w = &w->gate, .y = e->gate + (size_t)g->slot0 * n_ff, .y_stride = n_ff},
                                          {.w = &w->up, .y = e->up + (size_t)g->slot0 * n_ff, .y_stride = n_ff}};
        p->f->ops->matmul(jobs, 2, &g->acts, p->thread, p->n_threads);
    }
}

static void apply_gate(struct pass *p, const struct layer_weights *lw)
{
    const struct experts *e = &p->f->experts;
    uint32_t n_ff = p->f->hp.n_ff_expert;
    EACH_OWN_GROUP(p, g) {
        const float *gate = e->gate + (size_t)g->slot0 * n_ff, *up = e->up + (size_t)g->slot0 * n_ff;
        p->f->ops->acts_gate(&g->acts, gate, up, p->f->hp.arch->gate, g->n, n_ff, wants_int8(&lw->experts[g->expert].down), 0,
                             1);
    }
}

static void multiply_down(struct pass *p, const struct layer_weights *lw)
{
    const struct experts *e = &p->f->experts;
    uint32_t n_embd = p->f->hp.n_embd;
    for (uint32_t i = 0; i < e->n_groups; i++) {
        const struct expert_group *g = &e->groups[i];
        const struct matmul_job job = {
            .w = &lw->experts[g->expert].down, .y = e->x + (size_t)g->slot0 * n_embd, .y_stride = n_embd};
        p->f->ops->matmul(&job, 1, &g->acts, p->thread, p->n_threads);
    }
}

/* y of each row = the weighted sum of its experts' rows, by rank; a share is a range of columns. */
static void add_up(struct pass *p, struct chunk c)
{
    const struct hparams *hp = &p->f->hp;
    const struct experts *e = &p->f->experts;
    struct share s = share_of((hp->n_embd + STRIP - 1) / STRIP, p->thread, p->n_threads);
    uint32_t begin = s.begin * STRIP, end = s.end * STRIP < hp->n_embd ? s.end * STRIP : hp->n_embd;
    for (uint32_t r = 0; r < c.n; r++) {
        float *restrict y = p->f->down + (size_t)(c.row0 + r) * hp->n_embd;
        const struct route *routes = e->routes + (size_t)r * hp->n_experts_used;
        for (uint32_t i = 0; i < hp->n_experts_used; i++) {
            const float *restrict x = e->x + (size_t)routes[i].slot * hp->n_embd, weight = routes[i].weight;
            for (uint32_t k = begin; k < end; k++)
                y[k] = i ? y[k] + weight * x[k] : weight * x[k];
        }
    }
}

void experts_feed_forward(struct pass *p, const struct layer_weights *lw, struct chunk c, const float *add)
{
    struct forward *f = p->f;
    const struct weight *router = &lw->mat[LAYER_FFN_GATE_INP];
    forward_norm_acts(p, c, add, lw->vec[LAYER_FFN_NORM], wants_int8(router));
    const struct matmul_job job = {.w = router, .y = f->experts.router, .y_stride = f->hp.n_experts};
    f->ops->matmul(&job, 1, p->acts, p->thread, p->n_threads);
    barrier(p);
    choose_rows(p, c.n);
    barrier(p);
    if (p->thread == 0)
        sort_rows(f, c.n);
    barrier(p);
    gather(p, lw, p->acts->x);
    barrier(p);
    multiply_gate_up(p, lw);
    barrier(p);
    apply_gate(p, lw);
    barrier(p);
    multiply_down(p, lw);
    barrier(p);
    add_up(p, c);
    barrier(p);
}
