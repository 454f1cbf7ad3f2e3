#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "coordinator/admission.h"

static const struct admission_limits few = {.queue_requests = 3, .queue_tokens = 100, .queue_wait_ns = 10 * NS_PER_S,
                                            .n_slots = 2};

static struct admission *with(const struct admission_limits *l)
{
    struct admission *a;
    assert_int_equal(admission_create(l, &a), STATUS_OK);
    return a;
}

static struct admission_item item(uint64_t client, uint32_t n_prompt)
{
    return (struct admission_item){.client = client, .n_prompt = n_prompt, .n_answer_max = 10};
}

static void clients_that_were_served_alike_come_in_order_of_arrival(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item i[3] = {item(1, 5), item(2, 5), item(1, 5)};
    for (int k = 0; k < 3; k++)
        assert_int_equal(admission_push(a, &i[k], 0, k + 1, NULL), STATUS_OK);
    assert_int_equal(admission_position(a, &i[2]), 3);
    assert_ptr_equal(admission_next(a), &i[0]);
    admission_start(a, &i[0], 5);
    assert_int_equal(admission_position(a, &i[0]), 0);
    assert_int_equal(admission_position(a, &i[2]), 2);
    admission_remove(a, &i[1]); /* cancelled */
    admission_remove(a, &i[1]);
    assert_ptr_equal(admission_next(a), &i[2]);
    assert_int_equal(admission_position(a, &i[2]), 1);
    admission_start(a, &i[2], 5);
    assert_null(admission_next(a));
    admission_finish(a, &i[0]);
    admission_finish(a, &i[2]);
    assert_int_equal(admission_stats(a).n_clients, 0);
    admission_destroy(a);
}

static void a_full_queue_refuses_with_a_time_to_come_back(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item i[3] = {item(1, 5), item(2, 5), item(3, 5)}, more = item(4, 5), again = item(4, 5);
    struct error err;
    for (int k = 0; k < 3; k++)
        assert_int_equal(admission_push(a, &i[k], 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &more, 0, 1, &err), STATUS_QUEUE_FULL);
    assert_int_equal(err.status, STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 1, 60);
    assert_false(list_linked(&more.link));
    more.resumed = 1; /* was admitted before: passes the cap, and does not take a place from newcomers */
    assert_int_equal(admission_push(a, &more, 0, 1, NULL), STATUS_OK);
    admission_remove(a, &i[0]);
    assert_int_equal(admission_push(a, &again, 0, 1, NULL), STATUS_OK);
    admission_destroy(a);
}

static void too_many_waiting_tokens_refuse(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item big = item(1, 90), more = item(2, 11), small = item(2, 10);
    struct error err;
    assert_int_equal(admission_push(a, &big, 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &more, 0, 1, &err), STATUS_QUEUE_FULL);
    assert_non_null(strstr(err.message, "101"));
    assert_int_equal(admission_push(a, &small, 0, 1, NULL), STATUS_OK);
    admission_destroy(a);
}

static void a_prompt_larger_than_the_bound_waits_alone(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item small = item(1, 5), huge = item(2, 5000), after = item(3, 1);
    struct error err;
    assert_int_equal(admission_push(a, &small, 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &huge, 0, 1, &err), STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 1, 60);
    admission_start(a, &small, 5);
    assert_int_equal(admission_push(a, &huge, 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &after, 0, 1, NULL), STATUS_QUEUE_FULL);
    assert_ptr_equal(admission_next(a), &huge);
    admission_start(a, &huge, 5000);
    assert_int_equal(admission_push(a, &after, 0, 1, NULL), STATUS_OK);
    admission_destroy(a);
}

static void what_can_start_at_once_needs_no_queue(void **state)
{
    (void)state;
    struct admission_limits none = few;
    none.queue_requests = 0;
    struct admission *a = with(&none);
    struct admission_item one = item(1, 500), two = item(1, 5);
    assert_int_equal(admission_push(a, &one, 1, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &two, 1, 1, NULL), STATUS_QUEUE_FULL); /* behind one, which has not started */
    admission_start(a, &one, 5);
    assert_int_equal(admission_push(a, &two, 1, 1, NULL), STATUS_OK);
    admission_destroy(a);
}

