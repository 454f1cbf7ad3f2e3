/* Built with blocks whose one rule is switched off (BLOCKS_MUTANT_NO_RETIRE or BLOCKS_MUTANT_NO_SALT): the model test must see
 * that rule broken, or it shows nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/coordinator/blocks_model.h"

#if defined(BLOCKS_MUTANT_NO_RETIRE)
static void without_retire_ticks_blocks_are_handed_out_too_early(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint32_t n;
        assert_true(blocks_model_early(seed, 4000, &n) > 0);
    }
}
#elif defined(BLOCKS_MUTANT_NO_SALT)
static void without_salts_a_hit_holds_what_another_tenant_read(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct blocks_model_run r = {.seed = seed, .hash_bits = 64, .n_steps = 600, .n_blocks = 8 + seed % 50};
        n += blocks_model_play(&r) == blocks_model_foreign;
    }
    assert_true(n > 15); /* of 20 */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(BLOCKS_MUTANT_NO_RETIRE)
        cmocka_unit_test(without_retire_ticks_blocks_are_handed_out_too_early),
#elif defined(BLOCKS_MUTANT_NO_SALT)
        cmocka_unit_test(without_salts_a_hit_holds_what_another_tenant_read),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
