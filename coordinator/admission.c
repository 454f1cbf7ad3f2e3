#include "coordinator/admission.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"

/* Open addressing with linear probing; an entry with neither waiting nor running items is gone (deleted with backward
 * shift, so that probes need no tombstones). */
struct client {
    uint64_t key;
    uint32_t n_waiting, n_running; /* both 0: free place */
};

struct admission {
    struct admission_limits limits;
    struct list waiting; /* oldest first */
    uint32_t n_waiting, n_first; /* n_first: of them, those that count against queue_requests */
    uint32_t n_running, n_clients;
    uint64_t n_tokens, n_first_tokens, n_answer_tokens; /* n_answer_tokens: sum of n_answer_max of the waiting */
    int64_t earliest_deadline_ns;
    int positions_stale;
    /* measured: an exponential mean of the rate over about RATE_SPAN_S of service, and of the answers' length */
    double rate_per_s, answer_mean;
    int64_t rate_from_ns;
    uint64_t rate_tokens;
    uint32_t n_places; /* power of two */
    struct client client[];
};

static uint32_t place_of(const struct admission *a, uint64_t key)
{
    return (uint32_t)rand_mix(key) & (a->n_places - 1);
}

static int is_free(const struct client *c)
{
    return c->n_waiting == 0 && c->n_running == 0;
}

/* The client's entry, or the free place where it would be. There are more places than items, so the search ends. */
static struct client *client_find(struct admission *a, uint64_t key)
{
    for (uint32_t i = place_of(a, key);; i = (i + 1) & (a->n_places - 1))
        if (is_free(&a->client[i]) || a->client[i].key == key)
            return &a->client[i];
}

static void client_remove(struct admission *a, struct client *gone)
{
    uint32_t mask = a->n_places - 1, hole = (uint32_t)(gone - a->client);
    for (uint32_t i = (hole + 1) & mask; !is_free(&a->client[i]); i = (i + 1) & mask) {
        uint32_t home = place_of(a, a->client[i].key);
        if (((i - home) & mask) < ((i - hole) & mask))
            continue; /* its home lies behind the hole */
        a->client[hole] = a->client[i];
        hole = i;
    }
    a->client[hole] = (struct client){0};
    a->n_clients--;
}

static void client_count(struct admission *a, uint64_t key, int waiting, int running)
{
    struct client *c = client_find(a, key);
    if (is_free(c)) {
        c->key = key;
        a->n_clients++;
    }
    c->n_waiting += (uint32_t)waiting;
    c->n_running += (uint32_t)running;
    if (is_free(c))
        client_remove(a, c);
}

enum status admission_create(const struct admission_limits *l, struct admission **out)
{
    CHECK(l->n_slots >= 1);
    /* Resumed requests pass the cap, and there are at most as many as ran: twice the slots covers both. */
    uint64_t most = (uint64_t)l->queue_requests + 4ull * l->n_slots + 16;
    uint32_t n_places = 16;
    while (n_places < 2 * most)
        n_places *= 2;
    struct admission *a = calloc(1, sizeof *a + n_places * sizeof a->client[0]);
    if (!a)
        return STATUS_OUT_OF_MEMORY;
    a->limits = *l;
    a->n_places = n_places;
    a->earliest_deadline_ns = INT64_MAX;
    list_init(&a->waiting);
    *out = a;
    return STATUS_OK;
}

void admission_destroy(struct admission *a)
{
    free(a);
}

static enum status refuse(struct admission *a, struct error *err, enum status s, const char *what, uint64_t have,
                          uint64_t limit)
{
    error_set(err, s, "%s: %llu of %llu", what, (unsigned long long)have, (unsigned long long)limit);
    if (err)
        err->retry_after_s = admission_retry_after_s(a);
    return s;
}

static enum status check_limits(struct admission *a, const struct admission_item *item, int may_start, struct error *err)
{
    const struct admission_limits *l = &a->limits;
    uint32_t mine = client_find(a, item->client)->n_waiting;
    if (a->n_clients + 1 >= a->n_places / 2) /* only resumed ones can come so far */
        return refuse(a, err, STATUS_QUEUE_FULL, "too many clients are waiting", a->n_clients, a->n_places / 2);
    if (item->resumed || may_start)
        return STATUS_OK;
    if (l->client_queue && mine >= l->client_queue)
        return refuse(a, err, STATUS_CLIENT_LIMIT, "this client has too many requests waiting", mine, l->client_queue);
    if (a->n_first >= l->queue_requests)
        return refuse(a, err, STATUS_QUEUE_FULL, "too many requests are waiting", a->n_first, l->queue_requests);
    if (a->n_first_tokens + item->n_prompt > l->queue_tokens)
        return refuse(a, err, STATUS_QUEUE_FULL, "too many prompt tokens are waiting",
                      a->n_first_tokens + item->n_prompt, l->queue_tokens);
    return STATUS_OK;
}

