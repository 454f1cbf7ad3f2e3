#include "stage/sequences.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"

/* Who has a block in its table. */
struct holding {
    uint32_t n;      /* open sequences */
    uint32_t newest; /* slot + 1 of the one that took it last, 0: that one has ended */
};

struct sequences {
    struct sequences_limits limits;
    uint32_t max_blocks; /* of one sequence */
    uint32_t n_open, index_mask;
    uint32_t *index;     /* open addressing by seq: slot + 1, 0 is free */
    struct holding *held; /* [n_blocks] */
    struct holding *held_window; /* [n_window] */
    uint32_t *blocks;    /* [slots][max_blocks] */
    uint32_t *window_blocks; /* the same; NULL: no WINDOW group */
    struct sample_note *notes; /* [slots][n_notes] */
    uint32_t *ids;       /* [slots][context], or NULL */
    struct logit_bias *bias; /* [slots][MAX_BIASES], or NULL */
    struct sequence entry[];   /* by slot */
};

#define CHECK_TABLE(s)                                                                                                 \
    do {                                                                                                               \
        const char *why_;                                                                                              \
        ASSERT(sequences__check((s), &why_));                                                                          \
        (void)(s);                                                                                                     \
    } while (0)

enum status sequences_create(const struct sequences_limits *l, struct sequences **out)
{
    struct sequences *s = calloc(1, sizeof *s + l->slots * sizeof s->entry[0]);
    if (!s)
        return STATUS_OUT_OF_MEMORY;
    s->limits = *l;
    uint32_t whole = l->context / l->kv_block + (l->context % l->kv_block != 0);
    s->max_blocks = whole < l->n_blocks ? whole : l->n_blocks;
    uint32_t size = 4;
    while (size < 2 * l->slots)
        size *= 2;
    s->index_mask = size - 1;
    s->index = calloc(size, sizeof *s->index);
    s->held = calloc(l->n_blocks ? l->n_blocks : 1, sizeof *s->held);
    s->blocks = calloc((size_t)l->slots * s->max_blocks + 1, sizeof *s->blocks);
    s->held_window = calloc((size_t)l->n_window + 1, sizeof *s->held_window);
    if (l->window.window)
        s->window_blocks = calloc((size_t)l->slots * s->max_blocks + 1, sizeof *s->window_blocks);
    s->notes = calloc((size_t)l->slots * l->n_notes, sizeof *s->notes);
    if (l->samples) {
        s->ids = calloc((size_t)l->slots * l->context, sizeof *s->ids);
        s->bias = calloc((size_t)l->slots * MAX_BIASES, sizeof *s->bias);
    }
    if (!s->index || !s->held || !s->held_window || !s->blocks || (l->window.window && !s->window_blocks) || !s->notes ||
        (l->samples && (!s->ids || !s->bias))) {
        sequences_destroy(s);
        return STATUS_OUT_OF_MEMORY;
    }
    sequences_clear(s);
    *out = s;
    return STATUS_OK;
}

void sequences_destroy(struct sequences *s)
{
    if (!s)
        return;
    free(s->index);
    free(s->held);
    free(s->held_window);
    free(s->blocks);
    free(s->window_blocks);
    free(s->notes);
    free(s->ids);
    free(s->bias);
    free(s);
}

void sequences_clear(struct sequences *s)
{
    memset(s->index, 0, (s->index_mask + 1) * sizeof *s->index);
    memset(s->held, 0, s->limits.n_blocks * sizeof *s->held);
    memset(s->held_window, 0, s->limits.n_window * sizeof *s->held_window);
    for (uint32_t i = 0; i < s->limits.slots; i++)
        s->entry[i] = (struct sequence){
            .slot = i, .blocks = s->blocks + (size_t)i * s->max_blocks, .notes = s->notes + (size_t)i * s->limits.n_notes,
            .window_blocks = s->window_blocks ? s->window_blocks + (size_t)i * s->max_blocks : NULL,
            .ids = s->ids ? s->ids + (size_t)i * s->limits.context : NULL,
            .bias = s->bias ? s->bias + (size_t)i * MAX_BIASES : NULL};
    s->n_open = 0;
}