static void a_client_over_its_limits_is_refused_or_passed_over(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 100, .queue_tokens = 1000, .queue_wait_ns = NS_PER_S, .n_slots = 4,
                                 .client_slots = 1, .client_queue = 2};
    struct admission *a = with(&l);
    struct admission_item mine[4] = {item(1, 5), item(1, 5), item(1, 5), item(1, 5)}, other = item(2, 5);
    struct error err;
    assert_int_equal(admission_push(a, &mine[0], 0, 1, NULL), STATUS_OK);
    admission_start(a, &mine[0], 5);
    assert_int_equal(admission_push(a, &mine[1], 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &mine[2], 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &mine[3], 0, 1, &err), STATUS_CLIENT_LIMIT);
    assert_in_range(err.retry_after_s, 1, 60);
    assert_null(admission_next(a)); /* has its one slot */
    assert_int_equal(admission_push(a, &other, 0, 1, NULL), STATUS_OK);
    assert_ptr_equal(admission_next(a), &other);
    admission_finish(a, &mine[0]);
    assert_ptr_equal(admission_next(a), &mine[1]);
    admission_destroy(a);
}

static void deadlines_pass_one_by_one(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item i[3] = {item(1, 5), item(2, 5), item(3, 5)};
    i[1].deadline_ns = 3 * NS_PER_S; /* earlier than the queue's */
    i[2].deadline_ns = 300 * NS_PER_S; /* later: cut to the queue's */
    for (int k = 0; k < 3; k++)
        assert_int_equal(admission_push(a, &i[k], 0, NS_PER_S, NULL), STATUS_OK);
    assert_int_equal(admission_deadline(a), 3 * NS_PER_S);
    assert_null(admission_expired(a, 3 * NS_PER_S - 1));
    assert_ptr_equal(admission_expired(a, 3 * NS_PER_S), &i[1]);
    admission_remove(a, &i[1]);
    assert_null(admission_expired(a, 4 * NS_PER_S));
    assert_int_equal(admission_deadline(a), 11 * NS_PER_S);
    assert_ptr_equal(admission_expired(a, 11 * NS_PER_S), &i[0]);
    admission_remove(a, &i[0]);
    assert_ptr_equal(admission_expired(a, 11 * NS_PER_S), &i[2]);
    admission_remove(a, &i[2]);
    assert_int_equal(admission_deadline(a), INT64_MAX);
    admission_destroy(a);
}

/* Runs one request of a client to its end: prompt tokens read, answer tokens served. */
static void serve(struct admission *a, uint64_t client, uint32_t n_prompt, uint32_t n_answer)
{
    struct admission_item i = item(client, n_prompt);
    i.n_answer_max = n_answer;
    assert_int_equal(admission_push(a, &i, 1, 1, NULL), STATUS_OK);
    admission_start(a, &i, n_prompt);
    admission_charge(a, &i, n_answer);
    admission_finish(a, &i);
}

static const struct admission_limits many = {.queue_requests = 1000, .queue_tokens = 1 << 20, .queue_wait_ns = 600 * NS_PER_S,
                                             .n_slots = 4};

static void who_was_served_less_is_next(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item flood[8], other[3] = {item(2, 100), item(2, 100), item(2, 100)};
    for (int k = 0; k < 8; k++) {
        flood[k] = item(1, 100);
        assert_int_equal(admission_push(a, &flood[k], 0, 1 + k, NULL), STATUS_OK);
    }
    for (int k = 0; k < 3; k++)
        assert_int_equal(admission_push(a, &other[k], 0, 20, NULL), STATUS_OK);
    struct admission_item *const order[] = {&flood[0], &other[0], &flood[1], &other[1], &flood[2], &other[2], &flood[3]};
    for (uint32_t k = 0; k < 7; k++)
        assert_int_equal(admission_position(a, order[k]), k + 1);
    for (int k = 0; k < 7; k++) {
        assert_ptr_equal(admission_next(a), order[k]);
        admission_start(a, order[k], 100);
    }
    assert_int_equal(admission_position(a, &flood[7]), 4);
    admission_destroy(a);
}

