/* Opening calls, waiting for a coordinator that is away, and asking for the rest of an answer (docs/adr/0010). */
#include "rpc/gateway/completion_impl.h"

#include <string.h>

#include "common/base/clock.h"
#include "rpc/gateway/completion_kept.h"
#include "rpc/gateway/keeper.h"
#include "rpc/gateway/model_names.h"

#define LOG_MODULE "completion"
#include "common/base/log.h"

enum {
    RETRY_MS = 50,
    BLIND_RETRY_MS = 1000, /* while the backend hears nothing from the coordinator either */
    MAX_IN_VAIN = 10,      /* losses in a row without a token between them: it may be this request that ends coordinators */
};

static void give_up(struct completion *c, const char *why)
{
    struct error err;
    if (c->text_ns) {
        error_param(&err, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    why);
    } else {
        error_param(&err, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s", why);
        err.retry_after_s = 2;
    }
    completion__fail(c, &err);
}

static int is_over(const struct completion *c, int64_t now)
{
    int64_t ms = c->x->gw->config->recovery_timeout_ms;
    int64_t new_ms = c->adopted ? BACKEND_NEW_WAIT_MS : backend_new_wait_ms(c->x->gw->backend);
    if (!c->n_token && new_ms < ms)
        ms = new_ms;
    return c->lost_ns && now - c->lost_ns > ms * NS_PER_MS;
}

/* A coordinator that gives no tokens cannot go on with what it began. */
static int cannot_go_on(const struct completion *c)
{
    return (c->text_ns && !c->n_token) || c->n_in_vain > MAX_IN_VAIN || c->ids.failed || c->prompt_ids.failed;
}

/* No coordinator at the moment: a pause, whatever the client has heard, up to --recovery-timeout-ms. Who was never accepted is
 * told sooner, and can try elsewhere. */
static void lost(struct completion *c, const char *why)
{
    int64_t now = clock_now_ns();
    if (!c->lost_ns) {
        c->lost_ns = now;
        if (c->n_token)
            LOG_INFO("req %s: attempt %u lost after %zu answer tokens: %.200s", c->x->request_id, c->attempt - 1,
                     c->ids.len / sizeof(uint32_t), why);
    }
    if (is_over(c, now) || cannot_go_on(c)) {
        give_up(c, why);
        return;
    }
    completion__set_state(c, COMPLETION_WAITING);
    c->retry_ns = now + RETRY_MS * NS_PER_MS;
}

/* A place at the coordinator is asked for when the backend hears it: thousands may wait. */
void completion__retry(struct completion *c, int64_t now)
{
    if (is_over(c, now)) {
        give_up(c, "it did not come back");
    } else if (c->told_to_end && atomic_load(&c->x->gw->draining)) {
        give_up(c, "the service is ending");
    } else if (now >= c->retry_ns && !c->paused) { /* paused: its client does not read now */
        int blind = !backend_answers(c->x->gw->backend);
        if (!blind || now >= c->retry_ns + (BLIND_RETRY_MS - RETRY_MS) * NS_PER_MS)
            completion__submit(c);
    }
}

/* Goes on where the answer was lost: the prompt by its ids, with the seed and the token of the attempt that was accepted. */
static void ask_for_the_rest(struct completion *c, struct generate_request *q, int64_t now)
{
    q->prompt = PROMPT_IDS;
    q->text = q->chat_json = (struct bytes){"", 0};
    q->ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    q->n_ids = c->prompt_ids.len / sizeof(uint32_t);
    q->sampler.seed = c->seed;
    q->has_seed = 1;
    q->resume = (struct generate_resume){.token = {c->token, c->n_token},
                                         .ids = (const uint32_t *)(const void *)c->ids.data,
                                         .n_ids = c->ids.len / sizeof(uint32_t),
                                         .usage = c->usage};
    if (c->text_ns)
        q->resume.usage.decode_ms = (double)(now - c->text_ns) / 1e6;
    else
        q->resume.usage.queue_ms = (double)(now - c->x->started_ns) / 1e6;
}

/* 0: there is none left. */
static int take_time(struct completion *c, struct generate_request *q, int64_t now)
{
    if (q->deadline_ms <= 0 || c->attempt == 0)
        return 1;
    q->deadline_ms -= (now - c->x->started_ns) / NS_PER_MS;
    return q->deadline_ms > 0;
}

void completion__submit(struct completion *c)
{
    struct exchange *x = c->x;
    struct error err;
    int64_t now = clock_now_ns();
    if (!c->head.model[0]) {
        enum status s = model_names_choose(x->gw->backend, c->request.model, c->head.model, sizeof c->head.model, &err);
        if (s != STATUS_OK) {
            if (s == STATUS_CLOSED)
                lost(c, "it has not told its model yet");
            else
                completion__fail(c, &err);
            return;
        }
        if (x->keeper)
            kept_write_model(x->keeper, c->head.model);
    }
    struct generate_request q = c->request.generate;
    q.request_id = (struct bytes){c->id, strlen(c->id)};
    q.client = (struct bytes){x->client, strlen(x->client)};
    if (c->n_token)
        ask_for_the_rest(c, &q, now);
    if (!take_time(c, &q, now)) {
        error_set(&err, STATUS_TIMEOUT, "the request's deadline passed while no coordinator answered");
        completion__fail(c, &err);
        return;
    }
    q.attempt = c->attempt++;
    if (x->keeper)
        keeper_state(x->keeper)->attempt = c->attempt;
    exchange_publish(x);
    enum status s = inference_generate(backend_channel(x->gw->backend), &q, &completion__events, c, &c->gs, &err);
    if (s == STATUS_OK)
        completion__set_state(c, COMPLETION_CALLING);
    else if (s == STATUS_CLOSED)
        lost(c, err.message);
    else
        completion__fail(c, &err);
}

/* --- calls that ended early ----------------------------------------------------------------------------------------- */

/* It was told to end, or has ended: another one may come. Not the service as a whole, of which this process is a part. */
static int is_restart(const struct completion *c, const struct error *err)
{
    return c->n_token && (err->status == STATUS_DRAINING || (err->status == STATUS_CANCELLED && !err->code[0])) &&
           !atomic_load(&c->x->gw->draining);
}

/* A coordinator that has just come may not take it yet: it was accepted once, so that is no refusal. Who never was hears it. */
static int is_not_yet(const struct completion *c, const struct error *err)
{
    return c->lost_ns && c->n_token && (err->status == STATUS_DRAINING || err->status == STATUS_QUEUE_FULL || err->status == STATUS_FULL ||
                          err->status == STATUS_PIPELINE || err->status == STATUS_OUT_OF_MEMORY);
}

/* A coordinator with another secret: whoever has heard nothing begins anew. */
static int begins_anew(struct completion *c, const struct error *err)
{
    if (err->status != STATUS_FORBIDDEN || strcmp(err->code, "resume_token") != 0 || !c->n_token || c->text_ns)
        return 0;
    c->n_token = 0;
    completion__keep_accepted(c);
    return 1;
}

/* The call ended before the answer did. */
void completion__broken(struct completion *c, const struct error *err)
{
    struct error told = *err;
    c->n_in_vain += !c->lost_ns && c->n_token;
    c->told_to_end |= err->status == STATUS_DRAINING;
    if (err->status == STATUS_CLOSED || is_restart(c, err) || is_not_yet(c, err) || begins_anew(c, err)) {
        lost(c, err->message);
        return;
    }
    if (err->status == STATUS_OK)
        error_set(&told, STATUS_PROTOCOL, "the coordinator ended the answer early");
    else if (err->status == STATUS_CANCELLED) /* not by us: the coordinator ended */
        error_set(&told, STATUS_PIPELINE, "the coordinator gave the request up");
    else if (err->status == STATUS_FORBIDDEN && c->n_token)
        error_param(&told, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    err->message);
    completion__fail(c, &told);
}
