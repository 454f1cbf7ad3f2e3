#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "stage/sampler.h"

enum { MAX_VOCAB = 49152 };

static float logits[MAX_VOCAB + 64];
static void *scratch;

static void fill_normal(uint32_t n, uint64_t seed, float deviation)
{
    for (uint32_t i = 0; i < n; i++) { /* Box-Muller, as it comes */
        double u = (double)rand_unit(seed, 2 * i) + 1e-9, v = (double)rand_unit(seed, 2 * i + 1);
        logits[i] = deviation * (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

static uint32_t draw(const struct sampler_params *p, uint32_t n, uint32_t position)
{
    struct logit_peak peak = sampler_scan(logits, 0, n);
    assert_false(sampler_peak_is_bad(&peak));
    return sampler_draw(p, logits, n, &peak, position, scratch);
}

/* --- the reference: sorted, in doubles, as the processors of transformers ----------------------------------------------- */

static int by_logit(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

struct distance {
    double from_entropy;
    uint32_t id, at;
};

static int by_distance(const void *a, const void *b)
{
    const struct distance *x = a, *y = b;
    if (x->from_entropy != y->from_entropy)
        return x->from_entropy < y->from_entropy ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* As transformers' TypicalLogitsWarper: those nearest to the entropy until they have the mass; the others' weights become 0. */
static void keep_typical(const uint32_t *order, double *w, uint32_t kept, double mass)
{
    struct distance *d = malloc(kept * sizeof *d);
    double sum = 0, entropy = 0, cumulated = 0;
    for (uint32_t i = 0; i < kept; i++)
        sum += w[i];
    for (uint32_t i = 0; i < kept; i++)
        entropy -= w[i] / sum * log(w[i] / sum);
    for (uint32_t i = 0; i < kept; i++)
        d[i] = (struct distance){fabs(-log(w[i] / sum) - entropy), order[i], i};
    qsort(d, kept, sizeof *d, by_distance);
    for (uint32_t i = 0; i < kept; i++) {
        int is_dropped = cumulated >= mass * sum;
        cumulated += w[d[i].at];
        if (is_dropped)
            w[d[i].at] = 0;
    }
    free(d);
}

/* probability[n] of every id; 0 where a rule drops it. */
static void reference(const struct sampler_params *p, uint32_t n, double *probability)
{
    uint32_t *order = malloc(n * sizeof *order);
    double *w = malloc(n * sizeof *w);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort(order, n, sizeof *order, by_logit);
    for (uint32_t i = 0; i < n; i++)
        w[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)p->temperature);
    uint32_t kept = p->top_k && p->top_k < n ? p->top_k : n;
    double sum = 0, cumulated = 0;
    for (uint32_t i = 0; i < kept; i++)
        sum += w[i];
    for (uint32_t i = 0; i < kept && p->top_p < 1; i++) {
        cumulated += w[i];
        if (cumulated >= (double)p->top_p * sum)
            kept = i + 1;
    }
    while (kept > 1 && w[kept - 1] < (double)p->min_p)
        kept--;
    if (p->typical_p > 0 && p->typical_p < 1)
        keep_typical(order, w, kept, (double)p->typical_p);
    sum = 0;
    for (uint32_t i = 0; i < kept; i++)
        sum += w[i];
    for (uint32_t i = 0; i < n; i++)
        probability[order[i]] = i < kept ? w[i] / sum : 0;
    free(order);
    free(w);
}

/* The draw must be where the reference's cumulated probability, by id, passes the position's uniform number. */
static void check_draws(const struct sampler_params *p, uint32_t n, int n_draws)
{
    const double slack = 3e-5; /* f32 weights against doubles; a token at the edge of a limit */
    double *probability = malloc(n * sizeof *probability), *below = malloc((n + 1) * sizeof *below);
    reference(p, n, probability);
    below[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        below[i + 1] = below[i] + probability[i];
    for (int i = 0; i < n_draws; i++) {
        uint32_t position = (uint32_t)i * 7 + 1, id = draw(p, n, position);
        double u = (double)(rand_at(p->seed, position) >> 11) * 0x1p-53;
        assert_true(id < n);
        if (u < below[id] - slack || u > below[id + 1] + slack)
            fail_msg("T %g k %u p %g min %g, n %u: u %.9f gave id %u, which has [%.9f, %.9f]", (double)p->temperature,
                     p->top_k, (double)p->top_p, (double)p->min_p, n, u, id, below[id], below[id + 1]);
    }
    free(probability);
    free(below);
}

/* --- tests ------------------------------------------------------------------------------------------------------------- */

static void a_temperature_of_zero_takes_the_largest_and_the_lowest_id_of_ties(void **state)
{
    (void)state;
    const struct sampler_params greedy = {.top_p = 1, .seed = 5};
    fill_normal(1000, 1, 1);
    logits[700] = logits[701] = logits[333] = 50;
    assert_int_equal(draw(&greedy, 1000, 0), 333);
    const struct sampler_params one = {.temperature = 1, .top_p = 1, .top_k = 1};
    assert_int_equal(draw(&one, 1000, 9), 333);
}

static void a_scan_in_parts_finds_what_a_whole_scan_finds(void **state)
{
    (void)state;
    uint32_t seed = 3;
    for (int round = 0; round < 300; round++) {
        uint32_t n = 1 + (uint32_t)(rand_at(11, (uint64_t)round) % 700), at = 0;
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)(int)(rand_at(12, (uint64_t)round * 1000 + i) % 40) - 20;
        struct logit_peak whole = sampler_scan(logits, 0, n), merged = sampler_scan(logits, 0, 0);
        while (at < n) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t end = at + 1 + (seed >> 16) % 99;
            end = end < n ? end : n;
            merged = seed & 1 << 20 ? sampler_merge(merged, sampler_scan(logits, at, end))
                                    : sampler_merge(sampler_scan(logits, at, end), merged);
            at = end;
        }
        uint32_t want = 0;
        for (uint32_t i = 1; i < n; i++)
            want = logits[i] > logits[want] ? i : want;
        assert_int_equal(whole.id, want);
        assert_int_equal(merged.id, want);
        assert_true(merged.max == logits[want] && whole.max == logits[want]);
    }
}

static void a_nan_anywhere_or_no_finite_logit_is_bad(void **state)
{
    (void)state;
    const uint32_t places[] = {0, 5, 15, 16, 17, 99, 100};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        fill_normal(101, 4, 1);
        logits[places[i]] = NAN;
        struct logit_peak p = sampler_merge(sampler_scan(logits, 0, 50), sampler_scan(logits, 50, 101));
        assert_true(sampler_peak_is_bad(&p));
        fill_normal(101, 4, 1);
        logits[places[i]] = -INFINITY;
        p = sampler_scan(logits, 0, 101);
        assert_false(sampler_peak_is_bad(&p));
        logits[places[i]] = INFINITY;
        p = sampler_scan(logits, 0, 101);
        assert_true(sampler_peak_is_bad(&p));
    }
    for (int i = 0; i < 101; i++)
        logits[i] = -INFINITY;
    struct logit_peak p = sampler_scan(logits, 0, 101);
    assert_true(sampler_peak_is_bad(&p));
}

static void a_token_of_minus_infinity_is_never_drawn(void **state)
{
    (void)state;
    const struct sampler_params p = {.temperature = 100, .top_p = 1, .seed = 8};
    fill_normal(64, 2, 1);
    for (int i = 0; i < 64; i++)
        if (i != 7 && i != 40)
            logits[i] = -INFINITY;
    int seen[64] = {0};
    for (uint32_t i = 0; i < 200; i++)
        seen[draw(&p, 64, i)]++;
    assert_int_equal(seen[7] + seen[40], 200);
    assert_true(seen[7] > 50 && seen[40] > 50);
}

static void draws_follow_the_distribution_of_the_reference(void **state)
{
    (void)state;
    static const struct sampler_params cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.2f, .top_p = 1},
        {.temperature = 3, .top_p = 1},
        {.temperature = 1, .top_p = 1, .top_k = 2},
        {.temperature = 0.8f, .top_p = 1, .top_k = 40},
        {.temperature = 2, .top_p = 1, .top_k = 999},
        {.temperature = 1, .top_p = 1, .top_k = 5000},
        {.temperature = 1, .top_p = 0.0001f},
        {.temperature = 1, .top_p = 0.5f},
        {.temperature = 0.7f, .top_p = 0.95f},
        {.temperature = 2, .top_p = 0.999f},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f},
        {.temperature = 1.5f, .top_p = 1, .min_p = 1},
        {.temperature = 0.9f, .top_p = 0.9f, .top_k = 50},
        {.temperature = 1.3f, .top_p = 0.8f, .top_k = 200, .min_p = 0.02f},
        {.temperature = 1, .top_p = 1, .typical_p = 0.2f},
        {.temperature = 0.7f, .top_p = 1, .typical_p = 0.95f},
        {.temperature = 1.3f, .top_p = 0.9f, .top_k = 100, .min_p = 0.01f, .typical_p = 0.5f},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct sampler_params p = cases[i];
        p.seed = 1000 + i;
        fill_normal(1000, i, 3);
        check_draws(&p, 1000, 500);
        fill_normal(37, i, 2);
        check_draws(&p, 37, 300);
    }
}

