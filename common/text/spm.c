#include "common/text/spm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "common/text/pretokenizer.h"
#include "common/base/utf8.h"

#define LOG_MODULE "tokenizer"
#include "common/base/log.h"

enum { NEIGHBOUR_BITS = 20, SPACE = 0x2581, FIRST_PLACES = 64 };
#define SPACE_TEXT "\xe2\x96\x81" /* U+2581 */
#define NO_PLACE UINT32_MAX

/* One character of a word, or what was merged into it from the right. A place that was merged into its left neighbour has
 * no rank for good, and keeps for taking the token apart again: in prev the id that the left one had before, in next what
 * `last` was there. */
struct spm_place {
    uint32_t start;      /* of its text in the word; its text ends where the next place starts */
    uint32_t id, rank;   /* id: VOCAB_NO_ID: a character that is no token. rank: of the merge with the next place */
    uint32_t prev, next;
    uint32_t last;       /* the place that was merged into this one last, NO_PLACE: none */
};

/* --- building --- */

static size_t neighbour_bit(const struct spm *s, uint32_t left, uint32_t right)
{
    return (size_t)rand_mix(s->seed ^ ((uint64_t)left << 32 | right)) >> (64 - NEIGHBOUR_BITS);
}

static int may_merge(const struct spm *s, uint32_t left, uint32_t right)
{
    size_t bit = neighbour_bit(s, left, right);
    return s->neighbours[bit / 64] >> bit % 64 & 1;
}

static void note_neighbours(struct spm *s, struct text t)
{
    uint32_t cp, before = 0;
    for (size_t at = 0; at < t.len;) {
        unsigned n = utf8_decode(t.data + at, t.len - at, &cp);
        if (at) {
            size_t bit = neighbour_bit(s, before, cp);
            s->neighbours[bit / 64] |= (uint64_t)1 << bit % 64;
        }
        before = cp;
        at += n;
    }
}

static enum status add_kind(struct spm *s, enum token_kind kind, struct error *err)
{
    const struct vocab *v = s->vocab;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->kind[i] != kind || !v->raw[i].len || utf8_valid_len(v->raw[i].data, v->raw[i].len) != v->raw[i].len)
            continue;
        if (v->raw[i].len > SPM_MAX_TOKEN)
            return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.tokens[%u] has %zu bytes (at most %d)", i,
                             v->raw[i].len, SPM_MAX_TOKEN);
        if (v->raw[i].len > s->longest)
            s->longest = v->raw[i].len;
        vocab_map_add(&s->map, i);
        note_neighbours(s, v->raw[i]);
    }
    return STATUS_OK;
}

static int by_score(const void *pa, const void *pb, void *context)
{
    const float *scores = context;
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return (scores[a] < scores[b]) - (scores[a] > scores[b]);
}

static enum status rank_scores(struct spm *s, float *scores, uint32_t *order, const struct gguf *g, struct error *err)
{
    uint32_t n = s->vocab->n;
    enum status st = gguf_read_f32(g, "tokenizer.ggml.scores", scores, n);
    if (st != STATUS_OK)
        return error_set(err, st, "tokenizer.ggml.scores cannot be read");
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(scores[i]))
            return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.scores[%u] is not a number", i);
        order[i] = i;
    }
    qsort_r(order, n, sizeof *order, by_score, scores);
    for (uint32_t i = 0; i < n; i++)
        s->rank[order[i]] = i && scores[order[i]] == scores[order[i - 1]] ? s->rank[order[i - 1]] : i;
    return STATUS_OK;
}

static enum status build_ranks(struct spm *s, const struct gguf *g, struct error *err)
{
    uint64_t n;
    if (!gguf_array_f32(g, "tokenizer.ggml.scores", &n))
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.scores is absent or not an array of floats");
    if (n != s->vocab->n)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.scores has %llu entries, tokenizer.ggml.tokens has %u",
                         (unsigned long long)n, s->vocab->n);
    float *scores = malloc(n * sizeof *scores);
    uint32_t *order = malloc(n * sizeof *order);
    enum status st = scores && order ? rank_scores(s, scores, order, g, err)
                                     : error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the vocabulary's scores");
    free(scores);
    free(order);
    return st;
}

static enum status build_bytes(struct spm *s, struct error *err)
{
    const struct vocab *v = s->vocab;
    unsigned n_bytes = 0;
    for (uint32_t i = v->n; i-- > 0;)
        if (v->kind[i] == TOKEN_BYTE)
            s->byte_id[(unsigned char)v->piece[i].data[0]] = i; /* the lowest id stays */
    for (int b = 0; b < 256; b++)
        n_bytes += s->byte_id[b] != VOCAB_NO_ID;
    s->all_bytes = n_bytes == 256;
    uint32_t space = vocab_map_find(&s->map, SPACE_TEXT, 3);
    s->space_ids = space != VOCAB_NO_ID && v->kind[space] != TOKEN_UNUSED ? 1 : 3;
    if (n_bytes == 0 && s->longest == 0)
        return error_set(err, STATUS_BAD_MODEL, "tokenizer.ggml.tokens has no token that text could become");
    if (!s->all_bytes)
        LOG_INFO("the vocabulary has byte tokens for %u of 256 bytes; other characters %s", n_bytes,
                 s->unknown == VOCAB_NO_ID ? "are lost" : "become the unknown token");
    return STATUS_OK;
}

