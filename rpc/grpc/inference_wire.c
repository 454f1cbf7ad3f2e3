#include "rpc/grpc/inference_wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/sampler_wire.h"
#include "rpc/proto/inference.pb-c.h"

#define MAX_DEADLINE_MS (10ll * 365 * 86400 * 1000)

/* --- usage --------------------------------------------------------------------------------------------------------------- */

static void pack_usage(const struct usage *u, Sluice__V1__Usage *out)
{
    sluice__v1__usage__init(out);
    out->prompt_tokens = u->prompt_tokens;
    out->cached_tokens = u->cached_tokens;
    out->completion_tokens = u->completion_tokens;
    out->queue_ms = u->queue_ms;
    out->prompt_ms = u->prompt_ms;
    out->decode_ms = u->decode_ms;
}

static struct usage usage_pb(const Sluice__V1__Usage *u)
{
    return (struct usage){.prompt_tokens = u->prompt_tokens,
                          .cached_tokens = u->cached_tokens,
                          .completion_tokens = u->completion_tokens,
                          .queue_ms = u->queue_ms,
                          .prompt_ms = u->prompt_ms,
                          .decode_ms = u->decode_ms};
}

/* --- requests ---------------------------------------------------------------------------------------------------------- */

static enum status pack_prompt(const struct generate_request *r, Sluice__V1__GenerateRequest *m, Sluice__V1__TokenIds *ids,
                               struct error *err)
{
    switch (r->prompt) {
    case PROMPT_TEXT:
        m->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        m->text = pb_bytes(r->text);
        return STATUS_OK;
    case PROMPT_IDS:
        m->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_IDS;
        ids->ids = (uint32_t *)(uintptr_t)r->ids;
        ids->n_ids = r->n_ids;
        m->ids = ids;
        return STATUS_OK;
    case PROMPT_CHAT:
        m->prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT_JSON;
        m->chat_json = pb_bytes(r->chat_json);
        return STATUS_OK;
    }
    return error_param(err, STATUS_BAD_REQUEST, "prompt", "", "prompt kind %d is unknown", (int)r->prompt);
}

enum status inference_wire_pack_request(const struct generate_request *r, grpc_byte_buffer **out, struct error *err)
{
    Sluice__V1__GenerateRequest m;
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__Resume resume = SLUICE__V1__RESUME__INIT;
    Sluice__V1__Usage usage;
    Sluice__V1__Sampler sampler;
    struct sampler_params params = r->sampler;
    uint32_t bias_ids[MAX_BIASES];
    float bias[MAX_BIASES];
    ProtobufCBinaryData stop[MAX_STOPS];
    if (r->n_stops > MAX_STOPS)
        return error_param(err, STATUS_BAD_REQUEST, "stop", "", "%u stop strings, at most %d", r->n_stops, MAX_STOPS);
    if (r->n_bias > MAX_BIASES)
        return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "", "%zu biases, at most %d", r->n_bias, MAX_BIASES);
    sluice__v1__generate_request__init(&m);
    TRY(pack_prompt(r, &m, &ids, err));
    m.request_id = pb_bytes(r->request_id);
    m.attempt = r->attempt;
    params.n_bias = (uint32_t)r->n_bias;
    for (size_t i = 0; i < r->n_bias; i++) {
        bias_ids[i] = r->bias[i].id;
        bias[i] = r->bias[i].bias;
    }
    sampler_pack(&params, r->has_seed, bias_ids, bias, &sampler);
    m.sampler = &sampler;
    m.limit_case = SLUICE__V1__GENERATE_REQUEST__LIMIT_MAX_TOKENS;
    m.max_tokens = r->max_tokens;
    for (uint32_t i = 0; i < r->n_stops; i++)
        stop[i] = pb_bytes(r->stop[i]);
    m.stop = stop;
    m.n_stop = r->n_stops;
    m.ignore_eos = r->ignore_eos != 0;
    m.priority = r->batch_priority ? SLUICE__V1__PRIORITY__PRIORITY_BATCH : SLUICE__V1__PRIORITY__PRIORITY_INTERACTIVE;
    m.deadline_ms = r->deadline_ms > 0 ? (uint64_t)r->deadline_ms : 0;
    m.client = pb_bytes(r->client);
    if (r->resume.token.len) {
        pack_usage(&r->resume.usage, &usage);
        resume.token = pb_bytes(r->resume.token);
        resume.ids = (uint32_t *)(uintptr_t)r->resume.ids;
        resume.n_ids = r->resume.n_ids;
        resume.usage = &usage;
        m.resume = &resume;
    }
    m.no_cache = r->no_cache != 0;
    m.sibling = pb_bytes(r->sibling);
    *out = message_pack(&m.base);
    return STATUS_OK;
}