static void a_whole_vocabulary_is_drawn_from_by_the_same_rules(void **state)
{
    (void)state;
    static const struct sampler_params cases[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.8f, .top_p = 0.95f, .top_k = 64, .seed = 2},
        {.temperature = 1.2f, .top_p = 0.9f, .min_p = 0.001f, .seed = 3},
        {.temperature = 0.9f, .top_p = 1, .typical_p = 0.9f, .seed = 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        fill_normal(MAX_VOCAB, 77 + i, 3);
        check_draws(&cases[i], MAX_VOCAB, 60);
    }
}

static void equal_logits_keep_the_lowest_ids(void **state)
{
    (void)state;
    const struct sampler_params k = {.temperature = 1, .top_p = 1, .top_k = 10, .seed = 1};
    const struct sampler_params p = {.temperature = 1, .top_p = 0.25f, .seed = 1};
    for (int i = 0; i < 1000; i++)
        logits[i] = 2.5f;
    int seen[1000] = {0};
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t id = draw(&k, 1000, i);
        assert_true(id < 10);
        seen[id]++;
        assert_true(draw(&p, 1000, i) < 250);
    }
    for (int i = 0; i < 10; i++)
        assert_true(seen[i] > 20);
}

static void extreme_temperatures_and_logits_stay_defined(void **state)
{
    (void)state;
    const struct sampler_params cold = {.temperature = 1e-30f, .top_p = 0.9f, .top_k = 20, .seed = 1};
    const struct sampler_params hot = {.temperature = 1e30f, .top_p = 0.9f, .min_p = 0.1f, .seed = 1};
    fill_normal(500, 9, 3);
    logits[123] = 3e38f;
    logits[321] = -3e38f;
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(draw(&cold, 500, i), 123);
        assert_true(draw(&hot, 500, i) < 500);
    }
}

