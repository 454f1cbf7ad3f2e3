/* deploy/cli/bench_load.c - open and closed loops of requests.
 *
 * Every request that is to be sent, now or later, lies in the `due` list in the order of its time: the next arrival of an open loop
 * (one at a time), the next request of each user of a closed one, and refused requests that come again. Latencies count from the
 * intended start, so that a server that is behind cannot hide it (no coordinated omission); an open loop never waits for answers. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "deploy/cli/bench.h"

enum { MAX_TRIES = 100, PAUSE_S = 1 };

struct load {
    const struct bench_options *o;
    const struct plan *plan;
    struct load_result *r;
    struct bench_http *http;
    struct list due, running;
    uint64_t n_planned;
    int64_t start_ns, last_arrival_ns, last_end_ns, stop_ns; /* stop: no request is planned at or after it */
    enum status failed;                                      /* the client itself cannot go on */
    uint64_t shown_tokens;
    int64_t shown_ns;
};

struct request {
    struct list link; /* in due or running */
    struct load *load;
    uint64_t index;
    uint32_t n_tries, n_tokens;
    int64_t intended_ns, due_ns, first_ns, last_ns; /* first, last token; last: of any event of the answer */
    int64_t last_token_ns;
    int has_usage;
    int64_t prompt_tokens, completion_tokens, cached_tokens;
    double longest_gap_ms;
    struct samples gaps;
};

/* --- what is due ------------------------------------------------------------------------------------------------------------ */

static void push_due(struct load *l, struct request *q)
{
    struct list *at = l->due.prev;
    while (at != &l->due && LIST_ENTRY(at, struct request, link)->due_ns > q->due_ns)
        at = at->prev;
    list_push_front(at, &q->link); /* behind at */
}

/* Plans the next request, unless the run's bounds are reached. */
static void plan_next(struct load *l, int64_t at_ns)
{
    if ((l->o->n_requests && l->n_planned >= l->o->n_requests) || (l->stop_ns && at_ns >= l->stop_ns) || l->failed)
        return;
    struct request *q = calloc(1, sizeof *q);
    if (!q) {
        l->failed = STATUS_OUT_OF_MEMORY;
        return;
    }
    q->load = l;
    q->index = l->n_planned++;
    q->intended_ns = q->due_ns = at_ns;
    push_due(l, q);
}

static void plan_arrival(struct load *l)
{
    l->last_arrival_ns += (int64_t)(plan_arrival_gap_s(l->o->rate, l->o->plan.seed, l->n_planned) * NS_PER_S);
    plan_next(l, l->last_arrival_ns);
}

static void drop(struct request *q)
{
    samples_fini(&q->gaps);
    list_remove(&q->link);
    free(q);
}

/* --- one request ------------------------------------------------------------------------------------------------------------ */

static void on_event(void *ctx, const struct stream_event *e)
{
    struct request *q = ctx;
    if (e->has_choice)
        q->last_ns = e->at_ns;
    if (e->has_usage) {
        q->has_usage = 1;
        q->prompt_tokens = e->prompt_tokens;
        q->completion_tokens = e->completion_tokens;
        q->cached_tokens = e->cached_tokens;
    }
    if (e->kind != EVENT_TOKEN)
        return;
    q->load->r->n_events++;
    if (!q->n_tokens++) {
        q->first_ns = e->at_ns;
    } else {
        double gap_ms = (double)(e->at_ns - q->last_token_ns) / NS_PER_MS;
        samples_add(&q->gaps, gap_ms);
        if (gap_ms > q->longest_gap_ms)
            q->longest_gap_ms = gap_ms;
    }
    q->last_token_ns = e->at_ns;
}

static void take_answer(struct load *l, struct request *q)
{
    struct load_result *r = l->r;
    if (!q->n_tokens) /* its only token had no text of its own */
        q->first_ns = q->last_ns;
    int64_t n = q->has_usage && q->completion_tokens > 0 ? q->completion_tokens : q->n_tokens;
    struct slo m = {.ttft_ms = (double)(q->first_ns - q->intended_ns) / NS_PER_MS,
                    .itl_ms = q->longest_gap_ms,
                    .tpot_ms = n > 1 ? (double)(q->last_ns - q->first_ns) / NS_PER_MS / (double)(n - 1) : 0,
                    .e2e_ms = (double)(q->last_ns - q->intended_ns) / NS_PER_MS};
    r->n_done++;
    r->n_met += slo_met(&l->o->slo, &m);
    r->prompt_tokens += (uint64_t)q->prompt_tokens;
    r->cached_tokens += (uint64_t)q->cached_tokens;
    r->output_tokens += (uint64_t)n;
    samples_add(&r->ttft, m.ttft_ms);
    if (n > 1)
        samples_add(&r->tpot, m.tpot_ms);
    samples_add(&r->e2e, m.e2e_ms);
    samples_add_all(&r->itl, &q->gaps);
}

