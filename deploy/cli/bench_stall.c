/* deploy/cli/bench_stall.c - what running streams keep while a long prompt is read.
 *
 *   [alone: the long prompt on the idle server]
 *   streams begin -> all are steady -> before (a fixed time)
 *   -> long prompts are sent -> during, until the last one's first token
 *   -> after (a fixed time) -> streams are ended by leaving
 *
 * A stream whose answer ends is asked again at once. Rates are tokens (by the ids of their events, else one an event) in a window of
 * time over its length; a gap is the silence between two tokens of one answer, and belongs to `during` as soon as the two share any time. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "deploy/cli/bench.h"

/* A stream is steady once it has shown so many tokens: the first ones still pay for the others' prompts. */
enum { STEADY_TOKENS = 8, PAUSE_S = 1, LOOK_MS = 250 };

/* Indices of plan_body, apart from each other so that every prompt is new. */
enum { INDEX_ALONE = 1, INDEX_LONG = 1000, INDEX_STREAM = 1000000 };

struct stall;

struct asked {
    struct stall *stall;
    struct bench_call *call; /* NULL: not running */
    int is_long;
    int64_t sent_ns, first_ns, last_ns, end_ns;
    int64_t prompt_tokens, cached_tokens;
    uint32_t n_tokens;     /* of this answer */
    /* streams */
    struct marks marks;
    uint32_t n_answers;
    int64_t again_ns;      /* when to ask again; 0: running */
};

struct stall {
    const struct bench_options *o;
    const struct plan *plan;
    struct stall_result *r;
    struct bench_http *http;
    struct asked *streams, *longs;
    uint64_t n_asked;
    int64_t start_ns, shown_ns;
    uint64_t shown_events;
    enum status failed;
    const char *phase;
};

/* --- asking ----------------------------------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const struct stream_event *e)
{
    struct asked *a = ctx;
    if (e->has_choice)
        a->last_ns = e->at_ns;
    if (e->has_usage) {
        a->prompt_tokens = e->prompt_tokens;
        a->cached_tokens = e->cached_tokens;
    }
    if (e->kind != EVENT_TOKEN)
        return;
    a->stall->r->n_events++;
    if (!a->first_ns)
        a->first_ns = e->at_ns;
    for (uint32_t i = 0; i < e->n_tokens; i++, a->n_tokens++)
        if (!a->is_long)
            marks_add(&a->marks, e->at_ns, a->n_tokens == 0);
}

static void on_end(void *ctx, const struct bench_end *end)
{
    struct asked *a = ctx;
    int is_good = end->status == STATUS_OK && a->last_ns;
    a->call = NULL;
    a->end_ns = end->at_ns;
    if (!a->first_ns && is_good)
        a->first_ns = a->last_ns; /* its only token had no text of its own */
    if (!is_good)
        failures_add(&a->stall->r->failures, end->status == STATUS_OK ? "empty" : end->kind,
                     end->status == STATUS_OK ? "an answer without any choice" : end->message);
    a->n_answers += (uint32_t)is_good;
    a->again_ns = end->at_ns + (is_good ? 0 : (end->retry_after_s ? end->retry_after_s : PAUSE_S) * NS_PER_S);
}

static void ask(struct stall *st, struct asked *a, uint64_t index, uint32_t n_prompt, uint32_t n_answer)
{
    size_t len;
    char *body = plan_body(st->plan, index, n_prompt, n_answer, PLAN_OWN_PREFIX | (a->is_long ? 0 : PLAN_TOKEN_IDS), &len);
    a->sent_ns = clock_now_ns();
    a->first_ns = a->last_ns = a->end_ns = a->again_ns = 0;
    a->n_tokens = 0;
    enum status s = body ? bench_http_post(st->http, body, len, a, &a->call) : STATUS_OUT_OF_MEMORY;
    if (s != STATUS_OK)
        st->failed = s;
}

static void ask_stream(struct stall *st, struct asked *a)
{
    uint64_t seed = st->o->plan.seed, i = st->n_asked++;
    ask(st, a, INDEX_STREAM + i, length_draw(&st->o->stream_prompt, seed, 2 * i), length_draw(&st->o->stream_tokens, seed, 2 * i + 1));
}

