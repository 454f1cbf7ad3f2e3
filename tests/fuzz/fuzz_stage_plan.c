/* Plans of any coordinator against a stage's sequences: what is taken keeps the table's invariants, names only blocks of the
 * pool, never changes a position under a sequence that holds it, and leaves the ids that samplers look at where they belong. The
 * bytes say ops and runs; a broken rule ends the epoch. Inputs of an odd length have layers with a window.
 *
 * From 248 on the byte that says what comes changes fields of the next op or run to anything: the plan is then refused in words, or
 * its words are all there, and other sequences, which have taken the same until then, take it and keep their invariants. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "stage/sequences.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SLOTS = 4, KV_BLOCK = 4, BLOCKS = 14, CONTEXT = 30, SEQS = 6, WINDOW = 6, WINDOW_BLOCKS = 9 };

struct input {
    const uint8_t *at, *end;
};

struct world {
    struct sequences *s, *wild; /* wild: those that take changed plans */
    struct plan *p, *changed;
    int change;                 /* the next op or run */
    uint32_t kv[BLOCKS][KV_BLOCK];  /* what each cell holds: the number of the write */
    uint32_t window_kv[WINDOW_BLOCKS][KV_BLOCK];
    struct kv_window window;
    uint32_t n_writes;
    uint32_t seen[SLOTS][CONTEXT];  /* what each sequence counts on */
    uint32_t window_seen[SLOTS][CONTEXT];
};

static uint32_t take(struct input *in, uint32_t n)
{
    return in->at < in->end ? *in->at++ % n : 0;
}

static uint32_t *cell(struct world *w, const struct sequence *q, uint32_t position)
{
    CHECK(position / KV_BLOCK < q->n_blocks && q->blocks[position / KV_BLOCK] < BLOCKS);
    return &w->kv[q->blocks[position / KV_BLOCK]][position % KV_BLOCK];
}

static uint32_t *window_cell(struct world *w, const struct sequence *q, uint32_t position)
{
    uint32_t place = position / KV_BLOCK;
    CHECK(place >= q->first_window && place < q->n_blocks && q->window_blocks[place] < WINDOW_BLOCKS);
    return &w->window_kv[q->window_blocks[place]][position % KV_BLOCK];
}

/* The first position of the WINDOW blocks that it holds; all that a row at its end reads is behind it. */
static uint32_t reach(const struct sequence *q)
{
    CHECK(q->length < WINDOW || q->first_window * KV_BLOCK <= q->length - WINDOW + 1);
    return q->first_window * KV_BLOCK;
}

static uint32_t take_window_blocks(const struct world *w, struct input *in, const struct plan_op *op, uint32_t *blocks)
{
    uint32_t first = op->kind == OP_OPEN ? kv_window_first(&w->window, op->length) : 0;
    uint32_t n = first < op->n_blocks ? op->n_blocks - first : 0;
    n += take(in, 16) == 15; /* rarely one too many */
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = take(in, WINDOW_BLOCKS + 1);
    return n;
}

/* --- changed plans ------------------------------------------------------------------------------------------------------ */

#define FIELD(type, name) {offsetof(struct type, name), sizeof(((struct type *)0)->name)}

struct field {
    size_t at, bytes;
};

