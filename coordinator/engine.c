#include "coordinator/engine_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/trace.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

static const int64_t PERIOD_NS = 50 * NS_PER_MS;
static const int64_t JUMP_NS = NS_PER_S;
/* A change is seen after this, however many there are. A snapshot takes 10 us and 0.12 us a slot (Zen 3): with thousands of
 * slots it is made less often, so that it never costs more than about a hundredth of the time. */
static const int64_t PUBLISH_NS = 10 * NS_PER_MS, PUBLISH_SLOT_NS = 10000;

/* --- ports ------------------------------------------------------------------------------------------------------------------ */

static enum status attachment_send(void *ctx, const struct to_stage *m)
{
    struct engine_attachment *a = ctx;
    return a->closed ? STATUS_CLOSED : a->port.send(a->port.ctx, m);
}

static void attachment_close(void *ctx, const struct error *why)
{
    struct engine_attachment *a = ctx;
    if (a->closed)
        return;
    a->closed = 1;
    a->port.close(a->port.ctx, why);
}

static struct engine_attachment *find_attachment(struct engine *e, uint64_t id)
{
    for (int i = 0; i < ENGINE_MAX_ATTACHMENTS; i++)
        if (e->attachments[i].id == id)
            return &e->attachments[i];
    return NULL;
}

static void attach(struct engine *e, uint64_t id, const struct stage_port *port, int64_t now)
{
    struct engine_attachment *a = find_attachment(e, 0);
    struct error why;
    if (!a) {
        error_set(&why, STATUS_FULL, "too many streams are attached");
        port->close(port->ctx, &why);
        return;
    }
    *a = (struct engine_attachment){.id = id, .port = *port};
    const struct stage_port mine = {a, attachment_send, attachment_close};
    a->pipeline = pipeline_attached(e->pipeline, &mine, now);
    if (!a->pipeline) {
        error_set(&why, STATUS_FULL, "too many streams are attached");
        attachment_close(a, &why);
        a->id = 0;
    }
}

static void stream_closed(struct engine *e, uint64_t id, int64_t now)
{
    struct engine_attachment *a = find_attachment(e, id);
    if (!a)
        return;
    struct error why;
    error_set(&why, STATUS_CLOSED, "the stream ended");
    pipeline_closed(e->pipeline, a->pipeline, now);
    attachment_close(a, &why);
    a->id = 0;
}

/* --- inbox ------------------------------------------------------------------------------------------------------------------- */

static void give_back(struct engine *e, struct result *r)
{
    CHECK(queue_push(e->free_results, &r) == STATUS_OK); /* it has room for all of them */
}

/* Stages may come back with other numerics, all of them: what begins then must say so, or nobody goes on with it after this
 * process. Others read the text without a lock, so it is never written over. */
static void note_profile(struct engine *e)
{
    const char *profile = pipeline_profile(e->pipeline), *before = engine_profile(e);
    int i = 0;
    if (!profile[0] || strcmp(profile, before) == 0)
        return;
    while (i < e->n_profiles && strcmp(e->profile[i], profile) != 0)
        i++;
    if (i == ENGINE_PROFILES)
        return;
    if (i == e->n_profiles)
        snprintf(e->profile[e->n_profiles++], sizeof e->profile[0], "%s", profile);
    atomic_store_explicit(&e->profiled, e->profile[i], memory_order_release);
}

static void stage_message(struct engine *e, uint64_t id, const struct from_stage *m, int64_t now)
{
    struct engine_attachment *a = find_attachment(e, id);
    enum pipeline_take take = a ? pipeline_message(e->pipeline, a->pipeline, m, now) : PIPELINE_TAKEN;
    if (take == PIPELINE_RESULT)
        engine__result(e, m->result, now);
    if (take == PIPELINE_TIMINGS)
        for (uint32_t i = 0; i < m->timings.n && i < MAX_TIMINGS; i++)
            engine__timing(e, &m->timings.timing[i]);
    if (m->kind == FROM_STAGE_RESULT && m->result)
        give_back(e, m->result);
    note_profile(e);
}

