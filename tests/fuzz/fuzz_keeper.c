/* The journal that a gateway left behind, as the next one reads it, and goes on with it. The input is what stands in the image where it matters: the
 * head's page first (its used part), then the records. Whatever is accepted must be readable to its end, and no position may name bytes that are
 * not there; what is written behind it must be found by the gateway after that one. What it writes is in the last bytes of the head's part, two a
 * step: `enum step`, and how much. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/kept_answer.h"
#include "rpc/gateway/logprobs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_BYTES = 256, STEPS_AT = 216, RECORDS_AT = KEEPER_PAGE + KEEPER_RING_BYTES, RECORDS_MAX = 64 << 10 };

static void look_at_rest(const struct kept *k, uint64_t position)
{
    struct keeper_rest rest;
    struct buf b;
    struct keeper_record head = {0};
    keeper_find(k, KEEPER_HEAD, &head);
    if (keeper_rest(&k->state, head.len, position, &rest) != STATUS_OK)
        return;
    CHECK(rest.head_left <= head.len);
    CHECK(rest.frame_left <= keeper_frame_bytes(&k->state));
    CHECK(rest.content_at <= k->state.handed);
    if (k->state.framing == KEEPER_LENGTH)
        return;
    buf_init(&b, KEEPER_RING_BYTES);
    CHECK(keeper_copy(k, k->state.handed - k->state.frame_content, k->state.produced, &b) == STATUS_OK);
    CHECK(b.len == k->state.produced - k->state.handed + k->state.frame_content);
    buf_fini(&b);
}

static void check_json(struct buf *b)
{
    json_t *v = b->failed ? json_object() : json_loadb(b->data, b->len, JSON_REJECT_DUPLICATES, NULL);
    CHECK(v);
    json_decref(v);
    buf_fini(b);
}

/* Kept log probabilities in both shapes, with a vocabulary of every byte. */
static void look_at_logprobs(const struct buf *kept)
{
    char text[256];
    uint32_t lengths[256];
    const uint32_t hidden[] = {1, 2};
    struct buf b;
    struct bytes words = {kept->data ? kept->data : "", kept->len};
    for (int i = 0; i < 256; i++) {
        text[i] = (char)(i ? i : 'a'); /* jansson takes no key with a 0 */
        lengths[i] = 1;
    }
    CHECK(logprobs_are_sane(words));
    struct pieces *p = pieces_create((struct bytes){text, sizeof text}, lengths, 256, hidden, 2);
    buf_init(&b, 16 << 20);
    logprobs_write_chat(&b, words, p);
    check_json(&b);
    buf_init(&b, 16 << 20);
    logprobs_write_completion(&b, words, p, 0);
    check_json(&b);
    pieces_release(p);
}

/* What a completion would go on with. */
static void look_at_records(const struct kept *k)
{
    struct completion_kept c;
    struct error err;
    if (completion_kept_read(k, &c, &err) != STATUS_OK)
        return;
    CHECK(memchr(c.request.request_id, 0, sizeof c.request.request_id) && memchr(c.model, 0, sizeof c.model) && c.request.id[0]);
    CHECK(c.request.n >= 1 && c.request.n <= REQUEST_MAX_CHOICES);
    for (uint32_t i = 0; i < c.request.n; i++) {
        const struct kept_choice *h = &c.choices[i];
        CHECK(h->token.len <= MAX_RESUME_TOKEN && h->ids.len % sizeof(uint32_t) == 0);
        look_at_logprobs(&h->logprobs);
    }
    CHECK(c.n_prompt_ids * sizeof(uint32_t) <= k->state.records_bytes);
    completion_kept_fini(&c);
}

/* --- what the connection still lacks ----------------------------------------------------------------------------------------- */

/* All of it, one behind the other: 0 when it cannot stand there. */
static int lacking(const struct kept *k, uint64_t position, struct kept_answer *a, struct buf *out)
{
    struct error err = {0};
    enum status s = kept_answer_read(k, position, a, &err);
    if (s != STATUS_OK) {
        CHECK(s == err.status && err.message[0]);
        return 0;
    }
    CHECK(a->need_head == (a->framing == KEEPER_UNANSWERED || (!k->state.body_known && position == k->state.wire_begin)));
    CHECK(!a->need_head || !a->pending.len);
    CHECK(!a->last_taken || (!a->out.len && a->framing != KEEPER_UNANSWERED));
    CHECK(a->framing == KEEPER_UNANSWERED || (a->http >= 200 && a->http <= 599 && a->retry_after_s <= 60));
    CHECK(a->framing == KEEPER_UNANSWERED || a->handed + a->out.len == k->state.produced);
    buf_init(out, KEPT_ANSWER_PENDING + KEPT_ANSWER_OUT);
    if (a->pending.len)
        CHECK(buf_append(out, a->pending.data, a->pending.len) == STATUS_OK);
    if (a->out.len)
        CHECK(buf_append(out, a->out.data, a->out.len) == STATUS_OK);
    kept_answer_fini(a);
    return 1;
}

