/* KV room of requests: what each reserves when it gets its slot, how that grows, who is parked when the pool is used up, and
 * the chain under which its blocks are found again.
 *
 * A request is admitted on its prompt and a guess at its answer, not on the longest answer that it may give. When the guesses
 * were too low the youngest of the lowest class is parked: its blocks stay behind as cache and it comes back, before anybody
 * new, once the rest of its answer fits beside all that the running ones may still need. So each shortage parks a request at
 * most once, and nobody reads the same prompt again and again. */
#include "coordinator/engine_impl.h"

#include "common/base/check.h"
#include "common/base/rand.h"

#define LOG_MODULE "engine"
#include "common/base/log.h"

/* Answer tokens that are reserved before any answer has ended, and at least. */
enum { RESERVE_UNKNOWN = 128, RESERVE_LEAST = 32 };

/* --- the chain --------------------------------------------------------------------------------------------------------------- */

static uint64_t item_at(const void *ctx, uint32_t position)
{
    return engine__id_at(ctx, position);
}

/* A tenant's blocks are found by its requests alone, and by none that another numerics profile computed. What is to use no cache
 * is found by itself alone, when it comes back; it has an order from its first start on. */
static struct block_chain chain_of(const struct engine *e, const struct request *r, uint32_t n_positions)
{
    uint64_t whose = r->no_cache ? rand_mix(e->hash_key[1] ^ r->order) : r->item.client;
    return (struct block_chain){.salt = rand_mix(whose ^ e->profile_salt), .item = item_at, .ctx = r, .n = n_positions};
}

void engine__committed(struct engine *e, struct request *r, uint32_t n_positions)
{
    ASSERT(n_positions <= engine__input(r)); /* of surplus rows at most one is in flight: the last id's own */
    struct block_chain chain = chain_of(e, r, n_positions);
    blocks_commit(e->blocks, r->ref, &chain);
}

/* --- reservations ------------------------------------------------------------------------------------------------------------ */

uint32_t engine__positions_needed(const struct request *r)
{
    return r->n_prompt + r->answer_limit - 1; /* the last id of an answer is never fed back */
}

uint32_t engine__input(const struct request *r)
{
    return r->n_prompt + r->n_answer;
}

/* What the running ones may still ask for beyond their reservations. */
static uint64_t demand(const struct engine *e)
{
    uint64_t n = 0;
    LIST_EACH(it, &e->running) {
        const struct request *r = LIST_ENTRY(it, struct request, link);
        if (!r->ending)
            n += blocks_needed(e->blocks, engine__positions_needed(r)) - r->n_reserved;
    }
    return n;
}

/* Answers differ little from the mean where clients ask for the like; where they do not, preemption corrects the guess. A
 * request that was parked once reserves all that it can need. */
static uint32_t reservation(const struct engine *e, const struct request *r)
{
    uint32_t all = engine__positions_needed(r), mean = admission_mean_answer(e->admission);
    uint32_t growth = mean == 0 ? RESERVE_UNKNOWN : mean < RESERVE_LEAST ? RESERVE_LEAST : mean + mean / 4;
    uint32_t most = engine__input(r) + growth;
    return blocks_needed(e->blocks, r->n_parks || e->n_preempted || most > all ? all : most);
}

/* Would it get its room now? Under pressure, when somebody was preempted, nobody starts on what the running ones may yet need. */
int engine__has_room(const struct engine *e, const struct request *r)
{
    struct block_chain chain = chain_of(e, r, engine__input(r));
    uint32_t n = reservation(e, r);
    if (e->n_preempted && blocks_available(e->blocks) < n + demand(e))
        return 0;
    return blocks_can_open(e->blocks, &chain, n);
}

