#include <string.h>

#include "common/base/check.h"
#include "stage/forward_impl.h"

void forward_set_pool(struct forward *f, const struct kv_pool *pool)
{
    f->pool = pool;
}

void forward_set_logits_sink(struct forward *f, forward_logits_fn fn, void *ctx)
{
    f->sink = fn;
    f->sink_ctx = ctx;
}

/* --- one thread's way through a tick ---------------------------------------------------------------------------------- */

static void choose_sharing(struct pass *p, uint32_t n_rows)
{
    struct forward *f = p->f;
    p->replicated = n_rows <= OWN_ROWS;
    p->row_thread = p->replicated ? 0 : p->thread;
    p->row_threads = p->replicated ? 1 : p->n_threads;
    p->acts = p->replicated ? &f->own[p->thread].acts : &f->acts;
}

void forward_norm_acts(struct pass *p, struct chunk c, const float *add, const float *w, int int8)
{
    uint32_t n_embd = p->f->hp.n_embd;
    p->f->ops->acts_norm(p->acts, p->x + (size_t)c.row0 * n_embd, add, w, p->f->hp.rms_eps, c.n, n_embd, int8,
                         p->row_thread, p->row_threads);
    barrier_if_shared(p);
}

static void add_bias(struct pass *p, float *x, const float *bias, uint32_t n_rows, uint32_t k, int thread)
{
    if (bias)
        p->f->ops->add_bias(x, bias, n_rows, k, thread, p->n_threads);
}

static void head_norm(struct pass *p, float *x, const float *w, uint32_t n_rows, uint32_t n_heads, int thread)
{
    if (w)
        p->f->ops->head_norm(x, w, p->f->hp.rms_eps, n_rows, n_heads, p->f->hp.head_dim, thread, p->n_threads);
}

static void rope(struct pass *p, const float *angles, struct chunk c, float *x, uint32_t n_heads, int thread)
{
    const struct hparams *hp = &p->f->hp;
    p->f->ops->rope(x, angles + (size_t)c.row0 * hp->n_rot, c.n, n_heads, hp->head_dim, hp->n_rot, hp->arch->rope,
                    thread, p->n_threads);
}

/* norm(x) * w where the architecture has such a norm, else x. Few rows every thread norms for itself, in `own`. */
static const float *post_norm(struct pass *p, float *x, const float *w, uint32_t n_rows, float *own)
{
    uint32_t n_embd = p->f->hp.n_embd;
    if (!w)
        return x;
    if (p->replicated)
        memcpy(own, x, (size_t)n_rows * n_embd * sizeof *x);
    else
        own = x;
    p->f->ops->norm(own, w, p->f->hp.rms_eps, n_rows, n_embd, p->row_thread, p->row_threads);
    barrier_if_shared(p);
    return own;
}

/* From the residual to K and V in the pool, and, unless only those are wanted, roped q. */
static void project_qkv(struct pass *p, uint32_t layer, const struct kv_view *kv, struct chunk c, const float *add, int kv_only)
{
    struct forward *f = p->f;
    const struct hparams *hp = &f->hp;
    const struct layer_weights *lw = &f->w->layers[layer];
    const float *angles = f->angles[model_layer_rope(f->w->model, f->w->first_layer + layer)];
    uint32_t n_q = hp->n_heads * hp->head_dim, n_kv = hp->n_kv_heads * hp->head_dim;
    const struct weight *wq = &lw->mat[LAYER_ATTN_Q], *wk = &lw->mat[LAYER_ATTN_K], *wv = &lw->mat[LAYER_ATTN_V];
    forward_norm_acts(p, c, add, lw->vec[LAYER_ATTN_NORM], wants_int8(wq) || wants_int8(wk) || wants_int8(wv));
    const struct matmul_job jobs[] = {
        {.w = wk, .y = f->k, .y_stride = n_kv}, {.w = wv, .y = f->v, .y_stride = n_kv}, {.w = wq, .y = f->q, .y_stride = n_q}};
    f->ops->matmul(jobs, kv_only ? 2 : 3, p->acts, p->thread, p->n_threads);
    barrier(p);
    /* A lone tile has one owner: k and v are counted from the other end, so that q goes to another thread. */
    int mirrored = p->n_threads - 1 - p->thread;
    if (!kv_only) {
        add_bias(p, f->q, lw->vec[LAYER_ATTN_Q_BIAS], c.n, n_q, p->thread);
        head_norm(p, f->q, lw->vec[LAYER_ATTN_Q_NORM], c.n, hp->n_heads, p->thread);
        rope(p, angles, c, f->q, hp->n_heads, p->thread);
    }
    add_bias(p, f->k, lw->vec[LAYER_ATTN_K_BIAS], c.n, n_kv, mirrored);
    add_bias(p, f->v, lw->vec[LAYER_ATTN_V_BIAS], c.n, n_kv, mirrored);
    head_norm(p, f->k, lw->vec[LAYER_ATTN_K_NORM], c.n, hp->n_kv_heads, mirrored);
    rope(p, angles, c, f->k, hp->n_kv_heads, mirrored);
    f->ops->kv_store(kv, p->kv_rows + c.row0, f->k, f->v, c.n, mirrored, p->n_threads);
    barrier(p);
}

