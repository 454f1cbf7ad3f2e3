/* The stages of the simulation: what they say, how long their ticks take, what their ticks compute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"
#include "tests/sim/engine_sim_impl.h"

enum { LAMBDA_NS = 100 * NS_PER_US, DELTA_NS = 50 * NS_PER_US }; /* what the engine assumes before it measures */

/* --- the hash chain ---------------------------------------------------------------------------------------------------------- */

/* A position that position p > 0 reads besides the one before: every block of a table is read again and again. */
static uint32_t far_position(uint32_t p)
{
    return (uint32_t)(rand_mix(p + 77ull) % p);
}

static uint64_t chain_hash(uint64_t before, uint64_t far, uint32_t id, uint32_t p)
{
    return rand_mix(before ^ rand_mix(far + rand_at(id, p)));
}

static uint32_t next_id(const struct engine_sim *s, uint64_t hash)
{
    if (s->o.end_odds && (hash >> 32) % s->o.end_odds == 0)
        return s->end_id;
    return s->usable[(uint32_t)hash % s->n_usable];
}

uint32_t engine_sim__reference(struct engine_sim *s, const uint32_t *prompt, uint32_t n_prompt, uint32_t *out, uint32_t n)
{
    uint64_t *h = s->plain;
    for (uint32_t p = 0; p + 1 < n_prompt + n; p++) {
        uint32_t id = p < n_prompt ? prompt[p] : out[p - n_prompt];
        h[p] = chain_hash(p ? h[p - 1] : 1, p ? h[far_position(p)] : 1, id, p);
        if (p + 1 < n_prompt)
            continue;
        out[p + 1 - n_prompt] = next_id(s, h[p]);
        if (s->o.end_odds && out[p + 1 - n_prompt] == s->end_id)
            return p + 2 - n_prompt;
    }
    return n;
}

static uint64_t *cell(struct engine_sim *s, const struct sequence *q, uint32_t position)
{
    uint32_t size = s->stage[0].assign.kv_block;
    return &s->kv[(size_t)q->blocks[position / size] * size + position % size];
}

/* What the memory of a new process, or of a new epoch, holds: nothing that an answer could be made of. */
static void forget_kv(struct engine_sim *s)
{
    for (size_t i = 0; i < (size_t)s->n_blocks * s->stage[0].assign.kv_block; i++)
        s->kv[i] = rand_at(s->o.seed + 99, i);
    memset(s->blocks, 0, s->n_blocks * sizeof *s->blocks);
    sequences_clear(s->sequences);
}

/* --- what a plan may do with blocks ------------------------------------------------------------------------------------------- */

static void check_grant(struct engine_sim *s, const struct plan *p, const struct plan_op *op)
{
    uint32_t n_shared = op->kind == OP_OPEN ? op->length / s->stage[0].assign.kv_block : 0;
    for (uint32_t i = 0; i < op->n_blocks; i++) {
        uint32_t b = p->words[op->first_block + i];
        if (b >= s->n_blocks)
            fail_msg("tick %llu: block %u of %u", (unsigned long long)p->tick, b, s->n_blocks);
        const struct sim_block *k = &s->blocks[b];
        if (k->write_tick > s->retired_tick)
            fail_msg("tick %llu gives sequence %llu block %u, which tick %llu in flight writes", (unsigned long long)p->tick,
                     (unsigned long long)op->seq, b, (unsigned long long)k->write_tick);
        if (i >= n_shared && k->used_tick > s->retired_tick)
            fail_msg("tick %llu gives sequence %llu block %u to write, which tick %llu in flight reads",
                     (unsigned long long)p->tick, (unsigned long long)op->seq, b, (unsigned long long)k->used_tick);
    }
}

static void note_close(struct engine_sim *s, const struct plan_op *op)
{
    const struct sequence *q = sequences_find(s->sequences, op->seq);
    if (!q || q->run_tick == UINT64_MAX)
        return;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        if (s->blocks[q->blocks[i]].used_tick < q->run_tick)
            s->blocks[q->blocks[i]].used_tick = q->run_tick;
}

static void apply_ops(struct engine_sim *s, const struct plan *p)
{
    struct error err = {0};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        if (op->kind == OP_OPEN || op->kind == OP_APPEND)
            check_grant(s, p, op);
        if (op->kind == OP_CLOSE)
            note_close(s, op);
        if (sequences_apply(s->sequences, p, op, &err) != STATUS_OK)
            fail_msg("tick %llu: %s", (unsigned long long)p->tick, err.message);
    }
}