/* One byte further on the connection, one byte less is lacking. */
static void look_at_answer(const struct kept *k, uint64_t position)
{
    struct kept_answer here, next;
    struct buf a, b;
    if (!lacking(k, position, &here, &a))
        return;
    if (k->state.body_known && !here.need_head && lacking(k, position + 1, &next, &b)) {
        CHECK(a.len == b.len + 1);
        CHECK(!b.len || memcmp(a.data + 1, b.data, b.len) == 0);
        buf_fini(&b);
    }
    buf_fini(&a);
}

/* --- going on with it ----------------------------------------------------------------------------------------------------------- */

enum step { STEP_NONE, STEP_RECORD, STEP_APPEND, STEP_CONTENT, STEP_FRAME, STEP_LAST, STEP_PUBLISH, STEP_REOPEN };

/* What a journal should have, once it is published. */
struct model {
    struct buf records;  /* but for those of the appended sequence: kind, len, data */
    struct buf appended;
    struct buf content;  /* of the frame under way and behind it */
};

static void model_init(struct model *m)
{
    buf_init(&m->records, 16 << 20);
    buf_init(&m->appended, 16 << 20);
    buf_init(&m->content, 16 << 20);
}

static void model_fini(struct model *m)
{
    buf_fini(&m->records);
    buf_fini(&m->appended);
    buf_fini(&m->content);
}

static void model_record(struct model *m, uint32_t kind, const void *data, uint32_t len)
{
    const uint32_t head[2] = {kind, len};
    CHECK(buf_append(&m->records, head, sizeof head) == STATUS_OK && (!len || buf_append(&m->records, data, len) == STATUS_OK));
}

static void model_read(struct model *m, const struct kept *k)
{
    struct keeper_record r;
    uint64_t at = 0;
    model_init(m);
    while (keeper_next(k, &at, &r))
        if (r.kind != KEEPER_APPENDED)
            model_record(m, r.kind, r.data, r.len);
    CHECK(keeper_appended(k, &m->appended) == STATUS_OK && m->appended.len == k->state.appended);
    if (k->state.framing != KEEPER_LENGTH)
        CHECK(keeper_copy(k, k->state.handed - k->state.frame_content, k->state.produced, &m->content) == STATUS_OK);
}

static void check_same(const struct buf *a, const struct buf *b)
{
    CHECK(a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0));
}

/* The next gateway finds what this one has published. */
static struct keeper *reopen(struct keeper *k, const struct model *m)
{
    struct keeper *next;
    struct kept kept;
    struct model found;
    struct error err;
    int fd = dup(keeper_fd(k));
    CHECK(fd >= 0 && keeper_open(fd, &next, &err) == STATUS_OK);
    keeper_view(next, &kept);
    CHECK(memcmp(&kept.state, keeper_state(k), sizeof kept.state) == 0);
    model_read(&found, &kept);
    check_same(&found.records, &m->records);
    check_same(&found.appended, &m->appended);
    check_same(&found.content, &m->content);
    model_fini(&found);
    keeper_close(k);
    return next;
}

static void add_content(struct keeper *k, struct model *m, const char *text, size_t len)
{
    struct keeper_state *s = keeper_state(k);
    if (s->framing == KEEPER_LENGTH || s->ended)
        return;
    s->framing = KEEPER_CHUNKED;
    keeper_content(k, text, len);
    CHECK(keeper_failed(k) == (m->content.len + len > KEEPER_RING_BYTES));
    CHECK(buf_append(&m->content, text, len) == STATUS_OK);
}

/* n KEEPER_LAST: the end of what is there. As exchange.c asks for it. */
static void add_frame(struct keeper *k, struct model *m, long n)
{
    struct keeper_state *s = keeper_state(k);
    const uint64_t there = s->produced - s->handed;
    if (s->framing != KEEPER_CHUNKED || s->last || (n == KEEPER_LAST && there))
        return;
    if (!s->body_known) {
        s->wire_body = s->wire_begin + 100;
        s->body_known = 1;
    }
    if (n > 0)
        n = (uint64_t)n > there ? (long)there : n;
    s->ended |= n == KEEPER_LAST;
    buf_consume(&m->content, s->frame_content);
    keeper_frame(k, n, -1);
    CHECK(!keeper_failed(k));
}