/* Gives what the block adds to the residual. */
static const float *attend(struct pass *p, uint32_t layer, const struct kv_view *kv, struct chunk c)
{
    struct forward *f = p->f;
    const struct hparams *hp = &f->hp;
    const struct layer_weights *lw = &f->w->layers[layer];
    const struct weight *w = &lw->mat[LAYER_ATTN_OUT];
    uint32_t window = model_layer_window(f->w->model, f->w->first_layer + layer);
    f->ops->attention(kv, p->kv_rows + c.row0, f->q, f->att, c.n, hp->n_heads, hp->attention_scale, window, hp->attn_softcap,
                      f->attention_scratch, p->thread, p->n_threads);
    barrier(p);
    f->ops->acts_rows(p->acts, f->att, c.n, hp->n_heads * hp->head_dim, wants_int8(w), p->row_thread, p->row_threads);
    barrier_if_shared(p);
    const struct matmul_job job = {.w = w, .y = f->out, .y_stride = hp->n_embd};
    f->ops->matmul(&job, 1, p->acts, p->thread, p->n_threads);
    barrier(p);
    return post_norm(p, f->out, lw->vec[LAYER_ATTN_POST_NORM], c.n, f->own[p->thread].out);
}

static void dense_feed_forward(struct pass *p, const struct layer_weights *lw, struct chunk c, const float *add)
{
    struct forward *f = p->f;
    const struct hparams *hp = &f->hp;
    const struct weight *gate = &lw->mat[LAYER_FFN_GATE], *up = &lw->mat[LAYER_FFN_UP], *down = &lw->mat[LAYER_FFN_DOWN];
    forward_norm_acts(p, c, add, lw->vec[LAYER_FFN_NORM], wants_int8(gate) || wants_int8(up));
    const struct matmul_job jobs[] = {{.w = gate, .y = f->gate, .y_stride = hp->n_ff},
                                      {.w = up, .y = f->up, .y_stride = hp->n_ff}};
    f->ops->matmul(jobs, 2, p->acts, p->thread, p->n_threads);
    barrier(p);
    f->ops->acts_gate(p->acts, f->gate, f->up, hp->arch->gate, c.n, hp->n_ff, wants_int8(down), p->row_thread,
                      p->row_threads);
    barrier_if_shared(p);
    const struct matmul_job job = {.w = down, .y = f->down + (size_t)c.row0 * hp->n_embd, .y_stride = hp->n_embd};
    f->ops->matmul(&job, 1, p->acts, p->thread, p->n_threads);
    barrier(p);
}

static void feed_forward(struct pass *p, const struct layer_weights *lw, struct chunk c, const float *add)
{
    struct forward *f = p->f;
    if (lw->experts)
        experts_feed_forward(p, lw, c, add);
    else
        dense_feed_forward(p, lw, c, add);
    const float *down = post_norm(p, f->down + (size_t)c.row0 * f->hp.n_embd, lw->vec[LAYER_FFN_POST_NORM], c.n,
                                  f->own[p->thread].down);
    if (p->replicated) /* the only chunk */
        p->down = down;
}

