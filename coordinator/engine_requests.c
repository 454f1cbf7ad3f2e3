#include "coordinator/engine_impl.h"

#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/siphash.h"
#include "common/base/trace.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

/* How often a waiting or reading request is told where it stands. */
static const int64_t PROGRESS_NS = NS_PER_S;
/* How often the prompt of the first in line is looked up while no more blocks are available. */
static const int64_t LOOK_NS = 20 * NS_PER_MS;

static struct request *of_item(struct admission_item *i)
{
    return LIST_ENTRY(i, struct request, item);
}

/* Keyed: nobody can make up a name that is taken for another's, or many that crowd one place of a table. */
uint64_t engine__hash_text(const struct engine *e, const char *text)
{
    struct siphash h = siphash_start(e->hash_key[0], e->hash_key[1]);
    for (size_t n = strlen(text), at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t word = 0; /* no text holds a zero, so filling up makes no two alike */
        memcpy(&word, text + at, n - at < sizeof word ? n - at : sizeof word);
        siphash_add(&h, word);
    }
    return siphash_end(h);
}

uint32_t engine__id_at(const struct request *r, uint32_t position)
{
    return position < r->n_prompt ? r->prompt_ids[position] : r->answer_ids[position - r->n_prompt];
}

void engine__set_state(struct engine *e, struct request *r, enum request_state to)
{
    uint32_t *const counts[REQUEST_N_STATES] = {
        [REQUEST_QUEUED] = &e->n_queued, [REQUEST_READING] = &e->n_reading, [REQUEST_DECODING] = &e->n_decoding,
        [REQUEST_PARKED] = &e->n_parked};
    if (counts[r->state])
        --*counts[r->state];
    if (counts[to])
        ++*counts[to];
    e->n_preempted -= r->preempted != 0; /* who preempts says so afterwards */
    r->preempted = 0;
    trace_event("request", (int64_t)r->ref.seq, (int64_t)r->ref.slot, r->state, to);
    r->state = to;
    e->dirty = 1;
}

/* After the terminal event is out, and before a request that came counts as handled: who sees idle can stop the engine. */
static void note_idle(struct engine *e)
{
    atomic_store(&e->idle, e->n_queued + e->n_reading + e->n_decoding + e->n_parked == 0);
}

/* --- end of a request ------------------------------------------------------------------------------------------------------- */

/* Its blocks drain behind the ticks in flight and stay as cache. Results that are still to come are nobody's. */
static void leave_slot(struct engine *e, struct request *r)
{
    engine__not_starved(e, r);
    sched_remove(e->sched, r->ref);
    blocks_close(e->blocks, r->ref, sched_last_tick(e->sched));
    engine__opened(e, r);
    if (r->opened) {
        CHECK(e->n_closes < e->n_slots);
        e->closes[e->n_closes++] = r->ref.seq;
    }
    slots_release(e->slots, r->ref);
    e->by_slot[r->ref.slot] = NULL;
}

void engine__park(struct engine *e, struct request *r, int64_t now)
{
    leave_slot(e, r);
    r->item.deadline_ns = 0; /* engine__expire ends those that have begun */
    if (r->ending) /* it needs no slot again, only a client that reads */
        admission_finish(e->admission, &r->item);
    else if (!r->throttled) /* else when its client has read: whoever cannot go on is not the first in line */
        admission_park(e->admission, &r->item, now);
    list_remove(&r->link);
    list_push_back(&e->parked, &r->link);
    engine__set_state(e, r, REQUEST_PARKED);
}

static void count_end(struct engine *e, const struct request *r, enum request_state state, const struct error *err)
{
    struct metrics *m = &e->metrics;
    if (state == REQUEST_CANCELLED)
        m->cancelled++;
    else if (err && err->status == STATUS_QUEUE_WAIT)
        m->expired++;
    else if (state != REQUEST_DONE) /* those were counted with their usage */
        m->failed++;
    if (err && err->status == STATUS_QUEUE_WAIT)
        m->rejected[REJECT_QUEUE_WAIT]++;
    histogram_add(&m->e2e, engine__seconds(r->arrived_ns, e->now_ns), 1);
}

/* Clients that leave, and waits that end in a full queue, are counted: a line for each is one that any client can write. */
static enum log_level level_of(const struct error *err)
{
    return err->status == STATUS_CANCELLED || err->status == STATUS_QUEUE_WAIT ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
}

