/* A million blocks and every slot that there can be: nothing is allocated after create, and no call gets slower. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/rand.h"
#include "coordinator/blocks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    puts("skipped: a sanitizer has malloc in its hands");
    return 77;
}
#else

enum { N_BLOCKS = 1 << 20, N_SLOTS = SLOTS_MAX, KV_BLOCK = 2, CONTEXT = 1024 };

static int counting, n_allocations;

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);

void *malloc(size_t n)
{
    n_allocations += counting;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    n_allocations += counting;
    return __libc_calloc(n, size);
}

static uint64_t item(const void *ctx, uint32_t position)
{
    return position < 16 ? position : *(const uint64_t *)ctx << 32 | position; /* all begin with the same four blocks */
}

struct load {
    struct blocks *b;
    uint64_t next_seq, text[N_SLOTS], n_ops;
    struct slot_ref ref[N_SLOTS];
};

/* Every slot opens, reads some 600 positions in two pieces, and is closed; a third of the texts come again. */
static void run_round(struct load *l, uint64_t round, uint32_t n_slots)
{
    uint32_t n_cached, n_new;
    for (uint32_t s = 0; s < n_slots; s++) {
        l->ref[s] = (struct slot_ref){s, ++l->next_seq};
        l->text[s] = s % 3 ? round * N_SLOTS + s : s;
        uint32_t n = 500 + (uint32_t)(rand_at(5, l->text[s]) % 200);
        const struct block_chain c = {.item = item, .ctx = &l->text[s], .n = n};
        assert_true(blocks_can_open(l->b, &c, blocks_needed(l->b, n + 1)));
        assert_int_equal(blocks_open(l->b, l->ref[s], &c, blocks_needed(l->b, n + 1), &n_cached), STATUS_OK);
        assert_int_equal(blocks_grow(l->b, l->ref[s], n / 2, &n_new), STATUS_OK);
        assert_int_equal(blocks_grow(l->b, l->ref[s], n, &n_new), STATUS_OK);
        blocks_commit(l->b, l->ref[s], &c);
        l->n_ops += 2 * blocks_needed(l->b, n);
        if (s >= n_slots / 2)
            assert_int_equal(blocks_close(l->b, l->ref[s - n_slots / 2], s), STATUS_OK);
        blocks_retire(l->b, s > 4 ? s - 4 : 0);
    }
    for (uint32_t s = n_slots - n_slots / 2; s < n_slots; s++)
        assert_int_equal(blocks_close(l->b, l->ref[s], N_SLOTS), STATUS_OK);
    blocks_retire(l->b, N_SLOTS);
}

static void a_million_blocks_and_all_slots_work_without_an_allocation(void **state)
{
    (void)state;
    const struct blocks_options o = {.n_blocks = N_BLOCKS, .n_slots = N_SLOTS, .context = CONTEXT, .kv_block = KV_BLOCK};
    struct load *l = calloc(1, sizeof *l);
    const char *why;
    assert_int_equal(blocks_create(&o, &l->b), STATUS_OK);
    counting = 1;
    clock_t start = clock();
    run_round(l, 0, N_SLOTS);
    run_round(l, 1, N_SLOTS / 2);
    double ns = (double)(clock() - start) * (1e9 / CLOCKS_PER_SEC);
    counting = 0;
    struct blocks_count n = blocks_counts(l->b);
    print_message("%llu block operations of %.0f ns each; %u cached, %llu evicted\n", (unsigned long long)l->n_ops,
                  ns / (double)l->n_ops, n.cached, (unsigned long long)n.evicted);
    assert_int_equal(n_allocations, 0);
    assert_true(n.evicted > 100000);
    assert_int_equal(n.free + n.cached, N_BLOCKS);
    if (!blocks__check(l->b, &why))
        fail_msg("%s", why);
    blocks_destroy(l->b);
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_blocks_and_all_slots_work_without_an_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
