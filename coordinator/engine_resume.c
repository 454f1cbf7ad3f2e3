/* Requests that were accepted before, here or by a coordinator that is gone, and come back with what their client has of the
 * answer (resume_token.h, docs/adr/0010). They pass the queue's caps, are read through the ordinary path, prompt and answer so
 * far, and draw their next id as they would have: it depends on (seed, position) alone.
 *
 * Where the earlier attempt still lives (its call broke unnoticed) the later one takes it over. Tokens are MACs: nobody can make
 * one that names another's run, or many that crowd one list. */
#include "coordinator/engine_impl.h"

#include <string.h>

#include "common/base/clock.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

/* After a coordinator's start those that ran in the one before come first, as they would have. Not for ever: who keeps a token
 * would pass the others with it again and again. */
static const int64_t RETURN_NS = 60 * NS_PER_S;

static struct list *list_of(struct engine *e, const struct resume_token *t)
{
    uint32_t bits;
    memcpy(&bits, t->mac, sizeof bits);
    return &e->living[bits % ENGINE_TOKEN_LISTS];
}

void engine__known(struct engine *e, struct request *r)
{
    list_push_back(list_of(e, &r->token), &r->by_token);
}

/* A token names its request: id, client and all that it asks for. All 0 names none. */
static struct request *living(struct engine *e, const struct resume_token *t)
{
    static const struct resume_token none;
    if (memcmp(t->mac, none.mac, sizeof none.mac) == 0)
        return NULL;
    LIST_EACH(it, list_of(e, t)) {
        struct request *other = LIST_ENTRY(it, struct request, by_token);
        if (memcmp(other->token.mac, t->mac, sizeof t->mac) == 0)
            return other;
    }
    return NULL;
}

int engine__has_sibling(struct engine *e, const struct request *r)
{
    return living(e, &r->sibling) != NULL;
}

int engine__is_part_of_running(struct engine *e, const struct request *r)
{
    return engine__has_sibling(e, r) || (r->resumed && living(e, &r->token));
}

enum status engine__take_over(struct engine *e, struct request *r, int64_t now, struct error *err)
{
    struct request *other = living(e, &r->token);
    r->goes_first = r->n_answer > 0 && now - e->created_ns < RETURN_NS;
    if (!other)
        return STATUS_OK;
    if (other->attempt >= r->attempt)
        return error_param(err, STATUS_CONFLICT, "attempt", "not_later", "attempt %u of this request is here, this one is %u",
                           other->attempt, r->attempt);
    struct error why;
    if (other->state != REQUEST_QUEUED && r->n_answer > 0) { /* whatever ids it names: who waits does not pass others by them */
        r->goes_first = 1;
        r->order = other->order; /* its age among those that run */
    }
    error_param(&why, STATUS_CANCELLED, NULL, "taken_over", "taken over by attempt %u", r->attempt);
    engine__end(e, other, REQUEST_CANCELLED, &why);
    return STATUS_OK;
}

static int64_t ms_before(int64_t ns, double ms)
{
    int64_t earlier = ns - (int64_t)(ms * (double)NS_PER_MS);
    return earlier > 0 ? earlier : 1;
}

void engine__take_up(struct engine *e, struct request *r, int64_t now)
{
    int64_t first = r->n_answer ? ms_before(now, r->before.decode_ms) : now;
    int64_t admitted = r->n_answer ? ms_before(first, r->before.prompt_ms) : now;
    r->arrived_ns = ms_before(admitted, r->before.queue_ms);
    if (r->n_answer) { /* else they come with its first start */
        r->first_token_ns = first;
        r->last_token_ns = now;
        r->admitted_ns = admitted;
        r->n_cached = r->before.cached_tokens < r->n_prompt ? r->before.cached_tokens : r->n_prompt;
    }
    if (r->goes_first && !r->order)
        r->order = ++e->next_order;
    if (!pipeline_running(e->pipeline) && !e->lost_ns) /* there was a life before, which had stages */
        e->lost_ns = now;
    /* Others than those of a coordinator's start are lines that any client can write. */
    LOG_AT(r->goes_first ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "req %s: attempt %u goes on after %u answer tokens", r->id, r->attempt,
           r->n_answer);
}

/* The call was lost between the last text and DONE. Nothing but ids and limits says so: they were not said with the text. */
static enum finish_reason end_of(struct request *r)
{
    int stopped = 0;
    if (r->over || r->n_answer < r->answer_limit)
        return r->over;
    output_finish(&r->output, &r->emit, &stopped); /* what it shows, its client has */
    buf_clear(&r->emit);
    return r->over = stopped ? FINISH_STOP : FINISH_LENGTH;
}

/* Other numerics would go on with other tokens than the ones that its client was to get. */
static enum status check_profile(const struct engine *e, const struct request *r, struct error *err)
{
    const char *mine = r->token.profile, *profile = pipeline_profile(e->pipeline);
    if (!mine[0] || !profile[0] || strcmp(mine, profile) == 0)
        return STATUS_OK;
    return error_param(err, STATUS_PIPELINE_LOST, NULL, "profile",
                       "the stages compute with other numerics now: %s, the answer began with %s", profile, mine);
}

int engine__settle(struct engine *e, struct request *r)
{
    struct error err;
    if (!r->resumed || r->n_answer == 0 || r->item.started)
        return 0;
    if (check_profile(e, r, &err) != STATUS_OK) {
        engine__end(e, r, REQUEST_FAILED, &err);
        return 1;
    }
    enum finish_reason reason = end_of(r);
    if (!reason)
        return 0;
    const struct generate_event ev = engine__done(r, reason);
    enum status s = r->sink.send(r->sink.ctx, &ev);
    if (s == STATUS_FULL || s == STATUS_OUT_OF_MEMORY) { /* another attempt may have more luck */
        error_set(&err, STATUS_OUT_OF_MEMORY, "no memory for the end of the answer");
        engine__end(e, r, REQUEST_FAILED, &err);
        return 1;
    }
    metrics_count_done(&e->metrics, &ev.usage, reason);
    engine__end(e, r, REQUEST_DONE, NULL);
    return 1;
}
