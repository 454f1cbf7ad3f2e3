#include "common/model/split.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"

/* The work of one token in a layer or at an end of the model. */
struct work {
    double decode_bytes; /* weights read */
    double prefill_macs;
};

/* What traffic will be is not known before there is some. A quarter, since the head, which is all that a cut can weigh against
 * layers, is read once a tick however many rows it has: with more streams it matters less and less, and prompts never feel it. */
static const double DECODE_SHARE = 0.25;

static double elements(const struct gguf_tensor *t)
{
    return (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2];
}

/* How much of a tensor one token meets: of the experts only those that it is sent to. */
static double used_part(const struct hparams *hp, const struct gguf_tensor *t)
{
    return t->ne[2] > 1 ? (double)hp->n_experts_used / (double)hp->n_experts : 1;
}

static struct work layer_work(const struct model *m, uint32_t layer)
{
    const struct gguf_tensor *tensors[N_LAYER_TENSORS];
    struct work w = {0, 0};
    CHECK(model_layer(m, layer, tensors, NULL) == STATUS_OK); /* model_open has seen it */
    for (uint32_t i = 0; i < N_LAYER_TENSORS; i++) {
        if (!tensors[i])
            continue;
        double used = used_part(&m->hp, tensors[i]);
        w.decode_bytes += used * (double)tensors[i]->bytes;
        if (tensors[i]->ne[1] > 1) /* a matrix */
            w.prefill_macs += used * elements(tensors[i]);
    }
    return w;
}

/* One row of the embedding. */
static struct work embedding_work(const struct model *m)
{
    const struct gguf_tensor *embd;
    CHECK(model_embedding(m, &embd, NULL) == STATUS_OK);
    return (struct work){(double)embd->bytes / (double)embd->ne[1], 0};
}

/* The whole head in decode; in prefill one row of a prompt in very many meets it. */
static struct work head_work(const struct model *m)
{
    const struct gguf_tensor *norm, *head;
    CHECK(model_head(m, &norm, &head, NULL) == STATUS_OK);
    return (struct work){(double)norm->bytes + (double)head->bytes, 0};
}

/* sum[i]: cost of everything before layer i, as a share of the whole; the embedding is part of layer 0, the head of the
 * last layer, where they stay in every cut. */
static double *cost_sums(const struct model *m)
{
    uint32_t n = m->hp.n_layers;
    struct work *w = calloc(n, sizeof *w), total = {0, 0};
    double *sum = calloc(n + 1, sizeof *sum);
    if (!w || !sum) {
        free(w);
        free(sum);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++)
        w[i] = layer_work(m, i);
    w[0].decode_bytes += embedding_work(m).decode_bytes;
    w[n - 1].decode_bytes += head_work(m).decode_bytes;
    for (uint32_t i = 0; i < n; i++) {
        total.decode_bytes += w[i].decode_bytes;
        total.prefill_macs += w[i].prefill_macs;
    }
    for (uint32_t i = 0; i < n; i++)
        sum[i + 1] = sum[i] + DECODE_SHARE * w[i].decode_bytes / total.decode_bytes +
                     (1 - DECODE_SHARE) * w[i].prefill_macs / total.prefill_macs;
    free(w);
    return sum;
}

/* --- balanced cuts
 * ------------------------------------------------------------------------------------------------------ */

/* Two tables by (stage, layers before its end): the best value of a cut so far and where its last stage starts. */
struct cuts {
    uint32_t n_layers, n_stages;
    const double *sum;
    double *best;    /* [n_stages + 1][n_layers + 1] */
    uint32_t *first; /* the same */
};

static size_t cell(const struct cuts *c, uint32_t stages, uint32_t layers)
{
    return (size_t)stages * (c->n_layers + 1) + layers;
}

/* Costs are shares of 1: what differs by less is the same up to rounding. */
static const double SAME = 1e-12;

/* limit < 0: the smallest largest stage. Else the smallest sum of squares of cuts without a stage above limit: of the
 * cuts with the same slowest stage the evenest one. */
static double value_with(double before, double stage, double limit)
{
    if (limit < 0)
        return before > stage ? before : stage;
    return stage > limit + SAME ? -1 : before + stage * stage;
}

