#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

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

static void first_come_is_first_served(void **state)
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

static void retry_after_is_queued_work_over_the_measured_rate(void **state)
{
    (void)state;
    struct admission_limits l = {.queue_requests = 100, .queue_tokens = 1000000, .queue_wait_ns = NS_PER_S, .n_slots = 4};
    struct admission *a = with(&l);
    struct admission_item i = item(1, 900);
    i.n_answer_max = 400;
    assert_int_equal(admission_retry_after_s(a), 1);
    for (int64_t t = 1; t < 50; t++)
        admission_served(a, 10, t * 100 * NS_PER_MS); /* 100 tokens a second */
    admission_answered(a, 100);
    assert_int_equal(admission_push(a, &i, 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_retry_after_s(a), 10);
    struct admission_item huge = item(1, 90000);
    assert_int_equal(admission_push(a, &huge, 0, 1, NULL), STATUS_OK);
    assert_int_equal(admission_retry_after_s(a), 60);
    admission_destroy(a);
}

static void sums_hold_over_random_comings_and_goings(void **state)
{
    (void)state;
    enum { N = 60, STEPS = 20000 };
    struct admission_limits l = {.queue_requests = 20, .queue_tokens = 400, .queue_wait_ns = 50, .n_slots = 4,
                                 .client_slots = 2, .client_queue = 6};
    struct admission *a = with(&l);
    static struct admission_item i[N];
    uint32_t n_running = 0;
    for (int step = 0; step < STEPS; step++) {
        uint64_t r = rand_at(11, (uint64_t)step);
        struct admission_item *x = &i[r % N], *next;
        if (x->running) {
            admission_finish(a, x);
            n_running--;
        } else if (list_linked(&x->link)) {
            admission_remove(a, x);
        } else {
            *x = item(r >> 8 & 7, (uint32_t)(r >> 16 & 63));
            x->resumed = (r >> 24 & 15) == 0;
            (void)admission_push(a, x, n_running < 4, step + 1, NULL);
        }
        while (n_running < l.n_slots && (next = admission_next(a)) != NULL && (r >> 32 & 1)) {
            admission_start(a, next, 5);
            n_running++;
        }
        for (struct admission_item *late; (late = admission_expired(a, step + 1)) != NULL;)
            admission_remove(a, late);
        const char *why;
        if (!admission__check(a, &why))
            fail_msg("step %d: %s", step, why);
        assert_int_equal(admission_stats(a).n_running, n_running);
    }
    admission_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_come_is_first_served),
        cmocka_unit_test(a_full_queue_refuses_with_a_time_to_come_back),
        cmocka_unit_test(too_many_waiting_tokens_refuse),
        cmocka_unit_test(what_can_start_at_once_needs_no_queue),
        cmocka_unit_test(a_client_over_its_limits_is_refused_or_passed_over),
        cmocka_unit_test(deadlines_pass_one_by_one),
        cmocka_unit_test(retry_after_is_queued_work_over_the_measured_rate),
        cmocka_unit_test(sums_hold_over_random_comings_and_goings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