/* --- a tick -------------------------------------------------------------------------------------------------------------------- */

static struct sim_flight *flight_of(const struct engine_sim *s, uint64_t tick)
{
    return &s->flights[tick % (s->window + 1)];
}

/* Computes run i; returns when stage 0 has the id that it waits for, 0: it waits for none. */
static int64_t compute_run(struct engine_sim *s, const struct plan *p, uint32_t i, struct sim_flight *f)
{
    const struct plan_run *r = &p->runs[i];
    struct sequence *q;
    struct sample_note *from;
    struct error err = {0};
    if (sequences_extend(s->sequences, p, i, &q, &from, &err) != STATUS_OK)
        fail_msg("tick %llu: %s", (unsigned long long)p->tick, err.message);
    if (r->source == SOURCE_FROM_TICK)
        assert_true(from && from->known);
    uint64_t hash = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        uint32_t pos = r->kv_index + k, id = from ? (uint32_t)from->id : p->words[r->first_id + k];
        uint64_t before = pos ? *cell(s, q, pos - 1) : 1, far = pos ? *cell(s, q, far_position(pos)) : 1;
        *cell(s, q, pos) = hash = chain_hash(before, far, id, pos);
        s->blocks[q->blocks[pos / s->stage[0].assign.kv_block]].write_tick = p->tick;
    }
    f->runs[i] = (struct result_run){.seq = r->seq, .n_accepted = r->n, .id = -1};
    if (r->sample == SAMPLE_LAST) {
        f->runs[i].id = (int32_t)next_id(s, hash);
        struct sample_note *note = sequence_note(s->sequences, q, p->tick);
        note->id = f->runs[i].id;
        note->known = 1;
    }
    if (r->n > 1)
        f->n_prompt += r->n;
    const struct sim_flight *made = from ? flight_of(s, r->from_tick) : NULL;
    return made && made->tick == r->from_tick ? made->finish_ns[s->o.n_stages - 1] + DELTA_NS : 0;
}

static int64_t cost_ns(const struct engine_sim *s, const struct sim_flight *f, uint32_t stage)
{
    double us = s->o.tick_us + s->o.row_us * (f->n_rows - f->n_prompt) + s->o.token_us * f->n_prompt;
    if (s->o.noise > 0)
        us *= 1 + s->o.noise * rand_unit(s->o.seed + 7 + stage, f->tick);
    return (int64_t)(us * 1000);
}

static void answer_later(struct sim_stage *g, int kind, int64_t after_ns)
{
    engine_sim__timer(g->sim, &(struct sim_timer){
                                  .when_ns = g->sim->now_ns + after_ns, .ctx = g, .life = g->life, .epoch = g->epoch.epoch,
                                  .kind = kind});
}

/* The first tick of an epoch is the pipeline's own, and empty: its result comes by itself. */
static void take_first_plan(struct engine_sim *s, const struct plan *p)
{
    assert_true(p->n_runs == 0 && p->n_rows == 0 && p->n_ops == 0 && s->sent_tick == 0);
    answer_later(&s->stage[s->o.n_stages - 1], FROM_STAGE_RESULT, LAMBDA_NS);
}

static void take_plan(struct engine_sim *s, const struct plan *p)
{
    struct error err = {0};
    struct sim_flight *f = flight_of(s, p->tick);
    if (plan_check(p, &err) != STATUS_OK)
        fail_msg("tick %llu: %s", (unsigned long long)p->tick, err.message);
    assert_int_equal(p->tick, s->sent_tick + 1);
    assert_true(p->tick - s->retired_tick <= s->window && p->n_runs <= s->max_rows && p->n_rows > 0);
    s->sent_tick = p->tick;
    f->tick = p->tick;
    f->n_runs = p->n_runs;
    f->n_rows = p->n_rows;
    f->n_prompt = 0;
    apply_ops(s, p);
    int64_t ready = s->now_ns + LAMBDA_NS;
    for (uint32_t i = 0; i < p->n_runs; i++) {
        int64_t ids_ns = compute_run(s, p, i, f);
        ready = ids_ns > ready ? ids_ns : ready;
    }
    for (uint32_t i = 0; i < s->o.n_stages; i++) {
        struct sim_stage *g = &s->stage[i];
        f->start_ns[i] = ready > g->last_finish_ns ? ready : g->last_finish_ns;
        f->finish_ns[i] = ready = g->last_finish_ns = f->start_ns[i] + cost_ns(s, f, i);
        g->busy_ns += f->finish_ns[i] - f->start_ns[i];
    }
    s->prompt_rows += f->n_prompt;
    s->counts.ticks++;
}

