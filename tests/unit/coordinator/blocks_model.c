#include "tests/unit/coordinator/blocks_model.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "coordinator/blocks.h"
#include "tests/unit/coordinator/blocks_model_impl.h"

static const char in_flight[] = "a block is handed out while a tick that may touch it is in flight";
const char blocks_model_foreign[] = "a hit holds what was read for another beginning or another salt";

static uint32_t draw(struct model *m, uint32_t n)
{
    return (uint32_t)(rand_at(m->run->seed, m->draws++) % n);
}

static uint64_t item(const void *ctx, uint32_t position)
{
    return ((const struct content *)ctx)->items[position];
}

static struct block_chain chain_of(const struct content *c, uint32_t n)
{
    return (struct block_chain){.salt = c->salt, .item = item, .ctx = c, .n = n};
}

static uint32_t count(const struct model *m, enum state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->total; i++)
        n += m->cell[i].state == state;
    return n;
}

static uint32_t promised(const struct model *m)
{
    uint32_t n = 0;
    for (int s = 0; s < N_SLOTS; s++)
        n += m->seq[s].n_reserved - m->seq[s].n_blocks;
    return n;
}

/* A block that is found as the first n items of a text, live ones first; -1: none. */
static int find(const struct model *m, const struct content *text, uint32_t n)
{
    int found = -1;
    for (uint32_t i = 0; i < m->total; i++)
        if (m->cell[i].entered && holds(&m->cell[i], text, n) && (found < 0 || m->cell[i].state == LIVE))
            found = (int)i;
    return found;
}

/* The block of that content that is hollow; -1: none. While there is one, copies of others are not found. */
static int find_hollow(const struct model *m, const struct content *text, uint32_t n)
{
    for (uint32_t i = 0; i < m->total; i++)
        if (m->cell[i].entered && m->cell[i].hollow && holds(&m->cell[i], text, n))
            return (int)i;
    return -1;
}

static uint32_t match(const struct model *m, const struct content *text, uint32_t n, uint32_t most)
{
    uint32_t k = 0;
    while (k < most && (k + 1) * KV_BLOCK < n && find(m, text, (k + 1) * KV_BLOCK) >= 0 &&
           find_hollow(m, text, (k + 1) * KV_BLOCK) < 0)
        k++;
    return window_usable(m, text, k);
}

/* How many hollow blocks go on behind the first k, nobody's. */
static uint32_t match_hollow(const struct model *m, const struct content *text, uint32_t n, uint32_t k, uint32_t most)
{
    uint32_t first = k;
    int i;
    while (k < most && (k + 1) * KV_BLOCK < n && (i = find_hollow(m, text, (k + 1) * KV_BLOCK)) >= 0 &&
           m->cell[i].state == CACHED)
        k++;
    return k - first;
}

/* --- opening --------------------------------------------------------------------------------------------------------------- */

/* The beginning of an earlier text, or nothing, and then items of two kinds only. */
static void draw_text(struct model *m, struct content *text)
{
    uint32_t keep = 0;
    *text = (struct content){.salt = draw(m, N_SALTS), .n = 1 + draw(m, CONTEXT)};
    if (draw(m, 4)) {
        const struct content *past = &m->past[draw(m, N_PAST)];
        keep = past->n ? draw(m, past->n + 1) : 0;
        memcpy(text->items, past->items, keep);
        if (draw(m, 4))
            text->salt = past->salt;
    }
    for (uint32_t i = keep; i < CONTEXT; i++)
        text->items[i] = (unsigned char)draw(m, 2);
}

