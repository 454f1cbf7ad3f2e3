/* A model whose layers see a window of 32 positions, but for every sixth: blocks behind the window are given back, and nothing
 * shows it but the room. What ids are right is computed with tables that nobody ever frees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/rand.h"
#include "stage/model_compute.h"
#include "tests/lib/chain.h"
#include "tests/lib/engine_bed.h"

enum { WAIT_MS = 60000, BLOCK = 16, WINDOW = 32, MAX_PROMPT = 400 };
#define MODEL SLUICE_VECTORS "/tiny/gemma3-f32.gguf"
#define FLAGS(...) (const char *const[]){"--kv-block", "16", "--max-rows", "32", __VA_ARGS__, NULL}

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    (void)stage;
    return model_compute_create(
        &(struct model_compute_options){.model_path = MODEL, .n_threads = 1, .kv_fd = -1, .skip_calibration = 0}, out, err);
}

static struct engine_bed *open_bed(uint32_t n_stages, const char *const *flags)
{
    const struct engine_bed_options o = {.model_path = MODEL, .n_stages = n_stages, .flags = flags, .create = create_model};
    struct engine_bed *b = engine_bed_open(&o);
    engine_bed_wait_ready(b);
    return b;
}

/* --- what is right ------------------------------------------------------------------------------------------------------------ */