uint32_t sequences_count(const struct sequences *s)
{
    return s->n_open;
}

/* Place of seq in the index, or the free place where it would go. */
static uint32_t place(const struct sequences *s, uint64_t seq)
{
    uint32_t i = (uint32_t)rand_mix(seq) & s->index_mask;
    while (s->index[i] && s->entry[s->index[i] - 1].seq != seq)
        i = (i + 1) & s->index_mask;
    return i;
}

struct sequence *sequences_find(const struct sequences *s, uint64_t seq)
{
    uint32_t at = s->index[place(s, seq)];
    return at ? (struct sequence *)&s->entry[at - 1] : NULL;
}

/* Takes a place out and closes the gap, so that no later probe ends early. */
static void unlink_place(struct sequences *s, uint32_t hole)
{
    s->index[hole] = 0;
    for (uint32_t i = (hole + 1) & s->index_mask; s->index[i]; i = (i + 1) & s->index_mask) {
        uint32_t moved = s->index[i];
        s->index[i] = 0;
        s->index[place(s, s->entry[moved - 1].seq)] = moved;
    }
}

static enum status hold(struct holding *held, uint32_t n_pool, struct sequence *q, uint32_t place, uint32_t block, struct error *err)
{
    if (block >= n_pool)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: block %u of a pool of %u", (unsigned long long)q->seq, block, n_pool);
    struct holding *h = &held[block];
    if (h->newest == q->slot + 1)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: block %u stands in its table twice", (unsigned long long)q->seq,
                         block);
    if (h->n && place >= q->n_shared)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: block %u is held by others (%u), its length is %u",
                         (unsigned long long)q->seq, block, h->n, q->length);
    h->n++;
    h->newest = q->slot + 1;
    return STATUS_OK;
}

static void let_go(struct holding *h, const struct sequence *q)
{
    h->n--;
    if (h->newest == q->slot + 1)
        h->newest = 0;
}

/* WINDOW blocks stand behind the others and belong to the last places of the table. A new sequence names those that its first
 * row reads, and from then on one for each block. */
static enum status add_window_blocks(struct sequences *s, struct sequence *q, const uint32_t *blocks, uint32_t n, uint32_t n_new,
                                     struct error *err)
{
    const struct kv_window *w = &s->limits.window;
    uint32_t first = q->n_blocks - n_new;
    if (w->window && first == 0) /* it opens */
        q->first_window = first = kv_window_first(w, q->length);
    uint32_t want = w->window && first <= q->n_blocks ? q->n_blocks - first : 0;
    if (n != want)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: %u WINDOW blocks with %u others, expected %u",
                         (unsigned long long)q->seq, n, n_new, want);
    for (uint32_t i = 0; i < n; i++) {
        TRY(hold(s->held_window, s->limits.n_window, q, first + i, blocks[i], err));
        q->window_blocks[first + i] = blocks[i];
    }
    return STATUS_OK;
}

static enum status add_blocks(struct sequences *s, struct sequence *q, const struct plan *p, const struct plan_op *op,
                              struct error *err)
{
    const uint32_t *blocks = p->words + op->first_block;
    if (op->n_blocks > s->max_blocks - q->n_blocks)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: %u + %u blocks, at most %u", (unsigned long long)q->seq,
                         q->n_blocks, op->n_blocks, s->max_blocks);
    for (uint32_t i = 0; i < op->n_blocks; i++) {
        TRY(hold(s->held, s->limits.n_blocks, q, q->n_blocks, blocks[i], err));
        q->blocks[q->n_blocks++] = blocks[i];
    }
    TRY(add_window_blocks(s, q, blocks + op->n_blocks, op->n_window, op->n_blocks, err));
    /* It goes on from where it stood: appending must not cost a walk over the whole table. */
    q->digest = plan_digest_add(q->digest, blocks, op->n_blocks + op->n_window);
    return STATUS_OK;
}