enum status inference_wire_check_text(struct bytes text, const char *name, struct error *err)
{
    size_t valid = utf8_valid_len(text.data, text.len);
    if (valid != text.len)
        return error_param(err, STATUS_BAD_REQUEST, name, "", "%s is not UTF-8 at byte %zu of %zu", name, valid, text.len);
    return STATUS_OK;
}

static enum status check_name(struct bytes b, const char *name, size_t max, struct error *err)
{
    if (b.len > max)
        return error_param(err, STATUS_BAD_REQUEST, name, "", "%s has %zu bytes, at most %zu", name, b.len, max);
    for (size_t i = 0; i < b.len; i++)
        if (b.data[i] <= ' ' || b.data[i] > '~' || b.data[i] == '"' || b.data[i] == '\\')
            return error_param(err, STATUS_BAD_REQUEST, name, "",
                               "%s may hold printable ASCII without spaces, quotes and backslashes", name);
    return STATUS_OK;
}

static enum status unpack_prompt(const Sluice__V1__GenerateRequest *m, struct generate_request *r, struct error *err)
{
    switch (m->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        r->prompt = PROMPT_TEXT;
        r->text = bytes_pb(m->text);
        return inference_wire_check_text(r->text, "prompt", err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_IDS:
        r->prompt = PROMPT_IDS;
        r->ids = m->ids->ids;
        r->n_ids = m->ids->n_ids;
        if (r->n_ids > MAX_REQUEST_IDS)
            return error_param(err, STATUS_BAD_REQUEST, "prompt", "", "%zu ids, at most %d", r->n_ids, MAX_REQUEST_IDS);
        return STATUS_OK;
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT_JSON:
        r->prompt = PROMPT_CHAT;
        r->chat_json = bytes_pb(m->chat_json);
        return inference_wire_check_text(r->chat_json, "messages", err);
    default:
        return error_param(err, STATUS_BAD_REQUEST, "prompt", "", "no prompt: one of text, ids, chat_json");
    }
}

static enum status unpack_stops(const Sluice__V1__GenerateRequest *m, struct generate_request *r, struct error *err)
{
    if (m->n_stop > MAX_STOPS)
        return error_param(err, STATUS_BAD_REQUEST, "stop", "", "%zu stop strings, at most %d", m->n_stop, MAX_STOPS);
    r->n_stops = (uint32_t)m->n_stop;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        r->stop[i] = bytes_pb(m->stop[i]);
        if (r->stop[i].len == 0 || r->stop[i].len > MAX_STOP_BYTES)
            return error_param(err, STATUS_BAD_REQUEST, "stop", "", "stop string %u has %zu bytes, allowed are 1 to %d", i,
                               r->stop[i].len, MAX_STOP_BYTES);
        TRY(inference_wire_check_text(r->stop[i], "stop", err));
    }
    return STATUS_OK;
}

