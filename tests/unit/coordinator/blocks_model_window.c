/* The WINDOW group of the plain model: every question is answered by a search over all blocks. */
#include <string.h>

#include "tests/unit/coordinator/blocks_model_impl.h"

static uint32_t right_of(const struct model *m, uint32_t n_reserved)
{
    uint32_t hold = kv_window_hold(&m->w);
    return n_reserved < hold ? n_reserved : hold;
}

static uint32_t count(const struct model *m, enum state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->window_total; i++)
        n += m->window[i].state == state;
    return n;
}

/* At most one block is found as a content. */
static int find(const struct model *m, const struct content *text, uint32_t n)
{
    for (uint32_t i = 0; i < m->window_total; i++)
        if (m->window[i].entered && holds(&m->window[i], text, n))
            return (int)i;
    return -1;
}

/* May a row at `position` be read by one at a later `row`? */
static int is_seen(const struct model *m, uint32_t position, uint32_t row)
{
    return position + m->w.window > row;
}

uint32_t window_usable(const struct model *m, const struct content *text, uint32_t n)
{
    for (; m->w.window && n > 0; n--) {
        int all = 1;
        for (uint32_t p = 0; p < n * KV_BLOCK; p++)
            all &= !is_seen(m, p, n * KV_BLOCK) || find(m, text, (p / KV_BLOCK + 1) * KV_BLOCK) >= 0;
        if (all)
            break;
        m->run->n_window_misses++;
    }
    return n;
}

int window_fits(const struct model *m, uint32_t n_reserved, const struct sequence *instead)
{
    uint32_t n = count(m, DRAINING);
    if (!m->w.window)
        return 1;
    for (int s = 0; s < N_SLOTS; s++)
        if (m->seq[s].ref.seq && &m->seq[s] != instead)
            n += right_of(m, m->seq[s].n_reserved);
    return n + right_of(m, n_reserved) <= m->window_total;
}

static void settle(struct model *m, struct cell *c)
{
    c->state = c->entered ? CACHED : FREE;
    c->released = ++m->clock;
}

static void leave_map(struct cell *c)
{
    c->entered = 0;
    if (c->state == CACHED)
        c->state = FREE;
}

void window_left_map(struct model *m, const struct content *content)
{
    int i = m->w.window ? find(m, content, content->n) : -1;
    if (i >= 0)
        leave_map(&m->window[i]);
}

static void enter(struct model *m, struct cell *c)
{
    int other = find(m, &c->content, c->content.n);
    if (other >= 0 && (&m->window[other] == c || m->window[other].state == LIVE))
        return;
    if (other >= 0)
        leave_map(&m->window[other]);
    c->entered = 1;
}

static void release(struct model *m, struct sequence *q, uint32_t place, uint64_t tick)
{
    struct cell *c = &m->window[q->window[place]];
    if (place < q->n_entered)
        enter(m, c);
    if (--c->n_holders)
        return;
    if (tick <= m->retired) {
        settle(m, c);
        return;
    }
    c->state = DRAINING;
    c->drain_tick = tick;
    c->released = ++m->clock;
}

const char *window_open(struct model *m, struct sequence *q)
{
    uint32_t first;
    const uint32_t *table = blocks_window_table(m->b, q->ref, &first);
    RULE(!table == !m->w.window, "there is a WINDOW table where there is such a group");
    q->first = 0;
    while (table && q->first < q->n_blocks && !is_seen(m, (q->first + 1) * KV_BLOCK - 1, q->n_blocks * KV_BLOCK))
        q->first++;
    RULE(!table || first == q->first, "a sequence opens with the blocks of its window");
    for (uint32_t i = q->first; table && i < q->n_blocks; i++) {
        struct cell *c = &m->window[table[i]];
        RULE(holds(c, &q->text, (i + 1) * KV_BLOCK) && c->entered, blocks_model_foreign);
        c->state = LIVE;
        c->n_holders++;
        q->window[i] = table[i];
        m->run->n_window_hits++;
    }
    return NULL;
}

