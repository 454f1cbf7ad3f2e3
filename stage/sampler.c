#include "stage/sampler.h"

#include <math.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "kernels/math.h"
#include "stage/sampler_math.h"

/* Weights are 2^-d, d = (max - logit) * log2(e) / temperature, in [0, 125]. Bins of equal width in d order the tokens: a
 * lower bin holds larger logits only, since d falls with the logit through every rounding. */
enum {
    BINS_PER_OCTAVE = 16,
    N_BINS = 125 * BINS_PER_OCTAVE + 2, /* the last: weight 0 */
    NEAR_OCTAVES = 12, /* limits are looked for among weights above 2^-12 first: some hundred tokens of most rows */
    SUM_LANES = 8,
    SUM_BLOCK = 512, /* ids of one partial sum of the final draw */
};

#define MAX_SCALE 0x1p100f /* a temperature near 0 must not make 0 * inf */

struct scratch {
    uint32_t *near;     /* [n_vocab] ids of the tokens looked at, ascending */
    float *near_logit;  /* [n_vocab] */
    float *weight;      /* [n_vocab rounded up to SUM_BLOCK], 0 behind the end */
    uint32_t *heap;     /* [n_vocab] ids of one bin */
    float *typical;     /* [n_vocab] how typical: 0 is most, less is less */
    float *adjusted;    /* [n_vocab] logits with biases and penalties */
    uint32_t *count;    /* [n_vocab] of ids, while penalties are worked out */
    double *block_sum;  /* [n_vocab / SUM_BLOCK + 1] */
    double *bin_sum;    /* [N_BINS] */
    uint32_t *bin_n;    /* [N_BINS] */
};

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static size_t scratch_layout(uint32_t n_vocab, void *base, struct scratch *s)
{
    uint32_t padded = round_up(n_vocab, SUM_BLOCK);
    uint8_t *p = base;
    size_t at = 0;
#define TAKE(field, n)                                                                                                 \
    do {                                                                                                               \
        if (p)                                                                                                         \
            s->field = (void *)(p + at);                                                                               \
        at += ((n) * sizeof *s->field + 63) / 64 * 64;                                                                 \
    } while (0)
    TAKE(near, (size_t)n_vocab);
    TAKE(near_logit, (size_t)n_vocab);
    TAKE(weight, padded);
    TAKE(heap, (size_t)n_vocab);
    TAKE(typical, (size_t)n_vocab);
    TAKE(adjusted, (size_t)n_vocab);
    TAKE(count, (size_t)n_vocab);
    TAKE(block_sum, (size_t)padded / SUM_BLOCK);
    TAKE(bin_sum, (size_t)N_BINS);
    TAKE(bin_n, (size_t)N_BINS);
#undef TAKE
    return at;
}

size_t sampler_scratch_bytes(uint32_t n_vocab)
{
    struct scratch s;
    return scratch_layout(n_vocab, NULL, &s);
}

/* --- the peak --------------------------------------------------------------------------------------------------------- */

/* Orders floats as integers (NaNs lie outside the infinities), which compilers turn into vectors without leave to reorder. */
static inline int32_t order_key(float x)
{
    int32_t i = (int32_t)math_bits(x);
    return i ^ (int32_t)((uint32_t)(i >> 31) >> 1);
}

struct logit_peak sampler_scan(const float *logits, uint32_t first, uint32_t end)
{
    int32_t max = order_key(-INFINITY), min = order_key(INFINITY);
    struct logit_peak p = {.max = -INFINITY, .id = end};
    for (uint32_t i = first; i < end; i++) {
        int32_t key = order_key(logits[i]);
        max = key > max ? key : max;
        min = key < min ? key : min;
    }
    p.nan = max > order_key(INFINITY) || min < order_key(-INFINITY);
    p.max = p.nan ? 0 : math_from_bits((uint32_t)max ^ (uint32_t)(max >> 31) >> 1);
    for (uint32_t i = first; i < end; i++)
        if (logits[i] == p.max) {
            p.id = i;
            break;
        }
    return p;
}

struct logit_peak sampler_merge(struct logit_peak a, struct logit_peak b)
{
    struct logit_peak best = b.max > a.max || (b.max == a.max && b.id < a.id) ? b : a;
    best.nan = a.nan || b.nan;
    return best;
}

int sampler_peak_is_bad(const struct logit_peak *p)
{
    return p->nan || !isfinite(p->max);
}

/* --- biases and penalties --------------------------------------------------------------------------------------------- */

#define REPEATED 0x80000000u /* in a count: the id is among those that the repeat penalty looks at */

