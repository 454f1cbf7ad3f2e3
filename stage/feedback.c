#include "stage/feedback.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

struct feedback {
    uint32_t max_ticks, max_records;
    uint64_t session, epoch;
    uint16_t from;
    struct link *link;
    struct sequences *seqs;
    uint64_t next_tick;    /* whose frame comes next */
    uint32_t n_out;        /* ticks from next_tick on that stage 0 has taken up */
    uint32_t *n_samples;   /* [max_ticks] by tick % max_ticks */
    int has_header, stale;
    uint64_t n_stale;
    uint32_t n_read, n_records;
    uint8_t *buf;          /* header, then records */
};

enum status feedback_create(uint32_t max_ticks, uint32_t max_records, struct feedback **out)
{
    struct feedback *f = calloc(1, sizeof *f);
    if (!f)
        return STATUS_OUT_OF_MEMORY;
    f->max_ticks = max_ticks;
    f->max_records = max_records;
    f->n_samples = calloc(max_ticks, sizeof *f->n_samples);
    f->buf = malloc(FRAME_HEADER_BYTES + (size_t)max_records * FEEDBACK_RECORD_BYTES);
    if (!f->n_samples || !f->buf) {
        feedback_destroy(f);
        return STATUS_OUT_OF_MEMORY;
    }
    *out = f;
    return STATUS_OK;
}

void feedback_destroy(struct feedback *f)
{
    if (!f)
        return;
    free(f->n_samples);
    free(f->buf);
    free(f);
}

void feedback_start(struct feedback *f, uint64_t session, uint64_t epoch, uint16_t from, struct link *link,
                    struct sequences *seqs)
{
    f->session = session;
    f->epoch = epoch;
    f->from = from;
    f->link = link;
    f->seqs = seqs;
    f->n_out = f->n_read = f->n_records = 0;
    f->has_header = 0;
}

enum status feedback_expect(struct feedback *f, uint64_t tick, uint32_t n_samples)
{
    if (f->n_out == f->max_ticks)
        return STATUS_FULL;
    if (f->n_out++ == 0)
        f->next_tick = tick;
    f->n_samples[tick % f->max_ticks] = n_samples;
    return STATUS_OK;
}

int feedback_awaits(const struct feedback *f, uint64_t tick)
{
    return f->n_out && tick >= f->next_tick;
}

uint64_t feedback_stale(const struct feedback *f)
{
    return f->n_stale;
}

static enum status check_header(struct feedback *f, struct error *err)
{
    struct frame_header h;
    TRY(frame_decode(f->buf, &h, err));
    f->stale = h.session != f->session || h.epoch != f->epoch;
    if (f->stale && h.payload_bytes <= (uint64_t)f->max_records * FEEDBACK_RECORD_BYTES &&
        h.payload_bytes % FEEDBACK_RECORD_BYTES == 0) {
        f->n_records = (uint32_t)(h.payload_bytes / FEEDBACK_RECORD_BYTES); /* to be read away */
        f->has_header = 1;
        return STATUS_OK;
    }
    if (f->n_out == 0)
        return error_set(err, STATUS_PROTOCOL, "feedback of tick %llu, none is out", (unsigned long long)h.tick);
    const uint32_t n = f->n_samples[f->next_tick % f->max_ticks];
    const struct frame_header want = {.session = f->session,
                                      .epoch = f->epoch,
                                      .tick = f->next_tick,
                                      .flags = FRAME_FEEDBACK,
                                      .from = f->from,
                                      .to = 0,
                                      .n_rows = n,
                                      .n_sections = 1,
                                      .payload_bytes = (uint64_t)n * FEEDBACK_RECORD_BYTES};
    TRY(frame_expect(&h, &want, err));
    f->n_records = n;
    f->has_header = 1;
    return STATUS_OK;
}

static enum status take_record(struct feedback *f, const uint8_t *bytes, struct error *err)
{
    struct feedback_record r;
    feedback_decode(bytes, &r);
    const struct sequence *q = sequences_find(f->seqs, r.seq);
    if (!q)
        return STATUS_OK; /* closed since: nobody asks for the id any more */
    struct sample_note *note = sequence_note(f->seqs, q, f->next_tick);
    if (!note || note->known)
        return error_set(err, STATUS_PROTOCOL, "feedback of tick %llu: sequence %llu, which %s", (unsigned long long)f->next_tick,
                         (unsigned long long)r.seq, note ? "came twice" : "was not sampled");
    if (r.next_index != note->next_index || r.id < -1)
        return error_set(err, STATUS_PROTOCOL, "feedback of tick %llu: sequence %llu has id %d at %u, expected at %u",
                         (unsigned long long)f->next_tick, (unsigned long long)r.seq, r.id, r.next_index, note->next_index);
    note->id = r.id;
    note->known = 1;
    return STATUS_OK;
}

static enum status take_frame(struct feedback *f, struct error *err)
{
    for (uint32_t i = 0; i < f->n_records && !f->stale; i++)
        TRY(take_record(f, f->buf + FRAME_HEADER_BYTES + (size_t)i * FEEDBACK_RECORD_BYTES, err));
    f->has_header = 0;
    f->n_read = f->n_records = 0;
    if (f->stale) {
        f->n_stale++;
        return STATUS_OK;
    }
    f->next_tick++;
    f->n_out--;
    return STATUS_OK;
}

/* Reads on; *whole says whether a frame was completed, *moved whether anything came. */
static enum status step(struct feedback *f, int64_t deadline_ns, int *whole, int *moved, struct error *err)
{
    size_t got = 0, size = FRAME_HEADER_BYTES + (size_t)f->n_records * FEEDBACK_RECORD_BYTES;
    *whole = 0;
    TRY(link_read(f->link, f->buf + f->n_read, size - f->n_read, deadline_ns, &got, err));
    f->n_read += (uint32_t)got;
    *moved = got != 0;
    if (!f->has_header && f->n_read == FRAME_HEADER_BYTES)
        TRY(check_header(f, err));
    if (f->has_header && f->n_read == FRAME_HEADER_BYTES + (size_t)f->n_records * FEEDBACK_RECORD_BYTES) {
        *whole = !f->stale;
        return take_frame(f, err);
    }
    return STATUS_OK;
}

enum status feedback_drain(struct feedback *f, struct error *err)
{
    for (int moved = 1, whole; moved;)
        TRY(step(f, 0, &whole, &moved, err));
    return STATUS_OK;
}

enum status feedback_wait(struct feedback *f, uint32_t silence_ms, struct error *err)
{
    for (int whole = 0, moved; !whole;)
        TRY(step(f, clock_now_ns() + silence_ms * NS_PER_MS, &whole, &moved, err));
    return STATUS_OK;
}