/* --- what stages say ------------------------------------------------------------------------------------------------------------ */

static void say(struct sim_stage *g, const struct from_stage *m)
{
    engine_stage_message(g->sim->engine, g->attachment, m);
    g->sim->posted = 1;
}

static void flush_timings(struct sim_stage *g)
{
    if (g->timings.timings.n > 0)
        say(g, &g->timings);
    g->timings.timings.n = 0;
}

static struct stage_timing timing_of(const struct sim_flight *f, uint32_t stage)
{
    return (struct stage_timing){.tick = f->tick, .stage = stage, .n_rows = f->n_rows,
                                 .compute_us = (uint32_t)((f->finish_ns[stage] - f->start_ns[stage]) / 1000)};
}

static void add_timing(struct sim_stage *g, const struct sim_flight *f)
{
    g->timings.kind = FROM_STAGE_TIMINGS;
    g->timings.timings.session = g->epoch.session;
    g->timings.timings.epoch = g->epoch.epoch;
    g->timings.timings.timing[g->timings.timings.n++] = timing_of(f, g->index);
    if (g->timings.timings.n == MAX_TIMINGS || f->tick == g->sim->sent_tick)
        flush_timings(g);
}

/* Grows with every tick that the stage has done, in whatever epoch. */
static uint64_t progress_of(const struct engine_sim *s, uint32_t stage)
{
    uint64_t n = s->past_ticks;
    for (uint64_t t = s->retired_tick + 1; t <= s->sent_tick && flight_of(s, t)->finish_ns[stage] <= s->now_ns; t++)
        n++;
    return n;
}

static void send_result(struct engine_sim *s, const struct sim_flight *f)
{
    struct sim_stage *last = &s->stage[s->o.n_stages - 1];
    struct result *r = engine_result_acquire(s->engine);
    assert_non_null(r);
    assert_true(f->n_runs <= r->max_runs);
    r->session = last->epoch.session;
    r->epoch = last->epoch.epoch;
    r->tick = f->tick;
    r->status = STATUS_OK;
    r->message[0] = '\0';
    r->timing = timing_of(f, last->index);
    r->layer_counter = progress_of(s, last->index);
    r->n_runs = f->n_runs;
    memcpy(r->runs, f->runs, f->n_runs * sizeof *r->runs);
    say(last, &(struct from_stage){.kind = FROM_STAGE_RESULT, .result = r});
}

int64_t engine_sim__next_result_ns(const struct engine_sim *s)
{
    uint64_t tick = s->retired_tick + 1;
    if (tick > s->sent_tick || tick >= s->broken_tick)
        return INT64_MAX;
    return flight_of(s, tick)->finish_ns[s->o.n_stages - 1] + LAMBDA_NS;
}

void engine_sim__results(struct engine_sim *s)
{
    while (engine_sim__next_result_ns(s) <= s->now_ns) {
        const struct sim_flight *f = flight_of(s, s->retired_tick + 1);
        send_result(s, f);
        for (uint32_t i = 0; i + 1 < s->o.n_stages; i++)
            if (s->stage[i].attachment)
                add_timing(&s->stage[i], f);
        s->retired_tick++;
        s->past_ticks++;
    }
}

void engine_sim__beat(struct engine_sim *s)
{
    for (uint32_t i = 0; i < s->o.n_stages; i++) {
        struct sim_stage *g = &s->stage[i];
        if (!g->attachment)
            continue;
        uint64_t done = progress_of(s, i) - s->past_ticks + s->retired_tick;
        say(g, &(struct from_stage){.kind = FROM_STAGE_HEARTBEAT,
                                    .heartbeat = {.session = g->epoch.session, .epoch = g->epoch.epoch, .tick = done,
                                                  .layer_counter = progress_of(s, i), .busy = done < s->sent_tick}});
    }
}

