#include "coordinator/stage_table.h"

#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/trace.h"

enum { MORE_ATTACHMENTS = 8 }; /* beyond two per stage: strangers that have not said HELLO */

struct stage_table {
    uint32_t n_stages, n_places, n_waiting;
    uint64_t next_id;
    struct stage_entry stage[MAX_STAGES];
    struct stage_attachment attachment[2 * MAX_STAGES + MORE_ATTACHMENTS];
};

static const unsigned char may_move[STAGE_N_STATES][STAGE_N_STATES] = {
    [STAGE_ATTACHING] = {[STAGE_LOADING] = 1},
    [STAGE_LOADING] = {[STAGE_LINKING] = 1, [STAGE_LOST] = 1, [STAGE_SILENT] = 1},
    [STAGE_LINKING] = {[STAGE_READY] = 1, [STAGE_LOST] = 1, [STAGE_SILENT] = 1},
    [STAGE_READY] = {[STAGE_LINKING] = 1, [STAGE_LOST] = 1},
    [STAGE_LOST] = {[STAGE_LOADING] = 1},
    [STAGE_SILENT] = {[STAGE_LOADING] = 1, [STAGE_LINKING] = 1, [STAGE_LOST] = 1},
};

/* The only place where a stage changes state. */
static void move(struct stage_table *t, uint32_t stage, enum stage_state to)
{
    struct stage_entry *e = &t->stage[stage];
    ASSERT(may_move[e->state][to]);
    trace_event("stage move", stage, e->state, to, (int64_t)e->attachment);
    e->state = to;
}

enum status stage_table_create(uint32_t n_stages, struct stage_table **out)
{
    CHECK(n_stages >= 1 && n_stages <= MAX_STAGES);
    struct stage_table *t = calloc(1, sizeof *t);
    if (!t)
        return STATUS_OUT_OF_MEMORY;
    t->n_stages = n_stages;
    t->n_places = 2 * n_stages + MORE_ATTACHMENTS;
    t->next_id = 1;
    *out = t;
    return STATUS_OK;
}

void stage_table_destroy(struct stage_table *t)
{
    free(t);
}

void stage_table_begin(struct stage_table *t, int64_t now_ns)
{
    for (uint32_t i = 0; i < t->n_stages; i++)
        t->stage[i].gone_ns = now_ns;
}

const struct stage_entry *stage_table_at(const struct stage_table *t, uint32_t stage)
{
    CHECK(stage < t->n_stages);
    return &t->stage[stage];
}

/* --- attachments ------------------------------------------------------------------------------------------------------------ */

enum status stage_table_attach(struct stage_table *t, const struct stage_port *port, int64_t now_ns, uint64_t *id)
{
    for (uint32_t i = 0; i < t->n_places; i++) {
        if (t->attachment[i].id != 0)
            continue;
        t->attachment[i] = (struct stage_attachment){.id = t->next_id++, .port = *port, .stage = STAGE_NONE,
                                                     .attached_ns = now_ns};
        *id = t->attachment[i].id;
        return STATUS_OK;
    }
    return STATUS_FULL;
}

static struct stage_attachment *find(struct stage_table *t, uint64_t id)
{
    for (uint32_t i = 0; i < t->n_places; i++)
        if (id != 0 && t->attachment[i].id == id)
            return &t->attachment[i];
    return NULL;
}

const struct stage_attachment *stage_table_attachment(const struct stage_table *t, uint64_t id)
{
    return find((struct stage_table *)t, id);
}

const struct stage_attachment *stage_table_next(const struct stage_table *t, uint64_t after)
{
    const struct stage_attachment *best = NULL;
    for (uint32_t i = 0; i < t->n_places; i++) {
        const struct stage_attachment *a = &t->attachment[i];
        if (a->id > after && (!best || a->id < best->id))
            best = a;
    }
    return best;
}

int stage_table_detach(struct stage_table *t, uint64_t id, int64_t now_ns)
{
    struct stage_attachment *a = find(t, id);
    if (!a)
        return STAGE_NONE;
    int stage = a->stage;
    t->n_waiting -= a->waits != 0;
    *a = (struct stage_attachment){0};
    if (stage != STAGE_NONE) {
        struct stage_entry *e = &t->stage[stage];
        if (e->state != STAGE_SILENT) /* that one is missing already */
            e->gone_ns = now_ns;
        move(t, (uint32_t)stage, STAGE_LOST);
        e->attachment = 0;
        e->busy = 0;
    }
    ASSERT(stage_table__check(t, &(const char *){0}));
    return stage;
}

/* --- stages ------------------------------------------------------------------------------------------------------------------ */

void stage_table_wait(struct stage_table *t, uint64_t id, const struct msg_hello *hello, int64_t now_ns)
{
    struct stage_attachment *a = find(t, id);
    CHECK(a && a->stage == STAGE_NONE && !a->waits);
    a->waits = 1;
    a->hello = *hello;
    a->attached_ns = now_ns;
    t->n_waiting++;
}