/* Fills the tables exactly, over all contiguous cuts: O(stages x layers^2). Gives the value of the best whole cut. */
static double solve(struct cuts *c, double limit)
{
    for (uint32_t layers = 0; layers <= c->n_layers; layers++)
        c->best[cell(c, 0, layers)] = layers == 0 ? 0 : -1; /* -1: no such cut */
    for (uint32_t s = 1; s <= c->n_stages; s++)
        for (uint32_t end = 0; end <= c->n_layers; end++) {
            double best = -1;
            uint32_t first = 0;
            for (uint32_t start = s - 1; start < end; start++) {
                double before = c->best[cell(c, s - 1, start)];
                double v = before < 0 ? -1 : value_with(before, c->sum[end] - c->sum[start], limit);
                if (v >= 0 && (best < 0 || v < best - SAME)) {
                    best = v;
                    first = start;
                }
            }
            c->best[cell(c, s, end)] = best;
            c->first[cell(c, s, end)] = first;
        }
    return c->best[cell(c, c->n_stages, c->n_layers)];
}

static void read_cuts(const struct cuts *c, struct split *out)
{
    uint32_t end = c->n_layers;
    out->n_stages = c->n_stages;
    out->first_layer[c->n_stages] = end;
    for (uint32_t s = c->n_stages; s > 0; s--) {
        end = c->first[cell(c, s, end)];
        out->first_layer[s - 1] = end;
    }
}

static enum status balance(const struct model *m, uint32_t n_stages, struct split *out, struct error *err)
{
    struct cuts c = {.n_layers = m->hp.n_layers, .n_stages = n_stages};
    size_t n = (size_t)(n_stages + 1) * (c.n_layers + 1);
    double *sum = cost_sums(m);
    enum status s = STATUS_OK;
    c.sum = sum;
    c.best = calloc(n, sizeof *c.best);
    c.first = calloc(n, sizeof *c.first);
    if (sum && c.best && c.first) {
        solve(&c, solve(&c, -1));
        read_cuts(&c, out);
    } else {
        s = error_set(err, STATUS_OUT_OF_MEMORY, "no memory to split %u layers over %u stages", c.n_layers, n_stages);
    }
    free(sum);
    free(c.best);
    free(c.first);
    return s;
}

/* --- explicit cuts
 * ------------------------------------------------------------------------------------------------------ */

/* Decimal digits up to a comma or the end; 1 and *at on that. */
static int take_number(const char **at, uint32_t *out)
{
    uint64_t v = 0;
    const char *p = *at;
    if (*p < '0' || *p > '9')
        return 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if ((v = 10 * v + (uint64_t)(*p - '0')) > UINT32_MAX)
            return 0;
    if (*p != ',' && *p != 0)
        return 0;
    *out = (uint32_t)v;
    *at = p;
    return 1;
}

static enum status parse_list(const char *spec, uint32_t n_layers, uint32_t n_stages, struct split *out,
                              struct error *err)
{
    struct split s = {.n_stages = n_stages};
    const char *p = spec;
    uint32_t n = 0; /* numbers read */
    for (int more = 1; more; n++) {
        uint32_t first, last = s.first_layer[n]; /* n < n_stages: checked below */
        if (!take_number(&p, &first))
            return error_set(err, STATUS_CONFIG,
                             "--split '%.100s': not 'auto' or layers with commas between, like 4,9,12", spec);
        if (n + 1 >= n_stages)
            return error_set(err, STATUS_CONFIG, "--split '%.100s' names more than %u layers; %u stages need %u", spec,
                             n_stages - 1, n_stages, n_stages - 1);
        if (first <= last || first >= n_layers)
            return error_set(err, STATUS_CONFIG, "--split '%.100s': stage %u starts at layer %u, not in %u..%u", spec,
                             n + 1, first, last + 1, n_layers - 1);
        s.first_layer[n + 1] = first;
        more = *p++ == ',';
    }
    if (n != n_stages - 1)
        return error_set(err, STATUS_CONFIG, "--split '%.100s' names %u layers; %u stages need %u", spec, n, n_stages,
                         n_stages - 1);
    s.first_layer[n_stages] = n_layers;
    *out = s;
    return STATUS_OK;
}

enum status split_plan(const struct model *m, uint32_t n_stages, const char *spec, struct split *out, struct error *err)
{
    if (n_stages < 1 || n_stages > MAX_STAGES)
        return error_set(err, STATUS_CONFIG, "%u stages, not in 1..%d", n_stages, MAX_STAGES);
    if (n_stages > m->hp.n_layers)
        return error_set(err, STATUS_CONFIG, "%u stages, but the model has only %u layers", n_stages, m->hp.n_layers);
    if (!spec || !*spec || strcmp(spec, "auto") == 0)
        return balance(m, n_stages, out, err);
    return parse_list(spec, m->hp.n_layers, n_stages, out, err);
}