static void handle(struct engine *e, const struct engine_message *m, int64_t now)
{
    e->dirty = 1;
    /* What the message before, or time, made of the pipeline comes first: a request that is admitted to a new epoch whose
     * reset is still to come would be forgotten by scheduler and blocks, and never end. */
    engine__pipeline_events(e, now);
    switch (m->kind) {
    case ENGINE_SUBMIT:
        engine__submit(e, m->request, now);
        atomic_fetch_sub(&e->submitting, 1); /* from here on the counts know it */
        break;
    case ENGINE_CANCEL:
        atomic_fetch_sub(&e->cancelling, 1);
        engine__cancel(e, m->request);
        request_release(m->request);
        break;
    case ENGINE_DRAIN:
        e->draining = m->on;
        break;
    case ENGINE_ATTACHED:
        attach(e, m->attachment, &m->port, now);
        break;
    case ENGINE_STAGE_MESSAGE:
        stage_message(e, m->attachment, &m->message, now);
        break;
    case ENGINE_STAGE_CLOSED:
        stream_closed(e, m->attachment, now);
        break;
    }
}

static void check_overflow(struct engine *e, int64_t now)
{
    if (atomic_exchange(&e->cancel_overflowed, 0))
        engine__cancel_flagged(e);
    if (atomic_exchange(&e->overflowed, 0)) {
        struct error why;
        error_set(&why, STATUS_FULL, "the engine's inbox overflowed and lost a stage's message");
        pipeline_fail(e->pipeline, STAGE_NONE, &why, now);
    }
}

static void periodic(struct engine *e, int64_t now)
{
    if (now < e->next_periodic_ns)
        return;
    e->next_periodic_ns = now + PERIOD_NS;
    engine__expire(e, now);
    engine__progress(e, now);
    engine__retry_stalled(e, now);
    e->dirty = 1;
}

static int64_t publish_at(const struct engine *e)
{
    return e->published_ns + PUBLISH_NS + (int64_t)e->n_slots * PUBLISH_SLOT_NS;
}

/* A longer silence of this thread is a stop of this process: what others did not do meanwhile is not held against them. The
 * pipeline has a guard of its own. */
static void look_at_clock(struct engine *e, int64_t now)
{
    int64_t gap = now - e->last_turn_ns;
    if (e->last_turn_ns && gap > JUMP_NS) {
        LOG_WARN("this process stood still for %.1f s: deadlines of others are skipped once", engine__seconds(e->last_turn_ns, now));
        if (e->lost_ns)
            e->lost_ns += gap;
        e->patient_ns = now + e->o.config->write_stall_ms * NS_PER_MS;
    }
    e->last_turn_ns = now;
}

static void turn(struct engine *e, int64_t now)
{
    check_overflow(e, now);
    engine__pipeline_events(e, now);
    periodic(e, now);
    engine__relieve(e, now);
    engine__admit(e, now);
    engine__send_ticks(e, now);
    engine__pipeline_events(e, now); /* a plan that could not be sent ends the epoch */
    ASSERT((engine__check(e), 1));
    if (e->dirty && now >= publish_at(e))
        engine__publish(e, now);
}

static int64_t wake_at(struct engine *e, int64_t now)
{
    int64_t at = pipeline_time(e->pipeline, now);
    if (e->next_periodic_ns < at) /* it also ends waits: their deadlines need no wake of their own */
        at = e->next_periodic_ns;
    if (e->dirty && publish_at(e) < at)
        at = publish_at(e);
    return at > now ? at : now + 1;
}

static void end_all(struct engine *e)
{
    struct error why;
    error_set(&why, STATUS_DRAINING, "the service is ending");
    why.retry_after_s = 2;
    engine__fail_all(e, &e->running, &why);
    engine__fail_all(e, &e->parked, &why);
    engine__fail_all(e, &e->queued, &why);
    pipeline_stop(e->pipeline); /* EXIT: the stages are needed no more */
    for (int i = 0; i < ENGINE_MAX_ATTACHMENTS; i++)
        if (e->attachments[i].id)
            attachment_close(&e->attachments[i], &why);
}

/* What still lies in the inbox after the end: nothing may be lost that somebody waits for. */
static void refuse(struct engine *e, const struct engine_message *m)
{
    struct error why;
    error_set(&why, STATUS_DRAINING, "the service is ending");
    why.retry_after_s = 2;
    if (m->kind == ENGINE_SUBMIT) {
        atomic_fetch_sub(&e->submitting, 1);
        m->request->sink.finish(m->request->sink.ctx, &why);
        request_release(m->request);
    } else if (m->kind == ENGINE_CANCEL) {
        request_release(m->request);
    } else if (m->kind == ENGINE_ATTACHED) {
        m->port.close(m->port.ctx, &why);
    } else if (m->kind == ENGINE_STAGE_MESSAGE && m->message.kind == FROM_STAGE_RESULT && m->message.result) {
        give_back(e, m->message.result);
    }
}