uint32_t stage_table_n_waiting(const struct stage_table *t)
{
    return t->n_waiting;
}

void stage_table_claim(struct stage_table *t, uint64_t id, uint32_t stage, const struct msg_hello *hello, int64_t now_ns)
{
    struct stage_attachment *a = find(t, id);
    CHECK(a && a->stage == STAGE_NONE && stage < t->n_stages && t->stage[stage].attachment == 0);
    struct stage_entry *e = &t->stage[stage];
    int is_new = e->hello.incarnation != hello->incarnation;
    uint32_t restarts = e->restarts + (e->hello.incarnation != 0 && is_new);
    struct stale_counts before = is_new ? stage_table_stale(t, stage) : e->stale_before;
    struct stale_counts stale = is_new ? (struct stale_counts){0} : e->stale;
    enum stage_state state = e->state;
    struct msg_hello kept = *hello; /* it may be the attachment's own */
    t->n_waiting -= a->waits != 0;
    a->waits = 0;
    a->stage = (int)stage;
    *e = (struct stage_entry){.state = state, .attachment = id, .hello = kept, .is_spare = kept.stage == STAGE_ANY,
                              .restarts = restarts, .assigned_ns = now_ns, .heard_ns = now_ns, .progress_ns = now_ns,
                              .window.since_ns = now_ns, .stale = stale, .stale_before = before};
    e->hello.stage = stage;
    move(t, stage, STAGE_LOADING);
    ASSERT(stage_table__check(t, &(const char *){0}));
}

void stage_table_loaded(struct stage_table *t, uint32_t stage, const struct msg_loaded *l)
{
    t->stage[stage].busy = 0; /* answers come from its compute thread */
    t->stage[stage].loaded = *l;
    t->stage[stage].is_loaded = 1;
    move(t, stage, STAGE_LINKING);
}

void stage_table_acked(struct stage_table *t, uint32_t stage, uint64_t epoch)
{
    t->stage[stage].busy = 0;
    t->stage[stage].acked = epoch;
}

void stage_table_ready(struct stage_table *t, uint32_t stage, uint64_t epoch)
{
    t->stage[stage].linked = epoch;
    move(t, stage, STAGE_READY);
}

void stage_table_unlink(struct stage_table *t)
{
    for (uint32_t i = 0; i < t->n_stages; i++)
        if (t->stage[i].state == STAGE_READY)
            move(t, i, STAGE_LINKING);
}

void stage_table_forgive(struct stage_table *t, int64_t now_ns)
{
    for (uint32_t i = 0; i < t->n_stages; i++) {
        t->stage[i].progress_ns = now_ns;
        t->stage[i].missed = 0;
    }
}

void stage_table_wrong(struct stage_table *t, uint32_t stage)
{
    t->stage[stage].wrong++;
}

void stage_table_sound(struct stage_table *t)
{
    for (uint32_t i = 0; i < t->n_stages; i++)
        t->stage[i].wrong = 0;
}

void stage_table_missed(struct stage_table *t, uint32_t stage, uint32_t weight)
{
    t->stage[stage].missed += weight;
}

void stage_table_silent(struct stage_table *t, uint32_t stage, int64_t now_ns)
{
    t->stage[stage].gone_ns = now_ns;
    move(t, stage, STAGE_SILENT);
}

void stage_table_heard(struct stage_table *t, uint32_t stage, int64_t now_ns)
{
    struct stage_entry *e = &t->stage[stage];
    e->heard_ns = now_ns;
    if (e->state != STAGE_SILENT)
        return;
    e->progress_ns = e->assigned_ns = now_ns; /* it has stood still, and is not to blame for it any more */
    e->missed = 0;
    move(t, stage, e->is_loaded ? STAGE_LINKING : STAGE_LOADING);
}

void stage_table_progress(struct stage_table *t, uint32_t stage, uint64_t layer_counter, int64_t now_ns)
{
    struct stage_entry *e = &t->stage[stage];
    if (layer_counter != e->layer_counter)
        e->progress_ns = now_ns;
    e->layer_counter = layer_counter;
}

void stage_table_heartbeat(struct stage_table *t, uint32_t stage, const struct msg_heartbeat *h, int64_t now_ns)
{
    struct stage_entry *e = &t->stage[stage];
    if (!h->busy || !e->busy || h->waits || e->waits)
        e->progress_ns = now_ns; /* its tick has only just begun, there is none, or others keep it waiting */
    e->busy = h->busy != 0;
    e->waits = h->waits != 0;
    e->stale = h->stale;
    e->tick = h->tick;
    stage_table_progress(t, stage, h->layer_counter, now_ns);
}

static double share(uint64_t us, int64_t span_ns)
{
    double ratio = span_ns > 0 ? (double)us * 1e3 / (double)span_ns : 0;
    return ratio > 1 ? 1 : ratio;
}