static void cached_tokens_cost_nothing_and_answers_do(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item one[2] = {item(1, 1000), item(1, 1000)}, two[2] = {item(2, 1000), item(2, 1000)};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(admission_push(a, &one[k], 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_push(a, &two[k], 0, 1, NULL), STATUS_OK);
    }
    admission_start(a, &one[0], 10); /* 990 came from the cache */
    admission_start(a, &two[0], 200);
    assert_ptr_equal(admission_next(a), &one[1]);
    admission_charge(a, &one[0], 5); /* an answer of at most 10 was prepaid */
    assert_ptr_equal(admission_next(a), &one[1]);
    admission_charge(a, &one[0], 300);
    assert_ptr_equal(admission_next(a), &two[1]);
    admission_finish(a, &one[0]);
    assert_ptr_equal(admission_next(a), &two[1]);
    admission_destroy(a);
}

static void what_was_prepaid_and_not_used_comes_back(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item one[2] = {item(1, 10), item(1, 10)}, two[2] = {item(2, 10), item(2, 10)};
    one[0].n_answer_max = 1000; /* and no mean is known */
    two[0].n_answer_max = 500;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(admission_push(a, &one[k], 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_push(a, &two[k], 0, 1, NULL), STATUS_OK);
    }
    admission_start(a, &one[0], 10);
    admission_start(a, &two[0], 10);
    assert_ptr_equal(admission_next(a), &two[1]);
    admission_charge(a, &one[0], 7);
    admission_finish(a, &one[0]);
    assert_ptr_equal(admission_next(a), &one[1]);
    admission_destroy(a);
}

static void who_comes_back_is_lifted_to_those_who_wait(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item steady[200], back[200];
    serve(a, 2, 10, 10); /* then client 2 is away while 1 is served */
    for (int k = 0; k < 100; k++) {
        steady[k] = item(1, 100);
        assert_int_equal(admission_push(a, &steady[k], 0, 1, NULL), STATUS_OK);
    }
    for (int k = 0; k < 50; k++) {
        admission_start(a, &steady[k], 100);
        admission_finish(a, &steady[k]);
    }
    for (int k = 0; k < 50; k++) {
        back[k] = item(2, 100);
        assert_int_equal(admission_push(a, &back[k], 0, 2, NULL), STATUS_OK);
    }
    int n_back = 0, n_steady = 0; /* of what is started from now on */
    for (int k = 0; k < 60; k++) {
        struct admission_item *next = admission_next(a);
        n_back += next->client == 2;
        n_steady += next->client == 1;
        assert_in_range(n_back - n_steady + 2, 0, 4);
        admission_start(a, next, 100);
        admission_finish(a, next);
    }
    admission_destroy(a);
}

static void a_short_absence_does_not_forget_what_was_served(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item first = item(2, 10), mine = item(1, 10), other = item(3, 10);
    assert_int_equal(admission_push(a, &first, 0, 1, NULL), STATUS_OK); /* holds the level where it is */
    serve(a, 1, 5000, 10);
    assert_int_equal(admission_push(a, &mine, 0, 2, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &other, 0, 3, NULL), STATUS_OK);
    assert_int_equal(admission_position(a, &other), 2);
    assert_int_equal(admission_position(a, &mine), 3);
    admission_destroy(a);
}