static struct keeper *take_step(struct keeper *k, struct model *m, enum step step, uint8_t much)
{
    static char text[256 * 101];
    memset(text, 'a' + much % 26, sizeof text);
    switch (step) {
    case STEP_RECORD:
        keeper_record(k, KEEPER_USER + much % (KEEPER_KINDS - KEEPER_USER), text, much * 101u);
        model_record(m, KEEPER_USER + much % (KEEPER_KINDS - KEEPER_USER), text, much * 101u);
        break;
    case STEP_APPEND:
        keeper_append(k, text, much * 31u);
        CHECK(!much || buf_append(&m->appended, text, much * 31u) == STATUS_OK);
        break;
    case STEP_CONTENT:
        add_content(k, m, text, much * 101u);
        break;
    case STEP_FRAME:
        add_frame(k, m, much * 64l);
        break;
    case STEP_LAST:
        add_frame(k, m, KEEPER_LAST);
        break;
    case STEP_PUBLISH:
        keeper_publish(k);
        break;
    case STEP_REOPEN:
        if (!keeper_failed(k)) {
            keeper_publish(k);
            k = reopen(k, m);
        }
        break;
    case STEP_NONE:
        break;
    }
    return k;
}

static void go_on(const char *image, size_t len, const uint8_t *steps, size_t n)
{
    static const uint64_t far = 1ull << 59; /* beyond it no count of bytes is believed, in front of it none gets there */
    struct keeper *k;
    struct kept kept;
    struct model m;
    struct error err;
    int fd = memfd_create("journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0 && pwrite(fd, image, len, 0) == (ssize_t)len && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    CHECK(keeper_open(fd, &k, &err) == STATUS_OK);
    keeper_view(k, &kept);
    model_read(&m, &kept);
    for (size_t i = 0; i + 1 < n && !keeper_failed(k) && keeper_state(k)->produced < far && keeper_state(k)->frame_at < far; i += 2)
        k = take_step(k, &m, (enum step)(steps[i] % (STEP_REOPEN + 1)), steps[i + 1]);
    if (!keeper_failed(k)) {
        keeper_publish(k);
        k = reopen(k, &m);
    }
    model_fini(&m);
    keeper_close(k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char image[RECORDS_AT + RECORDS_MAX];
    struct kept k;
    struct error err;
    struct keeper_record r;
    uint64_t at = 0, sum = 0;
    if (size < HEAD_BYTES || size > HEAD_BYTES + RECORDS_MAX)
        return 0;
    const size_t len = RECORDS_AT + size - HEAD_BYTES;
    memcpy(image, data, HEAD_BYTES);
    memcpy(image + RECORDS_AT, data + HEAD_BYTES, size - HEAD_BYTES);
    for (size_t i = 0; i < KEEPER_RING_BYTES && !image[KEEPER_PAGE]; i++)
        image[KEEPER_PAGE + KEEPER_RING_BYTES - 1 - i] = (char)('A' + i % 61);
    if (keeper_read(image, len, &k, &err) != STATUS_OK)
        return 0;
    while (keeper_next(&k, &at, &r)) {
        CHECK(r.data + r.len <= image + len);
        for (uint32_t i = 0; i < r.len; i++)
            sum += (uint8_t)r.data[i];
    }
    CHECK(at == k.state.records_bytes || !k.state.records_bytes);
    look_at_records(&k);
    const uint64_t base = k.state.wire_body + k.state.frame_at;
    for (uint64_t i = 0; i < 3; i++) {
        look_at_rest(&k, base + i);
        look_at_rest(&k, k.state.wire_begin + i);
        look_at_rest(&k, k.state.wire_body - i);
        look_at_answer(&k, base + i);
        look_at_answer(&k, k.state.wire_begin + i);
        look_at_answer(&k, k.state.wire_body - i);
        look_at_answer(&k, k.state.wire_body + k.state.handed - i);
        look_at_answer(&k, base + keeper_frame_bytes(&k.state) - i);
    }
    go_on(image, len, data + STEPS_AT, HEAD_BYTES - STEPS_AT);
    return sum == UINT64_MAX;
}