static enum status unpack_sampler(const Sluice__V1__Sampler *m, struct arena *a, struct generate_request *r, struct error *err)
{
    TRY(sampler_unpack(m, &r->sampler, &r->has_seed, err));
    if (!r->sampler.n_bias)
        return STATUS_OK;
    struct logit_bias *bias = arena_array(a, r->sampler.n_bias, sizeof *bias);
    if (!bias)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %u biases", r->sampler.n_bias);
    r->n_bias = r->sampler.n_bias;
    r->bias = bias;
    for (size_t i = 0; i < r->n_bias; i++)
        bias[i] = (struct logit_bias){.id = m->bias_ids[i], .bias = m->bias[i]};
    return STATUS_OK;
}

static enum status unpack_numbers(const Sluice__V1__GenerateRequest *m, struct generate_request *r, struct error *err)
{
    r->attempt = m->attempt;
    r->max_tokens = m->limit_case == SLUICE__V1__GENERATE_REQUEST__LIMIT_MAX_TOKENS ? m->max_tokens : -1;
    if (r->max_tokens < -1)
        return error_param(err, STATUS_BAD_REQUEST, "max_tokens", "", "max_tokens %lld, allowed are -1 and up",
                           (long long)r->max_tokens);
    if (m->priority != SLUICE__V1__PRIORITY__PRIORITY_INTERACTIVE && m->priority != SLUICE__V1__PRIORITY__PRIORITY_BATCH)
        return error_param(err, STATUS_BAD_REQUEST, "priority", "", "priority %d is unknown", (int)m->priority);
    r->batch_priority = m->priority == SLUICE__V1__PRIORITY__PRIORITY_BATCH;
    if (m->deadline_ms > MAX_DEADLINE_MS)
        return error_param(err, STATUS_BAD_REQUEST, "deadline_ms", "", "deadline_ms %llu, at most %lld",
                           (unsigned long long)m->deadline_ms, MAX_DEADLINE_MS);
    r->deadline_ms = (int64_t)m->deadline_ms;
    r->ignore_eos = m->ignore_eos != 0;
    r->no_cache = m->no_cache != 0;
    return STATUS_OK;
}

static int is_duration(double ms)
{
    return isfinite(ms) && ms >= 0 && ms <= MAX_DEADLINE_MS;
}

static enum status unpack_resume(const Sluice__V1__GenerateRequest *m, struct generate_request *r, struct error *err)
{
    struct generate_resume *to = &r->resume;
    if (!m->resume)
        return STATUS_OK;
    to->token = bytes_pb(m->resume->token);
    to->ids = m->resume->ids;
    to->n_ids = m->resume->n_ids;
    if (to->token.len == 0 || to->token.len > MAX_RESUME_TOKEN)
        return error_param(err, STATUS_BAD_REQUEST, "resume", "", "a token of %zu bytes, allowed are 1 to %d", to->token.len,
                           MAX_RESUME_TOKEN);
    if (to->n_ids > MAX_REQUEST_IDS)
        return error_param(err, STATUS_BAD_REQUEST, "resume", "", "%zu ids, at most %d", to->n_ids, MAX_REQUEST_IDS);
    if (r->prompt != PROMPT_IDS || !r->has_seed || r->attempt == 0)
        return error_param(err, STATUS_BAD_REQUEST, "resume", "", "goes on by the prompt's ids, its seed and an attempt above 0");
    if (m->resume->usage)
        to->usage = usage_pb(m->resume->usage);
    if (!is_duration(to->usage.queue_ms) || !is_duration(to->usage.prompt_ms) || !is_duration(to->usage.decode_ms))
        return error_param(err, STATUS_BAD_REQUEST, "resume", "", "a duration of the usage is out of range");
    return STATUS_OK;
}

static enum status unpack_sibling(const Sluice__V1__GenerateRequest *m, struct generate_request *r, struct error *err)
{
    r->sibling = bytes_pb(m->sibling);
    if (r->sibling.len > MAX_RESUME_TOKEN)
        return error_param(err, STATUS_BAD_REQUEST, "sibling", "", "a token of %zu bytes, at most %d", r->sibling.len, MAX_RESUME_TOKEN);
    return STATUS_OK;
}