static const struct field op_fields[] = {
    FIELD(plan_op, kind), FIELD(plan_op, seq), FIELD(plan_op, slot), FIELD(plan_op, length), FIELD(plan_op, first_block),
    FIELD(plan_op, n_blocks), FIELD(plan_op, n_window), FIELD(plan_op, first_id), FIELD(plan_op, n_ids), FIELD(plan_op, first_bias),
    FIELD(plan_op, sampler.temperature), FIELD(plan_op, sampler.top_p), FIELD(plan_op, sampler.min_p), FIELD(plan_op, sampler.top_k),
    FIELD(plan_op, sampler.repeat_penalty), FIELD(plan_op, sampler.presence_penalty), FIELD(plan_op, sampler.frequency_penalty),
    FIELD(plan_op, sampler.typical_p), FIELD(plan_op, sampler.repeat_last_n), FIELD(plan_op, sampler.n_prompt),
    FIELD(plan_op, sampler.n_bias), FIELD(plan_op, sampler.n_top),
};
static const struct field run_fields[] = {
    FIELD(plan_run, seq), FIELD(plan_run, n), FIELD(plan_run, kv_index), FIELD(plan_run, source), FIELD(plan_run, sample),
    FIELD(plan_run, first_id), FIELD(plan_run, last_stage), FIELD(plan_run, from_tick), FIELD(plan_run, table_check),
};
static const struct field plan_fields[] = {
    FIELD(plan, tick), FIELD(plan, n_rows), FIELD(plan, n_ops), FIELD(plan, n_runs), FIELD(plan, n_words),
};

static void change_field(struct input *in, void *of, struct field f)
{
    static const float floats[] = {NAN, INFINITY, -1, 1e9f, 0.005f, 2.5f, 101, -2.5f};
    uint64_t v = 0;
    memcpy(&v, (char *)of + f.at, f.bytes);
    const uint32_t how = take(in, 6), x = take(in, 256);
    const float y = floats[x % ARRAY_LEN(floats)];
    if (how == 0)
        v = x;
    else if (how == 1)
        v = ~(uint64_t)x;
    else if (how == 2)
        v ^= 1ull << x % (8 * f.bytes);
    else if (how == 3)
        memcpy(&v, &y, sizeof y);
    else
        v += how == 4 ? 1 : UINT64_MAX;
    memcpy((char *)of + f.at, &v, f.bytes);
}

static void change_word(struct world *w, struct input *in)
{
    if (w->p->n_words)
        change_field(in, &w->changed->words[w->p->n_words - 1 - take(in, w->p->n_words)], (struct field){0, 4});
}

static void change_newest(struct world *w, struct input *in, int is_run)
{
    struct plan *p = w->changed;
    CHECK(plan_copy(p, w->p) == STATUS_OK);
    void *newest = is_run ? (void *)&p->runs[p->n_runs - 1] : (void *)&p->ops[p->n_ops - 1];
    for (uint32_t n = 1 + take(in, 3); n > 0; n--) {
        const uint32_t which = take(in, 8);
        if (which == 0)
            change_field(in, p, plan_fields[take(in, ARRAY_LEN(plan_fields))]);
        else if (which == 1)
            change_word(w, in);
        else if (is_run)
            change_field(in, newest, run_fields[take(in, ARRAY_LEN(run_fields))]);
        else
            change_field(in, newest, op_fields[take(in, ARRAY_LEN(op_fields))]);
    }
}

static volatile uint32_t sink;

/* All words that a taken plan names are there. */
static void read_words(const struct plan *p)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->n_blocks + op->n_window; k++)
            sum += p->words[op->first_block + k];
        for (uint32_t k = 0; op->kind == OP_OPEN && k < op->n_ids; k++)
            sum += p->words[op->first_id + k];
        for (uint32_t k = 0; op->kind == OP_OPEN && k < op->sampler.n_bias; k++)
            CHECK(sampler_bias_is_allowed(plan_bias(p, op, k).bias));
    }
    for (uint32_t i = 0; i < p->n_runs; i++)
        for (uint32_t k = 0; p->runs[i].source == SOURCE_IDS && k < p->runs[i].n; k++)
            sum += p->words[p->runs[i].first_id + k];
    sink = sum;
}

static enum status take_newest(struct world *w, const struct plan *p, int is_run)
{
    struct error err = {0};
    enum status s = STATUS_OK;
    struct sequence *q;
    struct sample_note *from;
    if (!is_run && p->n_ops)
        s = sequences_apply(w->wild, p, &p->ops[p->n_ops - 1], &err);
    else if (is_run && p->n_runs)
        s = sequences_extend(w->wild, p, p->n_runs - 1, &q, &from, &err);
    CHECK(s == STATUS_OK || (s == STATUS_PROTOCOL && err.status == s && err.message[0]));
    if (s == STATUS_OK && is_run && p->n_runs && p->runs[p->n_runs - 1].sample == SAMPLE_LAST) {
        struct sample_note *note = sequence_note(w->wild, q, p->tick);
        CHECK(note);
        note->id = (int32_t)note->next_index;
        note->known = 1;
    }
    return s;
}

