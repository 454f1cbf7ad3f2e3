/* Time, calls and checks of the simulation. */
#include "tests/sim/engine_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/rand.h"
#include "coordinator/engine_impl.h"
#include "tests/sim/engine_sim_impl.h"

enum { MAX_FLAGS = 64, ARENA_BYTES = 16 << 20, STATUS_EVERY = 64 };
#define START_NS (1000 * NS_PER_S)

/* --- timers -------------------------------------------------------------------------------------------------------------------- */

static int before(const struct sim_timer *a, const struct sim_timer *b)
{
    return a->when_ns != b->when_ns ? a->when_ns < b->when_ns : a->order < b->order;
}

static void swap(struct sim_timer *a, struct sim_timer *b)
{
    struct sim_timer t = *a;
    *a = *b;
    *b = t;
}

void engine_sim__timer(struct engine_sim *s, const struct sim_timer *t)
{
    if (s->n_timers == s->max_timers) {
        s->max_timers = s->max_timers ? 2 * s->max_timers : 256;
        s->timers = realloc(s->timers, s->max_timers * sizeof *s->timers);
        assert_non_null(s->timers);
    }
    uint32_t i = s->n_timers++;
    s->n_client_timers += t->kind == 0;
    s->timers[i] = *t;
    s->timers[i].order = s->next_order++;
    for (; i > 0 && before(&s->timers[i], &s->timers[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&s->timers[i], &s->timers[(i - 1) / 2]);
}

static struct sim_timer pop_timer(struct engine_sim *s)
{
    struct sim_timer first = s->timers[0];
    s->n_client_timers -= first.kind == 0;
    s->timers[0] = s->timers[--s->n_timers];
    for (uint32_t i = 0, child; (child = 2 * i + 1) < s->n_timers; i = child) {
        if (child + 1 < s->n_timers && before(&s->timers[child + 1], &s->timers[child]))
            child++;
        if (before(&s->timers[i], &s->timers[child]))
            break;
        swap(&s->timers[i], &s->timers[child]);
    }
    return first;
}

void engine_sim_at(struct engine_sim *s, int64_t when_ns, void (*fn)(struct engine_sim *s, void *ctx), void *ctx)
{
    engine_sim__timer(s, &(struct sim_timer){.when_ns = when_ns > s->now_ns ? when_ns : s->now_ns, .fn = fn, .ctx = ctx});
}

static void run_timers(struct engine_sim *s)
{
    while (s->n_timers > 0 && s->timers[0].when_ns <= s->now_ns) {
        struct sim_timer t = pop_timer(s);
        if (t.kind)
            engine_sim__answer(s, &t);
        else
            t.fn(s, t.ctx);
    }
}

/* --- checks -------------------------------------------------------------------------------------------------------------------- */

static void check_blocks(struct engine_sim *s)
{
    struct blocks_count b = blocks_counts(s->engine->blocks);
    assert_int_equal((uint64_t)b.free + b.cached + b.live + b.draining, b.total);
    s->counts.live = b.live;
}

static struct service_status *status_of(struct engine_sim *s)
{
    struct service_status *st = malloc(sizeof *st);
    assert_non_null(st);
    engine_status(s->engine, st);
    return st;
}

/* What is published adds up, whenever one looks. */
static void check_status(struct engine_sim *s)
{
    struct service_status *st = status_of(s);
    assert_int_equal(st->queued + st->reading + st->decoding + st->parked,
                     st->accepted - st->done - st->failed - st->cancelled);
    assert_int_equal((uint64_t)st->blocks_free + st->blocks_cached + st->blocks_live + st->blocks_draining, st->blocks_total);
    uint32_t busy = 0;
    for (uint32_t i = 0; i < st->n_slots; i++)
        busy += strcmp(st->slots[i].state, "free") != 0;
    assert_int_equal(busy, st->reading + st->decoding);
    free(st);
}

static void check(struct engine_sim *s)
{
    check_blocks(s);
    if (s->counts.steps % s->o.check_every != 0)
        return;
    engine__check(s->engine);
    if (s->counts.steps / s->o.check_every % STATUS_EVERY == 0)
        check_status(s);
}

static int is_quiet(const struct service_status *st)
{
    return st->queued + st->reading + st->decoding + st->parked == 0 && st->blocks_live == 0 && st->blocks_draining == 0 &&
           st->blocks_free + st->blocks_cached == st->blocks_total && st->queue_requests == 0 && st->queue_tokens == 0 &&
           st->accepted == st->done + st->failed + st->cancelled && st->ticks_in_flight == 0;
}

void engine_sim_assert_quiet(struct engine_sim *s)
{
    engine_sim_run(s, s->now_ns + NS_PER_S);
    engine__check(s->engine);
    struct service_status *st = status_of(s);
    if (!is_quiet(st))
        fail_msg("not quiet: queued %llu reading %llu decoding %llu parked %llu, blocks free %u cached %u live %u draining %u of "
                 "%u, accepted %llu = done %llu + failed %llu + cancelled %llu, %u ticks in flight",
                 (unsigned long long)st->queued, (unsigned long long)st->reading, (unsigned long long)st->decoding,
                 (unsigned long long)st->parked, st->blocks_free, st->blocks_cached, st->blocks_live, st->blocks_draining,
                 st->blocks_total, (unsigned long long)st->accepted, (unsigned long long)st->done,
                 (unsigned long long)st->failed, (unsigned long long)st->cancelled, st->ticks_in_flight);
    for (uint32_t i = 0; i < st->n_slots; i++)
        assert_string_equal(st->slots[i].state, "free");
    assert_int_equal(sequences_count(s->sequences) > s->o.n_slots, 0);
    assert_int_equal(st->accepted, s->counts.accepted);
    assert_int_equal(s->counts.open, 0);
    free(st);
}

/* --- time ---------------------------------------------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t next_ns(const struct engine_sim *s)
{
    int64_t t = least(least(s->wake_ns, s->next_beat_ns), engine_sim__next_result_ns(s));
    if (s->n_timers > 0)
        t = least(t, s->timers[0].when_ns);
    return s->posted || t < s->now_ns ? s->now_ns : t;
}

void engine_sim_step(struct engine_sim *s)
{
    s->now_ns = next_ns(s);
    s->posted = 0;
    run_timers(s);
    engine_sim__results(s);
    if (s->next_beat_ns <= s->now_ns) {
        engine_sim__beat(s);
        s->next_beat_ns += s->config.heartbeat_ms * NS_PER_MS;
    }
    s->posted = 0; /* all that was said before is handled in this step */
    s->in_step = 1;
    s->wake_ns = engine_step(s->engine, s->now_ns);
    s->in_step = 0;
    s->counts.steps++;
    check(s);
    if (s->on_step)
        s->on_step(s, s->on_step_ctx);
}

void engine_sim_run(struct engine_sim *s, int64_t until_ns)
{
    while (next_ns(s) <= until_ns)
        engine_sim_step(s);
    s->now_ns = until_ns > s->now_ns ? until_ns : s->now_ns;
}

void engine_sim_run_out(struct engine_sim *s, int64_t limit_ns)
{
    int64_t end_ns = s->now_ns + limit_ns;
    while (s->counts.open > 0 || s->n_client_timers > 0) {
        engine_sim_step(s);
        if (s->now_ns > end_ns)
            fail_msg("%u calls have not ended in %.1f s", s->counts.open, (double)limit_ns / 1e9);
    }
}

/* --- calls --------------------------------------------------------------------------------------------------------------------- */

static void drop(struct sim_call *c)
{
    if (--c->n_held > 0)
        return;
    c->sim->n_calls--;
    free(c->prompt);
    free(c->ids);
    free(c->expect);
    free(c);
}

static void take_ids(struct sim_call *c, const struct generate_event *ev)
{
    struct engine_sim *s = c->sim;
    if (!c->expect) {
        c->expect = calloc(c->n_answer, sizeof *c->expect);
        c->ids = calloc(c->n_answer, sizeof *c->ids);
        assert_true(c->expect && c->ids);
        c->n_expect = engine_sim__reference(s, c->prompt, c->n_prompt, c->expect, c->n_answer);
    }
    assert_true(ev->n_ids > 0 && c->n_ids + ev->n_ids <= c->n_expect);
    for (size_t i = 0; i < ev->n_ids; i++) {
        if (ev->ids[i] != c->expect[c->n_ids])
            fail_msg("%s (%u prompt tokens): id %u of the answer is %u, the reference has %u", c->request->id, c->n_prompt,
                     c->n_ids, ev->ids[i], c->expect[c->n_ids]);
        c->ids[c->n_ids++] = ev->ids[i];
    }
    s->counts.ids += ev->n_ids;
    if (c->first_ns == 0)
        c->first_ns = s->now_ns;
    else if (s->now_ns - c->last_ns > c->longest_gap_ns)
        c->longest_gap_ns = s->now_ns - c->last_ns;
    c->last_ns = s->now_ns;
    if (c->on_id)
        c->on_id(c);
}

/* It reads nothing for a while, once: what comes is refused until then. */
static int is_stalled(struct sim_call *c)
{
    if (!c->stall_at || c->n_ids < c->stall_at)
        return 0;
    if (!c->stalled_ns)
        c->stalled_ns = c->sim->now_ns;
    return c->sim->now_ns - c->stalled_ns < c->stall_ns;
}

static enum status sink_send(void *ctx, const struct generate_event *ev)
{
    struct sim_call *c = ctx;
    assert_true(c->n_finished == 0 && c->finish == FINISH_NONE); /* nothing follows the end */
    if (ev->kind != GENERATE_ACCEPTED)
        assert_true(c->accepted_ns > 0);
    switch (ev->kind) {
    case GENERATE_ACCEPTED:
        assert_true(c->accepted_ns == 0 && ev->n_ids == c->n_prompt);
        assert_memory_equal(ev->ids, c->prompt, c->n_prompt * sizeof *c->prompt);
        c->accepted_ns = c->sim->now_ns;
        c->sim->counts.accepted++;
        break;
    case GENERATE_PROGRESS:
        if (ev->queue_position)
            c->position = ev->queue_position;
        else
            c->read_tokens = ev->read_tokens;
        break;
    case GENERATE_TEXT:
        if (is_stalled(c))
            return STATUS_FULL;
        if (ev->n_ids > 0)
            take_ids(c, ev);
        break;
    case GENERATE_DONE:
        if (is_stalled(c))
            return STATUS_FULL;
        c->finish = ev->finish;
        c->usage = ev->usage;
        break;
    }
    return STATUS_OK;
}

static int64_t sink_stalled(void *ctx)
{
    struct sim_call *c = ctx;
    return c->stalled_ns && c->sim->now_ns - c->stalled_ns < c->stall_ns ? c->stalled_ns : 0;
}

/* An answer that ended well is whole; its usage says what it was. */
static void check_done(const struct sim_call *c)
{
    assert_true(c->finish == FINISH_STOP || c->finish == FINISH_LENGTH);
    assert_int_equal(c->n_ids, c->n_expect);
    int by_end = c->sim->o.end_odds && c->ids[c->n_ids - 1] == c->sim->end_id;
    assert_int_equal(c->finish, by_end ? FINISH_STOP : FINISH_LENGTH);
    assert_int_equal(c->usage.prompt_tokens, c->n_prompt);
    assert_int_equal(c->usage.completion_tokens, c->n_ids);
    assert_true(c->usage.cached_tokens < c->n_prompt);
}

static void sink_finish(void *ctx, const struct error *err)
{
    struct sim_call *c = ctx;
    struct engine_sim_counts *n = &c->sim->counts;
    assert_int_equal(c->n_finished++, 0);
    c->ended_ns = c->sim->now_ns;
    n->open--;
    if (err)
        c->end = *err;
    if (!c->accepted_ns) {
        assert_non_null(err);
        n->refused++;
    } else if (!err) {
        check_done(c);
        n->done++;
    } else {
        assert_int_equal(c->finish, FINISH_NONE);
        n->cancelled += err->status == STATUS_CANCELLED;
        n->failed += err->status != STATUS_CANCELLED;
    }
    if (c->on_end)
        c->on_end(c);
}

static void sink_release(void *ctx)
{
    struct sim_call *c = ctx;
    assert_int_equal(c->n_finished, 1);
    assert_int_equal(c->freed, 1); /* its maker's reference goes with sim_call_free */
    drop(c);
}

struct sim_call *sim_call_new(struct engine_sim *s, const char *client, uint32_t n_prompt, uint32_t n_answer)
{
    struct sim_call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->sim = s;
    snprintf(c->client, sizeof c->client, "%s", client);
    c->n_prompt = n_prompt;
    c->n_answer = n_answer;
    c->prompt = calloc(n_prompt, sizeof *c->prompt);
    assert_non_null(c->prompt);
    c->n_held = 1;
    s->n_calls++;
    sim_call_write(c, 0, rand_at(s->o.seed + 1, ++s->next_call));
    return c;
}

void sim_call_write(struct sim_call *c, uint32_t from, uint64_t text_seed)
{
    for (uint32_t i = from; i < c->n_prompt; i++)
        c->prompt[i] = c->sim->usable[rand_at(text_seed, i) % c->sim->n_usable];
}

void sim_call_submit(struct sim_call *c)
{
    struct engine_sim *s = c->sim;
    char name[32];
    int len = snprintf(name, sizeof name, "call-%llu", (unsigned long long)s->counts.submitted);
    struct error err = {0};
    const struct generate_request g = {
        .request_id = {name, (size_t)len}, .prompt = PROMPT_IDS, .ids = c->prompt, .n_ids = c->n_prompt,
        .sampler = {.top_p = 1}, .has_seed = 1, .max_tokens = c->n_answer, .batch_priority = c->batch,
        .no_cache = c->no_cache};
    const struct request_sink sink = {c, sink_send, sink_stalled, sink_finish, sink_release};
    assert_null(c->request);
    if (request_create(&g, c->client, &sink, ARENA_BYTES, &c->request, &err) != STATUS_OK ||
        request_set_prompt(c->request, c->request->prompt_ids, c->n_prompt, (uint32_t)s->config.context, UINT32_MAX,
                           tokenizer_n_vocab(s->tokenizer), &err) != STATUS_OK)
        fail_msg("%s", err.message);
    c->n_held++;
    c->submitted_ns = c->request->arrived_ns = s->now_ns;
    c->request->deadline_ns = c->deadline_ms ? s->now_ns + c->deadline_ms * NS_PER_MS : 0;
    s->counts.submitted++;
    s->counts.open++;
    request_retain(c->request); /* the engine's */
    enum status st = engine_submit(s->engine, c->request);
    if (st == STATUS_FULL && !s->in_step) { /* thousands at once: the engine takes what is there, as its thread would */
        s->wake_ns = engine_step(s->engine, s->now_ns);
        st = engine_submit(s->engine, c->request);
    }
    assert_int_equal(st, STATUS_OK);
    s->posted = 1;
}

void sim_call_cancel(struct sim_call *c)
{
    if (!c->request || c->n_finished)
        return;
    atomic_store(&c->request->cancelled, 1);
    engine_cancel(c->sim->engine, c->request);
    c->sim->posted = 1;
}

static void leave(struct engine_sim *s, void *ctx)
{
    (void)s;
    sim_call_cancel(ctx);
    drop(ctx);
}

void sim_call_leave_at(struct sim_call *c, int64_t when_ns)
{
    c->n_held++;
    engine_sim_at(c->sim, when_ns, leave, c);
}

int sim_call_ended(const struct sim_call *c)
{
    return c->n_finished > 0;
}

void sim_call_free(struct sim_call *c)
{
    if (c->request) {
        assert_int_equal(c->n_finished, 1);
        c->freed = 1;
        request_release(c->request);
    }
    drop(c); /* now, or when engine and timers have let go */
}

/* --- life ---------------------------------------------------------------------------------------------------------------------- */

static void read_config(struct engine_sim *s)
{
    char *argv[MAX_FLAGS + 1] = {(char *)(uintptr_t)"sim", (char *)(uintptr_t)"--kv-block", (char *)(uintptr_t)"16"};
    int n = 3;
    struct error err = {0};
    enum config_action action;
    for (const char *const *f = s->o.flags; f && *f && n < MAX_FLAGS; f++)
        argv[n++] = (char *)(uintptr_t)*f;
    if (config_read(PROGRAM_COORDINATOR, n, argv, &s->config, &action, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    s->config.slots = s->o.n_slots;
    s->config.stages = s->o.n_stages;
    if (s->config.context < 0)
        s->config.context = 32768;
}

/* Ids of whole printable characters: no control token, no end, nothing that waits for more bytes. */
static void find_usable(struct engine_sim *s)
{
    uint32_t n = tokenizer_n_vocab(s->tokenizer);
    s->usable = calloc(n, sizeof *s->usable);
    assert_non_null(s->usable);
    s->end_id = UINT32_MAX;
    for (uint32_t id = 0; id < n; id++) {
        struct text t = tokenizer_piece(s->tokenizer, id, 0);
        if (tokenizer_is_end(s->tokenizer, id))
            s->end_id = id;
        else if (!tokenizer_is_control(s->tokenizer, id) && t.len == 1 && t.data[0] >= ' ' && t.data[0] < 127)
            s->usable[s->n_usable++] = id;
    }
    assert_true(s->n_usable >= 16 && s->end_id != UINT32_MAX);
}

static void fill_defaults(struct engine_sim_options *o)
{
    o->n_stages = o->n_stages ? o->n_stages : 2;
    o->n_slots = o->n_slots ? o->n_slots : 4;
    if (o->tick_us == 0 && o->row_us == 0 && o->token_us == 0)
        o->tick_us = 4000, o->row_us = 100, o->token_us = 250;
    o->check_every = o->check_every ? o->check_every : 32;
    o->seed = o->seed ? o->seed : 1;
}

struct engine_sim *engine_sim_open(const struct engine_sim_options *o)
{
    struct engine_sim *s = calloc(1, sizeof *s);
    struct error err = {0};
    assert_non_null(s);
    s->o = *o;
    fill_defaults(&s->o);
    log_set_levels("error,pipeline=error,engine=error", NULL);
    read_config(s);
    if (model_open(SLUICE_VECTORS "/tiny/llama-f32.gguf", &s->model, &err) != STATUS_OK ||
        tokenizer_create(s->model.gguf, &s->tokenizer, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    find_usable(s);
    s->split.n_stages = s->o.n_stages;
    for (uint32_t i = 0; i <= s->o.n_stages; i++)
        s->split.first_layer[i] = i;
    s->now_ns = s->wake_ns = START_NS;
    s->next_beat_ns = START_NS + s->config.heartbeat_ms * NS_PER_MS;
    const struct engine_options eo = {.config = &s->config, .model = &s->model, .tokenizer = s->tokenizer, .split = &s->split,
                                      .model_name = "sim", .manual = 1, .hash_bits = s->o.hash_bits};
    if (engine_create(&eo, &s->engine, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    engine_sim__stages_init(s);
    while (!engine_ready(s->engine)) {
        engine_sim_step(s);
        assert_true(s->now_ns < START_NS + 10 * NS_PER_S);
    }
    return s;
}

void engine_sim_close(struct engine_sim *s)
{
    s->closing = 1;
    engine_stop(s->engine);
    engine_destroy(s->engine);
    assert_int_equal(s->counts.open, 0);
    assert_int_equal(s->n_calls, 0);
    engine_sim__stages_fini(s);
    free(s->timers);
    free(s->usable);
    tokenizer_destroy(s->tokenizer);
    model_close(&s->model);
    free(s);
}

struct engine *engine_sim_engine(struct engine_sim *s)
{
    return s->engine;
}

const struct config *engine_sim_config(const struct engine_sim *s)
{
    return &s->config;
}

struct engine_sim_counts engine_sim_counts(const struct engine_sim *s)
{
    return s->counts;
}

int64_t engine_sim_now_ns(const struct engine_sim *s)
{
    return s->now_ns;
}

uint64_t engine_sim_draw(struct engine_sim *s)
{
    return rand_at(s->o.seed + 2, s->draws++);
}

double engine_sim_unit(struct engine_sim *s)
{
    return (double)(engine_sim_draw(s) >> 11) * 0x1p-53;
}

void engine_sim_on_step(struct engine_sim *s, void (*fn)(struct engine_sim *s, void *ctx), void *ctx)
{
    s->on_step = fn;
    s->on_step_ctx = ctx;
}
