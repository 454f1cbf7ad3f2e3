/* deploy/placement: stages of one host get cores of their own, or none are pinned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>

#include "deploy/placement.h"

static int n_usable(cpu_set_t *set)
{
    CPU_ZERO(set);
    assert_int_equal(sched_getaffinity(0, sizeof *set, set), 0);
    return CPU_COUNT(set);
}

static void placement_gives_each_stage_cores_of_its_own(void **state)
{
    (void)state;
    cpu_set_t allowed;
    int n = n_usable(&allowed);
    for (int n_local = 1; n_local <= n && n_local <= 8; n_local++) {
        cpu_set_t taken;
        int total = 0;
        CPU_ZERO(&taken);
        for (int local = 0; local < n_local; local++) {
            int cores[MAX_CORES], n_cores, threads = placement_cores(local, n_local, -1, cores, &n_cores);
            assert_int_equal(threads, n_cores);
            assert_true(threads >= 1);
            for (int i = 0; i < n_cores; i++) {
                assert_true(CPU_ISSET((size_t)cores[i], &allowed));
                assert_false(CPU_ISSET((size_t)cores[i], &taken));
                CPU_SET((size_t)cores[i], &taken);
            }
            total += n_cores;
        }
        assert_int_equal(total, n < MAX_CORES ? n : MAX_CORES); /* none lies idle */
    }
}

static void placement_pins_nothing_where_threads_or_stages_are_more_than_cores(void **state)
{
    (void)state;
    cpu_set_t allowed;
    int n = n_usable(&allowed), cores[MAX_CORES], n_cores;
    assert_int_equal(placement_cores(0, 1, n + 1, cores, &n_cores), n + 1);
    assert_int_equal(n_cores, 0);
    for (int local = 0; local < 2 * n; local++) {
        assert_int_equal(placement_cores(local, 2 * n, -1, cores, &n_cores), 1);
        assert_int_equal(n_cores, 0);
    }
}

static void placement_keeps_to_the_threads_that_were_asked_for(void **state)
{
    (void)state;
    int cores[MAX_CORES], n_cores;
    assert_int_equal(placement_cores(0, 1, 1, cores, &n_cores), 1);
    assert_int_equal(n_cores, 1);
}

static void placement_clear_undoes_the_binding_of_mpirun(void **state)
{
    (void)state;
    cpu_set_t all, one, after;
    int n = n_usable(&all), first = 0;
    while (!CPU_ISSET((size_t)first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET((size_t)first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    placement_clear();
    assert_true(n_usable(&after) >= n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_gives_each_stage_cores_of_its_own),
        cmocka_unit_test(placement_pins_nothing_where_threads_or_stages_are_more_than_cores),
        cmocka_unit_test(placement_keeps_to_the_threads_that_were_asked_for),
        cmocka_unit_test(placement_clear_undoes_the_binding_of_mpirun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
