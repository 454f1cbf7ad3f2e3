/* The journal that a gateway left behind, as the next one reads it. The input is what stands in the image where it matters: the head's page first (its
 * used part), then the records. Whatever is accepted must be readable to its end, and no position may name bytes that are not there. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/logprobs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_BYTES = 256, RECORDS_AT = KEEPER_PAGE + KEEPER_RING_BYTES, RECORDS_MAX = 64 << 10 };

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char image[RECORDS_AT + RECORDS_MAX];
    struct kept k;
    struct error err;
    struct keeper_record r;
    uint64_t at = 0, sum = 0;
    if (size < HEAD_BYTES || size > HEAD_BYTES + RECORDS_MAX)
        return 0;
    memcpy(image, data, HEAD_BYTES);
    memcpy(image + RECORDS_AT, data + HEAD_BYTES, size - HEAD_BYTES);
    if (keeper_read(image, RECORDS_AT + size - HEAD_BYTES, &k, &err) != STATUS_OK)
        return 0;
    while (keeper_next(&k, &at, &r)) {
        CHECK(r.data + r.len <= image + RECORDS_AT + size - HEAD_BYTES);
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
    }
    return sum == UINT64_MAX;
}