static void the_table_forgets_only_whom_it_has_no_room_for(void **state)
{
    (void)state;
    struct admission *a = with(&few);
    struct admission_item first = item(1, 1), i, other;
    assert_int_equal(admission_push(a, &first, 0, 1, NULL), STATUS_OK);
    for (int k = 0; k < 3; k++)
        serve(a, 7, 90, 10);
    for (uint64_t c = 100; c < 4000; c++)
        serve(a, c, 1, 1);
    for (int round = 0; round < 2; round++) {
        i = item(7, 1);
        other = item(9 + (uint64_t)round, 1);
        assert_int_equal(admission_push(a, &i, 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_push(a, &other, 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_position(a, &i), round == 0 ? 3 : 2); /* the second time as if it were new */
        admission_remove(a, &i);
        admission_remove(a, &other);
        for (uint64_t c = 10000; round == 0 && c < 20000; c++)
            serve(a, c, 1, 1);
        assert_int_equal(admission_stats(a).n_clients, 1);
    }
    admission_destroy(a);
}

static void newcomers_without_end_starve_nobody(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    static struct admission_item fresh[4000];
    struct admission_item first = item(1, 10), mine = item(2, 100);
    assert_int_equal(admission_push(a, &first, 0, 1, NULL), STATUS_OK);
    serve(a, 2, 500, 10); /* client 2 is far above those who wait */
    assert_int_equal(admission_push(a, &mine, 0, 1, NULL), STATUS_OK);
    uint32_t n = 0;
    for (struct admission_item *next; (next = admission_next(a)) != &mine; n++) {
        assert_in_range(n, 0, ARRAY_LEN(fresh) - 4);
        for (uint32_t k = 0; k < 2 && n < 1000; k++) { /* always somebody new waits */
            fresh[2 * n + k] = item(100 + 2 * n + k, 100);
            if (admission_stats(a).n_waiting < 12)
                assert_int_equal(admission_push(a, &fresh[2 * n + k], 0, 1, NULL), STATUS_OK);
        }
        admission_start(a, next, 100);
        admission_charge(a, next, 10);
        admission_finish(a, next);
    }
    assert_in_range(n, 1, 150);
    admission_destroy(a);
}

static void new_clients_come_in_order_of_arrival(void **state) /* FC-06 */
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item i[20], *running = NULL;
    int n_started = 0;
    for (int64_t t = 0; n_started < 20; t++) { /* one every 50 ms, one slot, 90 ms each; answers are charged on the way */
        if (t % 50 == 0 && t / 50 < 20) {
            i[t / 50] = item(1000 + 7919ull * (uint64_t)t, 512);
            assert_int_equal(admission_push(a, &i[t / 50], 1, t * NS_PER_MS + 1, NULL), STATUS_OK);
        }
        if (running && t % 90 < 32)
            admission_charge(a, running, 1);
        if (running && t % 90 == 89) {
            admission_finish(a, running);
            admission_answered(a, 32);
            running = NULL;
        }
        if (!running && (running = admission_next(a)) != NULL) {
            assert_ptr_equal(running, &i[n_started++]);
            admission_start(a, running, 512);
        }
    }
    admission_destroy(a);
}

static void batch_gets_a_small_part_and_is_never_starved(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    static struct admission_item day[900], night[100];
    for (int k = 0; k < 900; k++) {
        day[k] = item(1 + (uint64_t)k % 3, 90);
        assert_int_equal(admission_push(a, &day[k], 0, 1, NULL), STATUS_OK);
    }
    for (int k = 0; k < 100; k++) {
        night[k] = item(1, 90);
        night[k].batch = 1;
        assert_int_equal(admission_push(a, &night[k], 0, 1, NULL), STATUS_OK);
    }
    assert_int_equal(admission_position(a, &night[0]), 9);
    int n[2] = {0}, last = 0;
    for (int k = 0; k < 900; k++) {
        struct admission_item *next = admission_next(a);
        n[next->batch]++;
        if (next->batch) {
            assert_in_range(k - last, 5, 10);
            last = k;
        }
        admission_start(a, next, 90);
        admission_charge(a, next, 10);
        admission_finish(a, next);
    }
    assert_in_range(n[1], 98, 102);
    admission_destroy(a);
}

static void a_single_batch_request_does_not_pass_those_in_front_of_it(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item day[3] = {item(1, 50), item(2, 50), item(3, 50)}, night = item(4, 50);
    night.batch = 1;
    assert_int_equal(admission_push(a, &night, 0, 1, NULL), STATUS_OK);
    for (int k = 0; k < 3; k++)
        assert_int_equal(admission_push(a, &day[k], 0, 2, NULL), STATUS_OK);
    for (int k = 0; k < 3; k++) {
        assert_ptr_equal(admission_next(a), &day[k]);
        admission_start(a, &day[k], 50);
    }
    assert_ptr_equal(admission_next(a), &night);
    admission_destroy(a);
}

static void a_parked_request_stands_at_the_head_of_its_clients_queue(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 2, .queue_tokens = 200, .queue_wait_ns = 10 * NS_PER_S, .n_slots = 3,
                                 .client_queue = 2};
    struct admission *a = with(&l);
    struct admission_item i[5] = {item(1, 50), item(1, 50), item(1, 50), item(1, 50), item(1, 50)}, more = item(2, 1);
    i[1].deadline_ns = 40 * NS_PER_S;
    for (int k = 0; k < 3; k++) {
        assert_int_equal(admission_push(a, &i[k], 1, k + 1, NULL), STATUS_OK);
        admission_start(a, &i[k], 50);
    }
    for (int k = 3; k < 5; k++)
        assert_int_equal(admission_push(a, &i[k], 0, k + 1, NULL), STATUS_OK);
    admission_park(a, &i[1], NS_PER_S); /* in any order */
    admission_park(a, &i[2], NS_PER_S);
    admission_park(a, &i[0], 2 * NS_PER_S);
    assert_int_equal(admission_stats(a).n_waiting, 5);
    assert_int_equal(admission_stats(a).n_running, 0);
    assert_int_equal(admission_push(a, &more, 0, 3 * NS_PER_S, NULL), STATUS_QUEUE_FULL); /* two first admissions wait */
    assert_int_equal(admission_deadline(a), 10 * NS_PER_S + 4);                           /* not that of a parked one */
    admission_remove(a, &i[3]);
    admission_remove(a, &i[4]);
    assert_int_equal(admission_deadline(a), 40 * NS_PER_S); /* its own stays */
    for (int k = 0; k < 3; k++) {
        assert_ptr_equal(admission_next(a), &i[k]);
        admission_start(a, &i[k], 50);
    }
    admission_destroy(a);
}