static void ask_long(struct stall *st, struct asked *a, uint64_t index)
{
    uint64_t seed = st->o->plan.seed;
    a->is_long = 1;
    ask(st, a, index, length_draw(&st->o->prompt_tokens, seed, INDEX_LONG), length_draw(&st->o->max_tokens, seed, INDEX_LONG + 1));
}

/* --- the turns of a phase --------------------------------------------------------------------------------------------------- */

static void show(struct stall *st, int64_t now)
{
    uint64_t n = st->r->n_events;
    bench_progress(st->o, "%4.0f s: %s, %u running, %.1f tokens/s, %llu failed", (double)(now - st->start_ns) / NS_PER_S, st->phase,
                   bench_http_open(st->http), (double)(n - st->shown_events) * NS_PER_S / (double)(now - st->shown_ns),
                   (unsigned long long)st->r->failures.n);
    st->shown_events = n;
    st->shown_ns = now;
}

/* One wait, streams that ended asked again. 0: the run ends here. */
static int turn(struct stall *st, int64_t until_ns)
{
    int64_t now = clock_now_ns(), look = now + LOOK_MS * NS_PER_MS;
    if (now - st->shown_ns >= NS_PER_S)
        show(st, now);
    bench_http_wait(st->http, until_ns && until_ns < look ? until_ns : look);
    now = clock_now_ns();
    for (uint32_t i = 0; i < st->o->n_streams; i++)
        if (st->streams[i].again_ns && st->streams[i].again_ns <= now)
            ask_stream(st, &st->streams[i]);
    return !http_interrupted && st->failed == STATUS_OK;
}

static int pass(struct stall *st, const char *phase, int64_t until_ns)
{
    st->phase = phase;
    while (clock_now_ns() < until_ns)
        if (!turn(st, until_ns))
            return 0;
    return 1;
}

static int are_steady(const struct stall *st)
{
    for (uint32_t i = 0; i < st->o->n_streams; i++)
        if (st->streams[i].marks.n < STEADY_TOKENS)
            return 0;
    return 1;
}

static int longs_run(const struct stall *st, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (st->longs[i].call)
            return 1;
    return 0;
}

/* --- the run ---------------------------------------------------------------------------------------------------------------- */

/* Nothing is measured when what is measured fails. */
static int has_failed(const struct stall *st)
{
    return st->r->failures.n > 0;
}

static int measure_alone(struct stall *st)
{
    st->phase = "the prompt alone";
    ask_long(st, &st->longs[0], INDEX_ALONE);
    while (longs_run(st, 1))
        if (!turn(st, 0))
            return 0;
    if (has_failed(st))
        return 0;
    st->r->alone_ms = (double)(st->longs[0].first_ns - st->longs[0].sent_ns) / NS_PER_MS;
    return 1;
}

static int begin_streams(struct stall *st)
{
    st->phase = "streams begin";
    for (uint32_t i = 0; i < st->o->n_streams; i++)
        ask_stream(st, &st->streams[i]);
    while (!are_steady(st))
        if (!turn(st, 0) || has_failed(st))
            return 0;
    return 1;
}

static int read_longs(struct stall *st)
{
    st->phase = "the prompt beside them";
    for (uint32_t i = 0; i < st->o->n_prompts; i++)
        ask_long(st, &st->longs[i], INDEX_LONG + i);
    while (longs_run(st, st->o->n_prompts))
        if (!turn(st, 0))
            return 0;
    for (uint32_t i = 0; i < st->o->n_prompts; i++)
        if (!st->longs[i].first_ns)
            return 0; /* it failed */
    return 1;
}

static double rate(const struct marks *m, int64_t from, int64_t to)
{
    return to > from ? (double)marks_count(m, from, to) * NS_PER_S / (double)(to - from) : 0;
}

