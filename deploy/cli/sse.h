/* deploy/cli/sse.h - server-sent events, cut out of a byte stream.
 *
 * Purpose    Gives the text of each `data:` line as soon as the line is whole, however the bytes were cut on the way. OpenAI-style
 *            servers put one event in one data line; comments, other fields and empty lines are passed over.
 * Ownership  sse_init/sse_fini in place. What on_data is given is valid during the call and has no 0 behind it.
 * Threading  One thread at a time.
 * Errors     OUT_OF_MEMORY: a line is longer than the limit; sticky.
 */
#ifndef SLUICE_DEPLOY_CLI_SSE_H
#define SLUICE_DEPLOY_CLI_SSE_H

#include "common/base/buf.h"

struct sse {
    struct buf part; /* a line whose end has not come yet */
    size_t limit;
};

void sse_init(struct sse *s, size_t max_line_bytes);
void sse_fini(struct sse *s);
/* Calls on_data for every data line that ends within these bytes. */
enum status sse_feed(struct sse *s, const char *bytes, size_t len, void (*on_data)(void *ctx, const char *data, size_t len),
                     void *ctx);

#endif