static void the_other_answers_to_a_request_that_was_let_in_pass_the_bounds_of_the_queue(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 2, .queue_tokens = 100, .queue_wait_ns = 10 * NS_PER_S, .n_slots = 1,
                                 .client_queue = 1};
    struct admission *a = with(&l);
    struct admission_item first = item(1, 90), others[3] = {item(1, 90), item(1, 90), item(1, 90)}, own = item(1, 1), more = item(2, 1);
    assert_int_equal(admission_push(a, &first, 1, 1, NULL), STATUS_OK);
    admission_start(a, &first, 90);
    for (int k = 0; k < 3; k++) {
        others[k].sibling = 1;
        assert_int_equal(admission_push(a, &others[k], 0, 2 + k, NULL), STATUS_OK);
    }
    assert_int_equal(admission_push(a, &own, 0, 5, NULL), STATUS_CLIENT_LIMIT); /* they wait like all others, and count */
    assert_int_equal(admission_push(a, &more, 0, 5, NULL), STATUS_QUEUE_FULL);
    admission_finish(a, &first);
    for (int k = 0; k < 3; k++) {
        assert_ptr_equal(admission_next(a), &others[k]);
        admission_start(a, &others[k], 90);
        admission_finish(a, &others[k]);
    }
    admission_destroy(a);
}

