/* One tick: check the plan, read the frame, compute, pass on. */
#define LOG_MODULE "worker"
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "stage/kv.h"
#include "stage/worker_impl.h"

/* What one tick is made of while it runs. */
struct tick_work {
    struct worker *w;
    const struct plan *plan;
    struct tick tick;
    uint32_t n_samples; /* of the plan; tick.n_samples is 0 where nothing is sampled */
    uint32_t n_sent;    /* rows that the next stage computes too */
    struct stage_timing timing;
};

static uint32_t us_since(int64_t *mark_ns)
{
    int64_t now = clock_now_ns(), us = (now - *mark_ns) / NS_PER_US;
    *mark_ns = now;
    return us < 0 ? 0 : us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
}

static uint32_t neighbour(const struct worker *w, int step)
{
    return (w->assign.stage + w->assign.n_stages + (uint32_t)step) % w->assign.n_stages;
}

/* --- the plan ---------------------------------------------------------------------------------------------------------------------- */

/* Stages above a run's last one hold its KV already: nothing that depends on them can come of it. */
static enum status check_bound(const struct worker *w, const struct plan_run *r, uint32_t i, struct error *err)
{
    const uint32_t n = w->assign.n_stages;
    if (r->last_stage >= n)
        return error_set(err, STATUS_PROTOCOL, "run %u: last_stage %u of %u stages", i, r->last_stage, n);
    if (r->last_stage + 1 < n && (r->sample != SAMPLE_NONE || r->source != SOURCE_IDS))
        return error_set(err, STATUS_PROTOCOL, "run %u: last_stage %u of %u stages, and it is sampled or of a sampled id", i,
                         r->last_stage, n);
    return STATUS_OK;
}

static enum status check_plan(const struct worker *w, const struct plan *p, struct error *err)
{
    if (w->has_tick && p->tick != w->last_tick + 1)
        return error_set(err, STATUS_PROTOCOL, "tick %llu, expected %llu", (unsigned long long)p->tick,
                         (unsigned long long)w->last_tick + 1);
    TRY(plan_check(p, err));
    if (p->n_rows > w->assign.max_rows)
        return error_set(err, STATUS_PROTOCOL, "%u rows, at most %u", p->n_rows, w->assign.max_rows);
    for (uint32_t i = 0; i < p->n_runs; i++)
        TRY(check_bound(w, &p->runs[i], i, err));
    return STATUS_OK;
}

static void add_rows(struct tick_work *t, uint32_t run, const struct sequence *q)
{
    struct worker *w = t->w;
    const struct plan_run *r = &t->plan->runs[run];
    const uint32_t *ids = r->source == SOURCE_IDS ? t->plan->words + r->first_id : NULL;
    if (r->last_stage < w->assign.stage)
        return;
    if (r->last_stage > w->assign.stage)
        t->n_sent += r->n;
    for (uint32_t i = 0; i < r->n; i++)
        w->rows[t->tick.n_rows++] = (struct tick_row){
            .blocks = q->blocks, .window_blocks = q->window_blocks, .position = r->kv_index + i, .id = ids ? ids[i] : 0, .seq = q->seq};
    if (r->sample != SAMPLE_LAST)
        return;
    t->n_samples++;
    if (worker__is_last(w))
        w->samples[t->tick.n_samples++] =
            (struct tick_sample){.row = t->tick.n_rows - 1, .sampler = &q->sampler, .bias = q->bias, .ids = q->ids,
                                 .tops = result_tops(w->result, run), .id = -1};
}

static enum status take_up(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    TRY(check_plan(w, t->plan, err));
    for (uint32_t i = 0; i < t->plan->n_ops; i++)
        TRY(sequences_apply(w->seqs, t->plan, &t->plan->ops[i], err));
    for (uint32_t i = 0; i < t->plan->n_runs; i++) {
        TRY(sequences_extend(w->seqs, t->plan, i, &w->run_seq[i], &w->run_from[i], err));
        add_rows(t, i, w->run_seq[i]);
    }
    return STATUS_OK;
}

/* --- ids of ticks before (stage 0) --------------------------------------------------------------------------------------------------- */

static enum status await_note(struct worker *w, const struct plan_run *r, const struct sample_note *note, struct error *err)
{
    while (!note->known) {
        if (!w->feedback || !feedback_awaits(w->feedback, r->from_tick))
            return error_set(err, STATUS_PROTOCOL, "sequence %llu: tick %llu gave no id for it", (unsigned long long)r->seq,
                             (unsigned long long)r->from_tick);
        TRY(feedback_wait(w->feedback, w->assign.stuck_ms, err));
    }
    return STATUS_OK;
}

