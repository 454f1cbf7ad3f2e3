/* Admission against a plain reference of the same rules: no heaps, no lists, no table; every answer is found by looking at all
 * items. Random steps; after each one the next in turn, every rank, the deadlines and the sums must agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "coordinator/admission.h"

enum { N_ITEMS = 48, N_CLIENTS = 7, MOST_RUNNING = 6 };

enum where { OUTSIDE, WAITING, RUNNING };

struct plain_item {
    enum where where;
    uint32_t client, batch, n_prompt, expected, prepaid;
    uint64_t order, since, served;
    int64_t deadline, own_deadline;
    int resumed, started;
};

struct plain {
    struct admission_limits limits;
    struct plain_item item[N_ITEMS];
    uint64_t order, since, counter[N_CLIENTS][2], class_served[2], largest[2], virtual_time;
    double level[2], ahead[2];
    int has_turn[N_CLIENTS][2], known[N_CLIENTS][2];
    uint32_t mean_answer;
};

static uint32_t count(const struct plain *p, enum where where, int client, int batch)
{
    uint32_t n = 0;
    for (int i = 0; i < N_ITEMS; i++)
        n += p->item[i].where == where && (client < 0 || p->item[i].client == (uint32_t)client) &&
             (batch < 0 || p->item[i].batch == (uint32_t)batch);
    return n;
}

static int held(const struct plain *p, int client)
{
    return p->limits.client_slots && count(p, RUNNING, client, -1) >= p->limits.client_slots;
}

/* -1: the client has nothing waiting in this class */
static int head(const struct plain *p, int client, int batch)
{
    int best = -1;
    for (int i = 0; i < N_ITEMS; i++) {
        const struct plain_item *x = &p->item[i];
        if (x->where != WAITING || x->client != (uint32_t)client || x->batch != (uint32_t)batch)
            continue;
        const struct plain_item *b = best < 0 ? NULL : &p->item[best];
        if (!b || x->resumed > b->resumed || (x->resumed == b->resumed && x->order < b->order))
            best = i;
    }
    return best;
}

static int first_of_class(const struct plain *p, int batch)
{
    int best = -1;
    for (int c = 0; c < N_CLIENTS; c++) {
        if (!p->has_turn[c][batch])
            continue;
        int h = head(p, c, batch);
        uint64_t mine = p->counter[c][batch], least = best < 0 ? 0 : p->counter[p->item[best].client][batch];
        if (best < 0 || mine < least || (mine == least && p->item[h].order < p->item[best].order))
            best = h;
    }
    return best;
}

static uint64_t weighted(int batch, uint64_t n)
{
    return batch ? n * ADMISSION_BATCH_DIVISOR : n;
}

static int next(const struct plain *p)
{
    int first[2] = {first_of_class(p, 0), first_of_class(p, 1)};
    if (first[0] < 0 || first[1] < 0)
        return first[0] < 0 ? first[1] : first[0];
    uint64_t end[2];
    for (int k = 0; k < 2; k++)
        end[k] = p->class_served[k] + weighted(k, (uint64_t)p->item[first[k]].n_prompt + p->item[first[k]].expected);
    return first[end[1] < end[0]];
}

static void settle(struct plain *p, int client)
{
    for (int k = 0; k < 2; k++) {
        int wants = head(p, client, k) >= 0 && !held(p, client);
        if (wants && !p->has_turn[client][k]) {
            int h = first_of_class(p, k);
            double least = h < 0 ? 0 : (double)p->counter[p->item[h].client][k];
            if (h < 0 && p->class_served[k] < p->virtual_time)
                p->class_served[k] = p->virtual_time;
            if (h >= 0 && p->level[k] < least) {
                p->level[k] = least;
                p->ahead[k] = 0;
            }
            if (h >= 0 && p->level[k] > least + (double)p->largest[k]) {
                p->level[k] = least + (double)p->largest[k];
                p->ahead[k] = 0;
            }
            uint64_t from = (uint64_t)(h >= 0 && p->known[client][k] ? least : p->level[k]);
            if (p->counter[client][k] < from)
                p->counter[client][k] = from;
            p->known[client][k] = 1;
        }
        p->has_turn[client][k] = wants;
    }
}

static double per_flow(const struct plain *p, int k, uint64_t n)
{
    uint32_t active = 0;
    for (int c = 0; c < N_CLIENTS; c++)
        active += count(p, WAITING, c, k) + count(p, RUNNING, c, k) > 0;
    return (double)n / active;
}

static void pay(struct plain *p, struct plain_item *x, uint64_t n, uint64_t served)
{
    int k = (int)x->batch;
    p->counter[x->client][k] += n;
    p->class_served[k] += weighted(k, n);
    double rise = per_flow(p, k, n), back = rise < p->ahead[k] ? rise : p->ahead[k];
    p->ahead[k] -= back;
    p->level[k] += rise - back;
    x->served += served;
    if (p->largest[k] < x->served)
        p->largest[k] = x->served;
}