static void typical_p_may_leave_the_best_token_out(void **state)
{
    (void)state;
    const struct sampler_params p = {.temperature = 1, .top_p = 1, .typical_p = 0.3f, .seed = 1};
    for (int i = 0; i < 101; i++)
        logits[i] = 0;
    logits[7] = 4; /* a third of the mass; the entropy is that of the many */
    for (uint32_t i = 0; i < 100; i++)
        assert_int_not_equal(draw(&p, 101, i), 7);
}

/* --- biases and penalties --------------------------------------------------------------------------------------------------- */

enum { N_IDS = 400, N_SMALL = 60 };

/* The definition, id by id, in doubles. */
static double adjusted(const struct sampler_params *p, const struct logit_bias *bias, const uint32_t *ids, uint32_t position,
                       uint32_t id)
{
    double x = (double)logits[id];
    uint32_t n_answer = 0, window = p->repeat_last_n ? p->repeat_last_n : position;
    int repeated = 0;
    for (uint32_t i = 0; i < p->n_bias; i++)
        x += bias[i].id == id ? (double)bias[i].bias : 0;
    for (uint32_t i = 0; i < position; i++) {
        repeated |= ids[i] == id && i + window >= position;
        n_answer += ids[i] == id && i >= p->n_prompt;
    }
    if (repeated && p->repeat_penalty != 0)
        x = x > 0 ? x / (double)p->repeat_penalty : x * (double)p->repeat_penalty;
    x -= (double)p->frequency_penalty * n_answer;
    return n_answer ? x - (double)p->presence_penalty : x;
}