/* --- attach and epochs ------------------------------------------------------------------------------------------------------------ */

static void make_tables(struct engine_sim *s, const struct msg_assign *a)
{
    const struct sequences_limits l = {.slots = a->slots, .context = a->context, .kv_block = a->kv_block,
                                       .n_blocks = s->n_blocks, .n_notes = a->window + 1};
    s->kv = calloc((size_t)s->n_blocks * a->kv_block, sizeof *s->kv);
    s->blocks = calloc(s->n_blocks, sizeof *s->blocks);
    s->plain = calloc(a->context, sizeof *s->plain);
    s->flights = calloc(s->window + 1, sizeof *s->flights);
    assert_true(s->kv && s->blocks && s->plain && s->flights);
    for (uint32_t i = 0; i <= s->window; i++)
        assert_non_null(s->flights[i].runs = calloc(a->max_rows, sizeof *s->flights[i].runs));
    assert_int_equal(sequences_create(&l, &s->sequences), STATUS_OK);
}

static void on_assign(struct sim_stage *g, const struct msg_assign *a)
{
    struct engine_sim *s = g->sim;
    assert_int_equal(a->stage, g->index);
    assert_int_equal(a->n_stages, s->o.n_stages);
    g->assign = *a;
    if (!s->kv) {
        s->window = a->window;
        s->max_rows = a->max_rows;
        s->n_blocks = a->n_blocks ? a->n_blocks : a->slots * ((a->context + a->kv_block - 1) / a->kv_block);
        make_tables(s, a);
    }
    answer_later(g, FROM_STAGE_LOADED, LAMBDA_NS);
}

/* What was begun is given up. */
static void forget_ticks(struct engine_sim *s)
{
    for (uint32_t i = 0; i < s->o.n_stages; i++) {
        s->stage[i].busy_ns = engine_sim_busy_ns(s, i);
        s->stage[i].last_finish_ns = s->now_ns;
        s->stage[i].timings.timings.n = 0;
    }
    s->past_ticks += s->sent_tick - s->retired_tick;
    s->sent_tick = s->retired_tick = 0;
    s->broken_tick = UINT64_MAX;
    for (uint32_t i = 0; i <= s->window; i++)
        s->flights[i].tick = 0;
    forget_kv(s);
}

static void on_epoch(struct sim_stage *g, const struct msg_epoch *m)
{
    assert_true(m->epoch > g->highest_epoch);
    g->epoch = *m;
    g->highest_epoch = m->epoch;
    if (g->index == 0) {
        forget_ticks(g->sim);
        g->sim->counts.epochs++;
    }
    answer_later(g, FROM_STAGE_ACK, LAMBDA_NS);
}

static enum status port_send(void *ctx, const struct to_stage *m)
{
    struct sim_stage *g = ctx;
    if (!g->attachment)
        return STATUS_CLOSED;
    switch (m->kind) {
    case TO_STAGE_ASSIGN:
        on_assign(g, &m->assign);
        break;
    case TO_STAGE_EPOCH:
        on_epoch(g, &m->epoch);
        break;
    case TO_STAGE_LINKS:
        answer_later(g, FROM_STAGE_READY, LAMBDA_NS);
        break;
    case TO_STAGE_PLAN:
        assert_true(m->plan->session == g->epoch.session && m->plan->epoch == g->epoch.epoch);
        if (g->index + 1 != g->sim->o.n_stages)
            break;
        if (m->plan->tick == 0) /* all have it */
            take_first_plan(g->sim, m->plan);
        else
            take_plan(g->sim, m->plan);
        break;
    case TO_STAGE_EXIT:
        break;
    }
    return STATUS_OK;
}

static void lose(struct sim_stage *g)
{
    struct engine_sim *s = g->sim;
    uint64_t done = s->retired_tick;
    while (done < s->sent_tick && flight_of(s, done + 1)->finish_ns[g->index] <= s->now_ns && g->index + 1 < s->o.n_stages)
        done++;
    if (s->broken_tick > done + 1)
        s->broken_tick = done + 1; /* it and what follows never comes out */
    g->attachment = 0;
    g->life++;
}

/* The engine gave the stream up: the process comes again. */
static void port_close(void *ctx, const struct error *why)
{
    struct sim_stage *g = ctx;
    (void)why;
    if (!g->attachment)
        return;
    lose(g);
    if (!g->sim->closing)
        answer_later(g, FROM_STAGE_HELLO, 20 * NS_PER_MS);
}

