/* Sampled ids on their way to the client: text, the end of an answer, and clients that read too slowly. */
#include "coordinator/engine_impl.h"

#include "common/base/check.h"
#include "common/base/clock.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

/* A turn's time may be a moment older than a request that came during it. */
static double ms_between(int64_t from_ns, int64_t to_ns)
{
    return to_ns > from_ns ? engine__seconds(from_ns, to_ns) * 1e3 : 0;
}

static struct usage usage_of(const struct request *r)
{
    return (struct usage){.prompt_tokens = r->n_prompt,
                          .cached_tokens = r->n_cached,
                          .completion_tokens = r->n_answer,
                          .queue_ms = ms_between(r->arrived_ns, r->admitted_ns),
                          .prompt_ms = ms_between(r->admitted_ns, r->first_token_ns),
                          .decode_ms = ms_between(r->first_token_ns, r->last_token_ns)};
}

struct generate_event engine__done(const struct request *r, enum finish_reason reason)
{
    return (struct generate_event){
        .kind = GENERATE_DONE,
        .finish = reason,
        .stop_text = r->output.stopped ? r->stops[r->output.stopped - 1] : (struct bytes){"", 0},
        .usage = usage_of(r),
    };
}

/* Sends the text and ids that have not gone out. STATUS_FULL: the client reads too slowly, all is kept. OUT_OF_MEMORY: the
 * stream has a gap that cannot be closed, so it must end. */
static enum status flush(struct request *r)
{
    if (r->n_sent == r->n_answer && r->emit.len == 0)
        return STATUS_OK;
    struct generate_event ev = {
        .kind = GENERATE_TEXT,
        .text = {r->emit.data ? r->emit.data : "", r->emit.len},
        .ids = r->answer_ids + r->n_sent,
        .n_ids = r->n_answer - r->n_sent,
        .logprobs = r->logprobs,
        .n_logprobs = r->sampler.n_top ? r->n_answer - r->n_sent : 0,
        .has_usage = r->n_sent == 0,
    };
    if (ev.has_usage)
        ev.usage = usage_of(r);
    enum status s = r->sink.send(r->sink.ctx, &ev);
    if (s != STATUS_FULL && s != STATUS_OUT_OF_MEMORY) {
        r->n_sent = r->n_answer;
        buf_clear(&r->emit);
    }
    return s;
}

/* Nothing more is planned for it until its client has read; engine__retry_stalled tries again, or gives up. */
static void throttle(struct engine *e, struct request *r)
{
    if (r->throttled)
        return;
    r->throttled = 1;
    sched_pause(e->sched, r->ref, 1);
}

static void no_memory(struct engine *e, struct request *r)
{
    struct error err;
    error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the answer after %u tokens", r->n_sent);
    engine__end(e, r, REQUEST_FAILED, &err);
}

static void finish(struct engine *e, struct request *r, enum finish_reason reason)
{
    const struct generate_event ev = engine__done(r, reason);
    enum status s = flush(r);
    if (s == STATUS_OK)
        s = r->sink.send(r->sink.ctx, &ev);
    if (s == STATUS_OUT_OF_MEMORY) {
        no_memory(e, r);
        return;
    }
    if (s != STATUS_FULL) {
        metrics_count_done(&e->metrics, &ev.usage, reason);
        engine__end(e, r, REQUEST_DONE, NULL);
        return;
    }
    r->ending = reason;
    engine__not_starved(e, r);
    throttle(e, r);
}

static void count_token(struct engine *e, struct request *r, int64_t now)
{
    e->metrics.generated_tokens++;
    if (r->n_answer == 1) {
        r->first_token_ns = now;
        histogram_add(&e->metrics.ttft, engine__seconds(r->arrived_ns, now), 1);
    } else {
        histogram_add(&e->metrics.itl, engine__seconds(r->last_token_ns, now), 1);
    }
    r->last_token_ns = now;
    admission_charge(e->admission, &r->item, 1);
    if (r->state == REQUEST_READING) {
        engine__set_state(e, r, REQUEST_DECODING);
        CHECK(slots_begin_decoding(e->slots, r->ref) == STATUS_OK);
    }
}

/* Behind those of the ids that have not gone out: of ticks in flight, when the client stopped reading. */
static void keep_logprobs(struct request *r, const struct result_run *run, const struct top_logprob *tops)
{
    CHECK(r->n_answer - r->n_sent < r->logprob_room);
    struct token_logprobs *to = &r->logprobs[r->n_answer - r->n_sent];
    *to = (struct token_logprobs){.id = (uint32_t)run->id, .logprob = run->logprob, .n_top = run->n_top};
    for (uint32_t i = 0; i < run->n_top; i++) {
        to->top_ids[i] = tops[i].id;
        to->top_logprobs[i] = tops[i].logprob;
    }
}

void engine__token(struct engine *e, struct request *r, const struct result_run *run, const struct top_logprob *tops,
                   int64_t now)
{
    if (r->ending)
        return; /* a surplus row */
    ASSERT(r->n_answer < r->answer_limit);
    const uint32_t id = (uint32_t)run->id;
    if (r->sampler.n_top)
        keep_logprobs(r, run, tops);
    r->answer_ids[r->n_answer++] = id;
    count_token(e, r, now);
    int end, stopped = 0;
    enum status s = request_show(r, e->o.tokenizer, id, &end, &stopped);
    int full = !end && !stopped && r->n_answer == r->answer_limit;
    if (s == STATUS_OK && full)
        s = output_finish(&r->output, &r->emit, &stopped);
    if (s != STATUS_OK) {
        struct error err;
        error_set(&err, STATUS_WRITE_STALLED, "the client reads too slowly");
        e->metrics.write_stalled++;
        engine__end(e, r, REQUEST_FAILED, &err);
        return;
    }
    if (end || stopped || full) {
        finish(e, r, end || stopped ? FINISH_STOP : FINISH_LENGTH);
        return;
    }
    s = flush(r);
    if (s == STATUS_FULL)
        throttle(e, r);
    else if (s == STATUS_OUT_OF_MEMORY)
        no_memory(e, r);
}

static void retry(struct engine *e, struct request *r, int64_t now)
{
    enum status s = flush(r);
    if (s == STATUS_OUT_OF_MEMORY) {
        no_memory(e, r);
    } else if (s == STATUS_OK) {
        r->throttled = 0;
        if (r->state == REQUEST_PARKED)
            admission_park(e->admission, &r->item, now);
        else
            sched_pause(e->sched, r->ref, 0);
    }
}

void engine__retry_stalled(struct engine *e, int64_t now)
{
    int64_t limit = e->o.config->write_stall_ms * NS_PER_MS;
    struct list *const begun[] = {&e->running, &e->parked};
    for (size_t i = 0; i < ARRAY_LEN(begun); i++)
        LIST_EACH(it, begun[i]) {
            struct request *r = LIST_ENTRY(it, struct request, link);
            int64_t since = r->sink.stalled_since_ns(r->sink.ctx);
            if (since && now - since > limit && now >= e->patient_ns) {
                struct error err;
                error_set(&err, STATUS_WRITE_STALLED, "the client read nothing for %.1f s", engine__seconds(since, now));
                e->metrics.write_stalled++;
                engine__end(e, r, REQUEST_FAILED, &err);
                continue;
            }
            if (r->ending)
                finish(e, r, r->ending);
            else if (r->throttled)
                retry(e, r, now);
        }
}