static void reading_again_after_a_preemption_is_not_charged(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item one[2] = {item(1, 100), item(1, 100)}, two[2] = {item(2, 105), item(2, 105)};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(admission_push(a, &one[k], 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_push(a, &two[k], 0, 1, NULL), STATUS_OK);
    }
    admission_start(a, &one[0], 100);
    admission_start(a, &two[0], 105);
    for (int k = 0; k < 10; k++) {
        admission_park(a, &one[0], 2);
        assert_ptr_equal(admission_next(a), &one[0]);
        admission_start(a, &one[0], 100);
    }
    assert_ptr_equal(admission_next(a), &one[1]);
    admission_charge(a, &one[0], 100); /* unless its owner says so */
    assert_ptr_equal(admission_next(a), &two[1]);
    admission_destroy(a);
}

static void a_cancelled_parked_request_gives_back_what_it_prepaid(void **state)
{
    (void)state;
    struct admission *a = with(&many);
    struct admission_item one[2] = {item(1, 10), item(1, 10)}, two[2] = {item(2, 10), item(2, 10)};
    one[0].n_answer_max = 5000;
    two[0].n_answer_max = 100;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(admission_push(a, &one[k], 0, 1, NULL), STATUS_OK);
        assert_int_equal(admission_push(a, &two[k], 0, 1, NULL), STATUS_OK);
    }
    admission_start(a, &one[0], 10);
    admission_start(a, &two[0], 10);
    admission_park(a, &one[0], 2);
    assert_int_equal(admission_position(a, &two[1]), 1);
    admission_remove(a, &one[0]);
    assert_ptr_equal(admission_next(a), &one[1]);
    admission_destroy(a);
}

static void those_whose_client_has_all_its_slots_rank_last(void **state)
{
    (void)state;
    struct admission_limits l = many;
    l.client_slots = 2;
    struct admission *a = with(&l);
    struct admission_item mine[4] = {item(1, 1), item(1, 1), item(1, 1), item(1, 1)}, other[2] = {item(2, 9), item(2, 9)};
    for (int k = 0; k < 4; k++)
        assert_int_equal(admission_push(a, &mine[k], 0, 1, NULL), STATUS_OK);
    for (int k = 0; k < 2; k++)
        assert_int_equal(admission_push(a, &other[k], 0, 1, NULL), STATUS_OK);
    struct admission_item *const order[] = {&mine[0], &other[0], &mine[1], &other[1], &mine[2], &mine[3]};
    for (uint32_t k = 0; k < 6; k++)
        assert_int_equal(admission_position(a, order[k]), k + 1);
    admission_destroy(a);
}

static void a_held_client_does_not_keep_a_newcomer_out_of_a_free_slot(void **state)
{
    (void)state;
    struct admission_limits l = few;
    l.queue_requests = 1;
    l.client_slots = 1;
    struct admission *a = with(&l);
    struct admission_item mine[3] = {item(1, 1), item(1, 1), item(1, 1)}, other = item(2, 1);
    assert_int_equal(admission_push(a, &mine[0], 1, 1, NULL), STATUS_OK);
    admission_start(a, &mine[0], 1);
    assert_int_equal(admission_push(a, &mine[1], 1, 1, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &mine[2], 1, 1, NULL), STATUS_QUEUE_FULL); /* cannot start, whatever slots are free */
    assert_int_equal(admission_push(a, &other, 1, 1, NULL), STATUS_OK);
    assert_ptr_equal(admission_next(a), &other);
    admission_destroy(a);
}

/* Slots that free one place of a full queue every second; a new one fills it at once. */
static struct admission *departing_every_second(struct admission_item *i, uint32_t n, int64_t *now)
{
    struct admission *a = with(&few);
    for (uint32_t k = 0; k < n; k++) {
        i[k] = item(k + 1, 5);
        *now += NS_PER_S;
        if (k >= 3)
            admission_expired(a, *now); /* tells the time, as the engine does in every turn */
        if (k >= 3) {
            admission_start(a, &i[k - 3], 5);
            admission_finish(a, &i[k - 3]);
        }
        assert_int_equal(admission_push(a, &i[k], 0, *now, NULL), STATUS_OK);
    }
    return a;
}