static void start(struct plain *p, int i, uint32_t n_uncached)
{
    struct plain_item *x = &p->item[i];
    uint32_t prompt = x->resumed ? 0 : n_uncached, ahead = x->started ? 0 : x->expected;
    if (p->virtual_time < p->class_served[x->batch])
        p->virtual_time = p->class_served[x->batch];
    x->where = RUNNING;
    x->deadline = x->own_deadline;
    x->prepaid += ahead;
    x->started = 1;
    pay(p, x, (uint64_t)prompt + ahead, prompt);
    settle(p, (int)x->client);
}

static void leave(struct plain *p, int i)
{
    struct plain_item *x = &p->item[i];
    p->counter[x->client][x->batch] -= x->prepaid;
    p->class_served[x->batch] -= weighted((int)x->batch, x->prepaid);
    p->ahead[x->batch] += per_flow(p, (int)x->batch, x->prepaid);
    x->where = OUTSIDE;
    settle(p, (int)x->client);
}

static void park(struct plain *p, int i)
{
    struct plain_item *x = &p->item[i];
    x->where = WAITING;
    x->resumed = 1;
    x->since = ++p->since;
    settle(p, (int)x->client);
}

static void charge(struct plain *p, int i, uint32_t n)
{
    struct plain_item *x = &p->item[i];
    uint32_t paid = n < x->prepaid ? n : x->prepaid;
    x->prepaid -= paid;
    pay(p, x, n - paid, n);
    settle(p, (int)x->client);
}

static enum status push(struct plain *p, int i, const struct admission_item *in, int may_start, int64_t now)
{
    const struct admission_limits *l = &p->limits;
    uint32_t first = 0;
    uint64_t tokens = in->n_prompt;
    for (int k = 0; k < N_ITEMS; k++)
        if (p->item[k].where == WAITING && !p->item[k].resumed) {
            first++;
            tokens += p->item[k].n_prompt;
        }
    if (!in->resumed && !in->sibling && !(may_start && next(p) < 0 && !held(p, (int)in->client))) {
        if (l->client_queue && count(p, WAITING, (int)in->client, -1) >= l->client_queue)
            return STATUS_CLIENT_LIMIT;
        if (first >= l->queue_requests || (first > 0 && tokens > l->queue_tokens))
            return STATUS_QUEUE_FULL;
    }
    int64_t own = in->deadline_ns ? in->deadline_ns : INT64_MAX, latest = now + l->queue_wait_ns;
    p->item[i] = (struct plain_item){
        .where = WAITING, .client = (uint32_t)in->client, .batch = (uint32_t)in->batch, .n_prompt = in->n_prompt,
        .expected = p->mean_answer && p->mean_answer < in->n_answer_max ? p->mean_answer : in->n_answer_max,
        .order = ++p->order, .since = ++p->since, .resumed = in->resumed, .own_deadline = own,
        .deadline = in->resumed || own < latest ? own : latest};
    settle(p, (int)in->client);
    return STATUS_OK;
}

/* The ranks, by starting everybody who can start, then the others as long as they have waited. */
static void check_ranks(const struct plain *p, struct admission *a, const struct admission_item *item)
{
    static struct plain ahead;
    ahead = *p;
    uint32_t n = 0;
    for (int i; (i = next(&ahead)) >= 0; start(&ahead, i, ahead.item[i].n_prompt))
        assert_int_equal(admission_position(a, &item[i]), ++n);
    uint64_t before = 0;
    for (;;) {
        int longest = -1;
        for (int i = 0; i < N_ITEMS; i++)
            if (ahead.item[i].where == WAITING && ahead.item[i].since > before &&
                (longest < 0 || ahead.item[i].since < ahead.item[longest].since))
                longest = i;
        if (longest < 0)
            break;
        before = ahead.item[longest].since;
        assert_int_equal(admission_position(a, &item[longest]), ++n);
    }
    assert_int_equal(n, count(p, WAITING, -1, -1));
}

static void check_all(const struct plain *p, struct admission *a, const struct admission_item *item, int64_t now)
{
    const char *why;
    if (!admission__check(a, &why))
        fail_msg("%s", why);
    int expect = next(p);
    assert_ptr_equal(admission_next(a), expect < 0 ? NULL : &item[expect]);
    check_ranks(p, a, item);
    int64_t earliest = INT64_MAX;
    for (int i = 0; i < N_ITEMS; i++) {
        if (p->item[i].where == WAITING && p->item[i].deadline < earliest)
            earliest = p->item[i].deadline;
        assert_int_equal(list_linked(&item[i].link), p->item[i].where == WAITING);
    }
    assert_int_equal(admission_deadline(a), earliest);
    struct admission_item *late = admission_expired(a, now);
    assert_int_equal(late != NULL, earliest <= now);
    if (late)
        assert_int_equal(p->item[late - item].deadline, earliest);
    assert_int_equal(admission_stats(a).n_running, count(p, RUNNING, -1, -1));
    assert_in_range(admission_retry_after_s(a), 1, 60);
}