/* No row from its length on reads them: plans that come may name them for others. */
static void leave_behind(struct sequences *s, struct sequence *q)
{
    uint32_t first = q->window_blocks ? kv_window_first(&s->limits.window, q->length) : 0;
    for (; q->first_window < first && q->first_window < q->n_blocks; q->first_window++)
        let_go(&s->held_window[q->window_blocks[q->first_window]], q);
}

static enum status check_length(const struct sequences *s, const struct sequence *q, uint64_t length, struct error *err)
{
    if (length > s->limits.context)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: length %llu, the context is %u", (unsigned long long)q->seq,
                         (unsigned long long)length, s->limits.context);
    if (length > (uint64_t)q->n_blocks * s->limits.kv_block)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: length %llu, its %u blocks hold %llu",
                         (unsigned long long)q->seq, (unsigned long long)length, q->n_blocks,
                         (unsigned long long)q->n_blocks * s->limits.kv_block);
    return STATUS_OK;
}

/* The plan was checked: as many ids and biases as the sampler has use for. */
static void keep_sampler(struct sequence *q, const struct plan *p, const struct plan_op *op)
{
    q->sampler = op->sampler;
    q->ids_from = op->length - op->n_ids;
    if (!q->ids)
        return;
    for (uint32_t i = 0; i < op->sampler.n_bias; i++)
        q->bias[i] = plan_bias(p, op, i);
    memcpy(q->ids + q->ids_from, p->words + op->first_id, op->n_ids * sizeof *q->ids);
}

static enum status open_sequence(struct sequences *s, const struct plan *p, const struct plan_op *op, struct error *err)
{
    if (op->slot >= s->limits.slots)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: slot %u of %u", (unsigned long long)op->seq, op->slot,
                         s->limits.slots);
    struct sequence *q = &s->entry[op->slot];
    if (q->seq)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: slot %u is taken by sequence %llu",
                         (unsigned long long)op->seq, op->slot, (unsigned long long)q->seq);
    uint32_t at = place(s, op->seq);
    if (s->index[at])
        return error_set(err, STATUS_PROTOCOL, "sequence %llu is open already, in slot %u", (unsigned long long)op->seq,
                         s->index[at] - 1);
    q->seq = op->seq;
    q->length = op->length;
    q->n_shared = op->length / s->limits.kv_block;
    q->n_blocks = q->n_notes = q->first_window = 0;
    q->run_tick = UINT64_MAX;
    q->digest = PLAN_DIGEST_START;
    s->index[at] = op->slot + 1;
    s->n_open++;
    TRY(add_blocks(s, q, p, op, err));
    TRY(check_length(s, q, q->length, err));
    keep_sampler(q, p, op);
    return STATUS_OK;
}

static void close_sequence(struct sequences *s, struct sequence *q)
{
    for (uint32_t i = 0; i < q->n_blocks; i++)
        let_go(&s->held[q->blocks[i]], q);
    for (uint32_t i = q->first_window; q->window_blocks && i < q->n_blocks; i++)
        let_go(&s->held_window[q->window_blocks[i]], q);
    unlink_place(s, place(s, q->seq));
    q->seq = 0;
    q->n_blocks = q->n_shared = q->length = q->n_notes = q->first_window = 0;
    s->n_open--;
}

/* A window of ids moves back with the end, and what lies before the first that OPEN brought nobody knows here. */
static enum status truncate_sequence(const struct sequences *s, struct sequence *q, uint32_t length, struct error *err)
{
    const uint32_t n_ids = sampler_history(&q->sampler, length);
    if (n_ids > 0 && length - n_ids < q->ids_from)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: truncated to %u, its ids are known from %u on",
                         (unsigned long long)q->seq, length, q->ids_from);
    if (q->window_blocks && kv_window_first(&s->limits.window, length) < q->first_window)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: truncated to %u, its window from block %u on is there",
                         (unsigned long long)q->seq, length, q->first_window);
    if (length < q->ids_from) /* from here on they come with runs */
        q->ids_from = length;
    q->length = length;
    return STATUS_OK;
}