static void biases_and_penalties_are_what_their_definition_says(void **state)
{
    (void)state;
    static const struct logit_bias bias[] = {{3, 5}, {59, -100}, {17, 0.25f}, {3, 1}, {1000, 50}};
    static const struct sampler_params cases[] = {
        {.repeat_penalty = 1.3f},
        {.repeat_penalty = 1.3f, .repeat_last_n = 20, .n_prompt = 100},
        {.repeat_penalty = 0.5f, .repeat_last_n = 399},
        {.presence_penalty = 1.5f, .n_prompt = 380},
        {.frequency_penalty = -0.25f, .n_prompt = 300},
        {.presence_penalty = -2, .frequency_penalty = 0.5f, .n_prompt = 390, .repeat_penalty = 2, .repeat_last_n = 30},
        {.n_bias = ARRAY_LEN(bias)},
        {.n_bias = ARRAY_LEN(bias), .repeat_penalty = 1.1f, .presence_penalty = 0.5f, .frequency_penalty = 0.125f, .n_prompt = 200},
        {.presence_penalty = 1, .n_prompt = 500}, /* the answer has not begun */
    };
    uint32_t ids[N_IDS];
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = i % 50 == 49 ? UINT32_MAX : (uint32_t)(rand_at(31, i) % (N_SMALL / 2 + i % 31));
    for (size_t c = 0; c < ARRAY_LEN(cases); c++)
        for (uint32_t position = 0; position <= N_IDS; position += 1 + (uint32_t)c * 7) {
            fill_normal(N_SMALL, c * 1000 + position, 4);
            memset(scratch, 0xa5, sampler_scratch_bytes(N_SMALL));
            /* Ids that the history leaves out are not read. */
            uint32_t seen[N_IDS], first = position - sampler_history(&cases[c], position);
            memset(seen, 0xff, sizeof seen);
            memcpy(seen + first, ids + first, (position - first) * sizeof *ids);
            const float *got = sampler_adjust(&cases[c], bias, seen, position, logits, N_SMALL, scratch);
            assert_true(sampler_adjusts(&cases[c]));
            for (uint32_t id = 0; id < N_SMALL; id++) {
                double want = adjusted(&cases[c], bias, ids, position, id);
                if (!(fabs((double)got[id] - want) <= 1e-6 * (1 + fabs(want))))
                    fail_msg("case %zu, position %u, id %u: %.9g, the definition gives %.9g", c, position, id, (double)got[id], want);
            }
        }
}

static void nothing_is_adjusted_where_all_is_off(void **state)
{
    (void)state;
    assert_false(sampler_adjusts(&(struct sampler_params){.top_p = 1, .repeat_last_n = 5, .n_prompt = 3, .n_top = 4}));
    assert_false(sampler_adjusts(&(struct sampler_params){.top_p = 1, .repeat_penalty = 1}));
    assert_int_equal(sampler_history(&(struct sampler_params){.repeat_penalty = 1, .n_prompt = 3}, 1000), 0);
}

static void a_temperature_of_zero_takes_the_largest_penalised_logit(void **state)
{
    (void)state;
    const struct sampler_params p = {.top_p = 1, .repeat_penalty = 2};
    const uint32_t ids[] = {40, 7};
    for (int i = 0; i < N_SMALL; i++)
        logits[i] = 1;
    logits[40] = 10;
    logits[7] = 9;
    logits[8] = 6;
    for (uint32_t position = 0; position <= 2; position++) {
        const float *row = sampler_adjust(&p, NULL, ids, position, logits, N_SMALL, scratch);
        struct logit_peak peak = sampler_scan(row, 0, N_SMALL);
        assert_int_equal(sampler_draw(&p, row, N_SMALL, &peak, position, scratch), position == 0 ? 40 : position == 1 ? 7 : 8);
    }
}

/* --- logprobs --------------------------------------------------------------------------------------------------------------- */