/* The slot is r->ref; engine__has_room was true. Returns the positions that the cache has. */
uint32_t engine__take_room(struct engine *e, struct request *r)
{
    struct block_chain chain = chain_of(e, r, engine__input(r));
    uint32_t n_cached;
    r->n_reserved = reservation(e, r);
    CHECK(blocks_open(e->blocks, r->ref, &chain, r->n_reserved, &n_cached) == STATUS_OK);
    r->hollow_end = (n_cached + blocks_hollow(e->blocks, r->ref)) * (uint32_t)e->o.config->kv_block;
    return n_cached * (uint32_t)e->o.config->kv_block;
}

void engine__not_starved(struct engine *e, struct request *r)
{
    e->n_starved -= r->starved != 0;
    r->starved = 0;
}

static enum status extend(struct engine *e, struct request *r)
{
    TRY(blocks_reserve(e->blocks, r->ref, r->n_reserved + 1));
    r->n_reserved++;
    sched_set_limit(e->sched, r->ref, engine__limit(e, r));
    engine__not_starved(e, r);
    return STATUS_OK;
}

uint32_t engine__limit(const struct engine *e, const struct request *r)
{
    uint64_t positions = (uint64_t)r->n_reserved * (uint64_t)e->o.config->kv_block;
    return positions < UINT32_MAX ? (uint32_t)positions : UINT32_MAX;
}

void engine__need_room(struct engine *e, struct request *r, uint32_t next)
{
    if (r->starved || next < engine__limit(e, r) || next >= engine__positions_needed(r))
        return;
    if (extend(e, r) == STATUS_OK)
        return;
    r->starved = 1;
    e->n_starved++;
}

/* --- preemption -------------------------------------------------------------------------------------------------------------- */

/* Of those that get on: whose client does not read uses no room that it is given. */
static struct request *oldest(const struct engine *e, int starved_only)
{
    struct request *best = NULL;
    LIST_EACH(it, &e->running) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (!r->throttled && (!starved_only || r->starved) && (!best || r->order < best->order))
            best = r;
    }
    return best;
}

/* Somebody who could go on cannot for want of a block. Who waits for his client besides asks again when that has read: until
 * then others may have what there is. */
int engine__is_short(const struct engine *e)
{
    return e->n_starved > 0 && oldest(e, 1) != NULL;
}

static int gives_way_before(const struct request *r, const struct request *other)
{
    if (r->throttled != other->throttled)
        return r->throttled;
    if (r->batch_priority != other->batch_priority)
        return r->batch_priority > other->batch_priority;
    return r->order > other->order;
}

/* Whose client does not read, else the youngest of the lowest class; but never the oldest that gets on: so somebody always
 * does. */
static struct request *victim(const struct engine *e)
{
    const struct request *spared = oldest(e, 0);
    struct request *worst = NULL;
    LIST_EACH(it, &e->running) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (r != spared && !r->ending && (!worst || gives_way_before(r, worst)))
            worst = r;
    }
    return worst;
}

void engine__relieve(struct engine *e, int64_t now)
{
    while (e->n_starved > 0) {
        struct request *r = oldest(e, 1);
        if (!r)
            return; /* those that are starved wait for their clients first */
        if (extend(e, r) == STATUS_OK)
            continue;
        if (blocks_counts(e->blocks).draining + blocks_window_counts(e->blocks).draining > 0)
            return; /* room comes when their ticks retire */
        struct request *v = victim(e);
        if (!v)
            return; /* the others have ended and wait for their clients only */
        LOG_INFO("req %s: parked after %u prompt and %u answer tokens: req %s needs its KV blocks", v->id, v->n_read, v->n_answer,
                 r->id);
        engine__park(e, v, now);
        v->n_parks++;
        v->preempted = 1;
        e->n_preempted++;
        e->metrics.preemptions++;
    }
}

/* Who comes back first: interactive before batch, then the oldest. Not whose client does not read. */
struct request *engine__next_parked(const struct engine *e)
{
    struct request *best = NULL;
    LIST_EACH(it, &e->parked) {
        struct request *r = LIST_ENTRY(it, struct request, link);
        if (!r->throttled && (!best || gives_way_before(best, r)))
            best = r;
    }
    return best;
}
