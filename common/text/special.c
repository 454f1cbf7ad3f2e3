#include "common/text/special.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"

static int compare(const void *pa, const void *pb, void *context)
{
    const struct vocab *v = context;
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    struct text x = v->piece[a], y = v->piece[b];
    int c = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    if (c == 0)
        c = (x.len > y.len) - (x.len < y.len);
    return c ? c : (a > b) - (a < b);
}

static int same_text(const struct vocab *v, uint32_t a, uint32_t b)
{
    return v->piece[a].len == v->piece[b].len && memcmp(v->piece[a].data, v->piece[b].data, v->piece[a].len) == 0;
}

/* A name that is not UTF-8 could cut a character of the text in two: it is never looked for. */
static int is_special(const struct vocab *v, uint32_t id)
{
    struct text name = v->piece[id];
    return name.len && (vocab_is_control(v, id) || v->kind[id] == TOKEN_USER_DEFINED) &&
           utf8_valid_len(name.data, name.len) == name.len;
}

static enum status collect(struct special *s, struct error *err)
{
    const struct vocab *v = s->vocab;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!is_special(v, i))
            continue;
        if (v->piece[i].len > SPECIAL_MAX_BYTES)
            return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.tokens[%u] is a special token of %zu bytes (at most %d)",
                             i, v->piece[i].len, SPECIAL_MAX_BYTES);
        s->ids[s->n++] = i;
    }
    qsort_r(s->ids, s->n, sizeof *s->ids, compare, (void *)(uintptr_t)v);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (kept == 0 || !same_text(v, s->ids[kept - 1], s->ids[i]))
            s->ids[kept++] = s->ids[i];
    s->n = kept;
    return STATUS_OK;
}

enum status special_init(struct special *s, const struct vocab *v, struct error *err)
{
    *s = (struct special){.vocab = v};
    s->ids = malloc(v->n * sizeof *s->ids);
    s->n_control_before = malloc((v->n + 1) * sizeof *s->n_control_before);
    if (!s->ids || !s->n_control_before) {
        special_fini(s);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for special tokens");
    }
    enum status status = collect(s, err);
    if (status != STATUS_OK) {
        special_fini(s);
        return status;
    }
    s->n_control_before[0] = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        s->n_control_before[i + 1] = s->n_control_before[i] + (uint32_t)vocab_is_control(v, s->ids[i]);
        unsigned char b = (unsigned char)v->piece[s->ids[i]].data[0];
        s->first[b + 1]++;
        if (v->kind[s->ids[i]] == TOKEN_USER_DEFINED)
            s->starts_user[b] = 1;
    }
    for (int b = 0; b < 256; b++)
        s->first[b + 1] += s->first[b];
    return STATUS_OK;
}

void special_fini(struct special *s)
{
    free(s->ids);
    free(s->n_control_before);
    *s = (struct special){0};
}

/* First of ids[lo, hi) whose byte at depth is at least (above: greater than) b; all of them are longer than depth. */
static uint32_t bound(const struct special *s, uint32_t lo, uint32_t hi, size_t depth, unsigned char b, int above)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        unsigned char c = (unsigned char)s->vocab->piece[s->ids[mid]].data[depth];
        if (c < b || (above && c == b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Length of the longest allowed name at text, 0: none. *looked: bytes compared. */
static size_t match(const struct special *s, const char *text, size_t len, int control, uint32_t *id, size_t *looked)
{
    unsigned char b = (unsigned char)text[0];
    uint32_t lo = s->first[b], hi = s->first[b + 1];
    size_t best = 0, depth = 1;
    for (; lo < hi; depth++) {
        uint32_t candidate = s->ids[lo];
        if (s->vocab->piece[candidate].len == depth) {
            if (control || !vocab_is_control(s->vocab, candidate)) {
                best = depth;
                *id = candidate;
            }
            lo++;
        }
        if (depth == len)
            break;
        b = (unsigned char)text[depth];
        lo = bound(s, lo, hi, depth, b, 0);
        hi = bound(s, lo, hi, depth, b, 1);
    }
    *looked = depth;
    return best;
}

int special_control_starts(const struct special *s, const char *text, size_t trim, size_t len)
{
    if (len == 0)
        return 0;
    unsigned char b = (unsigned char)text[0];
    uint32_t lo = s->first[b], hi = s->first[b + 1];
    for (size_t depth = 1; lo < hi && s->n_control_before[hi] > s->n_control_before[lo]; depth++) {
        if (depth == trim || depth == len)
            return 1;
        if (s->vocab->piece[s->ids[lo]].len == depth) {
            if (vocab_is_control(s->vocab, s->ids[lo]))
                return 1;
            lo++;
        }
        b = (unsigned char)text[depth];
        lo = bound(s, lo, hi, depth, b, 0);
        hi = bound(s, lo, hi, depth, b, 1);
    }
    return 0;
}

static int is_marked(struct special_search *q, size_t at)
{
    while (q->next_mark < q->n_marks && q->marks[q->next_mark] < at)
        q->next_mark++;
    return q->next_mark < q->n_marks && q->marks[q->next_mark] == at;
}

enum status special_find(const struct special *s, struct special_search *q, size_t from, struct work *work, size_t *at,
                         uint32_t *id)
{
    for (size_t i = from; i < q->len; i++) {
        unsigned char b = (unsigned char)q->text[i];
        if (i % 64 == 0)
            TRY(work_step(work, 1));
        if (s->first[b] == s->first[b + 1] || (!q->control && !s->starts_user[b]))
            continue;
        size_t looked, len = match(s, q->text + i, q->len - i, q->control && !is_marked(q, i), id, &looked);
        TRY(work_step(work, 1 + looked / 4));
        if (len) {
            *at = i;
            return STATUS_OK;
        }
    }
    *at = q->len;
    return STATUS_OK;
}