int sampler_adjusts(const struct sampler_params *p)
{
    return p->n_bias > 0 || sampler_repeats(p) || sampler_counts_answer(p);
}

static float penalized(const struct sampler_params *p, float logit, uint32_t count)
{
    uint32_t n = count & ~REPEATED;
    if (count & REPEATED)
        logit = logit > 0 ? logit / p->repeat_penalty : logit * p->repeat_penalty;
    if (n > 0) {
        logit -= p->frequency_penalty * (float)n;
        logit -= p->presence_penalty;
    }
    return logit;
}

/* Counts first, then each id once: what becomes of a logit does not depend on where its ids stand. */
static void apply_penalties(const struct sampler_params *p, const uint32_t *ids, uint32_t position, uint32_t n_vocab,
                            float *logits, uint32_t *count)
{
    const uint32_t first = position - sampler_history(p, position);
    const uint32_t answer = sampler_counts_answer(p) ? p->n_prompt : UINT32_MAX;
    uint32_t repeat = sampler_repeats(p) ? 0 : UINT32_MAX;
    if (repeat == 0 && p->repeat_last_n && p->repeat_last_n < position)
        repeat = position - p->repeat_last_n;
    for (uint32_t i = first; i < position; i++)
        if (ids[i] < n_vocab)
            count[ids[i]] = 0;
    for (uint32_t i = first; i < position; i++) {
        if (ids[i] >= n_vocab)
            continue;
        count[ids[i]] += i >= answer;
        count[ids[i]] |= i >= repeat ? REPEATED : 0;
    }
    for (uint32_t i = first; i < position; i++) {
        if (ids[i] >= n_vocab || count[ids[i]] == 0)
            continue;
        logits[ids[i]] = penalized(p, logits[ids[i]], count[ids[i]]);
        count[ids[i]] = 0;
    }
}

const float *sampler_adjust(const struct sampler_params *p, const struct logit_bias *bias, const uint32_t *ids, uint32_t position,
                            const float *logits, uint32_t n_vocab, void *scratch)
{
    struct scratch s;
    scratch_layout(n_vocab, scratch, &s);
    memcpy(s.adjusted, logits, n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (bias[i].id < n_vocab)
            s.adjusted[bias[i].id] += bias[i].bias;
    if (sampler_history(p, position) > 0)
        apply_penalties(p, ids, position, n_vocab, s.adjusted, s.count);
    return s.adjusted;
}

/* --- weights ---------------------------------------------------------------------------------------------------------- */

/* weight[i] = 2^((logit - max) * scale), by the chain of math_exp2_neg. */
static inline __attribute__((always_inline)) void fill_weights(float *restrict weight, const float *restrict logits,
                                                               uint32_t n, float max, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        weight[i] = math_exp2_neg((logits[i] - max) * scale);
}

static void fill_weights_plain(float *weight, const float *logits, uint32_t n, float max, float scale)
{
    fill_weights(weight, logits, n, max, scale);
}

#if defined(__x86_64__)
/* The same chain, with instructions in place of libm calls for fma and rint: 20 times faster. */
__attribute__((target("avx2,fma"))) static void fill_weights_fma(float *weight, const float *logits, uint32_t n, float max,
                                                                 float scale)
{
    fill_weights(weight, logits, n, max, scale);
}
#endif

static void compute_weights(struct scratch *s, const float *logits, uint32_t n, float max, float scale)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        fill_weights_fma(s->weight, logits, n, max, scale);
    else
#endif
        fill_weights_plain(s->weight, logits, n, max, scale);
    for (uint32_t i = n; i < round_up(n, SUM_BLOCK); i++)
        s->weight[i] = 0;
}

/* --- the order: by logit, ties by the lower id ------------------------------------------------------------------------ */

/* Where a rule cuts: the last token kept. */
struct cut {
    float logit;
    uint32_t id;
};

static const struct cut keep_all = {.logit = -INFINITY, .id = UINT32_MAX};

static int precedes(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static int is_kept(struct cut c, float logit, uint32_t id)
{
    return logit > c.logit || (logit == c.logit && id <= c.id);
}

/* A heap of ids whose first is the best, in place. */
static void heap_sink(uint32_t *heap, uint32_t n, uint32_t at, const float *logits)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            return;
        child += child + 1 < n && precedes(logits, heap[child + 1], heap[child]);
        if (!precedes(logits, heap[child], heap[at]))
            return;
        uint32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

static uint32_t heap_pop(uint32_t *heap, uint32_t *n, const float *logits)
{
    uint32_t best = heap[0];
    heap[0] = heap[--*n];
    heap_sink(heap, *n, 0, logits);
    return best;
}

static uint32_t bin_of(float logit, float max, float scale)
{
    float d = (max - logit) * scale * BINS_PER_OCTAVE;
    return d < (float)(N_BINS - 1) ? (uint32_t)d : N_BINS - 1;
}

struct row {
    const float *logits;
    uint32_t n;
    float max, scale;
    struct scratch s;
};

static void fill_bins(struct row *r)
{
    memset(r->s.bin_sum, 0, N_BINS * sizeof *r->s.bin_sum);
    memset(r->s.bin_n, 0, N_BINS * sizeof *r->s.bin_n);
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t b = bin_of(r->logits[i], r->max, r->scale);
        r->s.bin_n[b]++;
        r->s.bin_sum[b] += r->s.weight[i];
    }
}

