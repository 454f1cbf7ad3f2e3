/* A real model on a text: no farther from float32 than llama.cpp is (tests/vectors/text/README.md has the rule). The argument is
 * the model's name there; smollm2 without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/lib/chain.h"
#include "tests/lib/models.h"

enum { TOP = 64, PIECE = 256, GREEDY_STEPS = 48 };
static const float greedy_gap = 0.6f;

/* A record of NAME.top.bin. */
struct top {
    float lse, nll;
    int32_t id[TOP];
    float logit[TOP];
};

struct quality {
    const struct top *reference;
    const uint32_t *ids;
    uint32_t n;
    double *kl; /* [n] */
    double nll, reference_nll;
    uint32_t n_top1;
};

static const char *model_name = "smollm2", *model_path;

static double log_sum(const float *x, uint32_t n)
{
    float max = x[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)(x[i] - max));
    return (double)max + log(sum);
}

static void judge(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct quality *q = ctx;
    const struct top *want = &q->reference[position];
    double z = log_sum(logits, n_vocab), kl = 0, mass = 0, got_mass = 0;
    uint32_t best = 0;
    (void)seq;
    for (int i = 0; i < TOP; i++) {
        double lw = (double)want->logit[i] - (double)want->lse, lg = (double)logits[want->id[i]] - z;
        kl += exp(lw) * (lw - lg);
        mass += exp(lw);
        got_mass += exp(lg);
    }
    double rest = fmax(1 - mass, 1e-12), got_rest = fmax(1 - got_mass, 1e-12);
    q->kl[position] = kl + rest * log(rest / got_rest);
    for (uint32_t i = 1; i < n_vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    q->n_top1 += best == (uint32_t)want->id[0];
    if (position + 1 < q->n) {
        q->nll += z - (double)logits[q->ids[position + 1]];
        q->reference_nll += (double)want->nll;
    }
}

static json_t *load_json(const char *suffix)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/text/%s%s", SLUICE_VECTORS, model_name, suffix);
    json_t *doc = json_load_file(path, 0, &e);
    if (!doc)
        fail_msg("%s: %s", path, e.text);
    return doc;
}