/* A draw that went wrong (-1) is computed as id 0; the last stage flags what depends on it, and the coordinator drops it. */
static enum status resolve_ids(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    uint32_t row = 0;
    for (uint32_t i = 0; i < t->plan->n_runs; i++) {
        const struct plan_run *r = &t->plan->runs[i];
        const struct sample_note *note = w->run_from[i];
        if (note) {
            TRY(await_note(w, r, note, err));
            w->rows[row].id = note->id < 0 ? 0 : (uint32_t)note->id;
        }
        row += r->n;
    }
    return STATUS_OK;
}

static enum status make_room_for_feedback(struct tick_work *t, struct error *err)
{
    struct feedback *f = t->w->feedback;
    while (feedback_expect(f, t->plan->tick, t->n_samples) == STATUS_FULL)
        TRY(feedback_wait(f, t->w->assign.stuck_ms, err));
    return STATUS_OK;
}

/* --- frames ------------------------------------------------------------------------------------------------------------------------------ */

static void count_stale_frame(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->count.stale.frames++;
    pthread_mutex_unlock(&w->lock);
}

static struct frame_header rows_header(const struct tick_work *t, uint32_t from, uint32_t to, uint32_t n_rows)
{
    const struct worker *w = t->w;
    return (struct frame_header){.session = w->epoch.session,
                                 .epoch = w->epoch.epoch,
                                 .tick = t->plan->tick,
                                 .flags = FRAME_ROWS,
                                 .from = (uint16_t)from,
                                 .to = (uint16_t)to,
                                 .n_rows = n_rows,
                                 .width = w->width,
                                 .dtype = FRAME_F32,
                                 .n_sections = 2,
                                 .payload_bytes = (uint64_t)n_rows * (w->width + 1) * 4};
}

/* Reads up to a header that fits the plan; a frame of another epoch is read away and counted. */
static enum status read_header(struct tick_work *t, const struct frame_header *want, struct error *err)
{
    struct worker *w = t->w;
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame_header got;
    for (;;) {
        TRY(link_read_all(w->links.in, bytes, sizeof bytes, w->assign.stuck_ms, err));
        TRY(frame_decode(bytes, &got, err));
        enum status s = frame_expect(&got, want, err);
        if (s != STATUS_STALE)
            return s;
        const uint64_t largest = (uint64_t)w->assign.max_rows * (w->width + 1) * 4;
        if (got.payload_bytes > largest)
            return error_set(err, STATUS_PROTOCOL, "a stale frame of %llu bytes, at most %llu",
                             (unsigned long long)got.payload_bytes, (unsigned long long)largest);
        TRY(link_read_all(w->links.in, w->in, got.payload_bytes, w->assign.stuck_ms, err));
        count_stale_frame(w);
    }
}

static enum status read_frame(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    const struct frame_header want = rows_header(t, neighbour(w, -1), w->assign.stage, t->tick.n_rows);
    TRY(read_header(t, &want, err));
    TRY(link_read_all(w->links.in, w->in, want.payload_bytes, w->assign.stuck_ms, err));
    const uint8_t *positions = w->in + (size_t)t->tick.n_rows * w->width * sizeof(float);
    for (uint32_t i = 0; i < t->tick.n_rows; i++) {
        const uint8_t *p = positions + 4 * (size_t)i;
        uint32_t position = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (position != w->rows[i].position)
            return error_set(err, STATUS_PROTOCOL, "frame row %u is position %u, the plan says %u", i, position,
                             w->rows[i].position);
    }
    return STATUS_OK;
}

static enum status drain_feedback(void *ctx, struct error *err)
{
    return feedback_drain(ctx, err);
}

static enum status write_frame(struct tick_work *t, const struct frame_header *h, void *payload, struct error *err)
{
    struct worker *w = t->w;
    uint8_t bytes[FRAME_HEADER_BYTES];
    frame_encode(h, bytes);
    struct iovec iov[2] = {{.iov_base = bytes, .iov_len = sizeof bytes},
                           {.iov_base = payload, .iov_len = h->payload_bytes}};
    TRY(link_write_all(w->links.out, iov, 2, w->assign.stuck_ms, w->feedback ? w->links.in : NULL, drain_feedback,
                       w->feedback, err));
    t->timing.sent_bytes = (uint32_t)(sizeof bytes + h->payload_bytes);
    return STATUS_OK;
}

