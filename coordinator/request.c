#include "coordinator/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/clock.h"

enum { MAX_EMIT_BYTES = 256 << 10 };

const char *request_state_name(enum request_state s)
{
    static const char *const names[REQUEST_N_STATES] = {
        [REQUEST_NEW] = "new",           [REQUEST_QUEUED] = "queued", [REQUEST_READING] = "reading",
        [REQUEST_DECODING] = "decoding", [REQUEST_PARKED] = "parked", [REQUEST_DONE] = "done",
        [REQUEST_FAILED] = "failed",     [REQUEST_CANCELLED] = "cancelled",
    };
    return names[s];
}

static uint64_t random_u64(void)
{
    uint64_t v = 0;
    while (getrandom(&v, sizeof v, 0) != sizeof v)
        ;
    return v;
}

static int copy_bytes(struct arena *a, struct bytes from, struct bytes *to)
{
    char *p = arena_text(a, from.data, from.len);
    *to = (struct bytes){p, from.len};
    return p != NULL;
}

/* An id that a client chose is kept only when it can stand in a header and in a log line. */
static void set_id(struct request *r, struct bytes id)
{
    int sane = id.len > 0 && id.len < sizeof r->id;
    for (size_t i = 0; sane && i < id.len; i++)
        sane = (unsigned char)id.data[i] > 32 && (unsigned char)id.data[i] < 127;
    if (sane)
        snprintf(r->id, sizeof r->id, "%.*s", (int)id.len, id.data);
    else
        snprintf(r->id, sizeof r->id, "req-%016llx", (unsigned long long)random_u64());
}

static enum status copy_stops(struct request *r, const struct generate_request *from, struct error *err)
{
    if (from->n_stops > MAX_STOPS)
        return error_param(err, STATUS_BAD_REQUEST, "stop", "too_many", "%u stop strings, at most %d are allowed",
                           from->n_stops, MAX_STOPS);
    for (uint32_t i = 0; i < from->n_stops; i++) {
        if (from->stop[i].len == 0 || from->stop[i].len > MAX_STOP_BYTES)
            return error_param(err, STATUS_BAD_REQUEST, "stop", "bad_length",
                               "a stop string has %zu bytes, 1 to %d are allowed", from->stop[i].len, MAX_STOP_BYTES);
        if (!copy_bytes(&r->arena, from->stop[i], &r->stops[r->n_stops++]))
            return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the stop strings");
    }
    return STATUS_OK;
}

static enum status check_sampler(const struct sampler_params *s, struct error *err)
{
    struct sampler_fault f;
    if (sampler_has_fault(s, &f))
        return error_param(err, STATUS_BAD_REQUEST, f.name, "out_of_range", "%s %g, allowed are %g to %g", f.name, f.value, f.min,
                           f.max);
    return STATUS_OK;
}

static enum status copy_bias(struct request *r, const struct generate_request *from, struct error *err)
{
    r->sampler.n_bias = 0;
    if (from->n_bias == 0)
        return STATUS_OK;
    if (from->n_bias > MAX_BIASES)
        return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "too_many", "%zu biases, at most %d are allowed", from->n_bias,
                           MAX_BIASES);
    r->bias_ids = arena_array(&r->arena, from->n_bias, sizeof *r->bias_ids);
    r->bias_bits = arena_array(&r->arena, from->n_bias, sizeof *r->bias_bits);
    if (!r->bias_ids || !r->bias_bits)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %zu biases", from->n_bias);
    for (size_t i = 0; i < from->n_bias; i++) {
        const struct logit_bias *b = &from->bias[i];
        if (!sampler_bias_is_allowed(b->bias))
            return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "out_of_range",
                               "logit_bias of id %u is %g, allowed are -100 to 100", b->id, (double)b->bias);
        r->bias_ids[i] = b->id;
        memcpy(&r->bias_bits[i], &b->bias, sizeof b->bias);
    }
    r->sampler.n_bias = (uint32_t)from->n_bias;
    return STATUS_OK;
}

/* The ids of the answer that its client has. */
static enum status copy_resume(struct request *r, const struct generate_resume *from, struct error *err)
{
    if (!from->token.len)
        return STATUS_OK;
    if (!resume_token_read(from->token.data, from->token.len, &r->token))
        return error_param(err, STATUS_FORBIDDEN, "resume", "resume_token", "%zu bytes are no resume token", from->token.len);
    r->answer_ids = arena_array(&r->arena, from->n_ids + 1, sizeof *r->answer_ids);
    if (!r->answer_ids || from->n_ids > UINT32_MAX / 2)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %zu answer ids", from->n_ids);
    if (from->n_ids)
        memcpy(r->answer_ids, from->ids, from->n_ids * sizeof *from->ids);
    r->n_answer = r->n_sent = r->answer_room = (uint32_t)from->n_ids;
    r->before = from->usage;
    r->resumed = 1;
    return STATUS_OK;
}

