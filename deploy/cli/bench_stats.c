#include "deploy/cli/bench_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"

/* --- samples ---------------------------------------------------------------------------------------------------------------- */

static int grow(void **v, size_t *size, size_t need, size_t item_bytes)
{
    if (need <= *size)
        return 1;
    size_t size_now = *size ? *size : 32;
    while (size_now < need)
        size_now *= 2;
    void *more = realloc(*v, size_now * item_bytes);
    if (!more)
        return 0;
    *v = more;
    *size = size_now;
    return 1;
}

void samples_add(struct samples *s, double value)
{
    void *v = s->v;
    if (!grow(&v, &s->size, s->n + 1, sizeof *s->v)) {
        s->n_lost++;
        return;
    }
    s->v = v;
    s->v[s->n++] = (float)value;
}

void samples_add_all(struct samples *s, const struct samples *more)
{
    for (size_t i = 0; i < more->n; i++)
        samples_add(s, more->v[i]);
    s->n_lost += more->n_lost;
}

void samples_fini(struct samples *s)
{
    free(s->v);
    *s = (struct samples){0};
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double samples_percentile(const struct samples *s, double part)
{
    if (!s->n)
        return 0;
    double at = part * (double)(s->n - 1), below = floor(at);
    size_t i = (size_t)below;
    if (i + 1 >= s->n)
        return s->v[s->n - 1];
    return s->v[i] + (at - below) * ((double)s->v[i + 1] - s->v[i]);
}

struct summary samples_summary(struct samples *s)
{
    struct summary o = {.n = s->n};
    if (!s->n)
        return o;
    qsort(s->v, s->n, sizeof *s->v, ascending);
    for (size_t i = 0; i < s->n; i++)
        o.mean += s->v[i];
    o.mean /= (double)s->n;
    o.min = s->v[0];
    o.max = s->v[s->n - 1];
    o.median = samples_percentile(s, 0.5);
    o.p90 = samples_percentile(s, 0.9);
    o.p99 = samples_percentile(s, 0.99);
    return o;
}

/* --- objectives ------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
} objectives[] = {
    {"ttft", offsetof(struct slo, ttft_ms)},
    {"itl", offsetof(struct slo, itl_ms)},
    {"tpot", offsetof(struct slo, tpot_ms)},
    {"e2e", offsetof(struct slo, e2e_ms)},
};

static double *objective(struct slo *o, size_t i)
{
    return (double *)(void *)((char *)o + objectives[i].offset);
}

static enum status parse_one(const char *text, size_t len, struct slo *out)
{
    for (size_t i = 0; i < ARRAY_LEN(objectives); i++) {
        size_t n = strlen(objectives[i].name);
        if (len <= n + 1 || memcmp(text, objectives[i].name, n) != 0 || text[n] != ':')
            continue;
        char *end;
        double ms = strtod(text + n + 1, &end), *to = objective(out, i);
        if (end != text + len || !(ms > 0 && ms < 1e9) || *to != 0)
            return STATUS_CONFIG;
        *to = ms;
        return STATUS_OK;
    }
    return STATUS_CONFIG;
}

enum status slo_parse(const char *text, struct slo *out, struct error *err)
{
    struct slo o = {0};
    for (const char *p = text;;) {
        size_t len = strcspn(p, ",");
        if (parse_one(p, len, &o) != STATUS_OK)
            return error_set(err, STATUS_CONFIG, "--slo: '%s' is not allowed; ttft:MS, itl:MS, tpot:MS and e2e:MS are, each once, "
                             "with commas between", text);
        if (!p[len])
            break;
        p += len + 1;
    }
    *out = o;
    return STATUS_OK;
}

int slo_any(const struct slo *o)
{
    return o->ttft_ms > 0 || o->itl_ms > 0 || o->tpot_ms > 0 || o->e2e_ms > 0;
}

static int within(double measured, double bound)
{
    return bound == 0 || measured <= bound;
}

int slo_met(const struct slo *o, const struct slo *m)
{
    return within(m->ttft_ms, o->ttft_ms) && within(m->itl_ms, o->itl_ms) && within(m->tpot_ms, o->tpot_ms) &&
           within(m->e2e_ms, o->e2e_ms);
}

/* --- marks ------------------------------------------------------------------------------------------------------------------ */

void marks_add(struct marks *m, int64_t at_ns, int first)
{
    void *v = m->v;
    if (!grow(&v, &m->size, m->n + 1, sizeof *m->v)) {
        m->n_lost++;
        return;
    }
    m->v = v;
    m->v[m->n++] = (struct mark){at_ns, first};
}

void marks_fini(struct marks *m)
{
    free(m->v);
    *m = (struct marks){0};
}

uint64_t marks_count(const struct marks *m, int64_t from, int64_t to)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        n += m->v[i].at_ns > from && m->v[i].at_ns <= to;
    return n;
}

static void add_gap(int64_t from, int64_t to, struct samples *out)
{
    samples_add(out, (double)(to - from) / NS_PER_MS);
}

void marks_gaps_within(const struct marks *m, int64_t from, int64_t to, struct samples *out)
{
    for (size_t i = 1; i < m->n; i++)
        if (!m->v[i].first && m->v[i - 1].at_ns >= from && m->v[i].at_ns <= to)
            add_gap(m->v[i - 1].at_ns, m->v[i].at_ns, out);
}

void marks_gaps_across(const struct marks *m, int64_t from, int64_t to, int64_t open_until, struct samples *out)
{
    for (size_t i = 1; i < m->n; i++)
        if (!m->v[i].first && m->v[i - 1].at_ns < to && m->v[i].at_ns > from)
            add_gap(m->v[i - 1].at_ns, m->v[i].at_ns, out);
    if (open_until > 0 && m->n && m->v[m->n - 1].at_ns < to && open_until > from)
        add_gap(m->v[m->n - 1].at_ns, open_until, out);
}