enum status inference_wire_unpack_request(const void *data, size_t len, struct arena *a, struct generate_request *out,
                                          struct error *err)
{
    struct generate_request r = {0};
    Sluice__V1__GenerateRequest *m = message_unpack(&sluice__v1__generate_request__descriptor, a, data, len);
    if (!m)
        return error_set(err, message_why(a), "%zu bytes are no GenerateRequest", len);
    r.request_id = bytes_pb(m->request_id);
    r.client = bytes_pb(m->client);
    TRY(check_name(r.request_id, "request_id", MAX_REQUEST_ID, err));
    TRY(check_name(r.client, "client", MAX_CLIENT_BYTES, err));
    TRY(unpack_prompt(m, &r, err));
    TRY(unpack_sampler(m->sampler, a, &r, err));
    TRY(unpack_numbers(m, &r, err));
    TRY(unpack_stops(m, &r, err));
    TRY(unpack_resume(m, &r, err));
    TRY(unpack_sibling(m, &r, err));
    *out = r;
    return STATUS_OK;
}

/* --- events ------------------------------------------------------------------------------------------------------------ */

static grpc_byte_buffer *pack_accepted(const struct generate_event *e, Sluice__V1__GenerateEvent *m)
{
    Sluice__V1__Accepted a = SLUICE__V1__ACCEPTED__INIT;
    a.request_id = pb_bytes(e->request_id);
    a.seed = e->seed;
    a.model = pb_bytes(e->model);
    a.profile = pb_bytes(e->profile);
    a.prompt_tokens = e->prompt_tokens;
    a.prompt_ids = (uint32_t *)(uintptr_t)e->ids;
    a.n_prompt_ids = e->n_ids;
    a.resume_token = pb_bytes(e->resume_token);
    m->event_case = SLUICE__V1__GENERATE_EVENT__EVENT_ACCEPTED;
    m->accepted = &a;
    return message_pack(&m->base);
}

static grpc_byte_buffer *pack_progress(const struct generate_event *e, Sluice__V1__GenerateEvent *m)
{
    Sluice__V1__Progress p = SLUICE__V1__PROGRESS__INIT;
    p.queue_position = e->queue_position;
    p.read_tokens = e->read_tokens;
    p.prompt_tokens = e->prompt_tokens;
    m->event_case = SLUICE__V1__GENERATE_EVENT__EVENT_PROGRESS;
    m->progress = &p;
    return message_pack(&m->base);
}

/* In one block: pointers first, then messages. */
static Sluice__V1__TokenLogprobs **list_logprobs(const struct token_logprobs *from, size_t n)
{
    Sluice__V1__TokenLogprobs **list = malloc(n * (sizeof *list + sizeof **list)), *m = (void *)(list + n);
    for (size_t i = 0; list && i < n; i++) {
        sluice__v1__token_logprobs__init(&m[i]);
        m[i].id = from[i].id;
        m[i].logprob = from[i].logprob;
        m[i].top_ids = (uint32_t *)(uintptr_t)from[i].top_ids;
        m[i].top_logprobs = (float *)(uintptr_t)from[i].top_logprobs;
        m[i].n_top_ids = m[i].n_top_logprobs = from[i].n_top;
        list[i] = &m[i];
    }
    return list;
}

/* NULL: no memory. */
static grpc_byte_buffer *pack_text(const struct generate_event *e, Sluice__V1__GenerateEvent *m)
{
    Sluice__V1__Text t = SLUICE__V1__TEXT__INIT;
    if (e->n_logprobs) {
        t.logprobs = list_logprobs(e->logprobs, e->n_logprobs);
        t.n_logprobs = e->n_logprobs;
        if (!t.logprobs)
            return NULL;
    }
    t.text = pb_bytes(e->text);
    t.ids = (uint32_t *)(uintptr_t)e->ids;
    t.n_ids = e->n_ids;
    Sluice__V1__Usage usage;
    if (e->has_usage) {
        pack_usage(&e->usage, &usage);
        t.usage = &usage;
    }
    m->event_case = SLUICE__V1__GENERATE_EVENT__EVENT_TEXT;
    m->text = &t;
    grpc_byte_buffer *b = message_pack(&m->base);
    free(t.logprobs);
    return b;
}

