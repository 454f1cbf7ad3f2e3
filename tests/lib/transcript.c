#include "tests/lib/transcript.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"

enum { MAIN_SEQ = 3, MAX_OTHERS = 7, OTHER_ROWS_MAX = 3 };

static const struct sampler_params drawing = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 7};
static const struct sampler_params other_drawing = {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.01f, .seed = 99};

struct other {
    uint32_t seq, position;
};

struct making {
    const struct transcript_options *o;
    struct chain *chain;
    struct transcript t;
    uint32_t *sample_of_position; /* index of the sample + 1, 0: none */
    struct chain_row *rows;
    uint32_t n_rows, tick;
    struct other others[MAX_OTHERS];
};

static void keep_logits(void *ctx, uint64_t seq, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct making *m = ctx;
    if (seq != MAIN_SEQ)
        return;
    uint32_t sample = m->sample_of_position[position];
    assert_true(sample > 0);
    memcpy(m->t.logits + (size_t)(sample - 1) * n_vocab, logits, n_vocab * sizeof *logits);
}

static void add_row(struct making *m, uint32_t seq, uint32_t position, uint32_t id, const struct sampler_params *s)
{
    m->rows[m->n_rows++] = (struct chain_row){.seq = seq, .position = position, .id = id, .sampler = s};
}

/* One to three rows of another sequence, the last one sampled every other time; it starts again when its context is full. */
static void add_other(struct making *m, struct other *other)
{
    uint32_t n = 1 + (m->tick + other->seq) % OTHER_ROWS_MAX;
    if (other->position + n > m->o->chain.context)
        other->position = 0;
    for (uint32_t i = 0; i < n; i++, other->position++) {
        uint32_t id = (uint32_t)(rand_at(other->seq, other->position + 7 * m->tick) % m->t.n_vocab);
        add_row(m, other->seq, other->position, id, i + 1 == n && (m->tick + other->seq) % 2 ? &other_drawing : NULL);
    }
}

static const struct sampler_params *sampler_at(const struct making *m, uint32_t position)
{
    return m->sample_of_position[position] ? &drawing : NULL;
}

/* A tick with n rows of the sequence from `position`; returns what its last row drew. */
static int32_t run_tick(struct making *m, uint32_t position, uint32_t n, const uint32_t *ids)
{
    struct error err;
    m->n_rows = 0;
    uint32_t before = m->o->n_others / 2;
    for (uint32_t i = 0; i < before; i++)
        add_other(m, &m->others[i]);
    uint32_t first = m->n_rows;
    for (uint32_t i = 0; i < n; i++)
        add_row(m, MAIN_SEQ, position + i, ids[i], sampler_at(m, position + i));
    for (uint32_t i = before; i < m->o->n_others; i++)
        add_other(m, &m->others[i]);
    if (chain_run(m->chain, m->rows, m->n_rows, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    for (uint32_t i = 0; i < n; i++)
        if (m->sample_of_position[position + i]) {
            assert_int_equal(m->rows[first + i].bad_logits, 0);
            m->t.ids[m->sample_of_position[position + i] - 1] = m->rows[first + i].sampled;
        }
    m->tick++;
    return m->rows[first + n - 1].sampled;
}

static void prepare(struct making *m)
{
    const struct transcript_options *o = m->o;
    m->t.n_vocab = chain_model(m->chain)->hp.n_vocab;
    m->sample_of_position = calloc(o->n_prompt + o->n_decode, sizeof *m->sample_of_position);
    for (uint32_t p = 0; p < o->n_prompt + o->n_decode; p++)
        if (p + 1 >= o->n_prompt || p % o->sample_every == 0)
            m->sample_of_position[p] = ++m->t.n_samples;
    m->t.ids = calloc(m->t.n_samples, sizeof *m->t.ids);
    m->t.logits = calloc((size_t)m->t.n_samples * m->t.n_vocab, sizeof *m->t.logits);
    m->rows = calloc(o->chain.max_rows, sizeof *m->rows);
    for (uint32_t i = 0; i < o->n_others; i++)
        m->others[i] = (struct other){.seq = i < MAIN_SEQ ? i : i + 1, .position = 5 * i};
    assert_true(o->piece + MAX_OTHERS * OTHER_ROWS_MAX <= o->chain.max_rows && o->n_others <= MAX_OTHERS);
    assert_true(o->n_prompt + o->n_decode <= o->chain.context);
}

struct transcript transcript_make(const struct transcript_options *o)
{
    struct making m = {.o = o};
    struct error err;
    if (chain_open(&o->chain, &m.chain, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    prepare(&m);
    chain_set_logits_sink(m.chain, keep_logits, &m);
    int32_t id = -1;
    for (uint32_t at = 0; at < o->n_prompt; at += o->piece)
        id = run_tick(&m, at, o->n_prompt - at < o->piece ? o->n_prompt - at : o->piece, o->prompt + at);
    for (uint32_t i = 0; i < o->n_decode; i++) {
        uint32_t next = (uint32_t)id;
        assert_true(next < m.t.n_vocab);
        id = run_tick(&m, o->n_prompt + i, 1, &next);
    }
    chain_close(m.chain);
    free(m.sample_of_position);
    free(m.rows);
    return m.t;
}

void transcript_free(struct transcript *t)
{
    free(t->ids);
    free(t->logits);
    *t = (struct transcript){0};
}

void transcript_compare(const struct transcript *want, const struct transcript *got, const char *what)
{
    assert_int_equal(want->n_samples, got->n_samples);
    assert_int_equal(want->n_vocab, got->n_vocab);
    for (uint32_t s = 0; s < want->n_samples; s++) {
        const float *a = want->logits + (size_t)s * want->n_vocab, *b = got->logits + (size_t)s * want->n_vocab;
        for (uint32_t i = 0; i < want->n_vocab; i++)
            if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
                fail_msg("%s: sample %u of %u, logit %u is %.9g, not %.9g", what, s, want->n_samples, i, (double)b[i],
                         (double)a[i]);
        if (want->ids[s] != got->ids[s])
            fail_msg("%s: sample %u drew %d, not %d", what, s, got->ids[s], want->ids[s]);
    }
}