enum status sequences_apply(struct sequences *s, const struct plan *p, const struct plan_op *op, struct error *err)
{
    if (op->kind == OP_OPEN) {
        TRY(open_sequence(s, p, op, err));
        CHECK_TABLE(s);
        return STATUS_OK;
    }
    struct sequence *q = sequences_find(s, op->seq);
    if (!q)
        return error_set(err, STATUS_PROTOCOL, "op %d on sequence %llu, which is not open", (int)op->kind,
                         (unsigned long long)op->seq);
    switch (op->kind) {
    case OP_APPEND:
        TRY(add_blocks(s, q, p, op, err));
        break;
    case OP_TRUNCATE:
        if (op->length > q->length)
            return error_set(err, STATUS_PROTOCOL, "sequence %llu: truncated to %u, its length is %u",
                             (unsigned long long)q->seq, op->length, q->length);
        TRY(truncate_sequence(s, q, op->length, err));
        break;
    default:
        close_sequence(s, q);
        break;
    }
    CHECK_TABLE(s);
    return STATUS_OK;
}

struct sample_note *sequence_note(const struct sequences *s, const struct sequence *q, uint64_t tick)
{
    uint32_t kept = q->n_notes < s->limits.n_notes ? q->n_notes : s->limits.n_notes;
    for (uint32_t i = 1; i <= kept; i++) {
        struct sample_note *n = &q->notes[(q->n_notes - i) % s->limits.n_notes];
        if (n->tick == tick)
            return n;
    }
    return NULL;
}

static enum status check_own(const struct holding *held, const uint32_t *blocks, const struct sequence *q, uint32_t place,
                             struct error *err)
{
    if (held[blocks[place]].n <= 1)
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL, "sequence %llu: rows at %u are written to block %u, which others hold (%u)",
                     (unsigned long long)q->seq, q->length, blocks[place], held[blocks[place]].n - 1);
}

/* Rows from the sequence's length on are written: into blocks of its own only. */
static enum status check_writable(const struct sequences *s, const struct sequence *q, uint32_t n, struct error *err)
{
    for (uint32_t i = q->length / s->limits.kv_block; (uint64_t)i * s->limits.kv_block < (uint64_t)q->length + n; i++) {
        TRY(check_own(s->held, q->blocks, q, i, err));
        if (q->window_blocks)
            TRY(check_own(s->held_window, q->window_blocks, q, i, err));
    }
    return STATUS_OK;
}

/* Rows of one sequence stand together in a tick, and one run at most is sampled. */
static enum status check_neighbours(const struct sequences *s, const struct sequence *q, const struct plan *p, uint32_t run,
                                    struct error *err)
{
    if (q->run_tick == p->tick && q->last_run + 1 != run)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: runs %u and %u of tick %llu do not stand together",
                         (unsigned long long)q->seq, q->last_run, run, (unsigned long long)p->tick);
    const struct sample_note *last = q->n_notes ? &q->notes[(q->n_notes - 1) % s->limits.n_notes] : NULL;
    if (last && last->tick == p->tick)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: run %u of tick %llu follows a sampled one",
                         (unsigned long long)q->seq, run, (unsigned long long)p->tick);
    return STATUS_OK;
}

/* Of a draw that went wrong no id is kept: its result says so too. */
static void keep_ids(struct sequence *q, const struct plan *p, const struct plan_run *r, const struct sample_note *from)
{
    if (!q->ids || sampler_history(&q->sampler, UINT32_MAX) == 0)
        return;
    ASSERT(!from || from->known);
    if (from)
        q->ids[r->kv_index] = from->id < 0 ? UINT32_MAX : (uint32_t)from->id;
    else
        memcpy(q->ids + r->kv_index, p->words + r->first_id, r->n * sizeof *q->ids);
}