static grpc_byte_buffer *pack_done(const struct generate_event *e, Sluice__V1__GenerateEvent *m)
{
    Sluice__V1__Done d = SLUICE__V1__DONE__INIT;
    Sluice__V1__Usage u;
    pack_usage(&e->usage, &u);
    d.finish = (Sluice__V1__FinishReason)e->finish;
    d.stop_text = pb_bytes(e->stop_text);
    d.usage = &u;
    m->event_case = SLUICE__V1__GENERATE_EVENT__EVENT_DONE;
    m->done = &d;
    return message_pack(&m->base);
}

grpc_byte_buffer *inference_wire_pack_event(const struct generate_event *e)
{
    Sluice__V1__GenerateEvent m = SLUICE__V1__GENERATE_EVENT__INIT;
    switch (e->kind) {
    case GENERATE_ACCEPTED:
        return pack_accepted(e, &m);
    case GENERATE_PROGRESS:
        return pack_progress(e, &m);
    case GENERATE_TEXT:
        return pack_text(e, &m);
    case GENERATE_DONE:
        return pack_done(e, &m);
    }
    check_failed(__FILE__, __LINE__, "event kind");
}

static void unpack_accepted(const Sluice__V1__Accepted *a, struct generate_event *e)
{
    e->kind = GENERATE_ACCEPTED;
    e->request_id = bytes_pb(a->request_id);
    e->seed = a->seed;
    e->model = bytes_pb(a->model);
    e->profile = bytes_pb(a->profile);
    e->prompt_tokens = a->prompt_tokens;
    e->ids = a->prompt_ids;
    e->n_ids = a->n_prompt_ids;
    e->resume_token = bytes_pb(a->resume_token);
}

static void unpack_done(const Sluice__V1__Done *d, struct generate_event *e)
{
    e->kind = GENERATE_DONE;
    e->finish = d->finish == SLUICE__V1__FINISH_REASON__FINISH_REASON_STOP     ? FINISH_STOP
                : d->finish == SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH ? FINISH_LENGTH
                                                                               : FINISH_NONE;
    e->stop_text = bytes_pb(d->stop_text);
    if (d->usage)
        e->usage = usage_pb(d->usage);
}

static enum status unpack_logprobs(const Sluice__V1__Text *t, struct arena *a, struct generate_event *e, struct error *err)
{
    if (!t->n_logprobs)
        return STATUS_OK;
    struct token_logprobs *to = t->n_logprobs == t->n_ids ? arena_array(a, t->n_logprobs, sizeof *to) : NULL;
    if (!to)
        return error_set(err, t->n_logprobs == t->n_ids ? STATUS_OUT_OF_MEMORY : STATUS_PROTOCOL, "logprobs of %zu of %zu ids",
                         t->n_logprobs, t->n_ids);
    for (size_t i = 0; i < t->n_logprobs; i++) {
        const Sluice__V1__TokenLogprobs *m = t->logprobs[i];
        if (m->n_top_ids > MAX_TOP_LOGPROBS || m->n_top_ids != m->n_top_logprobs)
            return error_set(err, STATUS_PROTOCOL, "%zu alternatives with %zu logprobs, at most %d", m->n_top_ids,
                             m->n_top_logprobs, MAX_TOP_LOGPROBS);
        memset(&to[i], 0, sizeof to[i]);
        to[i].id = m->id;
        to[i].logprob = m->logprob;
        to[i].n_top = (uint32_t)m->n_top_ids;
        for (uint32_t k = 0; k < to[i].n_top; k++) {
            to[i].top_ids[k] = m->top_ids[k];
            to[i].top_logprobs[k] = m->top_logprobs[k];
        }
    }
    e->logprobs = to;
    e->n_logprobs = t->n_logprobs;
    return STATUS_OK;
}

