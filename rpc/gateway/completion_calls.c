/* Opening calls, waiting for a coordinator that is away, and asking for the rest of an answer (docs/adr/0010). */
#include "rpc/gateway/completion_impl.h"

#include <stdio.h>
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

static void give_up(struct choice *h, const char *why)
{
    struct error err;
    if (h->c->choices[0].text_ns) {
        error_param(&err, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    why);
    } else {
        error_param(&err, STATUS_PIPELINE, NULL, "coordinator_unreachable", "the coordinator does not answer: %.200s", why);
        err.retry_after_s = 2;
    }
    completion__fail(h->c, &err);
}

/* Of a request some answer of which was accepted, any may be. */
static int was_accepted(const struct choice *h)
{
    return h->n_token || h->c->choices[0].n_token;
}

static int is_over(const struct choice *h, int64_t now)
{
    const struct gateway *gw = h->c->x->gw;
    int64_t ms = gw->config->recovery_timeout_ms;
    int64_t new_ms = h->c->adopted ? BACKEND_NEW_WAIT_MS : backend_new_wait_ms(gw->backend);
    if (!was_accepted(h) && new_ms < ms)
        ms = new_ms;
    return h->lost_ns && now - h->lost_ns > ms * NS_PER_MS;
}

/* A coordinator that gives no tokens cannot go on with what it began. */
static int cannot_go_on(const struct choice *h)
{
    return (h->text_ns && !h->n_token) || h->n_in_vain > MAX_IN_VAIN || h->ids.failed || h->c->prompt_ids.failed;
}

/* No coordinator at the moment: a pause, whatever the client has heard, up to --recovery-timeout-ms. Who was never accepted is
 * told sooner, and can try elsewhere. */
static void lost(struct choice *h, const char *why)
{
    int64_t now = clock_now_ns();
    if (!h->lost_ns) {
        h->lost_ns = now;
        if (h->n_token)
            LOG_INFO("req %s: attempt %u of answer %u lost after %zu tokens: %.200s", completion__name(h->c, (char[COMPLETION_NAME]){0}),
                     h->attempt - 1, h->index, h->ids.len / sizeof(uint32_t), why);
    }
    if (is_over(h, now) || cannot_go_on(h)) {
        give_up(h, why);
        return;
    }
    completion__set_state(h, COMPLETION_WAITING);
    h->retry_ns = now + RETRY_MS * NS_PER_MS;
}

/* A place at the coordinator is asked for when the backend hears it: thousands may wait. */
void completion__retry(struct choice *h, int64_t now)
{
    struct backend *b = h->c->x->gw->backend;
    if (h->paused) /* its client does not read now: what it waits for is no coordinator */
        h->lost_ns = now;
    if (is_over(h, now)) {
        give_up(h, "it did not come back");
    } else if (h->told_to_end && atomic_load(&h->c->x->gw->draining)) {
        give_up(h, "the service is ending");
    } else if (now >= h->retry_ns && !h->paused) {
        int blind = !backend_answers(b);
        if (!blind || now >= h->retry_ns + (BLIND_RETRY_MS - RETRY_MS) * NS_PER_MS)
            completion__submit(h);
    }
}

/* What the first answer was accepted with is everybody's prompt. */
static void ask_by_ids(const struct completion *c, struct generate_request *q)
{
    q->prompt = PROMPT_IDS;
    q->text = q->chat_json = (struct bytes){"", 0};
    q->ids = (const uint32_t *)(const void *)c->prompt_ids.data;
    q->n_ids = c->prompt_ids.len / sizeof(uint32_t);
}

/* Goes on where the answer was lost: the prompt by its ids, with the seed and the token of the attempt that was accepted. */
static void ask_for_the_rest(struct choice *h, struct generate_request *q, int64_t now)
{
    q->sampler.seed = h->seed;
    q->has_seed = 1;
    q->resume = (struct generate_resume){.token = {h->token, h->n_token},
                                         .ids = (const uint32_t *)(const void *)h->ids.data,
                                         .n_ids = h->ids.len / sizeof(uint32_t),
                                         .usage = h->usage};
    if (h->text_ns)
        q->resume.usage.decode_ms = (double)(now - h->text_ns) / 1e6;
    else
        q->resume.usage.queue_ms = (double)(now - h->c->x->started_ns) / 1e6;
}

/* 0: there is none left. */
static int take_time(struct choice *h, struct generate_request *q, int64_t now)
{
    if (q->deadline_ms <= 0 || (h->attempt == 0 && h->index == 0))
        return 1;
    q->deadline_ms -= (now - h->c->x->started_ns) / NS_PER_MS;
    return q->deadline_ms > 0;
}

/* What is asked of the coordinator for this answer; id holds its name. */
static void fill_request(struct choice *h, struct generate_request *q, char id[48], int64_t now)
{
    const struct completion *c = h->c;
    *q = c->request.generate;
    if (c->n > 1)
        snprintf(id, 48, "%s-%u", c->id, h->index);
    else
        snprintf(id, 48, "%s", c->id);
    q->request_id = (struct bytes){id, strlen(id)};
    q->client = (struct bytes){c->x->client, strlen(c->x->client)};
    q->sampler.seed += h->index;
    if (h->index > 0 || h->n_token)
        ask_by_ids(c, q);
    if (h->n_token)
        ask_for_the_rest(h, q, now);
    if (h->index > 0)
        q->sibling = (struct bytes){c->choices[0].token, c->choices[0].n_token};
}