/* The tokens of one bin that `limit` keeps, as a heap. */
static uint32_t heap_of_bin(struct row *r, uint32_t bin, struct cut limit)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (bin_of(r->logits[i], r->max, r->scale) == bin && is_kept(limit, r->logits[i], i))
            r->s.heap[n++] = i;
    for (uint32_t i = n / 2; i-- > 0;)
        heap_sink(r->s.heap, n, i, r->logits);
    return n;
}

/* Keeps the best k tokens. *mass: their weight. */
static struct cut cut_top_k(struct row *r, uint32_t k, double *mass)
{
    uint32_t bin = 0, before = 0;
    *mass = 0;
    while (before + r->s.bin_n[bin] < k) {
        before += r->s.bin_n[bin];
        *mass += r->s.bin_sum[bin++];
    }
    uint32_t n = heap_of_bin(r, bin, keep_all), last = 0;
    for (uint32_t taken = before; taken < k; taken++) {
        last = heap_pop(r->s.heap, &n, r->logits);
        *mass += r->s.weight[last];
    }
    return (struct cut){.logit = r->logits[last], .id = last};
}

/* Keeps the shortest prefix whose weight reaches `want`; at most what `limit` keeps, at least one token. */
static struct cut cut_top_p(struct row *r, double want, struct cut limit)
{
    uint32_t bin = 0, last_bin = bin_of(limit.logit, r->max, r->scale);
    double mass = 0;
    while (bin < last_bin && mass + r->s.bin_sum[bin] < want)
        mass += r->s.bin_sum[bin++];
    uint32_t n = heap_of_bin(r, bin, limit);
    while (n == 0 && bin > 0) { /* rounding of the sums: nothing is left behind the last full bin */
        mass -= r->s.bin_sum[--bin];
        n = heap_of_bin(r, bin, limit);
    }
    uint32_t last;
    do {
        last = heap_pop(r->s.heap, &n, r->logits);
        mass += r->s.weight[last];
    } while (mass < want && n > 0);
    return (struct cut){.logit = r->logits[last], .id = last};
}

/* --- the draw --------------------------------------------------------------------------------------------------------- */

