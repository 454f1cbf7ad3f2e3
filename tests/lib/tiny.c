#include "tests/lib/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t *read_ids(json_t *array, uint32_t *n)
{
    assert_true(json_is_array(array));
    *n = (uint32_t)json_array_size(array);
    uint32_t *ids = calloc(*n + 1, sizeof *ids);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

static void read_greedy(json_t *from, struct tiny_greedy *g)
{
    uint32_t n_gaps;
    g->prompt = read_ids(json_object_get(from, "prompt"), &g->n_prompt);
    g->ids = read_ids(json_object_get(from, "ids"), &g->n);
    json_t *gaps = json_object_get(from, "gaps");
    n_gaps = (uint32_t)json_array_size(gaps);
    assert_int_equal(n_gaps, g->n);
    g->gaps = calloc(n_gaps + 1, sizeof *g->gaps);
    for (uint32_t i = 0; i < n_gaps; i++)
        g->gaps[i] = (float)json_number_value(json_array_get(gaps, i));
}

static json_t *load(const char *name, const char *suffix)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/tiny/%s%s.json", SLUICE_VECTORS, name, suffix);
    json_t *doc = json_load_file(path, 0, &e);
    if (!doc)
        fail_msg("%s: %s", path, e.text);
    return doc;
}

static float *load_logits(const char *name, const char *suffix, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tiny/%s%s.logits.f32", SLUICE_VECTORS, name, suffix);
    FILE *f = fopen(path, "rb");
    float *logits = malloc(n * sizeof *logits);
    if (!f || fread(logits, sizeof *logits, n, f) != n || fgetc(f) != EOF)
        fail_msg("%s is missing or has not %zu floats", path, n);
    fclose(f);
    return logits;
}

struct tiny *tiny_open(const char *name, const char *reference)
{
    struct tiny *t = calloc(1, sizeof *t);
    json_t *doc = load(name, ""), *other = load(name, reference);
    snprintf(t->path, sizeof t->path, "%s/tiny/%s.gguf", SLUICE_VECTORS, name);
    t->n_vocab = (uint32_t)json_integer_value(json_object_get(doc, "n_vocab"));
    json_t *sequences = json_object_get(doc, "sequences"), *greedy = json_object_get(other, "greedy");
    assert_int_equal(json_array_size(sequences), TINY_SEQUENCES);
    assert_int_equal(json_array_size(greedy), TINY_GREEDY);
    for (int i = 0; i < TINY_SEQUENCES; i++) {
        json_t *s = json_array_get(sequences, (size_t)i);
        t->sequences[i].ids = read_ids(json_object_get(s, "ids"), &t->sequences[i].n);
        t->sequences[i].first_row = (uint32_t)json_integer_value(json_object_get(s, "first_row"));
        assert_int_equal(t->sequences[i].first_row, t->n_rows);
        t->n_rows += t->sequences[i].n;
    }
    for (int i = 0; i < TINY_GREEDY; i++)
        read_greedy(json_array_get(greedy, (size_t)i), &t->greedy[i]);
    t->logits = load_logits(name, reference, (size_t)t->n_rows * t->n_vocab);
    json_decref(doc);
    json_decref(other);
    return t;
}

void tiny_close(struct tiny *t)
{
    for (int i = 0; i < TINY_SEQUENCES; i++)
        free(t->sequences[i].ids);
    for (int i = 0; i < TINY_GREEDY; i++) {
        free(t->greedy[i].prompt);
        free(t->greedy[i].ids);
        free(t->greedy[i].gaps);
    }
    free(t->logits);
    free(t);
}

static void keep(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    float *rows = ctx; /* of one sequence, by position */
    (void)seq;
    memcpy(rows + (size_t)position * n_vocab, logits, n_vocab * sizeof *logits);
}

float *tiny_logits(struct chain *c, const struct tiny *t)
{
    float *logits = calloc((size_t)t->n_rows * t->n_vocab, sizeof *logits);
    for (uint32_t s = 0; s < TINY_SEQUENCES; s++) {
        const struct tiny_ids *q = &t->sequences[s];
        struct chain_row rows[TINY_MAX_ROWS] = {0};
        chain_set_logits_sink(c, keep, logits + (size_t)q->first_row * t->n_vocab);
        for (uint32_t i = 0; i < q->n; i++)
            rows[i] = (struct chain_row){.seq = s, .position = i, .id = q->ids[i], .sampler = &chain_greedy};
        assert_int_equal(chain_run(c, rows, q->n, NULL), STATUS_OK);
    }
    chain_set_logits_sink(c, NULL, NULL);
    return logits;
}

static double log_sum(const float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

struct distance tiny_distance(const float *reference, const float *got, uint32_t n_rows, uint32_t n_vocab)
{
    struct distance d = {0};
    double square = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *a = reference + (size_t)r * n_vocab, *b = got + (size_t)r * n_vocab;
        double za = log_sum(a, n_vocab), zb = log_sum(b, n_vocab), kl = 0;
        uint32_t best_a = 0, best_b = 0;
        for (uint32_t i = 0; i < n_vocab; i++) {
            double e = fabs((double)a[i] - (double)b[i]);
            d.max_abs = e > d.max_abs || e != e ? e : d.max_abs;
            square += e * e;
            kl += exp((double)a[i] - za) * (((double)a[i] - za) - ((double)b[i] - zb));
            best_a = a[i] > a[best_a] ? i : best_a;
            best_b = b[i] > b[best_b] ? i : best_b;
        }
        d.mean_kl += kl / n_rows;
        d.top1 += (best_a == best_b) / (double)n_rows;
    }
    d.rms = sqrt(square / ((double)n_rows * n_vocab));
    return d;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void tiny_row_max(const float *reference, const float *got, const struct tiny *t, double out[TINY_MAX_ROWS])
{
    assert_true(t->n_rows <= TINY_MAX_ROWS);
    for (uint32_t r = 0; r < t->n_rows; r++)
        out[r] = tiny_distance(reference + (size_t)r * t->n_vocab, got + (size_t)r * t->n_vocab, 1, t->n_vocab).max_abs;
    qsort(out, t->n_rows, sizeof *out, ascending);
}
