/* Requests through the test pipeline: a round of ticks with S+1 in flight, decode rows first, prompts in pieces. */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "tests/lib/pipeline_impl.h"


/* A request in its slot. */
struct stream {
    struct pipeline_request *r;
    uint64_t seq;
    uint32_t slot, planned; /* positions planned so far */
    uint32_t n_asked;       /* ids asked for so far */
    uint64_t last_tick;     /* of its newest sampled run */
    uint32_t n_blocks;
    uint32_t *blocks;       /* [context / kv_block] */
    int opened, closing;
};

struct run_state {
    struct pipeline *p;
    struct pipeline_request *requests;
    uint32_t n_requests, n_admitted, n_ended, in_flight;
    uint64_t first_tick;
    uint32_t max_blocks, n_free;
    uint32_t *free_blocks;
    struct stream *streams; /* [slots]; r NULL: free */
};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void admit(struct run_state *s)
{
    for (uint32_t i = 0; i < s->p->o.slots && s->n_admitted < s->n_requests; i++) {
        struct stream *t = &s->streams[i];
        struct pipeline_request *r = &s->requests[s->n_admitted];
        if (t->r || s->p->next_tick - s->first_tick < r->start_tick)
            continue;
        uint32_t *blocks = t->blocks;
        *t = (struct stream){.r = r, .seq = s->p->next_seq++, .slot = i, .blocks = blocks};
        r->n_done = 0;
        s->n_admitted++;
    }
}

/* Blocks so that the sequence holds `length` positions; they come from all over the pool. */
static int grow(struct run_state *s, struct stream *t, uint32_t length, uint32_t *n_new)
{
    uint32_t want = (length + s->p->o.kv_block - 1) / s->p->o.kv_block;
    *n_new = 0;
    if (want > s->max_blocks || want - min_u32(want, t->n_blocks) > s->n_free)
        return 0;
    for (; t->n_blocks < want; ++*n_new)
        t->blocks[t->n_blocks++] = s->free_blocks[--s->n_free];
    return 1;
}

static void add_op(struct plan *plan, const struct plan_op *op, const uint32_t *blocks)
{
    CHECK(plan_add_op(plan, op, blocks) == STATUS_OK);
}

static void add_run(struct run_state *s, struct plan *plan, struct stream *t, struct plan_run *run, const uint32_t *ids)
{
    uint32_t n_new;
    CHECK(grow(s, t, run->kv_index + run->n, &n_new));
    const uint32_t *fresh = t->blocks + t->n_blocks - n_new;
    if (!t->opened)
        add_op(plan,
               &(struct plan_op){.kind = OP_OPEN, .seq = t->seq, .slot = t->slot, .n_blocks = n_new, .sampler = t->r->sampler},
               fresh);
    else if (n_new)
        add_op(plan, &(struct plan_op){.kind = OP_APPEND, .seq = t->seq, .n_blocks = n_new}, fresh);
    t->opened = 1;
    run->seq = t->seq;
    run->table_check = plan_table_digest(t->blocks, t->n_blocks);
    CHECK(plan_add_run(plan, run, ids) == STATUS_OK);
    t->planned += run->n;
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
        add_op(plan, &(struct plan_op){.kind = OP_CLOSE, .seq = t->seq}, NULL);
        for (uint32_t b = t->n_blocks; b; b--)
            s->free_blocks[s->n_free++] = t->blocks[b - 1];
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
        if (s->streams[i].r && s->streams[i].seq == seq)
            return &s->streams[i];
    return NULL;
}

static enum status take_result(struct run_state *s, const struct result *r, struct error *err)
{
    if (r->status != STATUS_OK)
        return error_set(err, r->status, "%s", r->message);
    s->in_flight--;
    for (uint32_t i = 0; i < r->n_runs; i++) {
        struct stream *t = stream_of(s, r->runs[i].seq);
        if (!t)
            return error_set(err, STATUS_PROTOCOL, "a result for sequence %llu", (unsigned long long)r->runs[i].seq);
        if (r->runs[i].id < 0 && !r->runs[i].bad_logits)
            continue; /* a piece that is not the last */
        t->r->out[t->r->n_done++] = r->runs[i].id;
        t->closing = t->r->n_done == t->r->n_out;
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

enum status pipeline_generate(struct pipeline *p, struct pipeline_request *r, uint32_t n, struct error *err)
{
    struct run_state s = {.p = p, .requests = r, .n_requests = n, .first_tick = p->next_tick};
    s.max_blocks = (p->o.context + p->o.kv_block - 1) / p->o.kv_block;
    s.free_blocks = calloc(p->n_blocks, sizeof *s.free_blocks);
    s.streams = calloc(p->o.slots, sizeof *s.streams);
    uint32_t *tables = calloc((size_t)p->o.slots * s.max_blocks, sizeof *tables);
    CHECK(s.free_blocks && s.streams && tables);
    for (uint32_t i = 0; i < p->o.slots; i++)
        s.streams[i].blocks = tables + (size_t)i * s.max_blocks;
    /* Odd numbers first, then even ones: neighbours in a table are strangers in the pool. */
    for (uint32_t first = 0; first < 2; first++)
        for (uint32_t b = first; b < p->n_blocks; b += 2)
            s.free_blocks[s.n_free++] = b;
    enum status status = run(&s, err);
    free(s.free_blocks);
    free(s.streams);
    free(tables);
    return status;
}