static enum status copy_sibling(struct request *r, struct bytes token, struct error *err)
{
    if (token.len && !resume_token_read(token.data, token.len, &r->sibling))
        return error_param(err, STATUS_FORBIDDEN, "sibling", "resume_token", "%zu bytes are no resume token", token.len);
    return STATUS_OK;
}

static enum status fill(struct request *r, const struct generate_request *from, struct error *err)
{
    if (from->max_tokens < -1 || from->max_tokens == 0)
        return error_param(err, STATUS_BAD_REQUEST, "max_tokens", "out_of_range", "max_tokens %lld: at least 1, or -1",
                           (long long)from->max_tokens);
    TRY(copy_bias(r, from, err));
    TRY(check_sampler(&r->sampler, err));
    TRY(copy_stops(r, from, err));
    if (!copy_bytes(&r->text_arena, from->text, &r->text) || !copy_bytes(&r->text_arena, from->chat_json, &r->chat_json))
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the prompt");
    if (from->prompt == PROMPT_IDS) {
        r->prompt_ids = arena_array(&r->arena, from->n_ids + 1, sizeof *r->prompt_ids);
        if (!r->prompt_ids || from->n_ids > UINT32_MAX / 2)
            return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the prompt's ids");
        if (from->n_ids)
            memcpy(r->prompt_ids, from->ids, from->n_ids * sizeof *from->ids);
        r->n_prompt = (uint32_t)from->n_ids;
    }
    TRY(copy_sibling(r, from->sibling, err));
    return copy_resume(r, &from->resume, err);
}

enum status request_create(const struct generate_request *from, const char *client, const struct request_sink *sink,
                           size_t limit_bytes, struct request **out, struct error *err)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the request");
    atomic_init(&r->refs, 1);
    arena_init(&r->arena, limit_bytes);
    arena_init(&r->text_arena, limit_bytes);
    buf_init(&r->emit, MAX_EMIT_BYTES);
    set_id(r, from->request_id);
    snprintf(r->client, sizeof r->client, "%s", client);
    r->prompt_kind = from->prompt;
    r->sampler = from->sampler;
    if (!from->has_seed)
        r->sampler.seed = random_u64() >> 1; /* told to the client, whose JSON number holds 63 bits */
    r->max_tokens = from->max_tokens;
    r->ignore_eos = from->ignore_eos;
    r->batch_priority = from->batch_priority != 0;
    r->no_cache = from->no_cache;
    r->attempt = from->attempt;
    r->arrived_ns = clock_now_ns();
    if (from->deadline_ms > 0)
        r->deadline_ns = r->arrived_ns + from->deadline_ms * NS_PER_MS;
    enum status s = fill(r, from, err);
    if (s != STATUS_OK) { /* the sink stays the caller's */
        request_release(r);
        return s;
    }
    r->sink = *sink;
    *out = r;
    return STATUS_OK;
}

void request_drop_text(struct request *r)
{
    r->text = r->chat_json = (struct bytes){"", 0};
    arena_reset(&r->text_arena);
}

