/* The answer of a server as sluice chat and sluice bench read it: bytes to lines to events. The first byte says where the stream is
 * cut, which must change nothing. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "deploy/cli/event.h"
#include "deploy/cli/said.h"
#include "deploy/cli/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINE_BYTES = 4096 };

/* What one way of cutting gave: all lines, one behind the other with their lengths. */
struct reading {
    struct buf lines;
    int parse;
};

static void check_event(const struct stream_event *e, const struct error *err, const char *data, size_t len)
{
    CHECK((e->kind == EVENT_DONE) == (len == 6 && memcmp(data, "[DONE]", 6) == 0));
    CHECK((e->kind == EVENT_BAD || e->kind == EVENT_ERROR) == (err->status != STATUS_OK));
    CHECK(err->status == STATUS_OK || err->message[0]);
    char plain[sizeof err->message]; /* it is shown on a terminal, and stands in JSON */
    snprintf(plain, sizeof plain, "%s", err->message);
    said_make_plain(plain);
    CHECK(strcmp(plain, err->message) == 0);
    CHECK(e->prompt_tokens >= 0 && e->completion_tokens >= 0 && e->cached_tokens >= 0);
    CHECK(e->kind == EVENT_BAD || e->kind == EVENT_DONE || json_is_object(e->json));
    CHECK(e->kind != EVENT_TOKEN || (e->has_choice && e->n_tokens));
    CHECK(!e->text || strlen(e->text) <= 6 * len);
}

static void take_line(void *ctx, const char *data, size_t len)
{
    struct reading *r = ctx;
    buf_append(&r->lines, &len, sizeof len);
    buf_append(&r->lines, data, len);
    if (!r->parse)
        return;
    struct stream_event e;
    struct error err = {0};
    event_parse(data, len, &e, &err);
    check_event(&e, &err, data, len);
    event_release(&e);
}

static enum status read_cut(const char *bytes, size_t len, size_t piece, struct reading *r)
{
    struct sse s;
    enum status status = STATUS_OK;
    sse_init(&s, MAX_LINE_BYTES);
    buf_init(&r->lines, 1 << 26);
    for (size_t i = 0; i < len && status == STATUS_OK; i += piece)
        status = sse_feed(&s, bytes + i, piece < len - i ? piece : len - i, take_line, r);
    CHECK(s.part.len <= MAX_LINE_BYTES);
    sse_fini(&s);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct reading whole = {.parse = 1}, cut = {.parse = 0};
    const char *bytes = (const char *)data + 1;
    enum status a = read_cut(bytes, size - 1, size - 1, &whole), b = read_cut(bytes, size - 1, 1u + data[0] % 64, &cut);
    CHECK(a == b);
    CHECK(whole.lines.len == cut.lines.len && (!whole.lines.len || memcmp(whole.lines.data, cut.lines.data, whole.lines.len) == 0));
    buf_fini(&whole.lines);
    buf_fini(&cut.lines);
    return 0;
}