static void attach(struct sim_stage *g)
{
    const struct stage_port port = {g, port_send, port_close};
    struct from_stage m = {.kind = FROM_STAGE_HELLO,
                           .hello = {.wire_version = WIRE_VERSION, .stage = g->index, .host = "sim", .backend = "none",
                                     .profile = "sim", .pid = 1000 + g->index, .incarnation = g->incarnation,
                                     .highest_epoch = g->highest_epoch}};
    snprintf(m.hello.addresses.tcp, sizeof m.hello.addresses.tcp, "stage%u:%llu", g->index, (unsigned long long)g->life);
    g->attachment = engine_stage_attached(g->sim->engine, &port);
    say(g, &m);
}

static struct msg_loaded loaded_of(const struct engine_sim *s)
{
    static const uint32_t rows[N_COST_POINTS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    struct msg_loaded l = {.n_blocks = s->n_blocks, .weight_bytes = 1, .kv_bytes = 1};
    for (int i = 0; i < N_COST_POINTS; i++) { /* as tests/lib/fake_compute says it */
        l.cost_rows[i] = rows[i];
        l.prompt_us[i] = (uint32_t)(s->o.tick_us + rows[i] * (rows[i] == 1 ? s->o.row_us : s->o.token_us));
        l.decode_us[i] = (uint32_t)(s->o.tick_us + rows[i] * s->o.row_us);
    }
    return l;
}

void engine_sim__answer(struct engine_sim *s, const struct sim_timer *t)
{
    struct sim_stage *g = t->ctx;
    if (t->life != g->life || t->epoch != g->epoch.epoch)
        return;
    struct from_stage m = {.kind = (enum from_stage_kind)t->kind};
    switch (t->kind) {
    case FROM_STAGE_HELLO:
        attach(g);
        return;
    case FROM_STAGE_LOADED:
        m.loaded = loaded_of(s);
        m.assigned = g->assign;
        break;
    case FROM_STAGE_RESULT:
        send_result(s, &(struct sim_flight){.runs = s->flights[0].runs});
        return;
    case FROM_STAGE_ACK:
        m.ack = (struct msg_ack){.session = g->epoch.session, .epoch = g->epoch.epoch, .kv_id = g->index + 1};
        break;
    default:
        m.ready = g->epoch;
        break;
    }
    say(g, &m);
}

void engine_sim_lose_stage(struct engine_sim *s, uint32_t stage, int64_t back_ns)
{
    struct sim_stage *g = &s->stage[stage];
    uint64_t id = g->attachment;
    if (!id)
        return;
    lose(g);
    g->incarnation = rand_mix(g->incarnation) | 1;
    g->highest_epoch = 0;
    engine_stage_closed(s->engine, id);
    s->posted = 1;
    answer_later(g, FROM_STAGE_HELLO, back_ns);
}

/* --- life and questions ----------------------------------------------------------------------------------------------------------- */

void engine_sim__stages_init(struct engine_sim *s)
{
    s->broken_tick = UINT64_MAX;
    for (uint32_t i = 0; i < s->o.n_stages; i++) {
        s->stage[i] = (struct sim_stage){.sim = s, .index = i, .incarnation = rand_at(s->o.seed, i) | 1};
        attach(&s->stage[i]);
    }
}

void engine_sim__stages_fini(struct engine_sim *s)
{
    for (uint32_t i = 0; s->flights && i <= s->window; i++)
        free(s->flights[i].runs);
    free(s->flights);
    free(s->kv);
    free(s->blocks);
    free(s->plain);
    sequences_destroy(s->sequences);
}

int64_t engine_sim_busy_ns(const struct engine_sim *s, uint32_t stage)
{
    int64_t busy = s->stage[stage].busy_ns;
    for (uint64_t t = s->sent_tick; t > s->retired_tick; t--) {
        const struct sim_flight *f = flight_of(s, t);
        if (f->finish_ns[stage] <= s->now_ns)
            break;
        busy -= f->finish_ns[stage] - (f->start_ns[stage] > s->now_ns ? f->start_ns[stage] : s->now_ns);
    }
    return busy;
}

uint64_t engine_sim_prompt_rows(const struct engine_sim *s)
{
    return s->prompt_rows;
}
