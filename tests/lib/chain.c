#include "tests/lib/chain.h"

#include <stdlib.h>
#include <string.h>

#include "common/model/split.h"

struct chain {
    struct chain_options o;
    struct compute *stages[CHAIN_MAX_STAGES];
    struct msg_loaded loaded[CHAIN_MAX_STAGES];
    uint32_t n_open, blocks_per_seq, width;
    uint32_t *tables;             /* [n_seqs][blocks_per_seq] */
    struct tick_row *rows;        /* [max_rows] */
    struct tick_sample *samples;  /* [max_rows] */
    float *residual[2];           /* [max_rows][width] */
};

const struct sampler_params chain_greedy = {.top_p = 1};

static void set_defaults(struct chain_options *o)
{
#define DEFAULT(field, value) o->field = o->field ? o->field : (value)
    DEFAULT(n_stages, 1);
    DEFAULT(kv_block, 64);
    DEFAULT(max_rows, 512);
    DEFAULT(n_seqs, 8);
    DEFAULT(context, 1024);
    DEFAULT(n_threads, 1);
    DEFAULT(split, "auto");
#undef DEFAULT
}

static enum status open_stage(struct chain *c, const struct split *split, uint32_t i, struct error *err)
{
    struct compute *stage = c->stages[i];
    struct msg_assign a = {
        .stage = i, .n_stages = c->o.n_stages, .first_layer = split->first_layer[i], .end_layer = split->first_layer[i + 1],
        .slots = c->o.n_seqs, .context = c->o.context, .kv_block = c->o.kv_block,
        .n_blocks = c->o.n_seqs * c->blocks_per_seq, .max_rows = c->o.max_rows, .kv_type = "f16",
        .window = c->o.context, /* as if so many ticks were in flight: nothing is ever behind a window, and one table serves all layers */
    };
    TRY(stage->table->load(stage, &a, &c->loaded[i], err));
    c->width = stage->table->width(stage);
    return STATUS_OK;
}

static enum status open_stages(struct chain *c, struct error *err)
{
    struct split split;
    const struct model_compute_options mo = {.model_path = c->o.model_path, .backend = c->o.backend, .isa = c->o.isa,
                                             .n_threads = c->o.n_threads, .kv_fd = -1, .skip_calibration = !c->o.calibrate};
    for (; c->n_open < c->o.n_stages; c->n_open++)
        TRY(model_compute_create(&mo, &c->stages[c->n_open], err));
    TRY(split_plan(model_compute_model(c->stages[0]), c->o.n_stages, c->o.split, &split, err));
    for (uint32_t i = 0; i < c->o.n_stages; i++)
        TRY(open_stage(c, &split, i, err));
    return STATUS_OK;
}

/* Block numbers of all sequences, shuffled by a fixed rule. */
static void scatter(uint32_t *tables, uint32_t n)
{
    uint32_t seed = 12345;
    for (uint32_t i = 0; i < n; i++)
        tables[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t j = (seed >> 8) % (i + 1), t = tables[i];
        tables[i] = tables[j];
        tables[j] = t;
    }
}

enum status chain_open(const struct chain_options *o, struct chain **out, struct error *err)
{
    struct chain *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, STATUS_OUT_OF_MEMORY, "chain");
    c->o = *o;
    set_defaults(&c->o);
    c->blocks_per_seq = (c->o.context + c->o.kv_block - 1) / c->o.kv_block;
    enum status s = c->o.n_stages <= CHAIN_MAX_STAGES ? open_stages(c, err) : STATUS_CONFIG;
    uint32_t n_blocks = c->o.n_seqs * c->blocks_per_seq;
    c->tables = calloc(n_blocks, sizeof *c->tables);
    c->rows = calloc(c->o.max_rows, sizeof *c->rows);
    c->samples = calloc(c->o.max_rows, sizeof *c->samples);
    for (int i = 0; i < 2; i++)
        c->residual[i] = aligned_alloc(64, (size_t)c->o.max_rows * ((c->width + 15) / 16 * 16) * sizeof(float) + 64);
    if (s == STATUS_OK && (!c->tables || !c->rows || !c->samples || !c->residual[0] || !c->residual[1]))
        s = error_set(err, STATUS_OUT_OF_MEMORY, "chain");
    if (s != STATUS_OK) {
        chain_close(c);
        return s;
    }
    scatter(c->tables, n_blocks);
    *out = c;
    return STATUS_OK;
}

void chain_close(struct chain *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n_open; i++)
        c->stages[i]->table->destroy(c->stages[i]);
    free(c->tables);
    free(c->rows);
    free(c->samples);
    free(c->residual[0]);
    free(c->residual[1]);
    free(c);
}

enum status chain_run(struct chain *c, struct chain_row *rows, uint32_t n_rows, struct error *err)
{
    uint32_t n_samples = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t *table = c->tables + (size_t)rows[r].seq * c->blocks_per_seq;
        c->rows[r] = (struct tick_row){.blocks = table, .window_blocks = table,
                                       .position = rows[r].position, .id = rows[r].id, .seq = rows[r].seq};
        if (rows[r].sampler)
            c->samples[n_samples++] = (struct tick_sample){.row = r, .sampler = rows[r].sampler};
    }
    for (uint32_t i = 0; i < c->o.n_stages; i++) {
        int last = i + 1 == c->o.n_stages;
        struct tick t = {.n_rows = n_rows, .rows = c->rows, .n_samples = last ? n_samples : 0, .samples = c->samples,
                         .in = i ? c->residual[(i - 1) % 2] : NULL, .out = last ? NULL : c->residual[i % 2]};
        TRY(c->stages[i]->table->run(c->stages[i], &t, err));
    }
    for (uint32_t s = 0; s < n_samples; s++) {
        rows[c->samples[s].row].sampled = c->samples[s].id;
        rows[c->samples[s].row].bad_logits = c->samples[s].bad_logits;
    }
    return STATUS_OK;
}

void chain_set_logits_sink(struct chain *c, forward_logits_fn fn, void *ctx)
{
    model_compute_set_logits_sink(c->stages[c->o.n_stages - 1], fn, ctx);
}

const struct model *chain_model(const struct chain *c)
{
    return model_compute_model(c->stages[0]);
}

const struct msg_loaded *chain_loaded(const struct chain *c, uint32_t stage)
{
    return &c->loaded[stage];
}

const char *chain_backend(const struct chain *c)
{
    return c->stages[0]->table->backend;
}

struct compute *chain_compute(struct chain *c, uint32_t stage)
{
    return c->stages[stage];
}