static enum status build(struct spm *s, const struct gguf *g, struct error *err)
{
    uint32_t n = s->vocab->n;
    s->rank = malloc(n * sizeof *s->rank);
    s->neighbours = calloc(((size_t)1 << NEIGHBOUR_BITS) / 64, sizeof *s->neighbours);
    if (!s->rank || !s->neighbours || vocab_map_init(&s->map, s->vocab->raw, n) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a vocabulary of %u tokens", n);
    TRY(build_ranks(s, g, err));
    TRY(add_kind(s, TOKEN_NORMAL, err)); /* first: of a normal and an unused one with the same text it is meant */
    TRY(add_kind(s, TOKEN_UNUSED, err));
    return build_bytes(s, err);
}

enum status spm_init(struct spm *s, const struct vocab *v, const struct gguf *g, struct error *err)
{
    *s = (struct spm){.vocab = v, .seed = vocab_seed(), .space_prefix = 1};
    s->unknown = v->unknown < 0 ? VOCAB_NO_ID : (uint32_t)v->unknown;
    memset(s->byte_id, 0xff, sizeof s->byte_id);
    gguf_bool(g, "tokenizer.ggml.add_space_prefix", &s->space_prefix);
    enum status st = build(s, g, err);
    if (st != STATUS_OK)
        spm_fini(s);
    return st;
}

void spm_fini(struct spm *s)
{
    vocab_map_fini(&s->map);
    free(s->rank);
    free(s->neighbours);
    *s = (struct spm){0};
}

/* --- one word --- */

static size_t end_of(const struct spm_scratch *c, uint32_t at)
{
    uint32_t next = c->places[at].next;
    return next == NO_PLACE ? c->n_text : c->places[next].start;
}

/* The token that this place and its next one make together. */
static uint32_t joined(const struct spm *s, const struct spm_scratch *c, uint32_t at, struct work *work, enum status *st)
{
    const struct spm_place *left = &c->places[at];
    size_t len = left->next == NO_PLACE ? 0 : end_of(c, left->next) - left->start;
    if (len == 0 || len > s->longest)
        return VOCAB_NO_ID;
    *st = work_step(work, 1 + len / 64);
    return vocab_map_find(&s->map, c->text + left->start, len);
}

/* Gives the place its rank and puts the pair into the heap; an older entry of the same place becomes stale, or says the
 * same. */
static enum status rank_pair(const struct spm *s, struct spm_scratch *c, uint32_t at, struct work *work)
{
    enum status st = STATUS_OK;
    uint32_t id = joined(s, c, at, work, &st);
    TRY(st);
    c->places[at].rank = id == VOCAB_NO_ID ? MERGE_NO_RANK : s->rank[id];
    if (id != VOCAB_NO_ID)
        merge_heap_push(&c->heap, merge_entry(c->places[at].rank, at));
    return STATUS_OK;
}

static void join(struct spm_scratch *c, uint32_t at, uint32_t id)
{
    struct spm_place *left = &c->places[at], *right = &c->places[left->next];
    uint32_t absorbed = left->next;
    left->next = right->next;
    if (left->next != NO_PLACE)
        c->places[left->next].prev = at;
    right->rank = MERGE_NO_RANK;
    right->prev = left->id;
    right->next = left->last;
    left->last = absorbed;
    left->id = id;
}

static enum status merge(const struct spm *s, struct spm_scratch *c, struct work *work)
{
    c->heap.n = 0;
    for (uint32_t i = 0; i + 1 < c->n; i++)
        TRY(rank_pair(s, c, i, work));
    while (c->heap.n) {
        TRY(work_step(work, 1));
        uint64_t top = merge_heap_pop(&c->heap);
        uint32_t at = (uint32_t)top;
        if (c->places[at].rank != top >> 32)
            continue; /* stale: this place was merged since */
        enum status st = STATUS_OK;
        uint32_t id = joined(s, c, at, work, &st);
        TRY(st);
        join(c, at, id);
        TRY(rank_pair(s, c, at, work));
        if (c->places[at].prev != NO_PLACE)
            TRY(rank_pair(s, c, c->places[at].prev, work));
    }
    return STATUS_OK;
}

struct giver {
    const struct spm *s;
    struct spm_scratch *c;
    enum status (*emit)(void *context, uint32_t id);
    void *context;
};

static enum status give(struct giver *g, uint32_t id)
{
    g->c->in_unknown = 0;
    return g->emit(g->context, id);
}

/* A character that is no token. */
static enum status give_bytes(struct giver *g, const char *text, size_t len)
{
    const uint32_t *byte_id = g->s->byte_id;
    for (size_t i = 0; i < len; i++)
        if (byte_id[(unsigned char)text[i]] == VOCAB_NO_ID) {
            if (g->s->unknown == VOCAB_NO_ID || g->c->in_unknown)
                return STATUS_OK;
            g->c->in_unknown = 1;
            return g->emit(g->context, g->s->unknown);
        }
    for (size_t i = 0; i < len; i++)
        TRY(give(g, byte_id[(unsigned char)text[i]]));
    return STATUS_OK;
}

/* A place with the id and the last merge that it has, or had. An unused token is given as the two parts that made it, an
 * unused single character as bytes. The depth is at most the number of characters of a token. */
static enum status give_place(struct giver *g, uint32_t at, uint32_t id, uint32_t last)
{
    if (id != VOCAB_NO_ID && g->s->vocab->kind[id] != TOKEN_UNUSED)
        return give(g, id);
    if (last != NO_PLACE) {
        const struct spm_place *right = &g->c->places[last];
        TRY(give_place(g, at, right->prev, right->next));
        return give_place(g, last, right->id, right->last);
    }
    const char *text = g->c->text + g->c->places[at].start;
    uint32_t cp;
    unsigned len = utf8_decode(text, 4, &cp); /* the word is well-formed, and 3 bytes more are readable */
    return give_bytes(g, text, len);
}

/* Merges and gives the word that lies in the scratch, and empties it. */
static enum status finish_word(struct giver *g, struct work *work)
{
    struct spm_scratch *c = g->c;
    if (c->n > 1)
        TRY(merge(g->s, c, work));
    for (uint32_t at = c->n ? 0 : NO_PLACE; at != NO_PLACE; at = c->places[at].next) {
        TRY(work_step(work, 1));
        TRY(give_place(g, at, c->places[at].id, c->places[at].last));
    }
    c->n = c->n_text = c->n_source = 0;
    return STATUS_OK;
}

/* --- a text --- */

void spm_scratch_init(struct spm_scratch *c)
{
    *c = (struct spm_scratch){0};
}

void spm_scratch_fini(struct spm_scratch *c)
{
    free(c->text);
    free(c->places);
    free(c->heap.entries);
    *c = (struct spm_scratch){0};
}

static enum status reserve(struct spm_scratch *c, struct error *err)
{
    if (c->n < c->size)
        return STATUS_OK;
    size_t size = c->size ? 2 * c->size : FIRST_PLACES;
    struct spm_place *places = realloc(c->places, size * sizeof *places);
    if (places)
        c->places = places;
    char *text = realloc(c->text, 4 * size + 4);
    if (text)
        c->text = text;
    uint64_t *entries = realloc(c->heap.entries, 2 * size * sizeof *entries);
    if (entries)
        c->heap.entries = entries;
    if (!places || !text || !entries)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory to tokenize a word of %zu characters", c->n + 1);
    c->size = size;
    return STATUS_OK;
}

/* Puts one character into the word; n_source: bytes that it has in the text. */
static enum status put(struct giver *g, uint32_t cp, const char *text, unsigned len, unsigned n_source, struct work *work)
{
    struct spm_scratch *c = g->c;
    if (c->n && !may_merge(g->s, c->last, cp))
        TRY(finish_word(g, work));
    c->n_source += n_source;
    if (c->n_source > PRETOKENIZER_MAX_WORD)
        return error_param(work->err, STATUS_BAD_REQUEST, NULL, "word_too_long",
                           "the text has a run of more than %d bytes that a token could reach across",
                           PRETOKENIZER_MAX_WORD);
    TRY(reserve(c, work->err));
    uint32_t at = (uint32_t)c->n++;
    c->places[at] = (struct spm_place){.start = (uint32_t)c->n_text, .rank = MERGE_NO_RANK, .next = NO_PLACE,
                                       .last = NO_PLACE, .prev = at ? at - 1 : NO_PLACE};
    if (at)
        c->places[at - 1].next = at;
    memcpy(c->text + c->n_text, text, len);
    c->places[at].id = len > g->s->longest ? VOCAB_NO_ID : vocab_map_find(&g->s->map, text, len);
    c->n_text += len;
    c->last = cp;
    return work_step(work, 1);
}

enum status spm_encode(const struct spm *s, struct spm_scratch *c, const char *text, size_t len, struct work *work,
                       enum status (*emit)(void *context, uint32_t id), void *context)
{
    struct giver g = {.s = s, .c = c, .emit = emit, .context = context};
    c->n = c->n_text = c->n_source = 0;
    c->in_unknown = 0;
    if (len && s->space_prefix)
        TRY(put(&g, SPACE, SPACE_TEXT, 3, 0, work));
    for (size_t at = 0; at < len;) {
        uint32_t cp;
        unsigned n = utf8_decode(text + at, len - at, &cp);
        if (cp == ' ')
            TRY(put(&g, SPACE, SPACE_TEXT, 3, 1, work));
        else
            TRY(put(&g, cp, text + at, n, n, work));
        at += n;
    }
    return finish_word(&g, work);
}