/* sign +1: the item joins the sums, -1: it leaves them. */
static void count_waiting(struct admission *a, const struct admission_item *item, int sign)
{
    a->n_waiting += (uint32_t)sign;
    a->n_tokens += (uint64_t)((int64_t)sign * item->n_prompt);
    a->n_answer_tokens += (uint64_t)((int64_t)sign * item->n_answer_max);
    if (!item->resumed) {
        a->n_first += (uint32_t)sign;
        a->n_first_tokens += (uint64_t)((int64_t)sign * item->n_prompt);
    }
    a->positions_stale = 1;
}

enum status admission_push(struct admission *a, struct admission_item *item, int may_start, int64_t now_ns, struct error *err)
{
    CHECK(!list_linked(&item->link) && !item->running);
    TRY(check_limits(a, item, may_start && list_empty(&a->waiting), err));
    item->arrived_ns = now_ns;
    if (item->deadline_ns == 0 || item->deadline_ns > now_ns + a->limits.queue_wait_ns)
        item->deadline_ns = now_ns + a->limits.queue_wait_ns;
    if (item->deadline_ns < a->earliest_deadline_ns)
        a->earliest_deadline_ns = item->deadline_ns;
    list_push_back(&a->waiting, &item->link);
    count_waiting(a, item, 1);
    client_count(a, item->client, 1, 0);
    ASSERT(admission__check(a, &(const char *){0}));
    return STATUS_OK;
}

static void unlink_item(struct admission *a, struct admission_item *item)
{
    list_remove(&item->link);
    item->position = 0;
    count_waiting(a, item, -1);
    if (list_empty(&a->waiting))
        a->earliest_deadline_ns = INT64_MAX;
}

void admission_remove(struct admission *a, struct admission_item *item)
{
    if (!list_linked(&item->link))
        return;
    unlink_item(a, item);
    client_count(a, item->client, -1, 0);
    ASSERT(admission__check(a, &(const char *){0}));
}

struct admission_item *admission_next(struct admission *a)
{
    LIST_EACH(it, &a->waiting) {
        struct admission_item *item = LIST_ENTRY(it, struct admission_item, link);
        if (!a->limits.client_slots || client_find(a, item->client)->n_running < a->limits.client_slots)
            return item;
    }
    return NULL;
}

/* The order across clients does not look at what they were served yet: first come, first served. */
void admission_start(struct admission *a, struct admission_item *item, uint32_t n_uncached)
{
    (void)n_uncached;
    CHECK(list_linked(&item->link));
    unlink_item(a, item);
    client_count(a, item->client, 0, 1); /* first, so that the entry does not go and come */
    client_count(a, item->client, -1, 0);
    item->running = 1;
    a->n_running++;
    ASSERT(admission__check(a, &(const char *){0}));
}

void admission_charge(struct admission *a, struct admission_item *item, uint32_t n_tokens)
{
    (void)a, (void)n_tokens;
    CHECK(item->running);
}

/* Before all that arrived later, wherever their clients. */
static void link_by_arrival(struct admission *a, struct admission_item *item)
{
    struct list *at = a->waiting.next;
    while (at != &a->waiting && LIST_ENTRY(at, struct admission_item, link)->arrived_ns < item->arrived_ns)
        at = at->next;
    list_push_back(at, &item->link);
}

void admission_park(struct admission *a, struct admission_item *item, int64_t now_ns)
{
    (void)now_ns;
    CHECK(item->running && !list_linked(&item->link));
    item->running = 0;
    a->n_running--;
    item->resumed = 1;
    item->deadline_ns = INT64_MAX;
    link_by_arrival(a, item);
    count_waiting(a, item, 1);
    client_count(a, item->client, 1, 0);
    client_count(a, item->client, 0, -1);
    ASSERT(admission__check(a, &(const char *){0}));
}

void admission_finish(struct admission *a, struct admission_item *item)
{
    CHECK(item->running);
    item->running = 0;
    a->n_running--;
    client_count(a, item->client, 0, -1);
    ASSERT(admission__check(a, &(const char *){0}));
}