enum status sequences_extend(struct sequences *s, const struct plan *p, uint32_t run, struct sequence **seq,
                             struct sample_note **from, struct error *err)
{
    const struct plan_run *r = &p->runs[run];
    struct sequence *q = sequences_find(s, r->seq);
    if (!q)
        return error_set(err, STATUS_PROTOCOL, "a run of sequence %llu, which is not open", (unsigned long long)r->seq);
    if (r->kv_index != q->length)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: kv_index %u, its length is %u", (unsigned long long)q->seq,
                         r->kv_index, q->length);
    if (r->table_check != q->digest)
        return error_set(err, STATUS_PROTOCOL, "sequence %llu: block table digest %08x, here %08x",
                         (unsigned long long)q->seq, r->table_check, q->digest);
    TRY(check_length(s, q, (uint64_t)q->length + r->n, err));
    TRY(check_writable(s, q, r->n, err));
    TRY(check_neighbours(s, q, p, run, err));
    struct sample_note *note = NULL;
    if (r->source == SOURCE_FROM_TICK) {
        note = sequence_note(s, q, r->from_tick);
        if (!note)
            return error_set(err, STATUS_PROTOCOL, "sequence %llu: tick %llu sampled nothing for it",
                             (unsigned long long)q->seq, (unsigned long long)r->from_tick);
        if (note->next_index != r->kv_index)
            return error_set(err, STATUS_PROTOCOL, "sequence %llu: kv_index %u, the id of tick %llu belongs at %u",
                             (unsigned long long)q->seq, r->kv_index, (unsigned long long)r->from_tick, note->next_index);
    }
    keep_ids(q, p, r, note);
    q->length += r->n;
    leave_behind(s, q);
    q->run_tick = p->tick;
    q->last_run = run;
    if (r->sample == SAMPLE_LAST)
        q->notes[q->n_notes++ % s->limits.n_notes] = (struct sample_note){.tick = p->tick, .next_index = q->length};
    *seq = q;
    *from = note;
    return STATUS_OK;
}

/* Are the holdings what the tables add up to? Compared as sums of mixed numbers: a tick may not allocate a tally. */
static int holdings_agree(const struct sequences *s)
{
    uint64_t held = 0, listed = 0;
    for (uint32_t b = 0; b < s->limits.n_blocks; b++)
        held += rand_mix(b) * s->held[b].n;
    for (uint32_t b = 0; b < s->limits.n_window; b++)
        held += rand_mix(~(uint64_t)b) * s->held_window[b].n;
    for (uint32_t i = 0; i < s->limits.slots; i++) {
        const struct sequence *q = &s->entry[i];
        for (uint32_t b = 0; b < q->n_blocks; b++)
            listed += rand_mix(q->blocks[b]);
        for (uint32_t b = q->first_window; q->window_blocks && b < q->n_blocks; b++)
            listed += rand_mix(~(uint64_t)q->window_blocks[b]);
    }
    return held == listed;
}

int sequences__check(const struct sequences *s, const char **why)
{
    uint32_t n_open = 0;
    *why = NULL;
    for (uint32_t i = 0; i < s->limits.slots && !*why; i++) {
        const struct sequence *q = &s->entry[i];
        n_open += q->seq != 0;
        if (!q->seq && q->n_blocks)
            *why = "a free entry holds no blocks";
        else if (q->seq && sequences_find(s, q->seq) != q)
            *why = "an open sequence is found by its id";
        else if (q->length > (uint64_t)q->n_blocks * s->limits.kv_block || q->length > s->limits.context)
            *why = "a sequence is no longer than its blocks and the context";
    }
    if (!*why && n_open != s->n_open)
        *why = "n_open counts the open sequences";
    if (!*why && !holdings_agree(s))
        *why = "a block is held by the sequences that have it in their tables";
    return !*why;
}
