/* The body of a POST, as every path that takes one reads it. The first byte chooses the path. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int json_object_is(struct bytes text)
{
    json_t *v = json_loadb(text.data, text.len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    int ok = json_is_object(v) && json_is_array(json_object_get(v, "messages"));
    json_decref(v);
    return ok;
}

/* What was taken is within what request.h says. */
static void check_taken(const struct request *r)
{
    const struct generate_request *q = &r->generate;
    CHECK(q->n_stops <= MAX_STOPS);
    for (uint32_t i = 0; i < q->n_stops; i++)
        CHECK(q->stop[i].len >= 1 && q->stop[i].len <= MAX_STOP_BYTES);
    CHECK(q->sampler.top_k <= MAX_TOP_K && q->sampler.top_p >= 0 && q->sampler.top_p <= 1);
    CHECK(q->deadline_ms >= 0 && q->max_tokens >= -1);
    struct sampler_fault f;
    CHECK(!sampler_has_fault(&q->sampler, &f) && q->sampler.repeat_penalty > 0);
    CHECK(r->n >= 1 && r->n <= REQUEST_MAX_CHOICES && q->n_bias <= MAX_BIASES);
    for (size_t i = 0; i < q->n_bias; i++)
        CHECK(sampler_bias_is_allowed(q->bias[i].bias) && q->bias[i].id <= INT32_MAX);
    if (r->endpoint & (ENDPOINT_CHAT | ENDPOINT_TEMPLATE))
        CHECK(json_object_is(q->chat_json));
    if (r->endpoint == ENDPOINT_COMPLETION)
        CHECK(q->max_tokens != 0 && (q->prompt == PROMPT_TEXT || (q->prompt == PROMPT_IDS && q->n_ids > 0)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int installed;
    if (!installed) {
        json_in_install();
        installed = 1;
    }
    if (size == 0)
        return 0;
    struct request r;
    struct error err;
    error_clear(&err);
    request_init(&r, (enum endpoint)(1 << data[0] % 5), size - 1);
    enum status s = request_parse(&r, (const char *)data + 1, size - 1, &err);
    if (s == STATUS_OK)
        check_taken(&r);
    else /* never a fault of ours; and it says what is wrong */
        CHECK(status_http(s) < 500 || s == STATUS_UNSUPPORTED);
    CHECK(s == STATUS_OK || err.message[0]);
    request_fini(&r);
    return 0;
}
