#include "tests/sim/queue_sim.h"

#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/rand.h"

struct queue_sim *queue_sim_create(const struct queue_sim_options *o)
{
    CHECK(o->limits.n_slots <= QUEUE_SIM_SLOTS);
    struct queue_sim *q = calloc(1, sizeof *q);
    CHECK(q && admission_create(&o->limits, &q->a) == STATUS_OK);
    q->o = *o;
    q->now_ns = NS_PER_S;
    for (int i = 0; i < QUEUE_SIM_JOBS; i++) {
        q->jobs[i].next_free = q->unused;
        q->unused = &q->jobs[i];
    }
    return q;
}

void queue_sim_destroy(struct queue_sim *q)
{
    const char *why;
    CHECK(admission__check(q->a, &why));
    admission_destroy(q->a);
    free(q);
}

static void leave(struct queue_sim *q, struct queue_sim_job *j)
{
    if (j->r.client < QUEUE_SIM_CLIENTS)
        q->n_here[j->r.client]--;
    j->next_free = q->unused;
    q->unused = j;
}

static void note_wait(struct queue_sim *q, const struct queue_sim_job *j)
{
    double s = (double)(q->now_ns - j->item.arrived_ns) / 1e9;
    double *const most[] = {&q->longest_wait_s, &q->longest_wait_class[j->r.batch],
                            j->r.client < QUEUE_SIM_CLIENTS ? &q->longest_wait_of[j->r.client] : NULL};
    for (size_t i = 0; i < ARRAY_LEN(most); i++)
        if (most[i] && *most[i] < s)
            *most[i] = s;
    if (j->r.client < QUEUE_SIM_CLIENTS)
        q->n_waiting[j->r.client]--;
}

static uint32_t free_slots(const struct queue_sim *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->o.limits.n_slots; i++)
        n += !q->slot[i];
    return n;
}

static void admit(struct queue_sim *q)
{
    for (uint32_t i = 0; i < q->o.limits.n_slots; i++) {
        struct admission_item *item = q->slot[i] ? NULL : admission_next(q->a);
        if (!item)
            continue;
        struct queue_sim_job *j = LIST_ENTRY(item, struct queue_sim_job, item);
        note_wait(q, j);
        admission_start(q->a, item, item->n_prompt);
        q->slot[i] = j;
        q->n_started++;
        if (j->r.client < QUEUE_SIM_CLIENTS)
            q->granted[j->r.client] += j->r.n_prompt + j->r.n_answer;
    }
}

enum status queue_sim_submit(struct queue_sim *q, const struct queue_sim_request *r, struct error *err)
{
    struct queue_sim_job *j = q->unused;
    CHECK(j);
    struct queue_sim_job *rest = j->next_free;
    *j = (struct queue_sim_job){.r = *r, .prompt_left = r->n_prompt,
                                .item = {.client = r->client + 1, .n_prompt = r->n_prompt, .n_answer_max = 2 * r->n_answer,
                                         .batch = r->batch}, .next_free = rest};
    enum status s = admission_push(q->a, &j->item, free_slots(q) > 0, q->now_ns, err);
    if (s != STATUS_OK) {
        q->n_refused++;
        return s;
    }
    q->unused = rest;
    if (r->client < QUEUE_SIM_CLIENTS) {
        q->n_waiting[r->client]++;
        q->n_here[r->client]++;
    }
    admit(q);
    return STATUS_OK;
}

static void count(struct queue_sim *q, const struct queue_sim_job *j, double n)
{
    q->served_class[j->r.batch] += n;
    if (j->r.client < QUEUE_SIM_CLIENTS)
        q->served[j->r.client] += n;
}