static void judge_streams(struct stall *st, int64_t from, int64_t sent, int64_t read, int64_t after, int64_t end)
{
    struct stall_result *r = st->r;
    int64_t now = clock_now_ns();
    for (uint32_t i = 0; i < r->n_streams; i++) {
        const struct asked *a = &st->streams[i];
        struct stall_stream *s = &r->streams[i];
        *s = (struct stall_stream){.before = rate(&a->marks, from, sent),
                                   .during = rate(&a->marks, sent, read),
                                   .after = rate(&a->marks, after, end),
                                   .n_answers = a->n_answers};
        r->total.before += s->before;
        r->total.during += s->during;
        r->total.after += s->after;
        r->total.n_answers += s->n_answers;
        double share = s->before > 0 ? s->during / s->before : 0;
        if (i == 0 || share < r->min_share)
            r->min_share = share;
        marks_gaps_within(&a->marks, from, sent, &r->gaps_before);
        marks_gaps_across(&a->marks, sent, read, a->call && a->n_tokens ? now : 0, &r->gaps_during);
    }
    r->share = r->total.before > 0 ? r->total.during / r->total.before : 0;
}

static void judge_longs(struct stall *st)
{
    struct stall_result *r = st->r;
    double last_ms = 0;
    for (uint32_t i = 0; i < st->o->n_prompts; i++) {
        const struct asked *a = &st->longs[i];
        double ms = (double)(a->first_ns - a->sent_ns) / NS_PER_MS;
        samples_add(&r->ttft, ms);
        if (ms > last_ms)
            last_ms = ms;
        r->prompt_tokens += a->prompt_tokens;
        r->cached_tokens += a->cached_tokens;
    }
    if (r->alone_ms > 0)
        r->ratio = last_ms / (r->alone_ms * st->o->n_prompts);
}

static void run(struct stall *st)
{
    const struct bench_options *o = st->o;
    if ((o->alone && !measure_alone(st)) || !begin_streams(st))
        return;
    int64_t from = clock_now_ns();
    if (!pass(st, "before", from + (int64_t)(o->before_s * NS_PER_S)))
        return;
    int64_t sent = clock_now_ns();
    if (!read_longs(st))
        return;
    int64_t read = 0, after = 0;
    for (uint32_t i = 0; i < o->n_prompts; i++) {
        read = st->longs[i].first_ns > read ? st->longs[i].first_ns : read;
        after = st->longs[i].end_ns > after ? st->longs[i].end_ns : after;
    }
    if (!pass(st, "after", after + (int64_t)(o->after_s * NS_PER_S)))
        return;
    st->r->during_s = (double)(read - sent) / NS_PER_S;
    judge_streams(st, from, sent, read, after, after + (int64_t)(o->after_s * NS_PER_S));
    judge_longs(st);
    st->r->is_whole = 1;
}

static enum status set_up(struct stall *st, struct error *err)
{
    const struct bench_options *o = st->o;
    const struct bench_hooks hooks = {on_event, on_end};
    st->streams = calloc(o->n_streams, sizeof *st->streams);
    st->longs = calloc(o->n_prompts, sizeof *st->longs);
    st->r->streams = calloc(o->n_streams, sizeof *st->r->streams);
    if (!st->streams || !st->longs || !st->r->streams)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %u streams", o->n_streams);
    for (uint32_t i = 0; i < o->n_streams; i++)
        st->streams[i].stall = st;
    for (uint32_t i = 0; i < o->n_prompts; i++)
        st->longs[i].stall = st;
    return bench_http_create(&o->http, plan_path(st->plan), o->timeout_s, &hooks, &st->http, err);
}

enum status stall_run(const struct bench_options *o, const struct plan *p, struct stall_result *out, struct error *err)
{
    struct stall st = {.o = o, .plan = p, .r = out};
    *out = (struct stall_result){.n_streams = o->n_streams, .n_prompts = o->n_prompts};
    st.start_ns = st.shown_ns = clock_now_ns();
    enum status s = set_up(&st, err);
    if (s == STATUS_OK)
        run(&st);
    bench_progress_end(o);
    bench_http_destroy(st.http);
    for (uint32_t i = 0; st.streams && i < o->n_streams; i++)
        marks_fini(&st.streams[i].marks);
    free(st.streams);
    free(st.longs);
    if (s == STATUS_OK && st.failed != STATUS_OK)
        s = error_set(err, st.failed, st.failed == STATUS_CONFIG ? "too many streams for the limit of open files (ulimit -n)"
                                                                 : "no memory for the requests");
    return s;
}

void stall_result_fini(struct stall_result *r)
{
    free(r->streams);
    r->streams = NULL;
    samples_fini(&r->gaps_before);
    samples_fini(&r->gaps_during);
    samples_fini(&r->ttft);
}
