/* KV room as the engine deals it out: what a prefix saves, who may share it, and who is parked when it runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/unit/engine/fake_bed.h"

static struct service_status status_of(struct bed *t)
{
    struct service_status *s = calloc(1, sizeof *s), out;
    assert_non_null(s);
    engine_status(engine_bed_engine(t->b), s);
    out = *s;
    free(s);
    return out;
}

/* A counter of the metrics page; its full name with labels. */
static double counter(struct bed *t, const char *name)
{
    struct buf page;
    engine_bed_assert_quiet(t->b); /* from here on the page is newer than the events */
    buf_init(&page, 8 << 20);
    engine_metrics(engine_bed_engine(t->b), METRIC_ALIASES_NONE, &page);
    assert_int_equal(buf_append(&page, "", 1), STATUS_OK);
    const char *line = page.data;
    size_t n = strlen(name);
    while (line && (strncmp(line, name, n) != 0 || line[n] != ' '))
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
    if (!line)
        fail_msg("no line %s", name);
    double v = strtod(line + n, NULL);
    buf_fini(&page);
    return v;
}

static void run(struct bed *t, struct bed_request *r)
{
    bed_submit(r);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->end.status, STATUS_OK);
    check_answer(t, r);
}

/* The same ids again, and `more` of them behind. */
static struct bed_request *follow(struct bed *t, const struct bed_request *before, uint32_t more, uint32_t n_out)
{
    uint32_t ids[512], n = before->n_prompt;
    memcpy(ids, before->prompt, n * sizeof *ids);
    for (uint32_t i = 0; i < before->n_ids && more; i++)
        ids[n++] = before->ids[i];
    for (uint32_t i = 0; i < more; i++)
        ids[n++] = below(FAKE_VOCAB);
    assert_true(n <= 512);
    return t->r[t->n++] = bed_request_new(t->b, ids, n, n_out);
}

static void a_next_turn_reads_only_what_is_new(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 3; stages++) {
        struct bed *t = bed_open(stages, "tick_us 100\n", FLAGS("--slots", "2"));
        struct bed_request *r = start(t, 50, 20);
        bed_wait(r, WAIT_MS);
        check_answer(t, r);
        assert_int_equal(r->done.usage.cached_tokens, 0);
        for (int turn = 0; turn < 5; turn++) {
            uint32_t known = r->n_prompt + r->n_ids - 1; /* the last id was never fed */
            r = follow(t, r, 30, 20);
            run(t, r);
            assert_int_equal(r->done.usage.cached_tokens, known / 16 * 16);
        }
        canary(t);
        engine_bed_assert_quiet(t->b);
        bed_close(t);
    }
}

static void the_same_prompt_again_computes_one_token_at_least(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "2"));
    static const uint32_t lengths[] = {16, 17, 64, 65, 100}, cached[] = {0, 16, 48, 64, 96};
    for (int i = 0; i < 5; i++) {
        struct bed_request *a = start(t, lengths[i], 4);
        bed_wait(a, WAIT_MS);
        struct bed_request *b = follow(t, a, 0, 4);
        b->sampler = a->sampler;
        run(t, b);
        assert_int_equal(b->done.usage.cached_tokens, cached[i]);
        assert_memory_equal(a->ids, b->ids, 4 * sizeof *a->ids);
    }
    double prompt = counter(t, "sluice_prompt_tokens_total"), hit = counter(t, "sluice_cached_tokens_total");
    assert_true(prompt == 2 * (16 + 17 + 64 + 65 + 100) - (16 + 48 + 64 + 96) && hit == 16 + 48 + 64 + 96);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void nobody_finds_what_another_tenant_left(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "2"));
    static const char *const clients[] = {"a", "b", "a", "c", "b"};
    static const uint32_t cached[] = {0, 0, 96, 0, 96};
    struct bed_request *first = add(t, 100, 4);
    for (int i = 0; i < 5; i++) {
        struct bed_request *r = i ? follow(t, first, 0, 4) : first;
        r->client = clients[i];
        run(t, r);
        assert_int_equal(r->done.usage.cached_tokens, cached[i]);
    }
    bed_close(t);
}

/* The names have the same 64-bit FNV-1a hash: a salt that anybody can compute is one that somebody will. */
static void names_that_were_chosen_to_collide_share_nothing(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\n", FLAGS("--slots", "2"));
    struct bed_request *mine = add(t, 100, 4);
    mine->client = "8yn0iYCKYHlIj4-BwPqk";
    run(t, mine);
    struct bed_request *theirs = follow(t, mine, 0, 4);
    theirs->client = "GReLUrM4wMqfg9yzV3KQ";
    run(t, theirs);
    assert_int_equal(theirs->done.usage.cached_tokens, 0);
    bed_close(t);
}

static void what_gave_bad_logits_is_not_found_again(void **state)
{
    (void)state;
    struct bed *t = bed_open(1, "tick_us 100\nbad_logits_tick 1\n", FLAGS("--slots", "2"));
    struct bed_request *bad = start(t, 64, 4);
    bed_wait(bad, WAIT_MS);
    assert_int_equal(bad->end.status, STATUS_BAD_LOGITS);
    struct bed_request *again = follow(t, bad, 1, 4);
    run(t, again);
    assert_int_equal(again->done.usage.cached_tokens, 0);
    bed_close(t);
}