static const char *take_hits(struct model *m, struct sequence *q, uint32_t n, uint32_t n_hollow)
{
    uint32_t n_table;
    const uint32_t *table = blocks_table(m->b, q->ref, &n_table);
    RULE(table && n_table == n, "the hits are the table of a sequence that opens");
    for (uint32_t i = 0; i < n; i++) {
        struct cell *c = &m->cell[table[i]];
        RULE(holds(c, &q->text, (i + 1) * KV_BLOCK), blocks_model_foreign);
        RULE(c->entered && c->state != FREE, "a hit is a block of the map");
        RULE(c->hollow == (i >= n - n_hollow), "hits are not hollow, what is to be read again is");
        m->run->n_hits++;
        m->run->n_draining_hits += c->state == DRAINING;
        c->state = LIVE;
        c->n_holders++;
        q->table[i] = table[i];
    }
    q->n_blocks = q->n_entered = n;
    q->n_full = n - n_hollow;
    q->n_run = q->n_retired = q->n_full * KV_BLOCK;
    m->run->n_hollow += n_hollow;
    return NULL;
}

static const char *open_sequence(struct model *m, uint32_t slot)
{
    struct sequence *q = &m->seq[slot];
    uint32_t n_cached = 99, n_draining = 0, cached = 0;
    *q = (struct sequence){0};
    draw_text(m, &q->text);
    struct slot_ref ref = {slot, ++m->next_seq};
    struct block_chain chain = chain_of(&q->text, q->text.n);
    const struct block_chain *c = draw(m, 8) ? &chain : NULL;
    uint32_t want = blocks_needed(m->b, q->text.n) + draw(m, 3);
    uint32_t all = match(m, &q->text, q->text.n, PER_SEQ), n = c ? match(m, &q->text, q->text.n, want) : 0;
    RULE(blocks_match(m->b, &chain) <= all, blocks_model_foreign);
    RULE(blocks_match(m->b, &chain) == all, "a lookup finds all that is there");
    uint32_t n_hollow = c ? match_hollow(m, &q->text, q->text.n, n, want) : 0, n_hits = n;
    n += n_hollow;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = (i + 1) * KV_BLOCK;
        enum state state = m->cell[i < n_hits ? find(m, &q->text, end) : find_hollow(m, &q->text, end)].state;
        cached += state == CACHED;
        n_draining += state == DRAINING;
    }
    int may = window_fits(m, want, NULL) && want <= PER_SEQ && want - n + cached + promised(m) <= count(m, FREE) + count(m, CACHED);
    RULE(blocks_can_open(m->b, c, want) == may, "blocks_can_open says what there is room for");
    enum status s = blocks_open(m->b, ref, c, want, &n_cached);
    RULE(s == (may ? STATUS_OK : STATUS_BLOCKS_BUSY), "blocks_open does what blocks_can_open says");
    if (!may) {
        m->run->n_busy++;
        *q = (struct sequence){0};
        return NULL;
    }
    q->ref = ref;
    q->n_reserved = want;
    RULE(n_cached == n_hits, "an open takes up all that a lookup finds");
    RULE(blocks_hollow(m->b, ref) == n_hollow, "hollow blocks that nobody has are taken up behind the hits");
    uint32_t before = m->run->n_draining_hits;
    const char *why = take_hits(m, q, n, n_hollow);
    if (!why)
        why = window_open(m, q);
    RULE(why || m->run->n_draining_hits - before == n_draining, "a live copy is preferred to one that drains");
    return why;
}

/* --- running ------------------------------------------------------------------------------------------------------------------ */

static int has_younger_tail(const struct model *m, const struct cell *head)
{
    for (uint32_t i = 0; i < m->total; i++) {
        const struct cell *c = &m->cell[i];
        if (c->entered && c != head && c->content.n > head->content.n && holds(head, &c->content, head->content.n))
            return 1;
    }
    return 0;
}

static const char *take_new(struct model *m, struct sequence *q, uint32_t i)
{
    struct cell *c = &m->cell[i];
    RULE(i < m->total && c->state != LIVE, "a new block is nobody's");
    RULE(c->state != DRAINING && c->busy_tick <= m->retired, in_flight);
    if (c->state == CACHED) {
        RULE(count(m, FREE) == 0, "free blocks go before cached ones");
        for (uint32_t k = 0; k < m->total; k++)
            RULE(m->cell[k].state != CACHED || m->cell[k].released >= c->released, "the least recently used block goes first");
        RULE(!has_younger_tail(m, c), "a tail goes before its head");
        m->evicted++;
        m->run->n_evictions++;
        window_left_map(m, &c->content);
    }
    *c = (struct cell){.state = LIVE, .n_holders = 1};
    q->table[q->n_blocks++] = i;
    return NULL;
}