void engine__end(struct engine *e, struct request *r, enum request_state state, const struct error *err)
{
    if (r->state == REQUEST_QUEUED || r->state == REQUEST_PARKED) {
        if (r->item.running) /* parked, and its client does not read */
            admission_finish(e->admission, &r->item);
        else
            admission_remove(e->admission, &r->item);
    } else if (r->state == REQUEST_READING || r->state == REQUEST_DECODING) {
        if (r->no_cache)
            blocks_forget(e->blocks, r->ref);
        leave_slot(e, r);
        admission_finish(e->admission, &r->item);
    } else {
        return;
    }
    if (state == REQUEST_DONE) /* the length of one whose client left says nothing */
        admission_answered(e->admission, r->n_answer);
    list_remove(&r->link);
    list_remove(&r->by_token);
    engine__leave_quarantine(e, r);
    engine__set_state(e, r, state);
    count_end(e, r, state, err);
    if (err)
        LOG_AT(level_of(err), "req %s: %s after %u prompt and %u answer tokens: %s", r->id, request_state_name(state), r->n_read,
               r->n_answer, err->message);
    else
        LOG_DEBUG("req %s: %s, %u prompt and %u answer tokens", r->id, request_state_name(state), r->n_prompt, r->n_answer);
    r->sink.finish(r->sink.ctx, err);
    request_release(r);
    note_idle(e);
}

void engine__fail_all(struct engine *e, struct list *requests, const struct error *why)
{
    LIST_EACH(it, requests)
        engine__end(e, LIST_ENTRY(it, struct request, link), REQUEST_FAILED, why);
}

/* A request that has ended, or was never taken, is left alone. */
void engine__cancel(struct engine *e, struct request *r)
{
    struct error why;
    error_set(&why, STATUS_CANCELLED, "the client left");
    engine__end(e, r, REQUEST_CANCELLED, &why);
}

void engine__cancel_flagged(struct engine *e)
{
    struct list *const lists[] = {&e->queued, &e->running, &e->parked};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        LIST_EACH(it, lists[i]) {
            struct request *r = LIST_ENTRY(it, struct request, link);
            if (atomic_load(&r->cancelled))
                engine__cancel(e, r);
        }
}

/* --- submit and admission --------------------------------------------------------------------------------------------------- */

/* An answer "to the end of the context" ends with the pool where that is the smaller one: the client named no length, or one
 * beyond the context, so there is none to be refused. */
static void fit_answer(const struct engine *e, struct request *r, uint32_t n_blocks)
{
    uint64_t positions = (uint64_t)n_blocks * (uint64_t)e->o.config->kv_block;
    uint64_t room = positions - r->n_prompt + 1;
    if (r->max_tokens != r->answer_limit && positions >= r->n_prompt && room >= r->n_answer && room < r->answer_limit)
        r->answer_limit = (uint32_t)room;
}

static enum status can_ever_run(struct engine *e, struct request *r, struct error *err)
{
    struct blocks_count count = blocks_counts(e->blocks);
    if (count.total > 0 && !r->item.started) /* else its answer has begun with a limit that was told to the planner */
        fit_answer(e, r, count.total);
    uint32_t need = blocks_needed(e->blocks, engine__positions_needed(r));
    if (count.total == 0 || blocks_ever_fit(e->blocks, need)) /* no pool is known before the stages have loaded */
        return STATUS_OK;
    return error_param(err, STATUS_BAD_REQUEST, r->prompt_kind == PROMPT_CHAT ? "messages" : "prompt", "kv_pool_exceeded",
                       "prompt and answer need %u KV blocks, the pool has %u: ask for fewer than %u tokens in all", need,
                       count.total, count.total * (uint32_t)e->o.config->kv_block + 1);
}

enum reject_reason engine__reject_reason(enum status s)
{
    return s == STATUS_CLIENT_LIMIT ? REJECT_CLIENT_LIMIT
           : s == STATUS_DRAINING   ? REJECT_DRAINING
           : s == STATUS_PIPELINE   ? REJECT_NOT_READY
                                    : REJECT_QUEUE_FULL;
}

/* Somebody is parked who does not wait for his client. */
static int may_go_on(const struct engine *e)
{
    LIST_EACH(it, &e->parked)
        if (!LIST_ENTRY(it, struct request, link)->throttled)
            return 1;
    return 0;
}

static enum status take(struct engine *e, struct request *r, int64_t now, struct error *err)
{
    if (e->draining && !engine__is_part_of_running(e, r)) {
        error_set(err, STATUS_DRAINING, "the service is ending and takes no new requests");
        err->retry_after_s = 5;
        return STATUS_DRAINING;
    }
    if (e->lost_ns && now - e->lost_ns > e->o.config->recovery_timeout_ms * NS_PER_MS) {
        error_set(err, STATUS_PIPELINE, "the pipeline has been lost for %.0f s: %.200s", engine__seconds(e->lost_ns, now),
                  engine__why_lost(e, (char[LOST_TEXT]){0}));
        err->retry_after_s = 10;
        return STATUS_PIPELINE;
    }
    TRY(can_ever_run(e, r, err));
    if (r->resumed)
        TRY(engine__take_over(e, r, now, err));
    r->item = (struct admission_item){
        .client = engine__hash_text(e, r->client),
        .batch = r->batch_priority,
        .n_prompt = r->n_prompt,
        .n_answer_max = r->answer_limit,
        .resumed = r->resumed,
        .sibling = engine__has_sibling(e, r),
        .deadline_ns = r->goes_first ? 0 : r->deadline_ns, /* engine__expire ends those that have begun */
    };
    int may_start = pipeline_running(e->pipeline) && slots_count(e->slots, SLOT_FREE) > 0 && !may_go_on(e) &&
                    !engine__is_short(e) && engine__has_room(e, r);
    return admission_push(e->admission, &r->item, may_start, now, err);
}