/* The other sequences take the newest op or run too, as it is or changed. */
static enum status go_wild(struct world *w, struct input *in, int is_run)
{
    struct error err = {0};
    const char *why;
    const struct plan *p = w->p;
    if (w->change) {
        change_newest(w, in, is_run);
        enum status s = plan_check(w->changed, &err);
        CHECK(s == STATUS_OK || (s == STATUS_PROTOCOL && err.status == s && err.message[0]));
        p = s == STATUS_OK ? w->changed : w->p;
        if (s == STATUS_OK)
            read_words(p);
    }
    w->change = 0;
    TRY(take_newest(w, p, is_run));
    CHECK(sequences__check(w->wild, &why));
    return STATUS_OK;
}

/* --- ops and runs ------------------------------------------------------------------------------------------------------- */

static enum status add_op(struct world *w, struct input *in, enum plan_op_kind kind)
{
    uint32_t blocks[24], ids[CONTEXT + 5], bias_ids[3] = {7, 8, 9}, bias_bits[3] = {0};
    struct plan_op op = {.kind = kind, .seq = 1 + take(in, SEQS)};
    if (kind == OP_OPEN)
        op.slot = take(in, SLOTS + 1);
    if (kind == OP_OPEN || kind == OP_TRUNCATE)
        op.length = take(in, CONTEXT + 5);
    if (kind == OP_OPEN || kind == OP_APPEND)
        op.n_blocks = take(in, 10);
    for (uint32_t i = 0; i < op.n_blocks; i++)
        blocks[i] = take(in, BLOCKS + 1);
    if (w->window.window && (kind == OP_OPEN || kind == OP_APPEND))
        op.n_window = take_window_blocks(w, in, &op, blocks + op.n_blocks);
    if (kind == OP_OPEN) {
        op.sampler = (struct sampler_params){.repeat_penalty = (float)take(in, 3), .presence_penalty = (float)take(in, 2),
                                             .repeat_last_n = take(in, 6), .n_prompt = take(in, CONTEXT), .n_bias = take(in, 4)};
        op.n_ids = sampler_history(&op.sampler, op.length);
    }
    for (uint32_t i = 0; i < op.n_ids; i++)
        ids[i] = op.length - op.n_ids + i;
    struct error err;
    if (plan_add_open(w->p, &op, blocks, ids, bias_ids, bias_bits) != STATUS_OK || plan_check(w->p, &err) != STATUS_OK)
        return STATUS_FULL;
    TRY(go_wild(w, in, 0));
    TRY(sequences_apply(w->s, w->p, &w->p->ops[w->p->n_ops - 1], &err));
    const struct sequence *q = sequences_find(w->s, op.seq);
    if (kind == OP_OPEN)
        for (uint32_t i = 0; i < q->length; i++)
            w->seen[q->slot][i] = *cell(w, q, i);
    if (kind == OP_OPEN && w->window.window)
        for (uint32_t i = reach(q); i < q->length; i++)
            w->window_seen[q->slot][i] = *window_cell(w, q, i);
    return STATUS_OK;
}