/* Rows of one tick. The blocks that they touch are busy until it is retired; full ones hold what they hold from then on. */
static const char *run_rows(struct model *m, struct sequence *q)
{
    uint32_t left = q->text.n - q->n_run, n = left ? 1 + draw(m, left) : 0, n_new = 99, n_table;
    n = n < window_most_rows(m, q) ? n : window_most_rows(m, q);
    uint32_t need = blocks_needed(m->b, q->n_run + n), have = q->n_blocks;
    enum status s = blocks_grow(m->b, q->ref, q->n_run + n, &n_new);
    RULE(s == (need <= q->n_reserved ? STATUS_OK : STATUS_BLOCKS_BUSY), "a sequence can grow to what it reserved, not beyond");
    if (s != STATUS_OK)
        return NULL;
    const uint32_t *table = blocks_table(m->b, q->ref, &n_table);
    RULE(n_table == (need > have ? need : have) && n_new == n_table - have, "a table covers what was asked for");
    RULE(memcmp(table, q->table, have * sizeof *table) == 0, "a table only grows");
    for (uint32_t i = have; i < n_table; i++) {
        const char *why = take_new(m, q, table[i]);
        if (!why)
            why = window_take(m, q, i);
        if (why)
            return why;
    }
    m->tick++;
    for (uint32_t p = q->n_run; p < q->n_run + n; p++) {
        struct cell *c = &m->cell[q->table[p / KV_BLOCK]];
        RULE(c->n_holders == 1 && (!c->entered || c->hollow), "rows are written to blocks of one's own that nobody can find");
        q->run_tick[p] = m->tick;
        window_write(m, q, p);
        if (c->hollow)
            continue; /* what it held */
        c->content = q->text;
        c->content.n = p + 1;
    }
    q->n_run += n;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        m->cell[q->table[i]].busy_tick = m->tick;
    return NULL;
}

/* The same content in another block is entered no more, unless that one is held. */
static void enter(struct model *m, uint32_t i)
{
    struct cell *c = &m->cell[i];
    int other = find(m, &c->content, c->content.n);
    if (other >= 0) {
        m->run->n_duplicates++;
        if (m->cell[other].state != LIVE) {
            m->cell[other].entered = m->cell[other].hollow = 0;
            if (m->cell[other].state == CACHED)
                m->cell[other].state = FREE;
        }
    }
    c->entered = 1;
}

static const char *commit(struct model *m, struct sequence *q)
{
    while (q->n_retired < q->n_run && q->run_tick[q->n_retired] <= m->retired)
        q->n_retired++;
    struct block_chain c = chain_of(&q->text, q->n_retired);
    blocks_commit(m->b, q->ref, &c);
    for (; q->n_full < q->n_entered && q->n_full < q->n_retired / KV_BLOCK; q->n_full++)
        m->cell[q->table[q->n_full]].hollow = 0;
    uint32_t first_entered = q->n_entered;
    for (; q->n_entered < q->n_retired / KV_BLOCK; q->n_full = ++q->n_entered)
        enter(m, q->table[q->n_entered]);
    return window_commit(m, q, first_entered);
}

static const char *reserve(struct model *m, struct sequence *q)
{
    uint32_t want = q->n_reserved + draw(m, 3);
    int may = want == q->n_reserved ||
              (window_fits(m, want, q) && want <= PER_SEQ && want - q->n_reserved + promised(m) <= count(m, FREE) + count(m, CACHED));
    RULE(blocks_reserve(m->b, q->ref, want) == (may ? STATUS_OK : STATUS_BLOCKS_BUSY), "a reservation is raised if there is room");
    if (may)
        q->n_reserved = want;
    return NULL;
}