static void retry_after_is_the_time_until_a_place_is_free(void **state)
{
    (void)state;
    struct admission_item i[40], more;
    struct error err;
    int64_t now = 0;
    struct admission *a = departing_every_second(i, 40, &now);
    for (int k = 1; k <= 5; k++) { /* each of them is told a departure of its own */
        more = item(500, 5);
        assert_int_equal(admission_push(a, &more, 0, now + 1, &err), STATUS_QUEUE_FULL);
        assert_in_range(err.retry_after_s, k, k + 2);
    }
    assert_in_range(admission_retry_after_s(a), 6, 8);
    for (int k = 0; k < 200; k++)
        (void)admission_push(a, &more, 0, now + 1, &err);
    assert_int_equal(err.retry_after_s, 60);
    for (int k = 0; k < 3; k++)
        admission_remove(a, &i[37 + k]);
    assert_int_equal(admission_push(a, &i[0], 0, now + 1, &err), STATUS_OK); /* places are left: no promise is open */
    for (int k = 1; k < 3; k++)
        assert_int_equal(admission_push(a, &i[k], 0, now + 1, &err), STATUS_OK);
    assert_int_equal(admission_push(a, &more, 0, now + 1, &err), STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 1, 4);
    admission_destroy(a);
}

static void an_overdue_departure_is_not_expected_at_once(void **state)
{
    (void)state;
    struct admission_item i[40], more = item(500, 5);
    struct error err;
    int64_t now = 0;
    struct admission *a = departing_every_second(i, 40, &now);
    assert_int_equal(admission_push(a, &more, 0, now + 9 * NS_PER_S, &err), STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 7, 10);
    admission_destroy(a);
}

static void before_any_departure_retry_after_is_work_over_rate(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 1, .queue_tokens = 1000000, .queue_wait_ns = 600 * NS_PER_S, .n_slots = 4};
    struct admission *a = with(&l);
    struct admission_item i = item(1, 900), more = item(2, 900);
    i.n_answer_max = more.n_answer_max = 400;
    struct error err;
    assert_int_equal(admission_retry_after_s(a), 1);
    for (int64_t t = 1; t < 50; t++)
        admission_served(a, 10, t * 100 * NS_PER_MS); /* 100 tokens a second */
    assert_int_equal(admission_mean_answer(a), 0);
    admission_answered(a, 100);
    assert_int_equal(admission_mean_answer(a), 100);
    assert_int_equal(admission_push(a, &i, 0, 5 * NS_PER_S, NULL), STATUS_OK);
    assert_int_equal(admission_push(a, &more, 0, 5 * NS_PER_S, &err), STATUS_QUEUE_FULL);
    assert_in_range(err.retry_after_s, 10, 20); /* 1,000 tokens */
    admission_destroy(a);
}

static void a_client_over_its_limit_is_told_when_its_own_place_is_free(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 100, .queue_tokens = 100000, .queue_wait_ns = 600 * NS_PER_S, .n_slots = 4,
                                 .client_queue = 2};
    struct admission *a = with(&l);
    static struct admission_item others[8][2], flow[60];
    int64_t now = 0;
    for (int k = 0; k < 60; k++) { /* departures one second apart */
        flow[k] = item(99, 5);
        admission_expired(a, now += NS_PER_S);
        if (k >= 2) {
            admission_start(a, &flow[k - 2], 5);
            admission_finish(a, &flow[k - 2]);
        }
        assert_int_equal(admission_push(a, &flow[k], 0, now, NULL), STATUS_OK);
    }
    for (uint64_t c = 0; c < 8; c++)
        for (int k = 0; k < 2; k++) {
            others[c][k] = item(c + 1, 5);
            assert_int_equal(admission_push(a, &others[c][k], 0, now, NULL), STATUS_OK);
        }
    struct admission_item more = item(1, 5);
    struct error err;
    assert_int_equal(admission_push(a, &more, 0, now, &err), STATUS_CLIENT_LIMIT);
    assert_in_range(err.retry_after_s, 9, 14); /* nine clients take turns */
    admission_destroy(a);
}

