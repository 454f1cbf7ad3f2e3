/* The bed's clients: requests, what comes of them, and how they are waited for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "tests/lib/engine_bed_impl.h"

enum { ARENA_BYTES = 16 << 20 };

/* One for each id, of the same id, with as many alternatives as were asked for. */
static void take_logprobs(struct bed_request *r, const struct generate_event *e)
{
    CHECK(e->n_logprobs == (r->sampler.n_top ? e->n_ids : 0));
    if (!e->n_logprobs)
        return;
    r->logprobs = realloc(r->logprobs, (r->n_logprobs + e->n_logprobs) * sizeof *r->logprobs);
    CHECK(r->logprobs);
    for (size_t i = 0; i < e->n_logprobs; i++) {
        CHECK(e->logprobs[i].id == e->ids[i] && e->logprobs[i].n_top + 1 == r->sampler.n_top);
        r->logprobs[r->n_logprobs++] = e->logprobs[i];
    }
}

static void take_ids(struct bed_request *r, const struct generate_event *e)
{
    CHECK(r->n_ids + e->n_ids <= BED_MAX_IDS);
    CHECK(e->has_usage == (r->n_ids == 0 && r->n_resumed == 0));
    if (e->has_usage)
        r->first = e->usage;
    take_logprobs(r, e);
    memcpy(r->ids + r->n_ids, e->ids, e->n_ids * sizeof *r->ids);
    r->n_ids += (uint32_t)e->n_ids;
    CHECK(buf_append(&r->text, e->text.data, e->text.len) == STATUS_OK);
    r->text_at[r->n_ids] = (uint32_t)r->text.len;
}

static enum status sink_send(void *ctx, const struct generate_event *e)
{
    struct bed_request *r = ctx;
    enum status st = STATUS_OK;
    bed__lock(r->bed);
    if (!bed__may_pass(r->bed, BED_ENGINE_TELLS, 0, 0)) {
        bed__unlock(r->bed);
        return STATUS_OK; /* nobody hears it */
    }
    CHECK(r->n_finished == 0 && r->n_done == 0); /* nothing follows the end */
    r->n_events++;
    if (e->kind == GENERATE_ACCEPTED) {
        CHECK(r->n_accepted == 0 && e->n_ids == r->n_prompt && memcmp(e->ids, r->prompt, r->n_prompt * sizeof *e->ids) == 0);
        CHECK(e->resume_token.len <= sizeof r->token && e->request_id.len < sizeof r->id);
        memcpy(r->token, e->resume_token.data, e->resume_token.len);
        r->n_token = e->resume_token.len;
        memcpy(r->id, e->request_id.data, e->request_id.len);
        r->n_accepted++;
    } else if (atomic_load(&r->mute) && e->kind != GENERATE_PROGRESS) {
        st = STATUS_FULL;
    } else if (r->refuse_every && r->n_events % r->refuse_every == 0 && e->kind == GENERATE_TEXT) {
        st = STATUS_FULL;
    } else if (r->n_events == r->no_memory_at) {
        st = STATUS_OUT_OF_MEMORY;
    } else if (e->kind == GENERATE_TEXT) {
        take_ids(r, e);
    } else if (e->kind == GENERATE_DONE) {
        r->n_done++;
        r->done = *e;
    }
    bed__may_pass(r->bed, BED_ENGINE_TELLS, 0, 1);
    pthread_cond_broadcast(&r->bed->changed);
    bed__unlock(r->bed);
    return st;
}

static int64_t sink_stalled(void *ctx)
{
    (void)ctx;
    return 0;
}

static void sink_finish(void *ctx, const struct error *err)
{
    struct bed_request *r = ctx;
    bed__lock(r->bed);
    r->n_finished++;
    if (err)
        r->end = *err;
    r->ended_ns = clock_now_ns();
    pthread_cond_broadcast(&r->bed->changed);
    bed__unlock(r->bed);
}

static void sink_release(void *ctx)
{
    struct bed_request *r = ctx;
    bed__lock(r->bed);
    r->n_released++;
    pthread_cond_broadcast(&r->bed->changed);
    bed__unlock(r->bed);
}

struct bed_request *bed_request_new(struct engine_bed *b, const uint32_t *prompt, uint32_t n_prompt, int64_t max_tokens)
{
    struct bed_request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->bed = b;
    r->prompt = malloc((n_prompt + 1) * sizeof *prompt);
    assert_non_null(r->prompt);
    memcpy(r->prompt, prompt, n_prompt * sizeof *prompt);
    r->n_prompt = n_prompt;
    r->max_tokens = max_tokens;
    r->sampler = (struct sampler_params){.top_p = 1};
    buf_init(&r->text, 1 << 20);
    return r;
}