static void run_layer(struct pass *p, uint32_t layer)
{
    struct forward *f = p->f;
    struct kv_view kv = kv_pool_view(f->pool, layer);
    p->kv_rows = kv_pool_is_window(f->pool, layer) ? f->window_rows : f->kv_rows;
    int is_end = layer + 1 == f->w->end_layer - f->w->first_layer && f->w->has_head;
    uint32_t n_rows = p->tick->n_rows, step = is_end ? LAST_ROWS : f->step;
    for (uint32_t row0 = 0; row0 < n_rows; row0 += step) {
        struct chunk c = {.row0 = row0, .n = n_rows - row0 < step ? n_rows - row0 : step};
        const float *add = layer ? p->down + (size_t)row0 * f->hp.n_embd : NULL;
        /* Behind the last layer only sampled rows are read: of the others K and V are enough. */
        int kv_only = is_end && !f->last_sampled[row0 / LAST_ROWS];
        project_qkv(p, layer, &kv, c, add, kv_only);
        if (!kv_only)
            feed_forward(p, &f->w->layers[layer], c, attend(p, layer, &kv, c));
    }
    if (p->thread == 0)
        atomic_fetch_add_explicit(p->progress, 1, memory_order_relaxed);
}

/* --- in and out ------------------------------------------------------------------------------------------------------- */

static void load_rows(struct pass *p)
{
    struct forward *f = p->f;
    const struct tick *t = p->tick;
    uint32_t n_embd = f->hp.n_embd;
    struct share s = share_rows(t->n_rows, p->row_thread, p->row_threads);
    if (f->w->has_embedding)
        f->ops->embed(&f->w->embedding, f->ids, t->n_rows, f->embedding_scale, p->x, p->row_thread, p->row_threads);
    else if (s.begin < s.end)
        memcpy(p->x + (size_t)s.begin * n_embd, t->in + (size_t)s.begin * n_embd,
               (size_t)(s.end - s.begin) * n_embd * sizeof(float));
    /* Angles are read behind the barrier that follows the first product. */
    for (int i = 0; i < MODEL_ROPES; i++)
        if (f->w->rope_freq[i])
            f->ops->rope_angles(f->positions, t->n_rows, f->w->rope_freq[i], f->hp.n_rot, f->angles[i], p->thread,
                                p->n_threads);
    barrier_if_shared(p);
}

/* y = x + down for row `from`. */
static void finish_row(const struct pass *p, uint32_t from, float *restrict y)
{
    uint32_t n_embd = p->f->hp.n_embd;
    const float *x = p->x + (size_t)from * n_embd, *down = p->down + (size_t)from * n_embd;
    for (uint32_t i = 0; i < n_embd; i++)
        y[i] = x[i] + down[i];
}

static void send_rows(struct pass *p)
{
    struct share s = share_of(p->tick->n_rows, p->thread, p->n_threads);
    for (uint32_t r = s.begin; r < s.end; r++)
        finish_row(p, r, p->tick->out + (size_t)r * p->f->hp.n_embd);
}

static struct logit_peak peak_of_row(const struct forward *f, uint32_t row)
{
    const struct logit_peak *parts = f->peaks + (size_t)row * (size_t)f->n_threads;
    struct logit_peak whole = parts[0];
    for (int t = 1; t < f->n_threads; t++)
        whole = sampler_merge(whole, parts[t]);
    return whole;
}

static void sample_row(struct pass *p, struct tick_sample *s, uint32_t row)
{
    struct forward *f = p->f;
    const uint32_t n_vocab = f->hp.n_vocab, position = p->tick->rows[s->row].position + 1;
    const float *raw = f->logits + (size_t)row * n_vocab, *logits = raw;
    const struct logit_peak model = peak_of_row(f, row);
    struct logit_peak peak = model;
    void *scratch = f->own[p->thread].sampler;
    if (!sampler_peak_is_bad(&peak) && sampler_adjusts(s->sampler)) {
        logits = sampler_adjust(s->sampler, s->bias, s->ids, position, raw, n_vocab, scratch);
        peak = sampler_scan(logits, 0, n_vocab);
    }
    s->bad_logits = (uint32_t)sampler_peak_is_bad(&peak);
    s->id = -1;
    if (s->bad_logits)
        return;
    s->id = (int32_t)sampler_draw(s->sampler, logits, n_vocab, &peak, position, scratch);
    if (s->sampler->n_top > 0)
        s->n_tops = sampler_logprobs(raw, n_vocab, &model, (uint32_t)s->id, s->sampler->n_top - 1, &s->logprob, s->tops);
}