static uint32_t *read_ids(json_t *array, uint32_t *n)
{
    *n = (uint32_t)json_array_size(array);
    uint32_t *ids = calloc(*n + 1, sizeof *ids);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

static struct top *load_top(uint32_t n)
{
    char path[512];
    struct top *top = calloc(n, sizeof *top);
    snprintf(path, sizeof path, "%s/text/%s.top.bin", SLUICE_VECTORS, model_name);
    FILE *f = fopen(path, "rb");
    if (!f || fread(top, sizeof *top, n, f) != n || fgetc(f) != EOF)
        fail_msg("%s is missing or has not %u records", path, n);
    fclose(f);
    return top;
}

static struct chain *open_chain(void)
{
    struct chain *c;
    struct error err;
    const struct chain_options o = {.model_path = model_path, .n_threads = 2, .n_seqs = 1, .context = 2048, .max_rows = PIECE};
    if (chain_open(&o, &c, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return c;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void read_text(struct quality *q)
{
    static struct chain_row rows[PIECE];
    struct chain *c = open_chain();
    chain_set_logits_sink(c, judge, q);
    for (uint32_t at = 0; at < q->n; at += PIECE) {
        uint32_t n = q->n - at < PIECE ? q->n - at : PIECE;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct chain_row){.position = at + i, .id = q->ids[at + i], .sampler = &chain_greedy};
        assert_int_equal(chain_run(c, rows, n, NULL), STATUS_OK);
    }
    chain_close(c);
}

static void a_text_is_no_farther_from_float32_than_with_llama_cpp(void **state)
{
    (void)state;
    json_t *doc = load_json(".json"), *distance = load_json(".distance.json");
    json_t *peer = json_object_get(distance, "llama_cpp_default"), *peer_kl = json_object_get(peer, "kl_top64");
    struct quality q = {0};
    uint32_t *ids = read_ids(json_object_get(doc, "ids"), &q.n);
    struct top *top = load_top(q.n);
    q.ids = ids;
    q.reference = top;
    q.kl = calloc(q.n, sizeof *q.kl);
    read_text(&q);

    double mean = 0, top1 = (double)q.n_top1 / q.n, ratio = exp((q.nll - q.reference_nll) / (q.n - 1));
    for (uint32_t i = 0; i < q.n; i++)
        mean += q.kl[i] / q.n;
    qsort(q.kl, q.n, sizeof *q.kl, ascending);
    double p99 = q.kl[(uint32_t)(0.99 * (q.n - 1))];
    double peer_mean = json_number_value(json_object_get(peer_kl, "mean"));
    double peer_p99 = json_number_value(json_object_get(peer_kl, "p99"));
    double peer_top1 = json_number_value(json_object_get(peer, "top1"));
    printf("%s: kl_top64 mean %.3e (llama.cpp %.3e), p99 %.2e (%.2e), top-1 %.4f (%.4f), perplexity %.3f, ratio %.5f\n", model_name,
           mean, peer_mean, p99, peer_p99, top1, peer_top1, exp(q.nll / (q.n - 1)), ratio);
    assert_true(peer_mean > 0 && peer_p99 > 0 && peer_top1 > 0);
    assert_true(mean <= 1.15 * peer_mean);
    assert_true(p99 <= 1.5 * peer_p99);
    assert_true(fabs(ratio - 1) <= 0.005);
    assert_true(top1 >= peer_top1 - 0.01);
    free(q.kl);
    free(ids);
    free(top);
    json_decref(doc);
    json_decref(distance);
}

/* How many ids are the reference's before the first that may differ by its gap. */
static uint32_t follow(struct chain *c, json_t *sample)
{
    static struct chain_row rows[PIECE];
    uint32_t n_prompt, n, followed = 0;
    uint32_t *prompt = read_ids(json_object_get(sample, "prompt"), &n_prompt), *ids = read_ids(json_object_get(sample, "ids"), &n);
    json_t *gaps = json_object_get(sample, "gaps");
    assert_true(n_prompt > 0 && n_prompt <= PIECE && n == GREEDY_STEPS);
    for (uint32_t i = 0; i < n_prompt; i++)
        rows[i] = (struct chain_row){.position = i, .id = prompt[i], .sampler = i + 1 == n_prompt ? &chain_greedy : NULL};
    assert_int_equal(chain_run(c, rows, n_prompt, NULL), STATUS_OK);
    int32_t id = rows[n_prompt - 1].sampled;
    for (; followed < n; followed++) {
        double gap = json_number_value(json_array_get(gaps, followed));
        if (id != (int32_t)ids[followed]) {
            if (gap >= (double)greedy_gap)
                fail_msg("\"%s\": step %u is %d, the reference has %u with a gap of %g",
                         json_string_value(json_object_get(sample, "text")), followed, id, ids[followed], gap);
            break;
        }
        struct chain_row row = {.position = n_prompt + followed, .id = ids[followed], .sampler = &chain_greedy};
        assert_int_equal(chain_run(c, &row, 1, NULL), STATUS_OK);
        id = row.sampled;
    }
    free(prompt);
    free(ids);
    return followed;
}

static void greedy_answers_are_the_references_up_to_a_small_gap(void **state)
{
    (void)state;
    json_t *doc = load_json(".json"), *samples = json_object_get(doc, "greedy");
    struct chain *c = open_chain();
    assert_int_equal(json_array_size(samples), 6);
    for (size_t i = 0; i < json_array_size(samples); i++)
        printf("%s, prompt %zu: %u of %d greedy ids are the reference's\n", model_name, i, follow(c, json_array_get(samples, i)), GREEDY_STEPS);
    chain_close(c);
    json_decref(doc);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_no_farther_from_float32_than_with_llama_cpp),
        cmocka_unit_test(greedy_answers_are_the_references_up_to_a_small_gap),
    };
    if (argc > 1)
        model_name = argv[1];
    model_path = real_model_path(model_name);
    if (!model_path)
        return 77;
    log_set_levels("warn", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