static enum status unpack_text(const Sluice__V1__Text *t, struct arena *a, struct generate_event *e, struct error *err)
{
    e->kind = GENERATE_TEXT;
    e->text = bytes_pb(t->text);
    e->ids = t->ids;
    e->n_ids = t->n_ids;
    e->has_usage = t->usage != NULL;
    if (e->has_usage)
        e->usage = usage_pb(t->usage);
    return unpack_logprobs(t, a, e, err);
}

enum status inference_wire_unpack_event(const void *data, size_t len, struct arena *a, struct generate_event *out,
                                        struct error *err)
{
    struct generate_event e = {0};
    Sluice__V1__GenerateEvent *m = message_unpack(&sluice__v1__generate_event__descriptor, a, data, len);
    if (!m)
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no GenerateEvent", len);
    switch (m->event_case) {
    case SLUICE__V1__GENERATE_EVENT__EVENT_ACCEPTED:
        unpack_accepted(m->accepted, &e);
        break;
    case SLUICE__V1__GENERATE_EVENT__EVENT_PROGRESS:
        e.kind = GENERATE_PROGRESS;
        e.queue_position = m->progress->queue_position;
        e.read_tokens = m->progress->read_tokens;
        e.prompt_tokens = m->progress->prompt_tokens;
        break;
    case SLUICE__V1__GENERATE_EVENT__EVENT_TEXT:
        TRY(unpack_text(m->text, a, &e, err));
        break;
    case SLUICE__V1__GENERATE_EVENT__EVENT_DONE:
        unpack_done(m->done, &e);
        break;
    default:
        return error_set(err, STATUS_PROTOCOL, "a GenerateEvent of an unknown kind");
    }
    *out = e;
    return STATUS_OK;
}

/* --- model ------------------------------------------------------------------------------------------------------------- */

grpc_byte_buffer *inference_wire_pack_model(const struct model_facts *f)
{
    Sluice__V1__GetModelResponse m = SLUICE__V1__GET_MODEL_RESPONSE__INIT;
    ProtobufCBinaryData ids[ARRAY_LEN(f->ids)];
    m.n_ids = f->n_ids < ARRAY_LEN(ids) ? f->n_ids : ARRAY_LEN(ids);
    for (size_t i = 0; i < m.n_ids; i++)
        ids[i] = pb_bytes(f->ids[i]);
    m.ids = ids;
    m.architecture = pb_bytes(f->architecture);
    m.profile = pb_bytes(f->profile);
    m.n_layers = f->n_layers;
    m.context = f->context;
    m.n_vocab = f->n_vocab;
    m.has_chat_template = f->has_chat_template != 0;
    m.created_s = f->created_s;
    return message_pack(&m.base);
}

enum status inference_wire_unpack_model(const void *data, size_t len, struct arena *a, struct model_facts *out,
                                        struct error *err)
{
    Sluice__V1__GetModelResponse *m = message_unpack(&sluice__v1__get_model_response__descriptor, a, data, len);
    if (!m)
        return error_set(err, STATUS_PROTOCOL, "%zu bytes are no GetModelResponse", len);
    memset(out, 0, sizeof *out);
    out->n_ids = (uint32_t)(m->n_ids < ARRAY_LEN(out->ids) ? m->n_ids : ARRAY_LEN(out->ids));
    for (uint32_t i = 0; i < out->n_ids; i++)
        out->ids[i] = bytes_pb(m->ids[i]);
    out->architecture = bytes_pb(m->architecture);
    out->profile = bytes_pb(m->profile);
    out->n_layers = m->n_layers;
    out->context = m->context;
    out->n_vocab = m->n_vocab;
    out->has_chat_template = m->has_chat_template != 0;
    out->created_s = m->created_s;
    return STATUS_OK;
}