void request_retain(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void request_release(struct request *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (r->sink.release)
        r->sink.release(r->sink.ctx);
    output_fini(&r->output);
    buf_fini(&r->emit);
    arena_fini(&r->arena);
    arena_fini(&r->text_arena);
    free(r);
}

/* Of what the prompt, the answer and the vocabulary bound. */
static enum status check_history(struct request *r, uint32_t n_vocab, struct error *err)
{
    r->sampler.n_prompt = r->n_prompt;
    for (uint32_t i = 0; i < r->sampler.n_bias; i++)
        if (r->bias_ids[i] >= n_vocab)
            return error_param(err, STATUS_BAD_REQUEST, "logit_bias", "bad_token_id", "logit_bias of id %u, the vocabulary has %u",
                               r->bias_ids[i], n_vocab);
    if (request_open_words(r, r->n_prompt + r->answer_limit) > PLAN_OPEN_WORDS)
        return error_param(err, STATUS_BAD_REQUEST, sampler_repeats(&r->sampler) ? "repeat_last_n" : "max_tokens", "out_of_range",
                           "the penalties look at up to %u tokens, at most %d are allowed",
                           sampler_history(&r->sampler, r->n_prompt + r->answer_limit), PLAN_OPEN_WORDS - 2 * MAX_BIASES);
    return STATUS_OK;
}

enum status request_set_prompt(struct request *r, const uint32_t *ids, size_t n_ids, uint32_t context, uint32_t answer_cap,
                               uint32_t n_vocab, struct error *err)
{
    if (n_ids == 0)
        return error_param(err, STATUS_BAD_REQUEST, "prompt", "empty", "the prompt has no tokens");
    if (n_ids >= context)
        return error_param(err, STATUS_BAD_REQUEST, r->prompt_kind == PROMPT_CHAT ? "messages" : "prompt",
                           "context_length_exceeded",
                           "the prompt has %zu tokens, the context holds %u with at least one of the answer", n_ids, context);
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] >= n_vocab)
            return error_param(err, STATUS_BAD_REQUEST, "prompt", "bad_token_id",
                               "token id %u at index %zu, the vocabulary has %u", ids[i], i, n_vocab);
    if (ids != r->prompt_ids) {
        r->prompt_ids = arena_array(&r->arena, n_ids, sizeof *ids);
        if (!r->prompt_ids)
            return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for %zu prompt ids", n_ids);
        memcpy(r->prompt_ids, ids, n_ids * sizeof *ids);
    }
    r->n_prompt = (uint32_t)n_ids;
    uint32_t room = context - r->n_prompt;
    if (r->max_tokens > 0 && r->max_tokens < room)
        room = (uint32_t)r->max_tokens;
    r->answer_limit = room < answer_cap ? room : answer_cap;
    return check_history(r, n_vocab, err);
}

uint32_t request_open_words(const struct request *r, uint32_t n_known)
{
    return sampler_history(&r->sampler, n_known) + 2 * r->sampler.n_bias;
}

static enum status open_logprobs(struct request *r, uint32_t n_unsent, struct error *err)
{
    if (!r->sampler.n_top || r->logprob_room >= n_unsent)
        return STATUS_OK;
    r->logprobs = arena_array(&r->arena, n_unsent, sizeof *r->logprobs);
    if (!r->logprobs)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the logprobs of %u tokens", n_unsent);
    r->logprob_room = n_unsent;
    return STATUS_OK;
}

enum status request_open_answer(struct request *r, uint32_t n_unsent, struct error *err)
{
    TRY(open_logprobs(r, n_unsent, err));
    if (r->answer_room >= r->answer_limit)
        return STATUS_OK;
    uint32_t *ids = arena_array(&r->arena, r->answer_limit, sizeof *ids);
    if (!ids)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for an answer of %u tokens", r->answer_limit);
    if (r->n_answer)
        memcpy(ids, r->answer_ids, r->n_answer * sizeof *ids);
    r->answer_ids = ids;
    r->answer_room = r->answer_limit;
    return STATUS_OK;
}

enum status request_show(struct request *r, const struct tokenizer *t, uint32_t id, int *end, int *stopped)
{
    *end = !r->ignore_eos && tokenizer_is_end(t, id);
    return *end ? output_finish(&r->output, &r->emit, stopped) : output_push(&r->output, id, &r->emit, stopped);
}

enum status request_take_up(struct request *r, const struct tokenizer *t, struct error *err)
{
    if (r->n_answer > r->answer_limit)
        return error_param(err, STATUS_BAD_REQUEST, "resume", "too_many_ids", "%u ids of an answer of at most %u", r->n_answer,
                           r->answer_limit);
    output_init(&r->output, t, r->stops, r->n_stops);
    for (uint32_t i = 0; i < r->n_answer; i++) {
        int stopped = 0, end;
        if (r->answer_ids[i] >= tokenizer_n_vocab(t) || r->over)
            return error_param(err, STATUS_BAD_REQUEST, "resume", "bad_ids", "the answer has no id %u at %u", r->answer_ids[i], i);
        enum status s = request_show(r, t, r->answer_ids[i], &end, &stopped);
        if (s != STATUS_OK)
            return error_set(err, s, "no memory for the answer");
        buf_clear(&r->emit); /* its client has it */
        r->over = end || stopped ? FINISH_STOP : FINISH_NONE;
    }
    if (r->n_answer) /* but for the last one all were read, somewhere */
        r->n_planned = r->n_prompt + r->n_answer - 1;
    return STATUS_OK;
}
