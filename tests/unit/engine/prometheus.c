#include "tests/unit/engine/prometheus.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct prometheus *p;
    int line;
    char *why;
};

static int bad(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(struct reader *r, const char *fmt, ...)
{
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(r->why, 200, "line %d: %s", r->line, text);
    return 0;
}

/* [a-zA-Z_:][a-zA-Z0-9_:]* ; labels have no colon. */
static size_t name_len(const char *s, int colon)
{
    size_t n = 0;
    while (isalpha((unsigned char)s[n]) || s[n] == '_' || (colon && s[n] == ':') || (n && isdigit((unsigned char)s[n])))
        n++;
    return n;
}

static int family_by_name(const struct prometheus *p, const char *name)
{
    for (int i = 0; i < p->n_families; i++)
        if (strcmp(p->families[i].name, name) == 0)
            return i;
    return -1;
}

static int read_help(struct reader *r, char *s)
{
    size_t n = name_len(s, 1);
    if (!n || s[n] != ' ' || !s[n + 1])
        return bad(r, "HELP without a name or a text");
    s[n] = 0;
    if (family_by_name(r->p, s) >= 0)
        return bad(r, "a second HELP of %s", s);
    if (r->p->n_families == PROMETHEUS_MAX_FAMILIES)
        return bad(r, "too many families");
    if (r->p->n_families && !r->p->families[r->p->n_families - 1].type[0])
        return bad(r, "the family before has no TYPE");
    snprintf(r->p->families[r->p->n_families++].name, 96, "%s", s);
    return 1;
}

static int read_type(struct reader *r, char *s)
{
    size_t n = name_len(s, 1);
    struct prometheus_family *f = r->p->n_families ? &r->p->families[r->p->n_families - 1] : NULL;
    if (!n || s[n] != ' ')
        return bad(r, "TYPE without a name");
    s[n] = 0;
    const char *type = s + n + 1;
    if (!f || strcmp(f->name, s) != 0 || f->type[0])
        return bad(r, "TYPE of %s does not follow its HELP", s);
    if (strcmp(type, "counter") && strcmp(type, "gauge") && strcmp(type, "histogram"))
        return bad(r, "type '%s'", type);
    snprintf(f->type, sizeof f->type, "%s", type);
    size_t len = strlen(s);
    if (strcmp(type, "gauge") == 0 && len > 6 && strcmp(s + len - 6, "_total") == 0)
        return bad(r, "a gauge called %s", s);
    return 1;
}

/* {name="value",...}; returns the length or 0. */
static size_t labels_len(struct reader *r, const char *s)
{
    char seen[8][64];
    int n_seen = 0;
    size_t at = 1;
    for (;;) {
        size_t n = name_len(s + at, 0);
        if (!n || n >= 64 || s[at + n] != '=' || s[at + n + 1] != '"' || n_seen == 8)
            return (size_t)bad(r, "a label at '%.30s'", s + at);
        snprintf(seen[n_seen], 64, "%.*s", (int)n, s + at);
        for (int i = 0; i < n_seen; i++)
            if (strcmp(seen[i], seen[n_seen]) == 0)
                return (size_t)bad(r, "label %s twice", seen[i]);
        n_seen++;
        for (at += n + 2; s[at] != '"'; at++) {
            if (s[at] == '\\' && (s[at + 1] == '\\' || s[at + 1] == '"' || s[at + 1] == 'n'))
                at++;
            else if (!s[at] || s[at] == '\\')
                return (size_t)bad(r, "a label's value ends or escapes badly");
        }
        at++;
        if (s[at] == '}')
            return at + 1;
        if (s[at++] != ',')
            return (size_t)bad(r, "labels end badly");
    }
}

static int belongs(const struct prometheus_family *f, const char *name)
{
    static const char *const suffixes[] = {"_bucket", "_sum", "_count"};
    size_t n = strlen(f->name);
    if (strcmp(f->type, "histogram") != 0)
        return strcmp(f->name, name) == 0;
    if (strncmp(f->name, name, n) != 0)
        return 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(name + n, suffixes[i]) == 0)
            return 1;
    return 0;
}