/* A block's sum in eight lanes and one tree, whatever the CPU. */
static double sum_block(const float *w)
{
    double lane[SUM_LANES] = {0};
    for (int i = 0; i < SUM_BLOCK; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lane[l] += (double)w[i + l];
    for (int half = SUM_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static double total_of_blocks(struct scratch *s, uint32_t n)
{
    double total = 0;
    for (uint32_t b = 0; b < round_up(n, SUM_BLOCK) / SUM_BLOCK; b++)
        total += s->block_sum[b] = sum_block(s->weight + (size_t)b * SUM_BLOCK);
    return total;
}

/* The best token's weight is 1, so it stays whatever min_p says. */
static void drop_below_min_p(struct row *r, const struct sampler_params *p)
{
    float least = p->min_p < 1 ? p->min_p : 1;
    for (uint32_t i = 0; least > 0 && i < r->n; i++)
        r->s.weight[i] = r->s.weight[i] < least ? 0 : r->s.weight[i];
}

static int is_typical(const struct sampler_params *p)
{
    return p->typical_p > 0 && p->typical_p < 1;
}

/* -ln of the probability among all that have a weight. */
static double surprise(const struct row *r, uint32_t i, double log_total)
{
    return (double)((r->max - r->logits[i]) * r->scale) * SAMPLER_LN2 + log_total;
}

/* Keeps the tokens whose surprise is nearest to the entropy, as few as have typical_p of the weight: a top-p over another
 * order. */
static void drop_atypical(struct row *r, const struct sampler_params *p)
{
    struct row by_distance = *r;
    double total = total_of_blocks(&r->s, r->n), log_total = sampler_log(total), entropy = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->s.weight[i] > 0)
            entropy += (double)r->s.weight[i] * surprise(r, i, log_total);
    entropy /= total;
    for (uint32_t i = 0; i < r->n; i++)
        r->s.typical[i] = r->s.weight[i] > 0 ? (float)-fabs(surprise(r, i, log_total) - entropy) : -INFINITY;
    by_distance.logits = r->s.typical;
    by_distance.max = 0;
    by_distance.scale = LOG2E_F;
    fill_bins(&by_distance);
    struct cut c = cut_top_p(&by_distance, (double)p->typical_p * total, keep_all);
    for (uint32_t i = 0; i < r->n; i++)
        if (!is_kept(c, r->s.typical[i], i))
            r->s.weight[i] = 0;
}

/* In [0, 1), 53 bits. */
static double uniform(const struct sampler_params *p, uint32_t position)
{
    return (double)(rand_at(p->seed, position) >> 11) * 0x1p-53;
}

/* The first token, ascending, at which the sum of weights passes u of the whole. */
static uint32_t pick(struct row *r, double u)
{
    double want = u * total_of_blocks(&r->s, r->n), sum = 0;
    uint32_t n_blocks = round_up(r->n, SUM_BLOCK) / SUM_BLOCK, last = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        if (sum + r->s.block_sum[b] <= want) {
            sum += r->s.block_sum[b];
            continue;
        }
        for (uint32_t i = b * SUM_BLOCK; i < (b + 1) * SUM_BLOCK; i++) {
            if (r->s.weight[i] == 0)
                continue;
            last = i;
            sum += (double)r->s.weight[i];
            if (sum > want)
                return i;
        }
    }
    return last; /* rounding: the last token with a weight that was looked at */
}

/* --- limits ----------------------------------------------------------------------------------------------------------- */

/* Lists the tokens within NEAR_OCTAVES of the best, or all, ids ascending, and makes a row of them alone. */
static struct row near_row(struct row *r, int all)
{
    struct row near = *r;
    near.n = 0;
    near.logits = r->s.near_logit;
    for (uint32_t i = 0; i < r->n; i++) {
        r->s.near[near.n] = i;
        r->s.near_logit[near.n] = r->logits[i];
        near.n += (uint32_t)(all | ((r->max - r->logits[i]) * r->scale < NEAR_OCTAVES));
    }
    return near;
}

static double total_weight(struct row *r)
{
    compute_weights(&r->s, r->logits, r->n, r->max, r->scale);
    return total_of_blocks(&r->s, r->n);
}

/* Sets the weights of what top-k and top-p drop to 0. whole: the weight of all tokens, for top-p without top-k. */
static void apply_limits(struct row *r, const struct sampler_params *p, int has_k, double whole)
{
    struct cut c = keep_all;
    fill_bins(r);
    if (has_k)
        c = cut_top_k(r, p->top_k, &whole);
    if (p->top_p < 1) /* cuts inside what top-k kept */
        c = cut_top_p(r, (double)p->top_p * whole, c);
    for (uint32_t i = 0; i < r->n; i++)
        if (!is_kept(c, r->logits[i], i))
            r->s.weight[i] = 0;
}

static uint32_t draw_limited(struct row *r, const struct sampler_params *p, uint32_t position, int has_k)
{
    double whole = has_k ? 0 : total_weight(r);
    struct row near = near_row(r, 0);
    double mass = total_weight(&near);
    if (has_k ? near.n < p->top_k : mass < (double)p->top_p * whole) { /* a flat row: the limit lies farther out */
        near = near_row(r, 1);
        total_weight(&near);
    }
    apply_limits(&near, p, has_k, whole);
    drop_below_min_p(&near, p);
    if (is_typical(p))
        drop_atypical(&near, p);
    return r->s.near[pick(&near, uniform(p, position))];
}

uint32_t sampler_draw(const struct sampler_params *p, const float *logits, uint32_t n_vocab, const struct logit_peak *peak,
                      uint32_t position, void *scratch)
{
    ASSERT(!sampler_peak_is_bad(peak));
    if (!(p->temperature > 0) || p->top_k == 1)
        return peak->id;
    float scale = LOG2E_F / p->temperature;
    struct row r = {.logits = logits, .n = n_vocab, .max = peak->max, .scale = scale < MAX_SCALE ? scale : MAX_SCALE};
    scratch_layout(n_vocab, scratch, &r.s);
    int has_k = p->top_k > 0 && p->top_k < n_vocab;
    if (has_k || p->top_p < 1)
        return draw_limited(&r, p, position, has_k);
    compute_weights(&r.s, logits, n_vocab, r.max, r.scale);
    drop_below_min_p(&r, p);
    if (is_typical(p))
        drop_atypical(&r, p);
    return pick(&r, uniform(p, position));
}