static enum status add_run(struct world *w, struct input *in)
{
    uint32_t ids[CONTEXT + 5];
    struct sequence *q = sequences_find(w->s, 1 + take(in, SEQS));
    struct sample_note *from;
    struct error err;
    uint32_t how = take(in, 16);
    struct plan_run run = {.seq = q ? q->seq : 99, .n = take(in, CONTEXT + 5), .kv_index = q ? q->length : 0,
                           .source = how & 1 ? SOURCE_FROM_TICK : SOURCE_IDS, .from_tick = w->p->tick - 1,
                           .sample = how & 2 ? SAMPLE_LAST : SAMPLE_NONE, .table_check = q ? q->digest : 0};
    if (how & 1)
        run.n = 1;
    if (how & 4)
        run.kv_index += take(in, 3);
    for (uint32_t i = 0; i < run.n; i++)
        ids[i] = run.kv_index + i;
    if (plan_add_run(w->p, &run, ids) != STATUS_OK || plan_check(w->p, &err) != STATUS_OK)
        return STATUS_FULL;
    TRY(go_wild(w, in, 1));
    TRY(sequences_extend(w->s, w->p, w->p->n_runs - 1, &q, &from, &err));
    if (run.sample == SAMPLE_LAST) { /* known before the next plan is taken */
        struct sample_note *note = sequence_note(w->s, q, w->p->tick);
        CHECK(note);
        note->id = (int32_t)note->next_index;
        note->known = 1;
    }
    for (uint32_t i = 0; i < run.n; i++) {
        uint32_t at = run.kv_index + i;
        w->seen[q->slot][at] = *cell(w, q, at) = ++w->n_writes;
        if (w->window.window && at >= reach(q))
            w->window_seen[q->slot][at] = *window_cell(w, q, at) = w->n_writes;
    }
    return STATUS_OK;
}

static void next_tick(struct world *w)
{
    uint64_t tick = w->p->tick + 1;
    plan_reset(w->p);
    w->p->tick = tick;
}

static void check(struct world *w)
{
    const char *why;
    CHECK(sequences__check(w->s, &why));
    for (uint64_t seq = 1; seq <= SEQS; seq++) {
        const struct sequence *q = sequences_find(w->s, seq);
        for (uint32_t i = q ? q->length - sampler_history(&q->sampler, q->length) : 0; q && i < q->length; i++)
            CHECK(q->ids[i] == i); /* every id here is its position */
        for (uint32_t i = 0; q && i < q->length; i++)
            CHECK(*cell(w, q, i) == w->seen[q->slot][i]);
        for (uint32_t i = q && w->window.window ? reach(q) : CONTEXT; q && i < q->length; i++)
            CHECK(*window_cell(w, q, i) == w->window_seen[q->slot][i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct sequences_limits l = {.slots = SLOTS, .context = CONTEXT, .kv_block = KV_BLOCK, .n_blocks = BLOCKS, .n_notes = 3,
                                 .samples = 1};
    if (size % 2) {
        l.window = (struct kv_window){.window = WINDOW, .kv_block = KV_BLOCK, .slots = SLOTS, .context = CONTEXT, .max_rows = 8, .ticks = 2};
        l.n_window = WINDOW_BLOCKS;
    }
    w.window = l.window;
    struct input in = {data, data + size};
    if (size > 2000)
        return 0;
    if (!w.p && (plan_create(64, 64, 2048, &w.p) != STATUS_OK || plan_create(64, 64, 2048, &w.changed) != STATUS_OK))
        abort();
    if (sequences_create(&l, &w.s) != STATUS_OK || sequences_create(&l, &w.wild) != STATUS_OK)
        abort();
    next_tick(&w);
    while (in.at < in.end) {
        const uint32_t byte = take(&in, 256), what = byte % 8;
        enum status s = STATUS_OK;
        w.change = byte >= 248;
        if (what == 0)
            next_tick(&w);
        else if (what <= OP_CLOSE)
            s = add_op(&w, &in, (enum plan_op_kind)what);
        else
            s = add_run(&w, &in);
        if (s == STATUS_FULL) {
            next_tick(&w); /* no plan, so no tick */
            continue;
        }
        if (s != STATUS_OK) {
            sequences_clear(w.s);
            sequences_clear(w.wild);
            next_tick(&w);
        }
        check(&w);
    }
    sequences_destroy(w.s);
    sequences_destroy(w.wild);
    return 0;
}
