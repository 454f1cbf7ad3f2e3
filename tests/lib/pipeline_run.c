/* Requests through the test pipeline: a round of ticks with S+1 in flight, decode rows first, prompts in pieces. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "tests/lib/pipeline_impl.h"


/* A request in its slot. */
struct stream {
    struct pipeline_request *r;
    struct slot_ref ref;
    uint32_t planned;       /* positions planned so far */
    uint32_t retired;       /* of them, those whose results are here */
    uint32_t n_asked;       /* ids asked for so far */
    uint64_t last_tick;     /* of its newest sampled run */
    uint32_t n_runs, n_back; /* runs planned and come back; run i had rows[i % window] rows */
    uint32_t n_blocks, digest;
    uint32_t *blocks;       /* [2 * context / kv_block] of the op that is made, as the stages know them */
    uint32_t *rows;         /* [window] */
    int opened, closing;
};

struct run_state {
    struct pipeline *p;
    struct pipeline_request *requests;
    uint32_t n_requests, n_admitted, n_ended, in_flight;
    uint64_t first_tick;
    uint32_t max_blocks;
    struct stream *streams; /* [slots]; r NULL: free */
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint64_t item(const void *ctx, uint32_t position)
{
    const struct pipeline_request *r = ctx;
    return position < r->n_prompt ? r->prompt[position] : (uint32_t)r->out[position - r->n_prompt];
}

static struct block_chain chain_of(const struct pipeline_request *r, uint32_t n)
{
    return (struct block_chain){.salt = r->salt, .item = item, .ctx = r, .n = n};
}

static void admit(struct run_state *s)
{
    struct blocks *b = s->p->blocks;
    for (uint32_t i = 0; i < s->p->o.slots && s->n_admitted < s->n_requests; i++) {
        struct stream *t = &s->streams[i];
        struct pipeline_request *r = &s->requests[s->n_admitted];
        if (t->r || s->p->next_tick - s->first_tick < r->start_tick)
            continue;
        const struct block_chain chain = chain_of(r, r->n_prompt);
        const struct slot_ref ref = {i, s->p->next_seq};
        uint32_t most = blocks_needed(b, r->n_prompt + r->n_out - 1), n_cached;
        if (blocks_open(b, ref, r->cache ? &chain : NULL, most, &n_cached) != STATUS_OK)
            return; /* others end first */
        r->n_done = 0;
        r->n_cached = n_cached * s->p->o.kv_block;
        *t = (struct stream){.r = r, .ref = ref, .planned = r->n_cached, .retired = r->n_cached, .blocks = t->blocks,
                             .digest = PLAN_DIGEST_START, .rows = t->rows};
        s->p->next_seq++;
        s->n_admitted++;
    }
}

/* A block's number on the stages: odd ones first, then even ones, so that neighbours in a table are strangers in the pool. */
static uint32_t scattered(uint32_t n_blocks, uint32_t block)
{
    uint32_t half = n_blocks / 2;
    return block < half ? 2 * block + 1 : 2 * (block - half);
}

/* Blocks so that the sequence holds `length` positions: t->blocks are those that the stages do not know yet. */
static void grow(struct run_state *s, struct stream *t, uint32_t length, struct plan_op *op)
{
    const struct blocks *b = s->p->blocks;
    uint32_t n_new, n, first;
    CHECK(blocks_grow(s->p->blocks, t->ref, length, &n_new) == STATUS_OK);
    const uint32_t *table = blocks_table(b, t->ref, &n), *window = blocks_window_table(b, t->ref, &first);
    for (uint32_t i = t->n_blocks; i < n; i++)
        t->blocks[op->n_blocks++] = scattered(s->p->n_blocks, table[i]);
    for (uint32_t i = first > t->n_blocks ? first : t->n_blocks; window && i < n; i++, op->n_window++)
        t->blocks[op->n_blocks + op->n_window] = scattered(blocks_window_counts(b).total, window[i]);
    t->n_blocks = n;
    t->digest = plan_digest_add(t->digest, t->blocks, op->n_blocks + op->n_window);
}

static void add_op(struct plan *plan, const struct plan_op *op, const uint32_t *blocks)
{
    CHECK(plan_add_op(plan, op, blocks) == STATUS_OK);
}

static void add_run(struct run_state *s, struct plan *plan, struct stream *t, struct plan_run *run, const uint32_t *ids)
{
    struct plan_op op = {.kind = OP_APPEND, .seq = t->ref.seq};
    if (!t->opened) /* with what it got from the cache, at its end */
        op = (struct plan_op){.kind = OP_OPEN, .seq = t->ref.seq, .slot = t->ref.slot, .length = t->planned,
                              .sampler = t->r->sampler};
    grow(s, t, run->kv_index + run->n, &op);
    if (op.n_blocks)
        add_op(plan, &op, t->blocks);
    t->opened = 1;
    run->seq = t->ref.seq;
    run->last_stage = s->p->o.n_stages - 1;
    run->table_check = t->digest;
    CHECK(plan_add_run(plan, run, ids) == STATUS_OK);
    t->planned += run->n;
    t->rows[t->n_runs++ % s->p->o.window] = run->n;
    if (run->sample == SAMPLE_LAST) {
        t->last_tick = plan->tick;
        t->n_asked++;
    }
}

static void add_decode(struct run_state *s, struct plan *plan, struct stream *t)
{
    struct plan_run run = {.n = 1,
                           .kv_index = t->planned,
                           .source = SOURCE_FROM_TICK,
                           .from_tick = t->last_tick,
                           .sample = SAMPLE_LAST};
    add_run(s, plan, t, &run, NULL);
}

static void add_piece(struct run_state *s, struct plan *plan, struct stream *t)
{
    const struct pipeline_request *r = t->r;
    uint32_t n = min_u32(r->n_prompt - t->planned, s->p->o.max_rows - plan->n_rows);
    if (r->piece)
        n = min_u32(n, r->piece);
    if (!n)
        return;
    struct plan_run run = {.n = n,
                           .kv_index = t->planned,
                           .source = SOURCE_IDS,
                           .sample = t->planned + n == r->n_prompt ? SAMPLE_LAST : SAMPLE_NONE};
    add_run(s, plan, t, &run, r->prompt + t->planned);
}

static void fill_pieces(struct run_state *s, struct plan *plan)
{
    for (uint32_t i = 0; i < s->p->o.slots; i++)
        if (s->streams[i].r && s->streams[i].planned < s->streams[i].r->n_prompt)
            add_piece(s, plan, &s->streams[i]);
}

/* A stream's row recurs every S ticks, so that S of them share the pipeline; then pieces fill the tick. */
static void fill(struct run_state *s, struct plan *plan)
{
    for (uint32_t i = 0; i < s->p->o.slots; i++) {
        struct stream *t = &s->streams[i];
        if (!t->r || !t->closing)
            continue;
        add_op(plan, &(struct plan_op){.kind = OP_CLOSE, .seq = t->ref.seq}, NULL);
        if (!t->r->cache)
            blocks_forget(s->p->blocks, t->ref);
        CHECK(blocks_close(s->p->blocks, t->ref, plan->tick) == STATUS_OK);
        t->r = NULL;
        s->n_ended++;
    }
    /* Rows of streams stand before, and on every other tick behind, those of prompts. */
    if (plan->tick % 2)
        fill_pieces(s, plan);
    for (uint32_t i = 0; i < s->p->o.slots; i++) {
        struct stream *t = &s->streams[i];
        if (t->r && t->planned >= t->r->n_prompt && t->n_asked < t->r->n_out && plan->n_rows < s->p->o.max_rows &&
            t->last_tick != plan->tick && plan->tick >= t->last_tick + s->p->o.n_stages)
            add_decode(s, plan, t);
    }
    if (plan->tick % 2 == 0)
        fill_pieces(s, plan);
}

static struct stream *stream_of(struct run_state *s, uint64_t seq)
{
    for (uint32_t i = 0; i < s->p->o.slots; i++)
        if (s->streams[i].r && s->streams[i].ref.seq == seq)
            return &s->streams[i];
    return NULL;
}

static void take_run(struct run_state *s, struct stream *t, const struct result_run *run)
{
    t->retired += t->rows[t->n_back++ % s->p->o.window];
    struct block_chain chain = chain_of(t->r, t->retired);
    if (!t->r->cache) /* found by itself alone, and by nobody in the end: its window moves on all the same */
        chain.salt = rand_mix(t->ref.seq);
    blocks_commit(s->p->blocks, t->ref, &chain);
    if (run->id < 0 && !run->bad_logits)
        return; /* a piece that is not the last */
    t->r->out[t->r->n_done++] = run->id;
    t->closing = t->r->n_done == t->r->n_out;
}

static enum status take_result(struct run_state *s, const struct result *r, struct error *err)
{
    if (r->status != STATUS_OK)
        return error_set(err, r->status, "%s", r->message);
    s->in_flight--;
    blocks_retire(s->p->blocks, r->tick);
    for (uint32_t i = 0; i < r->n_runs; i++) {
        struct stream *t = stream_of(s, r->runs[i].seq);
        if (!t)
            return error_set(err, STATUS_PROTOCOL, "a result for sequence %llu", (unsigned long long)r->runs[i].seq);
        take_run(s, t, &r->runs[i]);
    }
    return STATUS_OK;
}

static enum status retire(struct run_state *s, struct error *err)
{
    struct pipeline_message m;
    if (pipeline_next(s->p, PIPELINE_WAIT_MS, &m) != STATUS_OK)
        return error_set(err, STATUS_TIMEOUT, "no result for %d ms", PIPELINE_WAIT_MS);
    enum status status = STATUS_OK;
    if (m.m.kind == FROM_STAGE_RESULT)
        status = take_result(s, m.m.result, err);
    else if (m.m.kind == FROM_STAGE_FAILED)
        status = error_set(err, m.m.failed.status, "%s", m.m.failed.message);
    pipeline_release(&m);
    return status;
}

static enum status run(struct run_state *s, struct error *err)
{
    while (s->n_ended < s->n_requests || s->in_flight) {
        if (s->n_ended < s->n_requests && s->in_flight < s->p->o.window) {
            admit(s);
            struct plan *plan = pipeline_plan(s->p);
            fill(s, plan);
            /* A tick without rows still has a number, a frame and a result. */
            enum status posted = pipeline_post_plan(s->p, -1, plan);
            if (posted != STATUS_OK)
                return error_set(err, posted, "tick %llu: a stage takes no more plans", (unsigned long long)plan->tick);
            s->in_flight++;
        }
        if (s->in_flight == s->p->o.window || s->n_ended == s->n_requests)
            TRY(retire(s, err));
    }
    return STATUS_OK;
}

/* The pool of this epoch; what its sequences left is still there. */
static void prepare_blocks(struct pipeline *p)
{
    const struct blocks_options o = {.n_blocks = p->n_blocks, .n_slots = p->o.slots, .context = p->o.context,
                                     .kv_block = p->o.kv_block, .hash_key = p->session,
                                     .window = p->window};
    if (!p->blocks)
        CHECK(blocks_create(&o, &p->blocks) == STATUS_OK);
    else if (p->blocks_epoch != p->epoch)
        CHECK(blocks_reset(p->blocks, p->n_blocks) == STATUS_OK);
    p->blocks_epoch = p->epoch;
}

enum status pipeline_generate(struct pipeline *p, struct pipeline_request *r, uint32_t n, struct error *err)
{
    struct run_state s = {.p = p, .requests = r, .n_requests = n, .first_tick = p->next_tick};
    prepare_blocks(p);
    s.max_blocks = (p->o.context + p->o.kv_block - 1) / p->o.kv_block;
    s.streams = calloc(p->o.slots, sizeof *s.streams);
    uint32_t *tables = calloc((size_t)p->o.slots * (2 * s.max_blocks + p->o.window), sizeof *tables);
    CHECK(s.streams && tables);
    for (uint32_t i = 0; i < p->o.slots; i++) {
        s.streams[i].blocks = tables + (size_t)i * (2 * s.max_blocks + p->o.window);
        s.streams[i].rows = s.streams[i].blocks + 2 * s.max_blocks;
    }
    enum status status = run(&s, err);
    free(s.streams);
    free(tables);
    return status;
}