/* As the service does with a request whose ids are known. */
static enum status settle_token(struct bed_request *r, struct error *err)
{
    const struct resume_key *k = &r->bed->resume;
    struct request *q = r->request;
    if (!q->resumed) {
        snprintf(q->token.profile, sizeof q->token.profile, "%s", engine_profile(r->bed->engine));
        return resume_token_make(k, q, &q->token, err);
    }
    TRY(resume_token_check(k, q, &q->token, err));
    return request_take_up(q, r->bed->tokenizer, err);
}

void bed_submit(struct bed_request *r)
{
    struct engine_bed *b = r->bed;
    struct error err = {0};
    struct generate_request g = {.prompt = PROMPT_IDS, .ids = r->prompt, .n_ids = r->n_prompt, .sampler = r->sampler,
                                 .bias = r->bias, .n_bias = r->n_bias, .has_seed = 1, .max_tokens = r->max_tokens, .deadline_ms = r->deadline_ms,
                                 .no_cache = r->no_cache, .batch_priority = r->batch};
    if (r->stop)
        g.stop[g.n_stops++] = (struct bytes){r->stop, strlen(r->stop)};
    if (r->stop2)
        g.stop[g.n_stops++] = (struct bytes){r->stop2, strlen(r->stop2)};
    g.ignore_eos = r->ignore_eos;
    g.attempt = r->attempt;
    if (r->name)
        g.request_id = (struct bytes){r->name, strlen(r->name)};
    if (r->resumes) {
        struct bed_request *from = r->resumes;
        g.request_id = (struct bytes){from->id, strlen(from->id)};
        g.resume = (struct generate_resume){.token = {(const char *)from->token, from->n_token}, .ids = from->ids,
                                            .n_ids = r->n_resumed, .usage = from->first};
    }
    if (r->sibling)
        g.sibling = (struct bytes){(const char *)r->sibling->token, r->sibling->n_token};
    const struct request_sink sink = {r, sink_send, sink_stalled, sink_finish, sink_release};
    r->started_ns = clock_now_ns();
    if (request_create(&g, r->client ? r->client : "bed", &sink, ARENA_BYTES, &r->request, &err) != STATUS_OK ||
        request_set_prompt(r->request, r->request->prompt_ids, r->n_prompt, (uint32_t)b->config.context, UINT32_MAX,
                           tokenizer_n_vocab(b->tokenizer), &err) != STATUS_OK || settle_token(r, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    request_retain(r->request); /* the engine's */
    enum status st = engine_submit(b->engine, r->request);
    if (st == STATUS_OK)
        return;
    r->refused = 1;
    error_set(&r->end, st, "refused");
    request_release(r->request);
}

void bed_cancel(struct bed_request *r)
{
    atomic_store(&r->request->cancelled, 1);
    engine_cancel(r->bed->engine, r->request);
}

int bed_ended(struct bed_request *r)
{
    bed__lock(r->bed);
    int ended = r->refused || r->n_finished > 0;
    bed__unlock(r->bed);
    return ended;
}

uint32_t bed_n_ids(struct bed_request *r)
{
    bed__lock(r->bed);
    uint32_t n = r->n_ids;
    bed__unlock(r->bed);
    return n;
}

int bed_is_accepted(struct bed_request *r)
{
    bed__lock(r->bed);
    int accepted = r->n_accepted > 0;
    bed__unlock(r->bed);
    return accepted;
}

static void wait_until(struct bed_request *r, const uint32_t *count, int ms, const char *what)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000l;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000l;
    }
    int late = 0;
    bed__lock(r->bed);
    while (*count == 0 && !late)
        late = pthread_cond_timedwait(&r->bed->changed, &r->bed->lock, &until) != 0;
    uint32_t n_ids = r->n_ids;
    bed__unlock(r->bed);
    if (late)
        fail_msg("a request of %u prompt and %u answer tokens was not %s within %d ms", r->n_prompt, n_ids, what, ms);
}

void bed_wait(struct bed_request *r, int ms)
{
    if (!r->refused)
        wait_until(r, &r->n_finished, ms, "ended");
}

void bed_request_free(struct bed_request *r)
{
    if (r->request) {
        request_release(r->request);
        wait_until(r, &r->n_released, 5000, "released");
        assert_int_equal(r->n_released, 1);
        assert_int_equal(r->n_finished, r->refused ? 0 : 1);
    }
    buf_fini(&r->text);
    free(r->logprobs);
    free(r->prompt);
    free(r);
}