/* Rows that end here are taken out: those that go on move up in w->out and, for their positions, in w->rows. */
static void keep_sent_rows(struct tick_work *t)
{
    struct worker *w = t->w;
    const size_t row_bytes = w->width * sizeof(float);
    uint32_t from = 0, to = 0;
    for (uint32_t i = 0; i < t->plan->n_runs; i++) {
        const struct plan_run *r = &t->plan->runs[i];
        if (r->last_stage < w->assign.stage)
            continue;
        if (r->last_stage > w->assign.stage) {
            if (from != to) {
                memmove(w->out + to * row_bytes, w->out + from * row_bytes, r->n * row_bytes);
                memmove(&w->rows[to], &w->rows[from], r->n * sizeof w->rows[0]);
            }
            to += r->n;
        }
        from += r->n;
    }
    ASSERT(from == t->tick.n_rows && to == t->n_sent);
}

static enum status send_rows(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    if (t->n_sent < t->tick.n_rows)
        keep_sent_rows(t);
    uint8_t *positions = w->out + (size_t)t->n_sent * w->width * sizeof(float);
    for (uint32_t i = 0; i < t->n_sent; i++)
        for (int byte = 0; byte < 4; byte++)
            positions[4 * (size_t)i + (size_t)byte] = (uint8_t)(w->rows[i].position >> 8 * byte);
    const struct frame_header h = rows_header(t, w->assign.stage, neighbour(w, 1), t->n_sent);
    return write_frame(t, &h, w->out, err);
}

static enum status send_feedback(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    for (uint32_t i = 0; i < t->tick.n_samples; i++) {
        const struct tick_row *row = &w->rows[w->samples[i].row];
        const struct feedback_record r = {
            .seq = row->seq, .next_index = row->position + 1, .n_accepted = 1, .id = w->samples[i].id};
        feedback_encode(&r, w->records + (size_t)i * FEEDBACK_RECORD_BYTES);
    }
    const struct frame_header h = {.session = w->epoch.session,
                                   .epoch = w->epoch.epoch,
                                   .tick = t->plan->tick,
                                   .flags = FRAME_FEEDBACK,
                                   .from = (uint16_t)w->assign.stage,
                                   .to = 0,
                                   .n_rows = t->tick.n_samples,
                                   .n_sections = 1,
                                   .payload_bytes = (uint64_t)t->tick.n_samples * FEEDBACK_RECORD_BYTES};
    return write_frame(t, &h, w->records, err);
}

/* --- compute and its outcome ---------------------------------------------------------------------------------------------------------------- */

/* The ids that this tick drew, as notes for later ticks and as runs of the result. */
static void note_samples(struct tick_work *t)
{
    struct worker *w = t->w;
    uint32_t sample = 0;
    for (uint32_t i = 0; i < t->plan->n_runs; i++) {
        const struct plan_run *r = &t->plan->runs[i];
        const int tainted = w->run_from[i] && w->run_from[i]->id < 0;
        struct result_run *out = &w->result->runs[i];
        *out = (struct result_run){.seq = r->seq, .n_accepted = r->n, .id = -1, .bad_logits = (uint32_t)tainted};
        if (r->sample != SAMPLE_LAST)
            continue;
        struct tick_sample *s = &w->samples[sample++];
        if (tainted || s->bad_logits) {
            s->id = -1;
            s->bad_logits = 1;
        }
        out->id = s->id;
        out->bad_logits = s->bad_logits;
        if (s->id >= 0 && s->sampler->n_top > 0) {
            out->has_logprob = 1;
            out->logprob = s->logprob;
            out->n_top = s->n_tops;
        }
        struct sample_note *note = sequence_note(w->seqs, w->run_seq[i], t->plan->tick);
        CHECK(note);
        note->id = s->id;
        note->known = 1;
    }
    w->result->n_runs = t->plan->n_runs;
}

/* The watermark moves before anything is sent: whatever was retired is in the pool. */
static enum status compute(struct tick_work *t, struct error *err)
{
    struct worker *w = t->w;
    enum status s = t->tick.n_rows ? w->compute->table->run(w->compute, &t->tick, err) : STATUS_OK;
    if (s == STATUS_OK) {
        kv_pool_mark(w->compute->pool, &(struct kv_mark){w->epoch.session, w->epoch.epoch, t->plan->tick});
    } else {
        err->status = s;
        if (!err->message[0])
            error_set(err, s, "%s", status_text(s));
    }
    return s;
}

static void send_result(struct tick_work *t, enum status s, const char *message)
{
    struct worker *w = t->w;
    struct result *r = w->result;
    r->session = w->epoch.session;
    r->epoch = w->epoch.epoch;
    r->tick = t->plan->tick;
    r->status = s;
    r->message[0] = 0;
    if (s != STATUS_OK) {
        snprintf(r->message, sizeof r->message, "stage %u: %.140s", w->assign.stage, message);
        r->n_runs = 0;
    }
    r->timing = t->timing;
    r->layer_counter = atomic_load(&w->compute->progress);
    const struct from_stage m = {.kind = FROM_STAGE_RESULT, .result = r};
    if (!worker__superseded(w))
        worker__send(w, &m);
}