static void check_logprobs(uint32_t n, uint32_t n_top)
{
    uint32_t *order = malloc(n * sizeof *order);
    struct top_logprob tops[MAX_TOP_LOGPROBS];
    struct logit_peak peak = sampler_scan(logits, 0, n);
    long double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
        sum += expl((long double)logits[i] - (long double)peak.max);
    }
    qsort(order, n, sizeof *order, by_logit);
    for (uint32_t k = 0; k < 50; k++) {
        uint32_t id = k < 3 ? order[k % n] : (uint32_t)(rand_at(5, k) % n);
        float got;
        uint32_t n_got = sampler_logprobs(logits, n, &peak, id, n_top, &got, tops);
        assert_int_equal(n_got, n_top < n ? n_top : n);
        float want = (float)((long double)logits[id] - (long double)peak.max - logl(sum));
        assert_true(got == want || got == nextafterf(want, 1) || got == nextafterf(want, -INFINITY));
        for (uint32_t i = 0; i < n_got; i++) {
            assert_int_equal(tops[i].id, order[i]);
            want = (float)((long double)logits[order[i]] - (long double)peak.max - logl(sum));
            assert_true(tops[i].logprob == want || fabsf(tops[i].logprob - want) <= 1e-7f * fabsf(want) ||
                        fabsf(tops[i].logprob - want) < 1e-12f);
        }
    }
    free(order);
}

static void logprobs_are_the_log_softmax_of_the_row(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 7, 511, 512, 513, 5000, MAX_VOCAB};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (uint32_t n_top = 0; n_top <= MAX_TOP_LOGPROBS; n_top += 5) {
            fill_normal(sizes[i], 300 + i, i % 2 ? 3 : 20);
            for (uint32_t t = 0; t + 3 < sizes[i]; t += 3) /* ties everywhere */
                logits[t + 2] = logits[t];
            check_logprobs(sizes[i], n_top);
        }
    for (uint32_t i = 0; i < 100; i++)
        logits[i] = i == 50 ? 3e38f : -INFINITY;
    struct logit_peak peak = sampler_scan(logits, 0, 100);
    struct top_logprob tops[2];
    float got;
    sampler_logprobs(logits, 100, &peak, 50, 2, &got, tops);
    assert_true(got == 0 && tops[0].id == 50 && tops[1].id == 0 && tops[1].logprob == -INFINITY);
}

static void a_draw_depends_on_seed_and_position_alone(void **state)
{
    (void)state;
    struct sampler_params p = {.temperature = 2, .top_p = 1, .seed = 42};
    uint32_t first[100];
    int other_seed = 0, other_position = 0;
    fill_normal(2000, 5, 1);
    for (uint32_t i = 0; i < 100; i++)
        first[i] = draw(&p, 2000, i);
    memset(scratch, 0xa5, sampler_scratch_bytes(MAX_VOCAB)); /* what is left from other rows must not matter */
    for (uint32_t i = 100; i-- > 0;) {
        assert_int_equal(draw(&p, 2000, i), first[i]);
        p.seed = 43;
        other_seed += draw(&p, 2000, i) != first[i];
        p.seed = 42;
        other_position += draw(&p, 2000, i + 1000) != first[i];
    }
    assert_true(other_seed > 90 && other_position > 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typical_p_may_leave_the_best_token_out),
        cmocka_unit_test(biases_and_penalties_are_what_their_definition_says),
        cmocka_unit_test(nothing_is_adjusted_where_all_is_off),
        cmocka_unit_test(a_temperature_of_zero_takes_the_largest_penalised_logit),
        cmocka_unit_test(logprobs_are_the_log_softmax_of_the_row),
        cmocka_unit_test(a_temperature_of_zero_takes_the_largest_and_the_lowest_id_of_ties),
        cmocka_unit_test(a_scan_in_parts_finds_what_a_whole_scan_finds),
        cmocka_unit_test(a_nan_anywhere_or_no_finite_logit_is_bad),
        cmocka_unit_test(a_token_of_minus_infinity_is_never_drawn),
        cmocka_unit_test(draws_follow_the_distribution_of_the_reference),
        cmocka_unit_test(a_whole_vocabulary_is_drawn_from_by_the_same_rules),
        cmocka_unit_test(equal_logits_keep_the_lowest_ids),
        cmocka_unit_test(extreme_temperatures_and_logits_stay_defined),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_alone),
    };
    size_t bytes = (sampler_scratch_bytes(MAX_VOCAB) + 63) / 64 * 64;
    scratch = aligned_alloc(64, bytes);
    memset(scratch, 0x5a, bytes);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(scratch);
    return failed;
}