static struct stage_load load_of(const struct stage_window *w, int64_t now_ns)
{
    int64_t span_ns = now_ns - w->since_ns;
    return (struct stage_load){share(w->busy_us, span_ns), share(w->bubble_us, span_ns), w->n_ticks ? w->hop_us / w->n_ticks : 0};
}

void stage_table_timing(struct stage_table *t, const struct stage_timing *timing, int64_t now_ns)
{
    if (timing->stage >= t->n_stages)
        return;
    struct stage_entry *e = &t->stage[timing->stage];
    struct stage_window *w = &e->window;
    w->busy_us += timing->compute_us;
    w->bubble_us += timing->wait_data_us;
    w->hop_us += timing->send_us;
    w->n_ticks++;
    e->last_tick_ns = now_ns;
    if (now_ns - w->since_ns < NS_PER_S)
        return;
    e->load = load_of(w, now_ns);
    *w = (struct stage_window){.since_ns = now_ns};
}

void stage_table_skip(struct stage_table *t, int64_t gap_ns)
{
    for (uint32_t i = 0; i < t->n_stages; i++) {
        t->stage[i].heard_ns += gap_ns;
        t->stage[i].progress_ns += gap_ns;
        t->stage[i].assigned_ns += gap_ns;
        t->stage[i].gone_ns += gap_ns;
    }
    for (uint32_t i = 0; i < t->n_places; i++)
        t->attachment[i].attached_ns += gap_ns;
}

/* --- questions ---------------------------------------------------------------------------------------------------------------- */

uint32_t stage_table_count(const struct stage_table *t, enum stage_state state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_stages; i++)
        n += t->stage[i].state == state;
    return n;
}

uint64_t stage_table_highest_epoch(const struct stage_table *t)
{
    uint64_t highest = 0;
    for (uint32_t i = 0; i < t->n_stages; i++)
        if (t->stage[i].attachment && t->stage[i].hello.highest_epoch > highest)
            highest = t->stage[i].hello.highest_epoch;
    return highest;
}

uint32_t stage_table_smallest_pool(const struct stage_table *t)
{
    uint32_t smallest = UINT32_MAX;
    for (uint32_t i = 0; i < t->n_stages; i++) {
        const struct stage_entry *e = &t->stage[i];
        if ((e->state == STAGE_LINKING || e->state == STAGE_READY) && e->loaded.n_blocks < smallest)
            smallest = e->loaded.n_blocks;
    }
    return smallest == UINT32_MAX ? 0 : smallest;
}

const char *stage_state_name(enum stage_state s)
{
    static const char *const names[STAGE_N_STATES] = {"attaching", "loading", "linking", "ready", "lost", "lost"};
    return s >= 0 && s < STAGE_N_STATES ? names[s] : "?";
}

uint64_t stage_table_tick_age_ms(const struct stage_table *t, uint32_t stage, int64_t now_ns)
{
    int64_t last_ns = t->stage[stage].last_tick_ns;
    return last_ns == 0 || now_ns < last_ns ? 0 : (uint64_t)((now_ns - last_ns) / NS_PER_MS);
}

struct stage_load stage_table_load(const struct stage_table *t, uint32_t stage, int64_t now_ns)
{
    const struct stage_entry *e = &t->stage[stage];
    return now_ns - e->window.since_ns > NS_PER_S ? load_of(&e->window, now_ns) : e->load;
}

struct stale_counts stage_table_stale(const struct stage_table *t, uint32_t stage)
{
    const struct stale_counts *a = &t->stage[stage].stale_before, *b = &t->stage[stage].stale;
    return (struct stale_counts){.plans = a->plans + b->plans, .epochs = a->epochs + b->epochs, .links = a->links + b->links,
                                 .frames = a->frames + b->frames, .feedback = a->feedback + b->feedback};
}

int stage_table__check(const struct stage_table *t, const char **why)
{
    uint32_t n_waiting = 0;
    *why = NULL;
    for (uint32_t i = 0; i < t->n_stages && !*why; i++) {
        const struct stage_entry *e = &t->stage[i];
        const struct stage_attachment *a = stage_table_attachment(t, e->attachment);
        if ((e->state == STAGE_ATTACHING || e->state == STAGE_LOST) != (e->attachment == 0))
            *why = "a stage that is here has an attachment, one that is not has none";
        else if (e->attachment && (!a || a->stage != (int)i))
            *why = "a stage and its attachment name each other";
    }
    for (uint32_t i = 0; i < t->n_places && !*why; i++) {
        const struct stage_attachment *a = &t->attachment[i];
        if (a->id >= t->next_id)
            *why = "an attachment id is given out once";
        else if (a->id && a->stage != STAGE_NONE && t->stage[a->stage].attachment != a->id)
            *why = "an attachment serves the stage that names it";
        else if (a->waits && (!a->id || a->stage != STAGE_NONE))
            *why = "a stream that waits serves no stage";
        n_waiting += a->waits != 0;
    }
    if (!*why && n_waiting != t->n_waiting)
        *why = "those that wait are counted";
    return !*why;
}