/* More answers than slots and queue ever hold cannot work, however often it is tried. */
static enum status check_n(const struct completion *c, struct error *err)
{
    uint64_t most = backend_capacity(c->x->gw->backend);
    if (c->n == 1 || c->n <= most)
        return STATUS_OK;
    return error_param(err, STATUS_BAD_REQUEST, "n", "invalid_value", "n: %u answers are more than slots and queue hold (%llu)", c->n,
                       (unsigned long long)most);
}

/* The model's name and, for log probabilities, its vocabulary: what the coordinator tells once. STATUS_CLOSED: it has not yet. */
static enum status learn_model(struct completion *c, struct error *err)
{
    struct backend *b = c->x->gw->backend;
    if (!c->head.model[0]) {
        enum status s = model_names_choose(b, c->request.model, c->head.model, sizeof c->head.model, err);
        if (s != STATUS_OK)
            return s == STATUS_CLOSED ? error_set(err, s, "it has not told its model yet") : s;
        if (c->x->keeper)
            kept_write_model(c->x->keeper, c->head.model);
    }
    if (c->request.generate.sampler.n_top && !c->pieces && !(c->pieces = backend_pieces(b)))
        return error_set(err, STATUS_CLOSED, "it has not told its vocabulary yet");
    c->head.pieces = c->pieces;
    return STATUS_OK;
}

void completion__submit(struct choice *h)
{
    struct completion *c = h->c;
    struct exchange *x = c->x;
    struct generate_request q;
    struct error err;
    char id[48];
    int64_t now = clock_now_ns();
    enum status s = learn_model(c, &err);
    if (s == STATUS_OK && h->index == 0 && h->attempt == 0)
        s = check_n(c, &err);
    if (s == STATUS_OK && h->index > 0 && c->prompt_ids.failed)
        s = error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the prompt's ids");
    if (s == STATUS_OK) {
        fill_request(h, &q, id, now);
        if (!take_time(h, &q, now))
            s = error_set(&err, STATUS_TIMEOUT, "the request's deadline passed while no coordinator answered");
    }
    if (s == STATUS_OK) {
        q.attempt = h->attempt++;
        if (x->keeper && keeper_state(x->keeper)->attempt < h->attempt)
            keeper_state(x->keeper)->attempt = h->attempt;
        exchange_publish(x);
        s = inference_generate(backend_channel(x->gw->backend), &q, &completion__events, h, &h->gs, &err);
    }
    if (s == STATUS_OK)
        completion__set_state(h, COMPLETION_CALLING);
    else if (s == STATUS_CLOSED)
        lost(h, err.message);
    else
        completion__fail(c, &err);
}

/* --- calls that ended early ----------------------------------------------------------------------------------------- */

/* It was told to end, or has ended: another one may come. Not the service as a whole, of which this process is a part. */
static int is_restart(const struct choice *h, const struct error *err)
{
    return was_accepted(h) && (err->status == STATUS_DRAINING || (err->status == STATUS_CANCELLED && !err->code[0])) &&
           !atomic_load(&h->c->x->gw->draining);
}

/* A coordinator that has just come may not take it yet: it was accepted once, so that is no refusal. Who never was hears it. */
static int is_not_yet(const struct choice *h, const struct error *err)
{
    return h->lost_ns && was_accepted(h) && (err->status == STATUS_DRAINING || err->status == STATUS_QUEUE_FULL || err->status == STATUS_FULL ||
                          err->status == STATUS_PIPELINE || err->status == STATUS_OUT_OF_MEMORY);
}

/* A coordinator with another secret: whoever has heard nothing begins anew. */
static int begins_anew(struct choice *h, const struct error *err)
{
    if (err->status != STATUS_FORBIDDEN || strcmp(err->code, "resume_token") != 0 || !h->n_token || h->text_ns)
        return 0;
    h->n_token = 0;
    completion__keep_accepted(h);
    return 1;
}

/* The call ended before the answer did. */
void completion__broken(struct choice *h, const struct error *err)
{
    struct error told = *err;
    h->n_in_vain += !h->lost_ns && h->n_token;
    h->told_to_end |= err->status == STATUS_DRAINING;
    if (err->status == STATUS_CLOSED || is_restart(h, err) || is_not_yet(h, err) || begins_anew(h, err)) {
        lost(h, err->message);
        return;
    }
    if (err->status == STATUS_OK)
        error_set(&told, STATUS_PROTOCOL, "the coordinator ended the answer early");
    else if (err->status == STATUS_CANCELLED) /* not by us: the coordinator ended */
        error_set(&told, STATUS_PIPELINE, "the coordinator gave the request up");
    else if (err->status == STATUS_FORBIDDEN && h->n_token)
        error_param(&told, STATUS_PIPELINE_LOST, NULL, "coordinator_lost", "the coordinator was lost during the answer: %.200s",
                    err->message);
    completion__fail(h->c, &told);
}
