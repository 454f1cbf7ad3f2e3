#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coordinator/slots.h"

static void slots_full_table_is_busy_and_leaves_the_ref_alone(void **state)
{
    (void)state;
    struct slots *s;
    struct slot_ref ref, untouched = {.slot = 77, .seq = 77};
    assert_int_equal(slots_create(1, &s), STATUS_OK);
    assert_int_equal(slots_acquire(s, &ref), STATUS_OK);
    assert_int_equal(slots_acquire(s, &untouched), STATUS_SLOTS_BUSY);
    assert_int_equal(untouched.slot, 77);
    slots_destroy(s);
}

static void slots_release_twice_is_refused_and_spares_the_successor(void **state)
{
    (void)state;
    struct slots *s;
    struct slot_ref first, next;
    assert_int_equal(slots_create(1, &s), STATUS_OK);
    assert_int_equal(slots_acquire(s, &first), STATUS_OK);
    assert_int_equal(slots_release(s, first), STATUS_OK);
    assert_int_equal(slots_acquire(s, &next), STATUS_OK);
    assert_int_not_equal(first.seq, next.seq);
    assert_int_equal(slots_release(s, first), STATUS_SLOT_STALE);
    assert_int_equal(slots_count(s, SLOT_READING), 1);
    assert_int_equal(slots_begin_decoding(s, next), STATUS_OK);
    assert_int_equal(slots_begin_decoding(s, next), STATUS_SLOT_STALE);
    slots_destroy(s);
}

static void slots_tell_the_state_and_the_sequence_of_each(void **state)
{
    (void)state;
    struct slots *s;
    struct slot_ref a, b;
    uint64_t seq = 99;
    assert_int_equal(slots_create(3, &s), STATUS_OK);
    assert_int_equal(slots_acquire(s, &a), STATUS_OK);
    assert_int_equal(slots_acquire(s, &b), STATUS_OK);
    assert_int_equal(slots_begin_decoding(s, b), STATUS_OK);
    assert_string_equal(slot_state_name(slots_at(s, 0, &seq)), "reading");
    assert_int_equal(seq, a.seq);
    assert_string_equal(slot_state_name(slots_at(s, 1, &seq)), "decoding");
    assert_string_equal(slot_state_name(slots_at(s, 2, &seq)), "free");
    assert_int_equal(seq, 0);
    assert_int_equal(slots_release(s, (struct slot_ref){.slot = 7, .seq = 1}), STATUS_SLOT_STALE);
    slots_destroy(s);
}

static void slots_sums_hold_over_random_moves(void **state)
{
    (void)state;
    enum { N = 7, STEPS = 20000 };
    struct slots *s;
    struct slot_ref held[N] = {{0}};
    uint32_t seed = 1;
    uint64_t highest = 0;
    assert_int_equal(slots_create(N, &s), STATUS_OK);
    for (int i = 0; i < STEPS; i++) {
        seed = seed * 1664525u + 1013904223u;
        struct slot_ref *ref = &held[(seed >> 16) % N];
        if (ref->seq == 0) {
            assert_int_equal(slots_acquire(s, ref), STATUS_OK);
            assert_true(ref->seq > highest);
            highest = ref->seq;
        } else if (seed >> 31) {
            assert_int_equal(slots_release(s, *ref), STATUS_OK);
            ref->seq = 0;
        } else {
            (void)slots_begin_decoding(s, *ref);
        }
        const char *why;
        if (!slots__check(s, &why))
            fail_msg("step %d: %s", i, why);
        assert_int_equal(slots_count(s, SLOT_FREE) + slots_count(s, SLOT_READING) + slots_count(s, SLOT_DECODING), N);
    }
    slots_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_full_table_is_busy_and_leaves_the_ref_alone),
        cmocka_unit_test(slots_release_twice_is_refused_and_spares_the_successor),
        cmocka_unit_test(slots_tell_the_state_and_the_sequence_of_each),
        cmocka_unit_test(slots_sums_hold_over_random_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