static int read_sample(struct reader *r, char *s)
{
    struct prometheus *p = r->p;
    size_t n = name_len(s, 1), labels = 0;
    if (!n)
        return bad(r, "no name at '%.30s'", s);
    if (s[n] == '{' && !(labels = labels_len(r, s + n)))
        return 0;
    if (s[n + labels] != ' ' || n >= 96 || n + labels >= 256)
        return bad(r, "no value behind '%.60s'", s);
    if (p->n_samples == PROMETHEUS_MAX_SAMPLES)
        return bad(r, "too many samples");
    struct prometheus_sample *out = &p->samples[p->n_samples];
    snprintf(out->series, sizeof out->series, "%.*s", (int)(n + labels), s);
    snprintf(out->name, sizeof out->name, "%.*s", (int)n, s);
    char *end;
    const char *value = s + n + labels + 1;
    out->value = strtod(value, &end);
    if (end == value || *end || isspace((unsigned char)*value))
        return bad(r, "value '%.30s'", value);
    out->family = p->n_families - 1;
    struct prometheus_family *f = p->n_families ? &p->families[out->family] : NULL;
    if (!f || !f->type[0] || !belongs(f, out->name))
        return bad(r, "%s stands outside its family", out->name);
    if (strcmp(f->type, "gauge") != 0 && !(out->value >= 0))
        return bad(r, "%s is %g", out->series, out->value);
    for (int i = 0; i < p->n_samples; i++)
        if (strcmp(p->samples[i].series, out->series) == 0)
            return bad(r, "%s twice", out->series);
    f->n_samples++;
    p->n_samples++;
    return 1;
}

/* Buckets of one series follow each other, rise to le="+Inf", and _count repeats the last. */
static int check_histograms(struct reader *r)
{
    const struct prometheus *p = r->p;
    double last = -1, last_le = -INFINITY;
    for (int i = 0; i < p->n_samples; i++) {
        const struct prometheus_sample *s = &p->samples[i];
        size_t n = strlen(s->name);
        if (strcmp(p->families[s->family].type, "histogram") != 0)
            continue;
        if (strcmp(s->name + n - 4, "_sum") == 0)
            continue;
        if (strcmp(s->name + n - 6, "_count") == 0) {
            if (last_le != INFINITY || s->value != last)
                return bad(r, "%s is %g, its +Inf bucket %g", s->series, s->value, last);
            last = -1;
            last_le = -INFINITY;
            continue;
        }
        const char *le = strstr(s->series, "le=\"");
        if (!le)
            return bad(r, "%s has no le", s->series);
        double bound = strncmp(le + 4, "+Inf", 4) == 0 ? INFINITY : strtod(le + 4, NULL);
        if (bound <= last_le || s->value < last)
            return bad(r, "%s falls", s->series);
        last_le = bound;
        last = s->value;
    }
    return last_le == -INFINITY ? 1 : bad(r, "the last histogram has no _count");
}

int prometheus_read(const char *text, size_t len, struct prometheus *out, char why[200])
{
    struct reader r = {out, 0, why};
    char *copy = malloc(len + 1);
    int ok = copy && len && text[len - 1] == '\n';
    memset(out, 0, sizeof *out);
    if (!ok)
        bad(&r, "the page is empty or does not end with a line's end");
    else
        memcpy(copy, text, len), copy[len] = 0;
    for (char *line = copy, *next; ok && *line; line = next) {
        r.line++;
        next = strchr(line, '\n');
        *next++ = 0;
        if (strncmp(line, "# HELP ", 7) == 0)
            ok = read_help(&r, line + 7);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            ok = read_type(&r, line + 7);
        else
            ok = *line && *line != '#' ? read_sample(&r, line) : bad(&r, "an empty line or a comment");
    }
    for (int i = 0; ok && i < out->n_families; i++)
        if (!out->families[i].n_samples)
            ok = bad(&r, "%s has no sample", out->families[i].name);
    if (ok)
        ok = check_histograms(&r);
    free(copy);
    return ok;
}

double prometheus_value(const struct prometheus *p, const char *series)
{
    for (int i = 0; i < p->n_samples; i++)
        if (strcmp(p->samples[i].series, series) == 0)
            return p->samples[i].value;
    return NAN;
}
