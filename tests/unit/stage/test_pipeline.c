/* S workers in one process, all kinds of links, fake compute: the text is the reference's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rand.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/pipeline.h"

enum { N_LAYERS = 8, N_REQUESTS = 12, MAX_PROMPT = 150, N_OUT = 24 };

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    return fake_compute_create(&(struct fake_options){.stage = stage, .script_path = ctx}, out, err);
}

struct batch {
    uint32_t prompt[N_REQUESTS][MAX_PROMPT];
    int32_t got[N_REQUESTS][N_OUT], want[N_REQUESTS][N_OUT];
    struct pipeline_request r[N_REQUESTS];
};

static void fill_batch(struct batch *b, uint64_t seed)
{
    static const uint32_t pieces[] = {0, 1, 7, 64};
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t n = 1 + (uint32_t)(rand_at(seed, i) % MAX_PROMPT);
        for (uint32_t j = 0; j < n; j++)
            b->prompt[i][j] = (uint32_t)(rand_at(seed + i, j) % FAKE_VOCAB);
        b->r[i] = (struct pipeline_request){.prompt = b->prompt[i],
                                            .n_prompt = n,
                                            .n_out = 1 + (uint32_t)(rand_at(seed, 1000 + i) % N_OUT),
                                            .piece = pieces[i % 4],
                                            .start_tick = i,
                                            .sampler = pipeline_greedy,
                                            .out = b->got[i]};
        if (i % 3 == 0) {
            b->r[i].sampler.temperature = 1;
            b->r[i].sampler.seed = seed + i;
        }
        fake_reference(N_LAYERS, &b->r[i].sampler, b->prompt[i], n, b->want[i], b->r[i].n_out);
    }
}

static void check_batch(const struct batch *b)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(b->r[i].n_done, b->r[i].n_out);
        assert_memory_equal(b->got[i], b->want[i], b->r[i].n_out * sizeof(int32_t));
    }
}

static void run_all(enum pipeline_links links)
{
    struct batch *b = calloc(1, sizeof *b);
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++) {
        struct pipeline *p;
        struct error err = {0};
        const struct pipeline_options o = {
            .n_stages = n_stages, .links = links, .create = create_fake, .slots = 4, .max_rows = 96, .n_layers = N_LAYERS};
        if (pipeline_open(&o, &p, &err) != STATUS_OK)
            fail_msg("%u stages: %s", n_stages, err.message);
        for (uint64_t round = 0; round < 2; round++) {
            fill_batch(b, 100 * n_stages + round);
            if (pipeline_generate(p, b->r, N_REQUESTS, &err) != STATUS_OK)
                fail_msg("%u stages: %s", n_stages, err.message);
            check_batch(b);
        }
        pipeline_close(p);
    }
    free(b);
}

static void stages_joined_in_memory_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_MEM);
}

static void stages_joined_by_unix_sockets_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_UNIX);
}

static void stages_joined_by_tcp_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_TCP);
}

static void stages_joined_by_encrypted_links_give_the_reference_text(void **state)
{
    (void)state;
    run_all(PIPELINE_TLS);
}

/* Prompts that begin alike, some of another tenant, in a pool that holds few of them: what was kept from earlier ones is taken
 * up, by several at a time and while its owner runs, and changes no id. */
static void fill_shared_batch(struct batch *b, uint64_t seed)
{
    fill_batch(b, seed);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct pipeline_request *r = &b->r[i];
        uint32_t family = (uint32_t)(rand_at(seed, 500 + i) % 3), same = (uint32_t)(rand_at(seed, 600 + i) % r->n_prompt);
        for (uint32_t j = 0; j < same; j++)
            b->prompt[i][j] = (uint32_t)(rand_at(77 + family, j) % FAKE_VOCAB);
        r->cache = i % 6 != 5;
        r->salt = i % 4 == 3;
        fake_reference(N_LAYERS, &r->sampler, b->prompt[i], r->n_prompt, b->want[i], r->n_out);
    }
}