static void add_timing(struct tick_work *t)
{
    struct worker *w = t->w;
    if (w->timings.timings.n == 0)
        w->timings_since_ns = clock_now_ns();
    w->timings.timings.session = w->epoch.session;
    w->timings.timings.epoch = w->epoch.epoch;
    w->timings.timings.timing[w->timings.timings.n++] = t->timing;
    if (w->timings.timings.n == MAX_TIMINGS || clock_now_ns() - w->timings_since_ns >= TIMINGS_AGE_MS * NS_PER_MS)
        worker__flush_timings(w);
}

/* Says where a link's failure was met: its own text knows bytes only. */
static enum status at_link(enum status s, const char *what, uint32_t stage, const struct worker *w, struct error *err)
{
    if (s == STATUS_OK)
        return s;
    struct error told;
    if (s == STATUS_TIMEOUT)
        error_set(&told, s, "%s stage %u: silent for %u ms", what, stage, w->assign.stuck_ms);
    else
        error_set(&told, s, "%s stage %u: %.240s", what, stage, err->message);
    *err = told;
    return s;
}

static enum status run(struct tick_work *t, int *reported, struct error *err)
{
    struct worker *w = t->w;
    int64_t mark_ns = clock_now_ns();
    TRY(take_up(t, err));
    t->timing.n_rows = t->tick.n_rows;
    atomic_store(&w->busy, WORKER_WAITS);
    if (w->assign.stage > 0) {
        TRY(at_link(read_frame(t, err), "link from", neighbour(w, -1), w, err));
        t->tick.in = (const float *)(const void *)w->in;
    } else {
        if (w->feedback)
            TRY(at_link(make_room_for_feedback(t, err), "feedback from", neighbour(w, -1), w, err));
        TRY(at_link(resolve_ids(t, err), "feedback from", neighbour(w, -1), w, err));
    }
    t->timing.wait_data_us = us_since(&mark_ns);
    atomic_store(&w->busy, WORKER_COMPUTES);
    enum status s = compute(t, err);
    atomic_store(&w->busy, WORKER_WAITS);
    t->timing.compute_us = us_since(&mark_ns);
    if (worker__superseded(w))
        return STATUS_CLOSED;
    if (worker__is_last(w)) {
        if (s != STATUS_OK) {
            send_result(t, s, err->message);
            *reported = 1;
            return s;
        }
        note_samples(t);
        if (w->assign.n_stages > 1)
            TRY(at_link(send_feedback(t, err), "feedback to", 0, w, err));
        t->timing.send_us = us_since(&mark_ns);
        send_result(t, STATUS_OK, "");
    } else {
        TRY(s);
        TRY(at_link(send_rows(t, err), "link to", neighbour(w, 1), w, err));
        t->timing.send_us = us_since(&mark_ns);
        add_timing(t);
    }
    return STATUS_OK;
}

static void count(struct worker *w, enum status s, uint64_t tick)
{
    pthread_mutex_lock(&w->lock);
    w->count.ticks += s == STATUS_OK;
    if (w->feedback) {
        uint64_t n = feedback_stale(w->feedback);
        w->count.stale.feedback += n - w->feedback_counted;
        w->feedback_counted = n;
    }
    w->tick = tick;
    pthread_mutex_unlock(&w->lock);
}

void worker__run_plan(struct worker *w, const struct plan *p, int64_t taken_ns)
{
    struct error err = {0};
    int reported = 0;
    int64_t idle_ns = taken_ns - w->idle_since_ns;
    struct tick_work t = {
        .w = w,
        .plan = p,
        .tick = {.tick = p->tick, .rows = w->rows, .samples = w->samples, .out = (float *)(void *)w->out},
        .timing = {.tick = p->tick,
                   .stage = w->assign.stage,
                   .wait_plan_us = idle_ns > 0 ? (uint32_t)(idle_ns / NS_PER_US) : 0},
    };
    enum status s = run(&t, &reported, &err);
    count(w, s, p->tick);
    w->has_tick = 1;
    w->last_tick = p->tick;
    if (s == STATUS_OK)
        return;
    trace_event("tick failed", s, (int64_t)p->epoch, (int64_t)p->tick, w->assign.stage);
    if (s == STATUS_BAD_MODEL) /* the file is another than the one that was loaded: a new process reads it again */
        worker__fail(w, p->tick, &err, 1);
    else if (reported)
        worker__leave(w);
    else
        worker__fail(w, p->tick, &err, 0);
}