static void step_waiting(struct plain *p, struct admission *a, struct admission_item *item, int i, uint64_t r)
{
    if (r % 3 == 0) { /* not only the one whose turn it is: the engine may know better */
        uint32_t n_uncached = (uint32_t)(r >> 8) % (item[i].n_prompt + 1);
        if (count(p, RUNNING, -1, -1) >= MOST_RUNNING)
            return;
        admission_start(a, &item[i], n_uncached);
        start(p, i, n_uncached);
    } else if (r % 3 == 1) {
        admission_remove(a, &item[i]);
        leave(p, i);
    }
}

static void step_running(struct plain *p, struct admission *a, struct admission_item *item, int i, uint64_t r, int64_t now)
{
    if (r % 4 == 0) {
        admission_finish(a, &item[i]);
        leave(p, i);
    } else if (r % 4 == 1) {
        item[i].deadline_ns = r & 256 ? 0 : now + 40;
        p->item[i].deadline = p->item[i].own_deadline = r & 256 ? INT64_MAX : now + 40;
        admission_park(a, &item[i], now);
        park(p, i);
    } else {
        uint32_t n = (uint32_t)(r >> 8) % 9;
        admission_charge(a, &item[i], n);
        charge(p, i, n);
    }
}

static void step_outside(struct plain *p, struct admission *a, struct admission_item *item, int i, uint64_t r, int64_t now)
{
    struct error err;
    item[i] = (struct admission_item){.client = (r >> 8) % N_CLIENTS, .batch = (r >> 16) % 4 == 0,
                                      .n_prompt = (uint32_t)(r >> 24) % 64, .n_answer_max = (uint32_t)(r >> 32) % 32,
                                      .resumed = (r >> 40) % 8 == 0, .sibling = (r >> 50) % 8 == 0, .deadline_ns = (r >> 44) % 4 ? 0 : now + 20};
    const struct admission_item in = item[i];
    int may_start = (r >> 48) % 2;
    enum status s = push(p, i, &in, may_start, now);
    assert_int_equal(admission_push(a, &item[i], may_start, now, &err), s);
    if (s != STATUS_OK)
        assert_in_range(err.retry_after_s, 1, 60);
}

static void random_steps(uint64_t seed, int n_steps, const struct admission_limits *l)
{
    static struct plain p;
    static struct admission_item item[N_ITEMS];
    struct admission *a;
    p = (struct plain){.limits = *l};
    memset(item, 0, sizeof item);
    assert_int_equal(admission_create(l, &a), STATUS_OK);
    for (int64_t now = 1; now <= n_steps; now++) {
        uint64_t r = rand_at(seed, (uint64_t)now);
        int i = (int)(r % N_ITEMS);
        if (r >> 60 == 0) {
            admission_answered(a, (uint32_t)(r >> 50) % 16);
            p.mean_answer = admission_mean_answer(a);
        }
        admission_served(a, (uint32_t)(r >> 56), now);
        r = rand_mix(r);
        if (p.item[i].where == WAITING)
            step_waiting(&p, a, item, i, r);
        else if (p.item[i].where == RUNNING)
            step_running(&p, a, item, i, r, now);
        else
            step_outside(&p, a, item, i, r, now);
        check_all(&p, a, item, now);
        for (int n; r >> 62 == 0 && count(&p, RUNNING, -1, -1) < MOST_RUNNING && (n = next(&p)) >= 0;) {
            admission_start(a, &item[n], item[n].n_prompt);
            start(&p, n, item[n].n_prompt);
        }
        for (struct admission_item *late; now % 16 == 0 && (late = admission_expired(a, now)) != NULL;) {
            leave(&p, (int)(late - item));
            admission_remove(a, late);
        }
    }
    admission_destroy(a);
}

static void every_answer_is_that_of_the_plain_reference(void **state)
{
    (void)state;
    const struct admission_limits l = {.queue_requests = 20, .queue_tokens = 500, .queue_wait_ns = 50, .n_slots = MOST_RUNNING};
    for (uint64_t seed = 1; seed <= 4; seed++)
        random_steps(seed, 3000, &l);
}

static void the_same_with_limits_of_clients(void **state)
{
    (void)state;
    const struct admission_limits l = {.queue_requests = 20, .queue_tokens = 500, .queue_wait_ns = 50, .n_slots = MOST_RUNNING,
                                       .client_slots = 2, .client_queue = 4};
    for (uint64_t seed = 11; seed <= 14; seed++)
        random_steps(seed, 3000, &l);
}

static void the_same_without_a_queue(void **state)
{
    (void)state;
    const struct admission_limits l = {.queue_requests = 0, .queue_tokens = 500, .queue_wait_ns = 50, .n_slots = MOST_RUNNING};
    random_steps(21, 3000, &l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_that_of_the_plain_reference),
        cmocka_unit_test(the_same_with_limits_of_clients),
        cmocka_unit_test(the_same_without_a_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