/* At most so many messages before plans are made again: a flood of one kind must not keep ticks waiting. */
enum { MESSAGES_PER_TURN = 256 };

/* m: the first message, NULL: none has come. 1: more are waiting. */
static int turn_with(struct engine *e, struct engine_message *m, int64_t now)
{
    struct engine_message next;
    e->now_ns = now;
    look_at_clock(e, now); /* before what came: what is lost by it is lost now */
    int n = 0;
    for (; m && n < MESSAGES_PER_TURN; n++) {
        handle(e, m, now);
        m = n + 1 < MESSAGES_PER_TURN && queue_pop(e->inbox, &next, 0) == STATUS_OK ? &next : NULL;
    }
    turn(e, now);
    return n == MESSAGES_PER_TURN;
}

int64_t engine_step(struct engine *e, int64_t now_ns)
{
    struct engine_message m;
    while (turn_with(e, queue_pop(e->inbox, &m, 0) == STATUS_OK ? &m : NULL, now_ns))
        ;
    return wake_at(e, now_ns);
}

static void finish_inbox(struct engine *e)
{
    struct engine_message m;
    end_all(e);
    engine__publish(e, e->now_ns);
    queue_close(e->inbox);
    while (queue_pop(e->inbox, &m, 0) == STATUS_OK)
        refuse(e, &m);
}

static void *run(void *arg)
{
    struct engine *e = arg;
    struct engine_message m;
    pthread_setname_np(pthread_self(), "engine");
    while (!atomic_load(&e->stopping)) {
        enum status s = queue_pop(e->inbox, &m, wake_at(e, clock_now_ns()));
        turn_with(e, s == STATUS_OK ? &m : NULL, clock_now_ns());
        atomic_fetch_add_explicit(&e->n_turns, 1, memory_order_relaxed);
    }
    e->now_ns = clock_now_ns();
    finish_inbox(e);
    return NULL;
}

/* --- life --------------------------------------------------------------------------------------------------------------------- */

/* As the stages work it out for themselves from their assignment. */
static struct kv_window kv_window(const struct engine *e)
{
    return kv_window_of(&(struct kv_window){.window = e->o.model->hp.window, .kv_block = (uint32_t)e->o.config->kv_block,
                                            .slots = e->n_slots, .context = e->context, .max_rows = e->max_rows,
                                            .ticks = e->window});
}

static enum status create_tables(struct engine *e, struct error *err)
{
    const struct config *c = e->o.config;
    const struct admission_limits limits = {
        .queue_requests = (uint32_t)c->queue_requests,
        .queue_tokens = (uint64_t)c->queue_tokens,
        .queue_wait_ns = c->queue_wait_ms * NS_PER_MS,
        .n_slots = e->n_slots,
        .client_slots = (uint32_t)c->client_slots,
        .client_queue = (uint32_t)c->client_queue,
    };
    const struct sched_options so = {
        .n_stages = e->n_stages,
        .n_slots = e->n_slots,
        .max_rows = e->max_rows,
        .piece_max = c->piece_max > 0 ? (uint32_t)c->piece_max : 0,
        .decode_share = c->decode_share,
        .max_stall_us = (double)c->max_stall_ms * 1000,
        .max_tick_us = (double)c->max_tick_ms * 1000,
        .delta_us = 50,
        .lambda_us = 100,
    };
    struct pipeline_options po = {.config = c, .split = e->o.split, .n_layers = e->o.model->hp.n_layers,
                                  .context = e->context, .max_rows = e->max_rows};
    memcpy(po.model_hash, e->o.model->hash, sizeof po.model_hash);
    struct blocks_options bo = {.n_slots = e->n_slots, .context = e->context, .kv_block = (uint32_t)c->kv_block,
                                .hash_bits = e->o.hash_bits, .window = kv_window(e)};
    if (getrandom(&bo.hash_key, sizeof bo.hash_key, 0) != sizeof bo.hash_key ||
        getrandom(e->hash_key, sizeof e->hash_key, 0) != sizeof e->hash_key)
        return error_set(err, STATUS_IO, "no random keys for names and the prefix map");
    uint32_t n_groups = bo.window.window ? 2 : 1, per_sequence = (e->context + (uint32_t)c->kv_block - 1) / (uint32_t)c->kv_block;
    e->new_blocks = calloc(2 * (size_t)per_sequence, sizeof *e->new_blocks);
    enum status s = e->new_blocks ? slots_create(e->n_slots, &e->slots) : STATUS_OUT_OF_MEMORY;
    if (s == STATUS_OK)
        s = blocks_create(&bo, &e->blocks);
    if (s == STATUS_OK)
        s = admission_create(&limits, &e->admission);
    if (s == STATUS_OK)
        s = sched_create(&so, &e->sched);
    if (s == STATUS_OK)
        s = sched_plan_create(e->sched, &e->sched_plan);
    if (s == STATUS_OK)
        s = pipeline_create(&po, &e->pipeline);
    if (s == STATUS_OK) /* a tick may open every slot and close every predecessor; its words are ids, new blocks and what OPENs bring */
        s = plan_create(3 * e->n_slots, e->max_rows, e->max_rows + n_groups * e->n_slots * per_sequence + PLAN_OPEN_WORDS,
                        &e->plan);
    if (s != STATUS_OK)
        return error_set(err, s, "the engine's tables cannot be made: %s", status_text(s));
    return STATUS_OK;
}