static void a_sequence_that_opens_on_a_cached_prefix_gives_the_reference_text(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {16, 32, 5, 24};
    struct batch *b = calloc(1, sizeof *b);
    for (uint32_t n_stages = 1; n_stages <= 4; n_stages++) {
        struct pipeline *p;
        struct error err = {0};
        uint32_t kv_block = blocks[n_stages - 1], n_cached = 0, n_family = 0;
        const struct pipeline_options o = {.n_stages = n_stages, .create = create_fake, .slots = 4, .max_rows = 96,
                                           .n_layers = N_LAYERS, .kv_block = kv_block, .context = 256,
                                           .n_blocks = 600 / kv_block + 1};
        if (pipeline_open(&o, &p, &err) != STATUS_OK)
            fail_msg("%u stages: %s", n_stages, err.message);
        for (uint64_t round = 0; round < 8; round++) {
            fill_shared_batch(b, 900 * n_stages + round);
            if (pipeline_generate(p, b->r, N_REQUESTS, &err) != STATUS_OK)
                fail_msg("%u stages, round %u: %s", n_stages, (unsigned)round, err.message);
            check_batch(b);
            for (uint32_t i = 0; i < N_REQUESTS; i++) {
                assert_true(b->r[i].n_cached < b->r[i].n_prompt && (b->r[i].cache || b->r[i].n_cached == 0));
                n_cached += b->r[i].n_cached;
                n_family += b->r[i].n_cached > 0;
            }
            if (round == 4 && pipeline_raise_epoch(p, &err) != STATUS_OK) /* what was kept is forgotten on both sides */
                fail_msg("%s", err.message);
        }
        print_message("%u stages, blocks of %u: %u positions taken up by %u of %u\n", n_stages, kv_block, n_cached, n_family,
                      8 * N_REQUESTS);
        assert_true(n_family >= 8);
        pipeline_close(p);
    }
    free(b);
}

/* The next turn of a conversation finds prompt and answer of the one before. */
static void the_next_turn_reads_only_what_is_new(void **state)
{
    (void)state;
    enum { TURNS = 5, NEW = 21 };
    struct pipeline *p;
    struct error err = {0};
    uint32_t text[TURNS * (NEW + N_OUT)];
    int32_t got[N_OUT], want[N_OUT];
    const struct pipeline_options o = {.n_stages = 3, .create = create_fake, .slots = 2, .max_rows = 64, .n_layers = N_LAYERS};
    if (pipeline_open(&o, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    for (uint32_t turn = 0, n = 0; turn < TURNS; turn++) {
        uint32_t before = n;
        for (uint32_t i = 0; i < NEW; i++)
            text[n++] = (uint32_t)(rand_at(turn, i) % FAKE_VOCAB);
        struct pipeline_request r = {.prompt = text, .n_prompt = n, .n_out = N_OUT, .sampler = pipeline_greedy, .cache = 1,
                                     .out = got};
        fake_reference(N_LAYERS, &r.sampler, text, n, want, N_OUT);
        if (pipeline_generate(p, &r, 1, &err) != STATUS_OK)
            fail_msg("%s", err.message);
        assert_memory_equal(got, want, sizeof want);
        /* the last id of an answer has no row: it is read with the next turn */
        assert_int_equal(r.n_cached, before ? (before - 1) / 16 * 16 : 0);
        for (uint32_t i = 0; i < N_OUT; i++)
            text[n++] = (uint32_t)got[i];
    }
    pipeline_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_joined_in_memory_give_the_reference_text),
        cmocka_unit_test(stages_joined_by_unix_sockets_give_the_reference_text),
        cmocka_unit_test(stages_joined_by_tcp_give_the_reference_text),
        cmocka_unit_test(stages_joined_by_encrypted_links_give_the_reference_text),
        cmocka_unit_test(a_sequence_that_opens_on_a_cached_prefix_gives_the_reference_text),
        cmocka_unit_test(the_next_turn_reads_only_what_is_new),
    };
    log_set_levels("warn", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