static void on_end(void *ctx, const struct bench_end *end)
{
    struct request *q = ctx;
    struct load *l = q->load;
    int is_good = end->status == STATUS_OK && q->last_ns;
    l->last_end_ns = end->at_ns;
    if (end->is_refused && l->o->retry && q->n_tries < MAX_TRIES && !http_interrupted) {
        l->r->n_retries++;
        q->due_ns = end->at_ns + end->retry_after_s * NS_PER_S;
        list_remove(&q->link);
        push_due(l, q);
        return;
    }
    if (is_good) {
        take_answer(l, q);
    } else {
        l->r->n_refused += (uint64_t)end->is_refused;
        failures_add(&l->r->failures, end->status == STATUS_OK ? "empty" : end->kind,
                     end->status == STATUS_OK ? "an answer without any choice" : end->message);
    }
    /* A user whose request failed pauses: a server that is down would be asked without end. */
    if (l->o->rate == 0)
        plan_next(l, end->at_ns + (is_good ? 0 : (end->retry_after_s ? end->retry_after_s : PAUSE_S) * NS_PER_S));
    drop(q);
}

static void send_request(struct load *l, struct request *q, int64_t now)
{
    const struct bench_options *o = l->o;
    struct bench_call *call;
    size_t len;
    char *body = plan_body(l->plan, q->index, length_draw(&o->prompt_tokens, o->plan.seed, 2 * q->index),
                           length_draw(&o->max_tokens, o->plan.seed, 2 * q->index + 1), 0, &len);
    enum status s = body ? bench_http_post(l->http, body, len, q, &call) : STATUS_OUT_OF_MEMORY;
    if (s != STATUS_OK) {
        l->failed = s;
        return;
    }
    list_remove(&q->link);
    list_push_back(&l->running, &q->link);
    if (!q->n_tries++) {
        l->r->n_sent++;
        if (o->rate > 0)
            samples_add(&l->r->late, (double)(now - q->intended_ns) / NS_PER_MS);
    }
    if (bench_http_open(l->http) > l->r->most_running)
        l->r->most_running = bench_http_open(l->http);
}

/* --- the run ---------------------------------------------------------------------------------------------------------------- */

static void show(struct load *l, int64_t now)
{
    struct load_result *r = l->r;
    double tokens_per_s = (double)(r->n_events - l->shown_tokens) * NS_PER_S / (double)(now - l->shown_ns);
    bench_progress(l->o, "%4.0f s: %llu sent, %u running, %llu done, %llu failed, %.1f tokens/s",
                   (double)(now - l->start_ns) / NS_PER_S, (unsigned long long)r->n_sent, bench_http_open(l->http),
                   (unsigned long long)r->n_done, (unsigned long long)r->failures.n, tokens_per_s);
    l->shown_tokens = r->n_events;
    l->shown_ns = now;
}

static struct request *first_due(const struct load *l)
{
    return list_empty(&l->due) ? NULL : LIST_ENTRY(l->due.next, struct request, link);
}

static void loop(struct load *l)
{
    for (struct request *q; !http_interrupted && l->failed == STATUS_OK;) {
        int64_t now = clock_now_ns();
        while ((q = first_due(l)) && q->due_ns <= now && l->failed == STATUS_OK) {
            int is_arrival = l->o->rate > 0 && !q->n_tries;
            send_request(l, q, clock_now_ns());
            if (is_arrival)
                plan_arrival(l);
        }
        if (!q && list_empty(&l->running))
            return;
        if (now - l->shown_ns >= NS_PER_S)
            show(l, now);
        int64_t until = l->shown_ns + NS_PER_S;
        bench_http_wait(l->http, q && q->due_ns < until ? q->due_ns : until);
    }
}

static void finish(struct load *l)
{
    struct load_result *r = l->r;
    int64_t end = http_interrupted || !l->last_end_ns ? clock_now_ns() : l->last_end_ns;
    r->is_interrupted = http_interrupted != 0;
    r->n_cut = bench_http_open(l->http);
    r->seconds = (double)(end - l->start_ns) / NS_PER_S;
    bench_http_destroy(l->http);
    LIST_EACH(it, &l->running)
        drop(LIST_ENTRY(it, struct request, link));
    LIST_EACH(it, &l->due) {
        struct request *q = LIST_ENTRY(it, struct request, link);
        r->n_cut += q->n_tries > 0; /* refused, and not come again */
        drop(q);
    }
}

enum status load_run(const struct bench_options *o, const struct plan *p, struct load_result *out, struct error *err)
{
    struct load l = {.o = o, .plan = p, .r = out};
    const struct bench_hooks hooks = {on_event, on_end};
    *out = (struct load_result){0};
    TRY(bench_http_create(&o->http, plan_path(p), o->timeout_s, &hooks, &l.http, err));
    list_init(&l.due);
    list_init(&l.running);
    l.start_ns = l.shown_ns = l.last_arrival_ns = clock_now_ns();
    l.stop_ns = o->duration_s > 0 ? l.start_ns + (int64_t)(o->duration_s * NS_PER_S) : 0;
    if (o->rate > 0)
        plan_arrival(&l);
    for (uint32_t i = 0; o->rate == 0 && i < o->concurrency; i++)
        plan_next(&l, l.start_ns);
    loop(&l);
    uint32_t most = bench_http_most(l.http);
    finish(&l);
    bench_progress_end(o);
    if (l.failed == STATUS_CONFIG)
        return error_set(err, STATUS_CONFIG, "more than %u requests at the same time: raise the limit of open files (ulimit -n)", most);
    if (l.failed != STATUS_OK)
        return error_set(err, l.failed, "no memory for the requests");
    return STATUS_OK;
}

void load_result_fini(struct load_result *r)
{
    samples_fini(&r->ttft);
    samples_fini(&r->itl);
    samples_fini(&r->tpot);
    samples_fini(&r->e2e);
    samples_fini(&r->late);
}