static const char *take(struct model *m, struct sequence *q, uint32_t place, uint32_t i)
{
    struct cell *c = &m->window[i];
    RULE(i < m->window_total && c->state != LIVE && c->state != DRAINING, "a new WINDOW block is nobody's");
    RULE(c->busy_tick <= m->retired, "a WINDOW block is handed out while a tick that writes it is in flight");
    if (c->state == CACHED) {
        RULE(count(m, FREE) == 0, "free WINDOW blocks go before cached ones");
        for (uint32_t k = 0; k < m->window_total; k++)
            RULE(m->window[k].state != CACHED || m->window[k].released >= c->released,
                 "the least recently used WINDOW block goes first");
        m->window_evicted++;
        m->run->n_window_evictions++;
    }
    *c = (struct cell){.state = LIVE, .n_holders = 1};
    q->window[place] = i;
    return NULL;
}

const char *window_take(struct model *m, struct sequence *q, uint32_t place)
{
    uint32_t first;
    const uint32_t *table = blocks_window_table(m->b, q->ref, &first);
    RULE(!table || first == q->first, "growing frees nothing");
    return table ? take(m, q, place, table[place]) : NULL;
}

void window_write(struct model *m, struct sequence *q, uint32_t position)
{
    if (!m->w.window)
        return;
    struct cell *c = &m->window[q->window[position / KV_BLOCK]];
    c->content = q->text;
    c->content.n = position + 1;
    c->busy_tick = m->tick;
}

uint32_t window_most_rows(const struct model *m, const struct sequence *q)
{
    return m->w.window ? m->w.ticks * m->w.max_rows - (q->n_run - q->n_retired) : CONTEXT;
}

const char *window_commit(struct model *m, struct sequence *q, uint32_t first_entered)
{
    uint32_t first;
    const uint32_t *table = blocks_window_table(m->b, q->ref, &first);
    if (!table)
        return NULL;
    for (uint32_t i = first_entered; i < q->n_entered; i++)
        if (i >= q->first)
            enter(m, &m->window[q->window[i]]);
    for (; q->first < q->n_blocks && !is_seen(m, (q->first + 1) * KV_BLOCK - 1, q->n_retired); q->first++) {
        release(m, q, q->first, 0);
        m->run->n_trimmed++;
    }
    RULE(first == q->first, "what no row can read any more goes, and nothing else");
    for (uint32_t i = first; i < q->n_blocks; i++)
        RULE(table[i] == q->window[i], "a WINDOW table only loses its head");
    return NULL;
}

void window_close(struct model *m, struct sequence *q)
{
    for (uint32_t i = q->first; m->w.window && i < q->n_blocks; i++)
        release(m, q, i, m->tick);
}

void window_retire(struct model *m)
{
    for (;;) {
        struct cell *oldest = NULL;
        for (uint32_t i = 0; i < m->window_total; i++) {
            struct cell *c = &m->window[i];
            if (c->state == DRAINING && c->drain_tick <= m->retired && (!oldest || c->released < oldest->released))
                oldest = c;
        }
        if (!oldest)
            return;
        settle(m, oldest);
    }
}

void window_forget(struct model *m)
{
    memset(m->window, 0, sizeof m->window);
    m->window_total = kv_window_blocks(&m->w, m->total);
}

const char *window_compare(const struct model *m)
{
    const struct blocks_count n = blocks_window_counts(m->b);
    uint32_t promised = 0;
    RULE(n.free + n.cached + n.live + n.draining == n.total && n.total == m->window_total, "WINDOW: the sum is the total");
    RULE(n.live == count(m, LIVE) && n.draining == count(m, DRAINING), "live and draining WINDOW blocks are the model's");
    RULE(n.cached == count(m, CACHED) && n.free == count(m, FREE), "cached and free WINDOW blocks are the model's");
    RULE(n.evicted == m->window_evicted, "WINDOW evictions are the model's");
    for (int s = 0; m->w.window && s < N_SLOTS; s++)
        promised += m->seq[s].ref.seq ? right_of(m, m->seq[s].n_reserved) : 0;
    RULE(n.promised + n.live == promised && promised + n.draining <= n.total, "WINDOW promises can be kept");
    for (int s = 0; m->w.window && s < N_SLOTS; s++)
        for (uint32_t p = 0; p < m->seq[s].n_run; p++)
            if (m->seq[s].ref.seq && is_seen(m, p, m->seq[s].n_retired)) {
                const struct cell *c = &m->window[m->seq[s].window[p / KV_BLOCK]];
                RULE(p / KV_BLOCK >= m->seq[s].first && c->state == LIVE && c->content.n > p % KV_BLOCK &&
                         c->content.salt == m->seq[s].text.salt && !memcmp(c->content.items, m->seq[s].text.items, p + 1),
                     "whatever a row still reads is there");
            }
    return NULL;
}