static void send_accepted(struct request *r, const char *model, const char *profile)
{
    uint8_t token[RESUME_TOKEN_BYTES];
    uint32_t n_token = resume_token_write(&r->token, token);
    const struct generate_event ev = {
        .kind = GENERATE_ACCEPTED,
        .request_id = {r->id, strlen(r->id)},
        .model = {model, strlen(model)},
        .profile = {profile, strlen(profile)},
        .seed = r->sampler.seed,
        .prompt_tokens = r->n_prompt,
        .ids = r->prompt_ids,
        .n_ids = r->n_prompt,
        .resume_token = {(const char *)token, n_token},
    };
    r->sink.send(r->sink.ctx, &ev); /* a call that is gone already is told by its cancel */
}

void engine__submit(struct engine *e, struct request *r, int64_t now)
{
    struct error err = {0};
    if (atomic_load(&r->cancelled))
        error_set(&err, STATUS_CANCELLED, "the client left");
    else
        take(e, r, now, &err);
    if (err.status != STATUS_OK) {
        if (status_retryable(err.status))
            e->metrics.rejected[engine__reject_reason(err.status)]++;
        LOG_DEBUG("req %s: refused: %s", r->id, err.message);
        r->sink.finish(r->sink.ctx, &err);
        request_release(r);
        return;
    }
    if (!r->resumed) /* else request_take_up did */
        output_init(&r->output, e->o.tokenizer, r->stops, r->n_stops);
    e->metrics.accepted++;
    list_push_back(r->goes_first ? &e->parked : &e->queued, &r->link);
    engine__known(e, r);
    engine__set_state(e, r, r->goes_first ? REQUEST_PARKED : REQUEST_QUEUED);
    note_idle(e);
    r->last_progress_ns = now;
    if (r->resumed)
        engine__take_up(e, r, now);
    send_accepted(r, e->o.model_name, engine_profile(e));
    LOG_DEBUG("req %s: accepted, %u prompt tokens, at most %u answer tokens", r->id, r->n_prompt, r->answer_limit);
    if (engine__settle(e, r))
        return;
    /* Before the next one is judged: a free slot is not a place in the queue. But whoever waits before it is looked at once a
     * turn only: his prompt may be long to look up, and strangers could ask for that with each request. */
    if (!may_go_on(e) && admission_next(e->admission) == &r->item)
        engine__admit(e, now);
}

static void start(struct engine *e, struct request *r, int64_t now)
{
    CHECK(slots_acquire(e->slots, &r->ref) == STATUS_OK);
    uint32_t n_cached = engine__take_room(e, r), n_input = engine__input(r);
    const struct sched_sequence q = {
        .position = n_cached,
        .n_prompt = n_input,
        .n_answer = r->answer_limit - r->n_answer,
        .order = r->order,
        .limit = engine__limit(e, r),
        .run_rows = 1,
    };
    CHECK(sched_add(e->sched, r->ref, &q) == STATUS_OK);
    e->by_slot[r->ref.slot] = r;
    list_remove(&r->link);
    list_push_back(&e->running, &r->link);
    r->opened = 0;
    r->open_words = request_open_words(r, n_input);
    e->open_words += r->open_words;
    r->n_read = n_cached;
    if (n_cached > r->n_planned) { /* also of one that was parked as it read, where another has read on since */
        e->metrics.cached_tokens += n_cached - r->n_planned;
        r->n_planned = n_cached;
    }
    r->last_progress_ns = now;
    int is_first = !r->item.started;
    if (is_first && r->n_answer == 0) {
        r->admitted_ns = now;
        r->n_cached = n_cached;
        histogram_add(&e->metrics.queue, engine__seconds(r->arrived_ns, now), 1);
    } else {
        LOG_INFO("req %s: goes on, %u of %u positions are cached", r->id, n_cached, n_input);
    }
    admission_start(e->admission, &r->item, is_first ? n_input - n_cached : 0);
    if (r->resumed && is_first) /* paid for here like everything else: who shows a token gets nothing for free */
        admission_charge(e->admission, &r->item, n_input - n_cached);
    engine__set_state(e, r, REQUEST_READING);
}