/* --- ending ------------------------------------------------------------------------------------------------------------------- */

static void settle(struct cell *c)
{
    c->state = c->entered ? CACHED : FREE;
}

static const char *close_sequence(struct model *m, struct sequence *q)
{
    RULE(blocks_close(m->b, q->ref, m->tick) == STATUS_OK, "an open sequence can be closed");
    m->past[draw(m, N_PAST)] = q->text;
    window_close(m, q);
    for (uint32_t i = q->n_blocks; i-- > 0;) {
        struct cell *c = &m->cell[q->table[i]];
        if (--c->n_holders)
            continue;
        c->state = DRAINING;
        for (uint32_t k = 0; k < m->total; k++)
            if (m->cell[k].state == LIVE && m->cell[k].entered && holds(&m->cell[k], &c->content, c->content.n))
                c->entered = c->hollow = 0;
        c->drain_tick = m->tick;
        c->released = ++m->clock;
        if (m->tick <= m->retired)
            settle(c);
    }
    *q = (struct sequence){0};
    return NULL;
}

static const char *retire(struct model *m)
{
    m->retired += draw(m, (uint32_t)(m->tick - m->retired) + 1);
    blocks_retire(m->b, m->retired);
    for (uint32_t i = 0; i < m->total; i++)
        if (m->cell[i].state == DRAINING && m->cell[i].drain_tick <= m->retired)
            settle(&m->cell[i]);
    window_retire(m);
    return NULL;
}

static const char *reset(struct model *m)
{
    m->total = 1 + draw(m, m->run->n_blocks);
    m->total = draw(m, 2) ? m->run->n_blocks : m->total;
    RULE(blocks_reset(m->b, m->total) == STATUS_OK, "a reset takes what memory there was");
    memset(m->cell, 0, sizeof m->cell);
    memset(m->seq, 0, sizeof m->seq);
    window_forget(m);
    m->tick = m->retired = 0;
    m->run->n_resets++;
    return NULL;
}

/* The pipeline was lost: every sequence ends, and stages may have lost what the cache holds. */
static const char *new_epoch(struct model *m)
{
    for (int s = 0; s < N_SLOTS; s++) {
        const char *why = m->seq[s].ref.seq ? close_sequence(m, &m->seq[s]) : NULL;
        if (why)
            return why;
    }
    blocks_new_epoch(m->b);
    m->retired = UINT64_MAX;
    window_retire(m);
    int lose = draw(m, 2) == 0;
    if (lose)
        blocks_lose(m->b);
    m->tick = m->retired = 0;
    for (uint32_t i = 0; i < m->window_total; i++)
        m->window[i].busy_tick = 0;
    if (lose && m->w.window) { /* all is read again */
        memset(m->cell, 0, sizeof m->cell);
        window_forget(m);
        return NULL;
    }
    for (uint32_t i = 0; i < m->total; i++) {
        struct cell *c = &m->cell[i];
        if (c->state == DRAINING)
            settle(c);
        c->busy_tick = 0;
        c->hollow |= lose && c->state == CACHED;
    }
    return NULL;
}

/* --- play ---------------------------------------------------------------------------------------------------------------------- */

static const char *compare(const struct model *m)
{
    const struct blocks_count n = blocks_counts(m->b);
    const char *why;
    RULE(blocks__check(m->b, &why), why);
    RULE(n.free + n.cached + n.live + n.draining == n.total && n.total == m->total, "free + cached + live + draining == total");
    RULE(n.live == count(m, LIVE) && n.draining == count(m, DRAINING), "live and draining blocks are the model's");
    RULE(n.cached == count(m, CACHED) && n.free == count(m, FREE), "cached and free blocks are the model's");
    uint32_t hollow = 0;
    for (uint32_t i = 0; i < m->total; i++)
        hollow += m->cell[i].hollow != 0;
    RULE(n.hollow == hollow, "hollow blocks are the model's");
    RULE(n.promised == promised(m) && n.evicted == m->evicted && m->told == m->evicted, "promises and evictions are the model's");
    RULE(blocks_available(m->b) == n.free + n.cached - n.promised, "available is what is neither held nor promised");
    return window_compare(m);
}

