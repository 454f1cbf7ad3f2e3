/* What the model itself gave a token: log-softmax of the raw row, in double. */
#include <math.h>

#include "common/base/check.h"
#include "stage/sampler.h"
#include "stage/sampler_math.h"

enum { BLOCK = 512, LANES = 8 };

/* The exponentials of a block in eight lanes and one tree, whatever the CPU. */
static inline __attribute__((always_inline)) double sum_block(const float *logits, uint32_t n, double max)
{
    double e[BLOCK], lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        e[i] = sampler_exp((double)logits[i] - max);
    for (uint32_t i = n; i < BLOCK; i++)
        e[i] = 0;
    for (int i = 0; i < BLOCK; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += e[i + l];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static inline __attribute__((always_inline)) double sum_row(const float *logits, uint32_t n, double max)
{
    double sum = 0;
    for (uint32_t at = 0; at < n; at += BLOCK)
        sum += sum_block(logits + at, n - at < BLOCK ? n - at : BLOCK, max);
    return sum;
}

static double sum_plain(const float *logits, uint32_t n, double max)
{
    return sum_row(logits, n, max);
}

#if defined(__x86_64__)
/* The same operations, four at a time. */
__attribute__((target("avx2"))) static double sum_avx2(const float *logits, uint32_t n, double max)
{
    return sum_row(logits, n, max);
}
#endif

static double sum_of(const float *logits, uint32_t n, double max)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return sum_avx2(logits, n, max);
#endif
    return sum_plain(logits, n, max);
}

/* The n best of a row, ties by the lower id: ids come ascending, so that who is as large as one in the list comes behind it. */
static void find_best(const float *logits, uint32_t n_vocab, struct top_logprob *best, uint32_t n)
{
    uint32_t n_best = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (n_best == n && !(logits[i] > best[n - 1].logprob))
            continue;
        uint32_t at = n_best < n ? n_best++ : n - 1;
        for (; at > 0 && logits[i] > best[at - 1].logprob; at--)
            best[at] = best[at - 1];
        best[at] = (struct top_logprob){.id = i, .logprob = logits[i]};
    }
}

uint32_t sampler_logprobs(const float *logits, uint32_t n_vocab, const struct logit_peak *peak, uint32_t id, uint32_t n_top,
                          float *logprob, struct top_logprob *tops)
{
    ASSERT(!sampler_peak_is_bad(peak) && id < n_vocab && n_top <= MAX_TOP_LOGPROBS);
    const double max = (double)peak->max, log_sum = sampler_log(sum_of(logits, n_vocab, max));
    const uint32_t n = n_top < n_vocab ? n_top : n_vocab;
    *logprob = (float)((double)logits[id] - max - log_sum);
    if (n)
        find_best(logits, n_vocab, tops, n);
    for (uint32_t i = 0; i < n; i++)
        tops[i].logprob = (float)((double)tops[i].logprob - max - log_sum);
    return n;
}