/* One step of a slot; tokens that were served. */
static double work(struct queue_sim *q, struct queue_sim_job *j)
{
    double s = (double)QUEUE_SIM_STEP_NS / 1e9, read = q->o.prompt_per_s * s, before = j->answered;
    if (read > j->prompt_left)
        read = j->prompt_left;
    j->prompt_left -= read;
    s -= read / q->o.prompt_per_s;
    j->answered += s * q->o.answer_per_s;
    if (j->answered > j->r.n_answer)
        j->answered = j->r.n_answer;
    uint32_t n = (uint32_t)j->answered - (uint32_t)before;
    if (n)
        admission_charge(q->a, &j->item, n);
    count(q, j, read + j->answered - before);
    return read + j->answered - before;
}

static void finish(struct queue_sim *q, struct queue_sim_job *j)
{
    q->n_finished++;
    q->finished_tokens += j->r.n_prompt + j->r.n_answer;
    admission_finish(q->a, &j->item);
    admission_answered(q->a, j->r.n_answer);
    leave(q, j);
}

void queue_sim_step(struct queue_sim *q)
{
    double n = 0;
    q->now_ns += QUEUE_SIM_STEP_NS;
    for (uint32_t i = 0; i < q->o.limits.n_slots; i++)
        if (q->slot[i])
            n += work(q, q->slot[i]);
    if (n > 0)
        admission_served(q->a, (uint32_t)(n + 0.5), q->now_ns);
    for (struct admission_item *late; (late = admission_expired(q->a, q->now_ns)) != NULL; q->n_expired++) {
        struct queue_sim_job *j = LIST_ENTRY(late, struct queue_sim_job, item);
        note_wait(q, j);
        admission_remove(q->a, late);
        leave(q, j);
    }
    for (uint32_t i = 0; i < q->o.limits.n_slots; i++)
        if (q->slot[i] && q->slot[i]->answered >= q->slot[i]->r.n_answer) {
            finish(q, q->slot[i]);
            q->slot[i] = NULL;
        }
    admit(q);
}

void queue_sim_until(struct queue_sim *q, int64_t ns)
{
    while (q->now_ns < ns)
        queue_sim_step(q);
}

struct queue_sim_request queue_sim_draw(uint64_t client, uint64_t seed, uint64_t n)
{
    uint64_t r = rand_at(seed, n);
    return (struct queue_sim_request){.client = client, .n_prompt = 200 + (uint32_t)(r % 401), 
                                      .n_answer = 20 + (uint32_t)((r >> 32) % (QUEUE_SIM_SPREAD + 1))};
}

void queue_sim_keep(struct queue_sim *q, const uint32_t *keep, uint32_t n_clients, uint64_t seed, uint64_t *n)
{
    for (uint64_t c = 0; c < n_clients; c++)
        while (q->n_waiting[c] < keep[c]) {
            struct queue_sim_request r = queue_sim_draw(c, seed, (*n)++);
            CHECK(queue_sim_submit(q, &r, NULL) == STATUS_OK);
        }
}

double queue_sim_flood(uint32_t n_slots, uint64_t seed)
{
    enum { CLIENTS = 4 };
    const struct queue_sim_options o = {
        .limits = {.queue_requests = 200, .queue_tokens = 1 << 20, .queue_wait_ns = 3600 * NS_PER_S, .n_slots = n_slots},
        .prompt_per_s = 2000, .answer_per_s = 50};
    const uint32_t keep[CLIENTS] = {100, 2, 2, 2};
    struct queue_sim *q = queue_sim_create(&o);
    double behind = 0;
    uint64_t n = 0;
    queue_sim_keep(q, keep, CLIENTS, seed, &n);
    q->granted[0] = 0; /* what it got while nobody else was there was nobody else's */
    while (q->now_ns < 600 * NS_PER_S) {
        double all = 0;
        queue_sim_step(q);
        queue_sim_keep(q, keep, CLIENTS, seed, &n);
        for (int c = 0; c < CLIENTS; c++)
            all += q->granted[c];
        for (int c = 1; c < CLIENTS; c++)
            if (behind < all / CLIENTS - q->granted[c])
                behind = all / CLIENTS - q->granted[c];
    }
    queue_sim_destroy(q);
    return behind - QUEUE_SIM_LARGEST - n_slots / CLIENTS * QUEUE_SIM_SPREAD;
}