/* All threads look for the largest logit of each row in their share of the columns; then rows go round. */
static void sample_rows(struct pass *p, struct tick_sample *samples, uint32_t n)
{
    struct forward *f = p->f;
    struct share columns = share_of(f->hp.n_vocab, p->thread, p->n_threads);
    for (uint32_t r = 0; r < n; r++)
        f->peaks[(size_t)r * (size_t)f->n_threads + (size_t)p->thread] =
            sampler_scan(f->logits + (size_t)r * f->hp.n_vocab, columns.begin, columns.end);
    barrier(p);
    for (uint32_t r = (uint32_t)p->thread; r < n; r += (uint32_t)p->n_threads)
        sample_row(p, &samples[r], r);
    for (uint32_t r = 0; f->sink && p->thread == 0 && r < n; r++) {
        const struct tick_row *row = &p->tick->rows[samples[r].row];
        f->sink(f->sink_ctx, row->seq, row->position, f->logits + (size_t)r * f->hp.n_vocab, f->hp.n_vocab);
    }
    barrier(p); /* logits and peaks are free for the next rows, ids are written */
}

static void run_head(struct pass *p)
{
    struct forward *f = p->f;
    struct tick *t = p->tick;
    uint32_t n_embd = f->hp.n_embd;
    for (uint32_t s0 = 0; s0 < t->n_samples; s0 += f->head_rows) {
        uint32_t n = t->n_samples - s0 < f->head_rows ? t->n_samples - s0 : f->head_rows;
        struct pass head = *p;
        choose_sharing(&head, n);
        float *x = head.replicated ? f->own[p->thread].head_x : f->head_x;
        struct share rows = share_rows(n, head.row_thread, head.row_threads);
        for (uint32_t r = rows.begin; r < rows.end; r++)
            finish_row(p, t->samples[s0 + r].row, x + (size_t)r * n_embd);
        f->ops->acts_norm(head.acts, x, NULL, f->w->out_norm, f->hp.rms_eps, n, n_embd, wants_int8(&f->w->head),
                          head.row_thread, head.row_threads);
        barrier_if_shared(&head);
        const struct matmul_job job = {.w = &f->w->head, .y = f->logits, .y_stride = f->hp.n_vocab};
        f->ops->matmul(&job, 1, head.acts, p->thread, p->n_threads);
        if (f->hp.final_softcap > 0)
            f->ops->softcap(f->logits, n, f->hp.n_vocab, f->hp.final_softcap, p->thread, p->n_threads);
        barrier(p);
        sample_rows(p, t->samples + s0, n);
    }
}

static void tick_thread(void *arg, int thread, int n_threads)
{
    struct pass p = *(const struct pass *)arg;
    struct forward *f = p.f;
    uint32_t n_layers = f->w->end_layer - f->w->first_layer;
    p.thread = thread;
    p.n_threads = n_threads;
    choose_sharing(&p, p.tick->n_rows);
    p.x = p.replicated ? f->own[thread].x : f->x;
    p.down = f->down;
    load_rows(&p);
    for (uint32_t l = 0; l < n_layers; l++)
        run_layer(&p, l);
    if (f->w->has_head)
        run_head(&p);
    else
        send_rows(&p);
}

/* As few chunks as may be, alike in size, in whole tiles. */
static uint32_t choose_step(const struct forward *f, uint32_t n_rows)
{
    uint32_t n_chunks = (n_rows + f->chunk_rows - 1) / f->chunk_rows;
    uint32_t step = ((n_rows + n_chunks - 1) / n_chunks + SHARE_TILE - 1) / SHARE_TILE * SHARE_TILE;
    return step < f->chunk_rows ? step : f->chunk_rows;
}

void forward_run(struct forward *f, struct tick *t, atomic_uint_fast64_t *progress)
{
    ASSERT(t->n_rows > 0 && t->n_rows <= f->max_rows && f->pool);
    f->step = choose_step(f, t->n_rows);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        f->kv_rows[r] = (struct kv_row){.blocks = t->rows[r].blocks, .position = t->rows[r].position};
        if (f->window_rows)
            f->window_rows[r] = (struct kv_row){.blocks = t->rows[r].window_blocks, .position = t->rows[r].position};
        f->positions[r] = t->rows[r].position;
        f->ids[r] = t->rows[r].id;
    }
    memset(f->last_sampled, 0, t->n_rows / LAST_ROWS + 1);
    for (uint32_t s = 0; s < t->n_samples; s++)
        f->last_sampled[t->samples[s].row / LAST_ROWS] = 1;
    struct pass p = {.f = f, .tick = t, .progress = progress};
    team_run(f->team, tick_thread, &p);
}
