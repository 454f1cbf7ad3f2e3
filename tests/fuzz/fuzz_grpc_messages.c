/* Bytes of Inference and Admin messages: the first says which. A request that is taken keeps every bound that
 * inference_api.h and inference_wire.h promise, and passes through packing unchanged; one that is refused is refused in words. From
 * 248 on they are what a call that failed ends with: 1 byte the code of gRPC, 1 byte length, its message, and the error's detail.
 * The seeds are made by make_wire_seeds.py, but for the older ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "rpc/grpc/admin_wire.h"
#include "rpc/grpc/error_wire.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_request(const struct generate_request *r)
{
    CHECK(r->prompt >= PROMPT_TEXT && r->prompt <= PROMPT_CHAT);
    CHECK(r->n_stops <= MAX_STOPS && r->n_ids <= MAX_REQUEST_IDS && r->resume.n_ids <= MAX_REQUEST_IDS);
    CHECK(r->request_id.len <= MAX_REQUEST_ID && r->client.len <= MAX_CLIENT_BYTES);
    CHECK(r->sampler.temperature >= 0 && isfinite(r->sampler.temperature));
    CHECK(r->sampler.top_p >= 0 && r->sampler.top_p <= 1 && r->sampler.min_p >= 0 && r->sampler.min_p <= 1);
    struct sampler_fault f;
    CHECK(!sampler_has_fault(&r->sampler, &f) && r->n_bias == r->sampler.n_bias && r->n_bias <= MAX_BIASES);
    for (size_t i = 0; i < r->n_bias; i++)
        CHECK(r->bias[i].bias >= -100 && r->bias[i].bias <= 100);
    CHECK(r->max_tokens >= -1 && r->deadline_ms >= 0);
    const struct generate_resume *resume = &r->resume;
    CHECK(resume->token.len <= MAX_RESUME_TOKEN && (resume->token.len || resume->n_ids == 0));
    CHECK(!resume->token.len || (r->prompt == PROMPT_IDS && r->has_seed && r->attempt > 0));
    CHECK(resume->usage.queue_ms >= 0 && resume->usage.prompt_ms >= 0 && isfinite(resume->usage.decode_ms));
    for (uint32_t i = 0; i < r->n_stops; i++)
        CHECK(r->stop[i].len >= 1 && r->stop[i].len <= MAX_STOP_BYTES);
    CHECK(utf8_valid_len(r->text.data, r->text.len) == r->text.len);
    uint32_t sum = 0;
    for (size_t i = 0; i < r->n_ids; i++)
        sum += r->ids[i];
    CHECK(r->n_ids || sum == 0);
}

static void try_request(const uint8_t *data, size_t len, struct arena *a)
{
    struct generate_request r, again;
    struct error err;
    struct arena b;
    grpc_byte_buffer *packed;
    grpc_byte_buffer_reader reader;
    if (inference_wire_unpack_request(data, len, a, &r, &err) != STATUS_OK) {
        CHECK(err.status == STATUS_BAD_REQUEST && err.message[0]);
        return;
    }
    check_request(&r);
    CHECK(inference_wire_pack_request(&r, &packed, &err) == STATUS_OK);
    CHECK(grpc_byte_buffer_reader_init(&reader, packed));
    grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
    arena_init(&b, 0);
    CHECK(inference_wire_unpack_request(GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s), &b, &again, &err) == STATUS_OK);
    CHECK(again.prompt == r.prompt && again.n_ids == r.n_ids && again.text.len == r.text.len && again.n_stops == r.n_stops);
    CHECK(again.resume.n_ids == r.resume.n_ids && again.resume.token.len == r.resume.token.len);
    CHECK(again.max_tokens == r.max_tokens && again.has_seed == r.has_seed && again.sampler.seed == r.sampler.seed);
    CHECK(memcmp(&again.sampler, &r.sampler, sizeof r.sampler) == 0 && again.n_bias == r.n_bias);
    CHECK(r.n_bias == 0 || memcmp(again.bias, r.bias, r.n_bias * sizeof *r.bias) == 0);
    arena_fini(&b);
    grpc_slice_unref(s);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(packed);
}

static void try_status(const uint8_t *data, size_t len, struct arena *a)
{
    static struct service_status s;
    struct error err;
    if (admin_wire_unpack(data, len, a, &s, &err) != STATUS_OK)
        return;
    CHECK(s.n_slots <= STATUS_MAX_SLOTS && s.n_stages <= STATUS_MAX_STAGES && s.n_gateways <= STATUS_MAX_GATEWAYS);
    CHECK(memchr(s.model_id, 0, sizeof s.model_id));
    grpc_byte_buffer *b = admin_wire_pack(&s);
    CHECK(b);
    grpc_byte_buffer_destroy(b);
}

static void check_error(const struct error *e, int is_ok)
{
    CHECK((e->status == STATUS_OK) == is_ok && e->status == status_from_int(e->status));
    CHECK(e->retry_after_s >= 0 && e->retry_after_s <= 86400);
    CHECK(memchr(e->message, 0, sizeof e->message) && memchr(e->param, 0, sizeof e->param) && memchr(e->code, 0, sizeof e->code));
}

/* What a call ended with, whoever the server was; and the same said by us. */
static void try_trailers(const uint8_t *data, size_t len)
{
    if (len < 2)
        return;
    struct error e, again;
    struct error_trailers t;
    const size_t n = data[1] < len - 2 ? data[1] : len - 2;
    const grpc_status_code code = (grpc_status_code)(data[0] % 20);
    grpc_slice message = grpc_slice_from_copied_buffer((const char *)data + 2, n);
    grpc_metadata md = {.key = grpc_slice_from_static_string("sluice-error-bin"),
                        .value = grpc_slice_from_copied_buffer((const char *)data + 2 + n, len - 2 - n)};
    const grpc_metadata_array all = {.count = 1, .capacity = 1, .metadata = &md}, none = {0};
    error_from_trailers(code, message, &none, &e);
    check_error(&e, code == GRPC_STATUS_OK);
    error_from_trailers(code, message, &all, &e);
    check_error(&e, code == GRPC_STATUS_OK);
    error_trailers_init(&t, &e);
    const grpc_metadata_array own = {.count = t.n_md, .capacity = t.n_md, .metadata = t.md};
    error_from_trailers(t.code, t.message, &own, &again);
    check_error(&again, code == GRPC_STATUS_OK);
    CHECK(again.status == e.status && again.retry_after_s == e.retry_after_s);
    CHECK(strncmp(again.message, e.message, utf8_valid_len(e.message, strlen(e.message))) == 0);
    error_trailers_fini(&t);
    grpc_slice_unref(md.value);
    grpc_slice_unref(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct arena a;
    struct generate_event e;
    struct model_facts m;
    struct error err;
    if (len == 0)
        return 0;
    if (data[0] >= 248) {
        try_trailers(data + 1, len - 1);
        return 0;
    }
    arena_init(&a, 0);
    switch (data[0] % 4) {
    case 0:
        try_request(data + 1, len - 1, &a);
        break;
    case 1:
        if (inference_wire_unpack_event(data + 1, len - 1, &a, &e, &err) == STATUS_OK) {
            CHECK(e.kind >= GENERATE_ACCEPTED && e.kind <= GENERATE_DONE && e.finish <= FINISH_LENGTH);
            CHECK(e.n_logprobs == 0 || e.n_logprobs == e.n_ids);
            for (size_t i = 0; i < e.n_logprobs; i++)
                CHECK(e.logprobs[i].n_top <= MAX_TOP_LOGPROBS);
            grpc_byte_buffer_destroy(inference_wire_pack_event(&e));
        }
        break;
    case 2:
        if (inference_wire_unpack_model(data + 1, len - 1, &a, &m, &err) == STATUS_OK) {
            CHECK(m.n_ids <= 16);
            grpc_byte_buffer_destroy(inference_wire_pack_model(&m));
        }
        break;
    default:
        try_status(data + 1, len - 1, &a);
    }
    arena_fini(&a);
    return 0;
}