static void a_request_without_cache_neither_takes_nor_leaves(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 100\n", FLAGS("--slots", "2"));
    struct bed_request *r = add(t, 100, 4);
    r->no_cache = 1;
    run(t, r);
    struct bed_request *second = follow(t, r, 0, 4);
    run(t, second);
    assert_int_equal(second->done.usage.cached_tokens, 0);
    struct bed_request *third = follow(t, r, 0, 4);
    third->no_cache = 1;
    run(t, third);
    assert_int_equal(third->done.usage.cached_tokens, 0);
    static struct service_status s;
    engine_bed_assert_quiet(t->b);
    engine_status(engine_bed_engine(t->b), &s);
    assert_int_equal(s.blocks_cached, 102 / 16); /* the second one's */
    bed_close(t);
}

/* Each needs 15 blocks of 16 in the end, and reserves 11 before any answer has ended. */
static void out_of_blocks_parks_the_young_and_changes_no_token(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 3; stages++) {
        struct bed *t = bed_open(stages, "tick_us 200\n", FLAGS("--slots", "4", "--kv-blocks", "34"));
        for (int i = 0; i < 12; i++)
            start(t, 40, 200);
        wait_all(t);
        for (uint32_t i = 0; i < t->n; i++) {
            assert_int_equal(t->r[i]->end.status, STATUS_OK);
            assert_true(i < 2 || t->r[0]->ended_ns <= t->r[i]->ended_ns); /* the oldest is never parked */
        }
        assert_true(counter(t, "sluice_preemptions_total") >= 1);
        assert_true(counter(t, "sluice_prompt_tokens_total") + counter(t, "sluice_cached_tokens_total") == 12 * 40);
        assert_true(counter(t, "sluice_replayed_tokens_total") <= 3 * 12 * 240);
        canary(t);
        engine_bed_assert_quiet(t->b);
        bed_close(t);
    }
}

static void the_batch_class_is_parked_first(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 200\n", FLAGS("--slots", "3", "--kv-blocks", "34"));
    struct bed_request *r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = add(t, 40, 200);
        r[i]->batch = i < 2; /* the oldest two; the first is spared for its age */
        bed_submit(r[i]);
    }
    wait_all(t);
    assert_true(r[1]->ended_ns > r[0]->ended_ns && r[1]->ended_ns > r[2]->ended_ns);
    assert_true(counter(t, "sluice_preemptions_total") >= 1);
    bed_close(t);
}

static void parked_ones_are_counted_and_can_leave(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 500\n", FLAGS("--slots", "4", "--kv-blocks", "34"));
    for (int i = 0; i < 4; i++)
        start(t, 40, 200);
    uint64_t parked = 0;
    for (int64_t end_ns = clock_now_ns() + 5 * NS_PER_S; parked == 0 && clock_now_ns() < end_ns; sleep_ms(1)) {
        struct service_status s = status_of(t);
        assert_int_equal(s.queued + s.reading + s.decoding + s.parked, s.accepted - s.done - s.failed - s.cancelled);
        parked = s.parked;
    }
    assert_true(parked > 0);
    for (uint32_t i = 1; i < t->n; i++)
        bed_cancel(t->r[i]);
    for (uint32_t i = 0; i < t->n; i++)
        bed_wait(t->r[i], WAIT_MS);
    assert_int_equal(t->r[0]->end.status, STATUS_OK);
    check_answer(t, t->r[0]);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void who_does_not_read_gives_way_to_those_who_do(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 200\n", FLAGS("--slots", "3", "--kv-blocks", "34"));
    for (int i = 0; i < 3; i++)
        start(t, 40, 200);
    wait_ids(t->r[0], 5);
    atomic_store(&t->r[0]->mute, 1); /* the oldest */
    for (int i = 1; i < 3; i++) {
        bed_wait(t->r[i], WAIT_MS);
        assert_int_equal(t->r[i]->request->n_parks, 0);
    }
    assert_int_equal(t->r[0]->request->n_parks, 1);
    struct bed_request *next = start(t, 20, 8); /* whoever waits for his client holds nobody up */
    bed_wait(next, WAIT_MS);
    atomic_store(&t->r[0]->mute, 0);
    wait_all(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

static void a_slow_reader_that_is_parked_goes_on_when_it_reads(void **state)
{
    (void)state;
    struct bed *t = bed_open(2, "tick_us 200\n", FLAGS("--slots", "4", "--kv-blocks", "34"));
    for (int i = 0; i < 8; i++) {
        struct bed_request *r = add(t, 40, 200);
        r->refuse_every = 3 + below(5);
        bed_submit(r);
    }
    wait_all(t);
    canary(t);
    engine_bed_assert_quiet(t->b);
    bed_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_next_turn_reads_only_what_is_new),
        cmocka_unit_test(the_same_prompt_again_computes_one_token_at_least),
        cmocka_unit_test(nobody_finds_what_another_tenant_left),
        cmocka_unit_test(names_that_were_chosen_to_collide_share_nothing),
        cmocka_unit_test(what_gave_bad_logits_is_not_found_again),
        cmocka_unit_test(a_request_without_cache_neither_takes_nor_leaves),
        cmocka_unit_test(out_of_blocks_parks_the_young_and_changes_no_token),
        cmocka_unit_test(the_batch_class_is_parked_first),
        cmocka_unit_test(parked_ones_are_counted_and_can_leave),
        cmocka_unit_test(who_does_not_read_gives_way_to_those_who_do),
        cmocka_unit_test(a_slow_reader_that_is_parked_goes_on_when_it_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