struct admission_item *admission_expired(struct admission *a, int64_t now_ns)
{
    if (now_ns < a->earliest_deadline_ns)
        return NULL;
    int64_t earliest = INT64_MAX;
    LIST_EACH(it, &a->waiting) {
        struct admission_item *item = LIST_ENTRY(it, struct admission_item, link);
        if (item->deadline_ns <= now_ns)
            return item;
        if (item->deadline_ns < earliest)
            earliest = item->deadline_ns;
    }
    a->earliest_deadline_ns = earliest;
    return NULL;
}

int64_t admission_deadline(const struct admission *a)
{
    return a->earliest_deadline_ns;
}

uint32_t admission_position(struct admission *a, const struct admission_item *item)
{
    if (!list_linked(&item->link))
        return 0;
    if (a->positions_stale) {
        uint32_t n = 0;
        LIST_EACH(it, &a->waiting)
            LIST_ENTRY(it, struct admission_item, link)->position = ++n;
        a->positions_stale = 0;
    }
    return item->position;
}

/* The rate is that of busy time: a pause in service of more than a second is left out, as no work was there. */
void admission_served(struct admission *a, uint32_t n_tokens, int64_t now_ns)
{
    if (a->rate_from_ns == 0 || now_ns - a->rate_from_ns > 4 * NS_PER_S) {
        a->rate_from_ns = now_ns;
        a->rate_tokens = 0;
        return;
    }
    a->rate_tokens += n_tokens;
    int64_t span = now_ns - a->rate_from_ns;
    if (span < NS_PER_S)
        return;
    double rate = (double)a->rate_tokens * 1e9 / (double)span;
    a->rate_per_s = a->rate_per_s == 0 ? rate : 0.7 * a->rate_per_s + 0.3 * rate;
    a->rate_from_ns = now_ns;
    a->rate_tokens = 0;
}

void admission_answered(struct admission *a, uint32_t n_tokens)
{
    a->answer_mean = a->answer_mean == 0 ? n_tokens : 0.9 * a->answer_mean + 0.1 * n_tokens;
}

uint32_t admission_mean_answer(const struct admission *a)
{
    return a->answer_mean == 0 ? 0 : (uint32_t)ceil(a->answer_mean);
}

int admission_retry_after_s(const struct admission *a)
{
    if (a->rate_per_s <= 0)
        return 1; /* nothing was measured: the work may be short */
    double answers = a->answer_mean * a->n_waiting;
    if (a->answer_mean == 0 || answers > (double)a->n_answer_tokens)
        answers = (double)a->n_answer_tokens;
    double seconds = ceil(((double)a->n_tokens + answers) / a->rate_per_s);
    return seconds < 1 ? 1 : seconds > 60 ? 60 : (int)seconds;
}

struct admission_stats admission_stats(const struct admission *a)
{
    struct admission_stats st = {.n_waiting = a->n_waiting, .n_running = a->n_running, .n_clients = a->n_clients,
                                 .n_tokens = a->n_tokens, .tokens_per_s = a->rate_per_s};
    if (!list_empty(&a->waiting))
        st.oldest_ns = LIST_ENTRY(a->waiting.next, struct admission_item, link)->arrived_ns;
    return st;
}

static const char *check_clients(const struct admission *a)
{
    uint64_t waiting = 0, running = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_places; i++) {
        const struct client *c = &a->client[i];
        if (is_free(c))
            continue;
        n++;
        waiting += c->n_waiting;
        running += c->n_running;
        if (client_find((struct admission *)a, c->key) != c)
            return "every client is found by its key";
    }
    if (waiting != a->n_waiting || running != a->n_running || n != a->n_clients)
        return "the clients' counts add up to the queue and the slots";
    return NULL;
}

int admission__check(const struct admission *a, const char **why)
{
    uint32_t n = 0, n_first = 0;
    uint64_t tokens = 0, first_tokens = 0, answers = 0;
    int64_t before = INT64_MIN;
    *why = NULL;
    LIST_EACH(it, &a->waiting) {
        const struct admission_item *item = LIST_ENTRY(it, struct admission_item, link);
        n++;
        n_first += !item->resumed;
        tokens += item->n_prompt;
        first_tokens += item->resumed ? 0 : item->n_prompt;
        answers += item->n_answer_max;
        if (item->arrived_ns < before)
            *why = "arrival order is list order";
        if (item->deadline_ns < a->earliest_deadline_ns)
            *why = "no deadline is before the earliest";
        before = item->arrived_ns;
    }
    if (n != a->n_waiting || n_first != a->n_first || tokens != a->n_tokens || first_tokens != a->n_first_tokens ||
        answers != a->n_answer_tokens)
        *why = "the sums are those of the list";
    if (!*why)
        *why = check_clients(a);
    return !*why;
}