/* Looking a long prompt up takes a millisecond: not in every turn while nothing came free. What waits for others to read the
 * same, which frees nothing, is seen a little later. */
static int look_for_room(struct engine *e, const struct request *r, int64_t now)
{
    uint32_t available = blocks_available(e->blocks);
    if (e->no_room.order == r->item.order && available <= e->no_room.available && now < e->no_room.until_ns)
        return 0;
    int found = engine__has_room(e, r);
    e->no_room.order = found ? 0 : r->item.order;
    e->no_room.available = available;
    e->no_room.until_ns = now + LOOK_NS;
    return found;
}

/* All that have a slot and are not open may be opened in one plan, whose words are bounded. */
static int open_fits(const struct engine *e, const struct request *r)
{
    return e->open_words == 0 || request_open_words(r, engine__input(r)) <= PLAN_OPEN_WORDS - e->open_words;
}

/* Who was parked comes first. The first in line starts, or nobody does: a large request is not overtaken for ever by small
 * ones. */
static int admit_one(struct engine *e, int64_t now)
{
    if (slots_count(e->slots, SLOT_FREE) == 0)
        return 0;
    struct request *r = engine__alone(e);
    if (r && r->state != REQUEST_PARKED)
        return 0;
    if (r) /* it is the next one's turn: who was found innocent steps aside, with its blocks in the cache */
        engine__park_running(e, now);
    else
        r = engine__next_parked(e);
    struct admission_item *item = r ? &r->item : admission_next(e->admission);
    if (!item)
        return 0;
    struct error err;
    r = of_item(item);
    if (can_ever_run(e, r, &err) != STATUS_OK) { /* it was taken before the pool's size was known */
        if (r->state == REQUEST_PARKED || r->n_answer)
            error_set(&err, STATUS_PIPELINE_LOST, "the KV pool came back too small for what this request has begun");
        engine__end(e, r, REQUEST_FAILED, &err);
        return 1;
    }
    if (engine__settle(e, r))
        return 1;
    if (!look_for_room(e, r, now) || !open_fits(e, r))
        return 0;
    if (request_open_answer(r, e->window + 2, &err) != STATUS_OK) {
        err.retry_after_s = 1;
        engine__end(e, r, REQUEST_FAILED, &err);
        return 1;
    }
    if (!r->order)
        r->order = ++e->next_order;
    start(e, r, now);
    return 1;
}

/* Nobody starts on blocks that a running one waits for. */
void engine__admit(struct engine *e, int64_t now)
{
    while (pipeline_running(e->pipeline) && !engine__is_short(e) && admit_one(e, now))
        ;
}

void engine__expire(struct engine *e, int64_t now)
{
    struct admission_item *item;
    struct error err;
    while ((item = admission_expired(e->admission, now))) {
        error_set(&err, STATUS_QUEUE_WAIT, "no slot became free in %.1f s", engine__seconds(item->arrived_ns, now));
        err.retry_after_s = admission_retry_after_s(e->admission);
        engine__end(e, of_item(item), REQUEST_FAILED, &err);
    }
    struct list *const begun[] = {&e->running, &e->parked};
    for (size_t i = 0; i < ARRAY_LEN(begun); i++)
        LIST_EACH(it, begun[i]) {
            struct request *r = LIST_ENTRY(it, struct request, link);
            if (!r->deadline_ns || now < r->deadline_ns)
                continue;
            error_set(&err, STATUS_TIMEOUT, "the request's deadline passed after %u answer tokens", r->n_answer);
            engine__end(e, r, REQUEST_FAILED, &err);
        }
    engine__expire_lost(e, now);
}

/* --- what waiting clients are told ------------------------------------------------------------------------------------------- */

/* Whoever holds no slot hears its place in line, so that its connection is seen to live. Who does not read has none. */
static void tell_waiting(struct engine *e, struct list *waiting, int64_t now)
{
    LIST_EACH(it, waiting) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (r->throttled || now - r->last_progress_ns < PROGRESS_NS)
            continue;
        r->last_progress_ns = now;
        const struct generate_event ev = {.kind = GENERATE_PROGRESS,
                                          .queue_position = admission_position(e->admission, &r->item)};
        r->sink.send(r->sink.ctx, &ev);
    }
}

void engine__progress(struct engine *e, int64_t now)
{
    tell_waiting(e, &e->queued, now);
    tell_waiting(e, &e->parked, now);
    LIST_EACH(it, &e->running) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (r->state != REQUEST_READING || now - r->last_progress_ns < PROGRESS_NS)
            continue;
        r->last_progress_ns = now;
        const struct generate_event ev = {.kind = GENERATE_PROGRESS, .read_tokens = r->n_read, .prompt_tokens = engine__input(r)};
        r->sink.send(r->sink.ctx, &ev);
    }
}