static void run_rows(struct chain *c, struct chain_row *rows, uint32_t n)
{
    struct error err = {0};
    if (chain_run(c, rows, n, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

/* Greedy ids after r's prompt until r's number of them, by one stage, rows in pieces of 64, tables without holes. */
static void assert_right(const struct bed_request *r)
{
    struct chain *c;
    struct chain_row rows[64];
    struct error err = {0};
    uint32_t position = 0, id = 0;
    if (chain_open(&(struct chain_options){.model_path = MODEL, .context = 512, .n_seqs = 1, .kv_block = BLOCK}, &c, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    while (position < r->n_prompt) {
        uint32_t n = r->n_prompt - position < 64 ? r->n_prompt - position : 64;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct chain_row){.position = position + i, .id = r->prompt[position + i]};
        rows[n - 1].sampler = &chain_greedy;
        run_rows(c, rows, n);
        id = (uint32_t)rows[n - 1].sampled;
        position += n;
    }
    for (uint32_t i = 0; i < r->n_ids; i++) {
        assert_int_equal(r->ids[i], id);
        rows[0] = (struct chain_row){.position = position++, .id = id, .sampler = &chain_greedy};
        if (i + 1 < r->n_ids)
            run_rows(c, rows, 1);
        id = (uint32_t)rows[0].sampled;
    }
    chain_close(c);
}

static struct bed_request *start(struct engine_bed *b, uint64_t seed, const uint32_t *before, uint32_t n_before, uint32_t n, uint32_t n_out)
{
    uint32_t prompt[MAX_PROMPT];
    for (uint32_t i = 0; i < n_before; i++)
        prompt[i] = before[i];
    for (uint32_t i = n_before; i < n_before + n; i++)
        prompt[i] = 3 + (uint32_t)(rand_at(seed, i) % (tokenizer_n_vocab(engine_bed_tokenizer(b)) - 3));
    struct bed_request *r = bed_request_new(b, prompt, n_before + n, n_out);
    r->ignore_eos = 1;
    bed_submit(r);
    return r;
}

/* The next turn of a conversation. */
static struct bed_request *follow(struct engine_bed *b, const struct bed_request *r, uint64_t seed, uint32_t n, uint32_t n_out)
{
    uint32_t before[MAX_PROMPT];
    memcpy(before, r->prompt, r->n_prompt * sizeof *before);
    memcpy(before + r->n_prompt, r->ids, r->n_ids * sizeof *before);
    return start(b, seed, before, r->n_prompt + r->n_ids, n, n_out);
}

static void wait_well(struct bed_request *r, uint32_t n_out)
{
    bed_wait(r, WAIT_MS);
    if (r->end.status != STATUS_OK)
        fail_msg("%s", r->end.message);
    assert_int_equal(r->n_ids, n_out);
}

/* A value of the metrics page. */
static double metric(struct engine_bed *b, const char *series)
{
    struct buf page;
    buf_init(&page, 1 << 20);
    engine_metrics(engine_bed_engine(b), METRIC_ALIASES_NONE, &page);
    buf_append(&page, "", 1);
    char line[96]; /* the value's, not that of its description */
    snprintf(line, sizeof line, "\n%s", series);
    const char *at = page.data ? strstr(page.data, line) : NULL;
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    buf_fini(&page);
    return value;
}

/* --- tests -------------------------------------------------------------------------------------------------------------------- */

static void long_sequences_side_by_side_give_what_tables_without_holes_give(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 31, 33, 100, 230};
    for (uint32_t stages = 1; stages <= 3; stages++) {
        struct engine_bed *b = open_bed(stages, FLAGS("--slots", "3"));
        struct bed_request *r[5];
        for (uint32_t i = 0; i < 5; i++)
            r[i] = start(b, i + 1, NULL, 0, lengths[i], 120);
        for (uint32_t i = 0; i < 5; i++) {
            wait_well(r[i], 120);
            assert_right(r[i]);
            bed_request_free(r[i]);
        }
        engine_bed_assert_quiet(b);
        engine_bed_close(b);
    }
}

static void a_decoding_sequence_holds_its_window_and_no_more(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2, FLAGS("--slots", "1"));
    struct bed_request *r = start(b, 9, NULL, 0, 40, 400);
    double most = 0, paged = 0;
    while (!bed_ended(r)) {
        if (bed_n_ids(r) > 100) { /* pieces of the prompt have retired */
            double live = metric(b, "sluice_window_blocks{state=\"live\"} "), all = metric(b, "sluice_blocks{state=\"live\"} ");
            most = live > most ? live : most;
            paged = all > paged ? all : paged;
        }
        usleep(500);
    }
    wait_well(r, 400);
    assert_right(r);
    bed_request_free(r);
    print_message("at most %g live WINDOW blocks, %g of the other layers\n", most, paged);
    assert_true(most >= WINDOW / BLOCK && most <= WINDOW / BLOCK + 2); /* three ticks in flight touch one block more at most */
    assert_true(paged > 15);
    engine_bed_assert_quiet(b);
    assert_true(metric(b, "sluice_window_blocks{state=\"live\"} ") == 0);
    engine_bed_close(b);
}

static void a_next_turn_takes_up_what_the_last_one_left(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2, FLAGS("--slots", "2"));
    struct bed_request *r = start(b, 20, NULL, 0, 100, 40);
    wait_well(r, 40);
    assert_right(r);
    for (uint64_t turn = 0; turn < 4; turn++) {
        uint32_t known = r->n_prompt + r->n_ids - 1; /* the last id was never fed */
        struct bed_request *next = follow(b, r, 30 + turn, 10, 30);
        wait_well(next, 30);
        assert_int_equal(next->done.usage.cached_tokens, known / BLOCK * BLOCK);
        assert_right(next);
        bed_request_free(r);
        r = next;
    }
    bed_request_free(r);
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

static void two_that_share_a_beginning_share_its_window_until_they_leave_it(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(1, FLAGS("--slots", "3"));
    struct bed_request *first = start(b, 40, NULL, 0, 96, 2), *r[3];
    wait_well(first, 2);
    for (uint64_t i = 0; i < 3; i++)
        r[i] = start(b, 41 + i, first->prompt, 96, 5 + 40 * (uint32_t)i, 60);
    for (uint64_t i = 0; i < 3; i++) {
        wait_well(r[i], 60);
        assert_int_equal(r[i]->done.usage.cached_tokens, 96);
        assert_right(r[i]);
        bed_request_free(r[i]);
    }
    bed_request_free(first);
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

static void lost_stages_are_read_again_and_the_ids_are_the_same(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2, FLAGS("--slots", "3"));
    struct bed_request *r[3];
    for (uint32_t i = 0; i < 3; i++)
        r[i] = start(b, 50 + i, NULL, 0, 60 + 50 * i, 150);
    for (uint32_t round = 0; round < 3; round++) {
        while (bed_n_ids(r[0]) < 30 * (round + 1))
            usleep(500);
        engine_bed_kill_stage(b, round % 2);
        engine_bed_start_stage(b, round % 2);
        engine_bed_wait_ready(b);
    }
    for (uint32_t i = 0; i < 3; i++) {
        wait_well(r[i], 150);
        assert_right(r[i]);
        bed_request_free(r[i]);
    }
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

/* The stage's pool stays: what a stream had read is found again, in both groups. */
static void a_broken_stream_costs_no_reading(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2, FLAGS("--slots", "2"));
    struct bed_request *r = start(b, 60, NULL, 0, 200, 150);
    while (bed_n_ids(r) < 60)
        usleep(500);
    engine_bed_break_stream(b, 1);
    wait_well(r, 150);
    assert_right(r);
    assert_true(metric(b, "sluice_replayed_tokens_total ") < 3 * BLOCK);
    bed_request_free(r);
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

/* 40 blocks for three sequences that want 22 each: somebody is parked, and comes back. */
static void a_tight_pool_parks_and_changes_no_id(void **state)
{
    (void)state;
    struct engine_bed *b = open_bed(2, FLAGS("--slots", "3", "--kv-blocks", "40"));
    struct bed_request *r[6];
    for (uint32_t i = 0; i < 6; i++) {
        r[i] = start(b, 70 + i, NULL, 0, 60 + 10 * i, 230);
        r[i]->no_cache = 0;
    }
    for (uint32_t i = 0; i < 6; i++) {
        wait_well(r[i], 230);
        assert_right(r[i]);
        bed_request_free(r[i]);
    }
    assert_true(metric(b, "sluice_preemptions_total ") > 0);
    engine_bed_assert_quiet(b);
    engine_bed_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_sequences_side_by_side_give_what_tables_without_holes_give),
        cmocka_unit_test(a_decoding_sequence_holds_its_window_and_no_more),
        cmocka_unit_test(a_next_turn_takes_up_what_the_last_one_left),
        cmocka_unit_test(two_that_share_a_beginning_share_its_window_until_they_leave_it),
        cmocka_unit_test(lost_stages_are_read_again_and_the_ids_are_the_same),
        cmocka_unit_test(a_broken_stream_costs_no_reading),
        cmocka_unit_test(a_tight_pool_parks_and_changes_no_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
