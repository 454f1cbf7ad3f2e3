/* The rows of streams: which are ready, and which of them go first. Pure. */
#include "coordinator/sched_impl.h"

/* When a row may follow the one before: `revolution` ticks after it; with nothing else to fill the tick `early` ticks after
 * it (0: not early), where of the rows beside it none has more than one row that is not retired. Early is a round of all
 * streams: a stream that came twice in a row would keep its second place, and hold up everybody behind it, for ever. And rows
 * of one tick stay together: apart, each of their ticks would wait for both. */
struct spacing {
    uint32_t revolution, early;
};

static int is_ready(const struct sched *s, const struct sched_entry *e, const struct spacing *w)
{
    uint64_t retired = sched__retired_tick(s);
    if (e->position >= e->end || e->position >= e->limit)
        return 0;
    if (e->needs_host)
        return e->host_ready && e->last_tick <= retired;
    uint64_t ago = s->next_tick - e->last_tick;
    return ago >= w->revolution || e->last_tick <= retired || (w->early && ago >= w->early && sched__before_tick(s, e->last_tick) <= retired);
}

static int goes_before(const struct sched_entry *e, uint32_t a, uint32_t b)
{
    return e[a].last_tick != e[b].last_tick ? e[a].last_tick < e[b].last_tick : a < b;
}

/* The heap's root is the slot that goes first. */
static void sift_down(const struct sched_entry *e, uint32_t *heap, uint32_t n, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && goes_before(e, heap[child + 1], heap[child]))
            child++;
        if (goes_before(e, heap[i], heap[child]))
            return;
        uint32_t slot = heap[i];
        heap[i] = heap[child];
        heap[child] = slot;
    }
}

/* Puts the first `want` of n slots, in their order, behind the n (slots has room for twice as many): n + want log n. */
static uint32_t *choose_slots(const struct sched_entry *e, uint32_t *slots, uint32_t n, uint32_t want)
{
    uint32_t *chosen = slots + n;
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(e, slots, n, i);
    for (uint32_t i = 0; i < want; i++) {
        chosen[i] = slots[0];
        slots[0] = slots[--n];
        sift_down(e, slots, n, 0);
    }
    return chosen;
}

void sched__add_run(struct sched_plan *out, const struct sched_run *run, uint64_t reads)
{
    out->runs[out->n_runs++] = *run;
    out->shape.rows += run->n;
    out->shape.reads += reads;
    if (run->is_piece) {
        out->shape.n_prompt += run->n;
        out->shape.spans += run->kv_index;
    }
    if (run->sample == SAMPLE_LAST)
        out->shape.sampled += run->is_piece ? 1 : run->n;
}

static void add_row(const struct sched *s, struct sched_plan *out, uint32_t slot)
{
    const struct sched_entry *e = &sched__entries(s)[slot];
    uint32_t ahead = sched__min(e->end, e->limit) - e->position, room = s->opt.max_rows - out->shape.rows;
    uint32_t n = sched__min(e->run_rows, sched__min(ahead, room));
    struct sched_run run = {.ref = {.slot = slot, .seq = e->seq}, .n = n, .kv_index = e->position, .sample = SAMPLE_LAST};
    run.source = e->last_tick <= sched__retired_tick(s) ? SOURCE_IDS : SOURCE_FROM_TICK;
    if (run.source == SOURCE_FROM_TICK)
        run.from_tick = e->last_tick;
    sched__add_run(out, &run, (uint64_t)n * e->position);
}

void sched__add_rows(const struct sched *s, const struct sched_budget *b, int early, struct sched_plan *out)
{
    const struct sched_entry *e = sched__entries(s);
    const struct spacing w = {.revolution = b->revolution, .early = early ? b->round_ticks : 0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->opt.n_slots; i++)
        if (sched__is_stream(&e[i]) && is_ready(s, &e[i], &w))
            out->scratch[n++] = i;
    const uint32_t *rows = out->scratch;
    if (n > b->per_tick) {
        rows = choose_slots(e, out->scratch, n, b->per_tick);
        n = b->per_tick;
    }
    for (uint32_t i = 0; i < n && out->shape.rows < s->opt.max_rows; i++)
        add_row(s, out, rows[i]);
}