static const char *step(struct model *m)
{
    uint32_t slot = draw(m, N_SLOTS), what = draw(m, 100);
    struct sequence *q = &m->seq[slot];
    if (what < 25)
        return retire(m);
    if (what == 99 && draw(m, 20) == 0)
        return reset(m);
    if (what == 98 && draw(m, 3) == 0)
        return new_epoch(m);
    if (q->ref.seq == 0)
        return open_sequence(m, slot);
    if (what < 60)
        return run_rows(m, q);
    if (what < 80)
        return commit(m, q);
    if (what < 85)
        return reserve(m, q);
    return close_sequence(m, q);
}

static void on_evict(void *ctx, uint32_t block, uint64_t key)
{
    struct model *m = ctx;
    (void)key;
    m->told += m->cell[block].state == CACHED;
}

const char *blocks_model_play(struct blocks_model_run *run)
{
    struct model *m = calloc(1, sizeof *m);
    const char *why = NULL;
    m->run = run;
    m->total = run->n_blocks;
    if (run->window)
        m->w = (struct kv_window){.window = run->window, .kv_block = KV_BLOCK, .slots = run->window_slots, .context = CONTEXT,
                                  .max_rows = 2, .ticks = 3};
    window_forget(m);
    const struct blocks_options o = {.n_blocks = m->total, .n_slots = N_SLOTS, .context = CONTEXT, .kv_block = KV_BLOCK,
                                     .hash_key = rand_mix(run->seed), .hash_bits = run->hash_bits, .on_evict = on_evict,
                                     .evict_ctx = m, .window = m->w};
    if (blocks_create(&o, &m->b) != STATUS_OK)
        why = "no memory";
    for (run->failed_step = 0; !why && run->failed_step < run->n_steps; run->failed_step++) {
        why = step(m);
        if (!why)
            why = compare(m);
    }
    blocks_destroy(m->b);
    free(m);
    return why;
}

uint32_t blocks_model_early(uint64_t seed, uint32_t n_steps, uint32_t *n_out)
{
    struct blocks_model_run run = {.seed = seed};
    struct model m = {.run = &run};
    uint64_t busy_tick[MAX_BLOCKS] = {0};
    uint32_t n_early = 0, n, n_new;
    const struct blocks_options o = {.n_blocks = 2 * PER_SEQ, .n_slots = N_SLOTS, .context = CONTEXT, .kv_block = KV_BLOCK};
    *n_out = 0;
    if (blocks_create(&o, &m.b) != STATUS_OK)
        return UINT32_MAX;
    for (uint32_t i = 0; i < n_steps; i++) {
        uint32_t slot = draw(&m, N_SLOTS);
        struct slot_ref *ref = &m.seq[slot].ref;
        uint32_t what = draw(&m, 4), want = blocks_needed(m.b, 1 + draw(&m, CONTEXT));
        if (ref->seq == 0) {
            *ref = (struct slot_ref){slot, ++m.next_seq};
            if (blocks_open(m.b, *ref, NULL, want, &n) != STATUS_OK)
                ref->seq = 0;
        } else if (what == 0) {
            blocks_close(m.b, *ref, m.tick);
            ref->seq = 0;
        } else if (blocks_grow(m.b, *ref, want * KV_BLOCK, &n_new) == STATUS_OK) {
            const uint32_t *table = blocks_table(m.b, *ref, &n);
            m.tick++;
            for (uint32_t k = n - n_new; k < n; k++, ++*n_out)
                n_early += busy_tick[table[k]] > m.retired;
            for (uint32_t k = 0; k < n; k++)
                busy_tick[table[k]] = m.tick;
        }
        if (m.tick > m.retired && draw(&m, 4) == 0)
            blocks_retire(m.b, ++m.retired);
    }
    blocks_destroy(m.b);
    return n_early;
}