static enum status create_rings(struct engine *e)
{
    e->flights = calloc(e->window, sizeof *e->flights);
    e->by_slot = calloc(e->n_slots, sizeof *e->by_slot);
    e->closes = calloc(e->n_slots, sizeof *e->closes);
    uint32_t n_scratch = e->context < PLAN_OPEN_WORDS ? e->context : PLAN_OPEN_WORDS;
    e->scratch = calloc(n_scratch > e->max_rows ? n_scratch : e->max_rows, sizeof *e->scratch);
    e->snapshot = calloc(1, sizeof *e->snapshot);
    e->spare = calloc(1, sizeof *e->spare);
    e->n_results = 2 * e->window + 2;
    e->results = calloc(e->n_results, sizeof *e->results);
    if (!e->flights || !e->by_slot || !e->closes || !e->scratch || !e->snapshot || !e->spare || !e->results)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < e->window; i++)
        if (!(e->flights[i].runs = calloc(e->max_rows, sizeof *e->flights[i].runs)) ||
            !(e->flights[i].again = calloc(e->max_rows, sizeof *e->flights[i].again)))
            return STATUS_OUT_OF_MEMORY;
    TRY(queue_create(ENGINE_INBOX, sizeof(struct engine_message), &e->inbox));
    TRY(queue_create(e->n_results, sizeof(struct result *), &e->free_results));
    for (uint32_t i = 0; i < e->n_results; i++) {
        TRY(result_create(e->max_rows, &e->results[i]));
        give_back(e, e->results[i]);
    }
    return STATUS_OK;
}

enum status engine_create(const struct engine_options *o, struct engine **out, struct error *err)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the engine");
    e->o = *o;
    e->n_stages = o->split->n_stages;
    e->n_slots = (uint32_t)o->config->slots;
    e->context = o->config->context > 0 ? (uint32_t)o->config->context : o->model->hp.n_context;
    e->max_rows = o->config->max_rows > 0 ? (uint32_t)o->config->max_rows : SCHED_MAX_ROWS_AUTO;
    if (e->max_rows < e->n_slots)
        e->max_rows = e->n_slots;
    e->window = e->n_stages + 1;
    list_init(&e->queued);
    list_init(&e->running);
    list_init(&e->parked);
    for (int i = 0; i < ENGINE_TOKEN_LISTS; i++)
        list_init(&e->living[i]);
    atomic_init(&e->idle, 1);
    pthread_mutex_init(&e->snapshot_lock, NULL);
    enum status s = create_tables(e, err);
    if (s == STATUS_OK && (s = create_rings(e)) != STATUS_OK)
        error_set(err, s, "no memory for the engine");
    if (s == STATUS_OK) {
        e->now_ns = e->created_ns = o->manual ? 0 : clock_now_ns();
        e->epoch_retired = 1;
        engine__publish(e, e->now_ns);
        e->started = o->manual || pthread_create(&e->thread, NULL, run, e) == 0;
        if (!e->started)
            s = error_set(err, STATUS_OUT_OF_MEMORY, "the engine's thread cannot be started");
    }
    if (s != STATUS_OK) {
        engine_destroy(e);
        return s;
    }
    *out = e;
    return STATUS_OK;
}

