/* Built with ADMISSION_MUTANT_FCFS: no client's counter counts. One flooding client must then take what is the others', or the
 * test that forbids it shows nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/queue_sim.h"

static void without_counters_the_flood_test_fails(void **state)
{
    (void)state;
    for (uint32_t n_slots = 1; n_slots <= 16; n_slots *= 4)
        assert_true(queue_sim_flood(n_slots, 1) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_counters_the_flood_test_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
