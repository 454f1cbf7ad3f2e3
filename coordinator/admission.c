#include "coordinator/admission.h"

#include <stdlib.h>

#include "common/base/check.h"
#include "coordinator/admission_impl.h"

/* Debug builds walk all sums after each change while few wait; large queues are walked by the tests that make them. */
enum { CHECKED_WAITING = 64, CHECKED_CLIENTS = 512, IDLE_CLIENTS = 4096 };

static void check_small(const struct admission *a)
{
    ASSERT(a->n_waiting > CHECKED_WAITING || a->n_used > CHECKED_CLIENTS || admission__check(a, &(const char *){0}));
    (void)a;
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

static enum status create_heaps(struct admission *a)
{
    a->due.node = calloc(a->capacity, sizeof(struct heap_node *));
    if (!a->due.node)
        return STATUS_OUT_OF_MEMORY;
    for (int k = 0; k < N_CLASSES; k++) {
        a->class[k].flows.node = calloc(a->capacity, sizeof(struct heap_node *));
        a->walk[k].node = calloc(a->capacity, sizeof(struct heap_node *));
        if (!a->class[k].flows.node || !a->walk[k].node)
            return STATUS_OUT_OF_MEMORY;
    }
    return STATUS_OK;
}

enum status admission_create(const struct admission_limits *l, struct admission **out)
{
    CHECK(l->n_slots >= 1);
    struct admission *a = calloc(1, sizeof *a);
    if (!a)
        return STATUS_OUT_OF_MEMORY;
    a->limits = *l;
    list_init(&a->waiting);
    a->walked_ns = INT64_MIN / 2; /* never */
    /* First admissions; as many that come back after a restart; those that run, and may all be parked. */
    a->capacity = 2 * l->queue_requests + 4 * l->n_slots + 16;
    enum status s = create_heaps(a);
    if (s == STATUS_OK)
        s = admission__create_clients(a, a->capacity + IDLE_CLIENTS);
    if (s != STATUS_OK) {
        admission_destroy(a);
        return s;
    }
    *out = a;
    return STATUS_OK;
}

void admission_destroy(struct admission *a)
{
    for (int k = 0; k < N_CLASSES; k++) {
        free(a->class[k].flows.node);
        free(a->walk[k].node);
    }
    free(a->due.node);
    admission__destroy_clients(a);
    free(a);
}

/* --- limits ------------------------------------------------------------------------------------------------------------------ */

static enum status refuse(struct error *err, enum status s, int retry_after_s, const char *what, uint64_t have, uint64_t limit)
{
    error_set(err, s, "%s: %llu of %llu", what, (unsigned long long)have, (unsigned long long)limit);
    if (err)
        err->retry_after_s = retry_after_s;
    return s;
}

/* Departures until so many prompt tokens have left, if those that wait are alike. */
static uint32_t departures_for(const struct admission *a, uint64_t n_tokens)
{
    if (a->n_first == 0 || a->n_first_tokens == 0)
        return 1;
    uint64_t n = (n_tokens * a->n_first + a->n_first_tokens - 1) / a->n_first_tokens;
    return n < 1 ? 1 : n > a->n_first ? a->n_first : (uint32_t)n;
}

static enum status check_limits(struct admission *a, const struct admission_item *item, int may_start, struct error *err)
{
    const struct admission_limits *l = &a->limits;
    struct client *c = admission__find(a, item->client);
    uint32_t n_all = a->n_waiting + a->n_running, mine = c ? c->n_waiting : 0;
    uint64_t tokens = a->n_first_tokens + item->n_prompt;
    if (n_all >= a->capacity)
        return refuse(err, STATUS_QUEUE_FULL, admission__promise_place(a, 1), "too many requests are here", n_all, a->capacity);
    int starts = may_start && !admission_next(a) && !(c && admission__held(a, c));
    if (item->resumed || item->sibling || starts)
        return STATUS_OK;
    if (l->client_queue && mine >= l->client_queue)
        return refuse(err, STATUS_CLIENT_LIMIT, admission__promise_client(a, c), "this client has too many requests waiting",
                      mine, l->client_queue);
    if (a->n_first >= l->queue_requests)
        return refuse(err, STATUS_QUEUE_FULL, admission__promise_place(a, 1), "too many requests are waiting", a->n_first,
                      l->queue_requests);
    /* One that is larger than the bound waits alone: it would be refused for ever while the slots are busy. */
    if (a->n_first > 0 && tokens > l->queue_tokens)
        return refuse(err, STATUS_QUEUE_FULL, admission__promise_place(a, departures_for(a, tokens - l->queue_tokens)),
                      "too many prompt tokens are waiting", tokens, l->queue_tokens);
    return STATUS_OK;
}

/* --- in and out of the queue --------------------------------------------------------------------------------------------------- */

/* sign +1: the item joins the sums over waiting and running ones, -1: it leaves them. */
static void count_all(struct admission *a, const struct admission_item *item, int sign)
{
    a->all_prompt += (uint64_t)((int64_t)sign * item->n_prompt);
    a->all_answer_max += (uint64_t)((int64_t)sign * item->n_answer_max);
}

static void count_tokens(struct admission *a, const struct admission_item *item, int sign)
{
    a->n_tokens += (uint64_t)((int64_t)sign * item->n_prompt);
    if (item->resumed)
        return;
    a->n_first += (uint32_t)sign;
    a->n_first_tokens += (uint64_t)((int64_t)sign * item->n_prompt);
}

/* Parked ones in order of arrival, wherever they come from: the youngest is parked first when blocks run out, the oldest when
 * a pipeline is lost, so one of the ends is the place. */
static void link_parked(struct flow *f, struct admission_item *item)
{
    struct list *at = &f->parked;
    if (!list_empty(at) && LIST_ENTRY(at->prev, struct admission_item, link)->order > item->order)
        for (at = at->next; LIST_ENTRY(at, struct admission_item, link)->order < item->order;)
            at = at->next;
    list_push_back(at, &item->link);
}

static void enter_queue(struct admission *a, struct admission_item *item)
{
    struct flow *f = admission__flow(a, item);
    item->position = 0;
    item->since_ns = a->measured.now_ns;
    list_push_back(&a->waiting, &item->all);
    if (item->resumed)
        link_parked(f, item);
    else
        list_push_back(&f->fresh, &item->link);
    heap_put(&a->due, &item->due, (uint64_t)item->deadline_ns, item->order);
    count_tokens(a, item, 1);
}

static void leave_queue(struct admission *a, struct admission_item *item)
{
    list_remove(&item->link);
    list_remove(&item->all);
    heap_remove(&a->due, &item->due);
    item->position = 0;
    count_tokens(a, item, -1);
    admission__note_departure(a, item);
}

static void prepare(struct admission *a, struct admission_item *item, int64_t now_ns)
{
    uint32_t mean = admission_mean_answer(a);
    int64_t latest = now_ns + a->limits.queue_wait_ns;
    item->arrived_ns = now_ns;
    item->order = ++a->next_order;
    item->own_deadline_ns = item->deadline_ns > 0 ? item->deadline_ns : INT64_MAX;
    item->deadline_ns = item->resumed || item->own_deadline_ns < latest ? item->own_deadline_ns : latest;
    item->n_expected = mean && mean < item->n_answer_max ? mean : item->n_answer_max;
    item->n_prepaid = 0;
    item->served = 0;
    item->started = 0;
    item->resumed = item->resumed != 0;
    item->client_entry = admission__enter(a, item->client);
}

enum status admission_push(struct admission *a, struct admission_item *item, int may_start, int64_t now_ns, struct error *err)
{
    CHECK(!list_linked(&item->link) && !item->running);
    admission__tell_time(a, now_ns);
    TRY(check_limits(a, item, may_start, err));
    if (a->n_first == 0)
        admission__note_arrival(a);
    prepare(a, item, now_ns);
    enter_queue(a, item);
    count_all(a, item, 1);
    admission__count(a, item, 1, 0);
    admission__place(a, item);
    if (a->n_first < a->limits.queue_requests && a->n_first_tokens < a->limits.queue_tokens)
        a->measured.n_promised = 0; /* a place is left: nobody waits outside for one */
    check_small(a);
    return STATUS_OK;
}

void admission_remove(struct admission *a, struct admission_item *item)
{
    if (!list_linked(&item->link))
        return;
    leave_queue(a, item);
    count_all(a, item, -1);
    admission__refund(a, item);
    admission__count(a, item, -1, 0);
    admission__place(a, item);
    check_small(a);
}

/* The answer is prepaid with its expected length, so that a client with many starts at once does not pay for them only when
 * its answers are there (the paper's variant with predicted lengths). What it did not use comes back when it ends. */
void admission_start(struct admission *a, struct admission_item *item, uint32_t n_uncached)
{
    CHECK(list_linked(&item->link));
    uint32_t prompt = item->resumed ? 0 : n_uncached;
    uint64_t begin = a->class[admission__class(item)].served;
    if (a->virtual_time < begin)
        a->virtual_time = begin;
    leave_queue(a, item);
    admission__count(a, item, -1, 1);
    item->running = 1;
    if (!item->started)
        item->n_prepaid = item->n_expected;
    admission__charge(a, item, prompt + (uint64_t)(item->started ? 0 : item->n_expected), prompt);
    item->started = 1;
    item->deadline_ns = item->own_deadline_ns;
    admission__place(a, item);
    check_small(a);
}

void admission_charge(struct admission *a, struct admission_item *item, uint32_t n_tokens)
{
    CHECK(item->running);
    uint32_t paid = n_tokens < item->n_prepaid ? n_tokens : item->n_prepaid;
    item->n_prepaid -= paid;
    admission__charge(a, item, n_tokens - paid, n_tokens);
    if (n_tokens > paid) /* else no counter moved */
        admission__place(a, item);
}

void admission_park(struct admission *a, struct admission_item *item, int64_t now_ns)
{
    CHECK(item->running && !list_linked(&item->link));
    admission__tell_time(a, now_ns);
    item->running = 0;
    item->resumed = 1;
    if (item->deadline_ns <= 0)
        item->deadline_ns = INT64_MAX;
    item->own_deadline_ns = item->deadline_ns;
    enter_queue(a, item);
    admission__count(a, item, 1, -1);
    admission__place(a, item);
    check_small(a);
}

void admission_finish(struct admission *a, struct admission_item *item)
{
    CHECK(item->running);
    item->running = 0;
    count_all(a, item, -1);
    admission__note_end(a, item);
    admission__refund(a, item);
    admission__count(a, item, 0, -1);
    admission__place(a, item);
    check_small(a);
}

/* --- time and figures ----------------------------------------------------------------------------------------------------------- */

struct admission_item *admission_expired(struct admission *a, int64_t now_ns)
{
    admission__tell_time(a, now_ns);
    struct heap_node *n = heap_top(&a->due);
    return n && (int64_t)n->key <= now_ns ? LIST_ENTRY(n, struct admission_item, due) : NULL;
}

int64_t admission_deadline(const struct admission *a)
{
    const struct heap_node *n = heap_top(&a->due);
    return n ? (int64_t)n->key : INT64_MAX;
}

struct admission_stats admission_stats(const struct admission *a)
{
    struct admission_stats st = {.n_waiting = a->n_waiting, .n_running = a->n_running, .n_clients = a->n_clients,
                                 .n_tokens = a->n_tokens, .tokens_per_s = a->measured.tokens_per_s};
    if (!list_empty(&a->waiting))
        st.oldest_ns = LIST_ENTRY(a->waiting.next, struct admission_item, all)->since_ns;
    return st;
}

int admission__check(const struct admission *a, const char **why)
{
    uint32_t n = 0, n_first = 0;
    uint64_t tokens = 0, first_tokens = 0;
    int64_t before = INT64_MIN;
    *why = NULL;
    LIST_EACH(it, &a->waiting) {
        const struct admission_item *item = LIST_ENTRY(it, struct admission_item, all);
        n++;
        n_first += !item->resumed;
        tokens += item->n_prompt;
        first_tokens += item->resumed ? 0 : item->n_prompt;
        if (item->since_ns < before)
            *why = "the queue is in order of waiting";
        if (item->due.at == 0 || item->due.key != (uint64_t)item->deadline_ns)
            *why = "every waiting one has its deadline";
        before = item->since_ns;
    }
    if (n != a->n_waiting || n_first != a->n_first || tokens != a->n_tokens || first_tokens != a->n_first_tokens)
        *why = "the sums are those of the list";
    if (a->due.n != n || !heap_valid(&a->due))
        *why = "the deadlines are in order";
    if (a->n_waiting + a->n_running > a->capacity)
        *why = "there is room for all who wait and run";
    if (!*why)
        *why = admission__check_clients(a);
    return !*why;
}