void engine_stop(struct engine *e)
{
    if (!e->started)
        return;
    e->started = 0;
    if (e->o.manual) {
        finish_inbox(e);
        return;
    }
    atomic_store(&e->stopping, 1);
    queue_wake(e->inbox);
    pthread_join(e->thread, NULL);
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    engine_stop(e);
    for (uint32_t i = 0; e->results && i < e->n_results; i++)
        result_destroy(e->results[i]);
    for (uint32_t i = 0; e->flights && i < e->window; i++) {
        free(e->flights[i].runs);
        free(e->flights[i].again);
    }
    free(e->results);
    free(e->flights);
    free(e->by_slot);
    free(e->closes);
    free(e->scratch);
    free(e->new_blocks);
    free(e->snapshot);
    free(e->spare);
    queue_destroy(e->inbox);
    queue_destroy(e->free_results);
    plan_destroy(e->plan);
    if (e->pipeline)
        pipeline_destroy(e->pipeline);
    if (e->sched_plan)
        sched_plan_destroy(e->sched_plan);
    if (e->sched)
        sched_destroy(e->sched);
    if (e->admission)
        admission_destroy(e->admission);
    if (e->blocks)
        blocks_destroy(e->blocks);
    if (e->slots)
        slots_destroy(e->slots);
    pthread_mutex_destroy(&e->snapshot_lock);
    free(e);
}

/* --- from other threads ----------------------------------------------------------------------------------------------------- */

enum status engine_submit(struct engine *e, struct request *r)
{
    enum status s = STATUS_FULL;
    if (atomic_fetch_add(&e->submitting, 1) < ENGINE_INBOX_SUBMITS)
        s = queue_push(e->inbox, &(struct engine_message){.kind = ENGINE_SUBMIT, .request = r});
    if (s != STATUS_OK)
        atomic_fetch_sub(&e->submitting, 1);
    return s == STATUS_CLOSED ? STATUS_DRAINING : s;
}

void engine_count_refused(struct engine *e, enum status why)
{
    if (status_retryable(why))
        atomic_fetch_add_explicit(&e->refused[engine__reject_reason(why)], 1, memory_order_relaxed);
}

void engine_cancel(struct engine *e, struct request *r)
{
    request_retain(r);
    if (atomic_fetch_add(&e->cancelling, 1) < ENGINE_INBOX_CANCELS &&
        queue_push(e->inbox, &(struct engine_message){.kind = ENGINE_CANCEL, .request = r}) == STATUS_OK)
        return;
    atomic_fetch_sub(&e->cancelling, 1);
    request_release(r);
    atomic_store(&e->cancel_overflowed, 1); /* r->cancelled is set: the engine reads the flags itself */
}

void engine_drain(struct engine *e, int on)
{
    queue_push(e->inbox, &(struct engine_message){.kind = ENGINE_DRAIN, .on = on});
}

uint64_t engine_stage_attached(struct engine *e, const struct stage_port *port)
{
    uint64_t id = atomic_fetch_add(&e->next_attachment, 1) + 1;
    struct engine_message m = {.kind = ENGINE_ATTACHED, .attachment = id};
    m.port = *port;
    if (queue_push(e->inbox, &m) != STATUS_OK) {
        struct error why;
        error_set(&why, STATUS_DRAINING, "the coordinator is ending");
        port->close(port->ctx, &why);
    }
    return id;
}

void engine_stage_message(struct engine *e, uint64_t attachment, const struct from_stage *from)
{
    struct engine_message m = {.kind = ENGINE_STAGE_MESSAGE, .attachment = attachment};
    m.message = *from;
    if (queue_push(e->inbox, &m) == STATUS_OK)
        return;
    if (from->kind == FROM_STAGE_RESULT && from->result)
        give_back(e, from->result);
    atomic_store(&e->overflowed, 1);
}

void engine_stage_closed(struct engine *e, uint64_t attachment)
{
    struct engine_message m = {.kind = ENGINE_STAGE_CLOSED, .attachment = attachment};
    if (queue_push(e->inbox, &m) != STATUS_OK)
        atomic_store(&e->overflowed, 1);
}

struct result *engine_result_acquire(struct engine *e)
{
    struct result *r = NULL;
    return queue_pop(e->free_results, &r, 0) == STATUS_OK ? r : NULL;
}

const char *engine_profile(const struct engine *e)
{
    const char *profile = atomic_load_explicit(&e->profiled, memory_order_acquire);
    return profile ? profile : "";
}