static void a_hundred_thousand_may_wait(void **state) /* a walk in any single operation would take hours: the time limit tells */
{
    (void)state;
    enum { N = 100000, CLIENTS = 5000 };
    struct admission_limits l = {.queue_requests = N, .queue_tokens = 1ull << 40, .queue_wait_ns = 600 * NS_PER_S, .n_slots = 64};
    struct admission *a = with(&l);
    struct admission_item *i = calloc(N, sizeof *i);
    for (uint64_t k = 0; k < N; k++) {
        i[k] = item(rand_at(5, k) % CLIENTS, 100 + (uint32_t)(rand_at(6, k) % 400));
        i[k].batch = k % 16 == 0;
        i[k].deadline_ns = 500 * NS_PER_S + (int64_t)(rand_at(7, k) % (100 * NS_PER_S));
        assert_int_equal(admission_push(a, &i[k], 0, (int64_t)k + 1, NULL), STATUS_OK);
    }
    const char *why;
    assert_true(admission__check(a, &why));
    assert_int_equal(admission_position(a, admission_next(a)), 1);
    for (uint64_t k = 0; k < N / 2; k++) {
        struct admission_item *next = admission_next(a);
        admission_start(a, next, next->n_prompt);
        for (int t = 0; t < 12; t++)
            admission_charge(a, next, 1);
        admission_finish(a, next);
        admission_position(a, next);
    }
    assert_true(admission__check(a, &why));
    uint32_t n = 0;
    for (struct admission_item *late; (late = admission_expired(a, 1000 * NS_PER_S)) != NULL; n++)
        admission_remove(a, late);
    assert_int_equal(n, N / 2);
    assert_true(admission__check(a, &why));
    assert_int_equal(admission_stats(a).n_clients, 0);
    admission_destroy(a);
    free(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_that_were_served_alike_come_in_order_of_arrival),
        cmocka_unit_test(a_full_queue_refuses_with_a_time_to_come_back),
        cmocka_unit_test(too_many_waiting_tokens_refuse),
        cmocka_unit_test(a_prompt_larger_than_the_bound_waits_alone),
        cmocka_unit_test(what_can_start_at_once_needs_no_queue),
        cmocka_unit_test(a_client_over_its_limits_is_refused_or_passed_over),
        cmocka_unit_test(deadlines_pass_one_by_one),
        cmocka_unit_test(who_was_served_less_is_next),
        cmocka_unit_test(cached_tokens_cost_nothing_and_answers_do),
        cmocka_unit_test(what_was_prepaid_and_not_used_comes_back),
        cmocka_unit_test(who_comes_back_is_lifted_to_those_who_wait),
        cmocka_unit_test(a_short_absence_does_not_forget_what_was_served),
        cmocka_unit_test(the_table_forgets_only_whom_it_has_no_room_for),
        cmocka_unit_test(newcomers_without_end_starve_nobody),
        cmocka_unit_test(new_clients_come_in_order_of_arrival),
        cmocka_unit_test(batch_gets_a_small_part_and_is_never_starved),
        cmocka_unit_test(a_single_batch_request_does_not_pass_those_in_front_of_it),
        cmocka_unit_test(a_parked_request_stands_at_the_head_of_its_clients_queue),
        cmocka_unit_test(the_other_answers_to_a_request_that_was_let_in_pass_the_bounds_of_the_queue),
        cmocka_unit_test(reading_again_after_a_preemption_is_not_charged),
        cmocka_unit_test(a_cancelled_parked_request_gives_back_what_it_prepaid),
        cmocka_unit_test(those_whose_client_has_all_its_slots_rank_last),
        cmocka_unit_test(a_held_client_does_not_keep_a_newcomer_out_of_a_free_slot),
        cmocka_unit_test(retry_after_is_the_time_until_a_place_is_free),
        cmocka_unit_test(an_overdue_departure_is_not_expected_at_once),
        cmocka_unit_test(before_any_departure_retry_after_is_work_over_rate),
        cmocka_unit_test(a_client_over_its_limit_is_told_when_its_own_place_is_free),
        cmocka_unit_test(a_hundred_thousand_may_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
